//! Reading back: the server's reply lands in the buffer that came with the call.

use anyhow::{Context, Result, bail};
use std::os::unix::ffi::OsStrExt;
use verbatim::rpc::{Client, Deadline, Pending};
use xxhash_rust::xxh3::Xxh3Default;

use super::super::CALL_LIMIT_MS;
use super::super::progress::Progress;
use super::super::wire::{GET, GetHead, PIECE};
use super::{Sent, Window};

/// Reads all files back, and says of how many the checksums were equal at both ends: the server's of what it received,
/// and this one's of what came back, with that of what was sent.
pub fn read_back(client: &mut Client, sent: &[Sent<'_>], progress: &mut Progress) -> Result<u64> {
    let mut reader = Reader {
        client,
        progress,
        window: Window::new(),
        hasher: Xxh3Default::new(),
        verified: 0,
    };
    for file in sent {
        reader.file(file)?;
    }
    while let Some((call, piece)) = reader.window.oldest() {
        reader.take_reply(call, piece)?;
    }
    Ok(reader.verified)
}

struct Reader<'a, 'b> {
    client: &'b mut Client,
    progress: &'b mut Progress,
    window: Window<Piece<'a>>,
    /// Of the file whose pieces are coming in; they come in order.
    hasher: Xxh3Default,
    verified: u64,
}

/// What a call was for.
struct Piece<'a> {
    file: &'a Sent<'a>,
    len: usize,
    last: bool,
}

impl<'a> Reader<'a, '_> {
    fn file(&mut self, file: &'a Sent<'a>) -> Result<()> {
        let mut offset = 0;
        loop {
            let len = usize::try_from(file.len - offset)
                .unwrap_or(PIECE)
                .min(PIECE);
            while let Some((call, piece)) = self.window.too_full_for(len) {
                self.take_reply(call, piece)?;
            }
            let last = offset + len as u64 == file.len;
            self.ask(Piece { file, len, last }, offset)?;
            offset += len as u64;
            if last {
                return Ok(());
            }
        }
    }

    fn ask(&mut self, piece: Piece<'a>, offset: u64) -> Result<()> {
        let head = GetHead {
            offset,
            len: piece.len as u32,
        };
        let request = [&head.to_bytes(), piece.file.path.as_os_str().as_bytes()].concat();
        let room = self
            .client
            .pool()
            .alloc(piece.len)
            .with_context(|| format!("no memory to read {} back", piece.file.path.display()))?;
        let call = self
            .client
            .submit_into(GET, request, room, Deadline::after_ms(CALL_LIMIT_MS))
            .with_context(|| format!("reading {} back failed", piece.file.path.display()))?;
        self.window.add(call, piece.len, piece);
        Ok(())
    }

    fn take_reply(&mut self, call: Pending, piece: Piece<'a>) -> Result<()> {
        let path = piece.file.path.display();
        let mut reply = call
            .wait(self.client)
            .with_context(|| format!("reading {path} back failed"))?;
        if reply.len() != piece.len {
            bail!(
                "{path} came back with {} instead of {} bytes",
                reply.len(),
                piece.len
            );
        }
        let data = reply.take_destination().unwrap_or_default();
        self.hasher.update(&data[..piece.len]);
        self.progress.add(piece.len as u64);
        if piece.last {
            let equal =
                piece.file.equal_at_server && self.hasher.digest128() == piece.file.checksum;
            self.verified += u64::from(equal);
            self.hasher.reset();
        }
        Ok(())
    }
}
