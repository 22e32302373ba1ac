//! What is in a list moves into the queue with it.

use mempool::{Buf, sg};

fn main() {
    let mut buf = Buf::empty();
    let list = sg![buf];
    buf.fill(0);
    drop(list);
}
