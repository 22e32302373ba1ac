use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, buf: Buf) {
    let _ = tx.scope(cq, |_| {
        let _ = tx.send(buf).post();
        let _ = cq.poll();
    });
}
