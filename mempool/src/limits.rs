//! Limits that would refuse a registration, looked at before anything is tried: what the kernel and devices say afterwards is a
//! bare `ENOMEM`.

use std::fs;
use verbs::{DeviceKind, Pd};

/// A limit that is in the way of one more arena.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// Registered memory counts as locked memory, of which this process may not have so much.
    #[error(
        "RLIMIT_MEMLOCK allows {limit} bytes of locked memory, of which {locked} are in use, and {asked} more are needed; raise it with \
         `ulimit -l`, LimitMEMLOCK= of the service or limits.conf, grant CAP_IPC_LOCK, or lower the pool's budgets"
    )]
    Memlock {
        /// The limit in bytes.
        limit: u64,
        /// What is locked or pinned already, in bytes.
        locked: u64,
        /// Length of the arena in bytes.
        asked: u64,
    },
    /// The device takes only shorter regions.
    #[error(
        "{device} registers regions of up to {limit} bytes, and {asked} were asked for; use several buffers"
    )]
    RegionSize {
        /// The device.
        device: String,
        /// Its longest region in bytes.
        limit: u64,
        /// Length of the arena in bytes.
        asked: u64,
    },
    /// The device has no more regions.
    #[error(
        "{device} has {limit} regions, and this pool alone has registered all of them; use fewer large buffers or leases at the same time"
    )]
    Regions {
        /// The device.
        device: String,
        /// How many it has.
        limit: u64,
    },
}

/// Whether an arena of `len` bytes can be registered with `pd`, where the pool has `regions` already.
pub(crate) fn check(pd: &Pd, len: usize, regions: u64) -> Result<(), LimitError> {
    let context = pd.context();
    let attr = context.query_device();
    let name = context.device_name();
    check_device(
        name,
        (attr.max_mr_size, u64::from(attr.max_mr)),
        len,
        regions,
    )?;
    // The user-space device pins nothing.
    if context.kind() == DeviceKind::Soft {
        return Ok(());
    }
    let (limit, status) = (memlock(), fs::read_to_string("/proc/self/status"));
    match (limit, status) {
        (Some(limit), Ok(status)) => check_memlock(limit, &status, len),
        // Nothing known is nothing against it; the device will say.
        _ => Ok(()),
    }
}

fn check_device(
    device: &str,
    (max_len, max_regions): (u64, u64),
    len: usize,
    regions: u64,
) -> Result<(), LimitError> {
    if len as u64 > max_len {
        return Err(LimitError::RegionSize {
            device: device.to_owned(),
            limit: max_len,
            asked: len as u64,
        });
    }
    if regions >= max_regions {
        return Err(LimitError::Regions {
            device: device.to_owned(),
            limit: max_regions,
        });
    }
    Ok(())
}

/// The soft limit on locked memory; `None` if there is none.
fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// By what `/proc/self/status` says. The kernel counts memory that devices pin (`VmPin`) by itself, and locked memory (`VmLck`) too; which it
/// adds up depends on its version, so the larger one is what is certainly in the way.
fn check_memlock(limit: u64, status: &str, len: usize) -> Result<(), LimitError> {
    const IPC_LOCK: u32 = 14;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].split_whitespace().next()
    };
    let capable = field("CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|caps| caps >> IPC_LOCK & 1 == 1);
    let kib = |name| {
        let number = field(name).and_then(|n| n.parse::<u64>().ok());
        number.unwrap_or(0) << 10
    };
    let (locked, asked) = (kib("VmPin:").max(kib("VmLck:")), len as u64);
    if capable || locked.saturating_add(asked) <= limit {
        return Ok(());
    }
    Err(LimitError::Memlock {
        limit,
        locked,
        asked,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn status(caps: &str, pinned: u64) -> String {
        format!("Name:\tx\nVmLck:\t 8 kB\nVmPin:\t {pinned} kB\nCapEff:\t{caps}\n")
    }

    #[test]
    fn locked_memory_is_counted() {
        let none = "0000000000000000";
        let check = |caps, pinned, len| check_memlock(8 * MIB, &status(caps, pinned), len);
        assert_eq!(check(none, 4096, 4 << 20), Ok(()));
        assert_eq!(
            check(none, 4096, (4 << 20) + 1),
            Err(LimitError::Memlock {
                limit: 8 * MIB,
                locked: 4 * MIB,
                asked: 4 * MIB + 1
            })
        );
        assert_eq!(check("0000000000004000", 4096, 1 << 30), Ok(()));
        let text = check("000001ffffffbfff", 0, 1 << 30).unwrap_err();
        let text = text.to_string();
        assert!(
            text.contains("ulimit -l") && text.contains("8388608"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_known_is_not_in_the_way() {
        assert_eq!(check_memlock(8 * MIB, "", 1 << 20), Ok(()));
        // This process's own.
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(own.contains("CapEff:"));
        assert_eq!(check_memlock(u64::MAX, &own, 1 << 30), Ok(()));
    }

    #[test]
    fn the_device_s_limits_are_counted() {
        let check = |len, regions| check_device("mlx5_0", (4 * MIB, 3), len, regions);
        assert_eq!(check(4 << 20, 2), Ok(()));
        let text = check((4 << 20) + 1, 0).unwrap_err().to_string();
        assert!(
            text.contains("mlx5_0") && text.contains("4194304"),
            "{text}"
        );
        assert_eq!(
            check(1, 3),
            Err(LimitError::Regions {
                device: "mlx5_0".to_owned(),
                limit: 3
            })
        );
    }
}
