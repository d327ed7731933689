//! Who may import whom: the table of layers, checked against the code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules in their order, by layer. A module may use those of its own layer that stand before it, and what its
/// layer is allowed of the layers above it.
const LAYERS: [(&str, &[&str], &[&str]); 5] = [
    // words: plain values, no I/O
    ("words", &["schedule", "node", "job", "fire", "task", "record"], &[]),
    // thought: pure functions
    ("thought", &["jobfile", "planner", "placement", "audit"], &["words"]),
    // hands: one piece of the world each; they do not think
    (
        "hands",
        &[
            "fail_point",
            "mutant",
            "clock",
            "latest",
            "files",
            "store",
            "config",
            "child",
            "cgroup",
            "output",
            "guard",
            "journal",
        ],
        &["words"],
    ),
    // deeds: one step of the flow each
    ("deeds", &["race", "run", "warden", "queue", "act", "sync"], &["words", "thought", "hands"]),
    // doors: where people come in
    ("doors", &["daemon", "cli"], &["words", "thought", "hands", "deeds"]),
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn the_library_lists_its_modules_in_the_order_of_their_layers() {
    let listed: Vec<String> = fs::read_to_string(source().join("lib.rs"))
        .unwrap()
        .lines()
        .filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned()))
        .collect();
    let table: Vec<&str> = LAYERS.iter().flat_map(|(_, modules, _)| modules.iter().copied()).collect();
    assert_eq!(listed, table);
}

#[test]
fn no_module_uses_one_that_it_may_not_know() {
    let mut offences = Vec::new();
    for (layer, modules, above) in LAYERS {
        for (position, module) in modules.iter().enumerate() {
            let allowed = |used: &str| {
                let earlier = modules[..=position].contains(&used);
                earlier
                    || LAYERS.iter().any(|(name, modules, _)| above.contains(name) && modules.contains(&used))
            };
            for (file, text) in files_of(module) {
                for used in uses(&without_tests(&text)) {
                    if !allowed(&used) {
                        offences.push(format!("{file}: {module} ({layer}) uses {used}"));
                    }
                }
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn foreign_types_stop_at_the_module_that_uses_them() {
    // The crate, and the only files that may name it.
    let homes: BTreeMap<&str, &[&str]> = [
        ("etcd_client", &["store/etcd"][..]),
        ("rusqlite", &["store/sqlite"]),
        ("cron", &["schedule"]),
        ("jiff", &["schedule"]),
        ("toml", &["jobfile", "config"]),
        ("clap", &["cli", "main"]),
        ("comfy_table", &["cli"]),
    ]
    .into();
    let mut offences = Vec::new();
    for file in rust_files(&source()) {
        let name = file.strip_prefix(source()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        for (foreign, homes) in &homes {
            let names_it = text
                .lines()
                .map(str::trim_start)
                .any(|line| !line.starts_with("//") && word_before_path(line, foreign));
            if names_it && !homes.iter().any(|home| name.starts_with(home)) {
                offences.push(format!("{name} names {foreign}"));
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

/// Whether a line has `foreign::` as a path of its own, not as the end of another word or path.
fn word_before_path(line: &str, foreign: &str) -> bool {
    line.match_indices(&format!("{foreign}::")).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// The modules of ours that a text uses: `crate::NAME` wherever it stands.
fn uses(text: &str) -> Vec<String> {
    let mut used = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, path) in line.match_indices("crate::") {
            let name: String =
                line[at + path.len()..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // `fail_point!` is a macro of the library's root.
            used.push(name);
        }
    }
    used
}

/// Tests may use what they like.
fn without_tests(text: &str) -> String {
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

fn files_of(module: &str) -> Vec<(String, String)> {
    let mut files = vec![source().join(format!("{module}.rs"))];
    let folder = source().join(module);
    if folder.is_dir() {
        files.extend(rust_files(&folder));
    }
    files
        .into_iter()
        .map(|file| {
            (file.strip_prefix(source()).unwrap().display().to_string(), fs::read_to_string(&file).unwrap())
        })
        .collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
