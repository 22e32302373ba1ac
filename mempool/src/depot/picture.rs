//! What is where in an arena, for people.

use super::State;
use crate::Kind;
use crate::arena::Arena;
use crate::size::CHUNK;
use crate::slab::Chunk;
use std::fmt;

/// One arena, a character per chunk.
#[derive(Debug, Clone)]
pub(crate) struct ArenaPicture {
    pub kind: Kind,
    pub len: usize,
    pub what: &'static str,
    pub chunks: String,
    pub huge: bool,
}

impl State {
    pub(super) fn picture(&self, kind: Kind) -> Vec<ArenaPicture> {
        let of = |arena: &Arena, spare: bool| ArenaPicture {
            kind,
            len: arena.len(),
            what: match arena {
                _ if spare => "spare",
                a if a.is_adopted() => "adopted",
                a if a.is_dedicated() => "one buffer",
                _ => "",
            },
            chunks: chunks_of(arena, spare),
            huge: arena.is_huge(),
        };
        let shared = self.arenas.iter().map(|a| of(a, false));
        shared
            .chain(self.spare.iter().map(|a| of(a, true)))
            .collect()
    }
}

fn chunks_of(arena: &Arena, spare: bool) -> String {
    if arena.is_dedicated() {
        return if spare { "." } else { "#" }.to_owned();
    }
    let mut fill: Vec<char> = (0..arena.len() / CHUNK)
        .map(|chunk| if arena.is_free(chunk) { '.' } else { '#' })
        .collect();
    for (at, chunk) in arena.cut() {
        // SAFETY: noted chunks are alive, and the depot's lock is held.
        fill[at] = fill_of(unsafe { chunk.as_ref() });
    }
    fill.into_iter().collect()
}

/// `_` for nothing out, `0` to `9` for tenths, `*` for all.
fn fill_of(chunk: &Chunk) -> char {
    let slabs: usize = chunk.runs().map(|run| run.count()).sum();
    match chunk.pins() {
        0 => '_',
        out if out >= slabs => '*',
        out => char::from(b'0' + (out * 10 / slabs) as u8),
    }
}

impl fmt::Display for ArenaPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.len as f64 / (1 << 20) as f64;
        write!(f, "{:9} {mib:>8.1} MiB  [{}]", self.kind, self.chunks)?;
        match self.what {
            "" => {}
            what => write!(f, " {what}")?,
        }
        match self.huge {
            true => f.write_str(" of huge pages"),
            false => Ok(()),
        }
    }
}
