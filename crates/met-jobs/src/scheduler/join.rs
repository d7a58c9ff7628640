//! Where what was measured and what was recorded meet in one record.
//!
//! A job's key has the start as the node saw it first, so the two have different starts; they are the same
//! run if the measured one began while the recorded one ran, give or take two minutes, and the nearest wins.
//! What the scheduler alone knows of is a record of its own: keyed by its start, and by its submission as
//! long as it waits.

use met_core::belief::{believe, is_measured};
use met_core::job::{JobKey, Record, Scheduling, State};

use super::Recorded;
use super::text::SECOND_NS;

/// Clocks differ, and managers note a start before the first process and an end after the last.
const SLACK_NS: i64 = 120 * SECOND_NS;

/// What is to be done with the store.
#[derive(Debug, Default, PartialEq)]
pub struct Joined {
    pub write: Vec<Record>,
    /// Records of jobs that waited and do no more, or that turned out to be measured.
    pub remove: Vec<JobKey>,
}

/// Joins all runs that a scheduler reported of one job with all records of it.
pub fn join(known: &[Record], runs: &[Recorded], asked_ns: i64) -> Joined {
    let known: Vec<&Record> = known.iter().filter(|record| is_same_job(record, runs)).collect();
    let pairs = pair(&known, runs);
    let records: Vec<Record> = (runs.iter().zip(&pairs))
        .map(|(run, paired)| match paired {
            Some(at) => merge(known[*at], run, asked_ns),
            None => record_of(run, asked_ns),
        })
        .collect();
    // A job that still waits is among the runs; one that was measured needs no second record.
    let is_ghost = |record: &Record| {
        !is_measured(record)
            && (record.state == State::Pending || runs.iter().any(|run| distance(record, run).is_some()))
            && !records.iter().any(|kept| kept.key == record.key)
    };
    let remove = known.iter().filter(|record| is_ghost(record)).map(|record| record.key.clone()).collect();
    let is_news = |record: &Record| {
        let before = known.iter().find(|before| before.key == record.key);
        before.is_none_or(|before| says_more(record, before))
    };
    // A live run that is no longer reported was restarted, and its end is unknown.
    let is_left = |record: &&&Record| {
        !is_measured(record)
            && record.state.is_live()
            && !is_ghost(record)
            && !records.iter().any(|kept| kept.key == record.key)
    };
    let left = known.iter().filter(is_left).map(|record| lost(record)).collect::<Vec<_>>();
    let news = records.iter().filter(|record| is_news(record)).cloned();
    Joined { write: news.chain(left).collect(), remove }
}

fn lost(record: &Record) -> Record {
    Record { state: State::Lost, ..record.clone() }
}

/// Jobs that were alive and that their scheduler knows no more. Those of this node end here.
pub fn forgotten(known: &[Record]) -> Vec<Record> {
    let live = known.iter().filter(|record| record.state.is_live() && !is_measured(record));
    live.map(lost).collect()
}

/// Joins a job that was just discovered on this node with earlier records of its scheduler.
pub fn adopt(measured: &Record, known: &[Record]) -> Joined {
    let scheduled = known.iter().filter(|record| {
        !is_measured(record)
            && (&record.key.manager, &record.key.id) == (&measured.key.manager, &measured.key.id)
            && may_own(measured, record.uid)
    });
    let near = |record: &&Record| match (record.start_ns, measured.start_ns?) {
        (Some(reported_ns), start_ns) => {
            let far_ns = reported_ns.saturating_sub(start_ns).saturating_abs();
            (far_ns <= SLACK_NS || both_run_on_a_node(measured, record)).then_some(far_ns)
        }
        (None, start_ns) => is_behind(record.state, &record.scheduling, start_ns).then_some(SLACK_NS),
    };
    let Some(record) = scheduled.filter(|record| near(record).is_some()).min_by_key(near) else {
        return Joined { write: vec![measured.clone()], remove: Vec::new() };
    };
    let whole = believe(&under(&measured.key, record.clone()), measured);
    Joined { write: vec![whole], remove: vec![record.key.clone()] }
}

/// Whether both say that the job runs now, on one node at least. Who saw it first through a sender without a proof, as Colmet
/// is, does not know when it began: its first task may be over, and the sender may have come later.
fn both_run_on_a_node(measured: &Record, reported: &Record) -> bool {
    let is_shared = |node: &String| reported.nodes.contains(node);
    measured.unproven
        && measured.state.is_live()
        && reported.state.is_live()
        && measured.nodes.iter().any(is_shared)
}

fn is_same_job(record: &Record, runs: &[Recorded]) -> bool {
    let same_cluster = |run: &Recorded| {
        run.cluster.is_none() || record.key.cluster.is_none() || run.cluster == record.key.cluster
    };
    runs.iter().any(|run| {
        record.key.manager == run.manager
            && has_id(record, run)
            && same_cluster(run)
            && may_own(record, run.uid)
    })
}

/// Whether a job can be this user's. A number may come from an environment, which says what its owner likes.
fn may_own(record: &Record, uid: Option<u32>) -> bool {
    // The first process that was seen of a job may have been its manager's own.
    let known = record.uid.filter(|&known| known != 0 || !is_measured(record));
    known.zip(uid).is_none_or(|(known, uid)| known == uid)
}

/// A node may know an element of an array by the array's id and its index, as LSF names its cgroups.
fn has_id(record: &Record, run: &Recorded) -> bool {
    let element = (record.scheduling.array_index, run.scheduling.array_index);
    record.key.id == run.id
        || Some(&record.key.id) == run.scheduling.array_id.as_ref()
            && element.0.is_some()
            && element.0 == element.1
            && record.local.is_some()
}

fn says_more(record: &Record, before: &Record) -> bool {
    let mut same_time = record.clone();
    same_time.scheduling.asked_ns = before.scheduling.asked_ns;
    same_time != *before
}

/// The record of each run, if there is one: the pairs that are nearest in time, measured ones first.
fn pair(known: &[&Record], runs: &[Recorded]) -> Vec<Option<usize>> {
    let mut candidates = Vec::new();
    for (run_at, run) in runs.iter().enumerate() {
        for (known_at, record) in known.iter().enumerate() {
            if let Some(far_ns) = distance(record, run) {
                candidates.push((!is_measured(record), far_ns, run_at, known_at));
            }
        }
    }
    candidates.sort_unstable();
    let mut pairs = vec![None; runs.len()];
    for (_, _, run_at, known_at) in candidates {
        if pairs[run_at].is_none() && !pairs.contains(&Some(known_at)) {
            pairs[run_at] = Some(known_at);
        }
    }
    pairs
}

/// How far apart the two began, if they can be the same run.
fn distance(record: &Record, run: &Recorded) -> Option<i64> {
    if !may_own(record, run.uid) {
        return None;
    }
    let submitted = (record.scheduling.submit_ns, run.scheduling.submit_ns);
    let was_reported = record.scheduling.asked_ns.is_some();
    match (record.start_ns, run.start_ns) {
        (Some(start_ns), Some(reported_ns)) => {
            // A restarted run was submitted again.
            if let (true, (Some(before), Some(now))) = (was_reported, submitted)
                && before != now
            {
                return None;
            }
            let latest_ns = run.end_ns.unwrap_or(i64::MAX).saturating_add(SLACK_NS);
            let fits = (reported_ns - SLACK_NS..=latest_ns).contains(&start_ns);
            let over = record.end_ns.is_some_and(|end_ns| end_ns < reported_ns - SLACK_NS);
            (fits && !over).then(|| (start_ns - reported_ns).abs())
        }
        // It is seen to run, and its scheduler's books are behind.
        (Some(start_ns), None) if is_measured(record) && record.state.is_live() => {
            is_behind(run.state, &run.scheduling, start_ns).then_some(0)
        }
        // It waits, as before, or was cancelled while it waited.
        (None, None) if !is_measured(record) => (submitted.0 == submitted.1).then_some(0),
        _ => None,
    }
}

/// Whether a pending job may be the one that started then: a restarted one is pending for its next run.
fn is_behind(state: State, scheduling: &Scheduling, start_ns: i64) -> bool {
    state == State::Pending
        && scheduling.restarts.unwrap_or(0) == 0
        && scheduling.submit_ns.is_some_and(|submit_ns| submit_ns <= start_ns.saturating_add(SLACK_NS))
}

/// A run that was not measured here.
fn record_of(run: &Recorded, asked_ns: i64) -> Record {
    let begin_ns = run.start_ns.or(run.scheduling.submit_ns).or(run.end_ns).unwrap_or(0);
    let key = JobKey {
        cluster: run.cluster.clone(),
        manager: run.manager.to_owned(),
        id: run.id.clone(),
        incarnation: begin_ns.div_euclid(SECOND_NS),
    };
    let mut scheduling = run.scheduling.clone();
    (scheduling.asked_ns, scheduling.waited) = (Some(asked_ns), run.state == State::Pending);
    Record {
        user: run.user.clone(),
        uid: run.uid,
        account: run.account.clone(),
        command: run.command.clone(),
        manager_state: run.manager_state.clone(),
        exit_code: run.exit_code,
        signal: run.signal,
        start_ns: run.start_ns,
        end_ns: run.end_ns,
        nodes: run.nodes.clone(),
        requested: run.requested.clone(),
        allocated: run.allocated.clone(),
        scheduling,
        parts: run.parts.clone(),
        ..Record::new(key, run.name.clone(), run.state)
    }
}

/// A known job with what its scheduler records of it now. A clock that was set back makes no answer older.
fn merge(known: &Record, run: &Recorded, asked_ns: i64) -> Record {
    let asked_ns = known.scheduling.asked_ns.map_or(asked_ns, |before_ns| before_ns.max(asked_ns));
    believe(known, &under(&known.key, record_of(run, asked_ns)))
}

/// The same record under another key. The cluster that only the scheduler knows stays.
fn under(key: &JobKey, mut record: Record) -> Record {
    let cluster = record.cluster().map(str::to_owned);
    record.scheduling.cluster = cluster.filter(|_| key.cluster.is_none());
    record.key = key.clone();
    record
}
