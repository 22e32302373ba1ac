//! What all connections of one client address may use together, and what is said when that is too much.

mod common;

use common::*;
use rpc::{CallError, ConnectError, Method, RefusalCode, Request, Responder, Server, ServerHandle};
use std::cell::RefCell;
use std::thread;

/// Is answered when the next [`RELEASE`] comes.
const HOLD: Method = Method(100);
const RELEASE: Method = Method(101);
/// Five parts at once, of 4000 B each.
const PARTS: Method = Method(102);

fn holding(server: Server) -> ServerHandle {
    server
        .serve(|core| {
            let held = RefCell::new(Vec::<Responder>::new());
            let mut other = handler(core.pool().clone());
            move |request: Request<'_>, responder: Responder| match request.method() {
                HOLD => held.borrow_mut().push(responder),
                PARTS => {
                    let mut parts = responder.in_parts();
                    for n in 0..5 {
                        parts.part(&pattern(4000, n)[..]).unwrap();
                    }
                    parts.finish();
                }
                RELEASE => {
                    held.borrow_mut().drain(..).for_each(|r| r.reply("held"));
                    responder.reply(());
                }
                _ => other(request, responder),
            }
        })
        .unwrap()
}

fn overloaded(result: Result<rpc::Reply, CallError>, word: &str) -> usize {
    match result {
        Err(CallError::Overloaded {
            message,
            mut buffers,
        }) => {
            assert!(message.contains(word), "{message}");
            buffers.take_segments().len()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn connections_are_limited_by_address() {
    bounded(|| {
        let server = serve(server().cores(2).max_connections_per_peer(3));
        let mut clients: Vec<_> = (0..3).map(|_| client(&server)).collect();
        match builder().connect(server.local_addr()) {
            Err(ConnectError::Refused { code, text }) => {
                assert_eq!(code, RefusalCode::Full);
                assert!(text.contains("127.0.0.1"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(server.stats().refused, 1);
        clients.pop();
        while server.stats().connections > 2 {
            thread::yield_now();
        }
        let mut last = client(&server);
        assert!(last.call(ECHO, "x", patient()).is_ok());
    });
}

#[test]
fn requests_are_limited_by_address() {
    over_all_paths(|| {
        // Of one core, so that what is held is in one place; of two connections.
        let server = holding(server().max_requests_per_peer(4));
        let (mut a, mut b) = (client(&server), client(&server));
        for _ in 0..5 {
            let before = server.stats().calls;
            let mut out = Vec::new();
            for len in [10, 5000] {
                let bytes = pattern(len, 1);
                out.push(a.submit(HOLD, &bytes[..], patient()).unwrap());
            }
            let last = b.submit(HOLD, "b", patient()).unwrap();
            // Three and one are four.
            assert_eq!(b.call(ECHO, "y", patient()).unwrap().bytes(), b"y");
            let fourth = b.submit(HOLD, "b", patient()).unwrap();
            while server.stats().calls < before + 5 {
                a.poll();
            }
            let buf = a.pool().alloc_zeroed(9000).unwrap();
            assert_eq!(overloaded(a.call(ECHO, buf, patient()), "4 requests"), 9000);
            overloaded(b.call(ECHO, "small", patient()), "4 requests");
            // Dropped connections give back what they had.
            drop((last, fourth));
            drop(b);
            while server.stats().connections > 1 {
                thread::yield_now();
            }
            a.call(RELEASE, (), patient()).unwrap();
            for call in out {
                assert_eq!(call.wait(&mut a).unwrap().bytes(), b"held");
            }
            b = client(&server);
        }
        assert_eq!(server.stats().overloaded, 10);
        assert_eq!((server.stats().broken, server.stats().rnr), (0, 0));
    });
}

#[test]
fn bytes_are_limited_by_address() {
    over_all_paths(|| {
        let server = holding(server().max_bytes_per_peer(100_000));
        let (mut a, mut b) = (client(&server), client(&server));
        let pool = a.pool().clone();
        for _ in 0..10 {
            let calls = server.stats().calls;
            let buf = pool.alloc_zeroed(90_000).unwrap();
            let held = a.submit(HOLD, buf, patient()).unwrap();
            while server.stats().calls == calls {
                a.poll();
            }
            let buf = pool.alloc_zeroed(10_001).unwrap();
            assert_eq!(overloaded(b.call(ECHO, buf, patient()), "bytes"), 10_001);
            let bytes = pattern(10_000, 1);
            assert!(b.call(ECHO, &bytes[..], patient()).unwrap().bytes() == bytes);
            b.call(RELEASE, (), patient()).unwrap();
            held.wait(&mut a).unwrap();
            // As much as there is.
            let bytes = pattern(100_000, 2);
            assert_eq!(
                b.call(SUM, &bytes[..], patient()).unwrap().bytes(),
                sum(&bytes)
            );
            let buf = pool.alloc_zeroed(100_001).unwrap();
            overloaded(b.call(SINK, buf, patient()), "bytes");
        }
    });
}

/// A client that never looks for its replies cannot make the server keep more and more of them.
#[test]
fn replies_that_are_not_read_count() {
    over_all_paths(|| {
        let server = holding(server().max_bytes_per_peer(1 << 20));
        let mut a = client(&server);
        let ask = (1u64 << 20).to_le_bytes();
        let left = a.submit(SOURCE, ask, patient()).unwrap();
        while server.stats().calls < 1 {
            thread::yield_now();
        }
        let mut b = client(&server);
        loop {
            // The core counts it as called before it keeps the reply.
            match b.call(SINK, "x", patient()) {
                Ok(_) => {}
                other => {
                    overloaded(other, "bytes");
                    break;
                }
            }
        }
        // Read, and told so.
        assert!(left.wait(&mut a).unwrap().len() == 1 << 20);
        while a.call(SINK, "x", patient()).is_err() {}
        assert_eq!(b.call(SINK, "x", patient()).unwrap().len(), 0);
    });
}

/// Parts of replies that wait for a client to ask for them count, until it does, or does not want them, or is gone.
#[test]
fn parts_that_wait_count() {
    over_all_paths(|| {
        let server = holding(server().max_bytes_per_peer(20_000));
        let mut b = client(&server);
        let pool = b.pool().clone();
        let bytes = |len: usize| pool.alloc_zeroed(len).unwrap();
        // With so many parts that wait. Of what the other client does the server may not have heard.
        let fits = |b: &mut rpc::Client, waiting: usize| {
            let left = 20_000 - 4000 * waiting;
            while let Err(error) = b.call(SINK, bytes(left), patient()) {
                assert!(matches!(error, CallError::Overloaded { .. }), "{error}");
            }
            overloaded(b.call(SINK, bytes(left + 1), patient()), "bytes");
        };
        for end in 0..3 {
            let mut a = client(&server);
            let calls = server.stats().calls;
            let mut parts = a.submit_parts(PARTS, (), patient()).unwrap();
            while server.stats().calls == calls {
                thread::yield_now();
            }
            // Behind it all have been given: one of them is the answer, and four wait.
            b.call(ECHO, "x", patient()).unwrap();
            overloaded(b.call(SINK, bytes(4001), patient()), "bytes");
            fits(&mut b, 4);
            match end {
                0 => {
                    for n in 0..5 {
                        let part = parts.next(&mut a).unwrap().unwrap();
                        assert!(part.bytes() == pattern(4000, n));
                        // The next one has been asked for.
                        fits(&mut b, 3usize.saturating_sub(n.into()));
                    }
                    assert!(parts.next(&mut a).unwrap().is_none());
                }
                1 => {
                    drop(parts);
                    a.call(ECHO, "y", patient()).unwrap();
                }
                _ => drop((parts, a)),
            }
            fits(&mut b, 0);
        }
        assert_eq!((server.stats().broken, server.stats().rnr), (0, 0));
    });
}
