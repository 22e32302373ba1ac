//! Mailboxes.

use super::reader::GLANCE;
use super::*;
use core::sync::atomic::{AtomicU64, Ordering};

const ME: u32 = 77;

fn label(len: u32) -> Label {
    Label {
        from: 0xabcdef,
        len,
        imm: len.is_multiple_of(2).then_some(!len),
        address: u64::from(len) << 7,
        void: false,
    }
}

fn reader(order: u32) -> Reader {
    Reader::new(Mailbox::create(order).unwrap())
}

fn claim(mailbox: &Mailbox, head: u64, pid: u32) -> Option<u64> {
    mailbox.claim(head, pid, false, |_, _| true)
}

fn take(reader: &mut Reader) -> Option<Label> {
    match reader.next() {
        Next::Message { label, .. } => {
            reader.pass();
            Some(label)
        }
        Next::Nothing => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn places_are_taken_in_order_and_used_again() {
    let mut reader = reader(2);
    for round in 0..10u32 {
        for i in 0..4 {
            let place = claim(&reader.mailbox, reader.place(), ME).unwrap();
            reader.mailbox.fill(place, ME, &label(round * 4 + i));
        }
        assert_eq!(claim(&reader.mailbox, reader.place(), ME), None, "full");
        for i in 0..4 {
            assert_eq!(take(&mut reader), Some(label(round * 4 + i)));
        }
        assert_eq!(take(&mut reader), None);
    }
    let limit = reader.place() + 1;
    let one = || {
        let before = |place, _| place < limit;
        reader.mailbox.claim(reader.place(), ME, false, before)
    };
    assert!(one().is_some() && one().is_none(), "no receive");
}

#[test]
fn threads_send_to_one() {
    const COUNT: u32 = 20_000;
    let mut reader = reader(4);
    let head = AtomicU64::new(0);
    let mailbox =
        Mailbox::attach(reader.mailbox.file().fd().try_clone_to_owned().unwrap(), 4).unwrap();
    std::thread::scope(|s| {
        for from in 0..3 {
            let (mailbox, head) = (&mailbox, &head);
            s.spawn(move || {
                for len in 0..COUNT {
                    let place = loop {
                        let at = head.load(Ordering::Acquire);
                        match claim(mailbox, at, std::process::id()) {
                            Some(place) => break place,
                            None => std::thread::yield_now(),
                        }
                    };
                    let label = Label { from, ..label(len) };
                    mailbox.fill(place, std::process::id(), &label);
                }
            });
        }
        let mut next = [0; 3];
        while next != [COUNT; 3] {
            match reader.next() {
                Next::Message { label: got, .. } => {
                    let expect = &mut next[got.from as usize];
                    assert_eq!(
                        got,
                        Label {
                            from: got.from,
                            ..label(*expect)
                        }
                    );
                    *expect += 1;
                    reader.pass();
                    head.store(reader.place(), Ordering::Release);
                }
                Next::Nothing | Next::Blocked => std::thread::yield_now(),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// One that stops with a place is passed over; its slot is left alone until it is done.
#[test]
fn a_slot_is_left_to_who_has_it() {
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let pid = child.id();
    // SAFETY: a signal to a child of ours.
    let signal = |signal| unsafe { libc::kill(pid as i32, signal) };
    for end in [false, true] {
        let mut reader = reader(2);
        let late = claim(&reader.mailbox, 0, pid).unwrap();
        let place = claim(&reader.mailbox, 0, ME).unwrap();
        reader.mailbox.fill(place, ME, &label(1));
        assert_eq!(reader.next(), Next::Blocked);
        assert_eq!(signal(libc::SIGSTOP), 0);
        while reader.next() == Next::Blocked {
            std::thread::yield_now();
        }
        assert_eq!(reader.next(), Next::Lost);
        reader.pass();
        assert_eq!(take(&mut reader), Some(label(1)));
        // Three of four slots are in use, lap after lap.
        let lap = |reader: &mut Reader| {
            let mut places = Vec::new();
            while let Some(place) = claim(&reader.mailbox, reader.place(), ME) {
                reader.mailbox.fill(place, ME, &label(2));
                places.push(place);
            }
            let mut got = 0;
            while got < places.len() {
                match reader.next() {
                    Next::Lost => reader.pass(),
                    Next::Message { .. } => {
                        got += 1;
                        reader.pass();
                    }
                    other => panic!("{other:?}"),
                }
            }
            places
        };
        for _ in 0..3 {
            let places = lap(&mut reader);
            assert!(
                places.iter().all(|place| (place ^ late) & 3 != 0),
                "{places:?}"
            );
        }
        if end {
            child.kill().unwrap();
            child.wait().unwrap();
            std::thread::sleep(GLANCE);
        } else {
            assert_eq!(signal(libc::SIGCONT), 0);
            reader.mailbox.fill(late, pid, &label(3));
        }
        let places: Vec<u64> = (0..3).flat_map(|_| lap(&mut reader)).collect();
        assert!(
            places.iter().any(|place| (place ^ late) & 3 == 0),
            "{places:?}"
        );
    }
    child.wait().unwrap();
}

#[test]
fn one_that_is_gone_is_passed_over_at_once() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let mut reader = reader(1);
    for _ in 0..5 {
        claim(&reader.mailbox, reader.place(), pid).unwrap();
        assert_eq!(reader.next(), Next::Lost);
        reader.pass();
    }
}

proptest::proptest! {
    /// Whatever a peer writes, the owner goes on or says that it makes no sense, and senders stay inside.
    #[test]
    fn rubbish_is_survived(words: [u64; 4], hint: u64, head: u64, limit: u64) {
        let mut reader = reader(2);
        reader.mailbox.head().hint.0.store(hint, Ordering::Relaxed);
        for (place, word) in words.into_iter().enumerate() {
            // Of no process: looking for one takes long.
            let word = word & !(((1 << PID_BITS) - 1) << STATE_BITS);
            reader.mailbox.slot(place as u64).word.store(word, Ordering::Relaxed);
        }
        if let Some(place) = reader.mailbox.claim(head, ME, limit.is_multiple_of(2), |place, _| place < limit) {
            proptest::prop_assert!(place < limit);
        }
        for _ in 0..8 {
            match reader.next() {
                Next::Message { .. } | Next::Lost => reader.pass(),
                _ => break,
            }
        }
    }
}
