//! Two fences of which one costs nothing and the other a system call.
//!
//! After [`heavy`] has returned `true`, of every other thread of the process this holds: what it stored before its last
//! [`light`] is seen here, or what it loads after that sees what was stored here.

#[cfg(not(loom))]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    /// On the hot path: keeps the compiler from swapping what is before and behind.
    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes every thread of this process pass a full fence (membarrier(2)); `false` if the kernel, or a seccomp filter, offers
    /// none.
    pub(crate) fn heavy() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let command = |command: libc::c_int| {
            // SAFETY: touches no memory of this process.
            unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
        };
        let register = || command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        *REGISTERED.get_or_init(register) && command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }
}

/// Loom knows no membarrier: both sides use full fences, which is the same protocol.
#[cfg(loom)]
mod imp {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

pub(crate) use imp::{heavy, light};

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn this_kernel_has_the_fence() {
        assert!(super::heavy());
    }
}
