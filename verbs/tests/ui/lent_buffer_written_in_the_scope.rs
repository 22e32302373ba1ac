use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, buf: &mut Buf) {
    let _ = tx.scope(cq, |s| {
        s.send(buf.part(..).unwrap()).unwrap();
        buf[0] = 1;
    });
}
