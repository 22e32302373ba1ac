//! A value that is owned but never shared by reference.

/// Makes a value `Sync` by offering no way to reach it through `&`: errors that carry a buffer back are `Send + Sync`, as
/// error types have to be, also when the buffer is not `Sync`.
pub(crate) struct Exclusive<T>(T);

// SAFETY: `&Exclusive<T>` gives no access to the value.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Exclusive<T> {
        Exclusive(value)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}
