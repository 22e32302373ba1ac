//! libibverbs as a table of function pointers.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::bindings::*;
use crate::load::define_table;
use crate::symbols::ibverbs_symbols;

macro_rules! table {
    ($($symbols:tt)*) => {
        define_table! {
            /// The functions of libibverbs, one field each, named as in C.
            ///
            /// Whoever offers a verbs device in Rust fills in the same table, so that code written against `&Api` runs on any of
            /// them. Functions that verbs.h defines in the header are in [`inline`](crate::inline). Every call through the table
            /// is `unsafe`: arguments must satisfy the man page of the function. How results are to be read is in
            /// [`convention`](crate::convention).
            ///
            /// Fields that are an `Option` are `None` when the library is older than the function.
            pub struct Api from LIBIBVERBS;
            $($symbols)*
        }
    };
}

ibverbs_symbols!(table);
