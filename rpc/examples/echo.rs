//! Round trips of a few sizes, serial and pipelined: `cargo run --release --example echo`.
//!
//! Server and client are threads of this process, on the device that `VERBATIM_DEVICE` names (by
//! default the best one there is).

use rpc::{Client, Deadline, Method, Request, Responder, Server};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const ECHO: Method = Method(1);
const TIME: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::bind("127.0.0.1:0")?.serve(|_core| {
        |request: Request<'_>, responder: Responder| {
            if request.body().len() <= 4096 {
                responder.reply(request.body());
            } else {
                match request.take_body() {
                    Ok(buf) => responder.reply(buf),
                    Err(error) => responder.fail(rpc::Code::OVERLOADED, error.to_string()),
                }
            }
        }
    })?;
    for len in [0usize, 64, 4096, 65_536, 1 << 20] {
        let mut client = Client::connect(server.local_addr())?;
        let payload = client.pool().alloc_zeroed(len)?.freeze();
        let start = Instant::now();
        while start.elapsed() < TIME {
            for _ in 0..16 {
                client.call(ECHO, payload.clone(), Deadline::after_ms(10_000))?;
            }
        }
        let stats = client.stats();
        println!(
            "{len:>8} B serial     p50 {:>9.2?}  p99 {:>9.2?}",
            stats.p50, stats.p99
        );

        let (start, mut calls) = (Instant::now(), 0u64);
        let mut pending = VecDeque::new();
        while start.elapsed() < TIME {
            for _ in 0..32 {
                if pending.len() == 32 {
                    let oldest: Option<rpc::Pending> = pending.pop_front();
                    if let Some(oldest) = oldest {
                        oldest.wait(&mut client)?;
                        calls += 1;
                    }
                }
                let deadline = Deadline::after_ms(10_000);
                pending.push_back(client.submit(ECHO, payload.clone(), deadline)?);
            }
        }
        let rate = calls as f64 / start.elapsed().as_secs_f64();
        println!(
            "{len:>8} B pipelined  {:>9.0} calls/s  {:>8.0} MB/s each way",
            rate,
            rate * len as f64 / 1e6
        );
    }
    Ok(())
}
