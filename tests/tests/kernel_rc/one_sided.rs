//! WRITE and READ.

use super::ends::{End, Parts, pair, pair_with, works};
use super::messages::LENS;
use verbatim_tests::{is_pattern, pattern, until};
use verbs::{Access, Completion, RKey, ReceivedBy, RemoteRegion};

#[test]
fn writes_and_reads_of_every_length_touch_what_they_name() {
    let (mut a, b) = pair();
    let shared = b
        .side
        .pd
        .expose(1 << 17, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    for len in LENS {
        shared.write_at(0, &vec![0xee; 1 << 17]).unwrap();
        let target = shared.remote().slice(5..5 + len as u64).unwrap();
        a.tx.write(a.side.bytes(&pattern(len, 3)), target)
            .signaled()
            .post()
            .unwrap();
        a.sent().unwrap();
        let mut now = vec![0; len + 10];
        shared.read_at(0, &mut now).unwrap();
        assert!(is_pattern(&now[5..5 + len], 3), "{len}");
        assert!(
            now[..5].iter().chain(&now[5 + len..]).all(|&b| b == 0xee),
            "{len}"
        );

        let source = shared.remote().slice(4..).unwrap();
        a.tx.read(a.side.room(&[len + 2]), source)
            .signaled()
            .post()
            .unwrap();
        assert_eq!(a.sent().unwrap().concat(), now[4..len + 6], "{len}");
    }
}

#[test]
fn a_write_is_gathered_and_a_read_is_scattered() {
    let (mut a, b) = pair();
    let shared = b
        .side
        .pd
        .expose(8192, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let data = pattern(5000, 8);
    let parts = [&data[..1], &data[1..1024], &data[1024..3000], &data[3000..]];
    a.tx.write(a.side.parts(&parts), shared.remote())
        .signaled()
        .post()
        .unwrap();
    a.sent().unwrap();
    a.tx.read(a.side.room(&[3, 1021, 1, 3975]), shared.remote())
        .signaled()
        .post()
        .unwrap();
    assert!(is_pattern(&a.sent().unwrap().concat(), 8));
}

#[test]
fn a_write_with_immediate_data_takes_a_receive_and_leaves_it_untouched() {
    let (mut a, mut b) = pair();
    let shared = b.side.pd.expose(8192, Access::REMOTE_WRITE).unwrap();
    for len in [0, 1, 1024, 5000] {
        b.post(&[8]);
        let data = if len == 0 {
            Parts(Vec::new())
        } else {
            a.side.bytes(&pattern(len, 2))
        };
        a.tx.write(data, shared.remote())
            .imm(len as u32)
            .signaled()
            .post()
            .unwrap();
        let message = b.received().unwrap();
        assert_eq!(
            (message.by(), message.imm()),
            (ReceivedBy::WriteWithImm, Some(len as u32))
        );
        assert_eq!(message.byte_len() as usize, len, "the length written");
        assert_eq!(message.into_inner().concat(), [0xee; 8]);
        let mut now = vec![0; len];
        shared.read_at(0, &mut now).unwrap();
        assert!(is_pattern(&now, 2));
        a.sent().unwrap();
    }
}

/// InfiniBand Architecture Specification 1, C9-88: the key of a request without bytes is not checked.
#[test]
fn without_bytes_no_key_is_looked_at() {
    let (mut a, mut b) = pair();
    let nowhere = RemoteRegion {
        addr: 0xdead_0000,
        len: 0,
        rkey: RKey(0x1234_5678),
    };
    b.post(&[8]);
    a.tx.write(Parts(Vec::new()), nowhere)
        .signaled()
        .post()
        .unwrap();
    a.sent().unwrap();
    a.tx.read(Parts(Vec::new()), nowhere)
        .signaled()
        .post()
        .unwrap();
    a.sent().unwrap();
    a.tx.write(Parts(Vec::new()), nowhere)
        .imm(1)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(b.received().unwrap().imm(), Some(1));
    a.sent().unwrap();
    works(&mut a, &mut b);
}

#[test]
fn many_reads_at_once_come_back_in_order() {
    // More than can be outstanding.
    let (mut a, b) = pair_with(|_, q| q.rd_atomic(2).send_depth(32));
    let readable = b.side.pd.readable(pattern(32 * 2000, 4)).unwrap();
    for i in 0..32 {
        let source = readable.remote().slice(i * 2000..(i + 1) * 2000).unwrap();
        a.tx.read(a.side.room(&[2000]), source)
            .signaled()
            .post()
            .unwrap();
    }
    let all: Vec<_> = (0..32).flat_map(|_| a.sent().unwrap().concat()).collect();
    assert!(is_pattern(&all, 4));
}

#[test]
fn a_fenced_write_waits_for_the_read_before_it() {
    let (mut a, b) = pair();
    let shared = b
        .side
        .pd
        .expose(50_000, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    for _ in 0..20 {
        shared.write_at(0, &[1; 50_000]).unwrap();
        a.tx.read(a.side.room(&[50_000]), shared.remote())
            .post()
            .unwrap();
        a.tx.write(a.side.bytes(&[2; 50_000]), shared.remote())
            .fence()
            .signaled()
            .post()
            .unwrap();
        let (completion, nudges) = fenced(&mut a, shared.remote());
        let mut done = a.tx.retire(completion).unwrap();
        assert!(
            a.tx.take(&mut done)
                .unwrap()
                .0
                .concat()
                .iter()
                .all(|&b| b == 1)
        );
        a.tx.take(&mut done).unwrap().1.unwrap();
        for _ in 0..nudges {
            a.sent().unwrap();
        }
    }
}

/// The completion of a fenced request, and how many requests had to be posted behind it.
///
/// Soft-RoCE looks whether the READ is done, and only then notes that a request waits for it. If the READ ends
/// in between, nobody looks again until something else is posted.
fn fenced(a: &mut End, shared: RemoteRegion) -> (Completion, u32) {
    let patience = a.side.says(u32::MAX, 10_000);
    let (mut polls, mut nudges) = (0, 0);
    let completion = until("a fenced request is done", || {
        polls += 1;
        if polls % patience == 0 && nudges < 100 {
            nudges += 1;
            a.tx.write(Parts(Vec::new()), shared.slice(0..0).unwrap())
                .signaled()
                .post()
                .unwrap();
        }
        a.cq.poll().unwrap()
    });
    (completion, nudges)
}

/// A message is seen only when everything written before it can be seen.
#[test]
fn what_was_written_is_there_when_the_next_message_arrives() {
    let (mut a, mut b) = pair();
    let shared = b.side.pd.expose(10_000, Access::REMOTE_WRITE).unwrap();
    for round in 0..50 {
        b.post(&[1]);
        a.tx.write(a.side.bytes(&[round; 10_000]), shared.remote())
            .post()
            .unwrap();
        a.tx.send(a.side.bytes(&[round])).signaled().post().unwrap();
        let _ = b.received().unwrap();
        let mut now = vec![0; 10_000];
        shared.read_at(0, &mut now).unwrap();
        assert!(now.iter().all(|&b| b == round));
        let completion = a.completion();
        let mut done = a.tx.retire(completion).unwrap();
        while a.tx.take(&mut done).is_some() {}
    }
}

#[test]
fn the_last_byte_written_is_the_last_to_be_seen() {
    let (mut a, b) = pair();
    let shared = b.side.pd.expose(8192, Access::REMOTE_WRITE).unwrap();
    for round in 1..=50u64 {
        let mut data = vec![round as u8; 8192];
        data[8184..].copy_from_slice(&round.to_ne_bytes());
        a.tx.write(a.side.bytes(&data), shared.remote())
            .signaled()
            .post()
            .unwrap();
        let last = shared.atomic_u64(8184).unwrap();
        until("the last word arrives", || {
            (last.load(std::sync::atomic::Ordering::Acquire) == round).then_some(())
        });
        let mut now = vec![0; 8184];
        shared.read_at(0, &mut now).unwrap();
        assert_eq!(now, data[..8184]);
        a.sent().unwrap();
    }
}
