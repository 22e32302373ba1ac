//! The processes of a test, as the one that directs them sees them.

use std::fmt::Display;
use std::time::{Duration, Instant};

use verbatim_tests::{Peer, Side, second_process_with, until};

use crate::part;

/// Ten times as long as anything may take that has to do with a process which is dead or stopped.
pub const BOUND: Duration = Duration::from_secs(10);

/// A process that does what it is asked.
pub struct Party {
    peer: Peer,
}

/// Starts a process of the test `name` (its full path in the test binary). In that process, plays its part and gives nothing:
/// the test is over there.
pub fn start(name: &str) -> Option<Party> {
    start_with(name, &[])
}

/// As [`start`], with variables added to its environment.
pub fn start_with(name: &str, variables: &[(&str, &str)]) -> Option<Party> {
    match second_process_with(name, variables) {
        Side::Child(control) => {
            part::play(control);
            None
        }
        Side::Parent(peer) => Some(Party { peer }),
    }
}

impl Party {
    /// Asks for something, see [`part`], and waits until it is done.
    pub fn ask(&mut self, what: impl Display) -> String {
        self.tell(what);
        self.answer()
    }

    /// Asks for something that takes its time.
    pub fn tell(&mut self, what: impl Display) {
        self.peer.control.send(what.to_string());
    }

    /// Waits for what it was told.
    pub fn answer(&mut self) -> String {
        String::from_utf8(self.peer.control.receive()).expect("answers are text")
    }

    pub fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// Ends it as abruptly as it can be ended; gives when.
    pub fn kill(&mut self) -> Instant {
        let at = Instant::now();
        self.peer.kill();
        at
    }

    /// Stops it, and waits until all its threads have.
    pub fn stop(&self) {
        self.peer.stop();
        self.wait_until_stopped();
    }

    /// Waits until it is stopped, by itself or by [`stop`](Self::stop).
    pub fn wait_until_stopped(&self) {
        until("a process is stopped", || self.is_stopped().then_some(()));
    }

    /// Whether all its threads are stopped.
    pub fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.expect("a child has threads").all(|task| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            stat.is_ok_and(|stat| says_stopped(&stat))
        })
    }

    pub fn resume(&self) {
        self.peer.resume();
    }

    /// Lets it come to an orderly end.
    pub fn finish(mut self) {
        self.tell("end");
        self.peer.finish();
    }
}

/// The third field of a stat line; the second, in parentheses, is a name of any kind.
fn says_stopped(stat: &str) -> bool {
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.trim_start().starts_with('T')
}

/// Waits until it holds, within the bound, and gives how long it took since `begin`.
pub fn within(begin: Instant, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    loop {
        let held = holds();
        let took = begin.elapsed();
        assert!(took < BOUND, "{what}: {took:?}");
        if held {
            return took;
        }
        std::thread::yield_now();
    }
}

/// A folder for the device's slot files, away from those of other tests; removed with what is in it.
pub struct Folder {
    path: String,
    /// The processes of the test only use it.
    made: bool,
}

const FOLDER: &str = "VERBATIM_TEST_FOLDER";

impl Folder {
    pub fn new(name: &str) -> Folder {
        if let Ok(path) = std::env::var(FOLDER) {
            return Folder { path, made: false };
        }
        let path = std::env::temp_dir().join(format!("verbatim-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder can be made");
        Folder {
            path: path
                .into_os_string()
                .into_string()
                .expect("a path in UTF-8"),
            made: true,
        }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// What makes processes use it.
    pub fn variables(&self) -> [(&str, &str); 2] {
        [("VERBATIM_DIR", &self.path), (FOLDER, &self.path)]
    }

    /// Names of the files below it.
    pub fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        let folders = std::fs::read_dir(&self.path).expect("the folder can be read");
        for folder in folders.flatten() {
            // None: it went just now.
            let files = std::fs::read_dir(folder.path()).into_iter().flatten();
            let files = files.flatten();
            names.extend(files.map(|file| file.file_name().to_string_lossy().into_owned()));
        }
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
