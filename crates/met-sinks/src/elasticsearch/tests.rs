use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use met_core::{JOB, MISSING};
use met_wire::colmet::{Backend, Record, Type, Value as ColmetValue};
use serde_json::{Value, json};

use super::*;
use crate::event::{Tick, TickRow};

/// A server of the test's own that keeps documents by index and id. What it answers first is given.
struct Server {
    url: String,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    requests: Vec<(String, String)>,
    documents: BTreeMap<(String, String), Value>,
    /// Documents of one request at most.
    most: Option<usize>,
    answers: Vec<Answer>,
}

#[derive(Clone)]
enum Answer {
    /// Instead of taking anything.
    Raw(&'static [u8]),
    /// The documents are taken, and the connection is closed before the answer.
    Lost,
    /// Each document of this time has this status.
    Status(i64, u16),
}

impl Server {
    fn start(answers: &[Answer]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // Taken from the end.
        let answers = answers.iter().rev().cloned().collect();
        let kept = Arc::new(Mutex::new(Kept { answers, ..Kept::default() }));
        let shared = Arc::clone(&kept);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || while serve(stream.as_ref().unwrap(), &shared).is_some() {});
            }
        });
        Server { url, kept }
    }

    fn wait_for(&self, what: impl Fn(&Kept) -> bool) {
        while !what(&self.kept.lock().unwrap()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Serves one request; `None` when the connection is at its end.
fn serve(mut stream: &TcpStream, kept: &Mutex<Kept>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|&bytes| bytes > 0)?;
    let mut authorization = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let lower = line.to_ascii_lowercase();
        length = lower.strip_prefix("content-length:").map_or(length, |value| value.trim().parse().unwrap());
        if lower.starts_with("authorization:") {
            authorization = line.trim()["authorization:".len()..].trim().to_owned();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut kept = kept.lock().unwrap();
    let request = first.split(' ').take(2).collect::<Vec<_>>().join(" ");
    kept.requests.push((request.clone(), authorization));
    let said =
        if request.starts_with("POST /_bulk") { bulk(&mut kept, &body) } else { answer(404, &json!({})) };
    drop(kept);
    stream.write_all(&said?).ok()
}

fn answer(status: u16, body: &Value) -> Option<Vec<u8>> {
    let body = body.to_string();
    Some(format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

fn bulk(kept: &mut Kept, body: &[u8]) -> Option<Vec<u8>> {
    let given = kept.answers.pop();
    if let Some(Answer::Raw(bytes)) = given {
        return Some(bytes.to_vec());
    }
    let lines: Vec<Value> =
        body.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    if kept.most.is_some_and(|most| lines.len() / 2 > most) {
        return answer(413, &json!("too large"));
    }
    let mut items = Vec::new();
    for pair in lines.chunks(2) {
        let target = &pair[0]["create"];
        let key = (target["_index"].as_str()?.to_owned(), target["_id"].as_str()?.to_owned());
        let status = match given {
            Some(Answer::Status(time, status)) if pair[1]["values"]["wall_seconds"] == json!(time as f64) => {
                status
            }
            _ if kept.documents.contains_key(&key) => 409,
            _ => 201,
        };
        if status == 201 {
            kept.documents.insert(key, pair[1].clone());
        }
        items.push(json!({"create": {"status": status, "error": {"type": "x", "reason": "y"}}}));
    }
    match given {
        Some(Answer::Lost) => None,
        _ => answer(200, &json!({"errors": true, "items": items})),
    }
}

fn options(server: &Server, folder: &Path, more: &[(&'static str, &str)]) -> Options {
    let mut options = Options::default();
    (options.node, options.folder) = (Some("n1".to_owned()), Some(folder.to_path_buf()));
    options.set("url", vec![server.url.clone()]);
    options.set("interval", vec!["100ms".to_owned()]);
    options.set("format", vec!["jobmet".to_owned()]);
    for (name, value) in more {
        options.set(name, vec![(*value).to_owned()]);
    }
    options
}

/// A row of a job whose wall time is this many seconds.
fn tick(seconds: i64) -> Event {
    let key = met_core::sample::full(7, "x").key;
    let mut tick = Tick::new(1_700_000_000_000_000_000 + seconds * 1_000_000_000, &JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    cells[met_core::job_table::WALL] = seconds * 1_000_000_000;
    let labels = vec![String::new(), key.manager.clone(), key.id.clone()];
    tick.push(TickRow { job: Some(key), user: None, labels }, &cells);
    Event::Tick(Arc::new(tick))
}

fn send(sink: &mut Box<dyn Sink>, seconds: std::ops::Range<i64>) {
    seconds.for_each(|second| sink.take(&tick(second)).unwrap());
    std::thread::sleep(Duration::from_millis(100));
    sink.idle().unwrap();
}

fn dropped(sink: &mut Box<dyn Sink>) -> u64 {
    sink.report().unwrap().dropped
}

#[test]
fn no_answer_loses_or_doubles_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[
        Answer::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
        Answer::Lost,
        Answer::Status(2, 429),
    ]);
    let mut sink = open(&options(&server, folder.path(), &[])).unwrap();
    send(&mut sink, 1..4);
    server.wait_for(|kept| kept.documents.len() == 3);
    // The answer that says so is on its way.
    while sink.report().unwrap().is_retrying {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(dropped(&mut sink), 0);
    let kept = server.kept.lock().unwrap();
    assert!(
        kept.documents
            .keys()
            .all(|(index, id)| index == "met_job" && id.starts_with("n1-2023-11-14T22:13:2"))
    );
    assert_eq!(kept.requests[0].0, "PUT /_index_template/met-met");
    assert_eq!(kept.requests[1].0, "HEAD /met_job");
    assert_eq!(kept.requests[2].0, "PUT /met_job");
}

#[test]
fn a_poisonous_document_is_quarantined_and_the_others_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[Answer::Status(2, 400)]);
    let mut sink = open(&options(&server, folder.path(), &[("template", "no")])).unwrap();
    send(&mut sink, 1..4);
    server.wait_for(|kept| kept.documents.len() == 2);
    let path = folder.path().join("quarantine.ndjson");
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let report = loop {
        let report = sink.report().unwrap();
        if report.dropped > 0 {
            break report;
        }
    };
    assert_eq!((report.dropped, report.is_retrying), (1, false));
    assert!(report.failure.unwrap().contains("400 x: y"));
    let line: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(line["document"]["values"]["wall_seconds"], json!(2.0));
}

#[test]
fn what_is_too_large_is_sent_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    server.kept.lock().unwrap().most = Some(2);
    let mut sink = open(&options(&server, folder.path(), &[])).unwrap();
    send(&mut sink, 1..10);
    server.wait_for(|kept| kept.documents.len() == 9);
    assert_eq!(dropped(&mut sink), 0);
}

#[test]
fn what_was_not_sent_is_sent_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let away = Server { url: "http://127.0.0.1:1".to_owned(), kept: Arc::default() };
    let mut sink = open(&options(&away, folder.path(), &[])).unwrap();
    sink.take(&tick(1)).unwrap();
    sink.close();
    let server = Server::start(&[]);
    let sink = open(&options(&server, folder.path(), &[])).unwrap();
    server.wait_for(|kept| kept.documents.len() == 1);
    drop(sink);
}

#[test]
fn a_spool_that_is_full_drops_the_oldest_and_counts_them() {
    let folder = tempfile::tempdir().unwrap();
    let away = Server { url: "http://127.0.0.1:1".to_owned(), kept: Arc::default() };
    let mut sink = open(&options(&away, folder.path(), &[("spool_size", "8KiB")])).unwrap();
    (0..5).for_each(|number| send(&mut sink, number..number + 1));
    assert_eq!(dropped(&mut sink), 3);
}

#[test]
fn secrets_are_read_from_private_files_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let options = |name: &'static str, text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let mut options = Options::default();
        options.set(name, vec![path.to_str().unwrap().to_owned()]);
        options
    };
    let said = |name, text, mode| authorization(&options(name, text, mode));
    assert_eq!(
        said("credentials_file", "elastic:geheim\n", 0o600).unwrap().unwrap(),
        "Basic ZWxhc3RpYzpnZWhlaW0="
    );
    assert_eq!(said("api_key_file", "id:key\n", 0o600).unwrap().unwrap(), "ApiKey aWQ6a2V5");
    assert_eq!(said("api_key_file", "aWQ6a2V5\n", 0o600).unwrap().unwrap(), "ApiKey aWQ6a2V5");
    assert!(said("credentials_file", "elastic:geheim", 0o644).unwrap_err().contains("chmod 600"));
    for text in ["geheim", "", "# a:b\n"] {
        assert!(!said("credentials_file", text, 0o600).unwrap_err().contains("geheim"));
    }
}

#[test]
fn every_request_carries_the_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "a:b").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start(&[]);
    let spool = folder.path().join("spool");
    let mut sink = open(&options(&server, &spool, &[("credentials_file", path.to_str().unwrap())])).unwrap();
    send(&mut sink, 1..2);
    server.wait_for(|kept| kept.documents.len() == 1);
    assert!(
        server.kept.lock().unwrap().requests.iter().all(|(_, authorization)| authorization == "Basic YTpi")
    );
}

#[test]
fn names_of_indices_are_those_that_a_server_takes() {
    for good in ["colmet_", "", "a.b-c_1"] {
        assert!(check_prefix(good).is_ok(), "{good}");
    }
    for bad in ["_a", "-a", ".a", "A", "a/b", "a b", "ä", "a*", "a,b", "a\"b"] {
        assert!(check_prefix(bad).is_err(), "{bad}");
    }
}

fn colmet(records: Vec<Record>) -> Event {
    Event::Colmet(Arc::new(records))
}

fn record(backend: Backend, known: &[(&str, i64)]) -> Record {
    let mut record = Record::new(backend, "n1", 1234, 1_700_000_000);
    record.set_all(|_, counter| {
        let found = known.iter().find(|(name, _)| *name == counter.name);
        found.map(|(_, value)| match counter.kind {
            Type::F32 => ColmetValue::Float(*value as f32),
            _ => ColmetValue::Int(*value),
        })
    });
    record
}

/// What becomes of records: index, id and document.
fn made(more: &[(&'static str, &str)], records: Vec<Record>) -> Vec<(String, String, String)> {
    let mut options = Options::default();
    more.iter().for_each(|(name, value)| options.set(name, vec![(*value).to_owned()]));
    let (mut maker, _) = maker(&options);
    let mut all = Vec::new();
    maker.write(&colmet(records), &mut |index, id, document| {
        all.push((index.to_owned(), id.to_owned(), String::from_utf8(document.to_vec()).unwrap()));
    });
    all
}

#[test]
fn a_record_of_colmet_is_the_document_that_its_collector_writes() {
    let mut energy = record(Backend::Rapl, &[("counter_1", 7), ("counter_24", 8)]);
    energy.involved_jobs = vec![1234, 1235];
    let mut node = record(Backend::Procstats, &[("uptime_total", 5), ("loadavg_1min", 2)]);
    node.job_id = 0;
    let task = record(Backend::Taskstats, &[("coremem", 4096), ("cpu_run_real_total", -1)]);
    let all = made(&[], vec![energy, node, task]);
    let documents: Vec<_> =
        all.iter().map(|(index, _, document)| (index.as_str(), document.as_str())).collect();
    assert_eq!(
        documents,
        [
            (
                "colmet_raplstats_default",
                r#"{"hostname":"n1","job_id":1234,"timestamp":1700000000,"counter_1":7,"counter_24":8,"involved_jobs":[1234,1235]}"#
            ),
            (
                "colmet_procstats_default",
                r#"{"hostname":"n1","job_id":0,"timestamp":1700000000,"uptime_total":5,"loadavg_1min":2.0,"involved_jobs":[]}"#
            ),
            (
                "colmet_taskstats_default",
                r#"{"hostname":"n1","job_id":1234,"timestamp":1700000000,"cpu_run_real_total":-1,"coremem":4096}"#
            ),
        ]
    );
    let dated = made(&[("rotate", "monthly"), ("index_prefix", "x-")], vec![record(Backend::Ipmi, &[])]);
    assert_eq!(dated[0].0, "x-ipmipowerstats_default-2023.11");
}

#[test]
fn ids_follow_from_records_and_differ_within_a_second() {
    let last = record(Backend::Taskstats, &[("coremem", 1)]);
    let end = record(Backend::Taskstats, &[("coremem", 2)]);
    let ids = |records: &[&Record]| -> Vec<String> {
        made(&[], records.iter().map(|one| (*one).clone()).collect())
            .into_iter()
            .map(|(_, id, _)| id)
            .collect()
    };
    let found = ids(&[&last, &end, &last]);
    assert!(found[0] != found[1] && found[0] == found[2], "{found:?}");
    assert!(found[0].starts_with("n1-1234-1700000000-"));
    assert_eq!(found, ids(&[&last, &end, &last]), "in another process, too");
}

#[test]
fn the_template_covers_every_index_and_no_other() {
    let (maker, name) = maker(&Options::default());
    let template = maker.scheme().template();
    assert_eq!(name, "met-colmet");
    let patterns: Vec<&str> =
        template["index_patterns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        patterns.contains(&"colmet_taskstats_default") && patterns.contains(&"colmet_raplstats_default-*")
    );
    assert!(patterns.len() == 20 && patterns.iter().all(|pattern| pattern.starts_with("colmet_")));
}
