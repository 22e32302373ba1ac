//! Calls to wait for later.

use super::{Client, Reply};
use crate::error::CallError;
use crate::wire::SlotId;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// What nobody will ask about any more. Shared by a client and its pending calls.
pub(super) type Dropped = Rc<RefCell<Vec<Forgotten>>>;

/// Something that nobody will ask about any more.
pub(super) enum Forgotten {
    /// A call, by key.
    Call(usize),
    /// The rest of a reply in parts, of this epoch.
    Parts(SlotId, u64),
    /// Nothing: there is something to be sent.
    Unsent,
}

/// A request on its way.
///
/// Dropping it is allowed: the request goes on, its reply is thrown away.
#[must_use = "the reply comes from wait"]
pub struct Pending {
    key: Option<usize>,
    dropped: Dropped,
}

impl Pending {
    pub(super) fn new(key: usize, dropped: &Dropped) -> Pending {
        Pending {
            key: Some(key),
            dropped: Rc::clone(dropped),
        }
    }

    /// Waits for the reply, until the deadline that the request was sent with.
    ///
    /// A reply that is there is given also after the deadline.
    ///
    /// # Errors
    /// As [`Client::call`], and [`CallError::WrongClient`].
    pub fn wait(mut self, client: &mut Client) -> Result<Reply, CallError> {
        match self
            .key
            .take_if(|_| Rc::ptr_eq(&self.dropped, &client.dropped))
        {
            Some(key) => client.finish_call(key),
            // `self` still has its key: it is dropped like any other.
            None => Err(CallError::WrongClient),
        }
    }

    /// Whether waiting would give an outcome at once. Takes in what has arrived.
    pub fn is_ready(&self, client: &mut Client) -> bool {
        client.progress();
        match self.key {
            Some(key) if Rc::ptr_eq(&self.dropped, &client.dropped) => client.has_outcome(key),
            _ => true,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.dropped.borrow_mut().push(Forgotten::Call(key));
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
