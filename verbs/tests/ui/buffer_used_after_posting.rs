use verbs::{Private, SendQueue};

fn main() {}

fn post(tx: &mut SendQueue<Private<Vec<u8>>>, mut buffer: Private<Vec<u8>>) {
    tx.send(buffer).post().unwrap();
    buffer[0] = 1;
}
