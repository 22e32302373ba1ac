//! librdmacm as a table of function pointers.

use core::ffi::{c_char, c_int, c_void};

use libc::sockaddr;

use crate::bindings::*;
use crate::load::define_table;
use crate::symbols::rdmacm_symbols;

macro_rules! table {
    ($($symbols:tt)*) => {
        define_table! {
            /// The functions of librdmacm, one field each, named as in C: connections by IP address.
            ///
            /// Those that return `int` give 0, or -1 and errno, except [`rdma_getaddrinfo`](Self::rdma_getaddrinfo). Every call
            /// is `unsafe`: arguments must satisfy the man page of the function.
            ///
            /// Objects made here belong to the contexts that librdmacm opened, not to those of
            /// [`Api::ibv_open_device`](crate::Api::ibv_open_device).
            pub struct CmApi from LIBRDMACM;
            $($symbols)*
        }
    };
}

rdmacm_symbols!(table);
