//! The report of `met show` and `met time`: labelled amounts, independent of how they are drawn.
//!
//! An amount that is not known is left out; it is never shown as 0.

mod device;
mod energy;
mod facts;
mod figures;
mod notes;
mod outcome;
mod parts;
mod reader;
pub mod words;

use std::borrow::Cow;

use met_core::annotation::Annotation;
use met_core::job::{QualityKind, Record, State};
use met_core::job_table as column;

use crate::answers::Answers;
use crate::{events, work};
use device::gpu;
pub use outcome::{cause, outcome, signal_name};
use reader::Reader;

#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub id: String,
    pub name: String,
    pub state: State,
    /// The end of the job, or its state, in words.
    pub outcome: String,
    pub facts: Vec<Fact>,
    /// What people said of it.
    pub annotation: Annotation,
    pub meters: Vec<Meter>,
    /// What a manager's job asked for, was given and used.
    pub shares: Vec<ShareLine>,
    pub sections: Vec<Section>,
    /// Its steps and tasks, each task after its step.
    pub parts: Vec<PartLine>,
    /// What people ask first; `None` where it was not computed.
    pub answers: Option<Answers>,
    /// What a reader must know of the quality of the figures.
    pub notes: Vec<String>,
    /// What was done for the figures that are attributed, in words.
    pub attributed: Vec<&'static str>,
}

/// A line about the job itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    pub label: &'static str,
    pub value: FactValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FactValue {
    Text(String),
    /// As given; how words are quoted is up to the view.
    Command(Vec<String>),
    /// Start and, where the job is over, end.
    Times(i64, Option<i64>),
    Amount(Amount),
    /// What changed, and the time by which it had.
    Change(String, i64),
}

/// How much of a whole was used.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    pub label: &'static str,
    pub share: f64,
    pub used: Amount,
    pub whole: Amount,
    /// What `used` is: an average, a peak.
    pub of: &'static str,
}

/// One resource of a manager's job.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareLine {
    pub label: &'static str,
    pub requested: Option<Amount>,
    pub allocated: Option<Amount>,
    pub used: Option<Amount>,
    pub efficiency: Option<f64>,
}

/// A step of a job, or a task of one.
#[derive(Clone, Debug, PartialEq)]
pub struct PartLine {
    pub node: String,
    pub step: String,
    pub task: Option<String>,
    pub name: Option<String>,
    pub cpu: Option<Amount>,
    pub memory: Option<Amount>,
    pub duration: Option<Amount>,
    pub exit_code: Option<i32>,
    /// How many have this line together.
    pub folded: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    pub title: &'static str,
    pub heading: Option<Heading>,
    pub lines: Vec<Line>,
}

/// Of one thing among several, such as a GPU: what there is to say before its lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Heading {
    pub label: String,
    pub words: Vec<String>,
    /// What holds since a time, in Unix nanoseconds.
    pub since: Option<(&'static str, i64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Identifies the line, also without the section's title.
    pub label: &'static str,
    pub amount: Amount,
    pub details: Vec<Detail>,
}

/// What explains an amount: words around another amount, or words alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    pub before: &'static str,
    pub amount: Option<Amount>,
    pub after: Cow<'static, str>,
}

/// A number in its unit, and how it came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount {
    pub value: f64,
    pub measure: Measure,
    pub quality: QualityKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Seconds,
    Bytes,
    BytesPerSecond,
    Count,
    /// Of any unit, as it was written.
    Number,
    Cores,
    /// 0.5 is half.
    Share,
    /// Shown as watt hours.
    Joules,
    /// Of CO2 equivalent.
    Grams,
    /// In the currency that a detail names.
    Money,
    Watts,
    Celsius,
    Hertz,
    Gpus,
}

/// What of the machine the report may say besides the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: Option<u32>,
}

pub fn report(record: &Record, machine: Machine, now_ns: i64) -> Report {
    let source = Reader { record, machine, now_ns };
    let first = [figures::cpu(&source), figures::memory(&source)];
    let gpus = record.gpus.iter().map(|used| gpu(used, source.resolution(column::GPU_MEMORY_PEAK)));
    let sections = first.into_iter().chain(gpus).chain([
        figures::input_output(&source),
        figures::processes(&source),
        figures::pressure(&source),
        events::section(record, now_ns),
        energy::energy(&source),
        work::section(record, now_ns),
    ]);
    Report {
        id: record.label(),
        name: record.name.clone(),
        state: record.state,
        outcome: outcome(record),
        annotation: record.annotation.clone(),
        facts: facts::facts(&source),
        meters: facts::meters(&source),
        shares: facts::shares(&source),
        parts: parts::parts(&source),
        sections: sections.filter(|section| !section.lines.is_empty()).collect(),
        answers: None,
        notes: source.notes(),
        attributed: source.attributed(),
    }
}

impl Section {
    pub(crate) fn new(title: &'static str) -> Section {
        Section { title, heading: None, lines: Vec::new() }
    }

    /// Adds a line unless its amount is unknown; unknown details are left out one by one.
    pub(crate) fn put<const N: usize>(
        &mut self,
        label: &'static str,
        amount: Option<Amount>,
        details: [Option<Detail>; N],
    ) {
        if let Some(amount) = amount {
            self.lines.push(Line { label, amount, details: details.into_iter().flatten().collect() });
        }
    }
}

impl Detail {
    fn before(words: &'static str, amount: Option<Amount>) -> Option<Detail> {
        Some(Detail { before: words, amount: Some(amount?), after: "".into() })
    }

    fn after(amount: Option<Amount>, words: &'static str) -> Option<Detail> {
        Some(Detail { before: "", amount: Some(amount?), after: words.into() })
    }

    fn words(words: &'static str) -> Option<Detail> {
        Some(Detail { before: words, amount: None, after: "".into() })
    }

    pub(crate) fn text(words: Option<String>) -> Option<Detail> {
        let words = words.filter(|words| !words.is_empty())?;
        Some(Detail { before: "", amount: None, after: words.into() })
    }
}

#[cfg(test)]
mod tests {
    use met_core::JOB;
    use met_core::job::{LimitKind, Origin};

    use super::reader::sum;
    use super::*;
    use crate::sample;

    fn labels(report: &Report) -> Vec<&'static str> {
        report.sections.iter().flat_map(|section| &section.lines).map(|line| line.label).collect()
    }

    #[test]
    fn what_is_not_known_has_no_line() {
        let report = report(&sample::finished(), Machine::default(), sample::NOW_NS);
        assert_eq!(labels(&report), ["CPU time", "cores", "memory needed", "read", "processes"]);
        let titles: Vec<&str> = report.sections.iter().map(|section| section.title).collect();
        assert_eq!(titles, ["CPU", "Memory", "I/O", "Processes"], "no section is empty");
    }

    #[test]
    fn of_a_job_whose_end_nobody_saw_that_is_said_and_the_scheduler_has_its_word() {
        let mut record = sample::finished();
        record.scheduling.cpu_ns = Some(9_000_000_000);
        let account = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let line = &report.sections[0].lines[0];
            let reported = line.details.iter().find(|detail| detail.before == "by its scheduler");
            (reported.and_then(|detail| detail.amount).map(|amount| amount.value), report.notes)
        };
        record.totals.set(column::CPU, 8_000_000_000, QualityKind::Measured, "cgroup ancestor");
        assert_eq!(account(&record), (None, Vec::new()));
        record.totals.set(column::CPU, 8_000_000_000, QualityKind::LowerBound, "cgroup");
        assert_eq!(account(&record).0, Some(9.0));
        record.local = Some(met_core::job::Local::new("", Origin::Found, "/"));
        let notes = account(&record).1;
        assert!(notes.len() == 1 && notes[0].starts_with("its end was not observed"), "{notes:?}");
    }

    #[test]
    fn a_cpu_quota_is_named_as_the_reason_for_waiting() {
        let mut record = sample::finished();
        record.totals.set(column::RUN_QUEUE_WAIT, 4_000_000_000, QualityKind::Sampled, "/proc");
        let cpu = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let lines =
                report.sections[0].lines.iter().filter(|line| ["throttled", "waited"].contains(&line.label));
            lines.map(|line| (line.label, line.details.last().unwrap().before)).collect::<Vec<_>>()
        };
        let waited = ("waited", "runnable, waiting for a CPU");
        assert_eq!(cpu(&record), [waited]);
        record.totals.set(column::THROTTLED, 0, QualityKind::Measured, "cgroup");
        assert_eq!(cpu(&record), [waited], "a quota that never mattered needs no word");
        record.totals.set(column::THROTTLED, 3_200_000_000, QualityKind::Measured, "cgroup");
        let by_quota =
            [("throttled", "by its CPU quota"), ("waited", "runnable, waiting for a CPU or the quota")];
        assert_eq!(cpu(&record), by_quota);
        record.totals.set(column::THROTTLES, 37, QualityKind::Measured, "cgroup");
        let report = super::report(&record, Machine::default(), sample::NOW_NS);
        let line = report.sections[0].lines.iter().find(|line| line.label == "throttled").unwrap();
        assert_eq!(line.details[1].amount.map(|periods| periods.value), Some(37.0));
        let object = crate::json::object(&record, sample::NOW_NS);
        assert_eq!(object["totals"]["cpu_throttles"], 37);
        assert_eq!(object["totals"]["cpu_throttled_seconds"], 3.2);
        record.totals.set(column::THROTTLED, 3_200_000_000, QualityKind::Attributed, "cpu.stat around it");
        assert_eq!(cpu(&record)[0], ("throttled", "of a cgroup around it"));
    }

    #[test]
    fn what_was_done_for_attributed_figures_is_said() {
        let mut record = sample::finished();
        let said = |record: &Record| report(record, Machine::default(), sample::NOW_NS).attributed;
        assert!(said(&record).is_empty());
        record.totals.set(
            column::OOM_KILLS,
            1,
            QualityKind::Attributed,
            "memory events of a cgroup around it",
        );
        assert_eq!(said(&record), ["counted in a cgroup around the job"]);
        record.totals.set(column::ENERGY, 1, QualityKind::Attributed, "RAPL, by CPU time");
        record.totals.set(column::ENERGY_CPU, 1, QualityKind::Attributed, "RAPL, by CPU time");
        assert_eq!(said(&record), ["counted in a cgroup around the job", "share of an energy meter"]);
    }

    #[test]
    fn memory_is_compared_with_the_limit_that_holds() {
        let mut record = sample::finished();
        record.node_memory_bytes = Some(1 << 34);
        record.totals.set(column::MEMORY_NEEDED_PEAK, 1 << 29, QualityKind::Sampled, "cgroup");
        record.local = Some(met_core::job::Local::new("", Origin::Run, "/"));
        let whole = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let meter = report.meters.iter().find(|meter| meter.label == "memory").unwrap().whole.value;
            (meter, labels(&report).contains(&"memory limit"))
        };
        assert_eq!(whole(&record), (f64::from(1 << 30) * 16.0, false));
        let limit = |bytes, kind| Some(met_core::job::MemoryLimit { bytes, kind });
        record.local.as_mut().unwrap().memory_limit = limit(1 << 30, LimitKind::Cgroup);
        assert_eq!(whole(&record), (f64::from(1 << 30), true));
        // Several processes may hold more together than each of them.
        record.local.as_mut().unwrap().memory_limit = limit(1 << 28, LimitKind::Process);
        assert_eq!(whole(&record), (f64::from(1 << 30) * 16.0, true));
    }

    #[test]
    fn containers_of_a_service_are_said_to_be_missing() {
        let mut record = sample::finished();
        let source = "cgroup, containers not included";
        record.totals.set(column::CPU, 1_000_000, QualityKind::LowerBound, source);
        let notes = report(&record, Machine::default(), sample::NOW_NS).notes.concat();
        assert!(notes.contains("work of its containers is not included"), "{notes}");
        let source = "cgroup, too many containers, some not included";
        record.totals.set(column::CPU, 1_000_000, QualityKind::LowerBound, source);
        let notes = report(&record, Machine::default(), sample::NOW_NS).notes.concat();
        assert!(notes.contains("work of the others is not included"), "{notes}");
    }

    #[test]
    fn figures_that_are_old_say_so_while_the_job_runs() {
        let mut record = sample::finished();
        (record.state, record.end_ns, record.exit_code) = (State::Running, None, None);
        record.as_of_ns = Some(sample::NOW_NS - 5_000_000_000);
        let after = |seconds: i64, record: &Record| {
            report(record, Machine::default(), sample::NOW_NS + seconds * 1_000_000_000).notes.concat()
        };
        assert_eq!(after(25, &record), "");
        assert!(after(26, &record).starts_with("the figures are 31 s old"));
        assert!(after(600, &record).starts_with("the figures are 10 min old"));
        record.local = Some(met_core::job::Local::new("", Origin::Run, "/"));
        assert_eq!(after(1, &record), "figures and averages are as of the last sample, 6 s ago");
        assert_eq!(after(-3, &record), "");
        record.state = State::Lost;
        assert_eq!(after(600, &record), "");
    }

    #[test]
    fn a_job_that_ended_before_the_first_look_has_no_number_of_processes_at_once() {
        let mut record = sample::finished();
        let shown = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let line = report.sections.iter().flat_map(|section| &section.lines);
            let line = line.filter(|line| ["processes", "threads"].contains(&line.label));
            line.map(|line| (line.label, line.details.len())).collect::<Vec<_>>()
        };
        for peak in [column::PROCESSES_PEAK, column::THREADS_PEAK] {
            record.totals.set(peak, 0, QualityKind::Sampled, "/proc");
        }
        assert_eq!(shown(&record), [("processes", 1)]);
        record.totals.set(column::THREADS_PEAK, 4, QualityKind::Sampled, "/proc");
        assert_eq!(shown(&record), [("processes", 1), ("threads", 1)]);
    }

    #[test]
    fn a_peak_that_only_samples_know_says_how_far_apart_they_were() {
        let mut record = sample::finished();
        record.gpus = vec![met_core::job::GpuUse { memory_peak_bytes: Some(5), ..Default::default() }];
        let peaks = [
            (column::CORES_PEAK, "cores", 9000),
            (column::MEMORY_NEEDED_PEAK, "memory needed", 1 << 40),
            (column::PROCESSES_PEAK, "processes", 4),
            (column::THREADS_PEAK, "threads", 4),
            (column::GPU_MEMORY_PEAK, "GPU memory", 5),
        ];
        let said = |record: &Record, label: &str| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            let line =
                report.sections.iter().flat_map(|section| &section.lines).find(|line| line.label == label);
            line.unwrap().details.last().map(words::detail).unwrap()
        };
        for (index, label, value) in peaks {
            record.totals.set(index, value, QualityKind::Sampled, "cgroup, samples up to 60 s apart");
            assert_eq!(said(&record, label), "sampled up to 60 s apart", "{label}");
            record.totals.set(index, value, QualityKind::Sampled, "cgroup, samples up to 10 s apart");
            assert_eq!(said(&record, label), "sampled up to 10 s apart", "{label}");
            record.totals.set(index, value, QualityKind::Sampled, "cgroup");
            assert!(!said(&record, label).contains("apart"), "{label}");
        }
    }

    #[test]
    fn a_peak_of_cores_below_the_average_is_no_peak() {
        let mut record = sample::finished();
        let details = |record: &Record| {
            let report = report(record, Machine::default(), sample::NOW_NS);
            report.sections[0].lines.iter().find(|line| line.label == "cores").unwrap().details.len()
        };
        record.totals.set(column::CORES_PEAK, 2000, QualityKind::Sampled, "/proc");
        assert_eq!(details(&record), 2);
        record.totals.set(column::CORES_PEAK, 100, QualityKind::Sampled, "/proc");
        assert_eq!(details(&record), 1);
    }

    #[test]
    fn labels_tell_lines_apart_without_their_section() {
        let mut record = sample::finished();
        for index in 0..JOB.columns.len() {
            record.totals.set(index, 5, QualityKind::Measured, "test");
        }
        let labels = labels(&report(&record, Machine::default(), sample::NOW_NS));
        for label in &labels {
            assert_eq!(labels.iter().filter(|other| *other == label).count(), 1, "{label}");
        }
    }

    #[test]
    fn meters_need_a_whole() {
        let meters = |machine| report(&sample::finished(), machine, sample::NOW_NS).meters;
        let labels: Vec<&str> = meters(Machine::default()).iter().map(|meter| meter.label).collect();
        assert_eq!(labels, ["memory"]);
        let with_cpus = meters(Machine { cpus: Some(2) });
        assert_eq!(with_cpus[0].share, 0.625);
    }

    #[test]
    fn a_job_with_an_allocation_is_compared_with_that_and_not_with_the_machine() {
        let report = report(&sample::scheduled(), Machine { cpus: Some(2) }, sample::NOW_NS);
        assert!(report.meters.is_empty());
        let labels: Vec<&str> = report.shares.iter().map(|share| share.label).collect();
        assert_eq!(labels, ["CPUs", "memory", "GPUs", "time"]);
        assert_eq!(report.shares[0].efficiency, Some(0.3125));
        let steps: Vec<(&str, Option<&str>)> =
            report.parts.iter().map(|part| (part.step.as_str(), part.task.as_deref())).collect();
        assert_eq!(steps, [("batch", None), ("0", None), ("0", Some("0")), ("0", Some("1"))]);
    }

    #[test]
    fn the_outcome_is_in_words() {
        let mut record = sample::finished();
        let mut outcome_of = |state, exit_code, signal| {
            (record.state, record.exit_code, record.signal) = (state, exit_code, signal);
            outcome(&record)
        };
        assert_eq!(outcome_of(State::Running, None, None), "running");
        assert_eq!(outcome_of(State::Finished, Some(0), None), "finished, exit code 0");
        assert_eq!(outcome_of(State::Failed, Some(3), None), "failed, exit code 3");
        assert_eq!(outcome_of(State::Failed, None, Some(9)), "failed, killed by signal 9 (SIGKILL)");
        assert_eq!(outcome_of(State::Failed, None, Some(40)), "failed, killed by signal 40");
        assert_eq!(
            outcome_of(State::OutOfMemory, None, Some(9)),
            "out of memory, killed by signal 9 (SIGKILL)"
        );
        assert_eq!(outcome_of(State::Lost, None, None), "lost");
        record.scheduling.reason = Some("the node was replaced".to_owned());
        assert_eq!(outcome(&record), "lost, the node was replaced");
        record.scheduling.asked_ns = Some(1);
        assert_eq!(outcome(&record), "lost", "a scheduler's reason is not one for this");
        (record.state, record.manager_state) = (State::Finished, Some("detached".to_owned()));
        assert_eq!(outcome(&record), "finished, detached");
        let facts = report(&record, Machine::default(), sample::NOW_NS).facts;
        assert!(facts.iter().all(|fact| fact.label != "manager state"), "a local job has no other manager");
    }

    #[test]
    fn a_sum_is_no_better_known_than_its_parts() {
        let amount = |quality| Some(Amount { value: 2.0, measure: Measure::Count, quality });
        let both = sum(amount(QualityKind::LowerBound), amount(QualityKind::Measured)).unwrap();
        assert_eq!((both.value, both.quality), (4.0, QualityKind::LowerBound));
        assert_eq!(sum(amount(QualityKind::Measured), None), None);
    }

    #[test]
    fn why_energy_is_doubtful_is_said() {
        let note = |kind, source: &str| {
            let mut record = sample::finished();
            record.totals.set(column::ENERGY, 1_000_000, kind, source.to_owned());
            report(&record, Machine::default(), sample::NOW_NS).notes.concat()
        };
        assert!(note(QualityKind::Estimated, "4 cores, by CPU time").starts_with("no energy meter"));
        let idle = note(QualityKind::Estimated, "IPMI, by CPU time, idle power estimated");
        assert!(idle.contains("idle power"), "{idle}");
        let missing = note(QualityKind::LowerBound, "RAPL, by CPU time, a meter missing");
        assert!(missing.contains("met doctor"), "{missing}");
        let unseen = note(QualityKind::LowerBound, "RAPL, by CPU time, without processes that left its tree");
        assert!(unseen.contains("met run"), "{unseen}");
        let gap = note(QualityKind::LowerBound, "RAPL, by CPU time, not watched all the time");
        assert!(gap.contains("daemon"), "{gap}");
        assert_eq!(note(QualityKind::Attributed, "RAPL, by CPU time"), "");
        let mut with_gpus = sample::finished();
        with_gpus.totals.set(column::GPU_ENERGY, 1_000_000, QualityKind::Measured, "energy counter");
        let notes = |record: &Record| report(record, Machine::default(), sample::NOW_NS).notes.concat();
        let kind = QualityKind::Estimated;
        with_gpus.totals.set(column::ENERGY, 2_000_000, kind, "energy counter of GPUs; 2 CPUs, by CPU time");
        assert!(notes(&with_gpus).starts_with("only GPU energy was metered"));
        // What is next to nothing needs no word.
        let mut nearly_all = with_gpus.clone();
        nearly_all.totals.set(column::GPU_ENERGY, 1_990_000, kind, "integral of power");
        assert_eq!(notes(&nearly_all), "");
        // Doubt about a GPU is none about the meters of the machine.
        with_gpus.totals.set(column::ENERGY_CPU, 1_000_000, QualityKind::Attributed, "RAPL, by CPU time");
        assert_eq!(notes(&with_gpus), "");
        assert_eq!(note(QualityKind::LowerBound, "several nodes"), "");
    }
}
