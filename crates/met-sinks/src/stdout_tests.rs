use std::sync::{Arc, Mutex};

use expect_test::{Expect, expect};
use met_core::job::QualityKind;
use met_core::job_table::{CPU, MEMORY_NEEDED};
use met_core::series::Series;
use met_core::{JOB, MISSING, sample};
use met_wire::batch::Subject;
use serde_json::Value;

use super::*;
use crate::event::{Samples, Tick, TickRow};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options(format: &str) -> Options {
    let mut options = Options::default();
    options.set("format", vec![format.to_owned()]);
    options
}

fn written(format: &str, events: &[Event]) -> String {
    let to = Shared::default();
    let mut sink = Stdout::new(to.clone(), &options(format));
    events.iter().for_each(|event| sink.take(event).unwrap());
    let bytes = to.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

fn check(format: &str, events: &[Event], expected: Expect) {
    expected.assert_eq(&written(format, events));
}

fn samples(subject: Subject) -> Event {
    let mut series = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    (cells[CPU], cells[MEMORY_NEEDED]) = (1_500_000_000, 4096);
    series.push(1_000, &cells);
    cells[MEMORY_NEEDED] = MISSING;
    series.push(2_000, &cells);
    Event::Samples(Arc::new(Samples { node: Some("n1".to_owned()), subject, series }))
}

fn tick() -> Event {
    static TABLE: met_core::Table = met_core::Table {
        name: "meter",
        subject: "",
        labels: &["zone", "name"],
        columns: &[met_core::Column::gauge("level", met_core::Unit::Count, 1.0, "")],
    };
    let mut tick = Tick::new(3_000_000_000, &TABLE);
    let labels = vec!["0".to_owned(), "a, \"b\"".to_owned()];
    tick.push(TickRow { job: Some(sample::bare(1, "x").key), user: None, labels }, &[7]);
    Event::Tick(Arc::new(tick))
}

#[test]
fn samples_and_ticks_are_a_line_each_and_what_is_missing_has_no_key() {
    let subject = Subject::Job(sample::bare(1, "x").key);
    check(
        "json",
        &[samples(subject), tick()],
        expect![[r#"
        {"event":"sample","time":"1970-01-01T00:00:01.000000Z","table":"job","values":{"cpu_seconds":1.5,"memory_needed_bytes":4096},"node":"n1","job":{"raw_id":"1","manager":"local","cluster":null}}
        {"event":"sample","time":"1970-01-01T00:00:02.000000Z","table":"job","values":{"cpu_seconds":1.5},"node":"n1","job":{"raw_id":"1","manager":"local","cluster":null}}
        {"event":"tick","time":"1970-01-01T00:00:03.000000Z","table":"meter","values":{"level":7},"job":{"raw_id":"1","manager":"local","cluster":null},"labels":{"zone":"0","name":"a, \"b\""}}
    "#]],
    );
}

#[test]
fn csv_has_a_value_in_each_line_and_quotes_what_needs_it() {
    check(
        "csv",
        &[samples(Subject::Device("GPU-1".to_owned())), tick()],
        expect![[r#"
        time,event,table,node,manager,job,part,name,value
        1970-01-01T00:00:01.000000Z,sample,job,n1,,,GPU-1,cpu_seconds,1.5
        1970-01-01T00:00:01.000000Z,sample,job,n1,,,GPU-1,memory_needed_bytes,4096
        1970-01-01T00:00:02.000000Z,sample,job,n1,,,GPU-1,cpu_seconds,1.5
        1970-01-01T00:00:03.000000Z,tick,meter,,local,1,"0 a, ""b""",level,7
    "#]],
    );
}

#[test]
fn a_job_is_the_object_that_is_printed_elsewhere() {
    let mut record = sample::full(1, "x");
    record.totals.set(CPU, 2_000_000_000, QualityKind::Measured, "cgroup");
    let line = written("json", &[Event::Ended(Arc::new(record.clone()))]);
    let line: Value = serde_json::from_str(line.strip_suffix('\n').unwrap()).unwrap();
    let object = met_insight::json::object(&record, 0);
    assert_eq!((&line["event"], &line["job"]), (&Value::from("ended"), &object["job"]));
    assert_eq!(line["totals"], object["totals"]);
    let csv = written("csv", &[Event::Started(Arc::new(record))]);
    assert!(csv.contains(",started,job,,local,1,,cpu_seconds,2.0\n"), "{csv}");
}

#[test]
fn a_closed_pipe_ends_the_sink_and_another_error_loses_an_event() {
    struct Fails(io::ErrorKind);
    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let take = |kind| Stdout::new(Fails(kind), &Options::default()).take(&tick()).unwrap_err();
    assert!(matches!(take(io::ErrorKind::BrokenPipe), SinkError::Failed(_)));
    assert!(matches!(take(io::ErrorKind::StorageFull), SinkError::Lost(_)));
}

#[test]
fn a_line_that_was_begun_is_finished_before_another_one() {
    /// Takes seven bytes, then none for two attempts.
    #[derive(Clone, Default)]
    struct Reluctant(Arc<Mutex<(Vec<u8>, u32)>>);
    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (written, calls) = &mut *self.0.lock().unwrap();
            *calls += 1;
            if *calls % 3 != 1 && written.len() < 20 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let count = if written.len() < 20 { bytes.len().min(7) } else { bytes.len() };
            written.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let to = Reluctant::default();
    for _ in 0..2 {
        // As after an error: a sink that was opened again.
        let _ = Stdout::new(to.clone(), &options("json")).take(&tick());
    }
    let text = String::from_utf8(to.0.lock().unwrap().0.clone()).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[test]
fn events_and_tables_are_chosen() {
    let mut options = Options::default();
    let kinds = |options: &Options| interest(options).kinds;
    assert_eq!(kinds(&options), [Kind::Started, Kind::Ended, Kind::Samples]);
    options.set("events", vec!["interim".to_owned()]);
    options.set("tables", vec!["node".to_owned()]);
    assert_eq!(kinds(&options), [Kind::Interim]);
    assert_eq!(interest(&options).tables, ["node"]);
}

#[test]
fn records_are_printed_as_colmet_prints_them() {
    use met_wire::colmet::{Backend, Record, Value};
    let mut record = Record::new(Backend::Ipmi, "n1", 0, 1_794_703_701);
    record.set(0, Some(Value::Int(250)));
    record.involved_jobs = vec![12, 13];
    let mut options = Options::default();
    options.set("format", vec![COLMET.to_owned()]);
    let mut sink = Stdout::new(Vec::new(), &options);
    sink.take(&Event::Colmet(std::sync::Arc::new(vec![record]))).unwrap();
    let expected = "1794703701  Job(0)/ ipmipowerstats_default -> Host(n1) -> {\n\
                    \taverage_power_consumption : 250\n\t            involved_jobs : [12, 13]\n}\n";
    assert_eq!(String::from_utf8(sink.to).unwrap(), expected);
}
