//! The pool on the user-space device: its buffers as segments of real work requests.
#![cfg(not(loom))]

use mempool::{Budget, BudgetKind, Buf, HugePageUse, HugePages, Kind, Pool, PoolError, SgList, sg};
use std::time::{Duration, Instant};
use verbs::{
    Access, Completion, Cq, Device, Gather, Pd, RecvQueue, RemoteRegion, SendQueue, WcError,
    WcStatus,
};

/// Nothing here takes a second; a test that reaches this hangs.
const HANG: Duration = Duration::from_secs(60);

fn domain() -> Pd {
    let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
    device.alloc_pd().unwrap()
}

/// One side of a connection within this process.
struct End<S: Gather> {
    cq: Cq,
    tx: SendQueue<S>,
    rx: RecvQueue<Buf>,
}

fn pair<S: Gather>(pd: &Pd) -> (End<S>, End<S>) {
    let cqs = [0, 1].map(|_| pd.context().cq(256).build().unwrap());
    let [a, b] = [0, 1].map(|i| {
        let queues = pd.rc(&cqs[i]).send_depth(32).recv_depth(32);
        queues.max_send_sge(16).build().unwrap()
    });
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let [cq_a, cq_b] = cqs;
    let (tx, rx) = a.connect(&to_b).unwrap();
    let a = End { cq: cq_a, tx, rx };
    let (tx, rx) = b.connect(&to_a).unwrap();
    (a, End { cq: cq_b, tx, rx })
}

impl<S: Gather> End<S> {
    fn next(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll().unwrap() {
                return completion;
            }
            assert!(start.elapsed() < HANG, "no completion");
            std::thread::yield_now();
        }
    }

    fn sent(&mut self) -> (S, Result<(), WcError>) {
        let completion = self.next();
        let mut done = self.tx.retire(completion).unwrap();
        let (value, result) = self.tx.take(&mut done).unwrap();
        (value, result.map(drop))
    }

    fn received(&mut self) -> Vec<u8> {
        let completion = self.next();
        let message = self.rx.redeem(completion).unwrap().unwrap();
        message.bytes().to_vec()
    }
}

fn receive_buffer(pool: &Pool, len: usize) -> Buf {
    pool.alloc_in(BudgetKind::Receive, Kind::Receive, len)
        .unwrap()
}

#[test]
fn sixteen_segments_of_any_mix_arrive_as_one_message() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let (mut a, mut b) = pair::<SgList>(&pd);
    let shared = pool.alloc_from_slice(&[b's'; 5000]).unwrap().freeze();
    let mut list = SgList::new();
    for i in 0..16u8 {
        match i % 3 {
            0 => list.push(pool.alloc_from_slice(&[i; 70]).unwrap()),
            1 => list.push(shared.slice(..100 * usize::from(i))),
            _ => list.push(pd.register(vec![i; 3]).unwrap()),
        }
        .unwrap();
    }
    let expected = list.copy_to_vec();
    b.rx.post(receive_buffer(&pool, 8192)).unwrap();
    a.tx.send(list).signaled().post().unwrap();
    assert_eq!(b.received(), expected);
    let (list, result) = a.sent();
    result.unwrap();
    assert_eq!(list.segment_count(), 16, "the segments come back");
}

#[test]
fn a_message_of_no_bytes_needs_no_memory() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let (mut a, mut b) = pair::<SgList>(&pd);
    b.rx.post(receive_buffer(&pool, 64)).unwrap();
    a.tx.send(sg![Buf::empty()]).signaled().post().unwrap();
    assert_eq!(b.received(), b"");
    a.sent().1.unwrap();
}

#[test]
fn a_lease_lets_peers_read_exactly_its_bytes() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let (mut a, _b) = pair::<SgList>(&pd);
    let mut page = pool
        .alloc_in(BudgetKind::User, Kind::Readable, 4096)
        .unwrap();
    page.fill(b'n');
    page[1000..1006].copy_from_slice(b"leased");
    let shared = page.freeze();
    let lease = pd.readable(shared.slice(1000..1006)).unwrap();
    let room = pool.alloc(6).unwrap();
    a.tx.read(room, lease.remote()).signaled().post().unwrap();
    let (room, result) = a.sent();
    result.unwrap();
    assert_eq!(room.copy_to_vec(), b"leased");

    // One byte more is another's.
    let mut beyond = lease.remote();
    beyond.len += 1;
    let room = pool.alloc(7).unwrap();
    a.tx.read(room, beyond).signaled().post().unwrap();
    let refused = a.sent().1.unwrap_err();
    assert_eq!(refused.status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(&lease.into_inner().unwrap()[..], b"leased");
}

#[test]
fn an_exposed_lease_has_a_key_of_its_own() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let (mut a, _b) = pair::<SgList>(&pd);
    let cells = pool.exposed(100).unwrap();
    assert_eq!(cells.remote(), None, "no arena key unless asked for");
    let lease = cells.lease(&pd, Access::REMOTE_WRITE).unwrap();
    let data = pool.alloc_from_slice(b"from afar").unwrap();
    let target = lease.remote().slice(10..19).unwrap();
    a.tx.write(data, target).signaled().post().unwrap();
    a.sent().1.unwrap();
    let mut copy = [0; 9];
    lease.read_at(10, &mut copy).unwrap();
    assert_eq!(&copy, b"from afar");

    let cells = lease.end().unwrap();
    copy.fill(0);
    cells.read_at(10, &mut copy).unwrap();
    assert_eq!(&copy, b"from afar");
    let data = pool.alloc_from_slice(b"too late!").unwrap();
    a.tx.write(data, target).signaled().post().unwrap();
    assert_eq!(a.sent().1.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
}

/// Alloc and free in every class of the exposed kind, across threads, with the content checked.
fn exercise(pool: &Pool) {
    let mut held = Vec::new();
    for round in 0..4u8 {
        for len in [1, 64, 100, 1000, 4096, 5000, 70_000, 1 << 20, 3 << 20] {
            let cells = pool.exposed(len).unwrap();
            let mark = [round + 1];
            cells.write_at(0, &mark).unwrap();
            cells.write_at(len - 1, &mark).unwrap();
            held.push((cells, mark));
        }
        if round % 2 == 1 {
            let half = held.split_off(held.len() / 2);
            std::thread::spawn(move || drop(half)).join().unwrap();
        }
    }
    let mut spans = Vec::new();
    for (cells, mark) in &held {
        let mut now = [0; 1];
        cells.read_at(cells.len() - 1, &mut now).unwrap();
        assert_eq!(now, *mark);
        let at = cells.remote().unwrap();
        spans.push((at.addr, at.addr + at.len));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "no overlap");
}

#[test]
fn a_peer_s_garbage_over_a_whole_exposed_arena_is_payload_and_no_more() {
    const ARENA: u64 = 4 << 20;
    const PIECE: u64 = 1 << 20;
    let pd = domain();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(512 << 20))
        .trusted_peers(true)
        .build()
        .unwrap();
    let (mut a, _b) = pair::<SgList>(&pd);
    // The first allocation of a pool lies at the start of its first arena.
    let first = pool.exposed(64).unwrap();
    let of = first.remote().unwrap();
    assert_eq!(of.addr % 4096, 0);
    let arena = RemoteRegion { len: ARENA, ..of };
    exercise(&pool);
    for fill in [0x00, 0xff, 0x41] {
        let freed_later = pool.exposed(200).unwrap();
        let mut garbage = pool.alloc(PIECE as usize).unwrap();
        for (i, byte) in garbage.iter_mut().enumerate() {
            *byte = fill ^ (i % 251) as u8;
        }
        let garbage = garbage.freeze();
        for piece in 0..ARENA / PIECE {
            let target = arena.slice(piece * PIECE..(piece + 1) * PIECE).unwrap();
            let wr = a.tx.write(sg![garbage.clone()], target);
            wr.signaled().post().unwrap();
            a.sent().1.unwrap();
        }
        let mut now = [0; 8];
        first.read_at(8, &mut now).unwrap();
        assert_eq!(now, garbage[8..16], "the garbage is there");
        drop(freed_later);
        exercise(&pool);
    }
    drop(first);
    let user = *pool.stats().budget(BudgetKind::User);
    assert_eq!(user.in_use, user.stocked, "nothing was lost");
}

#[test]
fn a_gigabyte_in_one_buffer() {
    let pd = domain();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(1 << 30))
        .build()
        .unwrap();
    let mut large = pool.alloc(1 << 30).unwrap();
    let end = large.len() - 1;
    (large[0], large[end]) = (1, 2);
    assert!(matches!(
        pool.alloc(1),
        Err(mempool::AllocError::BudgetExhausted { .. })
    ));
    let mut sges = verbs::SgeList::new();
    large.gather(&mut sges);
    assert_eq!((sges.len(), sges.total_len()), (1, 1 << 30));
}

#[test]
fn buffers_keep_device_and_domain_alive() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let mut buf = pool.alloc(100).unwrap();
    drop((pool, pd));
    buf.fill(1);
    assert!(buf.iter().all(|b| *b == 1));
}

/// Whatever the system has set aside; with pages that the test sets aside itself, see `tests/tests/huge_pages.rs`.
#[test]
fn huge_pages_are_used_or_explained() {
    let pd = domain();
    let pool = |wish| Pool::builder(&pd).huge_pages(wish).build();
    let tried = pool(HugePages::Try).unwrap();
    let _buf = tried.alloc(4096).unwrap();
    let stats = tried.stats();
    match &stats.huge_pages {
        HugePageUse::SetAside => assert_eq!(stats.kind(Kind::Private).huge_bytes, 4 << 20),
        HugePageUse::Advised(why) | HugePageUse::Unavailable(why) => {
            assert_eq!(stats.kind(Kind::Private).huge_bytes, 0);
            assert!(stats.to_string().contains(why.as_str()), "{stats}");
            assert!(why.contains("/proc/sys/vm/nr_hugepages"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    match pool(HugePages::Require) {
        Ok(pool) => assert_eq!(pool.stats().huge_pages, HugePageUse::SetAside),
        Err(PoolError::HugePages(e)) => {
            assert!(e.to_string().contains("/proc/sys/vm/nr_hugepages"), "{e}");
        }
        Err(e) => panic!("{e}"),
    }
    let never = pool(HugePages::Never).unwrap();
    assert_eq!(never.stats().huge_pages, HugePageUse::NotAsked);
}
