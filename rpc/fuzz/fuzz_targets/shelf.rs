//! Entries of a shelf, as a client fetches them.
#![no_main]

verbatim_rpc_fuzz::target!(shelf_entry);
