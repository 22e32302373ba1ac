// One completion, one buffer.
use verbs::{Polled, Private, RecvQueue};

fn twice(mut rx: RecvQueue<Private<Vec<u8>>>, c: Polled<'_>) {
    let _ = rx.redeem(c.into_completion());
    let _ = rx.redeem(c.into_completion());
}

fn main() {}
