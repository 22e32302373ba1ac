//! Why the kernel does not let us at another process, as a sentence for the user. Used only after a call was refused:
//! the kernel's own answer is the test, this is the explanation.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What stands between this process and another one's memory and descriptors. See ptrace(2), "Ptrace access mode
/// checking".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The other process belongs to another user.
    OtherUser {
        /// Effective user of the other process.
        theirs: u32,
        /// Effective user of this one.
        mine: u32,
    },
    /// The other process has switched off `PR_SET_DUMPABLE`, or the kernel has, because its program changed its
    /// credentials or cannot be read by its user.
    NotDumpable,
    /// The Yama security module restricts access, by this value of its `ptrace_scope`.
    Yama(u32),
    /// This process runs under a seccomp filter, as in many containers.
    Seccomp,
    /// None of those that can be seen from here.
    Unknown,
}

/// Finds the likeliest obstacle between this process and `pid`.
pub fn find(pid: u32) -> Obstacle {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let mine = unsafe { libc::geteuid() };
    if let Some(theirs) = effective_user(pid)
        && theirs != mine
    {
        return Obstacle::OtherUser { theirs, mine };
    }
    // The kernel gives the files in /proc of a process that is not dumpable to root, proc(5).
    if let Ok(folder) = fs::metadata(format!("/proc/{pid}/fd"))
        && folder.uid() != mine
    {
        return Obstacle::NotDumpable;
    }
    if let Some(scope @ 1..) = yama_scope() {
        return Obstacle::Yama(scope);
    }
    match status_field("self", "Seccomp:").as_deref() {
        Some("2") => Obstacle::Seccomp,
        _ => Obstacle::Unknown,
    }
}

/// Value of Yama's `ptrace_scope`, `None` where the kernel has no Yama.
fn yama_scope() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}

fn effective_user(pid: u32) -> Option<u32> {
    // Real, effective, saved and file system user, in this order.
    let users = status_field(&pid.to_string(), "Uid:")?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn status_field(process: &str, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().to_owned())
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::OtherUser { theirs, mine } => write!(
                f,
                "it runs as user {theirs}, this process as user {mine}: run both as the same user"
            ),
            Obstacle::NotDumpable => f.write_str(
                "it is not dumpable: remove its prctl(PR_SET_DUMPABLE, 0), or make its program readable \
                 and free of set-user-id and capabilities",
            ),
            Obstacle::Yama(1) => f.write_str(
                "Yama's kernel.yama.ptrace_scope is 1: the other process has to call \
                 prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), or set the sysctl to 0",
            ),
            Obstacle::Yama(scope) => write!(
                f,
                "Yama's kernel.yama.ptrace_scope is {scope}: set the sysctl to 0 or 1, or give both \
                 processes CAP_SYS_PTRACE (which does not help at 3)"
            ),
            Obstacle::Seccomp => f.write_str(
                "this process runs under a seccomp filter that may forbid it, as containers do: allow \
                 process_vm_readv and process_vm_writev in its profile",
            ),
            Obstacle::Unknown => f.write_str(
                "no reason can be seen from here: look at capabilities, user namespaces, and security \
                 modules such as SELinux and AppArmor",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_the_status_file() {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let mine = unsafe { libc::geteuid() };
        assert_eq!(effective_user(std::process::id()), Some(mine));
        assert_eq!(effective_user(u32::MAX), None);
        assert_eq!(status_field("self", "NoSuchField:"), None);
    }

    #[test]
    fn every_sentence_says_what_to_do() {
        let other = Obstacle::OtherUser { theirs: 7, mine: 9 };
        assert!(other.to_string().contains("user 7"));
        assert!(other.to_string().contains("user 9"));
        assert!(
            Obstacle::NotDumpable
                .to_string()
                .contains("PR_SET_DUMPABLE")
        );
        assert!(Obstacle::Yama(1).to_string().contains("PR_SET_PTRACER"));
        assert!(Obstacle::Yama(2).to_string().contains("ptrace_scope is 2"));
        assert!(Obstacle::Seccomp.to_string().contains("process_vm_readv"));
    }
}
