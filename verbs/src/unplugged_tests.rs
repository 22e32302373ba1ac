//! A device that is gone: everything fails, nothing is undefined, and what the device may still use is leaked.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ibverbs_sys::*;

use crate::fault_tests::set_errno;
use crate::*;

type Buf = Private<Vec<u8>>;

thread_local! {
    static GONE: Cell<bool> = const { Cell::new(false) };
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// The device's own function, or EIO in the way that this kind of function says it.
macro_rules! unless_gone {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty, $own:ident, $else:expr;)*) => {$(
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            if GONE.get() {
                set_errno(libc::EIO);
                return $else;
            }
            // SAFETY: passed on.
            unsafe { (softverbs::api().$own)($($arg),*) }
        }
    )*};
}

unless_gone! {
    alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd, ibv_alloc_pd, null_mut();
    reg_mr(pd: *mut ibv_pd, at: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr, ibv_reg_mr, null_mut();
    dereg_mr(mr: *mut ibv_mr) -> c_int, ibv_dereg_mr, libc::EIO;
    create_channel(ctx: *mut ibv_context) -> *mut ibv_comp_channel, ibv_create_comp_channel, null_mut();
    create_cq(ctx: *mut ibv_context, cqe: c_int, data: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq,
        ibv_create_cq, null_mut();
    resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, ibv_resize_cq, libc::EIO;
    destroy_cq(cq: *mut ibv_cq) -> c_int, ibv_destroy_cq, libc::EIO;
    create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq, ibv_create_srq, null_mut();
    destroy_srq(srq: *mut ibv_srq) -> c_int, ibv_destroy_srq, libc::EIO;
    create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp, ibv_create_qp, null_mut();
    modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, ibv_modify_qp, libc::EIO;
    destroy_qp(qp: *mut ibv_qp) -> c_int, ibv_destroy_qp, libc::EIO;
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { *bad = wr };
    libc::EIO
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { *bad = wr };
    libc::EIO
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { *bad = wr };
    libc::EIO
}

unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -libc::EIO
}

/// Tells once that the device is gone.
unsafe extern "C" fn get_event(_: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    if !GONE.get() || TOLD.replace(true) {
        set_errno(libc::EAGAIN);
        return -1;
    }
    // SAFETY: the caller's.
    unsafe { (*event).event_type = ibv_event_type::IBV_EVENT_DEVICE_FATAL };
    0
}

unsafe extern "C" fn acknowledge(_: *mut ibv_async_event) {}

fn open() -> Context {
    static TABLE: OnceLock<Api> = OnceLock::new();
    let api = TABLE.get_or_init(|| Api {
        ibv_alloc_pd: alloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_create_comp_channel: create_channel,
        ibv_create_cq: create_cq,
        ibv_resize_cq: resize_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_create_srq: create_srq,
        ibv_destroy_srq: destroy_srq,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_get_async_event: get_event,
        ibv_ack_async_event: acknowledge,
        ..*softverbs::api()
    });
    list::of(api)[0].open().unwrap()
}

fn unplug(ctx: &Context) {
    GONE.set(true);
    // SAFETY: the context is open, and only this thread uses it.
    unsafe {
        let ops = &mut (*ctx.raw()).ops;
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        ops.post_srq_recv = Some(post_srq_recv);
        ops.poll_cq = Some(poll);
    }
}

/// Memory that tells whether it was dropped.
struct Watched(
    Vec<u8>,
    #[allow(dead_code, reason = "its count is what tells")] Arc<()>,
);
// SAFETY: as the vector.
unsafe impl Memory for Watched {
    fn as_ptr(&self) -> *mut u8 {
        Memory::as_ptr(&self.0)
    }
    fn len(&self) -> usize {
        Memory::len(&self.0)
    }
}
// SAFETY: as the vector.
unsafe impl MemoryMut for Watched {}

#[test]
fn everything_is_an_error_and_memory_in_flight_is_leaked() {
    let alive = Arc::new(());
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let memory = || Watched(vec![0; 8], alive.clone());
    let watched = || pd.register(memory()).unwrap();
    let mut cq = ctx.cq(64).build().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready
        .connect::<Private<Watched>, Private<Watched>>(&own)
        .unwrap();
    let late = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let mut shared = pd.shared_recv(4).build::<Private<Watched>>().unwrap();
    rx.post(watched()).unwrap();
    shared.post(watched()).unwrap();
    let (one, two, three, four) = (watched(), watched(), watched(), watched());
    assert_eq!(ctx.async_event(Some(Duration::ZERO)).unwrap(), None);

    unplug(&ctx);
    let told = ctx.async_event(Some(Duration::ZERO)).unwrap();
    assert_eq!(told, Some(AsyncEvent::DeviceFatal));
    let gone = PostErrorKind::Device { errno: libc::EIO };
    assert_eq!(tx.send(one).post().unwrap_err().kind(), gone);
    assert_eq!(rx.post(two).unwrap_err().kind(), gone);
    assert_eq!(shared.post(three).unwrap_err().kind(), gone);
    let mut batch = tx.batch();
    batch.send(four).add().unwrap();
    let e = batch.post().unwrap_err();
    assert_eq!((e.kind(), e.posted()), (gone, 0));
    assert!(matches!(cq.poll(), Err(Error::CqBroken { .. })));
    let mut batch = WcBatch::with_capacity(4);
    assert!(matches!(
        cq.poll_into(&mut batch),
        Err(Error::CqBroken { .. })
    ));
    // All that makes something new.
    let eio = |e: Error| assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
    eio(ctx.alloc_pd().unwrap_err());
    eio(ctx.channel().unwrap_err());
    eio(ctx.cq(4).build().unwrap_err());
    eio(cq.resize(128).unwrap_err());
    eio(pd.rc(&cq).send_depth(1).recv_depth(1).build().unwrap_err());
    eio(pd.shared_recv(4).build::<Buf>().unwrap_err());
    eio(pd.register(vec![0; 8]).unwrap_err().into_error());
    eio(pd.expose(8, Access::REMOTE_READ).unwrap_err());
    assert!(late.connect::<Buf, Buf>(&own).is_err());
    eio(tx.set_error().unwrap_err());
    // Nothing lent is left with the device: the scope ends.
    let ended = tx.scope(&mut cq, |s| s.outstanding());
    assert!(matches!(ended, Ok(0)));
    // All buffers were given back or are in flight, and none can be deregistered.
    assert!(matches!(destroy(tx, rx), Err(DestroyError::Refused(_))));
    drop(shared);
    drop((cq, pd, ctx));
    assert_eq!(Arc::strong_count(&alive), 1 + 6);
}
