//! What is measured: the cases, their names, and what each is compared with.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::death::Waiting;
use super::pool::{Allocator, Pattern};
use super::shape::{Flow, Size, Verb};
use super::socket::Family;
use super::workload::Calls;

/// One thing to measure between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Case {
    /// One cache line each way in shared memory: nothing between two processes can be quicker.
    Floor,
    /// Messages there and back over a queue pair.
    Verbs {
        /// How they travel.
        verb: Verb,
        /// How long they are.
        size: Size,
        /// How many are on their way.
        flow: Flow,
    },
    /// A thread of another process that sleeps is woken, and answers.
    Wake,
    /// A READ of the peer's memory; the peer does nothing.
    Read,
    /// Calls of the `rpc` crate.
    Rpc(Calls),
    /// Messages there and back over a socket.
    Socket {
        /// Which kind.
        family: Family,
        /// Whether the ends sleep until there is something, or look again and again.
        blocking: bool,
    },
    /// Memory allocated and freed, in one process.
    Alloc {
        /// By whom.
        by: Allocator,
        /// In which order, and by which threads.
        pattern: Pattern,
        /// How long the pieces are.
        size: Size,
    },
    /// Memory registered and deregistered, as for each message by who has no pool.
    Register(Size),
    /// The end of work that waits for a process which is killed.
    Death(Waiting),
}

impl Case {
    /// All cases, in the order in which they are measured and shown.
    pub fn all() -> Vec<Case> {
        let verbs = Flow::ALL
            .into_iter()
            .flat_map(|flow| Size::ALL.map(|size| (size, flow)))
            .filter(|(size, _)| size.message() == *size);
        Case::with(verbs.collect(), Calls::all())
    }

    /// Those of a run that was not told what to measure.
    pub fn usual() -> Vec<Case> {
        let verbs = vec![
            (Size::B64, Flow::Serial),
            (Size::KiB4, Flow::Serial),
            (Size::MiB1, Flow::Serial),
            (Size::B64, Flow::Pipelined),
        ];
        Case::with(verbs, Calls::usual())
    }

    fn with(shapes: Vec<(Size, Flow)>, calls: Vec<Calls>) -> Vec<Case> {
        let mut all = vec![Case::Floor];
        for verb in Verb::ALL {
            let case = |(size, flow): &(Size, Flow)| Case::Verbs {
                verb,
                size: *size,
                flow: *flow,
            };
            all.extend(shapes.iter().map(case));
        }
        all.extend([Case::Read, Case::Wake]);
        all.extend(calls.into_iter().map(Case::Rpc));
        for blocking in [false, true] {
            all.extend([Family::Unix, Family::Tcp].map(|family| Case::Socket { family, blocking }));
        }
        for (pattern, size) in Pattern::SHAPES {
            let case = |by| Case::Alloc { by, pattern, size };
            all.extend(Allocator::ALL.iter().copied().map(case));
        }
        all.extend([Size::B64, Size::KiB4, Size::MiB1].map(Case::Register));
        all.extend([Waiting::Send, Waiting::Calls].map(Case::Death));
        all
    }

    /// The case with this name.
    pub fn named(name: &str) -> Option<Case> {
        Case::all().into_iter().find(|c| c.to_string() == name)
    }

    /// What it is compared with: calls with messages of the verb of their requests, of the same length and number, or with simpler calls; the pool with `malloc`, and with the pool all
    /// that is done in place of it; a death with nothing; everything else with the floor.
    pub fn baseline(self) -> Option<Case> {
        match self {
            Case::Floor | Case::Death(_) => None,
            Case::Rpc(Calls::Plain { path, size, flow }) => Some(Case::Verbs {
                verb: path.request.bare(),
                size: size.message(),
                flow,
            }),
            Case::Rpc(Calls::Idle(_)) => Some(Case::Wake),
            Case::Rpc(calls) => calls.baseline().map(Case::Rpc),
            Case::Alloc { by, pattern, size } => Some(Case::Alloc {
                by: match by {
                    Allocator::Pool => Allocator::Malloc,
                    _ => Allocator::Pool,
                },
                pattern,
                size,
            }),
            Case::Register(size) => Some(Case::Alloc {
                by: Allocator::Pool,
                pattern: Pattern::Hot,
                size,
            }),
            Case::Verbs { .. } | Case::Read | Case::Wake | Case::Socket { .. } => Some(Case::Floor),
        }
    }

    /// Whether what counts is the number of messages a second, and not the time that one takes.
    pub fn counts_rate(self) -> bool {
        matches!(
            self,
            Case::Verbs {
                flow: Flow::Pipelined,
                ..
            } | Case::Rpc(
                Calls::Plain {
                    flow: Flow::Pipelined,
                    ..
                } | Calls::Many(..)
            )
        )
    }

    /// Whether it uses the RDMA device.
    pub fn uses_device(self) -> bool {
        match self {
            Case::Verbs { .. } | Case::Read | Case::Rpc(_) | Case::Register(_) | Case::Death(_) => {
                true
            }
            Case::Alloc { by, .. } => by == Allocator::Pool,
            Case::Floor | Case::Wake | Case::Socket { .. } => false,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Case::Floor => f.write_str("shm/64B/pingpong"),
            Case::Verbs { verb, size, flow } => {
                let flow = match flow {
                    Flow::Serial => "pingpong",
                    Flow::Pipelined => "pipelined",
                };
                write!(f, "verbs/{verb}/{size}/{flow}")
            }
            Case::Read => f.write_str("verbs/read/64B"),
            Case::Wake => f.write_str("wake/futex"),
            Case::Rpc(calls) => calls.fmt(f),
            Case::Socket { family, blocking } => {
                let family = match family {
                    Family::Unix => "unix",
                    Family::Tcp => "tcp",
                };
                let blocking = if blocking { "-blocking" } else { "" };
                write!(f, "{family}{blocking}/64B/pingpong")
            }
            Case::Alloc { by, pattern, size } => write!(f, "{by}/{pattern}/{size}"),
            Case::Register(size) => write!(f, "register/{size}"),
            Case::Death(waiting) => write!(f, "death/{waiting}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::Start;
    use super::*;

    #[test]
    fn the_names_that_programs_look_for_are_there_once_each() {
        let mut names: Vec<_> = Case::all().iter().map(ToString::to_string).collect();
        for name in [
            "shm/64B/pingpong",
            "verbs/write_imm/64B/pingpong",
            "verbs/send/64B/pingpong",
            "verbs/read/64B",
            "rpc/send/64B/serial",
            "rpc/send/4KiB/serial",
            "rpc/send/1MiB/serial",
            "rpc/send/64B/pipelined",
            "rpc/write_imm/64B/serial",
            "rpc/write_imm/64B/pipelined",
            "rpc/write_imm+fetch/64B/serial",
            "rpc/write_imm+fetch/1MiB/serial",
            "rpc/write_imm+fetch/64B/burst",
            "rpc/send+hybrid/64MiB/pipelined",
            "rpc/write_imm+send/0B/serial",
            "rpc/write_imm/4x16KiB/serial",
            "rpc/write_imm/64B/beside_1MiB_requests",
            "rpc/write_poll/64B/beside_1MiB_requests",
            "rpc/write_poll/64B/beside_1MiB_replies",
            "rpc/write_imm/64B/16_by_batch",
            "rpc/write_imm/64B/after_idle",
            "rpc/write_imm/64B/8_clients",
            "wake/futex",
            "rpc/send/64B/16_by_submit",
            "unix/64B/pingpong",
            "tcp/64B/pingpong",
            "unix-blocking/64B/pingpong",
            "tcp-blocking/64B/pingpong",
            "pool/hot/64B",
            "pool/hot/4KiB",
            "pool/hot/1MiB",
            "pool/inflight32/4KiB",
            "pool/cross/64B",
            "pool/cross/4KiB",
            "malloc/hot/64B",
            "malloc/cross/4KiB",
            "register/4KiB",
            "death/verbs/retry_exc",
            "death/rpc/pending_calls",
        ] {
            assert!(names.iter().any(|n| n == name), "{name}");
            assert_eq!(Case::named(name).unwrap().to_string(), name);
        }
        let usual = Case::usual();
        assert!(usual.iter().all(|case| names.contains(&case.to_string())));
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_baseline_is_a_case_of_the_same_verb_and_length() {
        for case in Case::all() {
            let Some(baseline) = case.baseline() else {
                assert!(matches!(
                    case,
                    Case::Floor | Case::Death(_) | Case::Rpc(Calls::Burst { .. } | Calls::Many(..))
                ));
                continue;
            };
            assert!(Case::all().contains(&baseline));
            if let Case::Rpc(calls) = case {
                let (name, path) = (baseline.to_string(), calls.path());
                let (verb, size) = (path.request.bare(), calls.size());
                let expected = match calls {
                    Calls::Idle(_) => "wake/futex".to_owned(),
                    Calls::Many(..) => format!("rpc/{path}/64B/1_clients"),
                    Calls::Plain { .. } => format!("verbs/{verb}/{}/", size.message()),
                    Calls::Gathered(_) | Calls::Beside { .. } => {
                        format!("rpc/{path}/{size}/serial")
                    }
                    Calls::Few { start, .. } => match start {
                        Start::Together => format!("rpc/{path}/64B/16_by_submit"),
                        Start::Apart => format!("rpc/{path}/64B/serial"),
                    },
                    Calls::Burst { .. } => format!("rpc/write_imm/{size}/burst"),
                };
                assert!(name.starts_with(&expected), "{name}");
                assert_eq!(case.counts_rate(), baseline.counts_rate());
            } else if let Case::Alloc { by, .. } = case {
                let (name, other) = (case.to_string(), baseline.to_string());
                let shape = |name: &str| name.split_once('/').unwrap().1.to_owned();
                assert_eq!(shape(&name), shape(&other));
                assert!(
                    (by == Allocator::Pool) != other.starts_with("pool/"),
                    "{other}"
                );
            } else if let Case::Register(size) = case {
                assert_eq!(baseline.to_string(), format!("pool/hot/{size}"));
            } else {
                assert_eq!(baseline, Case::Floor);
            }
        }
    }
}
