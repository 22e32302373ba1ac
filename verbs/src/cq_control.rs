//! Completion queues that change their size, and how eagerly they tell.

use std::time::Duration;

use ibverbs_sys::{ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq_attr};

use crate::errno;
use crate::{Cq, Error};

impl Cq {
    /// Gives it room for at least `depth` entries; what is in it stays. [`depth`](Self::depth) says afterwards how many there are.
    ///
    /// # Errors
    /// [`Error::CqTooSmall`] when its queues could have more completions outstanding, [`Error::Unsupported`] when the device cannot,
    /// [`Error::CqBroken`] when another thread has forgotten a [cursor](Self::start_poll), and
    /// else what the device says, `EINVAL` for fewer than are in it. Nothing has changed then.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, depth: u32) -> Result<(), Error> {
        let shared = self.shared();
        let context = shared.context();
        let max = context.query_device().max_cqe.min(i32::MAX as u32);
        Error::in_range("depth of a completion queue", depth.into(), 1, max.into())?;
        if let Some((extended, raw)) = self.extended() {
            // Devices may hold a lock from start to end that they take here, too.
            // SAFETY: the queue is alive; a cursor would borrow this handle, so none is left.
            if !unsafe { extended.end_forgotten(raw) } {
                let code = -libc::EDEADLK;
                return Err(Error::CqBroken { code });
            }
        }
        let resize = context.api().ibv_resize_cq;
        shared.resize(depth, |cq| {
            // SAFETY: the queue is alive, and not polled meanwhile: that needs this handle.
            errno::check(unsafe { resize(cq, depth as i32) }).map_err(|e| {
                Error::unless_unsupported(
                    context.device_name(),
                    "other sizes of a completion queue (ibv_resize_cq)",
                    "ibv_resize_cq",
                    e,
                    format!("{depth} entries"),
                )
            })
        })
    }

    /// Lets the device hold back events of a queue that waits until there are `count` completions, or the oldest is as old as `period`,
    /// which is rounded down to microseconds. Zeroes end it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device cannot; [`Error::OutOfRange`] for more than 65,535 microseconds.
    #[doc(alias = "ibv_modify_cq")]
    #[doc(alias = "IBV_CQ_ATTR_MODERATE")]
    pub fn moderate(&mut self, count: u16, period: Duration) -> Result<(), Error> {
        let micros = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        let max = u16::MAX.into();
        Error::in_range("period in microseconds", micros, 0, max)?;
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq {
                cq_count: count,
                cq_period: micros as u16,
            },
        };
        // SAFETY: the queue is alive and the attributes are complete.
        let ret = unsafe { ibverbs_sys::inline::ibv_modify_cq(self.shared().raw(), &mut attr) };
        errno::check(ret).map_err(|e| {
            Error::unless_unsupported(
                self.shared().context().device_name(),
                "moderation of completion queues (ibv_modify_cq)",
                "ibv_modify_cq",
                e,
                format!("after {count} completions or {micros} microseconds"),
            )
        })
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::cell::Cell;
    use std::ffi::c_int;
    use std::sync::OnceLock;

    use ibverbs_sys::{Api, ibv_cq, ibv_cq_ex};

    use super::*;
    use crate::{Private, RecvQueue, SendQueue, WcFields};

    type Buf = Private<Vec<u8>>;

    unsafe extern "C" fn resize(_: *mut ibv_cq, _: c_int) -> c_int {
        libc::ENOSYS
    }

    #[test]
    fn a_device_that_cannot_says_so_and_nothing_changes() {
        static TABLE: OnceLock<Api> = OnceLock::new();
        let api = TABLE.get_or_init(|| Api {
            ibv_resize_cq: resize,
            ..*softverbs::api()
        });
        let ctx = crate::list::of(api)[0].open().unwrap();
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { (*ibverbs_sys::inline::verbs_get_ctx(ctx.raw())).modify_cq = None };
        let mut cq = ctx.cq(16).build().unwrap();
        let depth = cq.depth();
        let resized = cq.resize(64).unwrap_err();
        let moderated = cq.moderate(8, Duration::from_micros(20)).unwrap_err();
        for (e, what, errno) in [
            (resized, "ibv_resize_cq", libc::ENOSYS),
            (moderated, "ibv_modify_cq", libc::EOPNOTSUPP),
        ] {
            assert!(matches!(e, Error::Unsupported { .. }), "{e}");
            assert_eq!(e.raw_os_error(), Some(errno));
            for part in [ctx.device_name(), what] {
                assert!(e.to_string().contains(part), "{e}");
            }
        }
        assert_eq!(cq.depth(), depth);
    }

    type End = unsafe extern "C" fn(*mut ibv_cq_ex);

    thread_local! {
        static END: Cell<Option<End>> = const { Cell::new(None) };
        static ENDED: Cell<bool> = const { Cell::new(false) };
    }

    /// As a device that takes the lock which an open poll has: that would never return.
    unsafe extern "C" fn resize_locked(cq: *mut ibv_cq, depth: c_int) -> c_int {
        if !ENDED.get() {
            return libc::EDEADLK;
        }
        // SAFETY: passed on.
        unsafe { (softverbs::api().ibv_resize_cq)(cq, depth) }
    }

    unsafe extern "C" fn end(cq: *mut ibv_cq_ex) {
        ENDED.set(true);
        // SAFETY: passed on, to the function that was there.
        unsafe { END.get().unwrap()(cq) };
    }

    /// A queue with a completion, and what keeps that there.
    fn with_one(api: &'static Api) -> (Cq, SendQueue<Buf>, RecvQueue<Buf>) {
        let pd = crate::list::of(api)[0].open().unwrap().alloc_pd().unwrap();
        let builder = pd.context().cq(64).extended(WcFields::empty());
        let cq = builder.build().unwrap();
        let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
        let own = ready.endpoint();
        let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
        rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
        tx.send(pd.register(vec![1; 8]).unwrap()).post().unwrap();
        (cq, tx, rx)
    }

    /// Begins a poll that shows a completion, and forgets it.
    fn forget_a_cursor(cq: &mut Cq) {
        loop {
            let poll = cq.start_poll().unwrap();
            if poll.is_ready() {
                return std::mem::forget(poll);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_cursor_that_was_forgotten_is_ended_first() {
        static TABLE: OnceLock<Api> = OnceLock::new();
        let api = TABLE.get_or_init(|| Api {
            ibv_resize_cq: resize_locked,
            ..*softverbs::api()
        });
        let (mut cq, _tx, _rx) = with_one(api);
        let raw: *mut ibv_cq_ex = cq.shared().raw().cast();
        // SAFETY: alive, and only this thread uses it.
        unsafe {
            END.set((*raw).end_poll);
            (*raw).end_poll = Some(end);
        }
        forget_a_cursor(&mut cq);
        cq.resize(128).unwrap();
        assert!(cq.depth() >= 128);
        assert!(cq.poll().unwrap().is_none(), "it was shown, and is gone");
    }

    #[test]
    fn a_cursor_that_another_thread_forgot_is_an_error() {
        let (mut cq, _tx, _rx) = with_one(softverbs::api());
        let forgets = std::thread::spawn(move || {
            forget_a_cursor(&mut cq);
            cq
        });
        let mut cq = forgets.join().unwrap();
        let depth = cq.depth();
        let e = cq.resize(128).unwrap_err();
        assert!(matches!(e, Error::CqBroken { .. }), "{e}");
        assert_eq!(cq.depth(), depth);
    }
}
