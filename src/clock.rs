//! The wall clock, read in one place so that a test can put another in its stead, and the time since boot.

pub mod sim;

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};

use crate::schedule::Timestamp;

/// Tells the wall-clock time. Cheap to copy; all copies tell the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    shift: Shift,
}

#[derive(Debug, Clone, Copy)]
enum Shift {
    /// The machine's own clock.
    None,
    /// The machine's clock, so many milliseconds ahead, or behind when negative.
    Millis(i64),
    /// The machine's clock, as far ahead as a file says at the moment.
    File(&'static str),
    /// From `origin`, at which it was `begun`, so many times as fast as real time.
    Fast { begun: Instant, origin: Timestamp, times: u32 },
    /// A simulated process's.
    Simulated(&'static sim::Process),
}

/// The environment variable by which tests set a node's clock: `-5s`, `+5s`, `2026-10-25T00:55:00Z*600`, which begins
/// there and runs 600 times as fast, or `file:PATH`, a file that says `-5s` or `+5s` and is read at every look, so that
/// the clock can be set while the node runs. With ` unsynced` behind that, the kernel is taken to say so.
pub const TEST_CLOCK: &str = "FLEETCRON_TEST_CLOCK";

impl Clock {
    pub fn system() -> Clock {
        Clock { shift: Shift::None }
    }

    fn simulated(process: &'static sim::Process) -> Clock {
        Clock { shift: Shift::Simulated(process) }
    }

    /// The clock that a test asks for, as [`TEST_CLOCK`] describes it.
    ///
    /// Errors: the text is not understood.
    pub fn for_test(text: &str) -> Result<Clock, String> {
        let odd = || format!("{TEST_CLOCK}={text:?}: want -5s, +5s, INSTANT*TIMES or file:PATH");
        let shift = if let Some(path) = text.strip_prefix("file:") {
            Shift::File(Box::leak(path.to_owned().into_boxed_str()))
        } else if let Some((origin, times)) = text.split_once('*') {
            let origin = Timestamp::from(chrono::DateTime::parse_from_rfc3339(origin).map_err(|_| odd())?);
            Shift::Fast { begun: Instant::now(), origin, times: times.parse().map_err(|_| odd())? }
        } else {
            Shift::Millis(millis(text).ok_or_else(odd)?)
        };
        Ok(Clock { shift })
    }

    pub fn now(&self) -> Timestamp {
        match self.shift {
            Shift::None => SystemTime::now().into(),
            Shift::Millis(millis) => {
                Timestamp::from(SystemTime::now()) + chrono::TimeDelta::milliseconds(millis)
            }
            Shift::File(path) => {
                Timestamp::from(SystemTime::now()) + chrono::TimeDelta::milliseconds(said(path).0)
            }
            Shift::Fast { begun, origin, times } => origin + begun.elapsed() * times,
            Shift::Simulated(process) => process.machine().wall(),
        }
    }

    /// The time since boot, by which contacts and holds are counted: see [`since_boot`].
    pub fn since_boot(&self) -> Duration {
        match self.shift {
            Shift::Simulated(process) => process.machine().since_boot(),
            Shift::None | Shift::Millis(_) | Shift::File(_) | Shift::Fast { .. } => since_boot(),
        }
    }

    /// A task of the process that goes by this clock: where the process is a simulated one that is frozen, it stands
    /// still with it. Every task that is spawned on behalf of a node is bound, since a task that is not would go on
    /// alone. A release has nothing at these places.
    #[cfg(debug_assertions)]
    pub async fn bind<F: Future>(self, task: F) -> F::Output {
        let mut task = std::pin::pin!(task);
        std::future::poll_fn(|cx| {
            if let Shift::Simulated(process) = self.shift
                && process.poll_goes_on(cx).is_pending()
            {
                return std::task::Poll::Pending;
            }
            task.as_mut().poll(cx)
        })
        .await
    }

    #[cfg(not(debug_assertions))]
    pub fn bind<F: Future>(self, task: F) -> F {
        task
    }

    /// Waits until so long has passed since boot. Looked at again and again, because no timer of the runtime counts the
    /// time that a machine is suspended.
    pub async fn sleep_until(&self, due: Duration) {
        loop {
            match due.saturating_sub(self.since_boot()) {
                Duration::ZERO => return,
                left => tokio::time::sleep(left.min(LOOK_AGAIN)).await,
            }
        }
    }

    /// How many times as fast as real time it runs.
    pub fn pace(&self) -> u32 {
        match self.shift {
            Shift::Fast { times, .. } => times,
            Shift::None | Shift::Millis(_) | Shift::File(_) | Shift::Simulated(_) => 1,
        }
    }

    /// Whether the kernel says that something keeps the clock right. What cannot be found out is not held against it.
    pub fn is_synced(&self) -> bool {
        match self.shift {
            Shift::None => is_synced(),
            Shift::File(path) => said(path).1,
            Shift::Millis(_) | Shift::Fast { .. } | Shift::Simulated(_) => true,
        }
    }

    /// How long to wait, at the most, until this clock shows `at`.
    pub fn until(&self, at: Timestamp) -> Duration {
        let left = (at - self.now()).to_std().unwrap_or_default();
        left / self.pace().max(1)
    }
}

/// How long a sleep by the time since boot goes on without a look at it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The time since boot (CLOCK_BOOTTIME), standing still for nothing: a suspended machine's deadlines pass too. All
/// processes of a machine count from the same moment.
pub fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .expect("every Linux since 2.6.39 has this clock")
}

/// Whether the kernel's own clock discipline is at work: an NTP daemon, or a hypervisor's, tells it so.
fn is_synced() -> bool {
    // SAFETY: all zeroes is a valid `timex`, and with no modes set the call only writes into it.
    let (state, status) = unsafe {
        let mut asked: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut asked), asked.status)
    };
    state == -1 || (state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0)
}

/// `-5s` or `+5s`.
fn millis(text: &str) -> Option<i64> {
    let (sign, length) = match text.split_at_checked(1)? {
        ("-", length) => (-1, length),
        ("+", length) => (1, length),
        _ => return None,
    };
    let length = humantime::parse_duration(length).ok()?;
    Some(sign * i64::try_from(length.as_millis()).ok()?)
}

/// What a test's file says: by how many milliseconds the clock is ahead, and whether it is synchronised.
fn said(path: &str) -> (i64, bool) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut words = text.split_whitespace();
    (words.next().and_then(millis).unwrap_or(0), words.next() != Some("unsynced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_shift_the_clock_or_let_it_run_fast() {
        let real = Clock::system();
        for (text, seconds) in [("-5s", -5), ("+1h", 3600)] {
            let apart = Clock::for_test(text).unwrap().now() - real.now();
            assert!(
                (apart - chrono::TimeDelta::seconds(seconds)).abs() < chrono::TimeDelta::seconds(1),
                "{apart}"
            );
        }
        let fast = Clock::for_test("2026-10-25T00:55:00Z*60").unwrap();
        let at = fast.now() + chrono::TimeDelta::minutes(1);
        assert!(fast.until(at) <= Duration::from_secs(1));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clock");
        let set = Clock::for_test(&format!("file:{}", path.display())).unwrap();
        for (text, seconds, is_synced) in [("+1h", 3600, true), ("-5s unsynced", -5, false), ("+0s", 0, true)]
        {
            std::fs::write(&path, text).unwrap();
            let off = set.now() - real.now() - chrono::TimeDelta::seconds(seconds);
            assert!(
                off.abs() < chrono::TimeDelta::seconds(1) && set.is_synced() == is_synced,
                "{text} {off}"
            );
        }
        for odd in ["", "5s", "-", "2026*x", "+5 parsecs"] {
            assert!(Clock::for_test(odd).is_err(), "{odd:?}");
        }
    }
}
