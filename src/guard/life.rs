//! The life of a guard as a table: in which state which event leads where, and what is to be done.
//!
//! Pure: it reads no clock and touches no process. [`super::process`] feeds it and carries out what it says.

/// Where the guard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The claim's note is written, the command is about to be started.
    Starting,
    Running,
    /// The command and all it started were asked to stop, by TERM, for this reason.
    Asked(Stop),
    /// They were told to stop, by KILL.
    Insisted(Stop),
    /// The command has ended, something that it started has not; all of it was asked. `None`: the command ended by
    /// itself, and what it leaves behind is to end with it.
    Emptying(Option<Stop>),
    /// The same, told by KILL.
    Clearing(Option<Stop>),
    /// Nothing that is to end lives any more; what was written before is read.
    Draining(Option<Stop>),
    /// All is known. `Some`: it was stopped for this reason.
    Done(Option<Stop>),
    /// It was never started: a step failed, or it was no longer to start.
    Unstarted(Option<Stop>),
}

/// Why a command was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    TimedOut,
    Cancelled,
    /// The hold passed: somebody else may soon run it.
    OutOfTouch,
    /// The machine goes down: it is run again, or elsewhere.
    Shutdown,
}

/// What can happen to a guard. The list is closed on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Spawned,
    SpawnFailed,
    /// The command itself has ended.
    Exited(Leftovers),
    /// The last of what the command started has ended.
    TreeEmpty,
    /// Its time is up.
    TimeUp,
    /// `kill_after` has passed since it was asked.
    GraceUp,
    /// Somebody asks that it stop.
    CancelAsked,
    /// Somebody asks that it stop at once.
    KillAsked,
    /// The machine goes down.
    ShutdownAsked,
    /// The guard itself was signalled to end.
    Signalled,
    /// The hold is so far gone that the command must be asked now to be gone in time.
    HoldWanes,
    /// The hold is as good as over.
    HoldPassed,
    /// The last node that listened is gone.
    DaemonGone,
    /// A node listens.
    DaemonBack,
    /// There is no more output to wait for.
    OutputEnd,
    /// The disk takes no more output.
    DiskFull,
}

/// What a command leaves behind when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    Nothing,
    /// Processes that may live on, as under cron.
    LiveOn,
    /// Processes that the job wants gone.
    ToEnd,
}

/// What the guard does on the way into a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// TERM to all that the command is and started.
    Ask,
    /// `kill_after` counts from now.
    Grace,
    /// KILL to all that is left, again and again until nothing is.
    Insist,
    /// Read what is left of the output without waiting for more.
    Drain,
    /// Write down how it ended.
    Note,
}

const NOTHING: &[Action] = &[];
const ASK: &[Action] = &[Action::Ask, Action::Grace];
const INSIST: &[Action] = &[Action::Insist];
const DRAIN: &[Action] = &[Action::Drain];
const NOTE: &[Action] = &[Action::Note];

impl State {
    /// The next state and what to do. Events that can no longer matter leave the state as it is.
    pub fn after(self, event: Event) -> (State, &'static [Action]) {
        use Event::{
            CancelAsked, DaemonBack, DaemonGone, DiskFull, Exited, GraceUp, HoldPassed, HoldWanes, KillAsked,
            OutputEnd, ShutdownAsked, Signalled, SpawnFailed, Spawned, TimeUp, TreeEmpty,
        };
        use Leftovers::{LiveOn, Nothing, ToEnd};
        use State::{Asked, Clearing, Done, Draining, Emptying, Insisted, Running, Starting, Unstarted};
        match (self, event) {
            (Starting, Spawned) => (Running, NOTHING),
            (Starting, SpawnFailed) => (Unstarted(None), NOTE),
            (Starting, CancelAsked | KillAsked | Signalled) => (Unstarted(Some(Stop::Cancelled)), NOTE),
            (Starting, ShutdownAsked) => (Unstarted(Some(Stop::Shutdown)), NOTE),
            (Starting, HoldWanes | HoldPassed) => (Unstarted(Some(Stop::OutOfTouch)), NOTE),
            (Starting, Exited(_) | TreeEmpty | TimeUp | GraceUp | OutputEnd) => (self, NOTHING),

            (Running, Exited(Nothing | LiveOn)) => (Draining(None), DRAIN),
            (Running, Exited(ToEnd)) => (Emptying(None), ASK),
            (Running, TimeUp) => (Asked(Stop::TimedOut), ASK),
            (Running, CancelAsked | Signalled) => (Asked(Stop::Cancelled), ASK),
            (Running, ShutdownAsked) => (Asked(Stop::Shutdown), ASK),
            (Running, KillAsked) => (Insisted(Stop::Cancelled), INSIST),
            (Running, HoldWanes) => (Asked(Stop::OutOfTouch), ASK),
            (Running, HoldPassed) => (Insisted(Stop::OutOfTouch), INSIST),
            // Closing its output is the command's own affair.
            (Running, Spawned | SpawnFailed | TreeEmpty | GraceUp | OutputEnd) => (self, NOTHING),

            // Who stops a command means all that it started.
            (Asked(stop), Exited(Nothing)) => (Draining(Some(stop)), DRAIN),
            (Asked(stop), Exited(LiveOn | ToEnd)) => (Emptying(Some(stop)), NOTHING),
            (Asked(stop), GraceUp | KillAsked | HoldPassed) => (Insisted(stop), INSIST),
            // The first reason stands.
            (
                Asked(_),
                Spawned | SpawnFailed | TreeEmpty | TimeUp | CancelAsked | ShutdownAsked | Signalled
                | HoldWanes | OutputEnd,
            ) => (self, NOTHING),

            (Insisted(stop), Exited(Nothing)) => (Draining(Some(stop)), DRAIN),
            (Insisted(stop), Exited(LiveOn | ToEnd)) => (Clearing(Some(stop)), NOTHING),
            (
                Insisted(_),
                Spawned | SpawnFailed | TreeEmpty | TimeUp | GraceUp | CancelAsked | KillAsked
                | ShutdownAsked | Signalled | HoldWanes | HoldPassed | OutputEnd,
            ) => (self, NOTHING),

            (Emptying(stop), TreeEmpty) => (Draining(stop), DRAIN),
            (Emptying(stop), GraceUp | KillAsked | HoldPassed) => (Clearing(stop), INSIST),
            (
                Emptying(_),
                Spawned | SpawnFailed | Exited(_) | TimeUp | CancelAsked | ShutdownAsked | Signalled
                | HoldWanes | OutputEnd,
            ) => (self, NOTHING),

            (Clearing(stop), TreeEmpty) => (Draining(stop), DRAIN),
            (
                Clearing(_),
                Spawned | SpawnFailed | Exited(_) | TimeUp | GraceUp | CancelAsked | KillAsked
                | ShutdownAsked | Signalled | HoldWanes | HoldPassed | OutputEnd,
            ) => (self, NOTHING),

            (Draining(stop), OutputEnd) => (Done(stop), NOTE),
            (
                Draining(_),
                Spawned | SpawnFailed | Exited(_) | TreeEmpty | TimeUp | GraceUp | CancelAsked | KillAsked
                | ShutdownAsked | Signalled | HoldWanes | HoldPassed,
            ) => (self, NOTHING),

            (
                Done(_) | Unstarted(_),
                Spawned | SpawnFailed | Exited(_) | TreeEmpty | TimeUp | GraceUp | CancelAsked | KillAsked
                | ShutdownAsked | Signalled | HoldWanes | HoldPassed | OutputEnd,
            ) => (self, NOTHING),

            // A command does not depend on who listens; the hold alone tells how long it may do without. Nor on
            // whether its output can be kept.
            (
                Starting | Running | Asked(_) | Insisted(_) | Emptying(_) | Clearing(_) | Draining(_)
                | Done(_) | Unstarted(_),
                DaemonGone | DaemonBack | DiskFull,
            ) => (self, NOTHING),
        }
    }

    /// Whether all is over.
    pub fn is_end(self) -> bool {
        match self {
            State::Done(_) | State::Unstarted(_) => true,
            State::Starting
            | State::Running
            | State::Asked(_)
            | State::Insisted(_)
            | State::Emptying(_)
            | State::Clearing(_)
            | State::Draining(_) => false,
        }
    }

    /// Whether all that is left gets KILL until nothing is.
    pub fn is_insisting(self) -> bool {
        matches!(self, State::Insisted(_) | State::Clearing(_))
    }
}

#[cfg(test)]
mod tests {
    use super::Event::*;
    use super::State::*;
    use super::*;

    const EVENTS: [Event; 18] = [
        Spawned,
        SpawnFailed,
        Exited(Leftovers::Nothing),
        Exited(Leftovers::LiveOn),
        Exited(Leftovers::ToEnd),
        TreeEmpty,
        TimeUp,
        GraceUp,
        CancelAsked,
        KillAsked,
        ShutdownAsked,
        Signalled,
        HoldWanes,
        HoldPassed,
        DaemonGone,
        DaemonBack,
        OutputEnd,
        DiskFull,
    ];

    fn states() -> Vec<State> {
        let stops = [Stop::TimedOut, Stop::Cancelled, Stop::OutOfTouch, Stop::Shutdown];
        let mut states = vec![Starting, Running];
        states.extend(stops.map(Asked));
        states.extend(stops.map(Insisted));
        for stop in stops.map(Some).into_iter().chain([None]) {
            states.extend([Emptying(stop), Clearing(stop), Draining(stop), Done(stop), Unstarted(stop)]);
        }
        states
    }

    /// What a state says of why the command was stopped.
    fn cause(state: State) -> Option<Stop> {
        match state {
            Starting | Running => None,
            Asked(stop) | Insisted(stop) => Some(stop),
            Emptying(stop) | Clearing(stop) | Draining(stop) | Done(stop) | Unstarted(stop) => stop,
        }
    }

    /// Where a life that begins with `Starting` ends after these events.
    fn life(events: &[Event]) -> State {
        events.iter().fold(Starting, |state, &event| state.after(event).0)
    }

    #[test]
    fn every_life_has_the_end_its_first_cause_gives_it() {
        const ALONE: Event = Exited(Leftovers::Nothing);
        const LEAVING: Event = Exited(Leftovers::LiveOn);
        const UNTIDY: Event = Exited(Leftovers::ToEnd);
        let (timed_out, cancelled) = (Done(Some(Stop::TimedOut)), Done(Some(Stop::Cancelled)));
        let out_of_touch = Done(Some(Stop::OutOfTouch));
        for (events, end) in [
            (&[Spawned, ALONE, OutputEnd][..], Done(None)),
            (&[Spawned, LEAVING, OutputEnd], Done(None)),
            (&[SpawnFailed], Unstarted(None)),
            (&[HoldWanes], Unstarted(Some(Stop::OutOfTouch))),
            (&[CancelAsked, Spawned], Unstarted(Some(Stop::Cancelled))),
            (&[Spawned, TimeUp, ALONE, OutputEnd], timed_out),
            (&[Spawned, TimeUp, GraceUp, ALONE, OutputEnd], timed_out),
            (&[Spawned, TimeUp, CancelAsked, HoldWanes, KillAsked, ALONE, OutputEnd], timed_out),
            (&[Spawned, CancelAsked, TimeUp, GraceUp, ALONE, OutputEnd], cancelled),
            (&[Spawned, KillAsked, ALONE, OutputEnd], cancelled),
            (&[Spawned, Signalled, ALONE, OutputEnd], cancelled),
            (&[Spawned, HoldWanes, HoldPassed, ALONE, OutputEnd], out_of_touch),
            (&[Spawned, HoldPassed, LEAVING, TreeEmpty, OutputEnd], out_of_touch),
            (&[ShutdownAsked], Unstarted(Some(Stop::Shutdown))),
            (&[Spawned, ShutdownAsked, Signalled, GraceUp, ALONE, OutputEnd], Done(Some(Stop::Shutdown))),
            // It is over when the last of it has ended, be it asked or told.
            (&[Spawned, TimeUp, LEAVING, OutputEnd], Emptying(Some(Stop::TimedOut))),
            (&[Spawned, TimeUp, LEAVING, TreeEmpty, OutputEnd], timed_out),
            (&[Spawned, TimeUp, LEAVING, GraceUp], Clearing(Some(Stop::TimedOut))),
            (&[Spawned, TimeUp, GraceUp, LEAVING, TreeEmpty, OutputEnd], timed_out),
            // Sweeping up behind a command that ended by itself is no stop.
            (&[Spawned, UNTIDY], Emptying(None)),
            (&[Spawned, UNTIDY, TimeUp, GraceUp, TreeEmpty, OutputEnd], Done(None)),
            // Once it has ended, no later cause changes why.
            (&[Spawned, ALONE, TimeUp, CancelAsked, HoldPassed, OutputEnd], Done(None)),
            // Nor does closed output, a full disk or a daemon that comes and goes.
            (&[Spawned, OutputEnd, DiskFull, DaemonGone, DaemonBack, ALONE, OutputEnd], Done(None)),
        ] {
            assert_eq!(life(events), end, "{events:?}");
        }
    }

    #[test]
    fn every_state_answers_every_event_within_the_rules() {
        for state in states() {
            for event in EVENTS {
                let (next, actions) = state.after(event);
                let what = format!("{state:?} {event:?} -> {next:?} {actions:?}");
                if state.is_end() {
                    assert_eq!((next, actions), (state, NOTHING), "an end is an end: {what}");
                }
                if next == state {
                    assert_eq!(actions, NOTHING, "nothing is done twice: {what}");
                }
                if matches!(event, DaemonGone | DaemonBack | DiskFull) {
                    assert_eq!(next, state, "{what}");
                }
                // The first cause stands.
                if let Some(stop) = cause(state) {
                    assert_eq!(cause(next), Some(stop), "{what}");
                }
                let signals = actions.iter().any(|action| matches!(action, Action::Ask | Action::Insist));
                assert!(
                    !signals || matches!(state, Running | Asked(_) | Emptying(_)),
                    "only what lives is signalled, and KILL is the last word: {what}"
                );
                // It is noted once: on the way into an end; and drained right before that.
                let ends = next.is_end() && next != state;
                assert_eq!(actions == NOTE, ends, "{what}");
                let drains = matches!(next, Draining(_)) && next != state;
                assert_eq!(actions == DRAIN, drains, "{what}");
                // Whoever was asked is told after a while.
                assert_eq!(actions.contains(&Action::Ask), actions.contains(&Action::Grace), "{what}");
            }
        }
    }

    #[test]
    fn a_stopped_command_is_not_over_while_anything_of_it_lives() {
        for state in states().into_iter().filter(|state| matches!(state, Asked(_) | Insisted(_))) {
            for leftovers in [Leftovers::LiveOn, Leftovers::ToEnd] {
                let (left, _) = state.after(Exited(leftovers));
                assert!(matches!(left, Emptying(_) | Clearing(_)), "{state:?}");
                for event in EVENTS.into_iter().filter(|event| *event != TreeEmpty) {
                    let (next, _) = left.after(event);
                    assert!(matches!(next, Emptying(_) | Clearing(_)), "{left:?} {event:?}");
                }
            }
        }
    }

    #[test]
    fn from_every_state_the_end_is_reached() {
        for state in states() {
            let end = [Spawned, TimeUp, GraceUp, Exited(Leftovers::LiveOn), TreeEmpty, OutputEnd]
                .into_iter()
                .fold(state, |state, event| state.after(event).0);
            assert!(end.is_end(), "{state:?} ends in {end:?}");
        }
    }
}
