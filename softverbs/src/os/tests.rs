//! Tests that need two real processes. The other process is this test program again, told by an environment
//! variable which part to play; they talk in lines over its standard input and output.

mod access;
mod fences;
mod sealed;
mod slots;

use super::incarnation::Incarnation;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const PART: &str = "VERBATIM_TEST_PART";
/// Marks our lines among those of the test harness.
const MARK: &str = "@ ";

/// Not a test of its own: what the other process runs.
#[test]
#[ignore = "the other process of the tests in this module"]
fn other_process() {
    let part = std::env::var(PART).expect("started by another test");
    let arguments: Vec<&str> = part.split('\n').collect();
    match arguments[0] {
        "seals" => sealed::try_everything(&arguments[1..]),
        "share" => sealed::share(&arguments[1..]),
        "fork" => sealed::fork_with_memory(),
        "hold" => slots::hold(&arguments[1..]),
        "hold and fork" => slots::hold_and_fork(&arguments[1..]),
        "fork and drop" => slots::fork_and_drop(&arguments[1..]),
        "light side of a fence" => fences::light(&arguments[1..]),
        "churn" => slots::churn(&arguments[1..]),
        "sleep unprivileged" => access::sleep_unprivileged(&arguments[1..]),
        "probe unprivileged" => access::probe_unprivileged(&arguments[1..]),
        part => panic!("no part {part}"),
    }
}

/// A line from the other process to the test.
fn tell(line: impl std::fmt::Display) {
    // The harness may have left its own line unfinished.
    println!("\n{MARK}{line}");
    std::io::stdout().flush().unwrap();
}

/// A line from the test to the other process; empty when the test has ended or let go.
fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// The other process; killed on drop.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(part: &[&str]) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "os::tests::other_process"])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env(PART, part.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Other {
            child,
            input,
            output,
        }
    }

    fn who(&self) -> Incarnation {
        Incarnation::of(self.child.id()).unwrap()
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let got = self.output.read_line(&mut line).unwrap();
            assert_ne!(got, 0, "the other process ended without a word");
            if let Some(words) = line.strip_prefix(MARK) {
                return words.trim_end().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    /// Closes its input and waits for it to end well.
    fn finish(mut self) {
        self.input = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the other process: {status}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for one test; removed on drop.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbatim-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
