//! WRITE and READ, and what keys allow.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{
    Access, Exposed, Gather, MemoryFile, MemoryKind, Pd, PostErrorKind, Private, RKey, ReceivedBy,
    RemoteRegion, SgeList, StoredAs, WcStatus,
};

fn fails_with(pd: &Pd, remote: RemoteRegion, read: bool, want: WcStatus) {
    fails_with_access(
        pd,
        Access::REMOTE_READ | Access::REMOTE_WRITE,
        remote,
        read,
        want,
    );
}

/// A WRITE or READ of 4 bytes at `remote` ends in `want`, and the queue pair with it.
fn fails_with_access(pd: &Pd, access: Access, remote: RemoteRegion, read: bool, want: WcStatus) {
    let (mut a, mut b) = pair_of::<Buf, Buf>(pd, |q| q.access(access));
    b.rx.post(room(pd, 4)).unwrap();
    if read {
        a.tx.read(room(pd, 4), remote).signaled().post().unwrap();
    } else {
        a.tx.write(buf(pd, b"evil"), remote)
            .signaled()
            .post()
            .unwrap();
    }
    let (_, result) = a.sent().remove(0);
    assert_eq!(result.unwrap_err().status, want, "{remote:?} read: {read}");
    // The peer is in the error state, too.
    assert_eq!(
        b.received().unwrap_err().error().status,
        WcStatus::WR_FLUSH_ERR
    );
    a.tx.send(buf(pd, b"x")).post().unwrap();
    let (_, result) = a.sent().remove(0);
    assert_eq!(
        result.unwrap_err().status,
        WcStatus::WR_FLUSH_ERR,
        "unsignalled, and reported all the same"
    );
}

fn cells(shared: &Exposed<impl verbs::MemoryMut>, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    shared.read_at(at, &mut out).unwrap();
    out
}

#[test]
fn writes_land_where_they_are_aimed_and_nowhere_else() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    for len in [1usize, 7, 8, 63, 4096, 100_000] {
        let shared = pd.expose(len + 32, Access::REMOTE_WRITE).unwrap();
        let data: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
        let target = shared.remote().slice(16..16 + len as u64).unwrap();
        a.tx.write(buf(&pd, &data), target)
            .signaled()
            .post()
            .unwrap();
        a.sent_one();
        assert_eq!(cells(&shared, 16, len), data);
        assert_eq!(
            (cells(&shared, 0, 16), cells(&shared, len + 16, 16)),
            (vec![0; 16], vec![0; 16])
        );
    }
}

#[test]
fn write_with_immediate_uses_up_a_receive_and_leaves_its_buffer_alone() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let shared = pd.expose(4096, Access::REMOTE_WRITE).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.write(buf(&pd, b"payload"), shared.remote())
        .imm(77)
        .signaled()
        .post()
        .unwrap();
    let got = b.received().unwrap();
    assert_eq!(
        (got.by(), got.imm(), got.byte_len()),
        (ReceivedBy::WriteWithImm, Some(77), 7)
    );
    assert_eq!(got.bytes(), b"", "nothing arrived in the buffer");
    assert_eq!(&got.into_inner()[..], [0xee; 8]);
    assert_eq!(cells(&shared, 0, 7), b"payload");
    a.sent_one();
}

/// A queue's own type, which is no scatter memory.
enum Slot {
    Read(Buf),
    Other(Buf),
}
impl From<Buf> for Slot {
    fn from(b: Buf) -> Slot {
        Slot::Other(b)
    }
}
// SAFETY: both hold owned registered memory.
unsafe impl Gather for Slot {
    fn gather(&self, out: &mut SgeList) {
        match self {
            Slot::Read(b) | Slot::Other(b) => b.gather(out),
        }
    }
}
/// A READ's destination.
struct Into(Buf);
// SAFETY: owned registered memory.
unsafe impl verbs::Scatter for Into {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}
// SAFETY: the buffer stays what it is.
unsafe impl StoredAs<Slot> for Into {
    fn store(self) -> Slot {
        Slot::Read(self.0)
    }
}

#[test]
fn reads_fetch_frozen_memory_into_a_mixed_queue() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Slot, Buf>(&pd, |q| q);
    let frozen = pd.readable((0..200u8).collect::<Vec<_>>()).unwrap();
    assert_eq!(frozen[5], 5);
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"first")).post().unwrap();
    a.tx.read(Into(room(&pd, 10)), frozen.remote().slice(50..).unwrap())
        .fence()
        .signaled()
        .post()
        .unwrap();
    let all = a.sent();
    assert_eq!(all.len(), 2);
    assert!(matches!(all[0], (Slot::Other(_), Ok(wc)) if !wc.signaled()));
    let (Slot::Read(data), Ok(wc)) = &all[1] else {
        panic!("the READ comes second")
    };
    assert_eq!(
        (&data[..], wc.byte_len(), wc.signaled()),
        (&(50..60u8).collect::<Vec<_>>()[..], 10, true)
    );
    assert_eq!(b.received().unwrap().bytes(), b"first");
    let shared = std::sync::Arc::new(frozen);
    assert_eq!(shared.len(), 200);
}

#[test]
fn frozen_memory_can_be_sent_many_times_at_once() {
    type Frozen = std::sync::Arc<verbs::Readable<Box<[u8]>>>;
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Frozen, Buf>(&pd, |q| q);
    let frozen = Frozen::new(pd.readable(b"to all".to_vec().into_boxed_slice()).unwrap());
    for _ in 0..3 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(frozen.clone()).post().unwrap();
    }
    for _ in 0..3 {
        assert_eq!(b.received().unwrap().bytes(), b"to all");
    }
    drop((a, b));
    assert_eq!(
        &std::sync::Arc::into_inner(frozen)
            .unwrap()
            .into_inner()
            .unwrap()[..],
        b"to all"
    );
}

#[test]
fn what_a_key_does_not_allow_is_refused() {
    let pd = device().alloc_pd().unwrap();
    let writable = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    let readable = pd.readable(vec![1u8; 64]).unwrap();
    fails_with(&pd, readable.remote(), false, WcStatus::REM_ACCESS_ERR);
    fails_with(&pd, writable.remote(), true, WcStatus::REM_ACCESS_ERR);
    let wrong_key = RemoteRegion {
        rkey: RKey(writable.remote().rkey.0 ^ 0x5a5a),
        ..writable.remote()
    };
    fails_with(&pd, wrong_key, false, WcStatus::REM_ACCESS_ERR);
    let beyond = RemoteRegion {
        addr: writable.remote().addr + 61,
        ..writable.remote()
    };
    fails_with(&pd, beyond, false, WcStatus::REM_ACCESS_ERR);
    let before = RemoteRegion {
        addr: writable.remote().addr - 1,
        ..writable.remote()
    };
    fails_with(&pd, before, false, WcStatus::REM_ACCESS_ERR);
    let wraps = RemoteRegion {
        addr: u64::MAX - 1,
        len: 8,
        rkey: writable.remote().rkey,
    };
    fails_with(&pd, wraps, false, WcStatus::REM_ACCESS_ERR);
    // The queue pair's own rights count, too, and first: an invalid request, since it is no matter of the key.
    fails_with_access(
        &pd,
        Access::REMOTE_READ,
        writable.remote(),
        false,
        WcStatus::REM_INV_REQ_ERR,
    );
    assert_eq!(cells(&writable, 0, 64), vec![0; 64]);
}

#[test]
fn a_key_of_another_domain_is_refused() {
    let ctx = device();
    let (pd, other) = (ctx.alloc_pd().unwrap(), ctx.alloc_pd().unwrap());
    let foreign = other.expose(64, Access::REMOTE_WRITE).unwrap();
    fails_with(&pd, foreign.remote(), false, WcStatus::REM_ACCESS_ERR);
    // And a local key as well: the sender's own fault. A local protection error by the specification (volume 1, chapter 11), which
    // soft0 follows; to Soft-RoCE any trouble with a segment is one of the queue pair.
    let own_fault = if is_rxe(&ctx) {
        WcStatus::LOC_QP_OP_ERR
    } else {
        WcStatus::LOC_PROT_ERR
    };
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&other, b"x")).signaled().post().unwrap();
    assert_eq!(a.sent().remove(0).1.unwrap_err().status, own_fault);
}

#[test]
fn a_withdrawn_key_is_dead_and_the_memory_usable() {
    let pd = device().alloc_pd().unwrap();
    let shared = pd
        .expose_memory(vec![3u8; 64], Access::REMOTE_WRITE)
        .unwrap();
    let remote = shared.remote();
    let mut memory = shared.into_inner().unwrap();
    memory[0] = 9;
    fails_with(&pd, remote, false, WcStatus::REM_ACCESS_ERR);
    assert_eq!((memory[0], memory[1]), (9, 3));
}

#[test]
fn bounds_are_checked_before_posting() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let shared = pd
        .expose(64, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let part = shared.remote().slice(60..).unwrap();
    let want = PostErrorKind::RemoteTooSmall { len: 5, remote: 4 };
    let (kind, back) = refused(a.tx.write(buf(&pd, b"hello"), part).post());
    assert_eq!((kind, &back[..]), (want, &b"hello"[..]));
    let (kind, _) = refused(a.tx.read(room(&pd, 5), part).post());
    assert_eq!(kind, want);
    a.tx.write(buf(&pd, b"four"), part)
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
}

#[test]
fn reads_are_refused_where_one_side_has_no_room_for_them() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let readable = pd.readable(vec![7u8; 4]).unwrap();
    for depths in [[0, 16], [16, 0], [0, 0], [1, 1]] {
        let cqs = [0; 2].map(|_| ctx.cq(256).build().unwrap());
        let [a, b] = [0, 1].map(|i| pd.rc(&cqs[i]).rd_atomic(depths[i]).build().unwrap());
        let (ea, eb) = (a.endpoint(), b.endpoint());
        let queues = [a.connect::<Buf, Buf>(&eb), b.connect(&ea)].map(Result::unwrap);
        let mut ends: Vec<End> = cqs
            .into_iter()
            .zip(queues)
            .map(|(cq, (tx, rx))| End { cq, tx, rx })
            .collect();
        for end in &mut ends {
            let posted = end.tx.read(room(&pd, 4), readable.remote()).signaled();
            if depths == [1, 1] {
                posted.post().unwrap();
            } else {
                let (kind, back) = refused(posted.post());
                assert_eq!((kind, &back[..]), (PostErrorKind::NoReads, &[0xee; 4][..]));
                continue;
            }
            assert_eq!(&end.sent_one()[..], [7; 4]);
        }
    }
}

#[test]
fn memory_files_of_each_kind_serve_their_purpose() {
    let pd = device().alloc_pd().unwrap();
    let file = |kind| MemoryFile::create(8192, kind).unwrap();
    let (mut a, mut b) = pair_of::<Private<MemoryFile>, Private<MemoryFile>>(&pd, |q| q);
    let mut source = pd.register(file(MemoryKind::Private)).unwrap();
    source.fill(5);
    b.rx.post(pd.register(file(MemoryKind::Receive)).unwrap())
        .unwrap();
    a.tx.send(source).signaled().post().unwrap();
    let got = b.received().unwrap();
    assert_eq!(got.bytes(), [5; 8192]);
    let source = a.sent_one();

    let exposed = pd
        .expose_memory(file(MemoryKind::Exposed), Access::REMOTE_WRITE)
        .unwrap();
    a.tx.write(source, exposed.remote())
        .signaled()
        .post()
        .unwrap();
    let back = a.sent_one();
    assert_eq!(cells(&exposed, 8000, 192), [5; 192]);

    let readable = file(MemoryKind::Readable);
    // SAFETY: the file is this test's alone, and no region has it yet.
    unsafe { std::slice::from_raw_parts_mut(verbs::Memory::as_ptr(&readable), 8192) }.fill(6);
    let readable = pd.readable(readable).unwrap();
    a.tx.read(back, readable.remote())
        .signaled()
        .post()
        .unwrap();
    assert_eq!(&a.sent_one()[..], [6; 8192]);
}

#[test]
fn words_synchronise_with_a_peer() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let shared = pd.expose(4096, Access::REMOTE_WRITE).unwrap();
    a.tx.write(buf(&pd, b"the data"), shared.remote())
        .post()
        .unwrap();
    a.tx.write(
        buf(&pd, &1u64.to_ne_bytes()),
        shared.remote().slice(64..).unwrap(),
    )
    .post()
    .unwrap();
    let flag = shared.atomic_u64(64).unwrap();
    until("the flag", || {
        (flag.load(std::sync::atomic::Ordering::Acquire) == 1).then_some(())
    });
    assert_eq!(cells(&shared, 0, 8), b"the data");
}

#[test]
fn accesses_to_cells_are_checked() {
    let pd = device().alloc_pd().unwrap();
    let shared = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    assert!(shared.write_at(60, b"four").is_ok());
    assert!(shared.write_at(61, b"four").is_err());
    assert!(shared.write_at(usize::MAX, b"four").is_err());
    assert!(shared.read_at(64, &mut []).is_ok());
    assert!(shared.read_at(65, &mut []).is_err());
    assert!(shared.atomic_u64(56).is_ok());
    assert!(matches!(
        shared.atomic_u64(57),
        Err(verbs::CellError::OutOfBounds(_))
    ));
    assert!(matches!(
        shared.atomic_u64(12),
        Err(verbs::CellError::Misaligned {
            offset: 12,
            size: 8
        })
    ));
    assert!(
        pd.expose(64, Access::LOCAL_WRITE)
            .unwrap_err()
            .to_string()
            .contains("REMOTE_WRITE")
    );
    assert!(matches!(
        pd.expose(0, Access::REMOTE_WRITE),
        Err(verbs::Error::Empty { .. })
    ));
    let e = pd.register(Vec::new()).unwrap_err();
    assert!(e.to_string().contains("empty"));
    assert_eq!(e.into_memory(), Vec::<u8>::new());
}
