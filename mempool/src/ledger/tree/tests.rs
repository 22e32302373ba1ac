use super::*;
use proptest::prelude::*;

const USER: BudgetId = BudgetId::of(BudgetKind::User);
const RECEIVE: BudgetId = BudgetId::of(BudgetKind::Receive);

fn charge(tree: &mut Tree, budget: BudgetId, size: u64) -> bool {
    let fits = tree.check(budget, size, Blocked::NONE).is_ok();
    assert_eq!(fits, tree.room(budget) >= size, "both say the same");
    if fits {
        tree.apply(budget, size);
    }
    fits
}

#[test]
fn what_fits_is_charged_and_never_more() {
    let mut tree = Tree::new(Plan::of([1000, 0, 0]).unwrap());
    assert!(charge(&mut tree, USER, 600));
    assert!(!charge(&mut tree, USER, 600));
    assert!(charge(&mut tree, USER, 400));
    tree.refund(USER, 600);
    assert_eq!(tree.room(USER), 600);
    assert_eq!(tree.room(RECEIVE), 0);
    let user = tree.figures()[0];
    assert_eq!((user.charged, user.peak), (400, 1000));
}

#[test]
fn a_child_counts_for_its_parents() {
    let plan = [
        Budget::user(1000),
        Budget::named("a", BudgetKind::User, 800),
        Budget::named("b", "a", 700),
    ];
    let plan = Plan::new(&plan, 900).unwrap();
    let (a, b) = (plan.id_of("a").unwrap(), plan.id_of("b").unwrap());
    let mut tree = Tree::new(plan);
    assert_eq!(
        (tree.room(USER), tree.room(a), tree.room(b)),
        (900, 800, 700)
    );
    assert!(charge(&mut tree, b, 500) && charge(&mut tree, USER, 300));
    assert_eq!(
        (tree.room(USER), tree.room(a), tree.room(b)),
        (100, 100, 100)
    );
    assert_eq!(tree.check(b, 150, Blocked::NONE), Err(POOL));
    assert_eq!(tree.check(b, 250, Blocked::NONE), Err(b.index()));
    tree.refund(USER, 300);
    assert_eq!(tree.check(b, 201, Blocked::NONE), Err(b.index()));
    assert_eq!(tree.check(a, 301, Blocked::NONE), Err(a.index()));
}

#[test]
fn what_is_reserved_is_nobody_else_s() {
    let plan = [
        Budget::user(1000),
        Budget::named("a", BudgetKind::User, 1000).reserve(400),
        Budget::named("b", BudgetKind::User, 1000),
    ];
    let plan = Plan::new(&plan, u64::MAX).unwrap();
    let (a, b) = (plan.id_of("a").unwrap(), plan.id_of("b").unwrap());
    let mut tree = Tree::new(plan);
    assert_eq!(
        (tree.room(USER), tree.room(a), tree.room(b)),
        (600, 1000, 600)
    );
    assert!(charge(&mut tree, b, 600));
    assert!(!charge(&mut tree, USER, 1));
    let mut blocked = Blocked::NONE;
    blocked.add(USER.index());
    assert!(
        tree.check(a, 400, blocked).is_ok(),
        "its own, though others wait"
    );
    assert_eq!(tree.check(a, 401, blocked), Err(USER.index()));
    assert!(charge(&mut tree, a, 400));
    assert!(!tree.can_ever(b, 601) && tree.can_ever(b, 600) && tree.can_ever(a, 1000));
    tree.refund(b, 600);
    assert!(charge(&mut tree, a, 600));
    tree.refund(a, 1000);
    assert_eq!((tree.room(USER), tree.room(b)), (600, 600));
}

#[test]
fn plans_that_cannot_be_kept_are_refused() {
    let refused = |budgets: &[Budget], limit| Plan::new(budgets, limit).unwrap_err();
    assert!(matches!(
        refused(&[Budget::user(63)], u64::MAX),
        PoolError::BudgetTooSmall { limit: 63, .. }
    ));
    let reserve = Budget::user(1000).reserve(600);
    assert!(matches!(
        refused(&[reserve, Budget::control(1000).reserve(600)], 1000),
        PoolError::ReserveTooLarge {
            name: "pool",
            reserved: 1200,
            limit: 1000
        }
    ));
    assert!(matches!(
        refused(&[Budget::user(1000).reserve(1001)], u64::MAX),
        PoolError::ReserveTooLarge { name: "user", .. }
    ));
    let named = |name, parent: &'static str| Budget::named(name, parent, 1000);
    assert!(matches!(
        refused(&[named("a", "b")], u64::MAX),
        PoolError::NoSuchParent {
            name: "a",
            parent: "b"
        }
    ));
    for name in ["user", "a"] {
        let twice = [named("a", "control"), named(name, "user")];
        assert!(matches!(
            refused(&twice, u64::MAX),
            PoolError::NameTaken { .. }
        ));
    }
    const NAMES: [&str; 14] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n",
    ];
    let many = NAMES.map(|name| named(name, "user"));
    assert!(matches!(
        refused(&many, u64::MAX),
        PoolError::TooManyBudgets { name: "n" }
    ));
    assert_eq!(
        Plan::new(&many[..13], u64::MAX).unwrap().count(),
        Budget::MOST
    );
    // The last of a name counts.
    let plan = Plan::new(&[named("a", "user"), named("a", "user").reserve(64)], 100).unwrap();
    assert_eq!(plan.budgets[3].reserve, 64);
}

proptest! {
    /// Against a model that knows only the charges: claims are what they are by definition after any history.
    #[test]
    fn claims_are_kept(
        reserves in prop::array::uniform3(0u64..300),
        ops in prop::collection::vec((0usize..3, 1u64..400, any::<bool>()), 1..80),
    ) {
        let plan = [
            Budget::user(1000).reserve(500),
            Budget::named("a", BudgetKind::User, 700).reserve(reserves[0]),
            Budget::named("b", "a", 500).reserve(reserves[1].min(reserves[0])),
        ];
        let plan = Plan::new(&plan, 1300).unwrap();
        let ids = [USER, plan.id_of("a").unwrap(), plan.id_of("b").unwrap()];
        let mut tree = Tree::new(plan);
        let mut held: Vec<(usize, u64)> = Vec::new();
        for (who, size, free) in ops {
            if free && !held.is_empty() {
                let (who, size) = held.swap_remove(size as usize % held.len());
                tree.refund(ids[who], size);
            } else if charge(&mut tree, ids[who], size) {
                held.push((who, size));
            }
            let own = |who| held.iter().filter(|h| h.0 == who).map(|h| h.1).sum::<u64>();
            let b = own(2);
            let a = own(1) + b.max(reserves[1].min(reserves[0]));
            let user = own(0) + a.max(reserves[0]);
            prop_assert!(b <= 500 && a <= 700 && user <= 1000);
            let used = |id: BudgetId| tree.accounts[id.index()].used;
            prop_assert_eq!([used(ids[0]), used(ids[1]), used(ids[2])], [user, a, b]);
            prop_assert_eq!(tree.accounts[POOL].used, user.max(500));
        }
    }
}
