//! Many threads on one queue pair, many queue pairs on one completion queue.

use crate::case::{Topic, case};
use crate::device::Bed;
use crate::memory::{ALL, LOCAL, Mem};
use crate::queue::{End, Options, RC, UD, connected};
use crate::request::{Request, add, send, write};
use crate::sundry::{Ah, Cq, becomes};
use crate::threads::{Gate, Worker, start};
use std::sync::Arc;

pub const TOPIC: Topic = Topic {
    name: "Many threads",
    cases: &[
        case(
            "four threads post to one queue pair",
            posters,
            "ibv_post_send(3)",
            "100, each once, of each thread in order",
        ),
        case(
            "what they send arrives in the order of their completions",
            arrivals,
            "IBTA chapter 10",
            "100, in the same order",
        ),
        case(
            "four threads post to a queue that is full at times",
            crowded,
            "ibv_post_send(3)",
            "100, each once, of each thread in order",
        ),
        case(
            "four threads post datagrams to one queue pair",
            datagrams,
            "ibv_post_send(3)",
            "100, each once, of each thread in order",
        ),
        case(
            "two threads post receives while a third sends",
            receivers,
            "ibv_post_recv(3)",
            "100, each once, of each thread in order",
        ),
        case(
            "two threads poll the queue of four queue pairs",
            pollers,
            "ibv_poll_cq(3)",
            "100, each once",
        ),
        case(
            "four threads add to one word, by a queue pair each",
            adders,
            "IBTA chapter 9",
            "1000",
        ),
        case(
            "threads send both ways on one connection",
            both_ways,
            "ibv_post_send(3)",
            "50 there, 50 back",
        ),
    ],
};

const THREADS: u64 = 4;
const EACH: u64 = 25;
/// Of those that post to one queue: in a single one they may just not meet.
const ROUNDS: usize = 20;
/// Of each thread that adds: so many that they are at it at the same time.
const ADDS: u64 = 250;
const ALL_OF_THEM: usize = (THREADS * EACH) as usize;
const ROOMY: Options = Options {
    depth: 128,
    cqe: 256,
    ..RC
};

/// The thread is in the hundreds.
fn id(thread: u64, index: u64) -> u64 {
    100 * thread + index
}

/// The ids of the next completions, all of which must succeed.
fn ids(cq: &Cq, count: usize) -> Vec<u64> {
    let one = |_| {
        let wc = cq.next();
        assert_eq!(wc.status.0, 0, "of request {}", wc.wr_id);
        wc.wr_id
    };
    (0..count).map(one).collect()
}

/// Whether these are all of `threads` threads, each thread's in its order.
fn judge(ids: &[u64], threads: u64) -> String {
    let each = ids.len() as u64 / threads;
    for thread in 0..threads {
        let own: Vec<u64> = ids.iter().copied().filter(|i| i / 100 == thread).collect();
        if own != (0..each).map(|i| id(thread, i)).collect::<Vec<_>>() {
            return format!("of thread {thread}: {own:?}");
        }
    }
    format!("{}, each once, of each thread in order", ids.len())
}

/// Threads that post what `request` makes of an id, again and again until it is taken.
fn post(
    end: &Arc<End>,
    request: impl Fn(u64) -> Request + Clone + Send + 'static,
) -> Vec<Worker<()>> {
    let gate = Gate::of(THREADS);
    let thread = |thread| {
        let (end, request, gate) = (end.clone(), request.clone(), gate.clone());
        start(move || {
            gate.pass();
            for index in 0..EACH {
                let taken = becomes(|| match request(id(thread, index)).post(&end) {
                    0 => true,
                    libc::ENOMEM => false,
                    error => panic!("refused: {error}"),
                });
                assert!(taken, "there never is room");
            }
        })
    };
    (0..THREADS).map(thread).collect()
}

fn finish(workers: Vec<Worker<()>>) {
    workers.into_iter().for_each(Worker::join);
}

fn written(bed: &Bed, options: &Options) -> String {
    let (a, b) = bed.pair(options);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let a = Arc::new(a);
    let (sge, addr, rkey) = (from.sge(0, 8), to.addr(), to.rkey());
    let write = move |id| {
        Request::new(id, ibverbs_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE)
            .sge(sge)
            .remote(addr, rkey)
    };
    let round = || {
        let workers = post(&a, write);
        let seen = ids(&a.cq, ALL_OF_THEM);
        finish(workers);
        assert_eq!(a.rest(), "none");
        judge(&seen, THREADS)
    };
    let first = round();
    // The first that is different, if there is one.
    let others = (1..ROUNDS).map(|_| round()).find(|seen| *seen != first);
    others.unwrap_or(first)
}

fn posters(bed: &Bed) -> String {
    written(bed, &ROOMY)
}

fn crowded(bed: &Bed) -> String {
    written(bed, &Options { depth: 8, ..ROOMY })
}

/// A message with its id inside.
fn numbered(mem: &Mem) -> impl Fn(u64) -> Request + Clone + Send + 'static {
    for thread in 0..THREADS {
        for index in 0..EACH {
            let id = id(thread, index);
            mem.fill(8 * id as usize, &id.to_ne_bytes());
        }
    }
    let all = mem.sge(0, 8);
    move |id| {
        let mut sge = all;
        sge.addr += 8 * id;
        Request::new(id, ibverbs_sys::ibv_wr_opcode::IBV_WR_SEND).sge(sge)
    }
}

/// Memory for all messages, and for their receives.
fn room(a: &End, b: &End) -> (Mem, Mem) {
    let len = 8 * 100 * THREADS as usize;
    (
        Mem::new(&a.side, len, LOCAL),
        Mem::new(&b.side, 8 * len, LOCAL),
    )
}

fn word(mem: &Mem, offset: usize) -> u64 {
    u64::from_ne_bytes(mem.get(offset, 8).try_into().expect("8 bytes"))
}

fn arrivals(bed: &Bed) -> String {
    let (a, b) = bed.pair(&ROOMY);
    let (from, to) = room(&a, &b);
    for index in 0..ALL_OF_THEM {
        b.recv(index as u64, &to, 8 * index, 8);
    }
    let a = Arc::new(a);
    let workers = post(&a, numbered(&from));
    let sent = ids(&a.cq, ALL_OF_THEM);
    let received = ids(&b.cq, ALL_OF_THEM);
    finish(workers);
    let received: Vec<u64> = received
        .iter()
        .map(|i| word(&to, 8 * *i as usize))
        .collect();
    match sent == received {
        true => format!("{}, in the same order", sent.len()),
        false => format!("sent {sent:?}, received {received:?}"),
    }
}

fn datagrams(bed: &Bed) -> String {
    let options = Options {
        depth: 128,
        cqe: 256,
        ..UD
    };
    let (a, b) = bed.pair(&options);
    let (from, to) = room(&a, &b);
    for index in 0..ALL_OF_THEM {
        b.recv(index as u64, &to, 48 * index, 48);
    }
    let ah = Arc::new(Ah::new(&a.side, &b.side));
    let (qpn, a) = (b.qpn(), Arc::new(a));
    let request = numbered(&from);
    let to_b = ah.clone();
    let workers = post(&a, move |id| request(id).ud(&to_b, qpn, crate::queue::QKEY));
    let sent = ids(&a.cq, ALL_OF_THEM);
    finish(workers);
    let received = ids(&b.cq, ALL_OF_THEM);
    let received: Vec<u64> = received
        .iter()
        .map(|i| word(&to, 48 * *i as usize + 40))
        .collect();
    assert_eq!(judge(&sent, THREADS), judge(&received, THREADS));
    judge(&received, THREADS)
}

fn receivers(bed: &Bed) -> String {
    let (a, b) = bed.pair(&ROOMY);
    let (from, to) = (
        Mem::of(&a.side, b"x"),
        Arc::new(Mem::new(&b.side, 8, LOCAL)),
    );
    let b = Arc::new(b);
    let workers = [0, 1].map(|thread| {
        let (b, to) = (b.clone(), to.clone());
        start(move || (0..50).for_each(|i| b.recv(id(thread, i), &to, 0, 8)))
    });
    // The first may come before there is a receive.
    for i in 0..ALL_OF_THEM as u64 {
        send(i, &from, 1).go(&a);
    }
    let received = ids(&b.cq, ALL_OF_THEM);
    assert_eq!(ids(&a.cq, ALL_OF_THEM), Vec::from_iter(0..100));
    workers.into_iter().for_each(Worker::join);
    judge(&received, 2)
}

fn pollers(bed: &Bed) -> String {
    let cq = Cq::new(&bed.a, 256);
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| {
            let a = End::on(&bed.a, &RC, None, cq.lend()).init();
            connected((a, End::new(&bed.b, &RC).init()))
        })
        .collect();
    let (from, to) = (Mem::new(&bed.a, 8, LOCAL), Mem::new(&bed.b, 8, ALL));
    let gone = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let threads = [(); 2].map(|()| {
        let (cq, gone) = (cq.lend(), gone.clone());
        start(move || {
            let mut own = Vec::new();
            let all = becomes(|| {
                if let Some(wc) = cq.poll() {
                    assert_eq!(wc.status.0, 0);
                    own.push(wc.wr_id);
                    gone.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                gone.load(std::sync::atomic::Ordering::Relaxed) == ALL_OF_THEM
            });
            assert!(all, "completions are missing");
            own
        })
    });
    for index in 0..EACH {
        for (thread, (a, _)) in pairs.iter().enumerate() {
            let request = |_| write(id(thread as u64, index), from.sge(0, 8), &to).post(a) == 0;
            assert!(becomes(|| request(())), "there never is room");
        }
    }
    let mut seen: Vec<u64> = threads.into_iter().flat_map(Worker::join).collect();
    seen.sort_unstable();
    let all: Vec<u64> = (0..THREADS)
        .flat_map(|thread| (0..EACH).map(move |index| id(thread, index)))
        .collect();
    match seen == all {
        true => format!("{}, each once", seen.len()),
        false => format!("{seen:?}"),
    }
}

fn adders(bed: &Bed) -> String {
    let sum = Arc::new(Mem::new(&bed.b, 8, ALL));
    let gate = Gate::of(THREADS);
    let pairs: Vec<_> = (0..THREADS).map(|_| bed.pair(&RC)).collect();
    let worker = |(a, b): (End, End)| {
        let (old, sum, gate) = (Mem::new(&a.side, 8, LOCAL), sum.clone(), gate.clone());
        start(move || {
            gate.pass();
            for index in 0..ADDS {
                add(index, &old, &sum, 1).go(&a);
                assert_eq!(a.ids(1), index.to_string());
            }
            // So that the peer is there until the end.
            drop((a, b));
        })
    };
    finish(pairs.into_iter().map(worker).collect());
    sum.word().to_string()
}

fn both_ways(bed: &Bed) -> String {
    let (a, b) = bed.pair(&ROOMY);
    let work = |end: End| {
        let mem = Mem::new(&end.side, 8, LOCAL);
        for index in 0..50 {
            end.recv(id(1, index), &mem, 0, 8);
        }
        move || {
            for index in 0..50 {
                send(index, &mem, 8).go(&end);
            }
            let mut seen = ids(&end.cq, 100);
            // Each kind in its order, however they are mixed.
            seen.sort_by_key(|id| id / 100);
            assert_eq!(seen, Vec::from_iter((0..50).chain(100..150)));
            (50, end, mem)
        }
    };
    let (a, b) = (work(a), work(b));
    let (a, b) = (start(a), start(b));
    let (a, b) = (a.join(), b.join());
    format!("{} there, {} back", a.0, b.0)
}
