use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, a: Buf, b: Buf) {
    let first = tx.send(a);
    let _ = tx.send(b).post();
    let _ = first.post();
}
