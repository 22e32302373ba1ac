use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[test]
fn a_completion_retires_all_older_slots() {
    let mut r: Ring<&str, u8> = Ring::new(4, 0);
    for v in ["a", "b", "c"] {
        r.push(v).unwrap();
    }
    assert_eq!(r.pop(2), None, "nothing is retired yet");
    assert!(r.retire(1, 9));
    assert_eq!((r.in_flight(), r.retired_untaken(), r.free()), (1, 2, 1));
    assert_eq!(r.pop(1), Some(("a", None)));
    assert_eq!(r.pop(1), Some(("b", Some(9))));
    assert_eq!(r.pop(1), None);
    assert!(
        !r.retire(1, 9),
        "a second completion of the same slot is stale"
    );
    assert!(!r.retire(0, 9));
    assert!(!r.retire(3, 9), "not posted yet");
}

#[test]
fn an_old_token_is_harmless_and_outcomes_stay_with_their_slots() {
    let mut r: Ring<u32, &str> = Ring::new(8, 0);
    (0..4).for_each(|v| r.push(v).unwrap());
    assert!(r.retire(1, "failed"));
    assert!(r.retire(3, "fine"));
    // The newer token sees the older completion's outcome, not its own, on slot 1.
    let seen: Vec<_> = std::iter::from_fn(|| r.pop(3)).collect();
    assert_eq!(
        seen,
        [(0, None), (1, Some("failed")), (2, None), (3, Some("fine"))]
    );
    (4..8).for_each(|v| r.push(v).unwrap());
    assert!(r.retire(5, "x"));
    assert_eq!(r.pop(1), None, "a token of before");
    assert_eq!(
        r.pop(7),
        None,
        "a token that was never handed out reaches nothing in flight"
    );
    assert_eq!(r.pop(5), Some((4, None)));
}

#[test]
fn the_sequence_wraps_without_a_gap() {
    let mut r: Ring<u32, ()> = Ring::new(3, SEQ_MASK - 1);
    for v in 0..100u32 {
        let seq = r.next_seq();
        r.push(v).unwrap();
        assert!(r.retire(seq, ()));
        assert_eq!(r.pop(seq), Some((v, Some(()))));
    }
    assert_eq!(r.next_seq(), 98);
}

#[test]
fn lost_slots_hold_their_place_until_taken() {
    let mut r: Ring<u32, ()> = Ring::new(2, 0);
    r.push(0).unwrap();
    r.push(1).unwrap();
    assert!(r.retire(1, ()));
    assert_eq!(r.take(1), Some((1, Some(()))));
    assert_eq!(r.take(1), None);
    assert_eq!(r.free(), 0, "slot 0 is still held");
    assert_eq!(r.pop_oldest(), Some((0, None)));
    assert_eq!(r.free(), 2);
}

#[test]
fn a_depth_of_zero_takes_nothing() {
    let mut r: Ring<u32, ()> = Ring::new(0, 5);
    assert_eq!(r.push(1), Err(1));
    assert!(!r.retire(5, ()));
    assert_eq!(r.pop_oldest(), None);
}

/// The obvious implementation: three queues.
#[derive(Default)]
struct Model {
    done: VecDeque<(u64, u32, Option<u8>)>,
    flying: VecDeque<(u64, u32)>,
    next: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Push,
    Retire(u64, u8),
    Pop(u64),
    PopOldest,
    Take(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let near = 0..24u64;
    let op = prop_oneof![
        4 => Just(Op::Push),
        2 => (near.clone(), any::<u8>()).prop_map(|(a, b)| Op::Retire(a, b)),
        2 => near.clone().prop_map(Op::Pop),
        1 => Just(Op::PopOldest),
        1 => near.prop_map(Op::Take),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    #[test]
    fn behaves_as_the_model(depth in 1u32..9, first in prop_oneof![0u64..4, SEQ_MASK - 40..=SEQ_MASK], ops in ops()) {
        let mut ring: Ring<u32, u8> = Ring::new(depth, first);
        let mut model = Model::default();
        let mut value = 0;
        for op in ops {
            // Positions in the script are relative to a bit before the oldest value.
            let at = |rel: u64, m: &Model| {
                let oldest = m.done.front().map(|d| d.0).or(m.flying.front().map(|f| f.0)).unwrap_or(m.next);
                (oldest + rel).wrapping_sub(6)
            };
            match op {
                Op::Push => {
                    value += 1;
                    let used = match (model.done.front(), model.flying.front()) {
                        (Some(d), _) => model.next - d.0,
                        (None, Some(f)) => model.next - f.0,
                        (None, None) => 0,
                    };
                    let fits = used < u64::from(depth);
                    prop_assert_eq!(ring.push(value).is_ok(), fits);
                    if fits {
                        model.flying.push_back((model.next, value));
                        model.next += 1;
                    }
                }
                Op::Retire(rel, outcome) => {
                    let seq = at(rel, &model);
                    let inside = model.flying.iter().any(|f| f.0 == seq);
                    prop_assert_eq!(ring.retire(first.wrapping_add(seq) & SEQ_MASK, outcome), inside);
                    while inside && model.flying.front().is_some_and(|f| f.0 <= seq) {
                        let (s, v) = model.flying.pop_front().unwrap();
                        model.done.push_back((s, v, (s == seq).then_some(outcome)));
                    }
                }
                Op::Pop(rel) => {
                    let upto = at(rel, &model);
                    let valid = model.done.iter().any(|d| d.0 <= upto) && upto < model.flying.front().map_or(model.next, |f| f.0)
                        && upto < u64::MAX / 2;
                    let want = if valid { model.done.pop_front().map(|d| (d.1, d.2)) } else { None };
                    prop_assert_eq!(ring.pop(first.wrapping_add(upto) & SEQ_MASK), want);
                }
                Op::PopOldest => {
                    let want = model.done.pop_front().map(|d| (d.1, d.2));
                    prop_assert_eq!(ring.pop_oldest(), want);
                }
                Op::Take(rel) => {
                    let seq = at(rel, &model);
                    let want = model.done.iter().position(|d| d.0 == seq).and_then(|i| model.done.remove(i)).map(|d| (d.1, d.2));
                    prop_assert_eq!(ring.take(first.wrapping_add(seq) & SEQ_MASK), want);
                }
            }
            prop_assert_eq!(ring.in_flight() as usize, model.flying.len());
        }
        let left: Vec<u32> = model.done.iter().map(|d| d.1).chain(model.flying.iter().map(|f| f.1)).collect();
        prop_assert_eq!(ring.drain(), left);
        prop_assert_eq!(ring.free(), depth);
    }
}
