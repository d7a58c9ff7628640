//! What a server shows to Prometheus: its nodes, all jobs that run, and where daemons are to be scraped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::Router;
use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use met_core::job::{Record, State};
use met_core::job_table::WALL;
use met_core::table::{NANO, ONE};
use met_core::{Column, MISSING, Table, Unit, columns};
use met_query::jobs::{self, JobsFilter};
use met_sinks::bus;
use met_sinks::prometheus;
use met_sinks::service_discovery::{self, Target};
use met_sinks::shown_jobs::{Contents, ShownCounters};
use met_sinks::snapshot::{About, Job, Rows, Snapshot, cells_of};
use met_web::api::TARGETS;
use met_web::listener::Peer;
use met_web::scrape::{METRICS, Wanted};

use crate::cluster::api::Api;
use crate::cluster::{ClusterView, SinksFile};
use crate::colmet::Counts;

columns! { COLUMNS:
    HEARD = Column::gauge("heard_time", Unit::Seconds, NANO, "when the node last sent data to the server, in unix time").minimal(),
    JOBS = Column::gauge("jobs", Unit::Count, ONE, "jobs running on the node").minimal(),
    CLOCK = Column::gauge("clock_offset", Unit::Seconds, NANO, "how far the node's clock is behind the server's").usual(),
    DROPPED = Column::counter("dropped", Unit::Count, ONE, "samples that the node dropped").usual(),
    CPUS = Column::gauge("cpus", Unit::Count, ONE, "CPUs of the node").usual(),
    MEMORY = Column::gauge("memory", Unit::Bytes, ONE, "memory of the node").usual(),
}

pub static MEMBER: Table = Table {
    name: "member",
    subject: "a node, as the server of the cluster knows it",
    labels: &["node"],
    columns: COLUMNS,
};

/// All jobs of a cluster are read for it; scrapers come every minute.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// What pages are written from, read again when it is old.
pub struct Pages {
    view: ClusterView,
    contents: Contents,
    /// Of nodes of Colmet, if they may send.
    received: Option<Arc<Counts>>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    shown: ShownCounters,
    read: Option<(Instant, Arc<Snapshot>)>,
}

impl Pages {
    pub fn new(view: ClusterView, contents: Contents, received: Option<Arc<Counts>>) -> Pages {
        Pages { view, contents, received, last: Mutex::default() }
    }

    /// Blocks; one thread reads and the others wait for it.
    fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let Last { shown, read } = &mut *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, snapshot)) = read.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR) {
            return Ok(Arc::clone(snapshot));
        }
        let running = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
        let mut records = self.view.all_jobs(&running.to_store())?;
        // The oldest keep their series when there are too many.
        records.sort_by(|one, other| (one.start_ns, &one.key).cmp(&(other.start_ns, &other.key)));
        let mut jobs: Vec<Job> = records.iter().map(job).collect();
        shown.fill(&mut jobs, self.contents.metrics);
        let mut tables = vec![members(&self.view, &records)?];
        tables.extend(SinksFile::read(&self.view.state).map(|file| bus::rows(&file.sinks)));
        tables.extend(self.received.as_ref().map(|received| received.rows()));
        let snapshot = Arc::new(Snapshot { tables, jobs });
        *read = Some((Instant::now(), Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    fn page(&self, Wanted { format, gzip, people }: Wanted) -> Result<Vec<u8>> {
        let snapshot = self.snapshot()?;
        let mut page = Vec::new();
        prometheus::page(&snapshot, format, &self.contents, people, &mut page);
        Ok(if gzip { prometheus::gzip(&page)? } else { page })
    }
}

fn members(view: &ClusterView, running: &[Record]) -> Result<Rows> {
    let mut rows = Rows::new(&MEMBER);
    for node in view.known_nodes()? {
        let mut cells = [MISSING; COLUMNS.len()];
        cells[HEARD] = node.seen_ns.unwrap_or(MISSING);
        cells[JOBS] = running.iter().filter(|record| record.nodes.contains(&node.name)).count() as i64;
        cells[CLOCK] = node.clock_offset_ns.unwrap_or(MISSING);
        cells[DROPPED] = node.dropped_samples;
        cells[CPUS] = node.cpus.unwrap_or(MISSING);
        cells[MEMORY] = node.memory_bytes.unwrap_or(MISSING);
        rows.push(&[node.name], &cells);
    }
    Ok(rows)
}

fn job(record: &Record) -> Job {
    let mut cells = cells_of(&record.totals);
    cells[WALL] = record.wall_ns(jobs::now_ns()).unwrap_or(MISSING);
    Job {
        about: Arc::new(About::of(record)),
        cells,
        details: Vec::new(),
        events: record.events.clone(),
        gpus: Vec::new(),
    }
}

/// `/metrics`, and `/api/v1/targets` for service discovery by HTTP.
pub fn router(pages: Pages, api: &Arc<Api>) -> Router {
    let view = pages.view.clone();
    let pages = Arc::new(pages);
    let (of_metrics, of_targets) = (Arc::clone(api), Arc::clone(api));
    let metrics = get(move |Extension(peer): Extension<Peer>, headers: HeaderMap| {
        let (pages, api) = (Arc::clone(&pages), Arc::clone(&of_metrics));
        async move {
            let who = peer.clone();
            api.page(&peer, move || respond_to(metrics(&pages, &who, &headers))).await
        }
    });
    let targets = get(move |Extension(peer): Extension<Peer>, headers: HeaderMap| {
        let (view, api) = (view.clone(), Arc::clone(&of_targets));
        async move {
            match api.who(&peer, &headers).is_some() {
                true => api.page(&peer, move || respond_to(targets(&view))).await,
                false => (StatusCode::UNAUTHORIZED, "authentication required\n").into_response(),
            }
        }
    });
    Router::new().route(METRICS, metrics).route(TARGETS, targets)
}

fn respond_to(made: Result<Response>) -> Response {
    made.unwrap_or_else(|error| (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n")).into_response())
}

fn metrics(pages: &Pages, peer: &Peer, headers: &HeaderMap) -> Result<Response> {
    // A node that shows its certificate is known, and no person.
    let wanted = Wanted::of(headers, peer.user.is_some());
    Ok(wanted.respond(pages.page(wanted)?))
}

fn targets(view: &ClusterView) -> Result<Response> {
    let nodes = view.known_nodes()?;
    // Who has no page would be called down.
    let mut targets = Vec::new();
    for met_store::cluster::Node { name, page, .. } in &nodes {
        if let Some(page) = page {
            targets.push(Target { node: name, port: page.port, tls: page.tls });
        }
    }
    let json = service_discovery::json(&targets);
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}
