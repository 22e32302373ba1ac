//! Control connections over TLS: with the right certificates all is as without; with any other, nobody learns a key.

#[path = "../common/mod.rs"]
mod common;

mod certificates;
mod wire;

use certificates::Root;
use common::*;
use rpc::{
    CallError, ClientTls, ConnectError, Lost, Reconnect, ServeError, Server, ServerHandle,
    ServerTls, TlsError,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use wire::relay;

const YEAR: i32 = 2999;
const ADDR: &str = "127.0.0.1";

fn secured(tls: ServerTls) -> ServerHandle {
    serve(server().handshake_timeout(hang()).tls(tls))
}

/// Both ends with certificates of one root.
fn both() -> (ServerHandle, ClientTls) {
    let root = Root::new();
    (
        secured(root.server(ADDR, YEAR, &root)),
        root.client(YEAR, &root),
    )
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < hang(), "{what}");
        thread::yield_now();
    }
}

/// Connects by way of a relay; neither end says anything of keys in the clear.
fn fail(server: SocketAddr, tls: ClientTls) -> ConnectError {
    let (addr, heard) = relay(server, None);
    let error = builder().tls(tls).connect(addr).expect_err("no connection");
    heard.nothing_in_clear(0);
    heard.nothing_in_clear(1);
    // And no hello at all: what the client says is one record for the beginning, and those that end the handshake or say why not.
    assert!(heard.of(0).starts_with(&[22, 3]), "a TLS handshake");
    error
}

fn handshake(error: ConnectError) -> String {
    match error {
        ConnectError::Tls(TlsError::Handshake(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn with_the_right_certificates_all_paths_work() {
    over_all_paths(|| {
        let (server, tls) = both();
        let (addr, heard) = relay(server.local_addr(), None);
        let mut client = builder().tls(tls).connect(addr).expect("a connection");
        assert_eq!(client.paths(), Some(paths()));
        for len in [0, 10, 4000, 5000, 1 << 20] {
            let bytes = pattern(len, 3);
            let reply = client.call(ECHO, &bytes[..], patient()).expect("a reply");
            assert!(reply.bytes() == bytes);
        }
        // The end is said over TLS as well, by either side.
        drop(client);
        wait_for("the server knows", || server.stats().connections == 0);
        assert_eq!(server.stats().broken, 0);
        heard.nothing_in_clear(0);
        heard.nothing_in_clear(1);
    });
}

#[test]
fn a_goodbye_and_a_death_are_noticed() {
    bounded(|| {
        let (server, tls) = both();
        let mut said = builder()
            .tls(tls.clone())
            .connect(server.local_addr())
            .expect("connected");
        let slow = said
            .submit(SLOW, 200u64.to_le_bytes(), patient())
            .expect("sent");
        server.shutdown();
        match slow.wait(&mut said) {
            Ok(_) | Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        server.join();
        assert!(said.call(ECHO, "x", patient()).is_err());
        assert!(
            matches!(said.lost(), Some(Lost::Goodbye(_) | Lost::Work { .. })),
            "{:?}",
            said.lost()
        );
    });
}

/// Whoever takes the connection hangs up, as a server does that ends just then: that is no reason to give the new one up.
#[test]
fn who_connects_again_outlives_a_handshake_that_is_cut_off() {
    bounded(|| {
        let root = Root::new();
        let (ours, theirs) = (root.client(YEAR, &root), root.server(ADDR, YEAR, &root));
        let server = secured(theirs.clone());
        let address = server.local_addr();
        let mut client = builder()
            .tls(ours)
            .reconnect(Reconnect::new())
            .connect(address)
            .expect("connected");
        server.shutdown();
        server.join();
        let between = again(|| TcpListener::bind(address));
        let next = thread::spawn(move || {
            // One that hears the beginning of the handshake, and one that does not.
            let (mut heard, _) = between.accept().expect("the client");
            heard.read_exact(&mut [0; 16]).expect("a hello of TLS");
            drop(heard);
            drop(between.accept().expect("the client, again"));
            drop(between);
            let (_, pd, pool) = memory();
            let server = again(|| Server::bind(address));
            serve(server.handshake_timeout(hang()).pool(pd, pool).tls(theirs))
        });
        let reply = client.call_idempotent(ECHO, "later", patient());
        let reply = reply.expect("a reply");
        assert_eq!(reply.bytes(), b"later");
        drop(next.join().expect("the next server"));
    });
}

/// What succeeds once the address is free again.
fn again<T, E>(mut bind: impl FnMut() -> Result<T, E>) -> T {
    loop {
        match bind() {
            Ok(bound) => return bound,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn a_server_of_another_root_is_told_nothing() {
    bounded(|| {
        let (ours, theirs) = (Root::new(), Root::new());
        let server = secured(theirs.server(ADDR, YEAR, &ours));
        let why = handshake(fail(server.local_addr(), ours.client(YEAR, &ours)));
        assert!(why.contains("UnknownIssuer"), "{why}");
        wait_for("counted", || server.stats().garbage == 1);
    });
}

#[test]
fn a_client_of_another_root_is_told_nothing() {
    bounded(|| {
        let (ours, theirs) = (Root::new(), Root::new());
        let server = secured(ours.server(ADDR, YEAR, &ours));
        let why = handshake(fail(server.local_addr(), theirs.client(YEAR, &ours)));
        assert!(why.contains("peer says UnknownCA"), "{why}");
        wait_for("counted", || server.stats().garbage == 1);
    });
}

#[test]
fn certificates_that_have_expired() {
    bounded(|| {
        let root = Root::new();
        let old = secured(root.server(ADDR, 2002, &root));
        let why = handshake(fail(old.local_addr(), root.client(YEAR, &root)));
        assert!(why.contains("Expired") || why.contains("expired"), "{why}");
        let server = secured(root.server(ADDR, YEAR, &root));
        let why = handshake(fail(server.local_addr(), root.client(2002, &root)));
        assert!(why.contains("CertificateExpired"), "{why}");
    });
}

#[test]
fn the_name_in_the_certificate_counts() {
    bounded(|| {
        let root = Root::new();
        let server = secured(root.server("storage-7", YEAR, &root));
        let tls = root.client(YEAR, &root);
        let why = handshake(fail(server.local_addr(), tls.clone()));
        assert!(why.contains("not valid for"), "{why}");
        let named = tls.clone().server_name("storage-7").expect("a name");
        let mut client = builder()
            .tls(named)
            .connect(server.local_addr())
            .expect("connected");
        assert_eq!(
            client.call(ECHO, "x", patient()).expect("a reply").bytes(),
            b"x"
        );
        assert_eq!(
            tls.server_name("no name").unwrap_err(),
            TlsError::Name("no name".to_owned())
        );
    });
}

/// Without a certificate a client gets no further than an alert, whatever it says.
#[test]
fn a_client_without_a_certificate_is_told_nothing() {
    bounded(|| {
        let root = Root::new();
        let server = secured(root.server(ADDR, YEAR, &root));
        let mut roots = rustls::RootCertStore::empty();
        let pem = root.pem();
        let der = rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
        roots.add(der.expect("a certificate")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ADDR.try_into().expect("a name");
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        let (addr, heard) = relay(server.local_addr(), None);
        let mut tcp = TcpStream::connect(addr).expect("a server");
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        let _ = stream.write_all(b"VBRP\x03\0\x01\0");
        let error = stream.read(&mut [0; 100]).expect_err("no answer");
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
        heard.nothing_in_clear(1);
        wait_for("counted", || server.stats().garbage == 1);
        assert_eq!(server.stats().connections, 0);
    });
}

#[test]
fn a_client_without_tls_is_told_what_it_lacks() {
    bounded(|| {
        let (server, _) = both();
        let (addr, heard) = relay(server.local_addr(), None);
        let error = builder().connect(addr).expect_err("no connection");
        assert!(matches!(error, ConnectError::WantsTls), "{error:?}");
        assert!(error.to_string().contains("ClientTls"), "{error}");
        heard.nothing_in_clear(1);
        wait_for("counted", || server.stats().garbage == 1);
    });
}

#[test]
fn a_server_without_tls_is_told_nothing() {
    bounded(|| {
        let root = Root::new();
        let server = serve(server());
        let error = fail(server.local_addr(), root.client(YEAR, &root));
        assert!(
            matches!(error, ConnectError::Tls(TlsError::Closed)),
            "{error:?}"
        );
        assert!(error.to_string().contains("does it speak TLS"), "{error}");
        wait_for("counted", || server.stats().garbage == 1);
    });
}

/// A server that never goes on, or only ever so slowly, costs a client its time limit and not more.
#[test]
fn a_server_that_stalls_in_the_handshake() {
    bounded(|| {
        let root = Root::new();
        for trickles in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let addr = listener.local_addr().expect("an address");
            let stalling = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut heard = Vec::new();
                if trickles {
                    // The beginning of a record of the greatest length.
                    let _ = stream.write_all(&[22, 3, 3, 0x40, 0]);
                    stream
                        .set_read_timeout(Some(Duration::from_millis(5)))
                        .expect("set");
                    while stream.write_all(&[2]).is_ok() {
                        if let Ok(0) = stream.read(&mut [0; 1000]) {
                            break;
                        }
                    }
                } else {
                    let _ = stream.read_to_end(&mut heard);
                }
                heard
            });
            let limit = Duration::from_millis(200);
            let start = Instant::now();
            let connecting = builder()
                .tls(root.client(YEAR, &root))
                .connect_timeout(limit);
            let error = connecting.connect(addr).expect_err("no connection");
            assert!(
                matches!(error, ConnectError::Timeout(l) if l == limit),
                "{error:?}"
            );
            assert!(start.elapsed() < limit + Duration::from_secs(10) * slowness());
            let heard = stalling.join().expect("no panic");
            assert!(!heard.windows(4).any(|bytes| bytes == b"vbE1"));
        }
    });
}

/// Clients that stall are let go after the time limit; others are served meanwhile.
#[test]
fn clients_that_stall_in_the_handshake() {
    bounded(|| {
        let root = Root::new();
        let tls = root.server(ADDR, YEAR, &root);
        let limit = Duration::from_millis(300) * slowness();
        let server = serve(server().handshake_timeout(limit).tls(tls));
        // Nothing; half a record; a whole one that is half of a hello.
        let beginnings: [&[u8]; 3] = [b"", &[22, 3, 1, 1], &[22, 3, 1, 0, 5, 1, 0, 2, 0, 3]];
        let stalling: Vec<_> = beginnings
            .into_iter()
            .map(|bytes| {
                let mut stream = TcpStream::connect(server.local_addr()).expect("a server");
                stream.write_all(bytes).expect("written");
                stream
            })
            .collect();
        let connecting = builder().tls(root.client(YEAR, &root));
        let mut client = connecting.connect(server.local_addr()).expect("connected");
        assert_eq!(
            client.call(ECHO, "x", patient()).expect("a reply").bytes(),
            b"x"
        );
        wait_for("let go", || server.stats().timed_out == 3);
        for mut stream in stalling {
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert!(!heard.windows(4).any(|bytes| bytes == b"vbE1"));
        }
    });
}

/// Whatever a stranger says to a server with TLS, it is not a panic, and others are served.
#[test]
fn garbage_for_a_server_with_tls() {
    bounded(|| {
        let (server, tls) = both();
        for n in 0..60u8 {
            let mut stream = TcpStream::connect(server.local_addr()).expect("a server");
            let mut bytes = pattern(usize::from(n) * 10 + 1, n);
            if n % 2 == 0 {
                bytes.splice(0..0, [22, 3, 1, 0, n, 1, 0, 0, n]);
            }
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
        wait_for("counted", || server.stats().garbage == 60);
        let mut client = builder()
            .tls(tls)
            .connect(server.local_addr())
            .expect("connected");
        assert_eq!(
            client.call(ECHO, "x", patient()).expect("a reply").bytes(),
            b"x"
        );
    });
}

/// Somebody in between who changes a byte that the server says ends the handshake, wherever that byte is.
#[test]
fn a_byte_that_is_changed_on_the_way() {
    bounded(|| {
        let (server, tls) = both();
        let (addr, heard) = relay(server.local_addr(), None);
        drop(builder().tls(tls.clone()).connect(addr).expect("connected"));
        wait_for("ended", || server.stats().connections == 0);
        // But for the last, which is the farewell: what the server said to a client that says nothing.
        let said = heard.of(1).len() - 40;
        for at in (5..said).step_by(said / 25) {
            let (addr, _) = relay(server.local_addr(), Some(at));
            // A changed length of a record is waited for.
            let connecting = builder().tls(tls.clone());
            let result = connecting
                .connect_timeout(Duration::from_secs(2))
                .connect(addr);
            assert!(result.is_err(), "byte {at} of {said}");
        }
        wait_for("ended", || server.stats().connections == 0);
    });
}

#[test]
fn beyond_loopback_it_takes_tls_or_a_word() {
    bounded(|| {
        let error = Server::bind("0.0.0.0:0").expect_err("beyond loopback");
        assert!(matches!(error, ServeError::NotLoopback(_)), "{error:?}");
        assert!(error.to_string().contains("Server::bind_tls"), "{error}");
        assert!(
            error.to_string().contains("Server::bind_unencrypted"),
            "{error}"
        );
        let root = Root::new();
        let (_, pd, pool) = memory();
        let server = Server::bind_tls("0.0.0.0:0", root.server(ADDR, YEAR, &root)).expect("bind");
        let server = serve(server.pool(pd, pool));
        let addr = (ADDR, server.local_addr().port());
        let mut client = builder()
            .tls(root.client(YEAR, &root))
            .connect(addr)
            .expect("connected");
        assert_eq!(
            client.call(ECHO, "x", patient()).expect("a reply").bytes(),
            b"x"
        );
        assert!(matches!(
            builder().connect(addr),
            Err(ConnectError::WantsTls)
        ));
    });
}

#[test]
fn what_is_no_certificate_is_named() {
    let root = Root::new();
    let own = root.client_pem(YEAR);
    let tls = |certificate: &str, key: &str, roots: &str| {
        let client = ClientTls::from_pem(certificate, key, roots).map(drop);
        let server = ServerTls::from_pem(certificate, key, roots).map(drop);
        [client.unwrap_err(), server.unwrap_err()]
    };
    let pem = root.pem();
    for (certificate, key, roots, wanted) in [
        ("", &own.key[..], &pem[..], "certificate of the"),
        (&own.certificate, "", &pem, "private key"),
        (&own.certificate, &own.key, "nonsense", "roots of"),
        (
            &own.certificate,
            &root.client_pem(YEAR).key,
            &pem,
            "and its key",
        ),
    ] {
        for error in tls(certificate, key, roots) {
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
    let shown = format!("{:?}", root.client(YEAR, &root));
    assert!(!shown.contains("PRIVATE"), "{shown}");
}
