//! Two connected ends on the devices under test, and what is seen at them.

use verbatim_tests::{Block, until};
use verbs::{
    Channel, Completion, Context, Cq, Device, Gather, Pd, RcBuilder, Received, RecvError,
    RecvQueue, Scatter, SendQueue, SgeList, WcStatus,
};

/// Names the device of the other end.
pub const PEER: &str = "VERBATIM_PEER_DEVICE";

/// The value of a variable that is set, and not to nothing.
pub fn named_by(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|name| !name.is_empty())
}

/// A device, and the domain of all memory on it.
#[derive(Clone)]
pub struct Side {
    pub ctx: Context,
    pub pd: Pd,
}

/// The sides of the two ends.
pub fn sides() -> (Side, Side) {
    let open = |name: &str| {
        let ctx = Device::open_spec(name).expect("the device under test can be opened");
        let pd = ctx.alloc_pd().expect("a protection domain");
        Side { ctx, pd }
    };
    let first = open(named_by(Device::ENV).as_deref().unwrap_or("soft0"));
    let second = named_by(PEER).map_or_else(|| first.clone(), |name| open(&name));
    (first, second)
}

impl Side {
    /// `rxe` on Soft-RoCE as of Linux 6.1, `others` on every other device. Whoever uses it names what decides.
    pub fn says<T>(&self, others: T, rxe: T) -> T {
        if self.ctx.device_name().starts_with("rxe") {
            rxe
        } else {
            others
        }
    }

    /// One segment with these bytes.
    pub fn bytes(&self, bytes: &[u8]) -> Parts {
        self.parts(&[bytes])
    }

    /// A segment for each.
    pub fn parts(&self, parts: &[&[u8]]) -> Parts {
        let block = |bytes: &&[u8]| {
            self.pd
                .register(bytes.to_vec())
                .expect("memory can be registered")
        };
        Parts(parts.iter().map(block).collect())
    }

    /// A segment of each length.
    pub fn room(&self, lens: &[usize]) -> Parts {
        let parts: Vec<_> = lens.iter().map(|&len| vec![0xee; len]).collect();
        self.parts(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }
}

/// What all queues here hold: a message of any number of segments, also of none.
pub struct Parts(pub Vec<Block>);

impl Parts {
    /// All segments, one after the other.
    pub fn concat(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|block| block.iter().copied())
            .collect()
    }
}

// SAFETY: owned registered memory, which does not move with the vector.
unsafe impl Gather for Parts {
    fn gather(&self, out: &mut SgeList) {
        self.0.iter().for_each(|block| block.gather(out));
    }
}
// SAFETY: as above.
unsafe impl Scatter for Parts {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.iter_mut().for_each(|block| block.scatter(out));
    }
}

/// One end of a connection.
pub struct End {
    pub side: Side,
    pub cq: Cq,
    pub tx: SendQueue<Parts>,
    pub rx: RecvQueue<Parts>,
}

/// Connected ends.
pub fn pair() -> (End, End) {
    pair_with(|_, builder| builder)
}

/// Connected ends; `set` is given 0 for the first and 1 for the second.
pub fn pair_with(set: impl Fn(usize, RcBuilder) -> RcBuilder) -> (End, End) {
    pair_on(set, |_| None)
}

/// Connected ends whose completion queues are on the channels that `channel` makes.
pub fn pair_on(
    set: impl Fn(usize, RcBuilder) -> RcBuilder,
    channel: impl Fn(&Context) -> Option<Channel>,
) -> (End, End) {
    let (one, two) = sides();
    let [a, b] = [one, two].map(|side| {
        let cq = match channel(&side.ctx) {
            Some(channel) => side.ctx.cq(256).channel(&channel).build(),
            None => side.ctx.cq(256).build(),
        };
        (side, cq.expect("a completion queue"))
    });
    let build = |number, (side, cq): &(Side, Cq)| {
        set(number, side.pd.rc(cq)).build().expect("a queue pair")
    };
    let (ready_a, ready_b) = (build(0, &a), build(1, &b));
    let (end_a, end_b) = (ready_a.endpoint(), ready_b.endpoint());
    let end = |ready: verbs::RcReady, peer, (side, cq)| {
        let (tx, rx) = ready.connect(&peer).expect("the queue pairs connect");
        End { side, cq, tx, rx }
    };
    (end(ready_a, end_b, a), end(ready_b, end_a, b))
}

impl End {
    /// The next completion of either queue.
    pub fn completion(&mut self) -> Completion {
        until("a completion comes", || {
            self.cq.poll().expect("the completion queue is well")
        })
    }

    /// The next completion, which must be of a signalled work request that was posted alone.
    pub fn sent(&mut self) -> Result<Parts, WcStatus> {
        let completion = self.completion();
        let mut done = self
            .tx
            .retire(completion)
            .expect("a completion of the send queue");
        let (parts, result) = self.tx.take(&mut done).expect("it ends a work request");
        assert!(self.tx.take(&mut done).is_none(), "and no other");
        result.map(|_| parts).map_err(|e| e.status)
    }

    /// The next completion, which must be of a receive.
    pub fn received(&mut self) -> Result<Received<Parts>, RecvError<Parts>> {
        let completion = self.completion();
        self.rx
            .redeem(completion)
            .expect("a completion of the receive queue")
    }

    /// Posts receives of one segment each.
    pub fn post(&mut self, lens: &[usize]) {
        for &len in lens {
            self.rx
                .post(self.side.room(&[len]))
                .expect("a receive can be posted");
        }
    }

    /// How the next work requests end: so many sends and receives, in whichever order the two queues complete. Every one of
    /// them must have a completion of its own.
    pub fn ends(&mut self, sends: usize, receives: usize) -> (Vec<WcStatus>, Vec<WcStatus>) {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        while sent.len() < sends || received.len() < receives {
            let completion = self.completion();
            if completion.queue() == self.rx.id() {
                received.push(completion.status());
                let _ = self.rx.redeem(completion).expect("a receive in flight");
            } else {
                sent.push(completion.status());
                let mut done = self.tx.retire(completion).expect("a send in flight");
                assert!(self.tx.take(&mut done).is_some());
                assert!(
                    self.tx.take(&mut done).is_none(),
                    "it has a completion of its own"
                );
            }
        }
        (sent, received)
    }

    /// Destroys the queue pair. So many sends and receives must come back, and none of them may have ended otherwise than by
    /// that: on the way to its destruction a queue pair passes through the error state.
    pub fn ends_idle(mut self, sends: usize, receives: usize) {
        let (back, unused) =
            verbs::destroy(self.tx, self.rx).expect("a queue pair can be destroyed");
        assert_eq!((back.len(), unused.len()), (sends, receives));
        while let Some(left) = self.cq.poll().expect("the completion queue is well") {
            assert_eq!(left.status(), WcStatus::WR_FLUSH_ERR);
        }
    }
}

/// That a message from the first end to the second arrives.
pub fn works(a: &mut End, b: &mut End) {
    b.post(&[16]);
    a.tx.send(a.side.bytes(b"works")).signaled().post().unwrap();
    let message = b.received().unwrap();
    assert_eq!(message.byte_len(), 5);
    assert_eq!(&message.into_inner().concat()[..5], b"works");
    assert_eq!(a.sent().unwrap().concat(), b"works");
}
