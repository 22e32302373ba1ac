use verbs::*;

fn main() {}

fn f(cq: &mut Cq) {
    std::thread::scope(|s| {
        s.spawn(|| cq.poll().is_ok());
        s.spawn(|| cq.poll().is_ok());
    });
}
