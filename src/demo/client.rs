//! The client process: sends the files, reads them back, measures echoes, and prints an [`Outcome`] as JSON for the
//! process that started it.

use anyhow::{Context, Result, bail, ensure};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Instant;
use verbatim::mempool::{Budget, Pool};
use verbatim::rpc::{Client, Deadline};
use verbatim::verbs::Device;

use super::latency::{self, Percentiles, ROUNDS, SIZES};
use super::progress::Progress;
use super::report::Outcome;
use super::transfer::{read_back, send};
use super::wire::ECHO;
use super::{CALL_LIMIT_MS, socket_echo, tree};
use crate::cli::ClientArgs;
use crate::output;
use crate::placement::{self, End};

/// Memory for the pieces that are on their way, in either direction, bytes.
const MEMORY: u64 = 256 << 20;

/// Runs the client.
pub fn run(args: &ClientArgs) -> Result<ExitCode> {
    let leave_out: Vec<&str> = args.leave_out.iter().map(String::as_str).collect();
    let mut tree = tree::read(&args.dir, &leave_out)?;
    if tree.files.is_empty() {
        bail!(
            "{} holds no file that could be sent; name another directory with --dir",
            args.dir.display()
        );
    }
    let device = Device::open_default().context("the client has no device to use")?;
    let pd = device.alloc_pd()?;
    let pool = Pool::builder(&pd).budget(Budget::user(MEMORY)).build()?;
    let mut client = Client::builder()
        .pool(&pd, &pool)
        .connect(&args.server)
        .with_context(|| format!("the client cannot connect to the server at {}", args.server))?;
    let mut notes = std::mem::take(&mut tree.notes);

    let start = Instant::now();
    let mut progress = Progress::start("sending", tree.bytes());
    let sent = send(
        &mut client,
        &args.dir,
        &tree.files,
        &mut notes,
        &mut progress,
    )?;
    progress.finish();
    let send_seconds = start.elapsed().as_secs_f64();

    let bytes = sent.iter().map(|file| file.len).sum();
    let start = Instant::now();
    let mut progress = Progress::start("reading back", bytes);
    let files_verified = read_back(&mut client, &sent, &mut progress)?;
    progress.finish();
    let read_back_seconds = start.elapsed().as_secs_f64();

    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (echo, unix_socket) = echoes(&mut client, UnixStream::from(socket))?;
    let outcome = Outcome {
        device: device.device_name().to_owned(),
        why: device.chosen_because().to_owned(),
        files: sent.len() as u64,
        bytes,
        files_verified,
        send_seconds,
        read_back_seconds,
        notes,
        echo,
        unix_socket,
    };
    output::print(&serde_json::to_string(&outcome)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Round trips over the RPC and over the socket, in turn.
fn echoes(
    client: &mut Client,
    mut socket: UnixStream,
) -> Result<(Vec<Percentiles>, Vec<Percentiles>)> {
    placement::bind(End::Client);
    let (mut rpc, mut unix) = (Vec::new(), Vec::new());
    for size in SIZES {
        let (mut over_rpc, mut over_socket) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            rpc_round(client, size, &mut over_rpc)?;
            socket_echo::round(&mut socket, size, &mut over_socket)
                .context("the Unix socket to the server process failed")?;
        }
        rpc.push(latency::percentiles(size, over_rpc));
        unix.push(latency::percentiles(size, over_socket));
    }
    Ok((rpc, unix))
}

fn rpc_round(client: &mut Client, size: usize, samples: &mut Vec<u64>) -> Result<()> {
    let message = vec![1u8; size];
    latency::round(samples, || {
        let reply = client
            .call(ECHO, &message[..], Deadline::after_ms(CALL_LIMIT_MS))
            .context("an echo failed")?;
        ensure!(reply.bytes() == message, "an echo came back changed");
        Ok(())
    })
}
