//! A send queue that is drained, and one that has failed while its queue pair goes on receiving.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_event_type as Event;
use ibverbs_sys::ibv_qp_type as Type;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_init_attr};
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use second::{Second, serve};
use softverbs::faults::{Fault, inject};
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

const SQD: State = State::IBV_QPS_SQD;
const SQE: State = State::IBV_QPS_SQE;
const RTS: State = State::IBV_QPS_RTS;

fn send(end: &End, id: u64, mem: &Mem) -> i32 {
    let mut sges = [mem.sge(0, 8)];
    end.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED))
}

/// To SQD, with or without an event.
fn drain(end: &End, notify: bool) -> i32 {
    let mut attr = ibv_qp_attr {
        qp_state: SQD,
        en_sqd_async_notify: notify.into(),
        ..Default::default()
    };
    let mask = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
    end.modify(&mut attr, mask)
}

fn is_draining(end: &End) -> bool {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    assert_eq!(
        unsafe { (api().ibv_query_qp)(end.qp, &mut attr, 0, &mut init) },
        0
    );
    attr.sq_draining != 0
}

/// Completes what was posted before, in order, and holds what is posted later.
fn drains(dev: &Dev, end: &End, mem: &Mem, mut receives: impl FnMut(u64)) {
    // Without a receive, the first waits.
    for id in 1..=3 {
        assert_eq!(send(end, id, mem), 0);
    }
    assert_eq!(drain(end, true), 0);
    assert_eq!((end.state(), is_draining(end)), (SQD, true));
    assert_eq!(send(end, 4, mem), 0);
    receives(1);
    assert_eq!(end.next().wr_id, 1);
    assert!(no_event(dev));
    // It cannot go back before it is drained, and its attributes cannot change.
    assert_eq!(end.set_state(RTS), libc::EINVAL);
    let mut attr = ibv_qp_attr::default();
    assert_eq!(
        end.modify(&mut attr, Mask::IBV_QP_PKEY_INDEX.0),
        libc::EINVAL
    );
    receives(5);
    assert_eq!([end.next().wr_id, end.next().wr_id], [2, 3]);
    assert_eq!(event(dev), (Event::IBV_EVENT_SQ_DRAINED, end.qp.addr()));
    assert!(!is_draining(end));
    assert_eq!(end.modify(&mut attr, Mask::IBV_QP_PKEY_INDEX.0), 0);
    // There are receives for it; it waits all the same, and so does one more.
    assert_eq!(send(end, 5, mem), 0);
    assert!(end.poll().is_none() && no_event(dev));
    assert_eq!((end.set_state(RTS), end.state()), (0, RTS));
    assert_eq!([end.next().wr_id, end.next().wr_id], [4, 5]);
    assert_eq!(send(end, 6, mem), 0);
    assert_eq!(end.next().wr_id, 6);
    assert!(no_event(dev));
}

#[test]
fn a_queue_is_drained() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    drains(&dev, &a, &mem, |count| {
        for _ in 0..count {
            assert_eq!(b.recv(1, &mut [mem.sge(32, 8)]), 0);
        }
    });
    for _ in 0..6 {
        assert_eq!(b.next().status, OK);
    }
    // Nothing to drain: the event comes at once, if it is wanted. What peers send arrives.
    for notify in [true, false] {
        assert_eq!(drain(&a, notify), 0);
        if notify {
            assert_eq!(event(&dev), (Event::IBV_EVENT_SQ_DRAINED, a.qp.addr()));
        }
        assert!(no_event(&dev));
        assert_eq!(a.recv(9, &mut [mem.sge(32, 8)]), 0);
        assert_eq!(send(&b, 1, &mem), 0);
        assert_eq!((b.next().status, a.next().wr_id), (OK, 9));
        assert_eq!(a.set_state(RTS), 0);
    }
}

#[test]
fn a_queue_to_another_process_is_drained() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::file(&dev, 64, LOCAL, Kind::Private);
    drains(&dev, &end, &mem, |count| {
        for _ in 0..count {
            second.ask("recv 1 1 8");
        }
    });
    // Draining ends with the peer, too.
    assert_eq!(send(&end, 7, &mem), 0);
    assert_eq!(drain(&end, false), 0);
    assert_eq!(send(&end, 8, &mem), 0);
    second.kill();
    let status = [end.next(), end.next()].map(|wc| wc.status);
    assert_eq!(
        status,
        [Status::IBV_WC_RETRY_EXC_ERR, Status::IBV_WC_WR_FLUSH_ERR]
    );
    assert_eq!(end.state(), State::IBV_QPS_ERR);
}

#[test]
fn what_waits_is_flushed_or_forgotten() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL);
    for (to, flushed) in [(State::IBV_QPS_ERR, 2), (State::IBV_QPS_RESET, 0)] {
        let (a, _b) = pair(&dev, &Options::default());
        assert_eq!(send(&a, 1, &mem), 0);
        assert_eq!(drain(&a, true), 0);
        assert_eq!(send(&a, 2, &mem), 0);
        assert_eq!(a.set_state(to), 0);
        for _ in 0..flushed {
            assert_eq!(a.next().status, Status::IBV_WC_WR_FLUSH_ERR);
        }
        assert!(a.poll().is_none() && no_event(&dev));
    }
}

/// Only from RTS, and a reliable queue pair has no SQE.
#[test]
fn from_other_states() {
    let dev = Dev::open();
    let a = End::new(&dev, &Options::default());
    assert_eq!(drain(&a, false), libc::EINVAL);
    a.connect(a.qpn(), &Options::default());
    assert_eq!(a.set_state(SQE), libc::EINVAL);
    let mem = Mem::plain(&dev, 64, LOCAL);
    let mut bad = [ibverbs_sys::ibv_sge {
        lkey: mem.key() ^ 1,
        ..mem.sge(0, 8)
    }];
    assert_eq!(a.post(&mut wr(1, Op::IBV_WR_SEND, &mut bad, 0)), 0);
    assert_eq!(a.next().status, Status::IBV_WC_LOC_PROT_ERR);
    assert_eq!(a.state(), State::IBV_QPS_ERR);
}

/// The specification's SQE, which Linux's rxe does not have: there the queue pair fails.
#[test]
fn a_failed_send_queue_goes_on_receiving() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 256, LOCAL);
    let ah = Ah::new(&dev, 1);
    for qp_type in [Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        let o = Options {
            qp_type,
            ..Options::default()
        };
        let (a, b) = pair(&dev, &o);
        let post = |from: &End, to: &End, id: u64, key: u32| {
            let mut sges = [mem.sge(0, 8)];
            sges[0].lkey = key;
            let mut wr = match qp_type {
                Type::IBV_QPT_UD => ah.to(to.qpn(), Op::IBV_WR_SEND, &mut sges),
                _ => wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED),
            };
            wr.wr_id = id;
            assert_eq!(from.post(&mut wr), 0);
        };
        let works = |from: &End, to: &End| {
            assert_eq!(to.recv(9, &mut [mem.sge(64, 64)]), 0);
            post(from, to, 8, mem.key());
            let wc = from.next();
            assert_eq!((wc.status, wc.wr_id), (OK, 8));
            assert_eq!((to.next().wr_id, to.poll().is_none()), (9, true));
        };
        works(&a, &b);
        // A failure without a signal is told, and what follows is flushed.
        for id in 1..4 {
            post(&a, &b, id, mem.key() ^ u32::from(id == 1));
        }
        let told = [a.next(), a.next(), a.next()].map(|wc| (wc.wr_id, wc.status));
        let flushed = Status::IBV_WC_WR_FLUSH_ERR;
        assert_eq!(
            told,
            [(1, Status::IBV_WC_LOC_PROT_ERR), (2, flushed), (3, flushed)]
        );
        assert_eq!(a.state(), SQE);
        assert!(b.poll().is_none());
        works(&b, &a);
        assert_eq!(a.state(), SQE);
        assert_eq!(drain(&a, false), libc::EINVAL);
        assert_eq!((a.set_state(RTS), a.state()), (0, RTS));
        works(&a, &b);
        works(&b, &a);
        // It fails while it is drained: the same, and no event.
        let by = std::time::Duration::from_millis(20);
        let qp = Some(a.qpn());
        let delay = inject(Fault::Delay { qp, by });
        assert_eq!(b.recv(9, &mut [mem.sge(64, 64)]), 0);
        post(&a, &b, 1, mem.key());
        post(&a, &b, 2, mem.key() ^ 1);
        assert_eq!(drain(&a, true), 0);
        post(&a, &b, 3, mem.key());
        let told = [a.next(), a.next(), a.next()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!(
            told,
            [(1, OK), (2, Status::IBV_WC_LOC_PROT_ERR), (3, flushed)]
        );
        assert_eq!((a.state(), b.next().wr_id, no_event(&dev)), (SQE, 9, true));
        assert_eq!((a.set_state(RTS), a.state()), (0, RTS));
        assert!(!is_draining(&a));
        works(&a, &b);
        // Nothing of the draining is left: what is posted together is executed together.
        drop(delay);
        (11..14).for_each(|id| post(&a, &b, id, mem.key()));
        (11..14).for_each(|id| assert_eq!((a.next().wr_id, b.poll().is_none()), (id, true)));
        works(&a, &b);
        // Also to the error state from there.
        post(&a, &b, 4, mem.key() ^ 1);
        assert_eq!(a.next().status, Status::IBV_WC_LOC_PROT_ERR);
        assert_eq!(a.recv(7, &mut [mem.sge(64, 64)]), 0);
        assert_eq!(a.set_state(State::IBV_QPS_ERR), 0);
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (7, flushed));
        assert_eq!(a.set_state(RTS), libc::EINVAL);
    }
}
