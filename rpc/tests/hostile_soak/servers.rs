//! A client with servers that do what they like, beside one that behaves.

use crate::common::*;
use crate::host::{Canaries, Host};
use crate::raw::Message;
use crate::raw::server::{INLINE, RawServer, SLOTS, STRIDE};
use mempool::ExposedLease;
use rpc::fuzzing::{Random, generate};
use rpc::{CallError, Client, Deadline, ReplyPath, RequestPath, ServerHandle};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use verbs::Access;

/// How long a call to such a server may take.
const CALL: Duration = Duration::from_millis(3);
/// How much longer it may take on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

/// What an offending server does about a request. Silence is something to do as well.
fn answer(server: &mut RawServer, random: &mut Random, lent: &ExposedLease) {
    let Some(request) = server.requests.pop_front() else {
        return;
    };
    let mut reply = Message {
        code: 0,
        credit: server.posted,
        inline: pattern(random.below(INLINE.into()) as usize, 1),
        ..request.clone()
    };
    let shelf = request.code;
    match random.below(24) {
        0..6 => {}
        6 => reply.kind = random.pick(&[3, 4, 16, 17, 1, 99]),
        7 => reply.slot = random.edge() as u32,
        8 => reply.generation = random.edge() as u32,
        9 => reply.credit = random.edge() as u32,
        10 => reply.body_len = Some(random.edge()),
        11 => reply.code = random.edge() as u16,
        12..15 => {
            // To be READ: from what it has lent, or from nowhere.
            let region = lent.remote();
            let len = 1 + random.below(region.len);
            let key = random.pick(&[region.rkey.0, region.rkey.0, 77]);
            let addr = region.addr + random.pick(&[0, 0, 0, 4096]);
            reply.pieces.push((1, key, addr, len));
            if !reply.inline.is_empty() {
                reply.pieces.push((0, 0, 0, reply.inline.len() as u64));
            }
            reply.body_len = Some(len + reply.inline.len() as u64);
        }
        15 => return,
        16 => {
            let _ = server.stream.write_all(&generate::control_stream(random));
        }
        17 => {
            server.over = true;
            return;
        }
        18 => {
            let bytes = reply.bytes();
            return server.send_plainly(bytes);
        }
        19 => {
            // Where nothing is expected yet.
            if let Some(ring) = server.peer_ring {
                let at = random.below(ring.len - 2000);
                return server.write(reply.bytes(), at, true);
            }
        }
        20 => {
            let bytes = reply.bytes();
            put(server, random, shelf, &request, bytes.clone());
            return put(server, random, shelf, &request, bytes);
        }
        _ => {
            let mut bytes = reply.bytes();
            generate::bend(&mut bytes, random, generate::message);
            bytes.truncate(4000);
            return put(server, random, shelf, &request, bytes);
        }
    }
    scribble(server, random);
    put(server, random, shelf, &request, reply.bytes());
}

/// Answers, on the shelf if the client looks there.
fn put(server: &mut RawServer, random: &mut Random, units: u16, to: &Message, bytes: Vec<u8>) {
    let Some(shelf) = server.shelf.as_ref().filter(|_| units > 0) else {
        if !bytes.is_empty() {
            server.send(bytes);
        }
        return;
    };
    let head = (usize::from(units) * 64).clamp(64, STRIDE as usize) - 24;
    let mut entry = generate::entry(&bytes, to.generation, head);
    if random.once_in(4) {
        generate::bend(&mut entry, random, generate::shelf_entry);
    }
    entry.truncate(STRIDE as usize);
    let start = u64::from(to.slot % SLOTS) * STRIDE;
    // In parts, from behind or not: the client may be reading.
    let cut = random.below(entry.len() as u64 + 1) as usize;
    let mut parts = [(0, &entry[..cut]), (cut, &entry[cut..])];
    if random.once_in(2) {
        parts.reverse();
    }
    for (at, part) in parts {
        shelf
            .write_at(start as usize + at, part)
            .expect("on the shelf");
    }
}

/// Writes into the client's ring, without it being told.
fn scribble(server: &mut RawServer, random: &mut Random) {
    let Some(ring) = server.peer_ring else {
        return;
    };
    for _ in 0..random.below(3) {
        let noise = match random.once_in(2) {
            true => generate::message(random),
            false => {
                let len = 1 + random.below(300);
                random.bytes(len as usize)
            }
        };
        let at = match random.once_in(2) {
            true => server.peer_at,
            false => random.below(ring.len),
        };
        server.write(noise, at, false);
    }
}

/// Serves one client after the other.
fn serve(listener: &TcpListener, seed: u64, stop: &AtomicBool) {
    let mut random = Random::new(seed);
    let (_, pd, pool) = memory();
    let lent = pool.exposed(100_000).expect("memory");
    let lent = lent.lease(pd, Access::REMOTE_READ).expect("a key");
    loop {
        let (stream, _) = listener.accept().expect("a client");
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut server = RawServer::welcome(stream).expect("a hello");
        while !server.over {
            server.look();
            if server.requests.is_empty() {
                thread::yield_now();
            }
            if random.once_in(4000) {
                scribble(&mut server, &mut random);
            }
            answer(&mut server, &mut random, &lent);
        }
    }
}

/// What became of calls.
type Tally = BTreeMap<&'static str, u64>;

fn connect(host: &Host, random: &mut Random, addr: SocketAddr) -> Client {
    let (request, reply): (RequestPath, ReplyPath) = random.pick(&PATHS);
    let client = Client::builder()
        .pool(&host.pd, &host.pool)
        .request(request)
        .reply(reply)
        .connect_timeout(hang())
        .connect(addr)
        .expect("its handshake is right");
    assert_eq!(client.paths(), Some((request, reply)));
    client
}

/// Some calls; each ends in time, and touches nothing of its destination but the reply.
fn calls(host: &Host, client: &mut Client, random: &mut Random, tally: &mut Tally) -> u64 {
    let count = 1 + random.below(u64::from(SLOTS));
    let (start, deadline) = (Instant::now(), Deadline::after(CALL));
    let mut pending = Vec::new();
    let mut ended = Vec::new();
    for _ in 0..count {
        let len = random.pick(&[0, 8, 200, 512, 9000]);
        let bytes = pattern(len, 3);
        let call = match random.once_in(3) {
            true => {
                let mut into = host.pool.alloc(64 << 10).expect("memory");
                into.fill(0xAB);
                client.submit_into(ECHO, bytes, into, deadline)
            }
            false => client.submit(ECHO, bytes, deadline),
        };
        match call {
            Ok(call) if random.once_in(16) => drop(call),
            Ok(call) => pending.push(call),
            Err(error) => ended.push(Err(error)),
        }
    }
    ended.extend(pending.into_iter().map(|call| call.wait(client)));
    for end in ended {
        let what = match end {
            Ok(mut reply) => {
                let len = reply.len();
                let _ = sum(reply.bytes());
                if let Some(into) = reply.take_destination() {
                    assert!(
                        into[len..].iter().all(|&byte| byte == 0xAB),
                        "beyond the reply"
                    );
                }
                "replies"
            }
            Err(CallError::NotSent(_)) => "not sent",
            Err(CallError::Expired) => "expired",
            Err(CallError::MaybeExecuted { .. }) => "lost",
            Err(CallError::Remote { .. }) => "errors",
            Err(CallError::Overloaded { .. }) => "overloaded",
            Err(CallError::ReplyTooLarge { .. }) => "too large",
            Err(CallError::NoMemory { .. }) => "no memory",
            Err(other) => panic!("{other:?}"),
        };
        *tally.entry(what).or_default() += 1;
    }
    let took = start.elapsed();
    assert!(took < CALL + SLACK * slowness(), "{took:?}");
    count
}

fn unharmed(other: &mut Client, random: &mut Random) {
    let len = random.pick(&[0, 100, 5000, 100_000]);
    let bytes = pattern(len, 9);
    let reply = other.call(ECHO, &bytes[..], patient()).expect("a reply");
    assert!(reply.bytes() == bytes);
}

fn bystander(host: &Host, server: &ServerHandle) -> Client {
    Client::builder()
        .pool(&host.pd, &host.pool)
        .connect_timeout(hang())
        .connect(server.local_addr())
        .expect("a server that behaves")
}

pub fn soak(seed: u64, cases: u64) {
    let host = Host::new();
    let honest = crate::common::serve(server());
    let canaries = Canaries::new(&host);
    let mut random = Random::new(seed);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let (stop, mut tally, start) = (AtomicBool::new(false), Tally::new(), Instant::now());
    let mut connections = 0;
    thread::scope(|scope| {
        let (listener, stop) = (&listener, &stop);
        scope.spawn(move || serve(listener, seed ^ 0xBAD << 40, stop));
        // Once everything, so that what is made once is there.
        unharmed(&mut bystander(&host, &honest), &mut random);
        for _ in 0..4 {
            let mut client = connect(&host, &mut random, addr);
            calls(&host, &mut client, &mut random, &mut Tally::new());
        }
        let before = host.live();
        let mut other = bystander(&host, &honest);
        let mut done = 0;
        while done < cases {
            let mut client = connect(&host, &mut random, addr);
            connections += 1;
            while client.lost().is_none() && done < cases && !random.once_in(100) {
                done += calls(&host, &mut client, &mut random, &mut tally);
            }
            if random.once_in(10) {
                unharmed(&mut other, &mut random);
                canaries.live();
            }
        }
        unharmed(&mut other, &mut random);
        drop(other);
        canaries.live();
        assert_eq!(host.live(), before, "bytes by budget");
        stop.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(addr);
    });
    println!(
        "{cases} calls over {connections} connections in {:?}: {tally:?}",
        start.elapsed()
    );
    for what in ["replies", "expired", "lost", "errors"] {
        assert!(tally.contains_key(what), "{tally:?}");
    }
}
