//! The device refuses one request of a batch: those before it are on their way, it and those behind it never left.
//!
//! Faults are the whole process's, so this is alone in its file.

mod common;

use common::*;
use rpc::{CallError, Client, Method, NotSentReason, Request, Responder, Server};
use softverbs::faults::{Fault, Verb, inject};
use verbs::Device;

const BATCH: usize = 8;
/// How often more it is tried.
const ATTEMPTS: u32 = 50;

#[test]
fn what_never_left_comes_back() {
    for paths in ALIKE {
        bounded(move || {
            let device = Device::open_spec("soft0").unwrap();
            // It answers nothing, so that all posting is the client's.
            let server = Server::bind("127.0.0.1:0").unwrap().device(&device);
            let server = server.serve(move |_core| {
                let mut held = Vec::new();
                move |_: Request<'_>, responder: Responder| held.push(responder)
            });
            let server = server.unwrap();
            let body = |n: usize| vec![n as u8; 10 + 300 * n];
            // Ordinary requests, and a batch of small ones.
            let mut cases: Vec<_> = [(0, false), (1, false), (5, false), (BATCH - 1, false)]
                .into_iter()
                .chain([(0, true), (3, true), (BATCH - 1, true)])
                .map(|(posted, small)| (posted, small, ATTEMPTS))
                .collect();
            while let Some((posted, small, left)) = cases.pop() {
                let client = Client::builder().device(&device).connect_timeout(hang());
                let client = client.request(paths.0).reply(paths.1);
                let mut client = client.connect(server.local_addr()).unwrap();
                let pool = client.pool().clone();
                let mut batch = client.batch();
                for n in 0..BATCH {
                    if small {
                        batch.add(Method(1), [n as u8; 64], patient()).unwrap();
                        continue;
                    }
                    let into = pool.alloc(n).unwrap();
                    let buf = pool.alloc_from_slice(&body(n)).unwrap();
                    batch.add_into(Method(1), buf, into, patient()).unwrap();
                }
                let fault = inject(Fault::Verb {
                    verb: Verb::PostSend,
                    nth: posted as u64 + 1,
                    errno: libc::EIO,
                });
                let calls = batch.post();
                drop(fault);
                assert_eq!(calls.len(), BATCH);
                // Ends of polled rings that have nothing to do say so, with posts that are counted as well: then it was another one that failed.
                if client.stats().calls != posted as u64 && left > 0 {
                    assert_eq!(paths, ALIKE[2], "only these");
                    cases.push((posted, small, left - 1));
                    continue;
                }
                for (n, call) in calls.into_iter().enumerate() {
                    match call.wait(&mut client) {
                        Err(CallError::MaybeExecuted { .. }) => assert!(n < posted, "{n}"),
                        Err(CallError::NotSent(failed)) => {
                            assert!(n >= posted, "{n}");
                            let (reason, segments, into) = failed.into_parts();
                            assert!(matches!(reason, NotSentReason::Closed(_)), "{reason}");
                            // What was copied does not come back.
                            let want = if small { Vec::new() } else { body(n) };
                            assert_eq!(segments.copy_to_vec(), want);
                            assert_eq!(into.is_some(), !small);
                            assert_eq!(into.map_or(n, |into| into.len()), n);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                assert!(client.lost().is_some());
                assert_eq!(client.stats().calls, posted as u64);
                assert_eq!((client.stats().batches, client.stats().batched), (1, 8));
            }
        });
    }
}
