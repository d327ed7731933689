//! Simulated machines and processes, as far as clocks know them: for tests under tokio's paused time.
//!
//! A machine has a wall clock that can be set and run wrong, and a time since its boot. A process lives on one; it can
//! be [frozen](Process::freeze), and then all that is [bound](super::Clock::bind) to its clock stands still: timers
//! and replies pile up, and are all seen when it goes on.

use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::Instant;

use crate::schedule::Timestamp;

/// One simulated machine's clocks. Leaked, so that a clock is as cheap to copy as the real one.
pub struct Machine(Mutex<Times>);

struct Times {
    /// When the others were worked out, by true time.
    seen: Instant,
    wall: Timestamp,
    since_boot: Duration,
    /// By how many millionths both run too fast; negative: too slow.
    drift: i32,
}

impl Machine {
    /// A machine that has just booted, and whose wall clock shows this.
    pub fn boot(wall: Timestamp) -> &'static Machine {
        // A clock knows nothing of what was before; a little time has passed since any boot.
        let since_boot = Duration::from_secs(10);
        Box::leak(Box::new(Machine(Mutex::new(Times { seen: Instant::now(), wall, since_boot, drift: 0 }))))
    }

    /// A process of this machine.
    pub fn process(&'static self) -> &'static Process {
        Box::leak(Box::new(Process { machine: self, rest: Mutex::new(Rest::default()) }))
    }

    /// Sets the wall clock, forward or back.
    pub fn step(&self, by: TimeDelta) {
        self.now().wall += by;
    }

    /// Both clocks run so many millionths too fast from now on.
    pub fn drift(&self, millionths: i32) {
        self.now().drift = millionths;
    }

    pub fn wall(&self) -> Timestamp {
        self.now().wall
    }

    pub fn since_boot(&self) -> Duration {
        self.now().since_boot
    }

    fn now(&self) -> MutexGuard<'_, Times> {
        let mut times = self.0.lock().expect("nobody panics holding a time");
        let now = Instant::now();
        let passed = now.duration_since(times.seen).as_nanos() as i64;
        let shown = passed + passed * i64::from(times.drift) / 1_000_000;
        times.seen = now;
        times.wall += TimeDelta::nanoseconds(shown);
        times.since_boot += Duration::from_nanos(shown.unsigned_abs());
        times
    }
}

/// One simulated process: what can be frozen and ended as a whole.
pub struct Process {
    machine: &'static Machine,
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    /// It goes on when it was thawed as often as it was frozen: it may stand still for itself and with its machine.
    frozen: u32,
    ended: bool,
    /// What was to go on meanwhile.
    waiting: Vec<Waker>,
}

impl Process {
    pub fn clock(&'static self) -> super::Clock {
        super::Clock::simulated(self)
    }

    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    pub fn freeze(&self) {
        self.rest().frozen += 1;
    }

    pub fn thaw(&self) {
        let mut rest = self.rest();
        rest.frozen = rest.frozen.saturating_sub(1);
        let go_on = if rest.frozen == 0 { std::mem::take(&mut rest.waiting) } else { Vec::new() };
        drop(rest);
        go_on.into_iter().for_each(Waker::wake);
    }

    /// Not one more step, as after `kill -9`. The tasks are still to be aborted: what they own goes with them.
    pub fn end(&self) {
        self.rest().ended = true;
    }

    pub fn is_frozen(&self) -> bool {
        self.rest().frozen > 0
    }

    /// Ready while it goes on.
    #[cfg_attr(not(debug_assertions), allow(dead_code, reason = "a release binds nothing"))]
    pub(super) fn poll_goes_on(&self, cx: &Context<'_>) -> Poll<()> {
        let mut rest = self.rest();
        if rest.frozen == 0 && !rest.ended {
            return Poll::Ready(());
        }
        if !rest.ended {
            rest.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().expect("nobody panics holding this")
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_is_set_and_runs_wrong_and_the_time_since_boot_is_never_set() {
        let start: Timestamp = "2026-11-30T02:00:00Z".parse().unwrap();
        let machine = Machine::boot(start);
        let booted = machine.since_boot();
        tokio::time::sleep(Duration::from_secs(100)).await;
        machine.step(TimeDelta::hours(-1));
        machine.drift(500);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(machine.since_boot() - booted, Duration::from_millis(200_050));
        assert_eq!(machine.wall(), start - TimeDelta::hours(1) + TimeDelta::milliseconds(200_050));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_bound_to_a_frozen_process_goes_on_when_it_thaws() {
        let process = Machine::boot(Timestamp::UNIX_EPOCH).process();
        let began = Instant::now();
        let task = tokio::spawn(process.clock().bind(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            began.elapsed()
        }));
        tokio::task::yield_now().await;
        process.freeze();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished());
        process.thaw();
        assert_eq!(task.await.unwrap(), Duration::from_secs(60));
    }
}
