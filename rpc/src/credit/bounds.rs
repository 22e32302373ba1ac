//! Exact bounds: the last message that may be sent, the first that is refused. What only wastes credits, or only lets a
//! peer go too far, no simulation of honest ends would see.

use super::*;
use crate::ring::{GRANULE, size_min, span};

/// Longest message in rings, and the room it takes.
const MAX: u64 = 1000;
const SPAN: u64 = 1024;

/// How many of a class may be sent in a row.
fn count(credits: &mut Credits, class: Class, len: usize) -> u32 {
    let mut sent = 0;
    while credits.may_send(class) {
        credits.send(class, len);
        sent += 1;
    }
    sent
}

/// Requests that arrive and are dealt with, without news.
fn ask(credits: &mut Credits, requests: u32) -> Result<(), CreditError> {
    for _ in 0..requests {
        let counter = credits.told_by_peer as u32;
        credits.receive(Class::Request, counter)?;
        credits.reposted(Class::Request);
    }
    Ok(())
}

#[test]
fn requests_leave_entries_to_answers_and_control() {
    for (slots, promised) in [(0, 0), (3, 0), (3, 2), (11, 11)] {
        let mut credits = Credits::new(64, 16, slots);
        ask(&mut credits, promised).unwrap();
        assert_eq!(count(&mut credits, Class::Request, 100), 12 - slots);
        assert_eq!(count(&mut credits, Class::Control, 100), 2);
        assert_eq!(count(&mut credits, Class::Credit, 40), 2);
        assert_eq!(count(&mut credits, Class::Answer, 100), promised);
        assert_eq!(credits.available(), slots - promised);
    }
    let none = Credits::new(16, 16, 12);
    assert!(!none.may_send(Class::Request) && !none.may_send(Class::Answer));
}

#[test]
fn control_messages_leave_entries_to_what_is_promised() {
    let mut credits = Credits::new(64, 16, 16);
    ask(&mut credits, 14).unwrap();
    assert_eq!(count(&mut credits, Class::Credit, 40), 2);
    assert_eq!(count(&mut credits, Class::Answer, 100), 14);
    let mut credits = Credits::new(64, 16, 16);
    assert_eq!(count(&mut credits, Class::Credit, 40), CONTROL_RESERVE);
}

#[test]
fn a_control_message_is_on_its_way_until_its_entry_is_posted_again() {
    let mut credits = Credits::new(64, 16, 0);
    assert_eq!(count(&mut credits, Class::Request, 100), 12);
    assert_eq!(count(&mut credits, Class::Control, 100), 2);
    // Of the requests before them, and then of the first and the second.
    for (counter, more) in [(16, 0), (28, 0), (29, 1), (29, 0), (30, 1), (30, 0)] {
        credits.receive(Class::Control, counter).unwrap();
        credits.reposted(Class::Control);
        assert_eq!(count(&mut credits, Class::Control, 100), more, "{counter}");
    }
}

#[test]
fn requests_leave_room_to_answers_and_control() {
    let exact = 13 * SPAN + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
    assert!(span(MAX) == SPAN && size_min(MAX) <= exact - GRANULE);
    for (size, requests) in [(exact, 10), (exact - GRANULE, 9), (exact + SPAN, 11)] {
        for promised in [0, 2] {
            let mut credits = Credits::new(64, 256, 3).writing(size, MAX);
            ask(&mut credits, promised).unwrap();
            let sent = count(&mut credits, Class::Request, MAX as usize);
            assert_eq!(sent, requests, "{size}");
            let longest = CONTROL_SPAN as usize;
            assert_eq!(count(&mut credits, Class::Credit, longest), CONTROL_RESERVE);
            assert_eq!(count(&mut credits, Class::Answer, 1000), promised);
        }
    }
}

#[test]
fn control_messages_and_requests_leave_room_to_what_is_promised() {
    // More slots than the ring has room for, as a peer could have that says so and does not keep to it.
    let size = 14 * SPAN + 4 * GRANULE;
    let all = || Credits::new(64, 256, 100).writing(size, MAX);
    let mut credits = all();
    assert_eq!(ask(&mut credits, 15), Err(CreditError::NoReplyRoom));
    assert_eq!(credits.promised(), 14);
    assert!(!credits.may_send(Class::Credit));
    // What it returns in the same breath counts.
    assert_eq!(count(&mut credits, Class::Answer, 1000), 14);
    assert_eq!(
        credits.receive(Class::Request, 256),
        Err(CreditError::NoReplyRoom)
    );
    // The longest skip comes in between now.
    credits.receive(Class::Request, 256 + 14).unwrap();
    let mut credits = all();
    ask(&mut credits, 13).unwrap();
    assert!(credits.may_send(Class::Credit));
}

#[test]
fn so_many_requests_are_seen_ahead() {
    let credits = Credits::new(64, 64, 3);
    assert_eq!(credits.look_beyond(0, 0), 57);
    assert_eq!(credits.look_beyond(5, 0), 52);
    assert_eq!(credits.look_beyond(57, 0), 0);
    assert_eq!(credits.look_beyond(60, 0), 0);
    let kept = 3 * SPAN + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
    let size = kept + 10 * SPAN + (SPAN - GRANULE);
    for (size, bytes, requests) in [
        (size, 0, 10),
        (size - GRANULE, 0, 9),
        (size, GRANULE, 9),
        (size, 4 * SPAN, 6),
        (size, 100 * SPAN, 0),
    ] {
        let credits = credits.clone().writing(size, MAX);
        assert_eq!(credits.look_beyond(0, bytes), requests);
        assert_eq!(credits.look_beyond(54, bytes), requests.min(3));
    }
    // And not looked at again.
    let mut credits = credits;
    credits.send(Class::Request, 100);
    assert_eq!(credits.clear, 56);
    credits.send(Class::Request, 100);
    assert_eq!(credits.clear, 55);
}

#[test]
fn who_goes_too_far_is_refused_at_once_and_nobody_before() {
    let mut credits = Credits::new(16, 64, 3);
    assert_eq!(ask(&mut credits, 4), Err(CreditError::NoReplyRoom));
    let mut credits = Credits::new(16, 64, 3);
    for _ in 0..16 {
        credits.receive(Class::Answer, 64).unwrap();
    }
    assert_eq!(
        credits.receive(Class::Answer, 64),
        Err(CreditError::Overrun)
    );
    // A request whose answer takes the entry that it returns.
    let mut credits = Credits::new(64, 16, 2);
    count(&mut credits, Class::Request, 100);
    count(&mut credits, Class::Credit, 40);
    ask(&mut credits, 1).unwrap();
    credits.send(Class::Answer, 100);
    ask(&mut credits, 1).unwrap();
    assert_eq!((credits.available(), credits.promised()), (1, 1));
    assert_eq!(ask(&mut credits, 1), Err(CreditError::NoReplyRoom));
    credits.receive(Class::Request, 17).unwrap();
}

#[test]
fn what_is_fetched_tells_as_much_as_a_message_and_may_be_older() {
    let size = size_min(MAX);
    let mut credits = Credits::new(16, 16, 0).writing(size, MAX);
    for _ in 0..5 {
        credits.send(Class::Request, 1000);
    }
    let room = credits.clone();
    assert_eq!(credits.fetched(16), Ok(()));
    assert_eq!(credits.available(), 11);
    let wrong = Err(CreditError::Counter { by: 6, most: 5 });
    assert_eq!(credits.fetched(22), wrong);
    assert_eq!(credits.fetched(19), Ok(()));
    assert_eq!(credits.available(), 14);
    assert!(credits.look_beyond(0, 0) > room.look_beyond(0, 0), "room");
    // Older ones, fetched or in messages.
    assert_eq!(credits.fetched(18), Ok(()));
    assert_eq!(credits.receive(Class::Answer, 17), Ok(()));
    assert_eq!(credits.receive(Class::Credit, 16), Ok(()));
    assert_eq!(credits.available(), 14);
    assert_eq!(credits.fetched(21), Ok(()));
    assert_eq!(credits.available(), 16);
    // Who never fetches is never told less than before.
    let mut other = room;
    other.receive(Class::Answer, 18).unwrap();
    assert!(other.receive(Class::Answer, 17).is_err());
}

#[test]
fn an_answer_that_is_left_takes_no_entry_and_tells_what_is_posted() {
    let size = size_min(MAX);
    let mut credits = Credits::new(16, 16, 8).reading(size, MAX);
    for _ in 0..8 {
        credits.find(1000).unwrap();
        credits.receive(Class::Request, 16).unwrap();
        credits.set_aside();
    }
    assert_eq!(credits.shelve(), 16, "none is posted again");
    credits.reposted_late();
    assert!(credits.must_return());
    assert_eq!((credits.shelve(), credits.available()), (24, 16));
    assert_eq!(credits.promised(), 6);
    assert!(!credits.must_return(), "all is told");
}

#[test]
fn half_a_window_or_half_a_ring_is_returned() {
    let mut credits = Credits::new(16, 16, 0);
    for owed in 1..=8 {
        credits.receive(Class::Answer, 16).unwrap();
        credits.reposted(Class::Answer);
        // What control messages used does not count.
        credits.receive(Class::Control, 16).unwrap();
        credits.reposted(Class::Control);
        assert_eq!(credits.must_return(), owed == 8, "{owed}");
    }
    credits.send(Class::Credit, 40);
    assert!(!credits.must_return());
    let size = size_min(MAX).next_multiple_of(2 * SPAN);
    let half = (size / 2 / SPAN) as u32;
    let mut credits = Credits::new(256, 16, 0).reading(size, MAX);
    for owed in 1..=half {
        credits.find(1000).unwrap();
        credits.receive(Class::Answer, 16).unwrap();
        credits.reposted(Class::Answer);
        assert_eq!(credits.must_return(), owed == half, "{owed}");
    }
    // Nor does their room.
    credits.send(Class::Credit, 40);
    for _ in 0..2 * half {
        credits.find(CONTROL_SPAN as u32).unwrap();
        credits.receive(Class::Control, 16).unwrap();
        credits.reposted(Class::Control);
        assert!(!credits.must_return());
    }
}

#[test]
fn late_entries_are_posted_for_who_needs_them_and_not_before() {
    let mut credits = Credits::new(64, 64, 0);
    assert!(credits.covers(u32::MAX), "none is late");
    for _ in 0..5 {
        credits.receive(Class::Answer, 64).unwrap();
        credits.set_aside();
    }
    assert!(credits.covers(64 - 5 - CONTROL_RESERVE));
    assert!(!credits.covers(64 - 5 - CONTROL_RESERVE + 1));
    // In a ring, what counts is their room, one skip and the control messages.
    let rest = SPAN - GRANULE + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
    let size = rest + 15 * SPAN;
    for (size, covered) in [(size, 10), (size - GRANULE, 9)] {
        let mut credits = Credits::new(64, 64, 0).reading(size, MAX);
        for _ in 0..5 {
            credits.find(1000).unwrap();
            credits.receive(Class::Answer, 64).unwrap();
            credits.set_aside();
        }
        assert!(credits.covers(covered));
        assert!(!credits.covers(covered + 1));
    }
}

#[test]
fn slots_and_late_entries_of_windows() {
    for (requester, responder, slots) in [
        (64, 64, 48),
        (64, 31, 23),
        (64, 32, 20),
        (1000, 127, 104),
        (1000, 128, 104),
        (4096, 4096, 4072),
        (20, 1000, 16),
        (16, 16, 8),
        (0, 0, 1),
    ] {
        assert_eq!(
            Credits::slots(requester, responder),
            slots,
            "{requester} {responder}"
        );
    }
    // A share of the window, as much as is not needed otherwise, and at least one.
    for (window, on_their_way, late) in [
        (64, 40, 8),
        (64, 50, 6),
        (64, 60, 1),
        (31, 0, 1),
        (200, 0, 16),
        (200, 182, 10),
    ] {
        let credits = Credits::new(window, 64, 0);
        assert_eq!(
            credits.late_most(on_their_way),
            late,
            "{window} {on_their_way}"
        );
    }
}

/// However small a ring, there are as many late entries as without one, but not of more than a small share of its room.
#[test]
fn of_a_ring_little_is_late() {
    let size = span(8 * 4096);
    let credits = Credits::new(128, 128, 0).reading(size, MAX);
    assert_eq!(credits.late_most(100), 16);
    for (len, most, late) in [(64, 17, 16), (64, 5, 5), (512, 16, 2), (512, 1, 1)] {
        let mut credits = credits.clone();
        for _ in 0..late {
            assert!(!credits.must_post(most));
            credits.find(len).unwrap();
            credits.receive(Class::Answer, 128).unwrap();
            credits.set_aside();
        }
        assert!(credits.must_post(most), "{len} {most}");
        credits.reposted_late();
        assert!(!credits.must_post(most));
    }
}
