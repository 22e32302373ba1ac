//! Vectors as segments.

use crate::buf::Buf;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::segment::Segment;
use crate::sg::SgList;
use std::fmt;
use verbs::{Pd, Private};

/// A vector that has become a segment, and how. Made by [`Pool::try_from_vec`].
#[derive(Debug)]
pub enum FromVec {
    /// Its bytes were copied into a buffer of the pool; the vector is gone.
    Copied(Buf),
    /// The vector itself was registered, and nothing was copied.
    Registered(Private<Vec<u8>>),
}

impl FromVec {
    /// Whether the bytes were copied.
    pub fn was_copied(&self) -> bool {
        matches!(self, FromVec::Copied(_))
    }
}

impl AsRef<[u8]> for FromVec {
    fn as_ref(&self) -> &[u8] {
        match self {
            FromVec::Copied(buf) => buf,
            FromVec::Registered(region) => region,
        }
    }
}

impl From<FromVec> for Segment {
    fn from(from: FromVec) -> Segment {
        match from {
            FromVec::Copied(buf) => buf.into(),
            FromVec::Registered(region) => region.into(),
        }
    }
}

impl From<FromVec> for SgList {
    fn from(from: FromVec) -> SgList {
        Segment::from(from).into()
    }
}

/// A vector could not become a segment. It is still there.
pub struct FromVecError {
    /// As it was.
    pub vec: Vec<u8>,
    /// What failed.
    pub kind: Box<FromVecErrorKind>,
}

/// What failed when a vector was to become a segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FromVecErrorKind {
    /// There was no buffer to copy it to.
    #[error("it is short enough to be copied, but: {0}")]
    Alloc(#[from] AllocError),
    /// The device refused to register it.
    #[error("it is too long to be copied, but: {0}")]
    Register(#[from] verbs::Error),
}

impl fmt::Display for FromVecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a vector of {} bytes: {}", self.vec.len(), self.kind)
    }
}

/// Without the bytes.
impl fmt::Debug for FromVecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromVecError")
            .field("len", &self.vec.len())
            .field("kind", &self.kind)
            .finish()
    }
}

impl std::error::Error for FromVecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match &*self.kind {
            FromVecErrorKind::Alloc(error) => error,
            FromVecErrorKind::Register(error) => error,
        })
    }
}

impl Pool {
    /// Makes a segment of a vector: up to `copy_up_to` bytes by copying them into a buffer of the pool, beyond by registering the vector
    /// itself with `pd`. The answer says which.
    ///
    /// A vector lies where the ordinary allocator has put it, which no device knows, so one of the two it must be. A registration takes
    /// some microseconds and a system call, again and again for each vector, and ends when the segment is dropped; copying takes some
    /// microseconds for each 64 KiB. What is sent often is better written into a buffer of the pool to begin with.
    ///
    /// ```
    /// # use mempool::{FromVec, Pool, sg};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let short = pool.try_from_vec(vec![1; 100], &pd, 64 << 10)?;
    /// let long = pool.try_from_vec(vec![2; 1 << 20], &pd, 64 << 10)?;
    /// assert!(short.was_copied() && !long.was_copied());
    /// assert_eq!(sg![short, long].segment_count(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`FromVecError`], with the vector: no memory in the pool, or the device refuses. It does not try the other way then.
    pub fn try_from_vec(
        &self,
        vec: Vec<u8>,
        pd: &Pd,
        copy_up_to: usize,
    ) -> Result<FromVec, FromVecError> {
        let failed = |vec, kind| FromVecError {
            vec,
            kind: Box::new(kind),
        };
        // Of no bytes nothing can be registered.
        if vec.len() <= copy_up_to || vec.is_empty() {
            return match self.alloc_from_slice(&vec) {
                Ok(buf) => Ok(FromVec::Copied(buf)),
                Err(error) => Err(failed(vec, error.into())),
            };
        }
        pd.register(vec).map(FromVec::Registered).map_err(|error| {
            let (vec, error) = error.into_parts();
            failed(vec, error.into())
        })
    }
}
