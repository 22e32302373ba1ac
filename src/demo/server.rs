//! The server process: keeps the files it is sent below one folder, gives them back, and echoes.

use anyhow::{Context, Result};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use verbatim::mempool::{Budget, BudgetKind, Kind, Pool};
use verbatim::rpc::{Code, Request, Responder, Server};
use verbatim::verbs::Device;

use super::safe_path::Root;
use super::socket_echo;
use super::store::{Store, read_piece};
use super::wire::{ECHO, GET, GetHead, PUT, PutHead, PutReply};
use crate::cli::ServerArgs;
use crate::output;
use crate::placement::{self, End};

/// Memory for requests and replies that are on their way, bytes.
const MEMORY: u64 = 256 << 20;

/// Runs the server: until the other end of standard input, a socket, is closed.
pub fn run(args: &ServerArgs) -> Result<ExitCode> {
    let root = Root::open(&args.scratch).with_context(|| {
        format!(
            "the scratch folder {} cannot be opened",
            args.scratch.display()
        )
    })?;
    let root = Arc::new(root);
    let device = Device::open_default().context("the server has no device to use")?;
    let pd = device.alloc_pd()?;
    let pool = Pool::builder(&pd).budget(Budget::user(MEMORY)).build()?;
    let replies = pool.clone();
    let server = Server::bind("127.0.0.1:0")
        .and_then(|server| {
            server.pool(&pd, &pool).serve(move |_core| {
                placement::bind(End::Server);
                let mut store = Store::new(root.clone());
                let pool = replies.clone();
                move |request: Request<'_>, responder: Responder| {
                    handle(&mut store, &pool, &request, responder);
                }
            })
        })
        .context("the server cannot serve")?;
    output::print(&format!("{}\n", server.local_addr()))?;

    placement::bind(End::Server);
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    socket_echo::serve(UnixStream::from(socket))
        .context("the Unix socket to the client process failed")?;
    server.shutdown();
    Ok(ExitCode::SUCCESS)
}

fn handle(store: &mut Store, pool: &Pool, request: &Request<'_>, responder: Responder) {
    let body = request.body();
    match request.method() {
        ECHO => responder.reply(body),
        PUT => match PutHead::parse(body) {
            Some((head, name, data)) => match store.put(head, name, data) {
                Ok(checksum) => responder.reply(PutReply::to_bytes(checksum)),
                Err(e) => fail(responder, &e),
            },
            None => responder.fail(Code::INVALID, "the lengths in a request do not add up"),
        },
        GET => match GetHead::parse(body) {
            Some((head, name)) => match get(store, pool, head, name) {
                // Leaves from where it lies.
                Ok(data) => responder.reply(data),
                Err(e) => fail(responder, &e),
            },
            None => responder.fail(Code::INVALID, "a request is too short"),
        },
        _ => responder.fail(Code::UNIMPLEMENTED, "there is no such method"),
    }
}

fn get(
    store: &Store,
    pool: &Pool,
    head: GetHead,
    name: &[u8],
) -> io::Result<verbatim::mempool::Buf> {
    let (file, len) = store.find(head, name)?;
    let mut data = pool
        .alloc_in(BudgetKind::User, Kind::Readable, len)
        .map_err(io::Error::other)?;
    read_piece(&file, head.offset, &mut data)?;
    Ok(data)
}

fn fail(responder: Responder, error: &io::Error) {
    let code = match error.kind() {
        io::ErrorKind::InvalidInput => Code::INVALID,
        io::ErrorKind::NotFound => Code::NOT_FOUND,
        io::ErrorKind::AlreadyExists => Code::EXISTS,
        io::ErrorKind::PermissionDenied => Code::DENIED,
        _ => Code::INTERNAL,
    };
    responder.fail(code, error.to_string());
}
