use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn f(pd: &Pd) {
    let _ = pd.shared_recv(4).build::<std::rc::Rc<Buf>>();
}
