//! Feature `zerocopy`.

use super::{MIB, user_pool};
use crate::{SgList, Typed, sg};
use verbs::{Contiguous, Gather, Scatter, SgeList, StoredAs};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Debug, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    key: u64,
    len: u32,
    kind: [u8; 4],
}

#[test]
fn a_structure_is_written_in_place_and_sent_from_there() {
    let (pool, _) = user_pool(MIB);
    pool.alloc(16).unwrap().fill(0xee);
    let mut entry: Typed<Entry> = pool.alloc_typed().unwrap();
    assert_eq!((entry.key, entry.len), (0, 0), "zeroed");
    entry.key = 0x0102_0304;
    entry.kind = *b"file";
    let bytes = entry.as_bytes().to_vec();
    let mut out = SgeList::new();
    entry.gather(&mut out);
    entry.scatter(&mut out);
    let at = std::ptr::from_ref(&*entry).addr() as u64;
    assert!(out.as_slice().iter().all(|s| (s.addr, s.len) == (at, 16)));
    assert_eq!(entry.bytes(), bytes);
    let list: SgList = entry.store();
    assert_eq!((sges(&list), list.copy_to_vec()), (vec![at], bytes));
}

fn sges(list: &SgList) -> Vec<u64> {
    let mut out = SgeList::new();
    list.gather(&mut out);
    out.as_slice().iter().map(|s| s.addr).collect()
}

#[test]
fn slices_are_typed_as_well_and_frozen_ones_shared() {
    let (pool, _) = user_pool(MIB);
    let mut words = pool.alloc_typed_slice::<u32>(5).unwrap();
    words.copy_from_slice(&[1, 2, 3, 4, 5]);
    let shared = words.freeze();
    let other = shared.clone();
    assert_eq!((&shared[1..3], other.len()), (&[2, 3][..], 5));
    let part = shared.into_inner().slice(8..);
    assert_eq!(&*part.typed::<[u32]>().unwrap(), [3, 4, 5]);
    assert_eq!(sg![other].len(), 20);
    assert!(pool.alloc_typed_slice::<u64>(0).unwrap().is_empty());
    assert!(pool.alloc_typed_slice::<u64>(usize::MAX).is_err());
}

#[test]
fn another_length_or_alignment_gives_the_buffer_back() {
    let (pool, _) = user_pool(MIB);
    let buf = pool.alloc(17).unwrap();
    let refused = buf.typed::<Entry>().unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("17 bytes") && text.contains("Entry"),
        "{text}"
    );
    let mut buf = refused.buf;
    buf.advance(1);
    let refused = buf.typed::<Entry>().unwrap_err();
    assert_eq!(refused.buf.len(), 16, "long enough, but not aligned");
    assert!(refused.buf.typed::<[u8; 16]>().is_ok());
    let shared = pool.alloc(15).unwrap().freeze();
    assert!(shared.typed::<[u32]>().is_err());
}

#[test]
fn all_bytes_are_a_value() {
    let (pool, _) = user_pool(MIB);
    let mut buf = pool.alloc(16).unwrap();
    buf.fill(0xff);
    let entry = buf.typed::<Entry>().unwrap();
    assert_eq!(
        *entry,
        Entry {
            key: u64::MAX,
            len: u32::MAX,
            kind: [0xff; 4]
        }
    );
    assert!(format!("{entry:?}").contains("key"));
}
