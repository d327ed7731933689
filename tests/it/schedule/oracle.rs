//! The oracle's vectors: every one of them, `far-future` included.

use std::path::Path;

use serde::Deserialize;

use fleetcron::schedule::{Schedule, Zone};

#[derive(Deserialize)]
struct Vector {
    id: String,
    expr: String,
    tz: String,
    after: String,
    next: Vec<String>,
}

#[derive(Deserialize)]
struct Invalid {
    id: String,
    expr: String,
    reason: String,
}

#[test]
fn every_vector_gives_its_instants() {
    let vectors: Vec<Vector> = read("schedule-vectors.jsonl");
    let mut wrong = Vec::new();
    for vector in &vectors {
        let schedule = super::schedule(&vector.expr, &super::zone(&vector.tz));
        let after = super::instant(&vector.after);
        let wanted = vector.next.len().max(1);
        let found = super::fires(&schedule, after, wanted);
        if found != vector.next {
            wrong.push(format!(
                "{} `{}` {} after {}:\n  wants {:?}\n  gives {found:?}",
                vector.id, vector.expr, vector.tz, vector.after, vector.next
            ));
        }
        let shown: Vec<String> = schedule
            .upcoming(after)
            .filter(|one| one.runs())
            .map(|one| schedule.zone().local(one.at).to_string())
            .take(wanted)
            .collect();
        assert_eq!(shown, found, "{}: what is shown is what runs", vector.id);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), vectors.len(), wrong.join("\n"));
    assert!(vectors.len() > 1_600);
}

#[test]
fn every_invalid_expression_is_refused_at_a_place_in_it() {
    let invalid: Vec<Invalid> = read("invalid.jsonl");
    for Invalid { id, expr, reason } in &invalid {
        let Err(errors) = Schedule::parse(&[expr], &Zone::utc(), "job") else {
            panic!("{id}: {expr:?} is accepted, but {reason}");
        };
        let (_, error) = &errors[0];
        assert!(expr.get(error.at.clone()).is_some(), "{id}: {error:?}");
        let line = error.to_string();
        assert!(!line.contains('\n') && !line.ends_with('.'), "{id}: {line}");
        if std::env::var_os("FLEETCRON_TEST_SHOW").is_some() {
            println!("{}\n{line}\n", error.pointer());
        }
    }
    assert!(invalid.len() > 100);
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
