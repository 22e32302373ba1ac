//! Parts of registered memory, borrowed: what is posted within a [scope](crate::SendQueue::scope).

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::{Exposed, LKey, Memory, MemoryMut, Private, Readable, Region, SegmentError, SgeList};

/// A part of registered memory, borrowed for reading by a device.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    addr: u64,
    len: usize,
    lkey: LKey,
    memory: PhantomData<&'a [u8]>,
}

/// A part of registered memory, borrowed for writing by a device.
#[derive(Debug)]
pub struct PartMut<'a> {
    addr: u64,
    len: usize,
    lkey: LKey,
    memory: PhantomData<&'a mut [u8]>,
}

/// Addresses of the range, if it lies in the region.
fn locate<M>(
    region: &Region<M>,
    range: impl RangeBounds<usize>,
) -> Result<(u64, usize), SegmentError> {
    let start = match range.start_bound() {
        Bound::Included(&s) => s,
        Bound::Excluded(&s) => s.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.saturating_add(1),
        Bound::Excluded(&e) => e,
        Bound::Unbounded => region.len(),
    };
    if start <= end && end <= region.len() {
        Ok((region.iova() + start as u64, end - start))
    } else {
        Err(region.outside(start, end.saturating_sub(start)))
    }
}

impl<'a> Part<'a> {
    /// # Safety
    /// For as long as `'a` nobody writes the memory of the region, other than through cells.
    unsafe fn new<M>(
        region: &'a Region<M>,
        range: impl RangeBounds<usize>,
    ) -> Result<Part<'a>, SegmentError> {
        let (addr, len) = locate(region, range)?;
        Ok(Part {
            addr,
            len,
            lkey: region.lkey(),
            memory: PhantomData,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push_to(&self, out: &mut SgeList) {
        out.push_bytes(self.addr, self.len, self.lkey);
    }
}

impl<'a> PartMut<'a> {
    /// # Safety
    /// For as long as `'a` no reference to the memory of the range is used, other than to cells.
    unsafe fn new<M>(
        region: &Region<M>,
        range: impl RangeBounds<usize>,
    ) -> Result<PartMut<'a>, SegmentError> {
        let (addr, len) = locate(region, range)?;
        Ok(PartMut {
            addr,
            len,
            lkey: region.lkey(),
            memory: PhantomData,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Two parts, of which the first has `at` bytes, or all if there are not as many.
    pub fn split_at(self, at: usize) -> (PartMut<'a>, PartMut<'a>) {
        let at = at.min(self.len);
        let part = |addr, len| PartMut {
            addr,
            len,
            lkey: self.lkey,
            memory: PhantomData,
        };
        (
            part(self.addr, at),
            part(self.addr + at as u64, self.len - at),
        )
    }

    pub(crate) fn push_to(&self, out: &mut SgeList) {
        out.push_bytes(self.addr, self.len, self.lkey);
    }
}

impl<'a> AsRef<[Part<'a>]> for Part<'a> {
    fn as_ref(&self) -> &[Part<'a>] {
        std::slice::from_ref(self)
    }
}

impl<'a> AsRef<[PartMut<'a>]> for PartMut<'a> {
    fn as_ref(&self) -> &[PartMut<'a>] {
        std::slice::from_ref(self)
    }
}

impl<M: Memory> Private<M> {
    /// Part of it, to send from within a [scope](crate::SendQueue::scope).
    ///
    /// # Errors
    /// [`SegmentError`] when the range does not lie within the memory.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Part<'_>, SegmentError> {
        // SAFETY: while it is borrowed, nobody writes it, and no peer can.
        unsafe { Part::new(self.region(), range) }
    }

    /// Part of it, to READ into within a [scope](crate::SendQueue::scope).
    ///
    /// # Errors
    /// [`SegmentError`] when the range does not lie within the memory.
    pub fn part_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PartMut<'_>, SegmentError>
    where
        M: MemoryMut,
    {
        // SAFETY: while it is borrowed mutably, nobody else has a reference.
        unsafe { PartMut::new(self.region(), range) }
    }
}

impl<M: Memory> Readable<M> {
    /// Part of it, to send from within a [scope](crate::SendQueue::scope).
    ///
    /// # Errors
    /// [`SegmentError`] when the range does not lie within the memory.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Part<'_>, SegmentError> {
        // SAFETY: frozen memory.
        unsafe { Part::new(self.region(), range) }
    }
}

impl<M: MemoryMut> Exposed<M> {
    /// Part of it, to send from within a [scope](crate::SendQueue::scope).
    ///
    /// # Errors
    /// [`SegmentError`] when the range does not lie within the memory.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Part<'_>, SegmentError> {
        // SAFETY: written through cells only.
        unsafe { Part::new(self.region(), range) }
    }

    /// Part of it, to READ into within a [scope](crate::SendQueue::scope). Not borrowed mutably: it is cells.
    ///
    /// # Errors
    /// [`SegmentError`] when the range does not lie within the memory.
    pub fn part_mut(&self, range: impl RangeBounds<usize>) -> Result<PartMut<'_>, SegmentError> {
        // SAFETY: there are no references but to cells.
        unsafe { PartMut::new(self.region(), range) }
    }
}
