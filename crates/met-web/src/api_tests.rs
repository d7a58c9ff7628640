use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use met_core::JOB;
use met_core::job::{Record, State};
use proptest::prelude::*;
use tower_service::Service;

use super::*;

/// Jobs of ada and of bob, newest first.
struct Jobs {
    jobs: Vec<Record>,
    asked: AtomicUsize,
}

impl Jobs {
    fn new() -> Arc<Jobs> {
        let job = |id: u32| {
            let mut record = met_core::sample::full(id, "train");
            (record.start_ns, record.state) = (Some(i64::from(id)), State::Finished);
            record.user = Some(if id.is_multiple_of(2) { "ada" } else { "bob" }.to_owned());
            record
        };
        Arc::new(Jobs { jobs: (1..=9).rev().map(job).collect(), asked: AtomicUsize::new(0) })
    }
}

impl Query for Jobs {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> anyhow::Result<(Page, Vec<String>)> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let Some(filter) = viewer.restrict(filter) else { return Ok(met_query::query::nothing()) };
        let mut jobs = self.jobs.clone();
        jobs.retain(|record| filter.user.is_none() || record.user == filter.user);
        jobs.retain(|record| filter.after.as_ref().is_none_or(|after| Cursor::of(record) < *after));
        let limit = filter.limit.unwrap_or(usize::MAX);
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

    fn course(&self, _: &Viewer, _: &JobKey, after_ms: i64) -> anyhow::Result<Course> {
        let mut course = Course::new(&JOB);
        course.times_ms = vec![1_000, 2_000];
        course.columns.iter_mut().for_each(|cells| cells.resize(2, met_core::MISSING));
        course.columns[met_core::job_table::CPU] = vec![5_000_000_000, met_core::MISSING];
        if after_ms >= 2_000 {
            return Ok(Course::new(&JOB));
        }
        Ok(course)
    }

    fn card_course(&self, viewer: &Viewer, key: &JobKey, _: &str, after_ms: i64) -> anyhow::Result<Course> {
        self.course(viewer, key, after_ms)
    }

    fn nodes(&self, _: &Viewer) -> anyhow::Result<Vec<NodeStatus>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(vec![NodeStatus { name: "n1".to_owned(), ..NodeStatus::default() }])
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

fn get_from(jobs: &Arc<Jobs>, from: Option<&str>, path: &str) -> (StatusCode, Value) {
    let query = Arc::<Jobs>::clone(jobs);
    let api = Api { query, admission: Arc::new(Named), answers: Arc::default(), layouts: Vec::new() };
    let mut request = Request::builder().uri(path);
    if let Some(from) = from {
        request = request.header("From", from);
    }
    let peer = Peer { address: ([127, 0, 0, 1], 1).into(), user: None, certificate: None };
    let request = request.extension(peer).body(Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let response = router(Arc::new(api)).call(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    })
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["jobs"].as_array().unwrap().iter().map(|job| job["job"]["id"].as_str().unwrap()).collect()
}

#[test]
fn no_endpoint_is_called_without_authentication() {
    let jobs = Jobs::new();
    for (path, _) in ENDPOINTS {
        let (status, answer) = get_from(&jobs, None, &path.replace("{job}", "2"));
        assert_eq!(
            (status, answer["error"].as_str()),
            (StatusCode::UNAUTHORIZED, Some("who are you?")),
            "{path}"
        );
    }
    assert_eq!(jobs.asked.load(Ordering::Relaxed), 0);
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
fn the_series_of_a_job_are_not_those_of_a_step() {
    let mut scheduled = met_core::sample::scheduled();
    (scheduled.key.id, scheduled.user) = ("77".to_owned(), Some("ada".to_owned()));
    let step = scheduled.parts.iter().find(|part| !part.step.is_empty()).unwrap().step.clone();
    let jobs = Arc::new(Jobs { jobs: vec![scheduled], asked: AtomicUsize::new(0) });
    assert_eq!(get_from(&jobs, Some("ada"), &format!("/api/v1/jobs/77.{step}")).0, StatusCode::OK);
    let (status, answer) = get_from(&jobs, Some("ada"), &format!("/api/v1/jobs/77.{step}/series"));
    let reason = "a step has no series of its own; ask for its job";
    assert_eq!((status, answer["error"].as_str()), (StatusCode::BAD_REQUEST, Some(reason)));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let jobs = Jobs::new();
    for (search, reason) in [
        ("limit=0", "limit: \"0\" is not a number from 1 to 500"),
        ("limit=-1", "limit: \"-1\" is not a number from 1 to 500"),
        ("limit=501", "limit: \"501\" is not a number from 1 to 500"),
        (
            "state=done",
            "state: unknown state \"done\"; known: pending, running, suspended, finished, failed, cancelled, timeout, out_of_memory, lost",
        ),
        ("since=yesterday", "since: \"yesterday\" is not a time such as 2026-01-31T12:00:00Z"),
        ("after=%00", "after: \"\\0\" is not the `next` of an earlier answer"),
        ("limit=1&limit=2", "parameter limit is given twice"),
        (
            "order=name",
            "unknown parameter \"order\"; known: user, name, account, manager, state, since, until, limit, after",
        ),
    ] {
        let (status, answer) = get_from(&jobs, Some("ada"), &format!("/api/v1/jobs?{search}"));
        assert_eq!((status, answer["error"].as_str()), (StatusCode::BAD_REQUEST, Some(reason)));
    }
    let (status, answer) = get_from(&jobs, Some("ada"), "/api/v1/nodes?x=1");
    assert_eq!(
        (status, answer["error"].as_str()),
        (StatusCode::BAD_REQUEST, Some("unknown parameter \"x\"; this endpoint has no parameters"))
    );
    assert_eq!(jobs.asked.load(Ordering::Relaxed), 0);
}

proptest! {
    #[test]
    fn any_text_is_a_cursor_or_not(text in ".{0,80}") {
        let _ = decode(&text);
    }

    #[test]
    fn a_cursor_comes_back_as_it_was(start_ns: i64, id in ".{0,20}", cluster in proptest::option::of(".{0,9}"), incarnation: i64) {
        let key = JobKey { cluster, manager: "slurm".to_owned(), id, incarnation };
        let cursor = Cursor::at(start_ns, key);
        prop_assert_eq!(decode(&encode(&cursor).unwrap()).unwrap(), cursor);
    }
}
