//! Streams whose bytes all go in one direction: credits must come back all the same.
//!
//! Nothing may ever meet a receiver that is not ready. And nobody may have to wait for a credit who keeps no more on its
//! way than fits: then every credit is back before it is needed.

mod common;

use common::*;
use rpc::{Client, Method, Pending, ServerHandle};
use std::collections::VecDeque;
use std::time::Duration;

/// Calls in each stream: so many, fewer where the device is slow on purpose, or everything is.
fn calls(most: u32) -> u32 {
    let most = match std::env::var_os("VERBATIM_ASYNC") {
        None => most,
        Some(_) => most.min(20_000),
    };
    most / slowness()
}

const MANY: u32 = 100_000;
const MILLION: u32 = 1_000_000;

/// A limit for so many calls; each has its own, which tells when the stream stops.
fn long() -> Duration {
    10 * hang()
}

/// Keeps so many calls on their way; checks the length of each reply.
fn stream(
    client: &mut Client,
    calls: u32,
    method: Method,
    payload: &[u8],
    ahead: usize,
    reply_len: usize,
) {
    let mut pending: VecDeque<Pending> = VecDeque::new();
    for _ in 0..calls {
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

/// What both ends count after so many calls.
fn check(client: &Client, server: &ServerHandle, calls: u32) {
    println!("{}\n{}", client.stats(), server.stats());
    assert_eq!(client.stats().calls, u64::from(calls));
    assert_eq!(server.stats().calls, u64::from(calls));
    assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
    assert_eq!((client.stats().failed, client.stats().expired), (0, 0));
    assert_eq!(server.stats().broken, 0);
}

/// The same of a stream with no more ahead than fits.
fn check_flow(client: &Client, server: &ServerHandle, calls: u32) {
    check(client, server, calls);
    assert_eq!(client.stats().credit_stalls, 0);
}

fn requests(most: u32) {
    let server = serve(server());
    let mut client = client(&server);
    stream(&mut client, calls(most), SINK, &pattern(1000, 1), 40, 0);
    check_flow(&client, &server, calls(most));
}

fn replies(most: u32) {
    let server = source(server(), 1000);
    let mut client = client(&server);
    stream(&mut client, calls(most), SOURCE, &[], 40, 1000);
    check_flow(&client, &server, calls(most));
}

/// A server whose replies to [`SOURCE`] are so long and made once; those to [`SINK`] are empty.
fn source(server: rpc::Server, len: usize) -> ServerHandle {
    let shared = memory().2.alloc_from_slice(&pattern(len, 2)).unwrap();
    let shared = shared.freeze();
    server
        .serve(move |_core| {
            let shared = shared.clone();
            move |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
                SOURCE => {
                    assert!(request.body().is_empty());
                    responder.reply(shared.clone());
                }
                _ => responder.reply(()),
            }
        })
        .unwrap()
}

#[test]
fn requests_with_bytes_replies_without() {
    over_all_paths(|| requests(MANY));
}

#[test]
fn requests_without_bytes_replies_with() {
    over_all_paths(|| replies(MANY));
}

#[test]
fn a_million_requests() {
    over(&ALIKE, long(), || requests(MILLION));
}

#[test]
fn a_million_replies() {
    over(&ALIKE, long(), || replies(MILLION));
}

/// All requests there can be without an answer, then all the answers, again and again; how many calls.
fn waves(client: &mut Client, most: u32, len: usize) -> u32 {
    let rounds = calls(most) / client.slots();
    let mut pending = Vec::new();
    for _ in 0..rounds {
        for left in (0..client.slots()).rev() {
            let method = if left == 0 { SOURCE } else { SINK };
            pending.push(client.submit(method, pattern(len, 4), patient()).unwrap());
        }
        for p in pending.drain(..) {
            assert_eq!(p.wait(client).unwrap().len(), 1000);
        }
    }
    rounds * client.slots()
}

/// A server that answers when it is asked for [`SOURCE`], and then all that it has been asked.
fn hesitant(server: rpc::Server) -> ServerHandle {
    server
        .serve(|_core| {
            let mut waiting = Vec::new();
            move |request: rpc::Request<'_>, responder: rpc::Responder| {
                waiting.push(responder);
                if request.method() == SOURCE {
                    for responder in waiting.drain(..) {
                        responder.reply(pattern(1000, 3));
                    }
                }
            }
        })
        .unwrap()
}

#[test]
fn nothing_comes_back_until_all_has_gone() {
    over_all_paths(|| {
        let server = hesitant(server());
        let mut client = client(&server);
        let calls = waves(&mut client, MANY, 1000);
        check_flow(&client, &server, calls);
    });
}

/// Only credits that are returned by themselves let the requests go on: no answer brings them.
#[test]
fn nothing_comes_back_until_all_has_gone_through_the_smallest_ring() {
    bounded(|| {
        let server = hesitant(server().ring_size(1));
        let mut client = client(&server);
        assert!(client.slots() > 40, "{}", client.slots());
        let calls = waves(&mut client, MANY, 4096);
        check(&client, &server, calls);
        assert!(client.stats().credit_stalls > 0);
    });
}

/// With more ahead than slots, and with half as many.
#[test]
fn smallest_window() {
    over_all_paths(|| {
        let server = serve(server().window(16));
        let mut client = builder().window(16).connect(server.local_addr()).unwrap();
        let half = client.slots() / 2;
        assert!((4..=6).contains(&half));
        stream(&mut client, calls(MANY), SINK, b"x", half as usize, 0);
        check_flow(&client, &server, calls(MANY));
        stream(&mut client, calls(MANY), SINK, b"x", 100, 0);
        check(&client, &server, 2 * calls(MANY));
    });
}

#[test]
fn a_million_through_the_smallest_window() {
    over(&ALIKE, long(), || {
        let server = serve(server().window(16));
        let mut client = builder().window(16).connect(server.local_addr()).unwrap();
        stream(&mut client, calls(MILLION), SINK, b"x", 4, 0);
        check_flow(&client, &server, calls(MILLION));
    });
}

#[test]
fn serial() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        for _ in 0..calls(MANY) {
            let reply = client.call(SINK, b"0123456789", patient()).unwrap();
            assert!(reply.is_empty());
        }
        check_flow(&client, &server, calls(MANY));
    });
}

/// Ends with rings that hold hardly more than four of the longest messages there are.
fn smallest_rings() -> (Client, ServerHandle) {
    let server = source(server().ring_size(1), 4096);
    let client = builder().ring_size(1).connect(server.local_addr()).unwrap();
    assert_eq!(client.paths(), Some(PATHS[0]));
    assert_eq!(client.inline_limit(), 4096);
    assert!((3..8).contains(&client.slots()), "{}", client.slots());
    (client, server)
}

/// So many requests, then as many replies, with no more of them on their way than their ring holds.
fn through_the_smallest_rings(calls: u32) {
    let (mut client, server) = smallest_rings();
    stream(&mut client, calls, SINK, &pattern(4096, 3), 3, 0);
    check_flow(&client, &server, calls);
    let slots = client.slots() as usize;
    stream(&mut client, calls, SOURCE, &[], slots, 4096);
    check_flow(&client, &server, 2 * calls);
}

#[test]
fn smallest_rings_flow() {
    bounded(|| through_the_smallest_rings(calls(MANY)));
}

#[test]
fn a_million_each_way_through_the_smallest_rings() {
    bounded_by(long(), || through_the_smallest_rings(calls(MILLION)));
}

#[test]
fn smallest_rings_and_more_ahead_than_slots() {
    bounded(|| {
        let (mut client, server) = smallest_rings();
        stream(&mut client, calls(MANY), SINK, &pattern(4096, 3), 40, 0);
        check(&client, &server, calls(MANY));
        stream(&mut client, calls(MANY), SOURCE, &[], 40, 4096);
        check(&client, &server, 2 * calls(MANY));
    });
}

/// A small request ring under a full window of calls.
#[test]
fn smallest_request_ring_and_many_slots() {
    bounded(|| {
        let server = serve(server().ring_size(1));
        let mut client = client(&server);
        assert!(client.slots() > 40, "{}", client.slots());
        stream(&mut client, calls(MANY), SINK, &pattern(4096, 1), 100, 0);
        check(&client, &server, calls(MANY));
    });
}
