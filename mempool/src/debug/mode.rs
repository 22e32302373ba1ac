//! Whether a pool watches, and what it does then.

use super::Finding;
use crate::error::PoolError;
use std::env;

/// How a pool watches for misuse of its buffers.
///
/// In debug mode each free is checked, freed memory is filled with a pattern and kept out of use for a while, and the place in the code where a
/// buffer was allocated is remembered. What is found ([`Finding`]) is reported, to stderr unless
/// [told otherwise](DebugMode::report), and counted by [`Pool::findings`](crate::Pool::findings). It is slow: microseconds per allocation.
///
/// A device that still owns a buffer which is freed is found in two ways. The user-space device is asked, so it does not matter whether it would
/// read or write; with `VERBATIM_ASYNC` it works late, as hardware does, and more is found. Hardware cannot be asked: what it writes
/// into a freed buffer is found before the memory is used again, that it reads one cannot be seen. Safe code cannot
/// do either, as queues own what is in flight.
///
/// A pool is in debug mode if [its builder says so](crate::PoolBuilder::debug). If the builder says nothing, the environment decides: `VERBATIM_POOL_DEBUG=1`
/// turns it on, a larger number as well and says how many freed buffers are kept out of use, and `0` is off. If that says nothing
/// either, it is on in programs built with the feature `debug`.
///
/// ```
/// # use mempool::{DebugMode, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// let pool = Pool::builder(&pd).debug(DebugMode::new()).build()?;
/// let buf = pool.alloc(100)?;
/// let live = pool.live_buffers(); // what was not dropped yet, and who allocated it
/// assert!(live[0].site.file().ends_with(".rs"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct DebugMode {
    pub(super) quarantine: usize,
    pub(super) report: fn(&Finding),
}

impl DebugMode {
    const QUARANTINE: usize = 64;

    /// Watches, and reports to stderr.
    pub fn new() -> DebugMode {
        DebugMode {
            quarantine: DebugMode::QUARANTINE,
            report: |finding| eprintln!("verbatim pool: {finding}"),
        }
    }

    /// How many freed buffers are kept out of use (64 by default). They still count for their budgets, but are given up before an allocation
    /// is refused.
    pub fn quarantine(mut self, buffers: usize) -> DebugMode {
        self.quarantine = buffers;
        self
    }

    /// What to do with findings.
    pub fn report(mut self, report: fn(&Finding)) -> DebugMode {
        self.report = report;
        self
    }
}

impl Default for DebugMode {
    fn default() -> DebugMode {
        DebugMode::new()
    }
}

/// Who decides.
#[derive(Debug, Clone)]
pub(crate) enum Debugging {
    Chosen(Option<DebugMode>),
    ByEnvironment,
}

const VARIABLE: &str = "VERBATIM_POOL_DEBUG";

impl Debugging {
    pub fn mode(self) -> Result<Option<DebugMode>, PoolError> {
        match self {
            Debugging::Chosen(mode) => Ok(mode),
            Debugging::ByEnvironment => match env::var_os(VARIABLE) {
                None => Ok(cfg!(feature = "debug").then(DebugMode::new)),
                Some(value) => {
                    let value = value.to_string_lossy();
                    parse(&value).ok_or_else(|| PoolError::DebugVariable {
                        value: value.into_owned(),
                    })
                }
            },
        }
    }
}

fn parse(value: &str) -> Option<Option<DebugMode>> {
    match value.trim() {
        "" | "0" => Some(None),
        "1" => Some(Some(DebugMode::new())),
        number => {
            let buffers = number.parse().ok()?;
            Some(Some(DebugMode::new().quarantine(buffers)))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_understood_or_refused() {
        let quarantine = |value| parse(value).map(|mode| mode.map(|mode| mode.quarantine));
        assert_eq!(quarantine("0"), Some(None));
        assert_eq!(quarantine(""), Some(None));
        assert_eq!(quarantine("1"), Some(Some(64)));
        assert_eq!(quarantine(" 1000"), Some(Some(1000)));
        for bad in ["yes", "-1", "1k", "99999999999999999999"] {
            assert_eq!(quarantine(bad), None, "{bad}");
        }
    }
}
