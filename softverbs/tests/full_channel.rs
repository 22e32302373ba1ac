//! A completion channel with more events than its pipe has room for: each queue that has something is told of.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::{ibv_comp_channel, ibv_cq, ibv_qp_init_attr, ibv_qp_type, ibv_wr_opcode as Op};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

/// Bytes of the pipe: a page, the least.
const PIPE: i32 = 4096;

/// The next event that is there.
fn event(channel: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    let mut fd = libc::pollfd {
        fd: unsafe { (*channel).fd },
        events: libc::POLLIN,
        revents: 0,
    };
    if unsafe { libc::poll(&mut fd, 1, 0) } == 0 {
        return None;
    }
    let (mut cq, mut context) = (null_mut(), null_mut());
    let rc = unsafe { (api().ibv_get_cq_event)(channel, &mut cq, &mut context) };
    assert_eq!(rc, 0);
    unsafe { (api().ibv_ack_cq_events)(cq, 1) };
    Some(cq)
}

/// Events of one queue, which nobody takes while there are completions, keep those of another out.
#[test]
fn an_event_for_which_there_is_no_room_is_not_lost() {
    let dev = Dev::open();
    let o = Options::default();
    let mem = Mem::plain(&dev, 64, LOCAL);
    let (from, noisy) = pair(&dev, &o);
    let channel = noisy.channel;
    // Another queue of the same channel.
    let cq = unsafe { (api().ibv_create_cq)(dev.ctx, 64, null_mut(), channel, 0) };
    assert!(!cq.is_null());
    let mut init = ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        cap: o.caps(),
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..ibv_qp_init_attr::default()
    };
    let qp = unsafe { (api().ibv_create_qp)(dev.pd, &mut init) };
    assert!(!qp.is_null());
    let quiet = ManuallyDrop::new(End { cq, qp, channel });
    quiet.init(&o);
    let to_quiet = End::new(&dev, &o);
    to_quiet.connect(quiet.qpn(), &o);
    quiet.connect(to_quiet.qpn(), &o);

    let room = unsafe { libc::fcntl((*channel).fd, libc::F_SETPIPE_SZ, PIPE) };
    assert!(room >= PIPE);
    let message = |from: &End, to: &End| {
        to.arm();
        assert_eq!(to.recv(1, &mut [mem.sge(0, 8)]), 0);
        let mut sges = [mem.sge(8, 8)];
        assert_eq!(
            from.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
            0
        );
        assert_eq!(from.next().status, OK);
    };
    for _ in 0..room as usize / 8 + 1 {
        message(&from, &noisy);
        assert_eq!(noisy.next().status, OK);
    }
    message(&to_quiet, &quiet);
    let mut told = [0; 2];
    while let Some(cq) = event(channel) {
        told[usize::from(cq == quiet.cq)] += 1;
    }
    assert_eq!(told, [room as usize / 8, 1]);
    assert_eq!(quiet.next().status, OK);
    unsafe {
        assert_eq!((api().ibv_destroy_qp)(quiet.qp), 0);
        assert_eq!((api().ibv_destroy_cq)(quiet.cq), 0);
    }
}
