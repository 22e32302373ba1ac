//! Two queue pairs over the raw table, for tests that look at the device itself.
#![allow(
    dead_code,
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]

mod end;
mod mem;
mod request;
mod srq;
mod ud;

#[allow(unused_imports)]
pub use {end::*, mem::*, request::*, srq::*, ud::*};

use ibverbs_sys::*;
use std::ptr::null_mut;
use std::time::Duration;

/// How long something may take before the test calls it hung.
pub const HANG: Duration = Duration::from_secs(20);

pub const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub const READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub const WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub const ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;

pub fn api() -> &'static Api {
    softverbs::api()
}

/// Context and protection domain.
pub struct Dev {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

impl Dev {
    pub fn open() -> Dev {
        unsafe {
            let list = (api().ibv_get_device_list)(null_mut());
            let ctx = (api().ibv_open_device)(*list);
            assert!(!ctx.is_null(), "{}", std::io::Error::last_os_error());
            (api().ibv_free_device_list)(list);
            Dev {
                ctx,
                pd: (api().ibv_alloc_pd)(ctx),
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        unsafe {
            assert_eq!((api().ibv_dealloc_pd)(self.pd), 0);
            (api().ibv_close_device)(self.ctx);
        }
    }
}

/// Takes and acknowledges an asynchronous event; gives what happened, and to which object.
pub fn event(dev: &Dev) -> (ibv_event_type, usize) {
    let mut event = unsafe { std::mem::zeroed::<ibv_async_event>() };
    assert_eq!(
        unsafe { (api().ibv_get_async_event)(dev.ctx, &mut event) },
        0
    );
    let element = unsafe { event.element.cq }.addr();
    unsafe { (api().ibv_ack_async_event)(&mut event) };
    (event.event_type, element)
}

/// Whether no asynchronous event waits.
pub fn no_event(dev: &Dev) -> bool {
    let mut fd = libc::pollfd {
        fd: unsafe { (*dev.ctx).async_fd },
        events: libc::POLLIN,
        revents: 0,
    };
    unsafe { libc::poll(&mut fd, 1, 0) == 0 }
}

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The key of queue pairs for datagrams.
pub const QKEY: u32 = 0x1111_2222;
