//! Answers in parts.

use super::common::*;
use super::everything::*;
use rpc::service::ServiceError;
use rpc::{CallError, Code};

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
