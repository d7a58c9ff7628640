//! What a daemon sends to the server of its cluster, and how it was joined to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use met_core::course::Course;
use met_core::job::JobKey;
use met_host::Host;
use met_sinks::forward::link::{self, Address};
use met_sinks::forward::spool::Limits;
use met_sinks::forward::{Changed, Forward, Outbox, Plan};
use met_store::Reader;
use met_wire::batch::{Header, Subject};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::Failure;
use crate::paths::{Place, create_private};

/// Below the state: what `--join` wrote, and batches that wait.
const FOLDER: &str = "forward";
const JOINED: &str = "joined.json";
const TOKEN: &str = "token";
/// More than the server takes as one batch with good grace.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A third of what makes a server call a node late.
const QUIET: Duration = Duration::from_secs(60);

/// What was said when this node was joined.
#[derive(Debug, Serialize, Deserialize)]
struct Joined {
    url: String,
    #[serde(default)]
    authority: Option<PathBuf>,
    #[serde(default)]
    plain: bool,
    #[serde(default)]
    node: Option<String>,
}

/// Remembers a server and the token for it; the next daemon sends there.
pub fn join(place: &Place, address: &Address, node: Option<&str>) -> Result<()> {
    let folder = place.state.join(FOLDER);
    create_private(&folder).with_context(|| format!("cannot keep anything in {}", folder.display()))?;
    let joined = Joined {
        url: address.url.clone(),
        authority: address.authority.clone(),
        plain: address.plain,
        node: node.map(str::to_owned),
    };
    if let Some(token) = &address.token {
        write_private(&folder.join(TOKEN), token.as_bytes())?;
    }
    write_private(&folder.join(JOINED), &serde_json::to_vec_pretty(&joined)?)
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let beside = path.with_extension("new");
    let written = (|| {
        let _ = fs::remove_file(&beside);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Where to send to: the configuration's word, else what `--join` left. `None` where nobody said.
pub fn address(config: &Config, place: &Place) -> Result<Option<(Address, Option<String>)>> {
    let usage = |error: link::BadAddress| Failure::usage(format!("forward: {error}"));
    let forward = &config.forward;
    let folder = place.state.join(FOLDER);
    if let Some(url) = &forward.url {
        let certificate = match (&forward.cert_file, &forward.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(Failure::usage("forward: cert_file and key_file belong together")),
        };
        let kept = folder.join(TOKEN);
        let token_file = forward.token_file.clone().or_else(|| kept.exists().then_some(kept));
        let token = token_file.map(|path| link::token_of(&path)).transpose().map_err(usage)?;
        if token.is_none() && certificate.is_none() {
            return Err(Failure::usage(
                "forward: a token_file or a cert_file is needed; on the server: met server enroll NODE",
            ));
        }
        let authority = forward.ca_file.clone();
        let address = Address { url: url.clone(), token, authority, certificate, plain: forward.plain };
        return Ok(Some((address, forward.node.clone())));
    }
    let path = folder.join(JOINED);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let joined: Joined = serde_json::from_slice(&text).map_err(|error| {
        Failure::usage(format!("{}: {error}; join again with met daemon --join", path.display()))
    })?;
    let token = Some(link::token_of(&folder.join(TOKEN)).map_err(usage)?);
    let Joined { url, authority, plain, node } = joined;
    Ok(Some((Address { url, token, authority, certificate: None, plain }, node)))
}

/// Starts to send, where a server is known.
pub fn start(host: &Host, config: &Config, place: &Place) -> Result<Option<Forward>> {
    let Some((address, node)) = address(config, place)? else { return Ok(None) };
    let facts = host.facts();
    let header = Header {
        node: node.unwrap_or_else(|| facts.hostname.clone()),
        boot_id: facts.boot_id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cpus: Some(i64::from(facts.cpu_count)),
        memory_bytes: facts.memory_total_bytes,
        ..Header::default()
    };
    let forward = &config.forward;
    let plan = Plan {
        address,
        folder: place.state.join(FOLDER).join("spool"),
        limits: Limits { bytes_max: forward.spool_bytes, age_max: forward.spool_age },
        every: forward.interval.min(INTERVAL_MAX),
        quiet: QUIET,
        header,
    };
    let outbox = Box::new(Catalogue { state: place.state.clone(), reader: None });
    let url = plan.address.url.clone();
    let started =
        Forward::start(plan, outbox).map_err(|error| Failure::usage(format!("forward: {error}")))?;
    tracing::info!("sending to {url}");
    Ok(Some(started))
}

/// Hands samples over; whose they are is said in the sender's own words.
pub fn offer_job(forward: Option<&Forward>, key: &JobKey, course: &Course) {
    if let Some(forward) = forward {
        forward.offer(Subject::Job(key.clone()), course);
    }
}

pub fn offer_card(forward: Option<&Forward>, uuid: &str, course: &Course) {
    if let Some(forward) = forward {
        forward.offer(Subject::Device(uuid.to_owned()), course);
    }
}

/// The records of this node's catalogue in the order of change, read beside the one who writes.
struct Catalogue {
    state: PathBuf,
    reader: Option<Reader>,
}

impl Outbox for Catalogue {
    fn changed_after(&mut self, mark: i64, limit: usize) -> io::Result<Changed> {
        let other = |error: met_store::StoreError| io::Error::other(error.to_string());
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::open(&self.state).map_err(other)?,
        };
        // A catalogue that was begun anew counts from the beginning, and all of it is news.
        let mark = if reader.newest_change().map_err(other)? < mark { 0 } else { mark };
        let changed = reader.changed_after(mark, limit).map_err(other)?;
        self.reader = Some(reader);
        let more = changed.len() == limit;
        let mark = changed.last().map_or(mark, |(mark, _)| *mark);
        let records = changed.into_iter().map(|(_, record)| record);
        // What only a scheduler tells is told to the server by the scheduler, and once for all nodes.
        let records = records.filter(|record| record.local.is_some()).collect();
        Ok(Changed { records, mark, more })
    }
}
