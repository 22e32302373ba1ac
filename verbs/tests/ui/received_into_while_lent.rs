use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, cq: &mut Cq, buf: &mut Buf) {
    let _ = rx.scope(cq, |s| {
        s.post(buf.part_mut(..).unwrap()).unwrap();
        let _ = s.next();
        println!("{:?}", &buf[..]);
    });
}
