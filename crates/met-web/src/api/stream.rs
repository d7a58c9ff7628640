//! The live stream: starts, ends and figures of the jobs that a viewer sees, as server-sent events.
//!
//! Starts and ends come from the bus of daemon or server, figures from the same query as a list, and only while a stream
//! is open. A client that does not read, or may no longer read, is disconnected.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use met_core::job::{JobKey, Record, State};
use met_host::clock;
use met_query::jobs::{self, JobRef, Meant};
use met_query::query::{self, Query};
use met_query::viewer::Viewer;
use met_sinks::event::Event;
use met_sinks::live::{Hub, Listening};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::endpoint::{Action, Endpoint, Table};
use super::jobs::object;
use super::parameters::{Kind, parameter};
use super::schemas;
use super::{Admitted, Api, Asked, Visible};
use crate::listener::{Peer, in_background};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/stream",
    help: "starts, ends and figures of jobs as server-sent events",
    answer: "server-sent events, see below",
    parameters: &[parameter("job", Kind::Text, "only this job")],
    action: Action::Stream,
    table: Table::None,
    schema: schemas::any,
}];

const STREAMS_PER_CLIENT: usize = 4;
const STREAMS_MAX: usize = 64;
/// Starts and ends that wait for one stream. One that falls behind further is ended.
const EVENTS_MAX: usize = 1024;
/// Written and not yet sent. A client that leaves more unread is disconnected.
const UNSENT_BYTES_MAX: usize = 4 << 20;
const CHUNKS_MAX: usize = 1024;
/// How often figures are read, and whether the client may still read them.
const FIGURES_EVERY: Duration = Duration::from_secs(3);
/// Running jobs whose figures one stream has.
const FIGURES_MAX: usize = 1000;
const RUNNING: [State; 2] = [State::Running, State::Suspended];
/// Something is sent at least so often: proxies end what is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Then the client connects and logs in again.
const LIFE_MAX: Duration = Duration::from_secs(15 * 60);

/// All streams of a listener.
pub struct Live {
    hub: Arc<Hub>,
    /// Starts and ends come, and not only figures.
    pub(crate) has_bus: bool,
    open: Mutex<HashMap<String, usize>>,
    /// Figures are read for one stream at a time: lists have the other threads.
    rounds: Arc<Semaphore>,
}

impl Live {
    pub fn new(hub: Arc<Hub>) -> Live {
        Live { hub, has_bus: true, open: Mutex::default(), rounds: Arc::new(Semaphore::new(1)) }
    }

    fn enter(self: &Arc<Live>, client: &str) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.get(client).copied().unwrap_or(0);
        if own >= STREAMS_PER_CLIENT || open.values().sum::<usize>() >= STREAMS_MAX {
            return None;
        }
        open.insert(client.to_owned(), own + 1);
        Some(Place { live: Arc::clone(self), client: client.to_owned() })
    }
}

impl Default for Live {
    /// Without a bus: figures, and no starts and ends.
    fn default() -> Live {
        Live { has_bus: false, ..Live::new(Arc::default()) }
    }
}

/// One of the streams of a client.
struct Place {
    live: Arc<Live>,
    client: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.live.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.client)),
        }
    }
}

pub(super) async fn open(
    api: Arc<Api>,
    admitted: Admitted,
    asked: Asked,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let too_many = || {
        let reason = format!("at most {STREAMS_PER_CLIENT} streams per login, and {STREAMS_MAX} in all");
        Problem::later(StatusCode::TOO_MANY_REQUESTS, reason)
    };
    let place = api.live.enter(&admitted.client).ok_or_else(too_many)?;
    let only = match asked.given.text("job") {
        None => None,
        Some(text) => Some(find(&api, &admitted.viewer, text).await?),
    };
    let (deliver, events) = mpsc::channel(EVENTS_MAX);
    let listening = api.live.hub.listen(Box::new(move |event| deliver.try_send(event.clone()).is_ok()));
    let (chunks, sending) = mpsc::channel(CHUNKS_MAX);
    let unsent = Arc::new(AtomicUsize::new(0));
    let output = Output { chunks, unsent: Arc::clone(&unsent), last: Instant::now() };
    let watch = Watch { api, admitted, peer, headers, only, sent: HashMap::new() };
    tokio::spawn(run(watch, events, output, listening));
    let mut response = Body::new(Sending { chunks: sending, unsent, _place: place }).into_response();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // A proxy that collects an answer before it passes it on would hold this one for ever.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

async fn find(api: &Arc<Api>, viewer: &Viewer, text: String) -> Result<JobKey, Problem> {
    let (api, viewer) = (Arc::clone(api), viewer.clone());
    let found = in_background(move || Visible::new(&viewer, &api).find(&text)).await;
    let (Meant::Job(record) | Meant::Step(record)) = found.ok_or_else(Problem::busy)??;
    Ok(record.key)
}

/// Who watches what.
struct Watch {
    api: Arc<Api>,
    admitted: Admitted,
    peer: Peer,
    headers: HeaderMap,
    only: Option<JobKey>,
    /// Which figures of running jobs were sent last.
    sent: HashMap<JobKey, u64>,
}

async fn run(mut watch: Watch, mut events: Receiver<Event>, mut output: Output, _listening: Listening) {
    let end = Instant::now() + LIFE_MAX;
    if !output.send("retry: 3000\n\n".to_owned()) {
        return;
    }
    let mut next = Instant::now();
    loop {
        match tokio::time::timeout_at(next.min(end), events.recv()).await {
            // The bus has ended, or this stream was too slow for it.
            Ok(None) => return,
            Ok(Some(event)) => {
                let text = watch.of_event(&event);
                let is_last = text.is_some() && watch.only.is_some() && matches!(event, Event::Ended(_));
                if !text.is_none_or(|text| output.send(text)) || is_last {
                    return;
                }
            }
            Err(_) if Instant::now() >= end || output.chunks.is_closed() => return,
            Err(_) => {
                let Some(rights_and_figures) = watch.round().await else { return };
                watch = rights_and_figures.0;
                if !output.send(rights_and_figures.1) || !output.keep_alive() {
                    return;
                }
                next = Instant::now() + FIGURES_EVERY;
            }
        }
    }
}

impl Watch {
    fn is_meant(&self, key: &JobKey) -> bool {
        self.only.as_ref().is_none_or(|only| only == key)
    }

    /// A start or an end, if the viewer sees the job.
    fn of_event(&mut self, event: &Event) -> Option<String> {
        let (name, record) = match event {
            Event::Started(record) => ("started", record),
            Event::Ended(record) => ("ended", record),
            _ => return None,
        };
        let is_visible = self.admitted.viewer.sees(record) && self.is_meant(&record.key);
        self.sent.remove(&record.key);
        is_visible.then(|| line(name, &object(record, clock::realtime_ns())))
    }

    /// Reads figures beside the thread that listens; `None` if the client may no longer see what it saw.
    async fn round(mut self) -> Option<(Watch, String)> {
        let turn: OwnedSemaphorePermit = Arc::clone(&self.api.live.rounds).acquire_owned().await.ok()?;
        in_background(move || {
            let now = self.api.admission.admit(&self.peer, &self.headers).ok();
            if now.is_none_or(|now| now.viewer != self.admitted.viewer) {
                return None;
            }
            let text = self.figures();
            drop(turn);
            Some((self, text))
        })
        .await?
    }

    /// The figures that have changed.
    fn figures(&mut self) -> String {
        let (viewer, query) = (&self.admitted.viewer, self.api.query.as_ref());
        let (mut text, mut seen) = (String::new(), HashMap::new());
        for figures in running(query, viewer, self.only.as_ref()) {
            let (key, value) = figures;
            let shown = value.to_string();
            let mut hasher = DefaultHasher::new();
            shown.hash(&mut hasher);
            let hash = hasher.finish();
            if self.sent.get(&key) != Some(&hash) {
                text.push_str(&event("figures", &shown));
            }
            seen.insert(key, hash);
        }
        self.sent = seen;
        text
    }
}

/// The running jobs that a viewer sees, or the one of them, each with its figures.
fn running(query: &dyn Query, viewer: &Viewer, only: Option<&JobKey>) -> Vec<(JobKey, Value)> {
    let now_ns = clock::realtime_ns();
    let records = match only {
        Some(key) => running_one(query, viewer, key),
        None => all_running(query, viewer),
    };
    records.iter().map(|record| (record.key.clone(), figures(record, now_ns))).collect()
}

/// A store that cannot be read now may be in the next round.
fn running_one(query: &dyn Query, viewer: &Viewer, key: &JobKey) -> Vec<Record> {
    let (manager, id) = (Some(key.manager.clone()), key.id.clone());
    let job = JobRef::Id { manager, id, node: None, user: None };
    let mut found = jobs::every_found(query, viewer, &job).unwrap_or_default();
    found.retain(|record| record.key == *key && RUNNING.contains(&record.state));
    found
}

fn all_running(query: &dyn Query, viewer: &Viewer) -> Vec<Record> {
    let first = query::first_jobs(query, viewer, &query::running(), FIGURES_MAX);
    let mut found = first.unwrap_or_default().jobs;
    found.truncate(FIGURES_MAX);
    found
}

fn figures(record: &Record, now_ns: i64) -> Value {
    let whole = object(record, now_ns);
    let mut figures = json!({ "job": {} });
    for key in ["id", "raw_id", "manager", "cluster", "state"] {
        figures["job"][key] = whole["job"][key].clone();
    }
    for key in ["totals", "average", "efficiency"] {
        figures[key] = whole[key].clone();
    }
    figures
}

fn line(name: &str, value: &Value) -> String {
    event(name, &value.to_string())
}

/// JSON has no line breaks of its own.
fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

/// What is written and not yet sent.
struct Output {
    chunks: Sender<Bytes>,
    unsent: Arc<AtomicUsize>,
    last: Instant,
}

impl Output {
    /// `false` if the client is gone or does not read.
    fn send(&mut self, text: String) -> bool {
        if text.is_empty() {
            return true;
        }
        let before = self.unsent.fetch_add(text.len(), Ordering::Relaxed);
        // The first of a connection may be large.
        if before > 0 && before + text.len() > UNSENT_BYTES_MAX {
            return false;
        }
        self.last = Instant::now();
        self.chunks.try_send(text.into()).is_ok()
    }

    fn keep_alive(&mut self) -> bool {
        self.last.elapsed() < KEEP_ALIVE || self.send(":\n\n".to_owned())
    }
}

struct Sending {
    chunks: Receiver<Bytes>,
    unsent: Arc<AtomicUsize>,
    _place: Place,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = std::task::ready!(self.chunks.poll_recv(context));
        if let Some(chunk) = &chunk {
            self.unsent.fetch_sub(chunk.len(), Ordering::Relaxed);
        }
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
