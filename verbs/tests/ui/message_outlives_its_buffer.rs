use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(rx: &mut RecvQueue<Buf>, wc: Completion) -> usize {
    let bytes = rx.redeem(wc).unwrap().unwrap().bytes();
    bytes.len()
}
