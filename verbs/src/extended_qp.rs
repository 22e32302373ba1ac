//! Queue pairs whose work is posted by calls: `ibv_create_qp_ex`, and `ibv_wr_start` with what belongs to it.
//!
//! Work is built and checked as for `ibv_post_send`, and handed over request by request here. So whatever is above does not know
//! which way a post goes.
//!
//! One segment goes by the call for one, several by that for a list; where the latter is [wrong](lists_are_wrong), queue pairs are
//! built for one segment only.

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys::inline as verbs;
use ibverbs_sys::{
    ibv_data_buf, ibv_qp, ibv_qp_create_send_ops_flags as ops, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as mask, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use crate::qp_kind::sealed::Kind;
use crate::{Context, Error, Pd, SgeList, errno};

const WHAT: &str = "queue pairs that are posted to by calls (ibv_create_qp_ex)";

/// The operations that a queue pair is created with: all that its kind and device have.
fn operations<K: Kind>(immediate: bool, atomics: bool) -> u64 {
    let when = |there: bool, flags: u32| if there { flags } else { 0 };
    let sends = ops::IBV_QP_EX_WITH_SEND.0 | when(immediate, ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0);
    let writes = ops::IBV_QP_EX_WITH_RDMA_WRITE.0
        | when(immediate, ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0);
    let fetches =
        ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 | ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    let all = sends
        | when(!K::DATAGRAMS, writes)
        | when(K::RELIABLE, ops::IBV_QP_EX_WITH_RDMA_READ.0)
        | when(K::RELIABLE && atomics, fetches);
    all.into()
}

/// What Soft-RoCE's kernel driver says of who made it.
const SOFT_ROCE: u32 = 0xff_ffff;

/// Whether the library for this device sends something else than a list of segments or of inline data says. That of Soft-RoCE does,
/// from its first version with these calls until rdma-core mended it in June 2026: it counts the first segment's length for each one,
/// and for inline data none, nor does it see that the bytes exceed the room for them. Nothing tells those versions from later ones.
pub(crate) fn lists_are_wrong(ctx: &Context) -> bool {
    // SAFETY: the device is open.
    let post = unsafe { (*ctx.raw()).ops.post_send };
    let library = post.is_some_and(|post| is_soft_roce(library_of(post as *const c_void)));
    // If the library is linked into the program, its name is the program's.
    library || ctx.query_device().vendor_id == SOFT_ROCE
}

/// The file that a function was loaded from.
fn library_of(function: *const c_void) -> Option<&'static CStr> {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up; the answer's place is ours.
    let found = unsafe { libc::dladdr(function, &mut info) } != 0;
    // SAFETY: a string of the loader's, which stays as long as the library is loaded; libraries of devices are not unloaded.
    (found && !info.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_fname) })
}

/// Libraries are named for their kind of device and the version of what they have in common: `librxe-rdmav34.so`.
fn is_soft_roce(library: Option<&CStr>) -> bool {
    let path = library.map_or(&[][..], CStr::to_bytes);
    let name = path.rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"librxe-") || name.starts_with(b"librxe."))
}

/// So many segments are not built where their list would be sent wrong.
pub(crate) fn check_segments(ctx: &Context, segments: u32) -> Result<(), Error> {
    if segments <= 1 || !lists_are_wrong(ctx) {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "several segments in requests that are posted by calls (ibv_wr_set_sge_list)",
        device: ctx.device_name().to_owned(),
        source: io::Error::new(
            io::ErrorKind::Unsupported,
            "its library sends them with a wrong length; build the queue pair with max_send_sge(1), or without extended(), which has as \
             many segments as the device",
        ),
    })
}

/// Creates an extended queue pair. The plain attributes of `init` are set, and those granted are written back.
#[doc(alias = "ibv_create_qp_ex")]
pub(crate) fn create<K: Kind>(
    pd: &Pd,
    init: &mut ibv_qp_init_attr_ex,
    hint: &str,
) -> Result<NonNull<ibv_qp>, Error> {
    let (ctx, api) = (pd.context(), pd.api());
    let refused =
        |e| Error::unless_unsupported(ctx.device_name(), WHAT, "ibv_create_qp_ex", e, hint);
    init.comp_mask = mask::IBV_QP_INIT_ATTR_PD.0 | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    init.pd = pd.raw();
    init.send_ops_flags = operations::<K>(ctx.has_immediate_data(), ctx.query_device().atomics);
    // SAFETY: the device is open, what the attributes name is alive and of it, and they are complete.
    let qp = errno::object(unsafe { verbs::ibv_create_qp_ex(api, ctx.raw(), init) });
    let qp = qp.map_err(refused)?;
    if extended(pd, qp.as_ptr()).is_none() {
        // SAFETY: just created, and not used again.
        unsafe { (api.ibv_destroy_qp)(qp.as_ptr()) };
        return Err(refused(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }
    Ok(qp)
}

/// The same queue pair with its calls.
pub(crate) fn extended(pd: &Pd, qp: *mut ibv_qp) -> Option<NonNull<ibv_qp_ex>> {
    let convert = pd.api().ibv_qp_to_qp_ex?;
    // SAFETY: an extended queue pair that is alive.
    let qp = NonNull::new(unsafe { convert(qp) })?;
    // SAFETY: as above.
    let there = unsafe { qp.as_ref() };
    let usual = there.wr_start.is_some()
        && there.wr_complete.is_some()
        && there.wr_abort.is_some()
        && there.wr_set_sge.is_some()
        && there.wr_set_sge_list.is_some()
        && there.wr_set_inline_data.is_some()
        && there.wr_set_inline_data_list.is_some();
    usual.then_some(qp)
}

/// As `ibv_post_send`: 0, or an errno, with `bad` the first request that was not posted, which is the first of all; or nothing, if they
/// may be posted in spite of the error.
///
/// # Safety
/// As of `ibv_post_send`; no request has more segments than a list holds. An extended queue pair that nobody else posts to.
#[inline(never)]
pub(crate) unsafe fn post(
    qp: *mut ibv_qp_ex,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> i32 {
    let mut at = first;
    // SAFETY: the caller's contract; start, complete and abort are there.
    unsafe {
        verbs::ibv_wr_start(qp);
        while let Some(wr) = at.as_ref() {
            if request(qp, wr).is_none() {
                verbs::ibv_wr_abort(qp);
                *bad = first;
                return libc::EOPNOTSUPP;
            }
            at = wr.next;
        }
        let ret = verbs::ibv_wr_complete(qp);
        if ret != 0 && was_refused(ret) {
            *bad = first;
        }
        ret
    }
}

/// Whether the requests were looked at and not taken. By ibv_wr_post(3) each failure means that; but libraries that tell the kernel at the
/// end (rxe) have put the requests into the queue by then, and report what it said. What a library itself finds wrong with requests is
/// one of these. `ENOMEM` is not: a library may mean a full queue by it, of which there is none here, since depths were checked; the
/// kernel means that it found no memory to look at what is in the queue already.
#[cold]
fn was_refused(ret: i32) -> bool {
    matches!(
        errno::failed(ret).raw_os_error(),
        Some(libc::EINVAL | libc::ENOSPC | libc::EOPNOTSUPP | libc::ENOSYS | libc::E2BIG)
    )
}

/// Adds a request; `None` if the queue pair has no such operation.
///
/// # Safety
/// As [`post`], between start and complete.
#[inline(always)]
unsafe fn request(qp: *mut ibv_qp_ex, wr: &ibv_send_wr) -> Option<()> {
    use ibv_wr_opcode as op;
    const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
    // SAFETY: the caller's contract: what the operation has of the unions is set. A call that was not asked for is not there.
    unsafe {
        let calls = &*qp;
        let (send, write) = (calls.wr_send, calls.wr_rdma_write);
        let (send_imm, write_imm) = (calls.wr_send_imm, calls.wr_rdma_write_imm);
        let (read, set_address) = (calls.wr_rdma_read, calls.wr_set_ud_addr);
        let (swap, add) = (calls.wr_atomic_cmp_swp, calls.wr_atomic_fetch_add);
        (*qp).wr_id = wr.wr_id;
        // With the flag for inline data, which setting the data implies; there is a library (rxe) that does not see to it.
        (*qp).wr_flags = wr.send_flags;
        let imm = wr.__bindgen_anon_1.imm_data;
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        match wr.opcode {
            op::IBV_WR_SEND => send?(qp),
            op::IBV_WR_SEND_WITH_IMM => send_imm?(qp, imm),
            op::IBV_WR_RDMA_WRITE => write?(qp, rdma.rkey, rdma.remote_addr),
            op::IBV_WR_RDMA_WRITE_WITH_IMM => write_imm?(qp, rdma.rkey, rdma.remote_addr, imm),
            op::IBV_WR_RDMA_READ => read?(qp, rdma.rkey, rdma.remote_addr),
            op::IBV_WR_ATOMIC_CMP_AND_SWP => {
                let (compare, new) = (atomic.compare_add, atomic.swap);
                swap?(qp, atomic.rkey, atomic.remote_addr, compare, new);
            }
            op::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                add?(qp, atomic.rkey, atomic.remote_addr, atomic.compare_add);
            }
            _ => return None,
        }
        if (*qp).qp_base.qp_type == ibverbs_sys::ibv_qp_type::IBV_QPT_UD {
            let ud = wr.wr.ud;
            // Without it the device would take an address that the queue's memory holds from earlier.
            set_address?(qp, ud.ah, ud.remote_qpn, ud.remote_qkey);
        }
        let inline = wr.send_flags & INLINE != 0;
        match wr.num_sge {
            1 => one(qp, &*wr.sg_list, inline),
            _ => several(qp, wr, inline),
        }
    }
    Some(())
}

/// # Safety
/// As [`request`]; of a request with this segment only.
#[inline(always)]
unsafe fn one(qp: *mut ibv_qp_ex, segment: &ibv_sge, inline: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        if inline {
            let bytes = std::ptr::with_exposed_provenance_mut(segment.addr as usize);
            verbs::ibv_wr_set_inline_data(qp, bytes, segment.length as usize);
        } else {
            verbs::ibv_wr_set_sge(qp, segment.lkey, segment.addr, segment.length);
        }
    }
}

/// None is a list as well.
///
/// # Safety
/// As [`request`].
#[inline(never)]
unsafe fn several(qp: *mut ibv_qp_ex, wr: &ibv_send_wr, inline: bool) {
    let count = usize::try_from(wr.num_sge).unwrap_or(0);
    // SAFETY: the caller's contract.
    unsafe {
        if inline {
            copy(qp, wr.sg_list, count);
        } else {
            verbs::ibv_wr_set_sge_list(qp, count, wr.sg_list);
        }
    }
}

/// Lets the bytes be copied now.
///
/// # Safety
/// As [`request`]; `count` segments, no more than a list holds.
unsafe fn copy(qp: *mut ibv_qp_ex, segments: *const ibv_sge, count: usize) {
    let mut list = [const { MaybeUninit::<ibv_data_buf>::uninit() }; SgeList::CAPACITY];
    let count = count.min(list.len());
    for (at, piece) in list[..count].iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let segment = unsafe { *segments.add(at) };
        piece.write(ibv_data_buf {
            addr: std::ptr::with_exposed_provenance_mut(segment.addr as usize),
            length: segment.length as usize,
        });
    }
    // SAFETY: as above; so many are written.
    unsafe { verbs::ibv_wr_set_inline_data_list(qp, count, list.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_of_soft_roce_is_known_by_its_name() {
        for (name, is) in [
            (
                c"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
                true,
            ),
            (c"librxe-rdmav57.so", true),
            (c"/opt/rdma/librxe.so.1", true),
            (
                c"/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so",
                false,
            ),
            (c"/home/librxe-x/libmlx5-rdmav34.so", false),
            (c"/usr/lib/libsiw-rdmav34.so", false),
            (c"", false),
        ] {
            assert_eq!(is_soft_roce(Some(name)), is, "{name:?}");
        }
        assert!(!is_soft_roce(None));
    }

    #[test]
    fn functions_are_found_in_their_library() {
        let library = library_of(libc::getpid as *const c_void).unwrap();
        assert!(library.to_str().unwrap().contains("libc"), "{library:?}");
        assert_eq!(library_of(std::ptr::null()), None);
    }
}
