//! Series in an engine that speaks Prometheus: remote write there, PromQL back.
//!
//! A cell becomes a sample of `met_<table>_<column>…`, in the column's unit; one that is missing is not written.
//! Labels are what names a job or a device and nothing of its owner. A selector with a range gives back the
//! samples as they were written, at their own times.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use met_core::backoff::jittered;
use met_core::event;
use met_core::job::JobKey;
use met_core::series::{Columns, Series};
use met_core::{MISSING, Table};
use met_wire::remote_write::{self, Request};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::backends::{Credentials, Engine, certificates};
use crate::device::DEVICE;
use crate::error::StoreError;
use crate::node::NODE;
use crate::promql::{PART, read_parts, read_series, selector};
use crate::series::SeriesStore;

/// Samples in one request: half a megabyte before it is compressed.
const SAMPLES_MAX: usize = 20_000;
const TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before a request is tried again. Afterwards it is for the caller to come back.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A week of a job at one sample a second is about half of it.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// The names of all series of a machine.
const NAMES_BYTES_MAX: u64 = 16 << 20;
const COMPLAINT_BYTES_MAX: u64 = 1 << 10;
const DAY_MS: i64 = 86_400_000;
const MONTH_DAYS: i64 = 30;

pub(crate) struct Remote {
    agent: Agent,
    query_url: String,
    series_url: String,
    write_url: String,
    delete_url: String,
    /// Names and values that go with every request.
    headers: Vec<(&'static str, String)>,
    refused: u64,
    /// Whether it was said that this engine removes nothing on request.
    warned_of_removal: bool,
}

/// Rows of a series that go in one request.
struct Piece<'c> {
    key: &'c JobKey,
    series: &'c Series,
    rows: Range<usize>,
}

enum Sent {
    Taken,
    /// Neither authentication nor rate limiting: the engine rejects these samples.
    Refused(String),
}

impl Remote {
    pub fn new(engine: &Engine) -> Result<Remote, StoreError> {
        let refuse = |at: &str, error: String| StoreError::Refused { at: at.to_owned(), error };
        let url = engine.url.trim_end_matches('/');
        let write_url = engine.write_url.clone().unwrap_or_else(|| format!("{url}/api/v1/write"));
        for url in [url, &write_url] {
            Engine::check(url).map_err(|error| refuse("store.series", error))?;
            if engine.credentials.is_some() && Engine::is_open(url) {
                let error = "a secret is only sent over https or to this machine".to_owned();
                return Err(refuse(url, error));
            }
        }
        let mut headers = Vec::new();
        headers.extend(engine.credentials.as_ref().map(|credentials| {
            let value = match credentials {
                Credentials::Basic(both) => format!("Basic {}", STANDARD.encode(both.reveal())),
                Credentials::Token(token) => format!("Bearer {}", token.reveal()),
            };
            ("Authorization", value)
        }));
        headers.extend(engine.tenant.clone().map(|tenant| ("X-Scope-OrgID", tenant)));
        Ok(Remote {
            agent: agent(engine)?,
            query_url: format!("{url}/api/v1/query"),
            series_url: format!("{url}/api/v1/series"),
            delete_url: format!("{url}/api/v1/admin/tsdb/delete_series"),
            write_url,
            headers,
            refused: 0,
            warned_of_removal: false,
        })
    }

    /// Asks for nothing, and sends a request without samples.
    pub fn probe(&self) -> Result<(), StoreError> {
        let mut asked = self.form(&self.query_url, &[("query", "1")])?;
        let check = |at: &str, response: &mut Response<Body>| match response.status().is_success() {
            true => Ok(()),
            false => Err(StoreError::Refused { at: at.to_owned(), error: complaint(response) }),
        };
        check(&self.query_url, &mut asked)?;
        let unreachable = |error: String| StoreError::Unreachable { at: self.write_url.clone(), error };
        let body = Request::new().body().map_err(|error| unreachable(error.to_string()))?;
        let mut sent = self.post(&body).map_err(|error| unreachable(error.to_string()))?;
        check(&self.write_url, &mut sent)
    }

    /// Sends pieces in one request, as often as it takes.
    fn send(&self, pieces: &[Piece<'_>]) -> Result<Sent, StoreError> {
        let mut request = Request::new();
        pieces.iter().for_each(|piece| piece.write(&mut request));
        if request.samples() == 0 {
            return Ok(Sent::Taken);
        }
        let refuse = |error: String| StoreError::Refused { at: self.write_url.clone(), error };
        let body = request.body().map_err(|error| refuse(error.to_string()))?;
        let mut pauses = PAUSES.into_iter();
        loop {
            let (error, asked) = match self.post(&body) {
                Ok(response) if response.status().is_success() => return Ok(Sent::Taken),
                Ok(mut response) => {
                    let status = response.status();
                    let error = complaint(&mut response);
                    if is_final(status) {
                        return Ok(Sent::Refused(error));
                    }
                    (error, is_passing(status).then(|| retry_after(&response)))
                }
                Err(error) => (error.to_string(), Some(None)),
            };
            // Who is refused entry is refused again in a moment.
            let (Some(asked), Some(pause)) = (asked, pauses.next()) else {
                return Err(StoreError::Unreachable { at: self.write_url.clone(), error });
            };
            std::thread::sleep(asked.unwrap_or_else(|| jittered(pause)).min(PAUSE_MAX));
        }
    }

    fn post(&self, body: &[u8]) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(&self.write_url);
        for (name, value) in remote_write::HEADERS {
            request = request.header(name, value);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.send(body)
    }

    fn form(&self, url: &str, form: &[(&str, &str)]) -> Result<Response<Body>, StoreError> {
        let mut request = self.agent.post(url);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request
            .send_form(form.iter().copied())
            .map_err(|error| StoreError::Unreachable { at: url.to_owned(), error: error.to_string() })
    }

    /// What it answers, if that is an answer.
    fn answer(&self, url: &str, form: &[(&str, &str)], bytes_max: u64) -> Result<impl Read, StoreError> {
        let mut response = self.form(url, form)?;
        if !response.status().is_success() {
            let (at, status, error) = (url.to_owned(), response.status(), complaint(&mut response));
            return Err(match is_final(status) {
                true => StoreError::Refused { at, error },
                false => StoreError::Unreachable { at, error },
            });
        }
        Ok(BufReader::new(response.into_body().into_with_config().limit(bytes_max).reader()))
    }

    /// Sends pieces; those that are not wanted are lost and counted, and no others with them.
    fn send_or_settle(&mut self, pieces: &[Piece<'_>]) -> Result<(), StoreError> {
        match (self.send(pieces)?, pieces) {
            (Sent::Taken, _) => Ok(()),
            (Sent::Refused(why), [piece]) => self.after_refusal(piece, &why),
            (Sent::Refused(_), _) => {
                pieces.iter().try_for_each(|piece| self.send_or_settle(std::slice::from_ref(piece)))
            }
        }
    }

    /// What is not wanted may be there already: an engine that takes samples in the order of time alone refuses
    /// a request that was answered once before and whose answer was lost.
    fn after_refusal(&mut self, piece: &Piece<'_>, why: &str) -> Result<(), StoreError> {
        let Some(&first_ms) = piece.series.times_ms.get(piece.rows.start) else { return Ok(()) };
        let there =
            self.between(piece.key, piece.series.table, (first_ms, i64::MAX), (i64::MIN, i64::MAX))?;
        let newest_ms = there.times_ms.last().copied().unwrap_or(i64::MIN);
        let begin = piece.series.times_ms.partition_point(|&time| time <= newest_ms);
        let rows = begin.max(piece.rows.start)..piece.rows.end;
        let rest = Piece { rows, ..*piece };
        if rest.rows.is_empty() {
            return Ok(());
        }
        // The same once more is refused once more.
        let sent = match rest.rows.start == piece.rows.start {
            true => Sent::Refused(why.to_owned()),
            false => self.send(std::slice::from_ref(&rest))?,
        };
        if let Sent::Refused(why) = sent {
            let samples = rest.samples();
            self.refused += samples as u64;
            let JobKey { manager, id, .. } = rest.key;
            tracing::warn!("{}: {samples} samples of {manager}:{id} are lost: {why}", self.write_url);
        }
        Ok(())
    }
}

impl SeriesStore for Remote {
    fn append(
        &mut self,
        all_series: &[(&JobKey, &Series)],
        _durable: bool,
    ) -> Result<Option<PathBuf>, StoreError> {
        let mut waiting: Vec<Piece<'_>> = Vec::new();
        let mut samples = 0;
        let all = all_series.iter().flat_map(|&(key, series)| pieces(key, series));
        for piece in all.map(Some).chain([None]) {
            let more = piece.as_ref().map_or(SAMPLES_MAX, Piece::samples);
            if samples + more > SAMPLES_MAX || piece.is_none() {
                self.send_or_settle(&waiting)?;
                waiting.clear();
                samples = 0;
            }
            samples += more;
            waiting.extend(piece);
        }
        Ok(None)
    }

    fn columns_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        _: Columns,
        span_ms: (i64, i64),
        (first_day, last_day): (i64, i64),
    ) -> Result<Series, StoreError> {
        // Nothing is from before 1970, or much later than now.
        let begin_ms = span_ms.0.max(first_day.saturating_mul(DAY_MS)).max(0);
        let tomorrow_ms = now_ms() + DAY_MS;
        let end_ms = span_ms.1.min(last_day.saturating_add(1).saturating_mul(DAY_MS)).min(tomorrow_ms);
        if begin_ms > end_ms {
            return Ok(Series::new(table));
        }
        let labels = labels(key);
        // Series of the same name that were scraped have an instance.
        let mut wanted: Vec<(&str, &str)> = vec![("instance", "")];
        wanted.extend(labels.iter().map(|(name, value)| (*name, value.as_str())));
        let series = selector(&format!("met_{}_.+", table.name), &wanted);
        // One more: in some engines the first moment of a range is not in it.
        let query = format!("{series}[{}ms]", end_ms - begin_ms + 1);
        let time = format!("{}.{:03}", end_ms / 1000, end_ms % 1000);
        // Else one of them leaves out the last half minute.
        let form = [("query", query.as_str()), ("time", &time), ("nocache", "1")];
        let body = self.answer(&self.query_url, &form, ANSWER_BYTES_MAX)?;
        read_series(body, table)
            .map_err(|error| StoreError::Unreachable { at: self.query_url.clone(), error })
    }

    fn node_parts(
        &self,
        node: &str,
        tables: &[&'static Table],
        (first_day, last_day): (i64, i64),
    ) -> Result<BTreeSet<(String, String)>, StoreError> {
        let names = tables.iter().map(|table| table.name).collect::<Vec<_>>().join("|");
        // Series that were scraped have an instance, and those of GPUs a uuid.
        let wanted = [("cluster", node), ("instance", ""), ("uuid", ""), ("id", "")];
        let series = selector(&format!("met_({names})_.+"), &wanted);
        let begin_s = first_day.max(0).saturating_mul(DAY_MS / 1000);
        let end_s = last_day.saturating_add(1).saturating_mul(DAY_MS / 1000).min((now_ms() + DAY_MS) / 1000);
        let (begin, end) = (begin_s.to_string(), end_s.to_string());
        let form = [("match[]", series.as_str()), ("start", &begin), ("end", &end)];
        let body = self.answer(&self.series_url, &form, NAMES_BYTES_MAX)?;
        let found = read_parts(body, tables);
        found.map_err(|error| StoreError::Unreachable { at: self.series_url.clone(), error })
    }

    /// A month at a time: some engines know when there were samples of a series only if asked about no more than that.
    fn first_node_day(
        &self,
        node: &str,
        tables: &[&'static Table],
        (first_day, last_day): (i64, i64),
    ) -> Result<Option<i64>, StoreError> {
        // Nothing is from before 1970, or much later than now.
        let (mut first, last) = (first_day.max(0), last_day.min(now_ms() / DAY_MS + 1));
        let any = |first: i64, last: i64| Ok(!self.node_parts(node, tables, (first, last))?.is_empty());
        if first > last || !any(first, last)? {
            return Ok(None);
        }
        while first <= last {
            let mut end = last.min(first + MONTH_DAYS - 1);
            if any(first, end)? {
                while first < end {
                    let middle = first + (end - first) / 2;
                    match any(first, middle)? {
                        true => end = middle,
                        false => first = middle + 1,
                    }
                }
                return Ok(Some(first));
            }
            first = end + 1;
        }
        Ok(None)
    }

    /// Where the engine does not remove on request, samples go when it removes old ones.
    fn remove(&mut self, key: &JobKey) -> Result<(), StoreError> {
        let labels = labels(key);
        let wanted: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut response = self.form(&self.delete_url, &[("match[]", &selector("met_.+", &wanted))])?;
        if !response.status().is_success() && !self.warned_of_removal {
            self.warned_of_removal = true;
            let why = complaint(&mut response);
            tracing::info!("{}: samples of removed jobs stay until they expire: {why}", self.delete_url);
        }
        Ok(())
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

impl Piece<'_> {
    fn samples(&self) -> usize {
        let known =
            |cells: &Vec<i64>| cells[self.rows.clone()].iter().filter(|&&cell| cell != MISSING).count();
        self.series.columns.iter().map(known).sum()
    }

    fn write(&self, request: &mut Request) {
        let table = self.series.table;
        let labels = labels(self.key);
        let times_ms = &self.series.times_ms[self.rows.clone()];
        for (column, cells) in table.columns.iter().zip(&self.series.columns) {
            let name = table.prometheus_name(column);
            let mut named: Vec<(&str, &str)> = vec![("__name__", &name)];
            named.extend(labels.iter().map(|(name, value)| (*name, value.as_str())));
            let known = times_ms.iter().zip(&cells[self.rows.clone()]).filter(|&(_, &cell)| cell != MISSING);
            request.add(&mut named, known.map(|(&time_ms, &cell)| (time_ms, column.scaled(cell))));
        }
    }
}

/// A series in pieces that fit into a request each.
fn pieces<'c>(key: &'c JobKey, series: &'c Series) -> impl Iterator<Item = Piece<'c>> {
    let rows = (SAMPLES_MAX / series.columns.len().max(1)).max(1);
    (0..series.len()).step_by(rows).map(move |begin| Piece {
        key,
        series,
        rows: begin..series.len().min(begin + rows),
    })
}

/// The labels that identify the series of one job or device.
fn labels(key: &JobKey) -> Vec<(&'static str, String)> {
    let cluster = ("cluster", key.cluster.clone().unwrap_or_default());
    if let Some(part) = key.id.strip_prefix(NODE).filter(|_| key.manager == DEVICE) {
        // For the only one of its kind, no other label separates its series from those of GPUs and jobs.
        return vec![cluster, (PART, part.to_owned()), ("uuid", String::new()), ("id", String::new())];
    }
    if key.manager == DEVICE {
        return vec![cluster, ("uuid", key.id.clone())];
    }
    let (job, event) = event::of_series_key(key);
    let mut labels = vec![
        cluster,
        ("id", job.id.clone()),
        ("incarnation", key.incarnation.to_string()),
        ("manager", key.manager.clone()),
    ];
    if !event.is_empty() {
        labels.push(("event", event.to_owned()));
    }
    labels
}

fn agent(engine: &Engine) -> Result<Agent, StoreError> {
    let mut tls = TlsConfig::builder();
    if let Some(file) = &engine.ca_file {
        let found = certificates(Some(file))?;
        let found = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        tls = tls.root_certs(RootCerts::Specific(Arc::new(found)));
    }
    // Redirections are not followed, and proxies not used: what is sent goes to this address alone.
    let config = Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .max_redirects(0)
        .http_status_as_error(false)
        .proxy(None)
        .tls_config(tls.build());
    Ok(config.build().new_agent())
}

/// Whether the samples themselves are refused. A wrong password or address is not their fault.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407 | 408 | 425 | 429)
}

fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let text = response.headers().get("Retry-After")?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}

fn complaint(response: &mut Response<Body>) -> String {
    let status = response.status();
    let text = response.body_mut().with_config().limit(COMPLAINT_BYTES_MAX).lossy_utf8(true).read_to_string();
    let text = text.unwrap_or_default();
    let shown: String =
        text.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    format!("{status}: {shown}")
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
