//! A thread's stock of one class, and how others take it from a thread that does not use it.
//!
//! The owner's `pop` and `push` each make one store that counts and then look whether the stack has been *revoked* (`limit` is 0). Whoever revokes
//! runs the [heavy fence](crate::fences) and then takes what it sees. So of each operation of the owner one of two things holds: its
//! store is among what the taker sees, or it finds the stack revoked. In the second case the owner looks, under a lock, whether the
//! slab in question is among those that were taken. Nothing is lost, nothing is had twice, and the owner pays one load.
//!
//! Invariants:
//!
//! * **E** Only the owner, the thread to which the stack's `Local` is attached, touches slots at and above `len`, and stores `top`, `has_top` and `len`. Attaching and
//!   detaching go through the registry's lock, so that one thread's accesses are over before the next one's begin.
//! * **H** While what was taken is not acknowledged by the owner, `has_top` and `len` are out of date, and `limit` is 0. All that the
//!   owner does more than one slab at a time, it does under the lock, and acknowledges first.
//! * **I** Revoking and taking are done by one thread at a time, and `limit` has been 0 since before its heavy fence.

use crate::fences;
use crate::local::Local;
use crate::slab::{Slab, StackIndex};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Mutex, Ordering};
use std::cell::Cell;
use std::hint::{assert_unchecked, cold_path};
use std::ptr::{self, NonNull};

/// A stack of slabs, mostly last in first out. Slabs point at the one that they come from and go back to.
///
/// The slab on top lies apart from the others: the next allocation finds it without looking up where the stack ends. And it stays written there
/// when it is popped; only `has_top` says that it is gone. So what is stored and loaded alternately, and branched on, is a constant that the
/// processor predicts, and a pointer is stored once for each time that it is loaded. (Measured beside a top that becomes null: with 32
/// buffers in flight, a pair costs a third less.)
pub(crate) struct Stack {
    /// The slab that is taken next if `has_top`, else one that was there before, or null.
    top: AtomicPtr<Slab>,
    slots: AtomicPtr<NonNull<Slab>>,
    /// How many slabs lie below the top.
    len: AtomicU32,
    /// What `len` may reach: the slots there are, or 0 when there are none or the stack is revoked.
    limit: AtomicU32,
    book: Mutex<Book>,
    local: Cell<*const Local>,
    pub index: StackIndex,
    /// Whether there is a slab on top. Of the owner's stores, this is the one that counts for `top`.
    has_top: AtomicBool,
}

/// What is done under the lock.
struct Book {
    slot_count: u32,
    /// What was taken while the owner does not know yet: the slab on top, and how many below.
    taken_top: *mut Slab,
    taken_len: u32,
}

/// What became of a slab that was to be put.
pub(crate) enum Put {
    Done,
    /// There is no room.
    Full,
    /// It lies there, but the stack is revoked: see [`Stack::unput`].
    Revoked(Place),
}

/// Where the owner has just taken a slab from, or put it.
pub(crate) enum Place {
    Top,
    Below(usize),
}

// SAFETY: the pointer is followed by the owner only, the lock guards `Book`, and what is in the slots is guarded by invariant E.
unsafe impl Send for Stack {}
// SAFETY: as above.
unsafe impl Sync for Stack {}

impl Stack {
    pub fn new(index: StackIndex) -> Self {
        Stack {
            top: AtomicPtr::new(ptr::null_mut()),
            slots: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            book: Mutex::new(Book {
                slot_count: 0,
                taken_top: ptr::null_mut(),
                taken_len: 0,
            }),
            local: Cell::new(ptr::null()),
            index,
            has_top: AtomicBool::new(false),
        }
    }

    /// Says what thread state it is part of, once, before anybody else knows of it.
    pub fn set_local(&self, local: *const Local) {
        self.local.set(local);
    }

    /// The thread state it is part of.
    pub fn local(&self) -> &Local {
        // SAFETY: set when the `Local` was made, of which this is a part.
        unsafe { &*self.local.get() }
    }

    /// Takes a slab, the last one put if there is only one.
    ///
    /// # Safety
    /// The `Local` is attached to this thread.
    #[inline(always)]
    pub unsafe fn pop(&self) -> Option<NonNull<Slab>> {
        let (slab, place) = if self.has_top.load(Ordering::Relaxed) {
            self.has_top.store(false, Ordering::Relaxed);
            let slab = self.top.load(Ordering::Relaxed);
            // SAFETY: written before `has_top` was. (Said in this way, it is not looked at again.)
            let slab = unsafe {
                assert_unchecked(!slab.is_null());
                NonNull::new_unchecked(slab)
            };
            (slab, Place::Top)
        } else {
            cold_path();
            let len = self.len.load(Ordering::Relaxed);
            if len == 0 {
                return None;
            }
            let at = len as usize - 1;
            // SAFETY: invariant E; slots below `len` hold slabs.
            let slab = unsafe { *self.slots.load(Ordering::Relaxed).add(at) };
            self.len.store(len - 1, Ordering::Relaxed);
            (slab, Place::Below(at))
        };
        fences::light();
        if self.limit.load(Ordering::Relaxed) == 0 {
            cold_path();
            if self.was_taken(slab, place) {
                return None;
            }
        }
        Some(slab)
    }

    /// Puts a slab; `false` if there is no room, or the stack is revoked.
    ///
    /// # Safety
    /// The `Local` is attached to this thread, which is the holder of `slab`.
    pub unsafe fn push(&self, slab: NonNull<Slab>) -> bool {
        // SAFETY: the caller's promise.
        let put = unsafe { self.put(slab) };
        self.settle(slab, put)
    }

    /// The same, and leaves the top to what is put next.
    ///
    /// # Safety
    /// As [`push`](Stack::push).
    pub unsafe fn push_below(&self, slab: NonNull<Slab>) -> bool {
        // SAFETY: the caller's promise.
        let put = unsafe { self.put_below(slab) };
        self.settle(slab, put)
    }

    /// Puts a slab, and leaves it to the caller to [`settle`](Stack::settle) what came of it: then the hot path, which seldom has to, calls
    /// nothing that it goes on after, and needs no registers saved.
    ///
    /// # Safety
    /// As [`push`](Stack::push).
    #[inline(always)]
    pub unsafe fn put(&self, slab: NonNull<Slab>) -> Put {
        if self.has_top.load(Ordering::Relaxed) {
            cold_path();
            // SAFETY: the caller's promise.
            return unsafe { self.put_below(slab) };
        }
        self.top.store(slab.as_ptr(), Ordering::Relaxed);
        // Release: whoever takes the slab from here sees which it is, and what its holder did.
        self.has_top.store(true, Ordering::Release);
        fences::light();
        match self.limit.load(Ordering::Relaxed) {
            0 => Put::Revoked(Place::Top),
            _ => Put::Done,
        }
    }

    /// The same, and leaves the top to what is put next.
    ///
    /// # Safety
    /// As [`push`](Stack::push).
    #[inline(always)]
    unsafe fn put_below(&self, slab: NonNull<Slab>) -> Put {
        let len = self.len.load(Ordering::Relaxed);
        if len >= self.limit.load(Ordering::Relaxed) {
            return Put::Full;
        }
        // SAFETY: invariant E; `limit` never exceeds the slots there are.
        unsafe { *self.slots.load(Ordering::Relaxed).add(len as usize) = slab };
        self.len.store(len + 1, Ordering::Release);
        fences::light();
        match self.limit.load(Ordering::Relaxed) {
            0 => Put::Revoked(Place::Below(len as usize)),
            _ => Put::Done,
        }
    }

    /// Whether the slab that the owner has just put is the owner's no more. Off a revoked stack it is taken again.
    pub fn settle(&self, slab: NonNull<Slab>, put: Put) -> bool {
        match put {
            Put::Done => true,
            Put::Full => false,
            Put::Revoked(place) => self.unput(slab, place),
        }
    }

    /// Whether the slab that the owner has just popped from a revoked stack is another's already.
    #[cold]
    #[inline(never)]
    fn was_taken(&self, slab: NonNull<Slab>, place: Place) -> bool {
        let mut book = self.book.lock();
        let taken = book.has_taken(slab, place);
        self.acknowledge(&mut book);
        taken
    }

    /// Takes the slab that the owner has just pushed to a revoked stack off again. `true` if it is another's already.
    #[cold]
    #[inline(never)]
    fn unput(&self, slab: NonNull<Slab>, place: Place) -> bool {
        let mut book = self.book.lock();
        let taken = book.has_taken(slab, &place);
        if !self.acknowledge(&mut book) {
            match place {
                Place::Top => self.has_top.store(false, Ordering::Relaxed),
                Place::Below(at) => self.len.store(at as u32, Ordering::Relaxed),
            }
        }
        taken
    }

    /// The owner learns that slabs were taken: whatever was there is gone. Whether there was such news.
    fn acknowledge(&self, book: &mut Book) -> bool {
        if book.taken() {
            (book.taken_top, book.taken_len) = (ptr::null_mut(), 0);
            self.has_top.store(false, Ordering::Relaxed);
            self.len.store(0, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Makes the stack take up to `count` slabs (at least 2), also if it was revoked. The first call decides the number. If not `allowed`
    /// (which is called under the lock), it stays as it is.
    ///
    /// # Safety
    /// The `Local` is attached to this thread.
    pub unsafe fn make_room(&self, count: usize, allowed: impl FnOnce() -> bool) {
        let mut book = self.book.lock();
        self.acknowledge(&mut book);
        if book.slot_count == 0 {
            let below_top = count.max(2) - 1;
            let slots = Box::<[NonNull<Slab>]>::new_uninit_slice(below_top);
            let slots = Box::into_raw(slots).cast();
            self.slots.store(slots, Ordering::Relaxed);
            book.slot_count = below_top as u32;
        }
        if allowed() {
            self.limit.store(book.slot_count, Ordering::Relaxed);
        }
    }

    /// Moves the `count` slabs that lay longest on the stack to `out`.
    ///
    /// # Safety
    /// The `Local` is attached to this thread, or to none and the registry's lock is held.
    pub unsafe fn take_oldest(&self, count: usize, out: &mut Vec<NonNull<Slab>>) {
        let mut book = self.book.lock();
        self.acknowledge(&mut book);
        let len = self.len.load(Ordering::Relaxed) as usize;
        let below_top = count.min(len);
        if below_top > 0 {
            let slots = self.slots.load(Ordering::Relaxed);
            // SAFETY: invariants E and H; slots below `len` hold slabs, and the rest moves down within them.
            unsafe {
                out.extend_from_slice(std::slice::from_raw_parts(slots, below_top));
                ptr::copy(slots.add(below_top), slots, len - below_top);
            }
            self.len.store((len - below_top) as u32, Ordering::Relaxed);
        }
        if count > len
            && let Some(top) = NonNull::new(self.peek(Ordering::Relaxed))
        {
            self.has_top.store(false, Ordering::Relaxed);
            out.push(top);
        }
    }

    /// The slab on top, or null.
    fn peek(&self, order: Ordering) -> *mut Slab {
        match self.has_top.load(order) {
            true => self.top.load(Ordering::Relaxed),
            false => ptr::null_mut(),
        }
    }

    /// Asks the owner to give the stock back with its next operation, and lets [`take`](Stack::take) take it before. From any thread.
    /// Whether there is anything to take.
    pub fn revoke(&self) -> bool {
        // Under the lock, so that an owner who is just making room has seen why it must not, or does it before.
        let book = self.book.lock();
        if book.slot_count == 0 {
            return false;
        }
        self.limit.store(0, Ordering::Relaxed);
        // An operation may be under way that is not seen here, so that nothing visible is no reason to leave it out.
        !book.taken()
    }

    /// Takes all there is from a revoked stack. From any thread.
    ///
    /// # Safety
    /// Invariant I.
    pub unsafe fn take(&self, out: &mut Vec<NonNull<Slab>>) {
        let mut book = self.book.lock();
        if book.taken() || self.limit.load(Ordering::Relaxed) != 0 {
            return;
        }
        let len = self.len.load(Ordering::Acquire);
        let top = self.peek(Ordering::Acquire);
        if len == 0 && top.is_null() {
            return;
        }
        let slots = self.slots.load(Ordering::Relaxed);
        for at in 0..len as usize {
            // SAFETY: invariants E and H: the owner writes no slot below `len` before it has acknowledged.
            out.push(unsafe { *slots.add(at) });
        }
        out.extend(NonNull::new(top));
        (book.taken_top, book.taken_len) = (top, len);
    }

    /// Whether the stack is revoked, or was never used.
    pub fn is_revoked(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == 0
    }

    /// Something that changes when the stock is used, most often.
    pub fn state(&self) -> usize {
        let top = self.peek(Ordering::Relaxed).addr();
        top ^ (self.len.load(Ordering::Relaxed) as usize).rotate_right(16)
    }

    /// Slabs on the stack, at about this time.
    pub fn stock(&self) -> usize {
        if self.book.lock().taken() {
            return 0;
        }
        let top = self.has_top.load(Ordering::Relaxed);
        self.len.load(Ordering::Relaxed) as usize + usize::from(top)
    }
}

impl Book {
    /// Whether there is news for the owner.
    fn taken(&self) -> bool {
        !self.taken_top.is_null() || self.taken_len > 0
    }

    fn has_taken(&self, slab: NonNull<Slab>, place: impl std::borrow::Borrow<Place>) -> bool {
        match *place.borrow() {
            Place::Top => self.taken_top == slab.as_ptr(),
            Place::Below(at) => at < self.taken_len as usize,
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let count = self.book.lock().slot_count as usize;
        if count > 0 {
            let slots = self.slots.load(Ordering::Relaxed);
            let slots = ptr::slice_from_raw_parts_mut(slots, count);
            // SAFETY: `make_room` made it of that length; the elements need no drop.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Stack>() == 64);

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A slab that is only ever compared.
    fn slab(number: usize) -> NonNull<Slab> {
        NonNull::new(ptr::without_provenance_mut(number * 64)).unwrap()
    }

    fn numbers(slabs: impl IntoIterator<Item = NonNull<Slab>>) -> Vec<usize> {
        slabs.into_iter().map(|s| s.addr().get() / 64).collect()
    }

    fn take_all(stack: &Stack) -> Vec<NonNull<Slab>> {
        let mut out = Vec::new();
        if stack.revoke() && fences::heavy() {
            // SAFETY: revoked before the fence; one taker in each model, or under a lock.
            unsafe { stack.take(&mut out) };
        }
        out
    }

    fn stack_of(count: usize) -> Stack {
        let stack = Stack::new(StackIndex::ANY);
        // SAFETY: under test: this thread is the owner.
        unsafe {
            stack.make_room(3, || true);
            (1..=count).for_each(|n| assert!(stack.push(slab(n))));
        }
        stack
    }

    /// The owner does some of everything while another takes: each slab ends with exactly one of them.
    fn nothing_twice_and_nothing_lost(count: usize, owner: fn(&Stack, &mut Vec<NonNull<Slab>>)) {
        loom::model(move || {
            let stack = Arc::new(stack_of(count));
            let taker = {
                let stack = stack.clone();
                thread::spawn(move || take_all(&stack))
            };
            let mut held = vec![slab(9)];
            owner(&stack, &mut held);
            let taken = taker.join().unwrap();
            // SAFETY: under test: this thread is the owner.
            unsafe { stack.take_oldest(usize::MAX, &mut held) };
            let mut all = numbers(held.into_iter().chain(taken));
            all.sort_unstable();
            let expected: Vec<usize> = (1..=count).chain([9]).collect();
            assert_eq!(all, expected);
        });
    }

    fn pop(stack: &Stack, held: &mut Vec<NonNull<Slab>>) {
        // SAFETY: under test: this thread is the owner.
        held.extend(unsafe { stack.pop() });
    }

    fn push(stack: &Stack, held: &mut Vec<NonNull<Slab>>) {
        if let Some(slab) = held.pop() {
            // SAFETY: under test: this thread is the owner, and has the slab.
            if !unsafe { stack.push(slab) } {
                held.push(slab);
            }
        }
    }

    #[test]
    fn loom_stock_is_taken_while_the_owner_pops() {
        for count in 0..=3 {
            nothing_twice_and_nothing_lost(count, |stack, held| {
                pop(stack, held);
                pop(stack, held);
            });
        }
    }

    #[test]
    fn loom_stock_is_taken_while_the_owner_pushes() {
        for count in 0..=3 {
            nothing_twice_and_nothing_lost(count, |stack, held| {
                push(stack, held);
                pop(stack, held);
                push(stack, held);
            });
        }
    }

    /// What lay on top before stays written there; it must not be taken for what lies there now.
    #[test]
    fn loom_stock_is_taken_while_another_slab_comes_on_top() {
        for count in 1..=2 {
            nothing_twice_and_nothing_lost(count, |stack, held| {
                pop(stack, held);
                held.reverse();
                push(stack, held);
            });
        }
    }

    #[test]
    fn loom_stock_is_taken_while_the_owner_makes_room() {
        for count in 1..=3 {
            nothing_twice_and_nothing_lost(count, |stack, held| {
                // SAFETY: under test: this thread is the owner.
                unsafe { stack.make_room(3, || true) };
                pop(stack, held);
                push(stack, held);
            });
        }
    }

    /// What a waiter relies on: once it has announced itself and taken, nothing gets stuck on the stack.
    #[test]
    fn loom_nothing_stays_behind_where_somebody_waits() {
        loom::model(|| {
            let stack = Arc::new(stack_of(1));
            let waits = Arc::new(crate::sync::AtomicBool::new(false));
            let taker = {
                let (stack, waits) = (stack.clone(), waits.clone());
                thread::spawn(move || {
                    waits.store(true, Ordering::Relaxed);
                    take_all(&stack)
                })
            };
            let mut held = vec![slab(9)];
            // SAFETY: under test: this thread is the owner.
            unsafe { stack.make_room(3, || !waits.load(Ordering::Relaxed)) };
            push(&stack, &mut held);
            let taken = taker.join().unwrap();
            assert_eq!(stack.stock(), 0, "what was not given back was taken");
            assert_eq!(held.len() + taken.len(), 2);
        });
    }
}
