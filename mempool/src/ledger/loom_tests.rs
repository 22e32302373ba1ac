use super::*;
use crate::budget::BudgetKind;
use loom::sync::Arc as LoomArc;
use loom::thread;

const USER: BudgetId = BudgetId::of(BudgetKind::User);

fn ledger(limit: u64) -> LoomArc<Ledger> {
    LoomArc::new(Ledger::new(Plan::of([limit, 0, 0]).unwrap()))
}

/// Charges, waiting if need be.
fn charge(ledger: &Ledger, size: usize) {
    match ledger.charge_or_queue(USER, size) {
        Wait::Charged => {}
        // Loom knows no time: if nobody serves it, this is a deadlock, which loom reports.
        Wait::Queued(waiter) => assert!(ledger.wait(&waiter, Instant::now())),
        Wait::Never(_) => unreachable!(),
    }
}

#[test]
fn loom_no_wake_up_is_lost() {
    loom::model(|| {
        let ledger = ledger(100);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let ledger = ledger.clone();
                thread::spawn(move || {
                    charge(&ledger, 64);
                    ledger.refund([(USER, 64)]);
                })
            })
            .collect();
        charge(&ledger, 100);
        ledger.refund([(USER, 100)]);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(!ledger.somebody_waits());
        assert_eq!(ledger.charge(USER, 100, 1), 1);
    });
}

#[test]
fn loom_who_gives_up_is_served_or_gone_and_nobody_behind_it_is_forgotten() {
    loom::model(|| {
        let ledger = ledger(100);
        assert_eq!(ledger.charge(USER, 64, 1), 1);
        let Wait::Queued(first) = ledger.charge_or_queue(USER, 100) else {
            unreachable!()
        };
        // Fits by itself, but came later.
        let Wait::Queued(second) = ledger.charge_or_queue(USER, 64) else {
            unreachable!()
        };
        let gives_up = {
            let ledger = ledger.clone();
            thread::spawn(move || {
                let books = ledger.books.lock();
                let served = ledger.leave(books, &first);
                if served {
                    ledger.refund([(USER, 100)]);
                }
            })
        };
        let waits = {
            let ledger = ledger.clone();
            thread::spawn(move || {
                assert!(ledger.wait(&second, Instant::now()));
                ledger.refund([(USER, 64)]);
            })
        };
        ledger.refund([(USER, 64)]);
        gives_up.join().unwrap();
        waits.join().unwrap();
        assert_eq!(ledger.charge(USER, 100, 1), 1);
    });
}

#[test]
fn loom_who_gives_up_lets_those_behind_pass() {
    loom::model(|| {
        let ledger = ledger(100);
        assert_eq!(ledger.charge(USER, 64, 1), 1);
        let Wait::Queued(first) = ledger.charge_or_queue(USER, 100) else {
            unreachable!()
        };
        let gives_up = {
            let ledger = ledger.clone();
            thread::spawn(move || {
                let books = ledger.books.lock();
                assert!(!ledger.leave(books, &first), "nobody makes room");
            })
        };
        // There is room for it all the time, but as long as the first waits it is not given.
        charge(&ledger, 32);
        gives_up.join().unwrap();
        assert!(!ledger.somebody_waits());
    });
}
