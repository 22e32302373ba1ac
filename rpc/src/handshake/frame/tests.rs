use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

prop_compose! {
    fn hellos()(
        request_paths: u8, reply_paths: u8, window: u32, inline_limit: u32, slots: u32,
        max_message: u64, features: u64, endpoint in vec(any::<u8>(), 0..=ENDPOINT_MAX),
        ring in proptest::option::of((any::<u64>(), any::<u64>(), any::<u32>())), has_cell: bool,
    ) -> Hello {
        let ring = ring.map(|(addr, len, key)| RemoteRegion { addr, len, rkey: verbs::RKey(key) });
        Hello { request_paths, reply_paths, window, inline_limit, slots, max_message, features,
            endpoint, ring, cell: ring.filter(|_| has_cell) }
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![
        hellos().prop_map(Frame::Hello),
        hellos().prop_map(|h| {
            Frame::Welcome(Welcome {
                request_path: h.request_paths,
                reply_path: h.reply_paths,
                window: h.window,
                inline_limit: h.inline_limit,
                slots: h.slots,
                max_message: h.max_message,
                features: h.features,
                endpoint: h.endpoint,
                ring: h.ring,
                shelf: h.ring,
                cell: h.cell,
            })
        }),
        "[a-zäß ]{0,100}".prop_map(|text| {
            Frame::Refuse(Refusal {
                code: RefusalCode::Full,
                text,
            })
        }),
        Just(Frame::Goodbye(Goodbye::Violation)),
    ]
}

/// Feeds bytes in the given portions until a frame, an error or the end.
fn feed(bytes: &[u8], portions: &[usize]) -> Result<Option<Frame>, HandshakeError> {
    let mut acc = Accumulator::new();
    let mut rest = bytes;
    let mut portions = portions
        .iter()
        .copied()
        .chain(std::iter::repeat(usize::MAX));
    while !rest.is_empty() {
        let space = acc.space();
        assert!(!space.is_empty(), "a whole frame must have been given out");
        let n = space
            .len()
            .min(rest.len())
            .min(portions.next().unwrap().max(1));
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        if let Some(frame) = acc.filled(n)? {
            assert!(acc.is_empty());
            return Ok(Some(frame));
        }
    }
    Ok(None)
}

proptest! {
    #[test]
    fn round_trip_in_any_portions(frame in frames(), portions in vec(1usize..40, 0..30)) {
        let bytes = frame.encode();
        prop_assert_eq!(feed(&bytes, &portions), Ok(Some(frame)));
    }

    #[test]
    fn a_cut_frame_is_no_frame(frame in frames(), cut in 1usize..600) {
        let bytes = frame.encode();
        let short = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert_eq!(feed(short, &[]), Ok(None));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..1200), portions in vec(1usize..40, 0..30)) {
        let _ = feed(&bytes, &portions);
    }

    #[test]
    fn arbitrary_contents_never_panic(kind in 0u8..6, body in vec(any::<u8>(), 0..600)) {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([kind, 0]);
        bytes.extend((body.len() as u16).to_le_bytes());
        bytes.extend(&body);
        if let Ok(Some(frame)) = feed(&bytes, &[]) {
            // What was understood says the same again.
            let again = frame.encode();
            prop_assert_eq!(feed(&again, &[]), Ok(Some(frame)));
        }
    }

    #[test]
    fn one_changed_byte_never_panics(frame in frames(), at: usize, flip in 1u8..) {
        let mut bytes = frame.encode();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let _ = feed(&bytes, &[]);
    }
}

#[test]
fn garbage_is_refused_by_its_first_bytes() {
    assert_eq!(feed(b"G", &[]), Err(HandshakeError::Magic([b'G', 0, 0, 0])));
    assert_eq!(
        feed(b"GET / HTTP/1.1\r\n\r\n", &[]),
        Err(HandshakeError::Magic(*b"GET "))
    );
}

#[test]
fn absurd_lengths_are_refused_before_they_are_read() {
    let mut bytes = Frame::Goodbye(Goodbye::Closing).encode();
    bytes[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(
        feed(&bytes, &[]),
        Err(HandshakeError::Length(usize::from(u16::MAX)))
    );
    let mut bytes = Frame::Goodbye(Goodbye::Closing).encode();
    bytes[4] = 9;
    assert_eq!(feed(&bytes, &[]), Err(HandshakeError::Version(9)));
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let text = "ß".repeat(400);
    let frame = Frame::Refuse(Refusal {
        code: RefusalCode::Device,
        text,
    });
    let Ok(Some(Frame::Refuse(back))) = feed(&frame.encode(), &[]) else {
        panic!("must decode");
    };
    assert_eq!(back.text, "ß".repeat(TEXT_MAX / 2));
}

#[test]
fn texts_cannot_carry_control_characters() {
    let frame = Frame::Refuse(Refusal {
        code: RefusalCode::Device,
        text: "a\u{1b}[2Jb\n".into(),
    });
    let Ok(Some(Frame::Refuse(back))) = feed(&frame.encode(), &[]) else {
        panic!("must decode");
    };
    assert_eq!(back.text, "a [2Jb ");
}
