//! What a peer can do to a shared receive queue that overwrites all it can reach. Alone in its process, as `scribble.rs` is.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use second::*;
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// It overwrites the claims of a queue that it shares, too: no crash, no hang, and every completion is of an entry that was
/// posted. Those who share the queue may suffer; nobody else does.
#[test]
fn a_scribbler_on_a_shared_queue() {
    let dev = Dev::open();
    for seed in 0..4 {
        let srq = Srq::new(&dev, 8, 1);
        let (mut scribbler, end) = Second::connected(&dev, &srq.options(), &[]);
        let (mut sharer, other) = Second::connected(&dev, &srq.options(), &[]);
        let into = Mem::file(&dev, 8 * 4096, LOCAL, Kind::Receive);
        for i in 0..8 {
            assert_eq!(srq.recv(i, &mut [into.sge(i as usize * 4096, 4096)]), 0);
        }
        scribbler.tell(&format!("scribble {} {seed}", std::process::id()));
        for _ in 0..16 {
            sharer.ask("post 4 1000");
        }
        let begin = std::time::Instant::now();
        while begin.elapsed() < std::time::Duration::from_millis(300) {
            for end in [&end, &other] {
                while let Some(wc) = end.poll() {
                    assert!(wc.wr_id < 8 || wc.status != OK);
                    assert!(wc.byte_len as usize <= 4096 || wc.status != OK);
                    let at = (wc.wr_id % 8) as usize * 4096;
                    let _ = srq.recv(wc.wr_id, &mut [into.sge(at, 4096)]);
                }
            }
            std::thread::yield_now();
        }
        assert!(scribbler.answer().parse::<usize>().unwrap() >= 3);
        scribbler.kill();
        sharer.kill();
        drop((end, other));
    }
    // The device is whole.
    let srq = Srq::new(&dev, 1, 1);
    let (mut honest, end) = Second::connected(&dev, &srq.options(), &[]);
    let mem = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    assert_eq!(srq.recv(1, &mut [mem.sge(0, 4096)]), 0);
    honest.ask("fill 4 1000 7");
    assert_eq!(honest.ask("send 4 1000"), "0");
    assert_eq!(
        (end.next().byte_len, mem.get(0, 1000)),
        (1000, pattern(7, 1000))
    );
}
