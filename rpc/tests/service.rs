//! Typed services over the default device, well-behaved and hostile.
#![cfg(all(feature = "serde", feature = "zerocopy"))]

mod common;

use common::*;
use mempool::{SgList, sg};
use rpc::service::{
    Answer, DecodeError, Dispatcher, Failure, LISTING, Method, Methods, Plain, Postcard, Reply,
    Service, ServiceClient, ServiceError, UnsentReason,
};
use rpc::{CallError, Client, Code, PartError, ServerHandle};
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! method {
    ($type:ident, $number:expr, $version:expr, $request:ty, $reply:ty) => {
        struct $type;
        impl Method for $type {
            const NUMBER: u16 = $number;
            const VERSION: u16 = $version;
            const NAME: &'static str = stringify!($type);
            type Request = $request;
            type Reply = $reply;
        }
    };
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Dot,
    Line { from: (i32, i32), to: (i32, i32) },
    Text(String, Option<bool>),
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq)]
#[repr(C)]
struct Range {
    seed: U16,
    len: U64,
}

// In two versions that mean different things.
method!(Reverse, 1, 1, Postcard<Vec<Shape>>, Postcard<Vec<Shape>>);
method!(Count, 1, 3, Postcard<Vec<Shape>>, Postcard<u64>);
// Raw bytes both ways.
method!(Mirror, 2, 1, Plain<Range>, Plain<Range>);
method!(Make, 3, 1, Plain<Range>, Postcard<String>);
method!(Fails, 4, 1, Postcard<u16>, Postcard<()>);
method!(Later, 5, 1, Postcard<u32>, Postcard<u32>);
method!(Bombs, 6, 1, Postcard<()>, Postcard<()>);
// As many parts as the header says, of as many bytes as the rest has; by an iterator, and by hand.
method!(Streams, 7, 1, Postcard<u32>, Postcard<String>);
method!(Hands, 8, 1, Postcard<u32>, Plain<Range>);
// What only a client has.
method!(ReverseNew, 1, 2, Postcard<Vec<Shape>>, Postcard<Vec<Shape>>);
method!(ReverseOther, 1, 1, Plain<Range>, Postcard<Vec<Shape>>);
method!(Missing, 70, 1, Postcard<()>, Postcard<()>);

struct Everything {
    pool: mempool::Pool,
    waiting: Vec<(u32, Reply<Later>)>,
}

impl Service for Everything {
    const NAME: &'static str = "everything";

    fn methods(methods: &mut Methods<Self>) {
        methods.add::<Reverse>(|_, call| {
            Ok(Answer::new(call.header().iter().rev().cloned().collect()))
        });
        methods.add::<Count>(|_, call| Ok(Answer::new(call.header().len() as u64)));
        methods.add::<Mirror>(|_, call| {
            let header = Range {
                seed: call.header().seed,
                len: (call.rest().len() as u64).into(),
            };
            Ok(Answer::with(header, call.take_rest()?))
        });
        methods.add::<Make>(|this, call| {
            let len = call.header().len.get() as usize;
            let mut data = this.pool.alloc(len)?;
            data.copy_from_slice(&pattern(len, call.header().seed.get() as u8));
            Ok(Answer::with(format!("{len} bytes"), data))
        });
        methods.add::<Fails>(|_, call| Err(Failure::new(Code(*call.header()), "as you wish")));
        // Answers two at once, the later first.
        methods.add_deferred::<Later>(|this, call, reply| {
            this.waiting.push((*call.header(), reply));
            if this.waiting.len() == 2 {
                while let Some((number, reply)) = this.waiting.pop() {
                    reply.send(Answer::new(number + 1));
                }
            }
        });
        methods.add_deferred::<Streams>(|this, call, reply| {
            let (count, len, pool) = (*call.header(), call.rest().len(), this.pool.clone());
            reply.stream((0..=count).map(move |n| match n == count {
                true if count == 13 => Err(Failure::new(Code(13), "thirteen are too many")),
                true => Ok(Answer::new("the end".to_owned())),
                false => {
                    let mut data = pool.alloc(len)?;
                    data.copy_from_slice(&pattern(len, n as u8));
                    Ok(Answer::with(format!("part {n}"), data))
                }
            }));
        });
        methods.add_deferred::<Hands>(|this, call, reply| {
            let mut parts = reply.in_parts();
            let part = |n: u32| {
                let header = Range {
                    seed: (n as u16).into(),
                    len: 0.into(),
                };
                Answer::with(
                    header,
                    this.pool.alloc_from_slice(&n.to_le_bytes()).unwrap(),
                )
            };
            for n in 0..*call.header() {
                assert!(parts.part(part(n)).is_ok());
            }
            // What is not taken comes back as it was: a rest that leaves no segment for the header, and more parts than may wait.
            let mut many = SgList::new();
            for _ in 0..SgList::MAX {
                let byte = this.pool.alloc_zeroed(1).unwrap();
                assert!(many.push(byte).is_ok());
            }
            let (header, _) = part(0).into_parts();
            match parts.part(Answer::with(header, many)) {
                Err(PartError::Encode(answer, _)) => {
                    assert_eq!(answer.into_parts().1.len(), SgList::MAX)
                }
                other => panic!("{other:?}"),
            }
            let full = loop {
                match parts.part(part(77)) {
                    Ok(()) => {}
                    Err(PartError::Full(answer)) => break answer.into_parts(),
                    Err(error) => panic!("{error:?}"),
                }
            };
            assert_eq!(
                (full.0.seed.get(), full.1.copy_to_vec()),
                (77, vec![77, 0, 0, 0])
            );
            parts.finish();
        });
        methods.add::<Bombs>(|_, _| panic!("a handler's panic, on purpose"));
    }
}

fn everything() -> ServerHandle {
    let serve = server().serve(|core| {
        let service = Everything {
            pool: core.pool().clone(),
            waiting: Vec::new(),
        };
        Dispatcher::new(service, core.pool()).into_handler()
    });
    serve.expect("serve")
}

fn typed(server: &ServerHandle) -> ServiceClient {
    ServiceClient::new(client(server), patient()).expect("a listing")
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape::Dot,
        Shape::Line {
            from: (-1, i32::MAX),
            to: (0, 300),
        },
        Shape::Text("long ".repeat(2000), Some(true)),
    ]
}

fn remote(error: ServiceError) -> (Code, String) {
    match error {
        ServiceError::Call(CallError::Remote { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_go_there_and_back() {
    over_all_paths(|| {
        let server = everything();
        let mut client = typed(&server);
        assert_eq!(client.listing().name(), "everything");
        for shapes in [vec![], vec![Shape::Dot], shapes()] {
            let reversed: Vec<_> = shapes.iter().rev().cloned().collect();
            let reply = client.call::<Reverse>(&shapes, patient()).unwrap();
            assert_eq!((reply.header(), reply.rest()), (&reversed, &[][..]));
            assert_eq!(reply.into_header(), reversed);
            // The same number in another version.
            let reply = client.call::<Count>(&shapes, patient()).unwrap();
            assert_eq!(*reply.header(), shapes.len() as u64);
        }
    });
}

#[test]
fn raw_bytes_travel_behind_headers() {
    over_all_paths(|| {
        let server = everything();
        let mut client = typed(&server);
        let pool = client.client().pool().clone();
        for len in [0, 1, 100, 5000, 1 << 20] {
            let header = Range {
                seed: 7.into(),
                len: 0.into(),
            };
            let bytes = pattern(len, 3);
            let (a, b) = bytes.split_at(len / 3);
            let list = sg![
                pool.alloc_from_slice(a).unwrap(),
                pool.alloc_from_slice(b).unwrap()
            ];
            let mut reply = client
                .call_with::<Mirror>(&header, list, patient())
                .unwrap();
            assert_eq!(reply.header().len.get(), len as u64);
            assert_eq!(reply.header().seed.get(), 7);
            assert_eq!(reply.rest(), bytes);
            // What was sent comes back without the header.
            let back = reply.take_segments();
            assert_eq!(
                (back.segment_count(), back.copy_to_vec()),
                (2, bytes.clone())
            );
            assert_eq!(&*reply.into_rest(&pool).unwrap(), &*bytes);
        }
    });
}

#[test]
fn a_reply_lands_in_the_callers_buffer() {
    over_all_paths(|| {
        let server = everything();
        let mut client = typed(&server);
        let pool = client.client().pool().clone();
        for len in [10u64, 100_000] {
            let buf = pool.alloc(200_000).unwrap();
            let (start, room) = (buf.as_ptr().addr(), buf.len());
            let header = Range {
                seed: 2.into(),
                len: len.into(),
            };
            let reply = client
                .call_into::<Make>(&header, SgList::new(), buf, patient())
                .unwrap();
            assert_eq!(*reply.header(), format!("{len} bytes"));
            let data = reply.into_rest(&pool).unwrap();
            assert_eq!(&*data, pattern(len as usize, 2));
            assert!((start..start + room).contains(&data.as_ptr().addr()));
        }
    });
}

#[test]
fn failures_and_panics_are_the_callers_errors() {
    bounded(|| {
        let server = everything();
        let mut client = typed(&server);
        let error = client.call::<Fails>(&1234, patient()).unwrap_err();
        assert_eq!(remote(error), (Code(1234), "as you wish".to_owned()));
        let error = client.call::<Bombs>(&(), patient()).unwrap_err();
        assert_eq!(remote(error).0, Code::PANICKED);
        assert!(client.call::<Count>(&vec![], patient()).is_ok());
    });
}

#[test]
fn segments_come_back_from_calls_that_fail() {
    bounded(|| {
        let server = everything();
        let mut client = typed(&server);
        let pool = client.client().pool().clone();
        let data = || pool.alloc_from_slice(b"mine").unwrap();
        let error = client
            .call_with::<Fails>(&1000, sg![data()], patient())
            .unwrap_err();
        let ServiceError::Call(CallError::Remote { mut buffers, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(buffers.take_segments().copy_to_vec(), b"mine");

        let past = rpc::Deadline::after(std::time::Duration::ZERO);
        let error = client
            .call_with::<Fails>(&1000, sg![data()], past)
            .unwrap_err();
        assert!(error.is_unsent());
        let ServiceError::Call(CallError::NotSent(unsent)) = error else {
            panic!("{error:?}");
        };
        assert_eq!(unsent.buffers().copy_to_vec(), b"mine");

        let mut full = SgList::new();
        while full.push(data()).is_ok() {}
        let error = client
            .call_with::<Fails>(&1000, full, patient())
            .unwrap_err();
        let ServiceError::NotSent(unsent) = error else {
            panic!("{error:?}");
        };
        let (reason, segments, _) = unsent.into_parts();
        assert!(matches!(reason, UnsentReason::Segments));
        assert_eq!(segments.segment_count(), SgList::MAX);
    });
}

#[test]
fn answers_can_come_later() {
    bounded(|| {
        let server = everything();
        let address = server.local_addr();
        let others = std::thread::spawn(move || {
            let client = builder().connect(address).unwrap();
            let mut client = ServiceClient::new(client, patient()).unwrap();
            *client.call::<Later>(&10, patient()).unwrap().header()
        });
        let mut client = typed(&server);
        let mine = client.call::<Later>(&20, patient()).unwrap();
        assert_eq!((*mine.header(), others.join().unwrap()), (21, 11));
    });
}

#[test]
fn typed_calls_are_pipelined() {
    over_all_paths(|| {
        let server = everything();
        let mut client = typed(&server);
        let pool = client.client().pool().clone();
        let header = |len: usize| Range {
            seed: 4.into(),
            len: (len as u64).into(),
        };
        let lens = [0, 1, 300, 5000, 100_000];
        let mirrors: Vec<_> = lens
            .map(|len| {
                let rest = match len {
                    0 => SgList::new(),
                    _ => pool.alloc_from_slice(&pattern(len, 9)).unwrap().into(),
                };
                let call = client.submit::<Mirror>(&header(len), rest, patient());
                (len, call.unwrap())
            })
            .into();
        let buf = pool.alloc(200_000).unwrap();
        let start = buf.as_ptr().addr();
        let into = client.submit_into::<Make>(&header(150_000), (), buf, patient());
        let data = into.unwrap().wait(&mut client).unwrap();
        assert_eq!(*data.header(), "150000 bytes");
        let data = data.into_rest(&pool).unwrap();
        assert!(
            (start..start + 100).contains(&data.as_ptr().addr()) && *data == *pattern(150_000, 4)
        );
        for (len, mut call) in mirrors.into_iter().rev() {
            let mut reply = loop {
                match call.try_take(&mut client) {
                    Ok(outcome) => break outcome.unwrap(),
                    Err(same) => call = same,
                }
            };
            assert_eq!(reply.rest(), pattern(len, 9));
            // Without the header.
            assert_eq!(reply.take_segments().copy_to_vec(), pattern(len, 9));
        }
        // Errors bring the segments back without it, too; what is there is not given up.
        let body = pool.alloc_from_slice(&[7; 5000]).unwrap();
        let fails = client.submit::<Fails>(&444, body, patient()).unwrap();
        while !fails.is_ready(&mut client) {}
        match fails.cancel(&mut client) {
            Some(Err(ServiceError::Call(CallError::Remote {
                code, mut buffers, ..
            }))) => {
                assert_eq!(
                    (code, buffers.take_segments().copy_to_vec()),
                    (Code(444), vec![7; 5000])
                );
            }
            other => panic!("{other:?}"),
        }
        // The first of two is answered after the second only.
        let first = client.submit::<Later>(&1, (), patient()).unwrap();
        assert!(first.cancel(&mut client).is_none());
        let second = client.submit::<Later>(&2, (), patient()).unwrap();
        assert_eq!(*second.wait(&mut client).unwrap().header(), 3);
        let unsent = client.submit::<Missing>(&(), (), patient());
        assert!(matches!(unsent, Err(ServiceError::NotSent(_))));
    });
}

#[test]
fn parts_are_typed() {
    over_all_paths(|| {
        let server = everything();
        let mut client = typed(&server);
        let pool = client.client().pool().clone();
        for len in [1, 3000, 200_000] {
            let rest = pool.alloc_zeroed(len).unwrap();
            let parts = client.call_parts::<Streams>(&5, rest, patient()).unwrap();
            let parts: Vec<_> = parts.map(Result::unwrap).collect();
            for (n, part) in parts.iter().enumerate().take(5) {
                assert_eq!(*part.header(), format!("part {n}"));
                assert!(part.rest() == pattern(len, n as u8));
            }
            assert_eq!(parts.len(), 6);
            assert_eq!(
                (parts[5].header().as_str(), parts[5].rest()),
                ("the end", &[][..])
            );
        }
        // What was sent comes back with the first part; an error ends the reply.
        let rest = pool.alloc_from_slice(&[1; 600]).unwrap();
        let mut parts = client
            .submit_parts::<Streams>(&13, rest, patient())
            .unwrap();
        for n in 0..13 {
            let mut part = parts.next(&mut client).unwrap().unwrap();
            let back = part.take_segments().copy_to_vec();
            assert_eq!(back, vec![1; if n == 0 { 600 } else { 0 }]);
        }
        assert_eq!(remote(parts.next(&mut client).unwrap_err()).0, Code(13));
        assert!(parts.is_finished() && parts.next(&mut client).unwrap().is_none());
        // By hand: one is on its way, some wait, more are not taken. Without a rest, the request is plain bytes.
        let parts = client.call_parts::<Hands>(&2, (), patient()).unwrap();
        let seeds: Vec<_> = parts
            .map(|part| part.unwrap())
            .map(|part| (part.header().seed.get(), part.rest().to_vec()))
            .collect();
        let expected = [0u32, 1, 77, 77, 77].map(|n| (n as u16, n.to_le_bytes().to_vec()));
        assert_eq!(seeds, expected);
        // Asked for as a whole it is an error, and a whole reply is one part.
        let whole = client.call::<Streams>(&1, patient()).unwrap_err();
        assert!(matches!(
            whole,
            ServiceError::Call(CallError::InParts { .. })
        ));
        let one = client
            .call_parts::<Count>(&shapes(), (), patient())
            .unwrap();
        let one: Vec<_> = one.map(|part| part.unwrap().into_header()).collect();
        assert_eq!(one, [3]);
        // Nobody wants the rest: the connection goes on.
        drop(
            client
                .submit_parts::<Streams>(&1000, (), patient())
                .unwrap(),
        );
        assert_eq!(
            *client.call::<Count>(&vec![], patient()).unwrap().header(),
            0
        );
    });
}

#[test]
fn methods_that_the_peer_lacks_are_errors_here() {
    bounded(|| {
        let server = everything();
        let mut client = typed(&server);
        assert!(client.listing().has::<Reverse>() && !client.listing().has::<ReverseNew>());
        let calls = client.client().stats().calls;

        let reason = |error: ServiceError| match error {
            ServiceError::NotSent(unsent) => unsent.into_parts().0,
            other => panic!("{other:?}"),
        };
        let error = client.call::<ReverseNew>(&vec![], patient()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "not sent: ReverseNew: this end has version 2, the peer [1, 3]: upgrade the older end"
        );
        let UnsentReason::Version { ours, theirs } = reason(error) else {
            panic!("another reason");
        };
        assert_eq!((ours, theirs), (2, vec![1, 3]));
        let error = client.call::<Missing>(&(), patient()).unwrap_err();
        assert!(matches!(reason(error), UnsentReason::NoMethod));
        let header = Range {
            seed: 1.into(),
            len: 1.into(),
        };
        let error = client.call::<ReverseOther>(&header, patient()).unwrap_err();
        assert!(matches!(reason(error), UnsentReason::Encoding));
        assert_eq!(client.client().stats().calls, calls, "something was sent");
    });
}

#[test]
fn a_server_without_types_is_told_apart() {
    bounded(|| {
        let server = serve(server());
        let error = ServiceClient::new(client(&server), patient()).unwrap_err();
        assert_eq!(remote(error).0, Code::UNIMPLEMENTED);

        let server = common::server()
            .serve(|_| |_: rpc::Request<'_>, responder: rpc::Responder| responder.reply("hello"))
            .unwrap();
        let error = ServiceClient::new(client(&server), patient()).unwrap_err();
        assert!(matches!(
            error,
            ServiceError::Listing(DecodeError::Format(b'h'))
        ));
    });
}

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

struct Twice;

impl Service for Twice {
    const NAME: &'static str = "twice";

    fn methods(methods: &mut Methods<Self>) {
        methods.add::<Bombs>(|_, _| Ok(Answer::new(())));
        methods.add::<Bombs>(|_, _| Ok(Answer::new(())));
    }
}

#[test]
#[should_panic(expected = "Bombs is there twice in version 1")]
fn a_method_that_is_there_twice_is_refused() {
    Dispatcher::new(Twice, &memory().2);
}
