//! Why a verb was refused, beyond the errno that is all the C interface has room for.

use std::cell::RefCell;
use std::io;

thread_local!(static LAST: RefCell<Option<String>> = const { RefCell::new(None) });

/// A verb of this thread is about to be refused because of this.
pub(crate) fn keep(error: &io::Error) {
    // A bare errno says it all.
    let text = error.raw_os_error().is_none().then(|| error.to_string());
    // While the thread ends nobody asks any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// A verb of this thread begins that may be refused: what was said before is not about it.
pub(crate) fn forget() {
    let _ = LAST.try_with(|last| last.borrow_mut().take());
}

/// Why the thread's last `ibv_open_device`, or `ibv_modify_qp` to RTR, was refused: what stands in the way, and what to do. For error messages. `None` if its errno says
/// it all, and when it has been asked before.
///
/// ```standalone_crate
/// # // A folder that depends on where a process runs is none to meet others in.
/// # // SAFETY: no other thread runs that looks at the environment.
/// # unsafe { std::env::set_var("VERBATIM_DIR", "here") };
/// let api = softverbs::api();
/// # // SAFETY: a device of the list, which is freed behind its last use.
/// # unsafe {
/// let list = (api.ibv_get_device_list)(std::ptr::null_mut());
/// assert!((api.ibv_open_device)(*list).is_null());
/// let why = softverbs::take_refusal().unwrap();
/// assert!(why.contains("set it to an absolute path"), "{why}");
/// assert!(softverbs::take_refusal().is_none());
/// # (api.ibv_free_device_list)(list);
/// # }
/// ```
pub fn take_refusal() -> Option<String> {
    LAST.try_with(|last| last.borrow_mut().take()).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{QPN_BITS, VERSION};
    use crate::os::directory::SlotInfo;
    use crate::os::pull::FileId;
    use crate::process::Process;

    #[test]
    fn what_stands_in_the_way_to_a_peer_is_told_once() {
        let process = Process::get().unwrap();
        // One whose segment is not where it says.
        let elsewhere = SlotInfo {
            owner: process.me,
            segment_fd: 0,
            segment: FileId { dev: 1, ino: 1 },
            layout: VERSION,
        };
        let slot = process.directory().claim(&elsewhere).unwrap();
        let refused = process.peer_of(u32::from(slot.index) << QPN_BITS | 2);
        let error = refused.err().unwrap();
        keep(&error);
        let why = take_refusal().unwrap();
        assert!(why.contains("descriptor 0 of process"), "{why}");
        assert_eq!(take_refusal(), None);

        keep(&error);
        keep(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(take_refusal(), None);
        keep(&error);
        forget();
        assert_eq!(take_refusal(), None);
        slot.release();
    }
}
