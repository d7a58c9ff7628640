use met_core::job::{JobKey, Record};

use super::*;
use crate::samples::{MIDNIGHT_S, finished, running};

fn arrived<'a>(node: &'a str, spool: &'a str, sequence: u64) -> Arrived<'a> {
    let about = About { version: "1", clock_offset_ns: Some(5), ..About::default() };
    Arrived { node, spool, sequence, received_ns: 7, data: b"bytes", about }
}

fn all(_: usize, _: &Bound) -> bool {
    true
}

fn log(state: &Path) -> Log {
    let mut log = Log::open(state).unwrap();
    log.enroll(&TokenOwner::Node("n1".into()), b"hash-1", 1, false).unwrap();
    log.enroll(&TokenOwner::Node("n2".into()), b"hash-2", 1, false).unwrap();
    log
}

#[test]
fn a_batch_is_new_once_and_a_new_spool_starts_over() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    let batches =
        [arrived("n1", "a", 1), arrived("n1", "a", 2), arrived("n1", "a", 1), arrived("n2", "a", 1)];
    let kinds = log.take(&batches, all).unwrap();
    assert_eq!(kinds, [Arrival::New(1), Arrival::New(2), Arrival::Known, Arrival::New(3)]);
    drop(log);
    let mut log = Log::open(state.path()).unwrap();
    let again = [arrived("n1", "a", 2), arrived("n1", "b", 1), arrived("n3", "a", 1)];
    assert_eq!(log.take(&again, all).unwrap(), [Arrival::Known, Arrival::New(4), Arrival::Stranger]);
    let numbers: Vec<i64> = log.after(1, 10).unwrap().iter().map(|kept| kept.number).collect();
    assert_eq!(numbers, [2, 3, 4]);
    log.forget("n1", 2).unwrap();
    assert_eq!(log.waiting("n1").unwrap(), [(4, b"bytes".to_vec())]);
    assert_eq!(log.backlog().unwrap(), [("n1".into(), 7, 5), ("n2".into(), 7, 5)]);
    assert_eq!(log.take(&[arrived("n1", "a", 2)], all).unwrap(), [Arrival::Known], "also after it was moved");
    let nodes = log.nodes().unwrap();
    assert_eq!((nodes[0].seen_ns, nodes[0].clock_offset_ns), (Some(7), Some(5)));
    assert!(bytes_in(state.path()).is_some_and(|bytes| bytes >= 4096));
    assert_eq!(bytes_in(&state.path().join("none")), None);
}

#[test]
fn a_granted_token_can_be_revoked() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    log.enroll(&TokenOwner::User("ada".into()), b"hash-3", 1, false).unwrap();
    assert_eq!(log.owner(b"hash-1").unwrap(), Some(TokenOwner::Node("n1".into())));
    assert_eq!(log.owner(b"hash-3").unwrap(), Some(TokenOwner::User("ada".into())));
    assert_eq!(log.owner(b"other").unwrap(), None);
    assert!(log.expel(&TokenOwner::Node("n1".into())).unwrap());
    assert!(!log.expel(&TokenOwner::Node("n1".into())).unwrap());
    assert_eq!((log.owner(b"hash-1").unwrap(), log.is_node("n1").unwrap()), (None, false));
}

#[test]
fn the_sender_under_a_name_is_known_until_it_is_replaced() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    let from = |id: &'static str, sequence| {
        let batch = arrived("n1", "a", sequence);
        Arrived { about: About { id, boot_id: "b1", ..batch.about }, ..batch }
    };
    let mut seen = Vec::new();
    for batch in [from("", 1), from("one", 2), from("two", 3), from("one", 4)] {
        let taken = log.take(&[batch], |_, bound| {
            seen.push((bound.id.clone(), bound.boot_id.clone()));
            bound.seen_ns.is_none() || seen.len() < 3
        });
        taken.unwrap();
    }
    let one = (Some("one".to_owned()), Some("b1".to_owned()));
    assert_eq!(seen[1..], [(None, Some("b1".to_owned())), one.clone(), one], "who was refused is not");
    log.enroll(&TokenOwner::Node("n1".into()), b"hash-9", 2, true).unwrap();
    assert_eq!(log.owner(b"hash-1").unwrap(), None, "earlier tokens are taken back");
    assert_eq!(log.owner(b"hash-2").unwrap(), Some(TokenOwner::Node("n2".into())));
    log.take(&[from("two", 5)], |_, bound| {
        assert_eq!((bound.id.as_deref(), bound.boot_id.as_deref()), (None, None));
        true
    })
    .unwrap();
}

#[test]
fn the_newest_record_of_a_node_wins() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    let on_node = |node: &str, name: &str| {
        let mut record = finished(1, MIDNIGHT_S);
        name.clone_into(&mut record.name);
        NodeJob { node: node.to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
    };
    log.note(&[on_node("n2", "old"), on_node("n1", "x"), on_node("n2", "new")], 3).unwrap();
    assert_eq!(log.applied().unwrap(), 3);
    assert_eq!(log.node_jobs("local", "1").unwrap(), [on_node("n1", "x"), on_node("n2", "new")]);
    // A batch that comes very late, and says that the job lives.
    let late = NodeJob { record: running(1, MIDNIGHT_S), ..on_node("n2", "new") };
    log.note(&[late], 3).unwrap();
    assert_eq!(log.node_jobs("local", "1").unwrap()[1], on_node("n2", "new"));
    assert_eq!(log.jobs_on_node("local", "1", "n2").unwrap(), [on_node("n2", "new")]);
    assert_eq!(log.jobs_on_node("local", "1", "n3").unwrap(), []);
    let JobKey { manager, id, incarnation, .. } = on_node("n1", "x").record.key;
    log.forget_node_jobs(&[NodeJobKey { manager, id, node: "n1".into(), incarnation, whole: 5 }]).unwrap();
    assert_eq!(log.node_jobs("local", "1").unwrap(), [on_node("n2", "new")]);
}

#[test]
fn what_a_node_proved_is_never_replaced_by_what_was_said_without_a_proof() {
    let said = |state: fn(u64, i64) -> Record, unproven: bool| {
        let record = Record { unproven, ..state(1, MIDNIGHT_S) };
        NodeJob { node: "n1".to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
    };
    // An end without a proof gives way to a node that has the job.
    let all =
        [(running as fn(u64, i64) -> Record, true), (finished, true), (running, false), (finished, false)];
    for first in all {
        for then in all {
            let state = tempfile::tempdir().unwrap();
            let mut log = log(state.path());
            log.note(&[said(first.0, first.1)], 1).unwrap();
            log.note(&[said(then.0, then.1)], 2).unwrap();
            let (one, other) = (said(first.0, first.1), said(then.0, then.1));
            let stays = match (first.1, then.1) {
                (false, true) => true,
                (true, false) => false,
                _ => !one.record.state.is_live() && other.record.state.is_live(),
            };
            let kept = if stays { one } else { other };
            assert_eq!(log.node_jobs("local", "1").unwrap(), std::slice::from_ref(&kept));
            let lives = log.nodes_with_jobs(false).unwrap();
            assert_eq!(lives.is_empty(), !kept.record.state.is_live());
        }
    }
}

#[test]
fn a_job_is_given_up_until_its_node_speaks_again() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    let job_with_id = |id: u64| {
        let record = running(id, MIDNIGHT_S);
        NodeJob { node: "n1".to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
    };
    log.note(&[job_with_id(1), job_with_id(2)], 1).unwrap();
    assert_eq!(log.nodes_with_jobs(false).unwrap(), ["n1"]);
    let unfinished = log.unfinished("n1", false).unwrap();
    assert_eq!(unfinished.len(), 2);
    log.give_up(&unfinished, true).unwrap();
    assert!(log.node_jobs("local", "1").unwrap()[0].given_up);
    // It ended after all; the other one is reported as running again.
    let ended = NodeJob { record: finished(1, MIDNIGHT_S), ..job_with_id(1) };
    log.note(&[ended.clone(), job_with_id(2)], 2).unwrap();
    assert_eq!(log.nodes_with_jobs(true).unwrap(), ["n1"]);
    log.give_up(&log.unfinished("n1", true).unwrap(), false).unwrap();
    assert_eq!(log.node_jobs("local", "1").unwrap(), [ended]);
    assert_eq!(log.node_jobs("local", "2").unwrap(), [job_with_id(2)]);
    assert!(log.nodes_with_jobs(true).unwrap().is_empty());
}

#[test]
fn spools_of_the_past_are_forgotten_but_the_newest() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    for start in 1..=5 {
        let id = format!("spool-{start}");
        let batch = Arrived { received_ns: start, ..arrived("n1", &id, start as u64) };
        assert!(matches!(log.take(&[batch], all).unwrap()[0], Arrival::New(_)));
    }
    log.take(&[Arrived { received_ns: 1, ..arrived("n2", "a", 1) }], all).unwrap();
    assert_eq!(log.forget_spools(4).unwrap(), 3);
    for (id, sequence, kind) in [("spool-4", 4, Arrival::Known), ("spool-5", 5, Arrival::Known)] {
        assert_eq!(log.take(&[arrived("n1", id, sequence)], all).unwrap(), [kind]);
    }
    assert_eq!(log.forget_spools(i64::MAX).unwrap(), 1);
    assert_eq!(log.take(&[arrived("n2", "a", 1)], all).unwrap(), [Arrival::Known], "however old it is");
    // Started over and over again, all of them young.
    for start in 0..SPOOLS_MAX + 50 {
        log.take(&[Arrived { received_ns: 100 + start, ..arrived("n1", &start.to_string(), 9) }], all)
            .unwrap();
    }
    log.forget_spools(0).unwrap();
    assert_eq!(log.take(&[arrived("n1", "50", 9)], all).unwrap(), [Arrival::Known]);
    assert!(matches!(log.take(&[arrived("n1", "49", 9)], all).unwrap()[..], [Arrival::New(_)]));
}

#[test]
fn a_file_of_the_first_version_knows_what_lives() {
    let state = tempfile::tempdir().unwrap();
    let connection = Connection::open(state.path().join(FILE)).unwrap();
    connection.execute_batch(include_str!("schema/cluster-1.sql")).unwrap();
    for record in [running(1, MIDNIGHT_S), finished(2, MIDNIGHT_S)] {
        let text = serde_json::to_string(&record).unwrap();
        let sql = "INSERT INTO told VALUES ('local', ?1, 'n1', 1, 1, ?2)";
        connection.execute(sql, params![record.key.id, text]).unwrap();
    }
    connection.execute("INSERT INTO told VALUES ('local', '3', 'n1', 1, 1, '{')", []).unwrap();
    connection.execute("INSERT INTO spool VALUES ('n1', 'a', 7), ('n1', 'b', 8)", []).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection.pragma_update(None, "application_id", i32::from_be_bytes(*b"metl")).unwrap();
    drop(connection);
    let mut log = Log::open(state.path()).unwrap();
    let lives = log.unfinished("n1", false).unwrap();
    assert_eq!(lives.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["1"]);
    assert_eq!(log.node_jobs("local", "1").unwrap()[0].received_ns, None);
    assert_eq!(log.forget_spools(1_000_000_000_000_000_000).unwrap(), 0, "as if they had sent just now");
}

#[test]
fn rows_of_an_older_server_beside_an_upgrade_live_by_their_state() {
    let state = tempfile::tempdir().unwrap();
    let mut log = log(state.path());
    let sql = "INSERT INTO told (manager, id, node, incarnation, whole, record)
               VALUES ('local', ?1, 'n1', 1, 1, ?2)";
    let texts = [running(1, MIDNIGHT_S), finished(2, MIDNIGHT_S)].map(|it| serde_json::to_string(&it));
    for (id, text) in texts.into_iter().map(Result::unwrap).chain(["{".to_owned()]).enumerate() {
        log.connection.execute(sql, params![(id + 1).to_string(), text]).unwrap();
    }
    assert_eq!(log.unfinished("n1", false).unwrap(), []);
    log.settle_standings().unwrap();
    log.settle_standings().unwrap();
    let lives = log.unfinished("n1", false).unwrap();
    assert_eq!(lives.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["1"]);
}
