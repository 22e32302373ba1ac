// A reliable connection that failed is over.
use verbs::{Private, SendQueue};

fn recover(mut tx: SendQueue<Private<Vec<u8>>>) {
    let _ = tx.recover();
}

fn main() {}
