use verbs::Exposed;

fn main() {}

fn peek(shared: &Exposed) -> &[u8] {
    &shared[..]
}

fn borrow(shared: &Exposed) -> &[u8] {
    shared
}
