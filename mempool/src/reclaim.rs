//! Bringing back what lies about: a thread's own stock, what others have freed and nobody has sorted in, and the stock of threads
//! that do not use it.

use crate::budget::BudgetId;
use crate::fences;
use crate::local;
use crate::pool::Shared;
use crate::slab::{Slab, StackIndex};
use crate::stack::Stack;
use crate::trace::event;
use std::ptr::NonNull;

impl Shared {
    /// Brings back all stock that `which` names, and what lies on anyone's remote list; other threads' stock only if they may be
    /// disturbed.
    pub fn reclaim(&self, which: impl Fn(StackIndex) -> bool + Copy, disturb: bool) {
        let mut out = Vec::new();
        // SAFETY: nothing below detaches this thread.
        let own = unsafe { local::current(self) };
        if let Some(local) = own {
            // SAFETY: current, so attached to this thread.
            unsafe { local.take_stock(which, &mut out) };
        }
        for local in self.locals() {
            out.extend(local.remote.0.drain());
        }
        if disturb {
            // A look first: most threads have nothing.
            self.take_from_all(|stack| which(stack.index) && stack.stock() > 0, &mut out);
        }
        self.flush_quarantine(&mut out);
        // SAFETY: off stacks and lists, so they are ours.
        unsafe { self.give_back(out) };
    }

    /// Takes the stock of all threads' stacks that `which` names, or asks for it where the kernel gives no way to take it.
    pub fn take_from_all(&self, which: impl Fn(&Stack) -> bool, out: &mut Vec<NonNull<Slab>>) {
        let locals = self.locals();
        let stacks = locals.iter().flat_map(|local| local.stacks());
        // One at a time (invariant I).
        let _taking = self.taking.lock();
        let revoked: Vec<&Stack> = stacks.filter(|s| which(s) && s.revoke()).collect();
        if revoked.is_empty() || !fences::heavy() {
            return;
        }
        for stack in revoked {
            // SAFETY: revoked above, or before and not since: that is done by one at a time.
            unsafe { stack.take(out) };
        }
    }

    /// Somebody waits for `budget`: from now on, all that is freed of it and its kin goes where the waiting is known of, and what
    /// lies about does so now.
    pub fn make_way(&self, budget: BudgetId) {
        event!(
            DEBUG,
            budget = budget.index(),
            "somebody waits for room in a budget"
        );
        let mut out = Vec::new();
        self.set_lists(&mut out);
        self.flush_quarantine(&mut out);
        let wanted = |stack: &Stack| self.ledger.is_wanted(stack.index.budget());
        self.take_from_all(wanted, &mut out);
        // SAFETY: off stacks and lists, so they are ours.
        unsafe { self.give_back(out) };
    }

    /// Somebody has stopped waiting.
    pub fn way_made(&self) {
        let mut out = Vec::new();
        self.set_lists(&mut out);
        // SAFETY: off the lists, so they are ours.
        unsafe { self.give_back(out) };
    }

    /// Closes the lists of all threads if somebody waits, else opens them. What was on them is the caller's.
    fn set_lists(&self, out: &mut Vec<NonNull<Slab>>) {
        self.for_attached(|local, somebody_waits| match somebody_waits {
            true => out.extend(local.remote.0.close()),
            false => local.remote.0.reopen_if_closed(),
        });
    }

    /// Takes the stock that has not changed since `before`, which then holds what there is. Returns bytes.
    pub fn reclaim_unused(&self, before: &mut Vec<(usize, usize)>) {
        let state_of = |stack: &Stack| (std::ptr::from_ref(stack).addr(), stack.state());
        let locals = self.locals();
        let stacks = || locals.iter().flat_map(|local| local.stacks());
        let now: Vec<_> = stacks()
            .filter(|stack| stack.stock() > 0)
            .map(state_of)
            .collect();
        let mut unused = now.clone();
        unused.retain(|state| before.contains(state));
        *before = now;
        if unused.is_empty() {
            return;
        }
        let mut out = Vec::new();
        self.take_from_all(|stack| unused.contains(&state_of(stack)), &mut out);
        event!(
            DEBUG,
            slabs = out.len(),
            "stock that no thread used was taken back"
        );
        // SAFETY: off the stacks, so they are ours.
        unsafe { self.give_back(out) };
    }
}
