use verbs::{Private, RecvQueue, SendQueue};

fn main() {}

fn share(tx: SendQueue<Private<Vec<u8>>>, rx: RecvQueue<Private<Vec<u8>>>) {
    std::thread::scope(|s| {
        s.spawn(|| tx.outstanding());
        s.spawn(|| rx.outstanding());
    });
}
