//! A device without immediate data, as iWARP adapters are: rings are polled, or everything goes by SEND.
//!
//! Faults are the whole process's, so this is alone in its file.

mod common;

use common::*;
use rpc::{Client, ConnectError, ReplyPath, RequestPath, Server};
use softverbs::faults::{Fault, inject};
use std::io::{Read, Write};
use std::net::TcpStream;
use verbs::{Device, Endpoint};

#[test]
fn without_immediate_data_rings_are_polled_or_everything_is_sent() {
    bounded(|| {
        let fault = inject(Fault::NoImmediate);
        let device = Device::open_spec("soft0").unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().device(&device));
        let connect = || Client::builder().device(&device).connect_timeout(hang());
        let mut client = connect().connect(server.local_addr()).unwrap();
        let polled = (RequestPath::WritePoll, ReplyPath::WritePoll);
        let sends = (RequestPath::Send, ReplyPath::Send);
        assert_eq!(client.paths(), Some(polled));
        for (request, reply) in [
            polled,
            sends,
            (RequestPath::Send, ReplyPath::WritePoll),
            (RequestPath::WritePoll, ReplyPath::Send),
        ] {
            let asked = connect().request(request).reply(reply);
            client = asked.connect(server.local_addr()).unwrap();
            assert_eq!(client.paths(), Some((request, reply)));
            for len in [0, 100, 4096, 100_000] {
                let bytes = pattern(len, 1);
                let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
                assert!(reply.bytes() == bytes);
            }
        }

        // Replies can be fetched all the same; what is pushed beside that is sent.
        for reply in [ReplyPath::Fetch, ReplyPath::Hybrid] {
            // However late they are.
            let asked = connect().reply(reply).fetch_tries(10_000);
            let mut client = asked.connect(server.local_addr()).unwrap();
            assert_eq!(client.paths(), Some((RequestPath::WritePoll, reply)));
            for len in [0, 100, 4096, 100_000] {
                let bytes = pattern(len, 2);
                let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
                assert!(reply.bytes() == bytes);
            }
            assert_eq!(client.stats().fetched, 4);
        }

        // Asked for by name, it is an error that says what to do.
        let asked = connect().request(RequestPath::WriteImm);
        let error = asked.connect(server.local_addr()).unwrap_err();
        assert!(
            matches!(error, ConnectError::NoImmediate("request")),
            "{error}"
        );
        let asked = connect().reply(ReplyPath::WriteImm);
        let error = asked.connect(server.local_addr()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("WritePoll and Send work without"),
            "{error}"
        );

        // A client that has it, and wants nothing else, is refused in words.
        let mut hello = b"VBRP\x03\0\x01\0".to_vec();
        let mut body = vec![2, 2];
        for value in [64u32, 4096, 56] {
            body.extend(value.to_le_bytes());
        }
        body.extend((1u64 << 30).to_le_bytes());
        body.extend(0u64.to_le_bytes());
        body.extend((Endpoint::LEN as u16).to_le_bytes());
        body.extend(vec![0; Endpoint::LEN]);
        body.extend(24u16.to_le_bytes());
        for value in [4096u64, 1 << 20, 7] {
            body.extend(value.to_le_bytes());
        }
        hello.extend((body.len() as u16).to_le_bytes());
        hello.extend(body);
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(hang())).unwrap();
        stream.write_all(&hello).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        let heard = String::from_utf8_lossy(&heard);
        assert!(heard.contains("request path"), "{heard}");

        // And a client with it meets a server without in the middle.
        drop(fault);
        let mut client = Client::builder().connect(server.local_addr()).unwrap();
        assert_eq!(client.paths(), Some(sends));
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
    });
}
