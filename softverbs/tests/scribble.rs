//! What a peer can do that overwrites all it can reach. Alone in its process: it would reach other tests' connections.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::*;
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
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
