//! The way between threads and depots: refill, return, reclaim. Everything here is off the hot path and takes a lock.

use crate::budget::BudgetKind;
use crate::error::AllocError;
use crate::local::{self, Local, Stack};
use crate::pool::Shared;
use crate::size::{PAGE, SIZES};
use crate::slab::{Slab, StackIndex, WHOLE};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a thread keeps of one class at most, in bytes ...
const STOCK_BYTES: usize = 256 << 10;
/// ... and in slabs, at least and at most ...
const STOCK_SLABS: (usize, usize) = (4, 256);
/// ... but never more than this part of its budget.
const STOCK_PART: u64 = 16;

/// A handle on the slab was the last and is gone.
///
/// Where the slab goes is worked out from `index` and the thread, and only checked against the slab: its descriptor need not have come out of
/// memory for that.
///
/// # Safety
/// The caller is the holder of `slab`, whose home has that number.
#[inline]
pub(crate) unsafe fn free(slab: NonNull<Slab>, index: StackIndex) {
    let stack = local::current_stack(index);
    // SAFETY: invariant A.
    let is_home = unsafe { slab.as_ref().home.get() } == stack;
    // SAFETY: a slab's home is there (invariant G), and this one is attached to this thread (invariant F); and the caller's promise.
    if is_home && unsafe { (*stack).push(slab) } {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { free_elsewhere(slab, is_home) }
}

/// # Safety
/// The caller is the holder of `slab`; its home is attached to this thread if so said.
#[inline(never)]
unsafe fn free_elsewhere(slab: NonNull<Slab>, is_home: bool) {
    // SAFETY: invariants A and G.
    let home = unsafe { &*slab.as_ref().home.get() };
    if is_home {
        // SAFETY: invariant D, the slab is outside.
        let shared = unsafe { pin(slab) };
        return shared.overflow(home, slab);
    }
    // SAFETY: the caller's promise.
    if unsafe { home.local().remote.0.push(slab) }.is_err() {
        // SAFETY: the push was refused, so the slab is still ours and outside.
        let shared = unsafe { pin(slab) };
        // SAFETY: as above.
        unsafe { shared.give_back([slab]) };
    }
}

/// Keeps the pool of a slab alive across its return, which may be the last.
///
/// # Safety
/// The caller is the holder of `slab`, which is outside.
unsafe fn pin(slab: NonNull<Slab>) -> Arc<Shared> {
    // SAFETY: invariant A.
    let shared = unsafe { slab.as_ref().run().chunk().shared };
    // SAFETY: invariant D.
    unsafe {
        Arc::increment_strong_count(shared);
        Arc::from_raw(shared)
    }
}

impl Shared {
    /// A slab of a class for this thread, when its stack had none.
    #[cold]
    #[inline(never)]
    pub fn refill(
        self: &Arc<Self>,
        index: StackIndex,
        grow: bool,
    ) -> Result<NonNull<Slab>, AllocError> {
        // SAFETY: nothing below detaches this thread.
        let Some(local) = (unsafe { local::attach(self) }) else {
            return self.take_one(index, grow);
        };
        let stack = local.stack(index);
        // SAFETY: attached above.
        let pop = || unsafe { stack.pop() };
        if let Some(slab) = pop() {
            return Ok(slab);
        }
        self.sort_in(local);
        if let Some(slab) = pop() {
            return Ok(slab);
        }
        let stock = self.stock_limit(index);
        // SAFETY: attached above.
        unsafe { stack.make_room(stock) };
        let mut first = None;
        let mut surplus = Vec::new();
        self.take(index, stock.div_ceil(2), grow, |slab| {
            hand_to(slab, stack);
            if first.is_none() {
                first = Some(slab);
            // SAFETY: attached above, and the depot has just made us the holder.
            } else if !unsafe { stack.push(slab) } {
                // There is room, but the stock may be asked back at any moment.
                surplus.push(slab);
            }
        })?;
        if !surplus.is_empty() {
            // SAFETY: on no stack, so they are ours.
            unsafe { self.give_back(surplus) };
        }
        Ok(first.expect("at least one was taken"))
    }

    /// How many slabs a thread keeps on a stack.
    fn stock_limit(&self, index: StackIndex) -> usize {
        let size = SIZES[index.class()] as usize;
        let by_size = (STOCK_BYTES / size).clamp(STOCK_SLABS.0, STOCK_SLABS.1);
        let by_budget = self.account(index.budget()).limit() / STOCK_PART / size as u64;
        (by_size as u64).min(by_budget).max(1) as usize
    }

    /// A slab for a thread that keeps no stock.
    fn take_one(&self, index: StackIndex, grow: bool) -> Result<NonNull<Slab>, AllocError> {
        let mut slab = None;
        self.take(index, 1, grow, |taken| {
            hand_to(taken, self.stockless.stack(index));
            slab = Some(taken);
        })?;
        Ok(slab.expect("one was taken"))
    }

    /// A slab that takes whole chunks.
    #[cold]
    #[inline(never)]
    pub fn take_whole(
        &self,
        index: StackIndex,
        len: usize,
        grow: bool,
    ) -> Result<NonNull<Slab>, AllocError> {
        if !grow {
            return Err(AllocError::NotReady);
        }
        let len = len.next_multiple_of(PAGE);
        self.charge(index.budget(), len, 1)?;
        match self.depot(index.kind()).take_whole(len, &*self.source) {
            Ok(slab) => {
                hand_to(slab, self.stockless.stack(index));
                Ok(slab)
            }
            Err(e) => {
                self.account(index.budget()).refund(len as u64);
                Err(e)
            }
        }
    }

    /// Takes 1 to `count` slabs from the depot, growing it if it has none.
    fn take(
        &self,
        index: StackIndex,
        count: usize,
        grow: bool,
        mut sink: impl FnMut(NonNull<Slab>),
    ) -> Result<(), AllocError> {
        let (budget, class) = (index.budget(), index.class());
        let size = SIZES[class] as usize;
        let charged = self.charge(budget, size, count)?;
        let depot = self.depot(index.kind());
        let mut reclaimed = false;
        let taken = loop {
            let taken = depot.take(class, budget, charged, &mut sink);
            if taken > 0 {
                break Ok(taken);
            }
            if !grow {
                break Err(AllocError::NotReady);
            }
            if let Err(e) = depot.grow(class, &*self.source) {
                if reclaimed {
                    break Err(e);
                }
                // Perhaps what lies about elsewhere will do.
                self.reclaim(|_| true);
                reclaimed = true;
            }
        };
        let unused = charged - *taken.as_ref().unwrap_or(&0);
        self.account(budget).refund((unused * size) as u64);
        taken.map(drop)
    }

    /// Charges 1 to `count` slabs; how many.
    fn charge(&self, budget: BudgetKind, size: usize, count: usize) -> Result<usize, AllocError> {
        let account = self.account(budget);
        let mut charged = account.charge(size, count);
        if charged == 0 && account.limit() >= size as u64 {
            self.reclaim(|index| index.budget() == budget);
            charged = account.charge(size, 1);
        }
        if charged == 0 {
            account.refused();
            return Err(AllocError::BudgetExhausted {
                budget,
                limit: account.limit(),
                in_use: account.charged(),
                asked: size as u64,
            });
        }
        Ok(charged)
    }

    /// Sorts what other threads gave back into this thread's stacks, if it has any of this pool.
    pub fn sort_in_own(&self) {
        // SAFETY: nothing below detaches this thread.
        if let Some(local) = unsafe { local::current(self) } {
            self.sort_in(local);
        }
    }

    /// Sorts what other threads gave back into this thread's stacks.
    fn sort_in(&self, local: &Local) {
        let mut surplus = Vec::new();
        for slab in local.remote.0.drain() {
            // SAFETY: taken from the list, so it is ours (invariants A and B).
            let home = unsafe { &*slab.as_ref().home.get() };
            // SAFETY: of `local`, which is attached to this thread.
            if !unsafe { home.push(slab) } {
                surplus.push(slab);
            }
        }
        if !surplus.is_empty() {
            // SAFETY: as above; none of them is on a stack.
            unsafe { self.give_back(surplus) };
        }
    }

    /// The owner frees a slab into a full stack, or one whose stock was asked back.
    #[cold]
    fn overflow(&self, home: &Stack, slab: NonNull<Slab>) {
        let mut out = Vec::new();
        // SAFETY: the caller has found `home` attached to this thread, and is the slab's holder.
        unsafe {
            if self.is_closed() {
                home.local().take_stock(|_| true, &mut out);
                out.push(slab);
            } else if home.is_asked_back() {
                home.take_oldest(usize::MAX, &mut out);
                home.make_room(self.stock_limit(home.index));
                out.push(slab);
            } else {
                home.take_oldest(home.stock().div_ceil(2), &mut out);
                // There is room now, unless the stock was asked back in between.
                if !home.push(slab) {
                    out.push(slab);
                }
            }
        }
        // SAFETY: off the stacks, so they are ours.
        unsafe { self.give_back(out) };
    }

    /// Brings back what can be brought back: this thread's stock, and what lies on anyone's remote list. Other threads are asked
    /// to give their stock back with their next free.
    pub fn reclaim(&self, which: impl Fn(StackIndex) -> bool + Copy) {
        let mut out = Vec::new();
        // SAFETY: nothing below detaches this thread.
        let own = unsafe { local::current(self) };
        if let Some(local) = own {
            // SAFETY: current, so attached to this thread.
            unsafe { local.take_stock(which, &mut out) };
        }
        for local in self.locals() {
            out.extend(local.remote.0.drain());
            if !own.is_some_and(|own| std::ptr::eq(own, &*local)) {
                local.ask_back(which);
            }
        }
        // SAFETY: off stacks and lists, so they are ours.
        unsafe { self.give_back(out) };
    }

    /// Puts slabs into their depots and refunds their budgets.
    ///
    /// # Safety
    /// The caller is the holder of each, and keeps the pool alive.
    pub unsafe fn give_back(&self, slabs: impl IntoIterator<Item = NonNull<Slab>>) {
        let mut refunds = [0u64; BudgetKind::ALL.len()];
        let mut slabs = slabs.into_iter().peekable();
        let mut arenas = Vec::new();
        let kind_of = |slab: &NonNull<Slab>| {
            // SAFETY: invariants A and B; the caller is the holder.
            unsafe { slab.as_ref().index().kind() }
        };
        while let Some(kind) = slabs.peek().map(kind_of) {
            let mut state = self.depot(kind).lock();
            state.count_return();
            while let Some(slab) = slabs.next_if(|slab| kind_of(slab) == kind) {
                // SAFETY: as above.
                let (run, index) = unsafe { (slab.as_ref().run(), slab.as_ref().index()) };
                refunds[index.budget() as usize] += run.size as u64;
                // SAFETY: the caller's promise; the slab is of this kind's depot.
                unsafe {
                    match run.class {
                        WHOLE => arenas.extend(state.put_whole(slab)),
                        _ => state.put(slab),
                    }
                }
            }
            let last = state.outside == 0;
            drop(state);
            if last {
                // SAFETY: all slabs are in; the caller keeps the pool alive.
                unsafe { self.depot(kind).let_go() };
            }
        }
        for (budget, bytes) in BudgetKind::ALL.into_iter().zip(refunds) {
            if bytes > 0 {
                self.account(budget).refund(bytes);
            }
        }
    }
}

/// Makes `home` the stack of a slab fresh from the depot.
fn hand_to(slab: NonNull<Slab>, home: &Stack) {
    // SAFETY: invariants A and B: the depot has just made us the holder.
    unsafe { slab.as_ref() }.home.set(home);
}
