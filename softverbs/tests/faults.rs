//! Faults on demand do what they say. One test at a time: a fault is in force for the whole process.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use softverbs::faults::{Action, Fault, Step, Verb, inject};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn a_delay_holds_work_back() {
    let _alone = alone();
    let dev = Dev::open();
    let (a, b) = pair(
        &dev,
        &Options {
            timeout: 1,
            ..Options::default()
        },
    );
    let mem = Mem::plain(&dev, 64, LOCAL);
    let by = Duration::from_millis(30);
    let _fault = inject(Fault::Delay {
        qp: Some(a.qpn()),
        by,
    });
    b.recv(1, &mut [mem.sge(0, 8)]);
    let begin = Instant::now();
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED)),
        0
    );
    assert_eq!(
        (b.next().status, a.next().status),
        (OK, OK),
        "late, whatever the timeout"
    );
    assert!(begin.elapsed() >= by);
}

#[test]
fn a_receiver_that_is_not_ready() {
    let _alone = alone();
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL);
    for (rnr_retry, status) in [(0, Status::IBV_WC_RNR_RETRY_EXC_ERR), (7, OK)] {
        let (a, b) = pair(
            &dev,
            &Options {
                rnr_retry,
                ..Options::default()
            },
        );
        let _fault = inject(Fault::ReceiverNotReady {
            qp: Some(a.qpn()),
            times: 3,
        });
        b.recv(1, &mut [mem.sge(0, 8)]);
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED));
        assert_eq!(a.next().status, status);
    }
}

/// At whatever step a queue pair fails, its peer is whole: the message arrived or it did not, and a new pair works.
#[test]
fn an_error_at_each_step() {
    let _alone = alone();
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 4096, LOCAL);
    for step in Step::ALL {
        for len in [8, 100, 2000] {
            let (a, b) = pair(&dev, &Options::default());
            let action = Action::Error(Status::IBV_WC_LOC_QP_OP_ERR.0);
            let fault = inject(Fault::At {
                qp: Some(a.qpn()),
                step,
                nth: 2,
                action,
            });
            for i in 0..3 {
                b.recv(i, &mut [mem.sge(0, 2000)]);
                a.post(&mut wr(
                    i,
                    Op::IBV_WR_SEND,
                    &mut [mem.sge(2000, len)],
                    SIGNALED,
                ));
            }
            let got: Vec<_> = (0..3).map(|_| a.next().status).collect();
            assert_eq!(
                got,
                [
                    OK,
                    Status::IBV_WC_LOC_QP_OP_ERR,
                    Status::IBV_WC_WR_FLUSH_ERR
                ],
                "{step:?}"
            );
            let arrived = if matches!(step, Step::Told | Step::Left | Step::Woken) {
                2
            } else {
                1
            };
            for i in 0..arrived {
                assert_eq!(
                    (b.next().status, b.state()),
                    (OK, State::IBV_QPS_RTS),
                    "{step:?} {i}"
                );
            }
            assert!(b.poll().is_none());
            drop(fault);
        }
    }
}

/// The same of datagrams: what was claimed is given up, and others arrive.
#[test]
fn an_error_at_each_step_of_a_datagram() {
    let _alone = alone();
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 4096, LOCAL);
    let ah = Ah::new(&dev, 1);
    for step in Step::ALL {
        let (a, b) = pair(&dev, &ud());
        let send = |from: &End| {
            let mut sges = [mem.sge(2000, 100)];
            assert_eq!(
                from.post(&mut ah.to(b.qpn(), Op::IBV_WR_SEND, &mut sges)),
                0
            );
            from.next().status
        };
        for id in 0..3 {
            assert_eq!(b.recv(id, &mut [mem.sge(0, 2000)]), 0);
        }
        let action = Action::Error(Status::IBV_WC_LOC_QP_OP_ERR.0);
        let fault = inject(Fault::At {
            qp: Some(a.qpn()),
            step,
            nth: 2,
            action,
        });
        assert_eq!((send(&a), send(&a)), (OK, Status::IBV_WC_LOC_QP_OP_ERR));
        assert_eq!(a.state(), State::IBV_QPS_SQE, "{step:?}");
        drop(fault);
        assert_eq!(a.set_state(State::IBV_QPS_RTS), 0);
        assert_eq!(send(&a), OK);
        let arrived = matches!(step, Step::Told | Step::Left | Step::Woken);
        for id in 0..2 + u64::from(arrived) {
            assert_eq!((b.next().wr_id, b.state()), (id, State::IBV_QPS_RTS));
        }
        assert!(b.poll().is_none(), "{step:?}");
        if !arrived {
            assert_eq!((send(&a), b.next().wr_id), (OK, 2));
        }
    }
}

#[test]
fn control_verbs_fail_at_the_nth_call() {
    let _alone = alone();
    let dev = Dev::open();
    let fault = inject(Fault::Verb {
        verb: Verb::RegMr,
        nth: 2,
        errno: libc::ENOMEM,
    });
    let mut bytes = [0u8; 64];
    let reg = |bytes: &mut [u8; 64]| unsafe {
        (api().ibv_reg_mr)(dev.pd, bytes.as_mut_ptr().cast(), 64, 0)
    };
    let first = reg(&mut bytes);
    assert!(!first.is_null());
    assert!(reg(&mut bytes).is_null());
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOMEM)
    );
    let third = reg(&mut bytes);
    assert!(!third.is_null());
    drop(fault);
    for mr in [first, third] {
        let fault = inject(Fault::Verb {
            verb: Verb::DeregMr,
            nth: 1,
            errno: libc::EBUSY,
        });
        assert_eq!(unsafe { (api().ibv_dereg_mr)(mr) }, libc::EBUSY);
        drop(fault);
        assert_eq!(unsafe { (api().ibv_dereg_mr)(mr) }, 0);
    }
}

#[test]
fn without_immediate_data() {
    let _alone = alone();
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    let _fault = inject(Fault::NoImmediate);
    b.recv(1, &mut [mem.sge(0, 8)]);
    assert_eq!(
        a.post(&mut wr(
            1,
            Op::IBV_WR_SEND_WITH_IMM,
            &mut [mem.sge(8, 8)],
            0
        )),
        libc::EOPNOTSUPP
    );
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], 0)),
        0
    );
    assert_eq!(b.next().status, OK);
    let iwarp = unsafe {
        let list = (api().ibv_get_device_list)(std::ptr::null_mut());
        let transport = (**list).transport_type;
        (api().ibv_free_device_list)(list);
        transport == ibverbs_sys::ibv_transport_type::IBV_TRANSPORT_IWARP
    };
    assert!(iwarp, "it says so as such devices do");
}

#[test]
fn an_overflow_at_the_nth_poll() {
    let _alone = alone();
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    b.recv(1, &mut [mem.sge(0, 8)]);
    a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED));
    assert_eq!(b.next().status, OK);
    let _fault = inject(Fault::CqOverflow {
        cq: Some(unsafe { (*a.cq).handle }),
        nth: 1,
    });
    let mut wc = ibverbs_sys::ibv_wc::default();
    let mut polled = || unsafe { ibverbs_sys::inline::ibv_poll_cq(a.cq, 1, &mut wc) };
    assert_eq!(
        (polled(), polled()),
        (-1, -1),
        "what was not moved in time is lost"
    );
    assert_eq!(a.state(), State::IBV_QPS_ERR);
}
