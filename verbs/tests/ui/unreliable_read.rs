use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf, Uc>, into: Buf, theirs: RemoteRegion) {
    let _ = tx.read(into, theirs).post();
}

fn atomic(tx: &mut SendQueue<Buf, Uc>, into: Buf, theirs: RemoteRegion) {
    let _ = tx.fetch_and_add(into, theirs, 1).post();
}

fn batch(tx: &mut SendQueue<Buf, Uc>, into: Buf, theirs: RemoteRegion) {
    let _ = tx.batch().read(into, theirs).add();
}

fn scope(tx: &mut SendQueue<Buf, Uc>, cq: &mut Cq, into: &mut Buf, theirs: RemoteRegion) {
    let _ = tx.scope(cq, |s| s.read(into.part_mut(..).unwrap(), theirs).is_ok());
}
