//! `verbatim demo`.

use crate::run::{Folder, failure, stdout, verbatim};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

/// Runs the demonstration on a folder with everything a tree can hold; its scratch folder lies in `temporary`.
fn demo(tree: &Folder, temporary: &Folder) -> Command {
    let mut command = verbatim(["demo".as_ref(), "--dir".as_ref(), tree.at("").as_os_str()]);
    command.env("TMPDIR", temporary.at(""));
    command
}

fn tree() -> Folder {
    let tree = Folder::new();
    tree.write("empty", b"");
    tree.write("a/b/c/d/small.txt", b"hello");
    tree.write("a/exactly_a_page", vec![1; 4096]);
    tree.write("a/piece", vec![2; 4 << 20]);
    tree.write(
        "a/more_than_two_pieces",
        (0..9u32 << 20).map(|i| (i >> 3) as u8).collect::<Vec<_>>(),
    );
    tree.write("näme with spaces\nand a line break", b"x");
    for i in 0..100 {
        tree.write(&format!("many/{i}"), vec![i as u8; i * 100]);
    }
    symlink("/etc/passwd", tree.at("link")).unwrap();
    symlink("/etc", tree.at("a/link")).unwrap();
    tree.write(
        "cache/CACHEDIR.TAG",
        b"Signature: 8a477f597d28d172789f06886806bc55",
    );
    tree.write("cache/big", b"not sent");
    tree
}

const FILES: u64 = 106;
const BYTES: u64 = 5 + 4096 + (4 << 20) + (9 << 20) + 1 + 100 * (99 * 100 / 2);

fn verified(report: &str) -> Value {
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["verified"], true, "{report}");
    assert_eq!(report["files"], FILES, "{report}");
    assert_eq!(report["bytes"], BYTES, "{report}");
    assert_eq!(report["device"], "soft0", "{report}");
    for transport in ["echo", "unix_socket"] {
        let sizes: Vec<_> = report[transport]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["size"])
            .collect();
        assert_eq!(sizes, [64, 4096]);
        for row in report[transport].as_array().unwrap() {
            assert!(row["p50_ns"].as_u64().unwrap() > 0, "{row}");
            assert!(row["p99_ns"].as_u64() >= row["p50_ns"].as_u64(), "{row}");
        }
    }
    report
}

#[test]
fn every_file_arrives_and_the_scratch_folder_is_gone() {
    let (tree, temporary) = (tree(), Folder::new());
    let file = temporary.at("report.json");
    let output = demo(&tree, &temporary)
        .arg("--json")
        .arg(&file)
        .output()
        .unwrap();
    let table = stdout(output);
    let report = verified(&std::fs::read_to_string(&file).unwrap());
    assert!(
        table.contains("soft0") && table.contains("all equal"),
        "{table}"
    );
    assert!(table.contains("unix socket"), "{table}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("symbolic links left out: 2"), "{notes}");
    assert!(notes.contains("cache/"), "{notes}");
    assert_eq!(temporary.names(), ["report.json"]);
}

#[test]
fn every_file_arrives_over_the_asynchronous_device() {
    let (tree, temporary) = (tree(), Folder::new());
    let output = demo(&tree, &temporary)
        .args(["--json", "-"])
        .env("VERBATIM_ASYNC", "3")
        .output()
        .unwrap();
    verified(&stdout(output));
    assert_eq!(temporary.names(), [""; 0]);
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_started() {
    let temporary = Folder::new();
    let run = |arguments: &[&str]| {
        let output = verbatim(arguments)
            .env("TMPDIR", temporary.at(""))
            .output()
            .unwrap();
        failure(output, 1)
    };
    let text = run(&["demo", "--dir", "/no/such/directory"]);
    assert!(text.contains("/no/such/directory"), "{text}");
    let text = run(&["demo", "--dir", "/etc/passwd"]);
    assert!(text.contains("not a directory"), "{text}");
    let text = run(&["demo", "--json", "/no/such/directory/report.json"]);
    assert!(text.contains("--json"), "{text}");
    let text = run(&["demo", "--device", "mlx5_77"]);
    assert!(text.contains("mlx5_77") && text.contains("soft0"), "{text}");
    assert_eq!(temporary.names(), [""; 0]);

    let empty = Folder::new();
    let text = failure(demo(&empty, &temporary).output().unwrap(), 1);
    assert!(text.contains("no file"), "{text}");
}

/// Waits until the demonstration has a child whose command line contains `word`, and gives its process id.
fn child_of(parent: u32, word: &str) -> i32 {
    for _ in 0..24_000 {
        let listing =
            std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        for pid in listing.split_whitespace() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(word) {
                return pid.parse().unwrap();
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the demonstration starts no process {word}");
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: the process is one of the demonstration's that this test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Enough that it is still at work when it is disturbed.
fn disturbed(disturb: impl FnOnce(u32)) -> (Output, Folder) {
    let (tree, temporary) = (Folder::new(), Folder::new());
    for i in 0..64 {
        tree.write(&format!("{i}"), vec![i; 4 << 20]);
    }
    let child = demo(&tree, &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    disturb(child.id());
    (child.wait_with_output().unwrap(), temporary)
}

#[test]
fn the_death_of_the_server_is_an_error_and_not_a_hang() {
    let (output, temporary) = disturbed(|id| {
        child_of(id, "demo-client");
        signal(child_of(id, "demo-server"), libc::SIGKILL);
    });
    let text = failure(output, 1);
    assert!(text.contains("server"), "{text}");
    assert_eq!(temporary.names(), [""; 0]);
}

#[test]
fn the_death_of_the_client_is_an_error_and_not_a_hang() {
    let (output, temporary) = disturbed(|id| signal(child_of(id, "demo-client"), libc::SIGKILL));
    let text = failure(output, 1);
    assert!(text.contains("client"), "{text}");
    assert_eq!(temporary.names(), [""; 0]);
}

#[test]
fn an_interruption_ends_both_processes_and_removes_the_scratch_folder() {
    let (output, temporary) = disturbed(|id| {
        child_of(id, "demo-client");
        signal(id as i32, libc::SIGINT);
    });
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(temporary.names(), [""; 0]);
}
