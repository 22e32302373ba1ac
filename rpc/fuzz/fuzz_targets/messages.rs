//! Messages: headers, lists of pieces, bitmaps.
#![no_main]

verbatim_rpc_fuzz::target!(message);
