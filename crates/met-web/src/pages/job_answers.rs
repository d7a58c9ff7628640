//! What happened, what limited a job and what to do about it, in the words of `met show`.

use maud::{Markup, html};
use met_core::text::escape;
use met_insight::answers::{Answers, words};
use met_insight::finding::{Finding, Severity};

pub(super) fn verdict(answers: &Answers) -> Markup {
    html! { p.verdict { (escape(&answers.verdict)) } }
}

/// Everything but the verdict; nothing where there is nothing to say.
pub(super) fn section(answers: &Answers) -> Markup {
    let mut lines = vec![("phases", words::phases(&answers.phases))];
    lines.extend(answers.bottleneck.as_ref().map(|limit| ("limited by", words::bottleneck(limit))));
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
