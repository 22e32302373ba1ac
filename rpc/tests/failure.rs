//! Everything that goes wrong ends in the error of the contract, and nothing hangs.

mod common;

use common::alone::{cpu_of_process, is_alone};
use common::*;
use rpc::{
    CallError, Client, Code, Deadline, Lost, Method, NotSentReason, ReplyPath, Request, Responder,
    Server, ServerHandle,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

fn ms(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// Takes until the test says so.
const GATE: Method = Method(100);

/// A server whose gate opens once for each word.
fn gated() -> (ServerHandle, mpsc::Sender<()>) {
    let (open, opened) = mpsc::channel();
    let opened = Arc::new(Mutex::new(opened));
    let server = server().serve(move |core| {
        let opened = Arc::clone(&opened);
        let mut other = handler(core.pool().clone());
        move |request: Request<'_>, responder: Responder| match request.method() {
            GATE => {
                opened.lock().unwrap().recv().unwrap();
                responder.reply("done");
            }
            _ => other(request, responder),
        }
    });
    (server.unwrap(), open)
}

#[test]
fn a_slow_handler_makes_the_call_expire() {
    over_all_paths(|| {
        let (server, open) = gated();
        let mut client = client(&server);
        let start = Instant::now();
        let result = client.call(GATE, (), Deadline::after_ms(20));
        assert!(matches!(result, Err(CallError::Expired)), "{result:?}");
        assert!(start.elapsed() >= Duration::from_millis(20));
        open.send(()).unwrap();
        // The late reply belongs to a slot that nobody waits for; others are not confused by it.
        for n in 0..200u32 {
            let reply = client.call(ECHO, n.to_le_bytes(), patient()).unwrap();
            assert_eq!(reply.bytes(), n.to_le_bytes());
        }
        assert_eq!(client.stats().expired, 1);
        assert!(client.lost().is_none());
    });
}

#[test]
fn large_requests_and_replies_expire_as_well() {
    over_all_paths(|| {
        let (server, open) = gated();
        let mut client = client(&server);
        let pool = client.pool().clone();
        for round in 0..3u8 {
            // Late with its body still leased; late with its reply in pieces.
            let late = client.submit(GATE, (), patient()).unwrap();
            let mut big = pool.alloc(3 << 20).unwrap();
            big.fill(round);
            match client.call(ECHO, big, Deadline::after_ms(50)) {
                Err(CallError::Expired) => {}
                // So busy a machine that it was over before it began.
                Err(CallError::NotSent(failed)) => assert_eq!(failed.buffers().len(), 3 << 20),
                other => panic!("{other:?}"),
            }
            open.send(()).unwrap();
            assert_eq!(late.wait(&mut client).unwrap().bytes(), b"done");
            let bytes = pattern(1 << 20, round);
            assert!(client.call(ECHO, &bytes[..], patient()).unwrap().bytes() == bytes);
        }
    });
}

#[test]
fn a_request_whose_time_is_over_is_not_started() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        // The core is busy; when it gets to the large request, its time is over.
        let slow = client.submit(SLOW, ms(400), patient()).unwrap();
        let big = pool.alloc(1 << 20).unwrap();
        let late = client.submit(PANIC, big, Deadline::after_ms(100)).unwrap();
        slow.wait(&mut client).unwrap();
        match late.wait(&mut client) {
            Err(CallError::Expired) => {}
            // This thread was so late that the answer was there first.
            Err(CallError::Remote { code, .. }) => assert_eq!(code, Code::PANICKED),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        // Its time runs on arrival, so it may have been started in time; then it panicked.
        while server.stats().expired + server.stats().panics == 0 {
            thread::yield_now();
        }
    });
}

#[test]
fn too_many_unanswered_calls_close_the_connection() {
    bounded(|| {
        let server = serve(server());
        let (_, pd, pool) = memory();
        let mut client = Client::builder()
            .pool(pd, pool)
            .max_unanswered(2)
            .connect(server.local_addr())
            .unwrap();
        let other = client.submit(SLOW, ms(1500), patient()).unwrap();
        for n in 0..3 {
            let result = client.call(ECHO, "behind", Deadline::after_ms(100));
            assert!(matches!(result, Err(CallError::Expired)), "{n}: {result:?}");
        }
        assert!(matches!(client.lost(), Some(Lost::Unanswered(3))));
        match other.wait(&mut client) {
            Err(CallError::MaybeExecuted { cause }) => {
                assert!(matches!(*cause, Lost::Unanswered(3)));
            }
            other => panic!("{other:?}"),
        }
        match client.call(ECHO, "never", patient()) {
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(failed.reason(), NotSentReason::Closed(_)));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn dropped_pendings_that_are_never_answered_count_too() {
    bounded(|| {
        let server = serve(server().window(16));
        let mut client = client(&server);
        let slots = client.slots();
        let other = client.submit(SLOW, ms(2000), patient()).unwrap();
        for _ in 1..slots {
            drop(client.submit(ECHO, "x", Deadline::after_ms(100)).unwrap());
        }
        // No slot is left, and those that hold them have been given up on.
        match client.call(ECHO, "y", patient()) {
            Err(CallError::NotSent(failed)) => {
                assert!(
                    matches!(failed.reason(), NotSentReason::Closed(_)),
                    "{failed}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(client.lost(), Some(Lost::Unanswered(_))));
        assert!(other.wait(&mut client).is_err());
    });
}

#[test]
fn a_panic_answers_and_spares_the_connection() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        for big in [false, true] {
            let payload = pattern(if big { 10_000 } else { 10 }, 0);
            match client.call(PANIC, payload, patient()) {
                Err(CallError::Remote { code, .. }) => assert_eq!(code, Code::PANICKED),
                other => panic!("{other:?}"),
            }
            assert_eq!(client.call(ECHO, "on", patient()).unwrap().bytes(), b"on");
        }
        assert_eq!(server.stats().panics, 2);
    });
}

#[test]
fn a_dropped_responder_and_an_unknown_method_answer() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        for (method, want) in [(DROP, Code::UNANSWERED), (Method(777), Code::UNIMPLEMENTED)] {
            let buf = client.pool().alloc_from_slice(b"mine").unwrap();
            match client.call(method, buf, patient()) {
                Err(CallError::Remote {
                    code,
                    message,
                    mut buffers,
                }) => {
                    assert_eq!(code, want);
                    assert!(!message.is_empty());
                    assert_eq!(buffers.take_segments().copy_to_vec(), b"mine");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(client.stats().failed, 2);
        assert_eq!(server.stats().failed, 2);
    });
}

#[test]
fn long_error_messages_are_cut() {
    bounded(|| {
        let (_, pd, pool) = memory();
        let server = Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, pool)
            .serve(|_core| {
                |_: rpc::Request<'_>, responder: rpc::Responder| {
                    responder.fail(Code(4242), "ü".repeat(10_000));
                }
            })
            .unwrap();
        let mut client = client(&server);
        match client.call(ECHO, (), patient()) {
            Err(CallError::Remote { code, message, .. }) => {
                assert_eq!(code, Code(4242));
                assert_eq!(message, "ü".repeat(2048));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn responders_can_be_kept_and_used_in_any_order() {
    bounded(|| {
        let (_, pd, pool) = memory();
        let server = Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, pool)
            .serve(|_core| {
                let mut parked = Vec::new();
                move |request: rpc::Request<'_>, responder: rpc::Responder| {
                    parked.push((request.body().to_vec(), responder));
                    if parked.len() == 30 {
                        // Newest first, each with its own bytes, across connections.
                        while let Some((bytes, responder)) = parked.pop() {
                            responder.reply(bytes);
                        }
                    }
                }
            })
            .unwrap();
        let mut clients = [client(&server), client(&server), client(&server)];
        let mut pending = Vec::new();
        for n in 0..30u8 {
            let len = if n % 3 == 0 { 9000 } else { 9 };
            let bytes = pattern(len, n);
            let at = usize::from(n) % 3;
            pending.push((
                at,
                bytes.clone(),
                clients[at].submit(ECHO, bytes, patient()).unwrap(),
            ));
        }
        // Every request has to get through while none is answered: each client sees to its own.
        for client in &mut clients {
            client.poll();
        }
        for (at, bytes, p) in pending {
            assert!(p.wait(&mut clients[at]).unwrap().bytes() == bytes);
        }
    });
}

#[test]
fn a_kept_responder_of_a_closed_connection_does_no_harm() {
    bounded(|| {
        let (_, pd, pool) = memory();
        let server = Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, pool)
            .serve(|_core| {
                let mut parked = Vec::new();
                move |request: rpc::Request<'_>, responder: rpc::Responder| {
                    if request.body() == b"park" {
                        parked.push(responder);
                    } else {
                        for old in parked.drain(..) {
                            old.reply("too late");
                        }
                        responder.reply("ok");
                    }
                }
            })
            .unwrap();
        let mut first = client(&server);
        let p = first.submit(ECHO, "park", patient()).unwrap();
        while server.stats().calls == 0 {
            assert!(!p.is_ready(&mut first));
            thread::yield_now();
        }
        drop(first);
        while server.stats().connections > 0 {
            thread::yield_now();
        }
        let mut second = client(&server);
        assert_eq!(second.call(ECHO, "go", patient()).unwrap().bytes(), b"ok");
        assert!(p.wait(&mut second).is_err());
    });
}

#[test]
fn shutdown_ends_pending_calls() {
    bounded(|| {
        let server = serve(server().cores(2));
        let mut idle = client(&server);
        let mut client = client(&server);
        let a = client.submit(SLOW, ms(50), patient()).unwrap();
        let b = client
            .submit(ECHO, pattern(1 << 20, 0), Deadline::never())
            .unwrap();
        let stopper = thread::spawn(move || {
            server.shutdown();
            server.join();
        });
        for pending in [a, b] {
            match pending.wait(&mut client) {
                Ok(_) | Err(CallError::MaybeExecuted { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        stopper.join().unwrap();
        // An idle client notices at its next call.
        match idle.call(ECHO, "x", Deadline::never()) {
            Err(CallError::MaybeExecuted { .. } | CallError::NotSent(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(idle.lost().is_some());
        assert!(matches!(
            idle.call(ECHO, "x", Deadline::never()),
            Err(CallError::NotSent(_))
        ));
    });
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    over_all_paths(|| {
        let server = serve(server());
        for round in 0..20u8 {
            let mut client = client(&server);
            let mut pending = Vec::new();
            for n in 0..20u8 {
                let len = if n % 4 == 0 { 300_000 } else { 100 };
                pending.push(client.submit(ECHO, pattern(len, n), patient()).unwrap());
            }
            for _ in 0..round {
                client.poll();
            }
            if round % 2 == 0 {
                drop(pending);
                drop(client);
            } else {
                drop(client);
                drop(pending);
            }
        }
        let mut client = client(&server);
        let bytes = pattern(500_000, 1);
        assert!(client.call(ECHO, &bytes[..], patient()).unwrap().bytes() == bytes);
        while server.stats().connections > 1 {
            thread::yield_now();
        }
        assert_eq!(server.stats().rnr, 0);
        println!("{}", server.stats());
    });
}

#[test]
fn no_memory_for_a_request_is_overload() {
    over_all_paths(|| {
        let (context, ..) = memory();
        let pd = context.alloc_pd().unwrap();
        let small = mempool::Pool::builder(&pd)
            .budget(mempool::Budget::user(1 << 20))
            .build()
            .unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().pool(&pd, &small));
        let mut client = client(&server);
        let big = client.pool().alloc(8 << 20).unwrap();
        match client.call(SINK, big, patient()) {
            Err(CallError::Overloaded { mut buffers, .. }) => {
                assert_eq!(buffers.take_segments().len(), 8 << 20);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        assert_eq!(server.stats().overloaded, 1);
    });
}

/// Memory for a body is taken when it is its turn to come in, so that more can be asked for than there is room for at once.
#[test]
fn long_requests_wait_for_their_turn_without_memory() {
    over_all_paths(|| {
        let (context, ..) = memory();
        let pd = context.alloc_pd().unwrap();
        let small = mempool::Pool::builder(&pd)
            .budget(mempool::Budget::user(5 << 20))
            .build()
            .unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().pool(&pd, &small));
        let mut client = client(&server);
        let long = |client: &Client| client.pool().alloc(1 << 20).unwrap();
        let calls: Vec<_> = (0..12)
            .map(|_| {
                let body = long(&client);
                client.submit(SINK, body, patient()).unwrap()
            })
            .collect();
        for call in calls {
            call.wait(&mut client).unwrap();
        }
        assert_eq!(server.stats().overloaded, 0);
    });
}

#[test]
fn no_memory_for_a_reply_is_said() {
    bounded(|| {
        let server = serve(server());
        let (context, ..) = memory();
        let pd = context.alloc_pd().unwrap();
        let small = mempool::Pool::builder(&pd)
            .budget(mempool::Budget::user(1 << 20))
            .build()
            .unwrap();
        let mut client = Client::builder()
            .pool(&pd, &small)
            .connect(server.local_addr())
            .unwrap();
        match client.call(SOURCE, (8u64 << 20).to_le_bytes(), patient()) {
            Err(CallError::NoMemory { len, .. }) => assert_eq!(len, 8 << 20),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
    });
}

#[test]
fn many_clients_on_two_cores() {
    bounded(|| {
        const CLIENTS: usize = 12;
        let server = Arc::new(serve(server().cores(2)));
        let start = Arc::new(Barrier::new(CLIENTS));
        let threads: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (server, start) = (Arc::clone(&server), Arc::clone(&start));
                thread::spawn(move || {
                    let mut client = client(&server);
                    start.wait();
                    for call in 0..200 {
                        let len = if call % 50 == 0 { 200_000 } else { 64 };
                        let bytes = pattern(len, n as u8);
                        let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
                        assert!(reply.bytes() == bytes);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(server.stats().calls, CLIENTS as u64 * 200);
    });
}

#[test]
fn small_calls_are_served_between_slices_of_large_ones() {
    bounded(|| {
        let server = Arc::new(serve(server().read_slice(64 << 10)));
        let stop = Arc::new(AtomicBool::new(false));
        let (running, started) = mpsc::channel();
        let bulk = {
            let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
            thread::spawn(move || {
                let mut client = client(&server);
                let bytes = client.pool().alloc_zeroed(32 << 20).unwrap().freeze();
                while !stop.load(Ordering::Relaxed) {
                    client.call(SUM, bytes.clone(), patient()).unwrap();
                    let _ = running.send(());
                }
            })
        };
        started.recv().unwrap();
        let mut small = client(&server);
        // Far more small calls than large ones get through: they are not queued behind them.
        let before = server.stats().reads;
        for _ in 0..500 {
            small.call(SINK, "x", patient()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        bulk.join().unwrap();
        assert!(server.stats().reads > before);
        println!("{}", small.stats());
    });
}

#[test]
fn idle_ends_use_no_cpu() {
    if !is_alone("idle_ends_use_no_cpu") {
        return;
    }
    // Who fetches looks now and then.
    let sleeps = |paths: &&Paths| !matches!(paths.1, ReplyPath::Fetch | ReplyPath::Hybrid);
    let paths: Vec<_> = PATHS.iter().filter(sleeps).copied().collect();
    over(&paths, hang(), || {
        let server = serve(server().cores(2));
        let (mut client, mut other) = (client(&server), client(&server));
        for _ in 0..2 {
            client.call(ECHO, "x", patient()).unwrap();
            other.call(ECHO, "x", patient()).unwrap();
        }
        let (before, start) = (cpu_of_process(), Instant::now());
        // The client waits, and the server's other core has nothing to do but for a connection that is idle.
        client.call(SLOW, ms(500), patient()).unwrap();
        let (used, took) = (cpu_of_process() - before, start.elapsed());
        assert!(used < took / 10, "{used:?} of CPU in {took:?}");
    });
}
