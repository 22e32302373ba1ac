//! Lists: joining, copying together, parting, reading, filling.

use super::{MIB, user_pool};
use crate::segment::ForeignSegment;
use crate::{AllocError, Buf, CannotPart, Pool, ScatterList, Segment, SgList, sg};
use proptest::prelude::*;
use std::io::{BufRead, Read};
use verbs::{Gather, Scatter, Sge, SgeList, StoredAs};

/// Memory of one piece that is not the pool's, as far as a list can tell.
#[derive(Debug)]
struct OnePiece(Buf);

// SAFETY: the segments are the buffer's.
unsafe impl Gather for OnePiece {
    fn gather(&self, out: &mut SgeList) {
        self.0.gather(out);
    }
}

impl ForeignSegment for OnePiece {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn one_piece(pool: &Pool, bytes: &[u8]) -> Segment {
    Segment::foreign(OnePiece(pool.alloc_from_slice(bytes).unwrap()))
}

fn sges(list: &SgList) -> Vec<Sge> {
    let mut out = SgeList::new();
    list.gather(&mut out);
    out.as_slice().to_vec()
}

fn lens(list: &SgList) -> Vec<usize> {
    list.segments().map(Segment::len).collect()
}

#[test]
fn neighbours_are_joined_and_others_stay_apart() {
    let (pool, _) = user_pool(MIB);
    let (a, b) = pool.alloc_from_slice(b"abcdef").unwrap().split_at(2);
    let (b, c) = b.split_at(2);
    let shared = pool.alloc_from_slice(b"0123456789").unwrap().freeze();
    let start = a.as_ptr();
    let mut list = sg![
        Buf::empty(),
        a,
        b,
        Buf::empty(),
        c,
        shared.slice(1..3),
        shared.slice(3..5),
        shared.slice(4..6),
        one_piece(&pool, b"x"),
    ];
    let before = list.copy_to_vec();
    assert_eq!(list.join_neighbours(), 5);
    assert_eq!(list.copy_to_vec(), before);
    assert_eq!(lens(&list), [6, 4, 2, 1]);
    assert_eq!(list.segments().next().unwrap().as_slice().as_ptr(), start);
    assert_eq!(list.join_neighbours(), 0);
    assert_eq!(sg![].join_neighbours(), 0);
    let mut nothing = sg![Buf::empty(), Buf::empty()];
    assert_eq!((nothing.join_neighbours(), nothing.segment_count()), (2, 0));
}

#[test]
fn frozen_and_unique_neighbours_are_not_joined() {
    let (pool, _) = user_pool(MIB);
    let (a, b) = pool.alloc_from_slice(b"abcd").unwrap().split_at(2);
    let mut list = sg![a, b.freeze()];
    assert_eq!((list.join_neighbours(), list.segment_count()), (0, 2));
}

#[test]
fn small_ones_are_copied_together_and_the_rest_stays() {
    let (pool, _) = user_pool(MIB);
    let large = pool.alloc_zeroed(1000).unwrap();
    let at = large.as_ptr();
    let mut list = sg![
        pool.alloc_from_slice(b"he").unwrap(),
        one_piece(&pool, b"ad"),
        large,
        pool.alloc_from_slice(b"alone").unwrap(),
    ];
    let before = list.copy_to_vec();
    assert_eq!(list.coalesce(&pool, 100).unwrap(), 4);
    assert_eq!((list.copy_to_vec(), list.len()), (before, 1009));
    assert_eq!(lens(&list), [4, 1000, 5]);
    assert_eq!(list.segments().nth(1).unwrap().as_slice().as_ptr(), at);
    assert_eq!(sges(&list).len(), 3);
    assert_eq!(
        list.coalesce(&pool, 100).unwrap(),
        0,
        "nothing is left to do"
    );
    assert_eq!(list.coalesce(&pool, usize::MAX).unwrap(), 1009);
    assert_eq!(lens(&list), [1009]);
}

#[test]
fn without_memory_to_copy_to_the_list_is_as_it_was() {
    let (pool, _) = user_pool(MIB);
    let (poor, _) = user_pool(64);
    let pair = || {
        sg![
            pool.alloc_from_slice(b"1").unwrap(),
            pool.alloc_from_slice(b"2").unwrap()
        ]
    };
    let mut list = SgList::new();
    for part in [pair(), sg![pool.alloc_zeroed(200).unwrap()], pair()] {
        part.into_segments().for_each(|s| list.push(s).unwrap());
    }
    let before = list.copy_to_vec();
    // There is a buffer for one of the two copies.
    let refused = list.coalesce(&poor, 100).unwrap_err();
    assert!(matches!(refused, AllocError::BudgetExhausted { .. }));
    assert_eq!(
        (list.copy_to_vec(), lens(&list)),
        (before, vec![1, 1, 200, 1, 1])
    );
    drop(poor.alloc(64).unwrap());
}

#[test]
fn parting_amid_memory_of_one_piece_is_refused() {
    let (pool, _) = user_pool(MIB);
    let mut list = sg![
        pool.alloc_from_slice(b"abc").unwrap(),
        one_piece(&pool, b"defg")
    ];
    let refused = list.split_off(5).unwrap_err();
    assert_eq!(
        refused,
        CannotPart {
            segment: 1,
            within: 2
        }
    );
    assert!(refused.to_string().contains("segment 1"), "{refused}");
    assert_eq!(lens(&list), [3, 4]);
    let tail = list.split_off(3).unwrap();
    assert_eq!((lens(&list), lens(&tail)), (vec![3], vec![4]));
    assert_eq!(list.split_off(3).unwrap().segment_count(), 0);
    assert_eq!(list.split_off(0).unwrap().copy_to_vec(), b"abc");
    assert!(list.is_empty());
}

#[test]
#[should_panic(expected = "split at 4 of 3 bytes")]
fn parting_outside_panics_as_slices_do() {
    let (pool, _) = user_pool(MIB);
    let _ = sg![pool.alloc(3).unwrap()].split_off(4);
}

#[test]
#[should_panic(expected = "lists of no segments")]
fn lists_of_no_segments_are_refused() {
    let _ = SgList::new().into_lists(0).count();
}

#[test]
fn a_list_of_no_bytes_stays_one_message() {
    for list in [sg![], sg![Buf::empty(), Buf::empty()]] {
        let lists: Vec<_> = list.into_lists(3).collect();
        assert_eq!((lists.len(), lists[0].segment_count()), (1, 0));
    }
}

#[test]
fn a_full_list_of_buffers_to_fill_gives_the_next_back() {
    let (pool, _) = user_pool(MIB);
    let mut list = ScatterList::new();
    list.extend((1..=16).map(|len| pool.alloc(len).unwrap()));
    let full = list.push(pool.alloc(17).unwrap()).unwrap_err();
    assert_eq!((full.0.len(), list.len()), (17, (1..=16).sum()));
    let mut out = SgeList::new();
    list.scatter(&mut out);
    let filled = out.as_slice().to_vec();
    let list: SgList = list.store();
    assert_eq!(filled, sges(&list), "the same memory in the queue");
    let bufs: Result<Vec<Buf>, _> = list.into_segments().map(Segment::into_buf).collect();
    assert_eq!(bufs.unwrap().iter().map(|b| b.len()).sum::<usize>(), 136);
    let frozen: Segment = pool.alloc(1).unwrap().freeze().into();
    assert!(frozen.into_buf().is_err());
}

#[test]
fn a_reader_goes_on_within_segments_and_across_them() {
    let (pool, _) = user_pool(MIB);
    let list = sg![
        pool.alloc_from_slice(b"abc").unwrap(),
        Buf::empty(),
        pool.alloc_from_slice(b"defg").unwrap(),
    ];
    let bytes = list.copy_to_vec();
    for first in 0..=bytes.len() {
        for second in 0..=bytes.len() - first {
            let mut reader = list.reader();
            reader.advance(first);
            reader.advance(second);
            let at = first + second;
            assert_eq!(reader.remaining(), bytes.len() - at);
            // What lies together ends with its segment.
            let end = if at < 3 { 3 } else { bytes.len() };
            assert_eq!(reader.chunk(), &bytes[at..end], "{first} and {second}");
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, bytes[at..]);
        }
    }
}

#[test]
#[should_panic(expected = "3 of 2 bytes")]
fn a_reader_does_not_go_on_beyond_the_end() {
    let (pool, _) = user_pool(MIB);
    let list = sg![pool.alloc(1).unwrap(), pool.alloc(1).unwrap()];
    list.reader().advance(3);
}

/// A list of such pieces: unique, frozen, or of one piece; some are neighbours.
fn list_of(pool: &Pool, pieces: &[(u8, usize)]) -> SgList {
    let mut list = SgList::new();
    let mut value = 0u8;
    let mut rest = pool.alloc(4000).unwrap();
    for &(what, len) in pieces {
        let mut bytes = Vec::new();
        for _ in 0..len {
            value = value.wrapping_mul(5).wrapping_add(11);
            bytes.push(value);
        }
        let segment = match what {
            0 => {
                let mut buf = rest.split_to(len);
                buf.copy_from_slice(&bytes);
                buf.into()
            }
            1 => pool.alloc_from_slice(&bytes).unwrap().freeze().into(),
            _ => one_piece(pool, &bytes),
        };
        list.push(segment).unwrap();
    }
    list
}

proptest! {
    #[test]
    fn the_bytes_of_a_list_stay_whatever_is_done_to_its_segments(
        pieces in prop::collection::vec((0u8..3, 0usize..120), 0..16),
        below in 0usize..150,
        max in 1usize..20,
        at in 0usize..2000,
    ) {
        let (pool, _) = user_pool(MIB);
        let bytes = list_of(&pool, &pieces).copy_to_vec();

        let mut joined = list_of(&pool, &pieces);
        joined.join_neighbours();
        prop_assert_eq!(joined.copy_to_vec(), bytes.clone());
        prop_assert!(joined.segments().all(|s| !s.is_empty()));

        let mut fewer = list_of(&pool, &pieces);
        let copied = fewer.coalesce(&pool, below).unwrap();
        prop_assert_eq!((fewer.copy_to_vec(), fewer.len()), (bytes.clone(), bytes.len()));
        prop_assert!(copied <= bytes.len() && (copied == 0 || copied >= 2));
        // No two neighbours with bytes are left that should have been copied together.
        let mut filled = lens(&fewer);
        filled.retain(|len| *len > 0);
        let originals: Vec<usize> = pieces.iter().map(|(_, len)| *len).filter(|len| *len > 0).collect();
        let small_pairs = originals.windows(2).filter(|pair| pair.iter().all(|len| *len < below)).count();
        prop_assert_eq!(originals.len() - filled.len(), small_pairs);

        let mut total = Vec::new();
        for list in list_of(&pool, &pieces).into_lists(max) {
            prop_assert!(list.segment_count() <= max);
            total.extend(list.copy_to_vec());
        }
        prop_assert_eq!(&total, &bytes);

        let at = at % (bytes.len() + 1);
        let mut head = list_of(&pool, &pieces);
        match head.split_off(at) {
            Ok(tail) => {
                prop_assert_eq!((head.len(), tail.len()), (at, bytes.len() - at));
                prop_assert_eq!([head.copy_to_vec(), tail.copy_to_vec()].concat(), bytes.clone());
            }
            Err(CannotPart { segment, within }) => {
                prop_assert_eq!(pieces[segment].0, 2);
                prop_assert!(within > 0 && within < pieces[segment].1);
                prop_assert_eq!(head.copy_to_vec(), bytes.clone());
            }
        }

        let list = list_of(&pool, &pieces);
        prop_assert_eq!(&list.copy_to_buf(&pool).unwrap()[..], &bytes[..]);
        let mut reader = list.reader();
        let mut first = vec![0; at];
        reader.read_exact(&mut first).unwrap();
        prop_assert_eq!(reader.remaining(), bytes.len() - at);
        let mut rest = Vec::new();
        loop {
            let chunk = reader.fill_buf().unwrap();
            if chunk.is_empty() {
                break;
            }
            // Not always all of it.
            let count = chunk.len().div_ceil(2);
            rest.extend_from_slice(&chunk[..count]);
            reader.consume(count);
        }
        prop_assert_eq!([first, rest].concat(), bytes);
        prop_assert_eq!(reader.read(&mut [0; 9]).unwrap(), 0);
    }
}
