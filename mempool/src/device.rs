//! Buffers for the other devices of a pool.

use crate::buf::Buf;
use crate::device_buf::DeviceBuf;
use crate::exposed::ExposedBuf;
use crate::pool::Pool;
use crate::shared_buf::SharedBuf;
use verbs::{Contiguous, Gather, LKey, Pd, Scatter, SgeList};

/// One of the domains that a pool registers its memory with, by number. Made by [`Pool::device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceSlot(u8);

impl DeviceSlot {
    /// How many domains a pool can have.
    pub const MOST: usize = 8;
}

impl Pool {
    /// The number of a domain of this pool; the one it was begun with is the first. `None` if it is none of them.
    pub fn device(&self, pd: &Pd) -> Option<DeviceSlot> {
        let at = self.shared.pds.iter().position(|other| other == pd)?;
        Some(DeviceSlot(at as u8))
    }
}

mod sealed {
    use verbs::{LKey, SgeList};

    pub trait Sealed {
        fn key(&self, device: usize) -> LKey;
        fn push(&self, device: usize, out: &mut SgeList);
    }
}
use sealed::Sealed;

/// A buffer of a pool: [`Buf`], [`SharedBuf`], [`ExposedBuf`] or [`DeviceBuf`].
pub trait OfPool: Gather + Sealed + Sized {
    /// The local key for one of the pool's devices; found by number, in two loads more than the first one's. `LKey(0)` for a buffer that takes no
    /// memory.
    ///
    /// # Panics
    /// If the buffer's pool has no such device: the number is of another pool.
    fn lkey_on(&self, device: DeviceSlot) -> LKey {
        self.key(device.0 as usize)
    }

    /// Makes it a segment for queues of that device.
    ///
    /// # Panics
    /// As [`lkey_on`](OfPool::lkey_on).
    fn on(self, device: DeviceSlot) -> On<Self> {
        let _ = self.lkey_on(device);
        On { buf: self, device }
    }
}

macro_rules! of_pool {
    ($($buf:ty, $viewless:literal;)*) => {$(
        impl Sealed for $buf {
            fn key(&self, device: usize) -> LKey {
                self.as_handle().lkey_on(device)
            }

            fn push(&self, device: usize, out: &mut SgeList) {
                self.as_handle().push_to_on(device, out);
                if $viewless {
                    out.without_view();
                }
            }
        }
        impl OfPool for $buf {}
    )*};
}
of_pool! {
    Buf, false;
    SharedBuf, false;
    ExposedBuf, false;
    DeviceBuf, true;
}

/// A buffer as a segment for queues of one of its pool's devices. Made by [`OfPool::on`].
///
/// ```
/// # use mempool::{OfPool, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (first, second) = (verbs::Device::open_spec("soft0")?.alloc_pd()?, verbs::Device::open_spec("soft0")?.alloc_pd()?);
/// let pool = Pool::builder(&first).also(&second).build()?;
/// let on_second = pool.device(&second).expect("one of its domains");
/// let message = pool.alloc(100)?.on(on_second); // for queue pairs of `second`
/// let buf = message.into_inner();
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct On<B> {
    buf: B,
    device: DeviceSlot,
}

impl<B: OfPool> On<B> {
    /// The buffer.
    pub fn get(&self) -> &B {
        &self.buf
    }

    /// The buffer, to be written.
    pub fn get_mut(&mut self) -> &mut B {
        &mut self.buf
    }

    /// The buffer, as a segment for the first device again.
    pub fn into_inner(self) -> B {
        self.buf
    }

    fn push_to(&self, out: &mut SgeList) {
        self.buf.push(self.device.0 as usize, out);
    }
}

// SAFETY: the same bytes under another key of theirs; a buffer is `Gather` by itself.
unsafe impl<B: OfPool> Gather for On<B> {
    fn gather(&self, out: &mut SgeList) {
        self.push_to(out);
    }
}

// SAFETY: as above; a buffer that is not shared is `Scatter` by itself.
unsafe impl Scatter for On<Buf> {
    fn scatter(&mut self, out: &mut SgeList) {
        self.push_to(out);
    }
}

// SAFETY: as above; there are no references to such memory.
unsafe impl Scatter for On<DeviceBuf> {
    fn scatter(&mut self, out: &mut SgeList) {
        self.push_to(out);
    }
}

impl Contiguous for On<Buf> {
    fn bytes(&self) -> &[u8] {
        &self.buf
    }
}
