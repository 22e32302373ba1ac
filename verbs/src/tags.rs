//! Tags of the queues on one completion queue.
//!
//! The id of a work request is a 48-bit sequence number above a 16-bit tag, unique among the queues of its completion queue. A
//! tag is used again after its queue was destroyed; its sequence then goes on where that queue stopped, so that an entry left
//! over from the old queue lies outside the new queue's window. A pair of tag and sequence does not repeat for 300 days at ten
//! million requests a second.
//!
//! What a queue has claimed of the completion queue's room comes back in two steps. Entries of a destroyed queue may still lie
//! in the completion queue, as many as it had work in flight: some devices remove them, others do not, and
//! `ibv_destroy_qp(3)` promises neither. Room for these is given back when the completion queue was polled empty, since a
//! successor's completions could otherwise overflow it.

use std::collections::{HashMap, VecDeque};

/// Never given to a queue: that of work posted raw, whose ids are the user's own above it.
pub(crate) const RAW_TAG: u16 = u16::MAX;
/// Never given to a queue: that of receives in shared queues, which complete on many completion queues. The sequence is the
/// shared queue's number and a slot then.
pub(crate) const SHARED_TAG: u16 = RAW_TAG - 1;
/// Never given to a queue: that of work posted in a scope, whose numbers are the process's.
pub(crate) const SCOPED_TAG: u16 = RAW_TAG - 2;
/// Never given to a queue, nor to anything else.
pub(crate) const NO_TAG: u16 = RAW_TAG - 3;
/// Queues have tags below.
const TAGS: u16 = NO_TAG;

/// A queue's place among those of a completion queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) tag: u16,
    /// First sequence number to use.
    pub(crate) first: u64,
}

/// Where a queue stopped when it was destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// The sequence number it would have used next.
    pub(crate) next: u64,
    /// Work requests whose completions were not taken note of: no more entries can be left.
    pub(crate) in_flight: u32,
}

/// Tags free and given out, and the capacity their queues have claimed.
#[derive(Default)]
pub(crate) struct Tags {
    /// Returned ones, longest unused first.
    free: VecDeque<Tag>,
    /// Tags never given out start here.
    fresh: u32,
    claimed: u64,
    /// What shared receive queues have claimed, by their number.
    shared: HashMap<u32, SharedClaim>,
    /// Entries that destroyed queues may have left, at most.
    leftover: u64,
    /// Destroyed queues that may have left any; counts up.
    departed: u64,
}

/// Room for a shared receive queue, however many queue pairs take from it: its slots are posted again only when their
/// completions were redeemed, so never more of them are outstanding than it has slots, or had before it became smaller.
struct SharedClaim {
    depth: u32,
    /// Queue pairs that complete here.
    users: u32,
    /// Whether one that did is gone.
    used: bool,
}

impl Tags {
    /// What one more queue pair on the shared queue `number` of `depth` would claim.
    pub(crate) fn shared_more(&self, number: u32, depth: u32) -> u64 {
        let has = self.shared.get(&number).map_or(0, |claim| claim.depth);
        u64::from(depth.saturating_sub(has))
    }

    /// A queue pair that takes from the shared queue completes here.
    pub(crate) fn join_shared(&mut self, number: u32, depth: u32) {
        self.claimed += self.shared_more(number, depth);
        let claim = self.shared.entry(number).or_insert(SharedClaim {
            depth,
            users: 0,
            used: false,
        });
        claim.depth = claim.depth.max(depth);
        claim.users += 1;
    }

    /// A queue pair that took from it is gone. If it has `used` the room, any of the receives may have left an entry.
    pub(crate) fn leave_shared(&mut self, number: u32, used: bool) {
        let Some(claim) = self.shared.get_mut(&number) else {
            return;
        };
        claim.users -= 1;
        if claim.users == 0 {
            self.claimed -= u64::from(claim.depth);
            if claim.used || used {
                self.leftover += u64::from(claim.depth);
                self.departed += 1;
            }
            self.shared.remove(&number);
        } else {
            claim.used |= used;
        }
    }

    /// The shared queue has become smaller by so much. Completions of that many may be here and not polled: receives that have
    /// completed are no longer posted, so no device objects.
    pub(crate) fn shared_shrunk(&mut self, number: u32, by: u32) {
        if by > 0 && self.shared.contains_key(&number) {
            self.leftover += u64::from(by);
            self.departed += 1;
        }
    }

    /// What the shared queue would claim more with that depth: nothing where no queue pair takes from it any more.
    pub(crate) fn shared_grows(&self, number: u32, depth: u32) -> u64 {
        match self.shared.contains_key(&number) {
            true => self.shared_more(number, depth),
            false => 0,
        }
    }

    /// The shared queue claims another depth now.
    pub(crate) fn resize_shared(&mut self, number: u32, depth: u32) {
        if let Some(claim) = self.shared.get_mut(&number) {
            self.claimed = self.claimed - u64::from(claim.depth) + u64::from(depth);
            claim.depth = depth;
        }
    }

    /// A tag for a queue that can have `depth` completions outstanding. `None` when 65,532 are in use.
    pub(crate) fn acquire(&mut self, depth: u32) -> Option<Tag> {
        let tag = match u16::try_from(self.fresh) {
            Ok(tag) if tag < TAGS && self.free.is_empty() => {
                self.fresh += 1;
                Tag { tag, first: 0 }
            }
            _ => self.free.pop_front()?,
        };
        self.claimed += u64::from(depth);
        Some(tag)
    }

    /// Takes the tag of a destroyed queue of `depth` back, and notes what it left.
    pub(crate) fn release(&mut self, tag: u16, depth: u32, end: Stopped) {
        self.claimed -= u64::from(depth);
        self.free.push_back(Tag {
            tag,
            first: end.next,
        });
        if end.in_flight > 0 {
            self.leftover += u64::from(end.in_flight);
            self.departed += 1;
        }
    }

    /// The completion queue was empty at a time when the first `departed` queues had gone.
    ///
    /// Does nothing when more have gone since, the next time will tell: sums for each of them would be more than this is worth.
    pub(crate) fn settle(&mut self, departed: u64) {
        if self.departed == departed {
            self.leftover = 0;
        }
    }

    /// Completions that all queues together can have outstanding.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Entries that destroyed queues may have left in the completion queue, at most.
    pub(crate) fn leftover(&self) -> u64 {
        self.leftover
    }

    /// How many queues have gone and left any.
    pub(crate) fn departed(&self) -> u64 {
        self.departed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(next: u64, in_flight: u32) -> Stopped {
        Stopped { next, in_flight }
    }

    #[test]
    fn what_a_queue_left_counts_until_the_completion_queue_was_empty_without_it() {
        let mut tags = Tags::default();
        let [a, b, c] = [(); 3].map(|()| tags.acquire(10).unwrap().tag);
        tags.release(a, 10, stopped(4, 4));
        assert_eq!((tags.claimed(), tags.leftover()), (20, 4));
        // A look that began before this one went says nothing about it.
        let before = tags.departed();
        tags.release(b, 10, stopped(9, 3));
        tags.settle(before);
        assert_eq!((tags.claimed(), tags.leftover()), (10, 7));
        tags.settle(tags.departed());
        assert_eq!((tags.claimed(), tags.leftover()), (10, 0));
        // One that left nothing need not be waited for.
        let before = tags.departed();
        tags.release(c, 10, stopped(9, 0));
        assert_eq!((tags.departed(), tags.leftover()), (before, 0));
    }

    #[test]
    fn a_tag_goes_on_where_its_last_queue_stopped() {
        let mut tags = Tags::default();
        let a = tags.acquire(10).unwrap();
        let b = tags.acquire(20).unwrap();
        assert_ne!(a.tag, b.tag);
        assert_eq!(tags.claimed(), 30);
        tags.release(a.tag, 10, stopped(77, 0));
        assert_eq!(tags.claimed(), 20);
        assert_eq!(
            tags.acquire(1),
            Some(Tag {
                tag: a.tag,
                first: 77
            })
        );
    }

    #[test]
    fn a_shared_queue_claims_its_depth_once() {
        let mut tags = Tags::default();
        tags.join_shared(7, 100);
        assert_eq!((tags.shared_more(7, 100), tags.shared_more(8, 30)), (0, 30));
        tags.join_shared(7, 100);
        tags.join_shared(8, 30);
        assert_eq!(tags.claimed(), 130);
        tags.resize_shared(7, 150);
        tags.resize_shared(9, 1000);
        assert_eq!(tags.claimed(), 180);
        tags.leave_shared(7, true);
        assert_eq!((tags.claimed(), tags.leftover()), (180, 0));
        tags.leave_shared(7, false);
        assert_eq!((tags.claimed(), tags.leftover()), (30, 150));
        tags.settle(tags.departed());
        assert_eq!(tags.leftover(), 0);
        // Nobody shares it here any more, whatever its depth.
        assert_eq!(
            (tags.shared_grows(7, 400), tags.shared_grows(8, 400)),
            (0, 370)
        );
        // Never made: nothing is left.
        tags.leave_shared(8, false);
        assert_eq!((tags.claimed(), tags.leftover()), (0, 0));
    }

    #[test]
    fn all_tags_can_be_used_and_no_more() {
        let mut tags = Tags::default();
        for want in 0..TAGS {
            assert_eq!(tags.acquire(1).unwrap().tag, want);
        }
        assert_eq!(tags.acquire(1), None);
        tags.release(9, 1, stopped(5, 0));
        assert_eq!(tags.acquire(1), Some(Tag { tag: 9, first: 5 }));
    }
}
