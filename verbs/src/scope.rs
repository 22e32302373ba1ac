//! Posting borrowed memory, within a scope that ends when the device is done with it.
//!
//! Why this is sound, whatever the closure does, forgets or panics at:
//!
//! * Nothing of what ends the scope is in the closure's hands: [`SendQueue::scope`] itself waits, after the closure returned or
//!   unwound, before anybody else runs. A [`Scope`] is only ever lent, and forgetting what it handed out changes nothing.
//! * What is posted is borrowed for `'scope`. The closure must be good for *every* `'scope` within `'env`, so what it lends lives as
//!   long as `'env`, which outlasts the call: nothing that is made within the closure can be lent.
//! * Waiting ends when each piece of work has had its completion. They are told from all others by ids that are never used twice; others'
//!   completions are kept for them.
//! * After a panic, or when the device cannot be polled any more, the queue pair is driven to the error state, which completes
//!   everything; if even that does not help, to RESET, in which a device has let go of all work. If it refuses this as well, nothing is
//!   left but to end the process.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ibverbs_sys::ibv_wr_opcode;

use crate::lent::{Lent, ScopeError};
use crate::refusal::check_mtu;
use crate::wr::{Kind, Op};
use crate::{
    Connected, Cq, Destination, Part, PartMut, PostErrorKind, Rc, RemoteRegion, SendQueue, SgeList,
};

/// Lends a send queue to a closure, for work with borrowed memory; made by [`SendQueue::scope`].
pub struct Scope<'scope, 'env: 'scope, T, K = Rc> {
    state: RefCell<Lent<'env, SendQueue<T, K>>>,
    // As std::thread::Scope: no other lifetimes than these, neither longer nor shorter.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    /// Posts work with borrowed memory: all that `f` posts is done when this returns.
    ///
    /// `cq` is the completion queue of this send queue. What else completes there meanwhile is kept for the next poll. While it waits, this
    /// function polls without sleeping. It waits as long as it takes: with endless retries, for ever if the peer posts no receive.
    ///
    /// If `f` panics, the queue pair goes to the error state, so that waiting ends, and the panic goes on afterwards.
    ///
    /// ```
    /// # use verbs::{Access, Device, Private};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(64).build()?;
    /// # let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, _rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
    /// # let shared = pd.expose(64, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    /// # let remote = shared.remote();
    /// let (header, body) = (pd.register(b"head".to_vec())?, pd.register(b"and body".to_vec())?);
    /// let mut back = pd.register(vec![0; 12])?;
    /// tx.scope(&mut cq, |s| {
    ///     s.write([header.part(..)?, body.part(..)?], remote)?;
    ///     s.read(back.part_mut(..)?, remote)?;
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// })??;
    /// assert_eq!(&back[..], b"headand body");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ScopeError`] when some of the work failed; all of it is done with all the same.
    pub fn scope<'env, F, R>(&mut self, cq: &mut Cq, f: F) -> Result<R, ScopeError>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env, T, K>) -> R,
    {
        if self.id().cq() != cq.id() {
            return Err(ScopeError::OtherCompletionQueue);
        }
        let scope = Scope {
            state: RefCell::new(Lent::new(self, cq)),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        // A panic within a method can have left nothing half done: each posts last, and notes first.
        scope.state.borrow_mut().end(result)
    }
}

impl<'scope, 'env, T: Send + 'static, K> Scope<'scope, 'env, T, K> {
    /// A message to `to`, which is checked.
    pub(crate) fn datagram(
        &'scope self,
        parts: &[Part<'scope>],
        to: &'scope Destination,
    ) -> Result<(), PostErrorKind> {
        let mut list = SgeList::new();
        parts.iter().for_each(|part| part.push_to(&mut list));
        check_mtu(list.size(), to)?;
        if to.handle().pd() != self.state.borrow_mut().queue().half.core().pd() {
            return Err(PostErrorKind::OtherDomain);
        }
        let op = Op::new(ibv_wr_opcode::IBV_WR_SEND, None);
        // SAFETY: memory and handle are borrowed for `'scope`, which lasts until the scope has ended.
        unsafe { self.post(Kind::Datagram, &mut list, op, to.operands()) }
    }

    /// # Safety
    /// The memory is borrowed for `'scope` in the way that `kind` needs.
    unsafe fn post(
        &'scope self,
        kind: Kind,
        list: &mut SgeList,
        op: Op,
        operands: [u64; 2],
    ) -> Result<(), PostErrorKind> {
        // Each tells when it is done.
        let op = op.signaled();
        let mut state = self.state.borrow_mut();
        let post = |queue: &mut SendQueue<T, K>, wr_id, flying| {
            // SAFETY: the caller's contract; the scope waits.
            unsafe { queue.post_scoped(kind, list, op, operands, wr_id, flying) }
        };
        state.post(post).map(drop)
    }

    /// Waits until all that was posted so far is done. What was lent stays lent until the end of the scope.
    ///
    /// # Errors
    /// [`ScopeError`] when some of it failed.
    pub fn wait(&'scope self) -> Result<(), ScopeError> {
        self.state.borrow_mut().wait()
    }

    /// Gives up: drives the queue pair to the error state, so that waiting ends soon. See [`SendQueue::set_error`].
    ///
    /// # Errors
    /// When the device refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn cancel(&'scope self) -> Result<(), crate::Error> {
        self.state.borrow_mut().queue().set_error()
    }

    /// Work that is not known to be done.
    pub fn outstanding(&'scope self) -> usize {
        self.state.borrow().outstanding()
    }
}

/// What all connections do.
impl<'scope, 'env, T: Send + 'static, K: Connected> Scope<'scope, 'env, T, K> {
    /// A message for the peer's next posted receive, of one part (`&part`, `part`) or several (`[a, b]`).
    ///
    /// # Errors
    /// [`PostErrorKind`]; nothing was posted then. When the queue is full, [`wait`](Self::wait) makes room.
    pub fn send(&'scope self, parts: impl AsRef<[Part<'scope>]>) -> Result<(), PostErrorKind> {
        self.outgoing(parts.as_ref(), ibv_wr_opcode::IBV_WR_SEND, None, 0)
    }

    /// As [`send`](Self::send), with immediate data.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_imm(
        &'scope self,
        parts: impl AsRef<[Part<'scope>]>,
        imm: u32,
    ) -> Result<(), PostErrorKind> {
        let opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        self.outgoing(parts.as_ref(), opcode, None, imm)
    }

    /// Writes into the peer's memory, from the start of `remote`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn write(
        &'scope self,
        parts: impl AsRef<[Part<'scope>]>,
        remote: RemoteRegion,
    ) -> Result<(), PostErrorKind> {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        self.outgoing(parts.as_ref(), opcode, Some(remote), 0)
    }

    /// As [`write`](Self::write), with immediate data: consumes a receive of the peer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn write_imm(
        &'scope self,
        parts: impl AsRef<[Part<'scope>]>,
        remote: RemoteRegion,
        imm: u32,
    ) -> Result<(), PostErrorKind> {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        self.outgoing(parts.as_ref(), opcode, Some(remote), imm)
    }

    fn outgoing(
        &'scope self,
        parts: &[Part<'scope>],
        opcode: ibv_wr_opcode,
        remote: Option<RemoteRegion>,
        imm: u32,
    ) -> Result<(), PostErrorKind> {
        let mut list = SgeList::new();
        parts.iter().for_each(|part| part.push_to(&mut list));
        let mut op = Op::new(opcode, remote);
        op.imm = imm.to_be();
        // SAFETY: the memory is borrowed for `'scope`, which lasts until the scope has ended, for reading.
        unsafe { self.post(Kind::Outgoing, &mut list, op, [0; 2]) }
    }
}

/// What only reliable connections do.
impl<'scope, 'env, T: Send + 'static> Scope<'scope, 'env, T, Rc> {
    /// Reads from the peer's memory, from the start of `remote`, as much as the parts have room for.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn read(
        &'scope self,
        into: impl AsRef<[PartMut<'scope>]>,
        remote: RemoteRegion,
    ) -> Result<(), PostErrorKind> {
        let mut list = SgeList::new();
        into.as_ref()
            .iter()
            .for_each(|part| part.push_to(&mut list));
        let op = Op::new(ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote));
        // SAFETY: borrowed mutably for `'scope`, or cells. The parts may be lent as a slice that is still there afterwards: they have no
        // way to the memory but to be posted.
        unsafe { self.post(Kind::Read, &mut list, op, [0; 2]) }
    }

    /// As [`SendQueue::compare_and_swap`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn compare_and_swap(
        &'scope self,
        into: PartMut<'scope>,
        remote: RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Result<(), PostErrorKind> {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        self.atomic(&into, opcode, remote, [compare, swap])
    }

    /// As [`SendQueue::fetch_and_add`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn fetch_and_add(
        &'scope self,
        into: PartMut<'scope>,
        remote: RemoteRegion,
        add: u64,
    ) -> Result<(), PostErrorKind> {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        self.atomic(&into, opcode, remote, [add, 0])
    }

    fn atomic(
        &'scope self,
        into: &PartMut<'scope>,
        opcode: ibv_wr_opcode,
        remote: RemoteRegion,
        operands: [u64; 2],
    ) -> Result<(), PostErrorKind> {
        let mut list = SgeList::new();
        into.push_to(&mut list);
        // SAFETY: borrowed mutably for `'scope`, or cells.
        unsafe {
            self.post(
                Kind::Atomic,
                &mut list,
                Op::new(opcode, Some(remote)),
                operands,
            )
        }
    }
}
