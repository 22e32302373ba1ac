//! What a server has answered counts, whatever it says next.

mod common;
mod raw;

use common::*;
use raw::Message;
use raw::server::RawServer;
use rpc::{Client, Lost, Method};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

/// A reply, and behind it what is none.
#[test]
fn a_reply_is_not_lost_with_what_comes_behind_it() {
    for (paths, into) in [ALIKE[0], ALIKE[1]]
        .into_iter()
        .flat_map(|paths| [(paths, false), (paths, true)])
    {
        bounded(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let (tell, told) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let server = thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let mut server = RawServer::welcome(stream).unwrap();
                while server.requests.is_empty() {
                    server.look();
                    thread::yield_now();
                }
                let request = server.requests.pop_front().unwrap();
                let reply = Message {
                    code: 0,
                    credit: server.posted,
                    inline: b"the reply".to_vec(),
                    ..request
                };
                server.send(reply.bytes());
                server.send(vec![0xFF; 40]);
                tell.send(()).unwrap();
                let _ = released.recv();
            });
            let (_, pd, pool) = client_memory();
            let builder = Client::builder().pool(pd, pool).connect_timeout(hang());
            let builder = builder.request(paths.0).reply(paths.1);
            let mut client = builder.connect(addr).unwrap();
            let call = match into {
                true => {
                    let room = pool.alloc(100).unwrap();
                    client.submit_into(Method(1), "x", room, patient())
                }
                false => client.submit(Method(1), "x", patient()),
            };
            let call = call.unwrap();
            told.recv().unwrap();
            let reply = call.wait(&mut client);
            assert_eq!(reply.unwrap().len(), 9, "{paths:?} {into}");
            while client.lost().is_none() {
                client.poll();
            }
            assert!(matches!(client.lost(), Some(Lost::Violation(_))));
            drop(release);
            server.join().unwrap();
        });
    }
}
