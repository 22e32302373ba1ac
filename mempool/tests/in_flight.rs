//! The debug mode on the user-space device: buffers that are freed while a device owns them are found, whether it would read or write.
//!
//! What is to be found breaks the contract of raw posting. Nothing comes of it here: arenas stay mapped, and the queue pair is destroyed before the
//! device gets to the work.
#![cfg(not(loom))]

use mempool::{BudgetKind, Buf, DebugMode, Finding, Kind, Pool};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use verbs::sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use verbs::{Completion, Cq, Device, RecvQueue, SendQueue};

/// Nothing here takes a second; a test that reaches this hangs.
const HANG: Duration = Duration::from_secs(60);
/// More than what is left beside a message without a look at the receive.
const LEN: usize = 10_000;

thread_local!(static FOUND: RefCell<Vec<Finding>> = const { RefCell::new(Vec::new()) });

/// A queue pair that is connected to itself.
struct Loop {
    pool: Pool,
    cq: Cq,
    tx: SendQueue<Buf>,
    rx: RecvQueue<Buf>,
}

impl Loop {
    fn new() -> Loop {
        let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
        let pd = device.alloc_pd().unwrap();
        let cq = device.cq(64).build().unwrap();
        let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
        let own = ready.endpoint();
        let (tx, rx) = ready.connect(&own).unwrap();
        let mode = DebugMode::new()
            .report(|finding| FOUND.with_borrow_mut(|all| all.push(finding.clone())));
        let pool = Pool::builder(&pd).debug(mode).build().unwrap();
        Loop { pool, cq, tx, rx }
    }

    fn room(&self) -> Buf {
        let (budget, kind) = (BudgetKind::Receive, Kind::Receive);
        self.pool.alloc_in(budget, kind, LEN).unwrap()
    }

    fn post_raw_send(&mut self, buf: &Buf) {
        let mut segment = segment(buf);
        let mut wr = ibv_send_wr {
            wr_id: 77,
            sg_list: &mut segment,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        // SAFETY: valid; that the memory is not kept is what this is about, see the head of the file.
        unsafe { self.tx.post_raw(&mut wr).unwrap() };
    }

    fn next(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll().unwrap() {
                return completion;
            }
            assert!(start.elapsed() < HANG, "no completion");
            std::thread::yield_now();
        }
    }
}

fn segment(buf: &Buf) -> ibv_sge {
    ibv_sge {
        addr: buf.as_ptr() as u64,
        length: buf.len() as u32,
        lkey: buf.lkey().0,
    }
}

/// What was found of late: id and direction.
fn owners() -> Vec<(u64, bool)> {
    let of = |finding: &Finding| match finding {
        Finding::FreedInFlight { work, len, .. } => {
            assert_eq!(*len, LEN, "{finding}");
            let text = finding.to_string();
            assert!(text.contains("a device still owns it"), "{text}");
            assert!(text.contains("in_flight.rs"), "{text}");
            (work.raw_id.expect("posted raw"), work.writes)
        }
        other => panic!("{other}"),
    };
    FOUND.take().iter().map(of).collect()
}

#[test]
fn a_buffer_that_is_to_be_read_is_found_when_it_is_freed() {
    let mut queue = Loop::new();
    let (buf, other) = (
        queue.pool.alloc(LEN).unwrap(),
        queue.pool.alloc(LEN).unwrap(),
    );
    // There is no receive for it, so it waits.
    queue.post_raw_send(&buf);
    drop(other);
    assert_eq!(owners(), [], "of the same arena, and not named");
    // A part that is not named is none either, nor is the first of two handles on one slab.
    let (head, tail) = buf.split_at(10);
    drop(tail);
    assert_eq!(owners(), []);
    drop(head);
    assert_eq!(owners(), [(77, false)]);
    assert_eq!(queue.pool.findings(), 1);
    let Loop { pool, tx, rx, .. } = queue;
    verbs::destroy(tx, rx).unwrap();
    drop(pool);
    assert_eq!(owners(), []);
}

#[test]
fn a_buffer_that_is_to_be_filled_is_found_when_it_is_freed() {
    let mut queue = Loop::new();
    let buf = queue.room();
    let mut segment = segment(&buf);
    let mut wr = ibv_recv_wr {
        wr_id: 78,
        sg_list: &mut segment,
        num_sge: 1,
        ..Default::default()
    };
    // SAFETY: valid; that the memory is not kept is what this is about, see the head of the file.
    unsafe { queue.rx.post_raw(&mut wr).unwrap() };
    drop(buf);
    assert_eq!(owners(), [(78, true)]);
    let Loop { tx, rx, .. } = queue;
    verbs::destroy(tx, rx).unwrap();
}

#[test]
fn what_is_done_or_owned_by_its_queue_is_not_found() {
    let mut queue = Loop::new();
    let buf = queue.pool.alloc(LEN).unwrap();
    queue.post_raw_send(&buf);
    queue.rx.post(queue.room()).unwrap();
    let mut done = 0;
    while done < 2 {
        match queue.next().into_raw() {
            Ok(raw) => assert!(raw.result.is_ok()),
            Err(completion) => drop(queue.rx.redeem(completion).unwrap().unwrap()),
        }
        done += 1;
    }
    drop(buf);
    assert_eq!(owners(), []);
    // What queues own comes back when the device is done, and not before.
    queue.rx.post(queue.room()).unwrap();
    let waiting = [0; 2].map(|_| queue.pool.alloc(LEN).unwrap());
    for buf in waiting {
        queue.tx.send(buf).post().unwrap();
    }
    let Loop { pool, cq, tx, rx } = queue;
    verbs::destroy(tx, rx).unwrap();
    drop((cq, pool));
    assert_eq!(owners(), []);
}
