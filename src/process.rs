//! The child processes of a command: how they are started, watched and ended.
//!
//! Each child is this program again, with a hidden subcommand. It is killed when its handle is dropped and,
//! by the kernel, when the process that started it dies. Its standard output is a pipe whose end tells that
//! it is gone, so nothing here waits for a child that cannot answer.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A child process with a pipe from its standard output.
pub struct Process {
    name: &'static str,
    child: Child,
    stdout: ChildStdout,
    /// What it has written so far.
    output: Vec<u8>,
}

impl Process {
    /// Starts this program again with `arguments`; `stdin` is the child's end of the socket pair.
    pub fn start<S: AsRef<OsStr>>(
        name: &'static str,
        arguments: impl IntoIterator<Item = S>,
        device: Option<&str>,
        stdin: OwnedFd,
    ) -> Result<Process> {
        // Not the path we were started by: the file there may have been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("verbatim")
            .args(arguments)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::piped());
        if let Some(device) = device {
            command.env("VERBATIM_DEVICE", device);
        }
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made, on values of this frame.
        unsafe {
            command.pre_exec(move || {
                // Signals are blocked in the parent, which reads them from a descriptor.
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // It may have died before the kernel was told.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("the {name} process could not be started"))?;
        let stdout = child.stdout.take().expect("its standard output is a pipe");
        Ok(Process {
            name,
            child,
            stdout,
            output: Vec::new(),
        })
    }

    /// What it wrote to its standard output until now.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Takes in what there is to read, once; `false` at the end.
    fn take_in(&mut self) -> Result<bool> {
        let mut buffer = [0u8; 64 << 10];
        let n = self
            .stdout
            .read(&mut buffer)
            .with_context(|| format!("reading from the {} process failed", self.name))?;
        self.output.extend_from_slice(&buffer[..n]);
        if self.output.len() > MAX_OUTPUT {
            bail!("the {} process writes without end", self.name);
        }
        Ok(n > 0)
    }

    /// Waits for the exit of a child whose output has ended, and turns anything but success into an error.
    pub fn finish(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        let mut pause = Duration::from_micros(100);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                bail!("the {} process does not end; it is killed", self.name);
            }
            // The exit follows the end of the output at once; there is nothing else to wait on.
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(20));
        };
        if status.success() {
            return Ok(());
        }
        bail!("the {} process {}", self.name, describe(status));
    }

    /// What became of a child that has ended by itself without success.
    pub fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        (!status.success()).then(|| format!("the {} process {}", self.name, describe(status)))
    }
}

/// Longest output of a child that is taken in: notes on every file of a large tree fit many times.
const MAX_OUTPUT: usize = 256 << 20;

impl Drop for Process {
    fn drop(&mut self) {
        // Both are no-ops for a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(1), _) => "failed (see above)".to_owned(),
        (Some(code), _) => format!("failed with exit status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// What happened first.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The child wrote something, which is in its output now.
    Output(usize),
    /// The child closed its standard output: it has ended or is about to.
    End(usize),
    /// The user asked to stop, with this signal.
    Signal(i32),
}

/// Signals that ask to stop, taken as an event instead of ending this process at once.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks SIGINT, SIGTERM and SIGHUP for this thread; call before other threads are started.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: a zeroed set is a valid value for sigemptyset to overwrite; the set is live for each call.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd })
    }

    fn read(&self) -> io::Result<i32> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: `info` is writable for the length given.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        // `ssi_signo` is the first field.
        Ok(i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
    }
}

/// Waits until one of the processes says something or ends, or a signal comes; `None` when `limit` has passed.
/// Of several events those of earlier processes come first.
pub fn wait(
    processes: &mut [&mut Process],
    signals: &Signals,
    limit: Option<Duration>,
) -> Result<Option<Event>> {
    let poll_fd = |fd: BorrowedFd<'_>| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds: Vec<_> = processes
        .iter()
        .map(|p| poll_fd(p.stdout.as_fd()))
        .collect();
    fds.push(poll_fd(signals.fd.as_fd()));
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let timeout = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
        });
        // SAFETY: `fds` is a live array of the length given.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        if ready < 0 {
            let e = io::Error::last_os_error();
            if e.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(e).context("waiting for the child processes failed");
        }
        if fds[processes.len()].revents != 0 {
            return Ok(Some(Event::Signal(signals.read()?)));
        }
        for (i, process) in processes.iter_mut().enumerate() {
            if fds[i].revents != 0 {
                let more = process.take_in()?;
                return Ok(Some(if more {
                    Event::Output(i)
                } else {
                    Event::End(i)
                }));
            }
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
    }
}
