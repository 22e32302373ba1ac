//! More clients than processors: all get on, also one that has once had to wait for the others.

mod common;

use common::processors::{allowed, run_on};
use common::*;
use rpc::{Method, Request, Responder, Waiting};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;

/// Counts, and takes [`TAKES`].
const COUNT: Method = Method(100);
/// Is answered after some calls of others.
const WAIT: Method = Method(101);

/// Long beside looking for an answer a few times, short beside what clients here spin for.
const TAKES: Duration = Duration::from_micros(20);

/// A thread that spins for so long has the processor until its slice is over.
const WAITING: Waiting = Waiting {
    spin: Duration::from_micros(500),
    relax: Duration::from_millis(5),
};

/// Calls of the others for which the first waits: more time than it spins for, less than a slice.
const OTHERS: u64 = 30;

/// Calls of the quickest, after which the slowest must have made a tenth: so many that each has had the processor several times. Whatever
/// else the machine does, the clients share one processor, and its scheduler gives each the same time.
const CALLS: u64 = 3000;
/// On a device that works late they take longer.
const CALLS_LATE: u64 = 600;

/// Races, in one of which all have to get on.
const RACES: u32 = 20;

/// Eight clients on the first processor, the server's core on the last. The first client calls once what is answered when others have called for a
/// while; which they can do only while it lets them.
///
/// Returns how many calls each has made when the quickest has made so many.
fn race(calls: u64) -> Vec<u64> {
    let all = allowed();
    let (first, last) = (all[0], *all.last().unwrap());
    let counts: Arc<[AtomicU64; CLIENTS]> = Arc::default();
    let theirs = Arc::clone(&counts);
    let server = server().cores(1).pin([last]).serve(move |_core| {
        let counts = Arc::clone(&theirs);
        let (mut waits, mut since) = (None, 0);
        move |request: Request<'_>, responder: Responder| {
            let at = usize::from(request.body()[0]);
            if request.method() == WAIT {
                (waits, since) = (Some(responder), 0);
                return;
            }
            since += 1;
            if since == OTHERS
                && let Some(first) = waits.take()
            {
                first.reply("now");
            }
            counts[at].fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            while start.elapsed() < TAKES {}
            responder.reply(());
        }
    });
    let server = server.unwrap();
    let (address, paths) = (server.local_addr(), paths());
    let threads: Vec<_> = (0..CLIENTS)
        .map(|at| {
            let counts = Arc::clone(&counts);
            thread::spawn(move || {
                run_on(first);
                let (_, pd, pool) = client_memory();
                let builder = rpc::Client::builder().pool(pd, pool).waiting(WAITING);
                let builder = builder.request(paths.0).reply(paths.1);
                let mut client = builder.connect(address).unwrap();
                if at == 0 {
                    // All others have begun.
                    while counts[1..].iter().any(|n| n.load(Ordering::Relaxed) == 0) {
                        thread::yield_now();
                    }
                    client.call(WAIT, [0], patient()).unwrap();
                }
                while counts.iter().all(|n| n.load(Ordering::Relaxed) < calls) {
                    client.call(COUNT, [at as u8], patient()).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    counts.iter().map(|n| n.load(Ordering::Relaxed)).collect()
}

/// Who else runs on that processor is nobody's to say here, so it is enough if they get on alike once; if one yields with every call, they never do.
#[test]
fn who_has_waited_for_others_gets_on_like_them() {
    over(&ALIKE, hang(), || {
        let calls = match std::env::var_os("VERBATIM_ASYNC") {
            Some(_) => CALLS_LATE,
            None => CALLS,
        };
        let alike = (0..RACES).any(|_| {
            let counts = race(calls);
            println!("{counts:?}");
            counts.iter().all(|&count| count * 10 >= calls)
        });
        assert!(alike);
    });
}
