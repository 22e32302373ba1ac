//! Leases: memory that the peer may READ, through a key that covers just these bytes, for as long
//! as one call needs them.

use mempool::{Buf, Segment, SharedBuf};
use verbs::{Pd, Readable, RemoteRegion};

/// A segment with a key of its own. Frozen: nobody writes it while the peer may read it.
#[derive(Debug)]
pub(crate) enum Lease {
    Buf(Readable<Buf>),
    Shared(Readable<SharedBuf>),
}

impl Lease {
    /// Registers a segment; memory that is a region already cannot be leased as it is.
    ///
    /// On failure the segment comes back.
    pub fn new(pd: &Pd, segment: Segment) -> Result<Lease, (Segment, Option<verbs::Error>)> {
        match segment {
            Segment::Buf(buf) => pd.readable(buf).map(Lease::Buf).map_err(|e| {
                let (buf, error) = e.into_parts();
                (buf.into(), Some(error))
            }),
            Segment::SharedBuf(buf) => pd.readable(buf).map(Lease::Shared).map_err(|e| {
                let (buf, error) = e.into_parts();
                (buf.into(), Some(error))
            }),
            other => Err((other, None)),
        }
    }

    pub fn remote(&self) -> RemoteRegion {
        match self {
            Lease::Buf(region) => region.remote(),
            Lease::Shared(region) => region.remote(),
        }
    }

    /// Takes the key back, then the segment; `None` when the device does not give it up, in which
    /// case it is leaked.
    pub fn end(self) -> Option<Segment> {
        match self {
            Lease::Buf(region) => region.into_inner().ok().map(Segment::from),
            Lease::Shared(region) => region.into_inner().ok().map(Segment::from),
        }
    }
}
