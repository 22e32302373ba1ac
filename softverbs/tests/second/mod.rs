//! A second process for tests, made from the test's own binary and driven by lines on its pipes. A test file that uses it has
//! a test `second_process` that calls [`serve`].
#![allow(dead_code, missing_docs, clippy::undocumented_unsafe_blocks)]

use super::common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use softverbs::faults::{Action, Fault, Step, inject};
use softverbs::memory::Kind;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;

pub const SIZE: usize = 1 << 20;

/// The second process: one end, memory of each kind, and a few verbs by name.
pub fn serve() {
    if std::env::var_os("SOFTVERBS_SECOND").is_none() {
        return;
    }
    let dev = Dev::open();
    let o = Options {
        rnr_retry: 7,
        qp_type: match std::env::var_os("SOFTVERBS_UC") {
            Some(_) => ibverbs_sys::ibv_qp_type::IBV_QPT_UC,
            None => ibverbs_sys::ibv_qp_type::IBV_QPT_RC,
        },
        ..Options::default()
    };
    let end = End::new(&dev, &o);
    let mem = [
        Mem::plain(&dev, SIZE, LOCAL | READ | WRITE),
        Mem::file(&dev, SIZE, LOCAL, Kind::Receive),
        Mem::file(&dev, SIZE, LOCAL | READ | WRITE, Kind::Exposed),
        Mem::file(&dev, SIZE, READ, Kind::Readable),
        Mem::file(&dev, SIZE, LOCAL, Kind::Private),
        Mem::plain(&dev, 64, LOCAL | ATOMIC),
        Mem::file(&dev, 64, LOCAL | ATOMIC, Kind::Exposed),
    ];
    println!(
        "\nREADY {} {}",
        end.qpn(),
        mem.iter()
            .map(|m| format!("{} {}", m.addr(), m.key()))
            .collect::<Vec<_>>()
            .join(" ")
    );
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let n = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "connect" => end.connect(n(1) as u32, &o),
            "recv" => assert_eq!(end.recv(n(1) as u64, &mut [mem[n(2)].sge(0, n(3))]), 0),
            "send" => {
                assert_eq!(
                    end.post(&mut wr(
                        1,
                        Op::IBV_WR_SEND,
                        &mut [mem[n(1)].sge(0, n(2))],
                        SIGNALED
                    )),
                    0
                );
                print!("{} ", end.next().status.0);
            }
            "post" => assert_eq!(
                end.post(&mut wr(
                    1,
                    Op::IBV_WR_SEND,
                    &mut [mem[n(1)].sge(0, n(2))],
                    SIGNALED
                )),
                0
            ),
            "next" => {
                let wc = end.next();
                print!("{} {} {} ", wc.status.0, wc.wr_id, wc.byte_len);
            }
            "arm" => end.arm(),
            "event" => end.event(),
            "add" => {
                // To memory of this very process, through its own queue pair pair: the way peers take too.
                let (a, _b) = pair(&dev, &o);
                let result = Mem::plain(&dev, 8, LOCAL);
                for _ in 0..n(2) {
                    let mut sge = [result.sge(0, 8)];
                    assert_eq!(
                        a.post(&mut atomic(
                            1,
                            Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
                            &mut sge,
                            mem[n(1)].addr(),
                            mem[n(1)].key(),
                            [1, 0]
                        )),
                        0
                    );
                    assert_eq!(a.next().status, OK);
                }
            }
            "word" => print!(
                "{} ",
                u64::from_ne_bytes(mem[n(1)].get(0, 8).try_into().unwrap())
            ),
            "fill" => mem[n(1)].fill(0, &pattern(n(3), n(2))),
            "check" => print!("{} ", mem[n(1)].get(0, n(2)) == pattern(n(3), n(2))),
            "inject" => inject_at(Step::ALL[n(1)], n(2) as u64, words[3]),
            // Works on the first process's memory until something happens to this one.
            "hammer" => {
                println!("OK");
                let (addr, key) = (n(2) as u64, n(3) as u32);
                let op = [
                    Op::IBV_WR_SEND,
                    Op::IBV_WR_RDMA_WRITE_WITH_IMM,
                    Op::IBV_WR_RDMA_READ,
                ][n(1)];
                for i in 0.. {
                    let mut sge = [mem[4].sge(0, 64 + i % 3000)];
                    assert_eq!(end.post(&mut rdma(1, op, &mut sge, SIGNALED, addr, key)), 0);
                    if end.next().status != OK {
                        // Told so: the other end gave up on this one.
                        break;
                    }
                }
            }
            "state" => print!("{} ", end.state().0),
            // Becomes another program, which happens to be this one.
            "replace" => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let failed = command.args(std::env::args_os().skip(1)).exec();
                panic!("{failed}");
            }
            "scribble" => print!("{} ", scribble(n(1), n(2) as u64)),
            other => panic!("{other}?"),
        }
        println!("OK");
    }
}

/// From the nth time on that a step is reached, this process is killed or stops.
pub fn inject_at(step: Step, nth: u64, action: &str) {
    let action = match action {
        "kill" => Action::Kill,
        _ => Action::Stop,
    };
    let fault = Fault::At {
        qp: None,
        step,
        nth,
        action,
    };
    std::mem::forget(inject(fault));
}

/// Whether a process has ended, or is stopped: all its threads, of which the first may be the last to stop.
pub fn ended(second: &Second) -> bool {
    let tasks = format!("/proc/{}/task", second.child.id());
    std::fs::read_dir(tasks).is_ok_and(|mut tasks| {
        tasks.all(|task| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            let state =
                stat.map(|stat| stat.rsplit(')').next().unwrap_or("").trim().chars().next());
            state.is_ok_and(|state| matches!(state, Some('T' | 'Z')))
        })
    })
}

/// Overwrites with rubbish everything of process `pid` that can be mapped writable, again and again. Returns how many files.
fn scribble(pid: usize, seed: u64) -> usize {
    let mut maps = Vec::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
    {
        let is_memory = std::fs::read_link(fd.path())
            .is_ok_and(|l| l.to_string_lossy().starts_with("/memfd:verbatim"));
        let Ok(file) = std::fs::File::options()
            .read(true)
            .write(is_memory)
            .open(fd.path())
        else {
            continue;
        };
        if !is_memory {
            continue;
        }
        let len = file.metadata().unwrap().len() as usize;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let map = unsafe {
            libc::mmap(
                null_mut(),
                len,
                prot,
                flags,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        if map != libc::MAP_FAILED {
            maps.push((map.cast::<u64>(), len / 8));
        }
    }
    let mut x = seed | 1;
    for round in 0..200_000usize {
        for &(map, words) in &maps {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // Mostly near the front of a file, where the lanes in use are; small numbers look the most like true ones.
            let range = if round % 4 == 0 {
                words
            } else {
                words.min(4096)
            };
            let value = if x & 64 == 0 {
                x >> 33
            } else {
                (x >> 33) % 300
            };
            unsafe { map.add((x >> 17) as usize % range).write_volatile(value) };
        }
    }
    maps.len()
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8)
        .collect()
}

pub struct Second {
    pub child: Child,
    pub stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pub qpn: u32,
    pub mem: Vec<(u64, u32)>,
}

/// What the second process says at its beginning: its queue pair and its memory.
fn ready(stdout: &mut BufReader<ChildStdout>) -> (u32, Vec<(u64, u32)>) {
    let ready = loop {
        let mut line = String::new();
        assert_ne!(
            stdout.read_line(&mut line).unwrap(),
            0,
            "the second process ended early"
        );
        if let Some(rest) = line.strip_prefix("READY ") {
            break rest.trim().to_owned();
        }
    };
    let numbers: Vec<u64> = ready.split(' ').map(|n| n.parse().unwrap()).collect();
    let mem = numbers[1..].chunks(2).map(|c| (c[0], c[1] as u32));
    (numbers[0] as u32, mem.collect())
}

impl Second {
    pub fn start(env: &[(&str, &str)]) -> Second {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "second_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("SOFTVERBS_SECOND", "1")
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let (qpn, mem) = ready(&mut stdout);
        Second {
            child,
            stdin,
            stdout,
            qpn,
            mem,
        }
    }

    /// Lets the process run the same program from its beginning.
    pub fn replace(&mut self) {
        self.tell("replace");
        (self.qpn, self.mem) = ready(&mut self.stdout);
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim()
            .strip_suffix("OK")
            .unwrap_or_else(|| panic!("the second process failed: {line}"))
            .trim()
            .to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    pub fn connected(dev: &Dev, o: &Options, env: &[(&str, &str)]) -> (Second, End) {
        let mut second = Second::start(env);
        let end = End::new(dev, o);
        second.ask(&format!("connect {}", end.qpn()));
        end.connect(second.qpn, o);
        (second, end)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
