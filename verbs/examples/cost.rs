//! Messages there and back in one thread, through the safe queues: for counting instructions with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-verbs --example cost
//! for n in 0 100000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/cost write_imm $n 2>&1 | grep Collected
//! done
//! ```
//!
//! The loop does the same as that of the example of the same name in `verbatim-softverbs`, which uses the bare table: the difference
//! between the two is what safety costs. Without callgrind it prints the time of one message.

use std::error::Error;
use std::time::Instant;
use verbs::{Access, Device, Private};

type Queue = Private<Vec<u8>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "write_imm".to_owned());
    let count: u64 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let receives = match &*what {
        "send" | "write_imm" => true,
        "write" | "read" => false,
        _ => return Err("send, write_imm, write or read, and a number".into()),
    };
    let ctx = Device::open_default()?;
    let pd = ctx.alloc_pd()?;
    let (mut cq_a, mut cq_b) = (ctx.cq(64).build()?, ctx.cq(64).build()?);
    let a = pd.rc(&cq_a).send_depth(32).recv_depth(32).rd_atomic(4);
    let b = pd.rc(&cq_b).send_depth(32).recv_depth(32).rd_atomic(4);
    let (a, b) = (a.build()?, b.build()?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (mut tx, _) = a.connect::<Queue, Queue>(&to_b)?;
    let (_, mut rx) = b.connect::<Queue, Queue>(&to_a)?;
    let exposed = pd.expose(4096, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let remote = exposed.remote().slice(0..64)?;
    for _ in 0..16 {
        rx.post(pd.register(vec![0; 64])?)?;
    }
    let mut spare = Vec::new();
    for _ in 0..16 {
        spare.push(pd.register(vec![0; 64])?);
    }
    let begin = Instant::now();
    for i in 0..count {
        let signaled = i % 16 == 15 || !receives;
        let buffer = spare.pop().ok_or("no buffer")?;
        match &*what {
            "read" => tx.read(buffer, remote).signaled().post()?,
            _ => {
                let wr = match &*what {
                    "send" => tx.send(buffer),
                    "write" => tx.write(buffer, remote),
                    _ => tx.write(buffer, remote).imm(i as u32),
                };
                if signaled {
                    wr.signaled().post()?
                } else {
                    wr.post()?
                }
            }
        }
        if let Some(completion) = cq_a.poll()? {
            let mut done = tx.retire(completion)?;
            while let Some((buffer, result)) = tx.take(&mut done) {
                result?;
                spare.push(buffer);
            }
        }
        if receives {
            let completion = cq_b.poll()?.ok_or("nothing arrived")?;
            let received = rx.redeem(completion)??;
            rx.post(received.into_inner())?;
        }
    }
    if count > 0 {
        let ns = begin.elapsed().as_nanos() as f64 / count as f64;
        println!("{what}: {ns:.1} ns");
    }
    Ok(())
}
