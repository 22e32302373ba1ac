//! Calls that nobody waits for: looked at now and then, taken when they are there, given up.

mod common;

use common::*;
use mempool::{BudgetKind, Pool};
use rpc::{CallError, Client, Deadline, Pending, Reply, ServerHandle};
use std::thread;

/// Answers `park` when something else comes, on whatever connection.
fn parking() -> ServerHandle {
    let serve = server().serve(|_core| {
        let mut parked = Vec::new();
        move |request: rpc::Request<'_>, responder: rpc::Responder| {
            if request.body().starts_with(b"park") {
                parked.push(responder);
            } else {
                for old in parked.drain(..) {
                    old.reply("late");
                }
                responder.reply("at once");
            }
        }
    });
    serve.expect("serve")
}

/// Looks until there is an outcome.
fn polled(mut call: Pending, client: &mut Client) -> Result<Reply, CallError> {
    loop {
        match call.try_take(client) {
            Ok(outcome) => return outcome,
            Err(same) => call = same,
        }
        thread::yield_now();
    }
}

/// Bytes of the user's that are in buffers.
fn live(pool: &Pool) -> u64 {
    pool.trim();
    let stats = pool.stats();
    let user = stats.budget(BudgetKind::User);
    user.in_use - user.stocked
}

#[test]
fn an_outcome_is_taken_when_it_is_there() {
    over_all_paths(|| {
        let server = parking();
        let mut client = client(&server);
        let mut parked = client.submit(ECHO, "park", patient()).unwrap();
        while server.stats().calls == 0 {
            parked = parked.try_take(&mut client).expect_err("nobody answered");
            assert!(!parked.is_ready(&mut client));
        }
        let other = client.submit(ECHO, "go", patient()).unwrap();
        assert_eq!(polled(other, &mut client).unwrap().bytes(), b"at once");
        assert_eq!(polled(parked, &mut client).unwrap().bytes(), b"late");
        // Large ones come in while they are looked at.
        let ask = (3u64 << 20).to_le_bytes();
        let server = serve(common::server());
        let mut client = common::client(&server);
        let large = client.submit(SOURCE, ask, patient()).unwrap();
        assert!(polled(large, &mut client).unwrap().bytes() == pattern(3 << 20, 1));
        let panicked = client.submit(PANIC, (), patient()).unwrap();
        match polled(panicked, &mut client) {
            Err(CallError::Remote { code, .. }) => assert_eq!(code, rpc::Code::PANICKED),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn time_passes_also_for_those_who_only_look() {
    over_all_paths(|| {
        let server = parking();
        let mut client = client(&server);
        let soon = Deadline::after_ms(20);
        let call = client.submit(ECHO, "park", soon).unwrap();
        match polled(call, &mut client) {
            Err(CallError::Expired) => assert!(soon.is_past()),
            other => panic!("{other:?}"),
        }
        let call = client.submit(ECHO, "park", Deadline::after_ms(20)).unwrap();
        while !call.is_ready(&mut client) {
            thread::yield_now();
        }
        assert!(matches!(call.wait(&mut client), Err(CallError::Expired)));
        assert_eq!(client.stats().expired, 2);
        let reply = client.call(ECHO, "go", patient()).unwrap();
        assert_eq!(reply.bytes(), b"at once");
    });
}

#[test]
fn who_only_looks_learns_that_the_server_has_gone() {
    over_all_paths(|| {
        let server = parking();
        let (mut first, mut second) = (client(&server), client(&server));
        let call = first.submit(ECHO, "park", Deadline::never()).unwrap();
        while server.stats().calls == 0 {
            thread::yield_now();
        }
        drop(server);
        match polled(call, &mut first) {
            Err(CallError::MaybeExecuted { .. }) => {}
            other => panic!("{other:?}"),
        }
        while second.lost().is_none() {
            second.poll();
        }
    });
}

#[test]
fn what_is_given_up_gives_back_its_slot_and_buffers() {
    over_all_paths(|| {
        let server = parking();
        let (mut client, mut other) = (client(&server), client(&server));
        let pool = client.pool().clone();
        let before = live(&pool);
        for _ in 0..3 {
            let calls: Vec<_> = (0..client.room())
                .map(|_| {
                    let mut body = pool.alloc_zeroed(20_000).unwrap();
                    body[..4].copy_from_slice(b"park");
                    client.submit(ECHO, body, patient()).unwrap()
                })
                .collect();
            for call in calls {
                assert!(call.cancel(&mut client).is_none());
            }
            // The slots return with the answers; without one, this would have to wait until its time is over.
            while client.room() == 0 {
                other.call(ECHO, "go", patient()).unwrap();
                client.poll();
            }
            let reply = client.call(ECHO, "go", patient()).unwrap();
            assert_eq!(reply.bytes(), b"at once");
        }
        while live(&pool) > before {
            other.call(ECHO, "go", patient()).unwrap();
            client.poll();
        }
        // What is there is not thrown away.
        let call = client.submit(ECHO, "go", patient()).unwrap();
        while !call.is_ready(&mut client) {
            thread::yield_now();
        }
        let reply = call.cancel(&mut client).expect("it was there").unwrap();
        assert_eq!(reply.bytes(), b"at once");
        assert!(client.lost().is_none());
    });
}
