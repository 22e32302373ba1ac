//! Messages that are too long to be copied by the device and short enough for a frame; and those around them.

mod common;

use common::*;
use mempool::{Segment, SgList};
use rpc::{CallError, Code, Deadline, Method, Pending, Request, Responder};
use std::collections::VecDeque;
use std::sync::{Mutex, mpsc};

/// Around the lengths at which another way is taken.
const LENGTHS: [usize; 18] = [
    0, 1, 8, 63, 215, 216, 217, 255, 256, 257, 860, 1024, 2000, 4055, 4095, 4096, 4097, 6000,
];

/// These bytes in so many segments of different kinds, one of them empty.
fn segments(bytes: &[u8], count: usize) -> SgList {
    let pool = &client_memory().2;
    let mut list = SgList::new();
    let mut left = bytes;
    for n in 0..count {
        let take = if n + 1 == count {
            left.len()
        } else {
            left.len() / 3
        };
        let (part, rest) = left.split_at(take);
        left = rest;
        let buf = pool.alloc_from_slice(part).unwrap();
        match n % 2 {
            0 => list.push(buf).unwrap(),
            _ => list.push(buf.freeze()).unwrap(),
        }
    }
    list.push(pool.alloc(0).unwrap()).unwrap();
    list
}

fn places(list: &SgList) -> Vec<(*const u8, usize)> {
    let place = |segment: &Segment| (segment.as_slice().as_ptr(), segment.as_slice().len());
    list.segments().map(place).collect()
}

#[test]
fn every_length_arrives_whole_and_segments_come_back() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        for (round, &len) in LENGTHS.iter().cycle().take(5 * LENGTHS.len()).enumerate() {
            let bytes = pattern(len, round as u8);
            let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
            assert!(reply.bytes() == bytes, "{len} bytes by copy");
            assert_eq!(reply.len(), len);
            for count in [1, 2, 5] {
                let list = segments(&bytes, count);
                let sent = places(&list);
                let mut reply = client.call(ECHO, list, patient()).unwrap();
                assert!(reply.bytes() == bytes, "{len} bytes in {count} segments");
                let back = reply.take_segments();
                assert_eq!(places(&back), sent);
                let same: Vec<u8> = back
                    .segments()
                    .flat_map(|s| s.as_slice().to_vec())
                    .collect();
                assert!(same == bytes);
            }
            // Taken by value at either end, and into a buffer of the caller's.
            let reply = client.call(TAKE, &bytes[..], patient()).unwrap();
            let buf = reply.into_buf(client.pool()).unwrap();
            assert!(buf[..] == bytes[..]);
            let to = client.pool().alloc_zeroed(len + 1).unwrap();
            let list = segments(&bytes, 2);
            let (mut reply, to) = client.call_into(ECHO, list, to, patient()).unwrap();
            assert!(reply.len() == len && to[..len] == bytes[..] && to[len] == 0);
            assert_eq!(reply.take_segments().len(), len);
        }
        let stats = client.stats();
        assert_eq!((stats.failed, stats.rnr), (0, 0));
    });
}

#[test]
fn many_at_once_do_not_mix_and_replies_stay_as_they_are() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let window = client.slots() as usize;
        let mut waiting: VecDeque<(Vec<u8>, Pending)> = VecDeque::new();
        let mut kept = VecDeque::new();
        for round in 0..1500usize {
            if waiting.len() == window {
                let (bytes, call) = waiting.pop_front().unwrap();
                let reply = call.wait(&mut client).unwrap();
                assert!(reply.bytes() == bytes, "round {round}");
                kept.push_back((bytes, reply));
            }
            if kept.len() > 100 {
                // It has been here for long; meanwhile others have come.
                let (bytes, reply) = kept.pop_front().unwrap();
                assert!(reply.bytes() == bytes, "round {round}");
            }
            let bytes = pattern(round * 37 % 4200, round as u8);
            let call = match round % 3 {
                0 => client.submit(ECHO, &bytes[..], patient()).unwrap(),
                n => client.submit(ECHO, segments(&bytes, n), patient()).unwrap(),
            };
            waiting.push_back((bytes, call));
        }
        for (bytes, call) in waiting {
            assert!(call.wait(&mut client).unwrap().bytes() == bytes);
        }
        for (bytes, reply) in kept {
            assert!(reply.bytes() == bytes);
        }
        assert_eq!(client.stats().failed + client.stats().expired, 0);
    });
}

#[test]
fn a_call_that_expires_leaves_nothing_behind() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let shared = client_memory()
            .2
            .alloc_from_slice(&pattern(1000, 3))
            .unwrap()
            .freeze();
        for _ in 0..3 {
            let list = SgList::from(shared.clone());
            match client.call(
                SLOW,
                [&200u64.to_le_bytes()[..], &[0; 1000]].concat(),
                Deadline::after_ms(10),
            ) {
                Ok(_) | Err(CallError::Expired | CallError::NotSent(_)) => {}
                other => panic!("{other:?}"),
            }
            match client.call(DROP, list, Deadline::after_ms(10)) {
                // Behind the slow one: too late, as a rule.
                Err(CallError::Expired | CallError::NotSent(_) | CallError::Remote { .. }) => {}
                other => panic!("{other:?}"),
            }
            let bytes = pattern(2000, 4);
            assert!(client.call(ECHO, &bytes[..], patient()).unwrap().bytes() == bytes);
        }
        // All answers are here: nothing holds the segments any more.
        while client.stats().calls > server.stats().calls + server.stats().expired {
            std::thread::yield_now();
        }
        client.call(ECHO, "last", patient()).unwrap();
        assert!(shared.try_unfreeze().is_ok(), "somebody still holds it");
    });
}

#[test]
fn errors_give_segments_back() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let bytes = pattern(3000, 5);
        for method in [DROP, PANIC, Method(99)] {
            let list = segments(&bytes, 2);
            let sent = places(&list);
            match client.call(method, list, patient()) {
                Err(CallError::Remote { mut buffers, .. }) => {
                    assert_eq!(places(&buffers.take_segments()), sent);
                }
                other => panic!("{other:?}"),
            }
        }
        server.shutdown();
        server.join();
        let list = segments(&bytes, 2);
        let sent = places(&list);
        match client.call(ECHO, list, patient()) {
            Err(CallError::NotSent(failed)) => assert_eq!(places(&failed.buffers()), sent),
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        match client.call(ECHO, segments(&bytes, 2), patient()) {
            Err(CallError::NotSent(_)) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn calls_on_their_way_end_with_their_server() {
    over_all_paths(|| {
        let (held, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(Some(wait));
        let server = server()
            .serve(move |_core| {
                let wait = wait.lock().unwrap().take();
                let mut kept = Vec::new();
                move |request: Request<'_>, responder: Responder| {
                    if request.method() == ECHO {
                        kept.push(responder);
                    } else {
                        responder.reply(pattern(1500, 7));
                        // Until the other end has posted all it wants.
                        let _ = wait.as_ref().map(|wait| wait.recv());
                    }
                }
            })
            .unwrap();
        let mut client = client(&server);
        let bytes = pattern(4000, 6);
        let mut calls = vec![client.submit(SINK, &bytes[..], patient()).unwrap()];
        // As many as there is room for in the smallest ring.
        while calls.len() < 12 {
            calls.push(client.submit(ECHO, segments(&bytes, 1), patient()).unwrap());
        }
        drop(held);
        server.shutdown();
        for call in calls {
            match call.wait(&mut client) {
                Ok(reply) => assert!(reply.bytes() == pattern(1500, 7)),
                Err(CallError::MaybeExecuted { .. } | CallError::NotSent(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_call_after_one_in_parts_knows_nothing_of_it() {
    over(&[PATHS[0], PATHS[4]], hang(), || {
        const STREAM: Method = Method(1);
        const LONG: Method = Method(3);
        let server = server()
            .serve(|_core| {
                |request: Request<'_>, responder: Responder| match request.method() {
                    STREAM => responder.stream((0..3).map(|n| Ok::<_, (Code, String)>(vec![n; 9]))),
                    LONG => responder.reply(pattern(3000, 1)),
                    _ => responder.reply("whole"),
                }
            })
            .unwrap();
        let mut client = client(&server);
        for whole in [Method(2), LONG] {
            // Asked for in parts, and given as a whole.
            let parts: Vec<_> = client.call_parts(whole, "x", patient()).unwrap().collect();
            assert_eq!(parts.len(), 1);
            // The same slot, asked for as a whole, and given in parts.
            match client.call(STREAM, "x", patient()) {
                Err(CallError::InParts { .. }) => {}
                other => panic!("{other:?}"),
            }
            match client.call(STREAM, pattern(1000, 1), patient()) {
                Err(CallError::InParts { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}
