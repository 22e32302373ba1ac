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

    /// Most bytes that the next READ fetches; 0 if it has to wait for others.
    #[inline]
    pub fn room(&self) -> u32 {
        let room = (self.most - self.out).min(self.longest);
        // Little that is left beside others is not worth a READ.
        if room < self.longest / 8 { 0 } else { room }
    }

    /// A READ of so many bytes, for which there is [room](Self::room), is on its way.
    #[inline]
    pub fn begin(&mut self, len: u32) {
        debug_assert!(len <= self.room(), "I5: too many bytes in READs");
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
        let longest = [256, 512, 1024, 2048, 4096].map(|mtu| Reading::new(mtu).room());
        assert_eq!(longest, [32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20]);
        let mut reading = Reading::new(1024);
        reading.begin(128 << 10);
        reading.begin(100 << 10);
        assert_eq!(reading.room(), 28 << 10);
        reading.begin(20 << 10);
        assert_eq!(reading.room(), 0, "a READ of 8 KiB");
        reading.end(20 << 10);
        reading.end(128 << 10);
        assert_eq!(reading.room(), 128 << 10);
    }

    proptest! {
        #[test]
        fn there_are_never_more_packets_than_queues_take(
            mtu in prop::sample::select(vec![256u32, 512, 1024, 2048, 4096]),
            steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..100),
        ) {
            let mut reading = Reading::new(mtu);
            let mut out = Vec::new();
            for (begins, random) in steps {
                match reading.room() {
                    room @ 1.. if begins => {
                        let len = 1 + random % room;
                        reading.begin(len);
                        out.push(len);
                    }
                    _ => {
                        if !out.is_empty() {
                            reading.end(out.swap_remove(random as usize % out.len()));
                        }
                    }
                }
                prop_assert!(out.iter().sum::<u32>().div_ceil(mtu) <= 256);
                prop_assert!(!out.is_empty() || reading.room() > 0);
            }
        }
    }
}
