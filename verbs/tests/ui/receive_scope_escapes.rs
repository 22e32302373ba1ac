use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, cq: &mut Cq, buf: &mut Buf) {
    let mut kept = None;
    let _ = rx.scope(cq, |s| kept = Some(s));
    let _ = kept.unwrap().post(buf.part_mut(..).unwrap());
}
