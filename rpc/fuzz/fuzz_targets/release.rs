//! Lists of slots that are released.
#![no_main]

verbatim_rpc_fuzz::target!(release);
