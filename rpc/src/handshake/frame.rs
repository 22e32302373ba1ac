//! Frames of the control connection.
//!
//! ```text
//!  0 magic "VBRP"   4 version (u16)   6 kind (u8)   7 reserved: 0   8 length of what follows (u16)
//! ```

use super::HandshakeError;
use verbs::RemoteRegion;

/// Length of what precedes every frame, in bytes.
pub const PREFIX_LEN: usize = 10;
/// Longest contents of a frame in bytes.
pub const FRAME_MAX: usize = 512;
/// Longest endpoint that a frame can carry, in bytes.
const ENDPOINT_MAX: usize = 128;
/// Longest text of a refusal, in bytes.
const TEXT_MAX: usize = FRAME_MAX - 4;
/// Version of the handshake.
pub(super) const VERSION: u16 = 3;

const MAGIC: [u8; 4] = *b"VBRP";
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSE: u8 = 3;
const GOODBYE: u8 = 4;
const READY: u8 = 5;

/// What a client opens with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Bitmap of the request paths that it can do.
    pub request_paths: u8,
    /// Bitmap of the reply paths that it can do.
    pub reply_paths: u8,
    /// Receive entries that it has posted.
    pub window: u32,
    /// Largest inline payload that fits into each of them, in bytes.
    pub inline_limit: u32,
    /// Calls it would like to have on their way at once.
    pub slots: u32,
    /// Largest body it takes as an answer, in bytes.
    pub max_message: u64,
    /// Optional features; unknown bits are ignored.
    pub features: u64,
    /// Its queue pair, in the encoding of the verbs layer.
    pub endpoint: Vec<u8>,
    /// Its receive ring, if it has one.
    pub ring: Option<RemoteRegion>,
    /// Its cell, if it offers to write requests into a ring that is polled.
    pub cell: Option<RemoteRegion>,
}

/// What a server that takes the connection answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The request path that will be used.
    pub request_path: u8,
    /// The reply path that will be used.
    pub reply_path: u8,
    /// Receive entries that the server has posted.
    pub window: u32,
    /// Largest inline payload in either direction, in bytes.
    pub inline_limit: u32,
    /// Calls that may be on their way at once.
    pub slots: u32,
    /// Largest body in either direction, in bytes.
    pub max_message: u64,
    /// Features that both have.
    pub features: u64,
    /// The server's queue pair, in the encoding of the verbs layer.
    pub endpoint: Vec<u8>,
    /// The server's receive ring, if requests go there.
    pub ring: Option<RemoteRegion>,
    /// Where the server leaves replies, if it does.
    pub shelf: Option<RemoteRegion>,
    /// The server's cell, if it writes replies into a ring that is polled.
    pub cell: Option<RemoteRegion>,
}

/// Why a server does not take a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum RefusalCode {
    /// What the client said cannot be agreed upon.
    Terms = 1,
    /// The server has as many connections as it takes, or no memory for another.
    Full = 2,
    /// The queue pairs could not be connected.
    Device = 3,
    /// The server is stopping.
    Stopping = 4,
    /// Something that this version does not know.
    Other = 0,
}

/// A server does not take a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason in words, for people.
    pub text: String,
}

/// The last word of an end that closes the connection on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Goodbye {
    /// Stopping, or done.
    Closing = 1,
    /// The peer broke the rules of the protocol.
    Violation = 2,
    /// The peer left too many calls unanswered.
    Unanswered = 3,
    /// The device reported an error.
    Device = 4,
    /// The server is stopping, and has answered all requests that it has started; others never will be.
    Drained = 5,
    /// Something that this version does not know.
    Other = 0,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`Refusal`].
    Refuse(Refusal),
    /// See [`Goodbye`].
    Goodbye(Goodbye),
    /// The server has accepted the client's certificate: it may say hello. Only where there are certificates.
    Ready,
}

impl Frame {
    /// The frame as bytes, prefix included.
    ///
    /// Endpoints and texts that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(96);
        let kind = match self {
            Frame::Hello(hello) => {
                body.extend([hello.request_paths, hello.reply_paths]);
                put_limits(&mut body, hello.window, hello.inline_limit, hello.slots);
                body.extend(hello.max_message.to_le_bytes());
                body.extend(hello.features.to_le_bytes());
                put_bytes(&mut body, &hello.endpoint, ENDPOINT_MAX);
                put_ring(&mut body, hello.ring);
                put_last(&mut body, hello.cell);
                HELLO
            }
            Frame::Welcome(welcome) => {
                body.extend([welcome.request_path, welcome.reply_path]);
                put_limits(
                    &mut body,
                    welcome.window,
                    welcome.inline_limit,
                    welcome.slots,
                );
                body.extend(welcome.max_message.to_le_bytes());
                body.extend(welcome.features.to_le_bytes());
                put_bytes(&mut body, &welcome.endpoint, ENDPOINT_MAX);
                put_ring(&mut body, welcome.ring);
                put_ring(&mut body, welcome.shelf);
                put_last(&mut body, welcome.cell);
                WELCOME
            }
            Frame::Refuse(refusal) => {
                body.extend((refusal.code as u16).to_le_bytes());
                let mut text = refusal.text.as_str();
                while text.len() > TEXT_MAX {
                    let mut cut = TEXT_MAX;
                    while !text.is_char_boundary(cut) {
                        cut -= 1;
                    }
                    text = &text[..cut];
                }
                put_bytes(&mut body, text.as_bytes(), TEXT_MAX);
                REFUSE
            }
            Frame::Goodbye(goodbye) => {
                body.extend((*goodbye as u16).to_le_bytes());
                GOODBYE
            }
            Frame::Ready => READY,
        };
        let mut out = Vec::with_capacity(PREFIX_LEN + body.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([kind, 0]);
        out.extend((body.len() as u16).to_le_bytes());
        out.append(&mut body);
        out
    }

    /// Checks a prefix; the kind and the length of what follows.
    fn decode_prefix(prefix: &[u8; PREFIX_LEN]) -> Result<(u8, usize), HandshakeError> {
        let magic = [prefix[0], prefix[1], prefix[2], prefix[3]];
        if magic != MAGIC {
            return Err(HandshakeError::Magic(magic));
        }
        let version = u16::from_le_bytes([prefix[4], prefix[5]]);
        if version != VERSION {
            return Err(HandshakeError::Version(version));
        }
        let kind = prefix[6];
        if !(HELLO..=READY).contains(&kind) {
            return Err(HandshakeError::Kind(kind));
        }
        if prefix[7] != 0 {
            return Err(HandshakeError::Malformed("reserved byte is not zero"));
        }
        let len = usize::from(u16::from_le_bytes([prefix[8], prefix[9]]));
        if len > FRAME_MAX {
            return Err(HandshakeError::Length(len));
        }
        Ok((kind, len))
    }

    fn decode_body(kind: u8, body: &[u8]) -> Result<Frame, HandshakeError> {
        let mut r = Reader(body);
        let frame = match kind {
            HELLO => Frame::Hello(Hello {
                request_paths: r.u8()?,
                reply_paths: r.u8()?,
                window: r.u32()?,
                inline_limit: r.u32()?,
                slots: r.u32()?,
                max_message: r.u64()?,
                features: r.u64()?,
                endpoint: r.bytes(ENDPOINT_MAX)?.to_vec(),
                ring: r.ring()?,
                cell: r.last()?,
            }),
            WELCOME => Frame::Welcome(Welcome {
                request_path: r.u8()?,
                reply_path: r.u8()?,
                window: r.u32()?,
                inline_limit: r.u32()?,
                slots: r.u32()?,
                max_message: r.u64()?,
                features: r.u64()?,
                endpoint: r.bytes(ENDPOINT_MAX)?.to_vec(),
                ring: r.ring()?,
                shelf: r.ring()?,
                cell: r.last()?,
            }),
            REFUSE => Frame::Refuse(Refusal {
                code: match r.u16()? {
                    1 => RefusalCode::Terms,
                    2 => RefusalCode::Full,
                    3 => RefusalCode::Device,
                    4 => RefusalCode::Stopping,
                    _ => RefusalCode::Other,
                },
                text: String::from_utf8_lossy(r.bytes(TEXT_MAX)?)
                    .chars()
                    .map(|c| if c.is_control() { ' ' } else { c })
                    .collect(),
            }),
            GOODBYE => Frame::Goodbye(match r.u16()? {
                1 => Goodbye::Closing,
                2 => Goodbye::Violation,
                3 => Goodbye::Unanswered,
                4 => Goodbye::Device,
                5 => Goodbye::Drained,
                _ => Goodbye::Other,
            }),
            READY => Frame::Ready,
            kind => return Err(HandshakeError::Kind(kind)),
        };
        if !r.0.is_empty() {
            return Err(HandshakeError::Malformed("bytes after its end"));
        }
        Ok(frame)
    }
}

/// Collects one frame from a byte stream that comes in pieces, without reading past it.
#[derive(Debug, Clone)]
pub struct Accumulator {
    bytes: Box<[u8; PREFIX_LEN + FRAME_MAX]>,
    have: usize,
    /// Kind and length, once the prefix has been checked.
    head: Option<(u8, usize)>,
}

impl Default for Accumulator {
    fn default() -> Self {
        Accumulator::new()
    }
}

impl Accumulator {
    /// An empty one.
    pub fn new() -> Accumulator {
        Accumulator {
            bytes: Box::new([0; PREFIX_LEN + FRAME_MAX]),
            have: 0,
            head: None,
        }
    }

    /// Where the next bytes go: as many as the frame still needs, empty when it is whole.
    pub fn space(&mut self) -> &mut [u8] {
        let end = PREFIX_LEN + self.head.map_or(0, |(_, len)| len);
        &mut self.bytes[self.have..end]
    }

    /// Whether nothing has arrived yet.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Notes that `n` bytes of [`space`](Self::space) have been filled; the frame, when whole.
    ///
    /// # Errors
    /// [`HandshakeError`] as soon as the bytes cannot become a frame.
    pub fn filled(&mut self, n: usize) -> Result<Option<Frame>, HandshakeError> {
        self.have = (self.have + n).min(self.bytes.len());
        if self.head.is_none() {
            // Garbage is refused by its first bytes, not after a time limit.
            let seen = self.have.min(MAGIC.len());
            if self.bytes[..seen] != MAGIC[..seen] {
                let mut magic = [0; 4];
                magic[..seen].copy_from_slice(&self.bytes[..seen]);
                return Err(HandshakeError::Magic(magic));
            }
            if self.have < PREFIX_LEN {
                return Ok(None);
            }
            let mut prefix = [0; PREFIX_LEN];
            prefix.copy_from_slice(&self.bytes[..PREFIX_LEN]);
            self.head = Some(Frame::decode_prefix(&prefix)?);
        }
        match self.head {
            Some((kind, len)) if self.have >= PREFIX_LEN + len => {
                let frame = Frame::decode_body(kind, &self.bytes[PREFIX_LEN..PREFIX_LEN + len])?;
                self.have = 0;
                self.head = None;
                Ok(Some(frame))
            }
            _ => Ok(None),
        }
    }
}

fn put_limits(out: &mut Vec<u8>, window: u32, inline_limit: u32, slots: u32) {
    for value in [window, inline_limit, slots] {
        out.extend(value.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let bytes = &bytes[..bytes.len().min(most)];
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The key of a ring, or nothing: as many bytes as a length says.
fn put_ring(out: &mut Vec<u8>, ring: Option<RemoteRegion>) {
    let bytes = ring.map(|ring| ring.to_bytes());
    put_bytes(
        out,
        bytes.as_ref().map_or(&[], |bytes| bytes),
        RemoteRegion::LEN,
    );
}

/// The same at the end of a frame, where it is left out if there is none: as frames were before there was this field.
fn put_last(out: &mut Vec<u8>, region: Option<RemoteRegion>) {
    if region.is_some() {
        put_ring(out, region);
    }
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], HandshakeError> {
        let (head, tail) = self
            .0
            .split_at_checked(n)
            .ok_or(HandshakeError::Malformed("ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u8(&mut self) -> Result<u8, HandshakeError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, HandshakeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, HandshakeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn ring(&mut self) -> Result<Option<RemoteRegion>, HandshakeError> {
        let bytes = self.bytes(RemoteRegion::LEN)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        match bytes.first_chunk() {
            Some(bytes) => Ok(Some(RemoteRegion::from_bytes(bytes))),
            None => Err(HandshakeError::Malformed("the key of a ring is too short")),
        }
    }

    fn last(&mut self) -> Result<Option<RemoteRegion>, HandshakeError> {
        match self.0 {
            [] => Ok(None),
            _ => self.ring(),
        }
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], HandshakeError> {
        let len = usize::from(self.u16()?);
        if len > most {
            return Err(HandshakeError::Malformed("a field is too long"));
        }
        self.take(len)
    }
}

#[cfg(test)]
mod tests;
