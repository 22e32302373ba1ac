//! Where a body goes: one buffer, or several, each of which is full before the next is used.

use mempool::{AllocError, Buf, Pool};
use std::fmt;

/// Longest body in bytes that lies in one buffer: as much as a pool gives at once.
pub const CHUNK_MAX: usize = 1 << 30;

mod sealed {
    pub trait Sealed {}
    impl Sealed for mempool::Buf {}
    impl Sealed for Vec<mempool::Buf> {}
    impl Sealed for super::Room {}
}

/// Memory that a reply is put into: a buffer, or several, for [`call_into`](crate::Client::call_into).
///
/// Of several, each is full before the next is used; of the last ones nothing may be used at all.
pub trait Destination: sealed::Sealed + Sized {
    #[doc(hidden)]
    fn into_room(self) -> Room;

    #[doc(hidden)]
    fn from_room(room: Option<Room>) -> Self;
}

impl Destination for Buf {
    fn into_room(self) -> Room {
        Room(Bufs::One(self))
    }

    fn from_room(room: Option<Room>) -> Buf {
        room.and_then(Room::into_buf).unwrap_or_default()
    }
}

impl Destination for Room {
    fn into_room(self) -> Room {
        self
    }

    fn from_room(room: Option<Room>) -> Room {
        room.unwrap_or(Room(Bufs::Many(Vec::new())))
    }
}

impl Destination for Vec<Buf> {
    fn into_room(self) -> Room {
        Room(Bufs::Many(self))
    }

    fn from_room(room: Option<Room>) -> Vec<Buf> {
        room.map(Room::into_bufs).unwrap_or_default()
    }
}

/// Buffers for one body.
#[doc(hidden)]
pub struct Room(Bufs);

enum Bufs {
    One(Buf),
    Many(Vec<Buf>),
}

impl Room {
    /// Room for a body of so many bytes, in as few buffers as can be.
    pub(crate) fn alloc(pool: &Pool, len: usize) -> Result<Room, AllocError> {
        if len <= CHUNK_MAX {
            return pool.alloc(len).map(Destination::into_room);
        }
        let lens = (0..len.div_ceil(CHUNK_MAX)).map(|n| (len - n * CHUNK_MAX).min(CHUNK_MAX));
        let bufs = lens.map(|len| pool.alloc(len)).collect::<Result<_, _>>()?;
        Ok(Room(Bufs::Many(bufs)))
    }

    /// The buffers.
    pub(crate) fn bufs(&self) -> &[Buf] {
        match &self.0 {
            Bufs::One(buf) => std::slice::from_ref(buf),
            Bufs::Many(bufs) => bufs,
        }
    }

    /// Bytes in all of them.
    pub(crate) fn len(&self) -> usize {
        self.bufs().iter().map(|buf| buf.len()).sum()
    }

    /// Copies bytes in, from this offset on; false if they do not fit.
    pub(crate) fn write_at(&mut self, offset: usize, mut bytes: &[u8]) -> bool {
        let bufs = match &mut self.0 {
            Bufs::One(buf) => std::slice::from_mut(buf),
            Bufs::Many(bufs) => bufs,
        };
        let mut offset = offset;
        for buf in bufs {
            if let Some(room) = buf.get_mut(offset..) {
                let (now, rest) = bytes.split_at(bytes.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                (offset, bytes) = (0, rest);
            } else {
                offset -= buf.len();
            }
        }
        bytes.is_empty()
    }

    /// Whether it was given as one buffer.
    pub(crate) fn is_one(&self) -> bool {
        matches!(self.0, Bufs::One(_))
    }

    /// The buffer, if it was given as one.
    pub(crate) fn into_buf(self) -> Option<Buf> {
        match self.0 {
            Bufs::One(buf) => Some(buf),
            Bufs::Many(_) => None,
        }
    }

    /// The buffer, or else those that were given as several.
    pub(crate) fn into_parts(self) -> Result<Buf, Vec<Buf>> {
        match self.0 {
            Bufs::One(buf) => Ok(buf),
            Bufs::Many(bufs) => Err(bufs),
        }
    }

    /// All buffers.
    pub(crate) fn into_bufs(self) -> Vec<Buf> {
        match self.0 {
            Bufs::One(buf) => vec![buf],
            Bufs::Many(bufs) => bufs,
        }
    }

    /// The same buffers, or what has become of each.
    pub(crate) fn map<T>(self, mut each: impl FnMut(Buf) -> T) -> OneOrMany<T> {
        match self.0 {
            Bufs::One(buf) => OneOrMany::One(each(buf)),
            Bufs::Many(bufs) => OneOrMany::Many(bufs.into_iter().map(each).collect()),
        }
    }
}

/// Why so many buffers are not to be had as one.
pub(crate) fn too_large(bufs: &[Buf]) -> AllocError {
    let asked = bufs.iter().map(|buf| buf.len()).sum();
    AllocError::TooLarge { asked }
}

/// What is made of the buffers of a [`Room`]: mostly of one.
#[derive(Debug)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }

    /// Back to the buffers; `None` if one of them has none.
    pub fn into_room(self, mut each: impl FnMut(T) -> Option<Buf>) -> Option<Room> {
        Some(Room(match self {
            OneOrMany::One(one) => Bufs::One(each(one)?),
            OneOrMany::Many(many) => Bufs::Many(many.into_iter().map(each).collect::<Option<_>>()?),
        }))
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens = self.bufs().iter().map(|buf| buf.len());
        f.debug_list().entries(lens).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bytes that are written lie one behind the other over all buffers, empty ones included, and beyond the end none do.
        #[test]
        fn bytes_run_over_from_one_buffer_into_the_next(
            lens in proptest::collection::vec(0usize..50, 1..8), offset in 0usize..200, count in 0usize..200,
        ) {
            let pd = verbs::Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
            let pool = Pool::builder(&pd).build().unwrap();
            let bufs: Vec<Buf> = lens.iter().map(|len| pool.alloc_zeroed(*len).unwrap()).collect();
            let total: usize = lens.iter().sum();
            let mut room = bufs.into_room();
            prop_assert_eq!(room.len(), total);
            let bytes: Vec<u8> = (0..count).map(|n| n as u8 + 1).collect();
            prop_assert_eq!(room.write_at(offset, &bytes), count == 0 || offset + count <= total);
            let all: Vec<u8> = room.bufs().iter().flat_map(|buf| buf.to_vec()).collect();
            for (at, byte) in all.iter().enumerate() {
                let want = at.checked_sub(offset).and_then(|n| bytes.get(n)).copied().unwrap_or(0);
                prop_assert_eq!(*byte, want);
            }
            prop_assert_eq!(room.into_bufs().len(), lens.len());
        }
    }

    #[test]
    fn a_buffer_comes_back_as_what_it_was_given_as() {
        let pd = verbs::Device::open_spec("soft0")
            .unwrap()
            .alloc_pd()
            .unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let buf = pool.alloc(10).unwrap();
        let at = buf.as_ptr();
        let back = Buf::from_room(Some(buf.into_room()));
        assert_eq!((back.as_ptr(), back.len()), (at, 10));
        let back = Vec::from_room(Some(vec![back].into_room()));
        assert_eq!((back[0].as_ptr(), back.len()), (at, 1));
        assert!(Buf::from_room(None).is_empty() && Vec::from_room(None).is_empty());
        // Up to a chunk it is one buffer.
        let room = Room::alloc(&pool, 3000).unwrap();
        assert_eq!((room.len(), room.bufs().len()), (3000, 1));
        assert!(room.into_buf().is_some());
    }
}
