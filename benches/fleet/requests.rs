//! What a fire costs etcd, by etcd's own counters.

use std::time::Duration;

use chrono::{DurationRound, TimeDelta};
use fleetcron::clock::Clock;

use crate::nodes::{Fleet, sleep_until};

/// Requests for each fire, with more and more nodes, each a daemon of its own; what idle nodes send is taken off.
pub async fn requests() {
    const JOBS: usize = 10;
    const EVERY: i64 = 2;
    const SECONDS: i64 = 20;
    let mut fleet = Fleet::start(0, 64).await;
    let mut figures = Vec::new();
    for nodes in [3, 10, 30, 100] {
        fleet.grow(nodes, 64).await;
        fleet.sync(&crate::job_texts(JOBS, "schedule = '@yearly'\ncommand = 'true'")).await;
        // Whoever came in last has been looked at by all by then.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let before = Counted::now(&fleet);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = Counted::now(&fleet).since(&before, 10.0);

        fleet.sync(&crate::job_texts(JOBS, &format!("schedule = '@every {EVERY}s'\ncommand = 'true'"))).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        // Between two instants, so that what belongs to a fire is all counted or not at all.
        let from = Clock::system().now().duration_trunc(TimeDelta::seconds(EVERY)).expect("a whole second");
        let from = from + TimeDelta::seconds(EVERY) + TimeDelta::milliseconds(1_900);
        sleep_until(from).await;
        let before = Counted::now(&fleet);
        let to = from + TimeDelta::seconds(SECONDS);
        sleep_until(to).await;
        let busy = Counted::now(&fleet).since(&before, SECONDS as f64);
        let fires = fleet.records(from, to).await.iter().filter(|record| record.run.is_some()).count();
        let rate = fires as f64 / SECONDS as f64;
        let each = |of: fn(&Counted) -> f64| (of(&busy) - of(&idle)) / rate;
        let all = each(|counted| counted.txn + counted.range + counted.other);
        println!(
            "etcd requests a fire, {nodes} nodes as {nodes} daemons: {all:.2} (wanted: at most 4): {:.2} txn, {:.2} range, {:.2} other; \
             {:.2} watch events; {:.2} renewals a node and second more than idle",
            each(|counted| counted.txn),
            each(|counted| counted.range),
            each(|counted| counted.other),
            each(|counted| counted.events),
            (busy.renewals - idle.renewals) / nodes as f64,
        );
        println!(
            "etcd requests of an idle node, {nodes} nodes: {:.2} renewals a second, {:.2} others",
            idle.renewals / nodes as f64,
            (idle.txn + idle.range + idle.other) / nodes as f64,
        );
        figures.push(all);
        fleet.forget_records().await;
    }
    let (least, most) =
        (figures.iter().copied().fold(f64::MAX, f64::min), figures.iter().copied().fold(0.0, f64::max));
    println!("etcd requests a fire, most / least: {:.2} (wanted: at most 1.2)", most / least);
}

/// Counts, or counts a second.
struct Counted {
    txn: f64,
    range: f64,
    /// All else that is one request and one reply.
    other: f64,
    renewals: f64,
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
            renewals: fleet.counter("grpc_server_msg_received_total", "grpc_method=\"LeaseKeepAlive\""),
            events: fleet.counter("etcd_debugging_mvcc_events_total", ""),
        }
    }

    fn since(&self, before: &Counted, seconds: f64) -> Counted {
        let rate = |of: fn(&Counted) -> f64| (of(self) - of(before)) / seconds;
        Counted {
            txn: rate(|counted| counted.txn),
            range: rate(|counted| counted.range),
            other: rate(|counted| counted.other),
            renewals: rate(|counted| counted.renewals),
            events: rate(|counted| counted.events),
        }
    }
}
