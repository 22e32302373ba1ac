//! The command line: what can be asked for, and the text of `--help`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  verbatim devices               what this host has, and which would be used
  verbatim demo                  the project's own files, in seconds
  verbatim demo --dir ~/photos   your files instead
  verbatim bench --quick         how quick it is here, in less than a minute
  VERBATIM_DEVICE=mlx5_0:1:3 verbatim demo
                                 port 1 of mlx5_0, with the GID of index 3

Environment:
  VERBATIM_DEVICE=NAME[:PORT[:GID]]
      The device to use. Without it: a network card with an active port and a
      usable GID, else soft0, the device in user space.
  VERBATIM_DIR=DIR
      Where processes that use soft0 find each other.
  VERBATIM_ASYNC=SEED
      soft0 works late and in slices, as a network card does. For tests.";

/// Safe, fast RDMA, with or without RDMA hardware.
///
/// This command shows the devices of a host, demonstrates the verbatim library on real files, and measures it.
#[derive(Debug, Parser)]
#[command(name = "verbatim", version = crate::version::line(), after_help = EXAMPLES)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the RDMA devices of this host, and which one would be used and why
    ///
    /// For each device its ports with their state, and the GIDs of each port with their type and network
    /// device: what ibv_devinfo and show_gids tell together. The user-space device soft0 is always there.
    Devices(DevicesArgs),
    /// Send a directory tree through all layers, between two processes, and check every byte
    ///
    /// Starts a server and a client as two processes. The client sends each file as an RPC of several
    /// segments (metadata, name, data) that the device gathers without copying; the server writes it into a
    /// scratch folder; the client reads it back. Both ends compare checksums. At the end a table shows
    /// files, bytes, MB/s, and echo round trips of the RPC beside those of a Unix socket between the same
    /// two processes. The scratch folder is removed.
    ///
    /// Left out are symbolic links, sockets, pipes and devices, and folders that hold a CACHEDIR.TAG
    /// (build output).
    Demo(DemoArgs),
    /// Measure round trips and rates against raw verbs, sockets and shared memory
    ///
    /// Two processes, each bound to a processor of its own. Every case takes turns with what it is compared
    /// with, in short rounds: calls with messages of the same verb and length over a bare queue pair, all else
    /// with the floor, a cache line that goes to the other processor and back. On virtual machines that
    /// takes either 60 to 130 ns (near) or 350 to 460 (far), by where the host runs the two processors;
    /// rounds are compared within a mode only, and a round in which it changed is discarded.
    Bench(BenchArgs),
    /// The benchmark's answering process
    #[command(hide = true)]
    BenchServer,
    /// The benchmark's measuring process
    #[command(hide = true)]
    BenchClient(BenchClientArgs),
    /// The demonstration's server process
    #[command(hide = true)]
    DemoServer(ServerArgs),
    /// The demonstration's client process
    #[command(hide = true)]
    DemoClient(ClientArgs),
}

/// Options of `verbatim devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  verbatim devices
  verbatim devices --json -      for a program, on standard output
  VERBATIM_DEVICE=soft0 verbatim devices
                                 checks a choice before it is made elsewhere")]
pub struct DevicesArgs {
    /// Write the same as JSON to FILE ('-': to standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `verbatim demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  verbatim demo
  verbatim demo --dir /usr/share/doc --json report.json
  verbatim demo --device soft0     on soft0, also if there is a network card

Round trips:
  The transports take turns in rounds. On machines with two to four
  processors each end is bound to one of its own.

Units:
  1 MB is 1,000,000 bytes; times are of whole round trips; 99 of 100 round
  trips take at most p99.

Exit status:
  0    every checksum was compared, and all were equal
  1    a checksum differed, or something failed
  2    a mistake on the command line
  130  interrupted")]
pub struct DemoArgs {
    /// Directory to send [default: the checkout the command was built from, without .git and target, else
    /// the current directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write the results as JSON to FILE ('-': to standard output; the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device to use, NAME[:PORT[:GID]], as VERBATIM_DEVICE [default: the best there is]
    #[arg(long, value_name = "SPEC")]
    pub device: Option<String>,
}

/// Options of `verbatim bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  verbatim bench                   the usual cases: some minutes, on a quiet
                                   machine
  verbatim bench --list            the names of all cases
  verbatim bench --quick --filter 64B
  verbatim bench --quick --filter rpc/ --json bench.json
                                   all paths, lengths and windows: some minutes
  verbatim bench --quick --filter 64B/burst
  verbatim bench --filter hot/     the memory pool beside malloc; built with
                                   --features allocators, beside others too

Columns:
  mode   of the floor, a cache line there and back: near is below 200 ns,
         far is not, mixed changed in every round
  p50    median of a round trip, call or READ; for death/ of the time from
         the kill of a process until all that waited for it has its error;
         for pool/, malloc/ and their like of an allocation and its freeing,
         for their cross/ of the freeing alone, by another thread; for
         register/ of registering memory and taking it back
  p99    99 of 100 take at most this long (of allocations, groups of 16)
  rate   of them a second; pipelined keeps 64 on their way, or 16 MiB
  server busy  of small calls: how long the server's processor is busy with
         each, from when the request is noticed to when the reply is out of
         its hands. For burst/ that is what p50 is of: the server finds
         32 requests at once
  slowest client  of several: its calls by the mean of all
  holds, exceeds  of after_idle: three times what a call takes without a pause,
         and one wake-up; medians for p50, 99th percentiles for p99
  p99 bound  of small calls beside bulk: what their p99 should not exceed,
         twice the median alone and what the bulk alone takes for a slice of
         256 KiB, of the same rounds
  ratio  p50 by that of the case named under 'to', measured in the same
         rounds; for pipelined cases rate by rate, where more is better

JSON:
  { \"records\": [ { \"name\", \"device\", \"mode\", \"p50_ns\", \"p99_ns\",
  \"rate\", \"rounds\", \"floor_ns\", \"baseline\", \"ratio\",
  \"baseline_p50_ns\", \"baseline_p99_ns\", \"baseline_rate\",
  \"server_busy_ns\", \"slowest\", \"limit_p50_ns\", \"limit_p99_ns\",
  \"bound_ns\" } ],
  \"notes\": [ ... ], ... }
  A case that was measured in both modes has a record for each.")]
pub struct BenchArgs {
    /// Write the results as JSON to FILE ('-': to standard output; the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// One launch of both processes instead of three, and shorter rounds: less than a minute in all
    #[arg(long)]
    pub quick: bool,
    /// Only cases whose names contain SUBSTRING; without it, a choice of all cases
    #[arg(long, value_name = "SUBSTRING")]
    pub filter: Option<String>,
    /// Print the names of the cases, all or those that --filter chooses, and measure nothing
    #[arg(long, conflicts_with = "json")]
    pub list: bool,
    /// Device to use, NAME[:PORT[:GID]], as VERBATIM_DEVICE [default: the best there is]
    #[arg(long, value_name = "SPEC")]
    pub device: Option<String>,
    /// Rounds of each case.
    #[arg(long, hide = true)]
    pub rounds: Option<usize>,
    /// Length of a round in microseconds.
    #[arg(long, hide = true)]
    pub round_us: Option<u64>,
}

/// How the benchmark starts the process that measures. Standard input is one end of a socket pair.
#[derive(Debug, Args)]
pub struct BenchClientArgs {
    /// Rounds of one mode, for each case.
    #[arg(long)]
    pub rounds: usize,
    /// Length of a round in microseconds.
    #[arg(long)]
    pub round_us: u64,
    /// Time for all cases in milliseconds, after which each takes one round only.
    #[arg(long)]
    pub limit_ms: u64,
    /// Names of the cases.
    pub cases: Vec<String>,
}

/// How the demonstration starts its server. Standard input is one end of a socket pair.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Folder to write below.
    #[arg(long)]
    pub scratch: PathBuf,
}

/// How the demonstration starts its client. Standard input is the other end of the socket pair.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Address of the server.
    #[arg(long)]
    pub server: String,
    /// Directory to send.
    #[arg(long)]
    pub dir: PathBuf,
    /// Names of folders to leave out.
    #[arg(long)]
    pub leave_out: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_each_command_has_examples() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }
}
