use axum::body::to_bytes;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::JobKey;
use met_core::listing::Cursor;
use met_core::series::Series;
use met_query::annotate::Annotates;
use met_query::jobs::{JobRef, JobsFilter};
use met_query::protocol::NodeStatus;
use met_query::query::{Query, nothing};
use met_store::Page;

use super::*;

struct Nothing;

impl Query for Nothing {
    fn jobs(&self, _: &Viewer, _: &JobsFilter) -> anyhow::Result<(Page, Vec<String>)> {
        Ok(nothing())
    }

    fn find(&self, _: &Viewer, _: &JobRef, _: Option<&Cursor>) -> anyhow::Result<Page> {
        Ok(nothing().0)
    }

    fn series(&self, _: &Viewer, _: &JobKey, _: i64) -> anyhow::Result<Series> {
        Ok(Series::new(&met_core::JOB))
    }

    fn gpu_series(&self, _: &Viewer, _: &JobKey, _: &str, _: i64) -> anyhow::Result<Series> {
        Ok(Series::new(&met_core::gpu::device::TABLE))
    }

    fn nodes(&self, _: &Viewer) -> anyhow::Result<Vec<NodeStatus>> {
        Ok(Vec::new())
    }
}

impl Annotates for Nothing {
    fn annotate(&self, _: &Viewer, _: &JobKey, _: &AnnotationChange) -> anyhow::Result<Annotation> {
        Err(met_query::annotate::no_such_job())
    }
}

fn listener() -> (Arc<Personal>, Router) {
    let personal = Personal::new("ada").unwrap();
    personal.listens_on(4711);
    let admission: Arc<dyn Admission> = Arc::<Personal>::clone(&personal);
    let api = Api {
        query: Arc::new(Nothing),
        admission,
        answers: Arc::default(),
        layouts: Vec::new(),
        live: Arc::default(),
        annotates: Arc::new(Nothing),
        output: None,
        host: None,
        systems: Arc::default(),
        currency: "CHF".to_owned(),
    };
    let router = router(&personal, api);
    (personal, router)
}

fn ask(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    let host =
        [("host", "127.0.0.1:4711")].into_iter().filter(|_| !headers.iter().any(|(name, _)| *name == "host"));
    for (name, value) in host.chain(headers.iter().copied()) {
        request = request.header(name, value);
    }
    let peer = Peer::at(([127, 0, 0, 1], 1).into());
    let request = request.extension(peer).body(Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let response = router.clone().call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        (head.status, head.headers, String::from_utf8_lossy(&body).into_owned())
    })
}

#[test]
fn a_ticket_becomes_a_cookie_once_and_only_the_cookie_opens_pages() {
    let (personal, router) = listener();
    let enter = format!("{}enter/{}?next=jobs%3Fstate%3Drunning", personal.base, personal.ticket().unwrap());
    assert_eq!(ask(&router, "HEAD", &enter, &[]).0, StatusCode::FORBIDDEN, "a preview does not use it up");
    let (status, headers, _) = ask(&router, "GET", &enter, &[]);
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert_eq!(headers["location"], format!("{}jobs?state=running", personal.base));
    let cookie = headers["set-cookie"].to_str().unwrap();
    assert!(cookie.ends_with(&format!("Path={}; HttpOnly; SameSite=Lax", personal.base)), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(ask(&router, "GET", &enter, &[]).0, StatusCode::FORBIDDEN, "a link works once");
    for path in ["", "jobs", "nodes", "api/v1/jobs"] {
        let path = format!("{}{path}", personal.base);
        assert_eq!(ask(&router, "GET", &path, &[]).0, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(ask(&router, "GET", &path, &[("cookie", "met-x=y")]).0, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(ask(&router, "GET", &path, &[("cookie", cookie)]).0, StatusCode::OK, "{path}");
    }
    let links = ask(&router, "GET", &personal.base, &[("cookie", cookie)]).2;
    assert!(links.contains(&format!("href=\"{}jobs\"", personal.base)), "links stay below the path");
}

#[test]
fn another_host_or_path_gets_nothing() {
    let (personal, router) = listener();
    let cookie = format!("{}={}", personal.cookie, personal.session);
    for host in
        ["evil.example:4711", "127.0.0.1", "127.0.0.1:80", "localhost.evil:4711", "", "127.0.0.1:4711:4711"]
    {
        let (status, _, text) = ask(&router, "GET", &personal.base, &[("host", host), ("cookie", &cookie)]);
        assert_eq!((status, text.contains("Jobs")), (StatusCode::MISDIRECTED_REQUEST, false), "{host}");
    }
    for host in ["localhost:4711", "[::1]:4711"] {
        assert_eq!(
            ask(&router, "GET", &personal.base, &[("host", host), ("cookie", &cookie)]).0,
            StatusCode::OK
        );
    }
    for path in ["/", "/jobs", "/api/v1/jobs", "/favicon.ico", &personal.base[..personal.base.len() - 1]] {
        assert_eq!(ask(&router, "GET", path, &[("cookie", &cookie)]).0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[test]
fn only_the_control_secret_makes_tickets_and_few_of_them_wait() {
    let (personal, router) = listener();
    let path = format!("{}ticket", personal.base);
    let bearer = format!("Bearer {}", personal.control);
    for (method, given) in [("GET", bearer.as_str()), ("POST", "Bearer x"), ("POST", "Bearer "), ("POST", "")]
    {
        assert_eq!(ask(&router, method, &path, &[("authorization", given)]).0, StatusCode::FORBIDDEN);
    }
    let (status, _, ticket) = ask(&router, "POST", &path, &[("authorization", &bearer)]);
    assert_eq!(status, StatusCode::OK);
    for _ in 0..TICKETS_MAX {
        personal.ticket().unwrap();
    }
    assert!(!personal.take(&ticket), "the oldest made room");
    assert!(!personal.take(""));
}

#[test]
fn a_write_needs_the_token_of_a_page_of_this_listener() {
    let (personal, router) = listener();
    let cookie = format!("{}={}", personal.cookie, personal.session);
    let path = format!("{}api/v1/jobs/1/tags/best", personal.base);
    let put = |headers: &[(&str, &str)]| {
        let headers: Vec<_> = headers.iter().copied().chain([("cookie", cookie.as_str())]).collect();
        ask(&router, "PUT", &path, &headers).0
    };
    let token = personal.csrf.as_str();
    assert_eq!(put(&[]), StatusCode::FORBIDDEN);
    assert_eq!(put(&[("x-met-csrf", "x")]), StatusCode::FORBIDDEN);
    for foreign in [("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:4712")] {
        assert_eq!(put(&[("x-met-csrf", token), foreign]), StatusCode::FORBIDDEN);
    }
    let own = [("x-met-csrf", token), ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:4711")];
    assert_eq!(put(&own), StatusCode::NOT_FOUND, "it is looked for");
    assert_eq!(
        ask(&router, "PUT", &path, &[("x-met-csrf", token)]).0,
        StatusCode::FORBIDDEN,
        "without a login"
    );
}
