//! Calls between two processes: the smallest, the largest, very many, and the end of a server.

use mempool::{Budget, Pool};
use rpc::{
    CallError, Client, Code, Deadline, Method, Pending, Request, Responder, Server, ServerHandle,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use verbatim_tests::{
    Control, HANG, Peer, Side, fill, is_pattern, pattern, second_process, second_process_with,
};
use verbs::{Context, Device};

const ECHO: Method = Method(1);
/// The request is a pattern; the reply says whether it is whole, and its length.
const CHECK: Method = Method(2);
/// The request is a length; the reply is a pattern of that length.
const MAKE: Method = Method(3);
/// Never answers, until the process ends.
const HOLD: Method = Method(4);

const SEED: u64 = 4711;

fn deadline() -> Deadline {
    Deadline::after(HANG)
}

fn soft0() -> Context {
    Device::open_spec("soft0").expect("soft0 can be opened")
}

fn serve() -> ServerHandle {
    let device = soft0();
    let pd = device.alloc_pd().unwrap();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(3 << 30))
        .build()
        .unwrap();
    let replies = pool.clone();
    Server::bind("127.0.0.1:0")
        .unwrap()
        .pool(&pd, &pool)
        .serve(move |_core| {
            let pool = replies.clone();
            let mut held = Vec::new();
            move |request: Request<'_>, responder: Responder| match request.method() {
                ECHO => responder.reply(request.body()),
                CHECK => {
                    let body = request.body();
                    let answer = [u64::from(is_pattern(body, SEED)), body.len() as u64];
                    responder.reply([answer[0].to_le_bytes(), answer[1].to_le_bytes()].concat());
                }
                MAKE => {
                    let len = u64::from_le_bytes(request.body().try_into().unwrap());
                    let mut reply = pool.alloc(len as usize).unwrap();
                    fill(&mut reply, SEED);
                    responder.reply(reply);
                }
                HOLD => held.push(responder),
                _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
            }
        })
        .unwrap()
}

/// A server in the second process, until the first one says that it is done.
fn server_process(name: &str, variables: &[(&str, &str)]) -> Option<(Peer, Client)> {
    match second_process_with(name, variables) {
        Side::Child(mut control) => {
            serve_until_done(&mut control);
            None
        }
        Side::Parent(mut peer) => {
            let address = String::from_utf8(peer.control.receive()).unwrap();
            let client = connect(address.parse().unwrap());
            Some((peer, client))
        }
    }
}

fn serve_until_done(control: &mut Control) {
    let server = serve();
    control.send(server.local_addr().to_string());
    control.expect("done");
    server.shutdown();
}

fn connect(address: SocketAddr) -> Client {
    let device = soft0();
    let pd = device.alloc_pd().unwrap();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(3 << 30))
        .build()
        .unwrap();
    Client::builder().pool(&pd, &pool).connect(address).unwrap()
}

fn done(mut peer: Peer, client: Client) {
    drop(client);
    peer.control.send("done");
    peer.finish();
}

fn make_request(len: usize) -> [u8; 8] {
    (len as u64).to_le_bytes()
}

#[test]
fn a_gibibyte_arrives_intact_in_one_call_in_either_direction() {
    let name = "a_gibibyte_arrives_intact_in_one_call_in_either_direction";
    let Some((peer, mut client)) = server_process(name, &[]) else {
        return;
    };
    const LEN: usize = 1 << 30;
    let mut request = client.pool().alloc(LEN).unwrap();
    fill(&mut request, SEED);
    let mut reply = client.call(CHECK, request, deadline()).unwrap();
    let answer = [1u64.to_le_bytes(), (LEN as u64).to_le_bytes()].concat();
    assert_eq!(reply.bytes(), answer);
    drop(reply.take_segments());
    drop(reply);

    let room = client.pool().alloc(LEN).unwrap();
    let (reply, room) = client
        .call_into(MAKE, make_request(LEN), room, deadline())
        .unwrap();
    assert_eq!(reply.len(), LEN);
    assert!(is_pattern(&room, SEED));
    drop(room);
    done(peer, client);
}

/// Around the inline limit, the slice of a READ, and the pool's classes.
const SIZES: [usize; 16] = [
    0,
    1,
    63,
    64,
    4000,
    4095,
    4096,
    4097,
    5000,
    65_536,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    1 << 20,
    (2 << 20) + 1,
    (16 << 20) + 3,
];

#[test]
fn payload_of_every_size_arrives_whole() {
    every_size("payload_of_every_size_arrives_whole", &[]);
}

#[test]
fn payload_of_every_size_arrives_whole_over_an_asynchronous_device() {
    every_size(
        "payload_of_every_size_arrives_whole_over_an_asynchronous_device",
        &[("VERBATIM_ASYNC", "23")],
    );
}

fn every_size(name: &str, variables: &[(&str, &str)]) {
    let Some((peer, mut client)) = server_process(name, variables) else {
        return;
    };
    for len in SIZES {
        let request = pattern(len, SEED);
        let reply = client.call(ECHO, &request, deadline()).unwrap();
        assert_eq!(reply.len(), len);
        assert!(is_pattern(reply.bytes(), SEED), "{len} bytes by copy");
        drop(reply);

        let mut request = client.pool().alloc(len).unwrap();
        fill(&mut request, SEED);
        let reply = client.call(CHECK, request, deadline()).unwrap();
        let answer = [1u64.to_le_bytes(), (len as u64).to_le_bytes()].concat();
        assert_eq!(reply.bytes(), answer, "{len} bytes from the pool");
        drop(reply);

        let room = client.pool().alloc(len).unwrap();
        let (reply, room) = client
            .call_into(MAKE, make_request(len), room, deadline())
            .unwrap();
        assert_eq!(reply.len(), len);
        assert!(is_pattern(&room, SEED), "{len} bytes into a buffer");
    }
    done(peer, client);
}

#[test]
fn many_large_calls_at_once_arrive_whole() {
    many_large("many_large_calls_at_once_arrive_whole", &[]);
}

#[test]
fn many_large_calls_at_once_arrive_whole_over_an_asynchronous_device() {
    many_large(
        "many_large_calls_at_once_arrive_whole_over_an_asynchronous_device",
        &[("VERBATIM_ASYNC", "29")],
    );
}

/// Eight replies of 4 MiB on their way at once, into buffers and without; then as many requests.
fn many_large(name: &str, variables: &[(&str, &str)]) {
    let Some((peer, mut client)) = server_process(name, variables) else {
        return;
    };
    const LEN: usize = 4 << 20;
    let mut calls: VecDeque<Pending> = VecDeque::new();
    for i in 0..64 {
        if calls.len() == 8 {
            let mut reply = calls.pop_front().unwrap().wait(&mut client).unwrap();
            assert_eq!(reply.len(), LEN);
            match reply.take_destination() {
                Some(room) => assert!(is_pattern(&room, SEED), "call {i}"),
                None => assert!(is_pattern(reply.bytes(), SEED), "call {i}"),
            }
        }
        let call = if i % 2 == 0 {
            let room = client.pool().alloc(LEN).unwrap();
            client.submit_into(MAKE, make_request(LEN), room, deadline())
        } else {
            client.submit(MAKE, make_request(LEN), deadline())
        };
        calls.push_back(call.unwrap());
    }
    for call in calls.drain(..) {
        assert_eq!(call.wait(&mut client).unwrap().len(), LEN);
    }
    let answer = [1u64.to_le_bytes(), (LEN as u64).to_le_bytes()].concat();
    for _ in 0..64 {
        if calls.len() == 8 {
            let reply = calls.pop_front().unwrap().wait(&mut client).unwrap();
            assert_eq!(reply.bytes(), answer);
        }
        let mut request = client.pool().alloc(LEN).unwrap();
        fill(&mut request, SEED);
        calls.push_back(client.submit(CHECK, request, deadline()).unwrap());
    }
    for call in calls {
        assert_eq!(call.wait(&mut client).unwrap().bytes(), answer);
    }
    done(peer, client);
}

/// Calls in each direction; the way back carries nothing of the application's.
const CALLS: usize = 100_000;

#[test]
fn a_hundred_thousand_requests_without_replies_finish() {
    let name = "a_hundred_thousand_requests_without_replies_finish";
    let Some((peer, mut client)) = server_process(name, &[]) else {
        return;
    };
    // An unknown method would do too; a check answers little to much.
    let request = pattern(1000, SEED);
    let answer = [1u64.to_le_bytes(), 1000u64.to_le_bytes()].concat();
    pipelined(&mut client, CHECK, &request, |reply| {
        assert_eq!(reply, answer)
    });
    assert_eq!(client.stats().rnr, 0);
    done(peer, client);
}

#[test]
fn a_hundred_thousand_replies_to_empty_requests_finish() {
    let name = "a_hundred_thousand_replies_to_empty_requests_finish";
    let Some((peer, mut client)) = server_process(name, &[]) else {
        return;
    };
    let request = make_request(1000);
    pipelined(&mut client, MAKE, &request, |reply| {
        assert_eq!(reply.len(), 1000);
        assert!(is_pattern(reply, SEED));
    });
    assert_eq!(client.stats().rnr, 0);
    done(peer, client);
}

fn pipelined(client: &mut Client, method: Method, request: &[u8], check: impl Fn(&[u8])) {
    let mut calls: VecDeque<Pending> = VecDeque::new();
    for _ in 0..CALLS {
        if calls.len() == client.slots() as usize {
            let reply = calls.pop_front().unwrap().wait(client).unwrap();
            check(reply.bytes());
        }
        calls.push_back(client.submit(method, request, deadline()).unwrap());
    }
    for call in calls {
        check(call.wait(client).unwrap().bytes());
    }
}

#[test]
fn the_death_of_the_server_ends_every_call() {
    let name = "the_death_of_the_server_ends_every_call";
    let Some((mut peer, mut client)) = server_process(name, &[]) else {
        return;
    };
    let waiting = client.submit(HOLD, "held", Deadline::never()).unwrap();
    let large = client.pool().alloc(1 << 20).unwrap();
    let also = client.submit(HOLD, large, Deadline::never()).unwrap();
    peer.kill();
    for call in [waiting, also] {
        let error = call.wait(&mut client).unwrap_err();
        assert!(
            matches!(error, CallError::MaybeExecuted { .. }),
            "{error:?}"
        );
    }
    // Nothing of this one left: it may be made again elsewhere.
    let error = client.call(ECHO, "after", Deadline::never()).unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    assert!(client.lost().is_some());
}

#[test]
fn the_death_of_a_client_leaves_the_server_to_others() {
    match second_process("the_death_of_a_client_leaves_the_server_to_others") {
        Side::Child(mut control) => {
            let address = String::from_utf8(control.receive()).unwrap();
            let mut client = connect(address.parse().unwrap());
            let mut calls = Vec::new();
            for _ in 0..8 {
                let large = client.pool().alloc(8 << 20).unwrap();
                calls.push(client.submit(CHECK, large, deadline()).unwrap());
            }
            control.send("calling");
            control.expect("never sent: this process is killed here");
        }
        Side::Parent(mut peer) => {
            let server = serve();
            peer.control.send(server.local_addr().to_string());
            peer.control.expect("calling");
            peer.kill();
            let mut client = connect(server.local_addr());
            let reply = client.call(ECHO, "still there", deadline()).unwrap();
            assert_eq!(reply.bytes(), b"still there");
            server.shutdown();
        }
    }
}
