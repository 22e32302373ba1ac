use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, cq: &mut Cq, frozen: &Readable<Vec<u8>>, shared: &Buf) {
    let _ = rx.scope(cq, |s| {
        s.post(frozen.part(..).unwrap()).unwrap();
        s.post(shared.part(..).unwrap()).unwrap();
    });
}
