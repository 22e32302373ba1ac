use verbs::{Gather, Private, SgeList};

fn main() {}

struct Borrowed<'a>(&'a Private<Vec<u8>>);

unsafe impl<'a> Gather for Borrowed<'a> {
    fn gather(&self, out: &mut SgeList) {
        self.0.gather(out);
    }
}
