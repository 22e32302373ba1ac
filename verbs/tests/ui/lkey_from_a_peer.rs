use verbs::*;

fn main() {}

fn segment(theirs: RemoteRegion) -> Sge {
    Sge {
        addr: theirs.addr,
        len: 8,
        lkey: theirs.rkey,
    }
}
