use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, buf: &Buf) {
    let mut kept = None;
    let _ = tx.scope(cq, |s| kept = Some(s));
    if let Some(s) = kept {
        let _ = s.send(buf.part(..).unwrap());
    }
}
