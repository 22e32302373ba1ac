use verbs::{Private, RecvQueue};

fn main() {}

fn post(rx: &mut RecvQueue<Private<Vec<u8>>>, buffer: Private<Vec<u8>>) {
    rx.post(buffer).unwrap();
    drop(buffer);
}
