//! Buffers, their parts, and lists of them.

use super::{MIB, pool, user_pool};
use crate::ledger::Plan;
use crate::{AllocError, BudgetKind, Buf, Kind, MAX_LEN, Pool, PoolError, SgList, sg};
use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::{Gather, LKey, Scatter, SgeList, StoredAs};

#[test]
fn a_buffer_has_the_length_asked_for_and_its_alignment() {
    let (pool, _) = user_pool(256 * MIB);
    for len in [
        1,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        5000,
        1 << 20,
        (1 << 20) + 1,
        5 << 20,
    ] {
        let buf = pool.alloc(len).unwrap();
        assert_eq!(buf.len(), len);
        let align = if len >= 4096 { 4096 } else { 64 };
        assert_eq!(buf.as_ptr().addr() % align, 0, "{len}");
        assert!(buf.iter().all(|b| *b == 0), "{len} first used, so zero");
        assert_ne!(buf.lkey(), LKey(0));
    }
}

#[test]
fn no_bytes_take_no_memory() {
    let (pool, source) = user_pool(0);
    let buf = pool.alloc(0).unwrap();
    assert_eq!((buf.len(), buf.lkey(), source.made()), (0, LKey(0), 0));
    let shared = buf.freeze();
    let list = sg![shared.clone(), shared];
    let mut sges = SgeList::new();
    list.gather(&mut sges);
    assert_eq!((sges.len(), list.segment_count(), list.len()), (0, 2, 0));
    assert!(pool.exposed(0).unwrap().is_empty());
}

#[test]
fn too_long_is_a_typed_error() {
    let (pool, _) = user_pool(u64::MAX);
    assert!(matches!(
        pool.alloc(MAX_LEN + 1),
        Err(AllocError::TooLarge { asked }) if asked == MAX_LEN + 1
    ));
    assert!(matches!(
        pool.alloc(usize::MAX),
        Err(AllocError::TooLarge { .. })
    ));
}

#[test]
fn exposed_memory_is_no_buffer() {
    let (pool, _) = user_pool(MIB);
    let refused = pool.alloc_in(BudgetKind::User, Kind::Exposed, 1);
    assert!(matches!(refused, Err(AllocError::ExposedNeedsCells)));
}

#[test]
fn a_budget_below_a_slab_is_refused_at_once() {
    assert!(matches!(
        Plan::of([63, 0, 64]),
        Err(PoolError::BudgetTooSmall {
            budget: BudgetKind::User,
            limit: 63,
            ..
        })
    ));
}

#[test]
fn parts_share_the_slab_until_the_last_is_dropped() {
    let (pool, _) = user_pool(4096 * 16);
    let mut page = pool.alloc(4096).unwrap();
    for (i, byte) in page.iter_mut().enumerate() {
        *byte = i as u8;
    }
    let start = page.as_ptr();
    let (head, mut tail) = page.split_at(100);
    let mid = tail.split_to(28);
    assert_eq!((head.len(), mid.len(), tail.len()), (100, 28, 3968));
    assert_eq!(mid.as_ptr(), start.wrapping_add(100));
    assert_eq!((mid[0], tail[0]), (100, 128));
    let live = |pool: &Pool| pool.stats().classes.iter().map(|c| c.live).sum::<usize>();
    drop((head, tail));
    assert_eq!(live(&pool), 1);
    drop(mid);
    assert_eq!(live(&pool), 0);
    assert_eq!(
        pool.alloc(4096).unwrap().as_ptr(),
        start,
        "last in, first out"
    );
}

#[test]
fn what_was_split_can_be_joined_in_order_only() {
    let (pool, _) = user_pool(MIB);
    let (mut a, b) = pool.alloc_from_slice(b"0123456789").unwrap().split_at(4);
    let mut other = pool.alloc(10).unwrap();
    let b = other.unsplit(b).unwrap_err();
    a.unsplit(b).unwrap();
    assert_eq!(&a[..], b"0123456789");
    let (a, mut b) = a.split_at(4);
    let a = b.unsplit(a).unwrap_err();
    a.freeze().try_unfreeze().unwrap_err();
    drop(b);
    let mut none = Buf::empty();
    none.unsplit(other).unwrap();
    assert_eq!(none.len(), 10);
}

#[test]
#[should_panic(expected = "split at 11 of 10 bytes")]
fn a_split_outside_panics_as_slices_do() {
    let (pool, _) = user_pool(MIB);
    let _ = pool.alloc(10).unwrap().split_at(11);
}

#[test]
fn frozen_buffers_are_shared_and_can_be_taken_back() {
    let (pool, _) = user_pool(MIB);
    let shared = pool.alloc_from_slice(b"frozen").unwrap().freeze();
    let (clone, part) = (shared.clone(), shared.slice(2..=3));
    assert_eq!((&clone[..], &part[..]), (&b"frozen"[..], &b"oz"[..]));
    assert_eq!(part.as_ptr(), shared[2..].as_ptr());
    let shared = shared.try_unfreeze().unwrap_err();
    drop((clone, part));
    let mut buf = shared.try_unfreeze().unwrap();
    buf[0] = b'F';
    assert_eq!(&buf[..], b"Frozen");
}

#[test]
fn io_traits() {
    let (pool, _) = user_pool(MIB);
    let mut writer = pool.alloc(10).unwrap().into_writer();
    writer.write_all(b"seven").unwrap();
    assert_eq!((writer.written(), writer.remaining()), (&b"seven"[..], 5));
    let full = writer.write_all(b"and more").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::WriteZero);
    assert_eq!(writer.remaining(), 0);
    let mut reader = writer.finish().into_reader();
    reader.seek(std::io::SeekFrom::Start(5)).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "and m");
    let short = pool.alloc_from(&b"short"[..], 100).unwrap();
    assert_eq!(&short[..], b"short");
    let refused = pool.alloc_from(&b""[..], 2 << 20).unwrap_err();
    assert!(refused.get_ref().unwrap().is::<AllocError>());
}

#[test]
fn a_list_gathers_its_segments_in_order() {
    let (pool, _) = pool([MIB; 3]);
    let (head, tail) = pool.alloc_from_slice(b"headtail").unwrap().split_at(4);
    let shared = pool.alloc_from_slice(b"-shared-").unwrap().freeze();
    let expected = [
        (head.as_ptr(), 4, head.lkey()),
        (shared.as_ptr(), 7, shared.lkey()),
        (tail.as_ptr(), 4, tail.lkey()),
    ];
    let list = sg![head, shared.slice(..7), tail];
    let mut sges = SgeList::new();
    let moved = Box::new(list);
    moved.gather(&mut sges);
    let sges: Vec<_> = sges
        .as_slice()
        .iter()
        .map(|s| (s.addr as usize, s.len, s.lkey))
        .collect();
    assert_eq!(sges, expected.map(|(p, len, key)| (p.addr(), len, key)));
    assert_eq!(moved.copy_to_vec(), b"head-sharedtail");
    assert_eq!(moved.len(), 15);
}

#[test]
fn a_list_holds_16_and_gives_the_next_back() {
    let (pool, _) = user_pool(MIB);
    let mut list = SgList::new();
    for i in 0..16u8 {
        list.push(pool.alloc_from_slice(&[i]).unwrap()).unwrap();
    }
    let full = list
        .push(pool.alloc_from_slice(b"one more").unwrap())
        .unwrap_err();
    assert_eq!(full.0.as_slice(), b"one more");
    assert_eq!((list.segment_count(), list.len()), (16, 16));
    let bytes: Vec<u8> = list
        .into_segments()
        .flat_map(|s| s.as_slice().to_vec())
        .collect();
    assert_eq!(bytes, (0..16).collect::<Vec<u8>>());
}

#[test]
fn a_buffer_is_stored_as_a_list_without_moving_its_bytes() {
    let (pool, _) = user_pool(MIB);
    let mut buf = pool.alloc(100).unwrap();
    let mut sges = SgeList::new();
    buf.scatter(&mut sges);
    let list: SgList = buf.store();
    let start = list.segments().next().unwrap().as_slice().as_ptr();
    assert_eq!(sges.as_slice()[0].addr, start.addr() as u64);
}

#[test]
fn exposed_memory_is_cells_within_its_bounds() {
    let (pool, _) = user_pool(MIB);
    let cells = pool.exposed(100).unwrap();
    cells.write_at(3, b"0123456789").unwrap();
    let mut back = [0; 4];
    cells.read_at(5, &mut back).unwrap();
    assert_eq!(&back, b"2345");
    cells
        .atomic_u64(8)
        .unwrap()
        .store(7, std::sync::atomic::Ordering::Relaxed);
    cells.read_at(8, &mut back).unwrap();
    assert_eq!(back, 7u64.to_ne_bytes()[..4]);
    assert!(cells.atomic_u64(12).is_err() && cells.atomic_u64(96).is_err());
    assert!(cells.read_at(97, &mut back).is_err() && cells.write_at(usize::MAX, &back).is_err());
    assert!(cells.write_at(100, &[]).is_ok());
    let remote = cells.remote().unwrap();
    assert_eq!((remote.len, remote.addr % 64), (100, 0));
}

#[test]
fn all_ranges_of_exposed_memory_are_copied_exactly_and_no_byte_more() {
    let (pool, _) = user_pool(MIB);
    for len in [1, 7, 8, 13, 16, 75, 128, 139] {
        let cells = pool.exposed(len).unwrap();
        let (mut model, mut all) = (vec![0; len], vec![0; len]);
        cells.write_at(0, &model).unwrap();
        for (from, to) in (0..=len).flat_map(|from| (from..=len).map(move |to| (from, to))) {
            for (at, byte) in model[from..to].iter_mut().enumerate() {
                *byte = (31 * from + 7 * to + at) as u8;
            }
            cells.write_at(from, &model[from..to]).unwrap();
            let mut back = vec![0; to - from];
            cells.read_at(from, &mut back).unwrap();
            assert_eq!(back, model[from..to], "{from}..{to} of {len}");
            cells.read_at(0, &mut all).unwrap();
            assert_eq!(all, model, "{from}..{to} of {len}");
        }
    }
}

#[test]
fn writers_of_one_exposed_word_do_not_undo_each_other() {
    let (pool, _) = user_pool(MIB);
    // One word, and bytes behind it that are none.
    let cells = pool.exposed(11).unwrap();
    // How many have often seen the other write. Until both have, they write in turns: one thread alone would prove nothing.
    let seen_often = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for (own, other) in [(1..3, 4), (4..7, 1)] {
            let (cells, seen_often) = (&cells, &seen_often);
            s.spawn(move || {
                let (mut bytes, mut seen) = ([0; 3], [0; 3]);
                let (bytes, seen) = (&mut bytes[..own.len()], &mut seen[..own.len()]);
                let (mut changes, mut before) = (0, [0]);
                while seen_often.load(Ordering::Relaxed) < 2 {
                    // What was written last is still there.
                    cells.read_at(own.start, seen).unwrap();
                    if seen != bytes {
                        seen_often.store(2, Ordering::Relaxed);
                        panic!("{own:?} is {seen:?}, not {bytes:?}");
                    }
                    bytes.fill(bytes[0].wrapping_add(1));
                    cells.write_at(own.start, bytes).unwrap();
                    let mut now = [0];
                    cells.read_at(other, &mut now).unwrap();
                    changes += usize::from(now != before);
                    before = now;
                    if changes == 1000 {
                        changes += 1;
                        seen_often.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

#[test]
fn memory_of_earlier_buffers_is_there_unless_zero_was_asked_for() {
    let (pool, _) = user_pool(MIB);
    pool.alloc(4096).unwrap().fill(0xee);
    assert_eq!(pool.alloc(4096).unwrap()[0], 0xee);
    assert!(pool.alloc_zeroed(4096).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn figures_read_well() {
    let (pool, _) = user_pool(64 * MIB);
    let _held = (pool.alloc(5000).unwrap(), pool.alloc(3 << 20).unwrap());
    let stats = pool.stats();
    let class = stats.classes.iter().find(|c| c.slab_size == 5120).unwrap();
    assert_eq!((class.live, class.chunks), (1, 1));
    assert_eq!(stats.kind(Kind::Private).large_bytes, 3 << 20);
    let user = stats.budget(BudgetKind::User);
    assert_eq!(user.in_use - user.stocked, (3 << 20) + 5120);
    let text = stats.to_string();
    assert!(
        text.contains("user") && text.contains("64 MiB") && text.contains("5120 B"),
        "{text}"
    );
}
