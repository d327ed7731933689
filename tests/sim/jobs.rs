//! The jobs of a simulated fleet: of each kind that the promises speak of, one.

use std::time::Duration;

use fleetcron::job::JobName;
use fleetcron::jobfile::{self, SourceFile};
use fleetcron::sync::Wanted;

/// What is the same for a job's whole life, whatever becomes of its definition.
pub struct Kind {
    pub name: &'static str,
    /// Whether its fires may overlap.
    pub allow: bool,
    pub at_most_once: bool,
    /// Whether its fires exclude those of all others that share it.
    pub mutex: bool,
    /// How long its commands run, in milliseconds.
    pub length: (u64, u64),
    /// The hold and the schedule that it begins with; both are edited.
    pub hold: Duration,
    schedule: &'static str,
}

const fn kind(
    name: &'static str,
    schedule: &'static str,
    (allow, at_most_once): (bool, bool),
    hold: u64,
    length: (u64, u64),
) -> Kind {
    Kind { name, allow, at_most_once, mutex: false, length, hold: Duration::from_secs(hold), schedule }
}

/// The same, and it shares a mutex with others of its kind.
const fn sharing(kind: Kind) -> Kind {
    Kind { mutex: true, ..kind }
}

const SKIP: bool = false;
const ALLOW: bool = true;
const AT_LEAST_ONCE: bool = false;
const AT_MOST_ONCE: bool = true;

pub const KINDS: &[Kind] = &[
    kind("tick", "@every 30s", (SKIP, AT_LEAST_ONCE), 60, (100, 15_000)),
    kind("tight", "@every 40s", (SKIP, AT_LEAST_ONCE), 6, (1_000, 30_000)),
    kind("crowd", "@every 45s", (ALLOW, AT_LEAST_ONCE), 10, (1_000, 90_000)),
    kind("once", "@every 50s", (SKIP, AT_MOST_ONCE), 10, (1_000, 40_000)),
    kind("free", "@every 75s", (ALLOW, AT_MOST_ONCE), 10, (1_000, 60_000)),
    kind("cron", "* * * * *", (SKIP, AT_LEAST_ONCE), 20, (500, 50_000)),
    kind("long", "*/3 * * * *", (SKIP, AT_LEAST_ONCE), 10, (60_000, 300_000)),
    sharing(kind("one", "@every 55s", (SKIP, AT_LEAST_ONCE), 10, (1_000, 25_000))),
    sharing(kind("other", "@every 65s", (SKIP, AT_LEAST_ONCE), 10, (1_000, 25_000))),
    // Asked for by hand, for the most part.
    kind("hand", "*/10 * * * *", (SKIP, AT_LEAST_ONCE), 10, (500, 20_000)),
];

pub fn kind_of(job: &JobName) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == job.as_str()).expect("only these jobs are defined")
}

/// A job as it is defined at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defined {
    pub kind: usize,
    pub there: bool,
    pub hold: u64,
    /// Seconds that its `@every` is longer than at first.
    pub slower: u64,
}

/// All of them as they are at first.
pub fn at_first() -> Vec<Defined> {
    let first =
        |(kind, of): (usize, &Kind)| Defined { kind, there: true, hold: of.hold.as_secs(), slower: 0 };
    KINDS.iter().enumerate().map(first).collect()
}

/// What an operator would sync.
pub fn wanted(jobs: &[Defined]) -> Wanted {
    let mut text = "[source]\nname = 'simulated'\n[defaults]\nkill_after = '2s'\n\
                    keep = { records = 100000, days = 3650, output = '1MiB' }\n"
        .to_owned();
    for job in jobs.iter().filter(|job| job.there) {
        let Kind { name, allow, at_most_once, mutex, schedule, .. } = &KINDS[job.kind];
        let schedule = match schedule.strip_prefix("@every ").and_then(|every| every.strip_suffix('s')) {
            Some(every) => format!("@every {}s", every.parse::<u64>().expect("seconds") + job.slower),
            None => (*schedule).to_owned(),
        };
        let overlap = if *allow { "allow" } else { "skip" };
        let promise = if *at_most_once { "at-most-once" } else { "at-least-once" };
        text.push_str(&format!(
            "[jobs.{name}]\nschedule = '{schedule}'\ncommand = ['simulated']\noverlap = '{overlap}'\n\
             promise = '{promise}'\nhold = '{}s'\n",
            job.hold
        ));
        if *mutex {
            text.push_str("mutex = 'shared'\n");
        }
    }
    let files = [SourceFile { path: "jobs.toml", text: &text }];
    let parsed = jobfile::parse(&files).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    Wanted { source: parsed.source, jobs: parsed.jobs, limits: parsed.limits }
}
