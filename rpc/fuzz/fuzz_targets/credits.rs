//! Counters of credits, in any order.
#![no_main]

verbatim_rpc_fuzz::target!(credits);
