//! Messages of random lengths in both directions, over all paths: no receiver is ever not ready, nobody waits for ever, and every reply is the right one.
//!
//! `VERBATIM_SOAK=100000000 cargo test --release -p verbatim-rpc --test soak` sends a hundred million; two million by default, a request and
//! a reply being two. `VERBATIM_SEED` chooses others.

mod common;

use common::*;
use rpc::{Client, Method, Pending, Request, Responder, ServerHandle};
use std::collections::VecDeque;

/// Replies with as many bytes as the first four of the request say, each of which is the first behind them.
const MIX: Method = Method(20);

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

/// Numbers that look random, always the same for a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly short, as messages are: each power of two up to 2^13 as often as the others, and with it what is pulled.
    fn len(&mut self) -> usize {
        let most = 1u64 << (self.next() % 14);
        (self.next() % most) as usize
    }
}

fn mixing() -> ServerHandle {
    let server = server().serve(|core| {
        let pool = core.pool().clone();
        let short = [[0u8; 256], [1; 256], [2; 256], [3; 256]];
        move |request: Request<'_>, responder: Responder| {
            let body = request.body();
            let [a, b, c, d, tag, ..] = *body else {
                return responder.reply(());
            };
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            if let Some(bytes) = short[usize::from(tag % 4)].get(..len) {
                return responder.reply(bytes);
            }
            let mut reply = pool.alloc(len).expect("room for a reply");
            reply.fill(tag % 4);
            responder.reply(reply);
        }
    });
    server.expect("serve")
}

/// A call on its way, and what it is to be answered with.
type Awaited = (Pending, usize, u8);

fn finish(client: &mut Client, (call, len, tag): Awaited) {
    let reply = call.wait(client).expect("a reply");
    let bytes = reply.bytes();
    assert_eq!(bytes.len(), len);
    let ends = [bytes.first(), bytes.last()];
    assert!(ends.iter().all(|byte| byte.is_none_or(|byte| *byte == tag)));
}

fn soak(calls: u64, seed: u64) {
    let server = mixing();
    let mut client = client(&server);
    let mut numbers = Numbers(seed | 1);
    let mut waiting: VecDeque<Awaited> = VecDeque::new();
    let mut body = vec![0u8; 1 << 14];
    for at in 0..calls {
        // Now few, now all that fit, now more than are answered at once.
        let ahead = 1 + (numbers.next() % 64) as usize;
        while waiting.len() >= ahead {
            let awaited = waiting.pop_front().expect("not empty");
            finish(&mut client, awaited);
        }
        let (len, reply, tag) = (numbers.len(), numbers.len(), (at % 4) as u8);
        body[..4].copy_from_slice(&(reply as u32).to_le_bytes());
        body[4] = tag;
        let call = client.submit(MIX, &body[..5 + len], patient());
        waiting.push_back((call.expect("sent"), reply, tag));
    }
    for awaited in waiting {
        finish(&mut client, awaited);
    }
    let (here, there) = (client.stats(), server.stats());
    assert_eq!((here.calls, there.calls), (calls, calls));
    assert_eq!((here.rnr, there.rnr), (0, 0));
    assert_eq!((here.failed, here.expired, there.broken), (0, 0, 0));
}

#[test]
fn messages_of_random_lengths_both_ways() {
    let slow = std::env::var_os("VERBATIM_ASYNC").is_some();
    let messages = number("VERBATIM_SOAK", if slow { 100_000 } else { 2_000_000 });
    let calls = (messages / 2 / PATHS.len() as u64 / u64::from(slowness())).max(1);
    let seed = number("VERBATIM_SEED", 1);
    println!("{calls} calls over each path, seed {seed}");
    over(&PATHS, 10 * hang(), move || soak(calls, seed));
}
