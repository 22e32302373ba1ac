//! The largest message there can be, both ways, in one call.

mod common;

use common::*;
use rpc::{Request, Responder, Server};

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
