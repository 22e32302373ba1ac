//! Work that a device refuses: what each side is told, and what is left of the connection.

use super::ends::{End, Parts, pair, pair_with, works};
use verbs::{Access, DeviceKind, RKey, RemoteRegion, WcStatus as Is};

/// A WRITE or READ of 4 bytes ends in `want`; what follows it at this end, and what is posted at the other, is flushed.
fn refused(mut a: End, mut b: End, remote: RemoteRegion, read: bool, want: Is) {
    b.post(&[8, 8]);
    if read {
        a.tx.read(a.side.room(&[4]), remote)
            .signaled()
            .post()
            .unwrap();
    } else {
        a.tx.write(a.side.bytes(b"evil"), remote)
            .signaled()
            .post()
            .unwrap();
    }
    a.tx.send(a.side.bytes(b"late")).post().unwrap();
    assert_eq!(
        a.ends(2, 0).0,
        [want, Is::WR_FLUSH_ERR],
        "{remote:?} read: {read}"
    );
    assert_eq!(
        b.ends(0, 2).1,
        [Is::WR_FLUSH_ERR; 2],
        "{remote:?} read: {read}"
    );
    // Both are in the error state for good.
    for end in [&mut a, &mut b] {
        end.tx.send(end.side.bytes(b"late")).post().unwrap();
        assert_eq!(end.ends(1, 0).0, [Is::WR_FLUSH_ERR]);
    }
}

#[test]
fn keys_bounds_and_rights_are_checked_at_the_target() {
    for case in 0..8 {
        let (a, b) = pair();
        let writable = b.side.pd.expose(64, Access::REMOTE_WRITE).unwrap();
        let readable = b.side.pd.readable(vec![1; 64]).unwrap();
        let (w, r) = (writable.remote(), readable.remote());
        let (remote, read) = match case {
            0 => (r, false),
            1 => (w, true),
            2 => (
                RemoteRegion {
                    rkey: RKey(w.rkey.0 ^ 0x5a),
                    ..w
                },
                false,
            ),
            3 => (
                RemoteRegion {
                    rkey: RKey(r.rkey.0 ^ 0x5a00),
                    ..r
                },
                true,
            ),
            4 => (
                RemoteRegion {
                    addr: w.addr + 61,
                    ..w
                },
                false,
            ),
            5 => (
                RemoteRegion {
                    addr: r.addr - 1,
                    ..r
                },
                true,
            ),
            6 => (
                RemoteRegion {
                    addr: u64::MAX - 1,
                    ..w
                },
                false,
            ),
            _ => {
                drop(readable);
                refused(a, b, r, true, Is::REM_ACCESS_ERR);
                continue;
            }
        };
        refused(a, b, remote, read, Is::REM_ACCESS_ERR);
        let mut now = [1; 64];
        writable.read_at(0, &mut now).unwrap();
        assert_eq!(now, [0; 64], "case {case}");
    }
}

#[test]
fn a_key_of_another_domain_is_no_key() {
    let (a, b) = pair();
    let other = b.side.ctx.alloc_pd().unwrap();
    let foreign = other.expose(64, Access::REMOTE_WRITE).unwrap();
    refused(a, b, foreign.remote(), false, Is::REM_ACCESS_ERR);
}

/// What the queue pair does not allow at all is an invalid request rather than a wrong access.
#[test]
fn what_the_queue_pair_does_not_allow_is_an_invalid_request() {
    for (access, read) in [(Access::REMOTE_READ, false), (Access::REMOTE_WRITE, true)] {
        let (a, b) = pair_with(|_, q| q.access(access));
        let shared = b
            .side
            .pd
            .expose(64, Access::REMOTE_WRITE | Access::REMOTE_READ)
            .unwrap();
        refused(a, b, shared.remote(), read, Is::REM_INV_REQ_ERR);
    }
}

/// InfiniBand Architecture Specification 1, chapter 11: a message longer than the receive is a local length error there, and the
/// sender is told that its request was invalid. Soft-RoCE takes the receive for a malformed work request.
#[test]
fn a_message_longer_than_its_receive_breaks_both_ends() {
    for (len, room) in [(5, 4), (3000, 2999), (3000, 1024), (3000, 1)] {
        let (mut a, mut b) = pair();
        b.post(&[room, 4000]);
        a.tx.send(a.side.bytes(&vec![7; len]))
            .signaled()
            .post()
            .unwrap();
        a.tx.send(a.side.bytes(b"late")).post().unwrap();
        let (here, there) = a.side.says(
            (Is::REM_INV_REQ_ERR, Is::LOC_LEN_ERR),
            (Is::REM_OP_ERR, Is::LOC_QP_OP_ERR),
        );
        assert_eq!(
            a.ends(2, 0).0,
            [here, Is::WR_FLUSH_ERR],
            "{len} into {room}"
        );
        assert_eq!(
            b.ends(0, 2).1,
            [there, Is::WR_FLUSH_ERR],
            "{len} into {room}"
        );
    }
}

/// InfiniBand Architecture Specification 1, chapter 11: a segment that its key does not cover is a local protection error.
/// Soft-RoCE takes it for a malformed work request.
/// The peer never hears of it.
#[test]
fn a_wrong_key_of_ones_own_is_found_when_sending() {
    let (mut a, mut b) = pair();
    let other = a.side.ctx.alloc_pd().unwrap();
    b.post(&[8, 8]);
    a.tx.send(a.side.bytes(b"good")).signaled().post().unwrap();
    a.tx.send(Parts(vec![other.register(vec![1; 4]).unwrap()]))
        .post()
        .unwrap();
    a.tx.send(a.side.bytes(b"late")).post().unwrap();
    let status = a.side.says(Is::LOC_PROT_ERR, Is::LOC_QP_OP_ERR);
    assert_eq!(a.ends(3, 0).0, [Is::SUCCESS, status, Is::WR_FLUSH_ERR]);
    assert_eq!(b.ends(0, 1).1, [Is::SUCCESS]);
    b.ends_idle(0, 1);
}

/// As above, for the memory that a READ is to fill.
#[test]
fn a_wrong_key_of_ones_own_is_found_when_reading() {
    let (mut a, mut b) = pair();
    let other = a.side.ctx.alloc_pd().unwrap();
    let readable = b.side.pd.readable(vec![1; 64]).unwrap();
    b.post(&[8]);
    a.tx.read(
        Parts(vec![other.register(vec![0; 4]).unwrap()]),
        readable.remote(),
    )
    .signaled()
    .post()
    .unwrap();
    a.tx.send(a.side.bytes(b"late")).post().unwrap();
    assert_eq!(a.ends(2, 0).0, [Is::LOC_PROT_ERR, Is::WR_FLUSH_ERR]);
    let _ = &mut b;
    b.ends_idle(0, 1);
}

/// As above, for the memory of a receive; the sender is told that the operation failed at its target.
#[test]
fn a_wrong_key_in_a_receive_breaks_both_ends() {
    let (mut a, mut b) = pair();
    let other = b.side.ctx.alloc_pd().unwrap();
    b.rx.post(Parts(vec![other.register(vec![0; 16]).unwrap()]))
        .unwrap();
    b.post(&[8]);
    a.tx.send(a.side.bytes(b"hello")).signaled().post().unwrap();
    let there = a.side.says(Is::LOC_PROT_ERR, Is::LOC_QP_OP_ERR);
    assert_eq!(a.ends(1, 0).0, [Is::REM_OP_ERR]);
    assert_eq!(b.ends(0, 2).1, [there, Is::WR_FLUSH_ERR]);
}

/// InfiniBand Architecture Specification 1, chapter 11: the receive that such a write would have used ends with a local access
/// error. Soft-RoCE calls it a remote one, and so does `soft0`.
#[test]
fn a_refused_write_with_immediate_data_is_told_to_its_receive() {
    let (mut a, mut b) = pair();
    b.post(&[8, 8]);
    let nowhere = RemoteRegion {
        addr: 4096,
        len: 4,
        rkey: RKey(1),
    };
    a.tx.write(a.side.bytes(b"evil"), nowhere)
        .imm(1)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().err(), Some(Is::REM_ACCESS_ERR));
    let there = match b.side.ctx.kind() {
        DeviceKind::Soft => Is::REM_ACCESS_ERR,
        DeviceKind::Hardware => b.side.says(Is::LOC_ACCESS_ERR, Is::REM_ACCESS_ERR),
    };
    assert_eq!(b.ends(0, 2).1, [there, Is::WR_FLUSH_ERR]);
}

#[test]
fn a_broken_connection_leaves_others_alone() {
    let (a, b) = pair();
    let (mut c, mut d) = pair();
    refused(
        a,
        b,
        RemoteRegion {
            addr: 4096,
            len: 4,
            rkey: RKey(1),
        },
        false,
        Is::REM_ACCESS_ERR,
    );
    works(&mut c, &mut d);
    works(&mut d, &mut c);
}
