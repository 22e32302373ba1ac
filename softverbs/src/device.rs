//! What `soft0` is: limits, port, addresses.

use crate::process::Process;
use ibverbs_sys::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of the device.
pub(crate) const NAME: &str = "soft0";
/// Work requests of one queue.
pub(crate) const MAX_QP_WR: usize = 16384;
/// Entries of a completion queue.
pub(crate) const MAX_CQE: i32 = 1 << 20;
/// READs outstanding.
pub(crate) const MAX_RD_ATOMIC: usize = 16;
/// Bytes of inline data.
pub(crate) const MAX_INLINE: usize = 256;
/// Bytes of one message.
pub(crate) const MAX_MSG: u64 = 1 << 30;
/// Entries of the GID table: link-local, and RoCE v2 with an IPv4-mapped address (programs hard-code index 1).
pub(crate) const GIDS: usize = 2;

/// A number for this host, user and directory: processes that share it can reach one another.
fn identity(process: &Process) -> u64 {
    *process.identity.get_or_init(|| identify(process))
}

fn identify(process: &Process) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .hash(&mut hasher);
    // SAFETY: getuid cannot fail and touches no memory.
    unsafe { libc::getuid() }.hash(&mut hasher);
    process.directory().path().hash(&mut hasher);
    hasher.finish()
}

/// The node GUID, locally administered.
pub(crate) fn guid(process: &Process) -> u64 {
    (identity(process) & !(3 << 56)) | 2 << 56
}

/// Entry of the GID table. Index 1 is an address of the loopback network: nobody else's, and it says how far it reaches.
pub(crate) fn gid(process: &Process, index: usize) -> Option<[u8; 16]> {
    let id = identity(process).to_be_bytes();
    match index {
        0 => {
            let mut gid = [0; 16];
            gid[..2].copy_from_slice(&[0xfe, 0x80]);
            gid[8..].copy_from_slice(&guid(process).to_be_bytes());
            Some(gid)
        }
        1 => {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 127, id[1], id[2], id[3] | 1]);
            Some(gid)
        }
        _ => None,
    }
}

/// The address vector of a queue pair: a GID of this very device. Like a port of RoCE, this one has no LID by which it could be reached.
///
/// # Errors
///
/// `EINVAL`: no such port or GID index, or no GID. `ENETUNREACH`: the GID belongs to another host, user or directory, where this
/// device does not reach.
pub(crate) fn check_path(process: &Process, attr: &ibv_qp_attr) -> Result<(), i32> {
    let ah = &attr.ah_attr;
    if ah.port_num != 1 || ah.is_global == 0 || usize::from(ah.grh.sgid_index) >= GIDS {
        return Err(libc::EINVAL);
    }
    // SAFETY: the union is plain bytes.
    let dgid = unsafe { ah.grh.dgid.raw };
    if (0..GIDS).any(|i| gid(process, i) == Some(dgid)) {
        Ok(())
    } else {
        Err(libc::ENETUNREACH)
    }
}

/// `ibv_device_cap_flags`.
const CAPABILITIES: u32 = ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0
    | ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID.0
    | ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0
    | ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0;

/// `ibv_query_device`.
pub(crate) fn attr(process: &Process) -> ibv_device_attr {
    let mut attr = ibv_device_attr {
        node_guid: guid(process).to_be(),
        sys_image_guid: guid(process).to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        max_qp: crate::layout::MAX_QP as i32 - 2,
        max_qp_wr: MAX_QP_WR as i32,
        max_sge: crate::transfer::MAX_SGE as i32,
        max_sge_rd: crate::transfer::MAX_SGE as i32,
        max_cq: crate::layout::MAX_CQ as i32,
        max_cqe: MAX_CQE,
        max_mr: crate::layout::MAX_MR as i32 - 1,
        max_pd: i32::MAX,
        max_ah: i32::MAX,
        max_qp_rd_atom: MAX_RD_ATOMIC as i32,
        max_res_rd_atom: (MAX_RD_ATOMIC * crate::layout::MAX_QP) as i32,
        max_qp_init_rd_atom: MAX_RD_ATOMIC as i32,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
        max_srq: crate::layout::MAX_SRQ as i32,
        max_srq_wr: MAX_QP_WR as i32,
        max_srq_sge: crate::transfer::MAX_SGE as i32,
        max_pkeys: 1,
        device_cap_flags: CAPABILITIES,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    for (to, from) in attr
        .fw_ver
        .iter_mut()
        .zip(env!("CARGO_PKG_VERSION").bytes())
    {
        *to = from as core::ffi::c_char;
    }
    attr
}

/// `ibv_query_port`.
pub(crate) fn port() -> ibv_port_attr {
    ibv_port_attr {
        state: ibv_port_state::IBV_PORT_ACTIVE,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu::IBV_MTU_4096,
        gid_tbl_len: GIDS as i32,
        max_msg_sz: MAX_MSG as u32,
        pkey_tbl_len: 1,
        active_width: 1,
        active_speed: 1,
        phys_state: 5,
        link_layer: IBV_LINK_LAYER_ETHERNET.0 as u8,
        ..ibv_port_attr::default()
    }
}

/// Where this process meets others on the device, and why there: processes that chose differently do not see each other.
/// For error messages; a sentence's end, such as "in /dev/shm/verbatim-0, because ...".
///
/// # Errors
///
/// The device cannot be opened at all; the error says what to do.
pub fn meeting_place() -> std::io::Result<String> {
    let directory = Process::get()?.directory();
    Ok(format!(
        "in {}, because {}",
        directory.path().display(),
        directory.choice()
    ))
}

/// Seed of the asynchronous mode plus one; 0: take it from the environment.
static ASYNC: AtomicU64 = AtomicU64::new(0);
/// Says that the synchronous mode was asked for.
const SYNC: u64 = u64::MAX;

/// Chooses the mode of contexts opened from now on: `Some(seed)` executes posted work later, in random slices that the
/// seed decides; `None` executes it inside the post. Without a call the environment variable `VERBATIM_ASYNC` (a number)
/// chooses.
pub fn set_async(seed: Option<u64>) {
    ASYNC.store(seed.map_or(SYNC, |s| s % (SYNC - 1) + 1), Ordering::Relaxed);
}

/// The seed of the asynchronous mode, if it is on.
pub(crate) fn async_seed() -> Option<u64> {
    match ASYNC.load(Ordering::Relaxed) {
        SYNC => None,
        0 => std::env::var("VERBATIM_ASYNC").ok()?.parse().ok(),
        seed => Some(seed - 1),
    }
}
