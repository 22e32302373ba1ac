use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn depth(pd: &Pd, cq: &Cq, shared: &SharedRecvQueue<Buf>) {
    let _ = pd.rc(cq).shared_recv(shared).recv_depth(8);
}

fn queue(ready: RcReady<Shared>, peer: &Endpoint) {
    let (_tx, _rx) = ready.connect::<Buf, Buf>(peer).unwrap();
}
