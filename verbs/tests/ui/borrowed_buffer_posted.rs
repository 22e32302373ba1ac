use verbs::{Endpoint, Private, RcReady};

fn main() {}

fn post(ready: RcReady, peer: &Endpoint, buffer: Private<Vec<u8>>) {
    let (mut tx, _rx) = ready
        .connect::<&Private<Vec<u8>>, Private<Vec<u8>>>(peer)
        .unwrap();
    tx.send(&buffer).post().unwrap();
}
