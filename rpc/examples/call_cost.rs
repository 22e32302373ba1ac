//! Small calls between two threads: for counting the instructions that they cost each end, with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-rpc --example call_cost
//! valgrind --tool=callgrind --callgrind-out-file=calls.out target/release/examples/call_cost write_imm 20000
//! callgrind_annotate calls.out | head -60
//! ```
//!
//! Both ends wait by polling; what the polls that find nothing cost is in `poll_cq` and `Waiter`, and depends on how the threads
//! run. Without callgrind it prints the time of one call. A third argument is how many calls are on their way at once,
//! instead of 1; with `batch` behind it they are sent together, and the next ones when all have been answered.

use mempool::Pool;
use rpc::{
    Client, Deadline, Method, Pending, Reply, ReplyPath, Request, RequestPath, Responder, Server,
};
use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};
use verbs::Device;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "write_imm".to_owned());
    let count: u32 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let window: usize = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let together = arguments.next().is_some_and(|word| word == "batch");
    let (request, reply) = match &*path {
        "send" => (RequestPath::Send, ReplyPath::Send),
        "write_imm" => (RequestPath::WriteImm, ReplyPath::WriteImm),
        "write_poll" => (RequestPath::WritePoll, ReplyPath::WritePoll),
        "fetch" => (RequestPath::WriteImm, ReplyPath::Fetch),
        _ => return Err("send, write_imm, write_poll or fetch, and two numbers".into()),
    };
    let context = Device::open_default()?;
    let pd = context.alloc_pd()?;
    let pool = Pool::builder(&pd).build()?;
    let entries = 2 * window.max(32) as u32;
    let server = Server::bind("127.0.0.1:0")?
        .window(entries)
        .pool(&pd, &pool)
        .serve(|_core| {
            |request: Request<'_>, responder: Responder| responder.reply(request.body())
        })?;
    let mut client = Client::builder()
        .request(request)
        .reply(reply)
        .window(entries)
        .pool(&pd, &pool)
        .connect(server.local_addr())?;
    let message = [1; 64];
    let begin = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(3600));
    let answered = |reply: Reply| match reply.bytes() == message {
        true => Ok(()),
        false => Err("answered wrongly"),
    };
    let mut pending: VecDeque<Pending> = VecDeque::with_capacity(window);
    for n in 0..count {
        if window == 1 {
            answered(client.call(Method(1), message, deadline)?)?;
            continue;
        }
        if together {
            if n % window as u32 != 0 {
                continue;
            }
            let mut batch = client.batch();
            for _ in 0..window {
                batch.add(Method(1), message, deadline)?;
            }
            batch.post_into(&mut pending);
            for call in pending.drain(..) {
                answered(call.wait(&mut client)?)?;
            }
            continue;
        }
        if pending.len() == window {
            let oldest: Option<Pending> = pending.pop_front();
            answered(oldest.ok_or("no call")?.wait(&mut client)?)?;
        }
        pending.push_back(client.submit(Method(1), message, deadline)?);
    }
    for call in pending {
        answered(call.wait(&mut client)?)?;
    }
    let ns = begin.elapsed().as_nanos() as f64 / f64::from(count.max(1));
    println!("{path}: {ns:.1} ns");
    Ok(())
}
