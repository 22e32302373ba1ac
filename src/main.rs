//! The `verbatim` command.

mod bench;
mod cli;
mod demo;
mod devices;
mod output;
mod placement;
mod process;
mod quantile;
mod spinning;
mod version;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Devices(args) => devices::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::BenchServer => bench::server(),
        Command::BenchClient(args) => bench::client(&args),
        Command::DemoServer(args) => demo::server(&args),
        Command::DemoClient(args) => demo::client(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("verbatim: {}", output::sentence(&error));
            ExitCode::FAILURE
        }
    }
}
