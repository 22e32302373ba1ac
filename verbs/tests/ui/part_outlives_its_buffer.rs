use verbs::*;

fn main() {}

fn f(pd: &Pd) -> Part<'static> {
    let buf = pd.register(vec![0; 8]).unwrap();
    buf.part(..).unwrap()
}
