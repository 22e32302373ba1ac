//! The same between two processes: the test drives a second one, made from this very binary, by lines on its pipes.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use softverbs::memory::Kind;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;

const SIZE: usize = 1 << 20;

/// The second process: one end, memory of each kind, and a few verbs by name.
#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    if std::env::var_os("SOFTVERBS_SECOND").is_none() {
        return;
    }
    let dev = Dev::open();
    let o = Options {
        rnr_retry: 7,
        ..Options::default()
    };
    let end = End::new(&dev, &o);
    let mem = [
        Mem::plain(&dev, SIZE, LOCAL | READ | WRITE),
        Mem::file(&dev, SIZE, LOCAL, Kind::Receive),
        Mem::file(&dev, SIZE, LOCAL | READ | WRITE, Kind::Exposed),
        Mem::file(&dev, SIZE, READ, Kind::Readable),
        Mem::file(&dev, SIZE, LOCAL, Kind::Private),
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
            "fill" => mem[n(1)].fill(0, &pattern(n(3), n(2))),
            "check" => print!("{} ", mem[n(1)].get(0, n(2)) == pattern(n(3), n(2))),
            "state" => print!("{} ", end.state().0),
            "scribble" => print!("{} ", scribble(n(1), n(2) as u64)),
            other => panic!("{other}?"),
        }
        println!("OK");
    }
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

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8)
        .collect()
}

struct Second {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    qpn: u32,
    mem: Vec<(u64, u32)>,
}

impl Second {
    fn start(env: &[(&str, &str)]) -> Second {
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
        let mem = numbers[1..]
            .chunks(2)
            .map(|c| (c[0], c[1] as u32))
            .collect();
        Second {
            child,
            stdin,
            stdout,
            qpn: numbers[0] as u32,
            mem,
        }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim()
            .strip_suffix("OK")
            .unwrap_or_else(|| panic!("the second process failed: {line}"))
            .trim()
            .to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    fn connected(dev: &Dev, o: &Options, env: &[(&str, &str)]) -> (Second, End) {
        let mut second = Second::start(env);
        let end = End::new(dev, o);
        second.ask(&format!("connect {}", end.qpn()));
        end.connect(second.qpn, o);
        (second, end)
    }

    fn kill(&mut self) {
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

fn local_kinds(dev: &Dev) -> Vec<Mem> {
    vec![
        Mem::plain(dev, SIZE, LOCAL),
        Mem::file(dev, SIZE, LOCAL, Kind::Private),
    ]
}

/// All sizes, both ways, into memory that is mapped and memory that is not; in both modes of the second process.
#[test]
fn sends_cross() {
    let dev = Dev::open();
    for env in [&[][..], &[("VERBATIM_ASYNC", "3")][..]] {
        let (mut second, end) = Second::connected(&dev, &Options::default(), env);
        let mems = local_kinds(&dev);
        let mut seed = 0;
        for len in [0, 8, 32, 33, 256, 257, 5000, SIZE] {
            for kind in [0, 1, 2, 4] {
                for mem in &mems {
                    seed += 1;
                    mem.fill(0, &pattern(seed, len));
                    second.ask(&format!("recv {seed} {kind} {SIZE}"));
                    assert_eq!(
                        end.post(&mut wr(
                            1,
                            Op::IBV_WR_SEND,
                            &mut [mem.sge(0, len / 3), mem.sge(len / 3, len - len / 3)],
                            SIGNALED
                        )),
                        0
                    );
                    assert_eq!(end.next().status, OK);
                    assert_eq!(second.ask("next"), format!("0 {seed} {len}"));
                    assert_eq!(
                        second.ask(&format!("check {kind} {len} {seed}")),
                        "true",
                        "{len} bytes to kind {kind}"
                    );
                    // And back.
                    assert_eq!(
                        end.recv(
                            7,
                            &mut [mem.sge(0, len / 2), mem.sge(len / 2, SIZE - len / 2)]
                        ),
                        0
                    );
                    second.ask(&format!("fill {kind} {len} {}", seed + 100));
                    assert_eq!(second.ask(&format!("send {kind} {len}")), "0");
                    let wc = end.next();
                    assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
                    assert_eq!(
                        mem.get(0, len),
                        pattern(seed + 100, len),
                        "{len} bytes from kind {kind}"
                    );
                }
            }
        }
    }
}

/// WRITE and READ of memory that is mapped (exposed, readable) and that is not (plain); what a kind forbids is refused.
#[test]
fn one_sided_crosses() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, SIZE, LOCAL);
    for (kind, len) in [0, 2]
        .into_iter()
        .flat_map(|k| [1, 8, 9, 4096, SIZE].map(|l| (k, l)))
    {
        let (addr, key) = second.mem[kind];
        mem.fill(0, &pattern(len, len));
        end.post(&mut rdma(
            1,
            Op::IBV_WR_RDMA_WRITE,
            &mut [mem.sge(0, len)],
            SIGNALED,
            addr,
            key,
        ));
        assert_eq!(end.next().status, OK);
        assert_eq!(second.ask(&format!("check {kind} {len} {len}")), "true");
    }
    for (kind, len) in [0, 2, 3]
        .into_iter()
        .flat_map(|k| [1, 8, 9, 4096, SIZE].map(|l| (k, l)))
    {
        if kind != 3 {
            second.ask(&format!("fill {kind} {len} {}", len + 1));
        }
        let (addr, key) = second.mem[kind];
        mem.fill(0, &[0xee; SIZE]);
        end.post(&mut rdma(
            1,
            Op::IBV_WR_RDMA_READ,
            &mut [mem.sge(0, len)],
            SIGNALED,
            addr,
            key,
        ));
        assert_eq!(end.next().status, OK);
        let expect = if kind == 3 {
            vec![0; len]
        } else {
            pattern(len + 1, len)
        };
        assert_eq!(mem.get(0, len), expect, "{len} bytes of kind {kind}");
    }
    let (addr, key) = second.mem[3];
    end.post(&mut rdma(
        1,
        Op::IBV_WR_RDMA_WRITE,
        &mut [mem.sge(0, 8)],
        SIGNALED,
        addr,
        key,
    ));
    assert_eq!(end.next().status, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(second.ask("state"), State::IBV_QPS_ERR.0.to_string());
}

/// A sender in another process that sleeps gets its parked work done, and a sleeping receiver is woken.
#[test]
fn sleepers_get_on() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    second.ask("fill 4 4000 5");
    for _ in 0..3 {
        second.ask("post 4 4000");
    }
    for i in 0..3 {
        assert!(end.poll().is_none(), "no receive, no message");
        end.recv(i, &mut [mem.sge(0, 4096)]);
        let wc = end.next();
        assert_eq!(
            (
                wc.status,
                wc.wr_id,
                wc.byte_len,
                mem.get(0, 4000) == pattern(5, 4000)
            ),
            (OK, i, 4000, true)
        );
    }
    for _ in 0..3 {
        assert_eq!(second.ask("next"), "0 1 4000");
    }
    for i in 0..5 {
        second.ask(&format!("recv {i} 1 4096"));
        second.ask("arm");
        second.tell("event");
        end.post(&mut wr(
            1,
            Op::IBV_WR_SEND,
            &mut [mem.sge(0, 100)],
            SIGNALED,
        ));
        second.answer();
        assert_eq!(second.ask("next"), format!("0 {i} 100"));
        assert_eq!(end.next().status, OK);
    }
}

/// A killed peer fails outstanding work, and what is posted afterwards; others go on.
#[test]
fn a_killed_peer_fails_outstanding_work() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(
        &dev,
        &Options {
            timeout: 0,
            ..Options::default()
        },
        &[],
    );
    let (mut third, other) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    assert_eq!(
        end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 8)], SIGNALED)),
        0
    );
    assert!(end.poll().is_none());
    second.kill();
    assert_eq!(end.next().status, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(end.state(), State::IBV_QPS_ERR);
    third.ask("recv 1 0 100");
    assert_eq!(
        other.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 8)], SIGNALED)),
        0
    );
    assert_eq!(
        (other.next().status, third.ask("next")),
        (OK, "0 1 8".to_owned())
    );
    // A queue pair that had nothing outstanding notices at its next post.
    third.kill();
    let begin = std::time::Instant::now();
    loop {
        assert_eq!(
            other.post(&mut rdma(
                1,
                Op::IBV_WR_RDMA_WRITE,
                &mut [mem.sge(0, 8)],
                SIGNALED,
                third.mem[2].0,
                third.mem[2].1
            )),
            0
        );
        match other.next().status {
            OK => assert!(begin.elapsed() < HANG),
            status => break assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR),
        }
    }
}

/// Work posted before the peer is ready waits for it; a peer that never gets ready is a timeout.
#[test]
fn a_late_peer_is_waited_for() {
    let dev = Dev::open();
    let o = Options {
        timeout: 0,
        ..Options::default()
    };
    let mut second = Second::start(&[]);
    let end = End::new(&dev, &o);
    end.connect(second.qpn, &o);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    mem.fill(0, &pattern(1, 64));
    end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 64)], SIGNALED));
    assert!(end.poll().is_none());
    second.ask("recv 1 0 100");
    second.ask(&format!("connect {}", end.qpn()));
    assert_eq!(second.ask("next"), "0 1 64");
    assert_eq!(
        (second.ask("check 0 64 1"), end.next().status),
        ("true".to_owned(), OK)
    );

    let o = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let third = Second::start(&[]);
    let end = End::new(&dev, &o);
    end.connect(third.qpn, &o);
    end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 64)], 0));
    assert_eq!(end.next().status, Status::IBV_WC_RETRY_EXC_ERR);
}

/// A peer that overwrites everything it can reach breaks its own connection at worst: no crash, no hang, and connections of
/// others between memory it cannot reach are whole.
#[test]
fn a_scribbling_peer_harms_itself() {
    let dev = Dev::open();
    for seed in 0..6 {
        let (mut victim_of, end) = Second::connected(&dev, &Options::default(), &[]);
        let _exposed = Mem::file(&dev, SIZE, LOCAL | READ | WRITE, Kind::Exposed);
        let into = Mem::file(&dev, SIZE, LOCAL, Kind::Receive);
        victim_of.tell(&format!("scribble {} {seed}", std::process::id()));
        let begin = std::time::Instant::now();
        // The engine goes on while rubbish rains: every post and poll returns, whatever it says.
        let mut posts = 0;
        while begin.elapsed() < std::time::Duration::from_millis(300) {
            let _ = end.recv(posts, &mut [into.sge(0, 4096)]);
            let _ = end.post(&mut wr(
                posts,
                Op::IBV_WR_SEND,
                &mut [into.sge(4096, 64)],
                SIGNALED,
            ));
            posts += 1;
            while let Some(wc) = end.poll() {
                assert!(wc.byte_len as usize <= SIZE || wc.status != OK);
            }
            if end.state() == State::IBV_QPS_ERR {
                break;
            }
        }
        assert!(
            victim_of.answer().parse::<usize>().unwrap() >= 2,
            "there was something to scribble on"
        );
        // A hazard it made up holds the queue pair until it is gone: EBUSY is the right answer to a live peer that never finishes.
        victim_of.kill();
        drop(end);
        let (mut honest, end) = Second::connected(&dev, &Options::default(), &[]);
        let mem = Mem::file(&dev, SIZE, LOCAL, Kind::Private);
        mem.fill(0, &pattern(9, 1000));
        honest.ask("recv 1 4 2000");
        assert_eq!(
            end.post(&mut wr(
                1,
                Op::IBV_WR_SEND,
                &mut [mem.sge(0, 1000)],
                SIGNALED
            )),
            0
        );
        assert_eq!(
            (
                end.next().status,
                honest.ask("next"),
                honest.ask("check 4 1000 9")
            ),
            (OK, "0 1 1000".to_owned(), "true".to_owned())
        );
    }
}

/// Files of the device that are left in a folder.
fn left_in(dir: &std::path::Path) -> Vec<String> {
    let inside = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .next()
        .map(|d| d.path());
    let files = inside.map(|d| {
        std::fs::read_dir(d)
            .unwrap()
            .flatten()
            .map(|f| f.file_name().into_string().unwrap())
            .collect()
    });
    files.unwrap_or_default()
}

/// Nothing is left in the file system after an orderly end; what a killed process leaves goes with the next start.
#[test]
fn nothing_is_left_behind() {
    let dir = std::env::temp_dir().join(format!("softverbs-left-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let env = [("VERBATIM_DIR", dir.to_str().unwrap())];
    let mut killed = Second::start(&env);
    assert_eq!(left_in(&dir).len(), 1);
    killed.kill();
    assert_eq!(
        left_in(&dir).len(),
        1,
        "a killed process leaves its slot file"
    );
    let mut orderly = Second::start(&env);
    assert_eq!(left_in(&dir).len(), 1, "and the next one removes it");
    drop(std::mem::replace(&mut orderly.stdin, killed_stdin()));
    assert!(orderly.child.wait().unwrap().success());
    assert!(left_in(&dir).is_empty(), "{:?}", left_in(&dir));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Some pipe, to put in the place of one that is to be closed.
fn killed_stdin() -> ChildStdin {
    let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    child.wait().unwrap();
    stdin
}
