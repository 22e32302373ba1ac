// One poll at a time.
use verbs::{Cq, WcBatch};

fn poll(mut cq: Cq, batch: &mut WcBatch) {
    let mut poll = cq.start_poll().unwrap();
    cq.poll_into(batch).unwrap();
    poll.next();
}

fn main() {}
