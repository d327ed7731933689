//! Tasks: work that is not on a schedule is run once, in order, whoever comes and goes.

use super::*;
use fleetcron::job::Priority;
use fleetcron::store::values::TaskForm;

impl Fleet {
    /// What a command writes.
    #[track_caller]
    pub(super) fn told(&self, args: &[&str]) -> String {
        let output = self.operator(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}\n{}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The exit code of a command, and what it says.
    pub(super) fn answer(&self, args: &[&str]) -> (i32, String) {
        let output = self.operator(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn submit(&self, args: &[&str]) -> Fire {
        let told = self.told(&[&["submit"], args].concat());
        read_task(told.trim())
    }

    /// Submits lines of a batch; returns the exit code, what it printed and what it said.
    fn batch(&self, args: &[&str], lines: &str) -> (i32, Vec<Fire>, String) {
        use std::io::Write;
        let mut child = self
            .operator(&[&["submit", "--batch"], args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let lines = lines.to_owned();
        let writer = std::thread::spawn(move || _ = stdin.write_all(lines.as_bytes()));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let tasks = String::from_utf8(output.stdout).unwrap().lines().map(read_task).collect();
        (output.status.code().unwrap(), tasks, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn waiting(&self) -> Vec<Fire> {
        let entries = self.list(keys::queue()).await.entries;
        entries.iter().map(|entry| TaskForm::decode(&entry.key, &entry.value).unwrap().fire()).collect()
    }
}

fn read_task(id: &str) -> Fire {
    let FireId::Task(id) = id.parse().unwrap_or_else(|_| panic!("{id:?} is no task")) else {
        panic!("{id} is no task")
    };
    Fire::task(id)
}

fn json(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_task_runs_once_and_its_record_tells_what_it_was() {
    for fleet in
        [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await, Fleet::on_etcd(Version::V36).await]
    {
        let (mut one, mut two) = (fleet.node("a").ready().await, fleet.node("b").ready().await);
        let task =
            fleet.submit(&["--env", "WHO=world", "--", &fleet.marking("echo hello $WHO $FLEETCRON_JOB")]);
        let record = fleet.wait_for_record(&task).await;
        assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
        assert_eq!(fleet.marks(), [("~task".to_owned(), task.id.to_string(), 1)]);
        let told = record.task.as_ref().expect("it is told");
        assert_eq!(
            (told.id, &told.job.env["WHO"]),
            (Ulid::from_string(&task.id.to_string()[2..]).unwrap(), &"world".to_owned())
        );
        // The words of a command are its arguments, as they are.
        let (code, said) = fleet.answer(&[
            "submit",
            "--wait",
            "--",
            "sh",
            "-c",
            "test \"$1\" = 'a  b' && exit 7",
            "x",
            "a  b",
        ]);
        assert_eq!(code, 7, "{said}");
        let rows = json(&fleet.told(&["tasks", "--output", "json"]));
        let states: Vec<_> =
            rows.iter().map(|row| (row["state"].as_str().unwrap(), row["dead"].as_bool().unwrap())).collect();
        assert_eq!(states, [("failed", true), ("succeeded", false)]);
        // And once more, as it was.
        let again = fleet.submit(&["--again", &task.id.to_string()]);
        assert_ne!(again, task);
        assert_eq!(fleet.wait_for_record(&again).await.outcome, Outcome::Succeeded);
        assert_eq!(fleet.marks().len(), 2);
        assert!(fleet.waiting().await.is_empty());
        one.stop(&fleet).await;
        two.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_job_is_run_with_arguments_and_leaves_its_schedule_alone() {
    let fleet = Fleet::on_sqlite().await;
    let out = fleet.path("out").display().to_string();
    fleet
        .sync(&format!(
            "[jobs.greet]\nschedule = '0 0 1 1 *'\ncommand = 'echo $GREETING $0 $1 $2 >> {out}'\nenv = {{ GREETING = 'hello' }}\n"
        ))
        .await;
    let mut node = fleet.node("a").ready().await;
    let task = fleet.submit(&["--job", "greet", "--env", "GREETING=moin", "--", "a b", "c"]);
    let record = fleet.wait_for_record(&task).await;
    assert_eq!((record.outcome, record.task.unwrap().of), (Outcome::Succeeded, Some(name("greet"))));
    assert_eq!(fs::read_to_string(fleet.path("out")).unwrap(), "moin greet a b c\n");
    let (code, said) = fleet.answer(&["submit", "--job", "greets"]);
    assert!(code == 1 && said.contains("greet"), "{code} {said}");
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_key_stands_for_the_first_task() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let first = fleet.submit(&["--key", "order-4711", "--", "true"]);
    assert_eq!(fleet.submit(&["--key", "order-4711", "--", "true"]), first);
    assert_ne!(fleet.submit(&["--key", "order-4712", "--", "true"]), first);
    // Also in the very same batch, and when that is sent again.
    let lines = "{\"command\": \"true\", \"key\": \"order-4711\"}\n{\"command\": \"true\", \"key\": \"x\"}\n\
                 {\"command\": \"true\", \"key\": \"x\"}\n{\"command\": [\"true\"]}\n";
    let (code, tasks, said) = fleet.batch(&["--batch-id", "b1"], lines);
    assert_eq!(code, 0, "{said}");
    assert!(tasks[0] == first && tasks[1] == tasks[2] && tasks.len() == 4);
    let (_, again, _) = fleet.batch(&["--batch-id", "b1"], lines);
    assert_eq!(again, tasks);
    assert_eq!(fleet.waiting().await.len(), 4);
    // After the task has ended it still does.
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_record(&first).await;
    assert_eq!(fleet.submit(&["--key", "order-4711", "--", "true"]), first);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn bad_input_is_said_with_its_place_and_puts_nothing_in() {
    let fleet = Fleet::on_sqlite().await;
    let too_long = "k".repeat(257);
    for (args, says) in [
        (vec!["--", " "], "empty"),
        (vec!["--at", "yesterday", "--", "true"], "at: \"yesterday\" is not a time"),
        (vec!["--in", "soon", "--", "true"], "in: \"soon\""),
        (vec!["--key", &too_long, "--", "true"], "key: it has 257 bytes"),
        (vec!["--priority", "10", "--", "true"], "0 to 9"),
        (vec!["--nodes", "a in b", "--", "true"], "nodes:"),
        (vec!["--timeout", "0s", "--", "true"], "timeout:"),
        (vec!["--retry", "0", "--", "true"], "retry:"),
        (vec!["--env", "1A=b", "--", "true"], "env:"),
        (vec!["--stdin", "/nowhere/at/all", "--", "cat"], "/nowhere/at/all"),
        (vec![], "no command"),
    ] {
        let (code, said) = fleet.answer(&[&["submit"], args.as_slice()].concat());
        assert!(code == 2 && said.contains(says), "{args:?}: {code} {said}");
    }
    let large = fleet.path("large");
    fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    let (code, said) = fleet.answer(&["submit", "--stdin", &large.display().to_string(), "--", "cat"]);
    assert!(code == 2 && said.contains("65536"), "{code} {said}");
    let line = "{\"command\": \"true\"}\n";
    let count = if long() { 1_000_000 } else { 20_000 };
    let lines =
        line.repeat(count / 2) + "{\"command\": \"true\", \"pirority\": 3}\n" + &line.repeat(count / 2);
    let (code, tasks, said) = fleet.batch(&[], &lines);
    let place = format!("line {} of the batch", count / 2 + 1);
    assert!(
        code == 2 && tasks.is_empty() && said.contains(&place) && said.contains("pirority"),
        "{code} {said}"
    );
    assert!(fleet.waiting().await.is_empty(), "nothing is submitted");
}

#[tokio::test]
async fn the_higher_priority_goes_first_and_then_who_came_first() {
    let fleet = Fleet::on_sqlite().await;
    let order = fleet.path("order").display().to_string();
    let mut lines = String::new();
    for (number, priority) in [5, 1, 9, 5, 0, 9, 7, 1].into_iter().enumerate() {
        lines +=
            &format!("{{\"command\": \"echo {priority} {number} >> {order}\", \"priority\": {priority}}}\n");
    }
    fleet.batch(&[], &lines);
    let mut node = fleet.node("a").with(&["--slots", "1"]).ready().await;
    fleet.wait_for_records("~task", 8).await;
    let ran = fs::read_to_string(fleet.path("order")).unwrap();
    assert_eq!(ran, "9 2\n9 5\n7 6\n5 0\n5 3\n1 1\n1 7\n0 4\n");
    node.stop(&fleet).await;
}

#[tokio::test]
async fn what_is_due_later_waits_until_then_and_survives_that_nobody_is_up() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let mut node = fleet.node("a").ready().await;
    let before = chrono::Utc::now();
    let task = fleet.submit(&["--in", "4s", "--", &fleet.marking("true")]);
    let later = fleet.submit(&["--in", "1d", "--", "true"]);
    node.kill();
    let mut node = fleet.node("a").ready().await;
    let record = fleet.wait_for_record(&task).await;
    assert!(record.run.unwrap().claimed_at >= before + chrono::TimeDelta::seconds(4));
    assert_eq!(fleet.waiting().await, [later]);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_failed_task_is_tried_again_and_is_dead_after_the_last_attempt() {
    let fleet = Fleet::on_sqlite().await;
    let mut node = fleet.node("a").ready().await;
    let task = fleet.submit(&["--retry", "3,100ms", "--", &fleet.marking("exit 9")]);
    let record = fleet.wait_for_record(&task).await;
    let run = record.run.as_ref().unwrap();
    assert_eq!((record.outcome, run.attempt, run.exit_code), (Outcome::Failed, 3, Some(9)));
    assert_eq!(fleet.marks().len(), 3);
    let dead = json(&fleet.told(&["tasks", "--state", "dead", "--output", "json"]));
    assert_eq!((dead.len(), dead[0]["task"].as_str()), (1, Some(task.id.to_string().as_str())));
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_task_of_a_lost_node_is_run_again_by_another() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await] {
        let mut lost = fleet.node("a").ready().await;
        let command = fleet.marking("[ $FLEETCRON_ATTEMPT != 1 ] || exec sleep 1000");
        let task = fleet.submit(&["--", &command]);
        fleet.wait_until("it to begin", async || fleet.marks().len() == 1).await;
        let mut other = fleet.node("b").ready().await;
        // Its hold is a minute: the node's own next life need not wait for that.
        lost.lose_host();
        let mut back = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&task).await;
        assert_eq!(
            (record.outcome, record.run.unwrap().attempt),
            (Outcome::Succeeded, 2),
            "{}",
            fleet.logs()
        );
        back.stop(&fleet).await;
        other.stop(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

/// Orders come in while nodes come, go, are killed and frozen: each is done once, and nobody has too much of them.
#[tokio::test]
async fn a_thousand_orders_are_each_done_once_while_nodes_come_and_go() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let count = if long() { 1000 } else { 300 };
    let slots = ["--slots", "8"];
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).with(&slots).ready().await);
    }
    let command = fleet.marking("sleep 0.05").replace('"', "\\\"");
    let mut tasks = Vec::new();
    let mut submitted = 0;
    // Dropped they would end what still runs for them.
    let mut earlier = Vec::new();
    for part in 0..5 {
        let lines: String = (0..count / 5)
            .map(|number| format!("{{\"command\": \"{command}\", \"priority\": {}}}\n", number % 10))
            .collect();
        let (code, some, said) = fleet.batch(&[], &lines);
        assert_eq!(code, 0, "{said}");
        submitted += some.len();
        tasks.extend(some);
        match part {
            0 => {
                nodes[0].kill();
                earlier.push(std::mem::replace(&mut nodes[0], fleet.node("a").with(&slots).ready().await));
            }
            1 => {
                nodes[1].signal(Signal::SIGSTOP);
                fleet.wait_for_records("~task", submitted / 2).await;
                nodes[1].signal(Signal::SIGCONT);
            }
            2 => {
                nodes[2].stop(&fleet).await;
                earlier.push(std::mem::replace(&mut nodes[2], fleet.node("c").with(&slots).ready().await));
            }
            _ => {}
        }
    }
    let records = fleet.wait_for_records("~task", count).await;
    let done: BTreeSet<_> = records.iter().map(|record| record.fire.clone()).collect();
    assert_eq!(done, tasks.iter().cloned().collect::<BTreeSet<_>>());
    let odd: Vec<_> = records.iter().filter(|record| record.outcome != Outcome::Succeeded).collect();
    assert!(odd.is_empty(), "{odd:?}\n{}", fleet.logs());
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
    fleet.check_books(Gaps::None).await;
    let audit = fleet.operator(&["audit"]).output().unwrap();
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
}

#[tokio::test]
async fn nodes_of_a_kind_share_the_load_and_short_slots_go_to_what_is_urgent() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let mut lines = String::new();
    for number in 0..300 {
        let priority = if number % 3 == 0 { 9 } else { 1 };
        lines += &format!("{{\"command\": \"sleep 0.05\", \"priority\": {priority}}}\n");
    }
    assert_eq!(fleet.batch(&[], &lines).0, 0);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).with(&["--slots", "4"]).start());
    }
    let records = fleet.wait_for_records("~task", 300).await;
    let claimed = |record: &Record| record.run.as_ref().unwrap().claimed_at;
    let urgent = |record: &&Record| record.task.as_ref().unwrap().priority() == Priority::HIGHEST;
    let last_urgent = records.iter().filter(urgent).map(claimed).max().unwrap();
    let early = records.iter().filter(|record| !urgent(record) && claimed(record) < last_urgent).count();
    // At the change from one to the other each node may have one slot more than it has urgent ones left.
    assert!(early <= 3 * 4, "{early} went before the last urgent one");
    let mut by_node = BTreeMap::<String, usize>::new();
    for record in &records {
        *by_node.entry(record.run.as_ref().unwrap().node.to_string()).or_default() += 1;
    }
    // One of them may have started a moment later than the others.
    assert!(by_node.len() == 3 && by_node.values().all(|count| (60..=140).contains(count)), "{by_node:?}");
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_named_queue_runs_as_many_at_once_as_its_limit_says() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    fleet.sync("[limits]\nmail = 2\n[jobs.x]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n").await;
    let inside = fleet.path("inside").display().to_string();
    fs::create_dir(fleet.path("inside")).unwrap();
    let most = fleet.path("most").display().to_string();
    let command = format!(
        "touch {inside}/$FLEETCRON_FIRE; ls {inside} | wc -l >> {most}; sleep 0.1; rm {inside}/$FLEETCRON_FIRE"
    );
    let lines = format!("{{\"command\": \"{command}\", \"queue\": \"mail\"}}\n").repeat(20);
    assert_eq!(fleet.batch(&[], &lines).0, 0);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).ready().await);
    }
    // Others are not held up by what waits.
    let other = fleet.submit(&["--", "true"]);
    fleet.wait_for_record(&other).await;
    fleet.wait_for_records("~task", 21).await;
    let counts: Vec<usize> = fs::read_to_string(fleet.path("most"))
        .unwrap()
        .lines()
        .map(|line| line.trim().parse().unwrap())
        .collect();
    assert_eq!(counts.len(), 20);
    assert_eq!(counts.iter().max(), Some(&2), "{counts:?}");
    assert!(fleet.list(keys::mutexes()).await.entries.is_empty(), "nothing is left");
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}
