//! The table of counts, a part for each kind of device.

use crate::tally::Counts;
use rpc::{ReplyPath, RequestPath};
use std::fmt::Write;

/// Names the file to write the table to.
const WRITE: &str = "VERBATIM_COUNTS_TABLE";

/// What calls of one kind asked of the devices, altogether.
#[derive(Debug)]
pub struct Row {
    pub paths: (RequestPath, ReplyPath),
    pub size: usize,
    pub calls: u32,
    /// Of the client and of the server.
    pub ends: [Counts; 2],
}

const HEAD: &str = "\
# What calls ask of the devices

Counts for one call, client and server, by every combination of paths: request and reply have the same length, and calls are made one after the other. Written by
`tests/tests/counts`, which fails where a count is not what it has to be. Counts are averages: control messages and signals come once in so many calls,
and of a reply that is fetched too early the READ is repeated, which is a matter of time.

* *requests*: work requests posted, by kind. `IMM` is a WRITE with immediate data. Each has a doorbell of its own here (a batch of calls has one). With rings that are polled, some
  are of ends that go to sleep (a WRITE and a READ) or are woken (a SEND), which depends on how busy the machine is.
* *receives*: receive entries posted, and doorbells for them.
* *completions*: of work requests, and of receives.
";

/// Prints the part of this device; writes it into the file, if that is wanted.
pub fn tell(device: &str, rows: &[Row]) {
    let kind = match device.starts_with("soft") {
        true => "soft0",
        false => "rxe",
    };
    let part = part(kind, rows);
    println!("{part}");
    // What starts the guest hands on what is not set as an empty one.
    let Some(path) = std::env::var(WRITE).ok().filter(|path| !path.is_empty()) else {
        return;
    };
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    // In the guest, the file is a new one: the other part is in the repository's.
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/counts.md");
    let before = match before.is_empty() {
        true => std::fs::read_to_string(repository).unwrap_or_default(),
        false => before,
    };
    let mut out = HEAD.to_owned();
    for known in ["soft0", "rxe"] {
        out.push('\n');
        match known == kind {
            true => out.push_str(&part),
            false => out.push_str(section(&before, known)),
        }
    }
    std::fs::write(&path, out.trim_end().to_owned() + "\n").unwrap();
}

/// The part of a device in a table that was written before.
fn section<'a>(text: &'a str, kind: &str) -> &'a str {
    let Some(start) = text.find(&format!("## {kind}\n")) else {
        return "";
    };
    let end = text[start + 3..]
        .find("\n## ")
        .map_or(text.len(), |at| start + 3 + at);
    &text[start..end]
}

fn part(kind: &str, rows: &[Row]) -> String {
    let mut out = format!(
        "## {kind}\n\n| request, reply | bytes | client: requests | receives | completions | server: requests | receives | completions |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let (request, reply) = row.paths;
        let _ = write!(out, "| {request:?}, {reply:?} | {} |", row.size);
        for end in &row.ends {
            let each = |n: u64| number(n, row.calls);
            let kinds = [
                (end.sends, "SEND"),
                (end.writes_with_imm, "IMM"),
                (end.writes, "WRITE"),
                (end.reads, "READ"),
            ];
            let kinds = kinds.iter().filter(|(n, _)| *n > 0);
            let kinds: Vec<_> = kinds
                .map(|(n, kind)| format!("{} {kind}", each(*n)))
                .collect();
            let kinds = match kinds.is_empty() {
                true => "0".to_owned(),
                false => kinds.join(", "),
            };
            let (receives, doorbells) = (each(end.receives), each(end.receive_doorbells));
            let (sent, received) = (each(end.sent), each(end.received));
            let _ = write!(
                out,
                " {kinds} | {receives} by {doorbells} | {sent} + {received} |"
            );
        }
        out.push('\n');
    }
    out
}

/// For one call, with two digits where they say something.
fn number(count: u64, calls: u32) -> String {
    let each = count as f64 / f64::from(calls);
    let text = format!("{each:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
