// Nothing is repeated, and nobody is let in.
use verbs::{Access, Cq, Endpoint, Pd, Private};

fn build(pd: &Pd, cq: &Cq, peer: &Endpoint) {
    let _ = pd.ud(cq).retry_cnt(1);
    let _ = pd.ud(cq).access(Access::REMOTE_WRITE);
    let _ = pd.ud(cq).build().unwrap().connect::<Private<Vec<u8>>, Private<Vec<u8>>>(peer);
    let _ = pd.rc(cq).qkey(1);
}

fn main() {}
