//! Requests that are sent together are calls like all others.

mod common;

use common::*;
use mempool::sg;
use rpc::{CallError, Deadline, NotSentReason, Pending};
use std::collections::VecDeque;

#[test]
fn calls_of_a_batch_are_answered_in_any_shape() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        for round in 0..40u8 {
            let mut want = Vec::new();
            let mut batch = client.batch();
            assert!(batch.is_empty());
            // Small ones, by copy and from the pool; one that is gathered; large ones, which are READ.
            for (n, len) in [0, 64, 300, 4000, 9000, 200_000].into_iter().enumerate() {
                let bytes = pattern(len, round + n as u8);
                batch.add(ECHO, &bytes[..], patient()).unwrap();
                let buf = pool.alloc_from_slice(&bytes).unwrap();
                let head = pool.alloc_from_slice(b"head").unwrap();
                batch.add(TAKE, sg![head, buf], patient()).unwrap();
                let into = pool.alloc_zeroed(len + 1).unwrap();
                let ask = (len as u64).to_le_bytes();
                batch.add_into(SOURCE, ask, into, patient()).unwrap();
                want.push(bytes);
            }
            assert_eq!(batch.len(), 18);
            let calls = batch.post();
            assert_eq!(calls.len(), 18);
            let mut replies = calls
                .into_iter()
                .map(|call| call.wait(&mut client).unwrap());
            for bytes in want {
                assert!(replies.next().unwrap().bytes() == bytes);
                let mut whole = b"head".to_vec();
                whole.extend(&bytes);
                let mut reply = replies.next().unwrap();
                assert!(reply.bytes() == whole);
                let back = reply.take_segments();
                assert_eq!(back.segment_count(), 2);
                assert!(back.copy_to_vec() == whole);
                let mut reply = replies.next().unwrap();
                let into = reply.take_destination().unwrap();
                assert_eq!((reply.len(), into.len()), (bytes.len(), bytes.len() + 1));
                assert!(into[..bytes.len()] == pattern(bytes.len(), 1));
            }
        }
        let stats = client.stats();
        assert_eq!((stats.calls, stats.failed, stats.rnr), (720, 0, 0));
        assert_eq!((stats.batches, stats.batched), (40, 720));
        assert_eq!((server.stats().calls, server.stats().rnr), (720, 0));
    });
}

/// Small requests are posted in a way of their own while there are no others in the batch.
#[test]
fn small_requests_stay_in_order_when_others_join_them() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        for (count, long) in [(1, false), (20, false), (20, true), (3, true)] {
            let mut batch = client.batch();
            for n in 0..count {
                batch
                    .add(ECHO, &pattern(n * 9, n as u8)[..], patient())
                    .unwrap();
            }
            assert_eq!(batch.len(), count);
            if long {
                batch.add(ECHO, &pattern(3000, 99)[..], patient()).unwrap();
                batch.add(ECHO, "behind", patient()).unwrap();
            }
            assert!(batch.room() > 0);
            let calls = batch.post();
            let mut replies = calls
                .into_iter()
                .map(|call| call.wait(&mut client).unwrap());
            for n in 0..count {
                assert!(replies.next().unwrap().bytes() == pattern(n * 9, n as u8));
            }
            if long {
                assert!(replies.next().unwrap().bytes() == pattern(3000, 99));
                assert!(replies.next().unwrap().bytes() == b"behind");
            }
            assert!(replies.next().is_none());
        }
        let stats = client.stats();
        assert_eq!((stats.batches, stats.batched, stats.calls), (4, 48, 48));
        assert_eq!((server.stats().calls, server.stats().rnr), (48, 0));
    });
}

#[test]
fn what_does_not_fit_stays_with_the_caller() {
    over_all_paths(|| {
        let server = serve(server().window(32));
        let mut client = client(&server);
        let pool = client.pool().clone();
        let slots = client.slots() as usize;
        // A call that is out takes a place.
        let out = client.submit(SLOW, 1u64.to_le_bytes(), patient()).unwrap();
        let mut batch = client.batch();
        let mut added = 0;
        let refused = loop {
            let buf = pool.alloc_from_slice(&[added as u8; 100]).unwrap();
            match batch.add(ECHO, buf, patient()) {
                Ok(()) => added += 1,
                Err(CallError::NotSent(failed)) => break failed,
                Err(error) => panic!("{error:?}"),
            }
        };
        assert!((slots - 1..=slots).contains(&added), "{added} of {slots}");
        assert_eq!(batch.len(), added);
        assert_eq!(batch.room(), 0);
        let (reason, back, _) = refused.into_parts();
        assert!(matches!(reason, NotSentReason::Full), "{reason}");
        assert_eq!(back.copy_to_vec(), [added as u8; 100]);
        let calls = batch.post();
        for (n, call) in calls.into_iter().enumerate() {
            let reply = call.wait(&mut client).unwrap();
            assert_eq!(reply.bytes(), [n as u8; 100]);
        }
        assert_eq!(out.wait(&mut client).unwrap().bytes(), b"done");
        // There is room again.
        assert!(client.batch().room() > 0);
        assert_eq!(client.stats().credit_stalls, 0);
    });
}

#[test]
fn a_batch_that_is_dropped_sends_nothing() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        let shared = client
            .pool()
            .alloc_from_slice(&[7; 10_000])
            .unwrap()
            .freeze();
        for forget in [false, true] {
            let mut batch = client.batch();
            batch.add(PANIC, "never", patient()).unwrap();
            batch.add(PANIC, shared.clone(), patient()).unwrap();
            assert_eq!(batch.len(), 2);
            match forget {
                true => std::mem::forget(batch),
                false => drop(batch),
            }
            assert!(client.batch().is_empty());
            assert!(client.batch().post().is_empty());
        }
        assert!(client.call(ECHO, "on", patient()).is_ok());
        assert_eq!((client.stats().calls, server.stats().panics), (1, 0));
        assert_eq!(shared.try_unfreeze().unwrap().len(), 10_000);
    });
}

#[test]
fn what_cannot_be_sent_says_why() {
    bounded(|| {
        let server = serve(server().max_message(100_000));
        let mut client = client(&server);
        let pool = client.pool().clone();
        let buf = || pool.alloc_from_slice(&pattern(5000, 1)).unwrap();
        let mut batch = client.batch();
        let past = Deadline::after_ms(0);
        let into = pool.alloc(10).unwrap();
        let Err(CallError::NotSent(failed)) = batch.add_into(ECHO, buf(), into, past) else {
            panic!("its time is over");
        };
        let (reason, segments, into) = failed.into_parts();
        assert!(matches!(reason, NotSentReason::Deadline), "{reason}");
        assert_eq!((segments.len(), into.unwrap().len()), (5000, 10));
        let long = pool.alloc_zeroed(100_001).unwrap();
        let Err(CallError::NotSent(failed)) = batch.add(ECHO, long, patient()) else {
            panic!("it is too long");
        };
        assert!(matches!(failed.reason(), NotSentReason::TooLarge { .. }));
        batch.add(ECHO, buf(), patient()).unwrap();
        batch.add(ECHO, "plain", patient()).unwrap();
        server.shutdown();
        server.join();
        // The connection ends under it, which it need not know.
        let calls = batch.post();
        assert_eq!(calls.len(), 2);
        for call in calls {
            match call.wait(&mut client) {
                Err(CallError::MaybeExecuted { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        let mut batch = client.batch();
        let Err(CallError::NotSent(failed)) = batch.add(ECHO, buf(), patient()) else {
            panic!("there is no connection");
        };
        assert!(matches!(failed.reason(), NotSentReason::Closed(_)));
        assert_eq!(failed.buffers().copy_to_vec(), pattern(5000, 1));
    });
}

#[test]
fn small_requests_that_do_not_fit_are_refused() {
    over_all_paths(|| {
        let server = serve(server().window(32));
        let mut client = client(&server);
        let slots = client.slots() as usize;
        let mut batch = client.batch();
        let past = Deadline::after_ms(0);
        let late = batch.add(ECHO, "late", past);
        assert!(
            matches!(late, Err(CallError::NotSent(failed)) if matches!(failed.reason(), NotSentReason::Deadline))
        );
        let mut added = 0;
        while batch.add(ECHO, [added as u8; 100], patient()).is_ok() {
            added += 1;
            assert!(added <= slots);
        }
        assert_eq!((batch.len(), batch.room()), (added, 0));
        let calls = batch.post();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.wait(&mut client).unwrap().bytes(), [n as u8; 100]);
        }
        assert_eq!((client.stats().credit_stalls, client.stats().rnr), (0, 0));
        assert!(added + 1 >= slots, "{added} of {slots}");
    });
}

/// Where a ring is smaller than a window, it is what batches are filled up to: with small requests, or with others.
#[test]
fn batches_are_no_longer_than_the_ring() {
    const SMALLEST: u64 = 1;
    let paths = [PATHS[0], PATHS[1], PATHS[7]];
    over(&paths, hang(), || {
        let server = serve(server().window(256).ring_size(SMALLEST));
        let client = builder().window(256).connect(server.local_addr());
        let mut client = client.expect("connect");
        let slots = client.slots() as usize;
        for (len, small) in [(0, true), (200, true), (200, false), (1000, true)] {
            let mut batch = client.batch();
            let bytes = pattern(len, 3);
            let mut added = 0;
            let pool = memory().2.clone();
            while added < slots {
                // From a buffer, it is not small.
                let result = match small {
                    true => batch.add(ECHO, &bytes[..], patient()),
                    false => batch.add(ECHO, pool.alloc_from_slice(&bytes).unwrap(), patient()),
                };
                match result {
                    Ok(()) => added += 1,
                    Err(CallError::NotSent(failed)) => {
                        assert!(matches!(failed.reason(), NotSentReason::Full));
                        break;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            // Without a payload, all of them fit, as long as no room is late.
            assert_eq!(added < slots, len > 0, "{added} of {slots}");
            assert!(added > 10, "{added}");
            for call in batch.post() {
                assert!(call.wait(&mut client).unwrap().bytes() == bytes);
            }
        }
        assert_eq!((client.stats().credit_stalls, client.stats().rnr), (0, 0));
        assert_eq!(server.stats().rnr, 0);
    });
}

/// There is as much room left whether small requests were added as such, and became ordinary ones later, or not.
#[test]
fn what_small_requests_take_is_counted_once() {
    bounded(|| {
        let server = serve(server().window(256).ring_size(1));
        let client = builder().window(256).connect(server.local_addr());
        let mut client = client.expect("connect");
        let mut room = Vec::new();
        for long_at in [0, 40] {
            let mut batch = client.batch();
            for n in 0..41 {
                match n == long_at {
                    true => batch.add(ECHO, &pattern(1000, 1)[..], patient()).unwrap(),
                    false => batch.add(ECHO, [n; 200], patient()).unwrap(),
                }
            }
            room.push(batch.room());
        }
        assert!(room[0] > 0);
        assert_eq!(room[0], room[1]);
    });
}

/// Batches as large as there is room for, again and again, while earlier ones are out.
#[test]
fn batches_follow_each_other() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let mut out: VecDeque<Pending> = VecDeque::new();
        let (mut sent, mut answered) = (0u32, 0u32);
        while answered < 3000 {
            let mut batch = client.batch();
            while sent < 3000 && batch.add(ECHO, sent.to_le_bytes(), patient()).is_ok() {
                sent += 1;
            }
            batch.post_into(&mut out);
            for _ in 0..out.len().min(7) {
                let call = out.pop_front().unwrap();
                let reply = call.wait(&mut client).unwrap();
                assert_eq!(reply.bytes(), answered.to_le_bytes());
                answered += 1;
            }
        }
        assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
        assert_eq!(server.stats().calls, 3000);
    });
}
