//! Raw posting, beside the safe interface on the same queues.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use verbs::{Access, RawCompletion, WcStatus};

fn segment(buffer: &Buf) -> ibv_sge {
    ibv_sge {
        addr: buffer.as_ptr() as u64,
        length: buffer.len() as u32,
        lkey: buffer.lkey().0,
    }
}

fn send(wr_id: u64, segment: &mut ibv_sge) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        sg_list: segment,
        num_sge: 1,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    }
}

fn receive(wr_id: u64, segment: &mut ibv_sge) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: std::ptr::null_mut(),
        sg_list: segment,
        num_sge: 1,
    }
}

/// The next completion, which must be of raw work.
fn raw<S: Send + 'static, R: Send + 'static>(end: &mut End<S, R>) -> RawCompletion {
    let completion = next(&mut end.cq);
    assert!(completion.queue() != end.tx.id() && completion.queue() != end.rx.id());
    completion.into_raw().unwrap()
}

#[test]
fn raw_and_safe_work_share_the_queues_in_order() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let (one, three) = (buf(&pd, b"one"), buf(&pd, b"three"));
    let (first, third) = (room(&pd, 8), room(&pd, 8));
    let mut segments = [&one, &three, &first, &third].map(segment);
    let [one_at, three_at, first_at, third_at] = &mut segments;
    // SAFETY: single requests on memory that is not touched before their completions are seen below.
    unsafe {
        // The upper bits are not the user's.
        b.rx.post_raw(&mut receive(u64::MAX << 32 | 1, first_at))
            .unwrap();
        b.rx.post(room(&pd, 8)).unwrap();
        b.rx.post_raw(&mut receive(3, third_at)).unwrap();
        a.tx.post_raw(&mut send(11, one_at)).unwrap();
        a.tx.send(buf(&pd, b"two")).signaled().post().unwrap();
        a.tx.post_raw(&mut send(13, three_at)).unwrap();
    }
    assert_eq!((a.tx.outstanding(), b.rx.outstanding()), (1, 1));
    for end in [(11, None), (0, Some(b"two")), (13, None)] {
        let (wr_id, safe) = end;
        match safe {
            Some(bytes) => {
                // A completion that is not raw comes back, and serves its queue.
                let completion = next(&mut a.cq).into_raw().unwrap_err();
                let mut done = a.tx.retire(completion).unwrap();
                assert_eq!(&a.tx.take(&mut done).unwrap().0[..], bytes);
            }
            None => {
                let done = raw(&mut a);
                assert_eq!((done.wr_id, done.qp_num), (wr_id, a.tx.qp_num()));
                assert!(done.result.unwrap().signaled());
            }
        }
    }
    let got = raw(&mut b);
    assert_eq!(got.wr_id, 0xffff_0000_0001);
    assert_eq!(got.result.unwrap().byte_len(), 3);
    assert_eq!(b.received().unwrap().bytes(), b"two");
    let got = raw(&mut b);
    assert_eq!((got.wr_id, got.result.unwrap().byte_len()), (3, 5));
    assert_eq!((&first[..3], &third[..5]), (&b"one"[..], &b"three"[..]));
}

#[test]
fn a_raw_completion_retires_nothing() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for _ in 0..2 {
        b.rx.post(room(&pd, 8)).unwrap();
    }
    a.tx.send(buf(&pd, b"safe")).post().unwrap();
    let data = buf(&pd, b"raw");
    // SAFETY: a single request on memory that is not touched before its completion is seen.
    unsafe { a.tx.post_raw(&mut send(0, &mut segment(&data))).unwrap() };
    let completion = next(&mut a.cq);
    let completion = a.tx.retire(completion).unwrap_err().into_completion();
    let completion = b.rx.redeem(completion).unwrap_err().into_completion();
    completion.into_raw().unwrap();
    assert_eq!(a.tx.outstanding(), 1);
}

#[test]
fn a_chain_with_immediate_data_and_atomics() {
    let pd = device().alloc_pd().unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.access(access));
    let shared = pd.expose(64, access).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    let (data, word) = (buf(&pd, &5u64.to_ne_bytes()), room(&pd, 8));
    let (mut data_at, mut word_at) = (segment(&data), segment(&word));
    let mut add = send(2, &mut word_at);
    add.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    add.wr.atomic.remote_addr = shared.remote().addr;
    add.wr.atomic.rkey = shared.remote().rkey.0;
    add.wr.atomic.compare_add = 2;
    let mut write = send(1, &mut data_at);
    write.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
    write.send_flags = 0;
    write.__bindgen_anon_1.imm_data = 9u32.to_be();
    write.wr.rdma.remote_addr = shared.remote().addr;
    write.wr.rdma.rkey = shared.remote().rkey.0;
    write.next = &mut add;
    // SAFETY: a chain of two on memory that is not touched before the completion of the second is seen.
    unsafe { a.tx.post_raw(&mut write).unwrap() };
    assert_eq!(b.received().unwrap().imm(), Some(9));
    assert_eq!(raw(&mut a).wr_id, 2);
    assert_eq!(word[..], 5u64.to_ne_bytes());
    let mut now = [0; 8];
    shared.read_at(0, &mut now).unwrap();
    assert_eq!(u64::from_ne_bytes(now), 7);
}

#[test]
fn a_refused_chain_says_what_was_posted() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 8)).unwrap();
    let data = buf(&pd, b"data");
    let mut at = segment(&data);
    let mut last = send(3, &mut at);
    let mut wrong = send(2, &mut at);
    wrong.opcode = ibv_wr_opcode(99);
    wrong.next = &mut last;
    let mut good = send(1, &mut at);
    good.next = &mut wrong;
    // SAFETY: a chain of three on memory that is not touched before the end; its second request is one that soft0 knows to refuse.
    let error = unsafe { a.tx.post_raw(&mut good).unwrap_err() };
    assert_eq!((error.errno, error.posted), (libc::EOPNOTSUPP, 1));
    assert!(error.to_string().contains("after 1 request"), "{error}");
    assert_eq!(b.received().unwrap().bytes(), b"data");
    assert_eq!(raw(&mut a).wr_id, 1);
    assert!(a.cq.poll().unwrap().is_none());
}

#[test]
fn raw_work_is_flushed_at_the_end() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let into = room(&pd, 8);
    // SAFETY: a single request on memory that lives until its completion is seen.
    unsafe {
        a.rx.post_raw(&mut receive(5, &mut segment(&into))).unwrap();
    }
    a.tx.set_error().unwrap();
    let done = raw(&mut a);
    assert_eq!(
        (done.wr_id, done.result.unwrap_err().status),
        (5, WcStatus::WR_FLUSH_ERR)
    );
}
