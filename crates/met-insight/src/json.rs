//! The public object of a job: what `--json` prints. Its keys are a promise, written in docs/json.md.

use jiff::Timestamp;
use met_core::job::{EarlierRequest, Emission, Figure, Part, QualityKind, Record, Resources};
use met_core::job_processes::{JobProcess, is_complete};
use met_core::series::{SPREAD_NAMES, Series};
use met_core::{Column, JOB, MISSING, Unit};
use serde_json::{Map, Value, json};

use crate::allocation::{self, Resource, Share};
use crate::job_object::JobObject;

/// Raised when a key changes its meaning or goes away; a new key does not raise it.
pub const VERSION: u32 = 1;

pub fn object(record: &Record, now_ns: i64) -> Value {
    // Its keys are texts and its numbers are finite or null, so that cannot fail.
    serde_json::to_value(JobObject::new(record, now_ns)).unwrap_or_default()
}

/// One of the largest processes of a job that is over.
pub fn process(process: &JobProcess) -> Value {
    let quality = if is_complete(process) { QualityKind::Measured } else { QualityKind::LowerBound };
    let command_line = Some(&process.command_line).filter(|words| !words.is_empty());
    Value::Object(known([
        ("pid", json!(process.pid)),
        ("ppid", json!(process.ppid)),
        ("uid", json!(process.uid)),
        ("user", json!(process.user)),
        ("command", json!(process.command)),
        ("command_line", json!(command_line)),
        ("node", json!(process.node)),
        ("start", json!(process.start_ns.and_then(time))),
        ("end", json!(process.end_ns.or(process.end_seen_ns).and_then(time))),
        ("quality", json!(quality.name())),
        ("cpu_seconds", seconds(process.cpu_ns)),
        ("memory_peak_bytes", json!(process.memory_peak_bytes)),
        ("read_bytes", json!(process.read_bytes)),
        ("written_bytes", json!(process.written_bytes)),
    ]))
}

/// An object of what is known; what is not has no key.
fn known<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn seconds(ns: Option<i64>) -> Value {
    json!(ns.map(|ns| ns as f64 / 1e9))
}

pub(crate) fn resources(resources: &Resources) -> Value {
    let mut object = known([
        ("nodes", json!(resources.nodes)),
        ("cpus", json!(resources.cpus)),
        ("memory_bytes", json!(resources.memory_bytes)),
        ("gpus", json!(resources.gpus)),
        ("time_limit_seconds", seconds(resources.time_limit_ns)),
    ]);
    if !resources.other.is_empty() {
        object.insert("other".to_owned(), json!(resources.other));
    }
    Value::Object(object)
}

pub(crate) fn efficiency(record: &Record, now_ns: i64) -> Value {
    let shares = allocation::shares(record, now_ns);
    let of = |resource| shares.iter().find(|share| share.resource == resource).and_then(Share::efficiency);
    Value::Object(known([
        ("cpu_ratio", json!(of(Resource::Cpus))),
        ("memory_ratio", json!(of(Resource::Memory))),
        ("gpu_ratio", json!(of(Resource::Gpus))),
        ("time_ratio", json!(of(Resource::Time))),
    ]))
}

pub(crate) fn scheduling(record: &Record, now_ns: i64) -> Value {
    let scheduling = &record.scheduling;
    let earlier = |one: &EarlierRequest| {
        json!({
            "until": time(one.until_ns),
            "requested": resources(&one.requested),
            "allocated": resources(&one.allocated),
        })
    };
    let earlier: Vec<Value> = scheduling.earlier.iter().map(earlier).collect();
    Value::Object(known([
        ("partition", json!(scheduling.partition)),
        ("qos", json!(scheduling.qos)),
        ("reason", json!(scheduling.reason)),
        ("submit", json!(scheduling.submit_ns.and_then(time))),
        ("eligible", json!(scheduling.eligible_ns.and_then(time))),
        ("queue_wait_seconds", seconds(allocation::queue_wait_ns(record, now_ns))),
        ("array_id", json!(scheduling.array_id)),
        ("array_index", json!(scheduling.array_index)),
        ("het_id", json!(scheduling.het_id)),
        ("het_offset", json!(scheduling.het_offset)),
        ("restarts", json!(scheduling.restarts)),
        ("exclusive", json!(scheduling.exclusive)),
        ("cpu_seconds", seconds(scheduling.cpu_ns)),
        ("memory_peak_bytes", json!(scheduling.memory_peak_bytes)),
        ("asked", json!(scheduling.asked_ns.and_then(time))),
        ("earlier", json!((!earlier.is_empty()).then_some(earlier))),
    ]))
}

/// What the emissions were computed with.
pub(crate) fn emission(emission: &Emission) -> Value {
    json!({
        "factor_grams_per_kilowatt_hour": emission.factor_mg_per_kwh as f64 / 1e3,
        "factor_source": emission.factor_source,
        "factor_time": emission.factor_time_ns.and_then(time),
        "pue": emission.pue(),
    })
}

pub(crate) fn part(part: &Part) -> Value {
    let figures: Vec<(usize, Figure)> =
        part.totals.iter().map(|(column, figure)| (column, figure.clone())).collect();
    json!({
        "node": part.node,
        "step": part.step,
        "task": part.task,
        "name": part.name,
        "start": part.start_ns.and_then(time),
        "end": part.end_ns.and_then(time),
        "exit_code": part.exit_code,
        "folded": part.folded,
        "totals": by_name(&figures, |column, figure| number(column, figure.value)),
        "quality": by_name(&figures, quality),
    })
}

fn quality(_: &Column, figure: &Figure) -> Value {
    json!({ "kind": figure.kind.name(), "source": figure.source })
}

fn by_name(figures: &[(usize, Figure)], value: impl Fn(&Column, &Figure) -> Value) -> Value {
    let named = figures.iter().map(|(column, figure)| {
        let column = &JOB.columns[*column];
        (column.json_name(), value(column, figure))
    });
    Value::Object(named.collect())
}

/// Bytes and counts are whole; a count with a fraction (cores) and seconds are not.
pub fn number(column: &Column, cell: i64) -> Value {
    let whole = matches!(column.unit, Unit::Bytes | Unit::Count) && column.scale >= 1.0;
    if whole { json!(column.scaled(cell) as i64) } else { json!(column.scaled(cell)) }
}

/// Times and the columns that were read, in their units; what was not read is null.
pub fn series(series: &Series) -> Map<String, Value> {
    let mut columns = Map::new();
    for (column, cells) in series.table.columns.iter().zip(&series.columns) {
        if cells.iter().any(|&cell| cell != MISSING) {
            let value = |&cell: &i64| (cell != MISSING).then(|| column.scaled(cell));
            columns.insert(column.json_name(), cells.iter().map(value).map(Value::from).collect());
        }
    }
    let times = series.times_ms.iter().map(|time_ms| Value::from(time(time_ms * 1_000_000)));
    let mut object =
        Map::from_iter([("times".to_owned(), times.collect()), ("columns".to_owned(), columns.into())]);
    if series.spreads.is_some() {
        object.insert("thinned".to_owned(), thinned(series));
    }
    object
}

/// What happened before the samples that thinning left: levels, and growths per second.
fn thinned(series: &Series) -> Value {
    let mut columns = Map::new();
    for (index, column) in series.table.columns.iter().enumerate() {
        let mut values: [Vec<Option<f64>>; 3] = std::array::from_fn(|_| vec![None; series.len()]);
        let mut intervals = series.intervals(index, 0).filter(|interval| interval.is_thinned).peekable();
        if intervals.peek().is_none() {
            continue;
        }
        for interval in intervals {
            let row = series.times_ms.partition_point(|&time_ms| time_ms < interval.end_ms);
            let figures = [interval.low, interval.value, interval.peak];
            for (values, figure) in values.iter_mut().zip(figures) {
                values[row] = Some(figure * column.scale);
            }
        }
        let named = SPREAD_NAMES.iter().zip(values).map(|(name, values)| ((*name).to_owned(), json!(values)));
        columns.insert(column.json_name(), Value::Object(named.collect()));
    }
    Value::Object(columns)
}

/// A time in RFC 3339, in unix nanoseconds.
pub fn parse_time(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().and_then(|time| i64::try_from(time.as_nanosecond()).ok())
}

/// RFC 3339 in UTC with microseconds, always as long: texts sort like the times they mean.
pub fn time(unix_ns: i64) -> Option<String> {
    Timestamp::from_nanosecond(unix_ns.into()).ok().map(|time| format!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_core::job::State;
    use met_core::job_table::WALL;

    use super::*;
    use crate::sample;

    /// One line per section, the sections in their order.
    fn text(record: &Record) -> String {
        let object = object(record, sample::NOW_NS);
        let sections = object.as_object().unwrap().iter();
        sections.map(|(name, section)| format!("{name}: {section}\n")).collect()
    }

    #[test]
    fn a_finished_job_has_every_key_in_its_order() {
        expect![[r#"
            version: 1
            job: {"id":"42","raw_id":"42","manager":"local","cluster":null,"name":"sum","user":"alice","account":null,"command":["sh","-c","echo \"a b\""],"state":"finished","manager_state":null,"exit_code":0,"signal":null,"start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:48.500000Z","nodes":["n1"],"as_of":null,"inside":null}
            requested: {}
            totals: {"wall_seconds":4.0,"cpu_seconds":5.0,"cpu_user_seconds":3.75,"cores_peak":1.875,"memory_needed_peak_bytes":3145728,"read_bytes":4096,"processes":3}
            average: {"cores":1.25,"read_bytes_per_second":1024.0,"memory_needed_bytes":2097152.0,"memory_ratio":0.001953125}
            quality: {"wall_seconds":{"kind":"measured","source":"supervisor"},"cpu_seconds":{"kind":"measured","source":"rusage"},"cpu_user_seconds":{"kind":"measured","source":"rusage"},"cores_peak":{"kind":"sampled","source":"proc"},"memory_needed_peak_bytes":{"kind":"estimated","source":"proc"},"read_bytes":{"kind":"lower_bound","source":"proc"},"processes":{"kind":"measured","source":"proc"}}
            gpus: []
            allocated: {}
            efficiency: {}
            scheduling: {}
            parts: []
            emission: null
        "#]].assert_eq(&text(&sample::finished()));
    }

    #[test]
    fn a_job_of_a_manager_has_what_the_manager_knows() {
        expect![[r#"
            version: 1
            job: {"id":"1234_7","raw_id":"1240","manager":"slurm","cluster":"tux","name":"sum","user":"alice","account":"physics","command":["sh","-c","echo \"a b\""],"state":"finished","manager_state":"COMPLETED","exit_code":0,"signal":null,"start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:48.500000Z","nodes":["n1"],"as_of":null,"inside":null}
            requested: {"cpus":4,"memory_bytes":536870912,"gpus":2,"time_limit_seconds":3600.0}
            totals: {"wall_seconds":4.0,"cpu_seconds":5.0,"cpu_user_seconds":3.75,"cores_peak":1.875,"memory_needed_peak_bytes":3145728,"read_bytes":4096,"processes":3}
            average: {"cores":1.25,"read_bytes_per_second":1024.0,"memory_needed_bytes":2097152.0,"memory_ratio":0.001953125}
            quality: {"wall_seconds":{"kind":"measured","source":"supervisor"},"cpu_seconds":{"kind":"measured","source":"rusage"},"cpu_user_seconds":{"kind":"measured","source":"rusage"},"cores_peak":{"kind":"sampled","source":"proc"},"memory_needed_peak_bytes":{"kind":"estimated","source":"proc"},"read_bytes":{"kind":"lower_bound","source":"proc"},"processes":{"kind":"measured","source":"proc"}}
            gpus: []
            allocated: {"nodes":1,"cpus":4,"memory_bytes":536870912,"gpus":2,"other":{"billing":"4"}}
            efficiency: {"cpu_ratio":0.3125,"memory_ratio":0.005859375,"time_ratio":0.0011111111111111111}
            scheduling: {"partition":"batch","qos":"normal","reason":"Resources","submit":"2026-01-14T16:39:14.500000Z","queue_wait_seconds":90.0,"array_id":"1234","array_index":7,"restarts":1,"asked":"2026-01-14T16:40:54.500000Z"}
            parts: [{"node":"n1","step":"batch","task":null,"name":null,"start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:47.500000Z","exit_code":0,"folded":null,"totals":{"cpu_seconds":1.0,"memory_peak_bytes":2097152},"quality":{"cpu_seconds":{"kind":"measured","source":"cgroup"},"memory_peak_bytes":{"kind":"measured","source":"cgroup"}}},{"node":"n1","step":"0","task":null,"name":"solve","start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:47.500000Z","exit_code":3,"folded":null,"totals":{"cpu_seconds":4.0,"memory_peak_bytes":2097152},"quality":{"cpu_seconds":{"kind":"measured","source":"cgroup"},"memory_peak_bytes":{"kind":"measured","source":"cgroup"}}},{"node":"n1","step":"0","task":"0","name":"solve","start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:47.500000Z","exit_code":0,"folded":null,"totals":{"cpu_seconds":1.9,"memory_peak_bytes":2097152},"quality":{"cpu_seconds":{"kind":"measured","source":"cgroup"},"memory_peak_bytes":{"kind":"measured","source":"cgroup"}}},{"node":"n1","step":"0","task":"1","name":"solve","start":"2026-01-14T16:40:44.500000Z","end":"2026-01-14T16:40:47.500000Z","exit_code":3,"folded":null,"totals":{"cpu_seconds":2.0,"memory_peak_bytes":2097152},"quality":{"cpu_seconds":{"kind":"measured","source":"cgroup"},"memory_peak_bytes":{"kind":"measured","source":"cgroup"}}}]
            emission: null
        "#]].assert_eq(&text(&sample::scheduled()));
    }

    #[test]
    fn a_job_of_which_nothing_is_known_has_nulls_and_no_zeros() {
        let mut record = sample::finished();
        record.state = State::Pending;
        (record.user, record.exit_code, record.start_ns, record.end_ns) = (None, None, None, None);
        (record.command, record.nodes) = (Vec::new(), Vec::new());
        (record.totals, record.summaries) = Default::default();
        expect![[r#"
            version: 1
            job: {"id":"42","raw_id":"42","manager":"local","cluster":null,"name":"sum","user":null,"account":null,"command":[],"state":"pending","manager_state":null,"exit_code":null,"signal":null,"start":null,"end":null,"nodes":[],"as_of":null,"inside":null}
            requested: {}
            totals: {}
            average: {}
            quality: {}
            gpus: []
            allocated: {}
            efficiency: {}
            scheduling: {}
            parts: []
            emission: null
        "#]].assert_eq(&text(&record));
    }

    #[test]
    fn a_running_job_has_the_wall_time_so_far() {
        let mut record = sample::finished();
        (record.state, record.end_ns, record.exit_code) = (State::Running, None, None);
        let object = object(&record, sample::NOW_NS);
        assert_eq!(object["totals"]["wall_seconds"], 10.0);
        assert_eq!(object["quality"]["wall_seconds"]["source"], "clock");
        assert_eq!(object["average"]["cores"], 0.5);
        assert_eq!(object["job"]["end"], Value::Null);
    }

    #[test]
    fn averages_are_over_the_time_that_the_totals_are_of() {
        let mut record = sample::finished();
        (record.state, record.end_ns, record.exit_code) = (State::Running, None, None);
        record.as_of_ns = Some(sample::START_NS + 5_000_000_000);
        let object = object(&record, sample::NOW_NS);
        assert_eq!(
            (&object["totals"]["wall_seconds"], &object["average"]["cores"]),
            (&json!(10.0), &json!(1.0))
        );
        assert_eq!(object["job"]["as_of"], "2026-01-14T16:40:49.500000Z");
    }

    #[test]
    fn a_lost_job_has_no_wall_time() {
        let mut record = sample::finished();
        (record.state, record.end_ns) = (State::Lost, None);
        record.totals.remove(WALL);
        let object = object(&record, sample::NOW_NS);
        assert_eq!(object["totals"].get("wall_seconds"), None);
        assert_eq!(object["average"].get("cores"), None);
    }

    #[test]
    fn a_killed_job_has_a_signal_and_no_exit_code() {
        let mut record = sample::finished();
        (record.exit_code, record.signal) = (Some(137), Some(9));
        let object = object(&record, sample::NOW_NS);
        assert_eq!((&object["job"]["exit_code"], &object["job"]["signal"]), (&Value::Null, &json!(9)));
    }

    #[test]
    fn quality_names_every_total() {
        let object = object(&sample::finished(), sample::NOW_NS);
        let keys = |name: &str| object[name].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys("totals"), keys("quality"));
    }

    #[test]
    fn thinned_samples_have_their_extremes_and_means() {
        use met_core::job_table::{CPU, MEMORY_NEEDED};
        let mut series = Series::new(&JOB);
        for second in 0..60 {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (second * 500_000_000, if second == 9 { 600 } else { 100 });
            series.push(second * 1000, &cells);
        }
        assert_eq!(super::series(&series).get("thinned"), None);
        let mut thinner = met_core::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series);
        let object = super::series(&thinner.finish());
        assert_eq!(object["times"].as_array().unwrap().len(), 2);
        assert_eq!(object["columns"]["cpu_seconds"], json!([0.0, 29.5]));
        assert_eq!(object["thinned"]["cpu_seconds"]["mean"], json!([null, 0.5]));
        assert_eq!(object["thinned"]["memory_needed_bytes"]["max"], json!([null, 600.0]));
        assert_eq!(object["thinned"]["memory_needed_bytes"]["min"], json!([null, 100.0]));
    }

    #[test]
    fn the_page_about_it_has_every_key() {
        let page = include_str!("../../../docs/json.md");
        for column in JOB.columns {
            let row = format!("| `{}` | {} |", column.json_name(), column.help);
            assert!(page.contains(&row), "docs/json.md lacks: {row}");
        }
        let object = object(&sample::finished(), sample::NOW_NS);
        for section in ["job", "average"] {
            for key in object[section].as_object().unwrap().keys() {
                assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks {section}.{key}");
            }
        }
        let mut scheduled = sample::scheduled();
        scheduled.scheduling.eligible_ns = Some(0);
        scheduled.scheduling.exclusive = Some(true);
        (scheduled.scheduling.het_id, scheduled.scheduling.het_offset) = (Some("1".to_owned()), Some(0));
        (scheduled.scheduling.cpu_ns, scheduled.scheduling.memory_peak_bytes) = (Some(1), Some(1));
        scheduled.scheduling.earlier = vec![Default::default()];
        scheduled.gpus = vec![sample::gpu()];
        scheduled.processes = vec![JobProcess {
            pid: 7,
            ppid: Some(1),
            uid: Some(1000),
            user: Some("ada".to_owned()),
            command: "make".to_owned(),
            command_line: vec!["make".to_owned(), "all".to_owned()],
            start_ns: Some(0),
            end_ns: Some(1),
            end_seen_ns: None,
            cpu_ns: Some(1),
            memory_peak_bytes: Some(1),
            read_bytes: Some(1),
            written_bytes: Some(1),
            node: Some("n1".to_owned()),
        }];
        let object = super::object(&scheduled, sample::NOW_NS);
        let part = &object["parts"][0];
        let sections = ["requested", "allocated", "efficiency", "scheduling"].map(|name| &object[name]);
        let process = &object["processes"][0];
        assert_eq!((process.as_object().unwrap().len(), &process["command"]), (14, &json!("make")));
        assert_eq!((&process["quality"], &process["command_line"][1]), (&json!("measured"), &json!("all")));
        for key in sections
            .into_iter()
            .chain([part, process])
            .flat_map(|section| section.as_object().unwrap().keys())
        {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks {key}");
        }
        for name in State::ALL.map(State::name).into_iter().chain(QualityKind::ALL.map(QualityKind::name)) {
            assert!(page.contains(&format!("`{name}`")), "docs/json.md lacks {name}");
        }
    }
}
