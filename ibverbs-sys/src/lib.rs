//! Raw bindings to libibverbs and librdmacm, loaded at run time.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[path = "bindings/x86_64.rs"]
#[rustfmt::skip]
mod bindings;
mod api;
pub mod inline;
mod symbols;

pub use api::Api;
pub use bindings::*;
