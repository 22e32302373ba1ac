//! A part that was joined is part of the other.

use mempool::Buf;

fn main() {
    let (mut head, tail) = Buf::empty().split_at(0);
    let _ = head.unsplit(tail);
    println!("{}", tail.len());
}
