//! Two accounts and two wires, driven by random choices: nothing overruns, nothing stalls.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A message on the wire.
#[derive(Debug, Clone, Copy)]
struct Message {
    class: Class,
    counter: u32,
}

/// One end of the simulated connection.
struct End {
    credits: Credits,
    inbox: VecDeque<Message>,
    /// Entries that the device really holds.
    posted: u32,
    /// Messages taken whose entries have not been posted again.
    held: VecDeque<Class>,
    /// Requests to answer.
    to_answer: u32,
    unanswered: u32,
    slots: u32,
    want: u32,
    explicit: u64,
}

impl End {
    fn new(window: u32, peer: u32, slots: u32, peer_slots: u32, want: u32) -> End {
        End {
            credits: Credits::new(window, peer, peer_slots),
            inbox: VecDeque::new(),
            posted: window,
            held: VecDeque::new(),
            to_answer: 0,
            unanswered: 0,
            slots,
            want,
            explicit: 0,
        }
    }

    /// Sends if the account allows; true if it did.
    fn send(&mut self, class: Class, peer: &mut End) -> bool {
        if !self.credits.may_send(class) {
            return false;
        }
        let counter = self.credits.send(class);
        // The device: no entry, no delivery, and the connection is dead.
        assert!(peer.posted > 0, "RNR");
        peer.posted -= 1;
        peer.inbox.push_back(Message { class, counter });
        true
    }

    fn request(&mut self, peer: &mut End) -> bool {
        if self.want == 0 || self.unanswered == self.slots || !self.send(Class::Request, peer) {
            return false;
        }
        self.want -= 1;
        self.unanswered += 1;
        true
    }

    fn answer(&mut self, peer: &mut End) -> bool {
        if self.to_answer == 0 {
            return false;
        }
        assert!(self.send(Class::Answer, peer), "I2: an answer waits");
        self.to_answer -= 1;
        true
    }

    fn take(&mut self) -> bool {
        let Some(message) = self.inbox.pop_front() else {
            return false;
        };
        self.credits
            .receive(message.class, message.counter)
            .expect("an honest peer");
        self.held.push_back(message.class);
        match message.class {
            Class::Request => self.to_answer += 1,
            // Released only after the entry is posted again: see `repost`.
            Class::Answer | Class::Credit | Class::Control => {}
        }
        true
    }

    fn repost(&mut self) -> bool {
        let Some(class) = self.held.pop_front() else {
            return false;
        };
        self.posted += 1;
        self.credits.reposted(class);
        if class == Class::Answer {
            self.unanswered -= 1;
        }
        true
    }

    fn give_back(&mut self, peer: &mut End) -> bool {
        if !self.credits.must_return() || !self.send(Class::Credit, peer) {
            return false;
        }
        self.explicit += 1;
        true
    }

    /// A control message for another reason.
    fn control(&mut self, peer: &mut End) -> bool {
        self.send(Class::Control, peer)
    }
}

/// One of the things either end can do; the last four are what an end must do when nothing else
/// happens.
fn step(a: &mut End, b: &mut End, what: u8) -> bool {
    match what % 6 {
        0 => a.request(b),
        1 => a.answer(b),
        2 => a.take(),
        3 => a.repost(),
        4 => a.give_back(b),
        _ => a.control(b),
    }
}

/// Lets both ends do everything they must, until nothing moves.
fn settle(a: &mut End, b: &mut End, answering: bool) {
    loop {
        let mut moved = false;
        for what in [0, 2, 3, 4] {
            while step(a, b, what) {
                moved = true;
            }
            while step(b, a, what) {
                moved = true;
            }
        }
        if answering {
            moved |= a.answer(b) | b.answer(a);
        }
        if !moved {
            return;
        }
    }
}

/// `a` asks, `b` answers.
fn pair(wa: u32, wb: u32, want: u32) -> (End, End) {
    let slots = Credits::slots(wa, wb);
    let a = End::new(wa, wb, slots, 0, want);
    let b = End::new(wb, wa, 0, slots, 0);
    (a, b)
}

/// Both ask and answer.
fn equals(wa: u32, wb: u32, want_a: u32, want_b: u32) -> (End, End) {
    let sa = wa.min(wb) / 2 - 2 * CONTROL_RESERVE;
    let sb = sa;
    let a = End::new(wa, wb, sa, sb, want_a);
    let b = End::new(wb, wa, sb, sa, want_b);
    (a, b)
}

fn windows() -> impl Strategy<Value = u32> {
    prop_oneof![Just(WINDOW_MIN), WINDOW_MIN..64]
}

proptest! {
    /// One end asks, in any interleaving of its own and the peer's steps.
    #[test]
    fn no_overrun_no_stall_one_sided(
        wa in windows(), wb in windows(), want in 0u32..400,
        steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..2000),
    ) {
        let (mut a, mut b) = pair(wa, wb, want);
        for (first, what) in steps {
            if first { step(&mut a, &mut b, what) } else { step(&mut b, &mut a, what) };
        }
        settle(&mut a, &mut b, true);
        prop_assert_eq!(a.want, 0, "stalled: {:?} {:?}", a.credits, b.credits);
        prop_assert_eq!((a.unanswered, b.to_answer), (0, 0));
    }

    /// Both ends ask and answer at once.
    #[test]
    fn no_overrun_no_stall_both(
        wa in 18u32..64, wb in 18u32..64, want_a in 0u32..200, want_b in 0u32..200,
        steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..2000),
    ) {
        let (mut a, mut b) = equals(wa, wb, want_a, want_b);
        for (first, what) in steps {
            if first { step(&mut a, &mut b, what) } else { step(&mut b, &mut a, what) };
        }
        settle(&mut a, &mut b, true);
        prop_assert_eq!((a.want, b.want), (0, 0));
    }

    /// A peer that says anything gets an error or is believed within bounds, and never a panic.
    #[test]
    fn any_counter(counters in proptest::collection::vec((0u8..3, any::<u32>()), 0..200)) {
        let mut credits = Credits::new(16, 16, 12);
        for (class, counter) in counters {
            let class = [Class::Request, Class::Answer, Class::Credit][usize::from(class)];
            if credits.receive(class, counter).is_ok() {
                credits.reposted(class);
            }
            prop_assert!(credits.available() <= 16);
            prop_assert!(credits.promised() <= credits.available());
            if credits.may_send(Class::Answer) {
                credits.send(Class::Answer);
            }
        }
    }
}

/// A server that answers nothing for long still lets the client use every slot.
#[test]
fn unanswered_requests_do_not_hold_up_others() {
    for window in [WINDOW_MIN, 32, 64] {
        let (mut a, mut b) = pair(window, window, 1000);
        settle(&mut a, &mut b, false);
        assert_eq!(a.unanswered, a.slots);
        assert_eq!(b.to_answer, a.slots);
    }
}

/// Without answers at all (as if they went another way) explicit credits keep the stream going.
#[test]
fn one_way_stream_lives_on_explicit_credits() {
    for window in [WINDOW_MIN, 17, 64] {
        let mut a = End::new(window, window, 0, 0, 100_000);
        let mut b = End::new(window, window, 0, 0, 0);
        b.unanswered = u32::MAX; // what `b` takes passes for answers
        loop {
            let mut sent = 0;
            while a.want > 0 && a.credits.may_send(Class::Request) {
                a.credits.send(Class::Request);
                assert!(b.posted > 0, "RNR");
                b.posted -= 1;
                a.want -= 1;
                sent += 1;
                // Delivered as a message that wants no answer.
                b.inbox.push_back(Message {
                    class: Class::Answer,
                    counter: a.credits.posted as u32,
                });
            }
            while b.take() {
                b.repost();
            }
            b.give_back(&mut a);
            while a.take() {
                a.repost();
            }
            if a.want == 0 {
                break;
            }
            assert!(sent > 0, "stalled at window {window}");
        }
        assert!(b.explicit >= 100_000 / u64::from(window) / 2);
    }
}

/// Idle ends fall silent: control messages are not acknowledged by control messages.
#[test]
fn idle_ends_fall_silent() {
    let (mut a, mut b) = pair(16, 16, 500);
    settle(&mut a, &mut b, true);
    let mut controls = 0;
    while a.control(&mut b) {
        controls += 1;
        settle(&mut a, &mut b, true);
    }
    assert!((1..=CONTROL_RESERVE / 2).contains(&controls), "{controls}");
    let (ea, eb) = (a.explicit, b.explicit);
    settle(&mut a, &mut b, true);
    assert_eq!((a.explicit, b.explicit), (ea, eb));
    // And the next request brings everything back.
    a.want = 1;
    settle(&mut a, &mut b, true);
    assert!(a.control(&mut b));
}

/// The counter on the wire is 32 bits and wraps.
#[test]
fn counters_wrap() {
    let mut credits = Credits::new(16, 16, 12);
    credits.sent = u64::from(u32::MAX) - 3;
    credits.told_by_peer = credits.sent + 10;
    let counter = (credits.sent + 16) as u32;
    assert_eq!(counter, 12);
    credits.receive(Class::Control, counter).unwrap();
    assert_eq!(credits.available(), 16);
    credits.reposted(Class::Control);
    assert_eq!(
        credits.receive(Class::Control, counter.wrapping_add(1)),
        Err(CreditError::Counter { by: 1, most: 0 })
    );
    assert_eq!(
        credits.receive(Class::Control, counter.wrapping_sub(1)),
        Err(CreditError::Counter {
            by: u32::MAX,
            most: 0
        })
    );
}

#[test]
fn a_request_without_reply_room_is_a_violation() {
    let mut credits = Credits::new(64, 16, 64);
    for _ in 0..16 {
        credits.receive(Class::Request, 16).unwrap();
        credits.reposted(Class::Request);
    }
    assert_eq!(
        credits.receive(Class::Request, 16),
        Err(CreditError::NoReplyRoom)
    );
    for _ in 0..16 {
        assert!(credits.may_send(Class::Answer));
        credits.send(Class::Answer);
    }
    assert!(!credits.may_send(Class::Control));
}
