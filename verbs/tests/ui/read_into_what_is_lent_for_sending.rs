use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, buf: &Buf, theirs: RemoteRegion) {
    let _ = tx.scope(cq, |s| s.read(buf.part(..).unwrap(), theirs).is_ok());
}
