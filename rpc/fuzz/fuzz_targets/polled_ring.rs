//! A peer that writes into a ring that is polled as it likes, also while a message is taken out.
#![no_main]

verbatim_rpc_fuzz::target!(polled_ring);
