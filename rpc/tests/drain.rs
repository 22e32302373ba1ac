//! A server that drains answers what it has, takes nothing new, and is gone at its deadline.

mod common;

use common::*;
use mempool::{Budget, BudgetKind, Pool};
use rpc::{
    CallError, Client, Code, ConnectError, Core, Deadline, Lost, Method, NotSentReason, Pending,
    ReplyPath, Request, Responder, Server, ServerHandle,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Is answered when the server begins to drain.
const LATER: Method = Method(100);
/// Is never answered.
const NEVER: Method = Method(101);
/// Says that it runs, and waits until it may go on.
const GATE: Method = Method(102);

/// What a test holds of the handler's gate.
struct Gate {
    entered: Receiver<()>,
    open: Sender<()>,
}

/// What it will be answered with, and by which.
type Deferred = (Vec<u8>, Responder);

fn deferring() -> (ServerHandle, Gate) {
    let (enter, entered) = channel();
    let (open, opened) = channel();
    let opened = Arc::new(Mutex::new(opened));
    let (_, pd, pool) = memory();
    let server = Server::bind("127.0.0.1:0").unwrap().pool(pd, pool);
    let server = server
        .serve(move |core: &Core| {
            let later: Rc<RefCell<Vec<Deferred>>> = Rc::default();
            let deferred = Rc::clone(&later);
            core.on_drain(move || {
                for (bytes, responder) in deferred.borrow_mut().drain(..) {
                    responder.reply(bytes);
                }
            });
            let (enter, opened) = (enter.clone(), Arc::clone(&opened));
            let mut other = handler(core.pool().clone());
            let mut never = Vec::new();
            move |request: Request<'_>, responder: Responder| match request.method() {
                LATER => {
                    let bytes = request.body().to_vec();
                    later.borrow_mut().push((bytes, responder));
                }
                NEVER => never.push(responder),
                GATE => {
                    enter.send(()).unwrap();
                    opened.lock().unwrap().recv().unwrap();
                    responder.reply("open");
                }
                _ => other(request, responder),
            }
        })
        .unwrap();
    (server, Gate { entered, open })
}

fn reason(result: Result<rpc::Reply, CallError>) -> NotSentReason {
    match result {
        Err(CallError::NotSent(failed)) => failed.into_parts().0,
        other => panic!("{other:?}"),
    }
}

fn is_stopping(result: Result<rpc::Reply, CallError>) {
    let reason = reason(result);
    assert!(matches!(reason, NotSentReason::Stopping), "{reason}");
}

#[test]
fn what_is_in_flight_is_answered_and_nothing_new_is_taken() {
    over_all_paths(|| {
        let (server, gate) = deferring();
        let mut client = client(&server);
        let pool = client.pool().clone();
        let mut out: Vec<(Pending, Vec<u8>)> = Vec::new();
        // Deferred ones with short and long answers, and one whose handler is running when draining begins, behind which others wait.
        for len in [10, 5000, 300_000] {
            let bytes = pattern(len, 1);
            let call = client.submit(LATER, &bytes[..], patient()).unwrap();
            out.push((call, bytes));
        }
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        while server.stats().calls < 4 {
            client.poll();
        }
        let slow = client.submit(GATE, (), patient()).unwrap();
        out.push((slow, b"open".to_vec()));
        gate.entered.recv().unwrap();
        // Has arrived, or has not: a request that comes too late is as one that was not sent.
        let between = client.submit(ECHO, "between", patient()).unwrap();
        server.drain(patient());
        gate.open.send(()).unwrap();
        match between.wait(&mut client) {
            Ok(reply) => assert_eq!(reply.bytes(), b"between"),
            other => is_stopping(other),
        }
        for (call, want) in out {
            assert!(call.wait(&mut client).unwrap().bytes() == want);
        }
        // Segments and destination come back.
        let (buf, into) = (
            pool.alloc_from_slice(&[7; 9000]).unwrap(),
            pool.alloc(3).unwrap(),
        );
        match client.call_into(ECHO, buf, into, patient()) {
            Err(CallError::NotSent(failed)) => {
                let (reason, segments, into) = failed.into_parts();
                assert!(matches!(reason, NotSentReason::Stopping), "{reason}");
                assert_eq!(segments.copy_to_vec(), [7; 9000]);
                assert_eq!(into.unwrap().len(), 3);
            }
            other => panic!("{other:?}"),
        }
        is_stopping(client.call(ECHO, "small", patient()));
        // It goes when it has everything.
        while client.lost().is_none() {
            client.poll();
        }
        assert!(matches!(client.lost(), Some(Lost::Drained)));
        is_stopping(client.call(ECHO, "after", patient()));
        let address = server.local_addr();
        let stats = server.stats();
        server.join();
        assert_eq!((stats.broken, stats.panics, stats.rnr), (0, 0, 0));
        match builder().connect(address) {
            Err(
                ConnectError::Tcp { .. }
                | ConnectError::Refused { .. }
                | ConnectError::Closed
                | ConnectError::Control(_),
            ) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// A client that is busy elsewhere does not notice. Of pushed replies the server knows that they have arrived, and does not wait for it; what the
/// client sends then never happens, and it is told so.
#[test]
fn idle_clients_hold_up_nobody_and_lose_nothing() {
    over_all_paths(|| {
        if matches!(paths().1, ReplyPath::Fetch | ReplyPath::Hybrid) {
            return;
        }
        for len in [5, 100_000] {
            let (server, _gate) = deferring();
            let mut client = client(&server);
            let pool = client.pool().clone();
            for n in 0..7u8 {
                let bytes = pattern(usize::from(n) * 500, n);
                assert!(client.call(ECHO, &bytes[..], patient()).unwrap().bytes() == bytes);
            }
            let calls = server.stats().calls;
            server.drain(Deadline::never());
            let stats = server.stats();
            server.join();
            assert_eq!((stats.calls, stats.broken), (calls, 0));
            // It has not looked since.
            assert!(client.lost().is_none());
            let bytes = pattern(len, 3);
            let buf = pool.alloc_from_slice(&bytes).unwrap();
            let into = pool.alloc(17).unwrap();
            let first = client.submit_into(ECHO, buf, into, patient());
            let second = client.submit(ECHO, "plain", patient());
            match first.and_then(|call| call.wait(&mut client)) {
                Err(CallError::NotSent(failed)) => {
                    let (reason, segments, into) = failed.into_parts();
                    assert!(matches!(reason, NotSentReason::Stopping), "{reason}");
                    assert!(segments.copy_to_vec() == bytes);
                    assert_eq!(into.unwrap().len(), 17);
                }
                other => panic!("{other:?}"),
            }
            is_stopping(second.and_then(|call| call.wait(&mut client)));
            assert!(matches!(client.lost(), Some(Lost::Drained)));
        }
    });
}

/// What was answered was executed, also where the client looks only when something else has failed since: then the failure comes first.
#[test]
fn an_answer_that_nobody_has_looked_at_is_not_lost() {
    over_all_paths(|| {
        if matches!(paths().1, ReplyPath::Fetch | ReplyPath::Hybrid) {
            return;
        }
        for len in [5, 1000, 100_000] {
            let (server, _gate) = deferring();
            let mut client = client(&server);
            let answered = client.submit(ECHO, "answered", patient()).unwrap();
            while server.stats().calls == 0 {
                thread::yield_now();
            }
            server.drain(Deadline::never());
            server.join();
            // It has not looked since, and now sends something that fails at once.
            let late = client.submit(ECHO, &pattern(len, 1)[..], patient());
            let answered = answered.wait(&mut client).unwrap();
            assert_eq!(answered.bytes(), b"answered");
            is_stopping(late.and_then(|call| call.wait(&mut client)));
        }
    });
}

#[test]
fn the_deadline_holds() {
    over_all_paths(|| {
        let (server, _gate) = deferring();
        let mut client = client(&server);
        let never = client.submit(NEVER, "x", Deadline::never()).unwrap();
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        let begin = Instant::now();
        let waiter = thread::spawn(move || {
            server.drain(Deadline::after_ms(100));
            server.join();
            begin.elapsed()
        });
        match never.wait(&mut client) {
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(waiter.join().unwrap() >= Duration::from_millis(100));
    });
}

/// Bodies that come in when the time is over are for nobody: of the handlers that would take their time with them, one at most may have been about to run.
#[test]
fn the_deadline_holds_although_there_is_always_something_to_do() {
    over_all_paths(|| {
        let (server, gate) = deferring();
        let mut client = client(&server);
        let mut calls = vec![client.submit(GATE, (), patient()).unwrap()];
        gate.entered.recv().unwrap();
        // They are taken together with the request behind them: when it is told to drain, all of them are there, but for their bodies.
        for n in 0..12 {
            let bytes = pattern(20_000, n);
            calls.push(client.submit(ECHO, bytes, patient()).unwrap());
        }
        calls.push(client.submit(GATE, (), patient()).unwrap());
        gate.open.send(()).unwrap();
        gate.entered.recv().unwrap();
        server.drain(Deadline::after(Duration::ZERO));
        gate.open.send(()).unwrap();
        while server.stats().connections > 0 {
            thread::yield_now();
        }
        let beside = server.stats().calls - 2;
        // A device that works late has brought several in meanwhile.
        let at_once =
            memory().0.device_name() == "soft0" && client_memory().0.device_name() == "soft0";
        if at_once && std::env::var_os("VERBATIM_ASYNC").is_none() {
            assert!(beside <= 3, "{beside} of 12");
        }
        server.join();
        for call in calls {
            match call.wait(&mut client) {
                Ok(_) | Err(CallError::MaybeExecuted { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_drain_can_be_cut_short() {
    bounded(|| {
        let (server, _gate) = deferring();
        let mut client = client(&server);
        let never = client.submit(NEVER, "x", Deadline::never()).unwrap();
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        server.drain(Deadline::never());
        // Until the core has noticed, it is as before.
        is_stopping(loop {
            match client.call(ECHO, "y", patient()) {
                Ok(_) => {}
                other => break other,
            }
        });
        assert!(client.lost().is_none(), "a call is out");
        // Told twice, it does not start again.
        server.shutdown();
        server.drain(Deadline::never());
        server.join();
        match never.wait(&mut client) {
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// What a client has not fetched is kept for it.
#[test]
fn replies_are_kept_until_they_have_been_read() {
    over_all_paths(|| {
        let (server, _gate) = deferring();
        let mut client = client(&server);
        let pool = client.pool().clone();
        let mut calls = Vec::new();
        for len in [10u64, 6000, 1 << 20] {
            let into = pool.alloc(len as usize).unwrap();
            let ask = len.to_le_bytes();
            calls.push(client.submit_into(SOURCE, ask, into, patient()).unwrap());
        }
        while server.stats().calls < 3 {
            thread::yield_now();
        }
        server.drain(patient());
        for call in calls {
            let mut reply = call.wait(&mut client).unwrap();
            let into = reply.take_destination().unwrap();
            assert!(into[..] == pattern(into.len(), 1));
        }
        while client.lost().is_none() {
            client.poll();
        }
        server.join();
    });
}

#[test]
fn a_batch_is_refused_whole() {
    bounded(|| {
        let (server, gate) = deferring();
        let mut client = client(&server);
        let gated = client.submit(GATE, (), patient()).unwrap();
        gate.entered.recv().unwrap();
        server.drain(patient());
        let mut batch = client.batch();
        for n in 0..5u8 {
            batch.add(ECHO, [n; 300], patient()).unwrap();
        }
        let calls = batch.post();
        gate.open.send(()).unwrap();
        for call in calls {
            is_stopping(call.wait(&mut client));
        }
        assert_eq!(gated.wait(&mut client).unwrap().bytes(), b"open");
        match client.batch().add(ECHO, "x", patient()) {
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(failed.reason(), NotSentReason::Stopping));
            }
            other => panic!("{other:?}"),
        }
        let stats = server.stats();
        server.join();
        // Those that came too late even for that were not looked at.
        assert!(stats.turned_away <= 5);
        assert_eq!((stats.calls, stats.overloaded), (1, 0));
    });
}

#[test]
fn a_panic_while_draining_is_caught() {
    bounded(|| {
        let (_, pd, pool) = memory();
        let server = Server::bind("127.0.0.1:0").unwrap().pool(pd, pool);
        let server = server
            .serve(|core: &Core| {
                let held: Rc<RefCell<Vec<Responder>>> = Rc::default();
                let theirs = Rc::clone(&held);
                core.on_drain(move || {
                    theirs.borrow_mut().clear();
                    panic!("on purpose");
                });
                move |_: Request<'_>, responder: Responder| held.borrow_mut().push(responder)
            })
            .unwrap();
        let mut client = client(&server);
        let call = client.submit(ECHO, "x", patient()).unwrap();
        while server.stats().calls < 1 {
            thread::yield_now();
        }
        server.drain(patient());
        match call.wait(&mut client) {
            Err(CallError::Remote { code, .. }) => assert_eq!(code, Code::UNANSWERED),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.stats().panics, 1);
        server.join();
    });
}

/// Pools of their own, whose bytes are counted.
#[test]
fn nothing_is_left() {
    over_all_paths(|| {
        let (context, ..) = memory();
        let own = || {
            let pd = context.alloc_pd().unwrap();
            let pool = Pool::builder(&pd).budget(Budget::user(1 << 30)).build();
            (pd, pool.unwrap())
        };
        let ((server_pd, server_pool), (pd, pool)) = (own(), own());
        for answers in [true, false] {
            let deadline = if answers {
                patient()
            } else {
                Deadline::after_ms(50)
            };
            let server = Server::bind("127.0.0.1:0").unwrap();
            let server = server.pool(&server_pd, &server_pool);
            let server = server
                .serve(move |core: &Core| {
                    let held: Rc<RefCell<Vec<Responder>>> = Rc::default();
                    let theirs = Rc::clone(&held);
                    let pool = core.pool().clone();
                    core.on_drain(move || {
                        for responder in theirs.borrow_mut().drain(..) {
                            if answers {
                                responder.reply(pool.alloc_zeroed(100_000).unwrap());
                            } else {
                                std::mem::forget(responder);
                            }
                        }
                    });
                    move |_: Request<'_>, responder: Responder| held.borrow_mut().push(responder)
                })
                .unwrap();
            let (request, reply) = paths();
            let connect = Client::builder().pool(&pd, &pool);
            let connect = connect
                .request(request)
                .reply(reply)
                .connect_timeout(hang());
            let mut client: Client = connect.connect(server.local_addr()).unwrap();
            let mut calls = Vec::new();
            for len in [10, 5000, 200_000] {
                let buf = pool.alloc_zeroed(len).unwrap();
                calls.push(client.submit(ECHO, buf, Deadline::never()).unwrap());
            }
            while server.stats().calls < 3 {
                client.poll();
            }
            server.drain(deadline);
            for call in calls {
                match call.wait(&mut client) {
                    Ok(reply) => assert!(answers && reply.len() == 100_000),
                    Err(CallError::MaybeExecuted { .. }) => assert!(!answers),
                    other => panic!("{other:?}"),
                }
            }
            while client.lost().is_none() {
                client.poll();
            }
            server.join();
            drop(client);
            for pool in [&server_pool, &pool] {
                let stats = pool.stats();
                for kind in BudgetKind::ALL {
                    let budget = stats.budget(kind);
                    assert_eq!(budget.in_use - budget.stocked, 0, "{kind:?} {answers}");
                }
            }
        }
    });
}
