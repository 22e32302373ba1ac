//! What a thread keeps at hand: stacks of free slabs, and the list by which other threads give slabs back.
//!
//! Invariants:
//!
//! * **E** Only the thread to which a [`Local`] is attached touches the slots of its stacks and stores their lengths. Attaching and
//!   detaching go through the registry's lock, so that one thread's accesses are over before the next one's begin.
//! * **F** [`CURRENT`] is null, or a `Local` that is attached to this thread, and then `ATTACHED` keeps it alive.
//! * **G** A `Local` stays in its pool's registry as long as the pool lives, so a slab's `home` can be followed (invariant D).

use crate::pool::Shared;
use crate::remote::RemoteList;
use crate::slab::{STACKS, Slab, StackIndex};
use std::cell::{Cell, RefCell};
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

thread_local! {
    /// The `Local` this thread used last.
    static CURRENT: Cell<*const Local> = const { Cell::new(ptr::null()) };
    /// One `Local` per pool that this thread has used; detached when the thread ends.
    static ATTACHED: Attached = const { Attached(RefCell::new(Vec::new())) };
}

struct Attached(RefCell<Vec<Arc<Local>>>);

impl Drop for Attached {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
        for local in self.0.take() {
            local.detach();
        }
    }
}

/// One thread's part of a pool.
pub(crate) struct Local {
    pool: *const Shared,
    shared: Weak<Shared>,
    stacks: [Stack; STACKS],
    pub remote: Apart<RemoteList<Slab>>,
}

/// Keeps what other threads write off the cache lines of what only the owner does.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

// SAFETY: invariants B and E; `pool` is only compared.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

/// A stack of slabs, last in first out. Slabs point at the one that they come from and go back to.
///
/// The slab put last lies apart from the others: the next allocation finds it without looking up where the stack ends. (That would make a chain of
/// loads that each wait for the store before; measured, it doubles the cost of an alloc/free pair.)
pub(crate) struct Stack {
    /// The slab put last, or null. Stored by the owner only; read by anyone for statistics, as `len`.
    top: AtomicPtr<Slab>,
    slots: Cell<*mut NonNull<Slab>>,
    /// How many slabs lie below the top.
    len: AtomicU32,
    /// What `len` may reach: the slots there are, or 0 when the stock is asked back.
    limit: AtomicU32,
    /// How many slots there are.
    slot_count: Cell<u32>,
    pub index: StackIndex,
    local: Cell<*const Local>,
}

impl Stack {
    fn new(index: StackIndex) -> Self {
        Stack {
            top: AtomicPtr::new(ptr::null_mut()),
            slots: Cell::new(ptr::null_mut()),
            len: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            slot_count: Cell::new(0),
            index,
            local: Cell::new(ptr::null()),
        }
    }

    /// The thread state it is part of.
    pub fn local(&self) -> &Local {
        // SAFETY: set when the `Local` was made, of which this is a part.
        unsafe { &*self.local.get() }
    }

    /// Takes the slab that was put last.
    ///
    /// # Safety
    /// The `Local` is attached to this thread.
    #[inline]
    pub unsafe fn pop(&self) -> Option<NonNull<Slab>> {
        if let Some(slab) = NonNull::new(self.top.load(Ordering::Relaxed)) {
            self.top.store(ptr::null_mut(), Ordering::Relaxed);
            return Some(slab);
        }
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return None;
        }
        self.len.store(len - 1, Ordering::Relaxed);
        // SAFETY: invariant E; slots below `len` hold slabs.
        Some(unsafe { *self.slots.get().add(len as usize - 1) })
    }

    /// Puts a slab; `false` if there is no room, or the stock was asked back.
    ///
    /// # Safety
    /// The `Local` is attached to this thread, which is the holder of `slab`.
    #[inline]
    pub unsafe fn push(&self, slab: NonNull<Slab>) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        match NonNull::new(self.top.load(Ordering::Relaxed)) {
            None if limit == 0 => return false,
            None => {}
            Some(top) => {
                let len = self.len.load(Ordering::Relaxed);
                if len >= limit {
                    return false;
                }
                // SAFETY: invariant E; `limit` never exceeds the slots there are.
                unsafe { *self.slots.get().add(len as usize) = top };
                self.len.store(len + 1, Ordering::Relaxed);
            }
        }
        self.top.store(slab.as_ptr(), Ordering::Relaxed);
        true
    }

    /// Makes the stack take up to `count` slabs (at least 2), again if it was asked back. The first call decides the number.
    ///
    /// # Safety
    /// The `Local` is attached to this thread.
    pub unsafe fn make_room(&self, count: usize) {
        if self.slot_count.get() == 0 {
            let below_top = count.max(2) - 1;
            let slots = Box::<[NonNull<Slab>]>::new_uninit_slice(below_top);
            self.slots.set(Box::into_raw(slots).cast());
            self.slot_count.set(below_top as u32);
        }
        self.limit.store(self.slot_count.get(), Ordering::Relaxed);
    }

    /// Moves the `count` slabs that lay longest on the stack to `out`.
    ///
    /// # Safety
    /// The `Local` is attached to this thread, or to none and the registry's lock is held.
    pub unsafe fn take_oldest(&self, count: usize, out: &mut Vec<NonNull<Slab>>) {
        let len = self.len.load(Ordering::Relaxed) as usize;
        let below_top = count.min(len);
        if below_top > 0 {
            let slots = self.slots.get();
            // SAFETY: invariant E; slots below `len` hold slabs, and the rest moves down within them.
            unsafe {
                out.extend_from_slice(std::slice::from_raw_parts(slots, below_top));
                ptr::copy(slots.add(below_top), slots, len - below_top);
            }
            self.len.store((len - below_top) as u32, Ordering::Relaxed);
        }
        if count > len
            && let Some(top) = NonNull::new(self.top.load(Ordering::Relaxed))
        {
            self.top.store(ptr::null_mut(), Ordering::Relaxed);
            out.push(top);
        }
    }

    /// Whether the stock was asked back.
    pub fn is_asked_back(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == 0
    }

    /// Slabs on the stack, at about this time.
    pub fn stock(&self) -> usize {
        let top = !self.top.load(Ordering::Relaxed).is_null();
        self.len.load(Ordering::Relaxed) as usize + usize::from(top)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let count = self.slot_count.get() as usize;
        if count > 0 {
            let slots = ptr::slice_from_raw_parts_mut(self.slots.get(), count);
            // SAFETY: `make_room` made it of that length; the elements need no drop.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}

impl Local {
    pub fn new(shared: Weak<Shared>, remote: RemoteList<Slab>) -> Arc<Local> {
        let local = Arc::new(Local {
            pool: shared.as_ptr(),
            shared,
            stacks: std::array::from_fn(|i| Stack::new(StackIndex::from_usize(i))),
            remote: Apart(remote),
        });
        for stack in &local.stacks {
            stack.local.set(Arc::as_ptr(&local));
        }
        local
    }

    #[inline]
    pub fn stack(&self, index: StackIndex) -> &Stack {
        // SAFETY: an index is below the number of stacks by construction.
        unsafe { self.stacks.get_unchecked(index.get()) }
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

    /// Asks the owner to give the stock of these stacks back at its next free into them. From any thread.
    pub fn ask_back(&self, which: impl Fn(StackIndex) -> bool) {
        for stack in self.stacks.iter().filter(|s| which(s.index)) {
            stack.limit.store(0, Ordering::Relaxed);
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
#[inline]
pub(crate) fn current_stack(index: StackIndex) -> *const Stack {
    CURRENT
        .get()
        .wrapping_byte_add(offset_of!(Local, stacks))
        .cast::<Stack>()
        .wrapping_add(index.get())
}

/// The `Local` that this thread used last, if it is of this pool.
///
/// # Safety
/// The thread detaches from no pool while the reference is in use.
#[inline]
pub(crate) unsafe fn current<'a>(pool: *const Shared) -> Option<&'a Local> {
    let local = CURRENT.get();
    // SAFETY: invariant F, and the caller's promise.
    match unsafe { local.as_ref() } {
        Some(local) if local.pool == pool => Some(local),
        _ => None,
    }
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
            CURRENT.set(local);
            // SAFETY: invariant F, and the caller's promise.
            unsafe { &*local }
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
            if CURRENT.get() == Arc::as_ptr(&local) {
                CURRENT.set(ptr::null());
            }
            local.detach();
        }
    });
}
