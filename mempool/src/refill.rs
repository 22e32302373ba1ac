//! The way between threads and depots: refill and return. Everything here is off the hot path and takes a lock.

use crate::budget::{Budget, BudgetId};
use crate::error::AllocError;
use crate::ledger::Refusal;
use crate::local::{self, Local};
use crate::pool::Shared;
use crate::size::{PAGE, SIZES};
use crate::slab::{Slab, StackIndex, WHOLE};
use crate::stack::{Put, Stack};
use crate::trace::event;
use std::hint::cold_path;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

/// What an allocation may do when nothing is at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum May {
    /// Neither grow nor disturb other threads.
    Nothing,
    /// Make the pool grow.
    Grow,
    /// The same; a refusal is not the last word.
    GrowOrWait,
    /// Make the pool grow; and it is charged already, for one slab.
    GrowCharged,
}

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
#[inline(always)]
pub(crate) unsafe fn free(slab: NonNull<Slab>, index: StackIndex) {
    let stack = local::current_stack(index);
    // SAFETY: invariant A.
    let is_home = unsafe { slab.as_ref().home.get() } == stack;
    if is_home {
        // SAFETY: a slab's home is there (invariant G), and this one is attached to this thread (invariant F); and the caller's promise.
        let put = unsafe { (*stack).put(slab) };
        if matches!(put, Put::Done) {
            return;
        }
        cold_path();
        // SAFETY: as above, and it has just been put.
        return unsafe { free_unput(slab, &*stack, put) };
    }
    // As frequent as the other way, perhaps, but there is more to do for it anyway.
    cold_path();
    // SAFETY: the caller's promise.
    unsafe { free_elsewhere(slab) }
}

/// Goes on where the slab's home, `stack`, did not just take it.
///
/// # Safety
/// The caller was the holder of `slab` until it was put; its home is attached to this thread.
#[cold]
#[inline(never)]
unsafe fn free_unput(slab: NonNull<Slab>, stack: &Stack, put: Put) {
    if stack.settle(slab, put) {
        return;
    }
    // SAFETY: invariant D, the slab is outside, and ours again.
    let shared = unsafe { pin(slab) };
    shared.overflow(stack, slab);
}

/// # Safety
/// The caller is the holder of `slab`; its home is not attached to this thread.
#[inline(never)]
unsafe fn free_elsewhere(slab: NonNull<Slab>) {
    // SAFETY: invariants A and G.
    let home = unsafe { &*slab.as_ref().home.get() };
    // SAFETY: the caller's promise.
    if unsafe { home.local().remote.0.push(slab) }.is_err() {
        // SAFETY: the push was refused, so the slab is still ours and outside.
        let shared = unsafe { pin(slab) };
        // SAFETY: as above.
        unsafe { shared.give_back_watched(slab) };
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
    /// A slab of a class for this thread, when its stack had none. `len` is what was asked for.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn refill(
        self: &Arc<Self>,
        index: StackIndex,
        len: usize,
        may: May,
    ) -> Result<NonNull<Slab>, AllocError> {
        if self.debug.is_some() {
            let slab = self.take_one(index, may)?;
            self.watch(slab, len, Location::caller());
            return Ok(slab);
        }
        // SAFETY: nothing below detaches this thread.
        let Some(local) = (unsafe { local::attach(self) }) else {
            return self.take_one(index, may);
        };
        let stack = local.stack(index);
        if may == May::GrowCharged {
            let mut slab = None;
            self.take_charged(index, 1, may, &mut |taken| {
                hand_to(taken, stack);
                slab = Some(taken);
            })?;
            return Ok(slab.expect("one was taken"));
        }
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
        unsafe { self.make_room(stack, stock) };
        let mut first = None;
        let mut surplus = Vec::new();
        self.take(index, stock.div_ceil(2), may, &mut |slab| {
            hand_to(slab, stack);
            if first.is_none() {
                first = Some(slab);
            // SAFETY: attached above, and the depot has just made us the holder.
            } else if !unsafe { stack.push_below(slab) } {
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
        let by_budget = self.ledger.limit(index.budget()) / STOCK_PART / size as u64;
        (by_size as u64).min(by_budget).max(1) as usize
    }

    /// Lets a thread keep stock, unless somebody waits for what it would keep.
    ///
    /// # Safety
    /// The stack's `Local` is attached to this thread.
    unsafe fn make_room(&self, stack: &Stack, stock: usize) {
        let allowed = || !self.ledger.is_wanted(stack.index.budget());
        // SAFETY: the caller's promise.
        unsafe { stack.make_room(stock, allowed) };
    }

    /// A slab for a thread that keeps no stock.
    fn take_one(&self, index: StackIndex, may: May) -> Result<NonNull<Slab>, AllocError> {
        let mut slab = None;
        self.take(index, 1, may, &mut |taken| {
            hand_to(taken, self.stockless.stack(index));
            slab = Some(taken);
        })?;
        Ok(slab.expect("one was taken"))
    }

    /// A slab that takes whole chunks.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn take_whole(
        &self,
        index: StackIndex,
        len: usize,
        may: May,
    ) -> Result<NonNull<Slab>, AllocError> {
        if may == May::Nothing {
            return Err(AllocError::NotReady);
        }
        let size = len.next_multiple_of(PAGE);
        if may != May::GrowCharged {
            self.charge(index.budget(), size, 1, may)?;
        }
        match self.depot(index.kind()).take_whole(size, &*self.source) {
            Ok(slab) => {
                hand_to(slab, self.stockless.stack(index));
                self.watch(slab, len, Location::caller());
                Ok(slab)
            }
            Err(e) => {
                self.ledger.refund([(index.budget(), size as u64)]);
                Err(e)
            }
        }
    }

    /// Takes 1 to `count` slabs from the depot, growing it if it has none.
    fn take(
        &self,
        index: StackIndex,
        count: usize,
        may: May,
        sink: &mut dyn FnMut(NonNull<Slab>),
    ) -> Result<(), AllocError> {
        let charged = match may {
            May::GrowCharged => 1,
            _ => self.charge(index.budget(), SIZES[index.class()] as usize, count, may)?,
        };
        self.take_charged(index, charged, may, sink)
    }

    /// As [`take`](Shared::take), when `charged` slabs have been charged. What is not taken is refunded.
    fn take_charged(
        &self,
        index: StackIndex,
        charged: usize,
        may: May,
        mut sink: &mut dyn FnMut(NonNull<Slab>),
    ) -> Result<(), AllocError> {
        let (budget, class) = (index.budget(), index.class());
        let depot = self.depot(index.kind());
        let mut reclaimed = false;
        let taken = loop {
            let taken = depot.take(class, budget, charged, &mut sink);
            if taken.count > 0 {
                self.grower.look_at(taken.left);
                break Ok(taken.count);
            }
            if may == May::Nothing {
                break Err(AllocError::NotReady);
            }
            if let Err(e) = depot.grow(class, &*self.source) {
                if reclaimed {
                    break Err(e);
                }
                // Perhaps what lies about elsewhere will do.
                self.reclaim(|_| true, true);
                reclaimed = true;
            }
        };
        let unused = charged - *taken.as_ref().unwrap_or(&0);
        if unused > 0 {
            let bytes = unused * SIZES[class] as usize;
            self.ledger.refund([(budget, bytes as u64)]);
        }
        taken.map(drop)
    }

    /// Charges 1 to `count` slabs; how many.
    fn charge(
        &self,
        budget: BudgetId,
        size: usize,
        count: usize,
        may: May,
    ) -> Result<usize, AllocError> {
        let mut charged = self.ledger.charge(budget, size, count);
        if charged == 0 && self.ledger.limit(budget) >= size as u64 {
            let kin = self.ledger.in_the_way(budget, size);
            let which = |index: StackIndex| kin >> index.budget().index() & 1 == 1;
            self.reclaim(which, may != May::Nothing);
            charged = self.ledger.charge(budget, size, 1);
        }
        if charged == 0 {
            let for_good = may != May::GrowOrWait;
            return Err(exhausted(self.ledger.refuse(budget, size, for_good), size));
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
            } else if home.is_revoked() {
                home.take_oldest(usize::MAX, &mut out);
                self.make_room(home, self.stock_limit(home.index));
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

    /// Puts slabs into their depots and refunds their budgets.
    ///
    /// # Safety
    /// The caller is the holder of each, and keeps the pool alive.
    pub unsafe fn give_back(&self, slabs: impl IntoIterator<Item = NonNull<Slab>>) {
        // SAFETY: the caller's promise.
        let refunds = unsafe { self.put_back(slabs) };
        let refunds = refunds
            .into_iter()
            .enumerate()
            .filter(|(_, bytes)| *bytes > 0);
        self.ledger
            .refund(refunds.map(|(at, bytes)| (BudgetId::from_index(at), bytes)));
    }

    /// Puts slabs into their depots. What is to be refunded, by budget.
    ///
    /// # Safety
    /// As [`give_back`](Shared::give_back).
    pub unsafe fn put_back(
        &self,
        slabs: impl IntoIterator<Item = NonNull<Slab>>,
    ) -> [u64; Budget::MOST] {
        let mut refunds = [0u64; Budget::MOST];
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
                refunds[index.budget().index()] += run.charge;
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
        refunds
    }
}

/// The error of a charge that was refused.
pub(crate) fn exhausted(refusal: Refusal, size: usize) -> AllocError {
    let Refusal {
        kind,
        name,
        limit,
        in_use,
    } = refusal;
    event!(
        DEBUG,
        budget = name,
        limit,
        in_use,
        size,
        "a budget is exhausted"
    );
    AllocError::BudgetExhausted {
        budget: kind,
        name,
        limit,
        in_use,
        asked: size as u64,
    }
}

/// Makes `home` the stack of a slab fresh from the depot.
pub(crate) fn hand_to(slab: NonNull<Slab>, home: &Stack) {
    // SAFETY: invariants A and B: the depot has just made us the holder.
    unsafe { slab.as_ref() }.home.set(home);
}
