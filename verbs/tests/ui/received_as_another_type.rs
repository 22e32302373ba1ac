use verbs::*;

type Buf = Private<Vec<u8>>;

fn main() {}

struct Other(Buf);

// A completion of one queue, redeemed at another, yields what that one holds.
fn f(rx: &mut RecvQueue<Buf>, wc: Completion) -> Option<Received<Other>> {
    rx.redeem(wc).ok()?.ok()
}
