use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, cq: &mut Cq, buf: Buf) {
    let _ = rx.scope(cq, |_| {
        let _ = rx.post(buf);
        let _ = cq.poll();
    });
}
