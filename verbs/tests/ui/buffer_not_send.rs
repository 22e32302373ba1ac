use std::rc::Rc;

use verbs::{Endpoint, Private, RcReady};

fn main() {}

fn post(ready: RcReady, peer: &Endpoint, buffer: Private<Vec<u8>>) {
    let (_tx, mut rx) = ready
        .connect::<Private<Vec<u8>>, Rc<Private<Vec<u8>>>>(peer)
        .unwrap();
    rx.post(Rc::new(buffer)).unwrap();
}
