//! Around all routes: writes of other sites are refused, pages lead to the login, and the audit log is written.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use met_core::job::JobKey;
use met_query::protocol::Request as Asked;
use serde_json::Value;

use super::Logins;
use super::audit::Event;
use super::cross_site::{CSRF_FIELD, CSRF_HEADER, is_cross_site, is_write};
use super::random::is_same;
use super::{form, routes};
use crate::api::{ASK, Admitted, BATCHES, ROOT};
use crate::listener::Peer;
use crate::problem::Problem;
use crate::scrape::METRICS;

/// Forms that write; uploads are not among them.
const FORM_BYTES_MAX: usize = 256 << 10;
const ASK_BYTES_MAX: usize = 1 << 20;

/// These routes with `/login` and `/logout`, guarded.
pub fn guard(logins: &Arc<Logins>, router: Router) -> Router {
    router.merge(routes::routes(logins)).layer(from_fn_with_state(Arc::clone(logins), guarded))
}

/// What a path is to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Api,
    Page,
    Logout,
    /// Proves or shows nothing of a person: the login itself, assets, metrics, batches of nodes.
    Other,
}

impl Kind {
    fn of(path: &str) -> Kind {
        match path {
            "/logout" => Kind::Logout,
            METRICS | BATCHES => Kind::Other,
            _ if path.starts_with("/api/") => Kind::Api,
            _ if path.starts_with("/login") || path.starts_with("/assets/") => Kind::Other,
            _ => Kind::Page,
        }
    }
}

async fn guarded(State(logins): State<Arc<Logins>>, mut request: Request, next: Next) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let (uri, method, headers) = (request.uri().clone(), request.method().clone(), request.headers().clone());
    let (kind, is_write) = (Kind::of(uri.path()), is_write(&method));
    if is_write && is_cross_site(&headers, logins.public.host.as_deref()) {
        return refuse(&logins, &peer, &uri, "a page of another site sent this");
    }
    let (admitted, why_not) = match kind {
        Kind::Other => (None, String::new()),
        _ => match logins.admit_in_time(&peer, &headers).await {
            Ok(admitted) => (Some(admitted), String::new()),
            Err(problem) => (None, problem.reason),
        },
    };
    if let Some(csrf) = admitted.as_ref().and_then(|admitted| admitted.csrf.as_ref()).filter(|_| is_write) {
        request = match with_token(request, csrf).await {
            Some(request) => request,
            None => {
                let reason =
                    format!("a write needs the header {CSRF_HEADER} or the field {CSRF_FIELD} of its page");
                return refuse(&logins, &peer, &uri, &reason);
            }
        };
    }
    let (mut is_change, mut subject) = (is_write, String::new());
    if is_write && uri.path() == ASK && admitted.is_some() {
        // Most requests to a server only read, though all are sent as writes.
        let (head, body) = request.into_parts();
        let Ok(bytes) = to_bytes(body, ASK_BYTES_MAX).await else {
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large").into_response();
        };
        (is_change, subject) = asked_for(&bytes);
        request = Request::from_parts(head, Body::from(bytes));
    }
    let mut response = next.run(request).await;
    let event = Event {
        request: uri.path_and_query().map_or("", |path| path.as_str()),
        subject: &subject,
        status: Some(response.status().as_u16()),
        by: if shows_token(&headers) { "token" } else { "" },
        reason: &why_not,
        ..Event::default()
    };
    note(&logins, &peer, (kind, uri.path()), is_change, admitted.as_ref(), event);
    if response.status() == StatusCode::UNAUTHORIZED {
        if kind == Kind::Page && method == Method::GET && accepts_html(&headers) {
            return logins.to_login(&uri);
        }
        // A script's request that fails is not to open the browser's own dialogue.
        if headers.contains_key("sec-fetch-mode") {
            response.headers_mut().remove(header::WWW_AUTHENTICATE);
        }
    }
    response
}

fn shows_token(headers: &HeaderMap) -> bool {
    let shown = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    shown.is_some_and(|shown| shown.starts_with(b"Bearer "))
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn refuse(logins: &Logins, peer: &Peer, uri: &axum::http::Uri, reason: &str) -> Response {
    let status = StatusCode::FORBIDDEN;
    let (request, code) = (uri.path(), Some(status.as_u16()));
    logins.audit.note_refusal(peer, Event { request, status: code, reason, ..Event::default() });
    Problem::new(status, reason).into_response()
}

/// The request again, if it carries this token.
pub(crate) async fn with_token(request: Request, csrf: &str) -> Option<Request> {
    if let Some(given) = request.headers().get(CSRF_HEADER) {
        return given.to_str().is_ok_and(|given| is_same(given, csrf)).then_some(request);
    }
    if !form::is_form(request.headers()) {
        return None;
    }
    let (head, body) = request.into_parts();
    let bytes = to_bytes(body, FORM_BYTES_MAX).await.ok()?;
    let fields = form::parse(&bytes);
    let is_own = form::field(&fields, CSRF_FIELD).is_some_and(|given| is_same(given, csrf));
    is_own.then(|| Request::from_parts(head, Body::from(bytes)))
}

/// Whether a request to a server does more than read, and what it is about.
fn asked_for(bytes: &[u8]) -> (bool, String) {
    match serde_json::from_slice(bytes) {
        Ok(asked) => (changes_something(&asked), subject(&asked)),
        Err(_) => (false, String::new()),
    }
}

/// What this list lacks is noted as a write.
fn changes_something(asked: &Asked) -> bool {
    !matches!(
        asked,
        Asked::Jobs(_)
            | Asked::Find(_)
            | Asked::FindAfter { .. }
            | Asked::FindOf { .. }
            | Asked::Series { .. }
            | Asked::JobSeries { .. }
            | Asked::GpuSeries { .. }
            | Asked::Memberships { .. }
            | Asked::Sums { .. }
            | Asked::Usage(_)
            | Asked::Reactions { change: None }
            | Asked::Queues
            | Asked::Nodes
            | Asked::NodeParts { .. }
            | Asked::NodePartSeries { .. }
            | Asked::NodeSeries { .. }
    )
}

/// What a request asks for and of which job, node or list; the same for all its pages, which are noted once.
fn subject(asked: &Asked) -> String {
    let (what, of) = match serde_json::to_value(asked) {
        Ok(Value::String(what)) => return what,
        Ok(Value::Object(parts)) => match parts.into_iter().next() {
            Some(part) => part,
            None => return String::new(),
        },
        _ => return String::new(),
    };
    let mut of =
        ["key", "job", "node", "filter"].into_iter().find_map(|name| of.get(name)).cloned().unwrap_or(of);
    if let Ok(key) = serde_json::from_value::<JobKey>(of.clone()) {
        let parts = [key.cluster.as_deref(), Some(&*key.manager), Some(&*key.id)];
        return format!("{what} {}", parts.into_iter().flatten().collect::<Vec<_>>().join("/"));
    }
    if let Value::Object(fields) = &mut of {
        fields.remove("after");
        fields.retain(|_, value| !value.is_null());
    }
    format!("{what} {of}")
}

/// What shows nothing of jobs or people.
fn is_public(path: &str) -> bool {
    ["catalogue", "health", "openapi.json"].iter().any(|name| path.strip_prefix(ROOT) == Some(name))
}

/// Writes, refusals of those who showed something, and what operators read.
fn note(
    logins: &Logins,
    peer: &Peer,
    (kind, path): (Kind, &str),
    is_change: bool,
    admitted: Option<&Admitted>,
    event: Event<'_>,
) {
    if !matches!(kind, Kind::Api | Kind::Page) {
        return;
    }
    let name = admitted.map_or("", |admitted| admitted.name.as_str());
    let event = Event { what: "read", name, ..event };
    let status = event.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or_default();
    let is_operator = admitted.is_some_and(|admitted| admitted.viewer.sees_all());
    if is_change {
        logins.audit.note(peer, Event { what: "write", ..event });
    } else if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && (kind == Kind::Api || !event.by.is_empty())
    {
        logins.audit.note_refusal(peer, Event { request: path, ..event });
    } else if is_operator && status.is_success() && !is_public(path) {
        logins.audit.note_read(peer, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_read_is_noted_as_a_write() {
        for broken in [&b"{}"[..], b"\xff", b""] {
            assert_eq!(asked_for(broken), (false, String::new()));
        }
        let of = |asked: &Asked| asked_for(&serde_json::to_vec(asked).unwrap());
        let key = JobKey { cluster: None, manager: "slurm".into(), id: "12".into(), incarnation: 3 };
        assert_eq!(of(&Asked::Remove(key.clone())), (true, "remove slurm/12".to_owned()));
        let annotate = Asked::Annotate { key: key.clone(), change: Default::default() };
        assert_eq!(of(&annotate), (true, "annotate slurm/12".to_owned()));
        assert_eq!(of(&Asked::Nodes), (false, "nodes".to_owned()));
        let cluster = Some("c1".to_owned());
        let series = Asked::Series { key: JobKey { cluster, ..key }, after_ms: 7 };
        assert_eq!(of(&series), (false, "course c1/slurm/12".to_owned()));
        let node = Asked::NodeSeries { node: "n1".into(), after_ms: 7 };
        assert_eq!(of(&node), (false, "node_courses \"n1\"".to_owned()));
        assert!(!of(&Asked::Jobs(Default::default())).0);
        let (is_change, subject) = of(&Asked::Memberships { filter: Default::default() });
        assert!(!is_change && subject.starts_with("memberships {"), "{subject}");
    }

    #[test]
    fn every_path_that_shows_something_of_a_person_is_guarded() {
        for path in ["/api/v1/jobs", "/api/v1/ask", "/api/v2/x", "/api/"] {
            assert_eq!(Kind::of(path), Kind::Api, "{path}");
        }
        for path in ["/", "/jobs", "/jobs/1", "/nodes/n1", "/new", "/assetsx", "/metrics/x"] {
            assert_eq!(Kind::of(path), Kind::Page, "{path}");
        }
        for path in ["/login", "/login/oidc/callback", "/assets/a.js", "/metrics", "/api/v1/batches"] {
            assert_eq!(Kind::of(path), Kind::Other, "{path}");
        }
    }
}
