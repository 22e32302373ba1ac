//! Many connections to one server: what each takes of memory and descriptors, and whether the calls are as quick as those
//! of few.
//!
//! ```sh
//! cargo run --release -p verbatim-rpc --example scale            # 16 connections beside 1,000
//! cargo run --release -p verbatim-rpc --example scale 16 4000 write_imm 1     # on one core
//! ```
//!
//! The server is a process of its own. The clients are in this one, on one thread: each connection has one call on its way, and when
//! all have been sent, the replies are taken in the same order. Short rounds with few and with many connections take turns, and each is compared with the one
//! beside it: on virtual machines the speed of caches changes within seconds.

use mempool::{Budget, BudgetKind, Pool};
use rpc::{Client, Deadline, Method, ReplyPath, Request, RequestPath, Responder, Server};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use verbs::{Device, Pd};

const MESSAGE: [u8; 64] = [1; 64];

const ROUNDS: usize = 25;
/// Of each round.
const CALLS: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    more_descriptors();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let at = |index: usize| arguments.get(index).map(String::as_str);
    if at(0) == Some("serve") {
        return serve(
            at(1).unwrap_or("1000").parse()?,
            at(2).unwrap_or("2").parse()?,
        );
    }
    let few: usize = at(0).unwrap_or("16").parse()?;
    let many: usize = at(1).unwrap_or("1000").parse()?;
    let (request, reply) = match at(2).unwrap_or("write_imm") {
        "send" => (RequestPath::Send, ReplyPath::Send),
        "write_imm" => (RequestPath::WriteImm, ReplyPath::WriteImm),
        "write_poll" => (RequestPath::WritePoll, ReplyPath::WritePoll),
        "fetch" => (RequestPath::WriteImm, ReplyPath::Fetch),
        _ => return Err("two numbers, and send, write_imm, write_poll or fetch".into()),
    };
    let mut server = Command::new(std::env::current_exe()?)
        .args(["serve", &(few + many).to_string(), at(3).unwrap_or("2")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut say = server.stdin.take().ok_or("no pipe")?;
    let mut hear = BufReader::new(server.stdout.take().ok_or("no pipe")?);
    let mut line = || -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        hear.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    };
    let address = line()?;
    let mut ask = || -> Result<(u64, u64), Box<dyn Error>> {
        say.write_all(b"?\n")?;
        let line = line()?;
        let mut numbers = line.split(' ').map(str::parse);
        let mut next = || numbers.next().ok_or("the server says nothing");
        Ok((next()??, next()??))
    };

    let (pd, pool) = memory()?;
    let connect = || {
        Client::builder()
            .request(request)
            .reply(reply)
            // One call at a time needs no more.
            .window(32)
            .pool(&pd, &pool)
            .connect(&*address)
    };
    let before = ask()?;
    let mut first: Vec<Client> = (0..few).map(|_| connect()).collect::<Result<_, _>>()?;
    let start = Instant::now();
    let mut rest: Vec<Client> = (0..many).map(|_| connect()).collect::<Result<_, _>>()?;
    println!(
        "{many} connections more: {:.2} ms each to connect",
        start.elapsed().as_secs_f64() * 1e3 / many as f64
    );
    let after = ask()?;
    let each = |now: u64, before: u64| (now - before) as f64 / (few + many) as f64;
    println!(
        "the server has {:.1} KiB of registered memory and {:.2} descriptors for each idle connection",
        each(after.0, before.0) / 1024.0,
        each(after.1, before.1)
    );
    let (mut of_few, mut of_many, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let few_rate = rate(&mut first, (CALLS / few).max(4))?;
        let many_rate = rate(&mut rest, (CALLS / many).max(4))?;
        of_few.push(few_rate);
        of_many.push(many_rate);
        ratios.push(many_rate / few_rate);
    }
    for (count, rates) in [(few, &mut of_few), (many, &mut of_many)] {
        let [lowest, median, highest] = spread(rates);
        println!("{count} connections: {median:.0} calls/s ({lowest:.0} to {highest:.0})");
    }
    let [lowest, median, highest] = spread(&mut ratios);
    println!("rate of {many} by that of {few}: {median:.2} ({lowest:.2} to {highest:.2})");
    drop((first, rest));
    drop(say);
    server.wait()?;
    Ok(())
}

/// The lowest, the median and the highest.
fn spread(figures: &mut [f64]) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [0, figures.len() / 2, figures.len() - 1].map(|at| figures[at])
}

/// Of either process.
fn memory() -> Result<(Pd, Pool), Box<dyn Error>> {
    let pd = Device::open_default()?.alloc_pd()?;
    let pool = Pool::builder(&pd)
        .budget(Budget::user(64 << 20))
        .budget(Budget::receive(8 << 30))
        .budget(Budget::control(1 << 30))
        .build()?;
    Ok((pd, pool))
}

/// Calls a second, of all these connections together.
fn rate(clients: &mut [Client], rounds: usize) -> Result<f64, Box<dyn Error>> {
    let deadline = Deadline::after(Duration::from_secs(600));
    let start = Instant::now();
    let mut pending = Vec::with_capacity(clients.len());
    for _ in 0..rounds {
        for client in clients.iter_mut() {
            pending.push(client.submit(Method(1), MESSAGE, deadline)?);
        }
        for (call, client) in pending.drain(..).zip(clients.iter_mut()) {
            if call.wait(client)?.bytes() != MESSAGE {
                return Err("answered wrongly".into());
            }
        }
    }
    Ok((rounds * clients.len()) as f64 / start.elapsed().as_secs_f64())
}

/// The server. Says its address, then for each line it reads how many bytes and descriptors it has in use.
fn serve(connections: usize, cores: usize) -> Result<(), Box<dyn Error>> {
    let (pd, pool) = memory()?;
    let server = Server::bind("127.0.0.1:0")?
        .cores(cores)
        .max_connections(connections)
        .pool(&pd, &pool)
        .serve(|_core| {
            |request: Request<'_>, responder: Responder| responder.reply(request.body())
        })?;
    println!("{}", server.local_addr());
    for line in std::io::stdin().lines() {
        line?;
        let stats = pool.stats();
        let memory: u64 = stats
            .budgets
            .iter()
            .filter(|budget| matches!(budget.budget, BudgetKind::Receive | BudgetKind::Control))
            .map(|budget| budget.in_use)
            .sum();
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
        println!("{memory} {descriptors}");
    }
    Ok(())
}

/// As many descriptors as this process may have.
fn more_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: structures of our own; what cannot be raised stays as it is.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}
