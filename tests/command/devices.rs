//! `verbatim devices` and `--version`.

use crate::run::{Folder, failure, stdout, verbatim};
use serde_json::Value;
use std::process::Command;

#[test]
fn soft0_is_listed_and_marked_as_what_would_be_used() {
    let text = stdout(verbatim(["devices"]).output().unwrap());
    assert!(text.contains("* soft0"), "{text}");
    assert!(text.contains("RoCE v2"), "{text}");
    assert!(text.contains("because"), "{text}");
}

#[test]
fn json_carries_the_same_and_the_versions() {
    let folder = Folder::new();
    let file = folder.at("devices.json");
    stdout(
        verbatim(["devices".as_ref(), "--json".as_ref(), file.as_os_str()])
            .output()
            .unwrap(),
    );
    let to_file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let to_stdout = stdout(verbatim(["devices", "--json", "-"]).output().unwrap());
    let to_stdout: Value = serde_json::from_str(&to_stdout).unwrap();
    assert_eq!(to_file, to_stdout);

    assert_eq!(to_file["version"], env!("CARGO_PKG_VERSION"));
    assert!(to_file["git"].is_string() && to_file["rdma_core"].is_string());
    assert_eq!(to_file["default"]["device"], "soft0");
    let devices = to_file["devices"].as_array().unwrap();
    let soft = devices.iter().find(|d| d["name"] == "soft0").unwrap();
    assert_eq!(soft["kind"], "soft");
    let gids = soft["ports"][0]["gids"].as_array().unwrap();
    assert_eq!(gids[1]["type"], "RoCE v2");
    assert!(gids[1]["gid"].as_str().unwrap().starts_with("::ffff:"));
    assert_eq!(to_file["default"]["gid"], gids[1]["gid"]);
}

#[test]
fn an_unknown_device_is_an_error_that_names_those_there_are() {
    let output = verbatim(["devices"])
        .env("VERBATIM_DEVICE", "mlx5_77")
        .output()
        .unwrap();
    let text = failure(output, 1);
    assert!(text.contains("mlx5_77") && text.contains("soft0"), "{text}");
}

#[test]
fn the_version_names_revision_and_bindings() {
    let text = stdout(verbatim(["--version"]).output().unwrap());
    assert!(text.starts_with("verbatim "), "{text}");
    assert!(
        text.contains("git ") && text.contains("rdma-core "),
        "{text}"
    );
}

#[test]
fn mistakes_on_the_command_line_have_a_status_of_their_own() {
    failure(verbatim(["demo", "--nonsense"]).output().unwrap(), 2);
    failure(verbatim::<&str>([]).output().unwrap(), 2);
}

/// What failed, why, and what to do, each of them once.
#[test]
fn a_folder_that_processes_cannot_meet_in_is_an_error_that_says_what_to_do() {
    let folder = Folder::new();
    folder.write("file", "");
    let file = folder.at("file");
    let below = folder.at("file/below");
    let nowhere = folder.at("not/there");
    for (place, expected) in [
        ("here".as_ref(), "absolute path"),
        (file.as_path(), "VERBATIM_DIR"),
        (below.as_path(), "VERBATIM_DIR"),
        (nowhere.as_path(), "VERBATIM_DIR"),
    ] {
        let output = verbatim(["devices"]).env("VERBATIM_DIR", place).output();
        let error = failure(output.unwrap(), 1);
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(place.to_str().unwrap()), "{error}");
        assert!(
            !error.contains("uverbs") && !error.contains("driver"),
            "{error}"
        );
        assert_eq!(error.matches("ibv_open_device").count(), 1, "{error}");
    }
}

/// However many files can still be opened when it begins, what cannot be done for want of one is said.
#[test]
fn too_few_files_are_an_error_that_says_so() {
    let mut refused = 0;
    for files in 5.. {
        let limited = format!("ulimit -n {files} && exec \"$0\" devices");
        let output = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_verbatim")])
            .env("VERBATIM_DEVICE", "soft0")
            .output()
            .unwrap();
        if output.status.success() {
            break;
        }
        let error = failure(output, 1);
        assert!(error.contains("ulimit -n"), "{files}: {error}");
        refused += 1;
    }
    assert!(refused > 3, "{refused}");
}
