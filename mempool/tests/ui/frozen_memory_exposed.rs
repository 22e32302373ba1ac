//! What others read is nobody's to write: not a peer's, not a device's, not as cells.

use mempool::{Pool, SharedBuf};
use verbs::{Access, Pd};

fn expose(pd: &Pd, frozen: SharedBuf) {
    let _ = pd.expose_memory(frozen, Access::REMOTE_WRITE);
}

fn register(pd: &Pd, frozen: SharedBuf) {
    let _ = pd.register(frozen);
}

fn adopt(pool: &Pool, frozen: SharedBuf) {
    let _ = pool.adopt(frozen);
}

fn main() {
    let _ = (expose, register, adopt);
}
