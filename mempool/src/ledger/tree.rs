//! The tree of accounts: arithmetic without locks.

use crate::budget::{Budget, BudgetId, BudgetKind, BudgetParent, Which};
use crate::error::PoolError;
use crate::size::LINE;

/// The account of the whole pool, behind those of the budgets.
const POOL: usize = Budget::MOST;

/// What budgets there are to be, checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// By [`BudgetId`].
    budgets: Vec<Planned>,
    limit: u64,
}

#[derive(Debug, Clone, Copy)]
struct Planned {
    name: &'static str,
    kind: BudgetKind,
    parent: usize,
    limit: u64,
    reserve: u64,
}

impl Plan {
    /// The three with these limits, and nothing else.
    #[cfg(test)]
    pub fn of(limits: [u64; 3]) -> Result<Plan, PoolError> {
        let budgets = BudgetKind::ALL.map(|kind| Budget::of(kind, limits[kind as usize]));
        Plan::new(&budgets, u64::MAX)
    }

    /// Later budgets of the same name replace earlier ones; a parent comes before its children.
    pub fn new(budgets: &[Budget], limit: u64) -> Result<Plan, PoolError> {
        let root = |kind: BudgetKind| Planned {
            name: kind.name(),
            kind,
            parent: POOL,
            limit: Budget::DEFAULTS[kind as usize],
            reserve: 0,
        };
        let mut plan = Plan {
            budgets: BudgetKind::ALL.map(root).to_vec(),
            limit,
        };
        for budget in budgets {
            plan.add(budget)?;
        }
        plan.check()?;
        Ok(plan)
    }

    fn add(&mut self, budget: &Budget) -> Result<(), PoolError> {
        let Budget {
            which,
            limit,
            reserve,
        } = *budget;
        let (name, parent) = match which {
            Which::Root(kind) => {
                let root = &mut self.budgets[kind as usize];
                (root.limit, root.reserve) = (limit, reserve);
                return Ok(());
            }
            Which::Named(name, parent) => (name, parent),
        };
        let parent = match parent {
            BudgetParent::Kind(kind) => kind as usize,
            BudgetParent::Name(parent) => self
                .find(parent)
                .ok_or(PoolError::NoSuchParent { name, parent })?,
        };
        let planned = Planned {
            name,
            kind: self.budgets[parent].kind,
            parent,
            limit,
            reserve,
        };
        match self.find(name) {
            Some(at) if at >= BudgetKind::ALL.len() && self.budgets[at].parent == parent => {
                self.budgets[at] = planned;
            }
            Some(_) => return Err(PoolError::NameTaken { name }),
            None if self.budgets.len() == Budget::MOST => {
                return Err(PoolError::TooManyBudgets { name });
            }
            None => self.budgets.push(planned),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PoolError> {
        for (at, budget) in self.budgets.iter().enumerate() {
            if budget.limit > 0 && budget.limit < LINE as u64 {
                return Err(PoolError::BudgetTooSmall {
                    budget: budget.kind,
                    name: budget.name,
                    limit: budget.limit,
                });
            }
            self.check_reserves(at, budget.name, budget.limit)?;
            if budget.reserve > budget.limit {
                return Err(PoolError::ReserveTooLarge {
                    name: budget.name,
                    reserved: budget.reserve,
                    limit: budget.limit,
                });
            }
        }
        self.check_reserves(POOL, "pool", self.limit)
    }

    /// The children's reserves must fit.
    fn check_reserves(&self, of: usize, name: &'static str, limit: u64) -> Result<(), PoolError> {
        let reserved = self
            .budgets
            .iter()
            .filter(|b| b.parent == of)
            .fold(0u64, |sum, b| sum.saturating_add(b.reserve));
        if reserved > limit {
            return Err(PoolError::ReserveTooLarge {
                name,
                reserved,
                limit,
            });
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.budgets.iter().position(|b| b.name == name)
    }

    pub fn id_of(&self, name: &str) -> Option<BudgetId> {
        self.find(name).map(BudgetId::from_index)
    }

    pub fn count(&self) -> usize {
        self.budgets.len()
    }
}

/// A set of accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocked(u32);

impl Blocked {
    pub const NONE: Blocked = Blocked(0);

    pub fn add(&mut self, account: usize) {
        self.0 |= 1 << account;
    }

    fn has(self, account: usize) -> bool {
        self.0 >> account & 1 == 1
    }
}

#[derive(Debug)]
struct Account {
    name: &'static str,
    kind: BudgetKind,
    parent: Option<usize>,
    limit: u64,
    reserve: u64,
    /// Own charges, and the claims of the accounts below.
    used: u64,
    /// Own charges and those of all below.
    charged: u64,
    peak: u64,
    refusals: u64,
    waits: u64,
}

/// Where a charge was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub kind: BudgetKind,
    pub name: &'static str,
    pub limit: u64,
    pub in_use: u64,
}

/// Figures of one account.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountFigures {
    pub name: &'static str,
    pub kind: BudgetKind,
    pub parent: Option<BudgetId>,
    pub limit: u64,
    pub reserve: u64,
    pub charged: u64,
    pub peak: u64,
    pub refusals: u64,
    pub waits: u64,
}

/// All accounts, those of the budgets by number and the pool's at [`POOL`].
#[derive(Debug)]
pub(super) struct Tree {
    accounts: Vec<Account>,
    budgets: usize,
}

impl Account {
    fn claim(&self) -> u64 {
        self.used.max(self.reserve)
    }

    /// What of its reserve is not used.
    fn reserved(&self) -> u64 {
        self.claim() - self.used
    }
}

impl Tree {
    pub fn new(plan: Plan) -> Tree {
        let unused = Planned {
            name: "",
            kind: BudgetKind::User,
            parent: POOL,
            limit: 0,
            reserve: 0,
        };
        let pool = Planned {
            name: "pool",
            limit: plan.limit,
            ..unused
        };
        let mut planned = plan.budgets;
        let budgets = planned.len();
        planned.resize(POOL, unused);
        planned.push(pool);
        let mut accounts: Vec<Account> = planned
            .into_iter()
            .enumerate()
            .map(|(at, p)| Account {
                name: p.name,
                kind: p.kind,
                parent: (at != POOL).then_some(p.parent),
                limit: p.limit,
                reserve: p.reserve,
                used: 0,
                charged: 0,
                peak: 0,
                refusals: 0,
                waits: 0,
            })
            .collect();
        // Parents come before children, but for the pool, which is last: from the leaves up.
        for at in (0..POOL).rev() {
            let claim = accounts[at].claim();
            if let Some(parent) = accounts[at].parent {
                accounts[parent].used += claim;
            }
        }
        Tree { accounts, budgets }
    }

    /// Bytes that can be charged to the budget.
    pub fn room(&self, budget: BudgetId) -> u64 {
        let (mut at, mut below, mut room) = (budget.index(), 0u64, u64::MAX);
        loop {
            let account = &self.accounts[at];
            let own = account.limit.saturating_sub(account.used);
            room = room.min(below.saturating_add(own));
            below = below.saturating_add(account.reserved());
            match account.parent {
                Some(parent) => at = parent,
                None => return room,
            }
        }
    }

    /// Whether `size` bytes can be charged without need of a blocked account; else the account that is in the way.
    pub fn check(&self, budget: BudgetId, size: u64, blocked: Blocked) -> Result<(), usize> {
        self.walk(budget, size, |at, account, need| {
            blocked.has(at) || account.limit.saturating_sub(account.used) < need
        })
    }

    /// Whether `size` bytes could be charged if everybody else gave back what they have.
    pub fn can_ever(&self, budget: BudgetId, size: u64) -> bool {
        let (mut at, mut need) = (budget.index(), size);
        loop {
            let account = &self.accounts[at];
            // What others have reserved is never given back.
            let others: u64 = self
                .accounts
                .iter()
                .enumerate()
                .filter(|(i, a)| a.parent == Some(at) && !self.is_above(*i, budget.index()))
                .map(|(_, a)| a.reserve)
                .sum();
            if account.limit.saturating_sub(others) < need {
                return false;
            }
            need = need.max(account.reserve);
            match account.parent {
                Some(parent) => at = parent,
                None => return true,
            }
        }
    }

    /// Whether `above` is `at` or one of those that it is part of.
    fn is_above(&self, above: usize, mut at: usize) -> bool {
        loop {
            if at == above {
                return true;
            }
            match self.accounts[at].parent {
                Some(parent) => at = parent,
                None => return false,
            }
        }
    }

    /// Goes up as far as a charge changes claims; the first account that `stops` it.
    fn walk(
        &self,
        budget: BudgetId,
        size: u64,
        stops: impl Fn(usize, &Account, u64) -> bool,
    ) -> Result<(), usize> {
        let (mut at, mut need) = (budget.index(), size);
        loop {
            let account = &self.accounts[at];
            if stops(at, account, need) {
                return Err(at);
            }
            need = need.saturating_sub(account.reserved());
            match account.parent {
                Some(parent) if need > 0 => at = parent,
                _ => return Ok(()),
            }
        }
    }

    /// Charges what was found to fit.
    pub fn apply(&mut self, budget: BudgetId, size: u64) {
        let (mut next, mut need) = (Some(budget.index()), size);
        while let Some(at) = next {
            let account = &mut self.accounts[at];
            let before = account.claim();
            account.used += need;
            debug_assert!(account.used <= account.limit, "more than {}", account.name);
            need = account.claim() - before;
            account.charged += size;
            account.peak = account.peak.max(account.charged);
            next = account.parent;
        }
    }

    /// Takes a charge back.
    pub fn refund(&mut self, budget: BudgetId, size: u64) {
        let (mut next, mut less) = (Some(budget.index()), size);
        while let Some(at) = next {
            let account = &mut self.accounts[at];
            debug_assert!(account.charged >= size, "refund of what was never charged");
            let before = account.claim();
            account.used -= less;
            less = before - account.claim();
            account.charged -= size;
            next = account.parent;
        }
    }

    pub fn count_refusal(&mut self, budget: BudgetId) {
        self.accounts[budget.index()].refusals += 1;
    }

    /// Which account is in the way of a charge.
    pub fn why(&self, budget: BudgetId, size: u64, blocked: Blocked) -> Refusal {
        let at = match self.check(budget, size, blocked) {
            Err(at) => at,
            // Room was made a moment ago; or the size is above what can ever be.
            Ok(()) => budget.index(),
        };
        let account = &self.accounts[at];
        Refusal {
            kind: self.accounts[budget.index()].kind,
            name: account.name,
            limit: account.limit,
            in_use: account.used,
        }
    }

    pub fn count_wait(&mut self, budget: BudgetId) {
        self.accounts[budget.index()].waits += 1;
    }

    /// By bit, the budgets whose charges count for one of these accounts.
    pub fn below(&self, blocked: Blocked) -> u32 {
        (0..self.budgets)
            .filter(|at| (0..=POOL).any(|b| blocked.has(b) && self.is_above(b, *at)))
            .fold(0, |bits, at| bits | 1 << at)
    }

    /// The least limit on the way up.
    pub fn limit(&self, budget: BudgetId) -> u64 {
        let (mut at, mut limit) = (budget.index(), u64::MAX);
        loop {
            limit = limit.min(self.accounts[at].limit);
            match self.accounts[at].parent {
                Some(parent) => at = parent,
                None => return limit,
            }
        }
    }

    pub fn figures(&self) -> Vec<AccountFigures> {
        let of = |account: &Account| AccountFigures {
            name: account.name,
            kind: account.kind,
            parent: account
                .parent
                .filter(|p| *p != POOL)
                .map(BudgetId::from_index),
            limit: account.limit,
            reserve: account.reserve,
            charged: account.charged,
            peak: account.peak,
            refusals: account.refusals,
            waits: account.waits,
        };
        self.accounts[..self.budgets].iter().map(of).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
