//! Messages there and back over a queue pair, and READs, by the safe interface of `verbs`.
//!
//! All memory comes from the pool's arenas and is allocated before the rounds; buffers move into the queues and come back.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;
use verbatim::mempool::{Budget, BudgetKind, Buf, ExposedLease, Kind, Pool};
use verbatim::verbs::{
    Access, Completion, Context, Cq, Device, Endpoint, Pd, RcSetup, Readable, RecvQueue,
    RemoteRegion, SendQueue, WcBatch,
};

use super::control::Hello;
use super::measure::{Figures, Group, Pipeline, pipelined, serial};
use super::shape::{Flow, Size, Verb};
use super::spin::Spin;

/// What all cases of a process share.
pub struct Host {
    /// The open device.
    pub device: Context,
    /// The domain of all memory.
    pub pd: Pd,
    /// Where all memory comes from.
    pub pool: Pool,
}

/// Memory for messages, bytes.
const MEMORY: u64 = 1 << 30;

impl Host {
    /// Opens the device.
    pub fn open() -> Result<Host> {
        let device = Device::open_default().context("there is no device to measure")?;
        let pd = device.alloc_pd()?;
        let pool = Pool::builder(&pd)
            .budget(Budget::user(MEMORY))
            .budget(Budget::receive(MEMORY))
            .build()?;
        Ok(Host { device, pd, pool })
    }
}

/// One end of a queue pair.
pub struct Link {
    verb: Verb,
    size: usize,
    group: Group,
    window: usize,
    cq: Cq,
    tx: SendQueue<Buf>,
    rx: RecvQueue<Buf>,
    batch: WcBatch,
    /// Receive buffers to be posted again, when there is time: there are enough others.
    owed: Vec<Buf>,
    /// Buffers to send from.
    spare: Vec<Buf>,
    /// Of so many sends one is signalled, which gives the buffers of all of them back.
    signal_every: u32,
    unsignaled: u32,
    /// Tags of messages that have arrived and were not looked at.
    inbox: VecDeque<u32>,
    /// What the peer writes to, a part for each message of the window.
    exposed: ExposedLease,
    written: usize,
    /// The same at the peer.
    remote: Option<RemoteRegion>,
    sent: usize,
    setup: Option<RcSetup>,
}

/// What messages and calls are full of.
pub const FILLING: u8 = 1;

/// The tag of the message that ends a round.
const END: u32 = 0;

impl Link {
    /// An end that can be connected; its receives are posted.
    pub fn new(host: &Host, verb: Verb, size: Size, flow: Flow) -> Result<Link> {
        let window = flow.window(size);
        let group = size.group();
        let size = size.bytes();
        // Twice the window: what the peer has not taken yet, and what it is already answering.
        let least = if size <= 1 << 16 {
            32
        } else if size <= 1 << 20 {
            4
        } else {
            2
        };
        let depth = (2 * window).max(least) as u32;
        let cq = host.device.cq(2 * depth).build()?;
        let ready = host
            .pd
            .rc(&cq)
            .send_depth(depth)
            .recv_depth(depth)
            .build()?;
        let (setup, tx, mut rx) = ready.split::<Buf, Buf>();
        let entry = match verb {
            Verb::Send => size,
            // The bytes go elsewhere.
            Verb::WriteImm | Verb::WritePoll => Size::B64.bytes(),
        };
        for _ in 0..depth {
            let buf = host
                .pool
                .alloc_in(BudgetKind::Receive, Kind::Receive, entry)?;
            rx.post(buf)?;
        }
        let spare = (0..depth).map(|_| {
            let mut buf = host.pool.alloc(size)?;
            // The bytes of the calls that are compared with these messages. Some processors store nothing but zeros a third faster past their caches.
            buf.fill(FILLING);
            Ok(buf)
        });
        let spare: Result<Vec<Buf>> = spare.collect();
        let exposed = host
            .pool
            .exposed(size * window)?
            .lease(&host.pd, Access::REMOTE_WRITE)?;
        Ok(Link {
            verb,
            size,
            group,
            window,
            cq,
            tx,
            rx,
            batch: WcBatch::with_capacity(32),
            owed: Vec::with_capacity(depth as usize),
            spare: spare?,
            signal_every: (depth / 4).max(1),
            unsignaled: 0,
            inbox: VecDeque::with_capacity(depth as usize),
            exposed,
            written: 0,
            remote: None,
            sent: 0,
            setup: Some(setup),
        })
    }

    /// What the other end must know.
    pub fn hello(&self) -> Hello {
        Hello {
            endpoint: self
                .setup
                .as_ref()
                .map(|setup| setup.endpoint().to_bytes().to_vec()),
            region: Some(self.exposed.remote().to_bytes().to_vec()),
            ..Hello::default()
        }
    }

    /// Connects to the other end.
    pub fn connect(&mut self, hello: &Hello) -> Result<()> {
        let peer = Endpoint::from_bytes(hello.endpoint.as_deref().unwrap_or_default())?;
        self.remote = Some(region(hello)?);
        let setup = self.setup.take().context("the link is connected already")?;
        Ok(setup.connect(&peer)?)
    }

    /// Answers until the round ends.
    pub fn serve(&mut self) -> Result<()> {
        loop {
            let tag = if self.window == 1 {
                self.wait()?
            } else {
                self.wait_batched()?
            };
            if tag == END {
                return Ok(());
            }
            self.post(tag)?;
        }
    }

    /// Measures round trips; the other end is in [`serve`](Self::serve), or about to be.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let figures = if self.window == 1 {
            let mut tag = END;
            serial(limit, self.group, || {
                tag = following(tag);
                self.post(tag)?;
                let echo = self.wait()?;
                ensure!(echo == tag, "message {tag} came back as {echo}");
                Ok(())
            })?
        } else {
            let window = self.window;
            let (sent, back) = (END, END);
            let mut echoes = Echoes {
                link: self,
                sent,
                back,
            };
            pipelined(limit, window, &mut echoes)?
        };
        self.post(END)?;
        Ok(figures)
    }

    /// Posts a message that carries the tag.
    #[inline]
    fn post(&mut self, tag: u32) -> Result<()> {
        let mut buf = match self.spare.pop() {
            Some(buf) => buf,
            None => self.reclaim()?,
        };
        buf[..8].copy_from_slice(&u64::from(tag).to_le_bytes());
        let mut wr = match (self.verb, &self.remote) {
            (Verb::Send, _) => self.tx.send(buf),
            (_, Some(remote)) => {
                let at = (self.sent * self.size) as u64;
                self.sent = (self.sent + 1) % self.window;
                self.tx
                    .write(buf, remote.slice(at..at + self.size as u64)?)
                    .imm(tag)
            }
            (_, None) => bail!("the link is not connected"),
        };
        self.unsignaled += 1;
        if self.unsignaled >= self.signal_every {
            self.unsignaled = 0;
            wr = wr.signaled();
        }
        wr.post()?;
        Ok(())
    }

    /// Posts the receives that are owed.
    #[inline]
    fn repay(&mut self) -> Result<()> {
        while let Some(buf) = self.owed.pop() {
            self.rx.post(buf)?;
        }
        Ok(())
    }

    /// Waits for a buffer; a quarter of those in flight at least are signalled.
    #[cold]
    fn reclaim(&mut self) -> Result<Buf> {
        let mut spin = Spin::new();
        loop {
            match self.cq.poll()? {
                Some(completion) => {
                    let arrived = self.take(completion)?;
                    self.inbox.extend(arrived);
                }
                None => spin.idle(),
            }
            if let Some(buf) = self.spare.pop() {
                return Ok(buf);
            }
        }
    }

    /// Waits for a message, and gives its tag.
    #[inline]
    fn wait(&mut self) -> Result<u32> {
        if let Some(tag) = self.inbox.pop_front() {
            return Ok(tag);
        }
        let mut spin = Spin::new();
        loop {
            match self.cq.poll()? {
                Some(completion) => {
                    if let Some(tag) = self.take(completion)? {
                        return Ok(tag);
                    }
                }
                None => {
                    self.repay()?;
                    spin.idle();
                }
            }
        }
    }

    /// The same, looking for several at once.
    #[inline]
    fn wait_batched(&mut self) -> Result<u32> {
        let mut spin = Spin::new();
        loop {
            if let Some(tag) = self.inbox.pop_front() {
                return Ok(tag);
            }
            if self.look()? == 0 {
                spin.idle();
            }
        }
    }

    /// Takes what completions there are.
    #[inline]
    fn look(&mut self) -> Result<usize> {
        let count = self.cq.poll_into(&mut self.batch)?;
        while let Some(completion) = self.batch.pop() {
            let arrived = self.take(completion)?;
            self.inbox.extend(arrived);
        }
        Ok(count)
    }

    /// The tag of the message, if it is one that has arrived.
    #[inline]
    fn take(&mut self, completion: Completion) -> Result<Option<u32>> {
        if completion.queue() != self.rx.id() {
            let mut done = self.tx.retire(completion)?;
            while let Some((buf, result)) = self.tx.take(&mut done) {
                result?;
                self.spare.push(buf);
            }
            return Ok(None);
        }
        let received = self.rx.redeem(completion)??;
        ensure!(
            received.byte_len() as usize == self.size,
            "a message of {} bytes arrived, {} were sent",
            received.byte_len(),
            self.size
        );
        let word = match self.verb {
            Verb::Send => received
                .bytes()
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word)),
            Verb::WriteImm | Verb::WritePoll => {
                let at = self.written * self.size;
                self.written = (self.written + 1) % self.window;
                let word = u64::from_le(self.exposed.atomic_u64(at)?.load(Ordering::Acquire));
                // The bytes must be there before the immediate data is.
                (received.imm().map(u64::from) == Some(word)).then_some(word)
            }
        };
        self.owed.push(received.into_inner());
        if self.owed.len() >= self.window.max(2) {
            self.repay()?;
        }
        let tag = word.and_then(|word| u32::try_from(word).ok());
        Ok(Some(
            tag.ok_or_else(|| anyhow!("a message arrived changed"))?,
        ))
    }
}

/// Tags count up, and leave out the one that ends a round.
fn following(tag: u32) -> u32 {
    tag.wrapping_add(1).max(END + 1)
}

fn region(hello: &Hello) -> Result<RemoteRegion> {
    let bytes = hello.region.as_deref().unwrap_or_default();
    let bytes = bytes
        .try_into()
        .context("the other end's memory is not described")?;
    Ok(RemoteRegion::from_bytes(bytes))
}

/// The end of a pipelined round that measures.
struct Echoes<'a> {
    link: &'a mut Link,
    sent: u32,
    back: u32,
}

impl Pipeline for Echoes<'_> {
    type Error = anyhow::Error;

    #[inline]
    fn submit(&mut self) -> Result<()> {
        self.sent = following(self.sent);
        self.link.post(self.sent)
    }

    #[inline]
    fn complete(&mut self) -> Result<usize> {
        let mut spin = Spin::new();
        while self.link.inbox.is_empty() {
            if self.link.look()? == 0 {
                spin.idle();
            }
        }
        let count = self.link.inbox.len();
        while let Some(echo) = self.link.inbox.pop_front() {
            self.back = following(self.back);
            ensure!(
                echo == self.back,
                "message {} came back as {echo}",
                self.back
            );
        }
        Ok(count)
    }
}

/// The end that READs.
pub struct Reader {
    link: Link,
    source: Option<RemoteRegion>,
    into: Option<Buf>,
}

/// The end that is READ from, and does nothing.
pub struct Source {
    link: Link,
    memory: Readable<Buf>,
}

/// What is in the memory that is READ.
const PATTERN: u8 = 0xa5;

impl Reader {
    /// An end that can be connected.
    pub fn new(host: &Host) -> Result<Reader> {
        Ok(Reader {
            link: Link::new(host, Verb::Send, Size::B64, Flow::Serial)?,
            source: None,
            into: Some(host.pool.alloc_zeroed(Size::B64.bytes())?),
        })
    }

    /// What the other end must know.
    pub fn hello(&self) -> Hello {
        self.link.hello()
    }

    /// Connects to the other end.
    pub fn connect(&mut self, hello: &Hello) -> Result<()> {
        self.source = Some(region(hello)?);
        self.link.connect(hello)
    }

    /// Measures READs.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let source = self.source.context("the link is not connected")?;
        let Link { cq, tx, .. } = &mut self.link;
        serial(limit, Group::Sixteen, || {
            let into = self.into.take().context("an earlier READ failed")?;
            tx.read(into, source).signaled().post()?;
            let mut spin = Spin::new();
            let completion = loop {
                match cq.poll()? {
                    Some(completion) => break completion,
                    None => spin.idle(),
                }
            };
            let mut done = tx.retire(completion)?;
            let (buf, result) = tx.take(&mut done).context("a READ was lost")?;
            result?;
            ensure!(buf[0] == PATTERN, "a READ gave something else");
            self.into = Some(buf);
            Ok(())
        })
    }
}

impl Source {
    /// An end that can be connected.
    pub fn new(host: &Host) -> Result<Source> {
        let mut memory = host
            .pool
            .alloc_in(BudgetKind::User, Kind::Readable, Size::B64.bytes())?;
        memory.fill(PATTERN);
        Ok(Source {
            link: Link::new(host, Verb::Send, Size::B64, Flow::Serial)?,
            memory: host.pd.readable(memory)?,
        })
    }

    /// What the other end must know.
    pub fn hello(&self) -> Hello {
        Hello {
            region: Some(self.memory.remote().to_bytes().to_vec()),
            ..self.link.hello()
        }
    }

    /// Connects to the other end.
    pub fn connect(&mut self, hello: &Hello) -> Result<()> {
        self.link.connect(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_leave_out_the_one_that_ends_a_round() {
        assert_eq!(following(0), 1);
        assert_eq!(following(1), 2);
        assert_eq!(following(u32::MAX), 1);
    }
}
