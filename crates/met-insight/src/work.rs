//! Time, energy and emissions per unit of work.

use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_core::series::Interval;
use met_core::work::{Mark, Work};
use serde_json::{Value, json};

use crate::answers::Known;
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
    objects(record, now_ns, None)
}

/// The same with the energy of units over time, which only samples know.
pub fn object_of(record: &Record, known: &Known, now_ns: i64) -> Value {
    objects(record, now_ns, Some(known))
}

/// From one point to the next, what a unit took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Step {
    units_per_second: Option<f64>,
    joules: Option<f64>,
    grams: Option<f64>,
}

/// The share of the time between two points that samples must cover.
const COVERAGE: f64 = 0.95;

/// What a counter grew by in a span of unix nanoseconds, in its sub-unit, where samples cover enough of it.
fn grown(spans: &[Interval], (from_ns, to_ns): (i64, i64)) -> Option<f64> {
    let (begin_ms, end_ms) = (from_ns as f64 / 1e6, to_ns as f64 / 1e6);
    let (mut amount, mut covered_ms) = (0.0, 0.0);
    let first = spans.partition_point(|span| span.end_ms as f64 <= begin_ms);
    for span in spans[first..].iter().take_while(|span| (span.begin_ms as f64) < end_ms) {
        let inside_ms = (span.end_ms as f64).min(end_ms) - (span.begin_ms as f64).max(begin_ms);
        amount += span.value * inside_ms / 1e3;
        covered_ms += inside_ms;
    }
    (covered_ms >= COVERAGE * (end_ms - begin_ms)).then_some(amount)
}

fn step(work: &Work, record: &Record, before: Option<&Mark>, mark: &Mark, energy: &[Interval]) -> Step {
    let Some((before, counts)) = before.zip(Some(work.counts)) else { return Step::default() };
    let span_ns = before.time_ns.zip(mark.time_ns).filter(|(from_ns, to_ns)| counts && from_ns < to_ns);
    let units = mark.value - before.value;
    let Some((from_ns, to_ns)) = span_ns.filter(|_| units >= 0.0) else { return Step::default() };
    let seconds = (to_ns - from_ns) as f64 / 1e9;
    let joules = grown(energy, (from_ns, to_ns)).map(|uj| uj / 1e6);
    // Emissions of past energy may be computed later, of all of it at once.
    let per_joule = || {
        let total = |index: usize| Some(met_core::JOB.columns[index].scaled(record.totals.get(index)?));
        Some(total(column::EMISSIONS)? / total(column::ENERGY).filter(|&joules| joules > 0.0)?)
    };
    let grams = joules.and_then(|joules| Some(joules * per_joule()?));
    let each = |amount: Option<f64>| amount.filter(|_| units > 0.0).map(|amount| amount / units);
    Step { units_per_second: Some(units / seconds), joules: each(joules), grams: each(grams) }
}

fn objects(record: &Record, now_ns: i64, known: Option<&Known>) -> Value {
    let energy = known.map(|known| known.intervals(column::ENERGY)).unwrap_or_default();
    let one = |per: &PerUnit<'_>| {
        let befores = [None].into_iter().chain(per.work.points.iter().map(Some));
        let point = |(before, mark): (Option<&Mark>, &Mark)| {
            let step = step(per.work, record, before, mark, &energy);
            json!({
                "value": mark.value,
                "time": mark.time_ns.and_then(time),
                "units_per_second": step.units_per_second,
                "energy_joules_per_unit": step.joules,
                "emissions_grams_per_unit": step.grams,
            })
        };
        json!({
            "name": per.work.name,
            "marks": per.work.marks,
            "first": per.work.first.value,
            "last": per.work.last.value,
            "is_count": per.work.counts,
            "seconds_per_unit": per.seconds,
            "energy_joules_per_unit": per.joules,
            "emissions_grams_per_unit": per.grams,
            "points": befores.zip(&per.work.points).map(point).collect::<Vec<_>>(),
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

    #[test]
    fn work_that_becomes_slower_shows_it_over_time() {
        let start_ns = crate::sample::START_NS;
        let at = |second: i64, step: i64| format!("@{} step={step}\n", start_ns + second * 1_000_000_000);
        // Half as fast after a minute, at the same power.
        let marks: String = [(0, 0), (60, 120), (120, 180)].map(|(second, step)| at(second, step)).concat();
        let made = crate::series_tests::made(120).rate(column::ENERGY, |_| 100.0);
        let mut record = made.record.clone();
        record.totals.set(column::EMISSIONS, 6_000_000, QualityKind::Estimated, "grid");
        record.work = met_core::work::parse(marks.as_bytes());
        let machine = crate::report::Machine::default();
        let mut series = Some(made.series);
        let known = Known::read(std::time::Duration::from_secs(1), &record, machine, &mut |table, _| {
            Ok::<_, std::convert::Infallible>(
                series.take().unwrap_or_else(|| met_core::series::Series::new(table)),
            )
        });
        let Ok(known) = known;
        let points = |object: Value| {
            let of = |point: &Value| {
                ["units_per_second", "energy_joules_per_unit", "emissions_grams_per_unit"]
                    .map(|name| point[name].as_f64().map(|value| (value * 1e6).round() / 1e6))
            };
            object[0]["points"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
        };
        let expected =
            [[None; 3], [Some(2.0), Some(50.0), Some(0.025)], [Some(1.0), Some(100.0), Some(0.05)]];
        assert_eq!(points(object_of(&record, &known, 0)), expected);
        let unsampled = points(object(&record, 0));
        assert_eq!(unsampled[1..], [[Some(2.0), None, None], [Some(1.0), None, None]]);
    }
}
