//! Two connected queue pairs, and waiting with a hang limit.
//!
//! The device is `soft0`, or the one that `VERBATIM_DEVICE` names: the tests that use this say what any device does. Where one is
//! known to do something else than the specification says, the test accepts that of this device only.
//! `VERBATIM_TEST_SLOWNESS` multiplies the hang limit, for emulated machines. In the binary `extended`, pairs are made of extended queue pairs and
//! completion queues, which nothing else must notice.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use verbs::{
    Completion, Context, Cq, Device, Pd, PostError, Private, RcBuilder, Received, RecvError,
    RecvQueue, SendQueue, Wc, WcError, WcFields,
};

pub type Buf = Private<Vec<u8>>;

/// Nothing here takes a second; a test that reaches this hangs.
pub fn hang() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let times = match std::env::var("VERBATIM_TEST_SLOWNESS") {
            Ok(text) => text
                .parse()
                .expect("VERBATIM_TEST_SLOWNESS is a whole number"),
            Err(_) => 1,
        };
        Duration::from_secs(30) * times
    })
}

/// The device under test.
pub fn device() -> Context {
    let named = std::env::var(Device::ENV).ok().filter(|v| !v.is_empty());
    Device::open_spec(named.as_deref().unwrap_or("soft0")).unwrap()
}

/// Whether it is the kernel's Soft-RoCE, `rdma_rxe`, by its usual name.
pub fn is_rxe(ctx: &Context) -> bool {
    ctx.device_name().starts_with("rxe")
}

/// Whether pairs are extended ones.
pub fn extended() -> bool {
    env!("CARGO_CRATE_NAME") == "extended"
}

/// One side of a connection.
pub struct End<S = Buf, R = Buf> {
    pub cq: Cq,
    pub tx: SendQueue<S>,
    pub rx: RecvQueue<R>,
}

/// Two sides, connected, each with a completion queue of its own.
pub fn pair_of<S: Send + 'static, R: Send + 'static>(
    pd: &Pd,
    set: impl Fn(RcBuilder) -> RcBuilder,
) -> (End<S, R>, End<S, R>) {
    let extended = extended();
    let cqs = [0, 1].map(|_| match pd.context().cq(256) {
        cq if extended => cq.extended(WcFields::empty()).build().unwrap(),
        cq => cq.build().unwrap(),
    });
    let [ready_a, ready_b] = [0, 1].map(|i| match set(pd.rc(&cqs[i])) {
        qp if extended => qp.extended().build().unwrap(),
        qp => qp.build().unwrap(),
    });
    let (a, b) = (ready_a.endpoint(), ready_b.endpoint());
    let [cq_a, cq_b] = cqs;
    let (tx, rx) = ready_a.connect(&b).unwrap();
    let a_end = End { cq: cq_a, tx, rx };
    let (tx, rx) = ready_b.connect(&a).unwrap();
    (a_end, End { cq: cq_b, tx, rx })
}

pub fn pair(pd: &Pd) -> (End, End) {
    pair_of(pd, |b| b)
}

pub fn buf(pd: &Pd, bytes: &[u8]) -> Buf {
    pd.register(bytes.to_vec()).unwrap()
}

pub fn room(pd: &Pd, len: usize) -> Buf {
    pd.register(vec![0xee; len]).unwrap()
}

/// Repeats `f` until it yields something.
pub fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = f() {
            return found;
        }
        assert!(start.elapsed() < hang(), "hangs: {what}");
        std::thread::yield_now();
    }
}

/// The next completion of the queue.
pub fn next(cq: &mut Cq) -> Completion {
    until("a completion", || cq.poll().unwrap())
}

impl<S: Send + 'static, R: Send + 'static> End<S, R> {
    /// The next completion, which must be the receive queue's.
    pub fn received(&mut self) -> Result<Received<R>, RecvError<R>> {
        let wc = next(&mut self.cq);
        assert_eq!(wc.queue(), self.rx.id());
        self.rx.redeem(wc).unwrap()
    }

    /// The next completion, which must be the send queue's; all that it retires.
    pub fn sent(&mut self) -> Vec<(S, Result<Wc, WcError>)> {
        let wc = next(&mut self.cq);
        assert_eq!(wc.queue(), self.tx.id());
        let mut done = self.tx.retire(wc).unwrap();
        std::iter::from_fn(|| self.tx.take(&mut done)).collect()
    }

    /// As `sent`, for exactly one success.
    pub fn sent_one(&mut self) -> S {
        let mut all = self.sent();
        assert_eq!(all.len(), 1);
        let (value, result) = all.remove(0);
        result.unwrap();
        value
    }
}

/// What `post` refused, and the work it gave back.
pub fn refused<T>(result: Result<(), PostError<T>>) -> (verbs::PostErrorKind, T) {
    let e = result.expect_err("must be refused");
    (e.kind(), e.into_inner())
}
