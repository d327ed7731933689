//! The program: everything is in the library, whose door for people is `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleetcron::cli::main()
}
