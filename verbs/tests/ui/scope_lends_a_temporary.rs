use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, cq: &mut Cq, pd: &Pd) {
    let _ = tx.scope(cq, |s| {
        s.send(pd.register(vec![0; 8]).unwrap().part(..).unwrap())
            .is_ok()
    });
}
