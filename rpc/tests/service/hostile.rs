//! Bytes that are no message of a service.

use super::common::*;
use super::everything::*;
use rpc::service::{DecodeError, LISTING, ServiceClient, ServiceError};
use rpc::{CallError, Client, Code, ServerHandle};

/// Replies with what it is asked to, whatever the method.
fn parrot(listing: Vec<u8>, reply: Vec<u8>) -> ServerHandle {
    let serve = server().serve(move |_| {
        let (listing, reply) = (listing.clone(), reply.clone());
        move |request: rpc::Request<'_>, responder: rpc::Responder| {
            if request.method().0 == LISTING {
                responder.reply(&listing);
            } else {
                responder.reply(&reply);
            }
        }
    });
    serve.unwrap()
}

#[test]
fn replies_that_cannot_be_are_errors() {
    bounded(|| {
        let honest = everything();
        let mut raw: Client = client(&honest);
        let listing = raw
            .call(rpc::Method(LISTING), (), patient())
            .unwrap()
            .bytes()
            .to_vec();
        for (reply, error) in [
            (vec![], DecodeError::Short(0)),
            (vec![3, 0, 1, 1, 0, 0, 0, 0], DecodeError::Reserved(1)),
            (
                vec![3, 0, 1, 0, 9, 0, 0, 0, 1],
                DecodeError::Header { len: 9, present: 1 },
            ),
            (
                vec![1, 0, 1, 0, 1, 0, 0, 0, 1],
                DecodeError::Version {
                    version: 1,
                    expected: 3,
                },
            ),
            (
                vec![3, 0, 2, 0, 1, 0, 0, 0, 1],
                DecodeError::Codec {
                    codec: 2,
                    expected: 1,
                },
            ),
            (vec![3, 0, 1, 0, 2, 0, 0, 0, 1, 1], DecodeError::Left(1)),
        ] {
            let server = parrot(listing.clone(), reply);
            let mut client = typed(&server);
            match client.call::<Count>(&vec![], patient()).unwrap_err() {
                ServiceError::Reply { method, source } => {
                    assert_eq!((method, source), ("Count", error));
                }
                other => panic!("{other:?}"),
            }
            // The connection is none the worse.
            assert!(client.call::<Count>(&vec![], patient()).is_err());
        }
    });
}

/// Random bytes, and honest messages with bytes changed, for every method: each is answered, none is a panic, and the connection goes on.
#[test]
fn hostile_requests_are_answered() {
    bounded(|| {
        let server = everything();
        let mut raw = client(&server);
        let honest = [
            &[1, 0, 1, 0, 2, 0, 0, 0, 1, 0][..],
            &[3, 0, 1, 0, 2, 0, 0, 0, 1, 0],
            &[1, 0, 2, 0, 10, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 7],
            &[1, 0, 1, 0, 1, 0, 0, 0, 200],
        ];
        let mut seed = 1u32;
        let mut next = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 12) as usize
        };
        let mut codes = std::collections::BTreeMap::new();
        for round in 0..20_000 {
            let mut bytes = match round % 4 {
                0 => (0..next() % 40).map(|_| next() as u8).collect(),
                _ => honest[next() % honest.len()].to_vec(),
            };
            for _ in 0..next() % 4 {
                if !bytes.is_empty() {
                    let at = next() % bytes.len();
                    bytes[at] = [0, 1, 2, 3, 127, 128, 255, next() as u8][next() % 8];
                }
            }
            bytes.truncate(next() % (bytes.len() + 1) + next() % 8);
            // `Later` waits for a second one, and `Make` makes as much as it is told.
            let number = [1, 1, 2, 2, 4, 6, 9, 65_534][next() % 8];
            match raw.call(rpc::Method(number), &bytes, patient()) {
                Ok(_) => *codes.entry(None).or_insert(0) += 1,
                Err(CallError::Remote { code, .. }) => *codes.entry(Some(code)).or_insert(0) += 1,
                // What the handler of `Fails` may have been told to answer.
                Err(CallError::Overloaded { .. }) => {}
                // Likewise: the code for a caller whose time is over.
                Err(CallError::Expired) if number == 4 => {}
                Err(other) => panic!("{bytes:?}: {other:?}"),
            }
        }
        for code in [Code::INVALID, Code::UNIMPLEMENTED, Code::WRONG_VERSION] {
            assert!(codes.contains_key(&Some(code)), "{codes:?}");
        }
        assert!(codes.contains_key(&None), "{codes:?}");
        assert_eq!(raw.stats().rnr, 0);
        let mut client = ServiceClient::new(raw, patient()).unwrap();
        assert!(client.call::<Reverse>(&shapes(), patient()).is_ok());
    });
}
