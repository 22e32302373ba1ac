// A device may hold a lock from the start of a poll to its end.
use verbs::Cq;

fn elsewhere(mut cq: Cq) {
    let mut poll = cq.start_poll().unwrap();
    std::thread::scope(|s| {
        s.spawn(move || poll.next().is_some());
    });
}

fn main() {}
