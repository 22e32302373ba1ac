//! Errors of opening, creating, connecting and destroying. Those of registering and posting carry their buffers and are in
//! files of their own.

use std::io;

use crate::Gid;

/// A verb failed, or was refused before it was called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused.
    #[error("{verb} failed: {source}{}", in_brackets(.hint))]
    Verb {
        /// The verb, by its C name, and what it was about.
        verb: &'static str,
        /// What the device or kernel said.
        source: io::Error,
        /// Likely cause and what to do; may be empty.
        hint: String,
    },
    /// A value is outside of what the device or the protocol allows.
    #[error("{what} is {value}, but must be {min} to {max}")]
    OutOfRange {
        /// The attribute.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A region, queue or channel of zero bytes or entries was asked for.
    #[error("{what} must not be empty")]
    Empty {
        /// What it was.
        what: &'static str,
    },
    /// The access asked for makes no sense for this kind of memory.
    #[error("access {access:?} does not fit {kind} memory: {hint}")]
    Access {
        /// What was asked for.
        access: crate::Access,
        /// The kind of memory.
        kind: &'static str,
        /// What to use instead.
        hint: &'static str,
    },
    /// Objects of different devices were combined.
    #[error("{what} belongs to another open device than the protection domain")]
    OtherDevice {
        /// The object that does not fit.
        what: &'static str,
    },
    /// A shared receive queue serves either connections or datagrams, since a datagram's first 40 bytes are a network header.
    #[error("the shared receive queue is {}", if *.datagrams { "for connections: build it with SharedRecvBuilder::datagrams" } else { "for datagrams" })]
    OtherService {
        /// Whether the queue pair is for datagrams.
        datagrams: bool,
    },
    /// A completion does not say who sent the message, or in a header that makes no sense.
    #[error("the sender of what was received is not known: {why}")]
    NoSource {
        /// What is missing.
        why: &'static str,
    },
    /// The queues on a completion queue could overflow it, which would break all of their queue pairs, or lose completions
    /// silently.
    ///
    /// Queue pairs that were destroyed count for the work they had in flight, until the queue was polled empty: devices may leave
    /// completions of theirs in it.
    #[error(
        "the completion queue has {depth} entries, but its queue pairs could have {claimed} completions outstanding{}make it deeper, \
         the queues shallower, or allow it with RcBuilder::overcommit_cq", left_over(*.leftover)
    )]
    CqTooSmall {
        /// Entries of the completion queue.
        depth: u64,
        /// Sum of the depths of its queues, the new ones included, and of `leftover`.
        claimed: u64,
        /// Completions that queue pairs destroyed meanwhile may have left. None once the queue was polled empty, that is, until
        /// [`Cq::poll`](crate::Cq::poll) yielded nothing.
        leftover: u64,
    },
    /// A completion queue can serve 65,533 queues.
    #[error("the completion queue already serves 65533 queues")]
    TooManyQueues,
    /// Cursors are for extended completion queues.
    #[error("the completion queue is not read field by field: build it with CqBuilder::extended")]
    NotExtended,
    /// Datagrams need a completion queue that tells who sent them.
    #[error(
        "the completion queue does not tell who sent a datagram: build it with WcFields::SOURCE"
    )]
    SourceUntold,
    /// Waiting needs a completion channel.
    #[error("the completion queue has no channel to wait on: build it with CqBuilder::channel")]
    NoChannel,
    /// The device does not offer what was asked for; nothing has changed.
    #[error("{device} does not offer {what}: {source}")]
    Unsupported {
        /// What it does not offer, with the verb.
        what: &'static str,
        /// The device.
        device: String,
        /// What the device or its library said.
        source: io::Error,
    },
    /// The completion queue overflowed or its device failed.
    #[error(
        "the completion queue is broken (ibv_poll_cq returned {code}): it overflowed, or the device failed"
    )]
    CqBroken {
        /// What `ibv_poll_cq` returned.
        code: i32,
    },
}

fn in_brackets(hint: &str) -> String {
    if hint.is_empty() {
        String::new()
    } else {
        format!(" ({hint})")
    }
}

fn left_over(count: u64) -> String {
    if count == 0 {
        ": ".to_owned()
    } else {
        format!(", {count} of them left by destroyed ones: poll it empty and try again, or else ")
    }
}

impl Error {
    pub(crate) fn verb(verb: &'static str, source: io::Error) -> Error {
        Error::Verb {
            verb,
            source,
            hint: String::new(),
        }
    }

    pub(crate) fn hinted(verb: &'static str, source: io::Error, hint: impl Into<String>) -> Error {
        Error::Verb {
            verb,
            source,
            hint: hint.into(),
        }
    }

    /// A verb failed: because the device has no such thing, or for another reason, about which `hint` says more.
    pub(crate) fn unless_unsupported(
        device: &str,
        what: &'static str,
        verb: &'static str,
        source: io::Error,
        hint: impl Into<String>,
    ) -> Error {
        match source.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => Error::Unsupported {
                what,
                device: device.to_owned(),
                source,
            },
            _ => Error::hinted(verb, source, hint),
        }
    }

    /// The error number the device or kernel gave, if the failure came from there.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Verb { source, .. } | Error::Unsupported { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// `Ok(value)` when it is within `min..=max`.
    pub(crate) fn in_range(
        what: &'static str,
        value: u64,
        min: u64,
        max: u64,
    ) -> Result<(), Error> {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(Error::OutOfRange {
                what,
                value,
                min,
                max,
            })
        }
    }
}

/// A device could not be found or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no device at all.
    #[error("there is no RDMA device: {}", .notes.join("; "))]
    NoDevice {
        /// Why, one sentence for each place that was looked at.
        notes: Vec<String>,
    },
    /// No device has that name.
    #[error("there is no device \"{name}\"; available: {}", list(.available))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        available: Vec<String>,
    },
    /// The text does not name a device.
    #[error("\"{spec}\" is not name[:port[:gid]]: {why}")]
    BadSpec {
        /// The text.
        spec: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The device has no such port.
    #[error("device {device} has no port {port}; its ports are 1 to {ports}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
        /// Number of ports it has.
        ports: u8,
    },
    /// The port's GID table has no such entry, or an empty one.
    #[error("GID index {index} of {device} port {port} is {what}; usable: {}", list(.usable))]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index asked for.
        index: u32,
        /// What is wrong with it.
        what: String,
        /// Indexes that are not empty, with their GIDs.
        usable: Vec<String>,
    },
    /// The device is there but cannot be used.
    #[error("device {device}: {error}")]
    Device {
        /// The device.
        device: String,
        /// What failed.
        #[source]
        error: Error,
    },
    /// The device list could not be read.
    #[error("the devices could not be listed: {0}")]
    List(#[source] Error),
}

fn list(items: &[String]) -> String {
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

/// A queue pair could not be brought up to its peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A state change was refused.
    #[error(
        "ibv_modify_qp from {from} to {to} failed: {source}: {hint} (with {attributes}, local {local}, peer {peer})"
    )]
    Modify {
        /// State the queue pair was in.
        from: &'static str,
        /// State it was to reach.
        to: &'static str,
        /// Attributes passed, by the names of their mask bits.
        attributes: &'static str,
        /// What the device or kernel said.
        source: io::Error,
        /// Port and GID used on this side.
        local: String,
        /// The peer's end point.
        peer: String,
        /// Likely cause and what to do.
        hint: Box<str>,
    },
    /// The peer's end point cannot be reached from this port.
    #[error("the peer's end point {peer} cannot be reached from {local}: {why}")]
    Unreachable {
        /// Port and GID used on this side.
        local: String,
        /// The peer's end point.
        peer: String,
        /// Why not.
        why: &'static str,
    },
    /// The queue pair was destroyed before it was connected.
    #[error("the queue pair was destroyed before it was connected")]
    Destroyed,
}

/// A queue pair could not be destroyed to give its buffers back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// The halves do not belong together; nothing was destroyed, and both were dropped.
    #[error("the send queue belongs to queue pair {send:#x}, the receive queue to {recv:#x}")]
    DifferentQueuePairs {
        /// Number of the send queue's queue pair.
        send: u32,
        /// Number of the receive queue's queue pair.
        recv: u32,
    },
    /// The queue pair has a receive queue of its own, and [`destroy`](crate::destroy) wants both; the send queue was dropped.
    #[error("queue pair {qp_num:#x} has a receive queue of its own: use verbs::destroy with both")]
    NotShared {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The device refused; it may still use the buffers, so they are leaked.
    #[error("ibv_destroy_qp failed, and the buffers in flight are leaked: {0}")]
    Refused(#[source] io::Error),
}

/// How a port and GID are named in errors.
pub(crate) fn local_name(device: &str, port: u8, gid_index: u8, gid: &Gid) -> String {
    format!("{device} port {port} GID {gid_index} {gid}")
}
