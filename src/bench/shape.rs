//! How messages travel, how long they are, and how many are on their way.

use serde::{Deserialize, Serialize};
use std::fmt;
use verbatim::rpc::{ReplyPath, RequestPath};

use super::measure::Group;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// As SENDs.
    Send,
    /// As WRITEs with immediate data, into memory that the receiver exposes.
    WriteImm,
    /// As WRITEs of which the receiver is not told. Only of calls: they are compared with messages by WRITEs with immediate data.
    WritePoll,
}

/// How replies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The server posts them.
    Pushed(Verb),
    /// The client READs them.
    Fetched,
    /// One or the other, as it turns out to be better.
    Hybrid,
}

/// How requests and replies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Requests.
    pub request: Verb,
    /// Replies.
    pub reply: Reply,
}

/// Length of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Size {
    /// Nothing.
    B0,
    /// 64 bytes: a cache line.
    B64,
    /// 1 KiB.
    KiB1,
    /// 4 KiB: a page, and the most that an rpc carries in one message unless told otherwise.
    KiB4,
    /// 64 KiB: an rpc pulls that by READ, as all that is longer.
    KiB64,
    /// 1 MiB.
    MiB1,
    /// 64 MiB.
    MiB64,
}

/// How many messages are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flow {
    /// One.
    Serial,
    /// As many as there is a [window](Flow::window) for.
    Pipelined,
}

/// Messages on their way in the pipelined cases, unless they are long.
pub const WINDOW: usize = 64;

/// Bytes of those that are long.
const WINDOW_BYTES: usize = 16 << 20;

impl Verb {
    /// Those of bare messages.
    pub const ALL: [Verb; 2] = [Verb::WriteImm, Verb::Send];

    /// All of them.
    const CALLS: [Verb; 3] = [Verb::WriteImm, Verb::Send, Verb::WritePoll];

    /// What calls are compared with.
    pub fn bare(self) -> Verb {
        match self {
            Verb::WritePoll => Verb::WriteImm,
            verb => verb,
        }
    }
}

impl Path {
    /// Both in the same way.
    pub const fn both(verb: Verb) -> Path {
        Path {
            request: verb,
            reply: Reply::Pushed(verb),
        }
    }

    /// All of them: those that go both ways alike, then those whose replies are fetched, then the others.
    pub fn all() -> Vec<Path> {
        let mut all = Verb::CALLS.map(Path::both).to_vec();
        for reply in [
            Reply::Fetched,
            Reply::Hybrid,
            Reply::Pushed(Verb::Send),
            Reply::Pushed(Verb::WriteImm),
            Reply::Pushed(Verb::WritePoll),
        ] {
            for request in Verb::CALLS {
                let path = Path { request, reply };
                if !all.contains(&path) {
                    all.push(path);
                }
            }
        }
        all
    }

    /// As the crate names them.
    pub fn parts(self) -> (RequestPath, ReplyPath) {
        let request = match self.request {
            Verb::Send => RequestPath::Send,
            Verb::WriteImm => RequestPath::WriteImm,
            Verb::WritePoll => RequestPath::WritePoll,
        };
        let reply = match self.reply {
            Reply::Pushed(Verb::Send) => ReplyPath::Send,
            Reply::Pushed(Verb::WriteImm) => ReplyPath::WriteImm,
            Reply::Pushed(Verb::WritePoll) => ReplyPath::WritePoll,
            Reply::Fetched => ReplyPath::Fetch,
            Reply::Hybrid => ReplyPath::Hybrid,
        };
        (request, reply)
    }
}

impl Size {
    /// From short to long.
    pub const ALL: [Size; 7] = [
        Size::B0,
        Size::B64,
        Size::KiB1,
        Size::KiB4,
        Size::KiB64,
        Size::MiB1,
        Size::MiB64,
    ];

    /// In bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Size::B0 => 0,
            Size::B64 => 64,
            Size::KiB1 => 1 << 10,
            Size::KiB4 => 4 << 10,
            Size::KiB64 => 64 << 10,
            Size::MiB1 => 1 << 20,
            Size::MiB64 => 64 << 20,
        }
    }

    /// How messages of this length are timed.
    pub fn group(self) -> Group {
        match self {
            Size::B0 | Size::B64 | Size::KiB1 | Size::KiB4 => Group::Sixteen,
            Size::KiB64 | Size::MiB1 | Size::MiB64 => Group::One,
        }
    }

    /// The length of the messages that calls of this length are compared with: an rpc has a header, so that nothing takes a cache line too.
    pub fn message(self) -> Size {
        match self {
            Size::B0 => Size::B64,
            other => other,
        }
    }
}

impl Flow {
    /// Both.
    pub const ALL: [Flow; 2] = [Flow::Serial, Flow::Pipelined];

    /// Most messages of this length on their way.
    pub fn window(self, size: Size) -> usize {
        match self {
            Flow::Serial => 1,
            Flow::Pipelined => (WINDOW_BYTES / size.bytes().max(1)).clamp(2, WINDOW),
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Send => "send",
            Verb::WriteImm => "write_imm",
            Verb::WritePoll => "write_poll",
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Path { request, reply } = self;
        match reply {
            Reply::Pushed(verb) if verb == request => request.fmt(f),
            Reply::Pushed(verb) => write!(f, "{request}+{verb}"),
            Reply::Fetched => write!(f, "{request}+fetch"),
            Reply::Hybrid => write!(f, "{request}+hybrid"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Size::B0 => "0B",
            Size::B64 => "64B",
            Size::KiB1 => "1KiB",
            Size::KiB4 => "4KiB",
            Size::KiB64 => "64KiB",
            Size::MiB1 => "1MiB",
            Size::MiB64 => "64MiB",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_paths_is_there_once_and_has_a_name() {
        let names: Vec<_> = Path::all().iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "write_imm",
                "send",
                "write_poll",
                "write_imm+fetch",
                "send+fetch",
                "write_poll+fetch",
                "write_imm+hybrid",
                "send+hybrid",
                "write_poll+hybrid",
                "write_imm+send",
                "write_poll+send",
                "send+write_imm",
                "write_poll+write_imm",
                "write_imm+write_poll",
                "send+write_poll"
            ]
        );
    }

    #[test]
    fn long_messages_have_a_window_of_so_many_bytes() {
        let windows = Size::ALL.map(|size| Flow::Pipelined.window(size));
        assert_eq!(windows, [64, 64, 64, 64, 64, 16, 2]);
        assert!(Size::ALL.iter().all(|size| Flow::Serial.window(*size) == 1));
    }
}
