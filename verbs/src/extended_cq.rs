//! Completion queues that are read field by field: `ibv_create_cq_ex`, and `ibv_start_poll` with what belongs to it.
//!
//! Invariants, which the blocks here rely on:
//!
//! * A reader exists for each field that the queue was created with; that was checked when it was created.
//! * Between a successful start and the end of a poll nobody else polls: both the queue's one handle and a cursor, which borrows it
//!   mutably, see to it.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, ThreadId};

use ibverbs_sys::inline as verbs;
use ibverbs_sys::{
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags as sys, ibv_poll_cq_attr,
    ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};

use parking_lot::Mutex;

use crate::wc::Origin;
use crate::{Context, Error, errno};

bitflags::bitflags! {
    /// What an extended completion queue tells besides length, immediate data and queue pair: see
    /// [`CqBuilder::extended`](crate::CqBuilder::extended).
    ///
    /// Source: `ibv_create_cq_ex(3)`.
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WcFields: u64 {
        /// Who sent what was received: needed by queue pairs for datagrams.
        const SOURCE = (sys::IBV_WC_EX_WITH_SRC_QP.0
            | sys::IBV_WC_EX_WITH_SLID.0
            | sys::IBV_WC_EX_WITH_SL.0
            | sys::IBV_WC_EX_WITH_DLID_PATH_BITS.0) as u64;
        /// The device's clock when the work completed.
        const COMPLETION_TIME = sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// The time of day when the work completed.
        const WALL_CLOCK = sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

/// Without these no completion could be redeemed.
const ALWAYS: u64 = (sys::IBV_WC_EX_WITH_BYTE_LEN.0
    | sys::IBV_WC_EX_WITH_IMM.0
    | sys::IBV_WC_EX_WITH_QP_NUM.0) as u64;

/// How often to ask for a clock that is being changed, which takes no time.
const PATIENCE: u32 = 100_000;

/// When a piece of work completed, as far as asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) ticks: Option<u64>,
    pub(crate) wall: Option<u64>,
}

/// What an extended completion queue has besides a plain one.
pub(crate) struct Extended {
    fields: WcFields,
    /// A failure in the middle of a poll, for the next one to report; 0 for none.
    failed: AtomicI32,
    /// Who has begun a poll that is not ended. Devices may hold a lock from one to the other, so it ends where it began.
    open: Mutex<Option<ThreadId>>,
}

impl Extended {
    pub(crate) fn fields(&self) -> WcFields {
        self.fields
    }

    /// Creates a queue that is read field by field.
    #[doc(alias = "ibv_create_cq_ex")]
    pub(crate) fn create(
        ctx: &Context,
        fields: WcFields,
        init: &mut ibv_cq_init_attr_ex,
    ) -> Result<(NonNull<ibv_cq>, Extended), Error> {
        let what = match fields.difference(WcFields::SOURCE).is_empty() {
            true => "completion queues that are read field by field (ibv_create_cq_ex)",
            false => "completion queues with time stamps (ibv_create_cq_ex)",
        };
        let cqe = init.cqe;
        let refused = |e| {
            let hint = format!("{cqe} entries, with {fields:?}");
            Error::unless_unsupported(ctx.device_name(), what, "ibv_create_cq_ex", e, hint)
        };
        init.wc_flags = ALWAYS | fields.bits();
        // SAFETY: the device is open, the attributes are complete.
        let cq = errno::object(unsafe { verbs::ibv_create_cq_ex(ctx.raw(), init) });
        let cq = cq.map_err(refused)?;
        // SAFETY: just created.
        if !unsafe { complete(cq.as_ref(), fields) } {
            // SAFETY: as above, and not used again.
            unsafe { (ctx.api().ibv_destroy_cq)(cq.as_ptr().cast()) };
            return Err(refused(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        let extended = Extended {
            fields,
            failed: AtomicI32::new(0),
            open: Mutex::new(None),
        };
        Ok((cq.cast(), extended))
    }

    /// As `ibv_poll_cq`, of a queue created above that nobody else polls.
    ///
    /// # Safety
    /// The queue is alive, nobody else polls it, and no cursor of a poll is left.
    #[inline(never)]
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, into: &mut [ibv_wc]) -> i32 {
        let cq = cq.cast();
        if into.is_empty() {
            return 0;
        }
        // SAFETY: the caller's contract.
        match unsafe { self.start(cq) } {
            0 => {}
            libc::ENOENT => return 0,
            errno => return -errno.abs(),
        }
        let (mut got, most) = (0, into.len());
        for wc in into {
            // SAFETY: a poll is open and shows a completion.
            unsafe { self.read(cq, wc) };
            got += 1;
            // What is shown is taken: never step further than there is room.
            if got == most {
                break;
            }
            // SAFETY: as above.
            if unsafe { self.next(cq) } != 0 {
                break;
            }
        }
        // SAFETY: it is open.
        unsafe { self.end(cq) };
        got as i32
    }

    /// Begins a poll: 0, `ENOENT`, or what went wrong, now or in the poll before. A poll whose cursor was forgotten is ended first.
    ///
    /// # Safety
    /// As [`poll`](Self::poll).
    pub(crate) unsafe fn start(&self, cq: *mut ibv_cq_ex) -> i32 {
        // SAFETY: the caller's contract.
        if !unsafe { self.end_forgotten(cq) } {
            return libc::EDEADLK;
        }
        let failed = self.failed.swap(0, Ordering::Relaxed);
        if failed != 0 {
            return failed;
        }
        let mut ret = libc::EBUSY;
        for _ in 0..PATIENCE {
            // SAFETY: as above.
            ret = unsafe { verbs::ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()) };
            // ibv_create_cq_ex(3): the clock is being changed; the queue is as it was.
            if ret != libc::EBUSY {
                break;
            }
            thread::yield_now();
        }
        if ret == 0 {
            *self.open.lock() = Some(thread::current().id());
        }
        ret
    }

    /// Ends a poll.
    ///
    /// # Safety
    /// A poll is open.
    #[doc(alias = "ibv_end_poll")]
    pub(crate) unsafe fn end(&self, cq: *mut ibv_cq_ex) {
        *self.open.lock() = None;
        // SAFETY: the caller's contract.
        unsafe { verbs::ibv_end_poll(cq) }
    }

    /// Ends a poll whose cursor was forgotten; what that showed is dropped with it. Whether none is open then: one of another thread is
    /// not ended.
    ///
    /// # Safety
    /// As [`poll`](Self::poll).
    pub(crate) unsafe fn end_forgotten(&self, cq: *mut ibv_cq_ex) -> bool {
        let open = *self.open.lock();
        if open == Some(thread::current().id()) {
            // SAFETY: it is open, and its cursor is gone.
            unsafe { self.end(cq) };
            return true;
        }
        open.is_none()
    }

    /// Steps on: 0 if there is another completion. A failure is kept for the next poll.
    ///
    /// # Safety
    /// A poll is open.
    pub(crate) unsafe fn next(&self, cq: *mut ibv_cq_ex) -> i32 {
        // SAFETY: the caller's contract.
        let ret = unsafe { verbs::ibv_next_poll(cq) };
        if ret != 0 && ret != libc::ENOENT {
            self.failed.store(ret, Ordering::Relaxed);
        }
        ret
    }

    /// Reads the completion that is shown, as far as it is defined, as `ibv_poll_cq` would have written it.
    ///
    /// # Safety
    /// A poll is open, and shows one.
    pub(crate) unsafe fn read(&self, cq: *mut ibv_cq_ex, wc: &mut ibv_wc) {
        // SAFETY: the caller's contract, and the readers are there.
        unsafe {
            (wc.wr_id, wc.status) = ((*cq).wr_id, (*cq).status);
            wc.qp_num = verbs::ibv_wc_read_qp_num(cq);
            if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
                wc.vendor_err = verbs::ibv_wc_read_vendor_err(cq);
                return;
            }
            wc.opcode = verbs::ibv_wc_read_opcode(cq);
            wc.wc_flags = verbs::ibv_wc_read_wc_flags(cq);
            if has_length(wc.opcode) {
                wc.byte_len = verbs::ibv_wc_read_byte_len(cq);
            }
            if !received(wc.opcode) {
                return;
            }
            const WORD: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0 | ibv_wc_flags::IBV_WC_WITH_INV.0;
            if wc.wc_flags & WORD != 0 {
                wc.__bindgen_anon_1.imm_data = verbs::ibv_wc_read_imm_data(cq);
            }
            if self.fields.contains(WcFields::SOURCE) {
                wc.src_qp = verbs::ibv_wc_read_src_qp(cq);
                wc.slid = verbs::ibv_wc_read_slid(cq) as u16;
                wc.sl = verbs::ibv_wc_read_sl(cq);
                wc.dlid_path_bits = verbs::ibv_wc_read_dlid_path_bits(cq);
            } else {
                // Not what an earlier completion has left there.
                Origin::NONE.write(wc);
            }
        }
    }

    /// When the work that is shown completed. Also of failed work: no field is about the work itself.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    pub(crate) unsafe fn times(&self, cq: *mut ibv_cq_ex) -> Times {
        // SAFETY: the caller's contract, and the readers are there.
        unsafe {
            Times {
                ticks: self
                    .fields
                    .contains(WcFields::COMPLETION_TIME)
                    .then(|| verbs::ibv_wc_read_completion_ts(cq)),
                wall: self
                    .fields
                    .contains(WcFields::WALL_CLOCK)
                    .then(|| verbs::ibv_wc_read_completion_wallclock_ns(cq)),
            }
        }
    }
}

fn received(opcode: ibv_wc_opcode) -> bool {
    opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0
}

/// Whether devices define how much it was.
fn has_length(opcode: ibv_wc_opcode) -> bool {
    received(opcode)
        || matches!(
            opcode,
            ibv_wc_opcode::IBV_WC_RDMA_READ
                | ibv_wc_opcode::IBV_WC_COMP_SWAP
                | ibv_wc_opcode::IBV_WC_FETCH_ADD
        )
}

/// Whether all functions are there that are called without a look.
fn complete(cq: &ibv_cq_ex, fields: WcFields) -> bool {
    let has = |field: WcFields, there: bool| there || !fields.contains(field);
    let source = cq.read_src_qp.is_some()
        && cq.read_slid.is_some()
        && cq.read_sl.is_some()
        && cq.read_dlid_path_bits.is_some();
    let usual = cq.start_poll.is_some()
        && cq.next_poll.is_some()
        && cq.end_poll.is_some()
        && cq.read_opcode.is_some()
        && cq.read_vendor_err.is_some()
        && cq.read_wc_flags.is_some()
        && cq.read_byte_len.is_some()
        && cq.read_imm_data.is_some()
        && cq.read_qp_num.is_some();
    let wall = cq.read_completion_wallclock_ns.is_some();
    usual
        && has(WcFields::SOURCE, source)
        && has(WcFields::COMPLETION_TIME, cq.read_completion_ts.is_some())
        && has(WcFields::WALL_CLOCK, wall)
}
