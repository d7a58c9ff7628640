//! Which of two statements about a job is believed.
//!
//! A job is described by its node, by its scheduler, by a sampler, and by a daemon or server that lost track
//! of it. Statements arrive in any order and more than once. [`believe`] is the only place that combines two records
//! of one job. For each group of fields it takes the statement of the speaker that knows best, and fills what that
//! one leaves open from the other:
//!
//! | group | fields | who wins |
//! | --- | --- | --- |
//! | state | state, word of the scheduler, exit code, signal, end | [`STATE`]; of two answers of a scheduler the later |
//! | description | name, account, nodes, requested, allocated, scheduling | the later answer of a scheduler, then the node |
//! | earlier requests | what an answer had before the next one changed it | [`requests`]: both |
//! | owner | user, command, paths, pids, memory of the node | who measured the job, then its scheduler |
//! | figures | totals, summaries, GPUs, events, emission | [`FIGURES`]; a scheduler has none |
//! | times | start, end | the scheduler; the node where both mean the same second |
//! | annotation | tags, note | the one that was written later |
//! | parts | steps and tasks | measured parts, with name, exit code and times of the scheduler |
//!
//! [`at_end`] decides between single figures of a job that has ended, [`live`] between those of one that runs, and
//! [`of_nodes`] which node speaks for the whole job.
//!
//! Where both speakers rank the same, the later statement wins: a speaker may correct itself.
//!
//! Below them all are senders who did not have to prove who they are ([`Record::unproven`]). They add figures, and a start and
//! the memory of the node where no other sender knows them, and win only over each other.

pub mod at_end;
mod figures;
pub mod live;
mod nodes;
mod parts;
pub mod requests;

use std::cmp::Ordering;

use crate::FastMap;
use crate::annotation::Annotation;
use crate::job::{EventCount, JobKey, Part, Record, Resources, State, Summaries, Totals, UncountedEvent};
use crate::job_table::{EMISSIONS, WALL};
use crate::provenance::Account;

pub use figures::{CHARGED, SAMPLED_PEAKS, fit_cpu_parts, fit_memory_peaks, set_gpu_totals};
pub use live::{First, Live, add_sample, overlay};
pub use nodes::of_nodes;

const SECOND_NS: i64 = 1_000_000_000;

/// Who says how a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// A scheduler: the job waits.
    Queue,
    /// A node: the job runs.
    Node,
    /// A scheduler: the job runs or is suspended.
    Scheduler,
    /// A reader of the counters of a running job.
    Sample,
    /// Anyone who lost track of it: `lost`.
    Guess,
    /// A supervisor or daemon that saw the end.
    NodeEnd,
    /// A scheduler: the job has ended.
    Accounting,
}

/// Who is believed on state, exit code and end, the least first.
pub const STATE: &[&[Speaker]] = &[
    // A scheduler may not know yet that the job runs.
    &[Speaker::Queue],
    &[Speaker::Node],
    // Only the scheduler knows that it suspended a job.
    &[Speaker::Scheduler],
    // A running job is reported again and again, so a report may be older than the loss.
    &[Speaker::Guess],
    &[Speaker::NodeEnd],
    // It knows why: a time limit, a cancellation, a node that failed.
    &[Speaker::Accounting],
];

/// Who is believed on figures, the least first.
pub const FIGURES: &[&[Speaker]] = &[
    &[Speaker::Queue, Speaker::Node, Speaker::Scheduler],
    &[Speaker::Sample],
    &[Speaker::Guess],
    // A scheduler measures nothing: the figures in its record are those of the node, here at the end.
    &[Speaker::NodeEnd, Speaker::Accounting],
];

impl Speaker {
    /// Whose word the state of a record is.
    pub fn of(record: &Record) -> Speaker {
        let by_scheduler = answered_ns(record).is_some();
        match record.state {
            State::Pending => Speaker::Queue,
            State::Lost => Speaker::Guess,
            state if state.is_live() && by_scheduler => Speaker::Scheduler,
            state if state.is_live() => Speaker::Node,
            _ if by_scheduler => Speaker::Accounting,
            _ => Speaker::NodeEnd,
        }
    }

    fn rank(self, order: &[&[Speaker]]) -> Option<usize> {
        order.iter().position(|class| class.contains(&self))
    }
}

/// Whether the end of the job was observed or recorded.
pub fn is_known_end(record: &Record) -> bool {
    matches!(Speaker::of(record), Speaker::NodeEnd | Speaker::Accounting)
}

/// Whether an end may be withdrawn by a node on which the job turns out to run: not if its scheduler recorded it.
pub fn may_live_again(record: &Record) -> bool {
    matches!(Speaker::of(record), Speaker::Guess | Speaker::NodeEnd)
}

/// Whether a node has seen the job: this one, or one of a server's, whose jobs have a part for each node.
pub fn is_measured(record: &Record) -> bool {
    let on_a_node = |part: &Part| part.step.is_empty();
    record.local.is_some() || record.totals.iter().next().is_some() || record.parts.iter().any(on_a_node)
}

/// Whether `said` ranks below what is known of the state.
pub fn is_outranked(said: &Record, known: &Record) -> bool {
    state_rank(said) < state_rank(known)
}

/// One record from two of the same job. Where both speakers rank the same, `said` wins.
pub fn believe(known: &Record, said: &Record) -> Record {
    let by = |order: Ordering| if order == Ordering::Greater { (known, said) } else { (said, known) };
    let asked = |record: &Record| (record.scheduling.asked_ns, !record.unproven);
    let measured = |record: &Record| (!record.unproven, is_measured_with_proof(record));
    let (state, _) = by(state_rank(known).cmp(&state_rank(said)));
    let (word, no_word) = by(asked(known).cmp(&asked(said)));
    let (owner, stranger) = by(measured(known).cmp(&measured(said)));
    let (figures, older) = by(figure_rank(known).cmp(&figure_rank(said)));
    // Once it is filled, its sender is unknown.
    let may_describe = !no_word.unproven || word.unproven;
    let mut record = Record {
        key: said.key.clone(),
        name: if word.name.is_empty() && may_describe { &no_word.name } else { &word.name }.clone(),
        user: owner.user.clone().or_else(|| stranger.user.clone()),
        uid: owner.uid.or(stranger.uid),
        account: word.account.clone().or_else(|| no_word.account.clone()),
        command: first(&owner.command, &stranger.command),
        state: state.state,
        manager_state: state.manager_state.clone(),
        exit_code: state.exit_code,
        signal: state.signal,
        start_ns: start_ns(word, no_word),
        end_ns: end_ns(state, if std::ptr::eq(state, said) { known } else { said }),
        nodes: first(&word.nodes, if may_describe { &no_word.nodes } else { &word.nodes }),
        node_memory_bytes: owner.node_memory_bytes.or(stranger.node_memory_bytes),
        totals: figures.totals.clone(),
        summaries: figures.summaries.clone(),
        gpus: first(&figures.gpus, &older.gpus),
        events: figures.events.clone(),
        uncounted_events: figures.uncounted_events.clone(),
        work: first(&figures.work, &older.work),
        processes: first(&figures.processes, &older.processes),
        requested: filled(&word.requested, &no_word.requested),
        allocated: filled(&word.allocated, &no_word.allocated),
        scheduling: word.scheduling.clone(),
        inside: owner.inside.clone().or_else(|| stranger.inside.clone()),
        parts: parts::believe(figures, older),
        // What emissions were computed with goes with the emissions.
        emission: match figures.totals.figure(EMISSIONS) {
            Some(_) => figures.emission.clone(),
            None => figures.emission.clone().or_else(|| older.emission.clone()),
        },
        as_of_ns: figures.as_of_ns,
        annotation: Annotation::later(&known.annotation, &said.annotation).clone(),
        unproven: known.unproven && said.unproven,
        local: owner.local.clone().or_else(|| stranger.local.clone()),
    };
    record.totals.fill_from(&older.totals);
    fill_summaries(&mut record.summaries, &older.summaries);
    fill_events(&mut record, &older.events, &older.uncounted_events);
    record.scheduling.fill_from(&no_word.scheduling);
    record.scheduling.earlier = requests::earlier(word, no_word);
    put_in_order(&mut record);
    record
}

/// Each job once, in any order, from what several sources know of it. Of two that rank the same, the one with more figures wins.
pub fn believe_all(mut records: Vec<Record>) -> Vec<Record> {
    // Records are large: to find that none comes twice moves none.
    let mut keys: FastMap<&JobKey, ()> = FastMap::default();
    keys.reserve(records.len());
    if records.iter().all(|record| keys.insert(&record.key, ()).is_none()) {
        return records;
    }
    drop(keys);
    let fullness =
        |record: &Record| (!record.summaries.is_empty(), record.totals.iter().count() + record.events.len());
    records
        .sort_by(|left, right| left.key.cmp(&right.key).then_with(|| fullness(left).cmp(&fullness(right))));
    records.dedup_by(|said, known| {
        let is_same = said.key == known.key;
        if is_same && said != known {
            *known = believe(known, said);
        }
        is_same
    });
    records
}

/// When a scheduler gave its word for the state, if the state is its word. A node's end drops a word from before it.
fn answered_ns(record: &Record) -> Option<i64> {
    record.scheduling.asked_ns.filter(|_| record.manager_state.is_some())
}

fn state_rank(record: &Record) -> (bool, Option<usize>, Option<i64>) {
    (!record.unproven, Speaker::of(record).rank(STATE), answered_ns(record))
}

/// Whether figures are of one who proved who he is. A record of such a one may have none of its own.
fn are_figures_proven(record: &Record) -> bool {
    !record.unproven && (record.totals.is_empty() || has_proven(&record.totals))
}

fn has_proven(totals: &Totals) -> bool {
    totals.iter().any(|(_, figure)| figure.source.account != Account::Colmet)
}

/// Whether a node that proved who it is has seen the job.
fn is_measured_with_proof(record: &Record) -> bool {
    let is_proven =
        |part: &Part| part.step.is_empty() && (part.totals.is_empty() || has_proven(&part.totals));
    let has_figures = || has_proven(&record.totals) || record.parts.iter().any(is_proven);
    !record.unproven && (record.local.is_some() || has_figures())
}

fn figure_rank(record: &Record) -> (bool, Option<usize>) {
    // A node sets the wall time at the end: without it the figures in a scheduler's record are from before the end.
    let is_before_end = answered_ns(record).is_some() && record.totals.get(WALL).is_none();
    let speaker = if is_before_end { Speaker::Scheduler } else { Speaker::of(record) };
    (are_figures_proven(record), speaker.rank(FIGURES))
}

/// The time that was measured, if it is the one that a scheduler recorded: schedulers record whole seconds, and a short
/// job is all between two of them.
fn finer(measured_ns: Option<i64>, recorded_ns: Option<i64>) -> Option<i64> {
    match (measured_ns, recorded_ns) {
        (Some(measured_ns), Some(recorded_ns)) if is_same_second(measured_ns, recorded_ns) => {
            Some(measured_ns)
        }
        (measured_ns, recorded_ns) => recorded_ns.or(measured_ns),
    }
}

fn is_same_second(one_ns: i64, other_ns: i64) -> bool {
    one_ns.abs_diff(other_ns) <= SECOND_NS as u64
}

/// The start by a scheduler's later answer, unless the other record measured the same second.
fn start_ns(word: &Record, other: &Record) -> Option<i64> {
    // A scheduler records no start of a job that waits; one that is there is a guess.
    if word.state == State::Pending && !other.unproven {
        return other.start_ns.or(word.start_ns);
    }
    match is_measured_with_proof(other) && is_answer_to(word, other) {
        true => finer(other.start_ns, word.start_ns),
        false => word.start_ns.or(other.start_ns),
    }
}

/// Whether the first record has an answer of the scheduler that the second lacks, or the same one by itself.
fn is_answer_to(answer: &Record, other: &Record) -> bool {
    let asked_ns = (answer.scheduling.asked_ns, other.scheduling.asked_ns);
    let is_by_itself = !is_measured(answer) && is_measured(other);
    asked_ns.0 > asked_ns.1 || asked_ns.0.is_some() && asked_ns.0 == asked_ns.1 && is_by_itself
}

fn end_ns(state: &Record, other: &Record) -> Option<i64> {
    if Speaker::of(state) != Speaker::Accounting {
        return state.end_ns;
    }
    // Neither an end that was guessed nor one that was recorded before is finer.
    match is_measured(other) && is_known_end(other) && is_answer_to(state, other) {
        true => finer(other.end_ns, recorded_end_ns(state)),
        false => state.end_ns.or(other.end_ns),
    }
}

/// As the scheduler recorded it, before it was put in order.
fn recorded_end_ns(record: &Record) -> Option<i64> {
    let is_put_in_order = record.end_ns == record.start_ns;
    record.end_ns.map(|end_ns| if is_put_in_order { end_ns - end_ns.rem_euclid(SECOND_NS) } else { end_ns })
}

/// A short job is all between two whole seconds: its recorded end may lie before its measured start.
fn put_in_order(record: &mut Record) {
    if let (Some(start_ns), Some(end_ns)) = (record.start_ns, record.end_ns)
        && end_ns < start_ns
        && is_same_second(start_ns, end_ns)
    {
        record.end_ns = Some(start_ns);
    }
}

fn first<T: Clone>(one: &[T], other: &[T]) -> Vec<T> {
    if one.is_empty() { other } else { one }.to_vec()
}

fn filled(one: &Resources, other: &Resources) -> Resources {
    let mut resources = one.clone();
    resources.fill_from(other);
    resources
}

fn fill_summaries(summaries: &mut Summaries, other: &Summaries) {
    for (column, summary) in other.iter() {
        if summaries.get(column).is_none() {
            summaries.set(column, *summary);
        }
    }
}

/// Adds events that are not counted in `record`, and those that could not be counted there either. A count wins over a
/// reason why there is none.
pub fn fill_events(record: &mut Record, counted: &[EventCount], uncounted: &[UncountedEvent]) {
    let Record { events, uncounted_events, .. } = record;
    for event in counted {
        if !events.iter().any(|known| known.name == event.name) {
            events.push(event.clone());
        }
    }
    for event in uncounted {
        if !uncounted_events.iter().any(|known| known.name == event.name) {
            uncounted_events.push(event.clone());
        }
    }
    uncounted_events.retain(|uncounted| !events.iter().any(|event| event.name == uncounted.name));
}

#[cfg(test)]
#[path = "belief_tests.rs"]
mod tests;
