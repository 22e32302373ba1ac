// What a cursor shows is gone when it moves on.
use verbs::Cq;

fn keep(mut cq: Cq) {
    let mut poll = cq.start_poll().unwrap();
    let first = poll.next().unwrap();
    let second = poll.next();
    drop((first, second));
}

fn main() {}
