//! What happened, what limited the job, and what to do, in words.

use met_insight::answers::{Answers, words};
use met_insight::finding::Finding;
use met_insight::report::Report;

use super::{LABEL_COLUMNS, Page, SEPARATOR, filled};
use crate::view::{Paint, text};

pub(super) fn lines(page: &Page<'_>, report: &Report) -> Vec<String> {
    let Some(answers) = &report.answers else { return Vec::new() };
    let mut lines = Vec::new();
    let mut put = |label: &str, words: Vec<String>, separator: &str| {
        let room = page.width - LABEL_COLUMNS - 2;
        for (index, line) in filled(words.into_iter(), separator, room).iter().enumerate() {
            lines.push(format!("{}  {line}", page.label(if index == 0 { label } else { "" })));
        }
    };
    put("phases", words::phases(&answers.phases), SEPARATOR);
    if let Some(bottleneck) = &answers.bottleneck {
        put("limited by", words::bottleneck(bottleneck), SEPARATOR);
    }
    put("imbalance", answers.imbalance.iter().map(|words| text::escape(words)).collect(), SEPARATOR);
    put("earlier runs", words::differences(&answers.differences), SEPARATOR);
    put("advice", words::followed(answers), SEPARATOR);
    lines
}

/// Requests that would have been enough.
pub(super) fn next_time(page: &Page<'_>, report: &Report) -> Vec<String> {
    let directives = report.answers.iter().flat_map(|answers| &answers.directives);
    let room = page.width - LABEL_COLUMNS - 2;
    let mut lines = Vec::new();
    for (index, directive) in directives.enumerate() {
        let label = page.label(if index == 0 { "next time" } else { "" });
        let (text, words) = (text::pad(&directive.text, 28), words::directive(directive));
        if text::width(&text) + 2 + text::width(&words) <= room {
            lines.push(format!("{label}  {text}  {}", page.style.paint(Paint::Dim, &words)));
            continue;
        }
        lines.push(format!("{label}  {}", directive.text));
        for words in text::wrap(&words, room) {
            lines.push(format!("{}  {}", page.label(""), page.style.paint(Paint::Dim, &words)));
        }
    }
    lines
}

pub(super) fn findings(page: &Page<'_>, report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in report.answers.iter().flat_map(|answers: &Answers| &answers.findings) {
        lines.extend(finding_lines(page, finding, &report.id));
    }
    lines
}

fn finding_lines(page: &Page<'_>, finding: &Finding, job: &str) -> Vec<String> {
    let room = page.width - 2;
    let mut lines = Vec::new();
    for (index, part) in text::wrap(&text::escape(&finding.what), room).iter().enumerate() {
        let mark = if index == 0 { "!" } else { " " };
        lines.push(format!(
            "{} {}",
            page.style.paint(Paint::Yellow, mark),
            page.style.paint(Paint::Bold, part)
        ));
    }
    lines.extend(text::wrap(&text::escape(&finding.how), room).into_iter().map(|part| format!("  {part}")));
    let saves = words::saving(&finding.saving);
    let more = format!("met explain {} {}", text::escape(job), finding.rule);
    let words = [saves, Some(more)].into_iter().flatten();
    let last = filled(words, SEPARATOR, room);
    lines.extend(last.iter().map(|line| format!("  {}", page.style.paint(Paint::Dim, line))));
    lines
}

#[cfg(test)]
mod tests {
    use met_core::sample;
    use met_insight::answers::compared::Kind;
    use met_insight::answers::{Bottleneck, Difference, Directive, FollowUp, Limit, Phase, PhaseKind};
    use met_insight::finding::{Saving, Severity};
    use met_insight::report::Measure;
    use met_insight::report::{Machine, report};

    use super::*;
    use crate::view::Style;

    fn full() -> Answers {
        let phase = |kind, begin_s, end_s, cores| Phase {
            kind,
            begin_s,
            end_s,
            cores: Some(cores),
            io_wait: None,
            gpus: None,
        };
        let saving = Saving { core_hours: Some(30.0), energy_joules: Some(4e6), ..Saving::default() };
        Answers {
            verdict: "finished in 2h0m0s, limited by one core (0.99 of 16 cores busy)".to_owned(),
            phases: vec![
                phase(PhaseKind::StartUp, 0.0, 60.0, 0.2),
                phase(PhaseKind::Compute, 60.0, 7000.0, 0.99),
                phase(PhaseKind::IdleTail, 7000.0, 7200.0, 0.0),
            ],
            bottleneck: Some(Bottleneck {
                limit: Limit::OneCore,
                evidence: vec!["0.99 of 16 cores busy".to_owned()],
            }),
            revisited: Vec::new(),
            imbalance: vec!["n1 used 1m40s of CPU time, n2 40s".to_owned()],
            findings: vec![Finding {
                rule: "serial_on_many".to_owned(),
                severity: Severity::High,
                subject: "42".to_owned(),
                user: None,
                lineage: None,
                window_ns: (0, 1),
                what: "it computed on one of the 16 cores that it held".to_owned(),
                why: Vec::new(),
                how: "ask for one core: #SBATCH --cpus-per-task=1".to_owned(),
                saving,
                coverage: 1.0,
                held_core_hours: None,
            }],
            directives: vec![Directive {
                resource: "memory",
                text: "#SBATCH --mem=12G".to_owned(),
                value: 12.0 * 1_073_741_824.0,
                asked: Some(64.0 * 1_073_741_824.0),
                runs: 5,
            }],
            differences: vec![Difference {
                what: "duration",
                key: "wall_seconds",
                measure: Measure::Seconds,
                value: 7200.0,
                median: 3600.0,
                low: 3000.0,
                high: 4000.0,
                runs: 7,
                kind: Kind::Since("38".to_owned(), None),
            }],
            followed: vec![FollowUp {
                resource: "cpus",
                job: "38".to_owned(),
                before: 32.0,
                advised: 1.0,
                asked: 16.0,
                is_taken: true,
                saving: Saving { core_hours: Some(32.0), ..Saving::default() },
            }],
        }
    }

    #[test]
    fn the_answers_are_in_their_places_and_fit_the_page() {
        let mut report = report(&sample::bare(42, "train"), Machine { cpus: Some(16) }, sample::NOW_NS);
        report.answers = Some(full());
        for width in [40, 80] {
            let drawn = super::super::render(&report, &Style { width: Some(width), ..Style::plain() });
            assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
        }
        let drawn = super::super::render(&report, &Style::plain());
        for line in [
            "         verdict  finished in 2h0m0s, limited by one core (0.99 of 16 cores\n                  busy)\n",
            "      limited by  one core · 0.99 of 16 cores busy\n",
            "       imbalance  n1 used 1m40s of CPU time, n2 40s\n",
            "          advice  taken: 16 CPUs after 32 CPUs in job 38, saved 32 core-hours\n",
            "       next time  #SBATCH --mem=12G",
            "! it computed on one of the 16 cores that it held\n  ask for one core: #SBATCH --cpus-per-task=1\n",
            " · met explain 42 serial_on_many\n",
        ] {
            assert!(drawn.contains(line), "{line}\n{drawn}");
        }
        let [verdict, limit, finding] =
            ["verdict", "limited by  ", "! it computed"].map(|words| drawn.find(words).unwrap());
        assert!(verdict < limit && limit < finding, "{drawn}");
    }

    #[test]
    fn like_earlier_runs_is_said_in_one_word() {
        let mut normal = full().differences;
        normal[0].kind = Kind::Normal;
        assert_eq!(words::differences(&normal), ["like the last 7"]);
        assert_eq!(words::differences(&[]), [""; 0]);
    }
}
