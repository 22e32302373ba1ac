//! Events tell of what is slow or goes wrong, and nothing of calls.

mod common;

use common::*;
use rpc::{Deadline, Reconnect};
use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Level, message and fields of what has happened, and the spans that it happened in.
static HAPPENED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Names and fields of all spans there have been; their ids count from 1.
static SPANS: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Those that this thread is in.
    static IN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Collect;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Collect {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "rpc"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut line = Line(attributes.metadata().name().to_owned());
        attributes.record(&mut line);
        let mut spans = SPANS.lock().unwrap();
        spans.push(line.0);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        for id in IN.with_borrow(Clone::clone) {
            write!(line.0, " in <{}>", SPANS.lock().unwrap()[id as usize - 1]).unwrap();
        }
        HAPPENED.lock().unwrap().push(line.0);
    }

    fn enter(&self, id: &Id) {
        IN.with_borrow_mut(|all| all.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        assert_eq!(IN.with_borrow_mut(Vec::pop), Some(id.into_u64()));
    }
}

/// Waits until something has happened of which all of these are part, and takes it.
fn expect(parts: &[&str]) -> String {
    let begin = Instant::now();
    loop {
        let mut happened = HAPPENED.lock().unwrap();
        let found = |line: &String| parts.iter().all(|part| line.contains(part));
        if let Some(at) = happened.iter().position(found) {
            return happened.remove(at);
        }
        assert!(begin.elapsed() < hang(), "not {parts:?} but {happened:#?}");
        drop(happened);
        thread::yield_now();
    }
}

fn expect_nothing() {
    assert_eq!(*HAPPENED.lock().unwrap(), [""; 0]);
}

#[test]
fn what_is_no_call_is_told() {
    tracing::subscriber::set_global_default(Collect).unwrap();
    bounded(|| {
        let limited = server()
            .max_connections_per_peer(1)
            .max_bytes_per_peer(10_000);
        let server = serve(limited);
        let addr = server.local_addr();
        let builder = || builder().reconnect(Reconnect::new());
        let mut client = builder().connect(addr).unwrap();
        let of_client = server.connections()[0].peer.to_string();
        expect(&["DEBUG", "a client was accepted", &of_client]);
        let admitted = format!("in <admit core=0 peer={of_client}>");
        expect(&[
            "DEBUG",
            "a connection was opened",
            "core=0",
            &of_client,
            &admitted,
        ]);
        let connecting = format!("in <connect to=[{addr}]>");
        expect(&["DEBUG", "connected", &addr.to_string(), &connecting]);
        expect_nothing();
        let spans = SPANS.lock().unwrap().len();

        for len in [0, 10, 4000, 9000] {
            client.call(SUM, pattern(len, 1), patient()).unwrap();
        }
        client.call(DROP, "", patient()).unwrap_err();
        expect_nothing();
        assert_eq!(SPANS.lock().unwrap().len(), spans, "calls are in none");

        client.call(PANIC, "", patient()).unwrap_err();
        expect(&["ERROR", "a handler panicked", "method=5", &of_client]);
        client.call(SUM, pattern(10_001, 1), patient()).unwrap_err();
        let refused = expect(&["DEBUG", "a request was refused", &of_client]);
        assert!(refused.contains("the request has 10001"), "{refused}");

        builder().connect(addr).unwrap_err();
        expect(&["DEBUG", "a client was accepted"]);
        expect(&[
            "WARN",
            "a client was refused",
            "code=Full",
            "all 1 connections",
        ]);
        let mut stranger = TcpStream::connect(addr).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        expect(&["DEBUG", "a client was accepted"]);
        expect(&[
            "WARN",
            "other than hello",
            &stranger.local_addr().unwrap().to_string(),
        ]);
        expect_nothing();

        // The client learns of it when it is used next, and connects to the one that comes after.
        server.drain(Deadline::after(hang()));
        server.join();
        expect(&[
            "INFO",
            "a core drains",
            "connections=1",
            "in <drain core=0>",
        ]);
        expect(&[
            "DEBUG",
            "a connection was closed",
            "is stopping",
            &of_client,
        ]);
        expect(&["INFO", "a core has drained", "left=0"]);
        expect_nothing();
        let server = serve(server_at(addr));
        client.call_idempotent(ECHO, "again", patient()).unwrap();
        expect(&["INFO", "the connection has ended", "is stopping"]);
        expect(&["INFO", "connected again", "tries=1"]);
        expect(&["DEBUG", "connected", &addr.to_string()]);
        let of_client = server.connections()[0].peer.to_string();
        expect(&["a client was accepted"]);
        expect(&["a connection was opened", &of_client]);
        drop(client);
        expect(&["DEBUG", "a connection was closed", "Closing", &of_client]);
        expect_nothing();
    });
}

fn server_at(addr: std::net::SocketAddr) -> rpc::Server {
    let (_, pd, pool) = memory();
    rpc::Server::bind(addr).expect("bind").pool(pd, pool)
}
