//! Cells that a peer may have a key to are no private memory, of which there are slices.

use mempool::ExposedBuf;
use verbs::Pd;

fn register(pd: &Pd, cells: ExposedBuf) {
    let _ = pd.register(cells);
}

fn main() {
    let _ = register;
}
