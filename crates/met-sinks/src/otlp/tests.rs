use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use met_core::job::State;
use met_core::sample;
use met_core::series::Series;

use super::conventions::{attribute, replaces};
use super::*;

fn options(node: Option<&str>, given: &[(&'static str, &[&str])]) -> Options {
    let mut options = Options::default();
    options.node = node.map(str::to_owned);
    for (name, values) in given {
        options.set(name, values.iter().map(|&value| value.to_owned()).collect());
    }
    options
}

/// One that never sends.
fn sink(options: &Options) -> Otlp {
    let address = Address { url: "http://127.0.0.1:1".to_owned(), ..Address::default() };
    let link = Link::open_within(&address, Duration::from_secs(1)).unwrap();
    Otlp::new(options, Outgoing::new(link, Vec::new()))
}

/// The points that would be sent now, as text.
fn points(sink: &Otlp) -> Vec<String> {
    let text = |value: &Attribute| match value {
        Attribute::Text(text) => text.clone(),
        Attribute::Int(number) => number.to_string(),
    };
    let mut lines = Vec::new();
    for (key, row) in sink.rows.values().flatten() {
        sink.each_point(key, row, &mut |resource, metric, point| {
            let attributes = point.attributes.iter().map(|(name, value)| format!("{name}={}", text(value)));
            let attributes = attributes.collect::<Vec<_>>().join(",");
            let number = match point.number {
                Number::Int(value) => value.to_string(),
                Number::Double(value) => value.to_string(),
            };
            let start = point.start_ns.map_or("-".to_owned(), |start_ns| start_ns.to_string());
            let host = resource.get("host.name").map_or("-".to_owned(), text);
            let (name, time_ns) = (&metric.name, point.time_ns);
            lines.push(format!("{name}{{{attributes}}} {number} from {start} to {time_ns} on {host}"));
        });
    }
    lines
}

#[test]
fn every_convention_names_columns_and_labels_that_exist_and_none_twice() {
    let tables = met_sources::catalogue();
    let mut seen = std::collections::HashSet::new();
    for one in CONVENTIONS {
        let table = tables.iter().find(|table| table.name == one.table).expect(one.table);
        for name in one.columns {
            assert!(table.columns.iter().any(|column| column.name == *name), "{}.{name}", one.table);
        }
        assert!(seen.insert((one.table, one.metric, one.attributes)), "{} twice", one.metric);
        let first = table.columns.iter().find(|column| column.name == one.columns[0]).unwrap();
        let is_counter = first.kind == met_core::Kind::Counter;
        assert_eq!(is_counter, one.form == met_wire::otlp::Form::Counter, "{}", one.metric);
    }
    for table in tables.iter().filter(|table| CONVENTIONS.iter().any(|one| one.table == table.name)) {
        let changed = table.labels.iter().filter(|label| attribute(table.name, label) != **label).count();
        assert!(
            changed > 0 || table.labels.is_empty(),
            "{}: no label has a name of the conventions",
            table.name
        );
    }
    assert!(replaces("node", "cpu_user") && !replaces("node", "swap_total") && !replaces("job", "cpu_user"));
}

#[test]
fn an_end_replaces_what_was_read_before_it_and_keeps_start_and_owner() {
    let mut sink = sink(&options(Some("n1"), &[]));
    let record = sample::full(7, "x");
    let mut tick = Tick::new(5_000_000_000, &JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    (cells[WALL], cells[met_core::job_table::CPU]) = (2_000_000_000, 1_500_000_000);
    let labels = vec![String::new(), record.key.manager.clone(), record.key.id.clone()];
    tick.push(TickRow { job: Some(record.key.clone()), user: Some("ann".into()), labels }, &cells);
    sink.tick(&tick);
    let cpu = |sink: &Otlp| {
        let found: Vec<String> =
            points(sink).into_iter().filter(|line| line.starts_with("met.job.cpu{")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let id = &record.key.id;
    assert_eq!(
        cpu(&sink),
        format!("met.job.cpu{{id={id},manager=local,user=ann}} 1.5 from 3000000000 to 5000000000 on n1")
    );
    sink.ended(&record);
    let total =
        JOB.columns[met_core::job_table::CPU].scaled(record.totals.get(met_core::job_table::CPU).unwrap());
    let ended = cpu(&sink);
    assert!(
        ended.starts_with(&format!("met.job.cpu{{id={id},manager=local,user=ann}} {total} from 3000000000 "))
    );
    assert!(Instant::now() >= sink.due);
    sink.pack();
    // Published again, by one that knows another start and another owner.
    sink.ended(&Record { user: Some("bob".to_owned()), ..record.clone() });
    let again = cpu(&sink);
    assert!(
        again.starts_with(&format!("met.job.cpu{{id={id},manager=local,user=ann}} {total} from 3000000000 "))
    );
    assert_eq!(sink.row_count, sink.rows.values().map(HashMap::len).sum::<usize>());
}

#[test]
fn a_foreign_sample_of_any_time_and_length_is_no_overflow() {
    let mut sink = sink(&options(None, &[]));
    let mut series = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    cells[WALL] = i64::MAX;
    series.push(i64::MIN + 1, &cells);
    let subject = Subject::Job(sample::full(7, "x").key);
    sink.samples(&Samples { node: Some("n1".to_owned()), subject, series });
    assert_eq!(sink.row_count, 1);
}

#[test]
fn owners_are_left_out_on_request() {
    let mut sink = sink(&options(Some("n1"), &[("users", &["no"])]));
    let mut record = sample::full(7, "x");
    record.user = Some("ann".to_owned());
    sink.ended(&record);
    assert!(!points(&sink).is_empty() && points(&sink).iter().all(|line| !line.contains("ann")));
}

#[test]
fn a_server_sends_the_newest_sample_of_each_node_and_totals_of_the_whole() {
    let options = options(None, &[]);
    assert_eq!(interest(&options).kinds, [Kind::Started, Kind::Ended, Kind::Samples]);
    let mut sink = sink(&options);
    let mut record = sample::full(7, "x");
    record.key.manager = "slurm".to_owned();
    let mut series = Series::new(&JOB);
    for (time_ms, cpu_ns) in [(1000, 1_000_000_000), (2000, 2_000_000_000)] {
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[met_core::job_table::CPU] = cpu_ns;
        series.push(time_ms, &cells);
    }
    for node in ["n1", "n2"] {
        let (node, subject) = (Some(node.to_owned()), Subject::Job(record.key.clone()));
        sink.samples(&Samples { node, subject, series: series.clone() });
    }
    let id = &record.key.id;
    let mut found = points(&sink);
    found.sort();
    let line = |node: &str| format!("met.job.cpu{{id={id},manager=slurm}} 2 from - to 2000000000 on {node}");
    assert_eq!(found, [line("n1"), line("n2")]);
    (record.nodes, record.state) = (vec!["n1".to_owned(), "n2".to_owned()], State::Finished);
    sink.ended(&record);
    assert!(points(&sink).iter().all(|line| line.ends_with(" on -")), "{:?}", points(&sink));
}

/// A collector that gives these answers, one for each request, and says what it received.
fn collector(answers: Vec<&'static str>) -> (String, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut some = [0; 4096];
            // The body is the two bytes after the head.
            while !bytes.windows(4).any(|four| four == b"\r\n\r\n") || bytes.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut some).unwrap();
                bytes.extend_from_slice(&some[..count]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            sender.send(usize::from(bytes[bytes.len() - 1])).unwrap();
        }
    });
    (url, received)
}

#[test]
fn requests_are_retried_in_order_and_refused_ones_counted() {
    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 0\r\nConnection: close\r\n\r\n";
    let bad = "HTTP/1.1 400 Bad\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbad";
    let taken = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (url, received) = collector(vec![busy, bad, taken]);
    let link = Link::open_within(&Address { url, ..Address::default() }, Duration::from_secs(60)).unwrap();
    let mut outgoing = Outgoing::new(link, Vec::new());
    outgoing.push(Body { bytes: vec![0, 1], points: 5 });
    outgoing.push(Body { bytes: vec![0, 2], points: 7 });
    outgoing.send(Instant::now());
    let report = outgoing.report();
    assert_eq!((report.dropped, report.is_retrying, report.failure.as_deref()), (0, true, Some("503 ")));
    // Not before its time.
    outgoing.send(Instant::now());
    outgoing.send(report.wake.unwrap());
    let report = outgoing.report();
    assert_eq!((report.dropped, report.is_retrying, report.failure.as_deref()), (5, false, Some("400 bad")));
    assert_eq!((report.wake, received.iter().collect::<Vec<_>>()), (None, vec![1, 1, 2]));
}

#[test]
fn a_full_queue_gives_up_the_oldest() {
    let mut sink = sink(&options(None, &[]));
    for points in 1..=3 {
        sink.outgoing.push(Body { bytes: vec![0; 4 << 20], points });
    }
    let report = sink.outgoing.report();
    assert_eq!((report.dropped, report.failure.as_deref()), (1, Some("queue full: 1 data points dropped")));
}

#[test]
fn names_and_values_are_distinguished_and_nothing_else_is_taken() {
    assert_eq!(pair("Authorization: Bearer a=b", ':'), Ok(("Authorization", "Bearer a=b")));
    for bad in ["", "=x", "a b=c", "a", "a=b\r\nX: y"] {
        assert!(pair(bad, '=').is_err(), "{bad:?}");
    }
}
