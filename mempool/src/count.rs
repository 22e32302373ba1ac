//! The count of handles on a slab.

use crate::sync::{AtomicU32, Ordering, fence};
use std::hint::cold_path;

/// How many handles there are; 1 also while there are none, so that handing a slab out writes nothing.
#[derive(Debug)]
pub(crate) struct Count(AtomicU32);

impl Count {
    pub fn new() -> Count {
        Count(AtomicU32::new(1))
    }

    /// One more handle, made from another. Aborts, as `Arc` does, before the count could wrap.
    #[inline]
    pub fn add(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
            std::process::abort();
        }
    }

    /// One handle less; `true` if it was the last.
    #[inline(always)]
    pub fn drop_one(&self) -> bool {
        // The only handle needs no atomic write. Acquire: what other handles did with the payload comes before
        // what the next holder does.
        if self.is_one() {
            return true;
        }
        cold_path();
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        self.0.store(1, Ordering::Relaxed);
        true
    }

    /// Whether the caller's handle is the only one.
    #[inline(always)]
    pub fn is_one(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// What a slab is here: a count, and bytes that each handle reads and the next holder writes.
    struct Slab {
        count: Count,
        payload: UnsafeCell<u32>,
    }

    impl Slab {
        fn read(&self) {
            // SAFETY: under test: nobody writes as long as there are handles.
            self.payload.with(|p| assert_eq!(unsafe { *p }, 7));
        }

        /// Drops a handle; the last one writes, as the next holder would.
        fn drop_handle(&self) -> bool {
            let last = self.count.drop_one();
            if last {
                assert!(self.count.is_one());
                // SAFETY: under test: the last handle has it alone.
                self.payload.with_mut(|p| unsafe { *p = 8 });
            }
            last
        }
    }

    #[test]
    fn loom_exactly_one_handle_is_the_last() {
        loom::model(|| {
            let slab = Arc::new(Slab {
                count: Count::new(),
                payload: UnsafeCell::new(7),
            });
            slab.count.add();
            slab.count.add();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let slab = slab.clone();
                    thread::spawn(move || {
                        slab.read();
                        slab.drop_handle()
                    })
                })
                .collect();
            slab.read();
            let mut last = usize::from(slab.drop_handle());
            for t in threads {
                last += usize::from(t.join().unwrap());
            }
            assert_eq!(last, 1);
        });
    }
}
