//! The API, the same for daemon and server. An endpoint is a function and an entry in the `ENDPOINTS` of its file, from
//! which its route, its checks, the OpenAPI document, CSV and the table in `docs/api.md` follow.
//!
//! Who asks is found out before an endpoint is called, and it reaches jobs only as this viewer sees them.

pub(crate) mod answers;
mod catalogue;
pub(crate) mod compare;
mod document;
mod endpoint;
pub(crate) mod findings;
mod jobs;
mod nodes;
pub mod parameters;
mod people;
mod rendering;
pub(crate) mod scale;
mod schemas;
mod series;
mod stream;
pub(crate) mod usage;
mod who;
pub(crate) mod writes;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, RawPathParams};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use met_core::Table;
use met_core::job::{JobKey, Record};
use met_core::series::Series;
use met_host::Host;
pub use met_insight::scale::System;
use met_jobs::cgroup_layouts::Layout;
use met_query::annotate::Annotates;
use met_query::free;
use met_query::jobs::{JobRef, JobsFilter, Meant, every_found, one_of, step};
use met_query::machines::Machines;
use met_query::protocol::NodeStatus;
use met_query::query::{Query, every_job};
use met_query::viewer::Viewer;
use met_query::who::{InUse, Look, running};
use met_store::Page;

use crate::answers::{Answers, Turn};
use crate::in_turn::{NoPlace, Place};
use crate::listener::Peer;
use crate::problem::Problem;
use endpoint::{Action, Endpoint};
use parameters::Given;
pub use stream::Live;

/// Everything under it finds out by itself who asks.
pub const ROOT: &str = "/api/v1/";
/// Where a server takes the requests of commands.
pub const ASK: &str = "/api/v1/ask";
/// Where a server takes what nodes send.
pub const BATCHES: &str = "/api/v1/batches";
/// Where a server lists pages to scrape.
pub const TARGETS: &str = "/api/v1/targets";

/// The files with endpoints, in the order of the documentation.
const SUBJECTS: &[&[Endpoint]] = &[
    jobs::ENDPOINTS,
    series::ENDPOINTS,
    answers::ENDPOINTS,
    scale::ENDPOINTS,
    compare::ENDPOINTS,
    nodes::ENDPOINTS,
    people::ENDPOINTS,
    usage::ENDPOINTS,
    findings::ENDPOINTS,
    who::ENDPOINTS,
    catalogue::ENDPOINTS,
    stream::ENDPOINTS,
    document::ENDPOINTS,
];

fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    SUBJECTS.iter().copied().flatten()
}

/// Decides who asks.
pub trait Admission: Send + Sync {
    fn admit(&self, peer: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub viewer: Viewer,
    /// The name under which this client's unread answers are counted.
    pub client: String,
    /// Who is logged in, for the head of a page and the audit log.
    pub name: String,
    /// What forms and scripts must send back with a write; `None` where the client logs in with every request, which a
    /// foreign page cannot make it do.
    pub csrf: Option<String>,
}

impl Admitted {
    /// A user of a cluster who sees only their own jobs, logged in for this request.
    pub fn user(name: &str) -> Admitted {
        let (client, name) = (format!("user {name}"), name.to_owned());
        Admitted { viewer: Viewer::user(name.clone()), client, name, csrf: None }
    }

    /// Who sees all jobs, logged in for this request.
    pub fn operator(name: &str) -> Admitted {
        let (client, name) = (format!("operator {name}"), name.to_owned());
        Admitted { viewer: Viewer::Everything, client, name, csrf: None }
    }
}

/// What the endpoints answer from.
pub struct Api {
    pub query: Arc<dyn Query>,
    pub admission: Arc<dyn Admission>,
    pub answers: Arc<Answers>,
    /// Managers that the configuration names, whose jobs are asked for by their names.
    pub layouts: Vec<Layout>,
    pub live: Arc<Live>,
    /// Writes tags and notes.
    pub annotates: Arc<dyn Annotates + Send + Sync>,
    /// Reads what jobs wrote; only where this process has the uid of their owner.
    pub output: Option<Arc<dyn Output>>,
    /// The machine whose processes are shown; a server has none.
    pub host: Option<Host>,
    /// Where jobs could run.
    pub systems: Arc<[System]>,
    /// Of prices in the configuration.
    pub currency: String,
}

/// What an answer waits for before one of the few threads makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// A look at the processes of the machine.
    Processes,
    /// The client's turn to look for findings.
    FindingsTurn,
}

/// What was waited for, while an answer is made.
#[derive(Default)]
pub(crate) struct Waited {
    look: Option<Arc<Look>>,
    _place: Option<Place>,
}

impl Api {
    pub(crate) async fn wait_for(&self, needs: Needs, client: &str, turn: &Turn) -> Result<Waited, Problem> {
        let mut waited = Waited::default();
        match needs {
            Needs::Nothing => {}
            Needs::Processes => {
                if let Some(host) = &self.host {
                    let look = self.answers.looks.fresh(host, &self.answers);
                    let look = tokio::time::timeout_at(turn.begin_by(), look).await.ok().flatten();
                    waited.look = Some(look.ok_or_else(Problem::busy)?);
                }
            }
            Needs::FindingsTurn => {
                let place = self.answers.findings.place(client, turn.begin_by()).await;
                waited._place = Some(place.map_err(no_place)?);
            }
        }
        Ok(waited)
    }
}

fn no_place(why: NoPlace) -> Problem {
    match why {
        NoPlace::Busy => Problem::busy(),
        NoPlace::TooMany => Problem::later(
            StatusCode::TOO_MANY_REQUESTS,
            "two of your requests for findings are under way; ask again when one is answered",
        ),
    }
}

/// What a job wrote. Paths in a record are those that its owner named: a process with more rights than the owner reads
/// none of them.
pub trait Output: Send + Sync {
    /// The ends of its files, as far as they can be read.
    fn tails(&self, record: &Record) -> Vec<Tail>;
}

/// The end of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    pub path: String,
    pub text: String,
    /// There is more before it.
    pub is_cut: bool,
}

/// The jobs as one viewer sees them.
pub(crate) struct Visible<'a> {
    pub(crate) viewer: &'a Viewer,
    pub(crate) query: &'a dyn Query,
    layouts: &'a [Layout],
    pub(crate) output: Option<&'a dyn Output>,
    pub(crate) host: Option<&'a Host>,
    pub(crate) systems: &'a Arc<[System]>,
    pub(crate) currency: &'a str,
    look: Option<Arc<Look>>,
    /// How long findings are looked for.
    pub(crate) findings_within: Duration,
}

impl<'a> Visible<'a> {
    pub(crate) fn new(viewer: &'a Viewer, api: &'a Api) -> Visible<'a> {
        let output = api.output.as_deref();
        let (query, layouts, host) = (api.query.as_ref(), &api.layouts, api.host.as_ref());
        let (systems, currency) = (&api.systems, api.currency.as_str());
        let findings_within = api.answers.findings_within;
        Visible { viewer, query, layouts, output, host, systems, currency, look: None, findings_within }
    }

    /// With what was waited for.
    pub(crate) fn after(self, waited: &Waited) -> Visible<'a> {
        Visible { look: waited.look.clone(), ..self }
    }

    pub(crate) fn jobs(&self, filter: &JobsFilter) -> Result<(Page, Vec<String>), Problem> {
        self.query.jobs(self.viewer, filter).map_err(|error| Problem::failed(&error))
    }

    pub(crate) fn series(&self, key: &JobKey, after_ms: i64) -> Result<Series, Problem> {
        self.query.series(self.viewer, key, after_ms).map_err(|error| Problem::failed(&error))
    }

    pub(crate) fn job_series(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series, Problem> {
        let series = self.query.job_series(self.viewer, key, table, part, after_ms);
        series.map_err(|error| Problem::failed(&error))
    }

    pub(crate) fn gpu_series(&self, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series, Problem> {
        self.query.gpu_series(self.viewer, key, uuid, after_ms).map_err(|error| Problem::failed(&error))
    }

    /// Who uses the machine that answers, as far as the viewer may know.
    pub(crate) fn who(&self) -> Result<InUse, Problem> {
        let none = || Problem::new(StatusCode::NOT_FOUND, "only the daemon of a machine knows its processes");
        let (host, look) = self.host.zip(self.look.as_ref()).ok_or_else(none)?;
        let jobs = every_job(self.query, self.viewer, &running());
        Ok(look.in_use(host, self.viewer, &jobs.map_err(|error| Problem::failed(&error))?))
    }

    /// What jobs are compared with.
    pub(crate) fn machines(&self) -> Result<Machines, Problem> {
        self.nodes().map(Machines::of_nodes)
    }

    pub(crate) fn nodes(&self) -> Result<Vec<NodeStatus>, Problem> {
        met_query::query::nodes(self.query, self.viewer).map_err(|error| Problem::failed(&error))
    }

    /// With what is free on each, for who sees all jobs.
    pub(crate) fn nodes_with_free(&self) -> Result<Vec<NodeStatus>, Problem> {
        let mut nodes = self.nodes()?;
        free::add(self.query, self.viewer, &mut nodes).map_err(|error| Problem::failed(&error))?;
        Ok(nodes)
    }

    /// The one job or step that a text means, in the words of the command line.
    pub(crate) fn find(&self, text: &str) -> Result<Meant, Problem> {
        let find = |job: &JobRef| {
            let found = every_found(self.query, self.viewer, job)?;
            one_of(text, job, found)
        };
        let job = JobRef::parse(text, self.layouts).map_err(Problem::asked)?;
        if let Some(step) = step(text, self.layouts, find).map_err(unclear)? {
            return Ok(Meant::Step(step));
        }
        find(&job)
            .map_err(unclear)?
            .map(Meant::Job)
            .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no job named {text:?}")))
    }
}

/// A reference that is ambiguous is the client's to change; anything else is not.
fn unclear(error: anyhow::Error) -> Problem {
    match error.is::<met_config::Failure>() {
        true => Problem::asked(error),
        false => Problem::failed(&error),
    }
}

/// What was asked for by path and query string.
pub(crate) struct Asked {
    path: Vec<(String, String)>,
    given: Given,
    /// The answer will be CSV.
    csv: bool,
}

impl Asked {
    fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints() {
        let api = Arc::clone(&api);
        let handler = get(
            move |Extension(peer): Extension<Peer>, headers: HeaderMap, path: RawPathParams, uri: Uri| {
                let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                let request = Request { peer, headers, path, uri };
                answer(Arc::clone(&api), endpoint, request)
            },
        );
        router = router.route(endpoint.path, handler);
    }
    writes::routes(&api, router).route(
        "/api/v1/{*rest}",
        any(|| async {
            Problem::new(StatusCode::NOT_FOUND, "no such endpoint; /api/v1/openapi.json lists all")
        }),
    )
}

/// A request before it was read.
struct Request {
    peer: Peer,
    headers: HeaderMap,
    path: Vec<(String, String)>,
    uri: Uri,
}

/// The parts of a path, unless one cannot be a name.
fn checked(path: Vec<(String, String)>) -> Result<Vec<(String, String)>, Problem> {
    match path.iter().find(|(_, value)| value.contains('\0')) {
        Some((name, _)) => Err(Problem::field(name, "contains a NUL character")),
        None => Ok(path),
    }
}

async fn answer(api: Arc<Api>, endpoint: &'static Endpoint, request: Request) -> Result<Response, Problem> {
    let admitted = api.admission.admit(&request.peer, &request.headers)?;
    request.peer.connection.mark_authenticated();
    let given = Given::parse(&request.uri, endpoint.parameters)?;
    let path = checked(request.path)?;
    let csv = rendering::wants_csv(endpoint, &given, &request.headers);
    let asked = Asked { path, given, csv };
    if let Action::Stream = endpoint.action {
        return stream::open(api, admitted, asked, request.peer, request.headers).await;
    }
    let turn = api.answers.turn(&admitted.client).await.ok_or_else(Problem::unread)?;
    let waited = api.wait_for(endpoint.needs(), &admitted.client, &turn).await?;
    let made = Arc::clone(&api);
    let work = move || {
        let visible = Visible::new(&admitted.viewer, &made).after(&waited);
        let response = endpoint.content(&visible, &asked).and_then(|content| {
            rendering::respond(endpoint, &asked, &request.headers, &request.uri, content)
        });
        response.unwrap_or_else(Problem::into_response)
    };
    api.answers.make(turn, work).await.ok_or_else(Problem::busy)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod findings_tests;
#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
