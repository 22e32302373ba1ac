//! A completion channel of several completion queues, and waiting on it.

use crate::device::{Side, errno_code};
use crate::names::errno;
use crate::sundry::Cq;
use ibverbs_sys::ibv_comp_channel;
use std::ptr::{null_mut, without_provenance_mut};

/// A channel. Its queues are destroyed before it.
pub struct Channel {
    side: Side,
    channel: *mut ibv_comp_channel,
}

impl Channel {
    pub fn new(side: &Side) -> Channel {
        // SAFETY: the context is open.
        let channel = unsafe { (side.api.ibv_create_comp_channel)(side.ctx) };
        assert!(!channel.is_null(), "no channel");
        Channel {
            side: *side,
            channel,
        }
    }

    /// A completion queue of this channel, whose events carry `name`.
    pub fn cq(&self, cqe: i32, name: usize) -> Cq {
        let context = without_provenance_mut(name);
        // SAFETY: context and channel are alive; what is handed over as the caller's is given back, and never followed.
        let cq =
            unsafe { (self.side.api.ibv_create_cq)(self.side.ctx, cqe, context, self.channel, 0) };
        assert!(
            !cq.is_null(),
            "no completion queue: {}",
            errno(errno_code())
        );
        Cq::from_raw(&self.side, cq, null_mut())
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel).fd }
    }

    /// From here on waiting does not block.
    pub fn never_block(&self) {
        // SAFETY: flags of a descriptor that is open.
        let result = unsafe {
            let flags = libc::fcntl(self.fd(), libc::F_GETFL);
            libc::fcntl(self.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        assert_eq!(result, 0);
    }

    /// The next event, which is not acknowledged: the name of its queue, or an errno. Blocks, however long it takes.
    pub fn wait(&self) -> Result<usize, i32> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both are valid for writes.
        let result =
            unsafe { (self.side.api.ibv_get_cq_event)(self.channel, &mut cq, &mut context) };
        match result {
            0 => Ok(context.addr()),
            _ => Err(errno_code()),
        }
    }

    /// What [`Channel::wait`] says, as text.
    pub fn waited(&self) -> String {
        match self.wait() {
            Ok(name) => name.to_string(),
            Err(error) => errno(error),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the last use; if a queue of a failed case is left, it stays.
        unsafe { (self.side.api.ibv_destroy_comp_channel)(self.channel) };
    }
}
