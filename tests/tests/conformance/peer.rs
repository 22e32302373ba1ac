//! A peer in another process: this program once more, which does what it is told, line by line.

use crate::device::{Bed, Side};
use crate::memory::{ALL, Mem};
use crate::names;
use crate::queue::{End, IMPATIENT, Options, RC, UC, UD};
use crate::request::{Request, add, send};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Tells the other process with which options its queue pair is made.
const PEER: &str = "VERBATIM_CONFORMANCE_PEER";
/// Bytes that it exposes.
const LEN: usize = 64;

const OPTIONS: [(&str, Options); 4] =
    [("rc", RC), ("impatient", IMPATIENT), ("uc", UC), ("ud", UD)];

/// A process with a queue pair on the second device. Killed when dropped.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub qpn: u32,
    /// Its exposed memory.
    pub addr: u64,
    pub rkey: u32,
}

/// One here, in RTS, and one in another process, connected with it.
pub fn connected(bed: &Bed, options: &str) -> (End, Peer) {
    let own = options_of(options);
    let end = End::new(&bed.a, &own).init();
    let mut peer = Peer::start(options);
    assert_eq!(end.modify(end.to_rtr(peer.qpn, &bed.b)), 0, "INIT to RTR");
    end.rts();
    peer.tell(&format!("connect {}", end.qpn()));
    (end, peer)
}

fn options_of(name: &str) -> Options {
    let found = OPTIONS.iter().find(|(known, _)| *known == name);
    found.expect("there are such options").1
}

impl Peer {
    fn start(options: &str) -> Peer {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command
            .env(PEER, options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: the closure makes one async-signal-safe call with constants.
        unsafe {
            command.pre_exec(|| {
                // A run that is ended from outside leaves no process behind.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("this program can be started");
        let input = child.stdin.take().expect("it has an input");
        let output = BufReader::new(child.stdout.take().expect("it has an output"));
        let mut peer = Peer {
            child,
            input,
            output,
            qpn: 0,
            addr: 0,
            rkey: 0,
        };
        let names = peer.line();
        let mut numbers = names.split(' ').map(|n| n.parse().expect("a number"));
        let mut number = || -> u64 { numbers.next().expect("three numbers") };
        (peer.qpn, peer.addr, peer.rkey) = (number() as u32, number(), number() as u32);
        peer
    }

    /// What it says next. It ends itself when something hangs, so this does not.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the peer has ended");
        line.trim_end().to_owned()
    }

    /// Has it do something, and waits until it is done; gives its answer.
    pub fn tell(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("the peer listens");
        self.line()
    }

    /// To its exposed memory.
    pub fn remote(&self, request: Request) -> Request {
        request.remote(self.addr, self.rkey)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Ends it, at once; it is gone when this returns.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Has it end by itself, without destroying anything.
    pub fn leave(&mut self) {
        writeln!(self.input, "leave").expect("the peer listens");
        self.child.wait().expect("a child can be waited for");
    }

    /// Stops it; it has stopped when this returns.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a child; the status is valid for writes.
        let pid = unsafe { libc::waitpid(self.child.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(pid > 0 && libc::WIFSTOPPED(status));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// If this is the other process: does what it is told until nobody is there to tell it.
pub fn serve() -> bool {
    let Ok(options) = std::env::var(PEER) else {
        return false;
    };
    let bed = Bed::open();
    let end = End::new(&bed.b, &options_of(&options)).init();
    let mem = Mem::new(&bed.b, LEN, ALL);
    println!("{} {} {}", end.qpn(), mem.addr(), mem.rkey());
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        println!("{}", obey(&bed.a, &end, &mem, &words));
    }
    true
}

fn obey(a: &Side, end: &End, mem: &Mem, words: &[&str]) -> String {
    let number = |at: usize| -> u64 { words[at].parse().expect("a number") };
    match words[0] {
        // The queue pair on the first device.
        "connect" => {
            assert_eq!(end.modify(end.to_rtr(number(1) as u32, a)), 0);
            end.rts();
        }
        "recv" => end.recv(number(1), mem, 0, LEN),
        "fill" => mem.fill(0, words[1].as_bytes()),
        "send" => send(number(1), mem, number(2) as usize).go(end),
        // COUNT ADDR RKEY
        "add" => {
            let old = Mem::new(&end.side, 8, ALL);
            for id in 0..number(1) {
                let word = add(id, &old, mem, 1).at(number(2)).key(number(3) as u32);
                word.go(end);
                assert_eq!(end.ids(1), id.to_string());
            }
        }
        "next" => return end.ids(1),
        "text" => return mem.text(0, number(1) as usize),
        "state" => return names::state(end.query().0.qp_state),
        // SAFETY: ends the process, and runs nothing of it.
        "leave" => unsafe { libc::_exit(0) },
        other => panic!("what is {other}?"),
    }
    "done".to_owned()
}
