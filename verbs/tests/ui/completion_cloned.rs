use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, wc: Completion) {
    let _ = tx.retire(wc.clone());
    let _ = tx.retire(wc);
}
