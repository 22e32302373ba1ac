//! Processes that fork: their children do not disturb them.

use crate::case::{Topic, case};
use crate::device::{Bed, HANG};
use crate::memory::{ALL, LOCAL, Mem};
use crate::queue::{RC, works};
use crate::request::{send, write};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

pub const TOPIC: Topic = Topic {
    name: "Forking",
    cases: &[
        case(
            "whether memory must be prepared for it",
            prepared,
            "ibv_is_fork_initialized(3)",
            "not needed",
        ),
        case(
            "after a child that ends at once",
            ends,
            "ibv_fork_init(3)",
            "works, works",
        ),
        case(
            "while a child lives",
            lives,
            "ibv_fork_init(3)",
            "works, works",
        ),
        case(
            "a child's copy of registered memory",
            copy,
            "ibv_fork_init(3)",
            "as at the fork",
        ),
        case(
            "what a child does to its copy of registered memory",
            scribbles,
            "ibv_fork_init(3)",
            "before.., sent before..",
        ),
        case(
            "what a peer writes while a child lives",
            written,
            "ibv_fork_init(3)",
            "written, in the child before",
        ),
        case(
            "what is sent from memory that has changed while a child lives",
            changed,
            "ibv_fork_init(3)",
            "changed",
        ),
        case(
            "a receive that was posted before the fork",
            received,
            "ibv_fork_init(3)",
            "message",
        ),
        case(
            "a child that opens the device anew",
            anew,
            "ibv_fork_init(3)",
            "works, and its parent's works",
        ),
        case(
            "a program that is started has nothing of the device",
            started,
            "ibv_open_device(3)",
            "nothing",
        ),
    ],
};

/// A forked process. It is ended when dropped.
struct Child {
    pid: i32,
    /// It has been waited for.
    gone: bool,
    /// To tell it something, and to be told.
    to: PipeWriter,
    from: PipeReader,
}

/// Forks. The child does `work`, which must not return more than a byte, and says what that was; then it waits to be ended. Other threads
/// of this process are not there any more, and may have held locks: `work` takes none, unless it has to.
fn fork(work: impl FnOnce(&mut PipeReader) -> u8) -> Child {
    let (mut from_parent, to) = pipe().expect("a pipe");
    let (from, mut to_parent) = pipe().expect("a pipe");
    // SAFETY: the child uses what it was given, and ends without running anything of its parent's.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends the process should anything hang.
            unsafe { libc::alarm(HANG.as_secs() as u32) };
            let result = catch_unwind(AssertUnwindSafe(|| work(&mut from_parent)));
            let _ = to_parent.write_all(&[result.unwrap_or(b'!')]);
            let _ = from_parent.read(&mut [0]);
            // SAFETY: ends the process, and runs nothing of it.
            unsafe { libc::_exit(0) }
        }
        pid => {
            assert!(pid > 0, "no child");
            Child {
                pid,
                gone: false,
                to,
                from,
            }
        }
    }
}

impl Child {
    /// Lets its work go on, which waits for that.
    fn go_on(&mut self) {
        self.to.write_all(b"g").expect("the child listens");
    }

    /// What its work has given.
    fn result(&mut self) -> char {
        let mut byte = [0];
        if self.from.read_exact(&mut byte).is_err() {
            let mut status = 0;
            // SAFETY: a child that has not been waited for.
            unsafe { libc::waitpid(self.pid, &mut status, 0) };
            self.gone = true;
            panic!("the child has ended with status {status:#x}");
        }
        byte[0].into()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // SAFETY: a child that has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

fn idle() -> Child {
    fork(|_| b'i')
}

fn go_ahead(from: &mut PipeReader) {
    let _ = from.read(&mut [0]);
}

fn prepared(bed: &Bed) -> String {
    use ibverbs_sys::ibv_fork_status as Status;
    let Some(ask) = bed.a.api.ibv_is_fork_initialized else {
        return "cannot be asked".to_owned();
    };
    // SAFETY: no preconditions.
    match unsafe { ask() } {
        Status::IBV_FORK_UNNEEDED => "not needed".to_owned(),
        Status::IBV_FORK_ENABLED => "prepared".to_owned(),
        Status::IBV_FORK_DISABLED => "not prepared".to_owned(),
        other => format!("{}", other.0),
    }
}

fn ends(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    drop(idle());
    format!("{}, {}", works(&a, &b), works(&b, &a))
}

fn lives(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mut child = idle();
    assert_eq!(child.result(), 'i');
    let there = works(&a, &b);
    let (c, d) = bed.pair(&RC);
    format!("{there}, {}", works(&c, &d))
}

fn copy(bed: &Bed) -> String {
    let mem = Mem::of(&bed.a, b"c");
    let mut child = fork(|_| mem.get(0, 1)[0]);
    match child.result() {
        'c' => "as at the fork".to_owned(),
        other => format!("{other:?}"),
    }
}

fn scribbles(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"before.."), Mem::new(&b.side, 8, LOCAL));
    let mut child = fork(|_| {
        from.fill(0, b"another.");
        b'd'
    });
    assert_eq!(child.result(), 'd');
    b.recv(2, &to, 0, 8);
    send(1, &from, 8).go(&a);
    assert_eq!((a.ids(1), b.ids(1)), ("1".into(), "2".into()));
    format!("{}, sent {}", from.text(0, 8), to.text(0, 8))
}

fn written(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"written"), Mem::new(&b.side, 8, ALL));
    to.fill(0, b"b");
    let mut child = fork(|parent| {
        go_ahead(parent);
        to.get(0, 1)[0]
    });
    // Pages of the parent's are copied when it writes to them first.
    to.fill(7, b"x");
    write(1, from.sge(0, 7), &to).go(&a);
    assert_eq!(a.ids(1), "1");
    child.go_on();
    let there = match child.result() {
        'b' => "before".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{}, in the child {there}", to.text(0, 7))
}

fn changed(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"before."), Mem::new(&b.side, 8, LOCAL));
    let mut child = idle();
    assert_eq!(child.result(), 'i');
    from.fill(0, b"changed");
    b.recv(2, &to, 0, 8);
    send(1, &from, 7).go(&a);
    assert_eq!((a.ids(1), b.ids(1)), ("1".into(), "2".into()));
    to.text(0, 7)
}

fn received(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"message"), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    let mut child = idle();
    assert_eq!(child.result(), 'i');
    to.fill(7, b"x");
    send(1, &from, 7).go(&a);
    assert_eq!((a.ids(1), b.ids(1)), ("1".into(), "2".into()));
    to.text(0, 7)
}

fn anew(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mut child = fork(|_| {
        let bed = Bed::open();
        let (c, d) = bed.pair(&RC);
        works(&c, &d).as_bytes()[0]
    });
    let there = match child.result() {
        'w' => "works".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{there}, and its parent's {}", works(&a, &b))
}

fn started(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, ALL);
    // What a program sees that was started just now.
    let listing = Command::new("/bin/ls")
        .args(["-l", "/proc/self/fd"])
        .stdin(Stdio::null())
        .output()
        .expect("ls can be started");
    let text = String::from_utf8_lossy(&listing.stdout).into_owned();
    drop((a, b, mem));
    let ours = ["infiniband", "verbatim", "memfd"];
    let found: Vec<&str> = text
        .lines()
        .filter(|line| ours.iter().any(|name| line.contains(name)))
        .collect();
    assert!(text.contains("/dev/null"), "ls says: {text}");
    match found.is_empty() {
        true => "nothing".to_owned(),
        false => found.join(", "),
    }
}
