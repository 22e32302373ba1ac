//! Tags of the queues on one completion queue.
//!
//! The id of a work request is a 16-bit tag, unique among the queues of its completion queue, and a 48-bit sequence number. A
//! tag is used again after its queue was destroyed; its sequence then goes on where that queue stopped, so that an entry left
//! over from the old queue lies outside the new queue's window. A pair of tag and sequence does not repeat for 300 days at ten
//! million requests a second.

use std::collections::VecDeque;

/// A queue's place among those of a completion queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) tag: u16,
    /// First sequence number to use.
    pub(crate) first: u64,
}

/// Tags free and given out, and the capacity their queues have claimed.
#[derive(Default)]
pub(crate) struct Tags {
    /// Returned ones, longest unused first.
    free: VecDeque<Tag>,
    /// Tags never given out start here.
    fresh: u32,
    claimed: u64,
}

impl Tags {
    /// A tag for a queue that can have `depth` completions outstanding. `None` when 65,536 are in use.
    pub(crate) fn acquire(&mut self, depth: u32) -> Option<Tag> {
        let tag = match u16::try_from(self.fresh) {
            Ok(tag) if self.free.is_empty() => {
                self.fresh += 1;
                Tag { tag, first: 0 }
            }
            _ => self.free.pop_front()?,
        };
        self.claimed += u64::from(depth);
        Some(tag)
    }

    /// Takes the tag of a destroyed queue back; `next` is the sequence number it would have used.
    pub(crate) fn release(&mut self, tag: u16, next: u64, depth: u32) {
        self.claimed -= u64::from(depth);
        self.free.push_back(Tag { tag, first: next });
    }

    /// Completions that all queues together can have outstanding.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_on_where_its_last_queue_stopped() {
        let mut tags = Tags::default();
        let a = tags.acquire(10).unwrap();
        let b = tags.acquire(20).unwrap();
        assert_ne!(a.tag, b.tag);
        assert_eq!(tags.claimed(), 30);
        tags.release(a.tag, 77, 10);
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
    fn all_tags_can_be_used_and_no_more() {
        let mut tags = Tags::default();
        for want in 0..=u16::MAX {
            assert_eq!(tags.acquire(1).unwrap().tag, want);
        }
        assert_eq!(tags.acquire(1), None);
        tags.release(9, 5, 1);
        assert_eq!(tags.acquire(1), Some(Tag { tag: 9, first: 5 }));
    }
}
