use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::job::GpuUse;
use crate::job::{JobKey, QualityKind, Scheduling, Summary};
use crate::job_table::{CPU, ENERGY, MEMORY_NEEDED_PEAK, READ, WALL};
use crate::sample::{START_NS, bare};

/// What each speaker says of one job, in the order in which it says it.
#[derive(Clone, Debug)]
struct Said {
    /// The node, and a server that loses track of it.
    node: Vec<Record>,
    scheduler: Vec<Record>,
}

impl Said {
    fn all(&self) -> Vec<Record> {
        [&self.node[..], &self.scheduler[..]].concat()
    }
}

fn fold<'a>(said: impl IntoIterator<Item = &'a Record>) -> Option<Record> {
    said.into_iter().fold(None, |known: Option<Record>, said| match known {
        Some(known) => Some(believe(&known, said)),
        None => Some(said.clone()),
    })
}

fn key() -> JobKey {
    JobKey { cluster: None, manager: "slurm".into(), id: "7".into(), incarnation: START_NS / SECOND_NS }
}

/// How the two clocks and the two accounts of a job differ.
#[derive(Clone, Debug)]
struct Story {
    start_ns: i64,
    ran_ns: i64,
    /// By how much the recorded times are off, in seconds.
    off_s: (i64, i64),
    /// Which columns each statement of the node has.
    columns: Vec<BTreeMap<usize, (i64, usize)>>,
    ends: bool,
    steps: usize,
    /// States of the scheduler's answers, and which of them say more than the state.
    answers: Vec<(usize, bool)>,
    guesses: bool,
}

fn stories() -> impl Strategy<Value = Story> {
    let columns = prop::collection::vec(
        prop::collection::btree_map(0_usize..4, (1_i64..1000, 0_usize..QualityKind::ALL.len()), 0..4),
        1..4,
    );
    let off = || prop_oneof![Just(0_i64), Just(-40_i64), Just(40_i64)];
    let times = (0_i64..SECOND_NS, 0..200 * SECOND_NS, (off(), off()));
    let answers = prop::collection::vec((0_usize..9, any::<bool>()), 0..4);
    (times, columns, any::<bool>(), 0_usize..4, answers, any::<bool>()).prop_map(
        |((fraction_ns, ran_ns, off_s), columns, ends, steps, mut answers, guesses)| {
            // A scheduler that withdraws an end means another run.
            answers.sort_by_key(|(state, _)| state_rank(&Record::new(key(), "", State::ALL[*state])).1);
            let start_ns = START_NS + fraction_ns;
            Story { start_ns, ran_ns, off_s, columns, ends, steps, answers, guesses }
        },
    )
}

fn part(node: &str, step: usize, task: Option<&str>) -> Part {
    Part { node: node.into(), step: step.to_string(), task: task.map(str::to_owned), ..Part::default() }
}

impl Story {
    fn statements(&self) -> Said {
        let mut node: Vec<Record> = (0..self.columns.len()).map(|at| self.by_node(at)).collect();
        if self.guesses {
            let guess = Record {
                state: State::Lost,
                end_ns: Some(self.start_ns + self.ran_ns / 2),
                ..self.by_node(0)
            };
            node.insert(node.len() - usize::from(self.ends), guess);
        }
        Said { node, scheduler: (0..self.answers.len()).map(|at| self.by_scheduler(at)).collect() }
    }

    fn by_node(&self, at: usize) -> Record {
        let mut record = Record { key: key(), start_ns: Some(self.start_ns), ..bare(7, "step") };
        for (&column, &(value, kind)) in &self.columns[at] {
            let column = [CPU, MEMORY_NEEDED_PEAK, READ, ENERGY][column];
            record.totals.set(column, value, QualityKind::ALL[kind], "cgroup");
            let mean = value as f64;
            record.summaries.set(column, Summary { mean, min: 0.0, max: mean, p50: None, p95: None });
            record.events.push(EventCount {
                name: format!("event {column}"),
                count: value,
                counted: 1.0,
                kind: QualityKind::ALL[kind],
                source: "cgroup".into(),
            });
        }
        let uncounted =
            |column: usize| UncountedEvent { name: format!("event {column}"), reason: "not allowed".into() };
        fill_events(&mut record, &[], &(0..at).map(uncounted).collect::<Vec<_>>());
        record.gpus = vec![GpuUse { uuid: format!("GPU-{at}"), ..GpuUse::default() }];
        for step in 0..self.steps.min(at + 1) {
            record.parts.push(part("n1", step, None));
            record.parts.push(part("n1", step, Some("0")));
            for part in record.parts.iter_mut().rev().take(2) {
                part.start_ns = Some(self.start_ns);
                part.totals.set(CPU, at as i64, QualityKind::Sampled, "cgroup");
            }
        }
        if self.ends && at + 1 == self.columns.len() {
            (record.state, record.exit_code) = (State::Finished, Some(0));
            record.end_ns = Some(self.start_ns + self.ran_ns);
            record.totals.set(WALL, self.ran_ns, QualityKind::Measured, "clock");
        }
        record
    }

    /// Whole seconds, and one start and one end in all answers: another start is another run.
    fn by_scheduler(&self, at: usize) -> Record {
        // An answer is complete: a later one does not say less.
        let (number, says_more) = (self.answers[at].0, self.answers[..=at].iter().any(|answer| answer.1));
        let state = State::ALL[number];
        let second = |time_ns: i64| time_ns.div_euclid(SECOND_NS) * SECOND_NS;
        let start_ns = second(self.start_ns) + self.off_s.0 * SECOND_NS;
        let end_ns = (second(self.start_ns + self.ran_ns) + self.off_s.1 * SECOND_NS).max(start_ns);
        let mut record = Record::new(key(), if says_more { "train" } else { "" }, state);
        record.manager_state = Some(format!("{} {at}", state.name().to_uppercase()));
        record.start_ns = (state != State::Pending).then_some(start_ns);
        record.end_ns = is_known_end(&record).then_some(end_ns);
        record.exit_code = (state == State::Failed).then_some(at as i32);
        let waited = state == State::Pending;
        record.scheduling = Scheduling { asked_ns: Some(100 + at as i64), waited, ..Scheduling::default() };
        if says_more {
            (record.user, record.uid) = (Some("ada".into()), Some(7));
            record.account = Some(format!("account {at}"));
            record.nodes = vec!["n1".into(), "n2".into()];
            record.requested.cpus = Some(at as i64);
            record.scheduling.reason = Some(format!("reason {at}"));
        }
        for step in 0..self.steps {
            let mut part = part(if step % 2 == 0 { "n[1-2]" } else { "n1" }, step, None);
            (part.name, part.start_ns) = (Some(format!("step {step}")), Some(start_ns));
            part.exit_code = is_known_end(&record).then_some(0);
            record.parts.push(part);
        }
        record
    }
}

/// What a node of Colmet says of the same job: figures, and that it runs or was lost. It knows neither owner nor end.
fn unproven(columns: &[BTreeMap<usize, (i64, usize)>], start_ns: i64, is_lost: bool) -> Vec<Record> {
    let statement = |at: usize| {
        let state = if is_lost && at + 1 == columns.len() { State::Lost } else { State::Running };
        let mut record = Record::new(key(), "7", state);
        (record.unproven, record.nodes, record.node_memory_bytes) = (true, vec!["n9".into()], Some(5));
        (record.start_ns, record.end_ns) =
            (Some(start_ns), (!state.is_live()).then_some(start_ns + SECOND_NS));
        for (&column, &(value, _)) in &columns[at] {
            let column = [CPU, MEMORY_NEEDED_PEAK, READ, ENERGY][column];
            record.totals.set(column, 7000 + value, QualityKind::LowerBound, "colmet");
            record.events.push(EventCount {
                name: format!("event {column}"),
                count: 7000 + value,
                counted: 1.0,
                kind: QualityKind::LowerBound,
                source: "colmet".into(),
            });
        }
        record
    };
    (0..columns.len()).map(statement).collect()
}

/// That nothing of what is known without unproven statements is otherwise with them.
fn check_unmoved(without: &Record, with: &Record) -> Result<(), TestCaseError> {
    let alone = |record: &Record| Record {
        totals: Totals::default(),
        summaries: Summaries::default(),
        events: Vec::new(),
        uncounted_events: Vec::new(),
        // What all others leave open is filled.
        start_ns: without.start_ns.and(record.start_ns),
        node_memory_bytes: without.node_memory_bytes.and(record.node_memory_bytes),
        ..record.clone()
    };
    prop_assert_eq!(alone(without), alone(with));
    for (column, figure) in without.totals.iter() {
        prop_assert_eq!(Some(figure), with.totals.figure(column));
    }
    for (column, summary) in without.summaries.iter() {
        prop_assert_eq!(Some(summary), with.summaries.get(column));
    }
    for event in &without.events {
        prop_assert!(with.events.contains(event), "{:?} is not {:?}", with.events, event);
    }
    Ok(())
}

/// An order in which the statements arrive: each speaker's own in the order in which it made them.
fn interleaved(said: &Said, picks: &[usize]) -> Vec<Record> {
    in_order([&said.node[..], &said.scheduler[..]], picks)
}

fn in_order<const SPEAKERS: usize>(mut queues: [&[Record]; SPEAKERS], picks: &[usize]) -> Vec<Record> {
    let mut order = Vec::new();
    for &pick in picks.iter().cycle() {
        if queues.iter().all(|queue| queue.is_empty()) {
            break;
        }
        let from = (0..queues.len()).map(|more| (pick + more) % queues.len());
        let from = from.clone().find(|&at| !queues[at].is_empty()).unwrap();
        order.push(queues[from][0].clone());
        queues[from] = &queues[from][1..];
    }
    order
}

proptest! {
    #[test]
    fn the_order_of_two_statements_does_not_matter(story in stories()) {
        let said = story.statements();
        for node in &said.node {
            for scheduler in &said.scheduler {
                prop_assert_eq!(believe(node, scheduler), believe(scheduler, node));
            }
        }
    }

    #[test]
    fn the_same_statement_twice_changes_nothing(story in stories()) {
        let said = story.statements();
        for record in said.all() {
            prop_assert_eq!(&believe(&record, &record), &record);
        }
        for one in &said.node {
            for other in &said.scheduler {
                let both = believe(one, other);
                prop_assert_eq!(&believe(&both, other), &both);
                prop_assert_eq!(&believe(&both, one), &both);
            }
        }
    }

    #[test]
    fn of_three_statements_any_two_may_meet_first(story in stories()) {
        let said = story.statements();
        let (mut threes, queues) = (Vec::new(), [&said.node, &said.scheduler]);
        for (two, one) in [(queues[0], queues[1]), (queues[1], queues[0])] {
            for pair in two.windows(2) {
                for single in one.iter() {
                    threes.push([&pair[0], &pair[1], single]);
                    threes.push([&pair[0], single, &pair[1]]);
                    threes.push([single, &pair[0], &pair[1]]);
                }
            }
        }
        for [one, two, three] in threes {
            let left = believe(&believe(one, two), three);
            prop_assert_eq!(left, believe(one, &believe(two, three)));
        }
    }

    #[test]
    fn statements_of_several_speakers_may_arrive_in_any_order(
        story in stories(), one in prop::collection::vec(0_usize..2, 1..12),
        other in prop::collection::vec(0_usize..2, 1..12),
    ) {
        let said = story.statements();
        prop_assert_eq!(fold(&interleaved(&said, &one)), fold(&interleaved(&said, &other)));
    }

    #[test]
    fn a_restart_that_repeats_everything_changes_nothing(
        story in stories(), one in prop::collection::vec(0_usize..2, 1..12),
        other in prop::collection::vec(0_usize..2, 1..12), kept in subsequence(vec![0, 1], 1..=2),
    ) {
        let mut said = story.statements();
        let once = fold(&interleaved(&said, &one)).unwrap();
        // Each repeated source repeats all its statements, in their order.
        for (at, queue) in [&mut said.node, &mut said.scheduler].into_iter().enumerate() {
            if !kept.contains(&at) {
                queue.clear();
            }
        }
        let again = interleaved(&said, &other);
        prop_assert_eq!(&fold(std::iter::once(&once).chain(&again)).unwrap(), &once);
    }

    #[test]
    fn unproven_statements_never_win_in_any_order_of_arrival(
        story in stories(), other in stories(), picks in prop::collection::vec(0_usize..3, 1..16),
    ) {
        let (said, colmet) = (story.statements(), unproven(&other.columns, other.start_ns - SECOND_NS, other.guesses));
        for queues in [[&said.node[..], &said.scheduler[..]], [&said.node[..], &[]], [&[], &said.scheduler[..]]] {
            let arrived = in_order([queues[0], queues[1], &colmet[..]], &picks);
            let proven = arrived.iter().filter(|record| !record.unproven);
            let with = fold(&arrived).unwrap();
            let Some(without) = fold(proven) else {
                prop_assert!(with.unproven);
                continue;
            };
            prop_assert!(!with.unproven);
            check_unmoved(&without, &with)?;
        }
    }

    #[test]
    fn an_end_that_is_known_is_never_undone(story in stories(), picks in prop::collection::vec(0_usize..2, 1..12)) {
        let mut known: Option<Record> = None;
        for said in interleaved(&story.statements(), &picks) {
            let before = known.clone();
            let now = before.as_ref().map_or_else(|| said.clone(), |before| believe(before, &said));
            if before.is_some_and(|before| is_known_end(&before)) {
                prop_assert!(is_known_end(&now));
            }
            known = Some(now);
        }
    }
}

#[test]
fn an_event_that_was_counted_needs_no_reason() {
    let event = |name: &str| EventCount {
        name: name.into(),
        count: 1,
        counted: 1.0,
        kind: QualityKind::Measured,
        source: "perf, cgroup".into(),
    };
    let uncounted = |name: &str| UncountedEvent { name: name.into(), reason: "not allowed".into() };
    let mut known = bare(7, "step");
    (known.events, known.uncounted_events) = (vec![event("a")], vec![uncounted("b"), uncounted("c")]);
    let mut said = bare(7, "step");
    (said.events, said.uncounted_events) = (vec![event("b")], vec![uncounted("a")]);
    for record in [believe(&known, &said), believe(&said, &known)] {
        let mut names: Vec<&str> = record.events.iter().map(|event| event.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(record.uncounted_events, [uncounted("c")]);
    }
}
