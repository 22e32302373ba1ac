//! Calls of the `rpc` crate, answered with as many bytes as they bring.

use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::time::Duration;
use verbatim::mempool::{BudgetKind, Buf, Kind, SgList};
use verbatim::rpc::{
    Client, Deadline, Method, Pending, ReplyPath, Request, RequestPath, Responder, Server,
    ServerHandle,
};

use super::case::{Flow, Path, Size, Verb, WINDOW};
use super::link::Host;
use super::measure::{Figures, Group, Pipeline, pipelined, serial};

const ECHO: Method = Method(1);

/// Receive entries of each end: the crate keeps some for itself, and [`WINDOW`] calls must fit beside them.
const ENTRIES: u32 = 2 * WINDOW as u32;

/// Far above what a round takes, so that only a hang meets it.
const LIMIT: Duration = Duration::from_secs(60);

/// Serves until it is dropped. Requests of a cache line are echoed; longer ones are answered from memory that is kept, as they
/// are by the end of a queue pair that they are compared with.
pub fn serve(host: &Host, size: Size) -> Result<ServerHandle> {
    let mut kept = host
        .pool
        .alloc_in(BudgetKind::User, Kind::Readable, size.bytes())?;
    kept.fill(1);
    let kept = kept.freeze();
    let small = Size::B64.bytes();
    Ok(Server::bind("127.0.0.1:0")?
        .window(ENTRIES)
        .pool(&host.pd, &host.pool)
        .serve(move |_core| {
            let kept = kept.clone();
            move |request: Request<'_>, responder: Responder| {
                let body = request.body();
                if body.len() <= small {
                    responder.reply(body);
                } else {
                    responder.reply(kept.clone());
                }
            }
        })?)
}

/// The end that calls.
pub struct Caller {
    client: Client,
    size: usize,
    group: Group,
    flow: Flow,
    /// The request, if it is longer than a cache line; comes back with each reply.
    request: Option<SgList>,
    /// Where the reply goes, if it is too long for one message.
    destination: Option<Buf>,
}

impl Caller {
    /// Connects to the server; requests and replies travel by `path`.
    pub fn connect(
        host: &Host,
        address: &str,
        path: Path,
        size: Size,
        flow: Flow,
    ) -> Result<Caller> {
        let (request, reply) = match path {
            Path::Pushed(Verb::Send) => (RequestPath::Send, ReplyPath::Send),
            Path::Pushed(Verb::WriteImm) => (RequestPath::WriteImm, ReplyPath::WriteImm),
            Path::Fetched => (RequestPath::WriteImm, ReplyPath::Fetch),
        };
        let client = Client::builder()
            .request(request)
            .reply(reply)
            .window(ENTRIES)
            .pool(&host.pd, &host.pool)
            .connect(address)?;
        ensure!(
            client.slots() as usize >= flow.window(),
            "only {} calls can be on their way at once",
            client.slots()
        );
        let request = if size == Size::B64 {
            None
        } else {
            // Memory that the server can READ from as it is.
            let mut request = host
                .pool
                .alloc_in(BudgetKind::User, Kind::Readable, size.bytes())?;
            request.fill(1);
            Some(SgList::from(request))
        };
        let destination = if size.bytes() > client.inline_limit() {
            Some(host.pool.alloc_zeroed(size.bytes())?)
        } else {
            None
        };
        Ok(Caller {
            client,
            size: size.bytes(),
            group: size.group(),
            flow,
            request,
            destination,
        })
    }

    /// Measures calls.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let deadline = Deadline::after(LIMIT);
        match self.flow {
            Flow::Serial if self.request.is_some() => {
                serial(limit, self.group, || self.long(deadline))
            }
            Flow::Serial => {
                let message = [1; Size::B64.bytes()];
                serial(limit, self.group, || {
                    let reply = self.client.call(ECHO, message, deadline)?;
                    ensure!(reply.bytes() == message, "a call was answered wrongly");
                    Ok(())
                })
            }
            Flow::Pipelined => {
                let mut calls = Calls {
                    client: &mut self.client,
                    waiting: VecDeque::with_capacity(WINDOW),
                    message: [1; Size::B64.bytes()],
                    deadline,
                };
                pipelined(limit, WINDOW, &mut calls)
            }
        }
    }

    /// A call with a long request and a long reply.
    fn long(&mut self, deadline: Deadline) -> Result<()> {
        let request = self.request.take().context("an earlier call failed")?;
        let mut reply = match self.destination.take() {
            Some(destination) => {
                let (reply, destination) =
                    self.client
                        .call_into(ECHO, request, destination, deadline)?;
                ensure!(destination[0] == 1, "a call was answered wrongly");
                self.destination = Some(destination);
                reply
            }
            None => {
                let reply = self.client.call(ECHO, request, deadline)?;
                ensure!(reply.bytes()[0] == 1, "a call was answered wrongly");
                reply
            }
        };
        ensure!(
            reply.len() == self.size,
            "a call was answered with {} bytes",
            reply.len()
        );
        self.request = Some(reply.take_segments());
        Ok(())
    }
}

/// Several calls on their way.
struct Calls<'a> {
    client: &'a mut Client,
    waiting: VecDeque<Pending>,
    message: [u8; Size::B64.bytes()],
    deadline: Deadline,
}

impl Pipeline for Calls<'_> {
    type Error = anyhow::Error;

    #[inline]
    fn submit(&mut self) -> Result<()> {
        let call = self.client.submit(ECHO, self.message, self.deadline)?;
        self.waiting.push_back(call);
        Ok(())
    }

    #[inline]
    fn complete(&mut self) -> Result<usize> {
        let call = self.waiting.pop_front().context("no call is on its way")?;
        let reply = call.wait(self.client)?;
        ensure!(reply.bytes() == self.message, "a call was answered wrongly");
        Ok(1)
    }
}
