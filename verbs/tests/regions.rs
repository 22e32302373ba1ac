//! Regions under other addresses, changed registrations, and segments.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Access, Error, Gather, Region, SgeList};

#[test]
fn a_region_can_be_known_by_other_addresses() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Region<Vec<u8>>, Buf>(&pd, |q| q);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let page = verbs::Mmap::anonymous(8192).unwrap();
    let theirs = pd.region_at(page, access, 0x10_0000).unwrap();
    assert_eq!(theirs.iova(), 0x10_0000);
    assert_eq!(theirs.remote().unwrap().addr, 0x10_0000);
    assert_ne!(theirs.as_ptr().addr(), 0x10_0000);
    // As a peer's memory.
    let data = pd
        .region(b"by other address".to_vec(), Access::LOCAL_WRITE)
        .unwrap();
    let there = theirs.remote().unwrap().slice(100..).unwrap();
    a.tx.write(data, there).signaled().post().unwrap();
    drop(a.sent_one());
    // SAFETY: in bounds, and the WRITE is over.
    let seen = unsafe { std::slice::from_raw_parts(theirs.as_ptr().add(100), 16) };
    assert_eq!(seen, b"by other address");
    // As memory to send from.
    let data = pd
        .region_at(b"sent".to_vec(), Access::LOCAL_WRITE, 1 << 40)
        .unwrap();
    let mut list = SgeList::new();
    data.gather(&mut list);
    assert_eq!(list.as_slice()[0].addr, 1 << 40);
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(data).signaled().post().unwrap();
    drop(a.sent_one());
    assert_eq!(b.received().unwrap().bytes(), b"sent");
    // Addresses that would wrap.
    let e = pd.region_at(vec![0; 64], access, u64::MAX - 8).unwrap_err();
    assert!(e.to_string().starts_with("iova is"), "{e}");
    assert_eq!(e.into_memory().len(), 64);
}

#[test]
fn a_registration_can_be_changed_where_the_device_can() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let memory = b"as before".to_vec();
    let mut region = pd.region(memory, Access::REMOTE_READ).unwrap();
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    match region.change_access(both) {
        Ok(()) => assert!(region.access().contains(both)),
        Err(e) => {
            assert!(matches!(e, Error::Unsupported { .. }), "{e}");
            for part in [pd.context().device_name(), "registration", "ibv_rereg_mr"] {
                assert!(e.to_string().contains(part), "{e}");
            }
            assert_eq!(region.access(), Access::REMOTE_READ);
        }
    }
    let remote = region.remote().unwrap();
    a.tx.read(room(&pd, 9), remote).signaled().post().unwrap();
    assert_eq!(&a.sent_one()[..], b"as before");
}

#[test]
fn a_segment_outside_names_region_offset_and_length() {
    let pd = device().alloc_pd().unwrap();
    let region = pd.region(vec![0; 100], Access::LOCAL_WRITE).unwrap();
    let inside = region.segment(10, 90).unwrap();
    assert_eq!((inside.addr, inside.len), (region.iova() + 10, 90));
    assert_eq!(region.segment(100, 0).unwrap().len, 0);
    for (offset, len) in [
        (0, 101),
        (101, 0),
        (50, 51),
        (usize::MAX, 2),
        (2, usize::MAX),
    ] {
        let e = region.segment(offset, len).unwrap_err();
        assert_eq!((e.offset, e.len, e.region_len), (offset, len, 100));
        for part in [
            format!("{:#x}", region.iova()),
            format!("offset {offset}"),
            format!("{len} bytes"),
            "of 100 bytes".to_owned(),
        ] {
            assert!(e.to_string().contains(&part), "{e}");
        }
    }
}
