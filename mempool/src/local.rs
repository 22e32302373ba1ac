//! What a thread keeps at hand: stacks of free slabs, and the list by which other threads give slabs back.
//!
//! Invariants:
//!
//! * **F** [`CURRENT`] names nothing, or a `Local` that is attached to this thread, and then `ATTACHED` keeps it alive.
//! * **G** A `Local` stays in its pool's registry as long as the pool lives, so a slab's `home` can be followed (invariant D).

use crate::pool::Shared;
use crate::remote::RemoteList;
use crate::slab::{Slab, StackIndex};
use crate::stack::Stack;
use std::cell::{Cell, RefCell};
use std::hint::assert_unchecked;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

thread_local! {
    /// The `Local` this thread used last.
    static CURRENT: Current = const {
        Current {
            pool: Cell::new(ptr::null()),
            stacks: Cell::new(ptr::null()),
            local: Cell::new(ptr::null()),
        }
    };
    /// One `Local` per pool that this thread has used; detached when the thread ends.
    static ATTACHED: Attached = const { Attached(RefCell::new(Vec::new())) };
}

/// A `Local`, and what of it is wanted without looking into it.
struct Current {
    pool: Cell<*const Shared>,
    stacks: Cell<*const Stack>,
    local: Cell<*const Local>,
}

fn set_current(local: Option<&Local>) {
    CURRENT.with(|current| {
        current.pool.set(local.map_or(ptr::null(), |l| l.pool));
        let stacks = local.map_or(ptr::null(), |l| l.stacks.as_ptr());
        current.stacks.set(stacks);
        current.local.set(local.map_or(ptr::null(), ptr::from_ref));
    });
}

struct Attached(RefCell<Vec<Arc<Local>>>);

impl Drop for Attached {
    fn drop(&mut self) {
        set_current(None);
        for local in self.0.take() {
            local.detach();
        }
    }
}

/// One thread's part of a pool.
pub(crate) struct Local {
    pool: *const Shared,
    shared: Weak<Shared>,
    /// By [`StackIndex`].
    stacks: Box<[Stack]>,
    pub remote: Apart<RemoteList<Slab>>,
}

/// Keeps what other threads write off the cache lines of what only the owner does.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

// SAFETY: the stacks' own rules (`crate::stack`); `pool` is only compared.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

impl Local {
    /// For a pool of so many budgets.
    pub fn new(shared: Weak<Shared>, budgets: usize, remote: RemoteList<Slab>) -> Arc<Local> {
        let local = Arc::new(Local {
            pool: shared.as_ptr(),
            shared,
            stacks: StackIndex::all(budgets).map(Stack::new).collect(),
            remote: Apart(remote),
        });
        for stack in &local.stacks {
            stack.set_local(Arc::as_ptr(&local));
        }
        local
    }

    #[inline]
    pub fn stack(&self, index: StackIndex) -> &Stack {
        &self.stacks[index.get()]
    }

    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// Moves the stock of all stacks that `which` names to `out`.
    ///
    /// # Safety
    /// The `Local` is attached to this thread, or to none and the registry's lock is held.
    pub unsafe fn take_stock(
        &self,
        which: impl Fn(StackIndex) -> bool,
        out: &mut Vec<NonNull<Slab>>,
    ) {
        for stack in self.stacks.iter().filter(|s| which(s.index)) {
            // SAFETY: the caller's promise.
            unsafe { stack.take_oldest(usize::MAX, out) };
        }
    }

    /// Leaves the thread: its stock goes back to the depots, and the `Local` waits for another thread.
    fn detach(self: &Arc<Self>) {
        // A pool without the strong reference that slabs outside hold has no slabs outside, so there is no stock.
        if let Some(shared) = self.shared.upgrade() {
            shared.retire(self);
        }
    }
}

/// Where the stack of that number is in the `Local` that this thread used last; no address of a stack if there is none.
#[inline(always)]
pub(crate) fn current_stack(index: StackIndex) -> *const Stack {
    CURRENT.with(|c| c.stacks.get().wrapping_byte_add(index.offset() as usize))
}

/// The stack of that number in the `Local` that this thread used last, if it is of this pool.
///
/// # Safety
/// The pool has that budget, and the thread detaches from no pool while the reference is in use.
#[inline(always)]
pub(crate) unsafe fn current_stack_of<'a>(
    pool: *const Shared,
    index: StackIndex,
) -> Option<&'a Stack> {
    CURRENT.with(|current| {
        if current.pool.get() != pool {
            return None;
        }
        let stacks = current.stacks.get();
        // SAFETY: a `Local` of a pool has stacks.
        unsafe { assert_unchecked(!stacks.is_null()) };
        // SAFETY: a pool's locals have a stack for each index of its budgets; invariant F, and the caller's promise.
        Some(unsafe { &*stacks.byte_add(index.offset() as usize) })
    })
}

/// The `Local` that this thread used last, if it is of this pool.
///
/// # Safety
/// The thread detaches from no pool while the reference is in use.
pub(crate) unsafe fn current<'a>(pool: *const Shared) -> Option<&'a Local> {
    CURRENT.with(|current| {
        // SAFETY: invariant F, and the caller's promise.
        (current.pool.get() == pool).then(|| unsafe { &*current.local.get() })
    })
}
/// The `Local` of this thread and pool, attached now if need be; `None` while the thread's locals are being destroyed.
///
/// # Safety
/// The thread detaches from no pool while the reference is in use.
pub(crate) unsafe fn attach<'a>(shared: &Arc<Shared>) -> Option<&'a Local> {
    let pool = Arc::as_ptr(shared);
    ATTACHED
        .try_with(|attached| {
            let known = attached
                .0
                .borrow()
                .iter()
                .find(|l| l.pool == pool)
                .map(Arc::as_ptr);
            let local = known.unwrap_or_else(|| {
                leave(|local| local.shared.upgrade().is_none_or(|s| s.is_closed()));
                let local = shared.enlist();
                let pointer = Arc::as_ptr(&local);
                attached.0.borrow_mut().push(local);
                pointer
            });
            // SAFETY: invariant F, and the caller's promise.
            let local: &Local = unsafe { &*local };
            set_current(Some(local));
            local
        })
        .ok()
}

/// Detaches this thread from a pool.
pub(crate) fn leave_pool(pool: *const Shared) {
    leave(|local| local.pool == pool);
}

fn leave(which: impl Fn(&Local) -> bool) {
    // While the thread's locals are being destroyed, all are detached anyway.
    let _ = ATTACHED.try_with(|attached| {
        let (gone, stay) = attached.0.take().into_iter().partition(|l| which(l));
        attached.0.replace(stay);
        let gone: Vec<Arc<Local>> = gone;
        for local in gone {
            if CURRENT.with(|c| c.local.get()) == Arc::as_ptr(&local) {
                set_current(None);
            }
            local.detach();
        }
    });
}
