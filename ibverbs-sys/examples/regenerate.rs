//! Regenerates the checked-in bindings of all architectures from the installed headers.
//!
//! `cargo run -p verbatim-ibverbs-sys --features regenerate --example regenerate -- --check` fails when the files differ from
//! what the headers give; `--write` updates them.

use std::process::ExitCode;

extern crate bindgen_library as bindgen;

include!("../bindgen_options.rs");

const USAGE: &str = "usage: regenerate --check | --write";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let write = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--check"] => false,
        ["--write"] => true,
        _ => return Err(USAGE.into()),
    };
    match installed_version() {
        Some(v) if v == CHECKED_IN_VERSION => {}
        Some(v) => {
            return Err(format!(
                "The installed headers are of rdma-core {v}; the bindings come from {CHECKED_IN_VERSION} (Debian 12). \
                 To move to {v}, change CHECKED_IN_VERSION in bindgen_options.rs, and review what --write changes."
            ));
        }
        None => {
            return Err("No libibverbs.pc found: install the headers (Debian: apt install libibverbs-dev librdmacm-dev).".into());
        }
    }
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut stale = Vec::new();
    for arch in &ARCHES {
        let fresh = generate(dir, Some(arch), CHECKED_IN_VERSION)?;
        let file = dir.join("src/bindings").join(format!("{}.rs", arch.name));
        let old = std::fs::read_to_string(&file).unwrap_or_default();
        if old == fresh {
            println!("src/bindings/{}.rs is up to date", arch.name);
        } else if write {
            std::fs::write(&file, &fresh)
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
            println!("src/bindings/{}.rs written", arch.name);
        } else {
            stale.push(first_difference(arch.name, &old, &fresh));
        }
    }
    if stale.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{}\nRun this with --write and review the change.",
            stale.join("\n")
        ))
    }
}

/// Where two versions of a file part.
fn first_difference(arch: &str, old: &str, fresh: &str) -> String {
    let mut old_lines = old.lines();
    let mut fresh_lines = fresh.lines();
    let mut number = 1;
    loop {
        match (old_lines.next(), fresh_lines.next()) {
            (Some(a), Some(b)) if a == b => number += 1,
            (a, b) => {
                let show = |line: Option<&str>| line.unwrap_or("(end of file)").to_owned();
                return format!(
                    "src/bindings/{arch}.rs differs from the headers, first in line {number}:\n  checked in: {}\n  generated:  {}",
                    show(a),
                    show(b)
                );
            }
        }
    }
}
