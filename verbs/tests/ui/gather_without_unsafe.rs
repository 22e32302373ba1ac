use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

struct Mine(Buf);

impl Gather for Mine {
    fn gather(&self, out: &mut SgeList) {
        self.0.gather(out);
    }
}
