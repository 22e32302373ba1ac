//! Rings that are polled: nobody sleeps over a message, sleepers are found by whatever comes, and who breaks the rules is let go.

mod common;
mod raw;

use common::alone::{cpu_of_process, is_alone};
use common::*;
use raw::{Introduction, Message, Raw, VIOLATION};
use rpc::{ReplyPath, RequestPath, Waiting};
use std::thread;
use std::time::{Duration, Instant};

const POLLED: Paths = (RequestPath::WritePoll, ReplyPath::WritePoll);

/// Those with a polled ring in either direction or both.
fn ways() -> Vec<Paths> {
    let polled =
        |paths: &&Paths| paths.0 == RequestPath::WritePoll || paths.1 == ReplyPath::WritePoll;
    PATHS.iter().filter(polled).copied().collect()
}

/// A client and a server that sleep whenever they find nothing: each message meets an end that is awake, asleep, or somewhere between.
#[test]
fn no_message_is_slept_over() {
    over(&ways(), hang(), || {
        let server = serve(server().waiting(Waiting::SLEEP));
        let mut client = builder()
            .waiting(Waiting::SLEEP)
            .connect(server.local_addr())
            .unwrap();
        let rounds = 800 / slowness() as usize;
        for n in 0..rounds {
            // Nothing waits for anything here: what differs is how far the other end has come.
            for _ in 0..n % 7 * 5 {
                thread::yield_now();
            }
            let bytes = pattern(n % 700, n as u8);
            let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
            assert!(reply.bytes() == bytes, "call {n}");
            if n % 16 == 0 {
                let calls: Vec<_> = (0..8)
                    .map(|_| client.submit(ECHO, &bytes[..], patient()).unwrap())
                    .collect();
                for call in calls {
                    assert!(call.wait(&mut client).unwrap().bytes() == bytes);
                }
            }
        }
        assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
    });
}

/// A server that sleeps hears of a request that its client posted and then did nothing more for.
#[test]
fn a_sleeping_server_is_woken_by_who_does_nothing_else() {
    over(&[POLLED], hang(), || {
        let server = serve(server());
        let mut client = client(&server);
        client.call(ECHO, "up", patient()).unwrap();
        for n in 0..20u64 {
            // Until it sleeps, or nearly: longer each time.
            thread::sleep(Duration::from_micros(50 * n));
            let before = server.stats().calls;
            let pending = client.submit(ECHO, "x", patient()).unwrap();
            let start = Instant::now();
            while server.stats().calls == before {
                assert!(start.elapsed() < hang(), "call {n} is not noticed");
                thread::yield_now();
            }
            assert_eq!(pending.wait(&mut client).unwrap().bytes(), b"x");
        }
    });
}

/// Messages of all lengths, one lap after the other, whose bytes look like stamps.
#[test]
fn payloads_that_look_like_stamps_are_none() {
    over(&ways(), hang(), || {
        let server = serve(server().ring_size(1));
        let mut client = builder().ring_size(1).connect(server.local_addr()).unwrap();
        let mut number = 0u32;
        for n in 0..1500usize / slowness() as usize {
            // Without a rule, so that later ones lie across these.
            let len = [0, 8, 100, 500, 4096][(n * n / 7 + n / 3) % 5];
            // The stamps of messages that come soon, with what could be their length and what could not.
            let mut bytes = Vec::with_capacity(len + 8);
            while bytes.len() < len {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let like = [64 + (number >> 12) % 100, 70_000][(number >> 20) as usize % 2];
                bytes.extend(like.to_le_bytes());
                bytes.extend((n as u32 + (number >> 8) % 40).to_le_bytes());
            }
            bytes.truncate(len);
            let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
            assert!(reply.bytes() == bytes, "call {n}");
        }
        assert!(client.lost().is_none());
    });
}

fn polled_raw(server: &rpc::ServerHandle) -> Raw {
    let introduction = Introduction {
        ring: true,
        polled: true,
        ..Introduction::default()
    };
    Raw::introduce(server, introduction)
}

/// The server posts nothing before the first request: a client that takes its time to connect its queue pair would not take it.
#[test]
fn a_client_may_take_its_time_to_connect() {
    bounded(|| {
        let server = serve(server());
        let introduction = Introduction {
            ring: true,
            polled: true,
            late: true,
            ..Introduction::default()
        };
        let mut raw = Raw::introduce(&server, introduction);
        assert_eq!(server.stats().connections, 1);
        assert!(raw.send(Message::request(&raw).bytes()));
        while raw.replies == 0 {
            raw.poll();
        }
    });
}

/// What ends a connection by a stamp, and what does not.
#[test]
fn wrong_stamps_end_the_connection_or_nothing() {
    bounded(|| {
        let server = serve(server());
        let mut other = client(&server);
        // In order, so that the peer is known to work.
        let mut raw = polled_raw(&server);
        assert!(raw.send(Message::request(&raw).bytes()));
        while raw.replies == 0 {
            raw.poll();
        }
        drop(raw);

        // Lengths that no message has, a place that a message of this length has not.
        for (len, at) in [(5000u32, 0u64), (u32::MAX, 0), (1 << 20, 0)] {
            let mut raw = polled_raw(&server);
            let stamp = u64::from(len) | 1 << 32;
            raw.count += 1;
            raw.tell();
            raw.write(Some(stamp.to_le_bytes().to_vec()), at, false);
            raw.wake();
            assert_eq!(raw.goodbye(), VIOLATION, "{len} at {at}");
        }
        // A wake that was not asked for: a server that falls asleep in between asks for one more each time.
        let mut raw = polled_raw(&server);
        while raw.send_plainly(None) {}
        assert_eq!(raw.goodbye(), VIOLATION);
        // A message that is sent instead.
        let mut raw = polled_raw(&server);
        let message = Message::request(&raw).bytes();
        let _ = raw.send_plainly(Some(message));
        let told = raw.goodbye();
        assert!(told == VIOLATION || told == raw::DEVICE, "{told}");
        // More than can be on their way.
        let mut raw = polled_raw(&server);
        raw.count = 1 << 40;
        raw.tell();
        raw.wake();
        assert_eq!(raw.goodbye(), VIOLATION);

        // Stamps of other messages, and such whose message never comes, are waited for; others are served meanwhile.
        let mut raw = polled_raw(&server);
        for stamp in [100u64 | 2 << 32, 100 | 3 << 32, 0, 100 | 1 << 32] {
            raw.write(Some(stamp.to_le_bytes().to_vec()), 0, false);
            raw.count = 1;
            raw.tell();
            raw.wake();
            for _ in 0..100 {
                assert_eq!(other.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
            }
        }
        // And is taken when it is whole.
        raw.count = 0;
        assert!(raw.send(Message::request(&raw).bytes()));
        while raw.replies == 0 {
            raw.poll();
        }
    });
}

/// What half a second costs in which nobody does anything, in parts of it.
fn idle_share() -> f64 {
    let (before, start) = (cpu_of_process(), Instant::now());
    thread::sleep(Duration::from_millis(500));
    (cpu_of_process() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// A sender that says more is on its way than ever comes keeps nobody from sleeping.
#[test]
fn who_counts_messages_that_do_not_come_costs_little() {
    if !is_alone("who_counts_messages_that_do_not_come_costs_little") {
        return;
    }
    bounded(|| {
        let server = serve(server());
        let mut raw = polled_raw(&server);
        raw.count = 3;
        raw.tell();
        raw.wake();
        let mut other = client(&server);
        other.call(ECHO, "x", patient()).unwrap();
        let share = idle_share();
        assert!(share < 0.3, "{share}");
        assert_eq!(server.stats().connections, 2);
        // And it is served as soon as it says what it has to say.
        raw.count = 0;
        assert!(raw.send(Message::request(&raw).bytes()));
        while raw.replies == 0 {
            raw.poll();
        }
    });
}

/// Does something until so many connections are looked at, at most.
fn until_polled(server: &rpc::ServerHandle, most: u64, mut meanwhile: impl FnMut()) {
    let start = Instant::now();
    while server.stats().polled > most {
        let polled = server.stats().polled;
        assert!(start.elapsed() < hang(), "{polled} are looked at");
        meanwhile();
    }
}

/// Connections without calls are not looked at, also not beside one with calls.
#[test]
fn many_idle_connections_cost_nothing() {
    if !is_alone("many_idle_connections_cost_nothing") {
        return;
    }
    over(&[POLLED], hang(), || {
        let server = serve(server().max_connections(100));
        let mut clients: Vec<_> = (0..60).map(|_| client(&server)).collect();
        for round in 0..3 {
            for client in &mut clients {
                client.call(ECHO, "x", patient()).unwrap();
            }
            let share = idle_share();
            assert!(share < 0.2, "{share} in round {round}");
            until_polled(&server, 0, thread::yield_now);
        }
        // All wake up, and most fall asleep again although others keep the core from it.
        let mut most = 0;
        for client in &mut clients {
            client.call(ECHO, "x", patient()).unwrap();
            // Where threads wait for a processor, this one may be asleep again; not each of them.
            most = most.max(server.stats().polled);
        }
        assert!(most > 0);
        let mut n = 0;
        until_polled(&server, 3, || {
            clients[n % 3].call(ECHO, "x", patient()).unwrap();
            n += 1;
        });
        for client in &mut clients {
            client.call(ECHO, "x", patient()).unwrap();
        }
        drop(clients);
        until_polled(&server, 0, thread::yield_now);
    });
}

/// Connections without calls fall asleep also on a core that never does.
#[test]
fn idle_connections_fall_asleep_beside_others() {
    over(&[POLLED], hang(), || {
        let never = Waiting {
            spin: Duration::ZERO,
            relax: 2 * hang(),
        };
        let server = serve(server().waiting(never));
        let mut clients: Vec<_> = (0..20).map(|_| client(&server)).collect();
        for _ in 0..2 {
            for client in &mut clients {
                client.call(ECHO, "x", patient()).unwrap();
            }
            let mut n = 0;
            until_polled(&server, 3, || {
                clients[n % 3].call(ECHO, "x", patient()).unwrap();
                n += 1;
            });
        }
    });
}

/// What a handler has answered for another connection leaves, whatever the next message of its own connection is.
#[test]
fn an_answer_for_another_is_delivered_although_what_follows_ends_the_connection() {
    bounded(|| {
        const PARK: rpc::Method = rpc::Method(100);
        const FREE: rpc::Method = rpc::Method(101);
        let server = server().cores(1).serve(|_| {
            let mut parked = None;
            move |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
                PARK => parked = Some(responder),
                _ => {
                    if let Some(parked) = parked.take() {
                        parked.reply("freed");
                    }
                    responder.reply("done");
                }
            }
        });
        let server = server.unwrap();
        let mut other = builder().connect(server.local_addr()).unwrap();
        let mut raw = polled_raw(&server);
        let deadline = rpc::Deadline::after(Duration::from_secs(5));
        let pending = other.submit(PARK, "x", deadline).unwrap();
        while server.stats().calls == 0 {
            thread::yield_now();
        }
        let message = Message {
            method: FREE.0,
            ..Message::request(&raw)
        };
        let message = message.bytes();
        // What comes second is there before the first.
        let second = (16 + message.len() as u64).next_multiple_of(64);
        let stamp = 5000u64 | 2 << 32;
        raw.write(Some(stamp.to_le_bytes().to_vec()), second, false);
        let _ = raw.send(message);
        assert_eq!(raw.goodbye(), VIOLATION);
        assert_eq!(pending.wait(&mut other).unwrap().bytes(), b"freed");
    });
}

/// As many requests as a batch says there is room for, of a length that a frame brings over a granule.
#[test]
fn a_batch_counts_the_frames_of_its_requests() {
    over(&[POLLED], hang(), || {
        for (window, size, len) in [(64, 1, 472), (2048, 64 << 10, 24)] {
            let server = serve(server().window(window).ring_size(size));
            let mut client = builder()
                .window(window)
                .connect(server.local_addr())
                .unwrap();
            for round in 0..5 {
                let bytes = pattern(len, round);
                let mut batch = client.batch();
                let mut count = 0;
                while batch.room() > 0 {
                    batch.add(ECHO, &bytes[..], patient()).unwrap();
                    count += 1;
                }
                assert!(count > 10, "{count}");
                for call in batch.post() {
                    assert!(call.wait(&mut client).unwrap().bytes() == bytes);
                }
            }
        }
    });
}
