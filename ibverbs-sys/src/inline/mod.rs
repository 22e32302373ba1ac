//! The functions that verbs.h defines as `static inline`, in Rust.
//!
//! They are in no shared library: a C program compiles them in. Each is one indirect call, through `context->ops`, through
//! the object itself (`ibv_qp_ex`, `ibv_cq_ex`, `ibv_wq`, `ibv_dm`), or through the `verbs_context` that surrounds an
//! `ibv_context`. Only the last kind is checked for presence, as in verbs.h: there the library may be older than the caller,
//! and an operation it does not know yields `EOPNOTSUPP`. The others are filled in by the library for every device (with a
//! stub that returns `EOPNOTSUPP`), except where a function's text says otherwise.
//!
//! Where verbs.h falls back to an exported function, the table comes as the first argument.
//!
//! # Safety, for all of them
//!
//! Pointers must be valid for what the man page of the function says, objects alive, and structures as the provider of the
//! device made them. The `ibv_context` of a provider whose `abi_compat` is [`VERBS_ABI_IS_EXTENDED`] must lie inside a
//! `verbs_context`, and the pointer to it must be usable for all of it (derived from a pointer to the outer structure).

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

use crate::bindings::*;

mod completion;
mod connection;
mod data_path;
mod memory;
mod object;
mod query;
mod raw_packet;
mod work_request;

pub use completion::*;
pub use connection::*;
pub use data_path::*;
pub use memory::*;
pub use object::*;
pub use query::*;
pub use raw_packet::*;
pub use work_request::*;

/// Value of `ibv_context::abi_compat` that says: this context lies inside a [`verbs_context`].
#[doc(alias = "__VERBS_ABI_IS_EXTENDED")]
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The structure around `ctx`, or NULL when there is none (a provider of the first ABI).
///
/// # Safety
///
/// `ctx` must be a live context; see the [module](self).
#[inline]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: `ctx` is live, and marked extended only when it lies inside a verbs_context.
    unsafe {
        if (*ctx).abi_compat != VERBS_ABI_IS_EXTENDED {
            return core::ptr::null_mut();
        }
        ctx.byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// Whether a `verbs_context` with `sz` reaches back to a field at `offset`. The structure grows at its front; `sz` is the size
/// that its maker knew.
#[inline]
const fn reaches(sz: usize, offset: usize) -> bool {
    sz >= size_of::<verbs_context>() - offset
}

/// The operation `$field` of the `verbs_context` around `$ctx`, if there is one: `verbs_get_ctx_op` of verbs.h.
macro_rules! context_op {
    ($ctx:expr, $field:ident) => {{
        let vctx = $crate::inline::verbs_get_ctx($ctx);
        if vctx.is_null()
            || !$crate::inline::reaches(
                (*vctx).sz,
                core::mem::offset_of!($crate::bindings::verbs_context, $field),
            )
        {
            None
        } else {
            (*vctx).$field
        }
    }};
}

/// What a missing operation yields, by result type.
trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for c_int {
    #[cold]
    fn unsupported() -> Self {
        libc::EOPNOTSUPP
    }
}

impl<T> Unsupported for *mut T {
    #[cold]
    fn unsupported() -> Self {
        set_errno(libc::EOPNOTSUPP);
        core::ptr::null_mut()
    }
}

fn set_errno(value: c_int) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = value }
}

/// An operation that its provider always fills in.
///
/// # Safety
///
/// `op` must not be `None`.
#[inline(always)]
unsafe fn filled<F>(op: Option<F>) -> F {
    // SAFETY: the caller's contract.
    unsafe { op.unwrap_unchecked() }
}

/// Functions that are one call through a pointer that is always there.
macro_rules! direct {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty => $op:expr; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// See the [module](crate::inline); the operation's pointer must not be NULL.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: arguments and operation are as the caller's contract says.
            unsafe { $crate::inline::filled($op)($($arg),*) }
        }
    )* };
}

/// Functions that are one call through the `verbs_context` around a context, `EOPNOTSUPP` when it lacks the operation.
macro_rules! extended {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty => $ctx:expr, $field:ident; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// See the [module](crate::inline).
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: arguments and context are as the caller's contract says.
            unsafe {
                match $crate::inline::context_op!($ctx, $field) {
                    Some(op) => op($($arg),*),
                    None => $crate::inline::Unsupported::unsupported(),
                }
            }
        }
    )* };
}

use {context_op, direct, extended};

#[cfg(test)]
mod tests;
