use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(mut tx: SendQueue<Buf>, rx: RecvQueue<Buf>, buf: Buf) {
    let _ = destroy(tx, rx);
    let _ = tx.send(buf).post();
}
