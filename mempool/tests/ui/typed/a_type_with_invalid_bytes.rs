//! A device may write any bytes, so each must be a value.

use mempool::Buf;

fn main() {
    let _ = Buf::empty().typed::<[bool]>();
}
