//! Several receives with one call of the device.

use std::mem::MaybeUninit;

use ibverbs_sys::{ibv_recv_wr, ibv_sge};

use crate::errno;
use crate::{PostErrorKind, PostedInPart, RecvQueue, Scatter, SgeList};

/// Receives in one chain.
const CHAIN: usize = 16;
/// Segments in one chain.
const SEGMENTS: usize = SgeList::CAPACITY;

/// The receives of one call, on the stack.
struct Chain {
    wrs: [MaybeUninit<ibv_recv_wr>; CHAIN],
    len: usize,
    sges: [MaybeUninit<ibv_sge>; SEGMENTS],
    used: usize,
}

impl Chain {
    #[inline(always)]
    fn new() -> Chain {
        Chain {
            wrs: [MaybeUninit::uninit(); CHAIN],
            len: 0,
            sges: [MaybeUninit::uninit(); SEGMENTS],
            used: 0,
        }
    }

    #[inline(always)]
    fn has_room(&self, segments: usize) -> bool {
        self.len < CHAIN && self.used + segments <= SEGMENTS
    }

    #[inline(always)]
    fn push(&mut self, wr_id: u64, list: &SgeList) {
        let first = self.used;
        for (slot, sge) in self.sges[first..].iter_mut().zip(list.as_slice()) {
            slot.write(ibv_sge {
                addr: sge.addr,
                length: sge.len,
                lkey: sge.lkey.0,
            });
        }
        self.used += list.len();
        self.wrs[self.len].write(ibv_recv_wr {
            wr_id,
            next: std::ptr::null_mut(),
            // Set by `link`.
            sg_list: std::ptr::null_mut(),
            num_sge: list.len() as i32,
        });
        self.len += 1;
    }

    /// The chain as the verbs take it. It must not be moved any more.
    #[inline(always)]
    fn link(&mut self) -> *mut ibv_recv_wr {
        let first = self.wrs.as_mut_ptr().cast::<ibv_recv_wr>();
        let mut sges = self.sges.as_mut_ptr().cast::<ibv_sge>();
        for at in 0..self.len {
            // SAFETY: the first `len` requests were written by `push`, and the pointers stay within the arrays: one more request,
            // and as many segments as `push` counted.
            unsafe {
                let wr = first.add(at);
                (*wr).sg_list = sges;
                sges = sges.add((*wr).num_sge as usize);
                if at + 1 < self.len {
                    (*wr).next = first.add(at + 1);
                }
            }
        }
        first
    }

    /// Which of the chain's requests it is.
    #[cold]
    fn position(&self, bad: *const ibv_recv_wr) -> Option<usize> {
        (0..self.len).find(|&at| std::ptr::eq(self.wrs[at].as_ptr(), bad))
    }
}

impl<T: Scatter + Send + 'static> RecvQueue<T> {
    /// Posts buffers in order, many with one call of the device; how many there were. Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostedInPart`] when one of them cannot be posted: those before it are posted and stay so, it comes back, and those after it
    /// were not taken from the iterator, except for a few that come back as well.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_many(
        &mut self,
        buffers: impl IntoIterator<Item = T>,
    ) -> Result<usize, PostedInPart<T>> {
        let mut posted = 0;
        let mut chain = Chain::new();
        for mut buffer in buffers {
            let mut list = SgeList::new();
            buffer.scatter(&mut list);
            if !chain.has_room(list.len()) {
                if let Err(error) = self.post_chain(&mut chain, &mut posted) {
                    return Err(error.and(buffer));
                }
                chain = Chain::new();
            }
            let max = self.limits.recv_sge as usize;
            let ring = self.half.ring();
            let (depth, untaken) = (ring.depth(), ring.retired_untaken());
            let refused = match ring.vacant() {
                None => PostErrorKind::QueueFull { depth, untaken },
                Some(_) if list.len() > max => PostErrorKind::TooManySegments {
                    count: list.len(),
                    max,
                },
                Some(vacant) => {
                    chain.push(vacant.id(), &list);
                    // In the ring before it is posted: until then it can be taken out again. Should the iterator panic, it stays
                    // there like one whose completion was lost, until a later one comes or the queue is destroyed.
                    vacant.fill(buffer);
                    continue;
                }
            };
            return Err(match self.post_chain(&mut chain, &mut posted) {
                Ok(()) => PostedInPart::new("receives", refused, posted, vec![buffer]),
                Err(error) => error.and(buffer),
            });
        }
        self.post_chain(&mut chain, &mut posted)?;
        Ok(posted)
    }

    #[inline(always)]
    fn post_chain(&mut self, chain: &mut Chain, posted: &mut usize) -> Result<(), PostedInPart<T>> {
        if chain.len == 0 {
            return Ok(());
        }
        let first = chain.link();
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive. The chain ends with null, and the segments are those of the newest values in the ring,
        // where they stay until the device is done: the contract of `Scatter`.
        let ret = unsafe { ibverbs_sys::inline::ibv_post_recv(self.half.qp, first, &mut bad) };
        if ret == 0 {
            *posted += chain.len;
            return Ok(());
        }
        // As for single ones: refused is what the library names as refused.
        let done = chain.position(bad).unwrap_or(chain.len);
        *posted += done;
        self.refused(ret, *posted, chain.len - done)
    }

    /// Takes the newest `count` values out again, which the device has refused.
    #[cold]
    fn refused(&mut self, ret: i32, posted: usize, count: usize) -> Result<(), PostedInPart<T>> {
        if count == 0 {
            return Ok(());
        }
        let errno = errno::number(ret);
        let ring = self.half.ring();
        let mut rest: Vec<T> = (0..count).filter_map(|_| ring.unfill()).collect();
        rest.reverse();
        Err(PostedInPart::new(
            "receives",
            PostErrorKind::Device { errno },
            posted,
            rest,
        ))
    }
}
