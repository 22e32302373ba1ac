use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, cq: &mut Cq, pd: &Pd) {
    let _ = rx.scope(cq, |s| {
        let mut local = pd.register(vec![0; 8]).unwrap();
        s.post(local.part_mut(..).unwrap()).unwrap();
    });
}
