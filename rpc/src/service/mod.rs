//! Services with typed methods, over [`Client::call`](crate::Client::call) and the server's handlers.
//!
//! A [`Method`] is a type: it has a number, a version, and the encodings of its request and its reply. A server describes what it offers by
//! [`Service::methods`], and a [`Dispatcher`] made of it is the handler of a core. A [`ServiceClient`] asks once, when it is made, which methods
//! and versions the peer has; a call of another version is an error on this end, and nothing is sent.
//!
//! ```text
//!   0            4            8                8 + n
//!   | version, codec | n      | header, encoded | the rest: raw bytes, segments of either end |
//! ```
//!
//! Each message is a *header*, encoded by [`Postcard`] (feature `serde`) or [`Plain`] (feature `zerocopy`, read where it lies), and behind it
//! as many raw bytes as one likes. These are never encoded or copied: they leave as segments of the pool, and arrive in one buffer of the right length.
//!
#![cfg_attr(
    feature = "serde",
    doc = r##"
```
use rpc::service::{Answer, Call, Dispatcher, Failure, Method, Methods, Postcard, Service, ServiceClient};
use rpc::{Client, Deadline, Server};

/// Adds numbers.
struct Sum;

impl Method for Sum {
    const NUMBER: u16 = 1;
    const VERSION: u16 = 1;
    const NAME: &'static str = "sum";
    type Request = Postcard<Vec<u32>>;
    type Reply = Postcard<u64>;
}

struct Calculator;

impl Service for Calculator {
    const NAME: &'static str = "calculator";
    fn methods(methods: &mut Methods<Self>) {
        methods.add::<Sum>(|_, call| {
            Ok(Answer::new(call.header().iter().map(|&n| u64::from(n)).sum()))
        });
    }
}

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let server = Server::bind("127.0.0.1:0")?
    .serve(|core| Dispatcher::new(Calculator, core.pool()).into_handler())?;

let deadline = Deadline::after_ms(10_000);
let mut calculator = ServiceClient::new(Client::connect(server.local_addr())?, deadline)?;
let sum = calculator.call::<Sum>(&vec![1, 2, 3], deadline)?;
assert_eq!(*sum.header(), 6);
# Ok(()) }
```
"##
)]

mod answer;
mod client;
mod dispatch;
mod encoding;
mod error;
mod frame;
mod listing;
mod method;
mod parts;
mod pending;
#[cfg(feature = "zerocopy")]
mod plain;
#[cfg(feature = "serde")]
mod postcard;
mod received;

pub use answer::{Answer, Failure, Reply, ReplyParts};
pub use client::ServiceClient;
pub use dispatch::{Call, Dispatcher, Methods};
pub use encoding::Encoding;
pub use error::{DecodeError, EncodeError, ServiceError, Unsent, UnsentReason};
pub use listing::{Listing, Offer};
pub use method::{LISTING, Method, Service};
pub use parts::{Parts, PartsIter};
pub use pending::Pending;
#[cfg(feature = "zerocopy")]
pub use plain::Plain;
#[cfg(feature = "serde")]
pub use postcard::Postcard;
pub use received::Received;

#[cfg(all(feature = "fuzzing", feature = "serde", feature = "zerocopy"))]
pub(crate) use frame::{Frame, encode as frame_bytes};
