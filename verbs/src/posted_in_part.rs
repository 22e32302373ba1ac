//! Several were to be posted, and not all were.

use std::fmt;

use crate::PostErrorKind;
use crate::exclusive::Exclusive;

/// Of several work requests or receives only the first were posted: up to one that was refused.
///
/// What comes before it is posted and completes as usual. The others come back with [`into_inner`](Self::into_inner).
pub struct PostedInPart<T> {
    /// Of which there were several.
    what: &'static str,
    kind: PostErrorKind,
    posted: usize,
    rest: Exclusive<Vec<T>>,
}

impl<T> PostedInPart<T> {
    #[cold]
    pub(crate) fn new(
        what: &'static str,
        kind: PostErrorKind,
        posted: usize,
        rest: Vec<T>,
    ) -> PostedInPart<T> {
        PostedInPart {
            what,
            kind,
            posted,
            rest: Exclusive::new(rest),
        }
    }

    /// One more that was not posted.
    pub(crate) fn and(self, value: T) -> PostedInPart<T> {
        let mut rest = self.rest.into_inner();
        rest.push(value);
        PostedInPart::new(self.what, self.kind, self.posted, rest)
    }

    /// Why the first of the rest was not posted.
    pub fn kind(&self) -> PostErrorKind {
        self.kind
    }

    /// How many were posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// What was given and not posted, in order.
    pub fn into_inner(self) -> Vec<T> {
        self.rest.into_inner()
    }
}

impl<T> fmt::Display for PostedInPart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "only {} {} were posted: {}",
            self.posted, self.what, self.kind
        )
    }
}

impl<T> fmt::Debug for PostedInPart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedInPart")
            .field("kind", &self.kind)
            .field("posted", &self.posted)
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for PostedInPart<T> {}
