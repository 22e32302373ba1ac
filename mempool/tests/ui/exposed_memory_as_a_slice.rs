//! A peer may write it at any time, so there is no slice of it.

use mempool::ExposedBuf;

fn look(cells: &ExposedBuf) -> u8 {
    cells[0]
}

fn main() {
    let _ = look;
}
