use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, frozen: &mut Readable<Vec<u8>>, theirs: RemoteRegion) {
    let _ = tx.scope(cq, |s| s.read(frozen.part_mut(..).unwrap(), theirs).is_ok());
}
