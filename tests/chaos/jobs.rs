//! Fifty jobs, of all kinds, and the command that they run.

use std::fmt::Write as _;
use std::path::Path;

/// How many there are.
pub const JOBS: usize = 50;

/// What stays the same for the whole life of a job, whatever is edited.
#[derive(Debug, Clone)]
pub struct Kind {
    pub name: String,
    /// Whether its runs may overlap.
    pub allow: bool,
    pub at_most_once: bool,
    /// Whether it can be asked for by hand.
    pub by_hand: bool,
    /// Whether each node has a lane of its own.
    pub everywhere: bool,
    /// Seconds between its fires; none where the schedule is something else.
    every: Option<u32>,
    /// All other fields, as a job file has them.
    fields: String,
}

/// A job as it is defined at the moment.
#[derive(Debug, Clone)]
pub struct Defined {
    pub kind: Kind,
    pub there: bool,
    pub enabled: bool,
    /// Seconds that it comes less often than at first.
    pub slower: u32,
    pub hold: u32,
}

/// The command of all jobs: it writes down when it started, now and then that it lives, and when it ended.
///
/// Arguments: how many seconds at least, of how many more the token picks, one of how many fails with 75, and a word:
/// `stubborn` stays when it is asked to go, `-` does not. The time is that since boot, which is one and the same on all
/// nodes here.
pub const COMMAND: &str = r#"
note() {
    read -r up rest </proc/uptime
    echo "$1 $FLEETCRON_JOB $FLEETCRON_FIRE $FLEETCRON_ATTEMPT $FLEETCRON_FENCING_TOKEN $FLEETCRON_NODE $up" >>"$HISTORY"
}
note start
[ "$4" = stubborn ] && trap 'note asked' TERM
left=$(($1 + FLEETCRON_FENCING_TOKEN % ($2 + 1)))
while [ "$left" -gt 0 ]; do
    sleep 1
    note alive
    left=$((left - 1))
done
echo "$FLEETCRON_FIRE is done"
[ $((FLEETCRON_FENCING_TOKEN % $3)) -eq 0 ] && { note end; exit 75; }
note end
"#;

/// All of them, as they are at first. Names tell the kind.
pub fn at_first(world: &Path) -> Vec<Defined> {
    let mut made = Made { script: world.join("command.sh").display().to_string(), jobs: Vec::new() };
    let overlaps = ["skip", "allow", "queue", "replace"];
    // Short and long holds, both promises, each way to overlap.
    for (number, overlap) in overlaps.iter().enumerate() {
        let number = number as u32;
        made.job(&format!("{overlap}-short"), 11 + number, 6, (0, 2, 9, "-"), overlap, "");
        made.job(&format!("{overlap}-tight"), 13 + number, 6, (9, 14, 7, "-"), overlap, "");
        made.job(
            &format!("{overlap}-stubborn"),
            23 + number,
            10,
            (8, 30, 50, "stubborn"),
            overlap,
            "kill_after = '2s'",
        );
        made.job(&format!("{overlap}-long"), 37 + number, 60, (20, 60, 50, "-"), overlap, "");
        made.job(&format!("{overlap}-timeout"), 27 + number, 10, (3, 9, 50, "-"), overlap, "timeout = '6s'");
        let once = "promise = 'at-most-once'";
        made.job(&format!("{overlap}-once"), 14 + number, 6, (2, 14, 9, "-"), overlap, once);
        let retry = "retry = { attempts = 3, delay = '2s', on = [75, 'timeout'] }\ntimeout = '9s'";
        made.job(&format!("{overlap}-retry"), 29 + number, 6, (1, 10, 2, "-"), overlap, retry);
        let every_node = "run_on = 'every-node'";
        made.job(&format!("{overlap}-everywhere"), 31 + number, 10, (1, 12, 9, "-"), overlap, every_node);
    }
    // What is missed.
    for catch_up in ["latest", "all", "none"] {
        let fields = format!("catch_up = '{catch_up}'\nstart_within = '40s'");
        made.job(&format!("catch-up-{catch_up}"), 17, 6, (1, 5, 9, "-"), "queue", &fields);
    }
    let fields = "start_within = '3s'\nretry = { attempts = 4, delay = '1s', factor = 3, max_delay = '8s', jitter = 0.5 }";
    made.job("hurry", 12, 6, (0, 3, 2, "-"), "skip", fields);
    // Where they may run.
    for (name, nodes) in [
        ("on-db", "role=db"),
        ("not-in-a", "zone!=a"),
        ("in-b-or-c", "zone in (b,c), role"),
        ("nowhere", "role=nobody"),
        ("on-n2", "node=n2"),
    ] {
        made.job(name, 19, 6, (1, 8, 9, "-"), "skip", &format!("nodes = '{nodes}'"));
    }
    let fields = "run_on = 'every-node'\nnodes = 'role=db'\nretry = { attempts = 2, delay = '3s' }";
    made.job("on-every-db", 21, 6, (0, 4, 2, "-"), "skip", fields);
    // How the command runs.
    let environment = world.join("environment").display().to_string();
    for (name, fields) in [
        (
            "as-nobody",
            "user = 'nobody'\ngroup = 'nogroup'\numask = '077'\nnice = 5\nno_new_privs = true".to_owned(),
        ),
        (
            "limited",
            "limits = { nofile = 64, core = 0 }\nkill_leftovers = true\ntimestamps = true".to_owned(),
        ),
        (
            "fed",
            format!(
                "stdin = '{environment}'\nenv_file = '{environment}'\nredact = ['WORD']\nworkdir = '/tmp'"
            ),
        ),
        (
            "described",
            "description = 'One of fifty'\nowner = 'chaos@example.org'\nsplay = '4s'\nsuccess_exit = [0, 75]"
                .to_owned(),
        ),
        ("kept-few", "keep = { records = 5, days = 1, output = '10KiB' }".to_owned()),
    ] {
        made.job(name, 22, 10, (0, 6, 9, "-"), "skip", &fields);
    }
    // When they run.
    for (name, fields) in [
        ("minutely", "schedule = ['* * * * *', '*/2 * * * *']\ntimezone = 'Europe/Berlin'"),
        (
            "dated",
            "schedule = '@every 20s'\nstart_at = '2020-01-01T00:00:00Z'\nend_at = '2099-01-01T00:00:00Z'\nskip_dates = ['2030-12-24..2031-01-01']",
        ),
        ("yearly", "schedule = '@yearly'\nshell = '/bin/sh'"),
    ] {
        made.scheduled(name, None, 10, (1, 8, 9, "-"), "skip", fields);
    }
    assert_eq!(made.jobs.len(), JOBS, "{:?}", made.jobs.iter().map(|job| &job.kind.name).collect::<Vec<_>>());
    made.jobs
}

struct Made {
    script: String,
    jobs: Vec<Defined>,
}

type Length = (u32, u32, u32, &'static str);

impl Made {
    fn job(&mut self, name: &str, every: u32, hold: u32, length: Length, overlap: &str, fields: &str) {
        self.scheduled(name, Some(every), hold, length, overlap, fields);
    }

    fn scheduled(
        &mut self,
        name: &str,
        every: Option<u32>,
        hold: u32,
        (least, more, failing, word): Length,
        overlap: &str,
        fields: &str,
    ) {
        let script = &self.script;
        let command = match name.len() % 2 {
            0 => format!("command = 'exec sh {script} {least} {more} {failing} {word}'"),
            _ => format!("command = ['/bin/sh', '{script}', '{least}', '{more}', '{failing}', '{word}']"),
        };
        let kind = Kind {
            name: name.to_owned(),
            allow: overlap == "allow",
            at_most_once: fields.contains("at-most-once"),
            everywhere: fields.contains("every-node"),
            by_hand: !fields.contains("every-node") && name != "nowhere",
            every,
            fields: format!("{command}\noverlap = '{overlap}'\n{fields}"),
        };
        self.jobs.push(Defined { kind, there: true, enabled: true, slower: 0, hold });
    }
}

/// The job file that says this.
pub fn text(jobs: &[Defined], world: &Path) -> String {
    let mut text = format!(
        "[source]\nname = 'chaos'\n[defaults]\ntimezone = 'UTC'\nkill_after = '1s'\nenv = {{ HISTORY = '{}' }}\n\
         keep = {{ records = 100000, days = 30, output = '100KiB' }}\n",
        world.join("history").display()
    );
    for Defined { kind, enabled, slower, hold, .. } in jobs.iter().filter(|job| job.there) {
        let _ =
            write!(text, "[jobs.{}]\nenabled = {enabled}\nhold = '{hold}s'\n{}\n", kind.name, kind.fields);
        if let Some(every) = kind.every {
            let _ = writeln!(text, "schedule = '@every {}s'", every + slower);
        }
    }
    text
}
