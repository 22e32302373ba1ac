//! What a server tells of its cores and connections.

mod common;

use common::*;
use rpc::{Deadline, Method, Request, Responder, ServerHandle};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// Says that it runs, and waits until it may go on.
const GATE: Method = Method(100);

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
