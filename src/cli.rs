//! The command line: where people come in.
//!
//! Each command has a module of its own with its arguments, its help and its deed. Data goes to stdout, words go to
//! stderr. A command ends with a [`Failure`] or well; only here does that become an exit code. Nothing here decides
//! what a job, a fire or a record is.

mod acts;
mod audit;
mod batch;
mod cancel;
mod check;
mod doctor;
mod drain;
mod failure;
mod forget;
mod jobs;
mod logs;
mod next;
mod nodes;
mod out;
mod pause;
mod read;
mod resume;
mod run;
mod runs;
mod start;
mod submit;
mod sync;
mod tasks;
mod time;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::failure::{Failure, say};
use self::out::{Format, Out};
use crate::act;
use crate::clock::{Clock, TEST_CLOCK};
use crate::config::Settings;
use crate::schedule::{Timestamp, tzdata_version};
use crate::store::{Address, Store, StoreError, Txn, TxnReply};

/// Cron for a fleet of servers: every fire runs once, somewhere, and leaves a record.
#[derive(Debug, Parser)]
#[command(
    name = "fleetcron",
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Words:
  job    a definition: when to run which command
  fire   one job at one instant: 20261130T020000Z, or m-<ULID> by hand
  task   a piece of work to be run once, t-<ULID>, that waits in the queue
  node   one running `fleetcron run`
  run    one command of one fire on one node; its record tells the outcome

Examples:
  fleetcron check jobs.toml       is it right, and when does each job run?
  fleetcron run --jobs jobs.toml  a node, with its store in an SQLite file
  fleetcron jobs                  all jobs: when next, how the last run ended
  fleetcron next --until 06:00    what will run tonight, in order
  fleetcron start backup --wait   run a job now, exit with its code
  fleetcron submit -- mail.sh 7   run a command once, on a node that has room
  fleetcron tasks                 what waits, runs and has ended of those
  fleetcron cancel backup/FIRE    stop what runs
  fleetcron runs backup           its last runs
  fleetcron logs backup           what it wrote
  fleetcron pause --all           start nothing more, until resumed
  fleetcron drain db-1 --wait     before a node is taken down
  fleetcron acts                  who asked for what
  fleetcron audit                 was everything run, and nothing twice?
  fleetcron doctor                has this machine what a node needs?

Exit codes: 0 done, 1 the thing asked about failed, 2 wrong usage or file, 3 store not reached.

Settings are taken from flags, then from the environment, then from /etc/fleetcron/fleetcron.toml.";

const EVERYWHERE: &str = "Options of every command";

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// Where the store is: sqlite:PATH, etcd://HOST:2379,HOST:2379/PREFIX or etcds://… for TLS
    ///
    /// By default an SQLite file: /var/lib/fleetcron/fleetcron.db for root, else
    /// ~/.local/state/fleetcron/fleetcron.db.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "STORE", env = "FLEETCRON_STORE", hide_env_values = true)]
    store: Option<String>,
    /// The settings file; by default /etc/fleetcron/fleetcron.toml, if it is there
    ///
    /// It is TOML, and all of it may be left out: store, node, slots, state, jobs (a list of paths), log_format,
    /// stop_hold, [labels], and [etcd] with ca_file, cert_file, key_file, user, password_file. Paths count from
    /// the file's own folder. A password file that everybody may read is refused.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "PATH", env = "FLEETCRON_CONFIG", hide_env_values = true)]
    config: Option<OsString>,
    /// How to write data: a table for people, or JSON with one object a line
    ///
    /// On a terminal that is too narrow a table leaves columns out; JSON has always all.
    #[arg(long, short, global = true, help_heading = EVERYWHERE, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Sync(sync::Args),
    Jobs(jobs::Args),
    Next(next::Args),
    Runs(runs::Args),
    Logs(logs::Args),
    Nodes(nodes::Args),
    Doctor(doctor::Args),
    Start(start::Args),
    Cancel(cancel::Args),
    Submit(submit::Args),
    Tasks(tasks::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Drain(drain::Args),
    Undrain(drain::UndrainArgs),
    Forget(forget::Args),
    Acts(acts::Args),
    Audit(audit::Args),
}

/// Does what the command line asks, and says how it went. The caller exits.
pub fn main() -> ExitCode {
    // SIGPIPE stays ignored, as Rust has it: by default it would also end us, without a word, when an etcd server
    // closes a connection. A closed stdout shows as an error of writing, see `Failure::Output`.
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match runtime(&cli.command).and_then(|runtime| runtime.block_on(cli.obey())) {
        Ok(code) => code,
        Err(failure) => failure.tell(),
    }
}

fn parse() -> Result<Cli, clap::Error> {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = VERSION
        .get_or_init(|| format!("{} (time zone data {})", env!("CARGO_PKG_VERSION"), tzdata_version()));
    let command = Cli::command().version(version.as_str());
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// Help and versions are asked for, all else is a mistake.
fn refuse(error: &clap::Error) -> ExitCode {
    use std::io::Write;
    if let Err(error) = error.print().and_then(|()| std::io::stdout().flush()) {
        return Failure::Output(error).tell();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn runtime(command: &Command) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match command {
        Command::Run(_) => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2);
            builder
        }
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build().map_err(|error| Failure::asked(format!("cannot begin: {error}")))
}

impl Cli {
    async fn obey(self) -> Result<ExitCode, Failure> {
        let Cli { global, command } = self;
        let door = Door::open(global)?;
        match command {
            Command::Run(args) => run::run(door, args).await,
            Command::Check(args) => check::check(door, &args),
            Command::Sync(args) => sync::sync(door, &args).await,
            Command::Jobs(args) => jobs::jobs(door, &args).await,
            Command::Next(args) => next::next(door, &args).await,
            Command::Runs(args) => runs::runs(door, &args).await,
            Command::Logs(args) => logs::logs(door, &args).await,
            Command::Nodes(nodes::Args {}) => nodes::nodes(door).await,
            Command::Doctor(args) => doctor::doctor(door, &args).await,
            Command::Start(args) => start::start(door, &args).await,
            Command::Cancel(args) => cancel::cancel(door, &args).await,
            Command::Submit(args) => submit::submit(door, args).await,
            Command::Tasks(args) => tasks::tasks(door, &args).await,
            Command::Pause(args) => pause::pause(door, &args).await,
            Command::Resume(args) => resume::resume(door, &args).await,
            Command::Drain(args) => drain::drain(door, &args).await,
            Command::Undrain(args) => drain::undrain(door, &args).await,
            Command::Forget(args) => forget::forget(door, &args).await,
            Command::Acts(args) => acts::acts(door, &args).await,
            Command::Audit(args) => audit::audit(door, &args).await,
        }
    }
}

/// What a command has in hand when it begins.
struct Door {
    settings: Settings,
    store: Option<String>,
    out: Out,
    clock: Clock,
    /// Whether a test has set the clock, which is told loudly: a node with such a clock runs jobs at wrong times.
    clock_is_set: bool,
}

impl Door {
    fn open(global: Global) -> Result<Door, Failure> {
        // A variable that is set to nothing is as good as none.
        let config = global.config.filter(|path| !path.is_empty());
        let settings = Settings::load(config.as_deref().map(Path::new))?;
        let asked = std::env::var(TEST_CLOCK).ok();
        let clock = asked.as_deref().map(Clock::for_test).transpose().map_err(Failure::Usage)?;
        let door = Door {
            settings,
            store: global.store.filter(|store| !store.is_empty()),
            out: Out::new(global.output),
            clock: clock.unwrap_or(Clock::system()),
            clock_is_set: clock.is_some(),
        };
        if door.clock_is_set {
            say(format_args!(
                "warning: {TEST_CLOCK} is set, so the clock is not the machine's: it is {}",
                door.now()
            ));
        }
        Ok(door)
    }

    fn now(&self) -> crate::schedule::Timestamp {
        self.clock.now()
    }

    fn address(&self) -> Result<Address, Failure> {
        Ok(self.settings.store(self.store.as_deref())?)
    }

    /// Opens the store as one who looks, or acts on what is there: it is not made.
    async fn store(&self) -> Result<Store, Failure> {
        self.open_store(false).await
    }

    async fn open_store(&self, create: bool) -> Result<Store, Failure> {
        let address = self.address()?;
        let access = self.settings.access(&address, create)?;
        Ok(Store::open(&address, &access).await?)
    }
}

/// Sends an operator's act, with the note of it in the same transaction, and prunes old ones.
///
/// An answer that did not come is asked for again: the transaction must be one that may be done twice.
async fn act_on(store: &Store, now: Timestamp, txn: Txn) -> Result<TxnReply, Failure> {
    /// With the store's own deadline this is about ten seconds.
    const TRIES: u32 = 3;
    let mut tries = 0;
    loop {
        tries += 1;
        match store.txn(txn.clone()).await {
            Ok(reply) => {
                if reply.succeeded {
                    act::prune(store, now).await;
                }
                return Ok(reply);
            }
            Err(StoreError::NoAnswer { .. }) if tries < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
}
