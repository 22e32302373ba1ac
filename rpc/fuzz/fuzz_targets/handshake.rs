//! What a peer says on the control connection.
#![no_main]

verbatim_rpc_fuzz::target!(control_stream);
