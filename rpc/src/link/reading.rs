//! How many bytes of bodies one connection has asked for.
//!
//! A device whose packets go through the kernel answers READs without a pause, into queues of about a thousand packets, and what does not fit is lost.
//! Soft-RoCE then answers the next request with the rest of that READ: its peer asks until its retries are used up, also if it was another
//! connection's packets that took the room, of which there may be a few.

/// Most packets that answer all READs of bodies which are out at once.
const PACKETS: u32 = 256;

/// As many bytes as need not be in two READs. Of fewer, the second is on its way while the completion of the first is looked for.
const LONG: u32 = 1 << 20;

/// What may be asked for, and what has been.
#[derive(Debug)]
pub(super) struct Reading {
    most: u32,
    longest: u32,
    out: u32,
}

impl Reading {
    /// On a path whose packets have so many bytes.
    pub fn new(mtu: u32) -> Reading {
        let most = PACKETS * mtu;
        let longest = if most < LONG { most / 2 } else { most };
        let out = 0;
        Reading { most, longest, out }
    }

    /// How long a READ is that could have so many bytes; `None` if it has to wait for others. It is not made to fit beside them: many short ones would
    /// follow it.
    #[inline]
    pub fn room(&self, len: u32) -> Option<u32> {
        let len = len.min(self.longest);
        (len <= self.most - self.out).then_some(len)
    }

    /// A READ of so many bytes, for which there is [room](Self::room), is on its way.
    #[inline]
    pub fn begin(&mut self, len: u32) {
        debug_assert_eq!(self.room(len), Some(len), "I5: too many bytes in READs");
        self.out += len;
    }

    /// It is over.
    #[inline]
    pub fn end(&mut self, len: u32) {
        self.out -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn where_packets_are_short_two_are_on_their_way() {
        let longest = |mtu| Reading::new(mtu).room(u32::MAX).unwrap() >> 10;
        assert_eq!(
            [256, 512, 1024, 2048, 4096].map(longest),
            [32, 64, 128, 256, 1024]
        );
        let mut reading = Reading::new(1024);
        reading.begin(128 << 10);
        reading.begin(100 << 10);
        assert_eq!(reading.room(28 << 10), Some(28 << 10));
        assert_eq!(reading.room((28 << 10) + 1), None, "not made to fit");
        reading.end(100 << 10);
        assert_eq!(reading.room(u32::MAX), Some(128 << 10));
    }

    proptest! {
        #[test]
        fn there_are_never_more_packets_than_queues_take(
            mtu in prop::sample::select(vec![256u32, 512, 1024, 2048, 4096]),
            steps in prop::collection::vec((any::<bool>(), 1u32..2 << 20, any::<usize>()), 0..100),
        ) {
            let mut reading = Reading::new(mtu);
            let mut out = Vec::new();
            for (begins, len, which) in steps {
                let room = reading.room(len);
                prop_assert!(room.is_some() || !out.is_empty(), "there is room for one");
                match room.filter(|_| begins) {
                    Some(len) => {
                        reading.begin(len);
                        out.push(len);
                    }
                    None if !out.is_empty() => {
                        reading.end(out.swap_remove(which % out.len()));
                    }
                    None => {}
                }
                prop_assert!(out.iter().sum::<u32>().div_ceil(mtu) <= 256);
            }
        }
    }
}
