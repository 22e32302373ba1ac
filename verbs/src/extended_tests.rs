//! Devices that have no extended queues, or half of them, or fail in the middle: the user-space device tampered with.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use ibverbs_sys::inline::verbs_get_ctx;
use ibverbs_sys::{
    Api, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device_attr,
    ibv_poll_cq_attr, ibv_qp, ibv_qp_ex, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode,
};

use crate::*;

type Buf = Private<Vec<u8>>;
type CreateCq = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
type Complete = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;
type Start = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type SetInline = unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize);
type Next = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

thread_local! {
    static CREATE: Cell<Option<CreateCq>> = const { Cell::new(None) };
    static NEXT: Cell<Option<Next>> = const { Cell::new(None) };
    static FAIL: Cell<c_int> = const { Cell::new(0) };
    static ABORTED: Cell<u32> = const { Cell::new(0) };
    static CLASSIC: Cell<u32> = const { Cell::new(0) };
}

fn open() -> Context {
    list::of(softverbs::api())[0].open().unwrap()
}

fn unsupported(e: &Error, verb: &str) {
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
    for part in [verb, "soft0"] {
        assert!(e.to_string().contains(part), "{e}");
    }
}

#[test]
fn a_device_without_extended_queues_says_so() {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(256).build().unwrap();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe {
        let vctx = verbs_get_ctx(ctx.raw());
        ((*vctx).create_cq_ex, (*vctx).create_qp_ex) = (None, None);
    }
    for fields in [WcFields::empty(), WcFields::COMPLETION_TIME] {
        let e = ctx.cq(16).extended(fields).build().unwrap_err();
        unsupported(&e, "ibv_create_cq_ex");
        assert_eq!(e.to_string().contains("time stamps"), !fields.is_empty());
    }
    let e = pd.rc(&cq).extended().build().unwrap_err();
    unsupported(&e, "ibv_create_qp_ex");
    // Nothing of the attempt is left: it all fits still.
    assert!(pd.rc(&cq).send_depth(128).recv_depth(128).build().is_ok());
}

#[test]
fn a_library_that_cannot_convert_is_one_without() {
    unsafe extern "C" fn nothing(_: *mut ibv_qp) -> *mut ibv_qp_ex {
        std::ptr::null_mut()
    }
    static TABLES: OnceLock<[Api; 2]> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        [None, Some(nothing as _)].map(|ibv_qp_to_qp_ex| Api {
            ibv_qp_to_qp_ex,
            ..*softverbs::api()
        })
    });
    for api in tables {
        let pd = list::of(api)[0].open().unwrap().alloc_pd().unwrap();
        let cq = pd.context().cq(256).build().unwrap();
        unsupported(
            &pd.uc(&cq).extended().build().unwrap_err(),
            "ibv_create_qp_ex",
        );
        assert!(pd.uc(&cq).send_depth(128).recv_depth(128).build().is_ok());
    }
}

#[test]
fn a_queue_that_lacks_a_reader_is_not_used() {
    unsafe extern "C" fn create(
        ctx: *mut ibv_context,
        init: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex {
        // SAFETY: passed on.
        let cq = unsafe { CREATE.get().unwrap()(ctx, init) };
        // SAFETY: just created.
        unsafe { (*cq).read_completion_ts = None };
        cq
    }
    let ctx = open();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe {
        let vctx = verbs_get_ctx(ctx.raw());
        CREATE.set((*vctx).create_cq_ex);
        (*vctx).create_cq_ex = Some(create);
    }
    let e = ctx.cq(16).extended(WcFields::COMPLETION_TIME).build();
    unsupported(&e.unwrap_err(), "ibv_create_cq_ex");
    assert!(ctx.cq(16).extended(WcFields::WALL_CLOCK).build().is_ok());
}

/// An own peer; both of its queues complete on the queue.
fn own(ctx: &Context, cq: &Cq) -> (SendQueue<Buf>, RecvQueue<Buf>, Pd) {
    let pd = ctx.alloc_pd().unwrap();
    let ready = pd.rc(cq).extended().build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect(&own).unwrap();
    (tx, rx, pd)
}

#[test]
fn a_failure_in_the_middle_is_told_by_the_next_poll() {
    unsafe extern "C" fn next(cq: *mut ibv_cq_ex) -> c_int {
        match FAIL.get() {
            // SAFETY: passed on.
            0 => unsafe { NEXT.get().unwrap()(cq) },
            errno => errno,
        }
    }
    for with_cursor in [true, false] {
        let ctx = open();
        let mut cq = ctx.cq(256).extended(WcFields::empty()).build().unwrap();
        // SAFETY: alive, and only this thread uses it.
        unsafe {
            let raw: *mut ibv_cq_ex = cq.shared().raw().cast();
            NEXT.set((*raw).next_poll);
            (*raw).next_poll = Some(next);
        }
        let (mut tx, mut rx, pd) = own(&ctx, &cq);
        rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
        let work = pd.register(vec![1]).unwrap();
        tx.send(work).signaled().post().unwrap();
        FAIL.set(libc::EIO);
        let mut batch = WcBatch::with_capacity(8);
        let mut got = 0;
        while got == 0 {
            got = match with_cursor {
                true => {
                    let mut poll = cq.start_poll().unwrap();
                    let first = poll.next().is_some();
                    assert!(poll.next().is_none());
                    usize::from(first)
                }
                false => cq.poll_into(&mut batch).unwrap(),
            };
        }
        assert_eq!(got, 1, "what came before is good");
        FAIL.set(0);
        let broken = cq.poll_into(&mut batch).unwrap_err();
        assert!(matches!(broken, Error::CqBroken { code } if code == -libc::EIO));
        // It was told.
        cq.poll_into(&mut batch).unwrap();
    }
}

#[test]
fn an_operation_that_is_not_there_is_refused_and_gives_its_buffer_back() {
    unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
        ABORTED.set(ABORTED.get() + 1);
        // SAFETY: passed on: the user-space device's own, of any queue pair.
        unsafe { REAL_ABORT.get().unwrap()(qp) }
    }
    thread_local! {
        static REAL_ABORT: Cell<Option<unsafe extern "C" fn(*mut ibv_qp_ex)>> = const { Cell::new(None) };
    }
    let ctx = open();
    let mut cq = ctx.cq(256).build().unwrap();
    let (mut tx, mut rx, pd) = own(&ctx, &cq);
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw = (softverbs::api().ibv_qp_to_qp_ex.unwrap())(tx.half.qp);
        REAL_ABORT.set((*raw).wr_abort);
        (*raw).wr_send_imm = None;
        (*raw).wr_abort = Some(abort);
    }
    let data = |bytes: &[u8]| pd.register(bytes.to_vec()).unwrap();
    rx.post(data(&[0; 8])).unwrap();
    let e = tx.send(data(b"with")).imm(1).post().unwrap_err();
    let errno = libc::EOPNOTSUPP;
    assert_eq!(e.kind(), PostErrorKind::Device { errno });
    assert_eq!(&e.into_inner()[..], b"with");
    // A batch is posted as a whole or not at all.
    let mut batch = tx.batch();
    batch.send(data(b"first")).add().unwrap();
    batch.send(data(b"second")).imm(1).signaled().add().unwrap();
    let e = batch.post().unwrap_err();
    assert_eq!((e.posted(), e.into_inner().len()), (0, 2));
    assert_eq!((ABORTED.get(), tx.outstanding()), (2, 0));
    tx.send(data(b"without")).post().unwrap();
    let wc = loop {
        match cq.poll().unwrap() {
            Some(wc) => break wc,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(rx.redeem(wc).unwrap().unwrap().bytes(), b"without");
}

#[test]
fn a_refusal_at_the_end_gives_everything_back() {
    unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
        // SAFETY: passed on; started, and not completed.
        unsafe { ((*qp).wr_abort.unwrap())(qp) };
        libc::ENOSPC
    }
    let ctx = open();
    let cq = ctx.cq(256).build().unwrap();
    let (mut tx, _rx, pd) = own(&ctx, &cq);
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        (*(softverbs::api().ibv_qp_to_qp_ex.unwrap())(tx.half.qp)).wr_complete = Some(complete)
    };
    let e = tx.send(pd.register(vec![5]).unwrap()).post().unwrap_err();
    assert!(e.is_full() && e.into_inner()[..] == [5]);
    assert_eq!(tx.outstanding(), 0);
}

/// As libraries do that put work into the queue before they tell the kernel.
#[test]
fn what_may_be_posted_in_spite_of_an_error_stays() {
    unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
        // SAFETY: passed on, to the function that was there.
        unsafe { COMPLETE.get().unwrap()(qp) };
        libc::ENOMEM
    }
    thread_local! {
        static COMPLETE: Cell<Option<Complete>> = const { Cell::new(None) };
    }
    let ctx = open();
    let mut cq = ctx.cq(256).build().unwrap();
    let (mut tx, _rx, pd) = own(&ctx, &cq);
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw = (softverbs::api().ibv_qp_to_qp_ex.unwrap())(tx.half.qp);
        COMPLETE.set((*raw).wr_complete);
        (*raw).wr_complete = Some(complete);
    }
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let work = pd.register(vec![5]).unwrap();
    tx.write(work, shared.remote()).signaled().post().unwrap();
    let mut batch = tx.batch();
    let work = pd.register(vec![6]).unwrap();
    batch.write(work, shared.remote()).signaled().add().unwrap();
    batch.post().unwrap();
    assert_eq!(tx.outstanding(), 2);
    let mut back = Vec::new();
    while back.len() < 2 {
        let Some(wc) = cq.poll().unwrap() else {
            std::thread::yield_now();
            continue;
        };
        let mut done = tx.retire(wc).unwrap();
        while let Some((buffer, result)) = tx.take(&mut done) {
            result.unwrap();
            back.push(buffer[0]);
        }
    }
    assert_eq!(back, [5, 6]);
}

/// A library that copies the bytes and does not note that it has.
#[test]
fn inline_data_carries_its_flag() {
    unsafe extern "C" fn set(qp: *mut ibv_qp_ex, bytes: *mut c_void, length: usize) {
        // SAFETY: between start and complete.
        FLAGS.set(unsafe { (*qp).wr_flags });
        // SAFETY: passed on.
        unsafe { SET.get().unwrap()(qp, bytes, length) }
    }
    thread_local! {
        static FLAGS: Cell<u32> = const { Cell::new(0) };
        static SET: Cell<Option<SetInline>> = const { Cell::new(None) };
    }
    let ctx = open();
    let cq = ctx.cq(256).build().unwrap();
    let (mut tx, _rx, pd) = own(&ctx, &cq);
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw = (softverbs::api().ibv_qp_to_qp_ex.unwrap())(tx.half.qp);
        SET.set((*raw).wr_set_inline_data);
        (*raw).wr_set_inline_data = Some(set);
    }
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let work = pd.register(vec![5]).unwrap();
    tx.write(work, shared.remote()).inline().post().unwrap();
    assert_eq!(FLAGS.get(), ibv_send_flags::IBV_SEND_INLINE.0);
}

/// Where lists are sent wrong, by [`extended_qp::lists_are_wrong`], there are none.
#[test]
fn a_device_whose_library_gets_lists_wrong_is_built_for_one_segment_and_given_no_list() {
    unsafe extern "C" fn soft_roce(ctx: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: passed on, and then the caller's structure.
        unsafe {
            let ret = (softverbs::api().ibv_query_device)(ctx, attr);
            (*attr).vendor_id = 0xff_ffff;
            ret
        }
    }
    unsafe extern "C" fn segments(_: *mut ibv_qp_ex, _: usize, _: *const ibv_sge) {
        LISTS.set(LISTS.get() + 1);
    }
    unsafe extern "C" fn pieces(_: *mut ibv_qp_ex, _: usize, _: *const ibv_data_buf) {
        LISTS.set(LISTS.get() + 1);
    }
    thread_local! {
        static LISTS: Cell<u32> = const { Cell::new(0) };
    }
    static TABLE: OnceLock<Api> = OnceLock::new();
    let table = TABLE.get_or_init(|| Api {
        ibv_query_device: soft_roce,
        ..*softverbs::api()
    });
    let ctx = list::of(table)[0].open().unwrap();
    let mut cq = ctx.cq(256).build().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let small = || pd.rc(&cq).send_depth(8).recv_depth(8);
    let e = small().extended().max_send_sge(2).build().unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    for part in ["soft0", "several segments", "max_send_sge(1)", "extended()"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    // The classic way has no less for it.
    drop(small().max_send_sge(2).build().unwrap());
    let (mut tx, mut rx, pd) = own(&ctx, &cq);
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw = (softverbs::api().ibv_qp_to_qp_ex.unwrap())(tx.half.qp);
        (*raw).wr_set_sge_list = Some(segments);
        (*raw).wr_set_inline_data_list = Some(pieces);
    }
    let data = pd.register(b"data".to_vec()).unwrap();
    tx.scope(&mut cq, |s| {
        let two = [data.part(..).unwrap(); 2];
        let many = PostErrorKind::TooManySegments { count: 2, max: 1 };
        assert_eq!(s.send(two), Err(many));
    })
    .unwrap();
    for inline in [false, true] {
        rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
        let wr = tx.send(pd.register(b"data".to_vec()).unwrap());
        match inline {
            true => wr.inline(),
            false => wr,
        }
        .post()
        .unwrap();
        let wc = loop {
            match cq.poll().unwrap() {
                Some(wc) => break wc,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(rx.redeem(wc).unwrap().unwrap().bytes(), b"data");
    }
    assert_eq!(LISTS.get(), 0);
}

/// Of failed work, devices define nothing else.
#[test]
fn of_failed_work_only_the_reasons_are_read() {
    unsafe extern "C" fn reason(_: *mut ibv_cq_ex) -> u32 {
        0x77
    }
    unsafe extern "C" fn opcode(_: *mut ibv_cq_ex) -> ibv_wc_opcode {
        LOOKED.set(LOOKED.get() + 1);
        ibv_wc_opcode::IBV_WC_RECV
    }
    thread_local! {
        static LOOKED: Cell<u32> = const { Cell::new(0) };
    }
    let ctx = open();
    let mut cq = ctx.cq(256).extended(WcFields::all()).build().unwrap();
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw: *mut ibv_cq_ex = cq.shared().raw().cast();
        (*raw).read_vendor_err = Some(reason);
        (*raw).read_opcode = Some(opcode);
    }
    let (mut tx, mut rx, pd) = own(&ctx, &cq);
    rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
    tx.set_error().unwrap();
    let wc = loop {
        match cq.poll().unwrap() {
            Some(wc) => break wc,
            None => std::thread::yield_now(),
        }
    };
    let error = rx.redeem(wc).unwrap().unwrap_err().error();
    assert_eq!((error.vendor_err, error.is_flush()), (0x77, true));
    assert_eq!(LOOKED.get(), 0);
}

#[test]
fn a_clock_that_is_being_changed_is_waited_for() {
    unsafe extern "C" fn start(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
        BUSY.set(BUSY.get() + 1);
        match BUSY.get() % 3 {
            // SAFETY: passed on.
            0 => unsafe { START.get().unwrap()(cq, attr) },
            _ => libc::EBUSY,
        }
    }
    thread_local! {
        static BUSY: Cell<u32> = const { Cell::new(0) };
        static START: Cell<Option<Start>> = const { Cell::new(None) };
    }
    let ctx = open();
    let mut cq = ctx.cq(256).extended(WcFields::WALL_CLOCK).build().unwrap();
    // SAFETY: alive, and only this thread uses it.
    unsafe {
        let raw: *mut ibv_cq_ex = cq.shared().raw().cast();
        START.set((*raw).start_poll);
        (*raw).start_poll = Some(start);
    }
    assert!(cq.poll().unwrap().is_none());
    assert!(cq.start_poll().unwrap().next().is_none());
    assert_eq!(BUSY.get(), 6);
}

/// What is built to be posted by calls never goes the classic way, and the other way round.
#[test]
fn each_goes_its_way() {
    unsafe extern "C" fn classic(
        _: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        CLASSIC.set(CLASSIC.get() + 1);
        // SAFETY: the caller's variable.
        unsafe { *bad = wr };
        libc::ENXIO
    }
    let ctx = open();
    let cq = ctx.cq(256).build().unwrap();
    let (mut tx, _rx, pd) = own(&ctx, &cq);
    let plain = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let peer = plain.endpoint();
    let (mut classic_tx, _) = plain.connect::<Buf, Buf>(&peer).unwrap();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe { (*ctx.raw()).ops.post_send = Some(classic) };
    tx.send(pd.register(vec![1]).unwrap()).post().unwrap();
    assert_eq!(CLASSIC.get(), 0);
    let e = classic_tx.send(pd.register(vec![1]).unwrap()).post();
    let errno = libc::ENXIO;
    assert_eq!(e.unwrap_err().kind(), PostErrorKind::Device { errno });
    assert_eq!(CLASSIC.get(), 1);
}

#[test]
fn who_sent_something_is_nobody_where_that_was_not_asked_for() {
    let ctx = open();
    let mut cq = ctx.cq(256).extended(WcFields::empty()).build().unwrap();
    let (mut tx, mut rx, pd) = own(&ctx, &cq);
    let into = pd.register(vec![0; 8]).unwrap();
    let mut segment = ibverbs_sys::ibv_sge {
        addr: into.as_ptr() as u64,
        length: 8,
        lkey: into.lkey().0,
    };
    let mut wr = ibverbs_sys::ibv_recv_wr {
        sg_list: &mut segment,
        num_sge: 1,
        ..Default::default()
    };
    let mut batch = WcBatch::with_capacity(1);
    // Left there by a completion of another queue.
    batch.room()[0].src_qp = 77;
    // SAFETY: a chain of one, into memory that nobody looks at and that lives longer than the queue pair.
    unsafe { rx.post_raw(&mut wr).unwrap() };
    tx.send(pd.register(vec![1]).unwrap()).post().unwrap();
    while cq.poll_into(&mut batch).unwrap() == 0 {
        std::thread::yield_now();
    }
    let raw = batch.pop().unwrap().into_raw().unwrap();
    assert_eq!(raw.result.unwrap().source_qpn(), None);
    drop((tx, rx));
    drop(into);
}

#[test]
fn what_a_scope_keeps_for_others_keeps_its_time() {
    let ctx = open();
    let fields = WcFields::COMPLETION_TIME | WcFields::WALL_CLOCK;
    let mut cq = ctx.cq(256).extended(fields).build().unwrap();
    let (mut tx, mut rx, pd) = own(&ctx, &cq);
    rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
    let lent = pd.register(b"lent".to_vec()).unwrap();
    tx.scope(&mut cq, |s| s.send(lent.part(..).unwrap()).unwrap())
        .unwrap();
    let (mut seen, rx) = (0, &mut rx);
    while seen == 0 {
        let mut poll = cq.start_poll().unwrap();
        while let Some(polled) = poll.next() {
            assert_eq!(polled.queue(), rx.id());
            assert!(polled.completion_ticks().is_some() && polled.wall_clock().is_some());
            let wc = polled.into_completion();
            assert_eq!(rx.redeem(wc).unwrap().unwrap().bytes(), b"lent");
            seen += 1;
        }
    }
}
