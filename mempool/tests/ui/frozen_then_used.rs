//! Freezing takes the buffer that could write.

use mempool::Buf;

fn main() {
    let mut buf = Buf::empty();
    let shared = buf.freeze();
    buf.fill(0);
    drop(shared);
}
