//! Completion queues that are read field by field, resized and moderated.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::inline::*;
use ibverbs_sys::*;
use std::ptr::null_mut;

use ibv_create_cq_wc_flags as Field;
use ibv_wr_opcode as Op;

const CLOCK: u64 = Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
const WALL: u64 = Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
const STANDARD: u64 = IBV_WC_STANDARD_FLAGS.0 as u64;

fn attr(cqe: u32, wc_flags: u64) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe,
        wc_flags,
        ..Default::default()
    }
}

/// An extended queue, and two queue pairs that complete to it, connected to one another.
struct Pair {
    cq: *mut ibv_cq_ex,
    qps: [*mut ibv_qp; 2],
}

impl Pair {
    fn new(dev: &Dev, attr: &mut ibv_cq_init_attr_ex) -> Pair {
        let cq = unsafe { ibv_create_cq_ex(dev.ctx, attr) };
        assert!(!cq.is_null(), "{}", std::io::Error::last_os_error());
        let plain = ibv_cq_ex_to_cq(cq);
        let mut init = ibv_qp_init_attr {
            send_cq: plain,
            recv_cq: plain,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        let qps = [(); 2].map(|()| unsafe { (api().ibv_create_qp)(dev.pd, &mut init) });
        let pair = Pair { cq, qps };
        let o = Options::default();
        for (end, to) in [(0, 1), (1, 0)] {
            let end = pair.end(end);
            end.init(&o);
            end.connect(pair.qpn(to), &o);
        }
        pair
    }

    fn qpn(&self, at: usize) -> u32 {
        unsafe { (*self.qps[at]).qp_num }
    }

    fn end(&self, at: usize) -> std::mem::ManuallyDrop<End> {
        std::mem::ManuallyDrop::new(End {
            cq: ibv_cq_ex_to_cq(self.cq),
            qp: self.qps[at],
            channel: null_mut(),
        })
    }

    /// A message from the first to the second, with immediate data.
    fn message(&self, id: u64, mem: &Mem, len: usize) {
        assert_eq!(self.end(1).recv(id + 100, &mut [mem.sge(0, 32)]), 0);
        let mut sges = [mem.sge(32, len)];
        let mut wr = wr(id, Op::IBV_WR_SEND_WITH_IMM, &mut sges, SIGNALED);
        wr.__bindgen_anon_1.imm_data = id as u32;
        assert_eq!(self.end(0).post(&mut wr), 0);
    }

    /// Begins a poll, once there is something.
    fn start(&self) {
        let mut poll = ibv_poll_cq_attr::default();
        let begin = std::time::Instant::now();
        loop {
            match unsafe { ibv_start_poll(self.cq, &mut poll) } {
                0 => return,
                rc => assert_eq!(rc, libc::ENOENT),
            }
            assert!(begin.elapsed() < HANG);
            std::thread::yield_now();
        }
    }

    /// The next completion of a poll that has begun.
    fn next(&self) {
        let begin = std::time::Instant::now();
        loop {
            match unsafe { ibv_next_poll(self.cq) } {
                0 => return,
                rc => assert_eq!(rc, libc::ENOENT),
            }
            assert!(begin.elapsed() < HANG);
            std::thread::yield_now();
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for qp in self.qps {
            assert_eq!(unsafe { (api().ibv_destroy_qp)(qp) }, 0);
        }
        assert_eq!(
            unsafe { (api().ibv_destroy_cq)(ibv_cq_ex_to_cq(self.cq)) },
            0
        );
    }
}

#[test]
fn fields_of_completions() {
    let dev = Dev::open();
    let pair = Pair::new(&dev, &mut attr(64, STANDARD | CLOCK | WALL));
    let mem = Mem::plain(&dev, 64, LOCAL);
    let cq = pair.cq;
    let mut poll = ibv_poll_cq_attr::default();
    assert_eq!(unsafe { ibv_start_poll(cq, &mut poll) }, libc::ENOENT);
    let mut values = ibv_values_ex {
        comp_mask: ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
        ..Default::default()
    };
    let mut clock = || unsafe {
        assert_eq!(ibv_query_rt_values_ex(dev.ctx, &mut values), 0);
        values.raw_clock.tv_nsec as u64
    };
    let before = clock();
    (1..4).for_each(|id| pair.message(id, &mem, id as usize * 5));
    pair.start();
    let (mut sends, mut receives) = (1, 1);
    let mut last = before;
    for i in 0..6 {
        if i > 0 {
            pair.next();
        }
        unsafe {
            assert_eq!(((*cq).status, ibv_wc_read_vendor_err(cq)), (OK, 0));
            let id = (*cq).wr_id;
            if ibv_wc_read_opcode(cq) == ibv_wc_opcode::IBV_WC_SEND {
                assert_eq!((id, ibv_wc_read_qp_num(cq)), (sends, pair.qpn(0)));
                sends += 1;
            } else {
                assert_eq!(ibv_wc_read_opcode(cq), ibv_wc_opcode::IBV_WC_RECV);
                assert_eq!((id, ibv_wc_read_qp_num(cq)), (100 + receives, pair.qpn(1)));
                assert_eq!(ibv_wc_read_byte_len(cq), receives as u32 * 5);
                assert_eq!(ibv_wc_read_imm_data(cq), receives as u32);
                let imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
                assert_eq!(ibv_wc_read_wc_flags(cq), imm);
                assert_eq!(ibv_wc_read_src_qp(cq), pair.qpn(0));
                receives += 1;
            }
            let zeros = (ibv_wc_read_slid(cq), ibv_wc_read_sl(cq));
            assert_eq!((zeros, ibv_wc_read_dlid_path_bits(cq)), ((0, 0), 0));
            // Stamps rise, between two looks at the device's clock.
            let stamp = ibv_wc_read_completion_ts(cq);
            assert!(stamp >= last);
            last = stamp;
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            let wall = u128::from(ibv_wc_read_completion_wallclock_ns(cq));
            assert!(since.as_nanos().abs_diff(wall) < HANG.as_nanos());
        }
    }
    assert!(last <= clock());
    unsafe {
        assert_eq!(ibv_next_poll(cq), libc::ENOENT);
        ibv_end_poll(cq);
    }
    // The plain way works on the same queue.
    pair.message(9, &mem, 1);
    let mut ids = [pair.end(0).next().wr_id, pair.end(0).next().wr_id];
    ids.sort();
    assert_eq!(ids, [9, 109]);
}

#[test]
fn only_what_was_asked_for() {
    let dev = Dev::open();
    let pair = Pair::new(&dev, &mut attr(64, Field::IBV_WC_EX_WITH_BYTE_LEN.0.into()));
    let cq = unsafe { &*pair.cq };
    assert!(cq.read_byte_len.is_some() && cq.read_opcode.is_some());
    assert!(cq.read_imm_data.is_none() && cq.read_completion_ts.is_none());
    let refused = |attr: &mut ibv_cq_init_attr_ex, errno: i32| {
        let cq = unsafe { ibv_create_cq_ex(dev.ctx, attr) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((cq.is_null(), error), (true, Some(errno)));
    };
    refused(
        &mut attr(64, Field::IBV_WC_EX_WITH_TM_INFO.0.into()),
        libc::EOPNOTSUPP,
    );
    refused(&mut attr(0, 0), libc::EINVAL);
    refused(&mut attr(u32::MAX, 0), libc::EINVAL);
    let flags = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    let ignore = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0;
    let mut overrun = attr(64, 0);
    (overrun.comp_mask, overrun.flags) = (flags, ignore);
    refused(&mut overrun, libc::EOPNOTSUPP);
    let mut poll = ibv_poll_cq_attr { comp_mask: 1 };
    assert_eq!(unsafe { ibv_start_poll(pair.cq, &mut poll) }, libc::EINVAL);
}

/// Threads that poll one queue see each completion once, and whole.
#[test]
fn threads_take_turns() {
    struct Shared<'a>(&'a Pair);
    unsafe impl Sync for Shared<'_> {}
    let dev = Dev::open();
    let pair = Pair::new(&dev, &mut attr(64, STANDARD));
    let mem = Mem::plain(&dev, 64, LOCAL);
    let done = std::sync::atomic::AtomicU64::new(0);
    const COUNT: u64 = 2000;
    let shared = Shared(&pair);
    std::thread::scope(|s| {
        for _ in 0..2 {
            let (shared, done) = (&shared, &done);
            s.spawn(move || {
                let cq = shared.0.cq;
                while done.load(std::sync::atomic::Ordering::Relaxed) < 2 * COUNT {
                    let mut poll = ibv_poll_cq_attr::default();
                    unsafe {
                        if ibv_start_poll(cq, &mut poll) != 0 {
                            std::thread::yield_now();
                            continue;
                        }
                        loop {
                            let id = (*cq).wr_id;
                            if ibv_wc_read_opcode(cq) == ibv_wc_opcode::IBV_WC_RECV {
                                assert_eq!(u64::from(ibv_wc_read_imm_data(cq)) + 100, id);
                            }
                            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            if ibv_next_poll(cq) != 0 {
                                break;
                            }
                        }
                        ibv_end_poll(cq);
                    }
                }
            });
        }
        for id in 0..COUNT {
            while id * 2 > done.load(std::sync::atomic::Ordering::Relaxed) + 8 {
                std::thread::yield_now();
            }
            pair.message(id, &mem, 8);
        }
    });
}

/// Between its start and its end, a poll shows one completion, whoever else polls.
#[test]
fn a_poll_waits_for_the_end_of_another() {
    struct Shared<'a>(&'a Pair);
    unsafe impl Sync for Shared<'_> {}
    let dev = Dev::open();
    let pair = Pair::new(&dev, &mut attr(64, STANDARD));
    let mem = Mem::plain(&dev, 64, LOCAL);
    pair.message(1, &mem, 8);
    pair.start();
    let id = unsafe { (*pair.cq).wr_id };
    let shared = Shared(&pair);
    std::thread::scope(|s| {
        let shared = &shared;
        let other = s.spawn(move || {
            shared.0.start();
            let id = unsafe { (*shared.0.cq).wr_id };
            unsafe { ibv_end_poll(shared.0.cq) };
            id
        });
        for _ in 0..2000 {
            assert_eq!(unsafe { (*pair.cq).wr_id }, id);
            std::thread::yield_now();
        }
        unsafe { ibv_end_poll(pair.cq) };
        let mut ids = [id, other.join().unwrap()];
        ids.sort();
        assert_eq!(ids, [1, 101]);
    });
}

#[test]
fn resized() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    let resize = |cqe: i32| unsafe { (api().ibv_resize_cq)(a.cq, cqe) };
    assert_eq!((resize(0), resize(1 << 30)), (libc::EINVAL, libc::EINVAL));
    let send = |id: u64, flags: u32| {
        assert_eq!(b.recv(id, &mut [mem.sge(0, 8)]), 0);
        let mut sges = [mem.sge(8, 8)];
        assert_eq!(a.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, flags)), 0);
        assert_eq!(b.next().wr_id, id);
    };
    // All completions are there once a later message has arrived.
    let messages = |ids: std::ops::Range<u64>| {
        ids.for_each(|id| send(id, SIGNALED));
        send(99, 0);
    };
    // What waits has to fit, and nothing is lost either way.
    messages(0..6);
    assert_eq!((resize(5), unsafe { (*a.cq).cqe }), (libc::EINVAL, 32));
    assert_eq!((resize(6), unsafe { (*a.cq).cqe }), (0, 6));
    (0..3).for_each(|id| assert_eq!(a.next().wr_id, id));
    assert_eq!(resize(64), 0);
    messages(6..12);
    (3..12).for_each(|id| assert_eq!(a.next().wr_id, id));
    assert!(a.poll().is_none());
    // A small one counts from now on, and overflows.
    assert_eq!(resize(4), 0);
    messages(0..5);
    (0..4).for_each(|id| assert_eq!(a.next().wr_id, id));
    let mut wc = ibv_wc::default();
    assert_eq!(unsafe { ibv_poll_cq(a.cq, 1, &mut wc) }, -1);
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(event(&dev).0, ibv_event_type::IBV_EVENT_CQ_ERR);
    assert_eq!(event(&dev).0, ibv_event_type::IBV_EVENT_QP_FATAL);
}

#[test]
fn moderation_and_what_the_device_says() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr_ex::default();
    unsafe {
        assert_eq!(
            ibv_query_device_ex(api(), dev.ctx, std::ptr::null(), &mut attr),
            0
        );
    }
    assert_eq!(attr.completion_timestamp_mask, u64::MAX);
    assert_eq!((attr.hca_core_clock, attr.phys_port_cnt_ex), (1_000_000, 1));
    assert!(attr.cq_mod_caps.max_cq_count > 0 && attr.orig_attr.max_qp > 0);
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    let moderate = |cq_count: u16, cq_period: u16| {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq {
                cq_count,
                cq_period,
            },
        };
        assert_eq!(unsafe { ibv_modify_cq(b.cq, &mut attr) }, 0);
        attr.attr_mask = ibv_cq_attr_mask::IBV_CQ_ATTR_RESERVED.0;
        assert_eq!(unsafe { ibv_modify_cq(b.cq, &mut attr) }, libc::EOPNOTSUPP);
    };
    // How long an event takes of so many messages.
    let event_of = |count: u64| {
        b.arm();
        let begin = std::time::Instant::now();
        for id in 0..count {
            assert_eq!(b.recv(id, &mut [mem.sge(0, 8)]), 0);
            let mut sges = [mem.sge(8, 8)];
            assert_eq!(a.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED)), 0);
        }
        b.event();
        let took = begin.elapsed();
        for _ in 0..count {
            assert_eq!((a.next().status, b.next().status), (OK, OK));
        }
        took
    };
    const PERIOD: u16 = 50_000;
    let period = std::time::Duration::from_micros(PERIOD.into());
    moderate(3, PERIOD);
    assert!(event_of(2) >= period);
    let sooner = |count: u64| (0..100).any(|_| event_of(count) < period);
    assert!(sooner(3), "enough have completed");
    moderate(0, 0);
    assert!(sooner(1), "not moderated any more");
}
