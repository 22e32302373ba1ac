//! The `verbatim` command, run as its users run it. These tests belong to the root package, which builds the command.

mod demo;
mod devices;
mod run;
