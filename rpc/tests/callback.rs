//! Servers whose handlers call other servers, also back to where a request comes from, and go on serving meanwhile.

mod common;

use common::*;
use rpc::{CallError, Client, Clients, Code, Core, Deadline, Method, Pending, Responder};
use rpc::{Request, ServerHandle};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// As the method says, but by asking the other server.
const ASK: u16 = 100;
/// The same, for the time of [`haste`] at most: from here on.
const HASTY: u16 = 1000;
/// Answered at once.
const HERE: Method = Method(99);

/// Soon, in milliseconds: but not before a request is on its way.
fn haste() -> u64 {
    30 * u64::from(slowness())
}

/// What a server does for each request, with a client of another one, which it makes when it is needed first: for methods from [`ASK`] on, it asks there, for as
/// long at most as the caller waits.
fn ask_there<F: Fn() -> Client>(
    core: &Core,
    connect: F,
) -> impl FnMut(Request<'_>, Responder) + use<F> {
    let client = Rc::new(RefCell::new(None));
    let calls = Rc::new(RefCell::new(Vec::<(Pending, Responder)>::new()));
    let pending = Rc::clone(&calls);
    core.drive(&client, move |client: &mut Option<Client>| {
        for (call, out) in pending.take() {
            let client = client.as_mut().expect("it is there by now");
            match call.try_take(client) {
                Ok(Ok(reply)) => out.reply(reply.bytes()),
                Ok(Err(CallError::Remote { code, message, .. })) => out.fail(code, message),
                Ok(Err(error)) => out.fail(Code(77), format!("{error:?}")),
                Err(call) => pending.borrow_mut().push((call, out)),
            }
        }
    });
    move |request: Request<'_>, out: Responder| {
        let method = request.method().0;
        if method < ASK {
            return out.reply("here");
        }
        let mut client = client.borrow_mut();
        let client = client.get_or_insert_with(&connect);
        // From now on: connecting may have taken a while.
        let (there, deadline) = match method {
            HASTY.. => (method - HASTY, Deadline::after_ms(haste())),
            _ => (method - ASK, request.deadline()),
        };
        if client.room() == 0 {
            return out.fail(Code::OVERLOADED, "no room there");
        }
        match client.submit(Method(there), request.body(), deadline) {
            Ok(call) => calls.borrow_mut().push((call, out)),
            Err(error) => out.fail(Code(78), format!("{error:?}")),
        }
    }
}

/// A server that asks another one.
fn front(address: SocketAddr) -> ServerHandle {
    let connect = connector();
    let serve = server().serve(move |core| {
        let connect = connect.clone();
        ask_there(core, move || connect(address))
    });
    serve.expect("serve")
}

/// Makes clients on other threads, with the paths of this one.
fn connector() -> impl Fn(SocketAddr) -> Client + Clone + Send + Sync + 'static {
    let (request, reply) = paths();
    move |address| {
        let (_, pd, pool) = client_memory();
        let builder = Client::builder().pool(pd, pool).connect_timeout(hang());
        let builder = builder.request(request).reply(reply);
        builder.connect(address).expect("the other server")
    }
}

/// A server that answers nothing.
fn parked() -> ServerHandle {
    let serve = server().serve(|_core| {
        let mut parked = Vec::new();
        move |_: Request<'_>, out: Responder| parked.push(out)
    });
    serve.expect("serve")
}

fn ask(method: Method) -> Method {
    Method(ASK + method.0)
}

fn told(result: Result<rpc::Reply, CallError>) -> (Code, String) {
    match result {
        Err(CallError::Remote { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

/// The client serves as well, and is asked by the server that it calls.
#[test]
fn handlers_call_back() {
    over_all_paths(|| {
        let own = serve(server());
        let front = front(own.local_addr());
        let mut client = client(&front);
        // One at a time, so that the server sleeps in between; long ones; and failures.
        for len in [0, 1, 300, 4000, 5000, 300_000] {
            let bytes = pattern(len, 7);
            let reply = client.call(ask(ECHO), &bytes[..], patient()).unwrap();
            assert!(reply.bytes() == bytes);
        }
        let reply = client.call(ask(SLOW), 5u64.to_le_bytes(), patient());
        assert_eq!(reply.unwrap().bytes(), b"done");
        assert_eq!(
            told(client.call(ask(PANIC), "", patient())).0,
            Code::PANICKED
        );
        // All slots, over and over, some of them answered at once. More than there is room for is said to be so.
        let all: u32 = if slowness() > 1 { 600 } else { 3000 };
        let (mut here, mut there, mut refused) = (0, 0, 0);
        let mut calls = std::collections::VecDeque::new();
        for n in 0..all {
            let method = if n % 3 == 0 { HERE } else { ask(ECHO) };
            let call = client.submit(method, n.to_le_bytes(), patient()).unwrap();
            calls.push_back((n, call));
            if calls.len() < 48 && n < all - 1 {
                continue;
            }
            while let Some((n, call)) = calls.pop_front() {
                match call.wait(&mut client) {
                    Ok(reply) if n % 3 == 0 => here += u32::from(reply.bytes() == b"here"),
                    Ok(reply) => there += u32::from(reply.bytes() == n.to_le_bytes()),
                    Err(CallError::Overloaded { .. }) => refused += 1,
                    Err(CallError::Remote { code, .. }) if code == Code::OVERLOADED => refused += 1,
                    other => panic!("{other:?}"),
                }
                if calls.len() < 24 && n < all - 100 {
                    break;
                }
            }
        }
        assert_eq!((here, there + refused), (all / 3, all - all / 3));
        assert!(there > 0);
        assert_eq!((front.stats().panics, own.stats().rnr), (0, 0));
    });
}

/// Each asks the other for what it cannot do itself, at the same time; nobody waits in a handler.
#[test]
fn two_servers_ask_each_other() {
    over_all_paths(|| {
        let second_at = Arc::new(OnceLock::new());
        let (connect, address) = (connector(), Arc::clone(&second_at));
        let first = server().serve(move |core| {
            let (connect, address) = (connect.clone(), Arc::clone(&address));
            ask_there(core, move || {
                connect(*address.get().expect("it is there by now"))
            })
        });
        let first = first.unwrap();
        let second = front(first.local_addr());
        second_at.set(second.local_addr()).unwrap();
        // One after the other: connecting is the one thing for which a core waits here, and they would for each other.
        for server in [&first, &second] {
            client(server).call(ask(HERE), "", patient()).unwrap();
        }
        // Where a reply is found late by who fetches it, it is late for the one before as well.
        let rounds = if slowness() > 1 { 8 } else { 24 };
        thread::scope(|scope| {
            let chosen = paths();
            for server in [&first, &second] {
                scope.spawn(move || {
                    choose(chosen);
                    let mut client = client(server);
                    for n in 0..rounds {
                        // There and back, and there again.
                        let times = n % 4;
                        let method = Method(HERE.0 + ASK * times);
                        let calls: Vec<_> = (0..8)
                            .map(|_| client.submit(method, (), patient()).unwrap())
                            .collect();
                        for call in calls {
                            assert_eq!(call.wait(&mut client).unwrap().bytes(), b"here");
                        }
                    }
                });
            }
        });
        assert_eq!((first.stats().panics, second.stats().panics), (0, 0));
        assert_eq!((first.stats().rnr, second.stats().rnr), (0, 0));
    });
}

#[test]
fn time_that_is_over_and_servers_that_go_are_noticed() {
    over_all_paths(|| {
        let own = parked();
        let front = front(own.local_addr());
        let mut client = client(&front);
        // The front sleeps, and has nothing to wake it but the time.
        for _ in 0..2 {
            let result = client.call(Method(HASTY + ECHO.0), "x", patient());
            assert_eq!(told(result), (Code(77), "Expired".to_owned()));
        }
        // The caller's own time can be over a moment before.
        let result = client.call(ask(ECHO), "x", Deadline::after_ms(haste()));
        match result {
            Err(CallError::Expired) => {}
            Err(CallError::Remote { code, .. }) => assert_eq!(code, Code(77)),
            other => panic!("{other:?}"),
        }
        let before = own.stats().calls;
        let pending = client.submit(ask(ECHO), "x", patient()).unwrap();
        while own.stats().calls == before {
            thread::yield_now();
        }
        drop(own);
        let (code, why) = told(pending.wait(&mut client));
        assert!(
            code == Code(77) && why.contains("MaybeExecuted"),
            "{code}: {why}"
        );
        let (code, why) = told(client.call(ask(ECHO), "x", patient()));
        assert!(
            code == Code::OVERLOADED || code == Code(78),
            "{code}: {why}"
        );
        assert_eq!(client.call(HERE, "", patient()).unwrap().bytes(), b"here");
    });
}

fn action_counted<C: Clients>(core: &Core, clients: C, count: &Arc<AtomicU64>) -> Rc<RefCell<C>> {
    let (clients, count) = (Rc::new(RefCell::new(clients)), Arc::clone(count));
    core.drive(&clients, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    clients
}

/// A core that looks after clients of which nothing comes sleeps, also when nobody waits any more for what was asked, and it is too late for an answer.
#[test]
fn quiet_clients_cost_nothing() {
    over(&ALIKE, hang(), || {
        let own = parked();
        let (address, count) = (own.local_addr(), Arc::new(AtomicU64::new(0)));
        let (counted, connect) = (Arc::clone(&count), connector());
        let front = server().serve(move |core| {
            let clients = vec![connect(address), connect(address)];
            let clients = action_counted(core, clients, &counted);
            move |_: Request<'_>, out: Responder| {
                let mut alive = 0u64;
                for client in clients.borrow_mut().iter_mut() {
                    alive += u64::from(client.lost().is_none());
                    drop(client.submit(ECHO, "", Deadline::after_ms(haste())));
                }
                out.reply(alive.to_le_bytes());
            }
        });
        let front = front.unwrap();
        let mut client = client(&front);
        let reply = client.call(HERE, "", patient()).unwrap();
        assert_eq!(reply.bytes(), 2u64.to_le_bytes());
        drop(client);
        // The action runs before and after each sleep: a core that is awake for a tenth of a second runs it hundreds of times.
        let quiet = (0..1000).any(|_| {
            let before = count.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
            count.load(Ordering::Relaxed) <= before + 4
        });
        assert!(quiet, "it never sleeps");
        drop(front);
    });
}

#[test]
fn a_panic_in_the_action_is_the_applications() {
    bounded(|| {
        let own = serve(server());
        let address = own.local_addr();
        let front = server().serve(move |core| {
            let client = Rc::new(RefCell::new(Client::connect(address).unwrap()));
            let calls = Rc::new(RefCell::new(Vec::<(Pending, Responder)>::new()));
            let pending = Rc::clone(&calls);
            core.drive(&client, move |client| {
                if pending
                    .borrow()
                    .iter()
                    .all(|(call, _)| call.is_ready(client))
                {
                    let ready = pending.take();
                    assert!(ready.is_empty(), "an action's panic, on purpose");
                }
            });
            move |request: Request<'_>, out: Responder| {
                let call = client.borrow_mut().submit(ECHO, request.body(), patient());
                calls.borrow_mut().push((call.unwrap(), out));
            }
        });
        let front = front.unwrap();
        let mut client = client(&front);
        for n in 1..4 {
            let (code, _) = told(client.call(HERE, "x", patient()));
            assert!(code == Code::PANICKED || code == Code::UNANSWERED, "{code}");
            assert_eq!(front.stats().panics, n);
        }
    });
}

/// What waits for another server is answered before a server that drains is gone.
#[test]
fn draining_waits_for_the_other_server() {
    bounded(|| {
        let own = serve(server());
        let front = front(own.local_addr());
        let mut client = client(&front);
        let call = client.submit(ask(SLOW), 200u64.to_le_bytes(), patient());
        while front.connections().first().is_none_or(|c| c.calls == 0) {
            thread::yield_now();
        }
        front.drain(patient());
        assert_eq!(call.unwrap().wait(&mut client).unwrap().bytes(), b"done");
        front.join();
    });
}
