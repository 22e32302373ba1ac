//! The device refuses a request: it never left, and what was to leave comes back whole, so that it can leave by another connection.
//!
//! Faults are the whole process's, so this is alone in its file.

mod common;

use common::*;
use mempool::sg;
use rpc::{CallError, NotSentReason, Reconnect};
use softverbs::faults::{Fault, Verb, inject};

/// Gathered by the device, and READ by the server.
const LENGTHS: [usize; 2] = [3000, 200_000];

fn refused() -> softverbs::faults::Injected {
    inject(Fault::Verb {
        verb: Verb::PostSend,
        nth: 1,
        errno: libc::EIO,
    })
}

#[test]
fn what_never_left_comes_back_or_leaves_by_another_connection() {
    over_all_paths(|| {
        // Nobody has called: the next to be posted is the request.
        for len in LENGTHS {
            let server = serve(server());
            let mut client = client(&server);
            let (head, body, room) = {
                let pool = client.pool();
                let body = pool.alloc_from_slice(&pattern(len, 1)).unwrap();
                let head = pool.alloc_from_slice(b"head").unwrap();
                (head, body, pool.alloc(len + 4).unwrap())
            };
            let fault = refused();
            let called = client.call_into(ECHO, sg![head, body], room, patient());
            drop(fault);
            let Err(CallError::NotSent(failed)) = called else {
                panic!("{called:?}");
            };
            let (reason, segments, room) = failed.into_parts();
            assert!(matches!(reason, NotSentReason::Closed(_)), "{reason}");
            assert_eq!(segments.segment_count(), 2);
            let all = [&b"head"[..], &pattern(len, 1)].concat();
            assert!(segments.copy_to_vec() == all);
            assert_eq!(room.map(|room| room.len()), Some(len + 4));
            assert!(client.lost().is_some());

            // Of several connections, one is left.
            let mut group = builder().connect_many(server.local_addr(), 2).unwrap();
            let room = group.pool().alloc(len + 4).unwrap();
            let fault = refused();
            let (reply, room) = group
                .call_into(ECHO, segments, room, patient())
                .expect("by the other");
            drop(fault);
            assert_eq!((reply.len(), group.alive()), (len + 4, 1));
            assert!(room[..] == all);

            // Also where connections are made again: not while there are others.
            let connect = builder().reconnect(Reconnect::new());
            let mut group = connect.connect_many(server.local_addr(), 2).unwrap();
            let fault = refused();
            let reply = group.call(ECHO, "small", patient()).unwrap();
            drop(fault);
            assert_eq!((reply.bytes(), group.alive()), (&b"small"[..], 1));
            assert_eq!(
                (group.reconnect(patient()), group.stats().reconnects),
                (2, 1)
            );
        }
    });
}
