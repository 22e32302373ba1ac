//! `Writer` beside `Cursor<Vec<u8>>`, which it is to be like as far as there is room.

use super::{MIB, user_pool};
use proptest::prelude::*;
use std::io::{Cursor, Seek, SeekFrom, Write};

#[derive(Debug, Clone)]
enum Op {
    Write(Vec<u8>),
    Start(u64),
    Current(i64),
    End(i64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Op::Write),
        1 => (0u64..120).prop_map(Op::Start),
        1 => (-50i64..50).prop_map(Op::Current),
        1 => (-50i64..20).prop_map(Op::End),
    ]
}

proptest! {
    #[test]
    fn a_writer_is_like_a_cursor_of_bounded_length(
        len in 0usize..100,
        ops in prop::collection::vec(op(), 0..30),
    ) {
        let (pool, _) = user_pool(MIB);
        let mut buf = pool.alloc(len).unwrap();
        buf.fill(0xee); // what earlier buffers left
        let mut writer = buf.into_writer();
        let mut model = Cursor::new(Vec::new());
        for op in ops {
            let seek = match op {
                Op::Write(bytes) => {
                    let room = len.saturating_sub(model.position() as usize);
                    let fits = bytes.len().min(room);
                    prop_assert_eq!(writer.remaining(), room);
                    prop_assert_eq!(writer.write(&bytes).unwrap(), fits);
                    // A write of nothing makes a vector longer, too.
                    if fits > 0 {
                        model.write_all(&bytes[..fits]).unwrap();
                    }
                    prop_assert_eq!(writer.written(), &model.get_ref()[..]);
                    continue;
                }
                Op::Start(at) => SeekFrom::Start(at),
                Op::Current(by) => SeekFrom::Current(by),
                Op::End(by) => SeekFrom::End(by),
            };
            let (ours, theirs) = (writer.seek(seek), model.seek(seek));
            prop_assert_eq!(ours.ok(), theirs.ok());
        }
        prop_assert_eq!(&writer.finish()[..], &model.get_ref()[..]);
    }
}

#[test]
fn the_buffer_comes_back_in_full() {
    let (pool, _) = user_pool(MIB);
    let mut writer = pool.alloc_zeroed(10).unwrap().into_writer();
    writer.write_all(b"abc").unwrap();
    assert_eq!(&writer.into_inner()[..], b"abc\0\0\0\0\0\0\0");
}
