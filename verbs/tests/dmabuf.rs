//! Memory without a view. There are no dmabufs here: `soft0` takes memory files sealed against shrinking in their place.
#![cfg(feature = "soft")]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use common::*;
use verbs::{Access, Device, Dmabuf, DmabufRegion, Error, Pd, PostErrorKind, Region};

fn domain() -> Pd {
    Device::open_spec("soft0").unwrap().alloc_pd().unwrap()
}

fn file(bytes: &[u8], seals: libc::c_int) -> File {
    // SAFETY: a terminated name; a valid result is a descriptor that nobody else has. The seals are an integer.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(c"test".as_ptr(), flags);
        assert!(fd >= 0);
        let mut file = File::from_raw_fd(fd);
        file.write_all(bytes).unwrap();
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        file
    }
}

fn part(file: &File, offset: u64, len: usize) -> Dmabuf {
    Dmabuf::new(file.try_clone().unwrap(), offset, len).unwrap()
}

#[test]
fn it_is_sent_received_into_and_reached_by_peers() {
    let pd = domain();
    let (mut a, mut b) = pair_of::<DmabufRegion, DmabufRegion>(&pd, |q| q);
    let (from, to) = (
        file(&[b'f'; 9000], libc::F_SEAL_SHRINK),
        file(&[b't'; 9000], libc::F_SEAL_SHRINK),
    );
    let here = pd.register_dmabuf(&part(&from, 4100, 300), Access::LOCAL_WRITE);
    let here = here.unwrap();
    assert_eq!(
        (here.len(), here.iova() % 4096, here.remote()),
        (300, 4, None)
    );
    let room = pd.register_dmabuf(&part(&to, 0, 9000), Access::LOCAL_WRITE);
    b.rx.post(room.unwrap()).unwrap();
    a.tx.send(here).signaled().post().unwrap();
    let here = a.sent_one();
    let message = b.received().unwrap();
    assert_eq!(message.byte_len(), 300);
    let room = message.into_inner();
    let mut now = vec![0; 9000];
    to.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(
        (&now[..300], &now[300..]),
        (&[b'f'; 300][..], &[b't'; 8700][..])
    );
    drop(room);

    let theirs = pd.register_dmabuf(&part(&to, 8000, 1000), Access::REMOTE_WRITE);
    let theirs = theirs.unwrap();
    let there = theirs.remote().unwrap();
    a.tx.write(here, there.slice(600..).unwrap())
        .signaled()
        .post()
        .unwrap();
    drop(a.sent_one());
    to.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(
        (now[8599], now[8600], now[8899], now[8900]),
        (b't', b'f', b'f', b't')
    );
    // The key ends with the region, and the dmabuf comes back.
    assert_eq!(theirs.into_inner().unwrap().offset(), 8000);
}

#[test]
fn what_cannot_be_written_is_registered_for_reading_only() {
    let pd = domain();
    let file = file(&[7; 100], libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE);
    let memory = part(&file, 0, 100);
    let e = pd
        .register_dmabuf(&memory, Access::LOCAL_WRITE)
        .unwrap_err();
    assert!(e.to_string().contains("ibv_reg_dmabuf_mr"), "{e}");
    let (mut a, mut b) = pair_of::<DmabufRegion, Buf>(&pd, |q| q);
    b.rx.post(room(&pd, 100)).unwrap();
    let region = pd.register_dmabuf(&memory, Access::empty());
    a.tx.send(region.unwrap()).signaled().post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), [7; 100]);
    drop(a.sent_one());
}

#[test]
fn what_could_shrink_or_is_too_short_is_refused() {
    let pd = domain();
    let (fickle, short) = (file(&[1; 100], 0), file(&[1; 100], libc::F_SEAL_SHRINK));
    let plain = File::open("/proc/self/exe").unwrap();
    for memory in [
        part(&fickle, 0, 100),
        part(&short, 0, 101),
        part(&short, 100, 1),
        part(&short, u64::MAX, 1),
        part(&plain, 0, 100),
    ] {
        let e = pd.register_dmabuf(&memory, Access::empty()).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EINVAL), "{memory:?}");
        assert!(e.to_string().contains("is it a dmabuf"), "{e}");
        assert!(!matches!(e, Error::Unsupported { .. }));
    }
}

/// Inline data is copied from the addresses of the segments, at which the processor would find anything.
#[test]
fn what_the_processor_does_not_find_there_is_not_copied_from_there() {
    let pd = domain();
    let file = file(&[7; 100], libc::F_SEAL_SHRINK);
    let memory = part(&file, 0, 100);
    let (mut a, _b) = pair_of::<DmabufRegion, Buf>(&pd, |q| q.max_inline(200));
    let region = pd.register_dmabuf(&memory, Access::empty()).unwrap();
    let e = a.tx.send(region).inline().post().unwrap_err();
    assert!(matches!(e.kind(), PostErrorKind::InlineWithoutView), "{e}");
    let mut batch = a.tx.batch();
    let e = batch.send(e.into_inner()).inline().add().unwrap_err();
    assert!(matches!(e.kind(), PostErrorKind::InlineWithoutView), "{e}");
    drop(batch);

    // Nor are other addresses of ordinary memory, which would be any memory of this process.
    let (mut a, mut b) = pair_of::<Region<Vec<u8>>, Buf>(&pd, |q| q.max_inline(200));
    let renamed = pd.region_at(vec![1; 8], Access::LOCAL_WRITE, 0x1000);
    let e = a.tx.send(renamed.unwrap()).inline().post().unwrap_err();
    assert!(matches!(e.kind(), PostErrorKind::InlineWithoutView), "{e}");
    assert!(e.to_string().contains("without `inline`"), "{e}");
    b.rx.post(room(&pd, 8)).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(e.into_inner()).signaled().post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), [1; 8]);
    drop(a.sent_one());
    let own = pd.region(vec![2; 8], Access::LOCAL_WRITE).unwrap();
    a.tx.send(own).inline().signaled().post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), [2; 8]);
    drop(a.sent_one());
}
