use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, buf: &mut Buf, theirs: RemoteRegion) -> u8 {
    tx.scope(cq, |s| {
        s.read(buf.part_mut(..).unwrap(), theirs).unwrap();
        s.wait().unwrap();
        buf[0]
    })
    .unwrap()
}
