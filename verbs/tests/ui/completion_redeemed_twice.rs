use verbs::{Completion, Private, RecvQueue, SendQueue};

fn main() {}

fn redeem(rx: &mut RecvQueue<Private<Vec<u8>>>, wc: Completion) {
    let _ = rx.redeem(wc);
    let _ = rx.redeem(wc);
}

fn clone(tx: &mut SendQueue<Private<Vec<u8>>>, wc: Completion) {
    let _ = tx.retire(wc.clone());
    let _ = tx.retire(wc);
}
