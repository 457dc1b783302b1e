//! The operator's process.

use std::process::ExitCode;

use operator::process::{Args, start};
use roomcluster_lifecycle::{args, run_main};

fn main() -> ExitCode {
    let args: Args = args::parse_or_exit();
    run_main(args.settings(), |process| start(process, args))
}
