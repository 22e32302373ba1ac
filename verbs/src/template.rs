//! A request that is written anew for each post.

use ibverbs_sys::ibv_sge;

/// A request in the members that the operation has: the others hold what an earlier one left, and no device looks at them. So none of it has to
/// be zeroed each time. With what else a post needs in memory, which is cheaper here than on the stack of whoever posts.
pub(crate) struct Template<R> {
    request: R,
    segment: ibv_sge,
    /// Null when the library is called: what it wrote in an earlier call, even if that succeeded, is no refusal.
    bad: *mut R,
}

// SAFETY: the pointers are set when the request is posted, and not followed afterwards.
unsafe impl<R> Send for Template<R> {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl<R> Sync for Template<R> {}

/// The segments of a request.
pub(crate) enum Segments {
    One(ibv_sge),
    /// A list of so many, elsewhere.
    Listed(*mut ibv_sge, usize),
}

/// A request that is ready, and where the library names one that it refuses.
pub(crate) struct Ready<R> {
    pub(crate) request: *mut R,
    pub(crate) bad: *mut *mut R,
}

impl<R> Ready<R> {
    /// Whether the library has named the request as refused.
    ///
    /// # Safety
    /// The template lives, and is not used otherwise.
    pub(crate) unsafe fn names_refused(self) -> bool {
        // SAFETY: the caller's contract.
        let bad = unsafe { self.bad.read() };
        std::ptr::eq(bad, self.request)
    }
}

impl<R: Default> Template<R> {
    pub(crate) fn new() -> Template<R> {
        Template {
            request: R::default(),
            segment: ibv_sge::default(),
            bad: std::ptr::null_mut(),
        }
    }

    /// Lets `fill` write the request, which is handed its segments. `next` is null.
    #[inline(always)]
    pub(crate) fn ready(
        &mut self,
        segments: Segments,
        fill: impl FnOnce(&mut R, *mut ibv_sge, i32),
    ) -> Ready<R> {
        let (list, count) = match segments {
            Segments::One(segment) => {
                self.segment = segment;
                (&raw mut self.segment, 1)
            }
            Segments::Listed(list, count) => (list, count as i32),
        };
        fill(&mut self.request, list, count);
        self.bad = std::ptr::null_mut();
        Ready {
            request: &raw mut self.request,
            bad: &raw mut self.bad,
        }
    }
}
