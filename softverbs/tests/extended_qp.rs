//! Work requests that are built by calls.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::inline::*;
use ibverbs_sys::*;
use second::{SIZE, Second, pattern, serve};
use softverbs::memory::Kind;

use ibv_qp_create_send_ops_flags as Ops;
use ibv_qp_init_attr_mask as Mask;
use ibv_wc_opcode as Wc;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// All operations of a reliable connection.
const RC: u64 = 0x7f;
/// Those of datagrams.
const UD: u64 = (Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0) as u64;

unsafe fn create(dev: &Dev, init: &ibv_qp_init_attr, mask: u32, ops: u64) -> *mut ibv_qp {
    let mut ex = ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: mask,
        pd: dev.pd,
        send_ops_flags: ops,
        ..Default::default()
    };
    unsafe { ibv_create_qp_ex(api(), dev.ctx, &mut ex) }
}

const EXTENDED: u32 = Mask::IBV_QP_INIT_ATTR_PD.0 | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;

fn extended(dev: &Dev, o: &Options, ops: u64) -> (End, *mut ibv_qp_ex) {
    let end = End::with(dev, o, |init| unsafe { create(dev, init, EXTENDED, ops) });
    let ex = unsafe { (api().ibv_qp_to_qp_ex.unwrap())(end.qp) };
    assert!(!ex.is_null());
    (end, ex)
}

/// Names the next request.
unsafe fn name(qp: *mut ibv_qp_ex, id: u64, flags: u32) {
    unsafe { ((*qp).wr_id, (*qp).wr_flags) = (id, flags) };
}

#[test]
fn all_operations_in_one_batch() {
    let dev = Dev::open();
    let o = Options::default();
    let (a, qp) = extended(&dev, &o, RC);
    let b = End::new(&dev, &o);
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    let from = Mem::plain(&dev, 4096, LOCAL);
    let to = Mem::plain(&dev, 4096, LOCAL | READ | WRITE | ATOMIC);
    from.fill(0, &pattern(1, 2000));
    to.fill(2048, &pattern(2, 512));
    to.fill(4080, &7u64.to_ne_bytes());
    for id in 0..3 {
        assert_eq!(b.recv(id, &mut [to.sge(id as usize * 256, 256)]), 0);
    }
    let (addr, key) = (to.addr(), to.key());
    let (la, lk) = (from.addr(), from.key());
    let mut inline = pattern(3, 40);
    unsafe {
        ibv_wr_start(qp);
        name(qp, 1, SIGNALED);
        ibv_wr_send(qp);
        let list = [from.sge(0, 100), from.sge(100, 50)];
        ibv_wr_set_sge_list(qp, 2, list.as_ptr());
        name(qp, 2, SIGNALED);
        ibv_wr_send_imm(qp, 0x2222);
        ibv_wr_set_inline_data(qp, inline.as_mut_ptr().cast(), 40);
        // Taken already.
        inline.fill(0);
        name(qp, 3, SIGNALED);
        ibv_wr_rdma_write(qp, key, addr + 1024);
        ibv_wr_set_sge(qp, lk, la, 512);
        name(qp, 4, SIGNALED);
        ibv_wr_rdma_write_imm(qp, key, addr + 1536, 0x4444);
        ibv_wr_set_sge(qp, lk, la, 256);
        name(qp, 5, SIGNALED);
        ibv_wr_rdma_read(qp, key, addr + 2048);
        ibv_wr_set_sge(qp, lk, la + 2048, 512);
        name(qp, 6, SIGNALED);
        ibv_wr_atomic_fetch_add(qp, key, addr + 4080, 5);
        ibv_wr_set_sge(qp, lk, la + 4000, 8);
        name(qp, 7, SIGNALED);
        ibv_wr_atomic_cmp_swp(qp, key, addr + 4080, 12, 99);
        ibv_wr_set_sge(qp, lk, la + 4008, 8);
        // Nothing is posted before the end.
        assert!(a.poll().is_none() && b.poll().is_none());
        assert_eq!(ibv_wr_complete(qp), 0);
    }
    let done: Vec<_> = (0..7).map(|_| a.next()).collect();
    let opcodes = [
        Wc::IBV_WC_SEND,
        Wc::IBV_WC_SEND,
        Wc::IBV_WC_RDMA_WRITE,
        Wc::IBV_WC_RDMA_WRITE,
        Wc::IBV_WC_RDMA_READ,
        Wc::IBV_WC_FETCH_ADD,
        Wc::IBV_WC_COMP_SWAP,
    ];
    for (i, wc) in done.iter().enumerate() {
        assert_eq!(
            (wc.status, wc.wr_id, wc.opcode),
            (OK, i as u64 + 1, opcodes[i])
        );
    }
    let arrived = [b.next(), b.next(), b.next()];
    assert_eq!(arrived.map(|wc| wc.byte_len), [150, 40, 256]);
    assert_eq!(unsafe { arrived[1].__bindgen_anon_1.imm_data }, 0x2222);
    assert_eq!(unsafe { arrived[2].__bindgen_anon_1.imm_data }, 0x4444);
    assert_eq!(to.get(0, 150), pattern(1, 2000)[..150]);
    assert_eq!(to.get(256, 40), pattern(3, 40));
    assert_eq!(to.get(1024, 512), pattern(1, 2000)[..512]);
    assert_eq!(to.get(1536, 256), pattern(1, 2000)[..256]);
    assert_eq!(from.get(2048, 512), pattern(2, 512));
    let word = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap());
    assert_eq!([4000, 4008].map(|at| word(from.get(at, 8))), [7, 12]);
    assert_eq!(word(to.get(4080, 8)), 99);
}

/// A batch is posted whole or not at all.
#[test]
fn all_or_nothing() {
    let dev = Dev::open();
    let o = Options {
        depth: 4,
        ..Options::default()
    };
    let (a, qp) = extended(&dev, &o, RC);
    let b = End::new(&dev, &o);
    let mem = Mem::plain(&dev, 256, LOCAL);
    let send = |id: u64| unsafe {
        name(qp, id, SIGNALED);
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, mem.key(), mem.addr(), 8);
    };
    let batch = |count: u64, then: &dyn Fn()| unsafe {
        ibv_wr_start(qp);
        (0..count).for_each(send);
        then();
        ibv_wr_complete(qp)
    };
    assert_eq!(batch(1, &|| ()), libc::EINVAL, "not in RTS");
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    for id in 0..4 {
        assert_eq!(b.recv(id, &mut [mem.sge(128, 8)]), 0);
    }
    let mut long = [0u8; 300];
    let long = long.as_mut_ptr();
    let setter = |set: &dyn Fn()| batch(2, &|| set());
    let too_long = || unsafe { ibv_wr_set_inline_data(qp, long.cast(), 65) };
    assert_eq!(setter(&too_long), libc::EINVAL, "more than max_inline_data");
    let pieces = [ibv_data_buf {
        addr: long.cast(),
        length: 33,
    }; 2];
    let list = || unsafe { ibv_wr_set_inline_data_list(qp, 2, pieces.as_ptr()) };
    assert_eq!(setter(&list), libc::EINVAL, "the same in pieces");
    let sges = [mem.sge(0, 1); 5];
    let many = || unsafe { ibv_wr_set_sge_list(qp, 5, sges.as_ptr()) };
    assert_eq!(setter(&many), libc::EINVAL, "more than max_send_sge");
    assert_eq!(
        batch(5, &|| ()),
        libc::ENOMEM,
        "more than there is room for"
    );
    unsafe {
        ibv_wr_start(qp);
        ibv_wr_set_sge(qp, mem.key(), mem.addr(), 8);
        assert_eq!(ibv_wr_complete(qp), libc::EINVAL, "of no request");
        ibv_wr_start(qp);
        send(1);
        ibv_wr_abort(qp);
        ibv_wr_start(qp);
        assert_eq!(ibv_wr_complete(qp), 0, "nothing at all");
    }
    assert!(a.poll().is_none() && b.poll().is_none());
    assert_eq!(batch(4, &|| ()), 0);
    for id in 0..4 {
        assert_eq!((a.next().wr_id, b.next().wr_id), (id, id));
    }
}

#[test]
fn only_what_was_asked_for() {
    let dev = Dev::open();
    let (a, qp) = extended(&dev, &Options::default(), UD);
    unsafe {
        assert!((*qp).wr_send.is_some() && (*qp).wr_rdma_write.is_none());
        assert!((*qp).wr_set_ud_addr.is_none(), "of datagrams only");
        let plain = End::new(&dev, &Options::default());
        assert!((api().ibv_qp_to_qp_ex.unwrap())(plain.qp).is_null());
        let mut init = ibv_qp_init_attr {
            send_cq: a.cq,
            recv_cq: a.cq,
            qp_type: ibv_qp_type::IBV_QPT_UD,
            ..Default::default()
        };
        let refused = |init: &ibv_qp_init_attr, mask: u32, ops: u64, errno: i32| {
            let qp = create(&dev, init, mask, ops);
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((qp.is_null(), error), (true, Some(errno)));
        };
        refused(&init, EXTENDED, RC, libc::EOPNOTSUPP);
        init.qp_type = ibv_qp_type::IBV_QPT_UC;
        refused(&init, EXTENDED, RC, libc::EOPNOTSUPP);
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        let bind = Ops::IBV_QP_EX_WITH_BIND_MW.0.into();
        refused(&init, EXTENDED, bind, libc::EOPNOTSUPP);
        refused(
            &init,
            EXTENDED | Mask::IBV_QP_INIT_ATTR_XRCD.0,
            4,
            libc::EOPNOTSUPP,
        );
        let no_domain = Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        refused(&init, no_domain, 4, libc::EINVAL);
        // Nothing of a refused one is left: the completion queue's use is not counted.
    }
}

#[test]
fn datagrams() {
    let dev = Dev::open();
    let o = ud();
    let (a, qp) = extended(&dev, &o, UD);
    let b = End::new(&dev, &o);
    a.connect(0, &o);
    b.connect(0, &o);
    let ah = Ah::new(&dev, 1);
    let mem = Mem::plain(&dev, 256, LOCAL);
    for id in 0..2 {
        assert_eq!(b.recv(id, &mut [mem.sge(0, 128)]), 0);
    }
    unsafe {
        ibv_wr_start(qp);
        name(qp, 1, SIGNALED);
        ibv_wr_send_imm(qp, 5);
        ibv_wr_set_ud_addr(qp, ah.0, b.qpn(), QKEY);
        ibv_wr_set_sge(qp, mem.key(), mem.addr() + 128, 16);
        name(qp, 2, SIGNALED);
        ibv_wr_send(qp);
        ibv_wr_set_ud_addr(qp, ah.0, b.qpn(), QKEY ^ 1);
        ibv_wr_set_sge(qp, mem.key(), mem.addr() + 128, 16);
        assert_eq!(ibv_wr_complete(qp), 0);
        assert_eq!(
            [a.next(), a.next()].map(|wc| (wc.status, wc.wr_id)),
            [(OK, 1), (OK, 2)]
        );
        assert_eq!((b.next().byte_len, b.poll().is_none()), (56, true));
        // Without an address.
        ibv_wr_start(qp);
        ibv_wr_send(qp);
        assert_eq!(ibv_wr_complete(qp), libc::EINVAL);
    }
}

#[test]
fn to_another_process() {
    let dev = Dev::open();
    let o = Options::default();
    let mut second = Second::start(&[]);
    let (end, qp) = extended(&dev, &o, RC);
    second.ask(&format!("connect {}", end.qpn()));
    end.connect(second.qpn, &o);
    let mem = Mem::file(&dev, SIZE, LOCAL, Kind::Private);
    for len in [8, 300, SIZE] {
        mem.fill(0, &pattern(len, len));
        second.ask(&format!("recv 3 1 {SIZE}"));
        let (addr, key) = second.mem[2];
        unsafe {
            ibv_wr_start(qp);
            name(qp, 1, 0);
            ibv_wr_rdma_write(qp, key, addr);
            ibv_wr_set_sge(qp, mem.key(), mem.addr(), len as u32);
            name(qp, 2, SIGNALED);
            ibv_wr_send(qp);
            ibv_wr_set_sge(qp, mem.key(), mem.addr(), len as u32);
            assert_eq!(ibv_wr_complete(qp), 0);
        }
        let wc = end.next();
        assert_eq!((wc.status, wc.wr_id), (OK, 2));
        assert_eq!(second.ask("next"), format!("0 3 {len}"));
        for kind in [1, 2] {
            assert_eq!(second.ask(&format!("check {kind} {len} {len}")), "true");
        }
    }
}

/// Threads that build at the same time do not mix their batches.
#[test]
fn threads_take_turns() {
    struct Qp(*mut ibv_qp_ex);
    unsafe impl Sync for Qp {}
    let dev = Dev::open();
    let o = Options {
        depth: 64,
        ..Options::default()
    };
    let (a, qp) = extended(&dev, &o, RC);
    let b = End::new(&dev, &o);
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    for id in 0..60 {
        assert_eq!(b.recv(id, &mut [mem.sge(0, 8)]), 0);
    }
    let qp = Qp(qp);
    let qp = &qp;
    let start = &std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        for thread in 0..2u32 {
            s.spawn(move || {
                for round in 0..10 {
                    unsafe {
                        start.wait();
                        ibv_wr_start(qp.0);
                        for i in 0..3 {
                            name(qp.0, 0, SIGNALED);
                            ibv_wr_send_imm(qp.0, thread << 16 | round << 8 | i);
                            // Time for the other to come in between.
                            (0..200).for_each(|_| std::thread::yield_now());
                        }
                        assert_eq!(ibv_wr_complete(qp.0), 0);
                    }
                }
            });
        }
    });
    for _ in 0..20 {
        let [x, y, z] =
            [b.next(), b.next(), b.next()].map(|wc| unsafe { wc.__bindgen_anon_1.imm_data });
        assert_eq!((y, z), (x + 1, x + 2));
    }
}
