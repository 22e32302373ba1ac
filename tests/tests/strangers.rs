//! What a server's TCP port is sent by those who do not speak its language, or who speak it with malice. Whatever it is, the
//! server lives on, and a client that speaks properly is served meanwhile and afterwards.

use rpc::{Client, Deadline, Method, Request, Responder, Server, ServerHandle};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use verbatim_tests::{HANG, pattern};
use verbs::Device;

fn serve() -> ServerHandle {
    Server::bind("127.0.0.1:0")
        .unwrap()
        .device(&Device::open_spec("soft0").unwrap())
        .handshake_timeout(Duration::from_millis(200))
        .serve(|_core| |request: Request<'_>, responder: Responder| responder.reply(request.body()))
        .unwrap()
}

fn client(server: &ServerHandle) -> Client {
    Client::builder()
        .device(&Device::open_spec("soft0").unwrap())
        .connect(server.local_addr())
        .unwrap()
}

fn still_serves(client: &mut Client) {
    let reply = client
        .call(Method(1), "well?", Deadline::after(HANG))
        .unwrap();
    assert_eq!(reply.bytes(), b"well?");
}

/// Sends bytes and waits until the server hangs up, which it must.
fn refused(server: &ServerHandle, bytes: &[u8], then: impl FnOnce(&TcpStream)) {
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    // The server may hang up before it was all sent.
    let _ = stream.write_all(bytes);
    then(&stream);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "the server hangs up"),
    }
    assert!(answer.len() < 4096, "a stranger is told little");
}

/// What a proper client says first, as another listener hears it.
fn a_proper_hello() -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = vec![0; 4096];
        let n = stream.read(&mut hello).unwrap();
        hello.truncate(n);
        hello
    });
    let result = Client::builder()
        .device(&Device::open_spec("soft0").unwrap())
        .connect(address);
    assert!(result.is_err(), "nobody welcomes it");
    heard.join().unwrap()
}

#[test]
fn garbage_is_refused_and_the_server_lives_on() {
    let server = serve();
    let mut before = client(&server);
    let texts: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[0; 100],
        &[0xff; 100],
        &[0xff; 1 << 20],
        b"\n",
        &pattern(10_000, 77),
    ];
    for bytes in texts {
        refused(&server, bytes, |_| {});
        still_serves(&mut before);
    }
    still_serves(&mut client(&server));
}

#[test]
fn half_a_handshake_is_given_up_on() {
    let server = serve();
    let mut before = client(&server);
    let hello = a_proper_hello();
    for len in [0, 1, 4, hello.len() / 2, hello.len() - 1] {
        // One that goes silent, and one that hangs up in the middle.
        refused(&server, &hello[..len], |_| {});
        refused(&server, &hello[..len], |stream| {
            stream.shutdown(Shutdown::Write).unwrap()
        });
        still_serves(&mut before);
    }
    still_serves(&mut client(&server));
}

/// Every field of a proper hello, set to the largest and the smallest value there is: lengths, counts, versions, queue pair
/// numbers.
#[test]
fn absurd_claims_in_a_handshake_are_refused_or_clamped() {
    let server = serve();
    let mut before = client(&server);
    let hello = a_proper_hello();
    for at in 0..hello.len() {
        for value in [0x00, 0x7f, 0xff] {
            let mut changed = hello.clone();
            let end = (at + 4).min(changed.len());
            changed[at..end].fill(value);
            let mut stream = TcpStream::connect(server.local_addr()).unwrap();
            let _ = stream.write_all(&changed);
            // Refused or welcomed with limits of the server's choice; hanging up is always allowed.
            drop(stream);
        }
    }
    still_serves(&mut before);
    still_serves(&mut client(&server));
}

#[test]
fn strangers_who_say_nothing_do_not_keep_others_out() {
    let server = serve();
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(server.local_addr()).unwrap())
        .collect();
    still_serves(&mut client(&server));
    drop(silent);
    still_serves(&mut client(&server));
}
