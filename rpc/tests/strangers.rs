//! Whoever connects to the TCP port and says something else: a clear end for them, nothing else.

mod common;

use common::*;
use rpc::{Client, ConnectError, ServeError, Server, Waiting};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// A hello as the protocol has it, for tests that bend it: prefix of 10 bytes, then the fields.
fn hello() -> Vec<u8> {
    let mut body = vec![1, 1];
    for value in [64u32, 4096, 56] {
        body.extend(value.to_le_bytes());
    }
    body.extend((1u64 << 30).to_le_bytes());
    body.extend(0u64.to_le_bytes());
    body.extend(32u16.to_le_bytes());
    body.extend(b"vbE1");
    body.extend(0xABCDEFu32.to_le_bytes());
    // GID, LID, MTU code and READ depth.
    body.extend([0; 22]);
    body.extend([5, 16]);
    // No ring.
    body.extend([0; 2]);
    let mut out = b"VBRP\x03\0\x01\0".to_vec();
    out.extend((body.len() as u16).to_le_bytes());
    out.extend(body);
    out
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < hang(), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Says something and reads until the server hangs up; what it said.
fn talk(server: &rpc::ServerHandle, say: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(hang())).unwrap();
    let _ = stream.write_all(say);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn garbage_ends_at_once_and_the_server_lives_on() {
    bounded(|| {
        // So long a limit that only the bytes themselves can end it.
        let server = serve(server().handshake_timeout(hang() * 2));
        let mut client = client(&server);
        let absurd_length = [&hello()[..8], &[0xFF, 0xFF]].concat();
        let cases: [&[u8]; 5] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
            &[0; 4096],
            &[0xFF; 1],
            &absurd_length,
        ];
        for case in cases {
            assert_eq!(talk(&server, case), b"");
        }
        assert_eq!(server.stats().garbage, 5);
        // Another version is told so.
        let mut other = hello();
        other[4] = 99;
        let answer = talk(&server, &other);
        assert!(String::from_utf8_lossy(&answer).contains("version 99"));
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
    });
}

#[test]
fn absurd_hellos_are_refused_in_words() {
    bounded(|| {
        let server = serve(server());
        // Offsets in the hello: paths, window, inline limit, slots, message, end point.
        let cases: [(usize, &[u8], &str); 11] = [
            (10, &[0], "request path"),
            (11, &[0], "reply path"),
            (12, &[0, 0, 0, 0], "window"),
            (12, &[0xFF; 4], "window"),
            (16, &[0xFF; 4], "inline limit"),
            (20, &[0; 4], "slots"),
            (24, &[0; 8], "largest message"),
            (42, b"????", "end point"),
            (46, &[0xFF; 4], "queue pair number"),
            (72, &[99], "MTU"),
            (73, &[0], "READ depth"),
        ];
        for (at, bytes, word) in cases {
            let mut bent = hello();
            bent[at..at + bytes.len()].copy_from_slice(bytes);
            let answer = talk(&server, &bent);
            let text = String::from_utf8_lossy(&answer);
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(server.stats().refused, 11);
        assert_eq!(server.stats().connections, 0);
        let mut client = client(&server);
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
    });
}

#[test]
fn a_queue_pair_that_does_not_exist_is_refused_or_dies_alone() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.write_all(&hello()).unwrap();
        stream.set_read_timeout(Some(hang())).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        drop(stream);
        wait_for("the stranger is still there", || {
            server.stats().connections == 1
        });
        assert_eq!(client.call(ECHO, "y", patient()).unwrap().bytes(), b"y");
    });
}

#[test]
fn half_a_handshake_times_out_and_blocks_nobody() {
    bounded(|| {
        let server = serve(server().handshake_timeout(Duration::from_millis(100)));
        let mut silent = TcpStream::connect(server.local_addr()).unwrap();
        let mut half = TcpStream::connect(server.local_addr()).unwrap();
        half.write_all(&hello()[..20]).unwrap();
        let mut client = client(&server);
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        for stream in [&mut silent, &mut half] {
            stream.set_read_timeout(Some(hang())).unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert_eq!(heard, b"");
        }
        assert_eq!(server.stats().timed_out, 2);
        // One that hangs up half way.
        let gone = TcpStream::connect(server.local_addr()).unwrap();
        (&gone).write_all(&hello()[..30]).unwrap();
        gone.shutdown(Shutdown::Both).unwrap();
        wait_for("not noticed", || server.stats().garbage == 1);
    });
}

#[test]
fn a_hello_in_single_bytes_is_a_hello() {
    bounded(|| {
        let server = serve(server());
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bent = hello();
        bent[12..16].fill(0);
        for byte in bent {
            stream.write_all(&[byte]).unwrap();
        }
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert!(String::from_utf8_lossy(&heard).contains("window"));
    });
}

#[test]
fn a_crowd_of_silent_strangers_does_not_keep_others_out() {
    bounded(|| {
        let server = serve(server().handshake_timeout(hang() * 2).max_handshakes(8));
        let crowd: Vec<_> = (0..50)
            .map(|_| TcpStream::connect(server.local_addr()).unwrap())
            .collect();
        let mut client = client(&server);
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        assert!(server.stats().evicted >= 42, "{}", server.stats().evicted);
        drop(crowd);
    });
}

#[test]
fn more_clients_than_allowed_are_refused() {
    bounded(|| {
        let server = serve(server().max_connections(2));
        let (_, pd, pool) = memory();
        let connect = || {
            Client::builder()
                .pool(pd, pool)
                .connect(server.local_addr())
        };
        let (a, mut b) = (connect().unwrap(), connect().unwrap());
        match connect() {
            Err(ConnectError::Refused { text, .. }) => assert!(text.contains("all 2"), "{text}"),
            other => panic!("{other:?}"),
        }
        drop(a);
        wait_for("not closed", || server.stats().connections == 1);
        let mut c = connect().unwrap();
        for client in [&mut b, &mut c] {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
    });
}

#[test]
fn garbage_after_the_handshake_ends_that_connection() {
    bounded(|| {
        // A server that welcomes and then talks nonsense: nothing to connect to, so it refuses.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let answers: [&[u8]; 4] = [
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"VBRP\x01\0\x02\0\xFF\xFF",
            b"VBRP\x01\0\x04\0\x02\0\x01\0",
            b"",
        ];
        let fake = thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut said = [0; 10];
                stream.read_exact(&mut said).unwrap();
                stream.write_all(answer).unwrap();
                // Read what is left, so that closing does not reset. The client may have heard enough, and be gone.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let (_, pd, pool) = memory();
        for n in 0..answers.len() {
            let result = Client::builder().pool(pd, pool).connect(addr);
            match (n, result) {
                (0..3, Err(ConnectError::Handshake(_))) | (3, Err(ConnectError::Closed)) => {}
                other => panic!("{other:?}"),
            }
        }
        fake.join().unwrap();
    });
}

#[test]
fn connecting_says_what_is_wrong() {
    bounded(|| {
        let (_, pd, pool) = memory();
        // A port where nobody listens: bound and closed again.
        let addr = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = Client::builder().pool(pd, pool).connect(addr).unwrap_err();
        assert!(matches!(error, ConnectError::Tcp { .. }), "{error}");
        // A server that never answers.
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = Client::builder()
            .pool(pd, pool)
            .connect_timeout(Duration::from_millis(50))
            .connect(mute.local_addr().unwrap())
            .unwrap_err();
        assert!(matches!(error, ConnectError::Timeout(_)), "{error}");
        let error = Server::bind("0.0.0.0:0").unwrap_err();
        assert!(matches!(error, ServeError::NotLoopback(_)), "{error}");
        assert!(Server::bind_unencrypted("0.0.0.0:0").is_ok());
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = Server::bind(taken.local_addr().unwrap()).unwrap_err();
        assert!(matches!(error, ServeError::Listen { .. }), "{error}");
        let error = server()
            .cores(2)
            .serve(|core| {
                assert_eq!(core.index(), 0, "on purpose");
                |_: rpc::Request<'_>, _: rpc::Responder| {}
            })
            .unwrap_err();
        assert!(matches!(error, ServeError::CoreEnded(1)), "{error}");
    });
}

/// Who means that there is no limit says so by the largest number there is.
#[test]
fn limits_as_large_as_can_be_are_none() {
    bounded(|| {
        let server = serve(
            server()
                .handshake_timeout(Duration::MAX)
                .max_connections(usize::MAX)
                .max_handshakes(usize::MAX)
                .max_connections_per_peer(usize::MAX)
                .max_requests_per_peer(u64::MAX)
                .max_bytes_per_peer(u64::MAX)
                .waiting(Waiting {
                    spin: Duration::from_micros(1),
                    relax: Duration::MAX,
                }),
        );
        let mut client = builder()
            .waiting(Waiting {
                spin: Duration::MAX,
                relax: Duration::MAX,
            })
            .connect(server.local_addr())
            .expect("connected");
        for _ in 0..100 {
            assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        }
        let slow = client.call(SLOW, 20u64.to_le_bytes(), patient()).unwrap();
        assert_eq!(slow.bytes(), b"done");
    });
}
