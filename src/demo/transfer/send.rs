//! Sending: each piece of a file is a call of three segments, read from the file into the pool's memory and taken
//! from there by the device.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use verbatim::mempool::{BudgetKind, Buf, Kind, Pool, SgList, sg};
use verbatim::rpc::{Client, Deadline, Pending};
use xxhash_rust::xxh3::Xxh3Default;

use super::super::CALL_LIMIT_MS;
use super::super::progress::Progress;
use super::super::tree::{self, Entry};
use super::super::wire::{Checksum, PIECE, PUT, PutHead, PutReply};
use super::{Sent, Window};

/// Sends all files; those that cannot be read are noted and left out.
pub fn send<'a>(
    client: &mut Client,
    root: &Path,
    files: &'a [Entry],
    notes: &mut Vec<String>,
    progress: &mut Progress,
) -> Result<Vec<Sent<'a>>> {
    let mut sender = Sender {
        client,
        progress,
        sent: Vec::with_capacity(files.len()),
        window: Window::new(),
    };
    for entry in files {
        let result = match tree::open(root, entry) {
            Ok(file) => sender.file(entry, file)?,
            Err(note) => Err(note),
        };
        notes.extend(result.err());
    }
    while let Some((call, piece)) = sender.window.oldest() {
        sender.take_reply(call, piece)?;
    }
    Ok(sender.sent)
}

struct Sender<'a, 'b> {
    client: &'b mut Client,
    progress: &'b mut Progress,
    sent: Vec<Sent<'a>>,
    window: Window<Piece>,
}

/// What a call was for: a piece of `sent[file]`, whose checksum it carried if it was the last.
struct Piece {
    file: usize,
    checksum: Option<Checksum>,
}

impl<'a> Sender<'a, '_> {
    /// Sends a file; the inner error is a note why it is left out.
    fn file(&mut self, entry: &'a Entry, mut file: File) -> Result<Result<(), String>> {
        let mut hasher = Xxh3Default::new();
        let mut offset = 0;
        loop {
            let want = usize::try_from(entry.len - offset)
                .unwrap_or(PIECE)
                .min(PIECE);
            self.make_room(want, offset > 0)?;
            let data = match read_piece(self.client.pool(), &mut file, want) {
                Ok(data) => data,
                Err(e) => {
                    if offset > 0 {
                        // Its last piece never goes out. No call for it is on its way: the earlier ones are done.
                        self.sent.pop();
                    }
                    return Ok(Err(format!("{} is left out: {e}", entry.path.display())));
                }
            };
            hasher.update(&data);
            let len = data.len();
            // A file that shrinks ends early, one that grows is cut: what counts is what was sent.
            let last = len < want || offset + len as u64 == entry.len;
            let checksum = last.then(|| hasher.digest128());
            if offset == 0 {
                self.sent.push(Sent {
                    path: &entry.path,
                    len: 0,
                    checksum: 0,
                    equal_at_server: false,
                });
            }
            self.piece(entry, offset, checksum, data)?;
            offset += len as u64;
            if last {
                return Ok(Ok(()));
            }
        }
    }

    /// Takes replies until there is room for a call of `bytes`, or until all are there.
    fn make_room(&mut self, bytes: usize, all: bool) -> Result<()> {
        loop {
            let next = if all {
                self.window.oldest()
            } else {
                self.window.too_full_for(bytes)
            };
            match next {
                Some((call, piece)) => self.take_reply(call, piece)?,
                None => return Ok(()),
            }
        }
    }

    /// Sends the next piece of the file that was begun last.
    fn piece(
        &mut self,
        entry: &Entry,
        offset: u64,
        checksum: Option<Checksum>,
        data: Buf,
    ) -> Result<()> {
        let len = data.len();
        let request = request(self.client.pool(), entry, offset, checksum, data)
            .with_context(|| format!("no memory to send {}", entry.path.display()))?;
        let call = self
            .client
            .submit(PUT, request, Deadline::after_ms(CALL_LIMIT_MS))
            .with_context(|| format!("sending {} failed", entry.path.display()))?;
        let file = self.sent.len() - 1;
        self.window.add(call, len, Piece { file, checksum });
        self.sent[file].len += len as u64;
        self.sent[file].checksum = checksum.unwrap_or(0);
        self.progress.add(len as u64);
        Ok(())
    }

    fn take_reply(&mut self, call: Pending, piece: Piece) -> Result<()> {
        let file = &mut self.sent[piece.file];
        let reply = call
            .wait(self.client)
            .with_context(|| format!("sending {} failed", file.path.display()))?;
        let theirs = PutReply::parse(reply.bytes())
            .ok_or_else(|| anyhow!("the server answers nonsense for {}", file.path.display()))?;
        if let Some(ours) = piece.checksum {
            file.equal_at_server = ours == theirs;
        }
        Ok(())
    }
}

/// Metadata, name and data, each where it lies: the device gathers them.
fn request(
    pool: &Pool,
    entry: &Entry,
    offset: u64,
    checksum: Option<Checksum>,
    data: Buf,
) -> Result<SgList> {
    let name = entry.path.as_os_str().as_bytes();
    let head = PutHead {
        name_len: u16::try_from(name.len()).context("its name is too long")?,
        last: checksum.is_some(),
        offset,
        checksum: checksum.unwrap_or(0),
    };
    let head = pool.alloc_from_slice(&head.to_bytes())?;
    let name = pool.alloc_from_slice(name)?;
    Ok(if data.is_empty() {
        sg![head, name]
    } else {
        sg![head, name, data]
    })
}

/// Up to `want` bytes; fewer at the end of the file.
fn read_piece(pool: &Pool, file: &mut File, want: usize) -> io::Result<Buf> {
    let mut data = pool
        .alloc_in(BudgetKind::User, Kind::Readable, want)
        .map_err(io::Error::other)?;
    let mut len = 0;
    while len < want {
        match file.read(&mut data[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    data.truncate(len);
    Ok(data)
}
