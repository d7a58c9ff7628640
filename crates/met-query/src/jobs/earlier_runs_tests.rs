use met_config::Place;
use met_core::job::State;
use met_host::Host;
use met_store::Writer;

use super::*;
use crate::jobs::files::FromFiles;

const SECOND_NS: i64 = 1_000_000_000;

/// Two users, two programs; some jobs begin at the same time, one has not begun.
fn job(id: u32) -> Record {
    let start_ns = Some(i64::from(id / 2) * SECOND_NS);
    let mut record = Record {
        state: State::Finished,
        user: Some(if id.is_multiple_of(3) { "ada" } else { "bob" }.to_owned()),
        start_ns,
        end_ns: start_ns,
        ..met_core::sample::bare(id, if id.is_multiple_of(5) { "train" } else { "test" })
    };
    if id == 7 {
        (record.state, record.start_ns, record.end_ns) = (State::Pending, None, None);
    }
    record
}

#[test]
fn runs_before_many_jobs_are_those_before_each() {
    let root = tempfile::tempdir().unwrap();
    let jobs: Vec<Record> = (1..=4 * LINEAGE_CANDIDATES as u32).map(job).collect();
    Writer::open(root.path()).unwrap().put_all(&jobs).unwrap();
    let place = Place { state: root.path().to_owned(), runtime: root.path().to_owned(), system: false };
    let files = FromFiles::of(Host::real().unwrap(), place).unwrap();
    let mut all = AllJobs::of(vec![Box::new(files)], Vec::new());
    let listed = all.jobs(&JobsFilter { is_brief: true, ..JobsFilter::default() }).unwrap();
    let by_time: Vec<&Record> = listed.iter().step_by(7).chain(&listed[listed.len() - 9..]).collect();
    let backwards: Vec<&Record> = by_time.iter().rev().copied().collect();
    let mut found = 0;
    for order in [by_time, backwards] {
        let mut shared = EarlierRuns::default();
        for record in order {
            let alone = all.earlier_runs(record).unwrap();
            let together: Vec<Record> = shared.of(&mut all, record).unwrap().into_iter().cloned().collect();
            assert_eq!(together, alone, "of job {}", record.key.id);
            found += alone.len();
        }
    }
    assert!(found > 1000, "{found} runs were compared");
}

#[test]
fn what_is_held_is_bounded() {
    let mut runs = EarlierRuns::default();
    let read = |count: usize| Read { until_ns: None, jobs: vec![job(1); count], is_all: true };
    for user in 0..100 {
        runs.hold((user.to_string(), "slurm".to_owned()), read(LINEAGE_CANDIDATES));
        assert!(runs.held() <= HELD_MAX && runs.read.contains_key(&(user.to_string(), "slurm".to_owned())));
    }
}
