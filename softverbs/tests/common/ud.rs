//! Datagrams.

use super::{Dev, End, Mem, OK, Options, QKEY, SIGNALED, api, wr};
use ibv_wr_opcode as Op;
use ibverbs_sys::*;

/// What lies before a message.
pub const GRH: usize = 40;
/// The longest message.
pub const MTU: usize = 4096;

/// Options of a queue pair for datagrams.
pub fn ud() -> Options {
    Options {
        qp_type: ibv_qp_type::IBV_QPT_UD,
        ..Options::default()
    }
}

/// An address handle.
pub struct Ah(pub *mut ibv_ah);

impl Ah {
    /// Of the device's own GID at this index.
    pub fn new(dev: &Dev, index: u8) -> Ah {
        let ah = unsafe { (api().ibv_create_ah)(dev.pd, &mut Ah::attr(dev.ctx, index)) };
        assert!(!ah.is_null(), "{}", std::io::Error::last_os_error());
        Ah(ah)
    }

    pub fn attr(ctx: *mut ibv_context, index: u8) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr {
            port_num: 1,
            is_global: 1,
            ..Default::default()
        };
        (attr.grh.sgid_index, attr.grh.hop_limit) = (index, 7);
        let gid = &mut attr.grh.dgid;
        assert_eq!(
            unsafe { (api().ibv_query_gid)(ctx, 1, index.into(), gid) },
            0
        );
        attr
    }

    /// A datagram.
    pub fn to(&self, qpn: u32, op: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
        let mut wr = wr(1, op, sges, SIGNALED);
        wr.wr.ud.ah = self.0;
        (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (qpn, QKEY);
        wr
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        assert_eq!(unsafe { (api().ibv_destroy_ah)(self.0) }, 0);
    }
}

/// A queue pair that sends and receives.
pub fn datagram_end(dev: &Dev, o: &Options) -> End {
    let end = End::new(dev, o);
    end.connect(0, o);
    end
}

pub fn send_datagram(end: &End, ah: &Ah, to: u32, mem: &Mem, len: usize) {
    let mut sges = [mem.sge(0, len)];
    assert_eq!(end.post(&mut ah.to(to, Op::IBV_WR_SEND, &mut sges)), 0);
    let wc = end.next();
    assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
}

/// An address handle by what arrived, made in both ways.
pub fn answer(dev: &Dev, wc: &mut ibv_wc, mem: &Mem) -> Ah {
    let mut attr = ibv_ah_attr::default();
    let mut header = grh(mem);
    unsafe {
        let rc = (api().ibv_init_ah_from_wc)(dev.ctx, 1, wc, &mut header, &mut attr);
        assert_eq!(rc, 0);
        assert_eq!((attr.is_global, attr.port_num), (1, 1));
        Ah((api().ibv_create_ah_from_wc)(dev.pd, wc, &mut header, 1))
    }
}

/// The header that lies at the beginning.
pub fn grh(mem: &Mem) -> ibv_grh {
    let bytes: [u8; GRH] = mem.get(0, GRH).try_into().unwrap();
    unsafe { std::mem::transmute(bytes) }
}
