use met_core::MISSING;
use met_core::job::{JobKey, LOCAL, QualityKind, State};
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::series::Series;
use met_sources::rapl::TABLE as METER;
use met_store::cluster::{Log, NodeJob, TokenOwner};
use met_store::{Filter, NodePart};
use met_wire::batch::{Header, Piece};

use super::*;
use crate::cluster::ClusterView;
use crate::cluster::node_series::node_page;

const SECOND_NS: i64 = 1_000_000_000;
pub(in crate::cluster) const START_S: i64 = 1_794_700_800;

pub fn plan(state: &std::path::Path) -> Plan {
    Plan {
        state: state.to_path_buf(),
        backends: Backends::default(),
        retention: Retention::default(),
        thinning: Vec::new(),
        gap_ms: 60_000,
        move_after: Duration::from_secs(3600),
        lost_after: Duration::from_secs(7 * 86_400),
        sinks: Vec::new(),
        hub: Default::default(),
    }
}

pub(in crate::cluster) fn start(state: &std::path::Path, nodes: &[&str]) -> (ClusterWriter, ClusterView) {
    let mut log = Log::open(state).unwrap();
    for node in nodes {
        log.enroll(&TokenOwner::Node((*node).to_owned()), node.as_bytes(), 1, false).unwrap();
    }
    let cluster_writer = ClusterWriter::start(plan(state)).unwrap();
    let view = ClusterView {
        state: state.to_path_buf(),
        backends: Backends::default(),
        latest: cluster_writer.latest().clone(),
        incompatible: Default::default(),
        gap_ms: 60_000,
        lists: Default::default(),
        watching: cluster_writer.watching().clone(),
    };
    (cluster_writer, view)
}

pub(in crate::cluster) fn record(manager: &str, id: &str, start_s: i64, state: State, cpu_s: i64) -> Record {
    let key = JobKey { cluster: None, manager: manager.to_owned(), id: id.to_owned(), incarnation: start_s };
    let (user, start_ns) = (Some("ada".to_owned()), Some(start_s * SECOND_NS));
    let mut record = Record { user, uid: Some(1000), start_ns, ..Record::new(key, "job", state) };
    if !state.is_live() {
        record.end_ns = Some((start_s + 60) * SECOND_NS);
        record.totals.set(CPU, cpu_s * SECOND_NS, QualityKind::Measured, "cgroup");
    }
    record
}

pub(in crate::cluster) fn piece(key: &JobKey, from_s: i64, samples: i64) -> Piece {
    let mut series = Series::new(&JOB);
    for at in 0..samples {
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[CPU] = (from_s + at - START_S) * SECOND_NS;
        cells[MEMORY_NEEDED] = 1000;
        series.push((from_s + at) * 1000, &cells);
    }
    Piece::of(Subject::Job(key.clone()), &series)
}

fn batch(header: Header, records: Vec<Record>, pieces: Vec<Piece>) -> (NodeBatch, Vec<u8>) {
    let batch = NodeBatch { header, records, pieces, ..NodeBatch::default() };
    let packed = batch.pack().unwrap().bytes;
    (batch, packed)
}

fn header(node: &str, sequence: u64) -> Header {
    Header { node: node.to_owned(), spool: "s".to_owned(), sequence, ..Header::default() }
}

pub(in crate::cluster) fn send(
    cluster_writer: &ClusterWriter,
    node: &str,
    sequence: u64,
    records: Vec<Record>,
    pieces: Vec<Piece>,
) -> Result<(), Refusal> {
    let (batch, packed) = batch(header(node, sequence), records, pieces);
    let kept = cluster_writer.keep(batch, packed, now_ns(), None).unwrap().blocking_recv().unwrap();
    // It is acknowledged when it is durable, and shown a moment later.
    let (done, wait) = mpsc::sync_channel(1);
    cluster_writer.with_writer(move |_| {
        done.send(()).unwrap();
        Vec::new()
    });
    wait.recv().unwrap();
    kept
}

fn all(view: &ClusterView) -> Vec<Record> {
    view.all_jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap()
}

#[test]
fn an_annotation_from_a_far_future_can_be_changed() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    let mut running = record(LOCAL, "1", START_S, State::Running, 0);
    running.annotation.tags.insert("frozen".to_owned());
    running.annotation.written_ns = Some(i64::MAX);
    send(&cluster_writer, "n1", 1, vec![running], Vec::new()).unwrap();
    let written_ns = all(&view)[0].annotation.written_ns.unwrap();
    assert!(written_ns < now_ns() + 2 * 86_400 * SECOND_NS, "{written_ns}");
    cluster_writer.stop();
}

#[test]
fn a_batch_counts_once_however_often_it_comes() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    let running = record(LOCAL, "1", START_S, State::Running, 0);
    for _ in 0..2 {
        send(&cluster_writer, "n1", 1, vec![running.clone()], vec![piece(&running.key, START_S, 10)])
            .unwrap();
    }
    let jobs = all(&view);
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].totals.get(CPU), Some(9 * SECOND_NS), "as it was last seen");
    assert_eq!(view.series_of_job_after(&jobs[0].key, i64::MIN).unwrap().len(), 10, "from what waits");
    cluster_writer.move_all();
    send(&cluster_writer, "n1", 1, vec![running.clone()], vec![piece(&running.key, START_S, 10)]).unwrap();
    send(
        &cluster_writer,
        "n1",
        2,
        vec![record(LOCAL, "1", START_S, State::Finished, 20)],
        vec![piece(&running.key, START_S + 10, 5)],
    )
    .unwrap();
    let series = view.series_of_job_after(&jobs[0].key, i64::MIN).unwrap();
    assert_eq!(series.times_ms, (0..15).map(|at| (START_S + at) * 1000).collect::<Vec<_>>(), "from both");
    assert_eq!(view.series_of_job_after(&jobs[0].key, (START_S + 12) * 1000).unwrap().len(), 2);
    assert_eq!(all(&view)[0].totals.get(CPU), Some(20 * SECOND_NS));
    cluster_writer.stop();
}

#[test]
fn who_was_not_enrolled_is_sent_away() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    assert!(matches!(send(&cluster_writer, "n2", 1, Vec::new(), Vec::new()), Err(Refusal::Stranger(_))));
    assert!(all(&view).is_empty());
}

#[test]
fn jobs_of_two_nodes_with_one_number_are_two() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1", "n2"]);
    for node in ["n1", "n2"] {
        send(&cluster_writer, node, 1, vec![record(LOCAL, "1", START_S, State::Finished, 5)], Vec::new())
            .unwrap();
    }
    let mut places: Vec<_> =
        all(&view).into_iter().map(|job| (job.key.cluster.unwrap(), job.nodes)).collect();
    places.sort();
    assert_eq!(places, [("n1".into(), vec!["n1".to_owned()]), ("n2".into(), vec!["n2".to_owned()])]);
}

#[test]
fn a_job_on_two_nodes_is_one_in_either_order_of_reports() {
    for order in [["n1", "n2"], ["n2", "n1"]] {
        let state = tempfile::tempdir().unwrap();
        let (cluster_writer, view) = start(state.path(), &["n1", "n2"]);
        let part =
            |node: &str, state, cpu_s| record("slurm", "77", START_S + i64::from(node == "n2"), state, cpu_s);
        for node in order {
            let running = part(node, State::Running, 0);
            let series = piece(&running.key, START_S + 1, 60);
            send(&cluster_writer, node, 1, vec![running], vec![series]).unwrap();
        }
        let jobs = all(&view);
        assert_eq!((jobs.len(), jobs[0].state), (1, State::Running));
        assert_eq!(jobs[0].totals.get(CPU), Some(120 * SECOND_NS), "of both");
        send(&cluster_writer, order[0], 2, vec![part(order[0], State::Finished, 70)], Vec::new()).unwrap();
        assert_eq!(all(&view)[0].state, State::Running, "the other one runs on");
        send(&cluster_writer, order[1], 2, vec![part(order[1], State::Finished, 30)], Vec::new()).unwrap();
        let jobs = all(&view);
        assert_eq!((jobs.len(), jobs[0].state, jobs[0].nodes.len()), (1, State::Finished, 2));
        assert_eq!(jobs[0].totals.get(CPU), Some(100 * SECOND_NS));
        assert_eq!(jobs[0].summaries.get(MEMORY_NEEDED).unwrap().mean, 2000.0, "of both together");
        // Requeued half an hour later: another run.
        send(
            &cluster_writer,
            "n1",
            3,
            vec![record("slurm", "77", START_S + 1800, State::Running, 0)],
            Vec::new(),
        )
        .unwrap();
        assert_eq!(all(&view).len(), 2);
    }
}

#[test]
fn what_was_kept_and_not_applied_is_applied_by_the_next_server() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, _) = start(state.path(), &["n1"]);
    cluster_writer.stop();
    let finished = record(LOCAL, "1", START_S, State::Finished, 5);
    let pieces = vec![piece(&finished.key, START_S, 3)];
    let (_, packed) = batch(header("n1", 1), vec![finished], pieces);
    // As if it had been killed between the two.
    let arrived = Arrived {
        node: "n1",
        spool: "s",
        sequence: 1,
        received_ns: 1,
        data: &packed,
        about: About::default(),
    };
    assert_eq!(Log::open(state.path()).unwrap().take(&[arrived], |_, _| true).unwrap(), [Arrival::New(1)]);
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    assert_eq!(all(&view)[0].totals.get(CPU), Some(5 * SECOND_NS));
    cluster_writer.move_all();
    assert_eq!(view.series_of_job_after(&all(&view)[0].key, i64::MIN).unwrap().len(), 3);
    assert!(Log::open(state.path()).unwrap().backlog().unwrap().is_empty());
}

#[test]
fn parts_reported_again_keep_their_job_in_any_order() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["a", "b", "c"]);
    let part = |start_s: i64, state, cpu_s| record("slurm", "77", START_S + start_s, state, cpu_s);
    for (node, start_s) in [("a", 0), ("c", 220), ("b", 110)] {
        send(&cluster_writer, node, 1, vec![part(start_s, State::Running, 0)], Vec::new()).unwrap();
    }
    assert_eq!(all(&view).len(), 1, "they run at one time");
    for (node, start_s) in [("c", 220), ("a", 0), ("b", 110)] {
        send(&cluster_writer, node, 2, vec![part(start_s, State::Finished, 10)], Vec::new()).unwrap();
    }
    let jobs = all(&view);
    assert_eq!((jobs.len(), jobs[0].state, jobs[0].nodes.len()), (1, State::Finished, 3));
    assert_eq!(jobs[0].totals.get(CPU), Some(30 * SECOND_NS));
    // Restarted at once on one of the nodes.
    send(&cluster_writer, "a", 3, vec![part(300, State::Running, 0)], Vec::new()).unwrap();
    send(&cluster_writer, "b", 3, vec![part(301, State::Running, 0)], Vec::new()).unwrap();
    let jobs = all(&view);
    assert_eq!(jobs.len(), 2);
    assert_eq!(
        (jobs[0].state, jobs[0].nodes.clone()),
        (State::Running, vec!["a".to_owned(), "b".to_owned()])
    );
    assert_eq!(jobs[1].totals.get(CPU), Some(30 * SECOND_NS), "the first run is as it was");
}

#[test]
fn a_damaged_catalogue_is_rebuilt_from_the_nodes_records() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    let jobs: Vec<Record> =
        (0..30).map(|id| record(LOCAL, &id.to_string(), START_S + id, State::Finished, 1)).collect();
    send(&cluster_writer, "n1", 1, jobs, Vec::new()).unwrap();
    assert_eq!(all(&view).len(), 30);
    cluster_writer.stop();
    let path = state.path().join("store.db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..4096].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    assert_eq!(all(&view).len(), 30);
    cluster_writer.stop();
}

#[test]
fn samples_of_an_impossible_time_are_left_out() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    let running = record(LOCAL, "1", START_S, State::Running, 0);
    let far_s = now_ns() / SECOND_NS + 10 * 86_400;
    let pieces = vec![piece(&running.key, far_s, 5), piece(&running.key, START_S, 5)];
    send(&cluster_writer, "n1", 1, vec![running.clone()], pieces).unwrap();
    assert_eq!(view.series_of_job_after(&all(&view)[0].key, i64::MIN).unwrap().len(), 5);
    cluster_writer.move_all();
    assert_eq!(view.series_of_job_after(&all(&view)[0].key, i64::MIN).unwrap().len(), 5);
    let files = std::fs::read_dir(state.path().join("series")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(
        files.filter(|path| path.extension().is_some_and(|ending| ending == "db")).count(),
        1,
        "one day"
    );
}

fn enrolled(state: &std::path::Path, nodes: &[&str]) -> Work {
    let mut log = Log::open(state).unwrap();
    for node in nodes {
        log.enroll(&TokenOwner::Node((*node).to_owned()), node.as_bytes(), now_ns(), false).unwrap();
    }
    Work::open(plan(state), Latest::default()).unwrap()
}

fn give(work: &mut Work, node: &str, sequence: u64, records: Vec<Record>, pieces: Vec<Piece>) {
    give_at(now_ns(), work, node, sequence, records, pieces);
}

fn give_at(
    received_ns: i64,
    work: &mut Work,
    node: &str,
    sequence: u64,
    records: Vec<Record>,
    pieces: Vec<Piece>,
) {
    take(work, received_ns, batch(header(node, sequence), records, pieces));
}

fn take(work: &mut Work, received_ns: i64, (batch, packed): (NodeBatch, Vec<u8>)) {
    let (reply, mut kept) = oneshot::channel();
    work.take(vec![Incoming { batch, packed, received_ns, clock_offset_ns: None, reply }]);
    kept.try_recv().unwrap().unwrap();
}

fn retain(work: &mut Work, now_ns: i64) -> Result<(), StoreError> {
    work.clearing.retain(&mut work.wholes, &work.plan.retention, now_ns)
}

fn only(work: &Work) -> Record {
    let mut jobs = work.wholes.writer.jobs(&Filter { with_summaries: true, ..Filter::default() }).unwrap();
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

const DAY_NS: i64 = 86_400 * SECOND_NS;

#[test]
fn jobs_of_a_silent_node_are_lost_until_it_speaks_again() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    let running = record(LOCAL, "1", START_S, State::Running, 0);
    give(&mut work, "n1", 1, vec![running.clone()], vec![piece(&running.key, START_S, 30)]);
    let now = now_ns();
    work.wholes.look_for_nodes(now + 6 * DAY_NS).unwrap();
    assert_eq!(only(&work).state, State::Running);
    work.wholes.look_for_nodes(now + 8 * DAY_NS).unwrap();
    let lost = only(&work);
    assert_eq!((lost.state, lost.exit_code), (State::Lost, None));
    assert!(lost.end_ns.unwrap() >= now - 60 * SECOND_NS && lost.end_ns.unwrap() <= now, "its arrival time");
    let cpu = lost.totals.figure(CPU).unwrap();
    assert_eq!((cpu.value, cpu.kind), (29 * SECOND_NS, QualityKind::LowerBound));
    assert_eq!(lost.totals.get(MEMORY_NEEDED), None, "what it held is no total");
    assert_eq!(lost.summaries.get(MEMORY_NEEDED).unwrap().mean, 1000.0);
    // Also by the next server, as long as it is silent.
    drop(work);
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    work.wholes.look_for_nodes(now + 8 * DAY_NS).unwrap();
    assert_eq!(only(&work).state, State::Lost);
    // It says only that it is here.
    give(&mut work, "n1", 2, Vec::new(), Vec::new());
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!((only(&work).state, only(&work).end_ns), (State::Running, None));
    work.wholes.look_for_nodes(now_ns() + 8 * DAY_NS).unwrap();
    assert_eq!(only(&work).state, State::Lost);
    give(&mut work, "n1", 3, vec![record(LOCAL, "1", START_S, State::Finished, 40)], Vec::new());
    let ended = only(&work);
    assert_eq!((ended.state, ended.end_ns), (State::Finished, Some((START_S + 60) * SECOND_NS)));
    assert_eq!(ended.totals.figure(CPU).unwrap().kind, QualityKind::Measured);
    work.wholes.look_for_nodes(now_ns() + 8 * DAY_NS).unwrap();
    assert_eq!(only(&work).state, State::Finished);
}

#[test]
fn the_last_totals_of_a_lost_job_survive_a_late_restart_of_the_server() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    let start_s = now_ns() / SECOND_NS - 2 * 86_400;
    let running = record(LOCAL, "1", start_s, State::Running, 0);
    give_at(start_s * SECOND_NS, &mut work, "n1", 1, vec![running.clone()], Vec::new());
    give(&mut work, "n1", 2, Vec::new(), vec![piece(&running.key, start_s + 600, 30)]);
    work.move_due(i64::MAX);
    drop(work);
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    work.wholes.look_for_nodes(now_ns() + 8 * DAY_NS).unwrap();
    let lost = only(&work);
    assert_eq!((lost.state, lost.end_ns), (State::Lost, Some((start_s + 629) * SECOND_NS)));
    assert_eq!(lost.totals.get(CPU), Some((start_s + 629 - START_S) * SECOND_NS));
    assert_eq!(lost.summaries.get(MEMORY_NEEDED).unwrap().mean, 1000.0);
}

#[test]
fn the_part_of_a_lost_node_counts_also_after_another_start() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1", "n2"]);
    let running = record("slurm", "77", START_S, State::Running, 0);
    give(&mut work, "n1", 1, vec![running.clone()], vec![piece(&running.key, START_S, 30)]);
    give(&mut work, "n2", 1, vec![running], Vec::new());
    work.move_due(i64::MAX);
    Log::open(state.path()).unwrap().expel(&TokenOwner::Node("n1".into())).unwrap();
    work.wholes.look_for_nodes(now_ns()).unwrap();
    drop(work);
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    give(&mut work, "n2", 2, vec![record("slurm", "77", START_S, State::Finished, 7)], Vec::new());
    assert_eq!(only(&work).totals.get(CPU), Some((29 + 7) * SECOND_NS));
}

#[test]
fn a_server_that_was_away_does_not_call_its_nodes_silent() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    give(&mut work, "n1", 1, vec![record(LOCAL, "1", START_S, State::Running, 0)], Vec::new());
    let much_later_ns = now_ns() + 30 * DAY_NS;
    work.wholes.presence.started_ns = much_later_ns;
    work.wholes.look_for_nodes(much_later_ns + 60 * SECOND_NS).unwrap();
    assert_eq!(only(&work).state, State::Running);
    work.wholes.look_for_nodes(much_later_ns + 3600 * SECOND_NS).unwrap();
    assert_eq!(only(&work).state, State::Lost);
}

#[test]
fn jobs_of_a_node_that_was_expelled_are_lost_at_once() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1", "n2"]);
    for node in ["n1", "n2"] {
        give(&mut work, node, 1, vec![record("slurm", "77", START_S, State::Running, 0)], Vec::new());
    }
    let mut log = Log::open(state.path()).unwrap();
    let gpus = met_core::node_health::NodeHealth { gpus: Some(4), ..Default::default() };
    ["n1", "n2"].iter().for_each(|node| work.wholes.latest.note_health(node, &gpus));
    log.expel(&TokenOwner::Node("n1".into())).unwrap();
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(only(&work).state, State::Running, "the other part runs on");
    let health = |node: &str| work.wholes.latest.health(node);
    assert!(health("n1").is_empty() && health("n2") == gpus, "so does what the other node says of itself");
    give(&mut work, "n2", 2, vec![record("slurm", "77", START_S, State::Finished, 7)], Vec::new());
    let ended = only(&work);
    assert_eq!((ended.state, ended.totals.figure(CPU).unwrap().kind), (State::Lost, QualityKind::LowerBound));
    // What its scheduler knows counts at once, and nothing changes it afterwards.
    let mut known = ended;
    (known.state, known.exit_code, known.end_ns) = (State::Failed, Some(3), Some((START_S + 70) * SECOND_NS));
    (known.scheduling.asked_ns, known.manager_state) = (Some(now_ns()), Some("FAILED".to_owned()));
    work.wholes.writer.put(&known).unwrap();
    log.enroll(&TokenOwner::Node("n1".into()), b"again", now_ns(), false).unwrap();
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!((only(&work).state, only(&work).exit_code), (State::Failed, Some(3)));
    give(&mut work, "n1", 2, vec![record("slurm", "77", START_S, State::Finished, 5)], Vec::new());
    let ended = only(&work);
    assert_eq!((ended.state, ended.totals.get(CPU)), (State::Failed, Some(12 * SECOND_NS)));
}

/// A batch of a node with this identity, in this boot.
fn give_from(work: &mut Work, (id, boot_id): (&str, &str), sequence: u64, records: Vec<Record>) {
    let (id, boot_id) = (id.to_owned(), boot_id.to_owned());
    let header = Header { spool: id.clone(), id, boot_id, ..header("n1", sequence) };
    take(work, now_ns(), batch(header, records, Vec::new()));
}

/// A job that runs in this boot.
fn running_in(boot_id: &str, id: &str) -> Record {
    let mut running = record(LOCAL, id, START_S, State::Running, 0);
    running.local = Some(
        serde_json::from_value(serde_json::json!({
            "boot_id": boot_id, "origin": "run", "supervisor": null, "main": null, "cgroup": {}, "cwd": "/",
        }))
        .unwrap(),
    );
    running
}

fn replace(state: &std::path::Path) {
    let mut log = Log::open(state).unwrap();
    log.enroll(&TokenOwner::Node("n1".to_owned()), b"again", now_ns(), true).unwrap();
}

fn states(work: &Work) -> Vec<(String, State)> {
    let jobs = work.wholes.writer.jobs(&Filter::default()).unwrap();
    let mut states: Vec<_> = jobs.into_iter().map(|job| (job.key.id, job.state)).collect();
    states.sort_by(|left, right| left.0.cmp(&right.0));
    states
}

#[test]
fn jobs_of_a_node_that_was_replaced_are_lost_when_the_new_one_reports() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    give_from(&mut work, ("old", "boot-1"), 1, vec![running_in("boot-1", "1")]);
    replace(state.path());
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(only(&work).state, State::Running, "no node reports yet");
    work.next_look = Instant::now() + Duration::from_secs(3600);
    give_from(&mut work, ("new", "boot-2"), 1, Vec::new());
    assert!(work.next_look <= Instant::now(), "looked for at once");
    let lost = [("1".to_owned(), State::Lost), ("2".to_owned(), State::Running)];
    work.wholes.look_for_nodes(now_ns()).unwrap();
    let job = only(&work);
    assert_eq!((job.state, job.end_ns.is_some()), (State::Lost, true));
    assert_eq!(job.scheduling.reason.as_deref(), Some("the node was replaced or rebooted"));
    // It stays so for every reader, beside jobs of the new node.
    give_from(&mut work, ("new", "boot-2"), 2, vec![running_in("boot-2", "2")]);
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(states(&work), lost);
    drop(work);
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    assert!(work.wholes.presence.gone.is_empty(), "the node itself is here");
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(states(&work), lost);
    // The first one was put back, with its processes.
    replace(state.path());
    give_from(&mut work, ("old", "boot-1"), 2, Vec::new());
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(states(&work), [("1".to_owned(), State::Running), ("2".to_owned(), State::Lost)]);
}

#[test]
fn jobs_of_a_replaced_node_that_were_not_closed_before_a_restart_are_closed_after_it() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    give_from(&mut work, ("old", "boot-1"), 1, vec![running_in("boot-1", "1")]);
    replace(state.path());
    give_from(&mut work, ("new", "boot-2"), 1, Vec::new());
    drop(work);
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(only(&work).state, State::Lost);
}

#[test]
fn jobs_stay_where_only_the_state_folder_of_their_node_was_lost() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    give_from(&mut work, ("old", "boot-1"), 1, vec![running_in("boot-1", "1"), running_in("unknown", "2")]);
    replace(state.path());
    give_from(&mut work, ("new", "boot-1"), 1, Vec::new());
    work.wholes.look_for_nodes(now_ns()).unwrap();
    let running = [("1".to_owned(), State::Running), ("2".to_owned(), State::Running)];
    assert_eq!(states(&work), running, "the boot that runs them goes on");
    replace(state.path());
    give_from(&mut work, ("newer", "unknown"), 1, Vec::new());
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(states(&work), running, "an unknown boot proves nothing");
}

#[test]
fn a_part_reported_late_revives_a_job_known_only_from_its_scheduler() {
    for asked_after_the_end in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let mut work = enrolled(state.path(), &["n1", "n2"]);
        let mut scheduled = record("slurm", "77", START_S, State::Running, 0);
        (scheduled.scheduling.asked_ns, scheduled.manager_state) =
            (Some(now_ns()), Some("RUNNING".to_owned()));
        work.wholes.writer.put(&scheduled).unwrap();
        give(&mut work, "n1", 1, vec![record("slurm", "77", START_S, State::Finished, 7)], Vec::new());
        if asked_after_the_end {
            // He still says that it runs, which does not undo an end.
            let mut again = only(&work);
            again.scheduling.asked_ns = Some(now_ns() + DAY_NS);
            work.wholes.writer.put(&again).unwrap();
        }
        let known = only(&work);
        assert_eq!((known.state, known.scheduling.asked_ns.is_some()), (State::Finished, true));
        give(&mut work, "n2", 1, vec![record("slurm", "77", START_S, State::Running, 0)], Vec::new());
        assert_eq!((only(&work).state, only(&work).end_ns), (State::Running, None));
    }
}

#[test]
fn what_colmet_said_of_a_job_never_wins_over_its_node_in_any_order() {
    let colmet = |state| {
        // It sees the first living task, so the start differs, and with it the key.
        let mut record =
            Record { unproven: true, user: None, uid: None, ..record("oar", "77", START_S - 9, state, 0) };
        record.totals.set(CPU, 5000 * SECOND_NS, QualityKind::LowerBound, "colmet");
        record
    };
    let said = [colmet(State::Running), colmet(State::Lost)];
    let known =
        [record("oar", "77", START_S, State::Running, 0), record("oar", "77", START_S, State::Finished, 7)];
    for start_s in [START_S - 9, START_S] {
        // Each way to mix two sequences of two.
        for order in (0_u32..16).filter(|order| order.count_ones() == 2) {
            let state = tempfile::tempdir().unwrap();
            let mut work = enrolled(state.path(), &["n1", "n2"]);
            let mut queues = [said.iter(), known.iter()];
            for at in 0..4_u64 {
                let mut next = queues[(order >> at & 1) as usize].next().unwrap().clone();
                if next.unproven {
                    next.key.incarnation = start_s;
                }
                give(&mut work, "n1", 1 + at, vec![next], Vec::new());
            }
            let job = only(&work);
            assert_eq!((job.state, job.user.as_deref()), (State::Finished, Some("ada")), "order {order:b}");
            assert_eq!((job.start_ns, job.end_ns), (known[1].start_ns, known[1].end_ns), "order {order:b}");
            assert_eq!(job.totals.get(CPU), Some(7 * SECOND_NS), "order {order:b}");
            // Another host that claims to have it neither revives it nor changes whose it is.
            give(&mut work, "n2", 1, vec![colmet(State::Running)], Vec::new());
            let job = only(&work);
            assert_eq!((job.state, job.user.as_deref()), (State::Finished, Some("ada")), "order {order:b}");
            assert_eq!(job.end_ns, known[1].end_ns, "order {order:b}");
        }
    }
}

/// An earlier version did not keep that Colmet proves nothing.
#[test]
fn a_job_of_colmet_that_runs_during_the_upgrade_ends() {
    let folder = tempfile::tempdir().unwrap();
    let said = |state, unproven| {
        let mut record = Record { unproven, user: None, uid: None, ..record("oar", "77", START_S, state, 0) };
        record.totals = Default::default();
        record.totals.set(CPU, 5 * SECOND_NS, QualityKind::LowerBound, "colmet");
        record
    };
    // A job that a daemon reported stays as it is.
    let mut other = record("oar", "78", START_S, State::Running, 0);
    other.totals.set(CPU, 5 * SECOND_NS, QualityKind::LowerBound, "colmet");
    for (node, record) in [("n1", said(State::Running, false)), ("n2", other)] {
        let whole = record.key.incarnation;
        let job = NodeJob { node: node.to_owned(), whole, record, received_ns: None, given_up: false };
        Log::open(folder.path()).unwrap().note(std::slice::from_ref(&job), 0).unwrap();
        Writer::open(folder.path()).unwrap().put(&job.record).unwrap();
    }
    let mut work = enrolled(folder.path(), &["n1", "n2"]);
    let of = |work: &Work, id: &str| work.wholes.writer.find(Some("oar"), id).unwrap().remove(0);
    assert_eq!((of(&work, "77").unproven, of(&work, "78").unproven), (true, false));
    assert_eq!(of(&work, "77").totals.get(CPU), Some(5 * SECOND_NS));
    give(&mut work, "n1", 2, vec![said(State::Lost, true)], Vec::new());
    assert_eq!((of(&work, "77").state, of(&work, "78").state), (State::Lost, State::Running));
    assert!(work.wholes.log.unmarked().unwrap().is_empty(), "once is enough");
}

#[test]
fn what_colmet_said_never_wins_over_a_scheduler_in_any_order() {
    for state in [State::Pending, State::Running, State::Suspended, State::Failed] {
        for is_first in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let mut work = enrolled(folder.path(), &["n1"]);
            let mut scheduled = record("oar", "77", START_S, state, 0);
            (scheduled.scheduling.asked_ns, scheduled.manager_state) =
                (Some(now_ns()), Some("word".to_owned()));
            scheduled.totals = Default::default();
            let colmet = |state| Record {
                unproven: true,
                user: None,
                uid: None,
                ..record("oar", "77", START_S, state, 0)
            };
            let claims = |work: &mut Work| {
                give(work, "n1", 1, vec![colmet(State::Running)], Vec::new());
                give(work, "n1", 2, vec![colmet(State::Lost)], Vec::new());
            };
            if !is_first {
                claims(&mut work);
            }
            work.wholes.writer.put(&scheduled).unwrap();
            if is_first {
                claims(&mut work);
            }
            let job = only(&work);
            assert_eq!((job.state, job.manager_state.as_deref()), (state, Some("word")), "first: {is_first}");
            assert_eq!(
                (job.user.as_deref(), job.end_ns),
                (Some("ada"), scheduled.end_ns),
                "first: {is_first}"
            );
        }
    }
}

/// Colmet sees a job that began long ago, by a task that began an hour later.
#[test]
fn a_job_that_colmet_and_a_scheduler_see_running_on_a_node_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut work = enrolled(folder.path(), &["n1", "n9"]);
    let mut scheduled = record("oar", "77", START_S, State::Running, 0);
    (scheduled.scheduling.asked_ns, scheduled.nodes) = (Some(now_ns()), vec!["n1".to_owned()]);
    work.wholes.writer.put(&scheduled).unwrap();
    let colmet = |node: &str, state| {
        let plain = record("oar", "77", START_S + 3600, state, 0);
        let mut record =
            Record { unproven: true, user: None, uid: None, nodes: vec![node.to_owned()], ..plain };
        record.totals = Default::default();
        record.totals.set(CPU, 5 * SECOND_NS, QualityKind::LowerBound, "colmet");
        record
    };
    give(&mut work, "n1", 1, vec![colmet("n1", State::Running)], Vec::new());
    let job = only(&work);
    assert_eq!((job.state, job.user.as_deref()), (State::Running, Some("ada")));
    assert_eq!((job.start_ns, job.totals.get(CPU)), (scheduled.start_ns, Some(5 * SECOND_NS)));
    give(&mut work, "n1", 2, vec![colmet("n1", State::Lost)], Vec::new());
    assert_eq!(only(&work).state, State::Running, "its scheduler says so");
    // What a host says that the job does not run on is not of this job.
    let other = Record { key: JobKey { id: "78".to_owned(), ..scheduled.key.clone() }, ..scheduled };
    work.wholes.writer.put(&other).unwrap();
    let mut elsewhere = colmet("n9", State::Running);
    elsewhere.key.id = "78".to_owned();
    give(&mut work, "n9", 1, vec![elsewhere], Vec::new());
    assert_eq!(work.wholes.writer.find(Some("oar"), "78").unwrap().len(), 2);
}

#[test]
fn the_records_of_a_job_are_removed_with_the_job_and_not_before() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1", "n2"]);
    // One part ended long ago, before the other was reported, and the job runs.
    give(&mut work, "n1", 1, vec![record("slurm", "77", START_S, State::Finished, 7)], Vec::new());
    assert_eq!(only(&work).state, State::Finished, "as far as is known");
    give(&mut work, "n2", 1, vec![record("slurm", "77", START_S, State::Running, 0)], Vec::new());
    assert_eq!((only(&work).state, only(&work).end_ns), (State::Running, None));
    give(&mut work, "n2", 2, vec![record(LOCAL, "1", START_S, State::Finished, 1)], Vec::new());
    work.plan.retention.max_age_ns = Some(DAY_NS);
    let later_ns = (START_S + 10 * 86_400) * SECOND_NS;
    retain(&mut work, later_ns).unwrap();
    assert_eq!(work.wholes.log.node_jobs("slurm", "77").unwrap().len(), 2);
    assert_eq!(work.wholes.log.node_jobs(LOCAL, "1").unwrap(), []);
    give(&mut work, "n2", 3, vec![record("slurm", "77", START_S, State::Finished, 5)], Vec::new());
    assert_eq!(only(&work).totals.get(CPU), Some(12 * SECOND_NS));
    retain(&mut work, later_ns).unwrap();
    assert_eq!(work.wholes.log.node_jobs("slurm", "77").unwrap(), []);
    // The same where the disk space runs short, and where the end was never reported.
    give(&mut work, "n1", 2, vec![record(LOCAL, "9", START_S, State::Running, 0)], Vec::new());
    Log::open(state.path()).unwrap().expel(&TokenOwner::Node("n1".into())).unwrap();
    work.wholes.look_for_nodes(now_ns()).unwrap();
    assert_eq!(only(&work).state, State::Lost);
    work.plan.retention = Retention { max_age_ns: None, max_bytes: Some(0) };
    retain(&mut work, now_ns()).unwrap();
    assert_eq!(work.wholes.log.node_jobs(LOCAL, "9").unwrap(), []);
}

#[test]
fn old_samples_of_nodes_are_thinned_between_two_batches() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    let day = std::time::Duration::from_secs(86_400);
    work.plan.thinning = vec![Thinning { after: day, step: std::time::Duration::from_secs(60) }];
    let key = series_key("n1", &record(LOCAL, "1", START_S, State::Finished, 1).key);
    let mut series = Series::new(&JOB);
    for second in 0..600 {
        let mut cells = vec![MISSING; JOB.columns.len()];
        // Uneven: what grows evenly is smaller than its sums.
        cells[CPU] = second * SECOND_NS - second * second * 7919 % 100_003;
        series.push((START_S + second) * 1000, &cells);
    }
    let last = series.columns[CPU].last().copied();
    work.wholes.writer.append_series(&key, &series).unwrap();
    let mut thin = |now_s: i64| {
        work.clearing.begin_thinning();
        let Work { clearing, wholes, plan, .. } = &mut work;
        clearing.thin(wholes, &plan.thinning, now_s * SECOND_NS).unwrap();
        wholes.writer.series(&key).unwrap()
    };
    assert_eq!(thin(START_S + 86_400).len(), 600, "the day is not old enough");
    let thinned = thin(START_S + 3 * 86_400);
    assert_eq!((thinned.len(), thinned.columns[CPU].last().copied()), (11, last));
}

#[test]
fn what_is_left_of_jobs_that_were_removed_goes_when_it_is_old() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1", "n2"]);
    let jobs = ["1", "2", "3"].map(|id| record(LOCAL, id, START_S, State::Finished, 1));
    give(&mut work, "n1", 1, jobs.to_vec(), Vec::new());
    give(&mut work, "n1", 2, vec![record(LOCAL, "4", START_S, State::Running, 0)], Vec::new());
    give(&mut work, "n2", 1, vec![record(LOCAL, "1", START_S, State::Finished, 1)], Vec::new());
    // As an earlier version left it: the job is gone, its records are not.
    for job in work.wholes.writer.jobs(&Filter::default()).unwrap().iter().filter(|job| job.key.id != "3") {
        work.wholes.writer.remove(&job.key).unwrap();
    }
    let left = |work: &Work| -> Vec<(String, String)> {
        let ids = ["1", "2", "3", "4"].into_iter();
        let jobs = ids.flat_map(|id| work.wholes.log.node_jobs(LOCAL, id).unwrap());
        jobs.map(|job| (job.record.key.id, job.node)).collect()
    };
    let all = [("1", "n1"), ("1", "n2"), ("2", "n1"), ("3", "n1"), ("4", "n1")];
    let named = |names: &[(&str, &str)]| -> Vec<(String, String)> {
        names.iter().map(|(id, node)| ((*id).to_owned(), (*node).to_owned())).collect()
    };
    work.clearing.forget_left_behind(&mut work.wholes, now_ns() - DAY_NS, 100).unwrap();
    assert_eq!(left(&work), named(&all), "it was reported lately");
    // Two at a time, and from the beginning when all were looked at.
    let later_ns = now_ns() + DAY_NS;
    work.clearing.forget_left_behind(&mut work.wholes, later_ns, 2).unwrap();
    assert_eq!(left(&work), named(&all[2..]));
    for _ in 0..3 {
        work.clearing.forget_left_behind(&mut work.wholes, later_ns, 2).unwrap();
    }
    assert_eq!(left(&work), named(&all[3..]), "what has its job, and what lives, stays");
    work.plan.retention.max_age_ns = Some(DAY_NS);
    retain(&mut work, now_ns() + 2 * DAY_NS).unwrap();
    assert_eq!(left(&work), named(&all[4..]));
}

#[test]
fn the_records_of_a_job_stay_where_only_the_catalogue_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let mut work = enrolled(state.path(), &["n1"]);
    give(&mut work, "n1", 1, vec![record(LOCAL, "1", START_S, State::Finished, 5)], Vec::new());
    drop(work);
    let lose_catalogue = || {
        for name in ["store.db", "store.db-wal", "store.db-shm"] {
            let _ = std::fs::remove_file(state.path().join(name));
        }
    };
    lose_catalogue();
    let mut work = Work::open(plan(state.path()), Latest::default()).unwrap();
    work.keep_house();
    retain(&mut work, now_ns()).unwrap();
    assert_eq!(work.wholes.log.node_jobs(LOCAL, "1").unwrap().len(), 1);
    // A server that was to make it again did not come to the end.
    work.wholes.log.set_rebuilding(true).unwrap();
    drop(work);
    lose_catalogue();
    let work = Work::open(plan(state.path()), Latest::default()).unwrap();
    assert_eq!(only(&work).totals.get(CPU), Some(5 * SECOND_NS));
    assert!(!work.wholes.log.is_rebuilding().unwrap());
}

#[test]
fn a_server_knows_how_jobs_stand_before_anybody_can_ask_it() {
    for moved in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let (cluster_writer, _) = start(state.path(), &["n1"]);
        let start_s = now_ns() / SECOND_NS - 60;
        let running = record(LOCAL, "1", start_s, State::Running, 0);
        send(&cluster_writer, "n1", 1, vec![running.clone()], vec![piece(&running.key, start_s, 10)])
            .unwrap();
        if moved {
            cluster_writer.move_all();
        }
        cluster_writer.stop();
        let (cluster_writer, view) = start(state.path(), &["n1"]);
        let cpu = (start_s + 9 - START_S) * SECOND_NS;
        assert_eq!(all(&view)[0].totals.get(CPU), Some(cpu), "moved: {moved}");
        // What was acknowledged is no news to it either.
        send(&cluster_writer, "n1", 1, vec![running.clone()], vec![piece(&running.key, start_s + 20, 10)])
            .unwrap();
        assert_eq!(view.series_of_job_after(&all(&view)[0].key, i64::MIN).unwrap().len(), 10);
        cluster_writer.stop();
    }
}

/// Samples of a meter of a node, one a second, each its own number.
fn power(part: &str, from_s: i64, samples: i64) -> Piece {
    let mut series = Series::new(&METER);
    (0..samples).for_each(|at| series.push((from_s + at) * 1000, &[at, MISSING]));
    Piece::of(Subject::Node(part.to_owned()), &series)
}

#[test]
fn the_parts_of_a_node_have_a_series_from_what_waits_and_what_was_moved() {
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1", "n2"]);
    send(&cluster_writer, "n1", 1, Vec::new(), vec![power("psu 1", START_S, 5), power("psu 2", START_S, 2)])
        .unwrap();
    send(&cluster_writer, "n2", 1, Vec::new(), vec![power("psu 1", START_S + 100, 5)]).unwrap();
    cluster_writer.move_all();
    send(&cluster_writer, "n1", 2, Vec::new(), vec![power("psu 1", START_S + 5, 5)]).unwrap();
    let times = |begin_s: i64, end_s: i64| -> Vec<(String, Vec<i64>)> {
        let page = node_page(&view, "n1", &[&METER], (begin_s * 1000, end_s * 1000), 1000).unwrap();
        assert_eq!(page.until_ms, None);
        let seconds = |series: Series| series.times_ms.iter().map(|ms| ms / 1000 - START_S).collect();
        page.all_series.into_iter().map(|(part, series)| (part.part, seconds(series))).collect()
    };
    let all = [("psu 1".to_owned(), (0..10).collect()), ("psu 2".to_owned(), vec![0, 1])];
    assert_eq!(times(START_S, START_S + 50), all);
    assert_eq!(times(START_S + 4, START_S + 6), [("psu 1".to_owned(), vec![4, 5, 6])]);
    cluster_writer.stop();
}

#[test]
fn ten_years_of_a_node_cost_as_many_pages_as_there_are_samples() {
    const YEAR_S: i64 = 365 * 86_400;
    let state = tempfile::tempdir().unwrap();
    let (cluster_writer, view) = start(state.path(), &["n1"]);
    let begin_s = START_S - 10 * YEAR_S;
    let places_s = [begin_s + YEAR_S, begin_s + 4 * YEAR_S, START_S - 30];
    for (sequence, &from_s) in (1..).zip(&places_s[..2]) {
        send(
            &cluster_writer,
            "n1",
            sequence,
            Vec::new(),
            vec![power("psu 1", from_s, 50), power("psu 2", from_s, 10)],
        )
        .unwrap();
    }
    cluster_writer.move_all();
    send(&cluster_writer, "n1", 3, Vec::new(), vec![power("psu 1", places_s[2], 20)]).unwrap();

    let pages = |samples_max: usize| {
        let mut pages = Vec::new();
        let (mut from_ms, end_ms) = (begin_s * 1000, START_S * 1000);
        loop {
            let page = node_page(&view, "n1", &[&METER], (from_ms, end_ms), samples_max).unwrap();
            let until_ms = page.until_ms;
            pages.push(page.all_series);
            let Some(until_ms) = until_ms else { return pages };
            assert!(until_ms >= from_ms, "{until_ms} is before {from_ms}");
            from_ms = until_ms + 1;
        }
    };
    let seconds = |part: &str, pages: &[Vec<(NodePart, Series)>]| -> Vec<i64> {
        let of_part = pages.iter().flatten().filter(|(of, _)| of.part == part);
        of_part.flat_map(|(_, series)| series.times_ms.iter().map(|ms| ms / 1000)).collect()
    };
    let first: Vec<i64> = [(places_s[0], 50), (places_s[1], 50), (places_s[2], 20)]
        .iter()
        .flat_map(|&(from_s, samples)| from_s..from_s + samples)
        .collect();
    let second: Vec<i64> = places_s[..2].iter().flat_map(|&from_s| from_s..from_s + 10).collect();
    // The last number is less than the samples of one moment.
    for (samples_max, pages_max) in [(1000, 1), (70, 3), (7, 30), (1, 125)] {
        let pages = pages(samples_max);
        assert_eq!((seconds("psu 1", &pages), seconds("psu 2", &pages)), (first.clone(), second.clone()));
        assert!(pages.len() <= pages_max, "{} pages of {samples_max}", pages.len());
        let largest = pages.iter().map(|page| page.iter().map(|(_, series)| series.len()).sum::<usize>());
        assert!(largest.max() <= Some(samples_max.max(2)), "of {samples_max}");
    }
    cluster_writer.stop();
}

/// A small file system of its own, gone with this.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(folder.path());
        let is_mounted = mount.output().is_ok_and(|done| done.status.success());
        is_mounted.then(|| SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_server_that_was_stopped_starts_and_lists_on_a_full_disk() {
    use std::io::Write;

    let Some(disk) = SmallDisk::mount() else {
        met_core::skipped::skipped("a small tmpfs cannot be mounted here");
        return;
    };
    let state = disk.0.path();
    let (cluster_writer, view) = start(state, &["n1"]);
    let running = record(LOCAL, "1", START_S, State::Running, 0);
    send(&cluster_writer, "n1", 1, vec![running.clone()], vec![]).unwrap();
    let ballast = state.join("ballast");
    let fill = || {
        let mut ballast = std::fs::File::options().create(true).append(true).open(&ballast).unwrap();
        while ballast.write_all(&[1; 4096]).is_ok() {}
    };
    let listed = |view: &ClusterView| view.page(&Filter::default()).unwrap().0.jobs.len();
    fill();
    assert_eq!(listed(&view), 1, "while it runs");
    std::fs::remove_file(&ballast).unwrap();
    view.lists.close_files();
    cluster_writer.stop();
    assert!(!state.join("store.db-shm").exists(), "a clean stop leaves no shared memory");
    fill();
    assert!(met_store::Reader::open_with(state, &Backends::default()).is_err(), "the disk is full");
    let cluster_writer = ClusterWriter::start(plan(state)).unwrap();
    assert_eq!((listed(&view), view.known_nodes().unwrap().len()), (1, 1));
    let mut log = Log::open_for_reading(state).unwrap();
    assert!(log.is_node("n1").unwrap());
    std::fs::remove_file(&ballast).unwrap();
    Log::open(state).unwrap().enroll(&TokenOwner::Node("n2".to_owned()), b"n2", 2, false).unwrap();
    log.refresh().unwrap();
    assert!(log.is_node("n2").unwrap(), "with space again what is new is seen");
    cluster_writer.stop();
}
