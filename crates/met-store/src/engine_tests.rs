use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use met_core::job_table::CPU;
use met_core::{JOB, event};

use super::*;
use crate::backends::{Backends, Secret};
use crate::inbox::JobDir;
use crate::samples::{MIDNIGHT_S, finished, running, series};
use crate::store::Writer;

/// A request to an engine: the first line, and the authorization header.
type Asked = (String, Option<String>);

/// An engine that answers each request with the next of these, and returns the requests afterwards.
fn engine(answers: &[&str]) -> (Engine, JoinHandle<Vec<Asked>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers: Vec<String> = answers.iter().map(|answer| answer.to_string()).collect();
    let serve = move || {
        answers
            .iter()
            .map(|answer| {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(&stream);
                let (mut first, mut length, mut authorization) = (String::new(), 0, None);
                reader.read_line(&mut first).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    match line.trim().split_once(": ") {
                        Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                            length = value.parse().unwrap();
                        }
                        Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                            authorization = Some(value.to_string());
                        }
                        Some(_) => {}
                        None => break,
                    }
                }
                std::io::copy(&mut reader.take(length), &mut std::io::sink()).unwrap();
                let (head, body) = answer.split_once('|').unwrap_or((answer, ""));
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                (&stream).write_all((head + body).as_bytes()).unwrap();
                (first.trim().to_string(), authorization)
            })
            .collect()
    };
    let engine = Engine { url, write_url: None, credentials: None, tenant: None, ca_file: None };
    (engine, std::thread::spawn(serve))
}

fn append(engine: &Engine, count: i64) -> (Result<(), StoreError>, u64) {
    let mut remote = Remote::new(engine).unwrap();
    let samples = series(MIDNIGHT_S * 1000, 1000, count);
    let result = remote.append(&[(&running(1, MIDNIGHT_S).key, &samples)], false);
    (result.map(drop), remote.refused())
}

const WRITE: &str = "POST /api/v1/write HTTP/1.1";
const QUERY: &str = "POST /api/v1/query HTTP/1.1";
const NOTHING: &str = r#"200 OK|{"status":"success","data":{"resultType":"matrix","result":[]}}"#;

fn lines(asked: JoinHandle<Vec<Asked>>) -> Vec<String> {
    asked.join().unwrap().into_iter().map(|(line, _)| line).collect()
}

#[test]
fn an_engine_that_is_busy_is_asked_again() {
    let (engine, asked) =
        engine(&["503 Service Unavailable", "429 Too Many Requests\r\nRetry-After: 0", "204 No Content"]);
    assert!(matches!(append(&engine, 5), (Ok(()), 0)));
    assert_eq!(lines(asked), [WRITE; 3]);
}

#[test]
fn an_engine_that_stays_busy_is_for_the_caller_to_come_back_to() {
    let (engine, asked) = engine(&["503 Service Unavailable"; 3]);
    assert!(matches!(append(&engine, 5), (Err(StoreError::Unreachable { .. }), 0)));
    assert_eq!(lines(asked), [WRITE; 3]);
}

/// Every answer takes seconds where an engine cannot be reached: ends that wait for it do not wait one after another.
#[test]
fn an_engine_that_cannot_be_reached_is_asked_once_per_import() {
    let busy = "503 Service Unavailable";
    let (engine, asked) = engine(&[busy, busy, busy, "204 No Content"]);
    let state = tempfile::tempdir().unwrap();
    for id in [1, 2] {
        let dir = JobDir::claim(state.path(), id).unwrap();
        dir.write_series(&series(MIDNIGHT_S * 1000, 1000, 5)).unwrap();
        dir.write_end(&finished(id, MIDNIGHT_S)).unwrap();
    }
    let backends = Backends { catalogue: None, series: Some(engine.clone()) };
    let mut writer = Writer::open_with(state.path(), &backends).unwrap();
    let imported = writer.import().unwrap();
    assert_eq!((imported.ended.len(), imported.problems.len()), (0, 1), "{:?}", imported.problems);
    assert!(matches!(append(&engine, 5), (Ok(()), 0)), "its next answer is still to come");
    assert_eq!(lines(asked), [WRITE; 4]);
}

#[test]
fn a_wrong_password_loses_no_sample_and_is_not_tried_again() {
    let (mut engine, asked) = engine(&["401 Unauthorized|who are you"]);
    engine.credentials = Some(Credentials::Basic(Secret::new("ada:secret")));
    let (result, refused) = append(&engine, 5);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("401 Unauthorized: who are you") && !error.contains("secret"), "{error}");
    assert_eq!(refused, 0);
    assert_eq!(asked.join().unwrap(), [(WRITE.to_string(), Some("Basic YWRhOnNlY3JldA==".to_string()))]);
}

#[test]
fn samples_that_are_not_wanted_are_counted_and_the_rest_goes_on() {
    let (engine, asked) = engine(&["400 Bad Request|out of bounds", NOTHING]);
    let (result, refused) = append(&engine, 5);
    assert!(result.is_ok());
    // Five of CPU; of the memory one in seven is missing.
    assert_eq!(refused, 9);
    assert_eq!(lines(asked), [WRITE, QUERY]);
}

#[test]
fn samples_that_are_there_already_are_not_lost() {
    let there = |count: i64| {
        let values: Vec<String> =
            (0..count).map(|second| format!("[{}, \"0\"]", MIDNIGHT_S + second)).collect();
        let name = JOB.prometheus_name(&JOB.columns[CPU]);
        let list = format!(r#"{{"metric":{{"__name__":"{name}"}},"values":[{}]}}"#, values.join(","));
        format!(r#"200 OK|{{"status":"success","data":{{"result":[{list}]}}}}"#)
    };
    let (all, asked) = engine(&["400 Bad Request|out of order", &there(5)]);
    assert!(matches!(append(&all, 5), (Ok(()), 0)));
    assert_eq!(lines(asked), [WRITE, QUERY]);
    let (some, asked) = engine(&["400 Bad Request|out of order", &there(3), "204 No Content"]);
    assert!(matches!(append(&some, 5), (Ok(()), 0)));
    assert_eq!(lines(asked), [WRITE, QUERY, WRITE]);
}

#[test]
fn one_job_that_is_refused_takes_no_other_with_it() {
    let (engine, asked) =
        engine(&["400 Bad Request", "204 No Content", "400 Bad Request", NOTHING, "204 No Content"]);
    let mut remote = Remote::new(&engine).unwrap();
    let samples = series(MIDNIGHT_S * 1000, 1000, 2);
    let keys = [1, 2, 3].map(|id| running(id, MIDNIGHT_S).key);
    let all_series: Vec<(&JobKey, &Series)> = keys.iter().map(|key| (key, &samples)).collect();
    remote.append(&all_series, false).unwrap();
    assert_eq!(remote.refused(), 3);
    assert_eq!(lines(asked), [WRITE, WRITE, WRITE, QUERY, WRITE]);
}

#[test]
fn long_series_are_cut_into_requests() {
    let rows = SAMPLES_MAX / JOB.columns.len();
    let key = running(1, MIDNIGHT_S).key;
    let mut whole = series(0, 1000, 2 * rows as i64 + 1);
    let parts: Vec<_> = pieces(&key, &whole).map(|piece| piece.rows).collect();
    assert_eq!(parts, [0..rows, rows..2 * rows, 2 * rows..2 * rows + 1]);
    // Every cell known: none of the first two has room for another.
    whole.columns.iter_mut().for_each(|cells| cells.fill(1));
    let (engine, asked) = engine(&["204 No Content"; 3]);
    Remote::new(&engine).unwrap().append(&[(&key, &whole)], false).unwrap();
    assert_eq!(lines(asked), [WRITE; 3]);
}

#[test]
fn a_secret_is_not_sent_for_all_to_see() {
    let mut engine = Engine {
        url: "http://10.0.0.1:8428".to_owned(),
        write_url: None,
        credentials: Some(Credentials::Token(Secret::new("token"))),
        tenant: None,
        ca_file: None,
    };
    assert!(matches!(Remote::new(&engine), Err(StoreError::Refused { .. })));
    engine.url = "https://engine.example".to_owned();
    assert!(Remote::new(&engine).is_ok());
    engine.write_url = Some("http://engine.example/api/v1/push".to_owned());
    assert!(matches!(Remote::new(&engine), Err(StoreError::Refused { .. })));
}

#[test]
fn series_are_named_by_job_and_not_by_its_owner() {
    let mut key = running(7, MIDNIGHT_S).key;
    key.cluster = Some("alpha".into());
    let named = |key: &JobKey| -> Vec<String> {
        labels(key).iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert_eq!(named(&key), ["cluster=alpha", "id=7", "incarnation=1794700800", "manager=local"]);
    let of_event = named(&event::series_key(&key, "instructions"));
    let with_event =
        ["cluster=alpha", "id=7", "incarnation=1794700800", "manager=local", "event=instructions"];
    assert_eq!(of_event, with_event);
    let device = JobKey { cluster: None, manager: DEVICE.into(), id: "GPU-a".into(), incarnation: 0 };
    assert_eq!(named(&device), ["cluster=", "uuid=GPU-a"]);
}
