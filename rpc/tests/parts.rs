//! Replies in parts: whole and in order, bounded on both sides, and ended by either.

mod common;

use common::*;
use mempool::{Budget, BudgetKind, Pool};
use rpc::{
    CallError, Code, Core, Deadline, Method, PartError, PartsResponder, Request, Responder,
    ServerHandle,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

/// So many parts, made when they are asked for, of lengths that go round.
const MANY: Method = Method(100);
/// The same, and then an error.
const BROKEN: Method = Method(101);
/// The same, and then a panic.
const BURST: Method = Method(102);
/// So many parts at once, as far as they are taken, and the responder is dropped.
const LEFT: Method = Method(103);
/// As many parts as are taken, which is answered by a last one that says how many, when [`GO_ON`] comes.
const FULL: Method = Method(104);
const GO_ON: Method = Method(105);
/// No part.
const NONE: Method = Method(106);

const LENGTHS: [usize; 7] = [0, 1, 200, 216, 4096, 5000, 100_000];

fn part(n: u64) -> Vec<u8> {
    pattern(LENGTHS[n as usize % LENGTHS.len()], n as u8)
}

fn number(request: &Request<'_>) -> u64 {
    u64::from_le_bytes(request.body()[..8].try_into().unwrap())
}

/// Parts made, and sources that exist.
#[derive(Default)]
struct Counts {
    made: AtomicU64,
    alive: AtomicI64,
}

/// Counts the sources there are.
struct Alive(Arc<Counts>);

impl Alive {
    fn new(counts: &Arc<Counts>) -> Alive {
        counts.alive.fetch_add(1, Ordering::Relaxed);
        Alive(Arc::clone(counts))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

fn streaming(pool: Option<(&verbs::Pd, &Pool)>) -> (ServerHandle, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let shared = Arc::clone(&counts);
    let server = match pool {
        Some((pd, pool)) => server().pool(pd, pool),
        None => server(),
    };
    let server = server.serve(move |core: &Core| {
        let counts = Arc::clone(&shared);
        let full: Rc<RefCell<VecDeque<PartsResponder>>> = Rc::default();
        let mut other = handler(core.pool().clone());
        move |request: Request<'_>, responder: Responder| match request.method() {
            MANY | BROKEN | BURST => {
                let (count, how) = (number(&request), request.method());
                let pool = responder.pool().clone();
                let alive = Alive::new(&counts);
                let end = match how {
                    BROKEN => Some(Err((Code(4711), "no more".to_owned()))),
                    _ => None,
                };
                let parts = (0..count).map(move |n| {
                    alive.0.made.fetch_add(1, Ordering::Relaxed);
                    assert!(how != BURST || n + 1 < count, "on purpose");
                    Ok(pool.alloc_from_slice(&part(n)).unwrap())
                });
                responder.stream(parts.chain(end));
            }
            LEFT => {
                let mut parts = responder.in_parts();
                for n in 0..number(&request) {
                    parts.part(part(n)).unwrap();
                }
            }
            FULL => {
                let mut parts = responder.in_parts();
                let mut taken = 0u64;
                let refused = loop {
                    match parts.part(taken.to_le_bytes()) {
                        Ok(()) => taken += 1,
                        Err(PartError::Full(part)) => break u64::from_le_bytes(part),
                        Err(error) => panic!("{error:?}"),
                    }
                };
                assert_eq!((refused, parts.room()), (taken, Some(0)));
                full.borrow_mut().push_back(parts);
            }
            GO_ON => {
                let mut parts = full.borrow_mut().pop_front().unwrap();
                let gone = parts.room().is_none();
                match parts.part("last") {
                    Ok(()) => parts.finish(),
                    Err(PartError::Gone) => assert!(gone),
                    Err(error) => panic!("{error:?}"),
                }
                responder.reply([u8::from(gone)]);
            }
            NONE => responder.in_parts().finish(),
            _ => other(request, responder),
        }
    });
    (server.unwrap(), counts)
}

#[test]
fn parts_arrive_whole_and_in_order() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        for count in [0u64, 1, 2, 5, 50] {
            let ask = count.to_le_bytes();
            let parts = client.call_parts(MANY, ask, patient()).unwrap();
            let mut seen = 0;
            for reply in parts {
                assert!(reply.unwrap().bytes() == part(seen), "{seen} of {count}");
                seen += 1;
            }
            assert_eq!(seen, count);
        }
        // Whole replies, and none.
        let whole = client.call_parts(ECHO, "whole", patient()).unwrap();
        let whole: Vec<_> = whole.map(|part| part.unwrap().bytes().to_vec()).collect();
        assert_eq!(whole, [b"whole"]);
        assert_eq!(client.call_parts(NONE, (), patient()).unwrap().count(), 0);
        // No parts at all is no reply in parts.
        assert!(client.call(NONE, (), patient()).unwrap().is_empty());
        assert_eq!(counts.alive.load(Ordering::Relaxed), 0);
        assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
        assert_eq!((client.stats().failed, server.stats().broken), (0, 0));
    });
}

#[test]
fn several_at_once_beside_other_calls() {
    over_all_paths(|| {
        let (server, _counts) = streaming(None);
        let mut client = client(&server);
        let ask = 30u64.to_le_bytes();
        let mut all: Vec<_> = (0..8)
            .map(|_| client.submit_parts(MANY, ask, patient()).unwrap())
            .collect();
        for n in 0..30u64 {
            for parts in &mut all {
                let reply = parts.next(&mut client).unwrap().unwrap();
                assert!(reply.bytes() == part(n));
                assert_eq!(
                    client.call(ECHO, n.to_le_bytes(), patient()).unwrap().len(),
                    8
                );
            }
        }
        for mut parts in all {
            assert!(!parts.is_finished());
            assert!(parts.next(&mut client).unwrap().is_none());
            assert!(parts.is_finished());
            assert!(parts.next(&mut client).unwrap().is_none());
        }
    });
}

/// That a reply is not wanted takes a slot to be said: not one that a batch has been promised.
#[test]
fn what_is_dropped_takes_no_room_from_a_batch() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        for round in 0..20u64 {
            for _ in 0..3 {
                let ask = 1000u64.to_le_bytes();
                let mut parts = client.submit_parts(MANY, ask, patient()).unwrap();
                assert!(parts.next(&mut client).unwrap().is_some());
            }
            let mut batch = client.batch();
            while batch.add(ECHO, round.to_le_bytes(), patient()).is_ok() {}
            for call in batch.post() {
                assert_eq!(call.wait(&mut client).unwrap().bytes(), round.to_le_bytes());
            }
        }
        while counts.alive.load(Ordering::Relaxed) > 0 {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
        assert!(client.lost().is_none());
    });
}

/// Calls end, and with them the slots of replies that nobody wants: what is sent because of these must not take the place of what has not ended.
#[test]
fn replies_that_are_dropped_leave_those_alone_that_come_with_them() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        for round in 0..30u64 {
            let ask = 1000u64.to_le_bytes();
            let slots = u64::from(client.slots());
            let mut calls = Vec::new();
            // As many as fit, every third a reply in parts that is dropped before it comes.
            for n in 0..slots {
                if n % 3 == round % 3 {
                    drop(client.submit_parts(MANY, ask, patient()).unwrap());
                } else {
                    let body = pattern(if n % 2 == 0 { 40 } else { 2000 }, n as u8);
                    let call = client.submit(ECHO, &body[..], Deadline::never());
                    calls.push((call.unwrap(), body));
                }
            }
            for (call, body) in calls {
                assert!(call.wait(&mut client).unwrap().bytes() == body);
            }
        }
        while counts.alive.load(Ordering::Relaxed) > 0 {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
    });
}

/// A reply whose next part cannot be asked for is given up, and the server told.
#[test]
fn a_reply_whose_time_is_over_is_let_go_of() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        let soon = Deadline::after_ms(500 * u64::from(slowness()));
        let ask = 1000u64.to_le_bytes();
        let mut parts = client.submit_parts(MANY, ask, soon).unwrap();
        assert!(parts.next(&mut client).unwrap().is_some());
        // The second comes in meanwhile; a third cannot be asked for any more.
        while !soon.is_past() {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
        assert!(parts.next(&mut client).unwrap().is_some());
        let ended = parts.next(&mut client);
        // The request has been executed, to the second part.
        assert!(matches!(ended, Err(CallError::Expired)), "{ended:?}");
        while counts.alive.load(Ordering::Relaxed) > 0 {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
    });
}

#[test]
fn ends_that_are_errors() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        // Of the last, the panic takes the place.
        for (method, count, code) in [
            (BROKEN, 5u64, Code(4711)),
            (BURST, 6, Code::PANICKED),
            (LEFT, 4, Code::UNANSWERED),
            (LEFT, 0, Code::UNANSWERED),
        ] {
            let ask = count.to_le_bytes();
            let mut parts = client.call_parts(method, ask, patient()).unwrap();
            for n in 0..count - u64::from(method == BURST) {
                assert!(
                    parts.next().unwrap().unwrap().bytes() == part(n),
                    "{method}"
                );
            }
            match parts.next().unwrap() {
                Err(CallError::Remote { code: got, .. }) => assert_eq!(got, code),
                other => panic!("{other:?}"),
            }
            assert!(parts.next().is_none());
        }
        assert_eq!(counts.alive.load(Ordering::Relaxed), 0);
        assert_eq!(server.stats().panics, 1);
        assert_eq!(client.call(ECHO, "on", patient()).unwrap().bytes(), b"on");
    });
}

/// Neither end has more than a few parts in memory, however many there are.
#[test]
fn little_is_made_ahead() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        let ask = 1000u64.to_le_bytes();
        let mut parts = client.submit_parts(MANY, ask, patient()).unwrap();
        for n in 0..20u64 {
            let reply = parts.next(&mut client).unwrap().unwrap();
            assert!(reply.bytes() == part(n));
            // The one after it has been asked for, and no other.
            for _ in 0..20 {
                client.call(ECHO, "x", patient()).unwrap();
            }
            assert_eq!(counts.made.load(Ordering::Relaxed), n + 2);
        }
        // Given by hand, those that are too many are given back.
        let mut full = client.submit_parts(FULL, (), patient()).unwrap();
        assert!(full.next(&mut client).unwrap().is_some());
        assert_eq!(client.call(GO_ON, (), patient()).unwrap().bytes(), [0]);
        let mut taken = 1u64;
        loop {
            let reply = full.next(&mut client).unwrap().unwrap();
            if reply.bytes() == b"last" {
                break;
            }
            assert_eq!(reply.bytes(), taken.to_le_bytes());
            taken += 1;
        }
        assert!(full.next(&mut client).unwrap().is_none());
        assert_eq!(taken, 5, "the one that was asked for, and four that wait");
    });
}

#[test]
fn a_client_can_lose_interest() {
    over_all_paths(|| {
        let (context, ..) = memory();
        let pd = context.alloc_pd().unwrap();
        let pool = Pool::builder(&pd).budget(Budget::user(1 << 30)).build();
        let pool = pool.unwrap();
        let (server, counts) = streaming(Some((&pd, &pool)));
        let mut client = client(&server);
        // More often than a connection may have replies in parts at once.
        for round in 0..3 * u64::from(client.slots()) {
            let ask = 1000u64.to_le_bytes();
            let mut parts = client.submit_parts(MANY, ask, patient()).unwrap();
            for n in 0..round % 9 {
                assert!(parts.next(&mut client).unwrap().unwrap().bytes() == part(n));
            }
            drop(parts);
        }
        while counts.alive.load(Ordering::Relaxed) > 0 {
            client.poll();
        }
        // One that is given by hand learns of it.
        let full = client.submit_parts(FULL, (), patient()).unwrap();
        drop(full);
        client.call(ECHO, "x", patient()).unwrap();
        client.call(ECHO, "x", patient()).unwrap();
        assert_eq!(client.call(GO_ON, (), patient()).unwrap().bytes(), [1]);
        // A call of the ordinary kind is told, and the rest is not made.
        let buf = client.pool().alloc_from_slice(&9u64.to_le_bytes()).unwrap();
        match client.call(MANY, buf, patient()) {
            Err(CallError::InParts { mut buffers }) => {
                assert_eq!(buffers.take_segments().len(), 8);
            }
            other => panic!("{other:?}"),
        }
        while counts.alive.load(Ordering::Relaxed) > 0 {
            client.poll();
        }
        assert_eq!(client.call(ECHO, "on", patient()).unwrap().bytes(), b"on");
        drop(client);
        while server.stats().connections > 0 {
            thread::yield_now();
        }
        drop(server);
        let stats = pool.stats();
        for kind in BudgetKind::ALL {
            let budget = stats.budget(kind);
            assert_eq!(budget.in_use - budget.stocked, 0, "{kind:?}");
        }
    });
}

#[test]
fn the_end_of_a_connection_ends_them() {
    over_all_paths(|| {
        let (server, counts) = streaming(None);
        let mut client = client(&server);
        let ask = 1000u64.to_le_bytes();
        let mut parts = client.submit_parts(MANY, ask, patient()).unwrap();
        let mut full = client.submit_parts(FULL, (), patient()).unwrap();
        assert!(parts.next(&mut client).unwrap().is_some());
        assert!(full.next(&mut client).unwrap().is_some());
        // By the client; the server's sources go with it.
        let mut other = builder().connect(server.local_addr()).unwrap();
        drop(client);
        while counts.alive.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(other.call(GO_ON, (), patient()).unwrap().bytes(), [1]);
        // By the server; before the third part can be asked for.
        let mut parts = other.submit_parts(MANY, ask, patient()).unwrap();
        assert!(parts.next(&mut other).unwrap().is_some());
        server.shutdown();
        server.join();
        while other.lost().is_none() {
            other.poll();
        }
        let error = loop {
            match parts.next(&mut other) {
                Ok(Some(_)) => {}
                Ok(None) => panic!("that was not the end"),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, CallError::MaybeExecuted { .. }),
            "{error:?}"
        );
        assert!(parts.next(&mut other).unwrap().is_none());
        assert_eq!(counts.alive.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn they_go_on_while_the_server_drains() {
    over_all_paths(|| {
        let (server, _counts) = streaming(None);
        let mut client = client(&server);
        let ask = 20u64.to_le_bytes();
        let mut parts = client.submit_parts(MANY, ask, patient()).unwrap();
        assert!(parts.next(&mut client).unwrap().unwrap().bytes() == part(0));
        server.drain(patient());
        // Until it has noticed.
        while client.call(ECHO, "x", patient()).is_ok() {}
        for n in 1..20 {
            assert!(parts.next(&mut client).unwrap().unwrap().bytes() == part(n));
            client.poll();
        }
        assert!(parts.next(&mut client).unwrap().is_none());
        while client.lost().is_none() {
            client.poll();
        }
        server.join();
    });
}

#[test]
fn their_time_can_be_over() {
    over_all_paths(|| {
        let (server, _counts) = streaming(None);
        let mut client = client(&server);
        let mut full = client
            .submit_parts(FULL, (), Deadline::after_ms(300))
            .unwrap();
        let mut parts = 0;
        let error = loop {
            match full.next(&mut client) {
                Ok(Some(_)) => parts += 1,
                Ok(None) => panic!("it does not end"),
                Err(error) => break error,
            }
        };
        assert!(parts <= 5);
        assert!(matches!(error, CallError::Expired), "{error:?}");
        assert!(full.next(&mut client).unwrap().is_none());
        client.call(ECHO, "x", patient()).unwrap();
        client.call(ECHO, "x", patient()).unwrap();
        if parts > 0 {
            assert_eq!(client.call(GO_ON, (), patient()).unwrap().bytes(), [1]);
        }
    });
}

/// Who loses interest before there is a part tells the server of it, not the handler.
#[test]
fn handlers_do_not_see_what_belongs_to_parts() {
    over_all_paths(|| {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let server = server().serve(move |_core| {
            let noted = Arc::clone(&noted);
            let mut held = Vec::new();
            move |request: Request<'_>, responder: Responder| {
                noted.lock().unwrap().push(request.method());
                match request.method() {
                    NONE => held.push(responder.in_parts()),
                    _ => responder.reply("done"),
                }
            }
        });
        let server = server.unwrap();
        let mut client = client(&server);
        let parts = client.submit_parts(NONE, "", patient()).unwrap();
        while seen.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        drop(parts);
        for _ in 0..3 {
            client.call(MANY, "", patient()).unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), [NONE, MANY, MANY, MANY]);
    });
}
