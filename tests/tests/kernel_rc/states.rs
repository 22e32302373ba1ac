//! Receivers that are not ready, peers that are not there yet or no longer, and the error state.

use super::ends::{End, Parts, pair, pair_with, sides, works};
use std::time::{Duration, Instant};
use verbs::{Access, Cq, Endpoint, WcStatus as Is};

#[test]
fn without_retries_a_receiver_that_is_not_ready_is_an_error_at_once() {
    let (mut a, mut b) = pair_with(|_, q| q.rnr_retry(0));
    b.post(&[8]);
    a.tx.send(a.side.bytes(b"first")).signaled().post().unwrap();
    a.tx.send(a.side.bytes(b"second"))
        .signaled()
        .post()
        .unwrap();
    a.tx.send(a.side.bytes(b"third")).post().unwrap();
    assert_eq!(
        a.ends(3, 0).0,
        [Is::SUCCESS, Is::RNR_RETRY_EXC_ERR, Is::WR_FLUSH_ERR]
    );
    assert_eq!(b.ends(0, 1).1, [Is::SUCCESS]);
    // The receiver has done nothing wrong, and what is posted now waits for ever.
    b.post(&[8]);
    b.ends_idle(0, 1);
}

#[test]
fn a_write_with_immediate_data_needs_a_receive_as_well() {
    let (mut a, mut b) = pair_with(|_, q| q.rnr_retry(0));
    let shared = b.side.pd.expose(64, Access::REMOTE_WRITE).unwrap();
    a.tx.write(a.side.bytes(b"early"), shared.remote())
        .imm(1)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().err(), Some(Is::RNR_RETRY_EXC_ERR));
    let mut now = [0; 5];
    shared.read_at(0, &mut now).unwrap();
    assert_eq!(now, [0; 5], "nothing was written, as it fits one packet");
    b.post(&[8]);
    b.ends_idle(0, 1);
}

#[test]
fn a_few_retries_are_not_enough_when_no_receive_ever_comes() {
    let (mut a, b) = pair_with(|_, q| q.rnr_retry(3).min_rnr_timer(1));
    a.tx.send(a.side.bytes(b"early")).signaled().post().unwrap();
    assert_eq!(a.sent().err(), Some(Is::RNR_RETRY_EXC_ERR));
    b.ends_idle(0, 0);
}

/// No answer in time and no receive in time are counted apart (InfiniBand Architecture Specification 1, chapter 9: an RNR NAK
/// is an answer), and this end asked for endless retries of the second kind. Soft-RoCE's timer for answers may run on
/// meanwhile; it then gives up after `retry_cnt` of them.
#[test]
fn a_receiver_may_be_unready_for_longer_than_the_peer_waits_for_answers() {
    let (mut a, mut b) = pair_with(|_, q| q.timeout(8).retry_cnt(1).rnr_retry(7).min_rnr_timer(1));
    a.tx.send(a.side.bytes(b"early")).signaled().post().unwrap();
    // Twice the 1 ms after which an answer would be missed, and twice that.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(4) {
        if a.side.says(true, false) {
            assert!(a.cq.poll().unwrap().is_none());
        }
    }
    b.post(&[8]);
    match a.sent() {
        Ok(_) => assert_eq!(b.received().unwrap().byte_len(), 5),
        Err(status) => {
            assert!(a.side.says(false, status == Is::RETRY_EXC_ERR), "{status}");
            b.ends_idle(0, 1);
        }
    }
}

#[test]
fn with_endless_retries_everything_waits_for_receives_and_keeps_its_order() {
    let (mut a, mut b) = pair();
    let shared = b.side.pd.expose(64, Access::REMOTE_WRITE).unwrap();
    a.tx.send(a.side.bytes(b"first")).signaled().post().unwrap();
    a.tx.write(a.side.bytes(b"second"), shared.remote())
        .imm(2)
        .signaled()
        .post()
        .unwrap();
    a.tx.send(a.side.bytes(b"third")).signaled().post().unwrap();
    for want in [&b"first"[..], b"", b"third"] {
        b.post(&[8]);
        let message = b.received().unwrap();
        let len = if message.imm().is_some() {
            0
        } else {
            message.byte_len() as usize
        };
        assert_eq!(&message.into_inner().concat()[..len], want);
        a.sent().unwrap();
    }
}

#[test]
fn the_error_state_flushes_what_is_posted_and_what_is_sent_later() {
    let (mut a, mut b) = pair();
    a.post(&[8; 3]);
    // They wait for receives that never come.
    a.tx.send(a.side.bytes(b"1")).post().unwrap();
    a.tx.send(a.side.bytes(b"2")).signaled().post().unwrap();
    a.tx.set_error().unwrap();
    assert_eq!(
        a.ends(2, 3),
        (vec![Is::WR_FLUSH_ERR; 2], vec![Is::WR_FLUSH_ERR; 3])
    );
    a.tx.send(a.side.bytes(b"3")).post().unwrap();
    assert_eq!(a.ends(1, 0).0, [Is::WR_FLUSH_ERR]);
    // Once more changes nothing.
    a.tx.set_error().unwrap();
    // The peer is not told; its work for this end is not answered.
    b.post(&[8]);
    b.ends_idle(0, 1);
}

/// Receives that are posted in the error state complete with a flush error (InfiniBand Architecture Specification 1, C10-42). With Soft-RoCE they do so only when something else happens on the queue pair, since its library posts
/// receives without telling the kernel: going to the error state once more is such a thing.
#[test]
fn receives_posted_in_the_error_state_are_flushed() {
    let (mut a, _b) = pair();
    a.tx.set_error().unwrap();
    a.post(&[8; 2]);
    if a.side.says(false, true) {
        a.tx.set_error().unwrap();
    }
    assert_eq!(a.ends(0, 2).1, [Is::WR_FLUSH_ERR; 2]);
}

#[test]
fn a_peer_that_is_gone_does_not_answer() {
    let (mut a, b) = pair_with(|_, q| q.timeout(10).retry_cnt(2));
    b.ends_idle(0, 0);
    a.tx.send(a.side.bytes(b"1")).signaled().post().unwrap();
    a.tx.send(a.side.bytes(b"2")).post().unwrap();
    assert_eq!(a.ends(2, 0).0, [Is::RETRY_EXC_ERR, Is::WR_FLUSH_ERR]);
}

#[test]
fn a_peer_in_the_error_state_does_not_answer() {
    let (mut a, mut b) = pair_with(|_, q| q.timeout(10).retry_cnt(2));
    let shared = b.side.pd.expose(64, Access::REMOTE_WRITE).unwrap();
    b.post(&[8]);
    b.tx.set_error().unwrap();
    assert_eq!(b.ends(0, 1).1, [Is::WR_FLUSH_ERR]);
    a.tx.write(a.side.bytes(b"late"), shared.remote())
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().err(), Some(Is::RETRY_EXC_ERR));
    let mut now = [0; 4];
    shared.read_at(0, &mut now).unwrap();
    assert_eq!(now, [0; 4]);
}

/// Packets for a queue pair that is not ready to receive yet are dropped, and repeated by their sender.
#[test]
fn work_for_a_peer_that_is_not_connected_yet_waits_for_it() {
    let (one, two) = sides();
    let [cq_a, cq_b] = [&one, &two].map(|side| side.ctx.cq(128).build().unwrap());
    // 2.1 seconds for each of six retries.
    let (ready_a, ready_b) = (
        one.pd.rc(&cq_a).timeout(19).build().unwrap(),
        two.pd.rc(&cq_b).build().unwrap(),
    );
    let (end_a, end_b) = (ready_a.endpoint(), ready_b.endpoint());
    let (tx, rx) = ready_a.connect(&end_b).unwrap();
    let mut a = End {
        side: one,
        cq: cq_a,
        tx,
        rx,
    };
    let (setup, tx, rx) = ready_b.split();
    let mut b = End {
        side: two,
        cq: cq_b,
        tx,
        rx,
    };
    b.post(&[8]);
    a.tx.send(a.side.bytes(b"early")).signaled().post().unwrap();
    assert!(a.cq.poll().unwrap().is_none());
    setup.connect(&end_a).unwrap();
    assert_eq!(b.received().unwrap().byte_len(), 5);
    a.sent().unwrap();
    works(&mut b, &mut a);
}

/// Nothing can be sent before the queue pair is connected. Some devices keep such work in their queue all the same, and tell
/// by half an error: what they keep must not come back as refused.
#[test]
fn what_is_posted_before_connecting_is_refused_or_sent_never_both() {
    let (one, two) = sides();
    let [cq_a, cq_b] = [&one, &two].map(|side| side.ctx.cq(128).build().unwrap());
    let ready_a = one.pd.rc(&cq_a).build().unwrap();
    let ready_b = two.pd.rc(&cq_b).build().unwrap();
    let (end_a, end_b) = (ready_a.endpoint(), ready_b.endpoint());
    let (setup, tx, rx) = ready_a.split();
    let mut a = End {
        side: one,
        cq: cq_a,
        tx,
        rx,
    };
    let early = a.tx.send(a.side.bytes(b"early")).signaled().post().is_ok();
    setup.connect(&end_b).unwrap();
    let (tx, rx) = ready_b.connect(&end_a).unwrap();
    let mut b = End {
        side: two,
        cq: cq_b,
        tx,
        rx,
    };
    b.post(&[8; 2]);
    a.tx.send(a.side.bytes(b"late")).signaled().post().unwrap();
    for text in [&b"early"[..], b"late"] {
        if text == b"late" || early {
            let message = b.received().unwrap();
            let len = message.byte_len() as usize;
            assert_eq!(&message.into_inner().concat()[..len], text);
            assert_eq!(a.sent().unwrap().concat(), text);
        }
    }
    b.ends_idle(0, 1 - usize::from(early));
}

/// Ends that disagree on where the sequence numbers start do not understand each other.
#[test]
fn a_wrong_sequence_number_is_not_answered() {
    let (one, two) = sides();
    let [cq_a, cq_b] = [&one, &two].map(|side| side.ctx.cq(128).build().unwrap());
    let ready_a = one.pd.rc(&cq_a).timeout(10).retry_cnt(2).build().unwrap();
    let ready_b = two.pd.rc(&cq_b).build().unwrap();
    let (a, end_b) = (ready_a.endpoint(), ready_b.endpoint());
    // The peer expects an earlier packet than the first that comes.
    let psn = a.psn().wrapping_sub(100) & 0xff_ffff;
    let wrong = Endpoint::new(a.qpn(), psn, a.lid(), a.gid(), a.mtu(), a.rd_atomic()).unwrap();
    let (tx, rx) = ready_a.connect(&end_b).unwrap();
    let mut a = End {
        side: one,
        cq: cq_a,
        tx,
        rx,
    };
    let (tx, rx) = ready_b.connect(&wrong).unwrap();
    let mut b = End {
        side: two,
        cq: cq_b,
        tx,
        rx,
    };
    b.post(&[8]);
    a.tx.send(a.side.bytes(b"unheard"))
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().err(), Some(Is::RETRY_EXC_ERR));
    b.ends_idle(0, 1);
}

#[test]
fn destroying_gives_back_everything_that_was_posted() {
    let (mut a, b) = pair();
    a.post(&[8; 4]);
    for i in 0..3 {
        a.tx.send(a.side.bytes(&[i])).signaled().post().unwrap();
    }
    let (sends, receives) = verbs::destroy(a.tx, a.rx).unwrap();
    assert_eq!(
        sends.iter().map(Parts::concat).collect::<Vec<_>>(),
        [[0], [1], [2]]
    );
    assert_eq!(
        receives.iter().map(Parts::concat).collect::<Vec<_>>(),
        [[0xee; 8]; 4]
    );
    // The memory is private again.
    for Parts(blocks) in sends.into_iter().chain(receives) {
        for block in blocks {
            block.into_inner().unwrap().fill(1);
        }
    }
    b.ends_idle(0, 0);
}

/// Devices may leave the completions of a destroyed queue pair in the completion queue, and they take room there. Its
/// successor must be refused for want of room, or lose nothing.
#[test]
fn a_destroyed_queue_pair_does_not_crowd_out_its_successor() {
    let (one, two) = sides();
    let mut small = one.ctx.cq(50).build().unwrap();
    let build = |cq: &Cq| one.pd.rc(cq).send_depth(10).recv_depth(40).build();
    let (_setup, tx, mut rx) = build(&small).unwrap().split::<Parts, Parts>();
    for _ in 0..40 {
        rx.post(one.room(&[8])).unwrap();
    }
    verbs::destroy(tx, rx).unwrap();

    let ready = match build(&small) {
        Err(verbs::Error::CqTooSmall { .. }) => {
            while small.poll().unwrap().is_some() {}
            build(&small).unwrap()
        }
        other => other.unwrap(),
    };
    let cq = two.ctx.cq(128).build().unwrap();
    let peer = two.pd.rc(&cq).timeout(10).retry_cnt(2).build().unwrap();
    let (end_a, end_b) = (ready.endpoint(), peer.endpoint());
    let (tx, rx) = ready.connect(&end_b).unwrap();
    let (side, cq_a) = (one.clone(), small);
    let mut a = End {
        side,
        cq: cq_a,
        tx,
        rx,
    };
    let (tx, rx) = peer.connect(&end_a).unwrap();
    let mut b = End {
        side: two,
        cq,
        tx,
        rx,
    };
    a.post(&[8; 40]);
    for _ in 0..40 {
        b.tx.send(b.side.bytes(b"x")).signaled().post().unwrap();
    }
    // Acknowledged, hence completed at the other end, before anything is polled there.
    assert_eq!(b.ends(40, 0).0, [Is::SUCCESS; 40]);
    let mut seen = 0;
    while seen < 40 {
        let completion = a.completion();
        seen += usize::from(completion.queue() == a.rx.id() && completion.is_ok());
    }
}

#[test]
fn destroying_in_the_middle_of_a_stream_harms_nobody() {
    for round in 0..10 {
        let (mut a, mut b) = pair_with(|_, q| q.timeout(10).retry_cnt(2).rnr_retry(0));
        let shared = b.side.pd.expose(20_000, Access::REMOTE_WRITE).unwrap();
        for _ in 0..8 {
            a.tx.write(a.side.bytes(&[1; 20_000]), shared.remote())
                .signaled()
                .post()
                .unwrap();
        }
        b.post(&[8]);
        // Sometimes the target goes first, and sometimes the memory.
        if round % 2 == 0 {
            drop(shared);
            drop(b);
            drop(a);
        } else {
            let (sends, _) = verbs::destroy(a.tx, a.rx).unwrap();
            assert!(
                sends
                    .iter()
                    .all(|Parts(blocks)| blocks[0].iter().all(|&b| b == 1))
            );
            b.ends_idle(0, 1);
        }
    }
    let (mut a, mut b) = pair();
    works(&mut a, &mut b);
}
