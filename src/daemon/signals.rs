//! What the outside says to a daemon: stop, or read the files again; and whether the machine stops with it.

use std::io;
use std::time::Duration;

use tokio::process::Command;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tracing::{debug, warn};

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// Where a daemon hears of the outside.
pub struct Signals(Source);

enum Source {
    Process(Mutex<Streams>),
    Told { signals: Mutex<mpsc::Receiver<Signal>>, machine_goes_down: bool },
}

struct Streams {
    term: Stream,
    int: Stream,
    hup: Stream,
}

impl Signals {
    /// The signals of this process, from now on.
    pub fn of_process() -> io::Result<Signals> {
        let streams = Streams {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        };
        Ok(Signals(Source::Process(Mutex::new(streams))))
    }

    /// What comes over a channel, to a node that is no process of its own.
    pub fn told(signals: mpsc::Receiver<Signal>, machine_goes_down: bool) -> Signals {
        Signals(Source::Told { signals: Mutex::new(signals), machine_goes_down })
    }

    /// The next one. Safe to cancel.
    pub async fn next(&self) -> Signal {
        let streams = match &self.0 {
            Source::Process(streams) => streams,
            Source::Told { signals, .. } => match signals.lock().await.recv().await {
                Some(signal) => return signal,
                None => return std::future::pending().await,
            },
        };
        let mut streams = streams.lock().await;
        let Streams { term, int, hup } = &mut *streams;
        tokio::select! {
            _ = term.recv() => Signal::Stop,
            _ = int.recv() => Signal::Stop,
            _ = hup.recv() => Signal::Reload,
        }
    }

    /// The next one that says stop.
    pub async fn stop(&self) {
        while self.next().await != Signal::Stop {}
    }

    /// Whether a stop is part of the machine's: nothing that runs here survives it.
    pub async fn machine_goes_down(&self) -> bool {
        match &self.0 {
            Source::Process(_) => machine_goes_down().await,
            Source::Told { machine_goes_down, .. } => *machine_goes_down,
        }
    }
}

/// How long the service manager may take to say so.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first process of a container takes everything with it. Elsewhere systemd is asked: its state is `stopping` from
/// before it stops the first service; see systemctl(1), is-system-running.
async fn machine_goes_down() -> bool {
    if std::process::id() == 1 {
        return true;
    }
    let mut ask = Command::new("systemctl");
    ask.arg("is-system-running").kill_on_drop(true).stdin(std::process::Stdio::null());
    ask.stderr(std::process::Stdio::null());
    match timeout(PATIENCE, ask.output()).await {
        Ok(Ok(answer)) => answer.stdout.trim_ascii() == b"stopping",
        Ok(Err(error)) => {
            debug!(%error, "no systemd to ask whether the machine goes down");
            false
        }
        Err(_) => {
            warn!("systemd does not say whether the machine goes down");
            false
        }
    }
}
