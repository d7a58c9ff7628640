use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use met_core::job::{JobKey, LOCAL};
use met_core::series::Series;
use met_core::{JOB, MISSING};
use met_wire::batch::{PACKED_BYTES_MAX, Piece, Subject};
use met_wire::block::{self, BLOCK_SAMPLES_MAX};
use met_wire::schema;
use proptest::prelude::*;

use super::*;
use crate::bus::{self, Bus};
use crate::event::Samples;
use crate::sink::{Configured, Context};
use crate::spool::Oldest;

#[path = "reopening_tests.rs"]
mod reopening;

/// A catalogue of records that only grows.
#[derive(Clone, Default)]
struct Records {
    all: Arc<Mutex<Vec<Record>>>,
    asked: Arc<std::sync::atomic::AtomicUsize>,
}

impl Outbox for Records {
    fn changed_after(&mut self, mark: i64, limit: usize) -> io::Result<Changed> {
        self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let all = self.all.lock().unwrap();
        let records: Vec<Record> = all.iter().skip(mark as usize).take(limit).cloned().collect();
        let mark = mark + records.len() as i64;
        Ok(Changed { records, mark, more: mark < all.len() as i64 })
    }
}

fn key(id: &str) -> JobKey {
    JobKey { cluster: None, manager: LOCAL.to_owned(), id: id.to_owned(), incarnation: 1 }
}

fn offered(subject: Subject, series: Series) -> Arc<Samples> {
    Arc::new(Samples { node: None, subject, series })
}

fn record(id: &str) -> Record {
    serde_json::from_value(serde_json::json!({
        "key": key(id), "name": id, "user": null, "uid": null, "account": null, "command": [], "state": "finished",
        "manager_state": null, "exit_code": 0, "signal": null, "start_ns": 1, "end_ns": 2, "nodes": [],
        "node_memory_bytes": null, "local": null,
    }))
    .unwrap()
}

fn series(from_ms: i64, samples: i64) -> Series {
    let mut series = Series::new(&JOB);
    for at in 0..samples {
        series.push(from_ms + at * 1000, &vec![at; JOB.columns.len()]);
    }
    series
}

/// Answers each request with what `answer` says of its batch.
fn serve(listener: TcpListener, answer: impl Fn(NodeBatch) -> (u16, String) + Send + 'static) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() || body.is_empty() {
                continue;
            }
            let (status, text) = answer(NodeBatch::unpack(&body).unwrap());
            let reply = format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\nRetry-After: 0\r\n\r\n{text}",
                text.len()
            );
            let _ = reader.get_mut().write_all(reply.as_bytes());
        }
    });
}

fn plan(folder: &std::path::Path, listener: &TcpListener) -> Plan {
    Plan {
        address: Address {
            url: format!("http://{}", listener.local_addr().unwrap()),
            token: Some("token-of-this-node".to_owned()),
            ..Address::default()
        },
        folder: folder.to_path_buf(),
        limits: Limits { bytes_max: 1 << 20, age_max: Duration::from_secs(3600) },
        quiet: Duration::from_secs(3600),
        header: Header { node: "n1".to_owned(), ..Header::default() },
    }
}

/// A forwarder as a daemon has it: on a bus.
struct Forwarding {
    bus: RefCell<Bus>,
    monitor: Monitor,
}

fn uplink<O: Outbox + 'static>(
    plan: Plan,
    every: Duration,
    outbox: impl Fn() -> O + Send + Sync + 'static,
) -> Uplink {
    let prepare = move || Ok((plan.clone(), Box::new(outbox()) as Box<dyn Outbox>));
    Uplink { every, monitor: Monitor::default(), prepare: Box::new(prepare) }
}

impl Forwarding {
    fn start(plan: Plan, records: Records) -> Forwarding {
        let forward = Forwarding::open(uplink(plan, Duration::from_millis(50), move || records.clone()));
        forward.monitor.wait_opened(Duration::from_secs(60));
        forward
    }

    fn open(uplink: Uplink) -> Forwarding {
        let monitor = uplink.monitor.clone();
        let mut options = Options::default();
        options.context = Context::new(uplink);
        let configured = [Configured { spec: &SPEC, options }];
        Forwarding { bus: RefCell::new(Bus::open(&configured, None, std::path::Path::new("/"))), monitor }
    }

    fn publish(&self, event: Event) {
        self.bus.borrow_mut().publish(&event);
    }

    fn offer(&self, samples: &Arc<Samples>) {
        self.publish(Event::Samples(Arc::clone(samples)));
    }

    fn hurry(&self) {
        self.publish(Event::Ended(Arc::new(record("any"))));
    }

    fn status(&self) -> Status {
        self.monitor.status()
    }

    fn sink_status(&self) -> bus::Status {
        self.bus.borrow().status().remove(0)
    }

    fn stop(self) {}
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.bus.take().close_within(Duration::from_secs(60));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn acknowledge(batch: &NodeBatch) -> (u16, String) {
    (200, format!(r#"{{"sequence": {}, "now_ns": {}}}"#, batch.header.sequence, now_ns()))
}

#[test]
fn records_and_samples_arrive_once_and_in_order_though_the_server_fails_at_first() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    let failing = std::sync::atomic::AtomicI32::new(2);
    serve(listener, move |batch| {
        if failing.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            return (503, "not yet".to_owned());
        }
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let records = Records::default();
    records.all.lock().unwrap().extend((0..1200).map(|id| record(&id.to_string())));
    let forward = Forwarding::start(plan, records.clone());
    forward.offer(&offered(Subject::Job(key("1")), series(0, 10)));
    forward.offer(&offered(Subject::Job(key("1")), series(10_000, 10)));
    until("all arrives", || {
        arrived.lock().unwrap().iter().map(|batch| batch.records.len()).sum::<usize>() >= 1200
            && arrived.lock().unwrap().iter().any(|batch| !batch.pieces.is_empty())
    });
    records.all.lock().unwrap().push(record("last"));
    forward.hurry();
    until("who ends late arrives, too", || {
        arrived.lock().unwrap().iter().flat_map(|batch| &batch.records).any(|record| record.name == "last")
    });
    until("nothing waits", || forward.status().batches_waiting == 0);
    let status = forward.status();
    assert!(status.clock_offset_ns.unwrap().abs() < 60_000_000_000 && status.last_error.is_none());
    forward.stop();
    let arrived = arrived.lock().unwrap();
    let sequences: Vec<u64> = arrived.iter().map(|batch| batch.header.sequence).collect();
    assert!(sequences.is_sorted_by(|left, right| left < right), "{sequences:?}");
    let names: Vec<&str> =
        arrived.iter().flat_map(|batch| &batch.records).map(|record| record.name.as_str()).collect();
    assert_eq!(names.len(), 1201);
    let described = |batch: &&NodeBatch| batch.header.columns.get(JOB.name) == Some(&schema::describe(&JOB));
    let with_content = |batch: &&NodeBatch| !batch.records.is_empty() || !batch.pieces.is_empty();
    assert!(arrived.iter().filter(with_content).all(|batch| described(&batch)), "it is said what is meant");
    let mut times = Vec::new();
    for piece in arrived.iter().flat_map(|batch| &batch.pieces) {
        times.extend(block::decode(&piece.block, &JOB).unwrap().times_ms);
    }
    assert_eq!(times, (0..20).map(|at| at * 1000).collect::<Vec<_>>());
}

#[test]
fn what_could_not_be_sent_waits_for_the_next_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let away = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = plan(folder.path(), &away);
    drop(away);
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    let forward = Forwarding::start(first, records.clone());
    until("it is spooled", || forward.status().batches_waiting == 1);
    forward.offer(&offered(Subject::Job(key("1")), series(0, 5)));
    forward.stop();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let forward = Forwarding::start(second, records);
    until("both arrive", || arrived.lock().unwrap().len() == 2);
    until("nothing waits", || forward.status().batches_waiting == 0);
    let arrived = arrived.lock().unwrap();
    assert_eq!((arrived[0].records.len(), arrived[1].records.len()), (1, 0));
    assert_eq!(arrived[1].pieces.len(), 1);
}

#[test]
fn the_series_of_the_machine_is_sent_in_longer_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, second) = (plan(folder.path(), &listener), plan(folder.path(), &listener));
    let arrived: Arc<Mutex<Vec<Piece>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().extend(batch.pieces);
        answer
    });
    let records = Records::default();
    let forward = Forwarding::start(first, records.clone());
    for from_ms in [0, 10_000] {
        forward.offer(&offered(Subject::Node("psu 1".into()), series(from_ms, 1)));
        forward.offer(&offered(Subject::Job(key("1")), series(from_ms, 1)));
        let samples = from_ms / 10_000 + 1;
        until("the job's arrive", || arrived.lock().unwrap().len() as i64 == samples);
    }
    assert!(arrived.lock().unwrap().iter().all(|piece| piece.subject == Subject::Job(key("1"))));
    forward.stop();
    let forward = Forwarding::start(second, records);
    // The first one may be sending it still, and what it sent last comes again if its answer came too late.
    let is_node = |piece: &&Piece| piece.subject == Subject::Node("psu 1".into());
    until("what was held is sent after all", || arrived.lock().unwrap().iter().any(|piece| is_node(&piece)));
    let arrived = arrived.lock().unwrap();
    let held = arrived.iter().find(is_node).unwrap();
    assert_eq!(block::decode(&held.block, &JOB).unwrap().times_ms, [0, 10_000]);
    forward.stop();
}

#[test]
fn a_batch_that_will_never_be_taken_blocks_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    serve(listener, |batch| match batch.header.sequence {
        1 => (400, r#"{"error": "no", "refused": true}"#.to_owned()),
        _ => acknowledge(&batch),
    });
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    let forward = Forwarding::start(plan, records.clone());
    until("it is refused", || forward.status().refused_batches == 1);
    records.all.lock().unwrap().push(record("two"));
    forward.hurry();
    until("the next is taken", || forward.status().acknowledged_ns.is_some());
    let refused = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|ending| ending == "refused"));
    assert_eq!(refused.count(), 1);
}

#[test]
fn what_a_proxy_refuses_waits() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let refusing = std::sync::atomic::AtomicBool::new(true);
    serve(listener, move |batch| match refusing.swap(false, std::sync::atomic::Ordering::Relaxed) {
        true => (413, "<html><h1>413 Request Entity Too Large</h1>nginx</html>".to_owned()),
        false => acknowledge(&batch),
    });
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    let forward = Forwarding::start(plan, records);
    until("the batch is taken after all", || forward.status().acknowledged_ns.is_some());
    assert_eq!(forward.status().refused_batches, 0);
}

#[test]
fn an_idle_node_still_reports() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = Plan { quiet: Duration::from_millis(100), ..plan(folder.path(), &listener) };
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let forward = Forwarding::start(plan, Records::default());
    until("it sends again and again", || arrived.lock().unwrap().len() >= 3);
    forward.stop();
    for batch in arrived.lock().unwrap().iter() {
        assert!(batch.records.is_empty() && batch.pieces.is_empty());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "they do not pile up");
}

#[test]
fn an_unreachable_server_is_not_sent_more_empty_batches() {
    let folder = tempfile::tempdir().unwrap();
    let away = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = Plan { quiet: Duration::ZERO, ..plan(folder.path(), &away) };
    drop(away);
    let records = Records::default();
    let asked = records.asked.clone();
    let forward = Forwarding::start(plan, records);
    until("there was time for many", || asked.load(std::sync::atomic::Ordering::Relaxed) >= 5);
    assert_eq!(forward.status().batches_waiting, 1);
}

#[test]
fn the_server_gets_the_count_of_dropped_samples() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let reported: Arc<Mutex<u64>> = Arc::default();
    let kept = Arc::clone(&reported);
    serve(listener, move |batch| {
        *kept.lock().unwrap() = batch.header.dropped_samples;
        acknowledge(&batch)
    });
    let records = Records::default();
    // While the catalogue is locked no batch is made.
    let held = records.all.lock().unwrap();
    let forward = Forwarding::start(plan, records.clone());
    let mut at_ms = 0;
    while forward.sink_status().dropped == 0 {
        at_ms += 1000;
        forward.offer(&offered(Subject::Job(key("1")), series(at_ms, 1)));
    }
    let lost = forward.sink_status().dropped * JOB.columns.len() as u64;
    drop(held);
    // The batch in work was begun before; what is in the queue makes another one.
    until("all of it is reported", || *reported.lock().unwrap() == lost);
    assert_eq!(forward.status().dropped_samples, lost, "it is counted once");
}

#[test]
fn on_a_full_disk_records_wait_in_the_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spool = folder.path().join("spool");
    let plan = plan(&spool, &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let records = Records::default();
    let forward = Forwarding::start(plan, records.clone());
    // A folder that is away is made again; this one cannot be.
    std::fs::rename(&spool, folder.path().join("away")).unwrap();
    std::fs::write(&spool, "in the way").unwrap();
    records.all.lock().unwrap().push(record("one"));
    forward.hurry();
    until("it is reported", || forward.status().spool_error.is_some());
    std::fs::remove_file(&spool).unwrap();
    std::fs::rename(folder.path().join("away"), &spool).unwrap();
    until("it arrives after all", || arrived.lock().unwrap().iter().any(|batch| batch.records.len() == 1));
    until("it is well again", || forward.status().spool_error.is_none());
}

#[test]
fn a_change_of_the_spool_is_news_once() {
    let monitor = Monitor::default();
    let full = || Some("full".to_owned());
    let news = [full(), full(), None, None].map(|error| monitor.spooled(error));
    assert_eq!(news, [true, false, true, false]);
    assert!(monitor.report(Instant::now()).is_logged, "its lane need not log the same");
}

#[test]
fn a_batch_never_has_more_times_than_a_server_takes() {
    columns! { ONE_COLUMN: HEAT = Column::gauge("heat", Unit::Celsius, ONE, "of a zone"), }
    static ZONE: Table = Table { name: "zone", subject: "a zone", labels: &[], columns: ONE_COLUMN };
    let zones = |count: i64, samples: i64| {
        (0..count).map(move |zone| {
            let mut series = Series::new(&ZONE);
            (0..samples).for_each(|at| {
                let mut cells = [MISSING];
                cells[HEAT] = zone;
                series.push(at * 1000, &cells);
            });
            (Subject::Node(zone.to_string()), series)
        })
    };
    // Many series of few columns, and one that alone is too long.
    for (count, samples, surplus) in [(300, 1000, 0), (1, 120_000, 14 * BLOCK_SAMPLES_MAX as u64)] {
        let folder = tempfile::tempdir().unwrap();
        let away = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = plan(folder.path(), &away);
        drop(away);
        let records = Records::default();
        records.all.lock().unwrap().push(record("one"));
        let forward = Forwarding::start(plan, records);
        zones(count, samples).for_each(|(subject, series)| forward.offer(&offered(subject, series)));
        forward.stop();
        let mut spool = Spool::open(folder.path()).unwrap();
        let (mut all, mut names) = (0, Vec::new());
        while let Some(Oldest { sequence, bytes, .. }) = spool.oldest().unwrap() {
            let batch = NodeBatch::unpack(&bytes).unwrap();
            let times = batch.pieces.iter().map(|piece| block::check(&piece.block).unwrap()).sum::<usize>();
            assert!(times <= SAMPLES_MAX, "{times}");
            all += times as u64;
            names.extend(batch.records.into_iter().map(|record| record.name));
            spool.acknowledge(sequence).unwrap();
        }
        assert_eq!((all, spool.dropped_samples()), ((count * samples) as u64 - surplus, surplus));
        assert_eq!(names, ["one"], "records are never given up");
    }
}

#[test]
fn a_node_with_nothing_to_send_still_reports() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch);
        answer
    });
    let records = Records::default();
    let forward = Forwarding::start(plan, records.clone());
    until("it reports", || !arrived.lock().unwrap().is_empty());
    // Looked at again, and found to have nothing to say.
    let asked = || records.asked.load(std::sync::atomic::Ordering::Relaxed);
    let before = asked();
    until("it goes on", || asked() > before + 2);
    forward.stop();
    let arrived = arrived.lock().unwrap();
    assert_eq!((arrived.len(), arrived[0].records.len(), arrived[0].pieces.len()), (1, 0, 0));
}

/// A record whose command has the given number of letters: all the same, or such that nothing shrinks.
fn long_record(id: usize, letters: usize, is_noise: bool) -> Record {
    let mut bits = id as u64 | 1;
    let letter = |_| {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        if is_noise { char::from(b' ' + 2 + (bits >> 32) as u8 % 90) } else { 'a' }
    };
    Record { command: vec![(0..letters).map(letter).collect()], ..record(&id.to_string()) }
}

/// What a node has spooled, and what servers take of it.
fn spooled(folder: &std::path::Path) -> Vec<NodeBatch> {
    let mut spool = Spool::open(folder).unwrap();
    let mut batches = Vec::new();
    while let Some(Oldest { sequence, bytes, .. }) = spool.oldest().unwrap() {
        assert!(bytes.len() <= PACKED_BYTES_MAX, "{}", bytes.len());
        batches.push(NodeBatch::unpack(&bytes).unwrap());
        spool.acknowledge(sequence).unwrap();
    }
    batches
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_node_spools_a_server_can_take(
        lengths in prop::collection::vec(
            (prop_oneof![0_usize..2000, 100_000_usize..1_000_000, 3_000_000_usize..4_000_000], any::<bool>()),
            1..10,
        ),
        jobs in 0..4_usize,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let away = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = plan(folder.path(), &away);
        drop(away);
        let records = Records::default();
        let made = lengths.iter().enumerate().map(|(id, &(letters, noise))| long_record(id, letters, noise));
        records.all.lock().unwrap().extend(made);
        let forward = Forwarding::start(plan, records);
        for job in 0..jobs {
            forward.offer(&offered(Subject::Job(key(&job.to_string())), series(0, 2000)));
        }
        forward.stop();
        let batches = spooled(folder.path());
        let mut names: Vec<usize> =
            batches.iter().flat_map(|batch| &batch.records).map(|record| record.name.parse().unwrap()).collect();
        names.sort_unstable();
        prop_assert_eq!(names, (0..lengths.len()).collect::<Vec<_>>(), "each record once");
        prop_assert_eq!(batches.last().unwrap().header.mark, lengths.len() as i64);
    }
}

#[test]
fn what_a_server_never_takes_is_quarantined_alone() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| match batch.records.iter().any(|record| record.name == "bad") {
        true => (400, r#"{"error": "a record is bad", "refused": true}"#.to_owned()),
        false => {
            let answer = acknowledge(&batch);
            kept.lock().unwrap().push(batch);
            answer
        }
    });
    let records = Records::default();
    records.all.lock().unwrap().extend(["one", "bad", "two"].map(record));
    let forward = Forwarding::start(plan, records);
    forward.offer(&offered(Subject::Job(key("1")), series(0, 10)));
    until("the others arrive, and their samples", || {
        let arrived = arrived.lock().unwrap();
        let mut names: Vec<&str> =
            arrived.iter().flat_map(|batch| &batch.records).map(|record| record.name.as_str()).collect();
        names.sort_unstable();
        names == ["one", "two"] && arrived.iter().any(|batch| !batch.pieces.is_empty())
    });
    until("nothing waits", || forward.status().batches_waiting == 0);
    assert_eq!((forward.status().refused_batches, forward.status().quarantined_batches), (1, 1));
    forward.stop();
    let spool = Spool::open(folder.path()).unwrap();
    assert_eq!(spool.quarantined(), 1, "the next daemon knows of it");
}

#[test]
fn a_node_that_had_a_wrong_name_sends_what_it_has_under_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = Header { id: "id-1".to_owned(), ..plan(folder.path(), &listener).header };
    let wrong =
        Plan { header: Header { node: "nn1".to_owned(), ..own.clone() }, ..plan(folder.path(), &listener) };
    let right = Plan { header: own, ..plan(folder.path(), &listener) };
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| match batch.header.node.as_str() {
        "n1" => {
            let answer = acknowledge(&batch);
            kept.lock().unwrap().push(batch);
            answer
        }
        other => (403, format!(r#"{{"error": "this token is that of node n1, and the batch of {other}"}}"#)),
    });
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    let forward = Forwarding::start(wrong, records.clone());
    until("it is refused", || forward.status().last_error.is_some_and(|error| error.contains("403")));
    forward.stop();
    records.all.lock().unwrap().push(record("two"));
    let forward = Forwarding::start(right, records);
    until("both arrive", || arrived.lock().unwrap().iter().flat_map(|batch| &batch.records).count() == 2);
    until("nothing waits", || forward.status().batches_waiting == 0);
    assert_eq!(forward.status().quarantined_batches, 0);
    let arrived = arrived.lock().unwrap();
    assert!(arrived.iter().all(|batch| batch.header.run == arrived[0].header.run), "all of one sender");
}

#[test]
fn batches_of_the_machine_that_a_state_folder_was_copied_from_are_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let of = |id: &str| {
        let made = plan(folder.path(), &listener);
        Plan { header: Header { id: id.to_owned(), ..made.header.clone() }, ..made }
    };
    let (original, copy) = (of("id-1"), of("id-2"));
    drop(listener);
    let records = Records::default();
    records.all.lock().unwrap().push(record("one"));
    Forwarding::start(original, records.clone()).stop();
    let forward = Forwarding::start(copy, records);
    until("it is not sent", || forward.status().quarantined_batches == 1);
    forward.stop();
}

#[test]
fn a_change_of_the_machines_health_is_sent_though_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<Header>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    serve(listener, move |batch| {
        let answer = acknowledge(&batch);
        kept.lock().unwrap().push(batch.header);
        answer
    });
    let forward = Forwarding::start(plan, Records::default());
    until("a first sign", || !arrived.lock().unwrap().is_empty());
    let health = NodeHealth { gpus: Some(4), ..NodeHealth::default() };
    forward.publish(Event::Health(Arc::new(health.clone())));
    until("the change arrives", || arrived.lock().unwrap().last().is_some_and(|last| last.health == health));
    forward.stop();
    let arrived = arrived.lock().unwrap();
    assert!(arrived[0].health.is_empty(), "nothing was known at first");
    assert_eq!(arrived.iter().filter(|header| header.health == health).count(), 1, "once");
}

#[test]
fn a_job_that_is_watched_at_the_server_is_announced_and_sent_sooner() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(folder.path(), &listener);
    let arrived: Arc<Mutex<Vec<NodeBatch>>> = Arc::default();
    let kept = Arc::clone(&arrived);
    // What else a server says of its clock and of jobs does no harm.
    let replies = [r#"[null, 7, {"id": []}, KEY]"#, r#"{"no": "list"}"#, "KEY", "[[[[1]]]]"];
    let watched = serde_json::to_string(&key("1")).unwrap();
    serve(listener, move |batch| {
        let sequence = batch.header.sequence;
        let watched = replies[kept.lock().unwrap().len() % replies.len()].replace("KEY", &watched);
        kept.lock().unwrap().push(batch);
        (200, format!(r#"{{"sequence": {sequence}, "now_ns": {}, "watched": {watched}}}"#, i64::MIN))
    });
    let forward = Forwarding::open(uplink(plan, Duration::from_secs(3600), Records::default));
    let (watch, reported) = (forward.monitor.watch.clone(), Arc::<Mutex<Vec<JobKey>>>::default());
    let (pace, hears) = (Arc::clone(&watch.pace), Arc::clone(&reported));
    watch.tell_with(move |keys| {
        hears.lock().unwrap().extend(keys);
        pace.hold(Instant::now());
    });
    until("the first batch is there", || {
        forward.status().batches_waiting == 0 && !arrived.lock().unwrap().is_empty()
    });
    // It was answered before there was a listener.
    watch.received(vec![key("1")]);
    forward.offer(&offered(Subject::Job(key("1")), series(0, 5)));
    until("samples do not wait for an hour", || {
        arrived.lock().unwrap().iter().any(|batch| !batch.pieces.is_empty())
    });
    until("nothing waits", || forward.status().batches_waiting == 0);
    assert!(forward.status().last_error.is_none() && !reported.lock().unwrap().is_empty());
    assert!(reported.lock().unwrap().iter().all(|reported| *reported == key("1")));
    forward.stop();
}

#[test]
fn how_it_goes_is_known_while_a_batch_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uplink = uplink(plan(folder.path(), &listener), Duration::from_secs(3600), Records::default);
    let mut forward = Forward::open(&uplink).unwrap();
    assert!(forward.take(&Event::Ended(Arc::new(record("one")))).is_ok());
    let written = forward.shared.lock();
    assert_eq!(uplink.monitor.status().spool.as_deref(), Some(folder.path()));
    assert_eq!(uplink.monitor.rows().iter().count(), 1);
    drop(written);
}
