//! A server with clients that do what they like, beside some that behave.

use crate::common::*;
use crate::host::{Canaries, Host, hold_again, holds};
use crate::offender::{Known, Offender, Tally};
use rpc::fuzzing::Random;
use rpc::{Client, Code, Request, Responder, Server, ServerHandle};
use std::thread;
use std::time::Instant;

/// Offenders at a time: one can write where another's messages are being read.
const OFFENDERS: u64 = 2;
/// Cases between two looks at those who behave.
const LOOK: u64 = 200;

/// A handler that would notice if a body changed under its eyes.
fn handler(request: Request<'_>, responder: Responder) {
    let before = sum(request.body());
    thread::yield_now();
    assert_eq!(before, sum(request.body()), "a body that changes");
    match request.method() {
        ECHO => responder.reply(request.body()),
        SUM => responder.reply(before),
        TAKE => match request.take_body() {
            Ok(buf) => responder.reply(buf),
            Err(_) => responder.reply("inline"),
        },
        DROP => drop(responder),
        _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
    }
}

/// Clients of the usual kind, with memory of their own.
fn bystanders(server: &ServerHandle) -> Vec<Client> {
    let (_, pd, pool) = memory();
    [PATHS[0], PATHS[3], PATHS[6], PATHS[7]]
        .into_iter()
        .map(|(request, reply)| {
            Client::builder()
                .pool(pd, pool)
                .request(request)
                .reply(reply)
                .connect_timeout(hang())
                .connect(server.local_addr())
                .expect("those who behave can connect")
        })
        .collect()
}

fn unharmed(bystanders: &mut [Client], random: &mut Random) {
    for client in bystanders {
        let len = random.pick(&[0, 10, 300, 4096, 5000, 100_000]);
        let bytes = pattern(len, random.word() as u8);
        let reply = client.call(ECHO, &bytes[..], patient()).expect("a reply");
        assert!(reply.bytes() == bytes, "{len} bytes");
    }
}

pub fn soak(seed: u64, cases: u64) {
    let host = Host::new();
    let server = Server::bind("127.0.0.1:0")
        .expect("bind")
        .pool(&host.pd, &host.pool)
        .window(64)
        .max_message(1 << 20)
        .max_connections(64)
        .serve(|_core| handler)
        .expect("serve");
    let canaries = Canaries::new(&host);
    let mut random = Random::new(seed);
    // Once everything, so that what is made once is there.
    unharmed(&mut bystanders(&server), &mut random);
    drop(Offender::new(&server, &mut random, &Known::default()));
    settled(&server);
    let before = holds(&[&host]);
    let mut others = bystanders(&server);

    let (known, start) = (Known::default(), Instant::now());
    let tally = thread::scope(|scope| {
        let (server, known) = (&server, &known);
        let threads: Vec<_> = (0..OFFENDERS)
            .map(|n| {
                let mut random = Random::new(seed ^ (n + 1) << 40);
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    let mut offender = Offender::new(server, &mut random, known);
                    for _ in 0..cases.div_ceil(OFFENDERS) {
                        if !offender.act(&mut random, &mut tally) {
                            tally.ended(offender);
                            offender = Offender::new(server, &mut random, known);
                        }
                    }
                    tally
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            unharmed(&mut others, &mut random);
            for _ in 0..LOOK {
                thread::yield_now();
            }
        }
        let tallies = threads.into_iter().map(|thread| thread.join());
        tallies.fold(Tally::default(), |sum, one| {
            sum.plus(one.expect("no panic"))
        })
    });
    println!("{cases} cases in {:?}: {tally}", start.elapsed());
    println!("{}", server.stats());
    unharmed(&mut others, &mut random);
    drop(others);
    settled(&server);
    canaries.live();
    assert_eq!(
        server.stats().panics,
        0,
        "the handler saw nothing that changed"
    );
    hold_again(&[&host], &before);
    tally.had_everything();
}

/// Waits until nobody is connected.
fn settled(server: &ServerHandle) {
    let start = Instant::now();
    while server.stats().connections > 0 {
        assert!(start.elapsed() < hang(), "{}", server.stats());
        thread::yield_now();
    }
}
