// Datagrams have no connection: there is nothing to WRITE to, and no message without an address.
use verbs::{Private, RemoteRegion, SendQueue, Ud};

fn write(mut tx: SendQueue<Private<Vec<u8>>, Ud>, data: Private<Vec<u8>>, remote: RemoteRegion) {
    tx.write(data, remote).post().unwrap();
}

fn send(mut tx: SendQueue<Private<Vec<u8>>, Ud>, data: Private<Vec<u8>>) {
    tx.send(data).post().unwrap();
}

fn copy(mut tx: SendQueue<u32, Ud>) {
    tx.send_copy(b"x", 1).post().unwrap();
}

fn batch(mut tx: SendQueue<Private<Vec<u8>>, Ud>, data: Private<Vec<u8>>) {
    tx.batch().send(data).add().unwrap();
}

fn lend(mut tx: SendQueue<Private<Vec<u8>>, Ud>, mut cq: verbs::Cq, data: Private<Vec<u8>>) {
    tx.scope(&mut cq, |s| s.send(data.part(..).unwrap()).unwrap()).unwrap();
}

fn main() {}
