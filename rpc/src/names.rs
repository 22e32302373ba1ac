//! Numbers that travel: methods and error codes.

use std::fmt;

/// Which of a server's functions a call is for. The numbers are the application's own, but for the last three: 65535 lists the methods of typed
/// services, 65534 and 65533 belong to replies in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Method(pub u16);

impl Method {
    /// Asks for the next part of a reply.
    pub(crate) const NEXT_PART: Method = Method(u16::MAX - 1);
    /// Says that the rest of a reply is not wanted.
    pub(crate) const NO_MORE_PARTS: Method = Method(u16::MAX - 2);

    /// Whether it belongs to replies in parts.
    #[inline]
    pub(crate) fn is_of_parts(self) -> bool {
        matches!(self, Method::NEXT_PART | Method::NO_MORE_PARTS)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method {}", self.0)
    }
}

/// Why a call failed on the server.
///
/// Numbers below [`Code::APPLICATION`] have the meanings named here; the others are the
/// application's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub u16);

impl Code {
    /// The request makes no sense.
    pub const INVALID: Code = Code(1);
    /// What was asked for does not exist.
    pub const NOT_FOUND: Code = Code(2);
    /// The server has no such method.
    pub const UNIMPLEMENTED: Code = Code(3);
    /// The server failed.
    pub const INTERNAL: Code = Code(4);
    /// The caller may not do that.
    pub const DENIED: Code = Code(5);
    /// What was to be made exists already.
    pub const EXISTS: Code = Code(6);
    /// Too much is going on, or memory is short; set by the server before a handler runs.
    pub const OVERLOADED: Code = Code(7);
    /// The caller's time was over before a handler ran; set by the server.
    pub const EXPIRED: Code = Code(8);
    /// The request or the reply is larger than was agreed upon.
    pub const TOO_LARGE: Code = Code(9);
    /// The handler dropped its `Responder` without answering; set by the server.
    pub const UNANSWERED: Code = Code(10);
    /// The handler panicked; set by the server.
    pub const PANICKED: Code = Code(11);
    /// The server has the method, but in other versions.
    pub const WRONG_VERSION: Code = Code(12);
    /// The server is stopping and takes no more requests; set by the server before a handler runs.
    pub const STOPPING: Code = Code(13);
    /// First code without a meaning of its own.
    pub const APPLICATION: Code = Code(1000);

    fn name(self) -> Option<&'static str> {
        Some(match self {
            Code::INVALID => "INVALID",
            Code::NOT_FOUND => "NOT_FOUND",
            Code::UNIMPLEMENTED => "UNIMPLEMENTED",
            Code::INTERNAL => "INTERNAL",
            Code::DENIED => "DENIED",
            Code::EXISTS => "EXISTS",
            Code::OVERLOADED => "OVERLOADED",
            Code::EXPIRED => "EXPIRED",
            Code::TOO_LARGE => "TOO_LARGE",
            Code::UNANSWERED => "UNANSWERED",
            Code::PANICKED => "PANICKED",
            Code::WRONG_VERSION => "WRONG_VERSION",
            Code::STOPPING => "STOPPING",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Code({} {name})", self.0),
            None => write!(f, "Code({})", self.0),
        }
    }
}
