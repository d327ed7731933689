//! `fleetcron run`: a node.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tracing::warn;
use tracing_subscriber::EnvFilter;

use super::Door;
use super::failure::Failure;
use crate::clock::TEST_CLOCK;
use crate::config::LogFormat;
use crate::daemon::{self, Options};
use crate::node::parse_label;
use crate::store::StoreError;

/// Run a node: it takes part in running the jobs of the store until it is told to stop
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node works out when each job is due and races the other nodes for it; one of them runs it. With --jobs it also \
keeps the store in step with job files. One machine needs nothing else: the store is then an SQLite file, which this \
command makes.

TERM or Ctrl-C stop the node in order: it starts nothing more and goes. What runs goes on without it, for at least \
--stop-hold, and the next start of the node takes it back; only when the machine goes down is it stopped, and handed \
back to be run again. HUP reads the job files again.

The log goes to stderr; FLEETCRON_LOG sets its level (info by default; debug, or fleetcron::race=debug).

Examples:
  fleetcron run --jobs jobs.toml
  fleetcron run --store etcd://etcd1,etcd2 --node db-1 --label role=db

To start a job by hand: fleetcron start JOB")]
pub struct Args {
    /// A job file, or a folder of *.toml, to keep the store in step with; may be repeated
    #[arg(long, value_name = "PATH")]
    jobs: Vec<PathBuf>,
    /// The node's name [default: the host's name in lower case]
    #[arg(long, value_name = "NAME", env = "FLEETCRON_NODE", hide_env_values = true)]
    node: Option<String>,
    /// A label that jobs may ask for; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// How many runs at once [default: 16 for each core, at least 64]
    #[arg(long, value_name = "N", env = "FLEETCRON_SLOTS", hide_env_values = true, value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// The folder where this node keeps its runs and their output [default: nodes/NAME beside the default store]
    #[arg(long, value_name = "DIR", env = "FLEETCRON_STATE", hide_env_values = true)]
    state: Option<PathBuf>,
    /// How log lines are written: text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "FLEETCRON_LOG_FORMAT", hide_env_values = true)]
    log_format: Option<LogFormat>,
    /// How long commands may go on without a daemon after an orderly stop, at least [default: 15m]
    #[arg(long, value_name = "DURATION", env = "FLEETCRON_STOP_HOLD", hide_env_values = true, value_parser = humantime::parse_duration)]
    stop_hold: Option<Duration>,
    /// Caught to say what was meant.
    #[arg(hide = true, value_name = "JOB")]
    meant_start: Vec<String>,
}

pub async fn run(door: Door, args: Args) -> Result<ExitCode, Failure> {
    if let Some(job) = args.meant_start.first() {
        return Err(Failure::Usage(format!(
            "`run` runs a node, not a job; to start a job, use `fleetcron start {}`",
            job.escape_debug()
        )));
    }
    let options = options(&door, &args)?;
    start_log(door.settings.log_format(args.log_format))?;
    if door.clock_is_set {
        warn!(now = %door.now(), "{TEST_CLOCK} is set: this node goes by a clock that is not the machine's");
    }
    match daemon::daemon(options).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(match error.downcast::<StoreError>() {
            Ok(error) => error.into(),
            Err(error) => Failure::Asked(format!("{error:#}")),
        }),
    }
}

fn options(door: &Door, args: &Args) -> Result<Options, Failure> {
    let settings = &door.settings;
    let store = door.address()?;
    let node = settings.node(args.node.as_deref().filter(|node| !node.is_empty()))?;
    Ok(Options {
        access: settings.access(&store, true)?,
        store,
        labels: settings.labels(&args.labels)?,
        slots: settings.slots(args.slots)?,
        state: settings.state(args.state.as_deref(), &node)?,
        jobs: settings.jobs(&args.jobs),
        stop_hold: settings.stop_hold(args.stop_hold)?,
        policy: settings.policy(),
        require_synced_clock: settings.require_synced_clock(),
        clock: door.clock,
        node,
    })
}

/// The environment variable that sets the log's level.
const LEVEL: &str = "FLEETCRON_LOG";

fn start_log(format: LogFormat) -> Result<(), Failure> {
    let level = std::env::var(LEVEL).ok().filter(|level| !level.is_empty());
    let filter = EnvFilter::try_new(level.as_deref().unwrap_or("info"))
        .map_err(|error| Failure::Usage(format!("{LEVEL}: {error}")))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // Who reads the log may go away, and the node must not fall over its own complaint about that.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
