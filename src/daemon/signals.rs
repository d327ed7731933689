//! What the outside says to a daemon: stop, or read the files again.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::Mutex;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// The signals of this process, from when it is made.
pub struct Signals {
    streams: Mutex<Streams>,
}

struct Streams {
    term: Stream,
    int: Stream,
    hup: Stream,
}

impl Signals {
    pub fn new() -> io::Result<Signals> {
        let streams = Streams {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        };
        Ok(Signals { streams: Mutex::new(streams) })
    }

    /// The next one. Safe to cancel.
    pub async fn next(&self) -> Signal {
        let mut streams = self.streams.lock().await;
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
}
