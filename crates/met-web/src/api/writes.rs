//! What can be changed: the tags and the note of a job, by its owner and by operators.
//!
//! Routes and OpenAPI follow from an entry in [`WRITES`]. The guard has refused writes of other sites before.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, RawPathParams};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use met_core::annotation::{Annotation, AnnotationChange, check_tag};
use met_host::clock;
use met_query::jobs::Meant;
use met_query::viewer::Viewer;
use serde_json::{Value, json};
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{HttpMethod, ObjectBuilder, Schema, Type};

use super::parameters::Given;
use super::schemas::{list, of, optional, with_keys};
use super::{Api, Asked, Request, Visible};
use crate::listener::Peer;
use crate::problem::Problem;

/// A note of the greatest length, with every letter of it escaped.
const BODY_BYTES_MAX: usize = 32 << 10;

/// One of the changes.
pub struct Write {
    pub method: Method,
    pub path: &'static str,
    pub help: &'static str,
    /// What `docs/api.md` says of its answer.
    pub answer: &'static str,
    /// What is sent, if anything.
    pub body: Option<fn() -> Schema>,
    change: fn(&Asked, &Value) -> Result<AnnotationChange, Problem>,
}

pub const WRITES: &[Write] = &[
    Write {
        method: Method::PUT,
        path: "/api/v1/jobs/{job}/tags/{tag}",
        help: "add a tag to a job",
        answer: "adds a tag; `{\"tags\": [...], \"note\": text or null}`",
        body: None,
        change: |asked, _| Ok(AnnotationChange { add: vec![tag(asked)?], ..AnnotationChange::default() }),
    },
    Write {
        method: Method::DELETE,
        path: "/api/v1/jobs/{job}/tags/{tag}",
        help: "remove a tag from a job",
        answer: "removes a tag; the same answer",
        body: None,
        change: |asked, _| Ok(AnnotationChange { remove: vec![tag(asked)?], ..AnnotationChange::default() }),
    },
    Write {
        method: Method::PUT,
        path: "/api/v1/jobs/{job}/note",
        help: "write the note of a job",
        answer: "writes the note that is sent as `{\"note\": \"…\"}` (`application/json`); the same answer",
        body: Some(note_schema),
        change: |_, body| Ok(AnnotationChange { note: Some(note(body)?), ..AnnotationChange::default() }),
    },
    Write {
        method: Method::DELETE,
        path: "/api/v1/jobs/{job}/note",
        help: "remove the note of a job",
        answer: "removes the note; the same answer",
        body: None,
        change: |_, _| Ok(AnnotationChange { note: Some(String::new()), ..AnnotationChange::default() }),
    },
];

impl Write {
    pub fn documented_method(&self) -> HttpMethod {
        if self.method == Method::DELETE { HttpMethod::Delete } else { HttpMethod::Put }
    }
}

fn tag(asked: &Asked) -> Result<String, Problem> {
    let tag = asked.path("tag");
    check_tag(tag).map_err(|why| Problem::field("tag", why))?;
    Ok(tag.to_owned())
}

/// The one text of an object.
fn note(body: &Value) -> Result<String, Problem> {
    let fields = body.as_object().filter(|fields| fields.len() == 1);
    let note = fields.and_then(|fields| fields.get("note")).and_then(Value::as_str);
    note.filter(|note| !note.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| Problem::field("note", "send {\"note\": \"…\"}; DELETE removes a note"))
}

pub(super) fn routes(api: &Arc<Api>, mut router: Router) -> Router {
    for write in WRITES {
        let api = Arc::clone(api);
        let filter = MethodFilter::try_from(write.method.clone()).unwrap_or(MethodFilter::PUT);
        let handler = on(
            filter,
            move |Extension(peer): Extension<Peer>,
                  headers: HeaderMap,
                  path: RawPathParams,
                  uri: Uri,
                  body: Body| {
                let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                answer(Arc::clone(&api), write, Request { peer, headers, path, uri }, body)
            },
        );
        router = router.route(write.path, handler);
    }
    router
}

async fn answer(
    api: Arc<Api>,
    write: &'static Write,
    request: Request,
    body: Body,
) -> Result<Response, Problem> {
    let admitted = api.admission.admit(&request.peer, &request.headers)?;
    request.peer.connection.mark_authenticated();
    let given = Given::parse(&request.uri, &[])?;
    let asked = Asked { path: super::checked(request.path)?, given, csv: false };
    let body = match write.body {
        Some(_) => object_in(&request.headers, body).await?,
        None => Value::Null,
    };
    let change = (write.change)(&asked, &body)?;
    let job = asked.path("job").to_owned();
    let turn = api.answers.turn(&admitted.client).await.ok_or_else(Problem::unread)?;
    let work = {
        let api = Arc::clone(&api);
        move || match annotate(&api, &admitted.viewer, &job, &change) {
            Ok(said) => axum::Json(object(&said)).into_response(),
            Err(problem) => problem.into_response(),
        }
    };
    api.answers.write(turn, work).await.ok_or_else(Problem::busy)
}

async fn object_in(headers: &HeaderMap, body: Body) -> Result<Value, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json"));
    }
    let bytes = to_bytes(body, BODY_BYTES_MAX).await;
    let bytes = bytes.map_err(|_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"))?;
    serde_json::from_slice(&bytes).map_err(|error| Problem::asked(format!("malformed JSON: {error}")))
}

/// Changes tags and note of the job that a text means.
pub(crate) fn annotate(
    api: &Api,
    viewer: &Viewer,
    job: &str,
    change: &AnnotationChange,
) -> Result<Annotation, Problem> {
    let record = match Visible::new(viewer, api).find(job)? {
        Meant::Job(record) => record,
        Meant::Step(_) => {
            return Err(Problem::field("job", "a step has no tags and no note; write those of its job"));
        }
    };
    if !viewer.may_annotate(&record) {
        let reason = "only its owner or an operator may write tags and notes of this job";
        return Err(Problem::new(StatusCode::FORBIDDEN, reason));
    }
    // What is wrong with a change is said here: a daemon that refuses it says only that it does.
    change.apply(&record.annotation, clock::realtime_ns()).map_err(Problem::asked)?;
    api.annotates.annotate(viewer, &record.key, change).map_err(super::unclear)
}

fn object(said: &Annotation) -> Value {
    json!({ "tags": said.tags, "note": said.note })
}

/// What is sent to write a note.
pub(super) fn note_schema() -> Schema {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(1000))
        .pattern(Some("^[ -~]*[!-~][ -~]*$"))
        .description(Some("printable text of up to 4096 bytes, in any language"));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("note", text)
        .required("note")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .into()
}

/// Tags and note of a job after a change.
pub(super) fn annotation_schema() -> Schema {
    with_keys([("tags", list(of(Type::String))), ("note", optional(Type::String))]).into()
}
