//! Several connections as one: calls are spread, keys stick, and what happens when connections end.

mod common;

use common::*;
use mempool::sg;
use rpc::{
    CallError, Client, ClientGroup, Code, Deadline, Method, NotSentReason, Request, Responder,
    ServerHandle, Spread,
};
use std::collections::HashSet;

/// Replies with the core's number.
const CORE: Method = Method(100);
/// Is not answered.
const NEVER: Method = Method(101);

fn cores(count: usize) -> ServerHandle {
    server()
        .cores(count)
        .serve(|core| {
            let index = core.index() as u8;
            let mut other = handler(core.pool().clone());
            let mut held = Vec::new();
            move |request: Request<'_>, responder: Responder| match request.method() {
                CORE => responder.reply([index]),
                NEVER => held.push(responder),
                _ => other(request, responder),
            }
        })
        .unwrap()
}

fn group(server: &ServerHandle, count: usize) -> ClientGroup {
    let connect = builder().max_unanswered(0);
    connect.connect_many(server.local_addr(), count).unwrap()
}

fn core_of(group: &mut ClientGroup, key: Option<u64>) -> u8 {
    let reply = match key {
        Some(key) => group.call_keyed(key, CORE, (), patient()),
        None => group.call(CORE, (), patient()),
    };
    reply.unwrap().bytes()[0]
}

/// Ends one of the connections, by a call that is given up on.
fn end(group: &mut ClientGroup, index: usize) {
    let client = group.client(index);
    match client.call(NEVER, (), Deadline::after_ms(1)) {
        Err(CallError::Expired | CallError::NotSent(_)) => {}
        other => panic!("{other:?}"),
    }
    while client.lost().is_none() {
        let _ = client.call(NEVER, (), Deadline::after_ms(20));
    }
}

#[test]
fn calls_meet_all_cores_and_keys_stick() {
    over_all_paths(|| {
        let server = cores(4);
        let mut group = group(&server, 4);
        assert_eq!((group.len(), group.alive()), (4, 4));
        // In turn: any four calls meet four cores.
        for _ in 0..5 {
            let met: HashSet<u8> = (0..4).map(|_| core_of(&mut group, None)).collect();
            assert_eq!(met.len(), 4);
        }
        let homes: Vec<u8> = (0..64).map(|key| core_of(&mut group, Some(key))).collect();
        assert_eq!(homes.iter().collect::<HashSet<_>>().len(), 4);
        for (key, &home) in homes.iter().enumerate() {
            assert_eq!(core_of(&mut group, Some(key as u64)), home);
        }
        // Other kinds of calls.
        let pool = group.pool().clone();
        for len in [0, 64, 5000, 300_000] {
            let bytes = pattern(len, 1);
            let into = pool.alloc_zeroed(len).unwrap();
            let buf = pool.alloc_from_slice(&bytes).unwrap();
            let (mut reply, into) = group.call_into(TAKE, sg![buf], into, patient()).unwrap();
            assert!(into[..] == bytes);
            assert!(reply.take_segments().copy_to_vec() == bytes);
        }
        let stats = group.stats();
        assert_eq!((stats.calls, stats.failed), (20 + 128 + 4, 0));
        assert_eq!(server.stats().calls, stats.calls);
        assert!(stats.p50 <= stats.p99 && stats.p99 <= stats.max);
        match group.call(Method(999), (), patient()) {
            Err(CallError::Remote { code, .. }) => assert_eq!(code, Code::UNIMPLEMENTED),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn the_least_busy_is_picked() {
    bounded(|| {
        let server = cores(3);
        let mut group = group(&server, 3);
        group.set_spread(Spread::LeastPending);
        // One is out on the first, two on the second.
        let held: Vec<_> = [0, 1, 1]
            .into_iter()
            .map(|at| group.client(at).submit(NEVER, (), patient()).unwrap())
            .collect();
        for _ in 0..10 {
            let call = group.submit(CORE, (), patient()).unwrap();
            assert_eq!(call.connection(), 2);
            call.wait(&mut group).unwrap();
        }
        let own = group.submit(NEVER, (), patient()).unwrap();
        assert_eq!(own.connection(), 2);
        let picks: HashSet<usize> = (0..4)
            .map(|_| {
                let call = group.submit(CORE, (), patient()).unwrap();
                let at = call.connection();
                call.wait(&mut group).unwrap();
                at
            })
            .collect();
        assert_eq!(picks, HashSet::from([0, 2]), "equals take turns");
        drop((held, own));
    });
}

#[test]
fn connections_that_have_ended_are_passed_over() {
    over_all_paths(|| {
        let server = cores(4);
        let mut group = group(&server, 4);
        let home = |group: &ClientGroup, key: u64| group.for_key(key);
        let before: Vec<usize> = (0..100).map(|key| home(&group, key)).collect();
        end(&mut group, 1);
        assert_eq!(group.alive(), 3);
        for (key, &was) in before.iter().enumerate() {
            let now = home(&group, key as u64);
            assert!(now != 1);
            assert!(now == was || was == 1, "only the keys of the lost one move");
        }
        for _ in 0..20 {
            core_of(&mut group, None);
        }
        for key in 0..20 {
            core_of(&mut group, Some(key));
        }
        end(&mut group, 0);
        end(&mut group, 2);
        assert_eq!(group.alive(), 1);
        let last = core_of(&mut group, None);
        for key in 0..20 {
            assert_eq!(core_of(&mut group, Some(key)), last);
        }
    });
}

/// Connections whose end shows only when they are used: what they did not send goes to another, or comes back from the last.
#[test]
fn what_one_did_not_send_another_does() {
    bounded(|| {
        let (gone, there) = (cores(1), cores(1));
        let address = there.local_addr();
        // Two groups are mixed: the first connection of each pair is to a server that goes.
        let mut group = builder().connect_many(address, 2).unwrap();
        let old = builder().connect(gone.local_addr()).unwrap();
        *group.client(0) = old;
        gone.drain(patient());
        gone.join();
        let pool = group.pool().clone();
        // It has not looked, so it is picked. Its server says that it never started the request, which is the caller's to send again.
        let buf = pool.alloc_from_slice(&[5; 3000]).unwrap();
        let call = group.submit(ECHO, buf, patient());
        match call.and_then(|call| call.wait(&mut group)) {
            Ok(reply) => assert_eq!(reply.bytes(), [5; 3000]),
            Err(CallError::NotSent(failed)) => {
                assert!(matches!(failed.reason(), NotSentReason::Stopping));
                assert_eq!(failed.buffers().copy_to_vec(), [5; 3000]);
            }
            Err(error) => panic!("{error:?}"),
        }
        for _ in 0..4 {
            let buf = pool.alloc_from_slice(&[6; 3000]).unwrap();
            assert!(group.call(ECHO, buf, patient()).is_ok());
            assert!(group.call(ECHO, "plain", patient()).is_ok());
        }
        there.drain(patient());
        there.join();
        while group.client(1).lost().is_none() {
            group.poll();
        }
        assert_eq!(group.alive(), 0);
        let (buf, into) = (pool.alloc_zeroed(9).unwrap(), pool.alloc(8).unwrap());
        match group.call_into(ECHO, buf, into, patient()) {
            Err(CallError::NotSent(failed)) => {
                let (reason, segments, into) = failed.into_parts();
                assert!(matches!(reason, NotSentReason::Stopping), "{reason}");
                assert_eq!((segments.len(), into.unwrap().len()), (9, 8));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn pending_calls_belong_to_their_group() {
    bounded(|| {
        let server = cores(2);
        let (mut a, mut b) = (group(&server, 2), group(&server, 1));
        let call = a.submit(CORE, (), patient()).unwrap();
        while !call.is_ready(&mut a) {}
        match call.wait(&mut b) {
            Err(CallError::WrongClient) => {}
            other => panic!("{other:?}"),
        }
        let _ = a.submit(CORE, (), patient()).unwrap();
        let second = a.submit(CORE, (), patient()).unwrap();
        drop(Client::connect(server.local_addr()));
        assert!(second.wait(&mut a).is_ok());
        let mut call = a.submit(CORE, (), patient()).unwrap();
        let outcome = loop {
            match call.try_take(&mut a) {
                Ok(outcome) => break outcome,
                Err(same) => call = same,
            }
        };
        outcome.unwrap();
        let call = a.submit(CORE, (), patient()).unwrap();
        while !call.is_ready(&mut a) {}
        assert!(matches!(call.cancel(&mut a), Some(Ok(_))));
    });
}
