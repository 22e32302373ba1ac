//! Clients that connect again, and which calls they make again.

mod common;

use common::alone::cpu_of_thread;
use common::*;
use rpc::{
    CallError, Client, ConnectError, Deadline, Method, NotSentReason, Reconnect, ReplyPath,
    Request, Responder, Server, ServerHandle,
};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The first one is not answered, all others are echoed.
const ONCE: Method = Method(100);

/// A server at an address that was in use before, perhaps.
fn serve_at(addr: SocketAddr, seen: &Arc<AtomicU64>) -> (ServerHandle, Receiver<()>) {
    let (_, pd, pool) = memory();
    let server = loop {
        match Server::bind(addr) {
            Ok(server) => break server,
            // Of the one before.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    let (held, holds) = channel();
    let seen = Arc::clone(seen);
    let server = server.pool(pd, pool).serve(move |core| {
        let (held, seen) = (held.clone(), Arc::clone(&seen));
        let mut kept = Vec::new();
        let mut other = handler(core.pool().clone());
        move |request: Request<'_>, responder: Responder| match request.method() {
            ONCE if seen.fetch_add(1, Ordering::Relaxed) == 0 => {
                kept.push(responder);
                held.send(()).unwrap();
            }
            ONCE => responder.reply(request.body()),
            _ => other(request, responder),
        }
    });
    (server.unwrap(), holds)
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn quick() -> Reconnect {
    Reconnect::new().first_pause(Duration::from_millis(1))
}

#[test]
fn idempotent_calls_are_made_again() {
    over_all_paths(|| {
        for len in [0, 64, 3000, 200_000] {
            let seen = Arc::default();
            let (server, holds) = serve_at(any(), &seen);
            let address = server.local_addr();
            let mut client = builder().reconnect(quick()).connect(address).unwrap();
            let bytes = pattern(len, 1);
            let shared = client.pool().alloc_from_slice(&bytes).unwrap().freeze();
            let restart = thread::spawn({
                let seen = Arc::clone(&seen);
                move || {
                    holds.recv().unwrap();
                    server.shutdown();
                    server.join();
                    serve_at(address, &seen).0
                }
            });
            let reply = match len {
                3000 => client.call_idempotent(ONCE, shared.clone(), patient()),
                _ => client.call_idempotent(ONCE, &bytes[..], patient()),
            };
            assert!(reply.unwrap().bytes() == bytes);
            let server = restart.join().unwrap();
            assert_eq!(seen.load(Ordering::Relaxed), 2);
            // It is a connection as any other, also for calls in pieces, and for batches.
            assert_eq!(client.paths(), Some(paths()));
            let long = pattern(300_000, 2);
            assert!(client.call(ECHO, &long[..], patient()).unwrap().bytes() == long);
            let mut batch = client.batch();
            batch.add(ECHO, "batch", patient()).unwrap();
            for call in batch.post() {
                assert_eq!(call.wait(&mut client).unwrap().bytes(), b"batch");
            }
            let stats = client.stats();
            assert_eq!((stats.reconnects, stats.resent, stats.rnr), (1, 1, 0));
            assert_eq!(server.stats().rnr, 0);
        }
    });
}

#[test]
fn others_are_not() {
    over_all_paths(|| {
        let seen = Arc::default();
        let (server, holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let mut client = builder().reconnect(quick()).connect(address).unwrap();
        let early = client.submit(ECHO, "early", patient()).unwrap();
        let call = client.submit(ONCE, "x", patient()).unwrap();
        holds.recv().unwrap();
        while !early.is_ready(&mut client) {}
        server.shutdown();
        server.join();
        let (server, _holds) = serve_at(address, &seen);
        match call.wait(&mut client) {
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(client.lost().is_some());
        // The next one was not sent before: it goes by a new connection. Outcomes of the old one stay.
        let buf = client.pool().alloc_from_slice(&[1; 700]).unwrap();
        assert_eq!(client.call(ECHO, buf, patient()).unwrap().bytes(), [1; 700]);
        assert!(client.lost().is_none());
        assert_eq!(early.wait(&mut client).unwrap().bytes(), b"early");
        assert_eq!(seen.load(Ordering::Relaxed), 1, "it was not made again");
        assert_eq!((client.stats().reconnects, client.stats().resent), (1, 0));
        // A client that was not told to does not.
        let mut plain = client_at(address);
        server.shutdown();
        server.join();
        let (_server, _holds) = serve_at(address, &seen);
        for _ in 0..3 {
            match plain.call_idempotent(ECHO, "x", patient()) {
                Err(CallError::MaybeExecuted { .. } | CallError::NotSent(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(plain.stats().reconnects, 0);
    });
}

fn client_at(address: SocketAddr) -> Client {
    builder().connect(address).unwrap()
}

#[test]
fn the_deadline_bounds_it_and_waiting_costs_nothing() {
    bounded(|| {
        let seen = Arc::default();
        let (server, _holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let mut client = builder().reconnect(quick()).connect(address).unwrap();
        server.shutdown();
        server.join();
        let begin = Instant::now();
        let buf = client.pool().alloc_from_slice(&[3; 999]).unwrap();
        let shared = buf.freeze();
        let before = cpu_of_thread();
        match client.call_idempotent(ECHO, shared.clone(), Deadline::after_ms(300)) {
            Err(CallError::NotSent(failed)) => {
                let (reason, segments, _) = failed.into_parts();
                assert!(matches!(reason, NotSentReason::Reconnect(_)), "{reason}");
                assert_eq!(segments.len(), 999);
            }
            other => panic!("{other:?}"),
        }
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(290), "{took:?}");
        let used = cpu_of_thread() - before;
        assert!(used < took / 2, "{used:?} of {took:?}");
        drop(shared);

        // As often as it was told.
        let policy = quick().tries(3);
        let (server, _holds) = serve_at(any(), &seen);
        let connect = builder().reconnect(policy);
        let mut client = connect.connect(server.local_addr()).unwrap();
        server.shutdown();
        server.join();
        match client.call_idempotent(ECHO, "x", Deadline::never()) {
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(failed.reason(), NotSentReason::Reconnect(_)));
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Somebody else has the address now: that is not tried again and again.
#[test]
fn what_another_try_cannot_mend_ends_it() {
    bounded(|| {
        let seen = Arc::default();
        let (server, _holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let mut client = builder().reconnect(quick()).connect(address).unwrap();
        server.shutdown();
        server.join();
        let other = loop {
            match TcpListener::bind(address) {
                Ok(other) => break other,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        let stranger = thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = other.accept().unwrap();
            let _ = stream.read(&mut [0; 64]);
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
            // Until the client has gone.
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.read(&mut [0; 512]);
        });
        match client.call_idempotent(ECHO, "x", Deadline::never()) {
            Err(CallError::NotSent(failed)) => match failed.reason() {
                NotSentReason::Reconnect(error) => {
                    assert!(matches!(**error, ConnectError::Handshake(_)), "{error}");
                }
                other => panic!("{other}"),
            },
            other => panic!("{other:?}"),
        }
        drop(client);
        stranger.join().unwrap();
    });
}

#[test]
fn a_group_connects_again() {
    bounded(|| {
        let seen = Arc::new(AtomicU64::new(1));
        let (server, _holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let connect = builder().reconnect(quick());
        let mut group = connect.connect_many(address, 3).unwrap();
        server.shutdown();
        server.join();
        // They notice when they are used.
        for index in 0..3 {
            while group.client(index).lost().is_none() {
                let _ = group.client(index).call(ECHO, "x", Deadline::after_ms(20));
            }
        }
        assert_eq!(group.reconnect(Deadline::after_ms(20)), 0);
        let (_server, _holds) = serve_at(address, &seen);
        // The first call needs one of them.
        assert!(group.call(ECHO, "x", patient()).is_ok());
        assert_eq!(group.alive(), 1);
        assert_eq!(group.reconnect(patient()), 3);
        for _ in 0..3 {
            assert!(group.call(ECHO, "x", patient()).is_ok());
        }
        assert_eq!(group.stats().reconnects, 3);
    });
}

/// A server that drains and is followed by another: nothing is lost, and nothing executed twice.
#[test]
fn a_rolling_restart_goes_unnoticed() {
    over_all_paths(|| {
        let counted = Arc::default();
        let seen = Arc::new(AtomicU64::new(1));
        let (mut server, _holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let mut client = builder().reconnect(quick()).connect(address).unwrap();
        let calls: Arc<AtomicU64> = Arc::clone(&counted);
        for round in 0..5u64 {
            let restart = thread::spawn({
                let (seen, calls) = (Arc::clone(&seen), Arc::clone(&calls));
                move || {
                    while calls.load(Ordering::Relaxed) < 40 * round + 20 {
                        thread::yield_now();
                    }
                    server.drain(patient());
                    server.join();
                    serve_at(address, &seen)
                }
            });
            for n in 0..40u64 {
                let bytes = pattern(if n % 10 == 0 { 9000 } else { 30 }, n as u8);
                let reply = client.call_idempotent(ONCE, &bytes[..], patient()).unwrap();
                assert!(reply.bytes() == bytes);
                calls.fetch_add(1, Ordering::Relaxed);
            }
            // Where replies are fetched, only the client knows that it has them.
            while !restart.is_finished() {
                client.poll();
            }
            server = restart.join().unwrap().0;
        }
        assert_eq!(seen.load(Ordering::Relaxed), 201);
        assert!(client.stats().reconnects >= 4, "{}", client.stats());
    });
}

/// Answers in parts.
const PARTS: Method = Method(101);

/// A server that answers in nine parts, or with an echo, at an address whose server has just begun to drain.
fn serve_parts(addr: SocketAddr) -> ServerHandle {
    let (_, pd, pool) = memory();
    let server = loop {
        match Server::bind(addr) {
            Ok(server) => break server.pool(pd, pool),
            Err(_) => thread::yield_now(),
        }
    };
    let handler = |request: Request<'_>, responder: Responder| match request.method() {
        PARTS => responder.stream((0..9u8).map(|n| Ok([n; 10]))),
        _ => responder.reply(request.body()),
    };
    server.serve(move |_core| handler).unwrap()
}

/// A part whose next nobody asks for keeps a draining server waiting, but not the client that holds it.
#[test]
fn a_part_in_hand_holds_up_no_new_connection() {
    over_all_paths(|| {
        let first = serve_parts(any());
        let address = first.local_addr();
        let mut client = builder().reconnect(quick()).connect(address).unwrap();
        let parts = |client: &mut Client| client.submit_parts(PARTS, (), patient()).unwrap();
        let mut held = parts(&mut client);
        assert_eq!(held.next(&mut client).unwrap().unwrap().bytes(), [0; 10]);
        let forgotten = parts(&mut client);
        // The next one of either is here.
        client.call(ECHO, "x", patient()).unwrap();
        first.drain(Deadline::never());
        let second = serve_parts(address);
        // The first may answer until its core has seen that it is to drain.
        while client.stats().reconnects == 0 {
            let reply = client.call_idempotent(ECHO, "y", patient());
            assert_eq!(reply.unwrap().bytes(), b"y");
        }
        first.join();
        // What is here is still to be had, and no more than that.
        assert_eq!(held.next(&mut client).unwrap().unwrap().bytes(), [1; 10]);
        match held.next(&mut client) {
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        // What is dropped of the old connection does not end the new one, while the next part of this is to be asked for.
        let mut fresh = parts(&mut client);
        client.call(ECHO, "x", patient()).unwrap();
        drop((held, forgotten));
        second.drain(Deadline::never());
        // Its successor is there when the second has begun to drain.
        let _third = serve_parts(address);
        for n in 0..9 {
            for _ in 0..1000 {
                client.poll();
            }
            assert_eq!(fresh.next(&mut client).unwrap().unwrap().bytes(), [n; 10]);
        }
        assert!(fresh.next(&mut client).unwrap().is_none());
        while client.lost().is_none() {
            client.poll();
        }
        second.join();
    });
}

/// What has been counted stays so, also what the connection that has ended had learnt.
#[test]
fn a_new_connection_counts_on() {
    bounded(|| {
        let seen = Arc::default();
        let (server, _holds) = serve_at(any(), &seen);
        let address = server.local_addr();
        let connect = builder().reply(ReplyPath::Hybrid).fetch_tries(0);
        let mut client = connect.reconnect(quick()).connect(address).unwrap();
        // Slower every time, until replies are pushed.
        let mut ms = 1u64;
        while client.stats().switches == 0 {
            client.call(SLOW, ms.to_le_bytes(), patient()).unwrap();
            ms += 3;
            assert!(ms < 200, "{}", client.stats());
        }
        let before = client.stats();
        server.shutdown();
        server.join();
        let (server, _holds) = serve_at(address, &seen);
        client.call_idempotent(ECHO, "x", patient()).unwrap();
        let stats = client.stats();
        assert_eq!((stats.reconnects, stats.switches), (1, before.switches));
        assert!(stats.fetched > before.fetched && stats.fetch_first > 0);
        drop(server);
    });
}

/// The connection ends while a request waits for a slot: it has not been sent, and goes by the new one, whatever has been agreed upon there.
#[test]
fn what_waits_for_a_slot_waits_for_a_new_connection_as_well() {
    const HELD: Method = Method(101);
    let holding = |address: SocketAddr, inline: u32| {
        let server = loop {
            match Server::bind(address) {
                Ok(server) => break server,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        let (_, pd, pool) = memory();
        let server = server.pool(pd, pool).inline_limit(inline).window(16);
        let server = server.serve(|core| {
            let mut held = Vec::new();
            let mut other = handler(core.pool().clone());
            move |request: Request<'_>, responder: Responder| match request.method() {
                HELD => held.push(responder),
                _ => other(request, responder),
            }
        });
        server.unwrap()
    };
    over_all_paths(move || {
        for len in [5, 3000, 200_000] {
            let server = holding(any(), 4096);
            let address = server.local_addr();
            let mut client = builder().reconnect(quick()).connect(address).unwrap();
            let slots = client.slots();
            let held: Vec<_> = (0..slots)
                .map(|_| client.submit(HELD, (), patient()).unwrap())
                .collect();
            let restart = thread::spawn(move || {
                while server.stats().calls < u64::from(slots) {
                    thread::yield_now();
                }
                server.shutdown();
                server.join();
                holding(address, 512)
            });
            let bytes = pattern(len, 4);
            let room = client.pool().alloc(len).unwrap();
            let (reply, room) = client.call_into(ECHO, &bytes[..], room, patient()).unwrap();
            assert_eq!((reply.len(), client.inline_limit()), (len, 512));
            assert!(room[..] == bytes);
            for call in held {
                match call.wait(&mut client) {
                    Err(CallError::MaybeExecuted { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(client.stats().reconnects, 1);
            drop(restart.join().unwrap());
        }
    });
}
