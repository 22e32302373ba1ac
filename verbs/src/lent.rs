//! What a scope has lent to a device, and how it gets it back: see [`Scope`](crate::Scope) and [`RecvScope`](crate::RecvScope).

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cq::Kept;
use crate::ring::{SEQ_MASK, id};
use crate::tags::SCOPED_TAG;
use crate::{Cq, Error, PostErrorKind, RecvQueue, SendQueue, Wc, WcError};

/// Work of a scope did not succeed, or there was no scope.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// A piece of work failed, the first of them in this way.
    #[error(transparent)]
    Work(#[from] WcError),
    /// The completion queue is not the send queue's. The closure was not called.
    #[error("the send queue completes on another completion queue than the one given")]
    OtherCompletionQueue,
    /// The completion queue broke while work was outstanding; the queue pair was taken down to get the memory back. How the work ended
    /// is not known.
    #[error(
        "the completion queue is broken: the queue pair was reset, and how its work ended is not known"
    )]
    Broken,
}

/// How long the error state is waited for before RESET.
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue whose queue pair can be taken down.
pub(crate) trait Queue {
    /// Everything completes, soon.
    fn set_error(&mut self) -> Result<(), Error>;
    /// The device lets go of everything at once, without completions; whether it did.
    fn reset(&mut self) -> bool;
    /// Whether it has, at somebody's wish.
    fn was_reset(&self) -> bool;
}

impl<T: Send + 'static, K> Queue for SendQueue<T, K> {
    fn set_error(&mut self) -> Result<(), Error> {
        SendQueue::set_error(self)
    }
    fn reset(&mut self) -> bool {
        SendQueue::reset(self)
    }
    fn was_reset(&self) -> bool {
        self.half.core().was_reset()
    }
}

impl<T: Send + 'static> Queue for RecvQueue<T> {
    fn set_error(&mut self) -> Result<(), Error> {
        RecvQueue::set_error(self)
    }
    fn reset(&mut self) -> bool {
        self.half.core().reset(self.half.qp).is_ok()
    }
    fn was_reset(&self) -> bool {
        self.half.core().was_reset()
    }
}

/// Work that is not known to be done.
struct Flying {
    /// In its id; never used twice.
    number: u64,
    /// Its place among the scope's.
    at: usize,
}

/// The place of a piece of work among the scope's, and how it ended.
pub(crate) type Ending = (usize, Result<Wc, WcError>);

/// The work of a scope.
pub(crate) struct Lent<'env, Q> {
    queue: *mut Q,
    cq: *mut Cq,
    posted: usize,
    flying: Vec<Flying>,
    /// What has completed and nobody has asked for, where anybody asks.
    done: VecDeque<Ending>,
    keeps: bool,
    failed: Option<WcError>,
    broken: bool,
    env: PhantomData<&'env ()>,
}

/// The number of a new piece of work.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) & SEQ_MASK
}

impl<Q: Queue> Lent<'_, Q> {
    /// Whoever makes this keeps queue and completion queue borrowed, and calls [`end`](Self::end), whatever happens.
    pub(crate) fn new(queue: &mut Q, cq: &mut Cq) -> Self {
        Lent {
            queue,
            cq,
            posted: 0,
            flying: Vec::new(),
            done: VecDeque::new(),
            keeps: false,
            failed: None,
            broken: false,
            env: PhantomData,
        }
    }

    /// The same, which can be asked what has [become](Self::next) of each.
    pub(crate) fn keeping(queue: &mut Q, cq: &mut Cq) -> Self {
        let mut lent = Lent::new(queue, cq);
        lent.keeps = true;
        lent
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        // SAFETY: borrowed mutably by the function that made this and waits, which lends it to nobody else.
        unsafe { &mut *self.queue }
    }

    fn cq(&mut self) -> &mut Cq {
        // SAFETY: as above.
        unsafe { &mut *self.cq }
    }

    /// Lets `post` post one piece of work, with this id, beside so many others; its place among the scope's. It must ask for a completion.
    pub(crate) fn post(
        &mut self,
        post: impl FnOnce(&mut Q, u64, usize) -> Result<(), PostErrorKind>,
    ) -> Result<usize, PostErrorKind> {
        let (number, at, flying) = (next_number(), self.posted, self.flying.len());
        // Noted before it is posted: a panic in between costs a wait, not memory.
        self.flying.push(Flying { number, at });
        let result = post(self.queue(), id(SCOPED_TAG, number), flying);
        match result {
            Ok(()) => {
                self.posted += 1;
                Ok(at)
            }
            Err(kind) => {
                self.flying.pop();
                Err(kind)
            }
        }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.flying.len()
    }

    /// What has become of the next piece of work to be done, which is waited for; `None` when there is none.
    pub(crate) fn next(&mut self) -> Result<Option<Ending>, ScopeError> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Ok(Some(done));
            }
            if self.flying.is_empty() {
                return match self.broken {
                    true => Err(ScopeError::Broken),
                    false => Ok(None),
                };
            }
            self.look(None);
        }
    }

    /// Waits for all of it.
    pub(crate) fn wait(&mut self) -> Result<(), ScopeError> {
        self.finish(false);
        match self.failed {
            _ if self.broken => Err(ScopeError::Broken),
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Waits for all of it, after the closure returned or unwound.
    pub(crate) fn end<R>(&mut self, result: thread::Result<R>) -> Result<R, ScopeError> {
        match result {
            Ok(value) => self.wait().map(|()| value),
            Err(panic) => {
                self.finish(true);
                resume_unwind(panic)
            }
        }
    }

    fn finish(&mut self, give_up: bool) {
        let mut deadline = None;
        if give_up && !self.flying.is_empty() {
            deadline = Some(Instant::now() + PATIENCE);
            if self.queue().set_error().is_err() {
                self.reset();
            }
        }
        while !self.flying.is_empty() {
            self.look(deadline);
        }
    }

    /// Looks for a completion, once.
    fn look(&mut self, deadline: Option<Instant>) {
        // Asked first: what was completed before is then found below.
        let was_reset = self.queue().was_reset();
        match self.cq().poll_kept() {
            Ok(Some(kept)) => self.note(kept),
            // By the other half's scope. Nothing more comes, and the device has let go.
            Ok(None) if was_reset => self.let_go(),
            Ok(None) if deadline.is_some_and(|at| Instant::now() > at) => self.reset(),
            Ok(None) => thread::yield_now(),
            Err(_) => self.reset(),
        }
    }

    fn note(&mut self, kept: Kept) {
        let Some(number) = kept.completion.scoped() else {
            self.cq().keep_with(kept);
            return;
        };
        let mut flying = self.flying.iter();
        let Some(at) = flying.position(|flying| flying.number == number) else {
            return;
        };
        let outcome = kept.completion.outcome();
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
        let at = self.flying.remove(at).at;
        if self.keeps {
            self.done.push_back((at, outcome));
        }
    }

    /// The device lets go of everything, without completions.
    #[cold]
    fn reset(&mut self) {
        if !self.queue().reset() {
            // The memory would be given back while a device may write it. There is nobody to tell, and nothing to leak: it is lent.
            std::process::abort();
        }
        self.let_go();
    }

    fn let_go(&mut self) {
        self.broken = true;
        self.flying.clear();
    }
}

/// Nothing here is known to panic while it waits. Should it all the same, what is lent must not be given back.
impl<Q> Drop for Lent<'_, Q> {
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            std::process::abort();
        }
    }
}
