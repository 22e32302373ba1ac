//! The table in `docs/conformance.md`: read, brought up to date, compared.
//!
//! A run replaces the column of its own device, and takes the others from the table as it is. So the columns can be filled one after the other, on
//! different machines.

use crate::device::Kind;
use crate::topics;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Names the file to write the table to, instead of comparing.
const WRITE: &str = "VERBATIM_CONFORMANCE_TABLE";
/// What stands for a device that no run has been made on.
const NOT_RUN: &str = "not run";

/// What a case has seen.
pub struct Seen {
    pub topic: &'static str,
    pub case: &'static str,
    pub observation: String,
}

/// Compares what was seen with the table, or writes it.
pub fn settle(kind: Kind, seen: &[Seen]) -> Result<(), String> {
    let kept = committed();
    let old = std::fs::read_to_string(&kept).unwrap_or_default();
    let new = render(&old, kind, seen);
    if let Some(file) = std::env::var_os(WRITE).filter(|file| !file.is_empty()) {
        return std::fs::write(&file, new)
            .map_err(|error| format!("    {} cannot be written: {error}", file.display()));
    }
    if old == new {
        return Ok(());
    }
    let mut why = String::new();
    for line in new
        .lines()
        .filter(|line| !old.lines().any(|old| old == *line))
    {
        writeln!(why, "    not there: {line}").expect("a string takes text");
    }
    for line in old
        .lines()
        .filter(|line| !new.lines().any(|new| new == *line))
    {
        writeln!(why, "    there:     {line}").expect("a string takes text");
    }
    write!(
        why,
        "    docs/conformance.md is another table; run this again with {WRITE}=docs/conformance.md (an absolute path)"
    )
    .expect("a string takes text");
    Err(why)
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md")
}

/// The cells of a table, by topic, case and device.
type Cells = HashMap<(String, String, &'static str), String>;

fn parse(table: &str) -> Cells {
    let mut cells = Cells::new();
    let mut topic = String::new();
    for line in table.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            topic = name.to_owned();
        }
        let fields: Vec<_> = line.split('|').map(str::trim).collect();
        // Empty, case, source, one for each device, empty.
        if fields.len() != 4 + Kind::ALL.len() {
            continue;
        }
        for (kind, cell) in Kind::ALL.into_iter().zip(&fields[3..]) {
            let cell = cell.trim_start_matches("**");
            let text = cell.split("**").next().unwrap_or_default();
            cells.insert(
                (topic.clone(), fields[1].to_owned(), kind.name()),
                text.to_owned(),
            );
        }
    }
    cells
}

const HEAD: &str = "\
# What devices do

Each line is a case of `tests/tests/conformance`: what is tried, where it is specified, and what a C program sees on each device. The table
is written by the run itself, see there; a run that sees something else fails.

* `soft0`: the device in user space that is part of this project.
* `rxe`: Soft-RoCE of Linux 6.1, two devices at the ends of one cable, in the guest of `tests/kernel`.
* `siw`: soft-iWARP of Linux 6.1. Its queue pairs connect through rdma_cm only, so its column waits for the connection manager.

*Here* is the end that sends or initiates, *there* its peer. IBTA is the InfiniBand Architecture Specification, volume 1:
its chapter 9 is the transport layer, 10 the software transport interface, 11 its verbs; sections and requirements are named where the sources of Linux
name them, too. What is **bold** is not what a program should rely on, and explained below its table.
";

fn render(old: &str, kind: Kind, seen: &[Seen]) -> String {
    let mut cells = parse(old);
    for seen in seen {
        cells.insert(
            (seen.topic.to_owned(), seen.case.to_owned(), kind.name()),
            seen.observation.clone(),
        );
    }
    let mut out = HEAD.to_owned();
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    for topic in topics::ALL {
        line(&format!("\n## {}\n", topic.name));
        let devices = Kind::ALL.map(Kind::name).join(" | ");
        line(&format!("| case | source | {devices} |"));
        line(&format!("|---|---|{}", "---|".repeat(Kind::ALL.len())));
        // What they are about, by device and reason.
        let mut notes: Vec<((Kind, &str), Vec<&str>)> = Vec::new();
        for case in topic.cases {
            let mut row = format!("| {} | {} |", case.name, case.source);
            for kind in Kind::ALL {
                let key = (topic.name.to_owned(), case.name.to_owned(), kind.name());
                let cell = cells.get(&key).map_or(NOT_RUN, String::as_str);
                if cell == case.expect || cell == NOT_RUN {
                    row += &format!(" {cell} |");
                    continue;
                }
                row += &format!(" **{cell}** |");
                if let Some(known) = case.known(kind) {
                    match notes.iter_mut().find(|note| note.0 == (kind, known.why)) {
                        Some(note) => note.1.push(case.name),
                        None => notes.push(((kind, known.why), vec![case.name])),
                    }
                }
            }
            line(&row);
        }
        if !notes.is_empty() {
            line("");
            for ((kind, why), cases) in notes {
                line(&format!("* `{}`, {}: {why}", kind.name(), cases.join("; ")));
            }
        }
    }
    out
}
