//! The memory goes back to the pool with the buffer.

use mempool::Buf;

fn main() {
    let buf = Buf::empty();
    let bytes: &[u8] = &buf;
    drop(buf);
    println!("{bytes:?}");
}
