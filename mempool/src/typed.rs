//! Typed views of buffers, by the traits of the `zerocopy` crate.

use crate::buf::Buf;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::segment::Segment;
use crate::sg::SgList;
use crate::shared_buf::SharedBuf;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use verbs::{Contiguous, Gather, Scatter, SgeList, StoredAs};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A buffer seen as a `T`: a structure, or a slice of them. Sends and receives as the buffer does.
///
/// `T` is a type for which all bytes are valid, as a device may write any. The length and the alignment are looked at once, when it is made. For
/// a part of a buffer, split it before, or use `T::ref_from_prefix(&buf)` of `zerocopy`.
///
/// ```
/// # use mempool::{Pool, Typed, sg};
/// # use zerocopy::byteorder::little_endian::{U32, U64};
/// # use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = Pool::builder(&pd).build()?;
/// #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
/// #[repr(C)]
/// struct Header {
///     offset: U64,
///     len: U32,
/// }
///
/// let mut header: Typed<Header> = pool.alloc_typed()?;
/// header.offset = 4096.into();
/// let message = sg![header, pool.alloc_zeroed(100)?];
///
/// let received = message.copy_to_buf(&pool)?.split_to(12);
/// assert_eq!(received.typed::<Header>()?.offset.get(), 4096);
/// # Ok(()) }
/// ```
pub struct Typed<T: ?Sized, B = Buf> {
    bytes: B,
    // Owns no `T`, only says what the bytes are.
    of: PhantomData<fn() -> Box<T>>,
}

/// A buffer is no `T`: too short, too long, or not aligned. It comes back.
#[derive(Debug, thiserror::Error)]
#[error(
    "a buffer of {len} bytes at address {addr:#x} cannot be seen as {type_name}: its length or its alignment is another"
)]
pub struct WrongType<B> {
    /// As it was.
    pub buf: B,
    /// Its length.
    len: usize,
    addr: usize,
    type_name: &'static str,
}

impl<T, B> Typed<T, B>
where
    T: ?Sized + FromBytes + KnownLayout + Immutable,
    B: Deref<Target = [u8]>,
{
    fn new(bytes: B) -> Result<Typed<T, B>, WrongType<B>> {
        if T::ref_from_bytes(&bytes).is_ok() {
            return Ok(Typed {
                bytes,
                of: PhantomData,
            });
        }
        Err(WrongType {
            len: bytes.len(),
            addr: bytes.as_ptr().addr(),
            type_name: std::any::type_name::<T>(),
            buf: bytes,
        })
    }
}

impl<T: ?Sized, B> Typed<T, B> {
    /// The buffer.
    pub fn into_inner(self) -> B {
        self.bytes
    }
}

impl<T: ?Sized> Typed<T> {
    /// Gives up writing.
    pub fn freeze(self) -> Typed<T, SharedBuf> {
        Typed {
            bytes: self.bytes.freeze(),
            of: PhantomData,
        }
    }
}

impl Buf {
    /// The buffer as a `T`, or as a slice of them.
    ///
    /// # Errors
    /// [`WrongType`], with the buffer, if its length or alignment does not fit.
    pub fn typed<T>(self) -> Result<Typed<T>, WrongType<Buf>>
    where
        T: ?Sized + FromBytes + KnownLayout + Immutable,
    {
        Typed::new(self)
    }
}

impl SharedBuf {
    /// The buffer as a `T`, or as a slice of them.
    ///
    /// # Errors
    /// [`WrongType`], with the buffer, if its length or alignment does not fit.
    pub fn typed<T>(self) -> Result<Typed<T, SharedBuf>, WrongType<SharedBuf>>
    where
        T: ?Sized + FromBytes + KnownLayout + Immutable,
    {
        Typed::new(self)
    }
}

impl Pool {
    /// A `T` of zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    ///
    /// # Panics
    /// If `T` is aligned to more than 64 bytes, and shorter than 4 KiB.
    pub fn alloc_typed<T>(&self) -> Result<Typed<T>, AllocError>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let zeroed = self.alloc_zeroed(size_of::<T>())?;
        Ok(zeroed.typed().expect("slabs are aligned"))
    }

    /// A slice of `count` times a `T` of zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    ///
    /// # Panics
    /// As [`alloc_typed`](Pool::alloc_typed); and if `T` has no bytes.
    pub fn alloc_typed_slice<T>(&self, count: usize) -> Result<Typed<[T]>, AllocError>
    where
        T: FromBytes + Immutable,
    {
        assert!(size_of::<T>() > 0, "a type of no bytes");
        let len = size_of::<T>().saturating_mul(count);
        Ok(self.alloc_zeroed(len)?.typed().expect("slabs are aligned"))
    }
}

impl<T, B> Deref for Typed<T, B>
where
    T: ?Sized + FromBytes + KnownLayout + Immutable,
    B: Deref<Target = [u8]>,
{
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        T::ref_from_bytes(&self.bytes).expect("length and alignment do not change")
    }
}

impl<T> DerefMut for Typed<T>
where
    T: ?Sized + FromBytes + IntoBytes + KnownLayout + Immutable,
{
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        T::mut_from_bytes(&mut self.bytes).expect("length and alignment do not change")
    }
}

impl<T: ?Sized> Clone for Typed<T, SharedBuf> {
    fn clone(&self) -> Self {
        Typed {
            bytes: self.bytes.clone(),
            of: PhantomData,
        }
    }
}

impl<T, B> fmt::Debug for Typed<T, B>
where
    T: ?Sized + FromBytes + KnownLayout + Immutable + fmt::Debug,
    B: Deref<Target = [u8]>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized, B: Into<Segment>> From<Typed<T, B>> for Segment {
    fn from(typed: Typed<T, B>) -> Segment {
        typed.bytes.into()
    }
}

impl<T: ?Sized, B: Into<Segment>> From<Typed<T, B>> for SgList {
    fn from(typed: Typed<T, B>) -> SgList {
        Segment::from(typed).into()
    }
}

// SAFETY: the segments are the buffer's, which is inside; a `T` is only ever borrowed from the value.
unsafe impl<T: ?Sized + 'static, B: Gather> Gather for Typed<T, B> {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        self.bytes.gather(out);
    }
}

// SAFETY: as above, and `typed` has seen to it that all bytes are a `T`.
unsafe impl<T: ?Sized + 'static> Scatter for Typed<T> {
    #[inline]
    fn scatter(&mut self, out: &mut SgeList) {
        self.bytes.scatter(out);
    }
}

impl<T: ?Sized + 'static> Contiguous for Typed<T> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

// SAFETY: the list holds the buffer itself, and gives no references while it is in a queue.
unsafe impl<T: ?Sized + 'static> StoredAs<SgList> for Typed<T> {
    fn store(self) -> SgList {
        self.into()
    }
}
