//! Huge pages for a test, set aside for as long as it runs.

use std::fs::File;
use std::os::unix::fs::FileExt;

const SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// Exactly so many free huge pages of the default size, while this lives. Tests take turns, those of other processes too.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    /// Locked.
    setting: File,
}

impl HugePages {
    /// Sees to it that `free` pages are free. Where that cannot be had (no root, fragmented memory, other users), says so and returns
    /// `None`.
    pub fn set_aside(free: u64) -> Option<HugePages> {
        let skip = |why: &str| {
            eprintln!("SKIPPED: {free} free huge pages cannot be set aside: {why}");
            None
        };
        if std::fs::read_to_string("/proc/meminfo").is_ok_and(|m| !m.contains("2048 kB")) {
            return skip("those of this machine are not of 2 MiB");
        }
        let setting = match File::options().read(true).write(true).open(SETTING) {
            Ok(file) => file,
            Err(e) => return skip(&format!("{SETTING}: {e}")),
        };
        if let Err(e) = setting.lock() {
            return skip(&format!("{SETTING} cannot be locked: {e}"));
        }
        let before = std::fs::read_to_string(SETTING);
        let Some(before) = before.ok().and_then(|n| n.trim().parse().ok()) else {
            return skip("there is no number of them");
        };
        let pages = HugePages { before, setting };
        let in_use = meminfo("HugePages_Total:") - meminfo("HugePages_Free:");
        pages.write(in_use + free);
        match meminfo("HugePages_Free:") {
            // Those that are promised are not to be had.
            now if now == free && meminfo("HugePages_Rsvd:") == 0 => Some(pages),
            now => skip(&format!("{now} are free then")),
        }
    }

    /// How many are neither in use nor promised.
    pub fn left(&self) -> u64 {
        meminfo("HugePages_Free:") - meminfo("HugePages_Rsvd:")
    }

    fn write(&self, count: u64) {
        // What it says afterwards is what counts. (Written anywhere but at its beginning, it stays as it is.)
        let _ = self.setting.write_at(count.to_string().as_bytes(), 0);
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.write(self.before);
    }
}

fn meminfo(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}
