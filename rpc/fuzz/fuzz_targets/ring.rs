//! A peer that writes into the receive ring as it likes.
#![no_main]

verbatim_rpc_fuzz::target!(ring_contents);
