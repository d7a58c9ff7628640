//! A client that searches many jobs does not block the others.

use std::collections::HashMap;
use std::sync::{Mutex, mpsc};

use axum::body::to_bytes;
use met_core::JOB;
use met_core::listing::Cursor;
use serde_json::Value;
use tower_service::Service;

use super::tests::{Jobs, api, block_on, request};
use super::*;

const DAMAGED: &str = "the store is damaged; jobs may be missing";

/// Lists jobs when the test allows it, and notes for whom. Some cannot be read.
struct Gated {
    jobs: Arc<Jobs>,
    may_go_on: Mutex<mpsc::Receiver<()>>,
    begun: Mutex<Vec<String>>,
}

impl Gated {
    fn new() -> (Arc<Gated>, mpsc::Sender<()>) {
        let (go_on, may_go_on) = mpsc::channel();
        let gated = Gated { jobs: Jobs::new(), may_go_on: Mutex::new(may_go_on), begun: Mutex::default() };
        (Arc::new(gated), go_on)
    }

    fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }
}

impl Query for Gated {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> anyhow::Result<(Page, Vec<String>)> {
        if filter.is_brief {
            let name = match viewer {
                Viewer::User { name, .. } => name.clone(),
                _ => "operator".to_owned(),
            };
            self.begun.lock().unwrap().push(name);
            self.may_go_on.lock().unwrap().recv()?;
        }
        let (mut page, _) = self.jobs.jobs(viewer, filter)?;
        for record in &mut page.jobs {
            record.end_ns = Some(7_200_000_000_000);
        }
        Ok((page, vec![DAMAGED.to_owned()]))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> anyhow::Result<Page> {
        self.jobs.find(viewer, job, after)
    }

    fn series(&self, _: &Viewer, _: &JobKey, _: i64) -> anyhow::Result<Series> {
        Ok(Series::new(&JOB))
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, _: &str, after_ms: i64) -> anyhow::Result<Series> {
        self.series(viewer, key, after_ms)
    }

    fn nodes(&self, viewer: &Viewer) -> anyhow::Result<Vec<NodeStatus>> {
        self.jobs.nodes(viewer)
    }
}

fn api_of(gated: &Arc<Gated>) -> Api {
    Api { query: Arc::<Gated>::clone(gated), ..api(&gated.jobs, &Arc::default()) }
}

async fn get(router: &Router, from: &str, path: &str) -> (StatusCode, Value) {
    let response = router.clone().call(request(path, &[("From", from)])).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Lets tasks go on until this is so.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn findings_are_looked_for_one_at_a_time_and_every_login_has_its_turn() {
    block_on(async {
        let (gated, go_on) = Gated::new();
        let router = router(Arc::new(api_of(&gated)));
        let ask = |from: &'static str| {
            let router = router.clone();
            tokio::spawn(async move { (from, get(&router, from, "/api/v1/findings").await.0) })
        };
        let mut asking = vec![ask("ada")];
        until(|| gated.begun().len() == 1).await;
        for from in ["ada", "bob"] {
            asking.push(ask(from));
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(gated.begun(), ["ada"], "one at a time");
        let (status, answer) = get(&router, "ada", "/api/v1/findings").await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "one more than may wait: {answer}");
        // Other answers are made meanwhile.
        assert_eq!(get(&router, "ada", "/api/v1/nodes").await.0, StatusCode::OK);
        (0..3).for_each(|_| go_on.send(()).unwrap());
        let mut answered: HashMap<&str, usize> = HashMap::new();
        for asking in asking {
            let (from, status) = asking.await.unwrap();
            assert_eq!(status, StatusCode::OK, "{from}");
            *answered.entry(from).or_default() += 1;
        }
        assert_eq!(answered, HashMap::from([("ada", 2), ("bob", 1)]));
        assert_eq!(gated.begun(), ["ada", "bob", "ada"], "bob is not behind all that ada asks for");
    });
}

#[test]
fn the_place_of_one_who_goes_away_is_free_when_the_work_has_ended() {
    block_on(async {
        let (gated, go_on) = Gated::new();
        let router = router(Arc::new(api_of(&gated)));
        let gone = {
            let router = router.clone();
            tokio::spawn(async move { get(&router, "ada", "/api/v1/findings").await.0 })
        };
        until(|| gated.begun().len() == 1).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let next = {
            let router = router.clone();
            tokio::spawn(async move { get(&router, "bob", "/api/v1/findings").await.0 })
        };
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gated.begun(), ["ada"], "what is under way goes on, and no second one beside it");
        (0..2).for_each(|_| go_on.send(()).unwrap());
        assert_eq!(next.await.unwrap(), StatusCode::OK);
    });
}

#[test]
fn findings_that_take_too_long_ask_for_a_later_time() {
    block_on(async {
        let (gated, go_on) = Gated::new();
        let answers = Arc::new(Answers::default().with_findings_within(Duration::ZERO));
        let router = router(Arc::new(Api { answers, ..api_of(&gated) }));
        go_on.send(()).unwrap();
        let (status, answer) = get(&router, "operator", "/api/v1/findings").await;
        assert_eq!((status, answer["field"].as_str()), (StatusCode::BAD_REQUEST, Some("since")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("choose a later time"), "{answer}");
    });
}

#[test]
fn findings_and_predictions_say_that_jobs_cannot_be_read() {
    block_on(async {
        let (gated, go_on) = Gated::new();
        let router = router(Arc::new(api_of(&gated)));
        (0..9).for_each(|_| go_on.send(()).unwrap());
        for path in ["/api/v1/findings", "/api/v1/jobs/2/scale"] {
            let (status, answer) = get(&router, "operator", path).await;
            assert_eq!(
                (status, &answer["warnings"][0]),
                (StatusCode::OK, &DAMAGED.into()),
                "{path}: {answer}"
            );
        }
    });
}
