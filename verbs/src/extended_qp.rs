//! Queue pairs whose work is posted by calls: `ibv_create_qp_ex`, and `ibv_wr_start` with what belongs to it.
//!
//! Work is built and checked as for `ibv_post_send`, and handed over request by request here. So whatever is above does not know
//! which way a post goes.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys::inline as verbs;
use ibverbs_sys::{
    ibv_data_buf, ibv_qp, ibv_qp_create_send_ops_flags as ops, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as mask, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use crate::qp_kind::sealed::Kind;
use crate::{Error, Pd, SgeList, errno};

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
        && there.wr_set_sge_list.is_some()
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
        let count = usize::try_from(wr.num_sge).unwrap_or(0);
        match wr.send_flags & INLINE {
            0 => verbs::ibv_wr_set_sge_list(qp, count, wr.sg_list),
            _ => copy(qp, wr.sg_list, count),
        }
    }
    Some(())
}

/// Lets the bytes be copied now.
///
/// # Safety
/// As [`request`]; `count` segments, no more than a list holds.
#[inline(always)]
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
