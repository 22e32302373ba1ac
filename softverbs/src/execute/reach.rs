//! Copies to and from a peer's memory. Where that goes by its pid, the peer is looked at: the pid may be another process's by now.

use crate::peer::Peer;
use crate::transfer::{Mover, Piece, Target, Way, transfer};
use std::io;

/// Copies as [`transfer`] does.
///
/// # Errors
///
/// `ESRCH` if the peer was dead before, or after what came in (then it is not the peer's). Else those of [`transfer`].
///
/// # Safety
///
/// As [`transfer`].
#[inline]
pub(super) unsafe fn reach(
    peer: &Peer,
    way: Way,
    local: &[Piece],
    remote: &[(Target, usize)],
    mover: &mut Mover<'_>,
) -> io::Result<()> {
    // SAFETY: by the contract.
    let mut copy = || unsafe { transfer(way, peer.incarnation.pid, local, remote, mover) };
    let by_pid = |target: &(Target, usize)| matches!(target.0, Target::Process(_));
    if !remote.iter().any(by_pid) {
        return copy();
    }
    while_alive(peer, way, copy)
}

/// Runs a copy that names the peer by its pid.
fn while_alive(peer: &Peer, way: Way, copy: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let alive = || match peer.check_dead() {
        false => Ok(()),
        true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    };
    alive()?;
    let done = copy();
    // What went out cannot be taken back. What failed may have failed in another process.
    if way == Way::In || done.is_err() {
        alive()?;
    }
    done
}

#[cfg(test)]
pub(super) mod testing {
    use crate::layout::SEGMENT_LEN;
    use crate::os::incarnation::{Incarnation, PidFd};
    use crate::os::memfd::ControlFile;
    use crate::peer::Peer;
    use crate::segment::Segment;
    use std::process::{Child, Command};
    use std::sync::Arc;

    /// A peer that runs until it is ended, and its process.
    pub(in super::super) struct Other {
        pub peer: Peer,
        pub child: Child,
    }

    impl Other {
        /// Its memory is looked for in the process `pid`.
        pub fn with_pid(pid: u32) -> Other {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let who = Incarnation::of(child.id()).unwrap();
            let pidfd = PidFd::open(who).unwrap();
            let file = ControlFile::create(SEGMENT_LEN, false).unwrap();
            let segment = Arc::new(Segment::new(file));
            let peer = Peer::new(Incarnation { pid, ..who }, segment, Some(pidfd));
            Other { peer, child }
        }

        /// Ends and reaps it. Nobody has told the peer.
        pub fn end(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Other;
    use super::*;

    fn errno(done: io::Result<()>) -> Option<i32> {
        done.err().and_then(|error| error.raw_os_error())
    }

    /// All ways in which a copy goes by pid once the peer is dead; this process has its pid now.
    #[test]
    fn who_has_a_dead_peer_s_pid_is_not_reached() {
        let (mut here, mut there) = (1u64, 2u64);
        let local = [Piece {
            ptr: (&raw mut here).cast(),
            len: 8,
        }];
        let remote = [(Target::Process((&raw mut there).addr() as u64), 8)];
        let mut other = Other::with_pid(std::process::id());
        // SAFETY: words of this stack frame, which nobody else uses.
        let copy = |other: &Other, way| unsafe {
            errno(reach(&other.peer, way, &local, &remote, &mut Mover::Now))
        };
        other.end();
        for way in [Way::In, Way::Out] {
            assert_eq!(copy(&other, way), Some(libc::ESRCH));
        }
        assert_eq!((here, there), (1, 2));
    }

    #[test]
    fn what_came_in_while_the_peer_died_is_not_the_peer_s() {
        let failed = || Err(io::Error::from_raw_os_error(libc::EFAULT));
        for (way, fails, expected) in [
            (Way::In, false, Some(libc::ESRCH)),
            (Way::In, true, Some(libc::ESRCH)),
            (Way::Out, false, None),
            (Way::Out, true, Some(libc::ESRCH)),
        ] {
            let mut other = Other::with_pid(std::process::id());
            let Other { peer, child } = &mut other;
            assert_eq!(errno(while_alive(peer, way, || Ok(()))), None);
            assert_eq!(errno(while_alive(peer, way, failed)), Some(libc::EFAULT));
            let copy = || {
                child.kill().unwrap();
                child.wait().unwrap();
                if fails { failed() } else { Ok(()) }
            };
            assert_eq!(errno(while_alive(peer, way, copy)), expected);
        }
    }
}
