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
//! instead of 1; with `batch` behind it they are sent together, and the next ones when all have been answered. A number behind it is
//! how many bytes a message has, instead of 64; with `segments`, requests are of a buffer that comes back with the reply, and replies of one that is shared.

use mempool::{BudgetKind, Kind, Pool, SgList};
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
    let (mut together, mut segments, mut size) = (false, false, 64);
    for word in arguments {
        match &*word {
            "batch" => together = true,
            "segments" => segments = true,
            bytes => size = bytes.parse()?,
        }
    }
    let (request, reply) = match &*path {
        "send" => (RequestPath::Send, ReplyPath::Send),
        "write_imm" => (RequestPath::WriteImm, ReplyPath::WriteImm),
        "write_poll" => (RequestPath::WritePoll, ReplyPath::WritePoll),
        "fetch" => (RequestPath::WriteImm, ReplyPath::Fetch),
        "send_fetch" => (RequestPath::Send, ReplyPath::Fetch),
        _ => {
            return Err("send, write_imm, write_poll, fetch or send_fetch, and two numbers".into());
        }
    };
    let context = Device::open_default()?;
    let pd = context.alloc_pd()?;
    let pool = Pool::builder(&pd).build()?;
    let entries = 2 * window.max(32) as u32;
    let readable = || -> Result<_, Box<dyn Error>> {
        let mut memory = pool.alloc_in(BudgetKind::User, Kind::Readable, size)?;
        memory.fill(1);
        Ok(memory)
    };
    let kept = readable()?.freeze();
    let server = Server::bind("127.0.0.1:0")?
        .window(entries)
        .pool(&pd, &pool)
        .serve(move |_core| {
            let kept = kept.clone();
            move |request: Request<'_>, responder: Responder| match segments {
                true => responder.reply(kept.clone()),
                false => responder.reply(request.body()),
            }
        })?;
    let mut client = Client::builder()
        .request(request)
        .reply(reply)
        .window(entries)
        .pool(&pd, &pool)
        .connect(server.local_addr())?;
    let message = vec![1; size];
    let message = &message[..];
    let begin = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(3600));
    let mut stock = Vec::with_capacity(window);
    for _ in 0..if segments { window } else { 0 } {
        stock.push(SgList::from(readable()?));
    }
    let answered = |mut reply: Reply, stock: &mut Vec<SgList>| {
        if segments {
            stock.push(reply.take_segments());
        }
        // Small ones whole; of longer ones that would be most of the work.
        match reply.len() == size && reply.bytes()[..size.min(64)] == message[..size.min(64)] {
            true => Ok(()),
            false => Err("answered wrongly"),
        }
    };
    let mut pending: VecDeque<Pending> = VecDeque::with_capacity(window);
    for n in 0..count {
        if window == 1 {
            let reply = match stock.pop() {
                Some(list) => client.call(Method(1), list, deadline)?,
                None => client.call(Method(1), message, deadline)?,
            };
            answered(reply, &mut stock)?;
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
                answered(call.wait(&mut client)?, &mut stock)?;
            }
            continue;
        }
        if pending.len() == window {
            let oldest: Option<Pending> = pending.pop_front();
            answered(oldest.ok_or("no call")?.wait(&mut client)?, &mut stock)?;
        }
        pending.push_back(match stock.pop() {
            Some(list) => client.submit(Method(1), list, deadline)?,
            None => client.submit(Method(1), message, deadline)?,
        });
    }
    for call in pending {
        answered(call.wait(&mut client)?, &mut stock)?;
    }
    let ns = begin.elapsed().as_nanos() as f64 / f64::from(count.max(1));
    println!("{path}: {ns:.1} ns");
    Ok(())
}
