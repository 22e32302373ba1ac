//! The functions as `extern "C"` items, linked to libibverbs and librdmacm (feature `link`).
//!
//! For programs that should not start without the libraries. Linking needs the development packages (Debian: libibverbs-dev
//! and librdmacm-dev), and takes the newest version of each function that the installed library has. An item that the library
//! is too old for fails to link only where it is used.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::sockaddr;

use crate::bindings::*;
use crate::symbols::{ibverbs_symbols, rdmacm_symbols};

macro_rules! items {
    (
        $library:literal
        required { $( $(#[$rdoc:meta])* $rver:literal fn $rname:ident( $($rarg:ident : $rty:ty),* $(,)? ) -> $rret:ty; )* }
        optional { $( $(#[$odoc:meta])* $over:literal fn $oname:ident( $($oarg:ident : $oty:ty),* $(,)? ) -> $oret:ty; )* }
    ) => {
        #[link(name = $library)]
        unsafe extern "C" {
            $( $(#[$rdoc])* pub fn $rname($($rarg: $rty),*) -> $rret; )*
            $( $(#[$odoc])* pub fn $oname($($oarg: $oty),*) -> $oret; )*
        }
    };
}

macro_rules! ibverbs {
    ($($symbols:tt)*) => { items! { "ibverbs" $($symbols)* } };
}

macro_rules! rdmacm {
    ($($symbols:tt)*) => { items! { "rdmacm" $($symbols)* } };
}

ibverbs_symbols!(ibverbs);
rdmacm_symbols!(rdmacm);
