use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(shared: SharedRecvQueue<Buf>) {
    std::thread::scope(|s| {
        s.spawn(|| shared.outstanding());
    });
}
