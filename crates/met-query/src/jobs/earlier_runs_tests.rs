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

/// All jobs of a folder that holds these.
fn stored(root: &std::path::Path, jobs: &[Record]) -> AllJobs {
    Writer::open(root).unwrap().put_all(jobs).unwrap();
    let place = Place { state: root.to_owned(), runtime: root.to_owned(), system: false };
    let files = FromFiles::of(Host::real().unwrap(), place).unwrap();
    AllJobs::of(vec![Box::new(files)], Vec::new())
}

#[test]
fn runs_before_many_jobs_are_those_before_each() {
    let root = tempfile::tempdir().unwrap();
    let jobs: Vec<Record> = (1..=4 * LINEAGE_CANDIDATES as u32).map(job).collect();
    let mut all = stored(root.path(), &jobs);
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
fn runs_of_a_named_lineage_are_found_behind_any_number_of_other_jobs() {
    let root = tempfile::tempdir().unwrap();
    let mut jobs: Vec<Record> = (1..=2 * LINEAGE_CANDIDATES as u32).map(|id| job(6 * id)).collect();
    let last = jobs.len() - 1;
    for at in [0, 1, last] {
        jobs[at].annotation.tags.insert("lineage.night".to_owned());
    }
    let mut all = stored(root.path(), &jobs);
    let alone = all.earlier_runs(&jobs[last]).unwrap();
    assert_eq!(alone.iter().map(|run| &run.key).collect::<Vec<_>>(), [&jobs[1].key, &jobs[0].key]);
    let mut shared = EarlierRuns::default();
    shared.of(&mut all, &jobs[last - 1]).unwrap();
    let together: Vec<Record> = shared.of(&mut all, &jobs[last]).unwrap().into_iter().cloned().collect();
    assert_eq!(together, alone);
}

/// How many jobs each list was asked for, with the jobs of so many users in this order.
fn lists(count: u32, users: u32, is_rising: bool) -> Vec<usize> {
    let root = tempfile::tempdir().unwrap();
    let of_users = |id: u32| Record { user: Some(format!("u{}", id % users)), ..job(2 * id + 1) };
    let mut jobs: Vec<Record> = (10..10 + count).map(of_users).collect();
    let mut all = stored(root.path(), &jobs);
    if !is_rising {
        jobs.reverse();
    }
    let mut runs = EarlierRuns::default();
    for record in &jobs {
        runs.of(&mut all, record).unwrap();
    }
    runs.lists
}

#[test]
fn few_lists_serve_many_jobs_in_either_order() {
    assert_eq!(lists(400, 1, false).len(), 2);
    assert_eq!(lists(400, 1, true).len(), 2);
    assert_eq!(lists(400, 20, false).len(), 20);
}

#[test]
fn no_job_costs_more_than_alone_but_for_one_list_of_its_user() {
    let count = 2 * (LINEAGE_CANDIDATES + AHEAD) as u32;
    let rising = lists(count, 1, true);
    assert_eq!(rising.iter().filter(|&&asked| asked > LINEAGE_CANDIDATES).count(), 1);
    // More users than can be held with what is read ahead.
    let users = lists(4 * LINEAGE_CANDIDATES as u32, 40, false);
    assert!(users.iter().all(|&asked| asked <= LINEAGE_CANDIDATES), "{users:?}");
}

#[test]
fn what_is_held_is_bounded() {
    let mut runs = EarlierRuns::default();
    let read = |count: usize| Read { until_ns: None, jobs: vec![job(1); count], is_all: true, turn: 0 };
    for user in 0..100 {
        let owner = (user.to_string(), "slurm".to_owned(), None);
        runs.hold(owner.clone(), read(LINEAGE_CANDIDATES));
        assert!(runs.held() <= HELD_MAX && runs.read.contains_key(&owner));
    }
}
