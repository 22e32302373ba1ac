//! Splitting and joining, against vectors that know where each of their bytes came from.

use super::{MIB, user_pool};
use crate::{Buf, Pool, SharedBuf};
use proptest::prelude::*;

/// What is done to the parts; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Alloc(usize),
    SplitOff(usize, usize),
    SplitTo(usize, usize),
    Advance(usize, usize),
    Truncate(usize, usize),
    Unsplit(usize, usize),
    Write(usize, u8),
    Freeze(usize),
    Unfreeze(usize),
    Slice(usize, usize, usize),
    Drop(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0usize..64;
    let at = 0usize..400;
    prop_oneof![
        1 => (1usize..300).prop_map(Op::Alloc),
        1 => (n.clone(), at.clone()).prop_map(|(i, at)| Op::SplitOff(i, at)),
        1 => (n.clone(), at.clone()).prop_map(|(i, at)| Op::SplitTo(i, at)),
        1 => (n.clone(), 0usize..40).prop_map(|(i, at)| Op::Advance(i, at)),
        1 => (n.clone(), at.clone()).prop_map(|(i, at)| Op::Truncate(i, at)),
        4 => (n.clone(), n.clone()).prop_map(|(i, j)| Op::Unsplit(i, j)),
        1 => (n.clone(), any::<u8>()).prop_map(|(i, b)| Op::Write(i, b)),
        1 => n.clone().prop_map(Op::Freeze),
        1 => n.clone().prop_map(Op::Unfreeze),
        1 => (n.clone(), at.clone(), at).prop_map(|(i, a, b)| Op::Slice(i, a, b)),
        1 => n.prop_map(Op::Drop),
    ]
}

#[derive(Debug)]
enum Real {
    Unique(Buf),
    Frozen(SharedBuf),
}

/// Which allocation the bytes are of, where they begin in it, and what they are.
#[derive(Debug, Clone)]
struct Model {
    slab: usize,
    start: usize,
    bytes: Vec<u8>,
}

impl Real {
    fn bytes(&self) -> &[u8] {
        match self {
            Real::Unique(buf) => buf,
            Real::Frozen(buf) => buf,
        }
    }

    fn split_off(&mut self, at: usize) -> Real {
        match self {
            Real::Unique(buf) => Real::Unique(buf.split_off(at)),
            Real::Frozen(buf) => Real::Frozen(buf.split_off(at)),
        }
    }

    fn split_to(&mut self, at: usize) -> Real {
        match self {
            Real::Unique(buf) => Real::Unique(buf.split_to(at)),
            Real::Frozen(buf) => Real::Frozen(buf.split_to(at)),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Real::Unique(buf) => buf.advance(count),
            Real::Frozen(buf) => buf.advance(count),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Real::Unique(buf) => buf.truncate(len),
            Real::Frozen(buf) => buf.truncate(len),
        }
    }

    /// The second one if it cannot be.
    fn unsplit(&mut self, tail: Real) -> Option<Real> {
        match (self, tail) {
            (Real::Unique(a), Real::Unique(b)) => a.unsplit(b).err().map(Real::Unique),
            (Real::Frozen(a), Real::Frozen(b)) => a.unsplit(b).err().map(Real::Frozen),
            (_, tail) => Some(tail),
        }
    }

    fn is_frozen(&self) -> bool {
        matches!(self, Real::Frozen(_))
    }
}

impl Model {
    fn split_off(&mut self, at: usize) -> Model {
        Model {
            slab: self.slab,
            start: self.start + at,
            bytes: self.bytes.split_off(at),
        }
    }

    /// Whether `tail` lies directly behind; of no bytes, anywhere does.
    fn is_followed_by(&self, tail: &Model) -> bool {
        self.bytes.is_empty()
            || tail.bytes.is_empty()
            || (self.slab, self.start + self.bytes.len()) == (tail.slab, tail.start)
    }

    fn unsplit(&mut self, tail: Model) {
        if self.bytes.is_empty() {
            *self = tail;
        } else {
            self.bytes.extend(tail.bytes);
        }
    }
}

fn live(pool: &Pool) -> usize {
    pool.stats().classes.iter().map(|c| c.live).sum()
}

fn apply(pool: &Pool, parts: &mut Vec<(Real, Model)>, slabs: &mut usize, op: Op) {
    if let Op::Alloc(len) = op {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + *slabs) as u8).collect();
        let real = Real::Unique(pool.alloc_from_slice(&bytes).unwrap());
        let model = Model {
            slab: *slabs,
            start: 0,
            bytes,
        };
        *slabs += 1;
        parts.push((real, model));
        return;
    }
    let count = parts.len();
    if count == 0 {
        return;
    }
    match op {
        Op::Alloc(_) => {}
        Op::SplitOff(i, at) => {
            let (real, model) = &mut parts[i % count];
            let at = at % (model.bytes.len() + 1);
            let tail = (real.split_off(at), model.split_off(at));
            parts.push(tail);
        }
        Op::SplitTo(i, at) => {
            let (real, model) = &mut parts[i % count];
            let at = at % (model.bytes.len() + 1);
            let head = real.split_to(at);
            let tail = model.split_off(at);
            let head = (head, std::mem::replace(model, tail));
            parts.push(head);
        }
        Op::Advance(i, by) => {
            let (real, model) = &mut parts[i % count];
            let by = by % (model.bytes.len() + 1);
            real.advance(by);
            *model = model.split_off(by);
        }
        Op::Truncate(i, len) => {
            let (real, model) = &mut parts[i % count];
            real.truncate(len);
            model.bytes.truncate(len);
        }
        Op::Unsplit(i, j) => {
            let (i, j) = (i % count, j % count);
            if i == j {
                return;
            }
            let (tail, tail_model) = parts.swap_remove(j);
            // What was last is where `j` was.
            let i = if i == parts.len() { j } else { i };
            let (real, model) = &mut parts[i];
            let fits = real.is_frozen() == tail.is_frozen() && model.is_followed_by(&tail_model);
            let refused = real.unsplit(tail);
            assert_eq!(refused.is_none(), fits, "{model:?} and {tail_model:?}");
            match refused {
                None => model.unsplit(tail_model),
                Some(tail) => parts.push((tail, tail_model)),
            }
        }
        Op::Write(i, byte) => {
            if let (Real::Unique(buf), model) = &mut parts[i % count] {
                buf.fill(byte);
                model.bytes.fill(byte);
            }
        }
        Op::Freeze(i) => {
            let (real, model) = parts.swap_remove(i % count);
            let real = match real {
                Real::Unique(buf) => Real::Frozen(buf.freeze()),
                frozen => frozen,
            };
            parts.push((real, model));
        }
        Op::Unfreeze(i) => {
            let (real, model) = parts.swap_remove(i % count);
            // Without bytes, it may be without a slab.
            let alone = model.bytes.is_empty()
                || parts
                    .iter()
                    .all(|(_, other)| other.slab != model.slab || other.bytes.is_empty());
            let real = match real {
                Real::Frozen(buf) => match buf.try_unfreeze() {
                    Ok(buf) => {
                        // The other way round it need not be: a part that was truncated to nothing still holds the slab.
                        assert!(alone, "others see what could be written now");
                        Real::Unique(buf)
                    }
                    Err(buf) => Real::Frozen(buf),
                },
                unique => unique,
            };
            parts.push((real, model));
        }
        Op::Slice(i, a, b) => {
            if let (Real::Frozen(buf), model) = &parts[i % count] {
                let end = b % (model.bytes.len() + 1);
                let start = a % (end + 1);
                let part = Real::Frozen(buf.slice(start..end));
                let model = Model {
                    slab: model.slab,
                    start: model.start + start,
                    bytes: model.bytes[start..end].to_vec(),
                };
                parts.push((part, model));
            }
        }
        Op::Drop(i) => drop(parts.swap_remove(i % count)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn parts_are_those_of_the_model(ops in prop::collection::vec(op(), 1..80)) {
        let (pool, _) = user_pool(MIB);
        let (mut parts, mut slabs) = (Vec::new(), 0);
        for op in ops {
            apply(&pool, &mut parts, &mut slabs, op);
            for (real, model) in &parts {
                prop_assert_eq!(real.bytes(), &model.bytes[..]);
            }
            // Where they have bytes, parts of one slab lie as far apart as in the model.
            for (a, of_a) in &parts {
                for (b, of_b) in &parts {
                    if of_a.slab == of_b.slab && !of_a.bytes.is_empty() && !of_b.bytes.is_empty() {
                        let apart = a.bytes().as_ptr().addr().wrapping_sub(b.bytes().as_ptr().addr());
                        prop_assert_eq!(apart, of_a.start.wrapping_sub(of_b.start));
                    }
                }
            }
        }
        let mut held: Vec<usize> = parts.iter().filter(|(_, m)| !m.bytes.is_empty()).map(|(_, m)| m.slab).collect();
        held.sort_unstable();
        held.dedup();
        prop_assert!(live(&pool) >= held.len());
        drop(parts);
        prop_assert_eq!(live(&pool), 0);
    }
}

#[test]
fn what_was_advanced_over_is_freed_with_the_rest() {
    let (pool, _) = user_pool(MIB);
    let mut buf = pool.alloc_from_slice(&[1, 2, 3, 4]).unwrap();
    let start = buf.as_ptr();
    buf.advance(1);
    assert_eq!((&buf[..], live(&pool)), (&[2, 3, 4][..], 1));
    assert_eq!(buf.as_ptr().addr() - start.addr(), 1);
    // It counts as one handle still: alone, it may be written again.
    let mut shared = buf.freeze();
    shared.advance(1);
    let mut buf = shared.try_unfreeze().unwrap();
    buf.advance(1);
    assert_eq!((&buf[..], live(&pool)), (&[4][..], 1));
    // Of a clone, the others do not know.
    let mut shared = buf.freeze();
    let other = shared.clone();
    shared.advance(1);
    assert!(shared.is_empty());
    assert_eq!((&other[..], live(&pool)), (&[4][..], 1));
    // Nothing left for it, it has let go already.
    let mut buf = other.try_unfreeze().unwrap();
    buf.advance(1);
    assert_eq!(live(&pool), 0);
    assert!(buf.is_empty());
}

#[test]
#[should_panic(expected = "advance by 3 of 2 bytes")]
fn no_more_is_advanced_over_than_there_is() {
    let (pool, _) = user_pool(MIB);
    pool.alloc(2).unwrap().advance(3);
}
