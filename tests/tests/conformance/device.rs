//! The two devices that the ends of each case are on.

use crate::names;
use ibverbs_sys::{Api, ibv_context, ibv_gid, ibv_mtu, ibv_pd, ibv_port_attr, inline};
use std::ffi::CStr;
use std::time::Duration;
use verbs::Device;

/// Names the device of the second end.
const PEER: &str = "VERBATIM_PEER_DEVICE";

/// After this time what is waited for is taken not to come. Far above what anything here takes, also in the guest.
pub const HANG: Duration = Duration::from_secs(30);

/// Where RoCE devices have their IPv4 address.
pub const GID_INDEX: u8 = 1;

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Soft,
    Rxe,
    Siw,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Soft, Kind::Rxe, Kind::Siw];

    /// As the table calls it; names of devices begin with it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Soft => "soft0",
            Kind::Rxe => "rxe",
            Kind::Siw => "siw",
        }
    }
}

fn named_by(variable: &str) -> Option<String> {
    let spec = std::env::var(variable)
        .ok()
        .filter(|name| !name.is_empty())?;
    spec.split(':').next().map(str::to_owned)
}

/// The name of the first end's device.
pub fn device() -> String {
    named_by(Device::ENV).unwrap_or_else(|| Kind::Soft.name().to_owned())
}

/// The column that the device under test fills; `None` if there is none for it.
pub fn kind() -> Option<Kind> {
    let device = device();
    Kind::ALL
        .into_iter()
        .find(|kind| device.starts_with(kind.name()))
}

/// An open device, and a protection domain.
///
/// Handles of this and the other modules come from the device, are owned by the value that holds them, and are destroyed once, when
/// it is dropped or consumed. They are used on one thread. This is what the `unsafe` blocks here rely on.
#[derive(Clone, Copy)]
pub struct Side {
    pub api: &'static Api,
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub gid: ibv_gid,
}

impl Side {
    fn open(name: &str) -> Side {
        let api = match name == Kind::Soft.name() {
            true => softverbs::api(),
            false => Api::system().expect("libibverbs can be loaded"),
        };
        let mut count = 0;
        // SAFETY: `count` is valid for writes; the list has `count` devices, and is freed after its last use.
        let ctx = unsafe {
            let list = (api.ibv_get_device_list)(&mut count);
            assert!(!list.is_null(), "no list of devices: {}", errno());
            let index = (0..count as usize).find(|&i| {
                let found = CStr::from_ptr((api.ibv_get_device_name)(*list.add(i)));
                found.to_str() == Ok(name)
            });
            let index = index.unwrap_or_else(|| panic!("there is no device {name}"));
            let ctx = (api.ibv_open_device)(*list.add(index));
            (api.ibv_free_device_list)(list);
            ctx
        };
        assert!(!ctx.is_null(), "{name} cannot be opened: {}", errno());
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open, `gid` valid for writes.
        let pd = unsafe {
            assert_eq!((api.ibv_query_gid)(ctx, 1, GID_INDEX.into(), &mut gid), 0);
            (api.ibv_alloc_pd)(ctx)
        };
        assert!(!pd.is_null(), "no protection domain: {}", errno());
        Side { api, ctx, pd, gid }
    }

    fn close(self) {
        // SAFETY: the last use of both; what a failed case has left behind keeps the domain, and is closed with the device.
        unsafe {
            (self.api.ibv_dealloc_pd)(self.pd);
            (self.api.ibv_close_device)(self.ctx);
        }
    }

    /// The same device with another protection domain, which the caller frees, or the end of the device.
    pub fn other_domain(&self) -> Domain {
        // SAFETY: the context is open.
        let pd = unsafe { (self.api.ibv_alloc_pd)(self.ctx) };
        assert!(!pd.is_null(), "no protection domain: {}", errno());
        Domain(Side { pd, ..*self })
    }

    /// Attributes of a port, or an errno.
    pub fn port(&self, port: u8) -> Result<ibv_port_attr, i32> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open, `attr` valid for writes.
        match unsafe { inline::ibv_query_port(self.api, self.ctx, port, &mut attr) } {
            0 => Ok(attr),
            error => Err(error),
        }
    }

    /// Bytes that fit one packet.
    pub fn mtu(&self) -> usize {
        128 << self.port(1).expect("port 1 exists").active_mtu.0
    }

    /// The next MTU above.
    pub fn mtu_above(&self) -> ibv_mtu {
        ibv_mtu(self.port(1).expect("port 1 exists").active_mtu.0 + 1)
    }

    /// Takes the next asynchronous event about queues, and acknowledges it. `None` if there is none within `limit` milliseconds.
    fn take_event(&self, limit: i32) -> Option<String> {
        loop {
            let mut fd = libc::pollfd {
                // SAFETY: the context is open.
                fd: unsafe { (*self.ctx).async_fd },
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor; the event is written whole before it is read.
            let kind = unsafe {
                if libc::poll(&mut fd, 1, limit) == 0 {
                    return None;
                }
                let mut event = std::mem::zeroed();
                assert_eq!((self.api.ibv_get_async_event)(self.ctx, &mut event), 0);
                (self.api.ibv_ack_async_event)(&mut event);
                event.event_type
            };
            // Those of ports and addresses are the network's.
            if !(9..=13).contains(&kind.0) && kind.0 < 17 {
                return Some(names::event(kind));
            }
        }
    }

    /// Waits for an event.
    pub fn event(&self) -> String {
        self.take_event(HANG.as_millis() as i32)
            .expect("an asynchronous event comes")
    }

    /// Waits for an event that may not come.
    pub fn event_within(&self, limit: Duration) -> Option<String> {
        self.take_event(limit.as_millis() as i32)
    }

    /// An event that is there already, else `none`.
    pub fn event_now(&self) -> String {
        self.take_event(0).unwrap_or_else(|| "none".to_owned())
    }
}

/// A protection domain beside the usual one.
pub struct Domain(pub Side);

impl Domain {
    /// Frees it.
    pub fn free(&self) -> i32 {
        // SAFETY: freed once if this succeeds; callers use nothing of it afterwards.
        unsafe { (self.0.api.ibv_dealloc_pd)(self.0.pd) }
    }
}

/// The devices of both ends.
pub struct Bed {
    pub a: Side,
    pub b: Side,
}

impl Bed {
    /// Opens both, also if they are the same.
    pub fn open() -> Bed {
        let first = device();
        let second = named_by(PEER).unwrap_or_else(|| first.clone());
        Bed {
            a: Side::open(&first),
            b: Side::open(&second),
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.a.close();
        self.b.close();
    }
}

/// What the last failed call left.
pub fn errno_code() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Its name.
pub fn errno() -> String {
    names::errno(errno_code())
}
