//! The second process of a test.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::{Control, until};

const CHILD: &str = "VERBATIM_TEST_CHILD";

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Side {
    /// The one that the test runner started; it holds the other.
    Parent(Peer),
    /// The other.
    Child(Control),
}

/// The second process, seen from the first. Killed when dropped.
#[derive(Debug)]
pub struct Peer {
    /// To talk with it.
    pub control: Control,
    child: Child,
}

/// Starts the second process of the test `name` (its full path in the test binary), or is in it.
pub fn second_process(name: &str) -> Side {
    second_process_with(name, &[])
}

/// As [`second_process`], with variables added to the second process's environment.
pub fn second_process_with(name: &str, variables: &[(&str, &str)]) -> Side {
    if std::env::var_os(CHILD).is_some_and(|test| test == name) {
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("the control socket can be duplicated");
        return Side::Child(Control::new(UnixStream::from(socket)));
    }
    let (control, theirs) = Control::pair();
    let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .envs(variables.iter().copied())
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null());
    // SAFETY: the closure makes one async-signal-safe call with constants.
    unsafe {
        command.pre_exec(|| {
            // A test that is ended from outside leaves no process behind.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let child = command.spawn().expect("the test binary can be started");
    Side::Parent(Peer { control, child })
}

impl Peer {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as abruptly as it can be ended, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Stops it in its tracks.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it run again after [`Peer::stop`].
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so the id is still its own.
        let result = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits for its end, which must be a success: a child that panicked fails the test.
    pub fn finish(mut self) {
        let status = until("the second process ends", || {
            self.child.try_wait().expect("a child can be waited for")
        });
        assert!(
            ExitStatus::success(&status),
            "the second process failed: {status}"
        );
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Descriptors of a process that lead to memory files: number and target, from `/proc/PID/fd`.
pub fn memory_files(pid: u32) -> Vec<(i32, String)> {
    let folder = format!("/proc/{pid}/fd");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the process's descriptors can be listed") {
        let entry = entry.expect("the process's descriptors can be listed");
        // A descriptor may be closed while the folder is read.
        let Ok(target) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        if let (Ok(fd), true) = (
            entry.file_name().to_string_lossy().parse(),
            target.starts_with("/memfd:"),
        ) {
            found.push((fd, target));
        }
    }
    found
}

/// The seals of a file (`F_GET_SEALS`).
pub fn seals(file: &impl AsRawFd) -> i32 {
    // SAFETY: a query on a live descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }
}
