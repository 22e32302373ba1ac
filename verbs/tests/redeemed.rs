//! What comes back of a send queue, all at once.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Access, RKey, RemoteRegion, WcStatus};

/// One end and what belongs to it: the other, memory that can be written and read, and a key that is nobody's.
struct Linked {
    a: End,
    _b: End,
    pd: verbs::Pd,
    shared: verbs::Exposed,
    bad: RemoteRegion,
}

fn linked() -> Linked {
    let pd = device().alloc_pd().unwrap();
    let (a, _b) = pair(&pd);
    let shared = pd
        .expose(8, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let bad = RemoteRegion {
        rkey: RKey(0xbad),
        ..shared.remote()
    };
    Linked {
        a,
        _b,
        pd,
        shared,
        bad,
    }
}

#[test]
fn older_work_comes_first_and_the_last_has_the_completion() {
    let Linked {
        mut a,
        _b,
        pd,
        shared,
        ..
    } = linked();
    for round in 0..40u8 {
        for n in 0..3 {
            a.tx.write(buf(&pd, &[round, n]), shared.remote())
                .post()
                .unwrap();
        }
        a.tx.read(room(&pd, 5), shared.remote())
            .signaled()
            .post()
            .unwrap();
        let wc = next(&mut a.cq);
        let all: Vec<_> = a.tx.redeem(wc).unwrap().collect();
        assert_eq!(all.len(), 4);
        for (n, (bytes, result)) in all.into_iter().enumerate() {
            let wc = result.unwrap();
            let last = n == 3;
            assert_eq!((wc.signaled(), wc.byte_len()), (last, 5 * u32::from(last)));
            assert_eq!(bytes[..2], [round, if last { 2 } else { n as u8 }]);
        }
        assert_eq!(a.tx.free_slots(), a.tx.depth());
    }
}

#[test]
fn what_is_not_taken_stays_and_comes_with_the_next() {
    let Linked {
        mut a,
        _b,
        pd,
        shared,
        ..
    } = linked();
    let mut posted = 0;
    let mut post = |a: &mut End, signaled: bool| {
        posted += 1;
        let wr = a.tx.write(buf(&pd, &[posted]), shared.remote());
        if signaled { wr.signaled() } else { wr }.post().unwrap();
    };
    post(&mut a, false);
    post(&mut a, false);
    post(&mut a, true);
    let wc = next(&mut a.cq);
    let first = a.tx.redeem(wc).unwrap().next().unwrap().0;
    assert_eq!(first[0], 1);
    assert_eq!(a.tx.free_slots(), a.tx.depth() - 2);
    post(&mut a, true);
    let wc = next(&mut a.cq);
    let mut redeemed = a.tx.redeem(wc).unwrap();
    assert_eq!(redeemed.next().unwrap().0[0], 2);
    post(&mut a, true);
    let wc = next(&mut a.cq);
    let mut done = a.tx.retire(wc).unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| a.tx.take(&mut done)).collect();
    let rest: Vec<_> = rest.iter().map(|(b, r)| (b[0], r.is_ok())).collect();
    assert_eq!(rest, [(3, true), (4, true), (5, true)]);
    assert_eq!(a.tx.free_slots(), a.tx.depth());
}

#[test]
fn failures_are_those_of_their_work() {
    let Linked {
        mut a,
        _b,
        pd,
        shared,
        bad,
    } = linked();
    a.tx.write(buf(&pd, b"1"), shared.remote()).post().unwrap();
    a.tx.write(buf(&pd, b"2"), bad).post().unwrap();
    a.tx.write(buf(&pd, b"3"), shared.remote()).post().unwrap();
    let mut all = Vec::new();
    while all.len() < 3 {
        let wc = next(&mut a.cq);
        let redeemed = a.tx.redeem(wc).unwrap();
        all.extend(redeemed.map(|(b, r)| (b[0], r.map(|_| ()).map_err(|e| e.status))));
    }
    let want = [
        (b'1', Ok(())),
        (b'2', Err(WcStatus::REM_ACCESS_ERR)),
        (b'3', Err(WcStatus::WR_FLUSH_ERR)),
    ];
    assert_eq!(all, want);
}

#[test]
fn a_completion_of_another_queue_or_a_late_one_comes_back() {
    let Linked {
        mut a,
        _b,
        pd,
        shared,
        ..
    } = linked();
    let mut c = linked().a;
    for _ in 0..2 {
        a.tx.write(buf(&pd, b"x"), shared.remote())
            .signaled()
            .post()
            .unwrap();
    }
    let (early, late) = (next(&mut a.cq), next(&mut a.cq));
    let late = c.tx.redeem(late).unwrap_err().into_completion();
    assert_eq!(late.queue(), a.tx.id());
    assert_eq!(a.tx.redeem(late).unwrap().count(), 2);
    let early = a.tx.redeem(early).unwrap_err().into_completion();
    assert!(a.tx.retire(early).is_err());
}
