//! What the device is handed when work is posted: the user-space device with its post functions replaced.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;

use ibverbs_sys::{ibv_qp, ibv_send_flags as F, ibv_send_wr, ibv_sge, ibv_wr_opcode as Op};

use crate::*;

type Buf = Private<Vec<u8>>;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// One work request as it was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    opcode: Op,
    flags: u32,
    imm: u32,
    segments: Vec<(u64, u32)>,
}

thread_local! {
    /// The device's own function.
    static REAL: Cell<Option<PostSend>> = const { Cell::new(None) };
    /// The chains posted.
    static SEEN: RefCell<Vec<Vec<Seen>>> = const { RefCell::new(Vec::new()) };
    /// What is returned in the end, without a request being named.
    static RETURN: Cell<c_int> = const { Cell::new(0) };
    /// Whether requests that are taken are named.
    static NAMES: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn record(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut chain = Vec::new();
    let mut at = first;
    // SAFETY: the caller passes a chain that ends with null, and its segments.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: as above; the immediate data is a plain integer, also where nothing was written.
        let (segments, imm): (&[ibv_sge], u32) = unsafe {
            (
                std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize),
                wr.__bindgen_anon_1.imm_data,
            )
        };
        chain.push(Seen {
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: u32::from_be(imm),
            segments: segments.iter().map(|s| (s.addr, s.length)).collect(),
        });
        at = wr.next;
    }
    SEEN.with_borrow_mut(|seen| seen.push(chain));
    if NAMES.get() {
        // SAFETY: the caller's result.
        unsafe { *bad = first };
    }
    // SAFETY: passed on.
    match unsafe { REAL.get().unwrap()(qp, first, bad) } {
        0 => RETURN.get(),
        refused => refused,
    }
}

/// A queue pair that is its own peer, on a device that records what is sent.
fn connected<T: Send + 'static>() -> (Pd, Cq, SendQueue<T>, RecvQueue<T>) {
    let ctx = list::of(softverbs::api())[0].open().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(32).build().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect(&own).unwrap();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe {
        let ops = &raw mut (*ctx.raw()).ops;
        REAL.set((*ops).post_send);
        (*ops).post_send = Some(record);
    }
    (pd, cq, tx, rx)
}

fn seen() -> Vec<Vec<Seen>> {
    SEEN.take()
}

#[test]
fn each_option_sets_its_flag_and_no_other() {
    let (pd, _cq, mut tx, mut rx) = connected::<Buf>();
    let buf = || pd.register(vec![1u8; 8]).unwrap();
    for _ in 0..6 {
        rx.post(buf()).unwrap();
    }
    tx.send(buf()).post().unwrap();
    tx.send(buf()).signaled().post().unwrap();
    tx.send(buf()).fence().post().unwrap();
    tx.send(buf()).inline().post().unwrap();
    tx.send(buf()).solicited().post().unwrap();
    tx.send(buf())
        .imm(0x0102_0304)
        .solicited()
        .fence()
        .inline()
        .signaled()
        .post()
        .unwrap();
    let all: Vec<_> = seen()
        .into_iter()
        .flatten()
        .map(|wr| (wr.opcode, wr.flags, wr.imm))
        .collect();
    let every = F::IBV_SEND_SIGNALED.0
        | F::IBV_SEND_FENCE.0
        | F::IBV_SEND_INLINE.0
        | F::IBV_SEND_SOLICITED.0;
    assert_eq!(
        all,
        [
            (Op::IBV_WR_SEND, 0, 0),
            (Op::IBV_WR_SEND, F::IBV_SEND_SIGNALED.0, 0),
            (Op::IBV_WR_SEND, F::IBV_SEND_FENCE.0, 0),
            (Op::IBV_WR_SEND, F::IBV_SEND_INLINE.0, 0),
            (Op::IBV_WR_SEND, F::IBV_SEND_SOLICITED.0, 0),
            (Op::IBV_WR_SEND_WITH_IMM, every, 0x0102_0304),
        ]
    );
}

#[test]
fn a_batch_is_one_call() {
    let (pd, _cq, mut tx, mut rx) = connected::<Buf>();
    for _ in 0..3 {
        rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
    }
    let bufs = [3u8, 4, 5].map(|n| pd.register(vec![n; n.into()]).unwrap());
    let places = bufs.each_ref().map(|b| (b.as_ptr() as u64, b.len() as u32));
    let mut batch = tx.batch();
    for (buf, imm) in bufs.into_iter().zip(1..) {
        batch.send(buf).imm(imm).add().unwrap();
    }
    batch.post().unwrap();
    let [chain] = &seen()[..] else {
        panic!("one call")
    };
    for ((wr, place), imm) in chain.iter().zip(places).zip(1..) {
        assert_eq!((wr.imm, &wr.segments[..]), (imm, &[place][..]));
    }
    assert_eq!(chain.len(), 3);
}

/// As rxe and siw do: all is in the queue, and then telling the kernel fails.
#[test]
fn a_batch_that_was_queued_stays_though_the_post_reports_a_failure() {
    let (pd, mut cq, mut tx, mut rx) = connected::<Buf>();
    let mut batch = tx.batch();
    for n in 0..3u8 {
        rx.post(pd.register(vec![0; 8]).unwrap()).unwrap();
        batch
            .send(pd.register(vec![n]).unwrap())
            .signaled()
            .add()
            .unwrap();
    }
    RETURN.set(libc::EINVAL);
    batch.post().unwrap();
    RETURN.set(0);
    assert_eq!(tx.outstanding(), 3);
    let hang = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut sent = Vec::new();
    while sent.len() < 3 || rx.outstanding() > 0 {
        assert!(std::time::Instant::now() < hang);
        match cq.poll().unwrap() {
            Some(wc) if wc.queue() == tx.id() => {
                let mut done = tx.retire(wc).unwrap();
                while let Some((buf, result)) = tx.take(&mut done) {
                    result.unwrap();
                    sent.push(buf[0]);
                }
            }
            Some(wc) => drop(rx.redeem(wc).unwrap().unwrap()),
            None => std::thread::yield_now(),
        }
    }
    assert_eq!(sent, [0, 1, 2]);
}

/// Posting by `ibv_post_send` has one place for what libraries name, used over and over.
#[test]
fn what_a_post_that_succeeded_named_is_not_refused_by_a_later_one() {
    let (pd, _cq, mut tx, _rx) = connected::<Buf>();
    let buf = || pd.register(vec![1; 8]).unwrap();
    NAMES.set(true);
    tx.send(buf()).post().unwrap();
    NAMES.set(false);
    RETURN.set(libc::EINVAL);
    let posted = tx.send(buf()).post();
    RETURN.set(0);
    // The device has it.
    posted.unwrap();
    assert_eq!((seen().len(), tx.outstanding()), (2, 2));
}

/// Its segments, of one byte each: as many as the next of the answers says.
#[derive(Debug)]
struct Fickle(Buf, VecDeque<usize>);

impl Fickle {
    fn answer(&mut self, out: &mut SgeList) {
        let count = self.1.pop_front().unwrap();
        let mut whole = SgeList::new();
        self.0.gather(&mut whole);
        let sge = whole.as_slice()[0];
        (0..count).for_each(|_| out.push(Sge { len: 1, ..sge }));
    }
}

// SAFETY: each answer is a part of the buffer, which it owns.
unsafe impl Scatter for Fickle {
    fn scatter(&mut self, out: &mut SgeList) {
        self.answer(out);
    }
}

#[test]
fn of_several_answers_the_last_is_posted_and_measured() {
    let (pd, mut cq, mut tx, mut rx) = connected::<Fickle>();
    let shared = pd
        .expose(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let fickle = |answers: [usize; 2]| Fickle(pd.register(vec![0; 8]).unwrap(), answers.into());
    for (answers, count) in [([2, 1], 1), ([0, 3], 3), ([3, 0], 0)] {
        let read = tx.read(fickle(answers), shared.remote());
        read.signaled().post().unwrap();
        assert_eq!(seen()[0][0].segments.len(), count);
        let done = wait_for(&mut cq);
        let (back, result) = tx.redeem(done).unwrap().next().unwrap();
        assert_eq!(
            (result.unwrap().byte_len(), back.1.len()),
            (count as u32, 0)
        );
    }
    // More than a list holds, and than a queue pair has room for.
    let error = tx
        .read(fickle([2, 40]), shared.remote())
        .post()
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        PostErrorKind::TooManySegments { count: 40, .. }
    ));
    let remote = shared.remote().slice(0..2).unwrap();
    let error = tx.read(fickle([2, 3]), remote).post().unwrap_err();
    let want = PostErrorKind::RemoteTooSmall { len: 3, remote: 2 };
    assert_eq!(error.kind(), want);
    let error = rx.post(fickle([0, 40])).unwrap_err();
    assert!(matches!(
        error.kind(),
        PostErrorKind::TooManySegments { count: 40, .. }
    ));
    assert_eq!(
        (seen().len(), tx.outstanding(), rx.outstanding()),
        (0, 0, 0)
    );
    rx.post(fickle([5, 1])).unwrap();
}

fn wait_for(cq: &mut Cq) -> Completion {
    let hang = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match cq.poll().unwrap() {
            Some(completion) => return completion,
            None => std::thread::yield_now(),
        }
        assert!(std::time::Instant::now() < hang);
    }
}
