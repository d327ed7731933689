//! The examples of the documents, as a person would try them: taken out of the text and run.

use std::process::{Command, Stdio};

use fleetcron::record::Outcome;
use fleetcron::store::values;

use crate::etcd::Version;
use crate::fleet::Fleet;

const TASKS: &str = include_str!("../../packaging/docs/tasks.md");
const SCHEMAS: [(&str, &str); 2] = [
    ("task", include_str!("../../packaging/docs/schema/task.schema.json")),
    ("record", include_str!("../../packaging/docs/schema/record.schema.json")),
];

/// The example in this language.
fn example(language: &str) -> &'static str {
    let (_, rest) = TASKS.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[tokio::test]
async fn the_examples_submit_a_task_with_only_an_etcd_client_and_wait_for_its_record() {
    for version in [Version::V34, Version::V36] {
        let mut fleet = Fleet::on_etcd(version).await;
        let endpoint = format!("http://{}", fleet.etcd().host());
        let mut node = fleet.node("a").ready().await;
        for (program, language) in [("sh", "sh"), ("python3", "python")] {
            let output = Command::new(program)
                .args(["-c", example(language)])
                .env("PREFIX", "/fleet")
                .env("ETCDCTL_API", "3")
                .env("ETCDCTL_ENDPOINTS", &endpoint)
                .env("ETCD", &endpoint)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{language}: {said}\n{}", fleet.logs());
            let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(record["outcome"], "succeeded", "{language}: {record}");
            required_are_there("record", &record);
            required_are_there("task", &record["task"]);
        }
        let records = fleet.records().await;
        assert!(records.len() == 2 && records.iter().all(|record| record.outcome == Outcome::Succeeded));
        // What a record tells of the task is read back as the task that it was.
        assert!(records.iter().all(|record| record.task.is_some()), "{records:?}");
        assert!(!values::encode_record(&records[0]).is_empty());
        node.stop(&fleet).await;
    }
}

/// All that the schema calls required is there, also in what lies in it, and all that is there is in the schema.
fn required_are_there(name: &str, value: &serde_json::Value) {
    let text = SCHEMAS.iter().find(|(known, _)| *known == name).unwrap().1;
    let schema: serde_json::Value = serde_json::from_str(text).unwrap();
    check(name, &schema, value);
}

fn check(path: &str, schema: &serde_json::Value, value: &serde_json::Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(!value[required.as_str().unwrap()].is_null(), "{path} has no {required}: {value}");
    }
    for (key, inner) in value.as_object().unwrap() {
        let known = properties.get(key).unwrap_or_else(|| panic!("{path}.{key} is not in the schema"));
        if inner.is_object() {
            check(&format!("{path}.{key}"), known, inner);
        }
    }
}
