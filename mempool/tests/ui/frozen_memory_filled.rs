//! A device may not write what others read.

use mempool::{Buf, ScatterList};

fn main() {
    let mut list = ScatterList::new();
    let _ = list.push(Buf::empty().freeze());
}
