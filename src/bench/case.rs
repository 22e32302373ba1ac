//! What is measured: the cases, their names, and what each is compared with.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::death::Waiting;
use super::measure::Group;
use super::pool::{Allocator, Pattern};

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
    /// A READ of the peer's memory; the peer does nothing.
    Read,
    /// Calls whose reply is as long as the request.
    Rpc {
        /// How requests and replies travel.
        path: Path,
        /// How long they are.
        size: Size,
        /// How many are on their way.
        flow: Flow,
    },
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

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// As SENDs.
    Send,
    /// As WRITEs with immediate data, into memory that the receiver exposes.
    WriteImm,
}

/// How requests and replies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Path {
    /// Both in the same way.
    Pushed(Verb),
    /// Requests as WRITEs with immediate data; the client READs the replies.
    Fetched,
}

impl Path {
    /// How the messages travel that it is compared with.
    pub fn verb(self) -> Verb {
        match self {
            Path::Pushed(verb) => verb,
            Path::Fetched => Verb::WriteImm,
        }
    }
}

/// Length of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Size {
    /// 64 bytes: a cache line.
    B64,
    /// 4 KiB: a page, and the most that an rpc carries in one message unless told otherwise.
    KiB4,
    /// 1 MiB: an rpc pulls that by READ.
    MiB1,
}

/// How many messages are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flow {
    /// One.
    Serial,
    /// Up to [`WINDOW`].
    Pipelined,
}

/// A kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Unix stream sockets.
    Unix,
    /// TCP over loopback, without delay.
    Tcp,
}

/// Messages on their way in the pipelined cases.
pub const WINDOW: usize = 64;

impl Size {
    /// In bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Size::B64 => 64,
            Size::KiB4 => 4 << 10,
            Size::MiB1 => 1 << 20,
        }
    }

    /// How messages of this length are timed.
    pub fn group(self) -> Group {
        match self {
            Size::B64 | Size::KiB4 => Group::Sixteen,
            Size::MiB1 => Group::One,
        }
    }
}

impl Flow {
    /// Most messages on their way.
    pub fn window(self) -> usize {
        match self {
            Flow::Serial => 1,
            Flow::Pipelined => WINDOW,
        }
    }
}

impl Case {
    /// All cases, in the order in which they are measured and shown.
    pub fn all() -> Vec<Case> {
        let shapes = [
            (Size::B64, Flow::Serial),
            (Size::KiB4, Flow::Serial),
            (Size::MiB1, Flow::Serial),
            (Size::B64, Flow::Pipelined),
        ];
        let verbs = [Verb::WriteImm, Verb::Send];
        let mut all = vec![Case::Floor];
        for verb in verbs {
            all.extend(shapes.map(|(size, flow)| Case::Verbs { verb, size, flow }));
        }
        all.push(Case::Read);
        for path in [
            Path::Pushed(Verb::WriteImm),
            Path::Pushed(Verb::Send),
            Path::Fetched,
        ] {
            all.extend(shapes.map(|(size, flow)| Case::Rpc { path, size, flow }));
        }
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

    /// What it is compared with: an rpc with messages of the same verb, length and number; the pool with `malloc`, and with the pool all
    /// that is done in place of it; a death with nothing; everything else with the floor.
    pub fn baseline(self) -> Option<Case> {
        match self {
            Case::Floor | Case::Death(_) => None,
            Case::Rpc { path, size, flow } => Some(Case::Verbs {
                verb: path.verb(),
                size,
                flow,
            }),
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
            Case::Verbs { .. } | Case::Read | Case::Socket { .. } => Some(Case::Floor),
        }
    }

    /// Whether what counts is the number of messages a second, and not the time that one takes.
    pub fn counts_rate(self) -> bool {
        matches!(
            self,
            Case::Verbs {
                flow: Flow::Pipelined,
                ..
            } | Case::Rpc {
                flow: Flow::Pipelined,
                ..
            }
        )
    }

    /// Whether it uses the RDMA device.
    pub fn uses_device(self) -> bool {
        match self {
            Case::Verbs { .. }
            | Case::Read
            | Case::Rpc { .. }
            | Case::Register(_)
            | Case::Death(_) => true,
            Case::Alloc { by, .. } => by == Allocator::Pool,
            Case::Floor | Case::Socket { .. } => false,
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
            Case::Rpc { path, size, flow } => {
                let flow = match flow {
                    Flow::Serial => "serial",
                    Flow::Pipelined => "pipelined",
                };
                write!(f, "rpc/{path}/{size}/{flow}")
            }
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

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Send => "send",
            Verb::WriteImm => "write_imm",
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Pushed(verb) => verb.fmt(f),
            Path::Fetched => f.write_str("write_imm+fetch"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Size::B64 => "64B",
            Size::KiB4 => "4KiB",
            Size::MiB1 => "1MiB",
        })
    }
}

#[cfg(test)]
mod tests {
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
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_baseline_is_a_case_of_the_same_verb_and_length() {
        for case in Case::all() {
            let Some(baseline) = case.baseline() else {
                assert!(matches!(case, Case::Floor | Case::Death(_)));
                continue;
            };
            assert!(Case::all().contains(&baseline));
            if let Case::Rpc { path, size, .. } = case {
                let (name, verb) = (baseline.to_string(), path.verb());
                assert!(name.starts_with(&format!("verbs/{verb}/{size}/")), "{name}");
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
