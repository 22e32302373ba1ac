//! Registration failed, and the memory comes back.

use std::fmt;

use crate::Error;
use crate::exclusive::Exclusive;

/// Memory could not be registered; it comes back with [`into_memory`](Self::into_memory).
pub struct RegisterError<M>(Exclusive<Box<(M, Error)>>, String);

impl<M> RegisterError<M> {
    pub(crate) fn new(memory: M, error: Error) -> RegisterError<M> {
        let text = error.to_string();
        RegisterError(Exclusive::new(Box::new((memory, error))), text)
    }

    /// The memory that was to be registered.
    pub fn into_memory(self) -> M {
        self.into_parts().0
    }

    /// What failed.
    pub fn into_error(self) -> Error {
        self.into_parts().1
    }

    /// Both.
    pub fn into_parts(self) -> (M, Error) {
        *self.0.into_inner()
    }
}

impl<M> fmt::Display for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegisterError").field(&self.1).finish()
    }
}

impl<M> std::error::Error for RegisterError<M> {}

impl<M> From<RegisterError<M>> for Error {
    /// Drops the memory and keeps what failed.
    fn from(e: RegisterError<M>) -> Error {
        e.into_error()
    }
}
