//! What is sent arrives, whatever its size and shape, and comes back.

mod common;

use common::*;
use mempool::{Buf, sg};
use rpc::{CallError, Client, Code, Deadline, Method, NotSentReason};

#[test]
fn every_size_comes_back() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let inline = client.inline_limit();
        let mut sizes = vec![0, 1, 2, 63, 64, 65, 100, 1000, 1024, 1025];
        sizes.extend([inline - 1, inline, inline + 1, 8191, 65_536, 65_537]);
        sizes.extend([256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 13]);
        for len in sizes {
            let bytes = pattern(len, len as u8);
            let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
            assert_eq!(reply.len(), len);
            assert!(reply.bytes() == bytes, "{len} bytes differ");
            assert_eq!(reply.head(), &bytes[..len.min(inline)]);
            let buf = reply.into_buf(client.pool()).unwrap();
            assert!(buf[..] == bytes);
        }
        let stats = client.stats();
        assert_eq!((stats.rnr, stats.failed), (0, 0));
        assert_eq!(server.stats().rnr, 0);
        assert!(stats.reads > 0 && server.stats().reads > 0);
        assert!(stats.p50 > std::time::Duration::ZERO && stats.p50 <= stats.p99);
        println!("{stats}\n{}", server.stats());
    });
}

#[test]
fn every_kind_of_payload() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        let long = pattern(10_000, 3);
        for (bytes, copied) in [(&b"abc"[..], true), (&long[..], false)] {
            let call = |client: &mut Client, reply: rpc::Reply| {
                assert!(reply.bytes() == bytes);
                let _ = client;
            };
            let r = client.call(ECHO, bytes, patient()).unwrap();
            call(&mut client, r);
            let r = client.call(ECHO, bytes.to_vec(), patient()).unwrap();
            call(&mut client, r);
            let buf = pool.alloc_from_slice(bytes).unwrap();
            let mut r = client.call(ECHO, buf, patient()).unwrap();
            let back: Vec<u8> = r.take_segments().copy_to_vec();
            assert!(back == bytes, "segments come back");
            call(&mut client, r);
            let shared = pool.alloc_from_slice(bytes).unwrap().freeze();
            let keep = shared.clone();
            let r = client.call(ECHO, shared, patient()).unwrap();
            call(&mut client, r);
            assert!(keep[..] == *bytes);
            let _ = copied;
        }
        assert_eq!(
            client.call(ECHO, "text", patient()).unwrap().bytes(),
            b"text"
        );
        assert_eq!(
            client.call(ECHO, b"arr", patient()).unwrap().bytes(),
            b"arr"
        );
        assert!(client.call(ECHO, (), patient()).unwrap().is_empty());
        let region = client_memory().1.register(pattern(5000, 4)).unwrap();
        let mut reply = client.call(ECHO, sg![region], patient()).unwrap();
        assert!(reply.bytes() == pattern(5000, 4));
        assert!(reply.take_segments().copy_to_vec() == pattern(5000, 4));
        assert!(client.stats().copies > 0, "a region cannot be leased");
    });
}

#[test]
fn segments_arrive_in_order_and_come_back() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        // Lengths of segments: all inline, mixed, all leased, empty ones, as many as there can be.
        let shapes: Vec<Vec<usize>> = vec![
            vec![3, 5, 7],
            vec![20, 40, 100_000],
            vec![100_000, 20, 40],
            vec![20, 100_000, 30, 200_000, 40, 5],
            vec![2000, 2000, 2000],
            vec![0, 10, 0, 70_000, 0],
            vec![1; 16],
            vec![5000; 16],
            vec![1000; 16],
            vec![1024, 1024, 1024, 1024, 1024, 1024],
        ];
        for shape in shapes {
            let mut list = mempool::SgList::new();
            let mut want = Vec::new();
            for (at, &len) in shape.iter().enumerate() {
                let bytes = pattern(len, at as u8);
                want.extend_from_slice(&bytes);
                let buf = pool.alloc_from_slice(&bytes).unwrap();
                if at % 2 == 0 {
                    list.push(buf).unwrap();
                } else {
                    list.push(buf.freeze()).unwrap();
                }
            }
            let mut reply = client.call(TAKE, list, patient()).unwrap();
            assert!(reply.bytes() == want, "{shape:?}");
            let back = reply.take_segments();
            let lens: Vec<usize> = back.segments().map(|s| s.as_slice().len()).collect();
            assert_eq!(lens, shape);
            assert!(back.copy_to_vec() == want, "{shape:?}");
        }
    });
}

#[test]
fn call_into_lands_in_the_buffer_itself() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        for len in [0u64, 10, 4096, 5000, 1 << 20] {
            let mut buf = pool.alloc((1 << 20) + 100).unwrap();
            buf.fill(0xEE);
            let place = buf.as_ptr();
            let ask = len.to_le_bytes();
            let (reply, buf) = client.call_into(SOURCE, ask, buf, patient()).unwrap();
            assert_eq!(reply.len() as u64, len);
            assert!(reply.bytes().is_empty());
            assert_eq!(buf.as_ptr(), place);
            let (head, tail) = buf.split_at(len as usize);
            assert!(head[..] == pattern(len as usize, 1));
            assert!(tail.iter().all(|&b| b == 0xEE), "only the reply is written");
        }
        for len in [10u64, 5000] {
            let buf = pool.alloc(9).unwrap();
            match client.call_into(SOURCE, len.to_le_bytes(), buf, patient()) {
                Err(CallError::ReplyTooLarge {
                    len: l,
                    room,
                    mut buffers,
                }) => {
                    assert_eq!((l, room), (len, 9));
                    assert_eq!(buffers.take_destination().map(|b| b.len()), Some(9));
                }
                other => panic!("{other:?}"),
            }
        }
        // The destination comes back with an error, too.
        let buf = pool.alloc(9).unwrap();
        match client.call_into(Method(999), "x", buf, patient()) {
            Err(CallError::Remote {
                code, mut buffers, ..
            }) => {
                assert_eq!(code, Code::UNIMPLEMENTED);
                assert!(buffers.take_destination().is_some());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.call(ECHO, "on", patient()).unwrap().bytes(), b"on");
    });
}

#[test]
fn sixty_four_megabytes_both_ways() {
    bounded(|| {
        let server = serve(server());
        let mut client = client(&server);
        let pool = client.pool().clone();
        let bytes = pattern(64 << 20, 9);
        let mut buf = pool.alloc(bytes.len()).unwrap();
        buf.copy_from_slice(&bytes);
        let reply = client.call(SUM, buf, patient()).unwrap();
        assert_eq!(reply.bytes(), sum(&bytes));
        let ask = (64u64 << 20).to_le_bytes();
        let call = client.submit(SOURCE, ask, patient()).unwrap();
        while !call.is_ready(&mut client) {}
        let reply = call.wait(&mut client).unwrap();
        assert!(reply.bytes() == pattern(64 << 20, 1));
        let reads = client.stats().reads;
        // Slices of 256 KiB, or twice as much while no other is out.
        let [least, most] = [512 << 10, 256 << 10].map(|len| (64u64 << 20) / longest(len));
        for reads in [reads, server.stats().reads] {
            assert!((least..=most).contains(&reads), "{reads} READs");
        }
        // Slices of 1 MiB, and of 512 KiB of what is less than 8 MiB, when there is nothing else to do.
        let reply = client.call(SOURCE, ask, patient()).unwrap();
        assert!(reply.bytes() == pattern(64 << 20, 1));
        let long = (57u64 << 20).div_ceil(longest(1 << 20));
        let rest = (7u64 << 20).div_ceil(longest(512 << 10));
        assert_eq!(client.stats().reads - reads, long + rest);
    });
}

/// How long a READ is that could be so long: it is answered with 256 packets at most, two together if that is not much.
fn longest(len: u64) -> u64 {
    let mtu = [memory(), client_memory()].map(|(context, ..)| context.port().mtu);
    let together = 256 * u64::from(mtu[0].min(mtu[1]).bytes());
    len.min(if together < 1 << 20 {
        together / 2
    } else {
        together
    })
}

/// Queues of the kernel, through which the packets of some devices go, do not take more at once.
#[test]
fn no_read_is_answered_with_more_packets_than_queues_take() {
    bounded(|| {
        let longest = longest(u64::MAX);
        let server = serve(server().read_slice(u32::MAX));
        let mut client = (builder().read_slice(u32::MAX))
            .connect(server.local_addr())
            .unwrap();
        let bytes = pattern(4 * longest as usize, 3);
        let buf = client.pool().alloc_from_slice(&bytes).unwrap();
        let reply = client.call(SUM, buf, patient()).unwrap();
        assert_eq!(reply.bytes(), sum(&bytes));
        assert_eq!(server.stats().reads, 4);
        let ask = (4 * longest).to_le_bytes();
        let reply = client.call(SOURCE, ask, patient()).unwrap();
        assert_eq!(reply.len() as u64, 4 * longest);
        assert_eq!(client.stats().reads, 4);
    });
}

/// Long slices are for clients that wait for their only call, also for those that are woken.
#[test]
fn who_sleeps_reads_as_much_at_once_as_who_spins() {
    over_all_paths(|| {
        let server = serve(server());
        let builder = builder().waiting(rpc::Waiting::SLEEP);
        let mut client = builder.connect(server.local_addr()).unwrap();
        for calls in 1..4 {
            let ask = (1u64 << 20).to_le_bytes();
            let reply = client.call(SOURCE, ask, patient()).unwrap();
            assert!(reply.bytes() == pattern(1 << 20, 1));
            let slices = (1u64 << 20).div_ceil(longest(512 << 10));
            assert_eq!(client.stats().reads, slices * calls, "of 512 KiB");
        }
    });
}

#[test]
fn pipelining_beyond_the_window() {
    over_all_paths(|| {
        let server = serve(server());
        let mut client = client(&server);
        // Many more than there are slots, none waited for until all are submitted.
        let mut pending = Vec::new();
        for n in 0..500u32 {
            let len = if n % 10 == 0 { 6000 } else { 4 };
            let mut bytes = pattern(len, n as u8);
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            pending.push((n, client.submit(ECHO, &bytes[..], patient()).unwrap()));
        }
        // In another order than they were sent in.
        while pending.len() > 1 {
            let at = (pending.len() * 7) % pending.len();
            let (n, p) = pending.swap_remove(at);
            let reply = p.wait(&mut client).unwrap();
            assert_eq!(reply.bytes()[..4], n.to_le_bytes());
        }
        let (_, last) = pending.pop().unwrap();
        assert!(client.poll() || last.is_ready(&mut client));
        last.wait(&mut client).unwrap();
        assert!(client.stats().credit_stalls > 0);
        assert_eq!(client.stats().rnr, 0);
    });
}

#[test]
fn a_pending_of_another_client_is_refused() {
    over_all_paths(|| {
        let server = serve(server());
        let (mut a, mut b) = (client(&server), client(&server));
        let pending = a.submit(ECHO, "a", patient()).unwrap();
        assert!(matches!(pending.wait(&mut b), Err(CallError::WrongClient)));
        assert_eq!(a.call(ECHO, "b", patient()).unwrap().bytes(), b"b");
        // Dropping is allowed, also of more than there are slots.
        for _ in 0..200 {
            drop(a.submit(ECHO, &pattern(5000, 0)[..], patient()).unwrap());
        }
        assert_eq!(a.call(ECHO, "c", patient()).unwrap().bytes(), b"c");
    });
}

#[test]
fn head_is_the_inline_limit_at_most() {
    over_all_paths(|| {
        let server = serve(server().inline_limit(1000));
        let mut client = client(&server);
        assert_eq!(client.inline_limit(), 1000);
        for len in [0usize, 999, 1000, 1001, 100_000] {
            let reply = client.call(HEAD, pattern(len, 0), patient()).unwrap();
            let want = (len.min(1000) as u64).to_le_bytes();
            assert_eq!(reply.bytes(), want);
        }
    });
}

#[test]
fn what_is_too_large_is_not_sent() {
    over_all_paths(|| {
        let server = serve(server().max_message(100_000));
        let mut client = client(&server);
        let buf: Buf = client.pool().alloc(100_001).unwrap();
        match client.call(SINK, buf, patient()) {
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(
                    failed.reason(),
                    NotSentReason::TooLarge {
                        len: 100_001,
                        most: 100_000
                    }
                ));
                assert_eq!(failed.buffers().len(), 100_001);
            }
            other => panic!("{other:?}"),
        }
        match client.call(SOURCE, 100_001u64.to_le_bytes(), patient()) {
            Err(CallError::Remote { code, .. }) => assert_eq!(code, Code::TOO_LARGE),
            other => panic!("{other:?}"),
        }
        let past = Deadline::after_ms(0);
        match client.call(SINK, "x", past) {
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(failed.reason(), NotSentReason::Deadline));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn both_ends_prefer_rings() {
    bounded(|| {
        let server = serve(server());
        let (_, pd, pool) = memory();
        let mut client = Client::builder()
            .pool(pd, pool)
            .connect(server.local_addr())
            .unwrap();
        assert_eq!(client.paths(), Some(PATHS[0]));
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
    });
}

/// Every length goes through every place of the smallest rings, again and again; on slow machines, where this would be most of all there is, once.
#[test]
fn every_length_in_the_smallest_rings() {
    over_all_paths(|| {
        let server = serve(server().ring_size(1).inline_limit(700));
        let mut client = builder().ring_size(1).connect(server.local_addr()).unwrap();
        assert_eq!(client.inline_limit(), 700);
        let mut pending = std::collections::VecDeque::new();
        let calls: usize = if slowness() > 1 { 1500 } else { 6000 };
        for n in 0..calls {
            let bytes = pattern((n * 37) % 1400, n as u8);
            if n % 50 == 49 {
                // Quiet for a moment: what is owed is not asked for.
                while let Some((want, p)) = pending.pop_front() {
                    let p: rpc::Pending = p;
                    assert!(p.wait(&mut client).unwrap().bytes() == want);
                }
            }
            let p = client.submit(ECHO, &bytes[..], patient()).unwrap();
            pending.push_back((bytes, p));
        }
        for (want, p) in pending {
            assert!(p.wait(&mut client).unwrap().bytes() == want);
        }
        assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
    });
}
