//! What methods answer with, and how it is given: at once, later, or in parts.

use super::client::frame_list;
use super::encoding::Encoding;
use super::error::EncodeError;
use super::frame;
use super::method::Method;
use super::received::without_first;
use crate::names::Code;
use crate::payload::Payload;
use crate::server::{PartError, PartsResponder, Responder};
use mempool::{AllocError, Pool, SgList};
use std::fmt;
use std::marker::PhantomData;

/// A method's reason to fail, for the caller's [`CallError::Remote`](crate::CallError::Remote).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// The kind of reason.
    pub code: Code,
    /// The reason in words.
    pub message: String,
}

impl Failure {
    /// A reason of this kind, in words.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }
}

/// No memory for the answer: the caller may try again later.
impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Failure {
        Failure::new(Code::OVERLOADED, error.to_string())
    }
}

/// A method's reply: a header, and segments behind it.
#[derive(Debug)]
pub struct Answer<V> {
    header: V,
    rest: SgList,
}

/// As it leaves.
enum Message {
    Bytes(Vec<u8>),
    List(SgList),
}

impl Payload for Message {
    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Message::Bytes(bytes) => Some(bytes),
            Message::List(_) => None,
        }
    }

    fn into_segments(self) -> SgList {
        match self {
            Message::Bytes(_) => SgList::new(),
            Message::List(list) => list,
        }
    }
}

/// Why an answer cannot leave.
enum Unfit {
    Value(EncodeError),
    Memory(AllocError),
}

impl From<Unfit> for Failure {
    fn from(unfit: Unfit) -> Failure {
        match unfit {
            Unfit::Value(error) => Failure::new(Code::INTERNAL, error.to_string()),
            Unfit::Memory(error) => error.into(),
        }
    }
}

impl<V> Answer<V> {
    /// Nothing but a header.
    pub fn new(header: V) -> Answer<V> {
        Answer {
            header,
            rest: SgList::new(),
        }
    }

    /// A header, and what leaves from where it is. One segment of a list is the header's.
    pub fn with(header: V, rest: impl Into<SgList>) -> Answer<V> {
        Answer {
            header,
            rest: rest.into(),
        }
    }

    /// The header, and what was to leave behind it.
    pub fn into_parts(self) -> (V, SgList) {
        (self.header, self.rest)
    }

    /// Header and rest as one message, for `M` with a reply of this type. The rest is taken out of the answer, unless this fails.
    fn encode<M>(&mut self, pool: &Pool) -> Result<Message, Unfit>
    where
        M: Method<Reply: Encoding<Value = V>>,
    {
        let mut message = Vec::new();
        frame::encode::<M::Reply>(M::VERSION, &self.header, &mut message).map_err(Unfit::Value)?;
        match self.rest.segment_count() {
            0 => Ok(Message::Bytes(message)),
            SgList::MAX => {
                let text = "too many segments: the header needs one".to_owned();
                Err(Unfit::Value(EncodeError(text)))
            }
            _ => {
                let head = pool.alloc_from_slice(&message).map_err(Unfit::Memory)?;
                Ok(Message::List(frame_list(
                    head,
                    std::mem::take(&mut self.rest),
                )))
            }
        }
    }

    /// Puts the rest of a message that was not taken back.
    fn restore(mut self, message: Message) -> Answer<V> {
        self.rest = without_first(message.into_segments());
        self
    }
}

/// What the reply of a method has as its header.
type Header<M> = <<M as Method>::Reply as Encoding>::Value;

/// The right, and the duty, to answer one request with the reply of its method, as [`Responder`] is.
#[must_use = "dropping it answers with an error"]
pub struct Reply<M: Method> {
    responder: Responder,
    pool: Pool,
    method: PhantomData<fn() -> M>,
}

impl<M: Method> Reply<M> {
    pub(super) fn new(responder: Responder, pool: &Pool) -> Reply<M> {
        Reply {
            responder,
            pool: pool.clone(),
            method: PhantomData,
        }
    }

    /// Answers.
    pub fn send(self, answer: Answer<Header<M>>) {
        let mut answer = answer;
        match answer.encode::<M>(&self.pool) {
            Ok(message) => self.responder.reply(message),
            Err(unfit) => self.fail(unfit.into()),
        }
    }

    /// Answers with an error.
    pub fn fail(self, failure: Failure) {
        self.responder.fail(failure.code, failure.message);
    }

    /// Answers in parts, each with a header and a rest of its own, for a client that asks with
    /// [`ServiceClient::call_parts`](super::ServiceClient::call_parts): as [`Responder::in_parts`].
    pub fn in_parts(self) -> ReplyParts<M> {
        ReplyParts {
            pool: self.pool,
            parts: self.responder.in_parts(),
            method: PhantomData,
        }
    }

    /// Answers in parts that are made one by one, when the client asks for them: as [`Responder::stream`].
    pub fn stream<I>(self, parts: I)
    where
        I: IntoIterator<Item = Result<Answer<Header<M>>, Failure>>,
        I::IntoIter: 'static,
    {
        let pool = self.pool;
        self.responder.stream(parts.into_iter().map(move |part| {
            let encoded = part.and_then(|mut part| part.encode::<M>(&pool).map_err(Failure::from));
            encoded.map_err(|failure| (failure.code, failure.message))
        }));
    }
}

impl<M: Method> fmt::Debug for Reply<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({})", M::NAME)
    }
}

/// Answers a request in parts: made by [`Reply::in_parts`].
///
/// Dropped before [`finish`](Self::finish) or [`fail`](Self::fail), it ends the reply with [`Code::UNANSWERED`].
#[must_use = "dropping it ends the reply with an error"]
pub struct ReplyParts<M: Method> {
    parts: PartsResponder,
    pool: Pool,
    method: PhantomData<fn() -> M>,
}

impl<M: Method> ReplyParts<M> {
    /// Gives one more part. It does not wait: a few parts may wait for the client, others are given back.
    ///
    /// # Errors
    /// [`PartError`].
    #[expect(
        clippy::result_large_err,
        reason = "what is not taken comes back, as from `PartsResponder`"
    )]
    pub fn part(&mut self, answer: Answer<Header<M>>) -> Result<(), PartError<Answer<Header<M>>>> {
        match self.parts.room() {
            None => return Err(PartError::Gone),
            Some(0) => return Err(PartError::Full(answer)),
            Some(_) => {}
        }
        let mut answer = answer;
        let message = match answer.encode::<M>(&self.pool) {
            Ok(message) => message,
            Err(Unfit::Memory(error)) => return Err(PartError::Memory(answer, error)),
            Err(Unfit::Value(error)) => return Err(PartError::Encode(answer, error)),
        };
        self.parts.part(message).map_err(|error| match error {
            PartError::Full(message) => PartError::Full(answer.restore(message)),
            PartError::Memory(message, e) => PartError::Memory(answer.restore(message), e),
            PartError::Encode(message, e) => PartError::Encode(answer.restore(message), e),
            PartError::Gone => PartError::Gone,
        })
    }

    /// How many parts would be taken now; `None` if the client does not want the rest.
    pub fn room(&self) -> Option<usize> {
        self.parts.room()
    }

    /// There are no more parts.
    pub fn finish(self) {
        self.parts.finish();
    }

    /// Ends the reply with an error, which the client gets after the parts that were given.
    pub fn fail(self, failure: Failure) {
        self.parts.fail(failure.code, failure.message);
    }
}

impl<M: Method> fmt::Debug for ReplyParts<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplyParts({}, room {:?})", M::NAME, self.room())
    }
}
