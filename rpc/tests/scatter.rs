//! Replies into several buffers, and whatever else a body in several buffers is.

mod common;

use common::*;
use mempool::{Buf, Pool};
use rpc::{CallError, Client, Method};

/// Buffers of these lengths, full of a mark.
fn bufs(pool: &Pool, lens: &[usize]) -> Vec<Buf> {
    let marked = |len: &usize| {
        let mut buf = pool.alloc(*len).unwrap();
        buf.fill(0xEE);
        buf
    };
    lens.iter().map(marked).collect()
}

fn addresses(bufs: &[Buf]) -> Vec<*const u8> {
    bufs.iter().map(|buf| buf.as_ptr()).collect()
}

/// The reply is in them, and nothing else of them has been written.
fn check(bufs: &[Buf], lens: &[usize], len: usize) {
    assert!(bufs.iter().map(|buf| buf.len()).eq(lens.iter().copied()));
    let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
    let (head, tail) = all.split_at(len);
    assert!(head == pattern(len, 1), "{len} bytes in {lens:?}");
    assert!(tail.iter().all(|&b| b == 0xEE), "only the reply is written");
}

#[test]
fn a_reply_fills_one_buffer_after_the_other() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        let shapes: [&[usize]; 4] = [
            &[1 << 20],
            &[300_000, 1, 0, 4095, 700_000, 50_000],
            &[100, 1 << 20],
            &[65_536; 17],
        ];
        for lens in shapes {
            for len in [0, 10, 4096, 5000, 1 << 20] {
                let room = bufs(&pool, lens);
                let places = addresses(&room);
                let ask = (len as u64).to_le_bytes();
                let (reply, room) = client.call_into(SOURCE, ask, room, patient()).unwrap();
                assert_eq!(reply.len(), len);
                assert!(reply.bytes().is_empty() && reply.chunks().next().is_none());
                assert_eq!(addresses(&room), places);
                check(&room, lens, len);
            }
        }
        // Too few.
        let lens = [50usize, 49];
        for len in [100u64, 5000] {
            let room = bufs(&pool, &lens);
            let places = addresses(&room);
            match client.call_into(SOURCE, len.to_le_bytes(), room, patient()) {
                Err(CallError::ReplyTooLarge {
                    len: l,
                    room,
                    mut buffers,
                }) => {
                    assert_eq!((l, room), (len, 99));
                    assert!(buffers.take_destination().is_none(), "there are two");
                    assert_eq!(addresses(&buffers.take_destinations()), places);
                }
                other => panic!("{other:?}"),
            }
        }
        // None at all is room for nothing.
        let (reply, none) = client.call_into(SINK, "x", Vec::new(), patient()).unwrap();
        assert!(reply.is_empty() && none.is_empty());
    });
}

#[test]
fn several_buffers_go_with_whatever_takes_one() {
    over_all_paths(|| {
        let server = serve(server());
        let lens = [70_000usize, 30_001];
        let len = 100_000u64.to_le_bytes();
        let submitted = |client: &mut Client| {
            let room = bufs(&client.pool().clone(), &lens);
            let pending = client.submit_into(SOURCE, len, room, patient()).unwrap();
            let mut reply = pending.wait(client).unwrap();
            assert!(reply.take_destination().is_none(), "there are two");
            check(&reply.take_destinations(), &lens, 100_000);
        };
        let mut client = client(&server);
        submitted(&mut client);
        let room = bufs(&client.pool().clone(), &lens);
        let mut batch = client.batch();
        batch.add_into(SOURCE, len, room, patient()).unwrap();
        for pending in batch.post() {
            let mut reply = pending.wait(&mut client).unwrap();
            check(&reply.take_destinations(), &lens, 100_000);
        }
        let mut group = builder().connect_many(server.local_addr(), 2).unwrap();
        let room = bufs(&server_pool(), &lens);
        let (reply, room) = group.call_into(SOURCE, len, room, patient()).unwrap();
        assert_eq!(reply.len(), 100_000);
        check(&room, &lens, 100_000);
        // What was never sent comes back as it was given.
        drop((client, server));
        while !matches!(group.call(ECHO, (), patient()), Err(CallError::NotSent(_))) {}
        let room = bufs(&server_pool(), &lens);
        let places = addresses(&room);
        let back = match group.call_into(Method(1), len, room, patient()) {
            Err(CallError::NotSent(mut failed)) => failed.take_destinations(),
            other => panic!("{other:?}"),
        };
        assert_eq!(addresses(&back), places);
    });
}

fn server_pool() -> Pool {
    client_memory().2.clone()
}
