//! What the pages take: server time and bytes, over a store with many varied jobs and long series.
//!
//! `pages [JOBS]` prints a table. `pages --serve ADDRESS [JOBS]` keeps serving a smaller made-up site, to look at.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use flate2::Compression;
use flate2::write::GzEncoder;
use met_benches::made_up;
use met_core::Table;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::JobKey;
use met_core::listing::Cursor;
use met_core::series::Series;
use met_query::annotate::{Annotates, no_such_job};
use met_query::jobs::{JobRef, JobsFilter};
use met_query::protocol::NodeStatus;
use met_query::query::{NodeSpan, Query, find_in, nothing};
use met_query::viewer::Viewer;
use met_store::{NodePart, Page, Reader, Writer};
use met_web::api::{Admission, Admitted, Api};
use met_web::listener::{Options, Peer, Server};
use met_web::pages::{self, Pages};
use met_web::problem::Problem;
use tower_service::Service;

const ROUNDS: usize = 11;

/// A site that answers from files.
struct Site {
    store: Mutex<Reader>,
    nodes: Vec<NodeStatus>,
    /// As a daemon would, which is asked for its own machine.
    is_machine: bool,
}

impl Site {
    fn with<T>(&self, ask: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        ask(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Annotates for Operator {
    fn annotate(&self, _: &Viewer, _: &JobKey, _: &AnnotationChange) -> Result<Annotation> {
        Err(no_such_job())
    }
}

impl Query for Site {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(nothing()) };
        self.with(|store| Ok((store.page(&filter.to_store())?, Vec::new())))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, _: Option<&Cursor>) -> Result<Page> {
        self.with(|store| Ok(Page { jobs: find_in(store, viewer, job)?, next: None }))
    }

    fn series(&self, _: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        self.with(|store| Ok(store.series_of_job_between(key, after_ms.saturating_add(1), i64::MAX)?))
    }

    fn gpu_series(&self, _: &Viewer, _: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        self.with(|store| Ok(store.device_series(uuid, after_ms.saturating_add(1), i64::MAX)?))
    }

    fn nodes(&self, _: &Viewer) -> Result<Vec<NodeStatus>> {
        Ok(self.nodes.clone())
    }

    fn node_parts(&self, since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        match self.is_machine {
            true => self.with(|store| Ok(Some(store.node_parts_between(since_ms, i64::MAX)?))),
            false => Ok(None),
        }
    }

    fn node_part_series(&self, table: &'static Table, part: &str, after_ms: i64) -> Result<Option<Series>> {
        self.with(|store| {
            Ok(Some(store.node_part_series(table, part, after_ms.saturating_add(1), i64::MAX)?))
        })
    }

    fn node_series(&self, _: &str, after_ms: i64) -> Result<Option<NodeSpan>> {
        let mut span = NodeSpan::default();
        for part in self.with(|store| Ok(store.node_parts_between(after_ms, i64::MAX)?))? {
            let Some(table) = met_sources::table(&part.table) else { continue };
            let series =
                self.with(|store| Ok(store.node_part_series(table, &part.part, after_ms + 1, i64::MAX)?))?;
            span.all_series.push((part, series));
        }
        Ok(Some(span))
    }
}

struct Operator;

impl Admission for Operator {
    fn admit(&self, _: &Peer, _: &HeaderMap) -> Result<Admitted, Problem> {
        Ok(Admitted::operator("ada"))
    }
}

fn routes(site: Site) -> Router {
    let api = Api {
        query: Arc::new(site),
        admission: Arc::new(Operator),
        answers: Arc::default(),
        layouts: Vec::new(),
        live: Arc::default(),
        annotates: Arc::new(Operator),
        output: None,
        host: None,
        systems: Arc::default(),
        currency: String::new(),
    };
    let api = Arc::new(api);
    let pages = Pages { api: Arc::clone(&api), base: "/".to_owned(), has_logout: false };
    pages::router(Arc::new(pages)).merge(met_web::api::router(api))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir()?;
    let number = |text: Option<&String>, usual: u32| text.map_or(Ok(usual), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("--serve") => {
            let address = arguments.get(1).context("--serve needs an address")?;
            let is_machine = arguments.iter().any(|word| word == "--machine");
            fill(folder.path(), number(arguments.get(2).filter(|word| *word != "--machine"), 400)?, 300)?;
            serve(folder.path(), address, is_machine)
        }
        _ => {
            fill(folder.path(), number(arguments.first(), 100_000)?, 20_160)?;
            measure(folder.path())
        }
    }
}

/// Jobs, and series of so many samples for some of them.
fn fill(folder: &std::path::Path, jobs: u32, samples: i64) -> Result<()> {
    let mut writer = Writer::open(folder)?;
    let now_ns = met_host::clock::realtime_ns();
    let records: Vec<_> = (0..jobs).map(|number| made_up::job(number, now_ns)).collect();
    for part in records.chunks(1000) {
        writer.put_all(part)?;
    }
    for record in records.iter().take(40) {
        // No two samples in one moment.
        let seconds = record.wall_ns(now_ns).unwrap_or(0) / 1_000_000_000;
        let samples = samples.min(seconds * 10).max(1);
        writer.append_series(&record.key, &made_up::series(record, now_ns, samples))?;
        for gpu in &record.gpus {
            writer.append_device(&gpu.uuid, &made_up::gpu_samples(record, &gpu.index, now_ns, samples))?;
        }
    }
    for (part, series) in made_up::machine(now_ns) {
        writer.append_node(&part, &series)?;
    }
    Ok(())
}

fn serve(folder: &std::path::Path, address: &str, is_machine: bool) -> Result<()> {
    let nodes = made_up::nodes(met_host::clock::realtime_ns(), if is_machine { 1 } else { 96 });
    let site = Site { store: Mutex::new(Reader::open(folder)?), nodes, is_machine };
    let server = Server::start(Options::new(vec![address.parse()?]), routes(site))?;
    println!("http://{}/", server.local_addrs()[0]);
    loop {
        std::thread::park();
    }
}

fn measure(folder: &std::path::Path) -> Result<()> {
    let nodes = made_up::nodes(met_host::clock::realtime_ns(), 96);
    let mut router = routes(Site { store: Mutex::new(Reader::open(folder)?), nodes, is_machine: false });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    println!("| page | best | median | bytes | gzipped |\n| --- | ---: | ---: | ---: | ---: |");
    for path in [
        "/jobs",
        "/jobs?user=ada",
        "/jobs?state=failed",
        "/jobs?name=train",
        "/jobs?sort=energy:desc",
        "/jobs?sort=efficiency:asc",
        "/jobs?command=train.py",
        "/jobs?node=n7",
        "/jobs?gpu=1&min_duration=1h",
        "/jobs/slurm:900000",
        "/",
        "/nodes",
        "/nodes/n7",
    ] {
        let (mut times_ms, mut body) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            body = runtime.block_on(get(&mut router, path))?;
            times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        times_ms.sort_by(f64::total_cmp);
        let (size, packed) = (body.len(), gzipped(&body)?);
        println!("| {path} | {:.1} ms | {:.1} ms | {size} | {packed} |", times_ms[0], times_ms[ROUNDS / 2]);
    }
    Ok(())
}

async fn get(router: &mut Router, path: &str) -> Result<Vec<u8>> {
    let peer = Peer::at(([127, 0, 0, 1], 1).into());
    let request = Request::builder().uri(path).extension(peer).body(Body::empty())?;
    let response = router.call(request).await?;
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await?.to_vec();
    ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

fn gzipped(body: &[u8]) -> Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body)?;
    Ok(encoder.finish()?.len())
}
