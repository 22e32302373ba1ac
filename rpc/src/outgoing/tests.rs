use super::*;
use crate::wire::{Kind as Message, MAX_PIECES};
use mempool::{Budget, BudgetKind};
use proptest::prelude::*;

fn memory(user: u64) -> (Pd, Pool) {
    let context = verbs::Device::open_spec("soft0").unwrap();
    let pd = context.alloc_pd().unwrap();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(user))
        .build()
        .unwrap();
    (pd, pool)
}

fn list(pool: &Pool, lens: &[usize]) -> (SgList, Vec<u8>) {
    let (mut list, mut all) = (SgList::new(), Vec::new());
    for (at, &len) in lens.iter().enumerate() {
        let mut buf = pool.alloc(len).unwrap();
        buf.fill(at as u8 + 1);
        all.extend_from_slice(&buf);
        if at % 3 == 1 {
            list.push(buf.freeze()).unwrap();
        } else {
            list.push(buf).unwrap();
        }
    }
    (list, all)
}

/// The message as the device would gather it, and the body as the peer would see it: remote pieces
/// are read from where they lie.
fn assemble(ready: &Ready) -> (Vec<u8>, Vec<u8>) {
    let mut header = Header::new(Message::Request);
    ready.describe(&mut header);
    let mut message = ready.header.to_vec();
    header.encode(message.first_chunk_mut().unwrap());
    match &ready.body {
        Body::Empty => {}
        Body::One(segment) => message.extend_from_slice(segment.as_slice()),
        Body::Many(list) => message.extend(list.copy_to_vec()),
    }
    let header = Header::decode(&message).unwrap();
    let pieces = PieceList::decode(&header, &message).unwrap();
    let mut inline = &message[header.inline_start()..];
    if header.pieces == 0 {
        return (message.clone(), inline.to_vec());
    }
    let Held::Parts(parts) = &ready.held else {
        panic!("pieces without parts");
    };
    let mut leases = parts.iter().filter_map(|part| match part {
        Part::Leased(lease) | Part::Copy(_, lease) => Some(lease),
        _ => None,
    });
    let mut body = Vec::new();
    for piece in pieces.as_slice() {
        match *piece {
            Piece::Inline { len } => {
                let (bytes, rest) = inline.split_at(len as usize);
                body.extend_from_slice(bytes);
                inline = rest;
            }
            Piece::Remote { addr, len, key } => {
                let lease = leases.next().expect("a lease for each remote piece");
                let remote = lease.remote();
                assert_eq!((remote.addr, remote.len, remote.rkey.0), (addr, len, key));
                body.extend_from_slice(match lease {
                    Lease::Buf(region) => region,
                    Lease::Shared(region) => region,
                });
            }
        }
    }
    assert!(leases.next().is_none() && inline.is_empty());
    (message, body)
}

fn prepare(
    (pd, pool): &(Pd, Pool),
    max_sge: u32,
    payload: Outgoing,
) -> (Result<Ready, NotReady>, Copies) {
    let mut copies = Copies::default();
    let ready = Workshop {
        pool,
        pd,
        inline_limit: 4096,
        max_sge,
        copies: &mut copies,
    }
    .prepare(payload);
    (ready, copies)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the segments and the device's limit, the peer sees the bytes in order, the caller
    /// gets the segments back in order, and nothing is gathered beyond the limit.
    #[test]
    fn any_shape_arrives_and_comes_back(
        lens in proptest::collection::vec(
            prop_oneof![Just(0usize), 1usize..100, 900usize..1100, 3000usize..6000, 40_000usize..41_000],
            0..=16,
        ),
        max_sge in 1u32..=17,
    ) {
        let memory = memory(64 << 20);
        let (list, all) = list(&memory.1, &lens);
        let (ready, copies) = prepare(&memory, max_sge, Outgoing::Segments(Body::from_list(list)));
        let ready = ready.unwrap();
        prop_assert!(ready.body.gathered() < max_sge as usize);
        prop_assert!(usize::from(ready.pieces) <= MAX_PIECES);
        prop_assert!(ready.inline_len <= 4096);
        let (message, body) = assemble(&ready);
        prop_assert!(message.len() <= HEADER_LEN + MAX_PIECES * PIECE_LEN + 4096);
        prop_assert!(body == all);
        prop_assert!(max_sge < 17 || copies.copies == 0, "copied without need");
        let back = ready.held.restore(ready.body);
        let got: Vec<usize> = back.segments().map(|s| s.as_slice().len()).collect();
        prop_assert_eq!(got, lens);
        prop_assert!(back.copy_to_vec() == all);
    }
}

#[test]
fn plain_bytes_are_copied_once() {
    let memory = memory(64 << 20);
    for (len, counted) in [(0, 0), (100, 0), (4096, 0), (4097, 1)] {
        let bytes = vec![7u8; len];
        let mut copies = Copies::default();
        let outgoing = Outgoing::take(&bytes[..], &memory.1, 4096, &mut copies).unwrap();
        assert_eq!(outgoing.len(), len as u64);
        assert_eq!(copies.copies, counted);
        let (ready, _) = prepare(&memory, 17, outgoing);
        assert_eq!(assemble(&ready.unwrap()).1, bytes);
    }
}

#[test]
fn a_region_is_copied_to_be_leased() {
    let memory = memory(64 << 20);
    let region = memory.0.register(vec![9u8; 10_000]).unwrap();
    let list = SgList::from(region);
    let (ready, copies) = prepare(&memory, 17, Outgoing::Segments(Body::from_list(list)));
    let ready = ready.unwrap();
    assert_eq!((copies.copies, copies.bytes), (1, 10_000));
    assert_eq!(assemble(&ready).1, vec![9; 10_000]);
    assert_eq!(
        ready.held.restore(ready.body).copy_to_vec(),
        vec![9; 10_000]
    );
}

#[test]
fn what_cannot_be_made_comes_back_in_order() {
    // Too little memory to copy the region, after other segments have been placed already.
    let memory = memory(1 << 20);
    let (mut list, mut all) = list(&memory.1, &[10, 50_000, 20]);
    let region = memory.0.register(vec![5u8; 4 << 20]).unwrap();
    list.push(region).unwrap();
    all.extend(vec![5u8; 4 << 20]);
    list.push(memory.1.alloc_from_slice(b"end").unwrap())
        .unwrap();
    all.extend(b"end");
    let (result, _) = prepare(&memory, 17, Outgoing::Segments(Body::from_list(list)));
    let Err(NotReady::Memory(AllocError::BudgetExhausted { budget, .. }, payload)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(budget, BudgetKind::User);
    let back = payload.into_list().unwrap();
    let lens: Vec<usize> = back.segments().map(|s| s.as_slice().len()).collect();
    assert_eq!(lens, [10, 50_000, 20, 4 << 20, 3]);
    assert!(back.copy_to_vec() == all);
}
