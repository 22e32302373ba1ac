//! The server's files: what a `PUT` and a `GET` do, without the RPC around them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::safe_path::{Mode, Root};
use super::wire::{Checksum, GetHead, PIECE, PutHead};

/// Files that may be in the middle of being received at the same time.
const MAX_UNFINISHED: usize = 64;

/// A folder that is written to and read from.
pub struct Store {
    root: Arc<Root>,
    unfinished: HashMap<Vec<u8>, Unfinished>,
}

/// A file of which pieces are missing.
struct Unfinished {
    file: File,
    hasher: Xxh3Default,
    len: u64,
}

impl Store {
    /// Takes the folder.
    pub fn new(root: Arc<Root>) -> Store {
        Store {
            root,
            unfinished: HashMap::new(),
        }
    }

    /// Takes in one piece; gives the checksum of the whole file after its last one, else 0.
    pub fn put(&mut self, head: PutHead, name: &[u8], data: &[u8]) -> io::Result<Checksum> {
        if head.offset == 0 && head.last {
            self.root.open_file(name, Mode::Create)?.write_all(data)?;
            return Ok(xxh3_128(data));
        }
        if head.offset == 0 {
            if self.unfinished.len() >= MAX_UNFINISHED {
                return Err(invalid("too many files are unfinished"));
            }
            let file = self.root.open_file(name, Mode::Create)?;
            let unfinished = Unfinished {
                file,
                hasher: Xxh3Default::new(),
                len: 0,
            };
            self.unfinished.insert(name.to_vec(), unfinished);
        }
        let unfinished = self
            .unfinished
            .get_mut(name)
            .ok_or_else(|| invalid("the file's first piece is missing"))?;
        if unfinished.len != head.offset {
            return Err(invalid("the pieces are out of order"));
        }
        unfinished.file.write_all(data)?;
        unfinished.hasher.update(data);
        unfinished.len += data.len() as u64;
        if !head.last {
            return Ok(0);
        }
        let whole = unfinished.hasher.digest128();
        self.unfinished.remove(name);
        Ok(whole)
    }

    /// Opens what a `GET` asks for and says how many bytes it will give.
    pub fn find(&self, head: GetHead, name: &[u8]) -> io::Result<(File, usize)> {
        if head.len as usize > PIECE {
            return Err(invalid("more is asked for than a piece"));
        }
        let file = self.root.open_file(name, Mode::Read)?;
        let left = file.metadata()?.len().saturating_sub(head.offset);
        Ok((file, left.min(head.len.into()) as usize))
    }
}

/// Fills `into` from the file; the file must be that long.
pub fn read_piece(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(into, offset)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scratch::Scratch;

    fn head(offset: u64, last: bool) -> PutHead {
        PutHead {
            name_len: 0,
            last,
            offset,
            checksum: 0,
        }
    }

    fn store() -> (Scratch, Store) {
        let scratch = Scratch::create().unwrap();
        let root = Root::open(scratch.path()).unwrap();
        (scratch, Store::new(Arc::new(root)))
    }

    #[test]
    fn pieces_become_the_file_and_its_checksum() {
        let (scratch, mut store) = store();
        assert_eq!(store.put(head(0, false), b"d/f", b"hello ").unwrap(), 0);
        assert_eq!(store.put(head(6, false), b"d/f", b"wor").unwrap(), 0);
        assert_eq!(
            store.put(head(9, true), b"d/f", b"ld").unwrap(),
            xxh3_128(b"hello world")
        );
        assert_eq!(
            std::fs::read(scratch.path().join("d/f")).unwrap(),
            b"hello world"
        );

        let get = GetHead {
            offset: 6,
            len: 100,
        };
        let (file, len) = store.find(get, b"d/f").unwrap();
        let mut piece = vec![0; len];
        read_piece(&file, 6, &mut piece).unwrap();
        assert_eq!(piece, b"world");
        assert_eq!(
            store
                .find(GetHead { offset: 99, len: 1 }, b"d/f")
                .unwrap()
                .1,
            0
        );
    }

    #[test]
    fn an_empty_file_is_a_file() {
        let (scratch, mut store) = store();
        assert_eq!(
            store.put(head(0, true), b"empty", b"").unwrap(),
            xxh3_128(b"")
        );
        assert_eq!(std::fs::read(scratch.path().join("empty")).unwrap(), b"");
    }

    #[test]
    fn a_client_cannot_make_it_lose_track() {
        let (_scratch, mut store) = store();
        assert!(store.put(head(5, true), b"never", b"x").is_err());
        store.put(head(0, false), b"f", b"1234").unwrap();
        for offset in [0, 3, 5, u64::MAX] {
            assert!(
                store.put(head(offset, true), b"f", b"x").is_err(),
                "{offset}"
            );
        }
        assert!(store.put(head(0, true), b"../f", b"x").is_err());
        for i in 0..MAX_UNFINISHED - 1 {
            store
                .put(head(0, false), format!("g{i}").as_bytes(), b"x")
                .unwrap();
        }
        assert!(store.put(head(0, false), b"one more", b"x").is_err());
        let get = GetHead {
            offset: 0,
            len: u32::MAX,
        };
        assert!(store.find(get, b"f").is_err());
    }
}
