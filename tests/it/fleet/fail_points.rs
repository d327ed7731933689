//! `kill -9` at every point of claim, start, finish and taking back: no fire starts twice, each has its record.
//!
//! The points are those of the code: the tests read it. How each is reached is the table [`DRIVES`].

use std::collections::VecDeque;

use fleetcron::fire::Lane;
use fleetcron::record::{RunFacts, Writer};
use fleetcron::store::values::Facts;

use rusqlite::Connection;
use tokio::task::JoinSet;

use super::*;

/// How a daemon is brought to a point, where it dies.
struct Drive {
    point: &'static str,
    /// What an earlier daemon of this node left.
    before: Before,
    /// Points at which it waits on its way, for the test to do something.
    waits_at: &'static [&'static str],
    acts: &'static [Act],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A job that fires every second.
    Scheduled,
    /// The same, and another node is registered that does nothing.
    BesideASilentOne,
    /// The same, and its floor was taken out of the store.
    WithoutFloor,
    /// The same, and a clock that was wrong has moved its floor far ahead.
    WithFloorAhead,
    /// The same, and then it was defined anew.
    DefinedAnew,
    /// The same on every node.
    OnEveryNode,
    /// A request for a run of a job that takes two seconds.
    Asked,
    /// The same, and the daemon that claimed it died at this point.
    DiedAt(&'static str),
    /// The same, and then the job was removed.
    DiedAtAndRemoved(&'static str),
    /// The same, and the daemon was killed while the command ran.
    KilledInRun,
    /// The same, and the command has ended since.
    KilledAndEnded,
    /// The same, but the daemon was stopped in order while the command ran.
    StoppedInRun,
    /// As `Asked`, of a job whose next fire has the one before it stopped.
    Replaces,
    /// As `Asked`, of a job whose first attempt fails and whose second does not.
    FailsOnce,
    /// A request whose command ran on another node, of which nothing is left.
    LostOther,
    /// The same, and then the job was removed.
    LostOtherAndRemoved,
}

impl Before {
    fn is_scheduled(self) -> bool {
        let scheduled = [Scheduled, BesideASilentOne, WithoutFloor, WithFloorAhead, DefinedAnew, OnEveryNode];
        scheduled.contains(&self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Waits until the command has begun.
    AwaitStart,
    /// Waits until the daemon waits at its next point.
    AwaitWait,
    GoOn,
    /// Another request for the same job.
    Ask,
    /// Another process has the SQLite file locked, for longer than anybody waits.
    LockFile,
    /// The store ends the node's lease.
    LoseLease,
    PauseJob,
    /// etcd takes in and answers nothing, then does again.
    Freeze,
    Thaw,
    Terminate,
    /// Waits until it has a new lease.
    AwaitRegistered,
    /// Ends the guard, and the command with it.
    KillGuard,
    /// Somebody else closes the fire.
    CloseByOther,
}

use Act::*;
use Before::*;

const DRIVES: &[Drive] = &[
    drive("register.read", Scheduled, &[], &[]),
    drive("register.grant", Scheduled, &[], &[]),
    drive("register.lease", KilledInRun, &[], &[]),
    drive("register.write", Scheduled, &[], &[]),
    drive("register.pause", Scheduled, &["register.read"], &[AwaitWait, LockFile, GoOn]),
    drive("register.renew", Scheduled, &[], &[]),
    drive("register.revoke", Scheduled, &[], &[AwaitStart, Terminate]),
    drive("mine.list", Scheduled, &[], &[]),
    drive("claim.registration", Scheduled, &[], &[]),
    drive("claim.send", Scheduled, &[], &[]),
    drive("claim.answered", Scheduled, &[], &[]),
    // Another job comes after this one, and after a second.
    drive("chain.read", Asked, &[], &[]),
    drive("claim.fence", Asked, &["claim.send"], &[AwaitWait, LoseLease, GoOn]),
    drive("claim.pause", Asked, &["claim.send"], &[AwaitWait, LockFile, GoOn]),
    // The claim is refused, nobody hears of it, and the second is refused as well.
    drive(
        "claim.settle",
        Asked,
        &["claim.send", "claim.pause"],
        &[AwaitWait, PauseJob, Freeze, GoOn, AwaitWait, Thaw, GoOn],
    ),
    drive("claim.look", BesideASilentOne, &[], &[]),
    drive("unrun.status", Asked, &[], &[AwaitStart, Ask]),
    drive("unrun.send", Asked, &[], &[AwaitStart, Ask]),
    drive("unrun.pause", Asked, &["unrun.send"], &[AwaitStart, Ask, AwaitWait, LockFile, GoOn]),
    drive("register.look", Asked, &[], &[AwaitStart]),
    drive("verify.read", KilledInRun, &[], &[]),
    drive("verify.fence", KilledInRun, &["verify.read"], &[AwaitWait, LoseLease, GoOn]),
    drive(
        "verify.pause",
        Asked,
        &["run.begin", "verify.read"],
        &[AwaitWait, LoseLease, AwaitRegistered, GoOn, AwaitWait, Freeze, GoOn],
    ),
    drive("rewrite.send", Asked, &[], &[AwaitStart, Terminate]),
    drive("run.begin", Scheduled, &[], &[]),
    drive("run.spawn", Scheduled, &[], &[]),
    drive("run.hear", Scheduled, &[], &[]),
    drive("run.verify", Asked, &["run.begin"], &[AwaitWait, LoseLease, AwaitRegistered, GoOn]),
    drive("run.order", Asked, &[], &[AwaitStart, Terminate]),
    drive("run.part", Asked, &[], &[AwaitStart, Terminate]),
    drive("run.part.pause", Asked, &["run.part"], &[AwaitStart, Terminate, AwaitWait, LockFile, GoOn]),
    drive("run.lower", StoppedInRun, &[], &[]),
    drive("run.give_back", Asked, &[], &[AwaitStart, KillGuard]),
    drive("run.fenced", Asked, &["run.give_back"], &[AwaitStart, KillGuard, AwaitWait, CloseByOther, GoOn]),
    drive("run.again", Asked, &[], &[AwaitStart, KillGuard]),
    drive("run.reap", Scheduled, &[], &[]),
    drive("run.finish", Scheduled, &[], &[]),
    drive("run.clear", Scheduled, &[], &[]),
    drive("finish.status", Scheduled, &[], &[]),
    drive("finish.send", Scheduled, &[], &[]),
    drive("finish.pause", Asked, &["finish.send"], &[AwaitWait, LockFile, GoOn]),
    drive("finish.late", Asked, &["finish.send"], &[AwaitWait, CloseByOther, GoOn]),
    drive("stop.send", Replaces, &[], &[AwaitStart, Ask]),
    drive("stop.pause", Replaces, &["stop.send"], &[AwaitStart, Ask, AwaitWait, LockFile, GoOn]),
    drive("lane.wait", Replaces, &[], &[AwaitStart, Ask]),
    // The one that is stopped, by another fire.
    drive("run.order", Replaces, &[], &[AwaitStart, Ask]),
    drive("run.reap", Replaces, &[], &[AwaitStart, Ask]),
    drive("finish.send", Replaces, &[], &[AwaitStart, Ask]),
    drive("run.give_back", FailsOnce, &[], &[]),
    drive("rewrite.send", FailsOnce, &[], &[]),
    drive("run.again", FailsOnce, &[], &[]),
    drive("back.again", FailsOnce, &[], &[]),
    drive("again.begin", FailsOnce, &[], &[]),
    drive("again.send", FailsOnce, &[], &[]),
    drive("again.fence", FailsOnce, &["again.send"], &[AwaitWait, LoseLease, GoOn]),
    drive("back.run", FailsOnce, &[], &[]),
    drive("orphans.list", Scheduled, &[], &[]),
    drive("orphan.look", LostOther, &[], &[]),
    drive("over.begin", LostOther, &[], &[]),
    drive("over.registration", LostOther, &[], &[]),
    drive("over.send", LostOther, &[], &[]),
    drive("over.fence", LostOther, &["over.send"], &[AwaitWait, LoseLease, GoOn]),
    drive("over.pause", LostOther, &["over.send"], &[AwaitWait, LockFile, GoOn]),
    drive("over.run", LostOther, &[], &[]),
    drive("over.close", LostOtherAndRemoved, &[], &[]),
    drive("lost.status", LostOtherAndRemoved, &[], &[]),
    drive("lost.send", LostOtherAndRemoved, &[], &[]),
    drive("lost.fence", LostOtherAndRemoved, &["lost.send"], &[AwaitWait, LoseLease, GoOn]),
    drive("warden.look", Scheduled, &[], &[]),
    drive("warden.settle", Scheduled, &[], &[]),
    drive("warden.floor", WithoutFloor, &[], &[]),
    drive("warden.ahead", WithFloorAhead, &[], &[]),
    drive("warden.lower", WithFloorAhead, &[], &[]),
    drive("warden.former", DefinedAnew, &[], &[]),
    drive("warden.lane", OnEveryNode, &[], &[]),
    drive("warden.lane.pause", OnEveryNode, &["warden.lane"], &[AwaitWait, LockFile, GoOn]),
    drive("late.look", KilledAndEnded, &["register.read"], &[AwaitWait, CloseByOther, GoOn]),
    drive("orphan.end", KilledInRun, &["register.read"], &[AwaitWait, CloseByOther, GoOn]),
    drive("orphan.late", KilledAndEnded, &["register.read"], &[AwaitWait, CloseByOther, GoOn]),
    drive("late.send", Asked, &["finish.send"], &[AwaitWait, CloseByOther, GoOn]),
    drive("back.connect", KilledInRun, &[], &[]),
    drive("back.watch", KilledInRun, &[], &[]),
    drive("back.close", KilledAndEnded, &[], &[]),
    drive("back.again", DiedAt("run.spawn"), &[], &[]),
    drive("back.run", DiedAt("run.spawn"), &[], &[]),
    drive("again.begin", DiedAt("run.begin"), &[], &[]),
    drive("again.finish", DiedAtAndRemoved("run.begin"), &[], &[]),
    drive("again.registration", DiedAt("run.begin"), &[], &[]),
    drive("again.send", DiedAt("run.spawn"), &[], &[]),
    drive("again.fence", DiedAt("run.begin"), &["again.send"], &[AwaitWait, LoseLease, GoOn]),
    drive("again.pause", DiedAt("run.spawn"), &["again.send"], &[AwaitWait, LockFile, GoOn]),
];

const fn drive(
    point: &'static str,
    before: Before,
    waits_at: &'static [&'static str],
    acts: &'static [Act],
) -> Drive {
    Drive { point, before, waits_at, acts }
}

/// So many at once: most of the time of each is waiting.
const AT_ONCE: usize = 6;

#[tokio::test]
async fn a_daemon_killed_at_any_point_starts_no_fire_twice_and_loses_none() {
    let in_code = points_of_code();
    println!("{} points in the code: {in_code:?}", in_code.len());
    let driven: BTreeSet<&str> = DRIVES.iter().map(|drive| drive.point).collect();
    let of_code: BTreeSet<&str> = in_code.iter().map(String::as_str).collect();
    assert_eq!(driven, of_code, "each point of the code needs a line in DRIVES, and no other");
    assert_eq!(of_code.len(), in_code.len(), "a name stands for two points");
    let mut waiting: VecDeque<&Drive> = DRIVES.iter().collect();
    let here = tokio::task::LocalSet::new();
    here.run_until(async {
        let mut tasks = JoinSet::new();
        while !waiting.is_empty() || !tasks.is_empty() {
            while tasks.len() < AT_ONCE
                && let Some(next) = waiting.pop_front()
            {
                tasks.spawn_local(check(next));
            }
            tasks.join_next().await.expect("there is one").expect("the story of each point is told above");
        }
    })
    .await;
}

/// The names in `fail_point!("…")` in the code.
fn points_of_code() -> Vec<String> {
    let mut points = Vec::new();
    for (_, text) in sources("src") {
        for part in text.split("fail_point!(\"").skip(1) {
            points.push(part.split('"').next().unwrap().to_owned());
        }
    }
    points.sort();
    points
}

/// All `.rs` files below a folder of the package, by path.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|is| is == "rs") {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// Where the code waits without a point of its own, and why that is as good.
const WAITS_WITHOUT: &[(&str, &str)] = &[
    ("if self.current.changed().await.is_err() {", "waits for the registration's owner, who has points"),
    ("if self.in_touch.changed().await.is_err() {", "the same"),
    ("std::future::pending::<()>().await;", "the node is leaving, and nothing comes after"),
    (
        "let sent = self.asks.send(Ask::Fence { from: old.epoch, done }).await;",
        "claim.fence, claim.settle, again.fence and verify.fence are right before the call",
    ),
    ("if sent.is_err() || fenced.await.is_err() {", "waits for the owner, whose first step is register.read"),
    ("let _ = self.asks.send(Ask::Files(files)).await;", "no claim depends on what is shown"),
    ("let registration = owner.register().await?;", "its first step is register.read"),
    ("let registration = self.register().await?;", "its first step is register.read"),
    ("let registration = self.register_again(tell).await?;", "its first step is register.read"),
    ("registration = self.register_again(&tell).await?;", "its first step is register.read"),
    (
        "Sight::Gone => registration = self.register_after_loss(&tell).await?,",
        "its first step is register.read",
    ),
    ("Err(StoreError::LeaseGone) => registration = self.register_after_loss(&tell).await?,", "the same"),
    ("match self.try_register(&mut taken_since).await {", "its first step is register.read"),
    ("match self.renew(&registration).await {", "its first step is register.renew"),
    (
        "looked = async { look.as_mut().expect(\"there is one\").await }, if look.is_some() => Wake::Looked(looked),",
        "begins with register.look",
    ),
    ("let registration = standing.registration().await;", "waits for the owner"),
    ("let registration = self.standing.registration().await;", "waits for the owner"),
    ("let losses = standing.registration().await.losses();", "waits for the owner"),
    (
        "pause_before_deciding(together.store(), fire, error, &mut told).await?;",
        "its only wait is after unrun.pause",
    ),
    (
        "if let Some(reason) = refusal(place, job).await {",
        "it only asks the user database, and run.begin comes with nothing done in between",
    ),
    ("let looked_up = tokio::task::spawn_blocking(refuses).await;", "the same"),
    ("match attempt(place, standing, claim, job, &mut orders).await? {", "its first point is run.begin"),
    (
        "return close::close(place, standing, claim, None, end, &spec::no_spec()).await;",
        "begins with run.finish",
    ),
    (
        "close::close(place, standing, claim, folder, ended, &spec).await",
        "begins with run.give_back or run.finish",
    ),
    ("let watched = watch.until_the_end(guard, orders).await;", "its first step is run.order or run.hear"),
    ("self.pass_on(&mut guard, contact).await;", "speaks to the guard, which answers for itself"),
    ("guard.keep(contact(in_touch, hold)).await;", "the same"),
    ("guard.keep(contact(at, longer)).await;", "the same"),
    ("let ended = timeout(ANSWER, answered).await.ok().flatten();", "the same"),
    ("match guard.hear().await {", "the same"),
    ("guard.ask(&Request::Kill { reason: \"the lock was lost\".to_owned() }).await;", "the same"),
    ("Event::Heard(Heard::Holds(holds)) => self.lower(holds.hold).await,", "its only write is run.lower"),
    ("Event::Heard(Heard::Gone) => match self.find_again().await {", "it only looks at the disk"),
    ("Err(_) => watch.find_again().await,", "the same"),
    ("sleep(pause).await;", "between two of those looks"),
    ("if let Ok(guard) = self.place.guards.connect(self.folder).await {", "the same"),
    (
        "guard.ask(&Request::Kill { reason: \"no lock allows it any more\".to_owned() }).await;",
        "after orphan.end",
    ),
    ("let mut guard = place.guards.connect(folder).await?;", "after orphan.end"),
    ("match race::rewrite(&place.together, claim, form.clone(), None).await {", "begins with rewrite.send"),
    ("match race::rewrite(&self.place.together, self.claim, form.clone(), None).await {", "the same"),
    (
        "Err(error) => wait_or_give_up(&place.store, record, error, &mut pause).await?,",
        "its only wait is after finish.pause",
    ),
    ("Err(error) => wait_or_give_up(store, record, error, &mut pause).await?,", "the same"),
    (
        "Err(error) => wait_or_give_up(store, &record, error, &mut pause).await?,",
        "its only wait is after finish.pause",
    ),
    ("let (folder, ended) = match start(place, &name, &spec).await {", "its only wait is after run.spawn"),
    ("Order::Cancel(reason) => guard.ask(&Request::Cancel { reason }).await,", "after run.order"),
    ("Order::Shutdown => guard.ask(&Request::Shutdown).await,", "after run.order"),
    ("Order::Part { stop_hold } => match self.part(&mut guard, stop_hold).await {", "after run.order"),
    (
        "verified = async { verifying.as_mut().expect(\"there is one\").await }, if verifying.is_some() => {",
        "begins with verify.read",
    ),
    (
        "Box::pin(async move { race::verify(&together, &mut standing, &clock, &fire, &lock).await })",
        "begins with verify.read",
    ),
    ("Err(error) => pause(store, error).await?,", "its only wait is after over.pause"),
    ("pause(store, error).await?;", "the same"),
    (
        "if !race::close_orphan(&place.store, standing, &place.chains, &orphan, &mut record).await? {",
        "begins with lost.status",
    ),
    (
        "let (slot, mut links) = (claim.lock().slot(), chains.links(&record).await);",
        "waits for the list of jobs",
    ),
    ("let (slot, mut links) = (orphan.found.lock.slot(), chains.links(record).await);", "the same"),
    ("_ = self.are_known.subscribe().wait_for(|are_known| *are_known).await;", "the same"),
    ("if let Err(error) = links.read(store).await {", "begins with chain.read"),
    ("wait_or_give_up(store, &record, error, &mut pause).await?;", "its only wait is after finish.pause"),
    ("let found = all_locks(store).await?;", "mine.list and orphans.list are right before the call"),
    (
        "Ok(store.list(keys::locks()).await?.entries.into_iter().filter_map(read).collect())",
        "the same: it is all that the call waits for",
    ),
    ("keep_late(store, &record).await?;", "begins with late.look"),
    ("lock.hold = now_of_job(store, &found.fire).await?.or(lock.hold);", "only a mutant does it"),
    ("let entry = store.get(&keys::job(&fire.job)).await?;", "the same"),
    ("self.lower(self.hold().unwrap_or_default()).await;", "the same"),
    ("guard.keep(contact(self.standing.in_touch(), longer)).await;", "the same"),
    (
        "LockState::Held => see_to(place, standing, found, &mut orders).await?,",
        "its ways begin with back.connect or back.close",
    ),
];

#[test]
fn every_await_of_claim_start_and_finish_has_its_point() {
    let mut bare = Vec::new();
    for (path, text) in sources("src") {
        let counts = ["src/race/", "src/run/", "src/run.rs"].iter().any(|part| path.starts_with(part));
        let code: Vec<&str> = text.split("#[cfg(test)]").next().unwrap().lines().collect();
        for (number, line) in code.iter().enumerate().filter(|(_, line)| counts && line.contains(".await")) {
            let above = &code[number.saturating_sub(2)..number];
            let excepted = WAITS_WITHOUT.iter().any(|(code, _)| line.trim() == *code);
            if !above.iter().any(|line| line.contains("fail_point!(")) && !excepted {
                bare.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    let all: String = sources("src").into_values().collect();
    for (code, reason) in WAITS_WITHOUT {
        assert!(all.contains(code), "{code:?} is not in the code any more ({reason})");
    }
    assert!(bare.is_empty(), "these need a fail_point right above them, or a reason:\n{}", bare.join("\n"));
}

async fn check(drive: &'static Drive) {
    let Drive { point, before, waits_at, acts } = drive;
    let fleet = match acts.contains(&Freeze) {
        true => Fleet::on_etcd(Version::V34).await,
        false => Fleet::on_sqlite().await,
    };
    let mut world = World { fleet, lock: None, asked: Vec::new(), earlier: Vec::new() };
    world.set_up(*before).await;
    let waits = waits_at.iter().map(|wait| format!("{wait}=wait,"));
    let points = format!("{}{point}", waits.collect::<String>());
    let mut node = world.fleet.node("a").fail_at(&points).start();
    for act in *acts {
        world.act(*act, &mut node).await;
    }
    node.wait_for_death(&world.fleet).await;
    if acts.contains(&Freeze) {
        world.fleet.etcd().thaw();
    }
    world.earlier.push(node);
    let books = world.recover(*before).await;
    println!("{point}: {before:?}, waits at {waits_at:?}, {acts:?} -> {books}");
}

struct World {
    fleet: Fleet,
    /// Holds the SQLite file.
    lock: Option<Connection>,
    /// All that was asked for.
    asked: Vec<Fire>,
    /// Daemons that died; what they started may still run.
    earlier: Vec<Node>,
}

impl World {
    async fn set_up(&mut self, before: Before) {
        let fleet = &self.fleet;
        if before.is_scheduled() {
            let command = quoted(&fleet.marking("true"));
            let quick = format!("[jobs.quick]\nschedule = '@every 1s'\ncommand = {command}\n");
            fleet.sync(&quick).await;
            let floor = keys::floor(&name("quick"), &Lane::OneNode);
            let ahead = "20991231T000000Z";
            let op = match before {
                BesideASilentOne => Op::put("nodes/z", silent_node()),
                WithoutFloor => Op::delete(floor.as_str()),
                WithFloorAhead => Op::put(floor, ahead),
                DefinedAnew => return fleet.sync(&quick.replace("1s", "2s")).await,
                OnEveryNode => return fleet.sync(&format!("{quick}run_on = 'every-node'\n")).await,
                _ => return,
            };
            fleet.store.txn(Txn::new().then([op])).await.unwrap();
            return;
        }
        fleet.sync(&self.jobs(before)).await;
        self.asked.push(fleet.ask("once").await);
        let died = match before {
            Scheduled | BesideASilentOne | WithoutFloor | WithFloorAhead | DefinedAnew | OnEveryNode
            | Asked | Replaces | FailsOnce => return,
            DiedAt(point) | DiedAtAndRemoved(point) => {
                let mut node = fleet.node("a").fail_at(point).start();
                node.wait_for_death(fleet).await;
                node
            }
            KilledInRun | KilledAndEnded | StoppedInRun => {
                let mut node = fleet.node("a").start();
                self.await_start().await;
                match before {
                    StoppedInRun => node.stop(fleet).await,
                    _ => node.kill(),
                }
                node
            }
            LostOther | LostOtherAndRemoved => {
                let mut other = fleet.node("z").start();
                self.await_start().await;
                other.lose_host();
                other
            }
        };
        if before == KilledAndEnded {
            fleet.wait_until("the command to end", async || died.guards().is_empty()).await;
        }
        if let DiedAtAndRemoved(_) | LostOtherAndRemoved = before {
            fleet.sync("[source]\nname = 'default'\n[jobs]\n").await;
        }
        self.earlier.push(died);
    }

    fn jobs(&self, before: Before) -> String {
        let (more, fields) = match before {
            Replaces => ("exec sleep 3", "overlap = 'replace'"),
            FailsOnce => ("[ $FLEETCRON_ATTEMPT != 1 ]", "retry = { attempts = 2, delay = '1s' }"),
            _ => ("exec sleep 3", ""),
        };
        let command = quoted(&self.fleet.marking(more));
        format!(
            "[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\nhold = '6s'\nkill_after = '1s'\n\
             {fields}\n[jobs.later]\nafter = ['once', 'never']\ncommand = 'true'\n"
        )
    }

    async fn await_start(&self) {
        self.fleet.wait_until("the command to begin", async || !self.fleet.marks().is_empty()).await;
    }

    async fn act(&mut self, act: Act, node: &mut Node) {
        let fleet = &mut self.fleet;
        match act {
            AwaitStart => self.await_start().await,
            AwaitWait => {
                let waiting = fleet.waiting_path();
                fleet.wait_until("the daemon to wait at its point", async || waiting.exists()).await;
            }
            GoOn => fs::remove_file(fleet.waiting_path()).unwrap(),
            Ask => self.asked.push(fleet.ask("once").await),
            LockFile => self.lock = Some(lock_file(fleet)),
            LoseLease => {
                let entry = fleet.store.get(&keys::node(&"a".parse().unwrap())).await.unwrap();
                let lease = entry.expect("it is registered").lease.expect("on a lease");
                fleet.store.revoke(lease).await.unwrap();
            }
            PauseJob => {
                let pause = Op::put(keys::paused(&name("once")), "{}");
                fleet.store.txn(Txn::new().then([pause])).await.unwrap();
            }
            Freeze => fleet.etcd().freeze(),
            Thaw => fleet.etcd().thaw(),
            Terminate => node.signal(Signal::SIGTERM),
            AwaitRegistered => node.wait_until_it_says(fleet, "registered again").await,
            KillGuard => {
                let [guard] = node.guards()[..] else { panic!("one guard, please") };
                kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
            }
            CloseByOther => close_by_other(fleet).await,
        }
    }

    /// Starts the node anew, and checks what became of everything.
    async fn recover(&mut self, before: Before) -> Books {
        self.lock = None;
        let fleet = &self.fleet;
        let unpause = Op::delete(keys::paused(&name("once")));
        fleet.store.txn(Txn::new().then([unpause])).await.unwrap();
        let mut node = fleet.node("a").ready().await;
        match before {
            _ if before.is_scheduled() => {
                let there = fleet.records().await.len();
                fleet.wait_for_records("quick", there + 2).await;
            }
            _ => {
                fleet
                    .wait_until("every request and lock to be dealt with", async || {
                        let locks = fleet.list(keys::locks()).await.entries;
                        let requests = fleet.list(keys::requests()).await.entries;
                        locks.is_empty() && requests.is_empty()
                    })
                    .await;
                if let DiedAtAndRemoved(_) | LostOtherAndRemoved = before {
                    fleet.sync(&self.jobs(before)).await;
                }
                // The lane is free: the next one runs.
                let next = fleet.ask("once").await;
                assert_eq!(fleet.wait_for_record(&next).await.outcome, Outcome::Succeeded);
            }
        }
        node.stop(fleet).await;
        for fire in &self.asked {
            fleet.wait_for_record(fire).await;
        }
        fleet.check_books(Gaps::Allowed).await
    }
}

/// What a node shows that is registered and never does anything.
fn silent_node() -> Vec<u8> {
    let facts = Facts {
        node_start: Ulid::generate().to_string().parse().unwrap(),
        labels: &BTreeMap::new(),
        slots: 64,
        files: BTreeMap::new(),
        at: chrono::Utc::now(),
    };
    values::encode(&Presence::new(facts))
}

fn lock_file(fleet: &Fleet) -> Connection {
    let Address::Sqlite(path) = &fleet.address else { panic!("only a file can be locked") };
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(LONG_ENOUGH).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

/// What a node does that took this one for lost.
async fn close_by_other(fleet: &Fleet) {
    let [entry] = &fleet.list(keys::locks()).await.entries[..] else { panic!("one lock, please") };
    let fire = keys::fire_of(&entry.key).unwrap();
    let lock: Lock = values::decode(&entry.key, &entry.value).unwrap();
    let record = Record {
        span: None,
        fire: fire.clone(),
        outcome: Outcome::Lost,
        reason: Some("its node was lost".to_owned()),
        run: Some(RunFacts { started_at: Some(lock.claimed_at), ..lock.facts(entry.mod_revision) }),
        writer: Writer::Node {
            node: "b".parse().unwrap(),
            node_start: Ulid::generate().to_string().parse().unwrap(),
        },
        written_at: chrono::Utc::now(),
        tail: None,
        task: None,
        set_off: Vec::new(),
        past: Vec::new(),
    };
    let ops = [Op::delete(entry.key.as_str()), Op::put(keys::record(&fire), values::encode_record(&record))];
    fleet.store.txn(Txn::new().then(ops)).await.unwrap();
}
