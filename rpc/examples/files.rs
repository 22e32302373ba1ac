//! A file service: what a file is called and how long it is travels in typed headers, what is in it as segments of the pool.
//!
//! `cargo run --example files --features serde,zerocopy [DIRECTORY]` serves a directory, by default its own source, and reads every file of it
//! back, on the device that `VERBATIM_DEVICE` names. Nothing is copied between the buffer that a file is read into and the client's.

use mempool::Pool;
use rpc::service::{
    Answer, Call, Dispatcher, Failure, Method, Methods, Plain, Postcard, Service, ServiceClient,
};
use rpc::{Client, Code, Deadline, Server};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Which files there are. Names have any length: this is what `serde` is for.
struct List;

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    len: u64,
}

impl Method for List {
    const NUMBER: u16 = 1;
    const VERSION: u16 = 1;
    const NAME: &'static str = "list";
    type Request = Postcard<()>;
    type Reply = Postcard<Vec<Entry>>;
}

/// A part of a file: where is in the header, which file behind it. The reply has the data behind its header.
struct Read;

/// Read where it lies: nothing is decoded.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Part {
    offset: U64,
    len: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Data {
    /// Length of the whole file.
    file_len: U64,
}

impl Method for Read {
    const NUMBER: u16 = 2;
    const VERSION: u16 = 1;
    const NAME: &'static str = "read";
    type Request = Plain<Part>;
    type Reply = Plain<Data>;
}

/// Most bytes of a file in one reply.
const PART_MAX: u64 = 1 << 20;

/// The server's state.
struct Files {
    directory: PathBuf,
    pool: Pool,
}

impl Files {
    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let len = metadata.len();
                entries.push(Entry { name, len });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn read(&self, call: Call<'_, Plain<Part>>) -> Result<Answer<Data>, Failure> {
        let name = std::str::from_utf8(call.rest())
            .map_err(|_| Failure::new(Code::INVALID, "a name that is not UTF-8"))?;
        if name.contains('/') || name.starts_with('.') {
            return Err(Failure::new(Code::DENIED, "only files of the directory"));
        }
        let part = call.header();
        let file = File::open(self.directory.join(name)).map_err(failure)?;
        let file_len = file.metadata().map_err(failure)?.len();
        let left = file_len.saturating_sub(part.offset.get());
        let len = left.min(part.len.get().into()).min(PART_MAX);

        let mut data = self.pool.alloc(len as usize)?;
        file.read_exact_at(&mut data, part.offset.get())
            .map_err(failure)?;
        let header = Data {
            file_len: file_len.into(),
        };
        // The buffer leaves as it is, behind the header.
        Ok(Answer::with(header, data))
    }
}

fn failure(error: io::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NOT_FOUND,
        ErrorKind::PermissionDenied => Code::DENIED,
        _ => Code::INTERNAL,
    };
    Failure::new(code, error.to_string())
}

impl Service for Files {
    const NAME: &'static str = "files";

    fn methods(methods: &mut Methods<Self>) {
        methods.add::<List>(|files, _| files.list().map(Answer::new).map_err(failure));
        methods.add::<Read>(|files, call| files.read(call));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")),
        PathBuf::from,
    );
    let served = directory.clone();
    let server = Server::bind("127.0.0.1:0")?.serve(move |core| {
        let files = Files {
            directory: served.clone(),
            pool: core.pool().clone(),
        };
        Dispatcher::new(files, core.pool()).into_handler()
    })?;

    let soon = || Deadline::after_ms(10_000);
    let mut files = ServiceClient::new(Client::connect(server.local_addr())?, soon())?;
    println!("{}: {:?}", files.listing().name(), files.listing().offers());

    let pool = files.client().pool().clone();
    for entry in files.call::<List>(&(), soon())?.into_header() {
        let mut contents = Vec::new();
        loop {
            let part = Part {
                offset: (contents.len() as u64).into(),
                len: (PART_MAX as u32).into(),
            };
            let name = pool.alloc_from_slice(entry.name.as_bytes())?;
            let reply = files.call_with::<Read>(&part, name, soon())?;
            let file_len = reply.header().file_len.get();
            let data = reply.into_rest(&pool)?;
            contents.extend_from_slice(&data);
            if data.is_empty() || contents.len() as u64 >= file_len {
                break;
            }
        }
        let same = contents == fs::read(directory.join(&entry.name))?;
        println!(
            "{:>10} B  {}  {}",
            entry.len,
            if same { "equal" } else { "CHANGED" },
            entry.name
        );
    }
    server.shutdown();
    Ok(())
}
