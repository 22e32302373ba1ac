//! Small calls between two threads: for counting the instructions that they cost each end, with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-rpc --example cost
//! valgrind --tool=callgrind --callgrind-out-file=calls.out target/release/examples/cost write_imm 20000
//! callgrind_annotate calls.out | head -60
//! ```
//!
//! Both ends wait by polling; what the polls that find nothing cost is in `poll_cq` and `Waiter`, and depends on how the threads
//! run. Without callgrind it prints the time of one call.

use mempool::Pool;
use rpc::{Client, Deadline, Method, ReplyPath, Request, RequestPath, Responder, Server};
use std::error::Error;
use std::time::{Duration, Instant};
use verbs::Device;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "write_imm".to_owned());
    let count: u32 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let (request, reply) = match &*path {
        "send" => (RequestPath::Send, ReplyPath::Send),
        "write_imm" => (RequestPath::WriteImm, ReplyPath::WriteImm),
        _ => return Err("send or write_imm, and a number".into()),
    };
    let context = Device::open_default()?;
    let pd = context.alloc_pd()?;
    let pool = Pool::builder(&pd).build()?;
    let server = Server::bind("127.0.0.1:0")?
        .pool(&pd, &pool)
        .serve(|_core| {
            |request: Request<'_>, responder: Responder| responder.reply(request.body())
        })?;
    let mut client = Client::builder()
        .request(request)
        .reply(reply)
        .pool(&pd, &pool)
        .connect(server.local_addr())?;
    let message = [1; 64];
    let begin = Instant::now();
    for _ in 0..count {
        let deadline = Deadline::after(Duration::from_secs(60));
        let reply = client.call(Method(1), message, deadline)?;
        if reply.bytes() != message {
            return Err("answered wrongly".into());
        }
    }
    let ns = begin.elapsed().as_nanos() as f64 / f64::from(count.max(1));
    println!("{path}: {ns:.1} ns");
    Ok(())
}
