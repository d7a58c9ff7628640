//! What only several processes can show: killed writers, and ids asked for at once.
//!
//! The other process is this program again, running the test `child` with its work in the environment.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use met_core::job::{JobKey, LOCAL, QualityKind, Record, State};
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::series::Series;
use met_core::{JOB, MISSING};
use met_store::inbox::JobDir;
use met_store::{Filter, Reader, Writer};

const WORK: &str = "MET_STORE_TEST_WORK";
const STATE: &str = "MET_STORE_TEST_STATE";
const START_S: i64 = 1_794_700_800;

fn record(id: u64) -> Record {
    let mut record = Record {
        exit_code: Some(0),
        start_ns: Some(START_S * 1_000_000_000),
        end_ns: Some((START_S + 1) * 1_000_000_000),
        ..Record::new(
            JobKey { cluster: None, manager: LOCAL.into(), id: id.to_string(), incarnation: START_S },
            "killed",
            State::Finished,
        )
    };
    record.totals.set(CPU, id as i64, QualityKind::Measured, "test");
    record
}

fn series() -> Series {
    let mut series = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    for index in 0..50 {
        (cells[CPU], cells[MEMORY_NEEDED]) = (index, index * index);
        series.push(START_S * 1000 + index * 1000, &cells);
    }
    series
}

fn spawn(work: &str, state: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(WORK, work)
        .env(STATE, state)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The ids a child has acknowledged, until its output ends.
fn acknowledged(child: &mut Child) -> impl Iterator<Item = u64> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // A line cut short by the kill has no mark at its end.
    lines.filter_map(|line| line.strip_prefix("ack ")?.strip_suffix('.')?.parse().ok())
}

fn acknowledge(id: u64) {
    let mut out = std::io::stdout();
    // In one write: the test looks at whole lines only.
    out.write_all(format!("\nack {id}.\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Not a test of its own: the other process of the tests below.
#[test]
fn child() {
    let Some(work) = std::env::var_os(WORK) else { return };
    let state = std::path::PathBuf::from(std::env::var_os(STATE).unwrap());
    if work == "reserve" {
        acknowledge(JobDir::reserve(&state, 1).unwrap().0);
        return;
    }
    if work == "umask" {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
        let mut writer = Writer::open(&state).unwrap();
        let (id, dir) = JobDir::reserve(&state, 1).unwrap();
        dir.write_start(&record(id)).unwrap();
        dir.write_series(&series()).unwrap();
        dir.write_end(&record(id)).unwrap();
        assert_eq!(writer.import().unwrap().ended.len(), 1);
        assert_eq!(Reader::open(&state).unwrap().series(&record(id).key).unwrap().len(), 50);
        acknowledge(id);
        return;
    }
    let mut writer = Writer::open(&state).unwrap();
    assert_eq!(writer.moved_aside, None);
    loop {
        let (id, dir) = JobDir::reserve(&state, writer.next_local_id().unwrap()).unwrap();
        if id % 2 == 0 {
            dir.write_series(&series()).unwrap();
            dir.write_end(&record(id)).unwrap();
            writer.import().unwrap();
        } else {
            writer.append_series(&record(id).key, &series()).unwrap();
            writer.put(&record(id)).unwrap();
        }
        acknowledge(id);
    }
}

#[test]
fn no_acknowledged_job_is_lost_when_the_writer_is_killed() {
    let state = tempfile::tempdir().unwrap();
    let mut expected = HashSet::new();
    for round in 0..50_u64 {
        let mut child = spawn("write", state.path());
        let mut acks = acknowledged(&mut child);
        expected.insert(acks.next().unwrap());
        // Different moments of the work: before, in and after a commit.
        std::thread::sleep(Duration::from_micros(round * 397 % 9000));
        child.kill().unwrap();
        expected.extend(acks);
        child.wait().unwrap();
        let reader = Reader::open(state.path()).unwrap();
        let found = reader.jobs(&Filter::default()).unwrap();
        let found: HashSet<u64> = found.iter().map(|record| record.key.id.parse().unwrap()).collect();
        let missing: Vec<_> = expected.difference(&found).collect();
        assert!(missing.is_empty(), "lost after round {round}: {missing:?}");
    }
    let mut writer = Writer::open(state.path()).unwrap();
    assert_eq!(writer.moved_aside, None, "a kill is not damage");
    writer.import().unwrap();
    for &id in &expected {
        assert_eq!(writer.get(&record(id).key).unwrap(), Some(record(id)));
        assert_eq!(writer.series(&record(id).key).unwrap().len(), 50);
    }
}

#[test]
fn twenty_processes_get_twenty_ids() {
    let state = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = (0..20).map(|_| spawn("reserve", state.path())).collect();
    let mut ids: Vec<u64> = children.iter_mut().flat_map(acknowledged).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_umask_that_forbids_everything_does_not_shut_the_owner_out() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = spawn("umask", &parent.path().join("met"));
    assert_eq!(acknowledged(&mut child).collect::<Vec<_>>(), [1]);
    assert!(child.wait().unwrap().success());
}
