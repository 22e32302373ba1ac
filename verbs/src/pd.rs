//! Protection domains: memory regions and queue pairs that may be used together.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{Api, ibv_pd};

use crate::errno;
use crate::{
    Access, Context, Cq, Error, Exposed, Memory, MemoryMut, Mmap, Private, RcBuilder, Readable,
    Region, RegisterError, SharedRecvBuilder, UcBuilder, UdBuilder,
};

/// A protection domain. A handle: clones are the same domain, which is freed after the last object in it.
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

struct PdInner {
    pd: NonNull<ibv_pd>,
    ctx: Context,
}

// SAFETY: the verbs on a protection domain may be called from any thread, several at once.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated below, and whatever lies in it holds a clone of the handle. If it fails all the same (after a
        // leaked object), the domain is leaked and the device kept open.
        if unsafe { (self.ctx.api().ibv_dealloc_pd)(self.pd.as_ptr()) } != 0 {
            std::mem::forget(self.ctx.clone());
        }
    }
}

impl Pd {
    #[doc(alias = "ibv_alloc_pd")]
    pub(crate) fn new(ctx: &Context) -> Result<Pd, Error> {
        // SAFETY: the context is open.
        let pd = errno::object(unsafe { (ctx.api().ibv_alloc_pd)(ctx.raw()) })
            .map_err(|e| Error::verb("ibv_alloc_pd", e))?;
        Ok(Pd(Arc::new(PdInner {
            pd,
            ctx: ctx.clone(),
        })))
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.ctx
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.ctx.api()
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.pd.as_ptr()
    }

    /// Starts building a reliable connection whose both queues complete on `cq`.
    #[doc(alias = "ibv_create_qp")]
    pub fn rc(&self, cq: &Cq) -> RcBuilder {
        RcBuilder::new(self, cq)
    }

    /// Starts building an unreliable connection whose both queues complete on `cq`.
    #[doc(alias = "ibv_create_qp")]
    pub fn uc(&self, cq: &Cq) -> UcBuilder {
        UcBuilder::new(self, cq)
    }

    /// Starts building a queue pair for datagrams whose both queues complete on `cq`.
    #[doc(alias = "ibv_create_qp")]
    pub fn ud(&self, cq: &Cq) -> UdBuilder {
        UdBuilder::new(self, cq)
    }

    /// Starts building a receive queue of `depth` receives that several queue pairs take from.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_recv(&self, depth: u32) -> SharedRecvBuilder {
        SharedRecvBuilder::new(self, depth)
    }

    /// Registers memory for this process's own use: to send from, to receive into.
    ///
    /// # Errors
    /// [`RegisterError`] gives the memory back; it says what limits were in the way.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: MemoryMut>(&self, memory: M) -> Result<Private<M>, RegisterError<M>> {
        Private::new(self, memory)
    }

    /// Registers memory that peers with its key may READ, and that is frozen until then.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn readable<M: Memory>(&self, memory: M) -> Result<Readable<M>, RegisterError<M>> {
        Readable::new(self, memory)
    }

    /// Zeroed memory of `len` bytes that peers with its key may use as `access` says.
    ///
    /// # Errors
    /// When there is no memory, the device refuses, or `access` names nothing remote.
    pub fn expose(&self, len: usize, access: Access) -> Result<Exposed<Mmap>, Error> {
        if len == 0 {
            return Err(Error::Empty {
                what: "exposed memory",
            });
        }
        let memory = Mmap::anonymous(len).map_err(|e| Error::verb("mmap", e))?;
        Ok(self.expose_memory(memory, access)?)
    }

    /// Registers memory that peers with its key may use as `access` says.
    ///
    /// # Errors
    /// As [`expose`](Self::expose); the memory comes back.
    pub fn expose_memory<M: MemoryMut>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Exposed<M>, RegisterError<M>> {
        Exposed::new(self, memory, access)
    }

    /// Registers memory without a view of it, for those who manage it themselves with `unsafe` code.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn region<M: MemoryMut>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Region<M>, RegisterError<M>> {
        Region::new(self, memory, access, None)
    }

    /// As [`region`](Self::region), under addresses of the caller's choice: work requests, also those of peers, call the first byte
    /// `iova`. What the processor uses stays what it is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device or its library cannot; else as [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn region_at<M: MemoryMut>(
        &self,
        memory: M,
        access: Access,
        iova: u64,
    ) -> Result<Region<M>, RegisterError<M>> {
        Region::new(self, memory, access, Some(iova))
    }
}

impl PartialEq for Pd {
    /// Whether both are the same domain.
    fn eq(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Pd {}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd")
            .field("device", &self.0.ctx.device_name())
            .finish()
    }
}
