//! Answers to what people ask of a job: what happened, what held it up, what to do about it.

mod bottleneck;
pub mod compared;
pub mod directives;
mod evidence;
mod follow_up;
pub mod imbalance;
mod known;
mod object;
mod profile;
mod verdict;
pub mod words;

use met_core::job::Record;
use met_core::series::Series;

pub use bottleneck::{Bottleneck, Limit};
pub use compared::Difference;
pub use directives::Directive;
pub use evidence::{EVIDENCE_MAX, evidence};
pub use follow_up::{FollowUp, Revisited, follow_ups};
pub use known::{GPUS_MAX, Known, ReadRun};
pub use object::{difference as difference_object, object};
pub(crate) use profile::median as median_of;
pub use profile::{Moments, PHASE_COLUMNS, Phase, PhaseKind, Profile, span_of, window_of};

use crate::finding::Finding;
use crate::report::Machine;
use crate::rules::{self, Memo, Rules};
use crate::scale::System;

/// Findings of one report: who reads more acts on none.
const FINDINGS_MAX: usize = 3;

/// The samples of a job, and of its GPUs by uuid.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    pub series: &'a Series,
    /// A longer time without samples is a gap.
    pub gap_ms: i64,
    pub gpus: &'a [(String, Series)],
}

/// What other jobs on the machine of a job say of it, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    /// GPUs of the machine.
    pub gpus: Option<u32>,
    /// The share of the time in which jobs of others waited for a CPU that they did not have.
    pub pressure: Option<f64>,
    /// Cores that all other jobs used.
    pub cores: Option<f64>,
}

/// A job with all that is known around it.
pub struct Job<'a> {
    pub record: &'a Record,
    pub machine: Machine,
    /// `None`: other jobs have not been looked at.
    pub beside: Option<Beside>,
    /// Earlier runs of its lineage, newest first.
    pub earlier: &'a [&'a Record],
    /// Machines that it could move to.
    pub systems: &'a [System],
    pub now_ns: i64,
    samples: Option<Samples<'a>>,
    /// Of the run before.
    samples_before: Option<Samples<'a>>,
    profile: Option<Profile<'a>>,
    /// Rules ask for the same things.
    pub(crate) memo: Memo,
}

impl<'a> Job<'a> {
    pub fn new(record: &'a Record, machine: Machine, now_ns: i64) -> Job<'a> {
        Job {
            record,
            machine,
            beside: None,
            earlier: &[],
            systems: &[],
            now_ns,
            samples: None,
            samples_before: None,
            profile: None,
            memo: Memo::default(),
        }
    }

    pub fn after(self, earlier: &'a [&'a Record]) -> Job<'a> {
        Job { earlier, memo: Memo::default(), ..self }
    }

    pub fn beside(self, beside: Beside) -> Job<'a> {
        Job { beside: Some(beside), ..self }
    }

    pub fn among(self, systems: &'a [System]) -> Job<'a> {
        Job { systems, ..self }
    }

    /// Samples of one node of several say nothing of the job.
    pub fn sampled(mut self, samples: Samples<'a>) -> Job<'a> {
        if !self.is_whole() {
            return self;
        }
        self.profile = Profile::of(self.record, samples, self.now_ns);
        self.samples = Some(samples);
        // What was asked before there were samples had no answer.
        self.memo = Memo::default();
        self
    }

    /// The same job before anything was read of it but records.
    pub fn unread(&self) -> Job<'a> {
        let unread = Job::new(self.record, self.machine, self.now_ns).after(self.earlier).among(self.systems);
        Job { beside: self.beside, ..unread }
    }

    /// Whether its figures and samples are of the whole job: everything that judges a job asks here.
    pub fn is_whole(&self) -> bool {
        self.record.covers_all_nodes()
    }

    pub fn samples(&self) -> Option<Samples<'a>> {
        self.samples
    }

    pub fn profile(&self) -> Option<&Profile<'a>> {
        self.profile.as_ref()
    }

    /// The share of its window that samples of a column cover; unknown without samples.
    pub fn coverage(&self, index: usize) -> Option<f64> {
        Some(self.profile.as_ref()?.coverage(index))
    }
}

/// What a report says beyond figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// One line.
    pub verdict: String,
    pub phases: Vec<Phase>,
    pub bottleneck: Option<Bottleneck>,
    /// Where nodes, GPUs or tasks did unequal work, in words.
    pub imbalance: Vec<String>,
    /// At most three, the most worthwhile first.
    pub findings: Vec<Finding>,
    /// Requests that would have been enough for the last runs.
    pub directives: Vec<Directive>,
    pub differences: Vec<Difference>,
    /// Whether the requests that the run before gave were made.
    pub followed: Vec<FollowUp>,
    /// Whether what was found in the run before is gone.
    pub revisited: Vec<Revisited>,
}

pub fn answers(job: &Job<'_>, rules: &Rules) -> Answers {
    let bottleneck = bottleneck::bottleneck(job);
    let mut findings = rules::findings(rules, job);
    findings.truncate(FINDINGS_MAX);
    let followed = follow_up::follow_ups(job);
    Answers {
        verdict: verdict::verdict(job, bottleneck.as_ref()),
        phases: job.profile().map(|profile| profile.phases().to_vec()).unwrap_or_default(),
        bottleneck,
        imbalance: imbalance::words(job.record),
        findings,
        directives: directives::directives(job),
        differences: compared::differences(job.record, job.earlier, job.now_ns),
        revisited: follow_up::revisited(job, rules, &followed),
        followed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_report_has_three_findings_at_most_those_that_save_most() {
        let rule = |hours: u32| {
            format!(
                "  - name: rule_{hours}\n    severity: low\n    when: wall >= 0s\n    gates: {{coverage: 0%, length: 0s, samples: 0, core_hours: 0}}\n    saves: {{core_time: {hours}h}}\n    what: x\n    how: y\n"
            )
        };
        let rules = rules::parse(&format!("rules:\n{}", [2, 5, 3, 1, 4].map(rule).concat())).unwrap();
        let record = sample::finished();
        let job = Job::new(&record, Machine::default(), sample::NOW_NS);
        let names: Vec<String> = answers(&job, &rules).findings.into_iter().map(|found| found.rule).collect();
        assert_eq!(names, ["rule_5", "rule_4", "rule_3"]);
    }
}
