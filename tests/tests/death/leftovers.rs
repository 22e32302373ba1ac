//! What is left in the system when processes are gone: a slot file of each killed one, until the next start, and nothing else.

use std::collections::HashSet;
use std::time::Instant;

use verbatim_tests::until;

use crate::part::{PATHS, files_made_by, files_mapped_by, files_opened_by};
use crate::party::{Folder, Party, start_with, within};

/// Inodes of the memory files that a process has made.
fn memory_of(party: &Party) -> HashSet<u64> {
    files_made_by(&party.pid().to_string())
}

/// Which of these memory files any process still has.
fn remaining(inodes: &HashSet<u64>) -> HashSet<u64> {
    let mut found = HashSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            found.extend(files_mapped_by(&name));
            found.extend(files_opened_by(&name));
        }
    }
    found.intersection(inodes).copied().collect()
}

/// Paths of files in memory and in temporary folders that a process has open.
fn paths_opened_by(pid: &str) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = folder
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let paths = links.map(|link| link.to_string_lossy().into_owned());
    paths
        .filter(|path| path.starts_with("/dev/shm/") || path.starts_with("/tmp/"))
        .collect()
}

/// Starts a process with the device open, and lets it end in order.
fn start_and_finish(name: &str, variables: &[(&str, &str)]) {
    let mut party = start_with(name, variables).unwrap();
    party.ask("serve");
    party.finish();
}

/// A server and two clients; one client is killed, then the server, then the other client ends in order.
#[test]
fn nothing_is_left_of_killed_processes() {
    const NAME: &str = "leftovers::nothing_is_left_of_killed_processes";
    let folder = Folder::new("leftovers");
    let variables = folder.variables();
    let Some(mut server) = start_with(NAME, &variables) else {
        return;
    };
    let address = server.ask("serve");
    let mut clients: Vec<Party> = Vec::new();
    for path in [0, PATHS.len() - 1] {
        let mut client = start_with(NAME, &variables).unwrap();
        client.ask(format!("connect {address} {path}"));
        assert_eq!(client.ask("storm"), "storming");
        clients.push(client);
    }
    let [mut first, mut second] = clients.try_into().ok().unwrap();
    assert_eq!(folder.files().len(), 3);
    for party in [&server, &first, &second] {
        // What all processes of this test were given is not theirs.
        let inherited = paths_opened_by("self");
        let mut paths = paths_opened_by(&party.pid().to_string());
        paths.retain(|path| !inherited.contains(path));
        let inside = |path: &String| path.starts_with(folder.path());
        assert!(!paths.is_empty() && paths.iter().all(inside), "{paths:?}");
    }

    let memory = memory_of(&first);
    let mapped = files_mapped_by(&server.pid().to_string());
    let shared = memory.intersection(&mapped).count();
    assert!(shared > 0 && shared < memory.len(), "{shared}");
    assert_eq!(remaining(&memory), memory);
    let at = first.kill();
    let took = within(at, "memory of a killed client is gone", || {
        remaining(&memory).is_empty()
    });
    println!(
        "{} memory files, {shared} of them mapped by the server, gone after {took:?}",
        memory.len()
    );
    assert_eq!(folder.files().len(), 3, "its slot file stays");

    let memory: HashSet<u64> = &memory_of(&server) | &memory_of(&second);
    server.kill();
    assert_eq!(second.answer(), "lost");
    second.finish();
    let took = within(Instant::now(), "all memory is gone", || {
        remaining(&memory).is_empty()
    });
    println!("{} memory files gone after {took:?}", memory.len());
    assert_eq!(
        folder.files().len(),
        2,
        "an orderly end leaves no slot file"
    );

    start_and_finish(NAME, &variables);
    assert_eq!(folder.files(), [""; 0]);
}

/// Killed as soon as its slot file appears, whatever it has come to: the next start can use the folder and clears it.
#[test]
fn a_process_killed_at_its_start_is_cleaned_up() {
    const NAME: &str = "leftovers::a_process_killed_at_its_start_is_cleaned_up";
    let folder = Folder::new("starts");
    let variables = folder.variables();
    let mut left = 0;
    for _ in 0..20 {
        let before = folder.files();
        let Some(mut party) = start_with(NAME, &variables) else {
            return;
        };
        party.tell("serve");
        // The new one takes a slot of its own before or after it clears the others'.
        until("a slot file appears", || {
            let now = folder.files();
            now.iter().any(|file| !before.contains(file)).then_some(())
        });
        party.kill();
        left = left.max(folder.files().len());
    }
    assert!(left > 0);
    start_and_finish(NAME, &variables);
    assert_eq!(folder.files(), [""; 0]);
}

/// A stopped process is alive: its slot is nobody else's, and it goes on as if nothing had been.
#[test]
fn a_stopped_process_keeps_its_slot() {
    const NAME: &str = "leftovers::a_stopped_process_keeps_its_slot";
    let folder = Folder::new("stopped");
    let variables = folder.variables();
    let Some(mut server) = start_with(NAME, &variables) else {
        return;
    };
    let address = server.ask("serve");
    server.stop();
    let slot = folder.files();
    assert_eq!(slot.len(), 1);
    for _ in 0..3 {
        start_and_finish(NAME, &variables);
        assert_eq!(folder.files(), slot);
    }
    let mut client = start_with(NAME, &variables).unwrap();
    client.tell(format!("connect {address} 0"));
    server.resume();
    assert_eq!(client.answer(), "connected");
    client.ask("echo 10");
    client.finish();
    server.finish();
    assert_eq!(folder.files(), [""; 0]);
}
