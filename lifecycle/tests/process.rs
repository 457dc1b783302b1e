//! Whole processes, started and ended from outside: signals, exit codes, probes and logs.
//!
//! The test program starts itself again as the process under test; the role comes by an environment variable.

// A test may unwrap; without the test harness clippy does not know that this is one.
#![allow(clippy::unwrap_used)]

mod process {
    pub(super) mod cases;
    pub(super) mod child;
    pub(super) mod role;
}

use std::process::ExitCode;

use process::{cases, role};

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(role::VARIABLE) {
        return role::run(&role);
    }
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let mut failed = 0;
    for (name, case) in cases::ALL.iter().filter(|(name, _)| name.contains(&filter)) {
        let passed = std::panic::catch_unwind(case).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
