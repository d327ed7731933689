//! Whether this node's clock agrees with the others': one that is far off decides nothing by it.
//!
//! Pure: it is told what the clock shows and what others showed when they were seen to register. A fast clock would
//! run fires before their time and settle those of a time to come; so a node whose clock is off claims no scheduled
//! fire and settles none until it agrees again, or is the only one. A slow one merely comes late.
//!
//! A reading of another clock is good only at the moment it is seen, so it is kept against the time since this
//! machine's boot, which no setting of a clock moves. Who sees a clock that differs from its own shows its own in
//! answer, once: so the one that is wrong hears of all others, and those who are right of each other.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;

use crate::node::NodeName;
use crate::schedule::Timestamp;
use crate::store::values::ClockWord;

/// Clocks that are further apart do not agree.
pub(super) const FAR: TimeDelta = TimeDelta::seconds(5);
/// How long after its start a node listens to the others before it decides anything.
const LISTEN_FOR: Duration = Duration::from_secs(3);
/// Who comes may not have begun to listen yet; with the time between two looks it is less than a node listens.
const ANSWER_AFTER: Duration = Duration::from_millis(500);
/// A clock that was set, and that nobody has contradicted for so long, is taken for right.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// So often a node whose clock is off asks the others what theirs show.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// What is known of clocks.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// No scheduled fire without a kernel that says that the clock is kept right.
    must_be_synced: bool,
    /// This node's clock against the time since boot, when it last agreed.
    agreed: Option<TimeDelta>,
    /// The same at the last look.
    last: Option<TimeDelta>,
    others: BTreeMap<NodeName, Heard>,
    /// Until then, since boot, nothing is decided.
    listens_until: Option<Duration>,
    off: Option<Off>,
    /// What was said last of it.
    word: Option<ClockWord>,
    asked: u32,
    /// Since boot: when somebody is to be answered.
    answers: Option<Duration>,
    /// What comes from the watch may be old.
    lags: bool,
}

/// Another node's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heard {
    /// Against the time since this machine's boot.
    base: TimeDelta,
    asked: u32,
}

/// This node's clock is not to be gone by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Off {
    why: Why,
    /// Since boot.
    since: Duration,
    asked_at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// From most others, by so much; ahead when positive.
    Apart(TimeDelta),
    /// It was set by so much, and nobody has confirmed it.
    Set(TimeDelta),
    Unsynced,
}

/// What the clocks show at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub wall: Timestamp,
    pub since_boot: Duration,
    /// What the kernel says of this clock.
    pub is_synced: bool,
    /// How many others are registered.
    pub others: usize,
}

/// What a look has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// The clock was set by so much since the look before.
    pub set_by: Option<TimeDelta>,
    /// Others are to see the clock again, with this word of it.
    pub show: Option<Option<ClockWord>>,
    /// The word changed, for the log.
    pub says: Option<Says>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing is decided by it.
    Off(String),
    /// It is gone by all the same.
    Unsynced,
    Agrees,
}

/// The word of a clock that nothing keeps right.
pub const UNSYNCED: &str = "not synchronised";

impl Agreement {
    /// `word`: what the registration says already.
    pub fn new(must_be_synced: bool, word: Option<ClockWord>) -> Agreement {
        Agreement { must_be_synced, word, ..Agreement::default() }
    }

    /// Whether scheduled fires may be claimed, and settled.
    pub fn is_given(&self) -> bool {
        self.off.is_none()
    }

    /// What is wrong, where it is not.
    pub fn objection(&self) -> Option<String> {
        self.off.map(|off| off.why.to_string())
    }

    /// Whether it is known enough to begin.
    pub fn has_listened(&self, since_boot: Duration) -> bool {
        self.listens_until.is_none_or(|until| since_boot >= until)
    }

    /// These are all who are registered; their clocks may have been shown long ago.
    pub fn listed<'n>(&mut self, names: impl Iterator<Item = &'n NodeName>, since_boot: Duration) {
        let names: Vec<_> = names.collect();
        self.others.retain(|name, _| names.contains(&name));
        if !names.is_empty() {
            self.listens_until.get_or_insert(since_boot + LISTEN_FOR);
        }
        self.lags = false;
    }

    /// The watch is broken: what it tells next may be old.
    pub fn out_of_touch(&mut self) {
        self.lags = true;
    }

    /// A new lot of events is told, and so many seconds ago the store gave a sign of life. False: they tell nothing of
    /// clocks, since a reading that comes late looks like a clock that is slow.
    pub fn may_hear(&mut self, quiet_for: Duration) -> bool {
        !std::mem::take(&mut self.lags) && quiet_for < Duration::from_secs(3)
    }

    /// Another node was seen to register at this moment.
    pub fn hear(
        &mut self,
        name: &NodeName,
        shows: Timestamp,
        word: Option<&ClockWord>,
        now: (Timestamp, Duration),
    ) {
        let asked = word.map_or(0, |word| word.asked);
        let heard = Heard { base: base(shows, now.1), asked };
        let differs = (heard.base - base(now.0, now.1)).abs() > FAR;
        let before = self.others.insert(name.clone(), heard.clone());
        // Once for each change, or two would answer each other for ever.
        let is_news = before.is_none_or(|before| {
            (before.base - heard.base).abs() > FAR || (before.asked != asked && asked > 0)
        });
        if is_news && (differs || asked > 0) {
            self.answers.get_or_insert(now.1 + ANSWER_AFTER);
        }
    }

    pub fn knows(&self, name: &NodeName) -> bool {
        self.others.contains_key(name)
    }

    pub fn gone(&mut self, name: &NodeName) {
        self.others.remove(name);
    }

    /// Looks at this node's clock.
    pub fn look(&mut self, look: Look) -> Shown {
        let base = base(look.wall, look.since_boot);
        let set_by = self.last.replace(base).map(|last| base - last).filter(|by| by.abs() > FAR);
        let why = self.why_off(base, look);
        let now = look.since_boot;
        let was_off = self.off;
        self.off = why.map(|why| Off {
            why,
            since: was_off.map_or(now, |off| off.since),
            asked_at: was_off.map_or(now, |off| off.asked_at),
        });
        if self.off.is_none() {
            self.agreed = Some(base);
        }
        let mut asks = self.off.is_some() && was_off.is_none();
        if let Some(off) = self.off.as_mut().filter(|off| now >= off.asked_at + ASK_EVERY) {
            (off.asked_at, asks) = (now, true);
        }
        self.asked += u32::from(asks);
        let word = match why {
            Some(why) => Some(ClockWord { says: why.to_string(), asked: self.asked }),
            None if look.is_synced => None,
            None => Some(ClockWord { says: UNSYNCED.to_owned(), asked: 0 }),
        };
        let is_other = |word: &Option<ClockWord>, before: &Option<ClockWord>| {
            word.as_ref().map(|word| &word.says) != before.as_ref().map(|word| &word.says)
        };
        let is_other = is_other(&word, &self.word);
        let says = match (why, was_off) {
            (Some(why), None) => Some(Says::Off(why.to_string())),
            (None, Some(_)) => Some(Says::Agrees),
            (None, None) if is_other && word.is_some() => Some(Says::Unsynced),
            _ => None,
        };
        let answers = self.answers.take_if(|due| now >= *due).is_some();
        let show = is_other || asks || set_by.is_some() || answers;
        if show {
            self.word.clone_from(&word);
        }
        Shown { set_by, show: show.then_some(word), says }
    }

    fn why_off(&self, base: TimeDelta, look: Look) -> Option<Why> {
        if self.must_be_synced && !look.is_synced {
            return Some(Why::Unsynced);
        }
        if look.others == 0 {
            return None;
        }
        match self.apart(base, look.is_synced) {
            Some(apart) => (apart.abs() > FAR).then_some(Why::Apart(apart)),
            None => {
                let set_by = self.agreed.map(|agreed| base - agreed).filter(|by| by.abs() > FAR)?;
                let since = self.off.map_or(look.since_boot, |off| off.since);
                (look.since_boot < since + ANSWERS_WITHIN).then_some(Why::Set(set_by))
            }
        }
    }

    /// How far this clock is from the middle of all that are known; ahead when positive. None: that is not known.
    fn apart(&self, base: TimeDelta, is_synced: bool) -> Option<TimeDelta> {
        let mut all: Vec<TimeDelta> = self.others.values().map(|heard| base - heard.base).collect();
        match all[..] {
            [] => None,
            // One against one: only the kernel's word weighs, and a clock that is behind does no harm.
            [apart] if apart.abs() <= FAR || (!is_synced && apart > TimeDelta::zero()) => Some(apart),
            [_] => None,
            _ => {
                all.push(TimeDelta::zero());
                all.sort();
                // Of two in the middle, the nearer: where the fleet is split in halves, both go on.
                let middle = [all[(all.len() - 1) / 2], all[all.len() / 2]];
                middle.into_iter().min_by_key(TimeDelta::abs)
            }
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = |by: &TimeDelta| if *by > TimeDelta::zero() { "ahead" } else { "behind" };
        match self {
            Why::Apart(by) => write!(f, "{} s {}", by.num_seconds().abs(), way(by)),
            Why::Set(by) => {
                let way = if *by > TimeDelta::zero() { "forward" } else { "back" };
                write!(f, "set {} s {way}", by.num_seconds().abs())
            }
            Why::Unsynced => f.write_str(UNSYNCED),
        }
    }
}

/// A clock against the time since boot: it stays the same for as long as nobody sets the clock.
fn base(wall: Timestamp, since_boot: Duration) -> TimeDelta {
    wall - Timestamp::UNIX_EPOCH - TimeDelta::from_std(since_boot).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node among others, whose clocks are so many seconds ahead of true time.
    struct Node {
        agreement: Agreement,
        ahead: i64,
        /// True time.
        now: u64,
        others: usize,
        is_synced: bool,
    }

    fn name(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    impl Node {
        fn among(others: usize) -> Node {
            let agreement = Agreement::new(false, None);
            let mut node = Node { agreement, ahead: 0, now: 100, others, is_synced: true };
            node.look();
            node
        }

        fn wall(&self, ahead: i64) -> Timestamp {
            Timestamp::UNIX_EPOCH + TimeDelta::seconds(1_000_000 + self.now as i64 + ahead)
        }

        fn hear(&mut self, other: &str, ahead: i64, asked: u32) {
            let word = (asked > 0).then(|| ClockWord { says: "x".to_owned(), asked });
            let now = (self.wall(self.ahead), Duration::from_secs(self.now));
            self.agreement.hear(&name(other), self.wall(ahead), word.as_ref(), now);
        }

        fn look(&mut self) -> Shown {
            self.now += 1;
            self.agreement.look(Look {
                wall: self.wall(self.ahead),
                since_boot: Duration::from_secs(self.now),
                is_synced: self.is_synced,
                others: self.others,
            })
        }

        #[track_caller]
        fn check(&mut self, is_given: bool) {
            self.look();
            assert_eq!(self.agreement.is_given(), is_given, "{:?}", self.agreement);
        }
    }

    #[test]
    fn a_clock_that_differs_from_most_others_is_off_until_it_is_put_right() {
        for ahead in [3600, -3600] {
            let mut node = Node::among(3);
            node.ahead = ahead;
            for other in ["b", "c", "d"] {
                node.hear(other, 0, 0);
            }
            node.check(false);
            node.ahead = 4;
            node.check(true);
        }
    }

    #[test]
    fn a_clock_that_is_right_stays_so_whatever_a_few_others_show() {
        let mut node = Node::among(4);
        node.hear("odd-1", 3600, 0);
        node.check(true);
        // Two, and those that agree have not been heard of: they answer the odd ones too.
        node.hear("odd-2", 3600, 0);
        node.hear("b", 1, 0);
        node.hear("c", -1, 0);
        node.check(true);
    }

    #[test]
    fn a_fleet_that_is_split_in_halves_goes_on() {
        let mut node = Node::among(3);
        for (other, ahead) in [("b", 0), ("c", 20), ("d", 20)] {
            node.hear(other, ahead, 0);
        }
        node.check(true);
        node.ahead = 20;
        node.check(true);
    }

    #[test]
    fn against_one_other_only_the_kernels_word_weighs_and_only_against_who_is_ahead() {
        let mut node = Node::among(1);
        node.hear("b", -3600, 0);
        node.check(true);
        node.is_synced = false;
        node.check(false);
        node.hear("b", 3600, 0);
        node.check(true);
    }

    #[test]
    fn a_clock_that_was_set_is_off_until_others_agree_or_it_is_alone() {
        let mut node = Node::among(2);
        node.ahead = 3600;
        let shown = node.look();
        assert_eq!(shown.set_by, Some(TimeDelta::seconds(3600)));
        let word = ClockWord { says: "set 3600 s forward".to_owned(), asked: 1 };
        assert_eq!(
            (shown.show, shown.says),
            (Some(Some(word)), Some(Says::Off("set 3600 s forward".to_owned())))
        );
        // It was the others who were wrong before.
        node.hear("b", 3600, 0);
        assert_eq!(node.look().says, Some(Says::Agrees));
        node.ahead = 0;
        node.check(false);
        node.others = 0;
        node.check(true);
    }

    #[test]
    fn a_clock_that_was_set_back_to_what_it_was_agrees_with_itself() {
        let mut node = Node::among(2);
        node.ahead = 60;
        node.check(false);
        node.ahead = 0;
        node.check(true);
    }

    #[test]
    fn what_nobody_contradicts_is_taken_for_right_after_a_while() {
        let mut node = Node::among(2);
        node.ahead = 60;
        node.check(false);
        node.now += ANSWERS_WITHIN.as_secs();
        node.check(true);
    }

    #[test]
    fn who_differs_or_asks_is_answered_once() {
        let mut node = Node::among(2);
        let is_shown = |node: &mut Node| node.look().show.is_some();
        node.hear("b", 2, 0);
        assert!(!is_shown(&mut node));
        node.hear("c", 60, 0);
        assert!(is_shown(&mut node) && !is_shown(&mut node));
        node.hear("c", 60, 0);
        assert!(!is_shown(&mut node));
        node.hear("c", 60, 1);
        assert!(is_shown(&mut node));
        node.hear("c", 60, 1);
        assert!(!is_shown(&mut node));
    }

    #[test]
    fn who_is_off_goes_on_asking() {
        let mut node = Node::among(2);
        node.ahead = 60;
        node.hear("b", 0, 0);
        node.hear("c", 0, 0);
        assert!(node.look().show.is_some() && node.look().show.is_none());
        node.now += ASK_EVERY.as_secs();
        let Some(Some(word)) = node.look().show else { panic!("it does not ask") };
        assert_eq!((word.says.as_str(), word.asked), ("60 s ahead", 2));
    }

    #[test]
    fn an_unsynchronised_clock_is_told_and_held_against_it_only_when_that_is_asked_for() {
        let mut node = Node::among(2);
        node.is_synced = false;
        assert_eq!(node.look().says, Some(Says::Unsynced));
        node.check(true);
        node.agreement.must_be_synced = true;
        node.check(false);
        node.others = 0;
        node.check(false);
        node.is_synced = true;
        assert_eq!(node.look().says, Some(Says::Agrees));
    }

    #[test]
    fn what_may_be_old_tells_nothing() {
        let mut agreement = Agreement::new(false, None);
        let soon = Duration::from_millis(900);
        assert!(agreement.may_hear(soon) && !agreement.may_hear(Duration::from_secs(3)));
        agreement.out_of_touch();
        assert!(!agreement.may_hear(soon) && agreement.may_hear(soon));
    }

    #[test]
    fn who_comes_to_others_listens_first() {
        let mut agreement = Agreement::new(false, None);
        let at = Duration::from_secs;
        agreement.listed([].into_iter(), at(7));
        assert!(agreement.has_listened(at(7)));
        agreement.listed([name("b")].iter(), at(8));
        assert!(!agreement.has_listened(at(10)) && agreement.has_listened(at(11)));
        agreement.listed([name("b")].iter(), at(20));
        assert!(agreement.has_listened(at(20)));
    }
}
