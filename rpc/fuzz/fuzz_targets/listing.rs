//! The list of methods of a typed service.
#![no_main]

verbatim_rpc_fuzz::target!(service_listing);
