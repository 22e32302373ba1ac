//! The longest messages, both ways: a gibibyte in one buffer, and more than four in lists.

mod common;

use common::*;
use mempool::{Budget, Pool, SgList, SharedBuf};
use rpc::{CHUNK_MAX, Client, Request, Responder, Server};

/// A gibibyte; less where that would take minutes, in whole pages.
fn len() -> usize {
    let len = (1 << 30) / slowness() as usize;
    len - len % 4096
}

/// Marks that make every 4 KiB differ, cheap to write and to check.
fn mark(buf: &mut [u8]) {
    for (page, chunk) in buf.chunks_mut(4096).enumerate() {
        chunk[..8].copy_from_slice(&(page as u64 * 0x9e37_79b9).to_le_bytes());
        chunk[chunk.len() - 1] = page as u8;
    }
}

fn check(buf: &[u8]) {
    assert_eq!(buf.len(), len());
    for (page, chunk) in buf.chunks(4096).enumerate() {
        assert_eq!(
            chunk[..8],
            (page as u64 * 0x9e37_79b9).to_le_bytes(),
            "page {page}"
        );
        assert_eq!(chunk[chunk.len() - 1], page as u8, "page {page}");
    }
}

#[test]
fn a_gibibyte_there_and_back_in_one_call() {
    bounded(|| {
        let (_, pd, pool) = memory();
        let server = Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, pool)
            .serve(|_core| {
                |request: Request<'_>, responder: Responder| {
                    check(request.body());
                    match request.take_body() {
                        Ok(buf) => responder.reply(buf),
                        Err(error) => responder.fail(rpc::Code::INTERNAL, error.to_string()),
                    }
                }
            })
            .unwrap();
        let mut client = client(&server);
        let mut buf = pool.alloc(len()).unwrap();
        mark(&mut buf);
        let mut reply = client.call(ECHO, buf, patient()).unwrap();
        assert_eq!(reply.take_segments().len(), len());
        check(reply.bytes());
        assert_eq!(client.stats().copies + server.stats().copies, 0);
        println!("{}\n{}", client.stats(), server.stats());
    });
}

/// More than 4 GiB out of one GiB: each segment begins one page further on, so that none can be taken for another.
fn windows(whole: &SharedBuf) -> SgList {
    let mut list = SgList::new();
    for page in 0..5 {
        list.push(whole.slice(page * 4096..)).unwrap();
    }
    list
}

/// The bytes are those of [`windows`] of what [`mark`] has filled.
fn check_windows<'a>(chunks: impl Iterator<Item = &'a [u8]>) {
    let lens = (0..5).map(|page| CHUNK_MAX - page * 4096);
    let mut pages = lens
        .clone()
        .enumerate()
        .flat_map(|(from, len)| from..from + len / 4096);
    let mut total = 0;
    for chunk in chunks {
        total += chunk.len();
        for bytes in chunk.chunks(4096) {
            let page = pages.next().expect("not longer than what was sent");
            let want = (page as u64 * 0x9e37_79b9).to_le_bytes();
            assert_eq!((bytes.len(), &bytes[..8]), (4096, &want[..]), "page {page}");
            assert_eq!(bytes[4095], page as u8, "page {page}");
        }
    }
    assert_eq!(total, lens.sum());
    assert!(total > 4 << 30);
}

/// Bytes of memory that are free, or can be had.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

#[test]
fn more_than_four_gibibytes_as_a_list_there_and_back() {
    // Of which at most six are in use at a time.
    if slowness() > 1 || available() < 8 << 30 {
        println!("left out: takes minutes on a machine this slow, and 8 GiB of free memory");
        return;
    }
    bounded(|| {
        let (_, pd, _) = memory();
        let pool = Pool::builder(pd)
            .budget(Budget::user(16 << 30))
            .build()
            .unwrap();
        let most = 5 << 30;
        let server = Server::bind("127.0.0.1:0")
            .unwrap()
            .pool(pd, &pool)
            .max_message(most)
            .serve(|_core| {
                |request: Request<'_>, responder: Responder| {
                    check_windows(request.chunks());
                    assert_eq!(
                        (request.len() > 4 << 30, request.body().len()),
                        (true, CHUNK_MAX)
                    );
                    // The first chunk is what all were made of.
                    match request.take_chunks() {
                        Ok(chunks) => {
                            let first = chunks.into_iter().next().unwrap();
                            responder.reply(windows(&first.freeze()))
                        }
                        Err(error) => responder.fail(rpc::Code::INTERNAL, error.to_string()),
                    }
                }
            })
            .unwrap();
        let mut client = Client::builder()
            .pool(pd, &pool)
            .max_message(most)
            .connect(server.local_addr())
            .unwrap();
        let mut buf = pool.alloc(CHUNK_MAX).unwrap();
        mark(&mut buf);
        let sent = windows(&buf.freeze());
        let len = sent.len();
        let mut reply = client.call(ECHO, sent, patient()).unwrap();
        drop(reply.take_segments());
        assert_eq!((reply.len(), reply.bytes().len()), (len, CHUNK_MAX));
        check_windows(reply.chunks());
        assert_eq!(reply.into_chunks(&pool).unwrap().len(), 5);
        assert_eq!(client.stats().copies + server.stats().copies, 0);
    });
}
