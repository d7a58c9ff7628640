use proptest::prelude::*;

use super::*;
use crate::belief::believe;
use crate::job::Scheduling;
use crate::sample::{START_NS, bare};

const HOUR_NS: i64 = 3_600_000_000_000;

fn answer(asked_ns: i64, hours: i64, cpus: Option<i64>) -> Record {
    let mut record = bare(7, "train");
    (record.local, record.start_ns) = (None, Some(START_NS));
    record.manager_state = Some("RUNNING".into());
    (record.requested.time_limit_ns, record.requested.cpus) = (Some(hours * HOUR_NS), cpus);
    record.scheduling = Scheduling { asked_ns: Some(asked_ns), ..Scheduling::default() };
    record
}

fn limits(record: &Record) -> Vec<(i64, i64)> {
    let hours = |one: &EarlierRequest| (one.until_ns, one.requested.time_limit_ns.unwrap() / HOUR_NS);
    record.scheduling.earlier.iter().map(hours).collect()
}

fn believed(answers: &[Record]) -> Record {
    answers[1..].iter().fold(answers[0].clone(), |known, said| believe(&known, said))
}

#[test]
fn an_earlier_limit_is_kept_until_the_answer_that_has_another() {
    let answers = [(1, 1), (2, 1), (3, 2), (4, 2), (5, 1)].map(|(at, hours)| answer(at, hours, Some(4)));
    let known = believed(&answers);
    assert_eq!(limits(&known), [(3, 1), (5, 2)]);
    assert_eq!(known.requested.time_limit_ns, Some(HOUR_NS), "what held at last");
}

#[test]
fn what_a_job_asked_for_while_it_waited_is_no_change() {
    let mut waiting = answer(1, 9, Some(64));
    (waiting.state, waiting.scheduling.waited, waiting.start_ns) = (State::Pending, true, None);
    let known = believed(&[waiting.clone(), answer(2, 1, Some(4))]);
    assert!(known.scheduling.earlier.is_empty(), "{known:?}");
    // A node saw it run before its scheduler said so.
    let mut seen = bare(7, "train");
    seen.start_ns = Some(START_NS);
    let known = believed(&[waiting, seen, answer(2, 1, Some(4))]);
    assert!(known.scheduling.earlier.is_empty(), "{known:?}");
}

#[test]
fn what_an_answer_leaves_out_is_no_change() {
    let known = believed(&[answer(1, 1, Some(4)), answer(2, 1, None), answer(3, 1, Some(4))]);
    assert!(known.scheduling.earlier.is_empty(), "{known:?}");
}

#[test]
fn of_many_changes_the_last_ones_are_kept() {
    let answers: Vec<Record> = (1..=40).map(|at| answer(at, at, None)).collect();
    let known = believed(&answers);
    assert_eq!(limits(&known), (24..40).map(|at| (at + 1, at)).collect::<Vec<_>>());
    assert_eq!(believe(&known, &answers[0]), known, "an answer that comes again is no news");
}

#[test]
fn a_record_without_changes_has_no_field_for_them() {
    let text = serde_json::to_string(&answer(1, 1, None)).unwrap();
    assert!(!text.contains("earlier") && !text.contains("waited"), "{text}");
    let changed = believed(&[answer(1, 1, None), answer(2, 2, None)]);
    let again: Record = serde_json::from_str(&serde_json::to_string(&changed).unwrap()).unwrap();
    assert_eq!(again, changed);
}

#[test]
fn what_was_held_is_weighted_by_time() {
    let mut grown = answer(1, 1, Some(8));
    assert_eq!(held(&grown, START_NS + 4 * HOUR_NS, |one| one.cpus), Some(8.0));
    let four = Resources { cpus: Some(4), ..Resources::default() };
    grown.scheduling.earlier = vec![EarlierRequest {
        until_ns: START_NS + 3 * HOUR_NS,
        requested: four,
        allocated: Resources::default(),
    }];
    assert_eq!(held(&grown, START_NS + 4 * HOUR_NS, |one| one.cpus), Some(5.0));
    assert_eq!(held(&grown, START_NS + 2 * HOUR_NS, |one| one.cpus), Some(4.0), "seen after the end");
    assert_eq!(held(&grown, START_NS + 4 * HOUR_NS, |one| one.gpus), None);
}

proptest! {
    #[test]
    fn answers_that_come_again_change_nothing(
        hours in prop::collection::vec((1_i64..4, prop::option::of(1_i64..3)), 1..30),
        again in prop::collection::vec(0_usize..30, 0..30),
    ) {
        let answers: Vec<Record> =
            hours.iter().enumerate().map(|(at, &(hours, cpus))| answer(at as i64, hours, cpus.map(|_| 4))).collect();
        let once = believed(&answers);
        prop_assert!(once.scheduling.earlier.len() <= EARLIER_MAX);
        // As a restarted daemon receives them: in order, each one or not.
        let mut again: Vec<usize> = again.into_iter().filter(|&at| at < answers.len()).collect();
        again.sort_unstable();
        let twice = again.iter().fold(once.clone(), |known, &at| believe(&known, &answers[at]));
        prop_assert_eq!(twice, once);
    }
}
