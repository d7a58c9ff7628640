//! What happened, what limited a job and what to do about it, in the words of `met show`.

use maud::{Markup, html};
use met_core::text::escape;
use met_core::units;
use met_insight::answers::{Answers, words};
use met_insight::finding::{Evidence, Finding, Severity};
use met_insight::report::Amount;

use super::layout;

pub(super) fn verdict(answers: &Answers) -> Markup {
    html! { p.verdict { (escape(&answers.verdict)) } }
}

/// Everything but the verdict; nothing where there is nothing to say.
pub(super) fn section(answers: &Answers) -> Markup {
    let mut lines = vec![("phases", words::phases(&answers.phases))];
    lines.extend(answers.bottleneck.as_ref().map(|limit| ("limited by", words::bottleneck(limit))));
    lines.push(("imbalance", answers.imbalance.clone()));
    lines.push(("earlier runs", words::differences(&answers.differences)));
    lines.push(("advice", words::followed(answers)));
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
            @if !finding.why.is_empty() {
                details {
                    summary { "Why" }
                    dl.evidence { @for evidence in &finding.why { (self::evidence(evidence)) } }
                }
            }
            p.dim {
                @if let Some(saves) = saves { (saves) " · " }
                "rule " code { (finding.rule) } ", " (finding.severity.name())
                ", from samples over " (units::percent(finding.coverage)) " of the time"
            }
        }
    }
}

/// A number that the finding was concluded from.
fn evidence(evidence: &Evidence) -> Markup {
    let Evidence { value, measure, quality, coverage, .. } = *evidence;
    html! {
        div {
            dt { code { (escape(evidence.name)) } }
            dd {
                (layout::amount(&Amount { value, measure, quality })) " "
                span.dim { (quality.name()) @if let Some(share) = coverage { ", covers " (units::percent(share)) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;
    use met_insight::finding::Saving;
    use met_insight::report::Measure;

    use super::*;

    #[test]
    fn a_finding_shows_what_to_do_and_the_numbers_behind_it() {
        let finding = Finding {
            rule: "memory_excess".to_owned(),
            severity: Severity::Medium,
            subject: "slurm:7".to_owned(),
            user: None,
            lineage: None,
            window_ns: (0, 1),
            what: "64 GiB were requested, <b>8</b> were needed".to_owned(),
            why: vec![Evidence {
                name: "memory_needed_peak",
                value: 8.0 * 1024.0 * 1024.0 * 1024.0,
                measure: Measure::Bytes,
                quality: QualityKind::Sampled,
                coverage: Some(0.98),
            }],
            how: "#SBATCH --mem=10G".to_owned(),
            saving: Saving { core_hours: Some(12.0), ..Saving::default() },
            held_core_hours: None,
            coverage: 0.97,
        };
        let page = self::finding(&finding).into_string();
        for shown in [
            "&lt;b&gt;8&lt;/b&gt;",
            "#SBATCH --mem=10G",
            "memory_needed_peak",
            "8.00 GiB",
            "sampled, covers 98%",
            "97%",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        assert!(page.contains(&words::saving(&finding.saving).unwrap()), "{page}");
    }
}
