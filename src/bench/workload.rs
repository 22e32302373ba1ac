//! Which calls are measured.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::shape::{Flow, Path, Reply, Size, Verb};

/// Calls whose reply is as long as the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calls {
    /// One after the other, or several on their way.
    Plain {
        /// How requests and replies travel.
        path: Path,
        /// How long they are.
        size: Size,
        /// How many are on their way.
        flow: Flow,
    },
    /// One after the other, with 64 KiB in four parts.
    Gathered(Path),
    /// One after the other, while there are long ones on their way.
    Beside {
        /// How requests and replies travel.
        path: Path,
        /// What is long.
        bulk: Bulk,
    },
    /// A few at once, of a cache line, and then all their replies.
    Few {
        /// How requests and replies travel.
        path: Path,
        /// How they are started.
        start: Start,
    },
    /// Each made when both ends have fallen asleep.
    Idle(Path),
    /// One after the other by each of so many clients, each on a thread of its own.
    Many(Path, usize),
    /// In bursts that the server finds whole; what is measured is the time that it is busy with each.
    Burst {
        /// How requests and replies travel.
        path: Path,
        /// How long they are.
        size: Size,
    },
}

/// What is on its way beside the calls that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bulk {
    /// Long requests.
    Requests,
    /// Long replies.
    Replies,
}

/// How several calls are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// With one doorbell.
    Together,
    /// One by one.
    Apart,
}

/// Clients that call at once: more than the processor that they share, and one for comparison.
const CLIENTS: [usize; 2] = [8, CLIENTS_FEWEST];
const CLIENTS_FEWEST: usize = 1;

/// Calls that are started at once.
pub const FEW: usize = 16;

/// What all are compared with that are not compared with messages.
const PUSHED: Path = Path::both(Verb::WriteImm);

impl Calls {
    /// All of them.
    pub fn all() -> Vec<Calls> {
        let mut all = Vec::new();
        for path in Path::all() {
            for flow in Flow::ALL {
                all.extend(Size::ALL.map(|size| Calls::Plain { path, size, flow }));
            }
        }
        for path in [
            PUSHED,
            Path::both(Verb::Send),
            FETCHED,
            Path::both(Verb::WritePoll),
        ] {
            all.extend(CLIENTS.map(|clients| Calls::Many(path, clients)));
            all.push(Calls::Idle(path));
        }
        let beside =
            |path| [Bulk::Requests, Bulk::Replies].map(|bulk| Calls::Beside { path, bulk });
        for path in [PUSHED, Path::both(Verb::Send), FETCHED] {
            all.push(Calls::Gathered(path));
            all.extend(beside(path));
            all.extend([Start::Together, Start::Apart].map(|start| Calls::Few { path, start }));
        }
        all.extend(beside(Path::both(Verb::WritePoll)));
        for path in Path::all() {
            all.extend(BURSTS.map(|size| Calls::Burst { path, size }));
        }
        all
    }

    /// Those of a run that was not told what to measure.
    pub fn usual() -> Vec<Calls> {
        let mut usual = Vec::new();
        for path in [PUSHED, Path::both(Verb::Send), FETCHED] {
            let plain = |size, flow| Calls::Plain { path, size, flow };
            usual.extend([
                plain(Size::B64, Flow::Serial),
                plain(Size::KiB4, Flow::Serial),
                plain(Size::MiB1, Flow::Serial),
                plain(Size::B64, Flow::Pipelined),
            ]);
        }
        usual.extend([PUSHED, FETCHED].map(|path| Calls::Burst {
            path,
            size: Size::B64,
        }));
        usual
    }

    /// How requests and replies travel.
    pub fn path(self) -> Path {
        match self {
            Calls::Plain { path, .. }
            | Calls::Gathered(path)
            | Calls::Idle(path)
            | Calls::Many(path, _)
            | Calls::Beside { path, .. }
            | Calls::Few { path, .. }
            | Calls::Burst { path, .. } => path,
        }
    }

    /// How long they are, those that are measured.
    pub fn size(self) -> Size {
        match self {
            Calls::Plain { size, .. } | Calls::Burst { size, .. } => size,
            Calls::Gathered(_) => Size::KiB64,
            Calls::Beside { .. } | Calls::Few { .. } | Calls::Idle(_) | Calls::Many(..) => {
                Size::B64
            }
        }
    }

    /// How many are on their way.
    pub fn flow(self) -> Flow {
        match self {
            Calls::Plain { flow, .. } => flow,
            _ => Flow::Serial,
        }
    }

    /// In how many parts a request is.
    pub fn parts(self) -> usize {
        match self {
            Calls::Gathered(_) => PARTS,
            _ => 1,
        }
    }

    /// Most calls that are on their way at once, those beside them not counted.
    pub fn window(self) -> usize {
        match self {
            Calls::Few { .. } => FEW,
            _ => self.flow().window(self.size()),
        }
    }

    /// Whether the time that the server is busy is measured: of what fits into one message.
    pub fn has_bursts(self) -> bool {
        match self {
            Calls::Plain { size, .. } | Calls::Burst { size, .. } => BURSTS.contains(&size),
            _ => false,
        }
    }

    /// Those that they are compared with, if not with messages.
    pub fn baseline(self) -> Option<Calls> {
        let serial = |path, size| Calls::Plain {
            path,
            size,
            flow: Flow::Serial,
        };
        match self {
            Calls::Plain { .. } | Calls::Idle(_) | Calls::Many(_, CLIENTS_FEWEST) => None,
            Calls::Many(path, _) => Some(Calls::Many(path, CLIENTS_FEWEST)),
            Calls::Gathered(path) => Some(serial(path, Size::KiB64)),
            Calls::Beside { path, .. } => Some(serial(path, Size::B64)),
            Calls::Few { path, start } => Some(match start {
                Start::Together => Calls::Few {
                    path,
                    start: Start::Apart,
                },
                Start::Apart => serial(path, Size::B64),
            }),
            Calls::Burst { path, .. } if path == PUSHED => None,
            Calls::Burst { size, .. } => Some(Calls::Burst { path: PUSHED, size }),
        }
    }
}

/// Requests by WRITE with immediate data, and the client READs the replies.
const FETCHED: Path = Path {
    request: Verb::WriteImm,
    reply: Reply::Fetched,
};

/// Parts of a gathered request.
const PARTS: usize = 4;

/// Lengths of which the server's time is measured.
const BURSTS: [Size; 4] = [Size::B0, Size::B64, Size::KiB1, Size::KiB4];

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        match self {
            Calls::Plain { size, flow, .. } => {
                let flow = match flow {
                    Flow::Serial => "serial",
                    Flow::Pipelined => "pipelined",
                };
                write!(f, "rpc/{path}/{size}/{flow}")
            }
            Calls::Gathered(_) => write!(f, "rpc/{path}/4x16KiB/serial"),
            Calls::Many(_, clients) => write!(f, "rpc/{path}/64B/{clients}_clients"),
            Calls::Idle(_) => write!(f, "rpc/{path}/64B/after_idle"),
            Calls::Beside { bulk, .. } => {
                let bulk = match bulk {
                    Bulk::Requests => "requests",
                    Bulk::Replies => "replies",
                };
                write!(f, "rpc/{path}/64B/beside_1MiB_{bulk}")
            }
            Calls::Few { start, .. } => {
                let start = match start {
                    Start::Together => "batch",
                    Start::Apart => "submit",
                };
                write!(f, "rpc/{path}/64B/{FEW}_by_{start}")
            }
            Calls::Burst { size, .. } => write!(f, "rpc/{path}/{size}/burst"),
        }
    }
}
