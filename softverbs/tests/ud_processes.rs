//! Datagrams between processes.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wc;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::{Second, pattern};
use softverbs::faults::Step;
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// The second process: a queue pair for datagrams, driven by lines.
fn serve() {
    if std::env::var_os("SOFTVERBS_SECOND").is_none() {
        return;
    }
    let dev = Dev::open();
    let end = datagram_end(&dev, &ud());
    let mem = Mem::plain(&dev, 2 * MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    println!("\nREADY {}", end.qpn());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let n = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "recv" => assert_eq!(end.recv(n(1) as u64, &mut [mem.sge(0, n(2))]), 0),
            "next" => {
                let wc = end.next();
                let intact = mem.get(GRH, wc.byte_len as usize - GRH)
                    == pattern(wc.wr_id as usize, wc.byte_len as usize - GRH);
                print!("{} {} {} {intact} ", wc.status.0, wc.byte_len, wc.src_qp);
            }
            "send" => {
                mem.fill(0, &pattern(n(3), n(2)));
                send_datagram(&end, &ah, n(1) as u32, &mem, n(2));
            }
            "event" => {
                end.arm();
                println!("OK");
                end.event();
            }
            "inject" => second::inject_at(Step::ALL[n(1)], 1, words[2]),
            // As fast as it can, numbered.
            "burst" => {
                for i in 0..n(2) {
                    let len = i * 37 % (MTU + 1);
                    mem.fill(0, &pattern(i, len));
                    let mut sges = [mem.sge(0, len)];
                    let mut wr = ah.to(n(1) as u32, Op::IBV_WR_SEND_WITH_IMM, &mut sges);
                    wr.__bindgen_anon_1.imm_data = i as u32;
                    assert_eq!(end.post(&mut wr), 0);
                    assert_eq!(end.next().status, OK);
                }
            }
            // A message that it does not come back from.
            "last" => {
                println!("OK");
                send_datagram(&end, &ah, n(1) as u32, &mem, 100);
            }
            other => panic!("{other}?"),
        }
        println!("OK");
    }
}

#[test]
fn between_processes() {
    let dev = Dev::open();
    let a = datagram_end(&dev, &ud());
    let ah = Ah::new(&dev, 1);
    let (from, to) = (
        Mem::plain(&dev, MTU, LOCAL),
        Mem::plain(&dev, GRH + MTU, LOCAL),
    );
    for env in [&[][..], &[("VERBATIM_ASYNC", "9")][..]] {
        let mut second = Second::start(env);
        for len in [0, 1, 100, 3000, MTU] {
            second.ask(&format!("recv {len} {}", GRH + MTU));
            from.fill(0, &pattern(len, len));
            send_datagram(&a, &ah, second.qpn, &from, len);
            let told = second.ask("next");
            assert_eq!(told, format!("0 {} {} true", GRH + len, a.qpn()));
            assert_eq!(a.recv(1, &mut [to.sge(0, GRH + MTU)]), 0);
            second.ask(&format!("send {} {len} 3", a.qpn()));
            let mut wc = a.next();
            assert_eq!((wc.src_qp, wc.byte_len as usize), (second.qpn, GRH + len));
            assert_eq!(to.get(GRH, len), pattern(3, len));
            drop(answer(&dev, &mut wc, &to));
        }
        // One that sleeps is woken, on either side.
        second.ask(&format!("recv 7 {}", GRH + MTU));
        second.ask("event");
        from.fill(0, &pattern(7, 8));
        send_datagram(&a, &ah, second.qpn, &from, 8);
        second.answer();
        assert_eq!(second.ask("next"), format!("0 48 {} true", a.qpn()));
        assert_eq!(a.recv(1, &mut [to.sge(0, GRH + MTU)]), 0);
        a.arm();
        second.ask(&format!("send {} 8 3", a.qpn()));
        a.event();
        assert_eq!(a.next().status, OK);
        second.kill();
        // Nobody any more: as with any other datagram that is lost.
        send_datagram(&a, &ah, second.qpn, &from, 8);
    }
}

/// Processes that send as fast as they can to one that is slower: what arrives is whole, and in the order of each sender.
#[test]
fn processes_compete() {
    const COUNT: usize = 3000;
    let dev = Dev::open();
    let srq = Srq::new(&dev, 16, 1);
    let shared = Options {
        srq: srq.0,
        cqe: 64,
        ..ud()
    };
    let mem = Mem::file(&dev, 16 * 8192, LOCAL, Kind::Private);
    for o in [&ud(), &shared] {
        let to = datagram_end(&dev, o);
        let post = |id: u64| {
            let mut sges = [mem.sge(id as usize * 8192, GRH + MTU)];
            match o.srq.is_null() {
                true => assert_eq!(to.recv(id, &mut sges), 0),
                false => assert_eq!(srq.recv(id, &mut sges), 0),
            }
        };
        (0..16).for_each(post);
        let mut senders = [
            Second::start(&[]),
            Second::start(&[]),
            Second::start(&[("VERBATIM_ASYNC", "4")]),
        ];
        for sender in &mut senders {
            sender.tell(&format!("burst {} {COUNT}", to.qpn()));
        }
        let qpns: Vec<u32> = senders.iter().map(|s| s.qpn).collect();
        let mut next = [0; 3];
        let mut take = |wc: ibv_wc| {
            let imm = unsafe { wc.__bindgen_anon_1.imm_data } as usize;
            let from = qpns.iter().position(|qpn| *qpn == wc.src_qp).unwrap();
            assert!(imm >= next[from], "{imm} after {next:?}");
            next[from] = imm + 1;
            let len = imm * 37 % (MTU + 1);
            assert_eq!((wc.status, wc.byte_len as usize), (OK, GRH + len));
            let at = wc.wr_id as usize * 8192 + GRH;
            assert!(mem.get(at, len) == pattern(imm, len));
            post(wc.wr_id);
        };
        let mut taken = 0;
        // They do not wait for us: each ends, whatever is taken.
        std::thread::scope(|s| {
            let answers = s.spawn(|| senders.iter_mut().for_each(|s| drop(s.answer())));
            while !answers.is_finished() {
                while let Some(wc) = to.poll() {
                    take(wc);
                    taken += 1;
                }
                std::thread::yield_now();
            }
        });
        while let Some(wc) = to.poll() {
            take(wc);
            taken += 1;
        }
        assert!(taken >= 16, "{taken}");
        assert_eq!(senders[0].ask(&format!("send {} 70 5", to.qpn())), "");
        assert_eq!(to.next().byte_len as usize, GRH + 70);
    }
}

/// A sender is killed, or stopped, at each step: others' datagrams arrive, and no receive is lost.
#[test]
fn a_sender_ends_at_each_step() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let mem = Mem::plain(&dev, 4 * MTU, LOCAL);
    for (at, step) in Step::ALL.into_iter().enumerate() {
        for action in ["kill", "stop"] {
            let mut second = Second::start(&[]);
            for id in 0..4 {
                assert_eq!(a.recv(id, &mut [mem.sge(0, GRH + 200)]), 0);
            }
            second.ask(&format!("inject {at} {action}"));
            second.ask(&format!("last {}", a.qpn()));
            while !second::ended(&second) {
                std::thread::yield_now();
            }
            let arrived = !matches!(step, Step::Checked | Step::Hazard | Step::Copied);
            a.arm();
            if !arrived {
                send_datagram(&b, &ah, a.qpn(), &mem, 150);
                a.event();
            }
            let len = if arrived { 100 } else { 150 };
            assert_eq!(a.next().byte_len as usize, GRH + len, "{step:?} {action}");
            for _ in 1..4 {
                send_datagram(&b, &ah, a.qpn(), &mem, 9);
            }
            for _ in 1..4 {
                let wc = a.next();
                assert_eq!((wc.status, wc.byte_len as usize), (OK, GRH + 9));
            }
            assert!(a.poll().is_none(), "{step:?} {action}");
            second.kill();
        }
    }
}
