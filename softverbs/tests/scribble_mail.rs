//! A peer that overwrites the mailbox of a queue pair for datagrams, and all else that it can reach. Alone in its process.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::*;
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// Datagrams are lost or made up, nothing else: no crash, no hang, and nothing is written but the memory of receives.
#[test]
fn a_scribbled_mailbox() {
    let dev = Dev::open();
    let ah = Ah::new(&dev, 1);
    for seed in 0..4 {
        // Only for its pen: it is connected to nobody here.
        let mut scribbler = Second::start(&[]);
        let (a, b) = pair(&dev, &ud());
        let into = Mem::file(&dev, 8192, LOCAL, Kind::Private);
        scribbler.tell(&format!("scribble {} {seed}", std::process::id()));
        let begin = std::time::Instant::now();
        let mut posts = 0;
        while begin.elapsed() < std::time::Duration::from_millis(300) {
            let _ = b.recv(posts, &mut [into.sge(0, 4096)]);
            let mut sges = [into.sge(4096, (posts % 4097) as usize)];
            let _ = a.post(&mut ah.to(b.qpn(), Op::IBV_WR_SEND, &mut sges));
            posts += 1;
            for end in [&a, &b] {
                while let Some(wc) = end.poll() {
                    assert!(wc.byte_len as usize <= 4096 || wc.status != OK);
                    assert!(wc.wr_id <= posts);
                }
            }
            assert_eq!(into.get(4096, 4096), [0; 4096]);
        }
        assert!(scribbler.answer().parse::<usize>().unwrap() >= 2);
        scribbler.kill();
        drop((a, b));
        let (a, b) = pair(&dev, &ud());
        assert_eq!(b.recv(1, &mut [into.sge(0, 4096)]), 0);
        let mut sges = [into.sge(4096, 8)];
        assert_eq!(a.post(&mut ah.to(b.qpn(), Op::IBV_WR_SEND, &mut sges)), 0);
        assert_eq!((a.next().status, b.next().byte_len), (OK, 48));
    }
}
