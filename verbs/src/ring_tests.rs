use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn push<T, O>(ring: &mut Ring<T, O>, value: T) -> Result<u64, T> {
    match ring.vacant() {
        None => Err(value),
        Some(vacant) => {
            let seq = vacant.id();
            vacant.fill(value);
            Ok(seq)
        }
    }
}

/// The id of this sequence number in the first queue.
fn at(seq: u64) -> u64 {
    id(0, seq)
}

/// A ring of a receive queue.
fn receives<T, O>(depth: u32, first: u64) -> Ring<T, O> {
    let mut ring = Ring::new(depth, first);
    ring.in_order();
    ring
}

impl Said for u8 {
    fn leaves_doubt(&self) -> bool {
        false
    }
}

impl Said for () {
    fn leaves_doubt(&self) -> bool {
        false
    }
}

/// As outcomes: "flushed" leaves doubt.
impl Said for &str {
    fn leaves_doubt(&self) -> bool {
        *self == "flushed"
    }
}

#[test]
fn a_flush_says_nothing_good_of_older_work_without_a_completion() {
    let mut r: Ring<u32, &str> = Ring::new(8, 0);
    for v in 0..6 {
        push(&mut r, v).unwrap();
    }
    for (seq, outcome) in [(1, "fine"), (2, "failed"), (4, "flushed")] {
        assert_eq!(r.retire(at(seq), outcome), Some(at(seq + 1)));
    }
    let all: Vec<_> = std::iter::from_fn(|| r.pop(at(5))).collect();
    let want = [
        (0, None),
        (1, Some("fine")),
        (2, Some("failed")),
        (3, Some("flushed")),
        (4, Some("flushed")),
    ];
    assert_eq!(all, want);
}

#[test]
fn a_completion_retires_all_older_slots() {
    let mut r: Ring<&str, u8> = Ring::new(4, 0);
    for v in ["a", "b", "c"] {
        push(&mut r, v).unwrap();
    }
    assert_eq!(r.pop(at(3)), None, "nothing is retired yet");
    assert_eq!(r.retire(at(1), 9), Some(at(2)));
    assert_eq!((r.in_flight(), r.retired_untaken(), r.free()), (1, 2, 1));
    assert_eq!(r.pop(at(2)), Some(("a", None)));
    assert_eq!(r.pop(at(2)), Some(("b", Some(9))));
    assert_eq!(r.pop(at(2)), None);
    assert_eq!(
        r.retire(at(1), 9),
        None,
        "a second completion of the same slot is stale"
    );
    assert_eq!(r.retire(at(0), 9), None);
    assert_eq!(r.retire(at(3), 9), None, "not posted yet");
}

#[test]
fn an_old_token_is_harmless_and_outcomes_stay_with_their_slots() {
    let mut r: Ring<u32, &str> = Ring::new(8, 0);
    (0..4).for_each(|v| assert!(push(&mut r, v).is_ok()));
    assert_eq!(r.retire(at(1), "failed"), Some(at(2)));
    assert_eq!(r.retire(at(3), "fine"), Some(at(4)));
    // The newer token sees the older completion's outcome, not its own, on slot 1.
    let seen: Vec<_> = std::iter::from_fn(|| r.pop(at(4))).collect();
    assert_eq!(
        seen,
        [(0, None), (1, Some("failed")), (2, None), (3, Some("fine"))]
    );
    (4..8).for_each(|v| assert!(push(&mut r, v).is_ok()));
    assert_eq!(r.pop(at(8)), None, "nothing in flight, whatever is asked");
    assert_eq!(r.retire(at(5), "x"), Some(at(6)));
    assert_eq!(r.pop(at(2)), None, "a token of before");
    assert_eq!(r.pop(at(6)), Some((4, None)));
    assert_eq!(r.pop(at(8)), Some((5, Some("x"))));
    assert_eq!(r.pop(at(8)), None);
}

#[test]
fn the_sequence_wraps_without_a_gap() {
    let mut r: Ring<u32, ()> = Ring::new(3, id(TAG, SEQ_MASK - 1));
    for v in 0..100u32 {
        let seq = push(&mut r, v).unwrap();
        let end = r.retire(seq, ()).unwrap();
        assert_eq!(r.pop(end), Some((v, Some(()))));
    }
    assert_eq!(r.stopped().next, 98);
}

#[test]
fn lost_slots_hold_their_place_until_taken() {
    let mut r: Ring<u32, ()> = Ring::new(2, 0);
    push(&mut r, 0).unwrap();
    push(&mut r, 1).unwrap();
    assert_eq!(r.redeem(at(1)), Some(1));
    assert_eq!(r.redeem(at(1)), None);
    assert_eq!(r.redeem(at(0)), None, "retired as lost");
    assert_eq!(r.free(), 0, "slot 0 is still held");
    assert_eq!(r.pop_lost(), Some(0));
    assert_eq!(r.free(), 2);
}

#[test]
fn a_depth_of_zero_takes_nothing() {
    let mut r: Ring<u32, ()> = Ring::new(0, at(5));
    assert_eq!(push(&mut r, 1), Err(1));
    assert_eq!(r.retire(at(5), ()), None);
    assert_eq!(
        (r.pop(at(6)), r.redeem(at(5)), r.pop_lost()),
        (None, None, None)
    );
}

/// That of a queue which is not the first.
const TAG: u16 = 0x1234;

/// The obvious implementation: what is in flight, what is done, by position since the start.
#[derive(Default)]
struct Model {
    done: VecDeque<(u64, u32, Option<u8>)>,
    flying: VecDeque<(u64, u32)>,
    next: u64,
}

impl Model {
    /// Position of the oldest value that is held.
    fn oldest(&self) -> u64 {
        let done = self.done.front().map(|d| d.0);
        done.or(self.flying.front().map(|f| f.0))
            .unwrap_or(self.next)
    }

    fn push(&mut self, depth: u32, value: u32) -> bool {
        let fits = self.next - self.oldest() < u64::from(depth);
        if fits {
            self.flying.push_back((self.next, value));
            self.next += 1;
        }
        fits
    }

    fn retire(&mut self, at: u64, outcome: u8) -> bool {
        let inside = self.flying.iter().any(|f| f.0 == at);
        while inside && self.flying.front().is_some_and(|f| f.0 <= at) {
            let (position, value) = self.flying.pop_front().unwrap();
            self.done
                .push_back((position, value, (position == at).then_some(outcome)));
        }
        inside
    }

    fn left(&self) -> Vec<u32> {
        self.done
            .iter()
            .map(|d| d.1)
            .chain(self.flying.iter().map(|f| f.1))
            .collect()
    }
}

/// What to do, and a position relative to a bit before the oldest value.
fn script() -> impl Strategy<Value = Vec<(u8, u64, u8)>> {
    prop::collection::vec((0u8..5, 0u64..24, any::<u8>()), 0..200)
}

fn first() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, SEQ_MASK - 40..=SEQ_MASK]
}

proptest! {
    #[test]
    fn a_send_ring_behaves_as_the_model(depth in 1u32..9, first in first(), script in script()) {
        let mut ring: Ring<u32, u8> = Ring::new(depth, id(TAG, first));
        let mut model = Model::default();
        for (value, (op, near, outcome)) in script.into_iter().enumerate() {
            let value = value as u32;
            let at = (model.oldest() + near).wrapping_sub(6);
            let id = id(TAG, first.wrapping_add(at));
            match op {
                0 | 1 => prop_assert_eq!(push(&mut ring, value).is_ok(), model.push(depth, value)),
                2 => prop_assert_eq!(ring.retire(id, outcome).is_some(), model.retire(at, outcome)),
                3 => {
                    let can = model.done.is_empty() && model.flying.iter().any(|f| f.0 == at);
                    prop_assert_eq!(ring.differs_from_settling(id) == 0, can);
                    if can {
                        ring.settle(id);
                        model.retire(at, outcome);
                        model.done.back_mut().unwrap().2 = None;
                        for _ in 0..outcome % 4 {
                            let want = model.done.pop_front().map(|d| (d.1, model.done.is_empty()));
                            prop_assert_eq!(ring.take_oldest(), want);
                        }
                    }
                }
                _ => {
                    let covered = model.done.front().is_some_and(|d| d.0 as i64 <= at as i64);
                    let want = if covered { model.done.pop_front() } else { None };
                    prop_assert_eq!(ring.pop(id.wrapping_add(STEP)), want.map(|d| (d.1, d.2)));
                }
            }
            prop_assert_eq!(ring.in_flight() as usize, model.flying.len());
            prop_assert_eq!(ring.retired_untaken() as usize, model.done.len());
        }
        prop_assert_eq!(ring.drain(), model.left());
        prop_assert_eq!(ring.free(), depth);
    }

    #[test]
    fn a_receive_ring_behaves_as_the_model(depth in 1u32..9, first in first(), script in script()) {
        let mut ring: Ring<u32, u8> = receives(depth, id(TAG, first));
        let mut model = Model::default();
        for (value, (op, near, _)) in script.into_iter().enumerate() {
            let value = value as u32;
            let at = (model.oldest() + near).wrapping_sub(6);
            let id = id(TAG, first.wrapping_add(at));
            match op {
                0 | 1 => prop_assert_eq!(push(&mut ring, value).is_ok(), model.push(depth, value)),
                2 => {
                    // The last that was retired is the one redeemed; the older ones stay, lost.
                    let want = if model.retire(at, 0) { model.done.pop_back() } else { None };
                    prop_assert_eq!(ring.redeem(id), want.map(|d| d.1));
                }
                3 => {
                    let next = model.done.is_empty() && at == model.oldest();
                    prop_assert_eq!(ring.differs_from_next(id) == 0, next);
                    if next {
                        let want = model.flying.pop_front().map(|f| f.1);
                        prop_assert_eq!(ring.has_oldest(), want.is_some());
                        prop_assert_eq!(ring.redeem_next(), want);
                    }
                }
                _ => prop_assert_eq!(ring.pop_lost(), model.done.pop_front().map(|d| d.1)),
            }
            prop_assert_eq!(ring.in_flight() as usize, model.flying.len());
            prop_assert_eq!(u64::from(depth - ring.free()), model.next - model.oldest());
        }
        prop_assert_eq!(ring.drain(), model.left());
        prop_assert_eq!(ring.free(), depth);
    }
}

#[test]
fn what_panics_when_it_is_dropped_is_gone_all_the_same() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "dropped");
        }
    }
    let mut r: Ring<Bomb, ()> = Ring::new(4, 0);
    for armed in [false, true, false] {
        assert!(push(&mut r, Bomb(armed)).is_ok());
    }
    let end = r.retire(at(2), ()).unwrap();
    let discard = std::panic::AssertUnwindSafe(|| r.discard(end, |_, _| true));
    assert!(std::panic::catch_unwind(discard).is_err());
    assert_eq!((r.retired_untaken(), r.free()), (1, 3));
    assert!(r.pop(end).is_some_and(|(bomb, _)| !bomb.0));
    assert_eq!(r.free(), 4);
}

#[test]
fn what_is_settled_is_taken_without_its_outcome() {
    let mut r: Ring<u32, u8> = Ring::new(4, id(TAG, SEQ_MASK));
    let ids: Vec<_> = (0..4).map(|v| push(&mut r, v).unwrap()).collect();
    assert_eq!(ids[..2], [id(TAG, SEQ_MASK), id(TAG, 0)], "the tag stays");
    assert_eq!(r.differs_from_settling(ids[1]), 0);
    r.settle(ids[1]);
    assert_ne!(r.differs_from_settling(ids[2]), 0, "two wait to be taken");
    assert_eq!(r.take_oldest(), Some((0, false)));
    assert_eq!(r.take_oldest(), Some((1, true)));
    assert_eq!(r.take_oldest(), None, "nothing in flight");
    let other_tag = ids[2] ^ 1;
    for id in [ids[0], ids[1], ids[3] + STEP, other_tag] {
        assert_ne!(r.differs_from_settling(id), 0, "{id:#x}");
    }
    assert_eq!(r.differs_from_settling(ids[3]), 0);
    assert_eq!((r.in_flight(), r.free()), (2, 2));
}

#[test]
fn the_next_receive_is_redeemed_in_order_only() {
    let mut r: Ring<u32, u8> = receives(4, id(TAG, 7));
    let ids: Vec<_> = (0..3).map(|v| push(&mut r, v).unwrap()).collect();
    assert_eq!(r.differs_from_next(ids[0]), 0);
    for id in [ids[1], ids[0] - STEP, ids[0] ^ 1] {
        assert_ne!(r.differs_from_next(id), 0, "{id:#x}");
    }
    assert_eq!(r.redeem_next(), Some(0));
    assert_eq!(r.redeem(ids[2]), Some(2));
    // One was lost, and has to be taken first.
    assert_ne!(r.differs_from_next(ids[2] + STEP), 0);
    assert_eq!(r.pop_lost(), Some(1));
    assert_eq!(r.free(), 4);
}

#[test]
fn a_device_that_completes_what_was_not_posted_is_not_believed() {
    let mut r: Ring<u32, u8> = receives(4, id(TAG, SEQ_MASK));
    assert_eq!(r.differs_from_next(id(TAG, SEQ_MASK)), 0);
    assert!(!r.has_oldest());
    assert_eq!((r.redeem_next(), r.redeem(id(TAG, SEQ_MASK))), (None, None));
    assert_ne!(r.differs_from_settling(id(TAG, SEQ_MASK)), 0);
    // Nothing has moved.
    assert_eq!(push(&mut r, 1), Ok(id(TAG, SEQ_MASK)));
    assert_eq!((r.redeem_next(), r.in_flight(), r.free()), (Some(1), 0, 4));
}
