//! `verbatim bench`: that it measures, ends and says what it found. What the figures are is not looked at: other work may run.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command
        .args(["bench", "--quick"])
        .args(arguments)
        .env("VERBATIM_DEVICE", "soft0");
    command
}

/// Rounds that are long enough to be measured, and no longer.
fn bench(arguments: &[&str]) -> Output {
    command(&[&["--rounds", "2", "--round-us", "500"], arguments].concat())
        .output()
        .expect("the command can be started")
}

/// The document on standard output, of a run that succeeded.
fn document(arguments: &[&str]) -> Value {
    let output = bench(&[arguments, &["--json", "-"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

/// Checks the records, each against the name of the case and that of its baseline; one case can have two, one for each mode.
fn check(document: &Value, expected: &[(&str, Option<&str>)]) {
    let records = document["records"].as_array().unwrap();
    for (name, baseline) in expected {
        let found: Vec<_> = records.iter().filter(|r| r["name"] == *name).collect();
        assert!(matches!(found.len(), 1 | 2), "{name}: {document}");
        for record in found {
            let number = |field: &str| record[field].as_f64().unwrap_or(0.0);
            assert!(number("p50_ns") > 0.0 && number("rate") > 0.0, "{record}");
            assert!(number("p99_ns") > 0.0 && number("rounds") > 0.0, "{record}");
            assert_eq!(record["baseline"].as_str(), *baseline, "{record}");
            let mode = record["mode"].as_str().unwrap();
            assert!(["near", "far", "mixed"].contains(&mode), "{record}");
            let compared = baseline.is_some() && mode != "mixed";
            assert_eq!(record["ratio"].is_null(), !compared, "{record}");
            assert!(!compared || number("ratio") > 0.0, "{record}");
        }
    }
    let known = |r: &Value| expected.iter().any(|(name, _)| r["name"] == *name);
    assert!(records.iter().all(known), "{document}");
}

const FLOOR: &str = "shm/64B/pingpong";

#[test]
fn the_floor_is_measured_without_a_device() {
    let document = document(&["--filter", "shm"]);
    check(&document, &[(FLOOR, None)]);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["records"][0]["device"], "host");
}

#[test]
fn messages_of_each_verb_are_compared_with_the_floor() {
    let floor = Some(FLOOR);
    let document = document(&["--filter", "verbs/send/"]);
    let sizes = ["64B", "1KiB", "4KiB", "64KiB", "1MiB", "64MiB"];
    let names =
        sizes.map(|size| ["pingpong", "pipelined"].map(|flow| format!("verbs/send/{size}/{flow}")));
    let expected: Vec<_> = names
        .iter()
        .flatten()
        .map(|name| (&**name, floor))
        .collect();
    check(&document, &expected);
    assert_eq!(document["device"], "soft0");
    assert_eq!(document["records"][0]["device"], "soft0");
    check(
        &self::document(&["--filter", "verbs/write_imm/4KiB/"]),
        &[
            ("verbs/write_imm/4KiB/pingpong", floor),
            ("verbs/write_imm/4KiB/pipelined", floor),
        ],
    );
    check(
        &self::document(&["--filter", "verbs/read"]),
        &[("verbs/read/64B", floor)],
    );
}

#[test]
fn calls_are_compared_with_messages_of_the_same_verb_and_length() {
    let document = document(&["--filter", "rpc/write_imm/"]);
    let sizes = ["0B", "64B", "1KiB", "4KiB", "64KiB", "1MiB", "64MiB"];
    let mut expected = Vec::new();
    for size in sizes {
        // A header takes a cache line too.
        let message = if size == "0B" { "64B" } else { size };
        for (flow, messages) in [("serial", "pingpong"), ("pipelined", "pipelined")] {
            expected.push((
                format!("rpc/write_imm/{size}/{flow}"),
                Some(format!("verbs/write_imm/{message}/{messages}")),
            ));
        }
    }
    let of = |name: &str, baseline: Option<&str>| {
        let full = |end: &str| format!("rpc/write_imm/{end}");
        (full(name), baseline.map(full))
    };
    expected.push(of("64B/8_clients", Some("64B/1_clients")));
    expected.push(of("64B/1_clients", None));
    expected.push(of("4x16KiB/serial", Some("64KiB/serial")));
    let (idle, _) = of("64B/after_idle", None);
    expected.push((idle, Some("wake/futex".to_owned())));
    expected.push(of("64B/beside_1MiB_requests", Some("64B/serial")));
    expected.push(of("64B/beside_1MiB_replies", Some("64B/serial")));
    expected.push(of("64B/16_by_batch", Some("64B/16_by_submit")));
    expected.push(of("64B/16_by_submit", Some("64B/serial")));
    for size in &sizes[..4] {
        expected.push(of(&format!("{size}/burst"), None));
    }
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, baseline)| (&**name, baseline.as_deref()))
        .collect();
    check(&document, &expected);
    for record in document["records"].as_array().unwrap() {
        let name = record["name"].as_str().unwrap();
        let small = sizes[..4]
            .iter()
            .any(|size| name.contains(&format!("/{size}/")));
        let several = ["beside", "after_idle", "16_by", "clients"];
        let busy = small && !several.iter().any(|part| name.contains(part));
        assert_eq!(record["slowest"].is_null(), !name.ends_with("clients"));
        assert_eq!(record["bound_ns"].is_null(), !name.contains("beside"));
        assert_eq!(record["server_busy_ns"].is_null(), !busy, "{record}");
    }
}

#[test]
fn calls_of_mixed_paths_are_compared_with_messages_of_their_requests_and_bursts_with_pushed_ones() {
    let paths = [
        ("write_imm", "write_imm"),
        ("send", "send"),
        ("write_imm+fetch", "write_imm"),
        ("send+fetch", "send"),
        ("write_imm+hybrid", "write_imm"),
        ("send+hybrid", "send"),
        ("write_imm+send", "write_imm"),
        ("send+write_imm", "send"),
        // Of bare messages there are none that are polled.
        ("write_poll", "write_imm"),
        ("write_poll+fetch", "write_imm"),
        ("write_poll+hybrid", "write_imm"),
        ("write_poll+send", "write_imm"),
        ("write_poll+write_imm", "write_imm"),
        ("write_imm+write_poll", "write_imm"),
        ("send+write_poll", "send"),
    ];
    let serial = paths.map(|(path, verb)| {
        let name = format!("rpc/{path}/1KiB/serial");
        (name, format!("verbs/{verb}/1KiB/pingpong"))
    });
    let expected: Vec<_> = serial
        .iter()
        .map(|(name, baseline)| (&**name, Some(&**baseline)))
        .collect();
    check(&document(&["--filter", "/1KiB/serial"]), &expected);
    let pushed = "rpc/write_imm/64B/burst";
    let bursts = paths.map(|(path, _)| format!("rpc/{path}/64B/burst"));
    let expected: Vec<_> = bursts
        .iter()
        .map(|name| (&**name, (name != pushed).then_some(pushed)))
        .collect();
    check(&document(&["--filter", "/64B/burst"]), &expected);
}

#[test]
fn sockets_are_measured_spinning_and_blocking() {
    let floor = Some(FLOOR);
    check(
        &document(&["--filter", "unix"]),
        &[
            ("unix/64B/pingpong", floor),
            ("unix-blocking/64B/pingpong", floor),
        ],
    );
}

#[test]
fn the_pool_and_malloc_are_compared_with_each_other_and_the_rest_with_the_pool() {
    let mut expected = vec![
        ("pool/cross/64B", Some("malloc/cross/64B")),
        ("malloc/cross/64B", Some("pool/cross/64B")),
        ("pool/cross/4KiB", Some("malloc/cross/4KiB")),
        ("malloc/cross/4KiB", Some("pool/cross/4KiB")),
    ];
    if cfg!(feature = "allocators") {
        expected.extend([
            ("mimalloc/cross/64B", Some("pool/cross/64B")),
            ("jemalloc/cross/64B", Some("pool/cross/64B")),
            ("mimalloc/cross/4KiB", Some("pool/cross/4KiB")),
            ("jemalloc/cross/4KiB", Some("pool/cross/4KiB")),
        ]);
    }
    let document = document(&["--filter", "/cross/"]);
    check(&document, &expected);
    assert_eq!(document["records"][0]["device"], "soft0");
    check(
        &self::document(&["--filter", "pool/hot/1MiB"]),
        &[("pool/hot/1MiB", Some("malloc/hot/1MiB"))],
    );
    check(
        &self::document(&["--filter", "register/4KiB"]),
        &[("register/4KiB", Some("pool/hot/4KiB"))],
    );
}

#[test]
fn deaths_are_measured_and_compared_with_nothing() {
    let document = document(&["--filter", "death/"]);
    let names = ["death/verbs/retry_exc", "death/rpc/pending_calls"];
    check(&document, &names.map(|name| (name, None)));
    for record in document["records"].as_array().unwrap() {
        // Ten times what is promised.
        assert!(record["p99_ns"].as_f64().unwrap() < 1e10, "{record}");
        assert!(record["rounds"].as_f64().unwrap() >= 2.0, "{record}");
    }
}

#[test]
fn people_get_a_table() {
    let output = bench(&["--filter", FLOOR]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        table.starts_with("case") && table.contains(FLOOR),
        "{table}"
    );
    assert!(table.contains(" /s") || table.contains("k/s") || table.contains("M/s"));
}

#[test]
fn names_are_listed_without_measuring() {
    let names = |arguments: &[&str]| {
        // No device of that name could be opened.
        let output = bench(&[arguments, &["--list", "--device", "mlx5_77"]].concat());
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(names(&["--filter", "shm"]), format!("{FLOOR}\n"));
    let all = names(&[]);
    for name in ["rpc/send+hybrid/64MiB/pipelined", "death/rpc/pending_calls"] {
        assert!(all.lines().any(|line| line == name), "{name}");
    }
}

#[test]
fn mistakes_are_said_before_anything_is_measured() {
    for (arguments, word) in [
        (&["--filter", "nonsense"][..], "verbs/read/64B"),
        (&["--json", "/no/such/directory/b.json"], "--json"),
        (
            &["--filter", "verbs/read", "--device", "mlx5_77"],
            "mlx5_77",
        ),
    ] {
        let output = bench(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(word) && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
}

/// Waits until the benchmark has a child whose command line contains `word`, and gives its process id.
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
    panic!("the benchmark starts no process {word}");
}

#[test]
fn the_death_of_either_process_is_an_error_and_not_a_hang() {
    for (word, name) in [("bench-server", "answering"), ("bench-client", "measuring")] {
        // Rounds that last longer than the test, so that it dies in one.
        let child = command(&["--filter", "verbs/send", "--round-us", "60000000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child_of(child.id(), "bench-client");
        let pid = child_of(child.id(), word);
        // SAFETY: the process is one of the benchmark's that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(name) && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
}
