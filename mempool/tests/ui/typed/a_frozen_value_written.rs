//! A frozen buffer has other readers.

use mempool::Buf;

fn main() {
    #[allow(unused_mut)]
    let mut word = Buf::empty().freeze().typed::<[u32]>().unwrap();
    word[0] = 1;
}
