//! Time, energy and emissions per unit of work.

use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_core::work::Work;
use serde_json::{Value, json};

use crate::json::time;
use crate::report::{Amount, Detail, Measure, Section};

/// What one unit took. What is not known is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct PerUnit<'a> {
    pub work: &'a Work,
    /// Units between the first and the last mark.
    pub units: f64,
    pub seconds: Option<f64>,
    pub joules: Option<f64>,
    pub grams: Option<f64>,
}

/// Energy is that of the job for the share of its time between the marks: they say nothing of more.
pub const ENERGY_QUALITY: QualityKind = QualityKind::Estimated;

pub fn per_unit(record: &Record, now_ns: i64) -> Vec<PerUnit<'_>> {
    record.work.iter().map(|work| of_work(record, work, now_ns)).collect()
}

fn of_work<'a>(record: &Record, work: &'a Work, now_ns: i64) -> PerUnit<'a> {
    // The first mark of one alone is compared with the begin of the job, where nothing was done.
    let start = record.start_ns.filter(|_| work.marks == 1);
    let (from, from_ns) = match start {
        Some(start_ns) => (0.0, Some(start_ns)),
        None => (work.first.value, work.first.time_ns),
    };
    let units = work.last.value - from;
    let span_ns = from_ns.zip(work.last.time_ns).map(|(from, to)| to - from).filter(|&span_ns| span_ns > 0);
    let counts = work.counts && units > 0.0;
    let seconds = span_ns.filter(|_| counts).map(|span_ns| span_ns as f64 / 1e9 / units);
    let wall_ns = record.wall_ns(now_ns).filter(|&wall_ns| wall_ns > 0);
    let share = span_ns.zip(wall_ns).map(|(span, wall)| (span as f64 / wall as f64).min(1.0));
    let part = |index: usize, scale: f64| {
        let total = record.totals.get(index).filter(|_| counts)? as f64 / scale;
        Some(total * share? / units)
    };
    PerUnit { work, units, seconds, joules: part(column::ENERGY, 1e6), grams: part(column::EMISSIONS, 1e6) }
}

/// Lines of a report: what one unit took, or the last value of what counts nothing.
pub(crate) fn section(record: &Record, now_ns: i64) -> Section {
    let mut section = Section::new("Work");
    let amount = |value: Option<f64>, measure, quality| value.map(|value| Amount { value, measure, quality });
    for per in per_unit(record, now_ns) {
        let name = || Detail::text(Some(per.work.name.clone()));
        let of = || Detail::text(Some(format!("per {}", per.work.name)));
        let marks =
            Detail::text(Some(format!("in {}", met_core::units::counted(per.work.marks as usize, "mark"))));
        let last = amount(Some(per.work.last.value), Measure::Number, QualityKind::Measured);
        section.put("marked", last, [name(), marks]);
        section.put("time", amount(per.seconds, Measure::Seconds, QualityKind::Measured), [of()]);
        section.put("unit energy", amount(per.joules, Measure::Joules, ENERGY_QUALITY), [of()]);
        section.put("unit emissions", amount(per.grams, Measure::Grams, ENERGY_QUALITY), [of()]);
    }
    section
}

pub fn object(record: &Record, now_ns: i64) -> Value {
    let one = |per: &PerUnit<'_>| {
        let point =
            |mark: &met_core::work::Mark| json!({ "value": mark.value, "time": mark.time_ns.and_then(time) });
        json!({
            "name": per.work.name,
            "marks": per.work.marks,
            "first": per.work.first.value,
            "last": per.work.last.value,
            "is_count": per.work.counts,
            "seconds_per_unit": per.seconds,
            "energy_joules_per_unit": per.joules,
            "emissions_grams_per_unit": per.grams,
            "points": per.work.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    Value::Array(per_unit(record, now_ns).iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_takes_its_part_of_time_and_energy() {
        let mut record = crate::sample::finished();
        (record.start_ns, record.end_ns) = (Some(1_000_000_000), Some(101_000_000_000));
        record.totals.set(column::ENERGY, 1_000_000_000, QualityKind::Measured, "rapl");
        record.totals.remove(column::EMISSIONS);
        record.work =
            met_core::work::parse(b"@11000000000 step=0 loss=2\n@61000000000 step=100 loss=1\nepoch=3\n");
        let per = per_unit(&record, 0);
        let shown: Vec<_> = per.iter().map(|one| (one.work.name.as_str(), one.seconds, one.joules)).collect();
        assert_eq!(
            shown,
            [("epoch", None, None), ("loss", None, None), ("step", Some(0.5), Some(5.0))],
            "half of the time, half of the energy"
        );
        assert_eq!(per[2].grams, None, "what is unknown is absent");
        assert_eq!(object(&record, 0)[2]["energy_joules_per_unit"], 5.0);
    }
}
