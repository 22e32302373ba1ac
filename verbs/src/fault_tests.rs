//! What happens when the device refuses: the user-space device with single functions replaced.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ibverbs_sys::{
    Api, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_send_wr,
};

use crate::*;

thread_local! {
    /// Calls that the replaced functions still let through.
    static BEFORE: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn fail_after(n: u32) {
    BEFORE.set(n);
}

/// Whether this call is to fail.
pub(crate) fn fails() -> bool {
    let left = BEFORE.get();
    BEFORE.set(left.saturating_sub(1));
    left == 0
}

pub(crate) fn set_errno(e: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = e };
}

pub(crate) fn open(change: impl FnOnce(&mut Api)) -> Context {
    let mut api = *softverbs::api();
    change(&mut api);
    list::of(forever(api))[0].open().unwrap()
}

/// A place that stays. It is kept sight of, so that who looks for leaks finds none.
pub(crate) fn forever<T>(value: T) -> &'static mut T {
    static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let place = Box::leak(Box::new(value));
    ALL.lock()
        .unwrap()
        .push((&raw mut *place).expose_provenance());
    place
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if fails() {
        return libc::EBUSY;
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_dereg_mr)(mr) }
}

unsafe extern "C" fn reg_mr(_: *mut ibv_pd, _: *mut c_void, _: usize, _: c_int) -> *mut ibv_mr {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

unsafe extern "C" fn no_list(_: *mut c_int) -> *mut *mut ibv_device {
    set_errno(BEFORE.get() as c_int);
    std::ptr::null_mut()
}

unsafe extern "C" fn empty_list(len: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller's own.
    unsafe { *len = 0 };
    NonNull::dangling().as_ptr()
}

unsafe extern "C" fn free_nothing(_: *mut *mut ibv_device) {}

#[test]
fn people_are_told_why_there_is_no_hardware() {
    let why = |change: fn(&mut Api)| {
        let mut api = *softverbs::api();
        change(&mut api);
        list::hardware(forever(api)).err().unwrap()
    };
    BEFORE.set(libc::ENOSYS as u32);
    let text = why(|api| api.ibv_get_device_list = no_list);
    assert!(text.contains("the kernel has no RDMA support loaded"));
    assert!(
        !text.contains("not implemented") && !text.contains("ibv_get"),
        "{text}"
    );
    BEFORE.set(libc::EACCES as u32);
    let text = why(|api| api.ibv_get_device_list = no_list);
    assert!(text.contains("ibv_get_device_list failed: Permission"));
    let text = why(|api| {
        api.ibv_get_device_list = empty_list;
        api.ibv_free_device_list = free_nothing;
    });
    assert!(text.contains("finds no hardware"), "{text}");
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    if fails() {
        return libc::EBUSY;
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_destroy_qp)(qp) }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if fails() {
        set_errno(libc::ENOMEM);
        return std::ptr::null_mut();
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_create_qp)(pd, init) }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes complete attributes.
    let to_error = unsafe { (*attr).qp_state } == ibv_qp_state::IBV_QPS_ERR;
    if !to_error && fails() {
        return libc::ETIMEDOUT;
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_modify_qp)(qp, attr, mask) }
}

unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

unsafe extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    libc::EBUSY
}

/// Registered memory that tells whether it was dropped.
#[derive(Debug)]
struct Watched(
    Private<Vec<u8>>,
    #[allow(dead_code, reason = "its count is what tells")] Arc<()>,
);
// SAFETY: owned registered memory.
unsafe impl Scatter for Watched {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}

/// Memory that tells whether it was dropped.
struct WatchedMemory(
    Vec<u8>,
    #[allow(dead_code, reason = "its count is what tells")] Arc<()>,
);
// SAFETY: as the vector.
unsafe impl Memory for WatchedMemory {
    fn as_ptr(&self) -> *mut u8 {
        Memory::as_ptr(&self.0)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
// SAFETY: as the vector.
unsafe impl MemoryMut for WatchedMemory {}

#[test]
fn memory_that_cannot_be_deregistered_is_leaked() {
    let pd = open(|api| api.ibv_dereg_mr = dereg_mr).alloc_pd().unwrap();
    let alive = Arc::new(());
    let memory = || WatchedMemory(vec![1; 64], alive.clone());
    fail_after(0);
    drop(pd.register(memory()).unwrap());
    assert_eq!(Arc::strong_count(&alive), 2, "the device may still use it");
    fail_after(u32::MAX);
    drop(pd.register(memory()).unwrap());
    assert_eq!(Arc::strong_count(&alive), 2);
}

#[test]
fn a_region_that_cannot_be_released_comes_back() {
    let pd = open(|api| api.ibv_dereg_mr = dereg_mr).alloc_pd().unwrap();
    let private = pd.register(vec![5; 64]).unwrap();
    fail_after(0);
    let e = private.into_inner().unwrap_err();
    assert!(e.to_string().contains("ibv_dereg_mr"), "{e}");
    fail_after(u32::MAX);
    assert_eq!(e.into_region().into_inner().unwrap(), vec![5; 64]);
}

#[test]
fn a_refused_registration_names_the_limits_and_returns_the_memory() {
    let pd = open(|api| api.ibv_reg_mr = reg_mr).alloc_pd().unwrap();
    let e = pd.register(vec![7; 64]).unwrap_err();
    for part in [
        "ibv_reg_mr",
        "64 bytes",
        "RLIMIT_MEMLOCK is",
        "ulimit -l",
        "regions",
    ] {
        assert!(e.to_string().contains(part), "{e}");
    }
    let (memory, error) = e.into_parts();
    assert_eq!(
        (memory, error.raw_os_error()),
        (vec![7; 64], Some(libc::ENOMEM))
    );
}

#[test]
fn buffers_of_a_queue_pair_that_cannot_be_destroyed_are_leaked() {
    let ctx = open(|api| api.ibv_destroy_qp = destroy_qp);
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(512).build().unwrap();
    let alive = Arc::new(());
    let posted = || {
        let (_, tx, mut rx) = pd
            .rc(&cq)
            .build()
            .unwrap()
            .split::<Private<Vec<u8>>, Watched>();
        rx.post(Watched(pd.register(vec![0; 8]).unwrap(), alive.clone()))
            .unwrap();
        (tx, rx)
    };
    let leaked = posted();
    fail_after(0);
    drop(leaked);
    assert_eq!(Arc::strong_count(&alive), 2);
    // Its tags are never used again: the next queue pair has others.
    fail_after(u32::MAX);
    let (tx, rx) = posted();
    assert_eq!(
        (tx.id(), rx.id()),
        (QueueId::new(cq.id(), 2), QueueId::new(cq.id(), 3))
    );
    drop((tx, rx));
    assert_eq!(Arc::strong_count(&alive), 2);

    let (tx, rx) = posted();
    fail_after(0);
    let e = destroy(tx, rx).unwrap_err();
    assert!(matches!(e, DestroyError::Refused(_)), "{e}");
    // Refused at both attempts.
    assert_eq!(Arc::strong_count(&alive), 3);
    fail_after(u32::MAX);
}

/// As devices that leave the completions of a destroyed queue pair where they are: it is broken, and stays.
unsafe extern "C" fn abandon_qp(_: *mut ibv_qp) -> c_int {
    0
}

#[test]
fn completions_of_a_destroyed_queue_pair_do_not_crowd_out_its_successors() {
    let ctx = open(|api| api.ibv_destroy_qp = abandon_qp);
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(60).build().unwrap();
    let hang = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let buf = || pd.register(vec![0; 8]).unwrap();
    let mut stale = 0;
    for round in 0..3u32 {
        let builder = pd.rc(&cq).send_depth(20).recv_depth(40);
        let ready = if round == 0 {
            builder.build().unwrap()
        } else {
            let e = builder.clone().build().unwrap_err();
            assert!(matches!(e, Error::CqTooSmall { leftover: 60, .. }), "{e}");
            // All of them, however late this device flushes in its asynchronous mode; and then it is empty.
            while stale < 60 * round {
                assert!(std::time::Instant::now() < hang, "{stale} in {round}");
                stale += u32::from(cq.poll().unwrap().is_some());
            }
            assert!(cq.poll().unwrap().is_none());
            builder.build().unwrap()
        };
        let own = ready.endpoint();
        let (mut tx, mut rx) = ready
            .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)
            .unwrap();
        (0..40).for_each(|_| rx.post(buf()).unwrap());
        (0..20).for_each(|_| tx.send(buf()).signaled().post().unwrap());
        if round < 2 {
            let (sends, receives) = destroy(tx, rx).unwrap();
            assert_eq!((sends.len(), receives.len()), (20, 40));
            continue;
        }
        let (mut sent, mut received) = (0, 0);
        while (sent, received) != (20, 20) {
            assert!(std::time::Instant::now() < hang, "{sent} and {received}");
            let Some(completion) = cq.poll().unwrap() else {
                continue;
            };
            if completion.queue() == rx.id() {
                let _ = rx.redeem(completion).unwrap().unwrap();
                received += 1;
            } else {
                let mut done = tx.retire(completion).unwrap();
                while let Some((_, result)) = tx.take(&mut done) {
                    result.unwrap();
                    sent += 1;
                }
            }
        }
    }
}

#[test]
fn a_queue_pair_that_was_not_created_leaves_no_trace() {
    let ctx = open(|api| api.ibv_create_qp = create_qp);
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(4).build().unwrap();
    let builder = pd.rc(&cq).send_depth(1).recv_depth(1);
    fail_after(0);
    for _ in 0..10 {
        let e = builder.clone().build().unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ENOMEM));
    }
    fail_after(u32::MAX);
    builder.build().unwrap();
}

#[test]
fn a_failed_state_change_says_what_was_tried() {
    let ctx = open(|api| api.ibv_modify_qp = modify_qp);
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(1024).build().unwrap();
    fail_after(0);
    let e = pd.rc(&cq).build().unwrap_err().to_string();
    assert!(
        e.contains("RESET to INIT") && e.contains("ACCESS_FLAGS"),
        "{e}"
    );
    for (step, names) in [(1, "from INIT to RTR"), (2, "from RTR to RTS")] {
        fail_after(step);
        let ready = pd.rc(&cq).build().unwrap();
        let own = ready.endpoint();
        let (setup, mut tx, _rx) = ready.split::<Private<Vec<u8>>, Private<Vec<u8>>>();
        let e = setup.connect(&own).unwrap_err().to_string();
        let early = tx.send(pd.register(vec![1]).unwrap()).post().unwrap_err();
        assert_eq!(early.kind(), PostErrorKind::NotConnected);
        for part in [
            names,
            "STATE, ",
            "soft0 port 1 GID 1",
            "queue pair 0x",
            "timed out",
        ] {
            assert!(e.contains(part), "{part:?} is missing in: {e}");
        }
    }
    fail_after(u32::MAX);
}

#[test]
fn who_meets_peers_elsewhere_learns_where_this_process_does() {
    let ctx = open(|_| ());
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(1024).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    // As that of a process with another VERBATIM_DIR: of the same form, and not this one's.
    let mut gid = own.gid();
    gid.0[14] ^= 1;
    let peer = Endpoint::new(own.qpn(), own.psn(), own.lid(), gid, own.mtu(), 16).unwrap();
    let e = ready
        .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&peer)
        .unwrap_err();
    assert!(
        matches!(&e, ConnectError::Modify { source, .. } if source.raw_os_error() == Some(libc::ENETUNREACH)),
        "{e}"
    );
    let place = softverbs::meeting_place().unwrap();
    let text = e.to_string();
    assert!(
        text.contains(&place) && text.contains("VERBATIM_DIR to one folder"),
        "{text}"
    );
}

#[test]
fn a_completion_queue_that_cannot_be_destroyed_keeps_the_device_open() {
    let ctx = open(|api| api.ibv_destroy_cq = destroy_cq);
    let cq = ctx.cq(4).channel(&ctx.channel().unwrap()).build().unwrap();
    drop(cq);
    assert!(ctx.alloc_pd().is_ok());
    assert!(
        open(|api| api.ibv_alloc_pd = alloc_pd)
            .alloc_pd()
            .unwrap_err()
            .to_string()
            .contains("ibv_alloc_pd")
    );
}

#[test]
fn gids_are_found_without_the_newer_functions() {
    let old = open(|api| {
        api._ibv_query_gid_table = None;
        api._ibv_query_gid_ex = None;
    });
    let new = open(|_| ());
    let addresses = |ctx: &Context| {
        ctx.gid_table(1)
            .iter()
            .map(|e| (e.index, e.gid))
            .collect::<Vec<_>>()
    };
    assert_eq!(addresses(&old), addresses(&new));
    // The kinds are not known then; an IPv4 address is still preferred.
    assert_eq!(old.gid_table(1)[0].kind, GidKind::Unknown);
    assert_eq!(old.port().gid_index, 1);
}

#[test]
fn the_masks_are_those_of_the_kind_of_connection() {
    thread_local! {
        static SEEN: Cell<[c_int; 3]> = const { Cell::new([0; 3]) };
    }
    unsafe extern "C" fn modify(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        let [_, a, b] = SEEN.get();
        SEEN.set([a, b, mask]);
        // SAFETY: passed on.
        unsafe { (softverbs::api().ibv_modify_qp)(qp, attr, mask) }
    }
    let ctx = open(|api| api.ibv_modify_qp = modify);
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(256).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let _queues = ready
        .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)
        .unwrap();
    let reliable = SEEN.get();
    let ready = pd.uc(&cq).build().unwrap();
    let own = ready.endpoint();
    let _others = ready
        .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)
        .unwrap();
    type M = ibv_qp_attr_mask;
    let of = |bits: &[M]| bits.iter().map(|b| b.0).sum::<u32>() as c_int;
    // ibv_modify_qp(3), table of required attributes for RC.
    let want = [
        of(&[
            M::IBV_QP_STATE,
            M::IBV_QP_PKEY_INDEX,
            M::IBV_QP_PORT,
            M::IBV_QP_ACCESS_FLAGS,
        ]),
        of(&[
            M::IBV_QP_STATE,
            M::IBV_QP_AV,
            M::IBV_QP_PATH_MTU,
            M::IBV_QP_DEST_QPN,
            M::IBV_QP_RQ_PSN,
            M::IBV_QP_MAX_DEST_RD_ATOMIC,
            M::IBV_QP_MIN_RNR_TIMER,
        ]),
        of(&[
            M::IBV_QP_STATE,
            M::IBV_QP_SQ_PSN,
            M::IBV_QP_MAX_QP_RD_ATOMIC,
            M::IBV_QP_RETRY_CNT,
            M::IBV_QP_RNR_RETRY,
            M::IBV_QP_TIMEOUT,
        ]),
    ];
    assert_eq!(reliable, want);
    // The same for UC.
    let want = [
        want[0],
        of(&[
            M::IBV_QP_STATE,
            M::IBV_QP_AV,
            M::IBV_QP_PATH_MTU,
            M::IBV_QP_DEST_QPN,
            M::IBV_QP_RQ_PSN,
        ]),
        of(&[M::IBV_QP_STATE, M::IBV_QP_SQ_PSN]),
    ];
    assert_eq!(SEEN.get(), want);
}

/// As rxe and siw do: the request is in the queue, and then telling the kernel fails.
unsafe extern "C" fn queue_then_fail(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the arguments are the caller's, the function is the device's own, kept by the test.
    unsafe {
        let real = POST_SEND.get().unwrap();
        assert_eq!(real(qp, wr, bad), 0);
        *bad = std::ptr::null_mut();
    }
    libc::EINVAL
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

thread_local! {
    static POST_SEND: Cell<Option<PostSend>> = const { Cell::new(None) };
}

#[test]
fn what_was_queued_stays_though_the_post_reports_a_failure() {
    let ctx = open(|_| {});
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(16).build().unwrap();
    let ready = pd.rc(&cq).send_depth(4).recv_depth(4).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready
        .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)
        .unwrap();
    rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe {
        let ops = &raw mut (*ctx.raw()).ops;
        POST_SEND.set((*ops).post_send);
        (*ops).post_send = Some(queue_then_fail);
    }
    tx.send(pd.register(b"still in".to_vec()).unwrap())
        .signaled()
        .post()
        .unwrap();
    assert_eq!(tx.outstanding(), 1);
    let hang = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut sent = 0;
    while sent == 0 || rx.outstanding() > 0 {
        assert!(std::time::Instant::now() < hang);
        match cq.poll().unwrap() {
            Some(wc) if wc.queue() == tx.id() => {
                let mut done = tx.retire(wc).unwrap();
                while let Some((buf, result)) = tx.take(&mut done) {
                    assert_eq!((&buf[..], result.is_ok()), (&b"still in"[..], true));
                    sent += 1;
                }
            }
            Some(wc) => assert_eq!(rx.redeem(wc).unwrap().unwrap().bytes(), b"still in"),
            None => std::thread::yield_now(),
        }
    }
}

unsafe extern "C" fn without_atomics(ctx: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: passed on; the result is the caller's own.
    unsafe {
        let ret = (softverbs::api().ibv_query_device)(ctx, attr);
        (*attr).atomic_cap = ibverbs_sys::ibv_atomic_cap::IBV_ATOMIC_NONE;
        ret
    }
}

#[test]
fn a_device_without_atomics_is_asked_for_none() {
    let ctx = open(|api| api.ibv_query_device = without_atomics);
    assert!(!ctx.query_device().atomics);
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(16).build().unwrap();
    let ready = pd.rc(&cq).send_depth(4).recv_depth(4).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, _rx) = ready
        .connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)
        .unwrap();
    let counter = pd.expose(8, Access::REMOTE_ATOMIC).unwrap();
    let word = pd.register(vec![7; 8]).unwrap();
    let e = tx
        .fetch_and_add(word, counter.remote(), 1)
        .post()
        .unwrap_err();
    assert_eq!(e.kind(), PostErrorKind::NoAtomics);
    assert_eq!(&e.into_inner()[..], [7; 8]);
}
