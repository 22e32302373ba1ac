//! How far it is: a bar on a terminal, plain lines elsewhere. Both on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress of one phase, counted in bytes.
pub struct Progress {
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Lines),
}

struct Lines {
    title: &'static str,
    total: u64,
    done: u64,
    next: Instant,
}

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(2);

impl Progress {
    /// Begins a phase of `total` bytes.
    pub fn start(title: &'static str, total: u64) -> Progress {
        let shown = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template(
                "{msg:<12} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
            ) {
                bar.set_style(style);
            }
            bar.set_message(title);
            Shown::Bar(bar)
        } else {
            Shown::Lines(Lines {
                title,
                total,
                done: 0,
                next: Instant::now() + EVERY,
            })
        };
        Progress { shown }
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: u64) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.inc(bytes),
            Shown::Lines(lines) => {
                lines.done += bytes;
                if Instant::now() >= lines.next {
                    lines.next = Instant::now() + EVERY;
                    lines.print();
                }
            }
        }
    }

    /// Ends the phase.
    pub fn finish(self) {
        match self.shown {
            Shown::Bar(bar) => bar.finish(),
            Shown::Lines(mut lines) => {
                lines.total = lines.done;
                lines.print();
            }
        }
    }
}

impl Lines {
    fn print(&self) {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        // Nobody may be reading; the result does not depend on it.
        let _ = writeln!(
            std::io::stderr(),
            "{}: {:.1} of {:.1} MB",
            self.title,
            megabytes(self.done),
            megabytes(self.total)
        );
    }
}
