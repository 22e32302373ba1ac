// A scope's work may still name an address handle when the closure has ended.
use verbs::{AddressHandle, Cq, Private, SendQueue, Ud};

fn lend(mut tx: SendQueue<Private<Vec<u8>>, Ud>, mut cq: Cq, data: Private<Vec<u8>>, handle: AddressHandle) {
    tx.scope(&mut cq, |s| {
        let to = handle.at(1, 2);
        s.send_to([data.part(..).unwrap()], &to).unwrap();
    })
    .unwrap();
}

fn main() {}
