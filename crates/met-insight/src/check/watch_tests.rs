use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::report::Machine;
use crate::rules::{Rules, parse};
use crate::sample;
use crate::series_tests::{Made, made};

fn rules(watch: &str) -> Rules {
    parse(&format!(
        "gates: {{length: 1min, samples: 20}}\nrules:\n  - name: near\n    severity: low\n    when: cpus > 100\n    {watch}\n    \
         what: \"it is\"\n    how: \"do\"\n"
    ))
    .unwrap_or_else(|mistake| panic!("{mistake}"))
}

/// A job of ten minutes that runs, with eight CPUs.
fn running() -> Made {
    let mut made = made(600);
    (made.record.state, made.record.end_ns) = (State::Running, None);
    made.record.allocated.cpus = Some(8);
    made
}

/// What rules want of this job, in seconds, and how often samples were read.
fn wanted_of(rules: &Rules, made: &Made, is_wanted: bool) -> (Option<u64>, usize) {
    let records = [made.record.clone()];
    let look = Look {
        rules,
        is_wanted: &move |_| is_wanted,
        machine: &|_| Machine { cpus: Some(64) },
        shortest_ns: 60_000_000_000,
        interval: Duration::from_secs(1),
        now_ns: sample::START_NS + 600_000_000_000,
    };
    let (series, count) = (made.series.clone(), AtomicUsize::new(0));
    let mut read = |_: &Record, _: &'static Table, _: &str, _: met_core::series::Columns| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(series.clone())
    };
    let Ok(found) = wanted(&look, &records, &mut read);
    assert!(found.iter().all(|found| found.rule == "near" && found.record == &records[0]));
    (found.first().map(|found| found.wanted_for.as_secs()), count.load(Ordering::Relaxed))
}

#[test]
fn a_rule_wants_samples_of_running_jobs_that_are_near() {
    let near = rules("watch: {when: cpus >= 8, for: 5min}");
    assert_eq!(wanted_of(&near, &running(), true).0, Some(300));
    assert_eq!(wanted_of(&near, &running(), false), (None, 0), "only of the jobs that are looked at");
    let mut over = running();
    over.record.state = State::Finished;
    assert_eq!(wanted_of(&near, &over, true), (None, 0));
    over.record.state = State::Pending;
    assert_eq!(wanted_of(&near, &over, true), (None, 0));
    let own = rules("watch: {for: 1h}");
    assert_eq!(
        wanted_of(&own, &running(), true),
        (None, 0),
        "its own condition does not hold, and nothing is read"
    );
    let mut large = running();
    large.record.allocated.cpus = Some(128);
    assert_eq!(wanted_of(&own, &large, true).0, Some(3600));
    let without = rules("replaces: []");
    assert_eq!(wanted_of(&without, &large, true), (None, 0));
}

#[test]
fn what_is_not_known_for_lack_of_samples_is_wanted_and_what_no_sample_tells_is_not() {
    let unknown = rules("watch: {when: mean(memory_needed_bytes) > 1GiB, for: 10s}");
    let (many, mut few) = (running(), running());
    assert_eq!(wanted_of(&unknown, &many, true), (None, 1), "600 samples do not know it");
    few.series.truncate(10);
    assert_eq!(wanted_of(&unknown, &few, true), (Some(10), 1));
    let known = rules("watch: {when: known(mean(memory_needed_bytes)), for: 10s}");
    assert_eq!(wanted_of(&known, &few, true).0, None);
}

#[test]
fn what_a_rule_may_want_is_bounded_and_mistakes_are_named() {
    let mistake = |watch: &str, about: &str| {
        let text = format!(
            "rules:\n  - name: a\n    about: {about}\n    severity: low\n    when: cpus > 1\n    watch: {watch}\n    what: x\n    how: y\n"
        );
        parse(&text).unwrap_err().to_string()
    };
    for long in ["{for: 2h}", "{for: 0s}", "{for: 100d}"] {
        assert!(mistake(long, "job").contains("between 1s and 1h"), "{long}");
    }
    assert!(mistake("{for: wall}", "job").contains("watch.for: \"wall\" is not a number"));
    assert!(mistake("{for: 5min, when: cpus}", "job").starts_with("line 6: watch.when"));
    assert!(mistake("{for: 5min, every: 1s}", "job").contains("every"));
    assert!(mistake("{when: cpus > 2}", "job").contains("for"));
    assert!(mistake("{for: 5min}", "user").contains("only rules about jobs"));
}

#[test]
fn an_explanation_says_whether_samples_are_wanted() {
    let made = running();
    let job = Job::new(&made.record, Machine { cpus: Some(64) }, sample::START_NS + 600_000_000_000)
        .sampled(made.samples());
    let explained = |watch: &str| rules::explain(&rules(watch).rules[0], &job).watch;
    let step = explained("watch: {when: cpus >= 8, for: 5min}").unwrap();
    assert_eq!(step.passed, Some(true));
    assert!(step.asked.contains("cpus >= 8") && step.asked.contains('5'), "{}", step.asked);
    assert_eq!(explained("watch: {for: 5min}").unwrap().passed, Some(false));
    assert_eq!(explained("replaces: []"), None);
}
