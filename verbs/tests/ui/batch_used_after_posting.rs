use verbs::{Private, SendQueue};

fn main() {}

type Buf = Private<Vec<u8>>;

fn twice(tx: &mut SendQueue<Buf>, one: Buf, two: Buf) {
    let mut batch = tx.batch();
    batch.send(one).add().unwrap();
    batch.post().unwrap();
    batch.send(two).add().unwrap();
}

fn buffer_again(tx: &mut SendQueue<Buf>, buf: Buf) {
    let mut batch = tx.batch();
    batch.send(buf).add().unwrap();
    buf.len();
}

fn between(tx: &mut SendQueue<Buf>, one: Buf, two: Buf) {
    let mut batch = tx.batch();
    batch.send(one).add().unwrap();
    tx.send(two).post().unwrap();
    batch.post().unwrap();
}
