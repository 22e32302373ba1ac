use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, wc: Completion) {
    for (buf, _) in tx.redeem(wc).unwrap() {
        tx.send(buf).post().unwrap();
    }
}
