//! What a fire costs etcd, by etcd's own counters.

use std::time::Duration;

use chrono::{DurationRound, TimeDelta};
use fleetcron::clock::Clock;

use crate::nodes::{Fleet, sleep_until};

const JOBS: usize = 10;
const EVERY: i64 = 2;
const SECONDS: i64 = 20;

/// Requests for each fire, with more and more nodes, each a daemon of its own; what idle nodes send is taken off.
///
/// Fires that are apart cost each for itself; those of one instant share requests, the more the fewer nodes have them.
pub async fn requests() {
    let mut fleet = Fleet::start(0, 64).await;
    let mut figures = Vec::new();
    for nodes in [3, 10, 30, 100] {
        fleet.grow(nodes, 64).await;
        fleet.sync(&crate::job_texts(JOBS, "schedule = '@yearly'\ncommand = 'true'")).await;
        // Whoever came in last has been looked at by all by then.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let before = Counted::now(&fleet);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = Counted::now(&fleet).beyond(&before, 10.0);
        let each = |counted: f64| counted / nodes as f64;
        println!(
            "etcd, an idle one of {nodes} nodes, each a daemon: {:.2} renewals a second in {:.2} messages, {:.2} other requests",
            each(idle.renewals),
            each(idle.messages),
            each(idle.requests()),
        );
        for (how, splay) in [("apart", "splay = '2s'"), ("at one instant", "")] {
            let of_fire = of_each_fire(&fleet, &idle, splay).await;
            println!(
                "etcd requests a fire, {nodes} nodes, {JOBS} fires {how}: {:.2} (wanted: at most 4): {:.2} txn, {:.2} range, {:.2} other; \
                 {:.2} watch events; {:.2} renewals",
                of_fire.requests(),
                of_fire.txn,
                of_fire.range,
                of_fire.other,
                of_fire.events,
                of_fire.renewals
            );
            if !splay.is_empty() {
                figures.push(of_fire.requests());
            }
        }
    }
    let least = figures.iter().copied().fold(f64::MAX, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    println!("etcd requests a fire, most / least: {:.2} (wanted: at most 1.2)", most / least);
}

/// What a fire costs beyond what the same nodes do when idle.
async fn of_each_fire(fleet: &Fleet, idle: &Counted, splay: &str) -> Counted {
    let fields = format!("schedule = '@every {EVERY}s'\ncommand = 'true'\n{splay}");
    fleet.sync(&crate::job_texts(JOBS, &fields)).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    // Fires of one instant are counted all or not at all; of those that are apart, as many come in as go out.
    let every = TimeDelta::seconds(EVERY);
    let now = Clock::system().now().duration_trunc(every).expect("a whole second");
    let from = now + every + TimeDelta::milliseconds(1_900);
    sleep_until(from).await;
    let before = Counted::now(fleet);
    let to = from + TimeDelta::seconds(SECONDS);
    sleep_until(to).await;
    let busy = Counted::now(fleet).beyond(&before, SECONDS as f64);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let fires = fleet.records(from, to).await.iter().filter(|record| record.run.is_some()).count();
    fleet.forget_records().await;
    busy.beyond(idle, fires as f64 / SECONDS as f64)
}

/// Counts, or counts a second.
struct Counted {
    txn: f64,
    range: f64,
    /// All else that is one request and one reply.
    other: f64,
    renewals: f64,
    /// Those of renewals: each is a stream.
    messages: f64,
    events: f64,
}

impl Counted {
    fn now(fleet: &Fleet) -> Counted {
        let handled =
            |method: &str| fleet.counter("grpc_server_handled_total", &format!("grpc_method=\"{method}\""));
        let (txn, range) = (handled("Txn"), handled("Range"));
        let unary = fleet.counter("grpc_server_handled_total", "grpc_type=\"unary\"");
        Counted {
            txn,
            range,
            other: unary - txn - range,
            renewals: handled("LeaseKeepAlive"),
            messages: fleet.counter("grpc_server_msg_received_total", "grpc_method=\"LeaseKeepAlive\""),
            events: fleet.counter("etcd_debugging_mvcc_events_total", ""),
        }
    }

    /// What it has more than another, for each of so many.
    fn beyond(&self, other: &Counted, of: f64) -> Counted {
        let each = |figure: fn(&Counted) -> f64| (figure(self) - figure(other)) / of;
        Counted {
            txn: each(|counted| counted.txn),
            range: each(|counted| counted.range),
            other: each(|counted| counted.other),
            renewals: each(|counted| counted.renewals),
            messages: each(|counted| counted.messages),
            events: each(|counted| counted.events),
        }
    }

    fn requests(&self) -> f64 {
        self.txn + self.range + self.other
    }
}
