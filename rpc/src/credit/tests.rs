//! Two accounts and two wires, driven by random choices: nothing overruns, nothing stalls.

use super::*;
use crate::ring::CONTROL_SPAN;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A message on the wire.
#[derive(Debug, Clone, Copy)]
struct Message {
    class: Class,
    counter: u32,
    len: usize,
    offset: Option<u64>,
}

/// Longest message in rings.
const MAX: u64 = 1000;

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
    /// Most entries that are posted late, where they are without memory.
    late_max: u32,
    /// Counters on answers that the peer has left for this end to fetch.
    shelf: VecDeque<u32>,
    /// What the next lengths are made of.
    seed: u32,
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
            late_max: 1,
            shelf: VecDeque::new(),
            seed: window ^ (want << 7) ^ 0x9e37_79b9,
        }
    }

    /// Any length that a message of this class can have; often the longest.
    fn len(&mut self, class: Class) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let most = match class {
            Class::Credit => return 40,
            Class::Control => CONTROL_SPAN as u32 - 24,
            _ => MAX as u32,
        };
        let n = self.seed >> 8;
        (if n.is_multiple_of(3) {
            most
        } else {
            40 + n % (most - 39)
        }) as usize
    }

    /// Sends if the account allows; true if it did.
    fn send(&mut self, class: Class, peer: &mut End) -> bool {
        if !self.credits.may_send(class) {
            return false;
        }
        let len = self.len(class);
        let sent = self.credits.send(class, len);
        // The device: no entry, no delivery, and the connection is dead.
        assert!(peer.posted > 0, "RNR");
        peer.posted -= 1;
        peer.inbox.push_back(Message {
            class,
            counter: sent.counter,
            len,
            offset: sent.offset,
        });
        true
    }

    fn request(&mut self, peer: &mut End) -> bool {
        if self.want == 0 || self.unanswered == self.slots {
            return false;
        }
        if !self.credits.covers(self.unanswered + 1) {
            self.post_late();
        }
        if !self.send(Class::Request, peer) {
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

    /// Leaves an answer to be fetched.
    fn shelve(&mut self, peer: &mut End) -> bool {
        if self.to_answer == 0 {
            return false;
        }
        self.to_answer -= 1;
        peer.shelf.push_back(self.credits.shelve());
        true
    }

    /// Fetches an answer, in any order.
    fn fetch(&mut self) -> bool {
        if self.shelf.is_empty() {
            return false;
        }
        self.seed = self.seed.rotate_left(7).wrapping_add(1);
        let at = self.seed as usize % self.shelf.len();
        let counter = self.shelf.remove(at).unwrap_or_default();
        self.credits.fetched(counter).expect("an honest peer");
        self.unanswered -= 1;
        true
    }

    /// What holds at any time, as the model has it: no entry is counted on before it is posted, and credits can be returned until as many control
    /// messages are on their way as may be.
    fn check(&self, peer: &End) {
        let credits = &self.credits;
        assert!(credits.available() <= peer.posted, "I9: not posted yet");
        let out = credits
            .control_sent
            .unacknowledged(credits.told_by_peer, credits.peer_window);
        assert!(out <= CONTROL_RESERVE as usize);
        assert!(
            out == CONTROL_RESERVE as usize || credits.may_send(Class::Credit),
            "I1: nothing is kept for control: {credits:?}"
        );
        assert!(credits.promised <= credits.available(), "I2");
    }

    fn take(&mut self) -> bool {
        let Some(message) = self.inbox.pop_front() else {
            return false;
        };
        if let Some(offset) = message.offset {
            let found = self.credits.find(message.len as u32);
            assert_eq!(found, Ok(offset), "the ends disagree");
        }
        self.credits
            .receive(message.class, message.counter)
            .expect("an honest peer");
        if message.offset.is_some() {
            // Copied out: the entry is posted again at once, or with others, in order.
            if message.class.is_control() {
                self.post_late();
                self.posted += 1;
                self.credits.reposted(message.class);
            } else {
                self.credits.set_aside();
                if self.credits.late() >= self.late_max {
                    self.post_late();
                }
            }
            match message.class {
                Class::Request => self.to_answer += 1,
                Class::Answer => self.unanswered -= 1,
                Class::Credit | Class::Control => {}
            }
            return true;
        }
        self.held.push_back(message.class);
        match message.class {
            Class::Request => self.to_answer += 1,
            // Released only after the entry is posted again: see `repost`.
            Class::Answer | Class::Credit | Class::Control => {}
        }
        true
    }

    /// Posts the entries that are late; true if there were any.
    fn post_late(&mut self) -> bool {
        let late = self.credits.late();
        self.posted += late;
        self.credits.reposted_late();
        late > 0
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
    let done = one_step(a, b, what % 7);
    a.check(b);
    b.check(a);
    done
}

/// The same where answers can be left to be fetched as well.
fn step_or_fetch(a: &mut End, b: &mut End, what: u8) -> bool {
    let done = one_step(a, b, what % 9);
    a.check(b);
    b.check(a);
    done
}

fn one_step(a: &mut End, b: &mut End, what: u8) -> bool {
    match what {
        8 => a.fetch(),
        7 => a.shelve(b),
        6 => a.post_late(),
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
        for what in [0, 2, 3, 4, 8] {
            while step_or_fetch(a, b, what) {
                moved = true;
            }
            while step_or_fetch(b, a, what) {
                moved = true;
            }
        }
        if answering {
            moved |= a.answer(b) | b.answer(a);
        }
        // Only when there is nothing else to do.
        if !moved {
            moved = a.post_late() | b.post_late();
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

/// Gives `to` a ring that `from` writes to; sizes from the smallest on.
fn give_ring(from: &mut End, to: &mut End, extra: u64) {
    let size = crate::ring::size_min(MAX) + extra * crate::ring::GRANULE;
    from.credits = from.credits.clone().writing(size, MAX);
    to.credits = to.credits.clone().reading(size, MAX);
    // Answers to requests of `to` go there: no more than there is always room for.
    to.slots = to.slots.min(crate::ring::answers(size, MAX) as u32);
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

    /// The same over rings of any size, in either direction or both.
    #[test]
    fn no_overrun_no_stall_in_rings(
        wa in windows(), wb in windows(), want in 0u32..400, ring_a in 0u64..400, ring_b in 0u64..400,
        smallest: bool, which in 1u8..4, late_a in 1u32..20, late_b in 1u32..20,
        steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..2000),
    ) {
        let (mut a, mut b) = pair(wa, wb, want);
        if which & 1 != 0 {
            give_ring(&mut a, &mut b, if smallest { 0 } else { ring_a });
        }
        if which & 2 != 0 {
            give_ring(&mut b, &mut a, if smallest { 0 } else { ring_b });
        }
        (a.late_max, b.late_max) = (late_a, late_b);
        for (first, what) in steps {
            if first { step(&mut a, &mut b, what) } else { step(&mut b, &mut a, what) };
        }
        // Unanswered requests hold up nobody; then answers flow.
        settle(&mut a, &mut b, false);
        prop_assert!(a.want == 0 || a.unanswered == a.slots, "stalled: {:?} {:?}", a.credits, b.credits);
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

    /// The same in rings, with as many slots as they have room for answers, and answers that are fetched.
    #[test]
    fn no_overrun_no_stall_both_in_rings(
        slots_a in 1u32..9, slots_b in 1u32..9, spare in 0u32..6, want_a in 0u32..200, want_b in 0u32..200,
        which in 1u8..4, late_a in 1u32..20, late_b in 1u32..20, fetching: bool,
        steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..2000),
    ) {
        let (wa, wb) = (2 * slots_a.max(slots_b) + 16, 2 * slots_a.max(slots_b) + 16 + spare);
        let mut a = End::new(wa, wb, slots_a, slots_b, want_a);
        let mut b = End::new(wb, wa, slots_b, slots_a, want_b);
        // Answers to who reads it have room beside the half that may be owed.
        let room = |slots: u32| u64::from(2 * slots) * crate::ring::span(MAX) / crate::ring::GRANULE;
        if which & 1 != 0 {
            give_ring(&mut a, &mut b, room(slots_b));
        }
        if which & 2 != 0 {
            give_ring(&mut b, &mut a, room(slots_a));
        }
        (a.late_max, b.late_max) = (late_a, late_b);
        let step = if fetching { step_or_fetch } else { step };
        for (first, what) in steps {
            if first { step(&mut a, &mut b, what) } else { step(&mut b, &mut a, what) };
        }
        settle(&mut a, &mut b, true);
        prop_assert_eq!((a.want, b.want), (0, 0), "stalled: {:?} {:?}", a.credits, b.credits);
    }

    /// A peer that says anything gets an error or is believed within bounds, and never a panic.
    #[test]
    fn any_counter(counters in proptest::collection::vec((0u8..3, any::<u32>()), 0..200)) {
        let size = crate::ring::size_min(MAX);
        let slots = crate::ring::answers(size, MAX).min(12) as u32;
        let mut credits = Credits::new(16, 16, slots).writing(size, MAX).reading(size, MAX);
        for (class, counter) in counters {
            let class = [Class::Request, Class::Answer, Class::Credit][usize::from(class)];
            let len = counter % 1100;
            prop_assert_eq!(credits.find(len).is_ok(), (1..=1000).contains(&len));
            if credits.receive(class, counter).is_ok() {
                credits.reposted(class);
            }
            prop_assert!(credits.available() <= 16);
            prop_assert!(credits.promised() <= credits.available());
            if credits.may_send(Class::Answer) {
                credits.send(Class::Answer, 1000);
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
    for (window, ring) in [
        (WINDOW_MIN, false),
        (17, false),
        (64, false),
        (16, true),
        (64, true),
    ] {
        let mut a = End::new(window, window, 0, 0, 100_000);
        let mut b = End::new(window, window, 0, 0, 0);
        if ring {
            give_ring(&mut a, &mut b, 0);
        }
        b.unanswered = u32::MAX; // what `b` takes passes for answers
        loop {
            let mut sent = 0;
            while a.want > 0 && a.credits.may_send(Class::Request) {
                let told = a.credits.send(Class::Request, 1000);
                assert!(b.posted > 0, "RNR");
                b.posted -= 1;
                a.want -= 1;
                sent += 1;
                // Delivered as a message that wants no answer.
                b.inbox.push_back(Message {
                    class: Class::Answer,
                    counter: told.counter,
                    len: 1000,
                    offset: told.offset,
                });
            }
            while b.take() {
                b.repost();
            }
            if ring {
                // Not held: posted again when they were copied out.
                assert!(b.held.is_empty());
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
        credits.send(Class::Answer, 1000);
    }
    assert!(!credits.may_send(Class::Control));
}

/// Requests go on through a small ring although answers of an earlier round are late: what returns credits is acknowledged.
#[test]
fn late_entries_do_not_hold_up_credits() {
    let (mut a, mut b) = pair(256, 256, 0);
    give_ring(&mut a, &mut b, 0);
    give_ring(&mut b, &mut a, 8000);
    a.late_max = 13;
    for round in 0..10 {
        a.want = a.slots;
        assert!(a.slots > 200);
        settle(&mut a, &mut b, false);
        assert_eq!(a.want, 0, "stalled in round {round}: {:?}", b.credits);
        while b.answer(&mut a) {}
        while a.take() {}
        assert_eq!(a.unanswered, 0);
        assert!(a.credits.late() > 0, "nothing is late");
    }
}
