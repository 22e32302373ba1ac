//! Shared receive queues on devices that refuse, or that do what the user-space device does not.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use ibverbs_sys::{
    Api, ibv_device_attr, ibv_pd, ibv_qp, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask,
    ibv_srq_init_attr,
};

use crate::fault_tests::set_errno;
use crate::*;

type Buf = Private<Vec<u8>>;

thread_local! {
    /// What each function returns, if not what the device does.
    static CREATE: Cell<bool> = const { Cell::new(true) };
    static DESTROY_SRQ: Cell<c_int> = const { Cell::new(0) };
    static DESTROY_QP: Cell<c_int> = const { Cell::new(0) };
    static RESIZE: Cell<c_int> = const { Cell::new(0) };
    static RESIZED: Cell<u32> = const { Cell::new(0) };
    static NONE: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn create(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if !CREATE.get() {
        set_errno(libc::ENOMEM);
        return std::ptr::null_mut();
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_create_srq)(pd, init) }
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    match DESTROY_SRQ.get() {
        // SAFETY: passed on.
        0 => unsafe { (softverbs::api().ibv_destroy_srq)(srq) },
        errno => errno,
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    match DESTROY_QP.get() {
        // SAFETY: passed on.
        0 => unsafe { (softverbs::api().ibv_destroy_qp)(qp) },
        errno => errno,
    }
}

/// Takes other sizes, as the user-space device does not: a queue that is created large enough serves as one that grows.
unsafe extern "C" fn modify(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    if mask == ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 as c_int {
        // SAFETY: the caller's attributes.
        RESIZED.set(unsafe { (*attr).max_wr });
        return RESIZE.get();
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_modify_srq)(srq, attr, mask) }
}

unsafe extern "C" fn query(
    ctx: *mut ibverbs_sys::ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: passed on; the result is the caller's own.
    unsafe {
        let ret = (softverbs::api().ibv_query_device)(ctx, attr);
        if NONE.get() {
            (*attr).max_srq = 0;
        }
        ret
    }
}

fn open() -> Pd {
    static TABLE: OnceLock<Api> = OnceLock::new();
    let api = TABLE.get_or_init(|| Api {
        ibv_create_srq: create,
        ibv_destroy_srq: destroy_srq,
        ibv_destroy_qp: destroy_qp,
        ibv_modify_srq: modify,
        ibv_query_device: query,
        ..*softverbs::api()
    });
    list::of(api)[0].open().unwrap().alloc_pd().unwrap()
}

/// Registered memory that tells whether it was dropped.
struct Watched(
    Buf,
    #[allow(dead_code, reason = "its count is what tells")] Arc<()>,
);
// SAFETY: owned registered memory.
unsafe impl Scatter for Watched {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}

fn posted(pd: &Pd, alive: &Arc<()>) -> SharedRecvQueue<Watched> {
    let mut shared = pd.shared_recv(4).build().unwrap();
    let memory = pd.register(vec![0; 8]).unwrap();
    shared.post(Watched(memory, alive.clone())).unwrap();
    shared
}

#[test]
fn buffers_of_a_queue_that_cannot_be_destroyed_are_leaked() {
    let (pd, alive) = (open(), Arc::new(()));
    let shared = posted(&pd, &alive);
    DESTROY_SRQ.set(libc::EBUSY);
    drop(shared);
    DESTROY_SRQ.set(0);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(posted(&pd, &alive));
    assert_eq!(Arc::strong_count(&alive), 2);
}

#[test]
fn a_queue_whose_queue_pair_cannot_be_destroyed_stays() {
    let (pd, alive) = (open(), Arc::new(()));
    let cq = pd.context().cq(64).build().unwrap();
    for by_drop in [true, false] {
        let shared = posted(&pd, &alive);
        let builder = pd.rc(&cq).send_depth(4).shared_recv(&shared);
        let (setup, tx) = builder.build().unwrap().split::<Buf>();
        drop(setup);
        DESTROY_QP.set(libc::EBUSY);
        if by_drop {
            drop(tx);
        } else {
            assert!(matches!(tx.destroy(), Err(DestroyError::Refused(_))));
        }
        DESTROY_QP.set(0);
        drop(shared);
        assert_eq!(Arc::strong_count(&alive), 2 + usize::from(!by_drop));
    }
}

#[test]
fn a_queue_that_grows_needs_room_in_all_completion_queues() {
    let pd = open();
    let [mut small, large] = [12, 100].map(|depth| pd.context().cq(depth).build().unwrap());
    let mut shared = pd.shared_recv(4).build::<Buf>().unwrap();
    let links = [&small, &large].map(|cq| {
        let builder = pd.rc(cq).send_depth(4).shared_recv(&shared);
        builder.build().unwrap()
    });
    let room = small.depth() - 4;
    let e = shared.resize(room + 1).unwrap_err();
    assert!(matches!(e, Error::CqTooSmall { .. }), "{e}");
    assert_eq!((RESIZED.get(), shared.depth()), (0, 4));
    // Refused by the device: the room is free again.
    RESIZE.set(libc::EINVAL);
    let e = shared.resize(room).unwrap_err();
    assert!(e.to_string().contains("ibv_modify_srq failed"), "{e}");
    assert_eq!((RESIZED.get(), shared.depth()), (room, 4));
    drop(
        pd.rc(&small)
            .send_depth(1)
            .recv_depth(room - 5)
            .build()
            .unwrap(),
    );
    // Or because it has no such thing.
    RESIZE.set(libc::EOPNOTSUPP);
    let e = shared.resize(room).unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    for part in [pd.context().device_name(), "sizes", "ibv_modify_srq"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    RESIZE.set(0);
    shared.resize(room).unwrap();
    assert_eq!((shared.depth(), shared.free_slots()), (room, room));
    assert!(pd.rc(&small).send_depth(1).recv_depth(0).build().is_err());
    shared.resize(2).unwrap();
    assert_eq!((shared.depth(), shared.free_slots()), (2, 2));
    // What it had room for may have arrived, until a poll finds nothing.
    assert!(pd.rc(&small).send_depth(1).recv_depth(0).build().is_err());
    assert!(small.poll().unwrap().is_none());
    drop(pd.rc(&small).send_depth(1).recv_depth(0).build().unwrap());
    drop(links);
    assert!(small.poll().unwrap().is_none());
}

#[test]
fn a_queue_that_was_not_created_leaves_no_trace() {
    let pd = open();
    CREATE.set(false);
    let e = pd.shared_recv(4).build::<Buf>().unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::ENOMEM));
    assert!(e.to_string().contains("4 receives"), "{e}");
    CREATE.set(true);
    // Nor does a queue pair.
    let shared = pd.shared_recv(4).build::<Buf>().unwrap();
    let cq = pd.context().cq(8).build().unwrap();
    let builder = pd.rc(&cq).send_depth(1).shared_recv(&shared);
    let refused = builder.clone().max_inline(u32::MAX).build();
    assert!(matches!(refused, Err(Error::Verb { .. })));
    builder.send_depth(cq.depth() - 4).build().unwrap();
    NONE.set(true);
    let e = open().shared_recv(4).build::<Buf>().unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
}
