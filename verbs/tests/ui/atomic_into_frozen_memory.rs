use std::sync::Arc;
use verbs::{Readable, RemoteRegion, SendQueue};

fn main() {}

type Frozen = Arc<Readable<Vec<u8>>>;

fn fetch(tx: &mut SendQueue<Frozen>, into: Frozen, counter: RemoteRegion) {
    let _ = tx.fetch_and_add(into, counter, 1);
}
