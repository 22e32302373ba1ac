//! Stopped servers and clients: who waits, and for how long.

use mempool::BudgetKind;
use rpc::{CallError, ConnectError, Deadline, Lost, NotSentReason};
use softverbs::faults::Step;
use std::time::{Duration, Instant};
use verbatim_tests::{HANG, pattern};

use crate::part::{CHECK, ECHO, HOLD, Host, LONG, MAKE, PATHS, patient};
use crate::party::{BOUND, Party, start, within};

/// What calls get in these tests.
const TIME: Duration = Duration::from_millis(300);

/// Makes sure that a call ended when its time was over, and not much later.
fn assert_in_time(begin: Instant, what: &str) {
    let took = begin.elapsed();
    println!("{what} ended after {took:?} of {TIME:?}");
    assert!((TIME..10 * TIME).contains(&took), "{what}: {took:?}");
}

/// A new connection, which works.
fn assert_serves(host: &Host, address: &str, path: usize) {
    let mut client = host.client(path).connect(address).unwrap();
    let reply = client.call(CHECK, host.long(), patient()).unwrap();
    assert_eq!(reply.bytes(), (LONG as u64).to_le_bytes());
}

/// Calls of all kinds to a stopped server end when their time is over. Once the server goes on, so does the connection.
#[test]
fn calls_to_a_stopped_server_expire() {
    for path in 0..PATHS.len() {
        let Some(mut server) = start("stopped::calls_to_a_stopped_server_expire") else {
            return;
        };
        let address = server.ask("serve");
        let host = Host::new();
        let mut client = host.client(path).connect(&address[..]).unwrap();
        client.call(ECHO, "there", patient()).unwrap();
        server.stop();

        let begin = Instant::now();
        let error = client
            .call(ECHO, "short", Deadline::after(TIME))
            .unwrap_err();
        assert!(matches!(error, CallError::Expired), "{error:?}");
        assert_in_time(begin, "a short call");

        let begin = Instant::now();
        let long = host.long();
        let error = client.call(CHECK, long, Deadline::after(TIME)).unwrap_err();
        assert!(matches!(error, CallError::Expired), "{error:?}");
        assert_in_time(begin, "a long call");

        let begin = Instant::now();
        let room = host.pool.alloc_zeroed(LONG).unwrap();
        let call = client.call_into(MAKE, LONG.to_le_bytes(), room, Deadline::after(TIME));
        let error = call.map(|(reply, _)| reply.len()).unwrap_err();
        assert!(matches!(error, CallError::Expired), "{error:?}");
        assert_in_time(begin, "a call for a long reply");

        let begin = Instant::now();
        let calls: Vec<_> = (0..8)
            .map(|_| {
                client
                    .submit(ECHO, "together", Deadline::after(TIME))
                    .unwrap()
            })
            .collect();
        for call in calls {
            let error = call.wait(&mut client).unwrap_err();
            assert!(matches!(error, CallError::Expired), "{error:?}");
        }
        assert_in_time(begin, "eight calls at once");

        // Another one cannot even be introduced.
        let begin = Instant::now();
        let error = host
            .client(path)
            .connect_timeout(TIME)
            .connect(&address[..]);
        let error = error.map(|client| client.peer()).unwrap_err();
        assert!(matches!(error, ConnectError::Timeout(_)), "{error:?}");
        assert_in_time(begin, "connecting");

        assert!(client.lost().is_none(), "nothing was broken");
        server.resume();
        // Late answers go to nobody.
        for seed in 0..100 {
            let message = pattern(2000, seed);
            let reply = client.call(ECHO, &message[..], patient()).unwrap();
            assert_eq!(reply.bytes(), message);
        }
        assert_eq!(client.stats().expired, 11);
        assert_serves(&host, &address, path);
        drop(client);
        assert_eq!(host.live(), [0; BudgetKind::ALL.len()]);
        server.finish();
    }
}

/// With all slots taken, a request to a stopped server does not leave; with too many unanswered, the connection ends cleanly.
#[test]
fn a_server_that_stays_stopped_costs_its_connection() {
    for path in 0..PATHS.len() {
        let Some(mut server) = start("stopped::a_server_that_stays_stopped_costs_its_connection")
        else {
            return;
        };
        let address = server.ask("serve");
        let host = Host::new();
        let mut client = host.client(path).connect(&address[..]).unwrap();
        client.call(ECHO, "there", patient()).unwrap();
        server.stop();
        let mut calls = Vec::new();
        for i in 0..client.slots() {
            let call = match i % 2 {
                0 => client.submit(HOLD, "short", Deadline::after(3 * TIME)),
                _ => client.submit(CHECK, host.long(), Deadline::after(3 * TIME)),
            };
            calls.push(call.unwrap());
        }
        let begin = Instant::now();
        match client.call(ECHO, "one more", Deadline::after(TIME)) {
            Err(CallError::NotSent(failed)) => {
                assert!(
                    matches!(failed.reason(), NotSentReason::Deadline),
                    "{failed}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert_in_time(begin, "waiting for a slot");

        let (mut expired, mut lost) = (0, 0);
        let begin = Instant::now();
        for call in calls {
            match call.wait(&mut client) {
                Err(CallError::Expired) => expired += 1,
                Err(CallError::MaybeExecuted { cause }) => {
                    assert!(matches!(*cause, Lost::Unanswered(_)), "{cause}");
                    lost += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let took = begin.elapsed();
        println!("{expired} calls expired, {lost} ended with the connection, {took:?}");
        assert!(took < BOUND && expired > 0 && lost > 0);
        match client.call(ECHO, "after", patient()) {
            Err(CallError::NotSent(failed)) => {
                assert!(
                    matches!(failed.reason(), NotSentReason::Closed(_)),
                    "{failed}"
                );
            }
            other => panic!("{other:?}"),
        }
        drop(client);
        assert_eq!(host.live(), [0; BudgetKind::ALL.len()]);
        server.resume();
        assert_serves(&host, &address, path);
        let begin = Instant::now();
        within(begin, "the server forgets the lost connection", || {
            server
                .ask("count")
                .starts_with("connections 0 user 0 receive 0 control 0 ")
        });
        server.finish();
    }
}

/// A server that stops in the middle of a reply, or of fetching a request, at every step: the client's calls end, and it can
/// leave in bounded time.
#[test]
fn a_server_that_stops_at_any_step_does_not_hold_its_client() {
    for (path, step) in cases() {
        let Some(mut server) =
            start("stopped::a_server_that_stops_at_any_step_does_not_hold_its_client")
        else {
            return;
        };
        let address = server.ask("serve");
        let host = Host::new();
        let mut client = host.client(path).connect(&address[..]).unwrap();
        client.call(ECHO, "there", patient()).unwrap();
        server.ask(format!("inject {step} 3"));
        let begin = Instant::now();
        while !server.is_stopped() {
            assert!(begin.elapsed() < HANG, "it stops");
            match client.call(CHECK, host.long(), Deadline::after(TIME)) {
                Ok(_) | Err(CallError::Expired) => {}
                other => panic!("{other:?}"),
            }
        }
        let begin = Instant::now();
        let error = client
            .call(ECHO, "behind", Deadline::after(TIME))
            .unwrap_err();
        assert!(matches!(error, CallError::Expired), "{error:?}");
        assert_in_time(begin, "a call to a server that stopped at work");
        let begin = Instant::now();
        drop(client);
        let took = begin.elapsed();
        println!(
            "{:?} {:?}: the client left in {took:?}",
            PATHS[path],
            Step::ALL[step]
        );
        assert!(took < BOUND, "{took:?}");
        server.resume();
        assert_serves(&host, &address, path);
        server.finish();
    }
}

/// Paths that use each verb, each with every step.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    [0, PATHS.len() - 1]
        .into_iter()
        .flat_map(|path| (0..Step::ALL.len()).map(move |step| (path, step)))
}

/// Stopped somewhere amid calls of all kinds, a client is nobody's trouble: others' calls go on, new clients come, and the
/// server's end takes no longer. The stopped one learns of it when it goes on.
#[test]
fn a_stopped_client_holds_up_nobody() {
    const NAME: &str = "stopped::a_stopped_client_holds_up_nobody";
    for path in 0..PATHS.len() {
        let Some((mut server, mut other, mut client)) = three(NAME, path) else {
            return;
        };
        assert_eq!(client.ask("storm"), "storming");
        client.stop();
        others_go_on(&mut server, &mut other, path);
        client.resume();
        assert_eq!(client.answer(), "lost");
        client.finish();
        other.finish();
        server.finish();
    }
}

/// The same with clients that stop at every step of a request, and leave the server with long replies that nobody fetches.
#[test]
fn a_client_that_stops_at_any_step_holds_up_nobody() {
    const NAME: &str = "stopped::a_client_that_stops_at_any_step_holds_up_nobody";
    for (path, step) in cases() {
        let Some((mut server, mut other, mut client)) = three(NAME, path) else {
            return;
        };
        client.ask("leave 40");
        within(
            Instant::now(),
            "the replies are there to be fetched",
            || {
                let count = server.ask("count");
                let user = count.split(' ').nth(3).unwrap();
                user.parse::<usize>().unwrap() >= 40 * LONG
            },
        );
        client.ask(format!("inject {step} 1"));
        client.tell("leave 1");
        client.wait_until_stopped();
        print!("{:?} {:?}: ", PATHS[path], Step::ALL[step]);
        others_go_on(&mut server, &mut other, path);
        client.resume();
        assert_eq!(client.answer(), "left");
        client.ask("drop");
        client.finish();
        other.finish();
        server.finish();
    }
}

/// A server and two clients of its, the second over `path`.
fn three(name: &str, path: usize) -> Option<(Party, Party, Party)> {
    let mut server = start(name)?;
    let address = server.ask("serve");
    let mut other = start(name)?;
    other.ask(format!("connect {address} {path}"));
    let mut client = start(name)?;
    client.ask(format!("connect {address} {path}"));
    Some((server, other, client))
}

/// While one client is stopped: calls of another, connections that come and go, and the server's end.
fn others_go_on(server: &mut Party, other: &mut Party, path: usize) {
    let begin = Instant::now();
    let longest = other.ask("echo 200");
    other.ask("drop");
    let address = server.ask("address");
    for _ in 0..5 {
        other.ask(format!("connect {address} {path}"));
        other.ask("echo 20");
        other.ask("drop");
    }
    let calls = begin.elapsed();
    let connections = |server: &mut Party| server.ask("count").starts_with("connections 1 ");
    within(begin, "others' connections are closed", || {
        connections(server)
    });
    let begin = Instant::now();
    let stop = server.ask("shutdown");
    let took = begin.elapsed();
    println!("calls {calls:?}, the longest of them {longest} us; shutdown {stop} ms");
    assert!(calls < BOUND, "{calls:?}");
    assert!(took < BOUND, "{took:?}");
}
