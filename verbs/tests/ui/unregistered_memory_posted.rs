use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>) {
    let _ = tx.send(vec![0u8; 8]).post();
}
