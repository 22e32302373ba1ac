//! What a verbs device does, case by case, on whatever device `VERBATIM_DEVICE` names, `soft0` without it; the second end on the device
//! that `VERBATIM_PEER_DEVICE` names, by default the same.
//!
//! Each case does what a C program would, through the table of C functions, and says in a few words what it has seen. That must be what the
//! case expects, which is what the specification says, or what it is known that this device does instead, and why. After all cases,
//! what was seen must also be what `docs/conformance.md` says.
//!
//! ```text
//! cargo test -p verbatim-tests --test conformance                   all cases
//! cargo test -p verbatim-tests --test conformance -- atomics        those whose topic or name contains a word
//! VERBATIM_CONFORMANCE_TABLE=FILE cargo test -p verbatim-tests --test conformance
//!                                                                   writes the table with this device's column, and compares with nothing
//! ```
//!
//! There are no clocks here: a case waits for what must come, and what must not come would have come before something else. Time limits are there
//! for hangs. Threads, children and a second process are there only in the cases that are about them.

mod builder;
mod case;
mod channel;
mod device;
mod memory;
mod names;
mod peer;
mod queue;
mod request;
mod sundry;
mod table;
mod threads;
mod topics;

use case::Case;
use device::{Bed, HANG};
use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// When a case hangs: not before what it waits for with a limit of its own has told so, which says more.
const CASE: Duration = HANG.saturating_mul(3);

fn main() -> ExitCode {
    if peer::serve() {
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = words(std::env::args().skip(1));
    let kind = device::kind();
    if std::env::args().any(|argument| argument == "--list") {
        // For those who ask what there is; options of other test programs mean nothing here.
        for topic in topics::ALL {
            for case in topic.cases {
                println!("{}: {}: test", topic.name, case.name);
            }
        }
        return ExitCode::SUCCESS;
    }
    let start = Instant::now();
    let (mut seen, mut failed, mut passed) = (Vec::new(), 0, 0);
    println!("\nrunning the cases of conformance on {}", device::device());
    for topic in topics::ALL {
        for case in topic.cases {
            let name = format!("{}: {}", topic.name, case.name);
            if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
                continue;
            }
            print!("test {name} ... ");
            // So that a case that hangs is known.
            let _ = std::io::stdout().flush();
            let observation = observe(case);
            let wanted = case.wanted(kind);
            if observation == wanted {
                println!("ok");
                passed += 1;
            } else {
                println!(
                    "FAILED\n    seen:   {observation}\n    wanted: {wanted}\n    source: {}",
                    case.source
                );
                failed += 1;
            }
            seen.push(table::Seen {
                topic: topic.name,
                case: case.name,
                observation,
            });
        }
    }
    if let (true, Some(kind)) = (words.is_empty(), kind) {
        print!("test the table says so ... ");
        match table::settle(kind, &seen) {
            Ok(()) => {
                println!("ok");
                passed += 1;
            }
            Err(why) => {
                println!("FAILED\n{why}");
                failed += 1;
            }
        }
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; finished in {:.2} s\n",
        start.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(failed != 0))
}

/// The words that cases are chosen by. Options are those of other test programs, whose values are skipped.
fn words(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut arguments = arguments;
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" | "--test-threads" | "--format" | "--color" | "--logfile" => {
                arguments.next();
            }
            option if option.starts_with('-') => {}
            _ => words.push(argument),
        }
    }
    words
}

/// Runs a case on devices opened for it. A case that panics has seen that, and one that hangs, too: it is left behind, with what it uses.
fn observe(case: &'static Case) -> String {
    let (give, result) = channel();
    std::thread::spawn(move || {
        let seen = catch_unwind(AssertUnwindSafe(|| (case.run)(&Bed::open())));
        let seen = seen.unwrap_or_else(|panic| format!("panicked: {}", message(&*panic)));
        // Nobody takes it who has given up.
        let _ = give.send(seen);
    });
    let seen = result.recv_timeout(CASE);
    seen.unwrap_or_else(|_| "hangs".to_owned())
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
