//! An open device.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{Api, ibv_context};

use crate::errno;
use crate::fd::set_nonblocking;
use crate::gid;
use crate::port;
use crate::{
    Channel, CqBuilder, DeviceAttr, DeviceKind, Error, GidEntry, OpenError, Pd, PortAttr,
    PortChoice, Transport,
};

/// An open device, with the port and GID that its queue pairs use. A handle: clones are the same device, which is closed
/// after the last object on it.
#[doc(alias = "ibv_context")]
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    dev: Opened,
    attr: DeviceAttr,
    port: PortChoice,
    because: String,
}

/// The bare open device, closed when dropped.
pub(crate) struct Opened {
    pub(crate) api: &'static Api,
    pub(crate) kind: DeviceKind,
    pub(crate) name: String,
    ctx: NonNull<ibv_context>,
}

// SAFETY: the verbs on a context may be called from any thread, several at once.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    pub(crate) fn new(
        api: &'static Api,
        kind: DeviceKind,
        name: String,
        ctx: NonNull<ibv_context>,
    ) -> Opened {
        Opened {
            api,
            kind,
            name,
            ctx,
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.ctx.as_ptr()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by the same table, and whatever lies in it holds the context. A failure leaks it.
        unsafe { (self.api.ibv_close_device)(self.ctx.as_ptr()) };
    }
}

impl Context {
    /// Picks port and GID on an opened device, unless given.
    pub(crate) fn new(
        dev: Opened,
        port: Option<u8>,
        gid_index: Option<u32>,
        because: String,
    ) -> Result<Context, OpenError> {
        let attr = DeviceAttr::query(&dev).map_err(|error| OpenError::Device {
            device: dev.name.clone(),
            error,
        })?;
        // SAFETY: the device is open, and its descriptor with it.
        set_nonblocking(unsafe { BorrowedFd::borrow_raw((*dev.raw()).async_fd) }).map_err(|e| {
            OpenError::Device {
                device: dev.name.clone(),
                error: Error::hinted("fcntl", e, "descriptor of asynchronous events"),
            }
        })?;
        let port = port::choose(&dev, attr.phys_port_cnt, port, gid_index)?;
        Ok(Context(Arc::new(ContextInner {
            dev,
            attr,
            port,
            because,
        })))
    }

    pub(crate) fn because(self, because: String) -> Context {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Context(Arc::new(ContextInner { because, ..inner })),
            Err(shared) => Context(shared),
        }
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.dev.api
    }

    /// The context as C knows it, for functions that only [`ibverbs_sys`] has. It is closed with the last clone of this value, and of whatever was
    /// made from it.
    pub fn as_raw(&self) -> *mut ibv_context {
        self.raw()
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.0.dev.raw()
    }

    pub(crate) fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Name of the device, such as `mlx5_0` or `soft0`.
    pub fn device_name(&self) -> &str {
        &self.0.dev.name
    }

    /// Hardware or the user-space device.
    pub fn kind(&self) -> DeviceKind {
        self.0.dev.kind
    }

    /// What the device speaks on the wire.
    pub fn transport(&self) -> Transport {
        // SAFETY: the context is open, and so its device is there, which does not change.
        Transport::from_sys(unsafe { (*(*self.raw()).device).transport_type })
    }

    /// Whether messages and WRITEs can carry [immediate data](crate::Wr::imm): all devices have it but those of iWARP.
    ///
    /// ```
    /// assert!(verbs::Device::open_spec("soft0")?.has_immediate_data());
    /// # Ok::<(), verbs::OpenError>(())
    /// ```
    #[doc(alias = "IBV_TRANSPORT_IWARP")]
    pub fn has_immediate_data(&self) -> bool {
        self.transport().has_immediate_data()
    }

    /// Why this device, port and GID, as a sentence.
    pub fn chosen_because(&self) -> &str {
        &self.0.because
    }

    /// The port and GID that queue pairs use.
    pub fn port(&self) -> &PortChoice {
        &self.0.port
    }

    /// What the device can do, as it said when it was opened.
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> &DeviceAttr {
        &self.0.attr
    }

    /// Attributes of a port, asked for now.
    ///
    /// # Errors
    /// When the device has no such port or does not answer.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        Error::in_range(
            "port number",
            port_num.into(),
            1,
            self.0.attr.phys_port_cnt.into(),
        )?;
        port::query(&self.0.dev, port_num)
    }

    /// The partition keys of a port, by index, asked for now. A queue pair is in the partition of index 0.
    ///
    /// # Errors
    /// When the device has no such port or does not answer.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey_table(&self, port_num: u8) -> Result<Vec<u16>, Error> {
        let len = self.query_port(port_num)?.pkey_tbl_len;
        (0..len.into())
            .map(|index| {
                let mut pkey = 0;
                // SAFETY: the context is open and `pkey` is writable.
                let ret =
                    unsafe { (self.api().ibv_query_pkey)(self.raw(), port_num, index, &mut pkey) };
                errno::check(ret)
                    .map_err(|e| Error::hinted("ibv_query_pkey", e, format!("index {index}")))?;
                Ok(u16::from_be(pkey))
            })
            .collect()
    }

    /// The entries of a port's GID table that are not empty; none for a port that does not exist.
    #[doc(alias = "ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid")]
    pub fn gid_table(&self, port_num: u8) -> Vec<GidEntry> {
        match self.query_port(port_num) {
            Ok(attr) => gid::table(&self.0.dev, port_num, attr.gid_tbl_len, attr.is_ethernet()),
            Err(_) => Vec::new(),
        }
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// When the device has none left.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(self)
    }

    /// Starts building a completion queue of at least `depth` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn cq(&self, depth: u32) -> CqBuilder {
        CqBuilder::new(self, depth)
    }

    /// A new completion channel, to block on until a completion arrives.
    ///
    /// # Errors
    /// When the device or the process has none left.
    pub fn channel(&self) -> Result<Channel, Error> {
        Channel::new(self)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device_name())
            .field("port", &self.port().port_num)
            .field("gid_index", &self.port().gid_index)
            .field("gid", &self.port().gid)
            .finish()
    }
}
