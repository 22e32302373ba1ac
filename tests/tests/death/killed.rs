//! Killed peers, servers and clients.

use mempool::BudgetKind;
use rpc::{CallError, Deadline, Reconnect};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verbatim_tests::{Block, Link, Side, is_pattern, pattern, second_process, until};
use verbs::{Device, Endpoint, WcStatus};

use crate::part::{CHECK, ECHO, HOLD, Host, LONG, MAKE, PATHS, SEED, patient};
use crate::party::{BOUND, Party, start, within};

/// Work that waits for a peer fails when the peer is killed, whether its owner polls or sleeps meanwhile; the memory comes back.
#[test]
fn work_for_a_killed_peer_fails() {
    for asleep in [false, true] {
        let mut peer = match second_process("killed::work_for_a_killed_peer_fails") {
            Side::Child(mut control) => {
                // No receive is posted, so messages wait.
                let _link: Link = Link::new(&mut control, 8);
                control.send("ready");
                control.expect("never sent: this process is killed here");
                return;
            }
            Side::Parent(peer) => peer,
        };
        let ctx = Device::open_spec("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let mut cq = ctx
            .cq(128)
            .channel(&ctx.channel().unwrap())
            .build()
            .unwrap();
        // Silence is to say nothing: only death may end the wait.
        let ready = pd.rc(&cq).timeout(0).rnr_retry(7).build().unwrap();
        peer.control.send(ready.endpoint().to_bytes());
        let theirs = Endpoint::from_bytes(&peer.control.receive()).unwrap();
        let (mut tx, _rx) = ready.connect::<Block, Block>(&theirs).unwrap();
        peer.control.send("connected");
        peer.control.expect("connected");
        peer.control.expect("ready");
        for i in 0..3u64 {
            let message = pd.register(pattern(4096, i)).unwrap();
            tx.send(message).signaled().post().unwrap();
        }
        assert!(cq.poll().unwrap().is_none());

        let begin = Instant::now();
        peer.kill();
        for i in 0..3u64 {
            let completion = until("work fails", || {
                if asleep {
                    cq.wait(Some(BOUND)).unwrap();
                }
                cq.poll().unwrap()
            });
            let status = completion.status();
            let expected = match i {
                0 => WcStatus::RETRY_EXC_ERR,
                _ => WcStatus::WR_FLUSH_ERR,
            };
            assert_eq!(status, expected, "asleep: {asleep}");
            let mut done = tx.retire(completion).unwrap();
            let (message, result) = tx.take(&mut done).unwrap();
            assert!(result.is_err());
            assert!(is_pattern(&message, i), "the buffer comes back as it was");
        }
        let took = begin.elapsed();
        assert!(took < BOUND, "{took:?}");
        println!("work for a killed peer failed after {took:?}, asleep: {asleep}");
    }
}

/// Every call that waits for an answer of a killed server ends with an error that says what may have happened, and everything
/// that calls had taken is free again.
#[test]
fn a_killed_server_ends_every_pending_call() {
    for (path, paths) in PATHS.into_iter().enumerate() {
        let Some(mut server) = start("killed::a_killed_server_ends_every_pending_call") else {
            return;
        };
        let address = server.ask("serve");
        let host = Host::new();
        let mut client = host.client(path).connect(&address[..]).unwrap();
        assert_eq!(
            client
                .call(ECHO, "there", Deadline::never())
                .unwrap()
                .bytes(),
            b"there"
        );

        let mut held = Vec::new();
        let mut answered = Vec::new();
        let never = Deadline::never();
        for i in 0..client.slots() {
            match i % 4 {
                0 => held.push(client.submit(HOLD, pattern(64, SEED), never)),
                1 => held.push(client.submit(HOLD, host.long(), never)),
                2 => {
                    let room = host.pool.alloc_zeroed(LONG).unwrap();
                    answered.push(client.submit_into(MAKE, LONG.to_le_bytes(), room, never));
                }
                _ => answered.push(client.submit(CHECK, pattern(4000, SEED), never)),
            }
        }
        let count = held.len() + answered.len();
        let begin = server.kill();
        for call in held {
            let error = call.unwrap().wait(&mut client).unwrap_err();
            assert!(
                matches!(error, CallError::MaybeExecuted { .. }),
                "{error:?}"
            );
        }
        for call in answered {
            match call.unwrap().wait(&mut client) {
                // It was there before the end: then it is whole.
                Ok(mut reply) => match reply.take_destination() {
                    Some(room) => assert!(is_pattern(&room, SEED)),
                    None => assert_eq!(reply.bytes(), 4000u64.to_le_bytes()),
                },
                Err(CallError::MaybeExecuted { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        let took = begin.elapsed();
        assert!(took < BOUND, "{took:?}");
        println!("{count} calls ended {took:?} after the kill, {:?}", paths);

        let buf = host.pool.alloc_from_slice(b"mine").unwrap();
        match client.call(ECHO, buf, never).unwrap_err() {
            CallError::NotSent(failed) => assert_eq!(failed.buffers().copy_to_vec(), b"mine"),
            error => panic!("{error:?}"),
        }
        assert!(client.lost().is_some());
        drop(client);
        assert_eq!(host.live(), [0; BudgetKind::ALL.len()], "{:?}", paths);
    }
}

/// A client that connects again does so to another process at the same address, and makes its idempotent call again.
#[test]
fn a_killed_server_is_followed_by_another() {
    const NAME: &str = "killed::a_killed_server_is_followed_by_another";
    for (path, paths) in PATHS.into_iter().enumerate() {
        let Some(mut server) = start(NAME) else {
            return;
        };
        // Started by this thread, since processes end with the thread that started them.
        let mut next = start(NAME).unwrap();
        let address = server.ask("serve");
        let host = Host::new();
        let policy = Reconnect::new().first_pause(Duration::from_millis(1));
        let client = host.client(path).reconnect(policy);
        let mut client = client.connect(&address[..]).unwrap();
        let begun = AtomicBool::new(false);
        let begin = std::thread::scope(|scope| {
            let followed = scope.spawn(|| {
                while !begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let begin = server.kill();
                assert_eq!(next.ask(format!("serve {address}")), address);
                (next, begin)
            });
            for i in 0u64.. {
                let bytes = pattern(if i % 8 == 0 { LONG } else { 100 }, i);
                let call = client.call_idempotent(ECHO, &bytes[..], patient());
                assert!(call.unwrap().bytes() == bytes);
                begun.store(i > 20, Ordering::Relaxed);
                if client.stats().reconnects > 0 {
                    break;
                }
            }
            let (next, begin) = followed.join().unwrap();
            next.finish();
            begin
        });
        println!("went on {:?} after the kill, {paths:?}", begin.elapsed());
        drop(client);
        assert_eq!(host.live(), [0; BudgetKind::ALL.len()], "{paths:?}");
    }
}

/// Clients are killed with calls of all kinds under way. The server has nothing of theirs afterwards, down to descriptors and
/// mappings, and another client's calls go on meanwhile.
#[test]
fn killed_clients_leave_nothing_in_the_server() {
    const NAME: &str = "killed::killed_clients_leave_nothing_in_the_server";
    let Some(mut server) = start(NAME) else {
        return;
    };
    let address = server.ask("serve");
    try_all(&mut server, &address);
    let before = server.ask("count");
    for _ in 0..3 {
        let mut other = start(NAME).unwrap();
        other.ask(format!("connect {address} 0"));
        let mut clients: Vec<Party> = Vec::new();
        for path in 0..PATHS.len() {
            let mut client = start(NAME).unwrap();
            client.ask(format!("connect {address} {path}"));
            assert_eq!(client.ask("storm"), "storming");
            clients.push(client);
        }
        let during = server.ask("count");
        let open = format!("connections {} ", PATHS.len() + 1);
        assert!(during.starts_with(&open), "{during}");
        other.tell("echo 500");
        let mut last = Instant::now();
        for client in &mut clients {
            last = client.kill();
        }
        let closed = within(last, "the connections of killed clients are closed", || {
            server.ask("count").starts_with("connections 1 ")
        });
        let longest: u64 = other.answer().parse().unwrap();
        assert!(Duration::from_micros(longest) < BOUND);
        // Headers of messages stay until a later one completes, so the last connection goes before the rest is counted.
        other.ask("echo 500");
        other.finish();
        let mut now = String::new();
        let took = within(Instant::now(), "the server has what it had before", || {
            now = server.ask("count");
            now == before
        });
        println!(
            "{during}\n{now}\nclosed after {closed:?}, the rest was there {took:?} after the last; \
             the longest call of another client took {longest} us"
        );
    }
    server.finish();
}

/// Has a process connect to itself over all paths: what it needs to do so, as the test of its device does, is there from then on.
fn try_all(party: &mut Party, own: &str) {
    for path in 0..PATHS.len() {
        party.ask(format!("connect {own} {path}"));
        party.ask("drop");
    }
    until("its own connections are closed", || {
        let none = party.ask("count").starts_with("connections 0 ");
        none.then_some(())
    });
}

/// The other way round: a process that loses one server after the other keeps nothing of them.
#[test]
fn killed_servers_leave_nothing_in_a_client() {
    const NAME: &str = "killed::killed_servers_leave_nothing_in_a_client";
    // It serves nobody: that is how it comes to a pool whose bytes are counted.
    let Some(mut client) = start(NAME) else {
        return;
    };
    let own = client.ask("serve");
    try_all(&mut client, &own);
    let before = client.ask("count");
    for path in 0..PATHS.len() {
        let mut server = start(NAME).unwrap();
        let address = server.ask("serve");
        client.ask(format!("connect {address} {path}"));
        assert_eq!(client.ask("storm"), "storming");
        let begin = server.kill();
        assert_eq!(client.answer(), "lost");
        let lost = begin.elapsed();
        assert!(lost < BOUND, "{lost:?}");
        client.ask("drop");
        let mut now = String::new();
        let took = within(begin, "a client frees what killed servers held", || {
            now = client.ask("count");
            now == before
        });
        println!("{now}\nlost after {lost:?}, all free after {took:?}");
    }
    client.finish();
}
