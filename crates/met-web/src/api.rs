//! The API, the same for daemon and server. An endpoint is a function here and a line in [`ENDPOINTS`].
//!
//! Who asks is found out before an endpoint is called, and it reaches jobs only as this viewer sees them.

mod endpoints;
mod row;

use std::sync::Arc;

use axum::extract::{Extension, Query as Search, RawPathParams};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use met_core::Table;
use met_core::job::JobKey;
use met_core::listing::Cursor;
use met_core::series::Course;
use met_jobs::cgroup_layouts::Layout;
use met_query::jobs::{self, JobRef, JobsFilter, Meant};
use met_query::protocol::NodeStatus;
use met_query::query::Query;
use met_query::viewer::Viewer;
use met_store::Page;
use serde_json::Value;

use crate::answers::Answers;
use crate::listener::Peer;
use crate::problem::Problem;
use endpoints::ENDPOINTS;

/// Everything under it finds out by itself who asks.
pub const ROOT: &str = "/api/v1/";

/// Decides who asks.
pub trait Admission: Send + Sync {
    fn admit(&self, peer: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem>;
}

pub struct Admitted {
    pub viewer: Viewer,
    /// The name under which this client's unread answers are counted.
    pub client: String,
}

/// What the endpoints answer from.
pub struct Api {
    pub query: Arc<dyn Query + Send + Sync>,
    pub admission: Arc<dyn Admission>,
    pub answers: Arc<Answers>,
    /// Managers that the configuration names, whose jobs are asked for by their names.
    pub layouts: Vec<Layout>,
}

type Endpoint = fn(&Visible<'_>, &Asked) -> Result<Value, Problem>;

/// The jobs as one viewer sees them.
struct Visible<'a> {
    viewer: &'a Viewer,
    query: &'a dyn Query,
    layouts: &'a [Layout],
}

impl Visible<'_> {
    fn jobs(&self, filter: &JobsFilter) -> Result<(Page, Vec<String>), Problem> {
        self.query.jobs(self.viewer, filter).map_err(|error| Problem::failed(&error))
    }

    fn course(&self, key: &JobKey, after_ms: i64) -> Result<Course, Problem> {
        self.query.course(self.viewer, key, after_ms).map_err(|error| Problem::failed(&error))
    }

    fn job_series(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Course, Problem> {
        let series = self.query.job_series(self.viewer, key, table, part, after_ms);
        series.map_err(|error| Problem::failed(&error))
    }

    fn card_course(&self, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Course, Problem> {
        self.query.card_course(self.viewer, key, uuid, after_ms).map_err(|error| Problem::failed(&error))
    }

    fn nodes(&self) -> Result<Vec<NodeStatus>, Problem> {
        self.query.nodes().map_err(|error| Problem::failed(&error))
    }

    /// The one job or step that a text means, in the words of the command line.
    fn find(&self, text: &str) -> Result<Meant, Problem> {
        let find = |job: &JobRef| {
            let found = jobs::every_found(self.query, self.viewer, job)?;
            jobs::one_of(text, job, found)
        };
        let job = JobRef::parse(text, self.layouts).map_err(Problem::asked)?;
        if let Some(step) = jobs::step(text, self.layouts, find).map_err(unclear)? {
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
struct Asked {
    path: Vec<(String, String)>,
    search: Vec<(String, String)>,
}

impl Asked {
    fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The parameters, which must be among these: a misspelt one would be overlooked.
    fn parameters<const N: usize>(&self, names: [&str; N]) -> Result<[Option<&str>; N], Problem> {
        if let Some((unknown, _)) = self.search.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            let known = match N {
                0 => "this endpoint has no parameters".to_owned(),
                _ => format!("known: {}", names.join(", ")),
            };
            return Err(Problem::asked(format!("unknown parameter {unknown:?}; {known}")));
        }
        let mut values = [None; N];
        for (value, name) in values.iter_mut().zip(names) {
            let mut given = self.search.iter().filter(|(known, _)| known == name);
            // An empty field of a form, or an empty variable of a dashboard, is not given.
            *value = given.next().map(|(_, value)| value.as_str()).filter(|value| !value.is_empty());
            if given.next().is_some() {
                return Err(Problem::asked(format!("parameter {name} is given twice")));
            }
        }
        Ok(values)
    }
}

/// Where a list goes on, as a client hands it back.
fn encode(cursor: &Cursor) -> Option<String> {
    serde_json::to_vec(cursor).ok().map(|bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn decode(text: &str) -> Result<Cursor, Problem> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    let cursor = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    cursor.ok_or_else(|| Problem::asked(format!("after: {text:?} is not the `next` of an earlier answer")))
}

pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for &(path, endpoint) in ENDPOINTS {
        let api = Arc::clone(&api);
        let handler = get(
            move |Extension(peer): Extension<Peer>, headers: HeaderMap, path: RawPathParams, uri: Uri| {
                let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                answer(Arc::clone(&api), endpoint, peer, headers, path, uri)
            },
        );
        router = router.route(path, handler);
    }
    router
}

async fn answer(
    api: Arc<Api>,
    endpoint: Endpoint,
    peer: Peer,
    headers: HeaderMap,
    path: Vec<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let Admitted { viewer, client } = api.admission.admit(&peer, &headers)?;
    let Search(search) = Search::try_from_uri(&uri).map_err(Problem::asked)?;
    let turn = api.answers.turn(&client).await.ok_or_else(Problem::unread)?;
    let asked = Arc::clone(&api);
    let work = move || {
        let visible = Visible { viewer: &viewer, query: asked.query.as_ref(), layouts: &asked.layouts };
        match endpoint(&visible, &Asked { path, search }) {
            Ok(value) => Json(value).into_response(),
            Err(problem) => problem.into_response(),
        }
    };
    api.answers.make(turn, work).await.ok_or_else(Problem::busy)
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
