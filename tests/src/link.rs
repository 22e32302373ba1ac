//! A queue pair between the two processes of a test.

use verbs::{
    Completion, Context, Cq, Device, Endpoint, Gather, Pd, Private, RecvQueue, Scatter, SendQueue,
    SgeList,
};

use crate::{Control, until};

/// What most tests post.
pub type Block = Private<Vec<u8>>;

/// The beginning of a block: a message of any length, also of none, which no memory region has.
pub struct Cut {
    block: Block,
    len: usize,
}

impl Cut {
    /// A pattern of `len` bytes in memory of its own.
    pub fn pattern(pd: &Pd, len: usize, seed: u64) -> Cut {
        let mut bytes = pattern(len, seed);
        bytes.push(0xdd);
        let block = pd.register(bytes).expect("memory can be registered");
        Cut { block, len }
    }
}

// SAFETY: the segment lies in the block, which is a `Gather` by itself and owned by this value.
unsafe impl Gather for Cut {
    fn gather(&self, out: &mut SgeList) {
        out.push_bytes(self.block.as_ptr() as u64, self.len, self.block.lkey());
    }
}

/// One side of a connected queue pair on `soft0`, and what it stands on.
pub struct Link<S = Block, R = Block> {
    /// The open device.
    pub ctx: Context,
    /// The domain of all memory.
    pub pd: Pd,
    /// Where both queues complete.
    pub cq: Cq,
    /// The send queue.
    pub tx: SendQueue<S>,
    /// The receive queue.
    pub rx: RecvQueue<R>,
}

impl<S: Gather, R: Scatter> Link<S, R> {
    /// Connects with the other process, which does the same; queues of `depth` work requests each.
    pub fn new(control: &mut Control, depth: u32) -> Link<S, R> {
        let ctx = Device::open_spec("soft0").expect("soft0 can be opened");
        let pd = ctx.alloc_pd().expect("a protection domain");
        let cq = ctx.cq(2 * depth).build().expect("a completion queue");
        let ready = pd
            .rc(&cq)
            .send_depth(depth)
            .recv_depth(depth)
            .build()
            .expect("a queue pair");
        control.send(ready.endpoint().to_bytes());
        let peer = Endpoint::from_bytes(&control.receive()).expect("the peer's end point");
        let (tx, rx) = ready.connect(&peer).expect("the queue pairs connect");
        control.send("connected");
        control.expect("connected");
        Link {
            ctx,
            pd,
            cq,
            tx,
            rx,
        }
    }

    /// The next completion of either queue.
    pub fn completion(&mut self) -> Completion {
        let cq = &mut self.cq;
        until("a completion comes", || {
            cq.poll().expect("the completion queue is well")
        })
    }

    /// Waits for a signalled work request of the send queue that must succeed, and for nothing else; gives back what was sent.
    pub fn sent(&mut self) -> S {
        let completion = self.completion();
        let mut done = self
            .tx
            .retire(completion)
            .expect("a completion of the send queue");
        let (sent, result) = self.tx.take(&mut done).expect("it ends a work request");
        result.expect("the work request succeeds");
        sent
    }

    /// Waits for a message and for nothing else.
    pub fn received(&mut self) -> verbs::Received<R> {
        let completion = self.completion();
        self.rx
            .redeem(completion)
            .expect("a completion of the receive queue")
            .expect("the receive succeeds")
    }
}

/// Bytes that tell where they belong: each depends on its position and on `seed`.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// Fills with what [`pattern`] gives.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let count = words.len();
    for (i, word) in words.iter_mut().enumerate() {
        *word = at(i, seed);
    }
    rest.copy_from_slice(&at(count, seed)[..rest.len()]);
}

/// Whether the bytes are what [`pattern`] gives.
pub fn is_pattern(bytes: &[u8], seed: u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let same = words
        .iter()
        .enumerate()
        .all(|(i, word)| *word == at(i, seed));
    same && rest == &at(words.len(), seed)[..rest.len()]
}

fn at(index: usize, seed: u64) -> [u8; 8] {
    (index as u64 ^ seed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_recognised_and_a_flaw_in_it_too() {
        for len in [0, 1, 7, 8, 9, 100] {
            let mut bytes = pattern(len, 3);
            assert!(is_pattern(&bytes, 3));
            for i in 0..len {
                bytes[i] ^= 1;
                assert!(!is_pattern(&bytes, 3), "{len} {i}");
                bytes[i] ^= 1;
            }
        }
    }
}
