use super::*;
use crate::JOB;
use crate::job::{LeftOver, Origin, QualityKind, State};

fn record() -> Record {
    serde_json::from_str(
        r#"{"key":{"cluster":null,"manager":"local","id":"1","incarnation":1},"name":"job","user":"ada","uid":1,
            "account":null,"command":["sleep","1"],"state":"finished","manager_state":null,"exit_code":0,
            "signal":null,"start_ns":1,"end_ns":2,"nodes":["n1"],"node_memory_bytes":null,"local":null}"#,
    )
    .unwrap()
}

/// With everything that a user or a node can write, as long as a message lets it be.
fn hostile(length: usize) -> Record {
    let text = || "\u{1}".repeat(length);
    let part = |number: usize| {
        let mut part =
            Part { node: text(), step: format!("{number}"), task: Some(text()), ..Part::default() };
        (0..JOB.columns.len()).for_each(|column| part.totals.set(column, 1, QualityKind::Measured, text()));
        part
    };
    let mut record = record();
    record.key.id = text();
    (record.name, record.user, record.account) = (text(), Some(text()), Some(text()));
    record.command = vec![text(); 40];
    record.nodes = vec![text(); 3000];
    record.parts = (0..150).map(part).collect();
    record.gpus =
        vec![GpuUse { uuid: text(), name: text(), throttled: vec![text(); 100], ..GpuUse::default() }; 300];
    record.events =
        vec![
            EventCount { name: text(), count: 1, counted: 1.0, kind: QualityKind::Measured, source: text() };
            1000
        ];
    record.requested.other = (0..500).map(|number| (format!("{number}{}", text()), text())).collect();
    record.scheduling.reason = Some(text());
    record.local = Some(Local {
        boot_id: text(),
        origin: Origin::Run,
        supervisor: None,
        main: None,
        main_end_ns: None,
        cgroup: CgroupPaths { unified: Some(text().into()), ..CgroupPaths::default() },
        more_cgroups: vec![
            CgroupPaths { memory: Some("/m".repeat(2000).into()), ..CgroupPaths::default() };
            400
        ],
        folded: (0..20).map(part).collect(),
        cwd: text().into(),
        stdout: Some(text().into()),
        stderr: None,
        left_over: vec![LeftOver { pid: 1, name: text() }; 5000],
        stdout_file: None,
        stderr_file: None,
        memory_limit: None,
        cpus_usable: None,
        entered_late: true,
    });
    record
}

#[test]
fn whatever_a_record_holds_it_fits_the_bound_and_is_cut_once() {
    for length in [10, 199, 200, 5000] {
        let mut record = hostile(length);
        bound(&mut record);
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.len() <= RECORD_BYTES_MAX, "{length}: {} bytes", json.len());
        assert!(json.len() <= bytes(&record), "{length}: {} of {}", json.len(), bytes(&record));
        let once = record.clone();
        bound(&mut record);
        assert!(record == once, "{length}: cut twice");
    }
}

#[test]
fn what_was_cut_says_so() {
    let mut record = record();
    record.name = "n".repeat(5000);
    record.command =
        std::iter::once("python".to_owned()).chain((0..9000).map(|n| format!("file-{n}"))).collect();
    bound(&mut record);
    assert!(record.name.len() <= NAME_BYTES_MAX && record.name.ends_with(" bytes)"), "{}", record.name);
    assert!(record.name.contains("…(+40"), "{}", record.name);
    let kept = record.command.len() - 1;
    assert_eq!(record.command[..2], ["python", "file-0"]);
    assert_eq!(record.command[kept], format!("…(+{} arguments)", 9001 - kept));
    let mut one = record.clone();
    one.command = vec!["sh".into(), "-c".into(), "x".repeat(900_000)];
    bound(&mut one);
    assert!(one.command[2].len() > 3000 && one.command[2].contains("…(+89"), "{}", one.command[2]);
}

#[test]
fn an_ordinary_record_is_left_as_it_is() {
    let mut record = record();
    record.parts =
        (0..300).map(|n| Part { node: "n1".into(), step: n.to_string(), ..Part::default() }).collect();
    record.state = State::Failed;
    record.nodes = (0..5000).map(|number| format!("node{number:05}")).collect();
    let before = record.clone();
    bound(&mut record);
    assert_eq!(record, before);
}

#[test]
fn parts_beyond_the_bound_are_one() {
    let mut record = record();
    record.parts =
        (0..20_000).map(|n| Part { node: "n1".into(), step: n.to_string(), ..Part::default() }).collect();
    bound(&mut record);
    let others = record.parts.last().unwrap();
    assert_eq!(others.folded, Some(20_000 - (record.parts.len() as u64 - 1)));
}

#[test]
fn keys_that_differ_still_do_when_they_are_cut() {
    let key = |last: &str| {
        let mut record = record();
        record.key.id = format!("{}{last}", "7".repeat(300));
        bound(&mut record);
        record.key
    };
    assert_ne!(key("a"), key("b"));
    assert_eq!(key("a"), key("a"));
    assert!(key("a").id.len() <= WORD_BYTES_MAX);
}
