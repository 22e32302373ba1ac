//! Extended queue pairs: work requests that are built by calls, and posted together.

use super::null;
use super::qp::{self, Qp};
use crate::copy::copy;
use crate::qp::Caps;
use crate::qp_state::Service;
use crate::send;
use crate::sync::RawLock;
use crate::transfer::MAX_SGE;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use ibverbs_sys::ibv_qp_create_send_ops_flags as Ops;
use ibverbs_sys::ibv_qp_init_attr_mask as Mask;
use ibverbs_sys::*;
use std::io;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// Requests that are being built, from start to completion.
///
/// Invariant: `batch` is used by whoever has `lock`.
pub(super) struct Building {
    lock: RawLock,
    batch: UnsafeCell<Batch>,
    max_inline: usize,
}

/// A request: its elements lie in `sges`, or its bytes in `inline`, of the batch.
struct Request {
    wr: ibv_send_wr,
    sges: Range<usize>,
    inline: Option<Range<usize>>,
}

struct Batch {
    requests: Vec<Request>,
    sges: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// Of inline bytes, as elements: filled when the batch is complete.
    inline_sges: Vec<ibv_sge>,
    /// The first error; 0 for none.
    errno: c_int,
}

impl Batch {
    /// With room for all that the send queue takes.
    fn new(caps: &Caps) -> Batch {
        Batch {
            requests: Vec::with_capacity(caps.send_wr),
            sges: Vec::with_capacity(caps.send_wr * caps.send_sge),
            inline: Vec::with_capacity(caps.send_wr * caps.inline),
            inline_sges: Vec::with_capacity(caps.send_wr),
            errno: 0,
        }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.errno = 0;
    }

    fn fail(&mut self, errno: c_int) {
        if self.errno == 0 {
            self.errno = errno;
        }
    }

    /// The request that setters are about.
    fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            self.fail(libc::EINVAL);
        }
        self.requests.last_mut()
    }

    fn set_sges(&mut self, sges: &[ibv_sge]) {
        let from = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = from..self.sges.len();
        if let Some(last) = self.last() {
            last.sges = range;
            last.inline = None;
        }
    }

    /// Copies the bytes. No reference to them is made: others may be writing them.
    ///
    /// # Safety
    ///
    /// Each piece, address and length, can be read.
    unsafe fn set_inline(
        &mut self,
        pieces: impl Iterator<Item = (*const c_void, usize)>,
        max: usize,
    ) {
        let from = self.inline.len();
        for (bytes, len) in pieces {
            let at = self.inline.len();
            self.inline.reserve(len);
            // SAFETY: by contract, and there is room for as many.
            unsafe {
                copy(self.inline.as_mut_ptr().add(at), bytes.cast(), len);
                self.inline.set_len(at + len);
            }
        }
        let range = from..self.inline.len();
        if range.len() > max {
            return self.fail(libc::EINVAL);
        }
        if let Some(last) = self.last() {
            last.sges = 0..0;
            last.inline = Some(range);
        }
    }

    /// Makes a chain of what was built. Its pointers are into the batch.
    fn chain(&mut self) -> *mut ibv_send_wr {
        let inline = &mut self.inline_sges;
        inline.clear();
        inline.reserve(self.requests.len());
        let mut next = core::ptr::null_mut();
        for request in self.requests.iter_mut().rev() {
            let wr = &mut request.wr;
            let sges = match &request.inline {
                None => &mut self.sges[request.sges.clone()],
                Some(range) => {
                    wr.send_flags |= INLINE;
                    let bytes = &self.inline[range.clone()];
                    // There is room, so the others stay where they are.
                    inline.push(ibv_sge {
                        addr: bytes.as_ptr() as u64,
                        length: bytes.len() as u32,
                        lkey: 0,
                    });
                    let at = inline.len() - 1;
                    &mut inline[at..]
                }
            };
            wr.sg_list = sges.as_mut_ptr();
            wr.num_sge = sges.len() as c_int;
            wr.next = next;
            next = wr;
        }
        next
    }
}

/// The operations that queue pairs of a service can be asked for.
fn operations(service: Service) -> u64 {
    let sends = Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    let writes = Ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
    let fetches = Ops::IBV_QP_EX_WITH_RDMA_READ.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    u64::from(match service {
        Service::Rc => sends | writes | fetches,
        Service::Uc => sends | writes,
        Service::Ud => sends,
    })
}

pub(super) unsafe extern "C" fn create_qp_ex(
    _plain: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let refuse = |errno| null(&io::Error::from_raw_os_error(errno));
    // SAFETY: the caller's structure, of which the plain attributes are a prefix.
    let (init, prefix) = unsafe { (&mut *init, &mut *init.cast::<ibv_qp_init_attr>()) };
    let has = |bit: Mask| init.comp_mask & bit.0 != 0;
    let known = Mask::IBV_QP_INIT_ATTR_PD.0
        | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0
        | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    if init.comp_mask & !known != 0
        || has(Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0
    {
        return refuse(libc::EOPNOTSUPP);
    }
    if !has(Mask::IBV_QP_INIT_ATTR_PD) || init.pd.is_null() {
        return refuse(libc::EINVAL);
    }
    let ops = has(Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
    // SAFETY: module invariant of `verbs`.
    unsafe {
        qp::create(init.pd, prefix, |new, service| match ops {
            Some(ops) => extend(new, service, ops),
            None => Ok(()),
        })
    }
}

fn extend(new: &mut Qp, service: Service, ops: u64) -> Result<(), i32> {
    if ops & !operations(service) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    new.building = Some(Building {
        lock: RawLock::default(),
        batch: UnsafeCell::new(Batch::new(&new.core.caps)),
        max_inline: new.core.caps.inline,
    });
    let has = |op: Ops| ops & u64::from(op.0) != 0;
    let qp = &mut new.qp;
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    if service == Service::Ud {
        qp.wr_set_ud_addr = Some(set_ud_addr);
    }
    // Operations only if they were asked for.
    qp.wr_send = has(Ops::IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
    qp.wr_send_imm = has(Ops::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    qp.wr_rdma_write = has(Ops::IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    let imm = has(Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    qp.wr_rdma_write_imm = imm.then_some(wr_rdma_write_imm as _);
    qp.wr_rdma_read = has(Ops::IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
    let swap = has(Ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
    qp.wr_atomic_cmp_swp = swap.then_some(wr_atomic_cmp_swp as _);
    let add = has(Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
    qp.wr_atomic_fetch_add = add.then_some(wr_atomic_fetch_add as _);
    Ok(())
}

/// NULL if it was not created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
pub(super) unsafe extern "C" fn qp_to_qp_ex(plain: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: module invariant of `verbs`.
    match unsafe { &(*plain.cast::<Qp>()).building } {
        Some(_) => plain.cast(),
        None => core::ptr::null_mut(),
    }
}

/// # Safety
///
/// `qp` is an extended one that was created here.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> &'a Building {
    // SAFETY: by contract; the functions here are called by way of those only.
    match unsafe { &(*qp.cast::<Qp>()).building } {
        Some(building) => building,
        None => unreachable!("only extended queue pairs have these functions"),
    }
}

/// # Safety
///
/// As `building`, between start and completion: the lock is held, by this caller.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: by contract.
    unsafe { &mut *building(qp).batch.get() }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: module invariant of `verbs`.
    unsafe {
        building(qp).lock.lock();
        batch(qp).clear();
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: module invariant of `verbs`; the caller has started, so the lock is ours.
    unsafe { building(qp).lock.unlock() };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: module invariant of `verbs`; the caller has started. The chain is into the batch, which stays as it is.
    unsafe {
        let batch = batch(qp);
        let rc = match batch.errno {
            0 => {
                let first = batch.chain();
                send::post_all(&(*qp.cast::<Qp>()).core, first, batch.requests.len())
            }
            errno => errno,
        };
        building(qp).lock.unlock();
        rc
    }
}

/// Begins a request.
///
/// # Safety
///
/// As `batch`.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, fill: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: by contract.
    let (batch, wr_id, flags) = unsafe { (batch(qp), (*qp).wr_id, (*qp).wr_flags) };
    let mut wr = ibv_send_wr {
        wr_id,
        opcode,
        send_flags: flags & !INLINE,
        ..ibv_send_wr::default()
    };
    fill(&mut wr);
    batch.requests.push(Request {
        wr,
        sges: 0..0,
        inline: None,
    });
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = $opcode:ident |$wr:ident| $fill:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: module invariant of `verbs`; the caller has started.
            unsafe { begin(qp, ibv_wr_opcode::$opcode, |$wr| $fill) };
        }
    )*};
}

fn remote(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32) {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
}

fn atomic(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32, [compare_add, swap]: [u64; 2]) {
    wr.wr.atomic.remote_addr = remote_addr;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
}

operations! {
    wr_send() = IBV_WR_SEND |_wr| ();
    wr_send_imm(imm: __be32) = IBV_WR_SEND_WITH_IMM |wr| wr.__bindgen_anon_1.imm_data = imm;
    wr_rdma_write(rkey: u32, addr: u64) = IBV_WR_RDMA_WRITE |wr| remote(wr, addr, rkey);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: __be32) = IBV_WR_RDMA_WRITE_WITH_IMM |wr| {
        remote(wr, addr, rkey);
        wr.__bindgen_anon_1.imm_data = imm;
    };
    wr_rdma_read(rkey: u32, addr: u64) = IBV_WR_RDMA_READ |wr| remote(wr, addr, rkey);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_WR_ATOMIC_CMP_AND_SWP |wr|
        atomic(wr, addr, rkey, [compare, swap]);
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD |wr|
        atomic(wr, addr, rkey, [add, 0]);
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: module invariant of `verbs`; the caller has started.
    if let Some(last) = unsafe { batch(qp) }.last() {
        last.wr.wr.ud.ah = ah;
        last.wr.wr.ud.remote_qpn = qpn;
        last.wr.wr.ud.remote_qkey = qkey;
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: module invariant of `verbs`; the caller has started.
    unsafe { batch(qp) }.set_sges(&[sge]);
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: module invariant of `verbs`; the caller has started.
    let batch = unsafe { batch(qp) };
    match count {
        0 => batch.set_sges(&[]),
        // SAFETY: the caller's list.
        1..=MAX_SGE => batch.set_sges(unsafe { core::slice::from_raw_parts(list, count) }),
        _ => batch.fail(libc::EINVAL),
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    // SAFETY: module invariant of `verbs`; the caller has started.
    unsafe {
        let max = building(qp).max_inline;
        match len <= max {
            true => batch(qp).set_inline([(addr.cast_const(), len)].into_iter(), max),
            false => batch(qp).fail(libc::EINVAL),
        }
    }
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: module invariant of `verbs`; the caller has started, and its list holds `count` pieces.
    unsafe {
        let list = match count {
            0 => &[],
            _ => core::slice::from_raw_parts(list, count),
        };
        let piece = |piece: &ibv_data_buf| (piece.addr.cast_const(), piece.length);
        let pieces = list.iter().map(piece);
        batch(qp).set_inline(pieces, building(qp).max_inline);
    }
}
