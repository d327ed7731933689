//! A slow link: a relay for TCP that delays what passes, each way.
//!
//! It runs as a process in a node's network, and is told how slow to be on its input, one number of milliseconds a line;
//! `reset` cuts what is open.

use std::io::{BufRead, Read, Write, stdin};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// How slow all links are at the moment, in milliseconds.
static DELAY: AtomicU64 = AtomicU64::new(0);

/// What is open, to be cut.
type Open = Arc<Mutex<Vec<TcpStream>>>;

/// Relays each `PORT=HOST:PORT` until its input ends.
pub fn relay(ways: &[&str]) -> ExitCode {
    let open = Open::default();
    for way in ways {
        let (port, to) = way.split_once('=').expect("PORT=HOST:PORT");
        let listener = TcpListener::bind(("127.0.0.1", port.parse().expect("a port"))).expect("a free port");
        let (to, open) = (to.to_owned(), open.clone());
        spawn(move || {
            for near in listener.incoming().flatten() {
                let (to, open) = (to.clone(), open.clone());
                spawn(move || join(near, &to, &open));
            }
        });
    }
    for line in stdin().lock().lines().map_while(Result::ok) {
        if line == "reset" {
            let all = std::mem::take(&mut *open.lock().expect("nobody panics with it"));
            all.iter().for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        } else {
            DELAY.store(line.parse().expect("milliseconds"), Ordering::Relaxed);
        }
    }
    ExitCode::SUCCESS
}

fn join(near: TcpStream, to: &str, open: &Open) {
    let Ok(far) = TcpStream::connect(to) else { return };
    let both = [&near, &far].map(|stream| stream.try_clone());
    for stream in both.into_iter().flatten() {
        let _ = stream.set_nodelay(true);
        open.lock().expect("nobody panics with it").push(stream);
    }
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    spawn(move || carry(near, far));
    spawn(move || carry(far_too, near_too));
}

/// Carries one way, each piece as late as the link is slow when the piece comes.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        for (due, piece) in receive {
            sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut piece = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        let due = Instant::now() + Duration::from_millis(DELAY.load(Ordering::Relaxed));
        if send.send((due, piece[..length].to_vec())).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}
