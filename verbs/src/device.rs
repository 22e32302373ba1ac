//! Devices, and which one to use.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::context::Opened;
use crate::errno;
use crate::list::{self, DeviceList};
use crate::spec::Spec;
use crate::{Context, Error, OpenError};

/// What stands behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A device that libibverbs found: an adapter, or a kernel driver that plays one.
    Hardware,
    /// The user-space device, which reaches processes of this user on this host.
    Soft,
}

/// A device that can be opened.
///
/// ```
/// use verbs::{Device, DeviceKind};
///
/// # fn main() -> Result<(), verbs::OpenError> {
/// let ctx = Device::open_spec("soft0")?;
/// assert_eq!(ctx.kind(), DeviceKind::Soft);
/// println!("{} port {}: {}", ctx.device_name(), ctx.port().port_num, ctx.port().reason);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    list: Arc<DeviceList>,
    index: usize,
    kind: DeviceKind,
    name: String,
}

impl Device {
    /// Environment variable that overrides [`open_default`](Self::open_default): `name[:port[:gid]]`.
    pub const ENV: &'static str = "VERBATIM_DEVICE";

    pub(crate) fn new(list: &Arc<DeviceList>, index: usize, kind: DeviceKind) -> Device {
        Device {
            name: list.name(index),
            list: list.clone(),
            index,
            kind,
        }
    }

    /// All devices, hardware first, then `soft0`. A missing libibverbs is no error: there is no hardware then.
    ///
    /// # Errors
    /// When the user-space device cannot be listed.
    #[doc(alias = "ibv_get_device_list")]
    pub fn list() -> Result<Vec<Device>, OpenError> {
        Ok(list::all()?.0)
    }

    /// As [`list`](Self::list), and a sentence for each place where no device was found, saying why.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn list_with_notes() -> Result<(Vec<Device>, Vec<String>), OpenError> {
        list::all()
    }

    /// Opens the device to use when the user does not care: the one named by `VERBATIM_DEVICE`, else the first hardware with
    /// an active port and a usable GID, else `soft0`. [`Context::chosen_because`] says which and why.
    ///
    /// # Errors
    /// When `VERBATIM_DEVICE` names nothing that can be opened, or there is no device at all.
    pub fn open_default() -> Result<Context, OpenError> {
        if let Some(spec) = std::env::var_os(Self::ENV).filter(|v| !v.is_empty()) {
            let spec = spec.to_string_lossy();
            let ctx = Self::open_spec(&spec)?;
            let because = format!("{}={spec} is set; {}", Self::ENV, ctx.port().reason);
            return Ok(ctx.because(because));
        }
        let (devices, mut notes) = Self::list_with_notes()?;
        for device in devices.iter().filter(|d| d.kind == DeviceKind::Hardware) {
            match device.open() {
                Ok(ctx) if ctx.port().usable() => {
                    let because = format!(
                        "{} is the first hardware device with an active port and a usable GID; {}",
                        device.name,
                        ctx.port().reason
                    );
                    return Ok(ctx.because(because));
                }
                Ok(ctx) => notes.push(format!(
                    "{} cannot be used: {}",
                    device.name,
                    ctx.port().reason
                )),
                Err(e) => notes.push(e.to_string()),
            }
        }
        match devices.iter().find(|d| d.kind == DeviceKind::Soft) {
            Some(soft) => {
                let ctx = soft.open()?;
                let because = format!(
                    "{}, hence {}; {}",
                    notes.join("; "),
                    soft.name,
                    ctx.port().reason
                );
                Ok(ctx.because(because))
            }
            None => Err(OpenError::NoDevice { notes }),
        }
    }

    /// Opens the device named by `name[:port[:gid]]`; port and GID index are chosen where not given.
    ///
    /// # Errors
    /// [`OpenError`] names what there is when the device, port or GID does not exist.
    pub fn open_spec(spec: &str) -> Result<Context, OpenError> {
        let spec = Spec::parse(spec)?;
        let devices = Self::list()?;
        match devices.iter().find(|d| d.name == spec.name) {
            Some(device) => device.open_at(spec.port, spec.gid),
            None => Err(OpenError::UnknownDevice {
                name: spec.name.to_owned(),
                available: devices.into_iter().map(|d| d.name).collect(),
            }),
        }
    }

    /// Name, such as `mlx5_0` or `soft0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Node GUID, in host byte order.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        // SAFETY: a device of a list that is alive.
        u64::from_be(unsafe { (self.list.api.ibv_get_device_guid)(self.list.raw(self.index)) })
    }

    /// Hardware or the user-space device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Opens it, and chooses a port and a GID. A device without an active port opens as well; its queue pairs reach nobody.
    ///
    /// # Errors
    /// When the device cannot be opened, for want of a right or because it is gone.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, OpenError> {
        self.open_at(None, None)
    }

    fn open_at(&self, port: Option<u8>, gid_index: Option<u32>) -> Result<Context, OpenError> {
        let api = self.list.api;
        // SAFETY: a device of a list that is alive.
        let raw = errno::object(unsafe { (api.ibv_open_device)(self.list.raw(self.index)) })
            .map_err(|e| {
                let hint = open_hint(self.kind, &e);
                OpenError::Device {
                    device: self.name.clone(),
                    error: Error::hinted("ibv_open_device", e, hint),
                }
            })?;
        let opened = Opened::new(api, self.kind, self.name.clone(), raw);
        let ctx = Context::new(opened, port, gid_index, String::new())?;
        let because = format!("{} was asked for; {}", self.name, ctx.port().reason);
        Ok(ctx.because(because))
    }
}

/// What to do about `EMFILE`.
pub(crate) const MORE_FILES: &str = "raise the number of files that a process may open: ulimit -n";

/// Why a device cannot be opened, and what to do.
fn open_hint(kind: DeviceKind, e: &io::Error) -> String {
    let hint = match (kind, e.raw_os_error()) {
        (_, Some(libc::EMFILE)) => MORE_FILES,
        (DeviceKind::Soft, Some(libc::ENOMEM)) => {
            "soft0 maps half a GiB for each process that it meets, and uses little of it: see ulimit -v"
        }
        (DeviceKind::Soft, _) => "",
        (_, Some(libc::EACCES | libc::EPERM)) => {
            "no right to use it: see the mode of /dev/infiniband/uverbs*"
        }
        (_, Some(libc::ENODEV | libc::ENOENT)) => "it is gone, or its driver is not loaded",
        _ => "",
    };
    match (soft_refusal(kind), hint) {
        (Some(why), "") => why,
        (Some(why), hint) => format!("{why}; {hint}"),
        (None, hint) => hint.to_owned(),
    }
}

/// What the user-space device says of its last refusal.
pub(crate) fn soft_refusal(kind: DeviceKind) -> Option<String> {
    #[cfg(feature = "soft")]
    if kind == DeviceKind::Soft {
        return softverbs::take_refusal();
    }
    let _ = kind;
    None
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {:?})", self.name, self.kind)
    }
}
