//! What a server answers over HTTP: batches of nodes, and questions of people and programs.
//!
//! ```text
//! POST /api/v1/batches   a batch; answered when it is durable. Of a node alone, by its token or certificate
//! POST /api/v1/ask       a question as on a daemon's socket, in JSON; of a user or an operator
//! GET  /api/v1/whoami    who a token belongs to
//! ```
//! and what [`met_web::api`] has, for daemon and server alike.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::JobKey;
use met_core::node_health::Spool;
use met_core::reaction::ReactionTarget;
use met_jobs::cgroup_layouts::Layout;
use met_query::annotate::{self, Annotates, Failure, no_such_job};
use met_query::protocol::{Reply, Request};
use met_query::query::{self, Query};
use met_query::react::{self, Actor};
use met_query::sample_more::SamplesMore;
use met_query::viewer::Viewer;
use met_store::Writer;
use met_store::cluster::TokenOwner;
use met_web::api::System;
use met_wire::acknowledgement::Acknowledgement;
use met_wire::batch::{BadBatch, NodeBatch, PACKED_BYTES_MAX, SAMPLES_MAX};
use serde_json::json;

use super::cluster_writer::{Busy, ClusterWriter, Denied, Refusal, now_ns};
use super::incompatible::{Incompatible, Trouble};
use super::people::People;
use super::receive_memory::{NotReceived, ReceiveMemory};
use met_web::answers::Answers;
use met_web::api::{ASK, Admission, Admitted, BATCHES};
use met_web::listener::{Peer, in_background};
use met_web::pages::{self, Pages};
use met_web::problem::Problem;

/// A batch that is unpacked within a millisecond or two.
const SMALL_BYTES: usize = 64 << 10;
const QUESTION_BYTES_MAX: usize = 1 << 20;
/// How long a viewer waits for the thread that writes.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);

pub struct Api {
    pub cluster_writer: ClusterWriter,
    people: Arc<People>,
    admission: Arc<dyn Admission>,
    query: Arc<dyn Query>,
    samples_more: Arc<dyn SamplesMore + Send + Sync>,
    room: ReceiveMemory,
    answers: Arc<Answers>,
    incompatible: Incompatible,
}

impl Api {
    /// `admission` finds out who asks; nodes are known by `people`.
    pub fn new<Q: Query + SamplesMore + 'static>(
        cluster_writer: ClusterWriter,
        people: Arc<People>,
        admission: Arc<dyn Admission>,
        incompatible: Incompatible,
        query: Arc<Q>,
    ) -> Api {
        let samples_more: Arc<dyn SamplesMore + Send + Sync> = Arc::<Q>::clone(&query);
        let (room, answers) = (ReceiveMemory::default(), Arc::default());
        Api { cluster_writer, people, admission, query, samples_more, room, answers, incompatible }
    }

    /// The authenticated client, if any.
    pub fn who(&self, peer: &Peer, headers: &HeaderMap) -> Option<TokenOwner> {
        self.owner(peer, headers).ok()
    }

    /// The client, by a token, else by a certificate with the name of a node.
    fn owner(&self, peer: &Peer, headers: &HeaderMap) -> Result<TokenOwner, Problem> {
        let owner = self.shown(peer, headers)?;
        peer.connection.mark_authenticated();
        Ok(owner)
    }

    fn shown(&self, peer: &Peer, headers: &HeaderMap) -> Result<TokenOwner, Problem> {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(token) = shown.and_then(|shown| shown.strip_prefix("Bearer ")) {
            return self.people.token(token.trim())?.ok_or_else(unknown);
        }
        if let Some(certificate) = &peer.certificate {
            let names = certificate.common_name.iter().chain(&certificate.dns_names);
            for name in names.filter(|name| certificate.is_for(name)) {
                if self.people.is_node(name)? {
                    return Ok(TokenOwner::Node(name.clone()));
                }
            }
        }
        peer.user.as_deref().map(|name| self.people.named(name)).ok_or_else(unknown)
    }

    /// Another sender uses this name; the batch stays queued on its node.
    fn denied(&self, node: &str, peer: &Peer, why: &Denied) -> Problem {
        let reason = match why {
            Denied::Wait(reason) => reason.clone(),
            Denied::Conflict(reason) => {
                let reason = format!("{reason} (refused: {})", peer.address.ip().to_canonical());
                if self.incompatible.conflict(node, reason.clone()) {
                    tracing::warn!("{reason}");
                }
                reason
            }
        };
        Problem::later(StatusCode::CONFLICT, reason)
    }

    /// Renders a page for any client, authenticated or not; clients at one address count as one.
    pub async fn page(&self, peer: &Peer, work: impl FnOnce() -> Response + Send + 'static) -> Response {
        let Some(turn) = self.answers.turn(&peer.address.ip().to_string()).await else {
            return Problem::unread().into_response();
        };
        self.answers.make(turn, work).await.unwrap_or_else(|| Problem::busy().into_response())
    }

    /// Answers a question as on a daemon's socket, in JSON.
    fn answer(&self, viewer: &Viewer, question: &[u8]) -> Result<Reply, Problem> {
        let request = serde_json::from_slice(question)
            .map_err(|error| Problem::asked(format!("malformed request: {error}")))?;
        let reply = match &request {
            Request::Watch { jobs, seconds } => {
                let watched = self.samples_more.sample_more(viewer, jobs, Duration::from_secs(*seconds));
                watched.map(|jobs| Some(Reply::Watched(jobs)))
            }
            request => query::answer(self.query.as_ref(), viewer, request),
        };
        let only_daemons = "a server does not answer this request; send it to the daemon of the node";
        reply.map_err(|error| Problem::failed(&error))?.ok_or_else(|| Problem::asked(only_daemons))
    }

    /// What would be misread waits on its node, which is here all the same.
    fn misread(&self, node: &str, received_ns: i64, what: String) -> Problem {
        self.incompatible.note(node, Some(&Trouble::Misread(what.clone())));
        self.cluster_writer.saw(node, received_ns);
        Problem::later(StatusCode::CONFLICT, what)
    }
}

/// The routes, to be served under [`met_web::api::ROOT`] without another check. `layouts`: managers that the
/// configuration names; `systems`: where jobs could run, at prices in `currency`.
pub fn router(api: Arc<Api>, layouts: Vec<Layout>, systems: Vec<System>, currency: String) -> Router {
    let (query, answers) = (Arc::clone(&api.query), Arc::clone(&api.answers));
    let admission = Arc::clone(&api.admission);
    let annotates: Arc<dyn Annotates + Send + Sync> = Arc::<Api>::clone(&api);
    let live = Arc::new(met_web::api::Live::new(Arc::clone(api.cluster_writer.hub())));
    let asked = Arc::new(met_web::api::Api {
        query,
        admission,
        answers,
        layouts,
        live,
        annotates,
        output: None,
        host: None,
        systems: systems.into(),
        currency,
    });
    let questions = met_web::api::router(Arc::clone(&asked));
    let pages = Arc::new(Pages { api: asked, base: "/".to_owned(), has_logout: true });
    Router::new()
        .route(BATCHES, post(batches))
        .route(ASK, post(ask))
        .route("/api/v1/whoami", get(whoami).post(whoami))
        .with_state(api)
        .merge(questions)
        .merge(pages::router(pages))
}

fn unknown() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unknown token; run on the server: met server enroll NAME")
}

fn too_many_of_one() -> Problem {
    Problem::later(StatusCode::TOO_MANY_REQUESTS, "this node is sending too many batches at once")
}

fn not_received(why: NotReceived) -> Problem {
    Problem::later(StatusCode::REQUEST_TIMEOUT, why)
}

async fn batches(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let received_ns = now_ns();
    let TokenOwner::Node(node) = api.owner(&peer, &headers)? else {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "only nodes may send batches; this is another kind of token",
        ));
    };
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let Some(length) = length else {
        return Err(Problem::new(StatusCode::LENGTH_REQUIRED, "a batch needs a Content-Length"));
    };
    if length > PACKED_BYTES_MAX {
        let reason = format!("a batch has at most {PACKED_BYTES_MAX} bytes, not {length}");
        return Err(Problem::never(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    let _place = api.room.enter(&node).ok_or_else(too_many_of_one)?;
    let mut received = api.room.receive(body, length).await.map_err(not_received)?;
    // For what it may become: it is held until it is kept.
    let _room = api.room.unpack(length).await.ok_or_else(Problem::busy)?;
    let (batch, packed) = match unpacked(std::mem::take(&mut received.bytes)).await? {
        (Err(error @ BadBatch::Version(_)), _) => {
            let what = format!("{error}; its batches stay queued there until this server is updated");
            return Err(api.misread(&node, received_ns, what));
        }
        (batch, packed) => (batch.map_err(|error| Problem::never(StatusCode::BAD_REQUEST, error))?, packed),
    };
    if batch.header.node != node {
        let reason =
            format!("this token belongs to node {node}, and the batch to node {}", batch.header.node);
        return Err(Problem::new(StatusCode::FORBIDDEN, reason));
    }
    check(&batch).map_err(|reason| Problem::never(StatusCode::BAD_REQUEST, reason))?;
    let trouble = api.incompatible.trouble(&batch.header, met_sources::table);
    if let Some(Trouble::Misread(what)) = trouble {
        return Err(api.misread(&node, received_ns, what));
    }
    api.incompatible.note(&node, trouble.as_ref());
    let sequence = batch.header.sequence;
    let over = batch.records.iter().filter(|record| !record.state.is_live());
    let over: Vec<JobKey> = over.map(|record| record.key.clone()).collect();
    let offset = headers.get("Met-Clock-Offset-Ns").and_then(|offset| offset.to_str().ok()?.parse().ok());
    let kept = api.cluster_writer.keep(batch, packed, received_ns, offset).map_err(|_| Problem::busy())?;
    match kept.await {
        Ok(Err(Refusal::Denied(why))) => Err(api.denied(&node, &peer, &why)),
        Ok(Ok(())) => {
            let spool = headers.get(Spool::HEADER).and_then(|spool| spool.to_str().ok()?.parse().ok());
            api.cluster_writer.latest().note_spool(&node, spool);
            api.cluster_writer.watching().ended(&node, &over);
            let watched = api.cluster_writer.watching().of(&node, Instant::now());
            Ok(Json(Acknowledgement { sequence, now_ns: now_ns(), watched }).into_response())
        }
        Ok(Err(refusal @ Refusal::Stranger(_))) => Err(Problem::new(StatusCode::FORBIDDEN, refusal)),
        Ok(Err(refusal)) => Err(Problem::later(StatusCode::SERVICE_UNAVAILABLE, refusal)),
        Err(_) => Err(Problem {
            come_again: true,
            ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
        }),
    }
}

/// Unpacks a small batch at once, and a large one on a blocking thread.
async fn unpacked(packed: Vec<u8>) -> Result<(Result<NodeBatch, BadBatch>, Vec<u8>), Problem> {
    let is_small = packed.len() <= SMALL_BYTES;
    let work = move || (NodeBatch::unpack(&packed), packed);
    match is_small {
        true => Ok(work()),
        false => {
            let failed = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
            in_background(work).await.ok_or_else(failed)
        }
    }
}

/// What the form alone does not say: it is numbered, and every block is whole. The sender cannot choose the
/// node of its jobs: they are stored under its own name.
fn check(batch: &NodeBatch) -> Result<(), String> {
    if batch.header.sequence == 0 || batch.header.sequence > i64::MAX as u64 || batch.header.spool.is_empty()
    {
        return Err("it has no number".to_owned());
    }
    let mut samples = 0;
    for piece in &batch.pieces {
        let count = met_wire::block::check(&piece.block);
        samples += count.map_err(|error| format!("a block of table {:?}: {error}", piece.table))?;
    }
    match samples <= SAMPLES_MAX {
        true => Ok(()),
        false => Err(format!("it has {samples} samples, at most {SAMPLES_MAX} are allowed")),
    }
}

async fn ask(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let Admitted { viewer, client, name, .. } = api.admission.admit(&peer, &headers)?;
    let turn = api.answers.turn(&client).await.ok_or_else(Problem::unread)?;
    let too_long = |error: axum::Error| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error);
    let question = to_bytes(body, QUESTION_BYTES_MAX).await.map_err(too_long)?;
    let asked = serde_json::from_slice(&question);
    if let Ok(Request::Annotate { .. } | Request::Reactions { change: Some(_) }) = asked {
        // Not one of the few answers that are made at once: the thread that writes may take its time.
        let of_api = Arc::clone(&api);
        let work = move || match of_api.write(viewer, name, asked.ok()) {
            Ok(reply) => Json(reply).into_response(),
            Err(error) if error.is::<Failure>() => Json(Reply::refusal(&error)).into_response(),
            Err(error) => Problem { come_again: true, ..Problem::failed(&error) }.into_response(),
        };
        return api.answers.write(turn, work).await.ok_or_else(Problem::busy);
    }
    let of_api = Arc::clone(&api);
    let work = move || match of_api.answer(&viewer, &question) {
        Ok(reply) => Json(reply).into_response(),
        Err(problem) => problem.into_response(),
    };
    api.answers.make(turn, work).await.ok_or_else(Problem::busy)
}

impl Api {
    /// Answers what changes something.
    fn write(&self, viewer: Viewer, name: String, asked: Option<Request>) -> Result<Reply> {
        match asked {
            Some(Request::Annotate { key, change }) => {
                self.annotate(&viewer, &key, &change).map(Reply::Annotated)
            }
            Some(Request::Reactions { change: Some(change) }) => {
                let actor = Actor { viewer, name, now_ns: now_ns() };
                self.with_writer(move |writer| {
                    let job = match &change.target {
                        ReactionTarget::Job(key) => writer.get(key)?,
                        ReactionTarget::User(_) => None,
                    };
                    react::react(writer, &actor, job.as_ref(), &change)?;
                    Ok(Reply::Reactions(react::seen(&actor.viewer, met_store::reactions(writer)?)))
                })
            }
            _ => Err(cannot_write()),
        }
    }

    /// Waits for the thread that writes.
    fn with_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (say, said) = mpsc::sync_channel(1);
        let order = self.cluster_writer.try_with_writer(move |writer| {
            let _ = say.send(work(writer));
            Vec::new()
        });
        order.map_err(|Busy| cannot_write())?;
        said.recv_timeout(WRITTEN_WITHIN).unwrap_or_else(|_| Err(cannot_write()))
    }
}

impl Annotates for Api {
    fn annotate(&self, viewer: &Viewer, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        let (viewer, key, change) = (viewer.clone(), key.clone(), change.clone());
        self.with_writer(move |writer| {
            annotate::permit(&viewer, writer.get(&key)?.as_ref())?;
            let annotated = writer.annotate(&key, &change, now_ns())?;
            annotated.ok_or_else(no_such_job)?.map_err(Failure::usage)
        })
    }
}

fn cannot_write() -> anyhow::Error {
    anyhow::anyhow!("the server cannot write now; try again later")
}

async fn whoami(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (kind, name) = match api.owner(&peer, &headers)? {
        TokenOwner::Node(name) => ("node", name),
        TokenOwner::User(name) => ("user", name),
        TokenOwner::Operator(name) => ("operator", name),
    };
    Ok(Json(json!({ "kind": kind, "name": name, "now_ns": now_ns() })).into_response())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use met_core::job::{Record, State as JobState};
    use met_core::table::MILLI;
    use met_core::{Column, Table, Unit};
    use met_query::jobs::JobsFilter;
    use met_query::protocol::Request;
    use met_store::Backends;
    use met_wire::batch::Header;
    use met_wire::schema::describe;
    use proptest::prelude::*;

    use super::super::access;
    use super::super::cluster_writer::tests::{plan, record};
    use super::super::{ClusterView, Latest};
    use super::*;
    use met_store::cluster::Log;
    use met_web::login::{Directory, Logins};

    /// As it is not meant here.
    static METER: Table = Table {
        name: "rapl",
        subject: "",
        labels: &["zone"],
        columns: &[Column::counter("energy", Unit::Joules, MILLI, "")],
    };

    /// A server with a node n1 and an operator, and the headers with which they come.
    struct Served {
        api: Arc<Api>,
        node: HeaderMap,
        operator: HeaderMap,
        runtime: tokio::runtime::Runtime,
        _folders: [tempfile::TempDir; 2],
    }

    /// An answer with it takes a megabyte.
    fn one_large_job() -> (tempfile::TempDir, Arc<ClusterView>) {
        let folder = tempfile::tempdir().unwrap();
        drop(Log::open(folder.path()).unwrap());
        let mut large = met_core::sample::full(1, "train");
        large.command = vec!["x".repeat(1 << 20)];
        Writer::open(folder.path()).unwrap().put(&large).unwrap();
        let view = ClusterView {
            state: folder.path().to_owned(),
            backends: Backends::default(),
            latest: Latest::default(),
            incompatible: Incompatible::default(),
            gap_ms: 60_000,
            lists: Default::default(),
            watching: Default::default(),
        };
        (folder, Arc::new(view))
    }

    impl Served {
        fn new() -> Served {
            let state = tempfile::tempdir().unwrap();
            let mut log = Log::open(state.path()).unwrap();
            let mut headers = |owner: TokenOwner| {
                let token = access::enroll(&mut log, &owner, 1, false).unwrap();
                let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
                HeaderMap::from_iter([(header::AUTHORIZATION, value)])
            };
            let node = headers(TokenOwner::Node("n1".to_owned()));
            let operator = headers(TokenOwner::Operator("op".to_owned()));
            let cluster_writer = ClusterWriter::start(plan(state.path())).unwrap();
            let (large, query) = one_large_job();
            let people = Arc::new(People::new(log, Vec::new(), Arc::default()));
            let directory: Arc<dyn Directory> = Arc::<People>::clone(&people);
            let login = met_config::Login::default();
            let logins = Logins::open(&login, false, directory, Arc::default(), None).unwrap();
            let mut api = Api::new(cluster_writer, people, Arc::new(logins), Incompatible::default(), query);
            api.answers = Arc::new(Answers::within(Duration::from_millis(50)));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            Served { api: Arc::new(api), node, operator, runtime, _folders: [state, large] }
        }

        fn send(&self, packed: Vec<u8>) -> Result<Response, Problem> {
            let mut headers = self.node.clone();
            headers.insert(header::CONTENT_LENGTH, packed.len().into());
            let api = State(Arc::clone(&self.api));
            self.runtime.block_on(batches(api, Extension(peer()), headers, Body::from(packed)))
        }

        fn ask(&self) -> Result<Response, Problem> {
            self.asked(&Request::Jobs(JobsFilter::default()))
        }

        fn asked(&self, request: &Request) -> Result<Response, Problem> {
            let api = State(Arc::clone(&self.api));
            let question = serde_json::to_vec(request).unwrap();
            self.runtime.block_on(ask(api, Extension(peer()), self.operator.clone(), Body::from(question)))
        }
    }

    fn peer() -> Peer {
        Peer::at(([127, 0, 0, 1], 1).into())
    }

    fn numbered(sequence: u64, id: &str) -> Header {
        let (node, spool) = ("n1".to_owned(), "s".to_owned());
        Header { node, spool, sequence, id: id.to_owned(), ..Header::default() }
    }

    /// What a server answers its node n1 that sends this, and what it then says of the node.
    fn answer_to(packed: Vec<u8>) -> (Problem, Option<String>) {
        let served = Served::new();
        let before_ns = now_ns();
        let problem = served.send(packed).unwrap_err();
        served.api.cluster_writer.move_all();
        let nodes = served.api.people.log().unwrap().nodes().unwrap();
        let is_here = nodes[0].seen_ns.is_some_and(|seen_ns| seen_ns >= before_ns);
        (problem, is_here.then(|| served.api.incompatible.of("n1")).flatten())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

        #[test]
        fn a_server_with_nothing_to_do_takes_a_batch_of_any_size_or_refuses_it_for_good(
            bytes in 0..12_usize << 20,
        ) {
            let served = Served::new();
            let mut bits = bytes as u64 | 1;
            let mut letter = || {
                bits ^= bits << 13;
                bits ^= bits >> 7;
                bits ^= bits << 17;
                char::from(b'#' + (bits >> 32) as u8 % 57)
            };
            let lengths = (0..bytes).step_by(1 << 20).map(|begin| (bytes - begin).min(1 << 20));
            let records = lengths.enumerate().map(|(id, length)| Record {
                command: vec![(0..length).map(|_| letter()).collect()],
                ..record("local", &id.to_string(), 1_794_700_800, JobState::Finished, 1)
            });
            let records = records.collect();
            let packed = NodeBatch { header: numbered(1, "one"), records, ..NodeBatch::default() }.pack().unwrap().bytes;
            let is_too_long = packed.len() > PACKED_BYTES_MAX;
            match served.send(packed) {
                Ok(response) => prop_assert!(response.status() == StatusCode::OK && !is_too_long),
                Err(problem) => prop_assert!(problem.refused && is_too_long, "{}", problem.reason),
            }
        }
    }

    #[test]
    fn a_client_that_does_not_read_is_sent_away_and_batches_are_taken() {
        let served = Served::new();
        let mut unread = Vec::new();
        let refused = loop {
            match served.ask() {
                Ok(answer) => unread.push(answer),
                Err(refused) => break refused,
            }
            assert!(unread.len() < 100, "{} answers are held", unread.len());
        };
        assert_eq!((refused.status, refused.come_again), (StatusCode::TOO_MANY_REQUESTS, true));
        let batch = NodeBatch { header: numbered(1, "one"), ..NodeBatch::default() }.pack().unwrap().bytes;
        assert!(served.send(batch).is_ok());
        drop(unread);
        assert!(served.ask().is_ok());
    }

    #[test]
    fn an_annotation_that_finds_no_room_is_sent_away_and_answers_are_made() {
        let served = Served::new();
        let key = record("local", "1", 1_794_700_800, JobState::Finished, 1).key;
        let request = Request::Annotate { key, change: AnnotationChange::default() };
        let (begun, is_begun) = std::sync::mpsc::sync_channel(1);
        let (release, wait) = std::sync::mpsc::sync_channel::<()>(1);
        served.api.cluster_writer.with_writer(move |_| {
            begun.send(()).unwrap();
            let _ = wait.recv();
            Vec::new()
        });
        is_begun.recv().unwrap();
        while served.api.cluster_writer.try_with_writer(|_| Vec::new()).is_ok() {}
        let refused = served.asked(&request).unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
        assert!(served.ask().is_ok());
        release.send(()).unwrap();
        served.api.cluster_writer.move_all();
        let body = served.asked(&request).unwrap().into_body();
        let body = served.runtime.block_on(to_bytes(body, 1 << 20)).unwrap();
        assert!(String::from_utf8_lossy(&body).contains("no such job"), "{body:?}");
    }

    #[test]
    fn a_reply_names_watched_jobs_and_nothing_else_of_them() {
        let served = Served::new();
        let reply = |sequence| {
            let batch = NodeBatch { header: numbered(sequence, "one"), ..NodeBatch::default() };
            let body = served.send(batch.pack().unwrap().bytes).unwrap().into_body();
            let body = served.runtime.block_on(to_bytes(body, 1 << 20)).unwrap();
            serde_json::from_slice::<serde_json::Value>(&body).unwrap()
        };
        let fields = |reply: &serde_json::Value| {
            reply.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(fields(&reply(1)), "sequence now_ns", "as earlier nodes know it");
        let key = record("slurm", "7", 1_794_700_800, JobState::Running, 1).key;
        let on_node = |node: &str| JobKey { cluster: Some(node.to_owned()), ..key.clone() };
        let parts = [on_node("n1"), on_node("n2")];
        served.api.cluster_writer.watching().watch(&Viewer::Everything, &parts, Instant::now());
        let reported = reply(2);
        assert_eq!(
            (fields(&reported), &reported["watched"]),
            ("sequence now_ns watched".to_owned(), &json!([key]))
        );
    }

    #[test]
    fn two_senders_under_one_name_are_refused_and_shown() {
        let served = Served::new();
        let packed = |sequence, id| {
            NodeBatch { header: numbered(sequence, id), ..NodeBatch::default() }.pack().unwrap().bytes
        };
        assert!(served.send(packed(1, "one")).is_ok());
        let refused = served.send(packed(2, "two")).unwrap_err();
        assert_eq!(
            (refused.status, refused.come_again, refused.refused),
            (StatusCode::CONFLICT, true, false)
        );
        assert!(refused.reason.contains("identity one and identity two"), "{}", refused.reason);
        assert!(served.send(packed(2, "one")).is_ok());
        assert_eq!(served.api.incompatible.of("n1"), Some(refused.reason), "though the first goes on");
    }

    #[test]
    fn a_node_that_would_be_misread_is_here_all_the_same() {
        let columns = [(METER.name.to_owned(), describe(&METER))].into_iter().collect();
        let header = Header { columns, ..numbered(1, "") };
        let (problem, noted) = answer_to(NodeBatch { header, ..NodeBatch::default() }.pack().unwrap().bytes);
        assert_eq!((problem.status, problem.come_again), (StatusCode::CONFLICT, true));
        assert!(noted.unwrap().contains("rapl.energy"));
    }

    #[test]
    fn a_batch_of_a_later_version_waits_for_another_server() {
        // "MET", 9, stored in gzip as it is.
        let later = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x04\0\xfb\xffMET\x09";
        let sum = 0x99603023_u32.to_le_bytes();
        let (problem, noted) = answer_to([&later[..], &sum, &4_u32.to_le_bytes()].concat());
        assert_eq!((problem.status, problem.come_again), (StatusCode::CONFLICT, true), "{}", problem.reason);
        assert_eq!(problem.body()["refused"], serde_json::Value::Null);
        assert!(noted.unwrap().starts_with("it has version 9"));
        let (problem, noted) = answer_to(b"plain".to_vec());
        assert_eq!((problem.status, problem.refused, noted), (StatusCode::BAD_REQUEST, true, None));
    }

    #[test]
    fn a_batch_that_is_never_taken_is_refused_in_words_no_proxy_has() {
        let never = Problem::never(StatusCode::BAD_REQUEST, "it has no number");
        let body = never.body();
        assert_eq!((&body["error"], &body["refused"]), (&json!("it has no number"), &json!(true)));
        assert_eq!(Problem::busy().body()["refused"], serde_json::Value::Null);
        assert_eq!(unknown().body()["refused"], serde_json::Value::Null);
    }
}
