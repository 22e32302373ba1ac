//! Streams whose bytes all go in one direction: credits must come back all the same.

mod common;

use common::*;
use rpc::{Client, Method, Pending, ServerHandle};
use std::collections::VecDeque;

/// Calls in each stream; fewer where the device is slow on purpose.
fn calls() -> u32 {
    match std::env::var_os("VERBATIM_ASYNC") {
        None => 100_000,
        Some(_) => 20_000,
    }
}

/// Keeps many calls on their way; checks the length of each reply.
fn stream(client: &mut Client, method: Method, payload: &[u8], ahead: usize, reply_len: usize) {
    let mut pending: VecDeque<Pending> = VecDeque::new();
    for _ in 0..calls() {
        if pending.len() == ahead {
            let reply = pending.pop_front().unwrap().wait(client).unwrap();
            assert_eq!(reply.len(), reply_len);
        }
        pending.push_back(client.submit(method, payload, patient()).unwrap());
    }
    for p in pending {
        assert_eq!(p.wait(client).unwrap().len(), reply_len);
    }
}

fn check(client: &Client, server: &ServerHandle) {
    assert_eq!(client.stats().calls, u64::from(calls()));
    assert_eq!(server.stats().calls, u64::from(calls()));
    assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
    println!("{}\n{}", client.stats(), server.stats());
}

#[test]
fn requests_with_bytes_replies_without() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        stream(&mut client, SINK, &pattern(1000, 1), 40, 0);
        check(&client, &server);
    });
}

#[test]
fn requests_without_bytes_replies_with() {
    over_all_paths(|| {
        let (_, pd, pool) = memory();
        let shared = pool.alloc_from_slice(&pattern(1000, 2)).unwrap().freeze();
        let server = rpc::Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, pool)
            .serve(move |_core| {
                let shared = shared.clone();
                move |request: rpc::Request<'_>, responder: rpc::Responder| {
                    assert!(request.body().is_empty());
                    responder.reply(shared.clone());
                }
            })
            .unwrap();
        let mut client = client(&server);
        stream(&mut client, ECHO, &[], 40, 1000);
        check(&client, &server);
    });
}

#[test]
fn smallest_window_and_more_ahead_than_slots() {
    over_all_paths(|| {
        let server = serve(server().window(16));
        let mut client = builder().window(16).connect(server.local_addr()).unwrap();
        assert!(client.slots() <= 12);
        stream(&mut client, SINK, b"x", 100, 0);
        check(&client, &server);
    });
}

#[test]
fn serial() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        for _ in 0..calls() {
            assert!(
                client
                    .call(SINK, b"0123456789", patient())
                    .unwrap()
                    .is_empty()
            );
        }
        check(&client, &server);
    });
}

/// The longest messages there are, through rings that hold hardly more than four of them.
#[test]
fn smallest_rings() {
    bounded(|| {
        let long = pattern(4096, 3);
        let reply = long.clone();
        let server = rpc::Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(&memory().1, &memory().2)
            .ring_size(1)
            .serve(move |_core| {
                let reply = reply.clone();
                move |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
                    SINK => responder.reply(()),
                    _ => responder.reply(&reply),
                }
            })
            .unwrap();
        let mut client = builder().ring_size(1).connect(server.local_addr()).unwrap();
        assert_eq!(client.paths(), Some(PATHS[0]));
        assert!((3..8).contains(&client.slots()), "{}", client.slots());
        stream(&mut client, SINK, &long, 40, 0);
        check(&client, &server);
        stream(&mut client, SOURCE, &[], 40, 4096);
        assert_eq!(server.stats().calls, 2 * u64::from(calls()));
        assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
        println!("{}\n{}", client.stats(), server.stats());
    });
}

/// A small request ring under a full window of calls: explicit credits carry bytes.
#[test]
fn smallest_request_ring_and_many_slots() {
    bounded(|| {
        let server = serve(server().ring_size(1));
        let mut client = client(&server);
        assert!(client.slots() > 40, "{}", client.slots());
        stream(&mut client, SINK, &pattern(4096, 1), 100, 0);
        check(&client, &server);
    });
}
