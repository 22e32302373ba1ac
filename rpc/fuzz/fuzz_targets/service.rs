//! Requests and replies of typed services.
#![no_main]

verbatim_rpc_fuzz::target!(service_message);
