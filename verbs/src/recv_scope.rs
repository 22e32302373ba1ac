//! Receiving into borrowed memory, within a scope that ends when the device is done with it.
//!
//! Why this is sound is said in [`scope`](crate::scope); here the device writes, so what is lent is lent mutably, or cells.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::lent::{Lent, ScopeError};
use crate::{Cq, PartMut, PostErrorKind, Received, RecvQueue, SgeList};

/// Lends a receive queue to a closure, for messages into borrowed memory; made by [`RecvQueue::scope`].
pub struct RecvScope<'scope, 'env: 'scope, T> {
    state: RefCell<Lent<'env, RecvQueue<T>>>,
    // As std::thread::Scope: no other lifetimes than these, neither longer nor shorter.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<T: Send + 'static> RecvQueue<T> {
    /// Receives into borrowed memory: all that `f` posts is done when this returns.
    ///
    /// `cq` is the completion queue of this receive queue. What else completes there meanwhile is kept for the next poll. While it waits, this
    /// function polls without sleeping. It waits as long as it takes, for ever if no message comes, unless the scope
    /// [gives up](RecvScope::cancel). The bytes can be looked at when the scope has ended.
    ///
    /// If `f` panics, the queue pair goes to the error state, so that waiting ends, and the panic goes on afterwards.
    ///
    /// ```
    /// # use verbs::{Device, Private};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(64).build()?;
    /// # let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, mut rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
    /// let mut page = pd.register(vec![0; 64])?;
    /// let len = rx.scope(&mut cq, |s| {
    ///     s.post(page.part_mut(16..32)?)?;
    ///     tx.send(pd.register(b"a message".to_vec())?).post()?;
    ///     let message = s.next()?.ok_or("none was posted")?;
    ///     Ok::<_, Box<dyn std::error::Error>>(message.byte_len() as usize)
    /// })??;
    /// assert_eq!(&page[16..16 + len], b"a message");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ScopeError`] when some of the receives failed; the device is done with all of them all the same.
    pub fn scope<'env, F, R>(&mut self, cq: &mut Cq, f: F) -> Result<R, ScopeError>
    where
        F: for<'scope> FnOnce(&'scope RecvScope<'scope, 'env, T>) -> R,
    {
        if self.id().cq() != cq.id() {
            return Err(ScopeError::OtherCompletionQueue);
        }
        let scope = RecvScope {
            state: RefCell::new(Lent::keeping(self, cq)),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        // A panic within a method can have left nothing half done: each posts last, and notes first.
        scope.state.borrow_mut().end(result)
    }
}

impl<'scope, 'env, T: Send + 'static> RecvScope<'scope, 'env, T> {
    /// Posts room for a message, of one part (`&part`, `part`) or several (`[a, b]`); which of the scope's receives it is, from 0 on. Messages
    /// take receives in the order posted, those included that were posted before the scope.
    ///
    /// # Errors
    /// [`PostErrorKind`]; nothing was posted then. When the queue is full, [`next`](Self::next) makes room.
    #[doc(alias = "ibv_post_recv")]
    pub fn post(&'scope self, into: impl AsRef<[PartMut<'scope>]>) -> Result<usize, PostErrorKind> {
        let mut list = SgeList::new();
        let parts = into.as_ref().iter();
        parts.for_each(|part| part.push_to(&mut list));
        self.state.borrow_mut().post(|queue, wr_id, flying| {
            // SAFETY: borrowed mutably for `'scope`, which lasts until the scope has ended, or cells. The parts may be lent as a slice that is
            // still there afterwards: they have no way to the memory but to be posted.
            unsafe { queue.post_scoped(&mut list, wr_id, flying) }
        })
    }

    /// Waits for the next message into what this scope has posted: its length and what else there is to say of it, with the number of its
    /// receive. `None` when no more are posted. What was lent stays lent until the end of the scope.
    ///
    /// # Errors
    /// [`ScopeError`] when the receive failed.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would need the scope mutably"
    )]
    pub fn next(&'scope self) -> Result<Option<Received<usize>>, ScopeError> {
        let mut state = self.state.borrow_mut();
        let header = state.queue().header();
        Ok(match state.next()? {
            Some((at, outcome)) => Some(Received::new(at, outcome?, header)),
            None => None,
        })
    }

    /// Waits until all that was posted so far is done.
    ///
    /// # Errors
    /// [`ScopeError`] when some of it failed.
    pub fn wait(&'scope self) -> Result<(), ScopeError> {
        self.state.borrow_mut().wait()
    }

    /// Gives up: drives the queue pair to the error state, so that waiting ends soon. See [`RecvQueue::set_error`].
    ///
    /// # Errors
    /// When the device refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn cancel(&'scope self) -> Result<(), crate::Error> {
        self.state.borrow_mut().queue().set_error()
    }

    /// Receives that are not known to be done.
    pub fn outstanding(&'scope self) -> usize {
        self.state.borrow().outstanding()
    }
}
