use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

fn tell(mine: &Buf) -> RemoteRegion {
    mine.remote()
}
