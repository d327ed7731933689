//! The guard of one command; `fleetcron run` spawns it. See the library's `guard` module.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("fleetcron-guard: started by fleetcron itself, with a run file");
        return ExitCode::from(2);
    };
    if folder == "--version" {
        println!("fleetcron-guard {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    match fleetcron::guard::process::guard(folder.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleetcron-guard: {error}");
            ExitCode::FAILURE
        }
    }
}
