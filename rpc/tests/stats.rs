//! What a server tells of its cores and connections.

mod common;

use common::*;
use mempool::{Budget, BudgetKind, Kind, Pool};
use rpc::{Deadline, Method, Request, Responder, Server, ServerHandle};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Says that it runs, and waits until it may go on.
const GATE: Method = Method(100);
/// Is answered when the other comes.
const DEFER: Method = Method(101);
const LET_GO: Method = Method(102);

/// Waits until so many connections are open.
fn settle(server: &ServerHandle, connections: u64) {
    let begin = Instant::now();
    while server.stats().connections != connections {
        assert!(begin.elapsed() < hang(), "{}", server.stats());
        thread::yield_now();
    }
}

#[test]
fn cores_and_connections_count_for_themselves() {
    over_all_paths(|| {
        let server = serve(server().cores(2));
        // By turns: the first and the third are on the first core.
        let mut clients = [client(&server), client(&server), client(&server)];
        for (client, calls) in clients.iter_mut().zip([3, 5, 7]) {
            for _ in 0..calls {
                client.call(ECHO, [1; 10], patient()).unwrap();
            }
        }
        clients[1].call(Method(9999), "", patient()).unwrap_err();
        let large = pattern(100_000, 1);
        clients[2].call(SUM, &large, patient()).unwrap();

        let list = server.connections();
        let told = |of: fn(&rpc::ConnectionStats) -> u64| list.iter().map(of).collect::<Vec<_>>();
        assert_eq!(told(|c| c.core as u64), [0, 0, 1]);
        assert_eq!(told(|c| c.calls), [3, 8, 6]);
        assert_eq!(told(|c| c.failed), [0, 0, 1]);
        assert_eq!(told(|c| c.bytes_received), [30, 100_070, 50]);
        assert_eq!(told(|c| c.bytes_sent), [30, 86, 50]);
        assert_eq!(told(|c| c.reads.min(1)), [0, 1, 0]);
        for connection in &list {
            assert_eq!((connection.request_path, connection.reply_path), paths());
            assert!(connection.peer.ip().is_loopback() && connection.peer.port() != 0);
            assert!(connection.age < hang());
        }
        let mut ports: Vec<_> = list.iter().map(|c| c.peer.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 3, "each its own client");

        let cores = server.core_stats();
        let of = |at: usize| (cores[at].connections, cores[at].calls, cores[at].failed);
        assert_eq!((cores.len(), of(0), of(1)), (2, (2, 11, 0), (1, 6, 1)));
        let all = server.stats();
        assert_eq!((all.connections, all.calls, all.accepted), (3, 17, 3));
        assert_eq!(cores.iter().map(|core| core.accepted).sum::<u64>(), 0);

        // Who goes is off the list, and still counts.
        drop(clients);
        settle(&server, 0);
        assert_eq!(server.connections(), []);
        let ended = server.stats();
        assert_eq!((ended.calls, ended.failed), (17, 1));
        assert_eq!(ended.bytes_received, all.bytes_received);
        assert_eq!(ended.bytes_sent, all.bytes_sent);
        assert_eq!(server.core_stats()[0].calls, 11);
    });
}

#[test]
fn a_busy_core_holds_up_no_snapshot() {
    bounded(|| {
        let (enter, entered) = channel();
        let (open, opened) = channel::<()>();
        let opened = Arc::new(Mutex::new(opened));
        let server = server().serve(move |_core| {
            let (enter, opened) = (enter.clone(), Arc::clone(&opened));
            move |request: Request<'_>, responder: Responder| {
                if request.method() == GATE {
                    enter.send(()).unwrap();
                    opened.lock().unwrap().recv().unwrap();
                }
                responder.reply(());
            }
        });
        let server = server.expect("serve");
        let mut client = client(&server);
        let call = client.submit(GATE, [0; 9], Deadline::never()).unwrap();
        entered.recv().unwrap();
        let list = server.connections();
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].calls, list[0].bytes_received), (1, 9));
        assert_eq!(server.core_stats()[0].calls, 1);
        open.send(()).unwrap();
        call.wait(&mut client).unwrap();
    });
}

#[test]
fn requests_are_timed_if_that_is_asked_for() {
    over_all_paths(|| {
        let plain = serve(server());
        client(&plain).call(ECHO, "x", patient()).unwrap();
        assert_eq!(plain.request_times(), []);

        let (enter, entered) = channel();
        let (open, opened) = channel::<()>();
        let opened = Arc::new(Mutex::new(opened));
        let server = server().cores(2).time_requests(true);
        let server = server.serve(move |core| {
            let (enter, opened) = (enter.clone(), Arc::clone(&opened));
            let mut other = handler(core.pool().clone());
            let mut deferred = None;
            move |request: Request<'_>, responder: Responder| match request.method() {
                GATE => {
                    enter.send(()).unwrap();
                    opened.lock().unwrap().recv().unwrap();
                    responder.reply(());
                }
                DEFER => deferred = Some(responder),
                LET_GO => {
                    deferred.take().unwrap().reply(());
                    responder.reply(());
                }
                _ => other(request, responder),
            }
        });
        let server = server.expect("serve");
        // The first core's.
        let mut client = client(&server);
        let counts = || {
            let of_cores = server.request_times();
            of_cores
                .iter()
                .map(|times| times.count())
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(), [0, 0]);
        // Small, in one message, READ, refused by the handler: all are requests. An answer is counted behind the reply that tells of it.
        for (calls, len) in [0, 64, 3000, 200_000].into_iter().enumerate() {
            client.call(SUM, pattern(len, 1), patient()).unwrap();
            until(|| counts() == [calls as u64 + 1, 0]);
        }
        client.call(Method(9999), "", patient()).unwrap_err();
        until(|| counts() == [5, 0]);
        // As long as the handler took, and while it is deferred as well.
        for defer in [false, true] {
            let method = if defer { DEFER } else { GATE };
            let call = client.submit(method, (), Deadline::never()).unwrap();
            if defer {
                until(|| server.stats().calls == 7);
            } else {
                entered.recv().unwrap();
            }
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(3) {}
            let least = begin.elapsed();
            if defer {
                client.call(LET_GO, (), patient()).unwrap();
            } else {
                open.send(()).unwrap();
            }
            call.wait(&mut client).unwrap();
            until(|| counts() == [if defer { 8 } else { 6 }, 0]);
            assert!(server.request_times()[0].max() >= least);
        }
    });
}

/// Waits until it is so.
fn until(so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < hang());
        thread::yield_now();
    }
}

#[test]
fn answers_that_wait_for_memory_are_counted() {
    over_all_paths(|| {
        let (context, _, _) = memory();
        let pd = context.alloc_pd().unwrap();
        let pool = Pool::builder(&pd)
            .budget(Budget::control(1 << 20))
            .budget(Budget::user(1 << 20))
            .build();
        let pool = pool.unwrap();
        let server = Server::bind("127.0.0.1:0").unwrap().pool(&pd, &pool);
        let server = serve(server.time_requests(true));
        let mut client = client(&server);
        client.call(ECHO, [1; 10], patient()).unwrap();
        // For which there is no room: what is not started takes no time either.
        let failed = client.call(SUM, pattern(2 << 20, 1), patient());
        assert!(
            matches!(failed, Err(rpc::CallError::Overloaded { .. })),
            "{failed:?}"
        );
        assert_eq!(server.stats().answer_stalls, 0);
        // Somebody has taken all of it; and nothing of an earlier answer that was as long is there to be used again.
        let mut taken = Vec::new();
        for len in [4096, 64] {
            while let Ok(buf) = pool.alloc_in(BudgetKind::Control, Kind::Private, len) {
                taken.push(buf);
            }
        }
        let call = client.submit(ECHO, [2; 1000], patient()).unwrap();
        until(|| server.stats().answer_stalls == 1);
        assert_eq!(server.connections()[0].answer_stalls, 1);
        drop(taken);
        assert_eq!(call.wait(&mut client).unwrap().bytes(), [2; 1000]);
        assert_eq!(server.stats().answer_stalls, 1, "counted once");
        drop(client);
        settle(&server, 0);
        assert_eq!(server.request_times()[0].count(), 2);
    });
}
