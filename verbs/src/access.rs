//! What a memory region or a queue pair allows.

use ibverbs_sys::ibv_access_flags as sys;

bitflags::bitflags! {
    /// Rights of a memory region, or of a queue pair's peer.
    ///
    /// Reading by local work requests is always allowed. Nothing remote is ever a default of a region.
    ///
    /// Source: `ibv_reg_mr(3)`.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write here for local work requests (receives, READ destinations).
        const LOCAL_WRITE = sys::IBV_ACCESS_LOCAL_WRITE.0;
        /// Peers may WRITE. Implies [`LOCAL_WRITE`](Self::LOCAL_WRITE) for regions, which the verbs ask for.
        const REMOTE_WRITE = sys::IBV_ACCESS_REMOTE_WRITE.0;
        /// Peers may READ.
        const REMOTE_READ = sys::IBV_ACCESS_REMOTE_READ.0;
        /// Peers may use atomics. Implies [`LOCAL_WRITE`](Self::LOCAL_WRITE) for regions.
        const REMOTE_ATOMIC = sys::IBV_ACCESS_REMOTE_ATOMIC.0;
    }
}

impl Access {
    /// Rights that let a peer change the memory.
    pub(crate) const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
    /// Rights that need a key in a peer's hands.
    pub(crate) const REMOTE: Access = Access::REMOTE_CHANGE.union(Access::REMOTE_READ);

    /// The flags `ibv_reg_mr` wants: remote changes need local ones.
    pub(crate) fn for_region(self) -> Access {
        // Bits without a name here would change what addresses mean.
        let access = self & Access::all();
        if access.intersects(Access::REMOTE_CHANGE) {
            access | Access::LOCAL_WRITE
        } else {
            access
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_changes_imply_local_ones() {
        assert!(
            Access::REMOTE_WRITE
                .for_region()
                .contains(Access::LOCAL_WRITE)
        );
        assert!(
            Access::REMOTE_ATOMIC
                .for_region()
                .contains(Access::LOCAL_WRITE)
        );
        assert!(Access::from_bits_retain(1 << 5).for_region().is_empty());
        assert!(
            !Access::REMOTE_READ
                .for_region()
                .contains(Access::LOCAL_WRITE)
        );
    }
}
