//! A frozen buffer has other readers.

use mempool::Buf;

fn main() {
    #[allow(unused_mut)]
    let mut shared = Buf::empty().freeze();
    shared[0] = 1;
}
