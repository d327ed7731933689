//! Chains: the end of one job's run sets the next one off, once.

use super::*;

/// Five jobs with a diamond: a, then b and c, then d when both have succeeded; and e when c fails.
fn diamond(fleet: &Fleet, c: &str) -> String {
    let command = |more: &str| quoted(&fleet.marking(more));
    format!(
        "[jobs.a]\nschedule = '0 0 1 1 *'\ncommand = {a}\n[jobs.b]\nafter = ['a']\ncommand = {b}\n\
         [jobs.c]\nafter = {{ any = ['a'] }}\ncommand = {c}\n[jobs.d]\nafter = ['b', 'c']\ncommand = {d}\n\
         [jobs.e]\nafter = {{ all = ['c'], on = 'failure' }}\ncommand = {e}\n",
        a = command("true"),
        b = command("sleep 0.1"),
        c = command(c),
        d = command("true"),
        e = command("true"),
    )
}

fn ran(fleet: &Fleet) -> Vec<String> {
    let mut jobs: Vec<_> = fleet.marks().into_iter().map(|(job, _, _)| job).collect();
    jobs.sort();
    jobs
}

async fn is_at_rest(fleet: &Fleet) -> bool {
    let requests = fleet.list(keys::requests()).await.entries;
    let locks = fleet.list(keys::locks()).await.entries;
    requests.is_empty() && locks.is_empty()
}

#[tokio::test]
async fn a_diamond_runs_its_foot_once_when_both_sides_have_succeeded() {
    for fleet in
        [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await, Fleet::on_etcd(Version::V36).await]
    {
        fleet.sync(&diamond(&fleet, "true")).await;
        let (mut one, mut two) = (fleet.node("x").ready().await, fleet.node("y").ready().await);
        for round in 1..=3 {
            let first = fleet.ask("a").await;
            fleet.wait_for_records("d", round).await;
            let record = fleet.wait_for_record(&first).await;
            let mut set_off: Vec<_> = record.set_off.iter().map(|fire| fire.job.to_string()).collect();
            set_off.sort();
            assert_eq!(set_off, ["b", "c"], "the record tells what it set off");
        }
        fleet.wait_until("all to have ended", async || is_at_rest(&fleet).await).await;
        assert_eq!(ran(&fleet), ["a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d", "d"]);
        assert!(fleet.told(&["runs", "a"]).contains("set off b/c-"));
        one.stop(&fleet).await;
        two.stop(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_failure_sets_off_what_waits_for_it_and_not_what_waits_for_success() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    fleet.sync(&diamond(&fleet, "exit 3")).await;
    let mut node = fleet.node("x").ready().await;
    fleet.ask("a").await;
    fleet.wait_for_records("e", 1).await;
    fleet.wait_until("all to have ended", async || is_at_rest(&fleet).await).await;
    assert_eq!(ran(&fleet), ["a", "b", "c", "e"]);
    // What b has come to is not forgotten: when c succeeds, d runs.
    fleet.sync(&diamond(&fleet, "true")).await;
    fleet.ask("c").await;
    fleet.wait_for_records("d", 1).await;
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_run_of_its_own_starts_the_count_anew() {
    let fleet = Fleet::on_sqlite().await;
    fleet.sync(&diamond(&fleet, "true")).await;
    let mut node = fleet.node("x").ready().await;
    fleet.ask("b").await;
    fleet.wait_for_records("b", 1).await;
    // By hand: what b had done is in it.
    let by_hand = fleet.ask("d").await;
    fleet.wait_for_record(&by_hand).await;
    let c = fleet.ask("c").await;
    fleet.wait_for_record(&c).await;
    fleet.wait_until("all to have ended", async || is_at_rest(&fleet).await).await;
    assert_eq!(fleet.records_of("d").await.len(), 1);
    fleet.ask("b").await;
    fleet.wait_for_records("d", 2).await;
    node.stop(&fleet).await;
}

/// Whoever dies, wherever: each of the five runs as its definition says.
#[tokio::test]
async fn a_chain_comes_to_its_end_when_its_nodes_are_killed_at_every_step() {
    let points = ["claim.send", "claim.answered", "run.spawn", "finish.send", "run.finish", "chain.read"];
    for point in points {
        let fleet = Fleet::on_etcd(Version::V36).await;
        fleet.sync(&diamond(&fleet, "exit 3")).await;
        fleet.ask("a").await;
        // It dies the first time that it comes there, and again and again.
        for _ in 0..4 {
            let mut node = fleet.node("x").fail_at(point).start();
            let reached = fleet.wait_for("its death, or the end of the chain", async || {
                let is_over = fleet.records_of("e").await.len() == 1 && is_at_rest(&fleet).await;
                node.status().map(|_| true).or(is_over.then_some(false))
            });
            if !reached.await {
                break;
            }
        }
        let mut node = fleet.node("x").ready().await;
        fleet.wait_for_records("e", 1).await;
        fleet.wait_until("all to have ended", async || is_at_rest(&fleet).await).await;
        node.stop(&fleet).await;
        let of: BTreeMap<_, usize> = fleet.records().await.iter().fold(BTreeMap::new(), |mut of, record| {
            *of.entry(record.fire.job.to_string()).or_default() += 1;
            of
        });
        let once = ["a", "b", "c", "e"].map(|job| (job.to_owned(), 1));
        assert_eq!(of, BTreeMap::from(once), "{point}\n{}", fleet.logs());
        fleet.check_books(Gaps::None).await;
    }
}

#[test]
fn circles_and_misspelt_names_are_refused_where_they_stand() {
    let check = |text: &str| {
        let files = [SourceFile { path: "jobs.toml", text }];
        jobfile::parse(&files)
            .map(|parsed| parsed.warnings.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let circle = "[jobs.a]\nafter = ['c']\ncommand = 'true'\n[jobs.b]\nafter = ['a']\ncommand = 'true'\n\
                  [jobs.c]\nafter = ['b']\ncommand = 'true'\n";
    let said = check(circle).unwrap_err().to_string();
    assert!(said.contains("jobs.toml:2:") && said.contains("a after c after b after a"), "{said}");
    assert_eq!(said.matches("circle").count(), 1, "{said}");
    let own = check("[jobs.a]\nafter = ['a']\ncommand = 'true'\n").unwrap_err().to_string();
    assert!(own.contains("a after a"), "{own}");
    for (after, says) in [
        ("'b", "jobs.toml:2"),
        ("['B']", "bad job name"),
        ("[]", "empty list"),
        ("{ any = ['b'], all = ['b'] }", "both all and any"),
        ("{ on = 'failure' }", "names no jobs"),
        ("{ any = ['b'], on = 'sucess' }", "success"),
        ("{ anny = ['b'] }", "unknown key"),
    ] {
        let text = format!("[jobs.a]\nafter = {after}\ncommand = 'true'\n");
        let said = check(&text).unwrap_err().to_string();
        assert!(said.contains(says), "{after}: {said}");
    }
    let warned = check("[jobs.a]\nafter = ['elsewhere']\ncommand = 'true'\n").unwrap();
    assert!(warned.iter().any(|warning| warning.contains("not in these files")), "{warned:?}");
}
