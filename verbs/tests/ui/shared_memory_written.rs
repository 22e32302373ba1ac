use std::sync::Arc;

use verbs::{Access, Pd};

fn main() {}

fn register(pd: &Pd, frozen: Arc<[u8]>) {
    let _ = pd.register(frozen);
}

fn expose(pd: &Pd, text: &'static [u8]) {
    let _ = pd.expose_memory(text, Access::REMOTE_WRITE);
}
