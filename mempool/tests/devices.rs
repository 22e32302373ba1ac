//! A pool with several devices, and with memory that is not its own.
#![cfg(not(loom))]

use mempool::{AdoptErrorKind, DeviceBuf, Kind, OfPool, On, Pool, PoolError, SharedMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};
use verbs::{Access, Completion, Cq, Device, Dmabuf, Gather, Pd, SgeList};

/// Nothing here takes a second; a test that reaches this hangs.
const HANG: Duration = Duration::from_secs(60);

fn domain() -> Pd {
    let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
    device.alloc_pd().unwrap()
}

fn next(cq: &mut Cq) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(completion) = cq.poll().unwrap() {
            return completion;
        }
        assert!(start.elapsed() < HANG, "no completion");
        std::thread::yield_now();
    }
}

/// Sends `message` through a pair of queues of `pd` to a receive of `room`; what arrived.
fn through<S: Gather, R: verbs::Scatter + verbs::Contiguous>(
    pd: &Pd,
    message: S,
    room: R,
) -> Vec<u8> {
    let mut cqs = [0, 1].map(|_| pd.context().cq(256).build().unwrap());
    let [a, b] = [0, 1].map(|i: usize| pd.rc(&cqs[i]).build().unwrap());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (mut tx, _rx) = a.connect::<S, R>(&to_b).unwrap();
    let (_tx, mut rx) = b.connect::<S, R>(&to_a).unwrap();
    rx.post(room).unwrap();
    tx.send(message).signaled().post().unwrap();
    let sent = next(&mut cqs[0]);
    let mut done = tx.retire(sent).unwrap();
    tx.take(&mut done).unwrap().1.unwrap();
    let received = next(&mut cqs[1]);
    rx.redeem(received).unwrap().unwrap().bytes().to_vec()
}

#[test]
fn one_arena_has_a_key_of_each_device() {
    let (first, second) = (domain(), domain());
    let pool = Pool::builder(&first).also(&second).build().unwrap();
    let (one, two) = (pool.device(&first).unwrap(), pool.device(&second).unwrap());
    assert_eq!(pool.device(&domain()), None);
    let buf = pool.alloc_from_slice(b"by the second").unwrap();
    assert_eq!(buf.lkey(), buf.lkey_on(one));
    let mut sges = SgeList::new();
    let on_second = buf.on(two);
    on_second.gather(&mut sges);
    assert_eq!(sges.as_slice()[0].lkey, on_second.get().lkey_on(two));

    // Works there, and not without: the other device does not know the key, or knows it for something else.
    let room: On<_> = pool.alloc(64).unwrap().on(two);
    assert_eq!(through(&second, on_second, room), b"by the second");
    let buf = pool.alloc_from_slice(b"by the first").unwrap();
    let room = pool.alloc(64).unwrap();
    assert_eq!(through(&first, buf, room), b"by the first");
    let shared = pool.alloc_from_slice(b"shared").unwrap().freeze();
    let room = pool.alloc(64).unwrap().on(two);
    assert_eq!(through(&second, shared.slice(1..4).on(two), room), b"har");
}

#[test]
fn a_domain_that_is_named_twice_is_refused() {
    let pd = domain();
    let refused = Pool::builder(&pd).also(&domain()).also(&pd).build();
    assert!(matches!(refused, Err(PoolError::SameDomain { .. })));
    let mut many = Pool::builder(&pd);
    for _ in 0..8 {
        many = many.also(&domain());
    }
    assert!(matches!(many.build(), Err(PoolError::TooManyDevices)));
}

fn memory_file(bytes: &[u8]) -> File {
    // SAFETY: a terminated name; a valid result is a descriptor that nobody else has.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn a_map_of_a_file_is_sent_and_written_like_other_exposed_memory() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let mut file = memory_file(&[b'f'; 10_000]);
    let map = SharedMap::of(&file, 4096, 5000).unwrap();
    let cells = pool.adopt(map).unwrap();
    assert_eq!(cells.len(), 5000);
    cells.write_at(100, b"cells").unwrap();
    let stats = pool.stats();
    let kind = stats.kind(Kind::Exposed);
    assert_eq!(
        (kind.adopted, kind.adopted_bytes, kind.arenas),
        (1, 5000, 0)
    );
    assert_eq!(stats.budgets[0].in_use, 0, "nobody is charged");
    assert!(pool.picture().contains("adopted"), "{}", pool.picture());

    let lease = cells
        .lease(&pd, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    assert_eq!(lease.remote().len, 5000);
    let cells = lease.end().unwrap();
    let room = pool.alloc(5000).unwrap();
    let arrived = through(&pd, cells, room);
    assert_eq!(
        (&arrived[95..100], &arrived[100..105]),
        (&b"fffff"[..], &b"cells"[..])
    );
    let mut text = [0; 5];
    file.seek(SeekFrom::Start(4096 + 100)).unwrap();
    file.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"cells");
    assert_eq!(
        pool.stats().kind(Kind::Exposed).adopted,
        0,
        "gone with its last part"
    );
}

#[test]
fn owned_memory_becomes_a_buffer_and_ends_with_its_last_part() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let mut buf = pool.adopt_owned(vec![7u8; 3000]).unwrap();
    buf[0] = 8;
    let (head, tail) = buf.split_at(1000);
    let tail = tail.freeze();
    drop(head);
    let room = pool.alloc(3000).unwrap();
    assert_eq!(through(&pd, tail.slice(..10), room), [7; 10]);
    assert_eq!(pool.stats().kind(Kind::Private).adopted_bytes, 3000);
    // The pool may go first.
    drop(pool);
    assert!(tail.iter().all(|b| *b == 7));
    drop(tail);
}

#[test]
fn foreign_memory_is_private_on_its_owner_s_word() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let file = memory_file(&[1; 4096]);
    let map = SharedMap::of(&file, 0, 4096).unwrap();
    // SAFETY: nobody else has the file.
    let mut buf = unsafe { pool.adopt_private(map) }.unwrap();
    buf[4095] = 2;
    let room = pool.alloc(4096).unwrap();
    let arrived = through(&pd, buf, room);
    assert_eq!((arrived[0], arrived[4095]), (1, 2));
}

#[test]
fn what_cannot_be_adopted_comes_back() {
    let pd = domain();
    let pool = Pool::builder(&pd).build().unwrap();
    let error = pool.adopt_owned(Vec::new()).unwrap_err();
    assert!(matches!(*error.kind, AdoptErrorKind::Empty) && error.memory.is_some());
    let file = memory_file(&[1; 100]);
    for (offset, len) in [(0, 0), (0, 101), (4096, 1), (u64::MAX, 2)] {
        let error = SharedMap::of(&file, offset, len).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::InvalidInput,
            "{offset} {len}"
        );
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read_only = File::open(path).unwrap();
    assert!(SharedMap::of(&read_only, 0, 100).is_err());
}

/// In place of a dmabuf, of which there is none here: `soft0` takes these.
fn sealed_file(bytes: &[u8]) -> File {
    // SAFETY: a terminated name; a valid result is a descriptor that nobody else has. The seals are an integer.
    let mut file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(c"test".as_ptr(), flags);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.write_all(bytes).unwrap();
    // SAFETY: a live descriptor and an integer.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0);
    file
}

#[test]
fn memory_without_a_view_is_sent_and_filled_in_parts() {
    let (first, second) = (domain(), domain());
    let pool = Pool::builder(&first).also(&second).build().unwrap();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
    let file = sealed_file(&bytes);
    let part = Dmabuf::new(file.try_clone().unwrap(), 5000, 10_000).unwrap();
    let mut buf = pool.adopt_dmabuf(part).unwrap();
    let tail = buf.split_off(6000);
    assert_eq!((buf.len(), tail.len()), (6000, 4000));
    assert_eq!((buf.lkey(), buf.remote()), (tail.lkey(), None));
    assert_eq!(
        pool.stats().kind(Kind::Exposed).adopted_bytes,
        10_000,
        "one registration"
    );

    // Sent by one device, and by the other.
    let room = pool.alloc(4000).unwrap();
    assert_eq!(through(&first, tail, room), bytes[11_000..15_000]);
    let on_second = pool.device(&second).unwrap();
    let mut middle = buf.split_off(1000);
    let rest = middle.split_off(5);
    let room = pool.alloc(8).unwrap().on(on_second);
    let arrived = through(&second, middle.on(on_second), room);
    assert_eq!(arrived, bytes[6000..6005]);
    drop(rest);

    // Filled: by a READ, which a device writes where no slice ever was.
    let source = first.readable(vec![b'r'; 1000]).unwrap();
    let mut cq = first.context().cq(256).build().unwrap();
    let ready = first.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, _rx) = ready.connect::<DeviceBuf, DeviceBuf>(&own).unwrap();
    tx.read(buf, source.remote()).signaled().post().unwrap();
    let done = next(&mut cq);
    let mut done = tx.retire(done).unwrap();
    let (buf, result) = tx.take(&mut done).unwrap();
    result.unwrap();
    let mut now = vec![0; 1001];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 5000).unwrap();
    assert_eq!(now[..1000], [b'r'; 1000]);
    assert_eq!(now[1000], bytes[6000]);
    // What the processor does not see it cannot copy.
    let refused = tx.send(buf).inline().post().unwrap_err();
    assert!(
        matches!(refused.kind(), verbs::PostErrorKind::InlineWithoutView),
        "{refused}"
    );
    drop(refused);
    assert_eq!(pool.stats().kind(Kind::Exposed).adopted, 0);
}

#[test]
fn what_is_no_dmabuf_is_refused_and_comes_back() {
    let pool = Pool::builder(&domain()).build().unwrap();
    // Could be truncated; not so long.
    let fickle = Dmabuf::new(memory_file(&[1; 100]), 0, 100).unwrap();
    let short = Dmabuf::new(sealed_file(&[1; 100]), 1, 100).unwrap();
    for part in [fickle, short] {
        let refused = pool.adopt_dmabuf(part).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("ibv_reg_dmabuf_mr"), "{text}");
        assert!(text.contains("is it a dmabuf"), "{text}");
        assert_eq!(refused.memory.unwrap().len(), 100);
    }
    let long = Dmabuf::new(sealed_file(&[1; 100]), 0, 1 << 32).unwrap();
    let refused = pool.adopt_dmabuf(long).unwrap_err();
    assert!(matches!(*refused.kind, AdoptErrorKind::TooLong { .. }));
    let empty = Dmabuf::new(memory_file(&[]), 0, 0).unwrap_err();
    assert_eq!(empty.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(pool.stats().kind(Kind::Exposed).adopted, 0);
}
