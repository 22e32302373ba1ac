//! Calls of one answer each: headers and raw bytes, failures, answers that come later.

use super::common::*;
use super::everything::*;
use mempool::{SgList, sg};
use rpc::service::{ServiceClient, ServiceError, UnsentReason};
use rpc::{CallError, Code};

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
