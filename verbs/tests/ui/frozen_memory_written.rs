use verbs::{Readable, RemoteRegion, SendQueue};

fn main() {}

fn write(frozen: &mut Readable<Vec<u8>>) {
    frozen[0] = 1;
}

fn read_into(tx: &mut SendQueue<Readable<Vec<u8>>>, frozen: Readable<Vec<u8>>, from: RemoteRegion) {
    tx.read(frozen, from).post().unwrap();
}
