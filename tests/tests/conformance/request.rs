//! Work requests for sending.

use crate::memory::Mem;
use crate::names;
use crate::queue::End;
use crate::sundry::Ah;
use ibverbs_sys::{ibv_send_flags as Flags, ibv_send_wr, ibv_sge, ibv_wr_opcode as Op};
use std::ptr::null_mut;

/// A request that completes, unless [`Request::silent`].
pub struct Request {
    wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
}

/// A SEND of the whole.
pub fn send(id: u64, mem: &Mem, len: usize) -> Request {
    Request::new(id, Op::IBV_WR_SEND).sge(mem.sge(0, len))
}

/// To memory of the peer.
pub fn write(id: u64, from: ibv_sge, to: &Mem) -> Request {
    Request::new(id, Op::IBV_WR_RDMA_WRITE)
        .sge(from)
        .remote(to.addr(), to.rkey())
}

/// From memory of the peer.
pub fn read(id: u64, into: ibv_sge, from: &Mem) -> Request {
    Request::new(id, Op::IBV_WR_RDMA_READ)
        .sge(into)
        .remote(from.addr(), from.rkey())
}

/// Compare and swap.
pub fn swap(id: u64, old: &Mem, word: &Mem, compare: u64, swap: u64) -> Request {
    let request = Request::new(id, Op::IBV_WR_ATOMIC_CMP_AND_SWP).sge(old.sge(0, 8));
    request.atomic(word.addr(), word.rkey(), compare, swap)
}

/// Fetch and add.
pub fn add(id: u64, old: &Mem, word: &Mem, add: u64) -> Request {
    let request = Request::new(id, Op::IBV_WR_ATOMIC_FETCH_AND_ADD).sge(old.sge(0, 8));
    request.atomic(word.addr(), word.rkey(), add, 0)
}

impl Request {
    pub fn new(id: u64, opcode: Op) -> Request {
        Request {
            wr: ibv_send_wr {
                wr_id: id,
                opcode,
                send_flags: Flags::IBV_SEND_SIGNALED.0,
                ..Default::default()
            },
            sges: Vec::new(),
        }
    }

    pub fn sge(mut self, sge: ibv_sge) -> Request {
        self.sges.push(sge);
        self
    }

    /// Another address or key of the peer's.
    pub fn remote(mut self, addr: u64, rkey: u32) -> Request {
        self.wr.wr.rdma.remote_addr = addr;
        self.wr.wr.rdma.rkey = rkey;
        self
    }

    fn atomic(mut self, addr: u64, rkey: u32, compare_add: u64, swap: u64) -> Request {
        self.wr.wr.atomic.remote_addr = addr;
        self.wr.wr.atomic.rkey = rkey;
        self.wr.wr.atomic.compare_add = compare_add;
        self.wr.wr.atomic.swap = swap;
        self
    }

    /// Another address of an atomic's word.
    pub fn at(mut self, addr: u64) -> Request {
        self.wr.wr.atomic.remote_addr = addr;
        self
    }

    /// Another key of an atomic's word.
    pub fn key(mut self, rkey: u32) -> Request {
        self.wr.wr.atomic.rkey = rkey;
        self
    }

    /// Another length of the first segment.
    pub fn length(mut self, len: u32) -> Request {
        self.sges[0].length = len;
        self
    }

    /// The same operation with immediate data, in network byte order.
    pub fn imm(mut self, imm: u32) -> Request {
        self.wr.opcode = match self.wr.opcode {
            Op::IBV_WR_SEND => Op::IBV_WR_SEND_WITH_IMM,
            Op::IBV_WR_RDMA_WRITE => Op::IBV_WR_RDMA_WRITE_WITH_IMM,
            other => other,
        };
        self.wr.__bindgen_anon_1.imm_data = imm.to_be();
        self
    }

    /// A datagram's destination.
    pub fn ud(mut self, ah: &Ah, qpn: u32, qkey: u32) -> Request {
        self.wr.wr.ud.ah = ah.handle();
        self.wr.wr.ud.remote_qpn = qpn;
        self.wr.wr.ud.remote_qkey = qkey;
        self
    }

    /// Completes only if it fails.
    pub fn silent(mut self) -> Request {
        self.wr.send_flags &= !Flags::IBV_SEND_SIGNALED.0;
        self
    }

    pub fn inline(self) -> Request {
        self.flag(Flags::IBV_SEND_INLINE)
    }

    pub fn fence(self) -> Request {
        self.flag(Flags::IBV_SEND_FENCE)
    }

    pub fn solicited(self) -> Request {
        self.flag(Flags::IBV_SEND_SOLICITED)
    }

    fn flag(mut self, flag: Flags) -> Request {
        self.wr.send_flags |= flag.0;
        self
    }

    /// Posts it.
    pub fn post(self, end: &End) -> i32 {
        post_all(end, vec![self]).0
    }

    /// Posts it. Says why it was not taken, else how it completes.
    pub fn outcome(self, end: &End) -> String {
        match self.post(end) {
            0 => end.status(),
            error => names::errno(error),
        }
    }

    /// Posts it, which must be taken.
    pub fn go(self, end: &End) {
        let result = self.post(end);
        assert_eq!(result, 0, "a request was not taken");
    }
}

/// Posts a chain. Gives the result, and the id of the first request that was not taken.
pub fn post_all(end: &End, mut chain: Vec<Request>) -> (i32, Option<u64>) {
    let mut next = null_mut();
    for request in chain.iter_mut().rev() {
        request.wr.sg_list = request.sges.as_mut_ptr();
        request.wr.num_sge = request.sges.len() as i32;
        request.wr.next = next;
        next = &raw mut request.wr;
    }
    end.post_chain(next)
}
