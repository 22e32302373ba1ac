//! What a call asks of the devices, by every combination of paths: work requests, doorbells, completions.
//!
//! Times differ from machine to machine, and mean nothing on an emulated one; these counts are the same everywhere, and are what an adapter
//! is busy with. The table in `docs/counts.md` is written by this test:
//!
//! ```sh
//! VERBATIM_COUNTS_TABLE=$PWD/docs/counts.md cargo test -p verbatim-tests --test counts   # soft0's part
//! VERBATIM_COUNTS_TABLE=yes tests/kernel/run-suite.sh counts                             # Soft-RoCE's, and then
//! cp target/kernel-guest/logs/counts.md docs/
//! ```

mod table;
mod tally;

use mempool::Pool;
use rpc::{
    Client, Deadline, Method, ReplyPath, Request, RequestPath, Responder, Server, ServerHandle,
};
use table::Row;
use tally::{Counts, count, counts};
use verbs::{Context, Device, Pd};

const CLIENT: usize = 0;
const SERVER: usize = 1;

const REQUESTS: [RequestPath; 3] = [
    RequestPath::Send,
    RequestPath::WriteImm,
    RequestPath::WritePoll,
];
const REPLIES: [ReplyPath; 5] = [
    ReplyPath::Send,
    ReplyPath::WriteImm,
    ReplyPath::WritePoll,
    ReplyPath::Fetch,
    ReplyPath::Hybrid,
];
/// Lengths of request and reply in bytes, and how many calls are counted.
const SIZES: [(usize, u32); 6] = [
    (0, 128),
    (64, 128),
    (1 << 10, 128),
    (4 << 10, 128),
    (64 << 10, 16),
    (1 << 20, 4),
];
/// Longest payload in bytes that travels in one message, by default.
const SMALL: usize = 4 << 10;
/// Calls in a batch.
const BATCH: u8 = 16;
/// Bytes that one READ fetches.
const SLICE: usize = 256 << 10;
/// Packets that all which are out are answered with at most. If that is less than a mebibyte, there can be two.
const PACKETS: usize = 256;

/// A device that is counted, with memory for one end.
struct End {
    context: Context,
    pd: Pd,
    pool: Pool,
}

impl End {
    fn new(which: usize, context: Context) -> End {
        count(which, &context);
        let pd = context.alloc_pd().unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        End { context, pd, pool }
    }
}

fn peer() -> Context {
    match std::env::var("VERBATIM_PEER_DEVICE") {
        Ok(name) if !name.is_empty() => Device::open_spec(&name).unwrap(),
        _ => Device::open_default().unwrap(),
    }
}

fn serve(end: &End) -> ServerHandle {
    let server = Server::bind("127.0.0.1:0").unwrap();
    let server = server.pool(&end.pd, &end.pool).read_slice(SLICE as u32);
    server
        .serve(|_core| {
            |request: Request<'_>, responder: Responder| {
                if request.len() <= SMALL {
                    return responder.reply(request.body());
                }
                match request.take_body() {
                    Ok(body) => responder.reply(body),
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .unwrap()
}

/// Makes calls one after the other; what each end has asked of its device.
fn calls(client: &mut Client, size: usize, calls: u32) -> [Counts; 2] {
    let before = [counts(CLIENT), counts(SERVER)];
    for n in 0..calls {
        let mut buf = client.pool().alloc(size).unwrap();
        buf.fill(n as u8);
        // Nobody wants the memory of a short one back.
        let reply = match size <= SMALL {
            true => client.call(Method(1), &buf[..], Deadline::never()),
            false => client.call(Method(1), buf, Deadline::never()),
        };
        let reply = reply.unwrap();
        assert_eq!(reply.len(), size);
        assert!(reply.bytes().iter().all(|&byte| byte == n as u8));
    }
    [counts(CLIENT) - before[0], counts(SERVER) - before[1]]
}

/// What must be so, however the threads run.
fn check(row: &Row, inline: bool, mtu: usize) {
    let Row {
        paths: (request, reply),
        size,
        calls,
        ends: [client, server],
    } = row;
    let calls = u64::from(*calls);
    // Control messages: credits now and then, and after a long reply that the server need not keep it any more.
    let few = if inline { calls / 4 + 2 } else { calls + 2 };
    // What an end was about to do when the counts were looked at is in some of them only.
    let edge = 4;
    // A client that waits for its only call READs twice as much at once, and so does a server, of a body that is alone, if no other READ is out.
    let slices = |slice: usize| match inline {
        true => 0,
        false => size.div_ceil(slice) as u64 * calls,
    };
    let longest = match PACKETS * mtu {
        short if short < 1 << 20 => short / 2,
        long => long,
    };
    let of_requests = slices(longest.min(2 * SLICE));
    let of_replies = of_requests;
    let shorter = slices(longest.min(SLICE)) - of_requests;
    // Where a ring is polled, an end that has nothing to do says so, with a WRITE if it has been woken since the last time, and a READ. How often is a matter of time; but it is
    // woken for each WRITE once at most.
    let mut asleep = 0;
    // Whose messages are WRITEs that nobody tells of.
    let by_write = [
        *request == RequestPath::WritePoll,
        *reply == ReplyPath::WritePoll,
    ];
    let sleepers = [
        ([client, server], [by_write[0], by_write[1]], of_replies, 0),
        (
            [server, client],
            [by_write[1], by_write[0]],
            of_requests,
            shorter,
        ),
    ];
    for ([sleeper, waker], [writes, polls], slices, shorter) in sleepers {
        if polls {
            // The READ is left out if something has come before it.
            let messages = if writes { calls } else { 0 };
            let tells = sleeper.writes.saturating_sub(messages);
            let sleeps = sleeper.reads.saturating_sub(slices).max(tells);
            assert!(sleeps <= 4 * calls + 8 + shorter, "{row:?}");
            assert!(waker.sends <= sleeps + edge, "wakes: {row:?}");
            asleep += sleeps + edge;
        }
    }
    let by_request = match request {
        RequestPath::Send => client.sends,
        RequestPath::WriteImm => client.writes_with_imm,
        _ => client.writes,
    };
    let sent = client.sends + client.writes_with_imm + client.writes;
    let most = calls + few + asleep;
    assert!((calls..=most).contains(&by_request), "requests: {row:?}");
    assert!(sent <= by_request + asleep, "no other kinds: {row:?}");
    let answers = server.sends + server.writes_with_imm + server.writes;
    let of_requests = of_requests..=of_requests + shorter + asleep;
    assert!(of_requests.contains(&server.reads), "{row:?}");
    let of_replies = of_replies..=of_replies + asleep;
    match reply {
        ReplyPath::Fetch => {
            // The claim of fetching: the server posts nothing for a reply.
            assert!(answers <= few + asleep, "{row:?}");
            assert!(client.reads >= calls + of_replies.start(), "{row:?}");
        }
        ReplyPath::Hybrid => assert!(answers <= most, "{row:?}"),
        _ => {
            assert!((calls..=most).contains(&answers), "{row:?}");
            assert!(of_replies.contains(&client.reads), "{row:?}");
        }
    }
    for end in [client, server] {
        let posted = end.sends + end.writes_with_imm + end.writes + end.reads;
        assert!(
            end.doorbells.abs_diff(posted) <= edge,
            "one after the other: {row:?}"
        );
        // Those that carry the caller's memory, READs, and one now and then.
        assert!(end.sent <= posted + edge, "{row:?}");
        assert!(end.receive_doorbells <= end.receives + edge, "{row:?}");
        if inline {
            // Of what leaves from memory of the connection, every fourth at least, and all 6 KiB.
            let frames = if *size > 64 { calls / 2 } else { 0 };
            let most = end.reads + few + asleep + frames;
            assert!(end.sent <= most, "not each has one: {row:?}");
        }
    }
    let received = |end: &Counts, polled| polled || end.received >= calls;
    assert!(received(server, *request == RequestPath::WritePoll));
    let unheard = matches!(
        reply,
        ReplyPath::WritePoll | ReplyPath::Fetch | ReplyPath::Hybrid
    );
    assert!(received(client, unheard));
}

/// Calls that are sent together have one doorbell.
fn batch(client: &mut Client) {
    let before = counts(CLIENT);
    let mut batch = client.batch();
    for n in 0..BATCH {
        batch.add(Method(1), [n; 64], Deadline::never()).unwrap();
    }
    let pending = batch.post();
    let posted = counts(CLIENT) - before;
    let requests = posted.sends + posted.writes_with_imm + posted.writes;
    // Behind them a wake, where a ring is polled.
    assert!((BATCH.into()..=u64::from(BATCH) + 1).contains(&requests));
    assert_eq!(posted.doorbells, 1 + requests - u64::from(BATCH));
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait(client).unwrap().bytes(), [n as u8; 64]);
    }
}

#[test]
fn what_a_call_asks_of_the_devices() {
    let ends = [
        End::new(CLIENT, peer()),
        End::new(SERVER, Device::open_default().unwrap()),
    ];
    let [mtu, other] = [0, 1].map(|end| ends[end].context.port().mtu);
    let mtu = mtu.min(other);
    let mut rows = Vec::new();
    for request in REQUESTS {
        for reply in REPLIES {
            let server = serve(&ends[SERVER]);
            let end = &ends[CLIENT];
            let client = Client::builder().pool(&end.pd, &end.pool);
            let client = client.request(request).reply(reply);
            let client = client.read_slice(SLICE as u32);
            let mut client = client.connect(server.local_addr()).unwrap();
            assert_eq!(client.inline_limit(), SMALL);
            for (size, count) in SIZES {
                // The first few find out how long it takes.
                calls(&mut client, size, 8.min(count));
                let ends = calls(&mut client, size, count);
                let row = Row {
                    paths: (request, reply),
                    size,
                    calls: count,
                    ends,
                };
                check(&row, size <= SMALL, mtu.bytes() as usize);
                rows.push(row);
            }
            batch(&mut client);
            assert_eq!((client.stats().rnr, server.stats().rnr), (0, 0));
            // What is received has been sent, when all is over.
            drop(client);
            drop(server);
        }
    }
    table::tell(ends[SERVER].context.device_name(), &rows);
}
