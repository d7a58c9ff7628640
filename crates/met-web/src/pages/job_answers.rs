//! What happened, what limited a job and what to do about it, in the words of `met show`.

use maud::{Markup, html};
use met_core::JOB;
use met_core::Table;
use met_core::gpu::card;
use met_core::job::Record;
use met_core::series::Course;
use met_core::text::escape;
use met_insight::answers::{Answers, Job, Samples, answers, words};
use met_insight::finding::{Finding, Severity};
use met_insight::lineage;
use met_insight::report::Machine;
use met_insight::resample;
use met_insight::rules::Rules;

use super::job::SAMPLED_EVERY;

/// GPUs whose samples are read.
pub(super) const GPUS_MAX: usize = 16;

/// The samples of a whole job and its GPUs.
pub(super) struct Sampled {
    course: Course,
    gpus: Vec<(String, Course)>,
}

impl Sampled {
    pub(super) fn read(
        record: &Record,
        mut series: impl FnMut(&'static Table, &str) -> anyhow::Result<Course>,
    ) -> anyhow::Result<Sampled> {
        let course = series(&JOB, "")?;
        let mut gpus = Vec::new();
        for gpu in record.gpus.iter().take(GPUS_MAX) {
            gpus.push((gpu.uuid.clone(), series(&card::TABLE, &gpu.uuid)?));
        }
        Ok(Sampled { course, gpus })
    }

    pub(super) fn answers(
        &self,
        record: &Record,
        earlier: &[Record],
        machine: Machine,
        now_ns: i64,
    ) -> Answers {
        let gap_ms = resample::gap_ms_of(&self.course, SAMPLED_EVERY);
        let samples = Samples { course: &self.course, gap_ms, gpus: &self.gpus };
        let earlier = lineage::earlier(record, earlier);
        let job = Job::new(record, machine, now_ns).after(&earlier).sampled(samples);
        answers(&job, Rules::built_in())
    }

    /// The samples of a table and part; each can be had once.
    pub(super) fn take(&mut self, table: &'static Table, part: &str) -> Option<Course> {
        if std::ptr::eq(table, &JOB) && part.is_empty() {
            return Some(std::mem::replace(&mut self.course, Course::new(&JOB)));
        }
        let known =
            self.gpus.iter_mut().find(|(uuid, _)| uuid == part && std::ptr::eq(table, &card::TABLE))?;
        Some(std::mem::replace(&mut known.1, Course::new(table)))
    }
}

pub(super) fn verdict(answers: &Answers) -> Markup {
    html! { p.verdict { (escape(&answers.verdict)) } }
}

/// Everything but the verdict; nothing where there is nothing to say.
pub(super) fn section(answers: &Answers) -> Markup {
    let mut lines = vec![("phases", words::phases(&answers.phases))];
    lines.extend(answers.bottleneck.as_ref().map(words::bottleneck));
    lines.push(("imbalance", answers.imbalance.clone()));
    lines.push(("earlier runs", words::differences(&answers.differences)));
    lines.push(("advice", words::followed(&answers.followed)));
    lines.retain(|(_, words)| !words.is_empty());
    html! {
        @if !lines.is_empty() {
            dl.answers {
                @for (label, words) in &lines {
                    div { dt { (label) } dd { (escape(&words.join(" · "))) } }
                }
                @if !answers.directives.is_empty() {
                    div {
                        dt { "next time" }
                        dd {
                            ul.directives {
                                @for one in &answers.directives {
                                    li { code { (escape(&one.text)) } " " span.dim { (words::directive(one)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if !answers.findings.is_empty() {
            ul.findings aria-label="What to do" { @for finding in &answers.findings { (self::finding(finding)) } }
        }
    }
}

fn finding(finding: &Finding) -> Markup {
    let kind = match finding.severity {
        Severity::High => "low",
        Severity::Medium => "mid",
        Severity::Low | Severity::Info => "plain",
    };
    let saves = words::saving(&finding.saving);
    html! {
        li.finding.(kind) {
            p { strong { (escape(&finding.what)) } }
            p { (escape(&finding.how)) }
            p.dim {
                @if let Some(saves) = saves { (saves) " · " }
                "rule " code { (finding.rule) } ", " (finding.severity.name())
            }
        }
    }
}
