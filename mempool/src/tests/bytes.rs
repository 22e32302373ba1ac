//! Feature `bytes`.

use super::{MIB, user_pool};
use crate::{Buf, Pool, SharedBuf, sg};
use bytes::{Buf as _, BufMut, Bytes};

fn live(pool: &Pool) -> usize {
    pool.stats().classes.iter().map(|c| c.live).sum()
}

#[test]
fn what_was_read_is_given_up() {
    let (pool, _) = user_pool(MIB);
    let mut buf = pool.alloc_from_slice(&[1, 0, 2, 0, 0, 0, 3, 4]).unwrap();
    assert_eq!((buf.get_u16_le(), buf.get_u32_le()), (1, 2));
    assert_eq!((buf.remaining(), &buf[..]), (2, &[3, 4][..]));
    let mut shared = buf.freeze();
    let other = shared.clone();
    assert_eq!(
        (shared.get_u8(), shared.remaining(), other.len()),
        (3, 1, 2)
    );
    shared.advance(1);
    assert!(!shared.has_remaining());
}

#[test]
#[should_panic(expected = "advance by 3 of 2 bytes")]
fn reading_beyond_the_end_panics() {
    let (pool, _) = user_pool(MIB);
    bytes::Buf::advance(&mut pool.alloc(2).unwrap(), 3);
}

#[test]
fn bytes_of_a_buffer_are_the_same_bytes() {
    let (pool, _) = user_pool(MIB);
    let shared = pool.alloc_from_slice(b"0123456789").unwrap().freeze();
    let at = shared.as_ptr();
    let bytes = Bytes::from(shared.slice(2..));
    assert_eq!(
        (&bytes[..], bytes.as_ptr()),
        (&b"23456789"[..], at.wrapping_add(2))
    );
    let part = bytes.slice(1..3);
    drop((bytes, shared));
    assert_eq!((&part[..], live(&pool)), (&b"34"[..], 1));
    let thread = std::thread::spawn(move || drop(part));
    thread.join().unwrap();
    assert_eq!(live(&pool), 0);
    assert!(Bytes::from(Buf::empty()).is_empty());
}

#[test]
fn bytes_taken_from_the_front_are_not_copied() {
    let (pool, _) = user_pool(MIB);
    let mut buf = pool.alloc_from_slice(b"headtail").unwrap();
    let at = buf.as_ptr();
    let head = buf.copy_to_bytes(4);
    assert_eq!(
        (&head[..], head.as_ptr(), &buf[..]),
        (&b"head"[..], at, &b"tail"[..])
    );
    let mut shared: SharedBuf = buf.freeze();
    let tail = shared.copy_to_bytes(4);
    assert_eq!(tail.as_ptr(), at.wrapping_add(4));
    assert_eq!(shared.len(), 0);
}

#[test]
fn a_writer_takes_what_fits() {
    let (pool, _) = user_pool(MIB);
    let mut writer = pool.alloc(10).unwrap().into_writer();
    writer.put_u32_le(7);
    writer.put_slice(b"four");
    assert_eq!(writer.remaining_mut(), 2);
    writer.chunk_mut()[..2].copy_from_slice(b"ab");
    // SAFETY: two bytes were written.
    unsafe { writer.advance_mut(2) };
    std::io::Seek::seek(&mut writer, std::io::SeekFrom::Start(100)).unwrap();
    // SAFETY: none was to be written.
    unsafe { writer.advance_mut(0) };
    assert_eq!(writer.written().len(), 10);
    assert_eq!(&writer.finish()[..], b"\x07\0\0\0fourab");
    let full = std::panic::catch_unwind(move || {
        let (pool, _) = user_pool(MIB);
        pool.alloc(3).unwrap().into_writer().put_u32(1);
    });
    full.unwrap_err();
}

#[test]
fn a_list_is_read_piece_by_piece_and_written_by_one_call() {
    let (pool, _) = user_pool(MIB);
    let list = sg![
        pool.alloc_from_slice(b"abc").unwrap(),
        Buf::empty(),
        pool.alloc_from_slice(b"defg").unwrap(),
        pool.alloc_from_slice(b"h").unwrap(),
    ];
    let mut reader = list.reader();
    bytes::Buf::advance(&mut reader, 2);
    let mut slices = [std::io::IoSlice::new(&[]); 8];
    let count = reader.chunks_vectored(&mut slices);
    let pieces: Vec<&[u8]> = slices[..count].iter().map(|s| &**s).collect();
    assert_eq!(pieces, [&b"c"[..], b"defg", b"h"]);
    assert_eq!(reader.chunks_vectored(&mut slices[..1]), 1);
    assert_eq!(&reader.copy_to_bytes(6)[..], b"cdefgh");
}
