//! Devices, contexts and protection domains.

use super::{cq, cq_ex, fail, null, qp, qp_ex, query, set_errno, srq};
use crate::asynch::Helper;
use crate::events::AsyncEvents;
use crate::faults::{self, Verb};
use crate::process::Process;
use crate::{device, refusal};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use ibverbs_sys::*;
use std::sync::{Arc, OnceLock};

struct Device(ibv_device);

// SAFETY: the structure is never written after it was made.
unsafe impl Sync for Device {}
// SAFETY: as above; it holds no pointers that belong to a thread.
unsafe impl Send for Device {}

/// The device; without immediate data it looks like those that have none.
fn the_device() -> *mut ibv_device {
    static DEVICES: [OnceLock<Device>; 2] = [const { OnceLock::new() }; 2];
    // If it is malformed, opening the device says so.
    let _ = faults::environment();
    let iwarp = faults::no_immediate();
    let device = DEVICES[usize::from(iwarp)].get_or_init(|| {
        let mut device = ibv_device {
            _ops: _ibv_device_ops::default(),
            node_type: if iwarp {
                ibv_node_type::IBV_NODE_RNIC
            } else {
                ibv_node_type::IBV_NODE_CA
            },
            transport_type: if iwarp {
                ibv_transport_type::IBV_TRANSPORT_IWARP
            } else {
                ibv_transport_type::IBV_TRANSPORT_IB
            },
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        for (i, byte) in device::NAME.bytes().enumerate() {
            device.name[i] = byte as c_char;
            device.dev_name[i] = byte as c_char;
        }
        Device(device)
    });
    core::ptr::from_ref(&device.0).cast_mut()
}

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: the caller's out parameter.
        unsafe { *count = 1 };
    }
    Box::into_raw(Box::new([the_device(), core::ptr::null_mut()])).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `get_device_list` as a box of two pointers.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: module invariant of `verbs`.
    unsafe { (*device).name.as_ptr() }
}

pub(super) unsafe extern "C" fn get_device_guid(_device: *mut ibv_device) -> __be64 {
    Process::get().map_or(0, |process| device::guid(process).to_be())
}

pub(super) unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// An open device: the extended context of verbs.h, whose last member is the plain one that callers hold.
#[repr(C)]
pub(super) struct Context {
    verbs: verbs_context,
    pub process: &'static Process,
    pub helper: Option<Arc<Helper>>,
    pub events: Arc<AsyncEvents>,
}

/// The context behind the plain pointer.
///
/// # Safety
///
/// `context` was opened here.
pub(super) unsafe fn context<'a>(context: *mut ibv_context) -> &'a Context {
    let off = core::mem::offset_of!(verbs_context, context);
    // SAFETY: the plain context is a member of the box.
    unsafe { &*context.byte_sub(off).cast::<Context>() }
}

pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let open = || {
        faults::environment().map_err(|malformed| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, malformed)
        })?;
        fail(Verb::OpenDevice)?;
        let process = Process::get()?;
        let helper = device::async_seed().map(Helper::start).transpose()?;
        let events = Arc::new(AsyncEvents::new()?);
        std::io::Result::Ok(Context {
            verbs: verbs_context::default(),
            process,
            helper,
            events,
        })
    };
    match open() {
        Err(error) => {
            refusal::keep(&error);
            null(&error)
        }
        Ok(new) => {
            let new = Box::into_raw(Box::new(new));
            // SAFETY: freshly boxed; C structures are filled in place.
            unsafe {
                let fd = (*new).events.fd();
                let verbs = &mut (*new).verbs;
                verbs.sz = size_of::<verbs_context>();
                verbs.query_port = Some(query_port_ex);
                verbs.query_device_ex = Some(query::query_device_ex);
                verbs.query_rt_values = Some(query::query_rt_values);
                verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
                verbs.modify_cq = Some(cq_ex::modify_cq);
                verbs.create_qp_ex = Some(qp_ex::create_qp_ex);
                let plain = &mut verbs.context;
                plain.device = device;
                plain.cmd_fd = -1;
                plain.async_fd = fd;
                plain.num_comp_vectors = 1;
                plain.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
                // verbs.h: the value that says "this is a verbs_context".
                plain.abi_compat = core::ptr::without_provenance_mut(usize::MAX);
                plain.ops.poll_cq = Some(cq::poll_cq);
                plain.ops.req_notify_cq = Some(cq::req_notify_cq);
                plain.ops.post_send = Some(qp::post_send);
                plain.ops.post_recv = Some(qp::post_recv);
                plain.ops.post_srq_recv = Some(srq::post_srq_recv);
                &raw mut (*new).verbs.context
            }
        }
    }
}

pub(super) unsafe extern "C" fn close_device(plain: *mut ibv_context) -> c_int {
    let off = core::mem::offset_of!(verbs_context, context);
    // SAFETY: module invariant of `verbs`; the box was made by `open_device`.
    let context = unsafe { Box::from_raw(plain.byte_sub(off).cast::<Context>()) };
    if let Some(helper) = &context.helper {
        helper.stop();
    }
    0
}

pub(super) unsafe extern "C" fn query_device(
    plain: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    unsafe { *attr = device::attr(context(plain).process) };
    0
}

/// The full structure, cut to what the caller knows of it.
unsafe extern "C" fn query_port_ex(
    _plain: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let have = device::port();
    let len = len.min(size_of::<ibv_port_attr>());
    // SAFETY: the caller's structure holds `len` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(
            core::ptr::from_ref(&have).cast::<u8>(),
            attr.cast::<u8>(),
            len,
        )
    };
    0
}

pub(super) unsafe extern "C" fn query_port(
    plain: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // The compatible structure is the full one up to and with `flags`.
    // SAFETY: the caller's structure is at least that long.
    unsafe {
        query_port_ex(
            plain,
            port,
            attr.cast(),
            core::mem::offset_of!(ibv_port_attr, flags) + 1,
        )
    }
}

pub(super) unsafe extern "C" fn query_gid(
    plain: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let found = unsafe {
        usize::try_from(index)
            .ok()
            .and_then(|i| device::gid(context(plain).process, i))
    };
    match found {
        Some(raw) if port == 1 => {
            // SAFETY: the caller's out parameter.
            unsafe { (*gid).raw = raw };
            0
        }
        _ => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

pub(super) unsafe extern "C" fn query_gid_ex(
    plain: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if port != 1 || flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    // SAFETY: module invariant of `verbs`.
    let Some(raw) = (unsafe { device::gid(context(plain).process, index as usize) }) else {
        return libc::ENODATA;
    };
    let found = ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
        ndev_ifindex: 0,
    };
    // SAFETY: the caller's entry is at least as large as ours.
    unsafe { *entry = found };
    0
}

pub(super) unsafe extern "C" fn query_gid_table(
    plain: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    for i in 0..device::GIDS.min(max) {
        // SAFETY: the caller's array has `max` entries of `entry_size` bytes.
        let rc = unsafe {
            query_gid_ex(
                plain,
                1,
                i as u32,
                entries.byte_add(i * entry_size),
                flags,
                entry_size,
            )
        };
        if rc != 0 {
            return -(rc as isize);
        }
    }
    device::GIDS.min(max) as isize
}

pub(super) unsafe extern "C" fn query_pkey(
    _plain: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's out parameter.
    unsafe { *pkey = 0xffffu16.to_be() };
    0
}

/// A protection domain with the number of objects in it.
#[repr(C)]
pub(super) struct Pd {
    pub pd: ibv_pd,
    pub id: u32,
    pub users: AtomicUsize,
}

static PDS: AtomicU32 = AtomicU32::new(1);

pub(super) unsafe extern "C" fn alloc_pd(plain: *mut ibv_context) -> *mut ibv_pd {
    if let Err(error) = fail(Verb::AllocPd) {
        return null(&error);
    }
    let id = PDS.fetch_add(1, Ordering::Relaxed);
    let pd = Pd {
        pd: ibv_pd {
            context: plain,
            handle: id,
        },
        id,
        users: AtomicUsize::new(0),
    };
    Box::into_raw(Box::new(pd)).cast()
}

/// # Safety
///
/// `pd` was allocated here.
pub(super) unsafe fn pd<'a>(pd: *mut ibv_pd) -> &'a Pd {
    // SAFETY: module invariant of `verbs`.
    unsafe { &*pd.cast::<Pd>() }
}

pub(super) unsafe extern "C" fn dealloc_pd(plain: *mut ibv_pd) -> c_int {
    // SAFETY: module invariant of `verbs`.
    if unsafe { pd(plain) }.users.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    // SAFETY: module invariant of `verbs`; nobody uses it any more.
    drop(unsafe { Box::from_raw(plain.cast::<Pd>()) });
    0
}
