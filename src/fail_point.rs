//! Points at which a test can end the daemon as `kill -9` would, or hold it up.
//!
//! `FLEETCRON_FAIL_POINT=claim.send` ends it at the first passage of that point, `claim.send:3` at the third, and
//! `claim.send=wait` makes the file that `FLEETCRON_FAIL_POINT_WAIT` names and waits there until it is gone, while all
//! other tasks go on. Several, with commas between them, come one after the other: the second counts from when the
//! first was passed.
//! Only builds with debug assertions have them; a release has nothing at these places.

/// Marks a point by name. Each name stands once in the code, right before the await it is about.
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::fail_point::pass($name);
    };
}

/// The environment variable that names the points.
pub const FAIL_POINT: &str = "FLEETCRON_FAIL_POINT";
/// The one that names the file of a point where it waits.
pub const FAIL_POINT_WAIT: &str = "FLEETCRON_FAIL_POINT_WAIT";

#[cfg(debug_assertions)]
pub fn pass(name: &str) {
    use std::collections::VecDeque;
    use std::sync::{LazyLock, Mutex};

    use nix::sys::signal::{Signal, kill};

    static AHEAD: LazyLock<Mutex<VecDeque<Point>>> = LazyLock::new(|| {
        let text = std::env::var(FAIL_POINT).unwrap_or_default();
        let points = text.split(',').filter(|text| !text.is_empty()).map(Point::read);
        Mutex::new(points.collect())
    });
    let reached = {
        let mut ahead = AHEAD.lock().expect("nothing panics while it holds this");
        let Some(point) = ahead.front_mut().filter(|point| point.name == name) else { return };
        point.left -= 1;
        if point.left > 0 {
            return;
        }
        ahead.pop_front().expect("it is at the front")
    };
    if reached.waits {
        wait();
    } else {
        // What kill -9 does: nothing is unwound, nothing flushed.
        let _ = kill(nix::unistd::Pid::this(), Signal::SIGKILL);
    }
}

/// Holds up the thread: the runtime has another one.
#[cfg(debug_assertions)]
fn wait() {
    let file = std::env::var_os(FAIL_POINT_WAIT).expect("a point that waits needs FLEETCRON_FAIL_POINT_WAIT");
    std::fs::write(&file, "").expect("the file of a point can be made");
    while std::fs::exists(&file).unwrap_or(false) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// One point of the list.
#[cfg(debug_assertions)]
struct Point {
    name: String,
    /// Passages until it acts.
    left: u32,
    waits: bool,
}

#[cfg(debug_assertions)]
impl Point {
    fn read(text: &str) -> Point {
        let (text, waits) = match text.strip_suffix("=wait") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
        let left = nth.parse().ok().filter(|nth| *nth > 0);
        Point {
            name: name.to_owned(), left: left.expect("FLEETCRON_FAIL_POINT is NAME[:N][=wait],…"), waits
        }
    }
}
