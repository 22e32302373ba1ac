//! Messages: lengths around the packet size, segments, immediate data.

use super::ends::{Parts, pair, pair_with, works};
use verbatim_tests::pattern;
use verbs::ReceivedBy;

/// Around the MTU of 1024 bytes that Soft-RoCE has on an Ethernet of 1500, and of 4096 that `soft0` has.
pub const LENS: [usize; 14] = [
    1, 2, 3, 4, 5, 1023, 1024, 1025, 2047, 2048, 4095, 4096, 4097, 100_001,
];

#[test]
fn every_length_arrives_whole_and_nothing_beyond_it_is_touched() {
    let (mut a, mut b) = pair();
    for (i, len) in LENS.into_iter().enumerate() {
        b.post(&[len + 3]);
        let sent = pattern(len, i as u64);
        a.tx.send(a.side.bytes(&sent)).signaled().post().unwrap();
        let message = b.received().unwrap();
        assert_eq!(
            (message.byte_len() as usize, message.imm(), message.by()),
            (len, None, ReceivedBy::Send)
        );
        let room = message.into_inner().concat();
        assert_eq!(room[..len], sent, "{len}");
        assert_eq!(room[len..], [0xee; 3], "{len}");
        a.sent().unwrap();
    }
}

#[test]
fn segments_of_odd_lengths_are_gathered_and_scattered() {
    let (mut a, mut b) = pair();
    let sent = pattern(3 * 1024 + 17, 1);
    let cuts = [0, 1, 2, 1000, 1024, 1025, 3000, sent.len()];
    let parts: Vec<_> = cuts.windows(2).map(|cut| &sent[cut[0]..cut[1]]).collect();
    b.rx.post(b.side.room(&[7, 1024, 1, sent.len()])).unwrap();
    a.tx.send(a.side.parts(&parts)).signaled().post().unwrap();
    let message = b.received().unwrap();
    assert_eq!(message.byte_len() as usize, sent.len());
    assert_eq!(message.into_inner().concat()[..sent.len()], sent);
    a.sent().unwrap();
}

#[test]
fn a_receive_may_be_filled_exactly() {
    let (mut a, mut b) = pair();
    for len in LENS {
        b.post(&[len]);
        a.tx.send(a.side.bytes(&vec![9; len]))
            .signaled()
            .post()
            .unwrap();
        assert_eq!(b.received().unwrap().into_inner().concat(), vec![9; len]);
        a.sent().unwrap();
    }
}

#[test]
fn immediate_data_comes_with_and_without_bytes() {
    let (mut a, mut b) = pair();
    b.post(&[16, 16]);
    a.tx.send(a.side.bytes(b"bytes"))
        .imm(0x0102_0304)
        .signaled()
        .post()
        .unwrap();
    let message = b.received().unwrap();
    assert_eq!(
        (message.imm(), message.byte_len(), message.by()),
        (Some(0x0102_0304), 5, ReceivedBy::Send)
    );
    a.sent().unwrap();
    a.tx.send(Parts(Vec::new()))
        .imm(u32::MAX)
        .signaled()
        .post()
        .unwrap();
    let message = b.received().unwrap();
    assert_eq!((message.imm(), message.byte_len()), (Some(u32::MAX), 0));
    assert_eq!(message.into_inner().concat(), [0xee; 16]);
    a.sent().unwrap();
}

#[test]
fn a_receive_without_segments_takes_an_empty_message() {
    let (mut a, mut b) = pair();
    b.rx.post(Parts(Vec::new())).unwrap();
    a.tx.send(Parts(Vec::new()))
        .imm(7)
        .signaled()
        .post()
        .unwrap();
    let message = b.received().unwrap();
    assert_eq!((message.imm(), message.byte_len()), (Some(7), 0));
    a.sent().unwrap();
}

#[test]
fn inline_bytes_are_taken_when_posting() {
    let (mut a, mut b) = pair_with(|_, q| q.max_inline(200));
    b.post(&[256]);
    let sent = pattern(200, 5);
    a.tx.send(a.side.parts(&[&sent[..50], &sent[50..]]))
        .inline()
        .signaled()
        .post()
        .unwrap();
    let message = b.received().unwrap();
    assert_eq!(message.byte_len(), 200);
    assert_eq!(message.into_inner().concat()[..200], sent);
    a.sent().unwrap();
}

#[test]
fn unsignalled_work_is_silent_and_done_before_the_signalled() {
    let (mut a, mut b) = pair();
    b.post(&[8; 10]);
    for i in 0..9 {
        a.tx.send(a.side.bytes(&[i])).post().unwrap();
    }
    a.tx.send(a.side.bytes(&[9])).signaled().post().unwrap();
    let completion = a.completion();
    let mut done = a.tx.retire(completion).unwrap();
    for i in 0..10 {
        let (parts, result) = a.tx.take(&mut done).unwrap();
        assert_eq!(parts.concat(), [i]);
        assert_eq!(result.unwrap().signaled(), i == 9);
    }
    for i in 0..10 {
        assert_eq!(b.received().unwrap().into_inner().concat()[0], i);
    }
    works(&mut b, &mut a);
}

/// Both directions at once, with more under way than the queues hold.
#[test]
fn streams_in_both_directions_keep_their_order() {
    const COUNT: u32 = 400;
    let (mut a, mut b) = pair_with(|_, q| q.send_depth(8).recv_depth(16));
    a.post(&[4; 16]);
    b.post(&[4; 16]);
    let (mut posted, mut arrived) = ([0u32; 2], [0u32; 2]);
    while arrived != [COUNT; 2] {
        for (i, end) in [&mut a, &mut b].into_iter().enumerate() {
            while posted[i] < COUNT && end.tx.free_slots() > 0 {
                let message = end.side.bytes(&posted[i].to_le_bytes());
                end.tx.send(message).signaled().post().unwrap();
                posted[i] += 1;
            }
            while let Some(completion) = end.cq.poll().unwrap() {
                if completion.queue() == end.tx.id() {
                    let mut done = end.tx.retire(completion).unwrap();
                    end.tx.take(&mut done).unwrap().1.unwrap();
                    continue;
                }
                let message = end.rx.redeem(completion).unwrap().unwrap();
                let room = message.into_inner();
                assert_eq!(room.concat(), arrived[i].to_le_bytes());
                arrived[i] += 1;
                end.rx.post(room).unwrap();
            }
        }
    }
}
