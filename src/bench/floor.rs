//! The floor: one cache line each way, in memory that both processes have mapped.

use anyhow::Result;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::measure::{Figures, Group, serial};
use super::page::Page;
use super::spin::Spin;

/// One end.
pub struct Floor {
    page: Page,
    /// What the end that measures wrote last, or what the other end saw last.
    last: u64,
}

/// Ends a round.
const END: u64 = u64::MAX;

impl Floor {
    /// The end that measures, and the path that the other one finds the memory by.
    pub fn create() -> Result<(Floor, String)> {
        let (page, path) = Page::create()?;
        Ok((Floor { page, last: 0 }, path))
    }

    /// The end that answers.
    pub fn open(path: &str) -> Result<Floor> {
        Ok(Floor {
            page: Page::open(path)?,
            last: 0,
        })
    }

    /// Answers until the round ends.
    pub fn serve(&mut self) {
        let (there, back) = self.page.words();
        loop {
            let mut spin = Spin::new();
            self.last = loop {
                let seen = there.load(Ordering::Acquire);
                if seen != self.last {
                    break seen;
                }
                spin.idle();
            };
            if self.last == END {
                return;
            }
            back.store(self.last, Ordering::Release);
        }
    }

    /// Measures round trips; the other end is in [`serve`](Self::serve), or about to be.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let (there, back) = self.page.words();
        let figures = serial(limit, Group::Sixteen, || {
            self.last += 1;
            there.store(self.last, Ordering::Release);
            let mut spin = Spin::new();
            while back.load(Ordering::Acquire) != self.last {
                spin.idle();
            }
            Ok(())
        });
        there.store(END, Ordering::Release);
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn rounds_end_and_others_can_follow() {
        let (mut here, path) = Floor::create().unwrap();
        let (say, hear) = channel();
        let there = std::thread::spawn(move || {
            let mut there = Floor::open(&path).unwrap();
            for _ in 0..3 {
                there.serve();
                say.send(()).unwrap();
            }
        });
        for _ in 0..3 {
            let figures = here.round(Duration::from_millis(1)).unwrap();
            assert!(figures.p50_ns > 0.0 && figures.p99_ns > 0.0);
            hear.recv().unwrap();
        }
        there.join().unwrap();
    }
}
