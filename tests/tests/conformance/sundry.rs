//! Completion queues with their channel, shared receive queues, address handles.

use crate::device::{GID_INDEX, HANG, Side, errno_code};
use crate::memory::Mem;
use crate::names;
use ibverbs_sys::inline::{ibv_poll_cq, ibv_post_srq_recv, ibv_req_notify_cq};
use ibverbs_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_attr_mask as Mask, ibv_srq_init_attr, ibv_wc,
};
use std::ptr::null_mut;
use std::time::Instant;

/// A completion queue.
pub struct Cq {
    side: Side,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// Another value destroys it.
    lent: bool,
}

impl Cq {
    pub fn new(side: &Side, cqe: u32) -> Cq {
        Cq::try_new(side, cqe as i32, 0).expect("a completion queue can be made")
    }

    /// Or an errno.
    pub fn try_new(side: &Side, cqe: i32, vector: i32) -> Result<Cq, i32> {
        // SAFETY: the context is open; a channel without a queue is destroyed at once.
        unsafe {
            let channel = (side.api.ibv_create_comp_channel)(side.ctx);
            assert!(!channel.is_null(), "no channel");
            let cq = (side.api.ibv_create_cq)(side.ctx, cqe, null_mut(), channel, vector);
            let error = errno_code();
            if cq.is_null() {
                (side.api.ibv_destroy_comp_channel)(channel);
                return Err(error);
            }
            Ok(Cq::from_raw(side, cq, channel))
        }
    }

    /// One that was made in another way; `channel` may be null.
    pub fn from_raw(side: &Side, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) -> Cq {
        Cq {
            side: *side,
            cq,
            channel,
            lent: false,
        }
    }

    /// The same queue once more. It is destroyed by this value, after the last use of the other.
    pub fn lend(&self) -> Cq {
        let mut lent = Cq::from_raw(&self.side, self.cq, self.channel);
        lent.lent = true;
        lent
    }

    pub fn handle(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Entries.
    pub fn capacity(&self) -> i32 {
        // SAFETY: the queue is alive.
        unsafe { (*self.cq).cqe }
    }

    pub fn resize(&self, cqe: i32) -> i32 {
        // SAFETY: as above.
        unsafe { (self.side.api.ibv_resize_cq)(self.cq, cqe) }
    }

    pub fn poll(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        // SAFETY: as above; one entry is valid for writes.
        match unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } {
            0 => None,
            1 => Some(wc),
            error => panic!("polling failed: {error}"),
        }
    }

    /// Polls until nothing is there or polling fails; says how many there were.
    pub fn drain(&self) -> usize {
        let mut wc = ibv_wc::default();
        // SAFETY: the queue is alive; one entry is valid for writes.
        (0..)
            .take_while(|_| unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } == 1)
            .count()
    }

    pub fn next(&self) -> ibv_wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < HANG, "no completion comes");
            std::thread::yield_now();
        }
    }

    /// Ids and statuses of what waits now, else `none`.
    pub fn rest(&self) -> String {
        let mut all = Vec::new();
        while let Some(wc) = self.poll() {
            all.push(format!("{} {}", wc.wr_id, names::status(wc.status)));
        }
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }

    pub fn arm(&self, solicited_only: bool) {
        // SAFETY: the queue is alive.
        let result = unsafe { ibv_req_notify_cq(self.cq, solicited_only.into()) };
        assert_eq!(result, 0);
    }

    fn readable(&self, limit: i32) -> bool {
        let mut fd = libc::pollfd {
            // SAFETY: the channel is alive.
            fd: unsafe { (*self.channel).fd },
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&mut fd, 1, limit) == 1 }
    }

    /// Takes an event that comes before the limit for hangs, without acknowledging it.
    pub fn take_event(&self) {
        assert!(self.readable(HANG.as_millis() as i32), "no event");
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive, and has an event.
        let result =
            unsafe { (self.side.api.ibv_get_cq_event)(self.channel, &mut cq, &mut context) };
        assert_eq!((result, cq), (0, self.cq));
    }

    pub fn acknowledge(&self, count: u32) {
        // SAFETY: the queue is alive.
        unsafe { (self.side.api.ibv_ack_cq_events)(self.cq, count) };
    }

    /// Takes and acknowledges an event.
    pub fn event(&self) -> &'static str {
        self.take_event();
        self.acknowledge(1);
        "event"
    }

    /// Whether an event is there now, which is taken.
    pub fn event_now(&self) -> &'static str {
        match self.readable(0) {
            true => self.event(),
            false => "no event",
        }
    }

    /// Waits for an event that may not come.
    pub fn event_soon(&self) -> &'static str {
        match self.readable((HANG / 6).as_millis() as i32) {
            true => self.event(),
            false => "no event",
        }
    }

    /// Destroys the channel, which must not succeed while this queue lives.
    pub fn try_destroy_channel(&self) -> i32 {
        // SAFETY: the channel is alive; a success is noticed by the caller, who ends there.
        unsafe { (self.side.api.ibv_destroy_comp_channel)(self.channel) }
    }

    /// Destroys the queue alone.
    pub fn destroy(&mut self) -> i32 {
        // SAFETY: alive until this succeeds, and null afterwards.
        let result = unsafe { (self.side.api.ibv_destroy_cq)(self.cq) };
        if result == 0 {
            self.cq = null_mut();
        }
        result
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        let gone = self.cq.is_null() || self.destroy() == 0;
        if gone && !self.channel.is_null() {
            // SAFETY: alive, and without a queue.
            unsafe { (self.side.api.ibv_destroy_comp_channel)(self.channel) };
        }
    }
}

/// A shared receive queue.
pub struct Srq {
    side: Side,
    srq: *mut ibv_srq,
}

impl Srq {
    pub fn new(side: &Side, depth: u32) -> Srq {
        Srq::try_new(side, depth).expect("a shared receive queue can be made")
    }

    /// Or an errno.
    pub fn try_new(side: &Side, depth: u32) -> Result<Srq, i32> {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (depth, 2);
        // SAFETY: the domain is alive.
        let srq = unsafe { (side.api.ibv_create_srq)(side.pd, &mut init) };
        if srq.is_null() {
            return Err(errno_code());
        }
        Ok(Srq { side: *side, srq })
    }

    pub fn handle(&self) -> *mut ibv_srq {
        self.srq
    }

    pub fn post_recv(&self, id: u64, mut sges: Vec<ibv_sge>) -> i32 {
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        // SAFETY: the queue is alive, the request until the call returns.
        unsafe { ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut()) }
    }

    pub fn recv(&self, id: u64, mem: &Mem, offset: usize, len: usize) {
        assert_eq!(self.post_recv(id, vec![mem.sge(offset, len)]), 0);
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: Mask) -> i32 {
        // SAFETY: the queue is alive.
        unsafe { (self.side.api.ibv_modify_srq)(self.srq, &mut attr, mask.0 as i32) }
    }

    pub fn limit(&self, srq_limit: u32) -> i32 {
        let attr = ibv_srq_attr {
            srq_limit,
            ..Default::default()
        };
        self.modify(attr, Mask::IBV_SRQ_LIMIT)
    }

    pub fn resize(&self, max_wr: u32) -> i32 {
        let attr = ibv_srq_attr {
            max_wr,
            ..Default::default()
        };
        self.modify(attr, Mask::IBV_SRQ_MAX_WR)
    }

    pub fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the queue is alive, `attr` valid for writes.
        let result = unsafe { (self.side.api.ibv_query_srq)(self.srq, &mut attr) };
        assert_eq!(result, 0);
        attr
    }

    pub fn destroy(&mut self) -> i32 {
        // SAFETY: alive until this succeeds, and null afterwards.
        let result = unsafe { (self.side.api.ibv_destroy_srq)(self.srq) };
        if result == 0 {
            self.srq = null_mut();
        }
        result
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.srq.is_null() {
            self.destroy();
        }
    }
}

/// An address handle.
pub struct Ah {
    side: Side,
    ah: *mut ibv_ah,
}

impl Ah {
    /// From one device to another.
    pub fn new(from: &Side, to: &Side) -> Ah {
        Ah::try_new(from, Ah::attr(to)).expect("an address handle can be made")
    }

    /// Or an errno.
    pub fn try_new(side: &Side, mut attr: ibv_ah_attr) -> Result<Ah, i32> {
        // SAFETY: the domain is alive.
        let ah = unsafe { (side.api.ibv_create_ah)(side.pd, &mut attr) };
        if ah.is_null() {
            return Err(errno_code());
        }
        Ok(Ah { side: *side, ah })
    }

    /// The way to a device.
    pub fn attr(to: &Side) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr {
            port_num: 1,
            is_global: 1,
            ..Default::default()
        };
        attr.grh.dgid = to.gid;
        (attr.grh.sgid_index, attr.grh.hop_limit) = (GID_INDEX, 7);
        attr
    }

    /// The way back to where a message came from, by its header at the beginning of `mem`.
    pub fn answer(side: &Side, wc: &mut ibv_wc, mem: &Mem) -> Ah {
        let mut grh = [0u64; 5];
        let bytes = mem.get(0, 40);
        for (word, bytes) in grh.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        // SAFETY: the domain is alive; the header is 40 aligned bytes.
        let ah =
            unsafe { (side.api.ibv_create_ah_from_wc)(side.pd, wc, grh.as_mut_ptr().cast(), 1) };
        assert!(
            !ah.is_null(),
            "no address handle: {}",
            names::errno(errno_code())
        );
        Ah { side: *side, ah }
    }

    pub fn handle(&self) -> *mut ibv_ah {
        self.ah
    }
}

impl Ah {
    /// Destroys it.
    pub fn destroy(self) -> i32 {
        let ah = std::mem::ManuallyDrop::new(self);
        // SAFETY: the last use, as the value is not dropped any more.
        unsafe { (ah.side.api.ibv_destroy_ah)(ah.ah) }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: the last use.
        unsafe { (self.side.api.ibv_destroy_ah)(self.ah) };
    }
}

/// Waits until something holds; the limit is there for those for which it never does.
pub fn becomes(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > HANG / 6 {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
