//! A test of a device's WRITEs, before anybody relies on them without completions.
//!
//! Where a ring is polled, nobody is told that a WRITE has arrived. What that asks of a device:
//!
//! * What was written is seen by a processor that looks, although nothing has completed at its end.
//! * One WRITE is there before the next one of the same queue pair.
//! * What has been seen is not written once more, when the place has been used for something else.
//!
//! Adapters do so as a rule, but no specification says that they must (the order of memory in which WRITEs are placed is "not
//! guaranteed" before a completion, by both the InfiniBand architecture and RFC 5040), and memory that is registered with relaxed ordering is written in any order. No memory of
//! this crate is: `verbs::Access` has no such right.
//!
//! So it is tried, with two queue pairs of this process, once for each device: a long WRITE and a short one behind it, many times, while the memory is
//! looked at. That is a sample, not a proof; it goes through one adapter and not through a network. A connection does not
//! rely on more than the first of the three to take what is right, see [`stamp`](crate::ring::stamp).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use verbs::{Access, Cq, Exposed, Mmap, Pd, Private, SendQueue};

/// Rounds of the test; and how many there are at least, where they take longer together than is [enough](ENOUGH).
const ROUNDS: usize = 120;
const ROUNDS_MIN: usize = 15;
const ENOUGH: Duration = Duration::from_millis(100);
/// Lengths of the long WRITEs, in bytes: within a packet, a whole one, several, and odd ones.
const LENGTHS: [usize; 5] = [64, 1000, 4096, 4520, 16_000];
/// How long to wait for a WRITE.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is not tried again, when it could not be.
const AGAIN: Duration = Duration::from_secs(30);
/// Where the short WRITE goes.
const MARK: usize = 64 << 10;

type Bytes = Private<Vec<u8>>;

/// Whether rings on a device can be polled; the reason if not.
type Outcome = Result<(), String>;

/// Whether rings on this device can be polled; the reason if not. Tries it at the first call for a device.
pub(crate) fn tried(pd: &Pd) -> Outcome {
    static TRIED: parking_lot::Mutex<Tried> = parking_lot::Mutex::new(Tried(Vec::new()));
    let name = pd.context().device_name();
    // Kept locked meanwhile: whoever else wants to know waits for the outcome.
    TRIED.lock().outcome(name, Instant::now(), || attempt(pd))
}

/// What is known of devices, by name.
struct Tried(Vec<(String, Known)>);

enum Known {
    /// For as long as the process lives.
    Outcome(Outcome),
    /// It could not be tried, at this time.
    Failed(String, Instant),
}

impl Tried {
    /// What is known of a device, or comes out of an attempt. One that has failed may succeed later, but not at each hello that somebody cares to say: an attempt
    /// takes a device's memory and queue pairs, and up to [seconds](PATIENCE) of whoever waits for it.
    fn outcome(
        &mut self,
        name: &str,
        now: Instant,
        attempt: impl FnOnce() -> Result<Outcome, String>,
    ) -> Outcome {
        let at = self.0.iter().position(|(known, _)| known == name);
        let known = match at.map(|at| self.0.swap_remove(at).1) {
            Some(Known::Failed(_, at)) if now.duration_since(at) >= AGAIN => None,
            known => known,
        };
        let known = known.unwrap_or_else(|| match attempt() {
            Ok(outcome) => Known::Outcome(outcome),
            Err(why) => Known::Failed(why, now),
        });
        let outcome = match &known {
            Known::Outcome(outcome) => outcome.clone(),
            Known::Failed(why, _) => Err(format!("they could not be tried: {why}")),
        };
        self.0.push((name.to_owned(), known));
        outcome
    }
}

/// The outcome, or why there is none.
fn attempt(pd: &Pd) -> Result<Outcome, String> {
    if pd.context().query_device().max_sge < 2 {
        let why = "it gathers messages from one segment only, and a frame is another";
        return Ok(Err(why.to_owned()));
    }
    let failed =
        |what: &'static str| move |error: &dyn std::fmt::Display| format!("{what}: {error}");
    let mut cq = pd
        .context()
        .cq(16)
        .build()
        .map_err(|e| failed("a completion queue")(&e))?;
    let make = |access| {
        pd.rc(&cq)
            .send_depth(4)
            .recv_depth(1)
            .access(access)
            .build()
    };
    let (from, to) = make(Access::empty())
        .and_then(|from| Ok((from, make(Access::REMOTE_WRITE)?)))
        .map_err(|e| failed("queue pairs")(&e))?;
    let (here, there) = (from.endpoint(), to.endpoint());
    let connected = |e: verbs::ConnectError| failed("connecting queue pairs")(&e);
    let (mut tx, rx) = from.connect::<Bytes, Bytes>(&there).map_err(connected)?;
    let (tx2, rx2) = to.connect::<Bytes, Bytes>(&here).map_err(connected)?;
    let memory = pd
        .expose(MARK + 64, Access::REMOTE_WRITE)
        .map_err(|e| failed("memory to write to")(&e))?;
    let outcome = rounds(pd, &mut cq, &mut tx, &memory);
    // Whatever became of it: nothing writes any more when the memory goes.
    drop((verbs::destroy(tx, rx), verbs::destroy(tx2, rx2)));
    outcome
}

fn rounds(
    pd: &Pd,
    cq: &mut Cq,
    tx: &mut SendQueue<Bytes>,
    memory: &Exposed<Mmap>,
) -> Result<Outcome, String> {
    let register = |len: usize| pd.register(vec![0; len]).map_err(|e| e.to_string());
    let mut longs = Vec::new();
    for len in LENGTHS {
        longs.push(register(len)?);
    }
    let mut mark = register(8)?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        if round >= ROUNDS_MIN && start.elapsed() > ENOUGH {
            break;
        }
        let end = Instant::now() + PATIENCE;
        let number = round as u64 + 1;
        let which = round % LENGTHS.len();
        let (len, byte) = (LENGTHS[which], round as u8 | 1);
        let mut long = longs.swap_remove(which);
        long.fill(byte);
        mark.copy_from_slice(&number.to_ne_bytes());
        let place = |at: usize, len: usize| {
            let range = at as u64..(at + len) as u64;
            memory.remote().slice(range).map_err(|e| e.to_string())
        };
        let (first, second) = (place(0, len)?, place(MARK, 8)?);
        let mut batch = tx.batch();
        let added = batch.write(long, first).add();
        added.map_err(|e| e.to_string())?;
        let added = batch.write(mark, second).signaled().add();
        added.map_err(|e| e.to_string())?;
        batch.post().map_err(|e| e.to_string())?;

        // As with a ring: nothing but looking.
        let seen = memory.atomic_u64(MARK).map_err(|e| e.to_string())?;
        while seen.load(Ordering::Acquire) != number {
            if Instant::now() > end {
                let Some(completion) = cq.poll().map_err(|e| e.to_string())? else {
                    return Err(format!("WRITE {number} does not complete"));
                };
                let mut done = tx.retire(completion).map_err(|_| "a stray completion")?;
                while let Some((_, result)) = tx.take(&mut done) {
                    result.map_err(|e| format!("a WRITE failed: {e}"))?;
                }
                // An outcome: who asks next need not wait as long.
                let why = format!("WRITE {number} is not seen by who looks for it");
                return Ok(Err(why));
            }
            std::thread::yield_now();
        }
        let mut bytes = vec![0; len];
        let right = |bytes: &[u8], byte: u8| bytes.iter().all(|&b| b == byte);
        memory.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
        if !right(&bytes, byte) {
            return Ok(Err(format!(
                "a WRITE of 8 bytes was there before all of the {len} bytes that were written before it"
            )));
        }
        bytes.fill(0);
        memory.write_at(0, &bytes).map_err(|e| e.to_string())?;

        let mut back = Vec::new();
        while back.len() < 2 {
            if Instant::now() > end {
                return Err("WRITEs do not complete".to_owned());
            }
            let Some(completion) = cq.poll().map_err(|e| e.to_string())? else {
                std::thread::yield_now();
                continue;
            };
            let mut done = tx.retire(completion).map_err(|_| "a stray completion")?;
            while let Some((bytes, result)) = tx.take(&mut done) {
                result.map_err(|e| format!("a WRITE failed: {e}"))?;
                back.push(bytes);
            }
        }
        memory.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
        if !right(&bytes, 0) {
            let why = "what had been written, and seen, was written once more";
            return Ok(Err(why.to_owned()));
        }
        mark = back.pop().ok_or("a buffer is lost")?;
        longs.push(back.pop().ok_or("a buffer is lost")?);
        // Back to its place.
        let last = longs.len() - 1;
        longs.swap(which, last);
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_device_passes() {
        let context = verbs::Device::open_default().unwrap();
        let pd = context.alloc_pd().unwrap();
        let start = Instant::now();
        assert_eq!(attempt(&pd), Ok(Ok(())));
        println!("{:?}", start.elapsed());
        assert_eq!(tried(&pd), Ok(()));
    }
    #[test]
    fn outcomes_are_kept_and_what_failed_is_tried_again_after_a_while() {
        let mut tried = Tried(Vec::new());
        let mut attempts = 0;
        let mut ask = |name: &str, now, found: Result<Outcome, String>| {
            let outcome = tried.outcome(name, now, || {
                attempts += 1;
                found
            });
            (outcome, attempts)
        };
        let start = Instant::now();
        let failed = || Err("no memory".to_owned());
        let told = || Err("they could not be tried: no memory".to_owned());
        assert_eq!(ask("a", start, failed()), (told(), 1));
        // Not at each hello; of another device it says nothing.
        let soon = start + AGAIN - Duration::from_millis(1);
        assert_eq!(ask("a", soon, Ok(Ok(()))), (told(), 1));
        assert_eq!(ask("b", soon, Ok(Ok(()))), (Ok(()), 2));
        // It fails once more, and the time begins again.
        let later = start + AGAIN;
        assert_eq!(ask("a", later, failed()), (told(), 3));
        assert_eq!(ask("a", later + AGAIN / 2, Ok(Ok(()))), (told(), 3));
        let not = || Err("in another order".to_owned());
        assert_eq!(ask("a", later + AGAIN, Ok(not())), (not(), 4));
        // That holds.
        assert_eq!(ask("a", later + 10 * AGAIN, Ok(Ok(()))), (not(), 4));
        assert_eq!(ask("b", later + 10 * AGAIN, failed()), (Ok(()), 4));
    }
}
