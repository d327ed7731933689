//! What the next fire costs: ours, the `cron` crate and `croner` beside one another in one run.
//!
//! `cargo bench --bench schedule`. Times are CPU time of this process, medians of several rounds; on a busy
//! machine only the ratios mean much. The crates are asked in UTC, where they are at their best; ours also in
//! a zone with clock changes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{TimeZone, Utc};
use fleetcron::schedule::{Schedule, Timestamp, Zone};
use nix::time::{ClockId, clock_gettime};

const ORDINARY: [&str; 8] = [
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0 9-17 * * 1-5",
    "0 0 1 * *",
    "5,35 6,18 * * *",
    "0 3 * * 0",
    "*/5 8-18 * * 1-5",
];
const LEAP: [&str; 2] = ["0 0 29 2 *", "30 12 29 2 *"];
const IMPOSSIBLE: [&str; 3] = ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2,4 *"];
const DAYS_OF_WEEK: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

fn main() {
    run();
}

pub fn run() {
    let (utc, berlin) = (Zone::utc(), zone("Europe/Berlin"));
    println!("next fire, ns of CPU (median of 9 rounds over 64 instants)\n");
    println!("| kind | ours UTC | ours Berlin | cron | croner | ours / cron | steps at most |");
    println!("|---|---|---|---|---|---|---|");
    let ordinary = row("ordinary", &ORDINARY, &utc, &berlin);
    row("leap day", &LEAP, &utc, &berlin);
    row("impossible", &IMPOSSIBLE, &utc, &berlin);
    let (worst, steps) = worst_of_random(100_000);
    let worst_row = row("worst of 100,000 random", &[&worst], &utc, &berlin);
    println!("\n(NaN: it cannot read these.)\nworst valid expression found: `{worst}` ({steps} steps)");
    println!("ordinary, ours / cron: {:.2} (wanted: at most 5)", ordinary.ours / ordinary.cron);
    println!("worst / ordinary, ours: {:.1} (wanted: at most 100)", worst_row.ours / ordinary.ours);
    swallowed(ordinary.ours);
    fleet();
}

struct Row {
    ours: f64,
    cron: f64,
}

fn row(kind: &str, exprs: &[&str], utc: &Zone, berlin: &Zone) -> Row {
    let ours: Vec<Schedule> = exprs.iter().map(|expr| parse(expr, utc)).collect();
    let zoned: Vec<Schedule> = exprs.iter().map(|expr| parse(expr, berlin)).collect();
    let crons: Vec<_> = exprs.iter().filter_map(|expr| cron_crate(expr)).collect();
    let croners: Vec<_> = exprs.iter().filter_map(|expr| croner::Cron::from_str(expr).ok()).collect();
    let steps = ours.iter().chain(&zoned).flat_map(|one| instants().map(|at| one.search(at).steps));
    let steps = steps.max().unwrap_or(0);
    let ours = median(ours.len(), |one, at| {
        black_box(ours[one].next_after(at));
    });
    let zoned = median(zoned.len(), |one, at| {
        black_box(zoned[one].next_after(at));
    });
    let cron = median(crons.len(), |one, at| {
        black_box(crons[one].after(&at).next());
    });
    let croner = median(croners.len(), |one, at| {
        black_box(croners[one].find_next_occurrence(&at, false).ok());
    });
    println!("| {kind} | {ours:.0} | {zoned:.0} | {cron:.0} | {croner:.0} | {:.2} | {steps} |", ours / cron);
    Row { ours, cron }
}

/// The valid expression whose search looks at most, of `count` random ones, leaning to rare days.
fn worst_of_random(count: u32) -> (String, u32) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut worst = (String::new(), 0);
    for _ in 0..count {
        let expr = random_expression(&mut random);
        let schedule = parse(&expr, &zone("Europe/Berlin"));
        if schedule.never_fires() {
            continue;
        }
        for at in instants().step_by(16) {
            let steps = schedule.search(at).steps;
            if steps > worst.1 {
                worst = (expr.clone(), steps);
            }
        }
    }
    worst
}

fn random_expression(random: &mut Random) -> String {
    let minute = random.below(60).to_string();
    let hour = random.below(24).to_string();
    let date = match random.below(6) {
        0 => "*".to_owned(),
        1 => format!("*/{}", 2 + random.below(31)),
        2 => format!("{}-{}", 27 + random.below(3), 30 + random.below(2)),
        3 => "29".to_owned(),
        4 => "30,31".to_owned(),
        _ => (1 + random.below(31)).to_string(),
    };
    let month = match random.below(5) {
        0 => "*".to_owned(),
        1 => "2".to_owned(),
        2 => format!("2-{}", 2 + random.below(11)),
        3 => "2,4,6,9,11".to_owned(),
        _ => (1 + random.below(12)).to_string(),
    };
    let weekday = match random.below(5) {
        0 => "*".to_owned(),
        1 => format!("*/{}", 2 + random.below(6)),
        2 => format!("{}L", random.below(7)),
        3 => format!("{}#{}", random.below(7), 1 + random.below(5)),
        _ => random.below(7).to_string(),
    };
    let minute = if random.below(4) == 0 { "*/15".to_owned() } else { minute };
    format!("{minute} {hour} {date} {month} {weekday}")
}

/// A rule whose every time falls into a gap: valid, and the longest search there can be.
fn swallowed(ordinary: f64) {
    let schedule = parse("*/15 2 * 3 0#2", &zone("America/New_York"));
    let steps = instants().map(|at| schedule.search(at).steps).max().unwrap_or(0);
    let cost = median(1, |_, at| {
        black_box(schedule.next_after(at));
    });
    println!(
        "never, because a gap swallows it each time: {cost:.0} ns, {:.1} × ordinary, {steps} steps (bound {})",
        cost / ordinary,
        Schedule::MAX_STEPS
    );
}

/// 100,000 jobs: what it costs to parse them, to hold them, and to plan each one's next fire.
fn fleet() {
    const JOBS: usize = 100_000;
    let zones = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"].map(zone);
    let mut random = Random(1);
    let mut texts = Vec::with_capacity(JOBS);
    for job in 0..JOBS {
        let expr = match job % 4 {
            0 => ORDINARY[random.below(8) as usize].to_owned(),
            1 => format!("{} {} * * *", random.below(60), random.below(24)),
            2 => format!("H H * * {}", random.below(7)),
            _ => random_expression(&mut random),
        };
        texts.push((expr, format!("job-{job}")));
    }
    let mut schedules = Vec::with_capacity(JOBS);
    let held = HELD.load(Ordering::Relaxed);
    let parsing = cpu(|| {
        for (index, (expr, job)) in texts.iter().enumerate() {
            schedules.push(Schedule::parse(&[expr], &zones[index % 4], job).unwrap());
        }
    });
    let each = (HELD.load(Ordering::Relaxed) - held) / JOBS + size_of::<Schedule>();
    let now = Utc.with_ymd_and_hms(2026, 11, 30, 20, 0, 0).unwrap();
    let planning = cpu(|| {
        for schedule in &schedules {
            black_box(schedule.next_after(now));
        }
    });
    println!(
        "100,000 jobs: planned in {:.3} s of CPU (wanted: at most 0.5), parsed in {:.3} s, {each} bytes each",
        planning.as_secs_f64(),
        parsing.as_secs_f64()
    );
}

fn parse(expr: &str, zone: &Zone) -> Schedule {
    Schedule::parse(&[expr], zone, "bench").unwrap()
}

fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

/// Five fields as the crate wants them: seconds in front, weekdays by name. None for `L` and `#`, which it
/// does not know.
fn cron_crate(expr: &str) -> Option<cron::Schedule> {
    let (rest, weekday) = expr.rsplit_once(' ').unwrap();
    let name = |c: char| match c.to_digit(8) {
        Some(day) => DAYS_OF_WEEK[day as usize % 7].to_owned(),
        None => c.to_string(),
    };
    let weekday = match weekday.starts_with('*') {
        true => weekday.to_owned(),
        false => weekday.chars().map(name).collect(),
    };
    cron::Schedule::from_str(&format!("0 {rest} {weekday}")).ok()
}

/// 64 instants over some years, none of them on a minute.
fn instants() -> impl Iterator<Item = Timestamp> {
    (0..64).map(|n| Utc.timestamp_opt(1_764_500_017 + n * 2_345_678, 0).unwrap())
}

/// Nanoseconds of CPU for one call, the median of nine rounds.
fn median(schedules: usize, mut call: impl FnMut(usize, Timestamp)) -> f64 {
    if schedules == 0 {
        return f64::NAN;
    }
    let instants: Vec<Timestamp> = instants().collect();
    // A search that takes long (`croner` looks for impossible dates for thousands of years) is asked less.
    let trial = cpu(|| (0..schedules).for_each(|schedule| call(schedule, instants[0])));
    let slow = trial / u32::try_from(schedules).unwrap() > Duration::from_millis(1);
    let instants = &instants[..if slow { 1 } else { instants.len() }];
    let calls = schedules * instants.len();
    let repeat = if slow { 1 } else { (5_000 / calls).max(1) };
    let mut rounds: Vec<f64> = (0..if slow { 3 } else { 9 })
        .map(|_| {
            let spent = cpu(|| {
                for _ in 0..repeat {
                    for schedule in 0..schedules {
                        instants.iter().for_each(|&at| call(schedule, at));
                    }
                }
            });
            spent.as_nanos() as f64 / (calls * repeat) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn cpu(work: impl FnOnce()) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
    let start = now();
    work();
    now() - start
}

/// A small generator, so that each run measures the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Counts the bytes that are held.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all work is the system allocator's; counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the system allocator's contract, which is this one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
