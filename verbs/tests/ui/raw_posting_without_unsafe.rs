use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(tx: &mut SendQueue<Buf>, wr: &mut sys::ibv_send_wr) {
    let _ = tx.post_raw(wr);
}
