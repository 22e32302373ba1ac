//! The `verbatim` command, run as its users run it.
