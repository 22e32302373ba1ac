//! From a request to the method that it is for.

use super::answer::{Answer, Failure, Reply};
use super::encoding::Encoding;
use super::frame::Frame;
use super::listing::{Listing, Offer};
use super::method::{LISTING, Method, Service};
use crate::deadline::Deadline;
use crate::names::Code;
use crate::server::{Request, Responder};
use mempool::{AllocError, Buf, Pool};
use std::fmt;
use std::net::SocketAddr;

/// A request for one method.
pub struct Call<'a, E: Encoding> {
    request: Request<'a>,
    frame: Frame,
    held: E::Held,
}

impl<E: Encoding> Call<'_, E> {
    /// The header.
    pub fn header(&self) -> &E::Value {
        E::get(&self.held, &self.request.body()[self.frame.header()])
    }

    /// The bytes behind the header. Of a request above [`CHUNK_MAX`](crate::CHUNK_MAX), those in its first chunk: see
    /// [`rest_chunks`](Self::rest_chunks).
    pub fn rest(&self) -> &[u8] {
        &self.request.body()[self.frame.header().end..]
    }

    /// The bytes behind the header, in pieces of at most [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn rest_chunks(&self) -> impl Iterator<Item = &[u8]> {
        let others = self.request.chunks().skip(1);
        std::iter::once(self.rest()).chain(others)
    }

    /// The bytes behind the header as a buffer to keep. Large ones are not copied.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of small ones, and [`AllocError::TooLarge`] above [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn take_rest(self) -> Result<Buf, AllocError> {
        let mut buf = self.request.take_body()?;
        buf.advance(self.frame.header().end);
        Ok(buf)
    }

    /// Like [`take_rest`](Self::take_rest), for requests of any length.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of small ones.
    pub fn take_rest_chunks(self) -> Result<Vec<Buf>, AllocError> {
        let mut bufs = self.request.take_chunks()?;
        if let Some(first) = bufs.first_mut() {
            first.advance(self.frame.header().end);
        }
        Ok(bufs)
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Deadline {
        self.request.deadline()
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.request.peer()
    }
}

impl<E: Encoding<Value: fmt::Debug>> fmt::Debug for Call<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("header", self.header())
            .field("rest", &self.rest().len())
            .finish_non_exhaustive()
    }
}

type Handler<S> = Box<dyn Fn(&mut S, Frame, Request<'_>, Responder, &Pool)>;

/// The methods of a service, while they are being described.
pub struct Methods<S> {
    entries: Vec<(Offer, Handler<S>)>,
}

impl<S> Methods<S> {
    /// Adds a method that answers before it returns.
    ///
    /// # Panics
    /// If its number is [`LISTING`], or its number and version are there already.
    pub fn add<M: Method>(
        &mut self,
        run: impl Fn(
            &mut S,
            Call<'_, M::Request>,
        ) -> Result<Answer<<M::Reply as Encoding>::Value>, Failure>
        + 'static,
    ) {
        self.add_deferred::<M>(move |service, call, reply| match run(service, call) {
            Ok(answer) => reply.send(answer),
            Err(failure) => reply.fail(failure),
        });
    }

    /// Adds a method that may answer later, on the same core.
    ///
    /// # Panics
    /// If its number is [`LISTING`], or its number and version are there already.
    pub fn add_deferred<M: Method>(
        &mut self,
        run: impl Fn(&mut S, Call<'_, M::Request>, Reply<M>) + 'static,
    ) {
        assert_ne!(M::NUMBER, LISTING, "{}: the number is taken", M::NAME);
        let handler: Handler<S> = Box::new(move |service, frame, request, responder, pool| {
            match frame.decode::<M::Request>(request.body()) {
                Ok(held) => {
                    let call = Call {
                        request,
                        frame,
                        held,
                    };
                    run(service, call, Reply::new(responder, pool));
                }
                Err(error) => responder.fail(Code::INVALID, format!("{}: {error}", M::NAME)),
            }
        });
        let offer = Offer::of::<M>();
        match self.find(offer.number, offer.version) {
            Ok(_) => panic!("{} is there twice in version {}", M::NAME, M::VERSION),
            Err(at) => self.entries.insert(at, (offer, handler)),
        }
    }

    /// Where the method is, or belongs: they ascend.
    fn find(&self, number: u16, version: u16) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&(number, version), |(offer, _)| {
                (offer.number, offer.version)
            })
    }

    fn versions(&self, number: u16) -> Vec<u16> {
        let offers = self.entries.iter().map(|(offer, _)| offer);
        let of_it = offers.filter(|offer| offer.number == number);
        of_it.map(|offer| offer.version).collect()
    }
}

impl<S> fmt::Debug for Methods<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offers = self.entries.iter().map(|(offer, _)| offer);
        f.debug_list().entries(offers).finish()
    }
}

/// A service on one core: takes requests apart and hands them to their methods.
pub struct Dispatcher<S> {
    service: S,
    methods: Methods<S>,
    listing: Vec<u8>,
    pool: Pool,
}

impl<S: Service> Dispatcher<S> {
    /// Of a service's state. Headers of replies that have segments come from `pool`, usually [`Core::pool`](crate::Core::pool).
    ///
    /// # Panics
    /// As [`Methods::add`].
    pub fn new(service: S, pool: &Pool) -> Dispatcher<S> {
        let mut methods = Methods {
            entries: Vec::new(),
        };
        S::methods(&mut methods);
        let offers = methods.entries.iter().map(|(offer, _)| *offer).collect();
        Dispatcher {
            service,
            listing: Listing::new(S::NAME, offers).encode(),
            methods,
            pool: pool.clone(),
        }
    }

    /// Deals with one request. Whatever its bytes are, it is answered: with [`Code::INVALID`] if they cannot be decoded,
    /// [`Code::WRONG_VERSION`] and [`Code::UNIMPLEMENTED`] if it is for a method that the service does not have.
    pub fn handle(&mut self, request: Request<'_>, responder: Responder) {
        let number = request.method().0;
        if number == LISTING {
            return responder.reply(&self.listing);
        }
        let frame = match Frame::parse(request.body()) {
            Ok(frame) => frame,
            Err(error) => return responder.fail(Code::INVALID, error.to_string()),
        };
        match self.methods.find(number, frame.version) {
            Ok(at) => {
                let (_, handler) = &self.methods.entries[at];
                handler(&mut self.service, frame, request, responder, &self.pool);
            }
            Err(_) => self.refuse(number, frame.version, responder),
        }
    }

    #[cold]
    fn refuse(&self, number: u16, version: u16, responder: Responder) {
        let versions = self.methods.versions(number);
        if versions.is_empty() {
            responder.fail(Code::UNIMPLEMENTED, format!("no method {number}"));
        } else {
            let text = format!("method {number} has versions {versions:?}, not {version}");
            responder.fail(Code::WRONG_VERSION, text);
        }
    }

    /// As the handler of a core.
    pub fn into_handler(self) -> impl FnMut(Request<'_>, Responder) + 'static {
        let mut dispatcher = self;
        move |request: Request<'_>, responder: Responder| dispatcher.handle(request, responder)
    }
}

impl<S: Service> fmt::Debug for Dispatcher<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("service", &S::NAME)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}
