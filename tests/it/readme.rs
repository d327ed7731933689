//! The README's five minutes, as a person would spend them: every command line of it is typed, with real nodes.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long what must come is waited for. Only a net: nothing here is about speed.
const LONG_ENOUGH: Duration = Duration::from_secs(90);

/// What becomes of a command line.
enum Becomes {
    /// It is for all that come after it.
    Setting,
    /// It goes on until it is stopped.
    Node,
    /// It ends well, and this is in what it shows.
    Shows(&'static str),
}

use Becomes::{Node, Setting, Shows};

/// The command lines, in their order. One that is not here is not known to be right.
const LINES: [(&str, Becomes); 10] = [
    ("fleetcron check jobs.toml", Shows("nightly-db-backup  30 3 * * *")),
    (
        "fleetcron next --schedule \"30 3 * * *\" --timezone Europe/Berlin --after 2027-03-27 -n 3",
        Shows("Sun 2027-03-28 03:30:00 +02:00"),
    ),
    ("export FLEETCRON_STORE=sqlite:$PWD/tour/fleetcron.db", Setting),
    ("fleetcron run --node one --state tour/one --jobs jobs.toml", Node),
    ("fleetcron jobs", Shows("hello ")),
    ("fleetcron runs hello --limit 5", Shows("succeeded")),
    ("fleetcron logs hello --state tour/one", Shows("hello from one\n")),
    ("fleetcron start hello --wait", Shows("m-")),
    ("fleetcron runs --output json | head -3", Shows("\"job\":\"hello\"")),
    ("fleetcron run --node two --state tour/two", Node),
];

#[test]
fn the_five_minutes_go_as_they_are_written() {
    let section = section("Five minutes");
    let lines = command_lines(&section);
    let known = LINES.iter().map(|(line, _)| *line);
    assert!(lines.iter().copied().eq(known), "the README says otherwise: {lines:#?}");

    let mut tour = Tour::begin(job_file(&section));
    for (line, becomes) in LINES {
        match becomes {
            Setting => tour.settings = format!("{}{line}\n", tour.settings),
            Node => tour.start(line),
            Shows(part) => _ = tour.wait_for(line, part),
        }
    }
    tour.wait_for("fleetcron nodes", "\ntwo ");
    tour.see_a_mistake();
    tour.see_an_edit();
    tour.end();
}

/// The text of a section, without its heading.
fn section(heading: &str) -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(readme).unwrap();
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// What is to be typed: the indented lines, without the remarks behind them.
fn command_lines(section: &str) -> Vec<&str> {
    let indented = section.lines().filter_map(|line| line.strip_prefix("    "));
    indented.map(|line| line.split("  #").next().unwrap().trim_end()).collect()
}

fn job_file(section: &str) -> &str {
    section.split("```toml\n").nth(1).unwrap().split("```").next().unwrap()
}

/// A person's folder and terminals.
struct Tour {
    folder: tempfile::TempDir,
    /// What was typed that is for all that comes later.
    settings: String,
    nodes: Vec<Child>,
}

impl Tour {
    fn begin(jobs: &str) -> Tour {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("jobs.toml"), jobs).unwrap();
        fs::write(folder.path().join("fleetcron.toml"), "").unwrap();
        Tour { folder, settings: String::new(), nodes: Vec::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_fleetcron")).parent().unwrap();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", &format!("{}{line}", self.settings)]);
        command.env_clear().env("PATH", path).env("HOME", self.folder.path());
        // Whatever settings this machine has.
        command.env("FLEETCRON_CONFIG", self.folder.path().join("fleetcron.toml"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn start(&mut self, line: &str) {
        let log = self.folder.path().join(format!("{}.log", self.nodes.len()));
        // The shell becomes the node, so that it is the node that is stopped.
        let mut command = self.shell(&format!("exec {line}"));
        command.stdout(Stdio::null()).stderr(File::create(log).unwrap());
        self.nodes.push(command.spawn().unwrap());
    }

    /// Types a line until it ends well and shows this.
    fn wait_for(&self, line: &str, part: &str) -> Output {
        let until = Instant::now() + LONG_ENOUGH;
        loop {
            let output = self.shell(line).output().unwrap();
            if output.status.success() && String::from_utf8_lossy(&output.stdout).contains(part) {
                return output;
            }
            assert!(Instant::now() < until, "{line} does not show {part:?}: {output:#?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// "Misspell a key on purpose (`comand`) and check again: …".
    fn see_a_mistake(&self) {
        let wrong = fs::read_to_string(self.folder.path().join("jobs.toml")).unwrap();
        fs::write(self.folder.path().join("wrong.toml"), wrong.replace("command", "comand")).unwrap();
        let output = self.shell("fleetcron check wrong.toml").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:#?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("unknown key \"comand\"").count(), 2, "{said}");
        assert!(said.contains("--> wrong.toml:4:1") && said.contains("nothing is applied"), "{said}");
    }

    /// "Edit `jobs.toml` while the node runs: within a few seconds the change is in the store, …".
    fn see_an_edit(&self) {
        let path = self.folder.path().join("jobs.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("[jobs.hello]", "[jobs.good-day]")).unwrap();
        self.wait_for("fleetcron jobs", "\ngood-day ");
        self.wait_for("fleetcron runs", "\ngood-day ");
        assert!(self.logs().contains("good-day"), "the log shows what changed\n{}", self.logs());
    }

    /// "Ctrl-C stops a node in order: …".
    fn end(mut self) {
        for node in &mut self.nodes {
            kill(Pid::from_raw(node.id() as i32), Signal::SIGINT).unwrap();
        }
        for mut node in std::mem::take(&mut self.nodes) {
            let status = node.wait().unwrap();
            assert!(status.success(), "{status}\n{}", self.logs());
        }
        let left = self.wait_for("fleetcron nodes", "NODE");
        assert_eq!(String::from_utf8_lossy(&left.stdout).lines().count(), 1, "{left:#?}");
        // "What ends meanwhile is recorded by the next start".
        let left = self.wait_for("fleetcron runs --outcome running --output json", "");
        for (line, _) in LINES.iter().filter(|(_, becomes)| matches!(becomes, Node)) {
            self.start(line);
        }
        for line in String::from_utf8_lossy(&left.stdout).lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let fire = row["fire"].as_str().unwrap();
            self.wait_for(&format!("fleetcron runs --limit 100 --output json | grep {fire}"), "succeeded");
        }
    }

    fn logs(&self) -> String {
        let log = |index: usize| fs::read_to_string(self.folder.path().join(format!("{index}.log")));
        (0..).map_while(|index| log(index).ok()).collect()
    }
}

impl Drop for Tour {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            _ = node.kill();
            _ = node.wait();
        }
    }
}
