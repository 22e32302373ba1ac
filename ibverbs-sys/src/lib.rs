//! Raw bindings to libibverbs and librdmacm, loaded at run time.

#[cfg(not(target_os = "linux"))]
compile_error!("libibverbs and its kernel interface exist on Linux only");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", feature = "bindgen")))]
compile_error!(
    "no bindings are checked in for this architecture: enable the feature `bindgen` of verbatim-ibverbs-sys, which makes them \
     from the installed headers of libibverbs and librdmacm"
);

#[allow(non_camel_case_types)]
mod alias;
mod api;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings;
mod cm_api;
pub mod convention;
pub mod inline;
mod layout;
#[cfg(feature = "link")]
pub mod link;
mod load;
mod symbols;

pub use alias::*;
pub use api::Api;
pub use bindings::*;
pub use cm_api::CmApi;
pub use load::LoadError;
