//! Messages there and back in one thread, through the safe queues: for counting instructions with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-verbs --example cost
//! for n in 0 100000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/cost write_imm $n 2>&1 | grep Collected
//! done
//! ```
//!
//! The loop does the same as that of the example of the same name in `verbatim-softverbs`, which uses the bare table. One message is a
//! post, a poll of the sender's completion queue, a poll of the receiver's, and the receive posted again; each sixteenth send is signalled.
//! Buffers go round: they are taken from an array of spare ones, move into the queues and come back with the completions.
//!
//! The modes `raw_send`, `raw_write_imm`, `raw_write` and `raw_read` do the same through `post_raw`, without safety, from as many buffers and into as many:
//! the differences are what safety costs. The raw loops trust that a buffer is free again when its turn comes, as such programs do; `raw` is
//! `raw_write_imm` from one buffer and into one. Without callgrind it prints the time of one message.

use std::error::Error;
use std::mem::ManuallyDrop;
use std::time::Instant;
use verbs::{Access, Cq, Device, Exposed, Pd, Private, RecvQueue, SendQueue, sys};

type Queue = Private<Vec<u8>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "write_imm".to_owned());
    let count: u64 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    // Each has a loop of its own, in which the compiler knows the mode.
    match &*what {
        "send" => safe::<SEND>(&what, count),
        "write_imm" => safe::<WRITE_IMM>(&what, count),
        "write" => safe::<WRITE>(&what, count),
        "read" => safe::<READ>(&what, count),
        "raw_send" => raw::<SEND, 16>(&what, count),
        "raw_write_imm" => raw::<WRITE_IMM, 16>(&what, count),
        "raw_write" => raw::<WRITE, 16>(&what, count),
        "raw_read" => raw::<READ, 16>(&what, count),
        "raw" => raw::<WRITE_IMM, 1>(&what, count),
        _ => Err("[raw_] send, write_imm, write or read, or raw, and a number".into()),
    }
}

const SEND: u8 = 0;
const WRITE_IMM: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;

#[inline(never)]
fn safe<const MODE: u8>(what: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let receives = MODE == SEND || MODE == WRITE_IMM;
    let Connection {
        pd,
        mut cq_a,
        mut cq_b,
        mut tx,
        mut rx,
        exposed,
        idle: _idle,
    } = connect()?;
    let remote = exposed.remote().slice(0..64)?;
    for _ in 0..16 {
        rx.post(pd.register(vec![0; 64])?)?;
    }
    let mut spare = [const { None }; 16];
    for buffer in &mut spare {
        *buffer = Some(pd.register(vec![0; 64])?);
    }
    let mut back = 0;
    let begin = Instant::now();
    for i in 0..count {
        let signaled = i % 16 == 15 || !receives;
        let buffer = spare[i as usize % 16].take().ok_or("no buffer")?;
        match MODE {
            READ => tx.read(buffer, remote).signaled().post()?,
            _ => {
                let wr = match MODE {
                    SEND => tx.send(buffer),
                    WRITE => tx.write(buffer, remote),
                    _ => tx.write(buffer, remote).imm(i as u32),
                };
                if signaled {
                    wr.signaled().post()?
                } else {
                    wr.post()?
                }
            }
        }
        if let Some(completion) = cq_a.poll()? {
            for (buffer, result) in tx.redeem(completion)? {
                result?;
                // There is none: its buffer was sent, as all were that are back before this one.
                std::mem::forget(spare[back % 16].replace(buffer));
                back += 1;
            }
        }
        if receives {
            let completion = cq_b.poll()?.ok_or("nothing arrived")?;
            let received = rx.redeem(completion)??;
            rx.post(received.into_inner())?;
        }
    }
    report(what, begin, count);
    Ok(())
}

fn report(what: &str, begin: Instant, count: u64) {
    if count > 0 {
        let ns = begin.elapsed().as_nanos() as f64 / count as f64;
        println!("{what}: {ns:.1} ns");
    }
}

struct Connection {
    pd: Pd,
    cq_a: Cq,
    cq_b: Cq,
    tx: SendQueue<Queue>,
    rx: RecvQueue<Queue>,
    exposed: Exposed,
    /// The halves that are not used.
    idle: (RecvQueue<Queue>, SendQueue<Queue>),
}

fn connect() -> Result<Connection, Box<dyn Error>> {
    let ctx = Device::open_default()?;
    let pd = ctx.alloc_pd()?;
    let (cq_a, cq_b) = (ctx.cq(64).build()?, ctx.cq(64).build()?);
    let a = pd.rc(&cq_a).send_depth(32).recv_depth(32).rd_atomic(4);
    let b = pd.rc(&cq_b).send_depth(32).recv_depth(32).rd_atomic(4);
    let (a, b) = (a.build()?, b.build()?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (tx, rx_a) = a.connect(&to_b)?;
    let (tx_b, rx) = b.connect(&to_a)?;
    let exposed = pd.expose(4096, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    Ok(Connection {
        pd,
        cq_a,
        cq_b,
        tx,
        rx,
        exposed,
        idle: (rx_a, tx_b),
    })
}

/// What `safe` does, with `post_raw`, and with as many buffers as `COUNT` on each side: with 1, from one buffer and into one over and
/// over, which no program does; with 16, as many as the safe loop has in use, each named anew in its request.
#[inline(never)]
fn raw<const MODE: u8, const COUNT: usize>(what: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let receives = MODE == SEND || MODE == WRITE_IMM;
    let mut all = connect()?;
    let remote = all.exposed.remote().slice(0..64)?;
    // On the way out by an error they are leaked: they would be dropped before the queue pair.
    let buffers = || -> Result<ManuallyDrop<Vec<Queue>>, Box<dyn Error>> {
        let buffers: Result<_, Box<dyn Error>> = (0..COUNT)
            .map(|_| Ok(all.pd.register(vec![0; 64])?))
            .collect();
        Ok(ManuallyDrop::new(buffers?))
    };
    let (from, into) = (buffers()?, buffers()?);
    let segment = |buffers: &[Queue], at: usize| {
        let buffer = &buffers[at % COUNT];
        sys::ibv_sge {
            addr: buffer.as_ptr() as u64,
            length: buffer.len() as u32,
            lkey: buffer.lkey().0,
        }
    };
    let receive = |rx: &mut RecvQueue<Queue>, at: u64| {
        let mut into_segment = segment(&into, at as usize);
        let mut wr = sys::ibv_recv_wr {
            wr_id: at,
            next: std::ptr::null_mut(),
            sg_list: &mut into_segment,
            num_sge: 1,
        };
        // SAFETY: a chain of one, into memory that nobody looks at and that lives until the queue pair is destroyed.
        unsafe { rx.post_raw(&mut wr) }
    };
    for i in 0..16 {
        receive(&mut all.rx, i)?;
    }
    let begin = Instant::now();
    for i in 0..count {
        let mut from_segment = segment(&from, i as usize);
        let mut wr = sys::ibv_send_wr {
            wr_id: i,
            sg_list: &mut from_segment,
            num_sge: 1,
            opcode: match MODE {
                SEND => sys::ibv_wr_opcode::IBV_WR_SEND,
                WRITE => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                READ => sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
                _ => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            },
            ..Default::default()
        };
        if i % 16 == 15 || !receives {
            wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if MODE == WRITE_IMM {
            wr.__bindgen_anon_1.imm_data = (i as u32).to_be();
        }
        if MODE != SEND {
            wr.wr.rdma.remote_addr = remote.addr;
            wr.wr.rdma.rkey = remote.rkey.0;
        }
        // SAFETY: a chain of one, with memory that nobody looks at and that lives until the queue pair is destroyed.
        unsafe { all.tx.post_raw(&mut wr)? };
        if let Some(completion) = all.cq_a.poll()? {
            completion.into_raw().map_err(|_| "not raw")?.result?;
        }
        if receives {
            let completion = all.cq_b.poll()?.ok_or("nothing arrived")?;
            let received = completion.into_raw().map_err(|_| "not raw")?;
            received.result?;
            receive(&mut all.rx, received.wr_id)?;
        }
    }
    report(what, begin, count);
    let (rx_a, tx_b) = all.idle;
    verbs::destroy(all.tx, rx_a)?;
    verbs::destroy(tx_b, all.rx)?;
    drop([from, into].map(ManuallyDrop::into_inner));
    Ok(())
}
