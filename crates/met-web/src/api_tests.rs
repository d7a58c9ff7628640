use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, to_bytes};
use axum::http;
use met_core::JOB;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::{GpuUse, State};
use met_core::listing::Cursor;
use met_sinks::event::{Event, Kind};
use met_sinks::live::Hub;
use met_store::NodePart;
use serde_json::Value;
use tower_service::Service;

use super::*;

/// Jobs of ada and of bob, newest first.
pub(super) struct Jobs {
    jobs: Vec<Record>,
    asked: AtomicUsize,
    listed: AtomicUsize,
    written: AtomicUsize,
}

impl Jobs {
    pub(super) fn new() -> Arc<Jobs> {
        let job = |id: u32| {
            let mut record = met_core::sample::full(id, "train");
            (record.start_ns, record.state) = (Some(i64::from(id)), State::Finished);
            record.user = Some(if id.is_multiple_of(2) { "ada" } else { "bob" }.to_owned());
            record
        };
        Arc::new(Jobs {
            jobs: (1..=9).rev().map(job).collect(),
            asked: AtomicUsize::new(0),
            listed: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        })
    }
}

impl Query for Jobs {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> anyhow::Result<(Page, Vec<String>)> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.listed.fetch_add(1, Ordering::Relaxed);
        let Some(filter) = viewer.restrict(filter) else { return Ok(met_query::query::nothing()) };
        let mut jobs = self.jobs.clone();
        jobs.retain(|record| filter.owner.user.is_none() || record.user == filter.owner.user);
        jobs.retain(|record| filter.page.after.as_ref().is_none_or(|after| Cursor::of(record) < *after));
        let limit = filter.page.limit.unwrap_or(usize::MAX);
        let next = (jobs.len() > limit).then(|| Cursor::of(&jobs[limit - 1]));
        jobs.truncate(limit);
        Ok((Page { jobs, next }, Vec::new()))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, _: Option<&Cursor>) -> anyhow::Result<Page> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let JobRef::Id { id, .. } = job else { return Ok(Page { jobs: Vec::new(), next: None }) };
        let is_meant = |record: &&Record| record.key.id == *id && viewer.sees(record);
        Ok(Page { jobs: self.jobs.iter().filter(is_meant).cloned().collect(), next: None })
    }

    fn series(&self, _: &Viewer, _: &JobKey, after_ms: i64) -> anyhow::Result<Series> {
        let mut series = Series::new(&JOB);
        series.times_ms = vec![1_000, 2_000];
        series.columns.iter_mut().for_each(|cells| cells.resize(2, met_core::MISSING));
        series.columns[met_core::job_table::CPU] = vec![5_000_000_000, met_core::MISSING];
        if after_ms >= 2_000 {
            return Ok(Series::new(&JOB));
        }
        Ok(series)
    }

    fn gpu_series(&self, _: &Viewer, _: &JobKey, _: &str, _: i64) -> anyhow::Result<Series> {
        Ok(Series::new(&met_core::gpu::device::TABLE))
    }

    fn node_parts(&self, _: i64) -> anyhow::Result<Option<Vec<NodePart>>> {
        let part = |index: u32| NodePart { table: "block".to_owned(), part: format!("sd{index}") };
        Ok(Some((0..100).map(part).collect()))
    }

    fn node_part_series(&self, table: &'static Table, _: &str, _: i64) -> anyhow::Result<Option<Series>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Series::new(table)))
    }

    fn nodes(&self, _: &Viewer) -> anyhow::Result<Vec<NodeStatus>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(vec![NodeStatus { name: "n1".to_owned(), ..NodeStatus::default() }])
    }
}

impl Annotates for Jobs {
    fn annotate(&self, _: &Viewer, key: &JobKey, change: &AnnotationChange) -> anyhow::Result<Annotation> {
        self.written.fetch_add(1, Ordering::Relaxed);
        let job =
            self.jobs.iter().find(|job| job.key == *key).ok_or_else(met_query::annotate::no_such_job)?;
        change.apply(&job.annotation, 1).map_err(met_query::annotate::Failure::usage)
    }
}

/// Trusts the name in `From`.
struct Named;

impl Admission for Named {
    fn admit(&self, _: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem> {
        let name = headers.get("From").and_then(|name| name.to_str().ok());
        let name = name.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "who are you?"))?;
        Ok(if name == "operator" { Admitted::operator(name) } else { Admitted::user(name) })
    }
}

pub(super) fn api(jobs: &Arc<Jobs>, hub: &Arc<Hub>) -> Api {
    let (query, live) = (Arc::<Jobs>::clone(jobs), Arc::new(Live::new(Arc::clone(hub))));
    let annotates = Arc::<Jobs>::clone(jobs);
    Api {
        query,
        admission: Arc::new(Named),
        answers: Arc::default(),
        layouts: Vec::new(),
        live,
        annotates,
        output: None,
        host: met_host::Host::real().ok(),
        systems: Arc::default(),
        currency: "CHF".to_owned(),
    }
}

pub(super) fn request(path: &str, headers: &[(&str, &str)]) -> http::Request<Body> {
    let mut request = http::Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer = Peer::at(([127, 0, 0, 1], 1).into());
    request.extension(peer).body(Body::empty()).unwrap()
}

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

/// An answer: its status, headers and bytes.
fn get_with(jobs: &Arc<Jobs>, headers: &[(&str, &str)], path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
    block_on(async {
        let api = api(jobs, &Arc::default());
        let response = router(Arc::new(api)).call(request(path, headers)).await.unwrap();
        let (head, body) = response.into_parts();
        (head.status, head.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
    })
}

fn get_from(jobs: &Arc<Jobs>, from: Option<&str>, path: &str) -> (StatusCode, Value) {
    let headers: Vec<(&str, &str)> = from.map(|from| ("From", from)).into_iter().collect();
    let (status, _, body) = get_with(jobs, &headers, path);
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["jobs"].as_array().unwrap().iter().map(|job| job["job"]["id"].as_str().unwrap()).collect()
}

#[test]
fn no_endpoint_is_called_without_authentication() {
    let jobs = Jobs::new();
    for Endpoint { path, .. } in endpoints() {
        let address = path.replace("{job}", "2").replace("{node}", "n1");
        let (status, answer) = get_from(&jobs, None, &address);
        let reason = Some("who are you?");
        assert_eq!((status, answer["error"].as_str()), (StatusCode::UNAUTHORIZED, reason), "{path}");
        let (status, _) = get_from(&jobs, None, &format!("{address}?nonsense=1"));
        assert_eq!(status, StatusCode::UNAUTHORIZED, "a stranger learns no parameters of {path}");
    }
    assert_eq!(jobs.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn more_series_of_a_node_than_fit_an_answer_are_refused() {
    let jobs = Jobs::new();
    let asked = || jobs.asked.load(Ordering::Relaxed);
    let (status, answer) = get_from(&jobs, Some("operator"), "/api/v1/nodes/n1/series?points=5000");
    let reason = answer["error"].as_str().unwrap();
    assert!(status == StatusCode::BAD_REQUEST && reason.contains("give the table"), "{status} {reason}");
    assert!(asked() < 100, "it is refused before all were read");
    let one = "/api/v1/nodes/n1/series?points=5000&table=block&part=sd7";
    for fits in ["/api/v1/nodes/n1/series?points=10", one] {
        assert_eq!(get_from(&jobs, Some("operator"), fits).0, StatusCode::OK, "{fits}");
    }
}

#[test]
fn a_user_gets_only_their_own_jobs() {
    let jobs = Jobs::new();
    let (_, own) = get_from(&jobs, Some("ada"), "/api/v1/jobs");
    assert_eq!(ids(&own), ["8", "6", "4", "2"]);
    assert_eq!(get_from(&jobs, Some("ada"), "/api/v1/jobs?user=ada").1, own);
    let (status, of_bob) = get_from(&jobs, Some("ada"), "/api/v1/jobs?user=bob");
    assert_eq!((status, of_bob), (StatusCode::OK, serde_json::json!({ "jobs": [], "next": null })));
    let (_, of_bob) = get_from(&jobs, Some("operator"), "/api/v1/jobs?user=bob");
    assert_eq!(ids(&of_bob), ["9", "7", "5", "3", "1"]);
    for path in ["/api/v1/jobs/3", "/api/v1/jobs/3/series", "/api/v1/jobs/77"] {
        let (status, answer) = get_from(&jobs, Some("ada"), path);
        let id = path.trim_start_matches("/api/v1/jobs/").trim_end_matches("/series");
        assert_eq!(
            (status, answer["error"].as_str()),
            (StatusCode::NOT_FOUND, Some(&*format!("no job named {id:?}")))
        );
    }
    let (status, job) = get_from(&jobs, Some("operator"), "/api/v1/jobs/3");
    assert_eq!((status, job["job"]["user"].as_str()), (StatusCode::OK, Some("bob")));
}

#[test]
fn a_list_goes_on_where_it_ended() {
    let jobs = Jobs::new();
    let (mut seen, mut path) = (Vec::new(), "/api/v1/jobs?limit=4".to_owned());
    loop {
        let (status, answer) = get_from(&jobs, Some("operator"), &path);
        assert_eq!(status, StatusCode::OK, "{answer}");
        seen.extend(ids(&answer).into_iter().map(str::to_owned));
        let Some(next) = answer["next"].as_str() else { break };
        path = format!("/api/v1/jobs?limit=4&after={next}");
    }
    assert_eq!(seen, ["9", "8", "7", "6", "5", "4", "3", "2", "1"]);
}

#[test]
fn series_have_times_and_the_columns_that_were_read() {
    let (status, series) = get_from(&Jobs::new(), Some("ada"), "/api/v1/jobs/2/series");
    assert_eq!(status, StatusCode::OK);
    assert_eq!(series["columns"]["cpu_seconds"], serde_json::json!([5.0, null]));
    assert_eq!(series["times"][1], "1970-01-01T00:00:02.000000Z");
    assert_eq!((&series["table"], &series["next"]), (&Value::from("job"), &Value::Null));
    let after = "/api/v1/jobs/2/series?after=1970-01-01T00:00:02Z";
    assert_eq!(get_from(&Jobs::new(), Some("ada"), after).1["times"], serde_json::json!([]));
}

#[test]
fn a_gpu_is_selected_by_gpu_and_by_the_earlier_name_of_the_parameter() {
    let mut record = met_core::sample::full(2, "train");
    record.user = Some("ada".to_owned());
    record.gpus = vec![GpuUse { uuid: "GPU-1".to_owned(), ..GpuUse::default() }];
    let jobs = Arc::new(Jobs {
        jobs: vec![record],
        asked: AtomicUsize::new(0),
        listed: AtomicUsize::new(0),
        written: AtomicUsize::new(0),
    });
    let get = |search: &str| get_from(&jobs, Some("ada"), &format!("/api/v1/jobs/2/series?{search}"));
    let (status, answer) = get("gpu=GPU-1");
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&answer["table"], &answer["part"]), (&Value::from("gpu"), &Value::from("GPU-1")));
    assert_eq!(get("card=GPU-1"), (status, answer));
    for search in ["gpu=GPU-2", "card=GPU-2", "gpu=GPU-1&card=GPU-1"] {
        let (status, answer) = get(search);
        assert_eq!((status, &answer["field"]), (StatusCode::BAD_REQUEST, &Value::from("gpu")), "{search}");
    }
    let (_, unknown) = get("uuid=GPU-1");
    let known = unknown["error"].as_str().unwrap();
    assert!(known.contains("known: gpu, event,") && !known.contains("card"), "{known}");
}

#[test]
fn the_series_of_a_job_are_not_those_of_a_step() {
    let mut scheduled = met_core::sample::scheduled();
    (scheduled.key.id, scheduled.user) = ("77".to_owned(), Some("ada".to_owned()));
    let step = scheduled.parts.iter().find(|part| !part.step.is_empty()).unwrap().step.clone();
    let jobs = Arc::new(Jobs {
        jobs: vec![scheduled],
        asked: AtomicUsize::new(0),
        listed: AtomicUsize::new(0),
        written: AtomicUsize::new(0),
    });
    assert_eq!(get_from(&jobs, Some("ada"), &format!("/api/v1/jobs/77.{step}")).0, StatusCode::OK);
    let (status, answer) = get_from(&jobs, Some("ada"), &format!("/api/v1/jobs/77.{step}/series"));
    let reason = "job: a step has no series of its own; ask for its job";
    assert_eq!((status, answer["error"].as_str()), (StatusCode::BAD_REQUEST, Some(reason)));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field_that_is_wrong() {
    let jobs = Jobs::new();
    let (status, headers, body) = get_with(&jobs, &[("From", "ada")], "/api/v1/jobs?limit=0");
    let answer: Value = serde_json::from_slice(&body).unwrap();
    let reason = "limit: \"0\" is not a number from 1 to 500";
    let expected = serde_json::json!({
        "type": "about:blank", "title": "Bad Request", "status": 400, "detail": reason, "error": reason, "field": "limit",
    });
    assert_eq!((status, answer), (StatusCode::BAD_REQUEST, expected));
    assert_eq!(headers["content-type"], "application/problem+json");
    for (path, field) in [
        ("/api/v1/nodes?x=1", "x"),
        ("/api/v1/jobs/2/series?points=0", "points"),
        ("/api/v1/jobs/2/series?points=99999999", "points"),
        ("/api/v1/jobs/2/series?columns=cpu_seconds,DROP", "columns"),
        ("/api/v1/jobs/2/series?since=2h&until=3h", "until"),
        ("/api/v1/energy?by=gpu", "by"),
        ("/api/v1/jobs?sort=password", "sort"),
        ("/api/v1/jobs/a%00b", "job"),
    ] {
        let (status, answer) = get_from(&jobs, Some("ada"), path);
        assert_eq!(
            (status, answer["field"].as_str()),
            (StatusCode::BAD_REQUEST, Some(field)),
            "{path}: {answer}"
        );
    }
    assert_eq!(jobs.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_series_is_reduced_to_the_points_that_were_requested() {
    let (_, series) = get_from(&Jobs::new(), Some("ada"), "/api/v1/jobs/2/series?points=4");
    assert_eq!(series["times"].as_array().unwrap().len(), 4);
    assert_eq!(series["span_seconds"], 0.25);
    let path = "/api/v1/jobs/2/series?points=2&columns=memory_needed_bytes&format=csv";
    let (_, headers, body) = get_with(&Jobs::new(), &[("From", "ada")], path);
    assert_eq!(headers["content-type"], "text/csv; charset=utf-8; header=present");
    assert!(String::from_utf8(body).unwrap().starts_with("time\r\n"), "it was never read");
}

#[test]
fn a_table_is_csv_by_parameter_or_header() {
    let jobs = Jobs::new();
    let by_header =
        get_with(&jobs, &[("From", "ada"), ("Accept", "text/csv")], "/api/v1/jobs?columns=id,name,user");
    let by_name = get_with(&jobs, &[("From", "ada")], "/api/v1/jobs?columns=id,name,user&format=csv");
    let expected = "id,name,user\r\n8,train,ada\r\n6,train,ada\r\n4,train,ada\r\n2,train,ada\r\n";
    for (status, headers, body) in [by_header, by_name] {
        assert_eq!((status, std::str::from_utf8(&body).unwrap()), (StatusCode::OK, expected));
        assert_eq!(headers["content-disposition"], "attachment; filename=\"jobs.csv\"");
    }
    let browser = get_with(&jobs, &[("From", "ada"), ("Accept", "text/html,*/*;q=0.8")], "/api/v1/jobs");
    assert_eq!(browser.1["content-type"], "application/json");
    let (_, headers, body) = get_with(&jobs, &[("From", "ada")], "/api/v1/jobs?format=csv&limit=2");
    assert!(String::from_utf8(body).unwrap().lines().all(|line| line.matches(',').count() > 50));
    assert!(headers["link"].to_str().unwrap().starts_with("<?format=csv&limit=2&after="), "{headers:?}");
    assert_eq!(get_from(&jobs, Some("ada"), "/api/v1/jobs?format=csv&columns=x").1["field"], "columns");
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let jobs = Jobs::new();
    let (_, first, body) = get_with(&jobs, &[("From", "ada")], "/api/v1/jobs");
    assert_eq!(first["cache-control"], "private, no-cache");
    assert_eq!(first["vary"], "Accept, Accept-Encoding, Authorization, Cookie");
    let tag = first["etag"].to_str().unwrap();
    let packed = [("From", "ada"), ("Accept-Encoding", "gzip")];
    let (_, second, small) = get_with(&jobs, &packed, "/api/v1/jobs");
    assert_eq!((&second["content-encoding"], &second["etag"]), (&"gzip".parse().unwrap(), &first["etag"]));
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&small[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, body);
    for known in [tag, "*", &format!("\"other\", {}", tag.trim_start_matches("W/"))] {
        let (status, headers, body) =
            get_with(&jobs, &[("From", "ada"), ("If-None-Match", known)], "/api/v1/jobs");
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0));
        assert_eq!((&headers["etag"], &headers["vary"]), (&first["etag"], &first["vary"]));
    }
    // Another viewer has other jobs, whatever it says that it knows.
    let (status, ..) = get_with(&jobs, &[("From", "bob"), ("If-None-Match", tag)], "/api/v1/jobs");
    assert_eq!(status, StatusCode::OK);
}

#[test]
fn a_job_has_the_time_window_of_a_dashboard() {
    let (_, job) = get_from(&Jobs::new(), Some("ada"), "/api/v1/jobs/2");
    let start_ms = job["row"]["from_ms"].as_i64().unwrap();
    assert_eq!(start_ms, 0, "two nanoseconds after the epoch");
    assert!(job["row"]["to_ms"].as_i64().unwrap() >= start_ms);
}

/// Names of parameters in `{}`, filled in.
fn examples() -> impl Iterator<Item = (&'static Endpoint, String)> {
    endpoints().map(|one| (one, one.path.replace("{job}", "2").replace("{node}", "n1")))
}

#[test]
fn every_route_is_in_the_document_and_answers() {
    let jobs = Jobs::new();
    let (status, document) = get_from(&jobs, Some("operator"), "/api/v1/openapi.json");
    assert_eq!((status, document["openapi"].as_str()), (StatusCode::OK, Some("3.1.0")));
    let paths = document["paths"].as_object().unwrap();
    let written: std::collections::BTreeSet<&str> = writes::WRITES.iter().map(|write| write.path).collect();
    assert_eq!(paths.len(), endpoints().count() + written.len());
    for write in writes::WRITES {
        let operation = &paths[write.path][write.method.as_str().to_lowercase()];
        assert_eq!(operation["summary"], write.help, "{}", write.path);
        assert_eq!(operation["requestBody"].is_object(), write.body.is_some(), "{}", write.path);
    }
    for (endpoint, address) in examples() {
        let operation = &paths[endpoint.path]["get"];
        let empty = Vec::new();
        let described = operation["parameters"].as_array().unwrap_or(&empty);
        let in_path = endpoint.path.matches('{').count();
        assert_eq!(described.len(), endpoint.parameters.len() + in_path, "{}", endpoint.path);
        let has_csv = !operation["responses"]["200"]["content"]["text/csv"].is_null();
        assert_eq!(has_csv, endpoint.parameters.iter().any(|one| one.name == "format"), "{}", endpoint.path);
        if !matches!(endpoint.action, Action::Stream) {
            let (status, answer) = get_from(&jobs, Some("operator"), &address);
            assert_eq!(status, StatusCode::OK, "{address}: {answer}");
            for key in operation["responses"]["200"]["content"]["application/json"]["schema"]["required"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert!(!answer[key.as_str().unwrap()].is_null() || key == "next", "{address}: {key}");
            }
        }
    }
}

/// The rows of all paths in `docs/api.md`.
fn documented() -> String {
    let read = endpoints().map(|one| ("GET", one.path, one.answer));
    let written = writes::WRITES.iter().map(|one| (one.method.as_str(), one.path, one.answer));
    let row = |(method, path, answer)| format!("| `{method} {path}` | {answer} |\n");
    read.map(row).chain(written.map(row)).collect()
}

/// `UPDATE_EXPECT=1` writes the table.
#[test]
fn the_table_of_the_documentation_is_current() {
    const HEAD: &str = "| path | answer |\n| --- | --- |\n";
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (table, after) = rest.split_at(rest.find("\n\n").unwrap() + 1);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(file, format!("{before}{HEAD}{}{after}", documented())).unwrap();
    } else {
        assert_eq!(table, documented(), "docs/api.md is not current: set UPDATE_EXPECT=1");
    }
}

/// An endpoint is an entry in its own file: one that another file had to name would take a third file to add.
#[test]
fn an_endpoint_is_named_in_its_own_file_only() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.map(|path| (std::fs::read_to_string(&path).unwrap(), path)).collect();
    let declaring = files.iter().filter(|(text, _)| text.contains("const ENDPOINTS: &[Endpoint]")).count();
    assert_eq!(declaring, SUBJECTS.len(), "SUBJECTS has every file with endpoints");
    let router = include_str!("api.rs");
    for endpoint in endpoints() {
        let named = format!("\"{}\"", endpoint.path);
        let naming: Vec<_> = files.iter().filter(|(text, _)| text.contains(&named)).collect();
        assert_eq!(
            naming.len(),
            1,
            "{named} in {:?}",
            naming.iter().map(|(_, path)| path).collect::<Vec<_>>()
        );
        assert!(!router.contains(&named), "{named} in api.rs");
    }
}

/// Reads events of a stream until one of this name.
async fn next_event(body: &mut Body, name: &str) -> Value {
    use http_body_util::BodyExt;
    loop {
        let frame = body.frame().await.expect("the stream goes on").unwrap();
        let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        for event in text.split("\n\n") {
            if let Some(data) = event.strip_prefix(&format!("event: {name}\ndata: ")) {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

async fn open_stream(router: &Router, from: &str, path: &str) -> Response {
    router.clone().call(request(path, &[("From", from)])).await.unwrap()
}

#[test]
fn a_stream_has_starts_and_ends_of_visible_jobs_alone() {
    let (jobs, hub) = (Jobs::new(), Arc::<Hub>::default());
    block_on(async {
        let router = router(Arc::new(api(&jobs, &hub)));
        assert!(!hub.wants(Kind::Started), "without a stream nothing is published");
        let mut of_ada = open_stream(&router, "ada", "/api/v1/stream").await.into_body();
        assert!(hub.wants(Kind::Started));
        // Of bob, of ada, of bob.
        for record in [&jobs.jobs[0], &jobs.jobs[1], &jobs.jobs[2]] {
            hub.publish(&Event::Started(Arc::new(record.clone())));
            hub.publish(&Event::Ended(Arc::new(record.clone())));
        }
        let started = next_event(&mut of_ada, "started").await;
        assert_eq!((&started["job"]["id"], &started["job"]["user"]), (&"8".into(), &"ada".into()));
        assert_eq!(next_event(&mut of_ada, "ended").await["job"]["user"], "ada");
        hub.publish(&Event::Ended(Arc::new(jobs.jobs[3].clone())));
        assert_eq!(next_event(&mut of_ada, "ended").await["job"]["id"], "6");
        // When the bus ends, so does the stream.
        hub.close();
        use http_body_util::BodyExt;
        while of_ada.frame().await.is_some() {}
    });
}

#[test]
fn a_client_has_few_streams_and_a_slow_one_none() {
    let (jobs, hub) = (Jobs::new(), Arc::<Hub>::default());
    block_on(async {
        let router = router(Arc::new(api(&jobs, &hub)));
        let mut open = Vec::new();
        for _ in 0..4 {
            let response = open_stream(&router, "ada", "/api/v1/stream").await;
            assert_eq!(response.status(), StatusCode::OK);
            open.push(response);
        }
        assert_eq!(
            open_stream(&router, "ada", "/api/v1/stream").await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(open_stream(&router, "operator", "/api/v1/stream").await.status(), StatusCode::OK);
        open.pop();
        let response = open_stream(&router, "ada", "/api/v1/stream").await;
        assert_eq!(response.status(), StatusCode::OK);
        // None of them reads while more happens than waits for a stream.
        for _ in 0..5000 {
            hub.publish(&Event::Started(Arc::new(jobs.jobs[1].clone())));
        }
        assert!(!hub.wants(Kind::Started), "all were too slow");
    });
}

#[test]
fn a_stream_of_one_job_needs_one_that_is_visible() {
    let (jobs, hub) = (Jobs::new(), Arc::<Hub>::default());
    block_on(async {
        let router = router(Arc::new(api(&jobs, &hub)));
        let status = |path: &'static str| async { open_stream(&router, "ada", path).await.status() };
        assert_eq!(status("/api/v1/stream?job=3").await, StatusCode::NOT_FOUND);
        assert_eq!(status("/api/v1/stream?job=77").await, StatusCode::NOT_FOUND);
        let mut only = open_stream(&router, "ada", "/api/v1/stream?job=4").await.into_body();
        hub.publish(&Event::Ended(Arc::new(jobs.jobs[1].clone())));
        hub.publish(&Event::Ended(Arc::new(jobs.jobs[5].clone())));
        assert_eq!(next_event(&mut only, "ended").await["job"]["id"], "4");
        use http_body_util::BodyExt;
        assert!(only.frame().await.is_none(), "nothing follows the end of a job");
    });
}

#[test]
fn a_stream_of_one_job_reads_no_list() {
    let mut jobs = Jobs::new();
    let all = &mut Arc::get_mut(&mut jobs).unwrap().jobs;
    all.iter_mut().for_each(|record| record.state = State::Running);
    block_on(async {
        let router = router(Arc::new(api(&jobs, &Arc::default())));
        let mut only = open_stream(&router, "ada", "/api/v1/stream?job=4").await.into_body();
        assert_eq!(next_event(&mut only, "figures").await["job"]["id"], "4");
        assert_eq!(jobs.listed.load(Ordering::Relaxed), 0);
    });
}

/// The status and the object of the answer to a write.
fn put(
    jobs: &Arc<Jobs>,
    from: &str,
    (method, path): (&str, &str),
    kind: &str,
    body: &str,
) -> (u16, Value, usize) {
    let before = jobs.written.load(Ordering::Relaxed);
    block_on(async {
        let mut request = request(path, &[("From", from), ("Content-Type", kind)]);
        *request.method_mut() = method.parse().unwrap();
        *request.body_mut() = Body::from(body.to_owned());
        let response = router(Arc::new(api(jobs, &Arc::default()))).call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let written = jobs.written.load(Ordering::Relaxed) - before;
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap_or_default(), written)
    })
}

#[test]
fn tags_and_notes_are_written_by_the_owner_and_operators_alone() {
    let jobs = Jobs::new();
    let json = "application/json";
    let note = ("PUT", "/api/v1/jobs/8/note");
    for (from, status, written) in [("ada", 200, 1), ("operator", 200, 1), ("bob", 404, 0)] {
        let (found, body, count) = put(&jobs, from, note, json, r#"{"note": "good"}"#);
        assert_eq!((found, count), (status, written), "{from}: {body}");
        assert_eq!(body.get("note").and_then(Value::as_str), (status == 200).then_some("good"), "{from}");
        for method in ["PUT", "DELETE"] {
            let (found, body, count) = put(&jobs, from, (method, "/api/v1/jobs/8/tags/best"), json, "");
            assert_eq!((found, count), (status, written), "{from} {method}: {body}");
        }
        assert_eq!(put(&jobs, from, ("DELETE", "/api/v1/jobs/8/note"), "", "").0, status, "{from}");
    }
    let (absent, of_absent, _) = put(&jobs, "bob", ("PUT", "/api/v1/jobs/80/tags/x"), json, "");
    let (hidden, of_hidden, _) = put(&jobs, "bob", ("PUT", "/api/v1/jobs/8/tags/x"), json, "");
    assert_eq!((absent, hidden), (404, 404));
    assert_eq!(
        of_absent["detail"].as_str().map(|text| text.replace("80", "8")),
        of_hidden["detail"].as_str().map(str::to_owned)
    );
}

#[test]
fn a_write_that_is_malformed_changes_nothing() {
    let jobs = Jobs::new();
    let note = ("PUT", "/api/v1/jobs/8/note");
    for (kind, body, status) in [
        ("text/plain", r#"{"note": "x"}"#, 415),
        ("", r#"{"note": "x"}"#, 415),
        ("application/json", "", 400),
        ("application/json", "[]", 400),
        ("application/json", r#"{"note": 1}"#, 400),
        ("application/json", r#"{"note": ""}"#, 400),
        ("application/json", r#"{"note": "x", "more": 1}"#, 400),
    ] {
        let (found, answer, written) = put(&jobs, "ada", note, kind, body);
        assert_eq!((found, written), (status, 0), "{kind} {body}: {answer}");
    }
    let long = format!(r#"{{"note": "{}"}}"#, "x".repeat(40 << 10));
    assert_eq!(put(&jobs, "ada", note, "application/json", &long).0, 413);
    let blank = put(&jobs, "ada", note, "application/json", r#"{"note": " "}"#);
    assert_eq!(blank.0, 400, "{}", blank.1);
    for tag in ["A", "%2e%2e%2f", "-x", "%00", "caf%C3%A9"] {
        let (found, answer, written) =
            put(&jobs, "ada", ("PUT", &format!("/api/v1/jobs/8/tags/{tag}")), "", "");
        assert_eq!((found, written, &answer["field"]), (400, 0, &Value::from("tag")), "{tag}");
    }
    assert_eq!(put(&jobs, "ada", ("PUT", "/api/v1/jobs/8/tags/x?force=1"), "", "").0, 400);
}
