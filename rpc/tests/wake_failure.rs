//! The device refuses to wake a server that looks for its requests: the request itself is on its way by then.
//!
//! Faults are the whole process's, so this is alone in its file.

mod common;

use common::*;
use rpc::{CallError, Client, Method, Reconnect, ReplyPath, Request, RequestPath, Responder};
use softverbs::faults::{Fault, Verb, inject};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const UP: Method = Method(1);
const COUNTED: Method = Method(2);
const ROUNDS: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Way {
    Call,
    Submit,
    Batch,
}

/// What has been posted is never said not to have been sent, nor sent again. How far the server is on its way to sleep is tried out.
#[test]
fn what_was_posted_before_may_have_been_executed() {
    let ways = [Way::Call, Way::Submit, Way::Batch];
    for (way, reconnects) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        over(
            &[(RequestPath::WritePoll, ReplyPath::WriteImm)],
            hang(),
            move || refuse(way, reconnects),
        );
    }
}

fn refuse(way: Way, reconnects: bool) {
    let executed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&executed);
    let server = server().serve(move |_core| {
        let counted = Arc::clone(&counted);
        move |request: Request<'_>, responder: Responder| {
            if request.method() == COUNTED {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            responder.reply("done");
        }
    });
    let server = server.unwrap();
    let mut lost = 0;
    // From wide awake to fast asleep, which it is in the second half, or nearly always.
    for n in 0..ROUNDS {
        let connect = || {
            let builder = match reconnects {
                true => builder().reconnect(Reconnect::new()),
                false => builder(),
            };
            builder.connect(server.local_addr()).unwrap()
        };
        let mut client = connect();
        client.call(UP, "up", patient()).unwrap();
        thread::sleep(Duration::from_micros(100 * n));
        let before = executed.load(Ordering::SeqCst);
        // The first is the request, the second the wake; unless the server has something to post.
        let fault = inject(Fault::Verb {
            verb: Verb::PostSend,
            nth: 2,
            errno: libc::EIO,
        });
        let outcome = ask(&mut client, way, || drop(fault));
        let times = || executed.load(Ordering::SeqCst) - before;
        match outcome {
            Ok(()) => assert_eq!(times(), 1, "{n}"),
            Err(CallError::MaybeExecuted { .. }) => lost += u64::from(n >= ROUNDS / 2),
            // Not even the request was posted.
            Err(CallError::NotSent(_)) => {
                // Another connection of the same core, served later than what was on its way.
                connect().call(UP, "up", patient()).unwrap();
                assert_eq!(times(), 0, "{n}");
            }
            Err(other) => panic!("{other:?}"),
        }
        assert!(times() <= 1, "executed twice");
    }
    assert!(lost >= ROUNDS / 4, "{way:?}, {reconnects}: {lost}");
}

/// Asks one thing; `posted` is for when that has been posted.
fn ask(client: &mut Client, way: Way, posted: impl FnOnce()) -> Result<(), CallError> {
    let reply = match way {
        Way::Call => {
            let reply = client.call(COUNTED, "once", patient());
            posted();
            reply?
        }
        Way::Submit => {
            let pending = client.submit(COUNTED, "once", patient());
            posted();
            pending?.wait(client)?
        }
        Way::Batch => {
            let mut batch = client.batch();
            batch.add(COUNTED, "once", patient())?;
            let mut calls = batch.post();
            posted();
            calls.remove(0).wait(client)?
        }
    };
    assert_eq!(reply.bytes(), b"done");
    Ok(())
}
