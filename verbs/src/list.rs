//! The device lists of the libraries there are, merged into one.

use std::ffi::CStr;
use std::sync::Arc;

use ibverbs_sys::{Api, ibv_device};

use crate::errno;
use crate::{Device, DeviceKind, Error, OpenError};

/// One library's list, freed when no [`Device`] names it any more.
pub(crate) struct DeviceList {
    pub(crate) api: &'static Api,
    list: *mut *mut ibv_device,
    len: usize,
}

// SAFETY: the list is not changed after it was made, and may be freed by any thread.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    #[doc(alias = "ibv_get_device_list")]
    fn new(api: &'static Api) -> Result<DeviceList, Error> {
        let mut len = 0;
        // SAFETY: `len` is writable.
        let list = errno::object(unsafe { (api.ibv_get_device_list)(&mut len) })
            .map_err(|e| Error::verb("ibv_get_device_list", e))?;
        Ok(DeviceList {
            api,
            list: list.as_ptr(),
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    /// The device at `index`, which is below `len`.
    pub(crate) fn raw(&self, index: usize) -> *mut ibv_device {
        assert!(index < self.len);
        // SAFETY: within the list.
        unsafe { *self.list.add(index) }
    }

    pub(crate) fn name(&self, index: usize) -> String {
        // SAFETY: a device of the list.
        let name = unsafe { (self.api.ibv_get_device_name)(self.raw(index)) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: terminated, and lives as long as the list.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by the same table; devices opened from it stay open.
        unsafe { (self.api.ibv_free_device_list)(self.list) };
    }
}

/// All devices, hardware first, and why there are none of a kind.
pub(crate) fn all() -> Result<(Vec<Device>, Vec<String>), OpenError> {
    let (mut devices, mut notes) = (Vec::new(), Vec::new());
    match Api::system() {
        Err(e) => notes.push(format!("no hardware can be used: {e}")),
        Ok(api) => match hardware(api) {
            Ok(list) => add(&mut devices, list, DeviceKind::Hardware),
            Err(note) => notes.push(note),
        },
    }
    #[cfg(feature = "soft")]
    add(
        &mut devices,
        DeviceList::new(softverbs::api()).map_err(OpenError::List)?,
        DeviceKind::Soft,
    );
    #[cfg(not(feature = "soft"))]
    notes.push("soft0 is not built in (feature \"soft\")".to_owned());
    Ok((devices, notes))
}

/// What libibverbs finds, or a sentence for people on why that is nothing.
pub(crate) fn hardware(api: &'static Api) -> Result<DeviceList, String> {
    match DeviceList::new(api) {
        Ok(list) if list.len == 0 => Err("libibverbs finds no hardware".to_owned()),
        Ok(list) => Ok(list),
        // Nothing that went wrong, as the error's own text would have it: most hosts are like this.
        Err(Error::Verb { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => Err(
            "no hardware can be used: the kernel has no RDMA support loaded (there is no /sys/class/infiniband_verbs; module \
             ib_uverbs)"
                .to_owned(),
        ),
        Err(e) => Err(format!("no hardware can be used: {e}")),
    }
}

/// The devices of a table, for tests that tamper with it.
#[cfg(all(test, feature = "soft"))]
pub(crate) fn of(api: &'static Api) -> Vec<Device> {
    let mut devices = Vec::new();
    let list = DeviceList::new(api).unwrap_or_else(|e| panic!("{e}"));
    add(&mut devices, list, DeviceKind::Soft);
    devices
}

fn add(devices: &mut Vec<Device>, list: DeviceList, kind: DeviceKind) {
    let list = Arc::new(list);
    // A library that says there are more than there are ends its list with null all the same.
    let there = (0..list.len).filter(|index| !list.raw(*index).is_null());
    devices.extend(there.map(|index| Device::new(&list, index, kind)));
}
