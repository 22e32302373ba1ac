//! Small calls of a client that brings in a long reply.

mod common;

use common::*;
use mempool::{BudgetKind, Kind};
use rpc::{Method, ReplyPath, RequestPath};
use std::thread;
use std::time::{Duration, Instant};

/// Replies with [`LONG`] bytes, at once.
const GIVE: Method = Method(100);
const LONG: usize = 64 << 20;
const SLICE: u32 = 4 << 10;
const SLICES: u64 = LONG as u64 / SLICE as u64;

/// Where a READ takes as long as its bytes do, an answer that is here must not be behind one, nor one that can be fetched in a moment.
#[test]
fn an_answer_that_is_here_does_not_wait_for_a_slice() {
    let paths = [
        PATHS[0],
        PATHS[3],
        (RequestPath::WriteImm, ReplyPath::Fetch),
    ];
    over(&paths, hang(), || {
        let server = server().serve(|core| {
            let pool = core.pool().clone();
            let kept = pool.alloc_in(BudgetKind::User, Kind::Readable, LONG);
            let kept = kept.expect("memory").freeze();
            let mut others = handler(pool);
            move |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
                GIVE => responder.reply(kept.clone()),
                _ => others(request, responder),
            }
        });
        let server = server.expect("serve");
        let client = builder().read_slice(SLICE);
        let mut client = client.connect(server.local_addr()).expect("connect");
        for _ in 0..100 {
            client.call(ECHO, "x", patient()).unwrap();
        }
        // In some rounds the time for the first READ of a reply may not have come when it is waited for; in all of them it must not be.
        let (mut fewest, mut end, mut long) = (u64::MAX, 0, None::<rpc::Pending>);
        for _ in 0..50 {
            if client.stats().reads + SLICES / 2 > end {
                if let Some(long) = long.take() {
                    assert_eq!(long.wait(&mut client).unwrap().len(), LONG);
                }
                let before = client.stats().reads;
                let next = client.submit(GIVE, "", patient()).unwrap();
                while client.stats().reads == before {
                    assert!(!next.is_ready(&mut client));
                }
                (end, long) = (before + SLICES, Some(next));
            }
            let calls = server.stats().calls;
            let first = client.submit(ECHO, "first", patient()).unwrap();
            let second = client.submit(ECHO, "second", patient()).unwrap();
            // With the second one begun, the first is answered.
            while server.stats().calls < calls + 2 {
                thread::yield_now();
            }
            // So that a READ of it is due.
            let answered = Instant::now();
            while answered.elapsed() < Duration::from_millis(1) {}
            let before = client.stats().reads;
            assert_eq!(first.wait(&mut client).unwrap().bytes(), b"first");
            let after = client.stats().reads;
            // The long reply was on its way all the time.
            if after < end {
                fewest = fewest.min(after - before);
            }
            assert_eq!(second.wait(&mut client).unwrap().bytes(), b"second");
            if fewest == 0 {
                break;
            }
        }
        let at_once =
            memory().0.device_name() == "soft0" && client_memory().0.device_name() == "soft0";
        if at_once && std::env::var_os("VERBATIM_ASYNC").is_none() {
            assert_eq!(fewest, 0);
        }
    });
}

/// Never answered while the server lives.
const PARK: Method = Method(101);

/// While small calls come in between, slices are a quarter as long, and as long as was asked for after 16 MiB without any.
#[test]
fn slices_are_short_while_small_calls_come_in_between() {
    const LONG: usize = 24 << 20;
    over(&PATHS[..1], hang(), || {
        let server = server().serve(|core| {
            let (mut others, mut parked) = (handler(core.pool().clone()), Vec::new());
            move |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
                PARK => parked.push(responder),
                _ => others(request, responder),
            }
        });
        let server = server.expect("serve");
        let mut client = builder().connect(server.local_addr()).expect("connect");
        // What fetches, and what is fetched from, in turn.
        let ask = (LONG as u64).to_le_bytes();
        let long = client.submit(SOURCE, ask, patient()).unwrap();
        while client.stats().reads == 0 {
            assert!(!long.is_ready(&mut client));
        }
        let calls = server.stats().calls;
        let small = client.submit(ECHO, "small", patient()).unwrap();
        drop(client.submit(PARK, "", patient()).unwrap());
        // With the second one begun, the first is answered. Nothing is READ meanwhile: that is done by who waits or looks.
        while server.stats().calls < calls + 2 {
            thread::yield_now();
        }
        assert_eq!(small.wait(&mut client).unwrap().bytes(), b"small");
        let before = client.stats().reads;
        // Who waits for it, as the only call, would not have to share.
        while !long.is_ready(&mut client) {}
        assert_eq!(long.wait(&mut client).unwrap().len(), LONG);
        let reads = client.stats().reads - before;
        let short = (16 << 20) / (64 << 10);
        let rest = LONG as u64 / (256 << 10);
        // So many were long, and more than is short afterwards is left.
        assert!(before <= rest / 4, "{before} READs before");
        let left = rest - before - short / 4;
        // Those before, while the body was alone, may have been twice as long; those that are out when the answer is found are counted before, and may
        // be a few.
        assert!(
            (short + left - before..=short + left + 4).contains(&reads),
            "{reads} READs after {before}"
        );

        let bytes = client.pool().alloc_zeroed(LONG).unwrap();
        let mut segments = mempool::SgList::from(bytes);
        // Whether small requests arrive between two READs depends on how the threads run.
        let mut most = 0;
        for _ in 0..500 {
            let before = server.stats().reads;
            let long = client.submit(SUM, segments, patient()).unwrap();
            while !long.is_ready(&mut client) {
                client.call(ECHO, "small", patient()).unwrap();
            }
            segments = long.wait(&mut client).unwrap().take_segments();
            most = most.max(server.stats().reads - before);
            if most > 2 * rest {
                break;
            }
        }
        assert!(most > 2 * rest, "{most} READs");
    });
}
