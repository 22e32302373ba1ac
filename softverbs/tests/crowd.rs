//! A completion queue of many queue pairs, of which those are visited that somebody says have something. Alone in its process: one test writes over what
//! all say.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::inline::ibv_poll_cq;
use ibverbs_sys::{ibv_cq, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_wc};
use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode as Op};
use softverbs::memory::Kind;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

const MEMBERS: usize = 80;

/// Tests take turns: they look at, and over, what the process has once.
static TURN: Mutex<()> = Mutex::new(());

/// Queue pairs that complete to one queue, each connected to one with a queue of its own.
struct Crowd {
    hub: End,
    members: Vec<(End, ManuallyDrop<End>)>,
}

impl Crowd {
    fn new(dev: &Dev, o: &Options) -> Crowd {
        let hub = End::new(
            dev,
            &Options {
                cqe: 2 * o.depth * (MEMBERS as u32 + 1),
                ..Options::default()
            },
        );
        let members = (0..MEMBERS).map(|_| {
            let (theirs, ours) = (End::new(dev, o), member(dev, hub.cq, o));
            theirs.connect(ours.qpn(), o);
            ours.connect(theirs.qpn(), o);
            (theirs, ours)
        });
        let members = members.collect();
        Crowd { hub, members }
    }

    /// What there is, at most `most`.
    fn poll(&self, most: usize) -> Vec<ibv_wc> {
        let mut wcs = vec![ibv_wc::default(); most];
        let count = unsafe { ibv_poll_cq(self.hub.cq, most as i32, wcs.as_mut_ptr()) };
        wcs.truncate(usize::try_from(count).expect("no overflow"));
        wcs
    }

    /// So many completions, with how many polls they took.
    fn wait(&self, count: usize, most: usize) -> (Vec<ibv_wc>, usize) {
        let (begin, mut polls, mut all) = (Instant::now(), 0, Vec::new());
        while all.len() < count {
            polls += 1;
            let some = self.poll(most);
            if some.is_empty() {
                assert!(begin.elapsed() < HANG, "{} of {count}", all.len());
                std::thread::yield_now();
            }
            all.extend(some);
        }
        (all, polls)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (_, ours) in &self.members {
            assert_eq!(unsafe { (api().ibv_destroy_qp)(ours.qp) }, 0);
        }
    }
}

fn member(dev: &Dev, cq: *mut ibv_cq, o: &Options) -> ManuallyDrop<End> {
    let mut init = ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        cap: o.caps(),
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..ibv_qp_init_attr::default()
    };
    let qp = unsafe { (api().ibv_create_qp)(dev.pd, &mut init) };
    assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
    let channel = null_mut();
    let end = ManuallyDrop::new(End { cq, qp, channel });
    end.init(o);
    end
}

/// Whether what is posted is executed at once.
fn at_once() -> bool {
    std::env::var_os("VERBATIM_ASYNC").is_none()
}

/// Messages to some members and sends of others, all found, once, and soon.
#[test]
fn those_that_have_something_are_found() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dev = Dev::open();
    let o = Options::default();
    let crowd = Crowd::new(&dev, &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    let mut random = 1u32;
    for round in 0..300u64 {
        let mut expected = HashMap::new();
        for (theirs, ours) in &crowd.members {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (from, to) = match random >> 28 {
                0 => (theirs, &**ours),
                1 => (&**ours, theirs),
                _ => continue,
            };
            // More than one of some.
            let count = u64::from(random >> 26 & 3) + 1;
            for i in 0..count {
                let id = round * 8 + i;
                assert_eq!(to.recv(id, &mut [mem.sge(0, 8)]), 0);
                let mut sges = [mem.sge(8, 8)];
                assert_eq!(
                    from.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
                    0
                );
            }
            let here = match random >> 28 {
                0 => ibv_wc_opcode::IBV_WC_RECV,
                _ => ibv_wc_opcode::IBV_WC_SEND,
            };
            expected.insert(ours.qpn(), (here, round * 8, count));
            for _ in 0..count {
                theirs.next();
            }
        }
        let total = expected.values().map(|(_, _, count)| *count as usize).sum();
        let most = 1 + round as usize % 7;
        let (found, polls) = crowd.wait(total, most);
        for wc in found {
            let (opcode, next, left) = expected.get_mut(&wc.qp_num).expect("who has nothing");
            assert_eq!((wc.status, wc.opcode, wc.wr_id), (OK, *opcode, *next));
            (*next, *left) = (*next + 1, left.checked_sub(1).expect("once"));
        }
        assert!(crowd.poll(64).is_empty());
        if at_once() {
            assert_eq!(
                polls,
                total.div_ceil(most),
                "the next poll finds what is there"
            );
        }
    }
}

/// Members that fail have their receives flushed, others go on, also when some are gone.
#[test]
fn members_that_fail_are_flushed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dev = Dev::open();
    let o = Options::default();
    let mut crowd = Crowd::new(&dev, &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    for failing in (0..MEMBERS / 2).step_by(5) {
        let (_, ours) = &crowd.members[failing];
        for id in 0..3 {
            assert_eq!(ours.recv(id, &mut [mem.sge(0, 8)]), 0);
        }
        assert!(crowd.poll(64).is_empty());
        assert_eq!(ours.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
        let (found, polls) = crowd.wait(3, 2);
        assert!(!at_once() || polls == 2);
        for (id, wc) in found.into_iter().enumerate() {
            assert_eq!((wc.qp_num, wc.wr_id), (ours.qpn(), id as u64));
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
        let (_, gone) = crowd.members.swap_remove(failing);
        assert_eq!(unsafe { (api().ibv_destroy_qp)(gone.qp) }, 0);
        let (theirs, ours) = &crowd.members[failing];
        assert_eq!(ours.recv(7, &mut [mem.sge(0, 8)]), 0);
        assert_eq!(
            theirs.post(&mut wr(7, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], 0)),
            0
        );
        assert_eq!(crowd.wait(1, 4).0[0].qp_num, ours.qpn());
    }
}

/// A member that is connected anew counts its messages from the beginning, and as many as before are found all the same.
#[test]
fn who_connects_anew_is_found() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dev = Dev::open();
    let o = Options::default();
    let crowd = Crowd::new(&dev, &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    for count in 1..4 {
        let (theirs, ours) = &crowd.members[count];
        for connection in 0..3 {
            for _ in 0..count {
                assert_eq!(ours.recv(connection, &mut [mem.sge(0, 8)]), 0);
                let mut sges = [mem.sge(8, 8)];
                assert_eq!(
                    theirs.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
                    0
                );
                assert_eq!(theirs.next().status, OK);
            }
            let found = crowd.poll(64);
            let found = found.iter().filter(|wc| wc.wr_id == connection).count();
            assert_eq!(found, count, "by the next poll, of connection {connection}");
            assert!(crowd.poll(64).is_empty());
            for end in [theirs, &**ours] {
                assert_eq!(end.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
                end.init(&o);
            }
            theirs.connect(ours.qpn(), &o);
            ours.connect(theirs.qpn(), &o);
        }
    }
}

/// A message to a member whose own work waits, and is done by another thread at any moment, is found by the next poll.
#[test]
fn who_has_work_that_waits_is_not_passed_over() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Work waits for the helper, which does it at any moment.
    softverbs::set_async(Some(7));
    let dev = Dev::open();
    let seed = std::env::var("VERBATIM_ASYNC").ok();
    softverbs::set_async(seed.and_then(|seed| seed.parse().ok()));
    let o = Options::default();
    let crowd = Crowd::new(&dev, &o);
    let mem = Mem::file(&dev, 64, LOCAL | WRITE, Kind::Exposed);
    for round in 0..2_000 {
        let (theirs, ours) = &crowd.members[round % MEMBERS];
        assert_eq!(ours.recv(1, &mut [mem.sge(0, 8)]), 0);
        let mut sges = [mem.sge(8, 8)];
        assert_eq!(
            theirs.post(&mut wr(2, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
            0
        );
        // Then it has arrived.
        assert_eq!(theirs.next().status, OK);
        // Nothing but the room of a send queue needs a completion.
        let signaled = round / MEMBERS % 8 == 7;
        let flags = if signaled { SIGNALED } else { 0 };
        let mut sges = [mem.sge(16, 8)];
        let (addr, key) = (mem.addr() + 32, mem.key());
        assert_eq!(
            ours.post(&mut rdma(
                3,
                Op::IBV_WR_RDMA_WRITE,
                &mut sges,
                flags,
                addr,
                key
            )),
            0
        );
        let first = crowd.poll(4);
        assert!(
            first.iter().any(|wc| wc.wr_id == 1),
            "round {round}: by the next poll"
        );
        if signaled && first.len() == 1 {
            assert_eq!(crowd.wait(1, 1).0[0].wr_id, 3);
        }
    }
}

/// The words of this process's board.
fn board() -> &'static [AtomicU32] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().filter(|line| line.contains("verbatim-lane"));
    let mut boards = found.filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let [from, to] = [from, to].map(|at| usize::from_str_radix(at, 16).unwrap());
        (to - from == 4 << 14).then_some(from)
    });
    let at = boards.next().expect("there is a board");
    assert!(boards.next().is_none());
    unsafe { core::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), 1 << 14) }
}

/// Whoever writes over what others say delays them; nothing is lost, and who goes to sleep finds all there is.
#[test]
fn what_nobody_says_is_found_all_the_same() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dev = Dev::open();
    let crowd = Crowd::new(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    let words = board();
    let save = || -> Vec<u32> { words.iter().map(|w| w.load(Ordering::Relaxed)).collect() };
    let restore = |saved: Vec<u32>| {
        for (word, saved) in words.iter().zip(saved) {
            word.store(saved, Ordering::Relaxed);
        }
    };
    assert!(crowd.poll(64).is_empty());
    let (mut found_late, mut seed) = (0, 1u32);
    for (at, (theirs, ours)) in crowd.members.iter().enumerate() {
        let saved = save();
        assert_eq!(ours.recv(1, &mut [mem.sge(0, 8)]), 0);
        let mut sges = [mem.sge(8, 8)];
        assert_eq!(
            theirs.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
            0
        );
        theirs.next();
        restore(saved);
        let armed = at % 2 == 0;
        if armed {
            crowd.hub.arm();
        }
        let (found, polls) = crowd.wait(1, 4);
        assert_eq!((found[0].qp_num, found[0].status), (ours.qpn(), OK));
        assert!(
            !armed || !at_once() || polls == 1,
            "the first poll after arming"
        );
        found_late += usize::from(polls > 1);
        // Rubbish makes nothing up.
        for word in words {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.store(seed, Ordering::Relaxed);
        }
        assert!(crowd.poll(64).is_empty());
    }
    assert!(!at_once() || found_late > 0, "nothing was hidden");
}
