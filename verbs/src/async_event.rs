//! Asynchronous events: what happens to a device, its ports and objects without being asked for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_async_event, ibv_event_type as sys};

use crate::fd::wait_readable;
use crate::{Context, CqId, Error, QueueId};

/// Something happened to a device, one of its ports, or an object on it.
///
/// Source: `ibv_get_async_event(3)`.
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overflowed: it and its queue pairs are broken.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqError {
        /// The completion queue.
        cq: CqId,
    },
    /// A queue pair is in the error state, and may not be able to complete what is in it.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QpFatal {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The peer's request was invalid; the queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QpRequestError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The peer's request asked for memory that it has no right to; the queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    QpAccessError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The first packet has arrived at a queue pair that is ready to receive and not yet to send.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommunicationEstablished {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The send queue has been drained, as asked for.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The connection has moved to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG")]
    PathMigrated {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The connection could not move to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
    PathMigrationFailed {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A queue pair in the error state takes no more from its shared receive queue.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastReceiveReached {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// Fewer receives than the [limit](crate::SharedRecvQueue::arm_limit) are left in a shared receive queue.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SharedLimit {
        /// The queue, as [`SharedRecvQueue::id`](crate::SharedRecvQueue::id).
        queue: QueueId,
    },
    /// A shared receive queue failed, and with it all queue pairs that take from it.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    SharedError {
        /// The queue, as [`SharedRecvQueue::id`](crate::SharedRecvQueue::id).
        queue: QueueId,
    },
    /// The device failed: it must be closed, and nothing on it can be used.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
    /// A port can carry traffic now.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive {
        /// Number of the port.
        port_num: u8,
    },
    /// A port cannot carry traffic any more.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError {
        /// Number of the port.
        port_num: u8,
    },
    /// A port has another local identifier.
    #[doc(alias = "IBV_EVENT_LID_CHANGE")]
    LidChange {
        /// Number of the port.
        port_num: u8,
    },
    /// A port's table of partition keys has changed.
    #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
    PkeyChange {
        /// Number of the port.
        port_num: u8,
    },
    /// Another subnet manager has taken over.
    #[doc(alias = "IBV_EVENT_SM_CHANGE")]
    SubnetManagerChange {
        /// Number of the port.
        port_num: u8,
    },
    /// The subnet manager asks for subscriptions to be made anew.
    #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
    ClientReregister {
        /// Number of the port.
        port_num: u8,
    },
    /// A port's GID table has changed.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange {
        /// Number of the port.
        port_num: u8,
    },
    /// An event that this version does not know, or of an object that it does not make.
    Other {
        /// The event's value in verbs.h.
        code: u32,
    },
}

impl AsyncEvent {
    /// # Safety
    /// An event that was got and is not yet acknowledged, so that the object it names is there; its completion queues and
    /// shared receive queues were made by this crate.
    unsafe fn from_sys(event: &ibv_async_event) -> AsyncEvent {
        // SAFETY: the kind of event says which member is in use.
        let qp_num = || unsafe { (*event.element.qp).qp_num };
        // SAFETY: as above; the identity is what the queue's context is made of.
        let queue = || QueueId(unsafe { (*event.element.srq).srq_context }.addr() as u64);
        // SAFETY: as above.
        let port_num = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
        match event.event_type {
            sys::IBV_EVENT_CQ_ERR => AsyncEvent::CqError {
                // SAFETY: as above; the identity is what the queue's context is made of.
                cq: CqId(unsafe { (*event.element.cq).cq_context }.addr() as u64),
            },
            sys::IBV_EVENT_QP_FATAL => AsyncEvent::QpFatal { qp_num: qp_num() },
            sys::IBV_EVENT_QP_REQ_ERR => AsyncEvent::QpRequestError { qp_num: qp_num() },
            sys::IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QpAccessError { qp_num: qp_num() },
            sys::IBV_EVENT_COMM_EST => AsyncEvent::CommunicationEstablished { qp_num: qp_num() },
            sys::IBV_EVENT_SQ_DRAINED => AsyncEvent::SendQueueDrained { qp_num: qp_num() },
            sys::IBV_EVENT_PATH_MIG => AsyncEvent::PathMigrated { qp_num: qp_num() },
            sys::IBV_EVENT_PATH_MIG_ERR => AsyncEvent::PathMigrationFailed { qp_num: qp_num() },
            sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
                AsyncEvent::LastReceiveReached { qp_num: qp_num() }
            }
            sys::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SharedLimit { queue: queue() },
            sys::IBV_EVENT_SRQ_ERR => AsyncEvent::SharedError { queue: queue() },
            sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive {
                port_num: port_num(),
            },
            sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortError {
                port_num: port_num(),
            },
            sys::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChange {
                port_num: port_num(),
            },
            sys::IBV_EVENT_PKEY_CHANGE => AsyncEvent::PkeyChange {
                port_num: port_num(),
            },
            sys::IBV_EVENT_SM_CHANGE => AsyncEvent::SubnetManagerChange {
                port_num: port_num(),
            },
            sys::IBV_EVENT_CLIENT_REREGISTER => AsyncEvent::ClientReregister {
                port_num: port_num(),
            },
            sys::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange {
                port_num: port_num(),
            },
            other => AsyncEvent::Other { code: other.0 },
        }
    }
}

impl Context {
    /// The next asynchronous event; waits for one, but at most for `timeout` (`None`: for ever, zero: not at all). `None` when there
    /// was none in that time.
    ///
    /// Each event goes to one caller. It is acknowledged here, so that it keeps no object from being destroyed; the object named may
    /// be gone when it is looked at. To wait together with other descriptors: the context's own ([`AsFd`]) is readable while there
    /// are events.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let ctx = verbs::Device::open_spec("soft0")?;
    /// assert_eq!(ctx.async_event(Some(Duration::ZERO))?, None, "all is well");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        // A timeout beyond what the clock can hold is for ever.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.take_event()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            wait_readable(self.as_fd(), left)
                .map_err(|e| Error::hinted("poll", e, "descriptor of asynchronous events"))?;
        }
    }

    /// Takes an event that is there.
    fn take_event(&self) -> Result<Option<AsyncEvent>, Error> {
        // SAFETY: pointers and integers, all of which may be zero.
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the context is open, and the result writable. The descriptor does not block.
            if unsafe { (self.api().ibv_get_async_event)(self.raw(), &mut event) } == 0 {
                break;
            }
            let e = io::Error::last_os_error();
            match e.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => {}
                _ => return Err(Error::verb("ibv_get_async_event", e)),
            }
        }
        // SAFETY: got just now.
        let seen = unsafe { AsyncEvent::from_sys(&event) };
        // SAFETY: got from this context, and acknowledged once.
        unsafe { (self.api().ibv_ack_async_event)(&mut event) };
        Ok(Some(seen))
    }
}

impl AsFd for Context {
    /// Readable when there is an [asynchronous event](Context::async_event).
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::cell::Cell;
    use std::ffi::c_int;
    use std::sync::OnceLock;

    use ibverbs_sys::{Api, ibv_context, ibv_qp, ibv_srq};

    use super::*;

    thread_local! {
        static NEXT: Cell<u32> = const { Cell::new(0) };
        static ACKNOWLEDGED: Cell<u32> = const { Cell::new(0) };
        static SRQ: Cell<*mut ibv_srq> = const { Cell::new(std::ptr::null_mut()) };
        static QP: Cell<*mut ibv_qp> = const { Cell::new(std::ptr::null_mut()) };
    }

    /// One event of each kind but that of completion queues, each interrupted once.
    unsafe extern "C" fn get(_: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        let code = NEXT.get();
        NEXT.set(code + 1);
        let errno = match code {
            100 => libc::EAGAIN,
            101 => libc::EIO,
            _ if code.is_multiple_of(2) => libc::EINTR,
            _ => 0,
        };
        // SAFETY: the thread's own errno; the caller's result.
        unsafe {
            if errno != 0 {
                *libc::__errno_location() = errno;
                return -1;
            }
            (*event).event_type = sys(code / 2 + 1);
            match code / 2 + 1 {
                8..=13 | 17 | 18 => (*event).element.port_num = 2,
                14 | 15 => (*event).element.srq = SRQ.get(),
                _ => (*event).element.qp = QP.get(),
            }
        }
        0
    }

    unsafe extern "C" fn acknowledge(_: *mut ibv_async_event) {
        ACKNOWLEDGED.set(ACKNOWLEDGED.get() + 1);
    }

    #[test]
    fn all_kinds_are_told_apart_and_acknowledged() {
        static TABLE: OnceLock<Api> = OnceLock::new();
        let api = TABLE.get_or_init(|| Api {
            ibv_get_async_event: get,
            ibv_ack_async_event: acknowledge,
            ..*softverbs::api()
        });
        let ctx = crate::list::of(api)[0].open().unwrap();
        // SAFETY: plain integers and pointers.
        let mut qp: ibv_qp = unsafe { std::mem::zeroed() };
        qp.qp_num = 7;
        QP.set(&mut qp);
        let queue = QueueId::shared(5);
        // SAFETY: plain integers and pointers.
        let mut srq: ibv_srq = unsafe { std::mem::zeroed() };
        srq.srq_context = std::ptr::without_provenance_mut(queue.0 as usize);
        SRQ.set(&mut srq);
        let (qp_num, port_num) = (7, 2);
        let next = || ctx.async_event(Some(Duration::ZERO));
        use AsyncEvent as E;
        for (at, want) in [
            E::QpFatal { qp_num },
            E::QpRequestError { qp_num },
            E::QpAccessError { qp_num },
            E::CommunicationEstablished { qp_num },
            E::SendQueueDrained { qp_num },
            E::PathMigrated { qp_num },
            E::PathMigrationFailed { qp_num },
            E::DeviceFatal,
            E::PortActive { port_num },
            E::PortError { port_num },
            E::LidChange { port_num },
            E::PkeyChange { port_num },
            E::SubnetManagerChange { port_num },
            E::SharedError { queue },
            E::SharedLimit { queue },
            E::LastReceiveReached { qp_num },
            E::ClientReregister { port_num },
            E::GidChange { port_num },
            E::Other { code: 19 },
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(next().unwrap(), Some(want));
            assert_eq!(ACKNOWLEDGED.get(), at as u32 + 1);
        }
        NEXT.set(100);
        assert_eq!(next().unwrap(), None);
        let error = next().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
