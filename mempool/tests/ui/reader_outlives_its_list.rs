//! A reader lends the list's bytes.

use mempool::{Buf, sg};

fn main() {
    let list = sg![Buf::empty()];
    let reader = list.reader();
    let sent = list;
    println!("{}", reader.remaining());
    drop(sent);
}
