//! libibverbs as a table of function pointers.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::bindings::*;
use crate::symbols::ibverbs_symbols;

macro_rules! table {
    (
        required { $( $(#[$rdoc:meta])* $rver:literal fn $rname:ident( $($rarg:ident : $rty:ty),* ) -> $rret:ty; )* }
        optional { $( $(#[$odoc:meta])* $over:literal fn $oname:ident( $($oarg:ident : $oty:ty),* ) -> $oret:ty; )* }
    ) => {
        /// The functions of libibverbs, one field each, named as in C.
        ///
        /// Whoever offers a verbs device in Rust fills in the same table, so that code written against `&Api` runs on any of
        /// them. Functions that verbs.h defines in the header are in [`inline`](crate::inline). Every call through the table
        /// is `unsafe`: arguments must satisfy the man page of the function.
        ///
        /// Fields that are an `Option` are `None` when the library is older than the function.
        #[derive(Debug, Clone, Copy)]
        pub struct Api {
            $( $(#[$rdoc])* pub $rname: unsafe extern "C" fn($($rarg: $rty),*) -> $rret, )*
            $( $(#[$odoc])* pub $oname: Option<unsafe extern "C" fn($($oarg: $oty),*) -> $oret>, )*
        }
    };
}

ibverbs_symbols!(table);
