//! Replies that the client READs from the server's shelf.

mod common;

use common::*;
use rpc::{CallError, Client, Code, Deadline, ReplyPath, RequestPath, ServerHandle, Waiting};
use std::thread;
use std::time::Duration;

fn connect(server: &ServerHandle, reply: ReplyPath) -> Client {
    builder()
        .request(RequestPath::Send)
        .reply(reply)
        .connect(server.local_addr())
        .unwrap()
}

#[test]
fn every_reply_is_fetched() {
    bounded(|| {
        let server = serve(server());
        let mut client = connect(&server, ReplyPath::Fetch);
        let mut calls = 0;
        for len in [0usize, 1, 64, 150, 200, 1000, 4000, 4096, 5000, 1 << 20, 3] {
            let reply = client.call(SOURCE, (len as u64).to_le_bytes(), patient());
            assert_eq!(reply.unwrap().bytes(), pattern(len, 1), "{len} bytes");
            calls += 1;
        }
        for method in [PANIC, DROP] {
            match client.call(method, "x", patient()) {
                Err(CallError::Remote { code, .. }) => {
                    let want = [Code::PANICKED, Code::UNANSWERED];
                    assert!(want.contains(&code), "{code:?}");
                }
                other => panic!("{other:?}"),
            }
            calls += 1;
        }
        let stats = client.stats();
        assert_eq!(stats.fetched, calls);
        assert!(stats.fetches >= calls && stats.reads_per_fetch() >= Some(1.0));
        assert_eq!((stats.switches, stats.rnr), (0, 0));
        assert!(stats.to_string().contains("replies fetched"));
    });
}

/// What the first READ fetches follows the replies, or is what was asked for.
#[test]
fn the_first_read_is_as_long_as_replies_are() {
    bounded(|| {
        let server = serve(server());
        let mut client = connect(&server, ReplyPath::Fetch);
        for _ in 0..3 {
            let reply = client.call(ECHO, &[7; 2000][..], patient()).unwrap();
            assert_eq!(reply.bytes(), [7; 2000]);
        }
        assert!((2072..2200).contains(&client.stats().fetch_first));
        // All whole, but the first, whose rest is READ by itself; apart from those that came too early.
        let stats = client.stats();
        assert_eq!(stats.fetches, 3 + 1 + stats.fetch_misses, "{stats}");
        for _ in 0..200 {
            client.call(SINK, (), patient()).unwrap();
        }
        assert_eq!(client.stats().fetch_first, 64);

        let mut fixed = builder()
            .reply(ReplyPath::Fetch)
            .fetch_first(512)
            .connect(server.local_addr())
            .unwrap();
        for _ in 0..4 {
            let reply = fixed.call(ECHO, &[8; 1000][..], patient()).unwrap();
            assert_eq!(reply.bytes(), [8; 1000]);
        }
        let stats = fixed.stats();
        assert_eq!(stats.fetch_first, 512);
        assert_eq!(stats.fetches, 4 * 2 + stats.fetch_misses, "{stats}");
    });
}

#[test]
fn many_at_once_and_in_any_order() {
    bounded(|| {
        let server = serve(server());
        let mut client = connect(&server, ReplyPath::Fetch);
        for round in 0..20u32 {
            let mut pending = Vec::new();
            for n in 0..client.slots() {
                let mut bytes = pattern((n as usize * 97) % 4500, 3);
                bytes.extend((n + round).to_le_bytes());
                pending.push((
                    bytes.clone(),
                    client.submit(ECHO, bytes, patient()).unwrap(),
                ));
            }
            while !pending.is_empty() {
                let at = (pending.len() * 7) % pending.len().max(2) % pending.len();
                let (bytes, call) = pending.swap_remove(at);
                assert_eq!(call.wait(&mut client).unwrap().bytes(), bytes);
            }
        }
        assert_eq!(client.stats().rnr, 0);
    });
}

/// A hybrid connection fetches from a quick server, has a slow one push, and goes back.
#[test]
fn a_hybrid_follows_the_server() {
    bounded(|| {
        let server = serve(server());
        let mut client = builder()
            .reply(ReplyPath::Hybrid)
            .fetch_tries(0)
            .connect(server.local_addr())
            .unwrap();
        let first = client.call(ECHO, "quick", patient()).unwrap();
        assert_eq!(first.bytes(), b"quick");
        assert_eq!(client.stats().fetched, 1);
        // Slower every time, so that no expectation is met.
        let mut ms = 1u64;
        while client.stats().switches == 0 {
            client.call(SLOW, ms.to_le_bytes(), patient()).unwrap();
            ms += 3;
            assert!(ms < 200, "{}", client.stats());
        }
        let fetched = client.stats().fetched;
        for _ in 0..20 {
            client.call(SLOW, 2u64.to_le_bytes(), patient()).unwrap();
        }
        let stats = client.stats();
        assert_eq!((stats.fetched, stats.fetch_first), (fetched, 0), "{stats}");
        // Quick again, as soon as this machine lets the server be.
        while client.stats().switches == 1 {
            client.call(ECHO, "quick", patient()).unwrap();
        }
        client.call(ECHO, "quick", patient()).unwrap();
        assert!(client.stats().fetched > fetched);
    });
}

/// Who waits for a reply to appear sleeps between the READs, and finds it all the same.
#[test]
fn waiting_costs_few_reads() {
    bounded(|| {
        let server = serve(server());
        let mut client = builder()
            .reply(ReplyPath::Fetch)
            .waiting(Waiting::SLEEP)
            .connect(server.local_addr())
            .unwrap();
        for _ in 0..5 {
            let reply = client.call(SLOW, 50u64.to_le_bytes(), patient()).unwrap();
            assert_eq!(reply.bytes(), b"done");
        }
        // At the longest pause, a second is ten thousand READs.
        let stats = client.stats();
        assert!(stats.fetches < 10_000, "{stats}");
    });
}

/// Calls that are given up on are fetched nevertheless: their slots come back.
#[test]
fn slots_of_expired_calls_come_back() {
    bounded(|| {
        let server = serve(server());
        let mut client = connect(&server, ReplyPath::Fetch);
        let slots = client.slots();
        match client.call(SLOW, 300u64.to_le_bytes(), Deadline::after_ms(20)) {
            Err(CallError::Expired) => {}
            other => panic!("{other:?}"),
        }
        drop(client.submit(SLOW, 20u64.to_le_bytes(), patient()).unwrap());
        let calls: Vec<_> = (0..2 * slots)
            .map(|n| (n, client.submit(ECHO, n.to_le_bytes(), patient()).unwrap()))
            .collect();
        for (n, call) in calls {
            assert_eq!(call.wait(&mut client).unwrap().bytes(), n.to_le_bytes());
        }
        while client.stats().fetched < 2 + 2 * u64::from(slots) {
            client.poll();
            thread::yield_now();
        }
    });
}

/// However long others have taken: a reply that has long been there is found before its caller gives up.
#[test]
fn replies_are_looked_for_before_their_time_is_over() {
    bounded(|| {
        let server = serve(server());
        let slow = 1000 * u64::from(slowness());
        for small in [true, false] {
            let mut client = connect(&server, ReplyPath::Fetch);
            // The second at least says how long requests take.
            let calls = [(); 2].map(|()| client.submit(SLOW, slow.to_le_bytes(), patient()));
            for call in calls {
                call.unwrap().wait(&mut client).unwrap();
            }
            let bytes = pattern(if small { 10 } else { 3000 }, 1);
            let soon = Deadline::after_ms(slow * 2 / 5);
            let reply = client.call(ECHO, &bytes[..], soon).unwrap();
            assert!(reply.bytes() == bytes);
        }
    });
}

#[test]
fn a_server_that_goes_away_ends_the_calls() {
    bounded(|| {
        for reply in [ReplyPath::Fetch, ReplyPath::Hybrid] {
            let server = serve(server());
            let mut client = connect(&server, reply);
            client.call(ECHO, "x", patient()).unwrap();
            let call = client.submit(SLOW, 100u64.to_le_bytes(), patient());
            let call = call.unwrap();
            let stopper = thread::spawn(move || drop(server));
            // Answered before it stopped, or ended with it.
            match call.wait(&mut client) {
                Ok(reply) => assert_eq!(reply.bytes(), b"done"),
                Err(error) => assert!(
                    matches!(error, CallError::MaybeExecuted { .. }),
                    "{error:?}"
                ),
            }
            stopper.join().unwrap();
            let late = client.call(ECHO, "x", Deadline::after(Duration::from_secs(60)));
            assert!(late.is_err());
        }
    });
}
