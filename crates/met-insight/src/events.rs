//! Events that were counted for a job, and what they say together.

use met_core::event::{self, DerivedUnit};
use met_core::job::{EventCount, QualityKind, Record, UncountedEvent};
use serde_json::{Map, Value, json};

use crate::average;
use crate::report::{Amount, Detail, Measure, Section};

/// For `--json`: every event by its name, then what follows from them.
pub fn object(record: &Record, now_ns: i64) -> Value {
    let mut counts = Map::new();
    for one in &record.events {
        let value = json!({
            "count": one.count,
            "counted_ratio": one.counted,
            "kind": one.kind.name(),
            "source": one.source,
        });
        counts.insert(one.name.clone(), value);
    }
    let derived = event::derived(&record.events, average::counted_ns(record, now_ns));
    let derived = derived.into_iter().map(|figure| (figure.name.to_owned(), json!(figure.value)));
    let mut object = json!({ "counts": counts, "derived": derived.collect::<Map<_, _>>() });
    if !record.uncounted_events.is_empty() {
        let reason = |one: &UncountedEvent| (one.name.clone(), json!({ "reason": one.reason }));
        object["not_counted"] = record.uncounted_events.iter().map(reason).collect::<Map<_, _>>().into();
    }
    object
}

/// For a report: one line each.
pub fn section(record: &Record, now_ns: i64) -> Section {
    let mut section = Section::new("Events");
    let mut label = "events";
    let mut put = |amount: Amount, words: String| {
        section.put(label, Some(amount), [Detail::text(Some(words))]);
        label = "";
    };
    for one in &record.events {
        let scaled = if one.counted < 0.999 {
            format!(", counted {:.0} % of the time", one.counted * 100.0)
        } else {
            String::new()
        };
        put(amount_of(one), format!("{}{scaled}", one.name));
    }
    // A sum of what was scaled is no better than its parts.
    let scaled = record.events.iter().any(|one| one.kind != QualityKind::Measured);
    for figure in event::derived(&record.events, average::counted_ns(record, now_ns)) {
        let measure = match figure.unit {
            DerivedUnit::BytesPerSecond => Measure::BytesPerSecond,
            DerivedUnit::Ratio => Measure::Share,
            DerivedUnit::PerCycle => Measure::Cores,
            DerivedUnit::PerSecond => Measure::Count,
        };
        let estimated = scaled || measure == Measure::BytesPerSecond;
        let quality = if estimated { QualityKind::Estimated } else { QualityKind::Measured };
        put(Amount { value: figure.value, measure, quality }, figure.help.to_owned());
    }
    section
}

fn amount_of(one: &EventCount) -> Amount {
    // Clocks are events as well, and count nanoseconds.
    let (value, measure) = match one.name.split(':').next() {
        Some("task_clock" | "cpu_clock") => (one.count as f64 / 1e9, Measure::Seconds),
        _ => (one.count as f64, Measure::Count),
    };
    Amount { value, measure, quality: one.kind }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::sample;

    fn record() -> Record {
        let event = |name: &str, count: i64, counted: f64, kind: QualityKind| EventCount {
            name: name.to_owned(),
            count,
            counted,
            kind,
            source: "perf, cgroup".to_owned(),
        };
        let mut record = sample::finished();
        record.events = vec![
            event("instructions", 3_000_000, 0.5, QualityKind::Estimated),
            event("cpu_cycles", 2_000_000, 1.0, QualityKind::Measured),
            event("task_clock", 1_500_000_000, 1.0, QualityKind::Measured),
        ];
        record
    }

    #[test]
    fn events_are_reported_with_how_they_were_counted() {
        expect![[r#"{"counts":{"instructions":{"count":3000000,"counted_ratio":0.5,"kind":"estimated","source":"perf, cgroup"},"cpu_cycles":{"count":2000000,"counted_ratio":1.0,"kind":"measured","source":"perf, cgroup"},"task_clock":{"count":1500000000,"counted_ratio":1.0,"kind":"measured","source":"perf, cgroup"}},"derived":{"ipc":1.5}}"#]]
        .assert_eq(&object(&record(), sample::NOW_NS).to_string());
        let object = crate::json::object(&record(), sample::NOW_NS);
        assert_eq!(object["events"]["derived"]["ipc"], 1.5);
        assert_eq!(crate::json::object(&sample::finished(), sample::NOW_NS).get("events"), None);
    }

    #[test]
    fn what_could_not_be_counted_has_its_reason() {
        let mut record = sample::finished();
        let uncounted =
            |name: &str, reason: &str| UncountedEvent { name: name.into(), reason: reason.into() };
        record.uncounted_events = vec![
            uncounted("instructions", "does not count it"),
            uncounted("r7", "not allowed"),
            uncounted("cpu_cycles", "does not count it"),
        ];
        expect![[r#"{"counts":{},"derived":{},"not_counted":{"instructions":{"reason":"does not count it"},"r7":{"reason":"not allowed"},"cpu_cycles":{"reason":"does not count it"}}}"#]]
        .assert_eq(&crate::json::object(&record, sample::NOW_NS)["events"].to_string());
        let notes = crate::report::report(&record, crate::report::Machine::default(), sample::NOW_NS).notes;
        let reported: Vec<_> = notes.iter().filter(|note| note.starts_with("perf events")).collect();
        assert_eq!(
            reported,
            [
                "perf events not counted: instructions, cpu_cycles (does not count it)",
                "perf events not counted: r7 (not allowed)",
            ]
        );
    }

    #[test]
    fn a_report_has_a_line_for_each() {
        let lines = section(&record(), sample::NOW_NS).lines;
        let texts: Vec<_> =
            lines.iter().map(|line| (line.label, line.amount.value, line.amount.quality)).collect();
        assert_eq!(
            texts,
            [
                ("events", 3e6, QualityKind::Estimated),
                ("", 2e6, QualityKind::Measured),
                ("", 1.5, QualityKind::Measured),
                ("", 1.5, QualityKind::Estimated),
            ]
        );
        assert_eq!(lines[0].details[0].after, "instructions, counted 50 % of the time");
    }
}
