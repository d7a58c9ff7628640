//! What a daemon sends to the server of its cluster, and how it was joined to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use met_host::Host;
use met_sinks::Configured;
use met_sinks::forward::{self, ALLOW_PLAIN, Changed, Monitor, Outbox, Plan, Prepared, Uplink};
use met_sinks::link::{self, Address, Link};
use met_sinks::sink::{Context as SinkContext, Options, SinkError};
use met_sinks::spool::Limits;
use met_store::Reader;
use met_web::listener::WebConfig;
use met_wire::batch::{Header, Page};
use serde::{Deserialize, Serialize};

use super::node_id;
use met_config::Failure;
use met_config::paths::{Place, create_private};
use met_config::{Config, Forward, Http};

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
    create_private(&folder).with_context(|| format!("cannot store anything in {}", folder.display()))?;
    let joined = Joined {
        url: address.url.clone(),
        authority: address.authority.clone(),
        plain: address.plain,
        node: node.map(str::to_owned),
    };
    // A token is never found beside the address of another server, wherever this is interrupted.
    match fs::remove_file(folder.join(JOINED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot join again in {}", folder.display()));
        }
        _ => {}
    }
    if let Some(token) = &address.token {
        write_private(&folder.join(TOKEN), token.as_bytes())?;
    }
    write_private(&folder.join(JOINED), &serde_json::to_vec_pretty(&joined)?)
}

pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
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

fn joined(folder: &Path) -> Result<Option<Joined>> {
    let path = folder.join(JOINED);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Failure::usage(format!("{}: {error}; join again with met daemon --join", path.display()))
    })
}

/// The configured server, else the one `--join` stored. `None` without either.
fn address(forward: &Forward, place: &Place) -> Result<Option<(Address, Option<String>)>> {
    let usage = |error: link::BadAddress| Failure::usage(format!("forward: {error}"));
    let folder = place.state.join(FOLDER);
    let Some(url) = &forward.url else {
        let Some(Joined { url, authority, plain, node }) = joined(&folder)? else { return Ok(None) };
        let token = Some(link::token_of(&folder.join(TOKEN)).map_err(usage)?);
        return Ok(Some((Address { url, token, authority, plain, ..Address::default() }, node)));
    };
    let certificate = match (&forward.cert_file, &forward.key_file) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => return Err(Failure::usage("forward: cert_file and key_file belong together")),
    };
    let token_file = match &forward.token_file {
        Some(path) => Some(path.clone()),
        // The token that was kept is for the server that gave it, and no other may see it.
        None => joined(&folder)?
            .filter(|joined| joined.url.trim_end_matches('/') == url.trim_end_matches('/'))
            .map(|_| folder.join(TOKEN)),
    };
    let token = token_file.map(|path| link::token_of(&path)).transpose().map_err(usage)?;
    if token.is_none() && certificate.is_none() {
        return Err(Failure::usage(
            "forward: a token_file or a cert_file is needed; on the server: met server enroll NODE",
        ));
    }
    let authority = forward.ca_file.clone();
    let address =
        Address { url: url.clone(), token, authority, certificate, plain: forward.plain, unchecked: false };
    Ok(Some((address, forward.node.clone())))
}

/// Whether a server is known to send to, whatever is wrong with it.
pub(super) fn is_set_up(config: &Config, place: &Place) -> bool {
    !matches!(address(&config.forward, place), Ok(None))
}

/// Whether a daemon would send. Who joins wants to know now, not from its log.
pub fn check(config: &Config, place: &Place) -> Result<()> {
    if let Some((address, _)) = address(&config.forward, place)? {
        Link::open(&address)
            .map_err(|error| Failure::usage(format!("forward: {}", error.message(ALLOW_PLAIN))))?;
    }
    Ok(())
}

/// The sink that sends to a server, if one is known; `listens`: whether this daemon has a page. What is wrong with its
/// settings is found when it is opened, and shown in its status.
pub(super) fn sink(
    host: &Host,
    config: &Config,
    place: &Place,
    listens: bool,
) -> Option<(Configured, Monitor)> {
    if !is_set_up(config, place) {
        return None;
    }
    let joined = || joined(&place.state.join(FOLDER)).ok().flatten().map(|joined| joined.url);
    let url = config.forward.url.clone().or_else(joined);
    let monitor = Monitor::new(url.unwrap_or_else(|| "the server".to_owned()));
    let page = if listens { page_for_others(&config.http) } else { None };
    let node = Node { host: host.clone(), forward: config.forward.clone(), place: place.clone(), page };
    let uplink = Uplink {
        every: config.forward.interval.min(INTERVAL_MAX),
        monitor: monitor.clone(),
        prepare: Box::new(move || node.prepare()),
    };
    let mut options = Options::default();
    options.context = SinkContext::new(uplink);
    Some((Configured { spec: &forward::SPEC, options }, monitor))
}

/// Where others find the page of this daemon; `None` if only this machine does.
fn page_for_others(http: &Http) -> Option<Page> {
    let found = http.listen.iter().filter_map(|address| address.resolve().ok()).flatten();
    let port =
        found.filter(|found| !found.ip().to_canonical().is_loopback()).map(|found| found.port()).next()?;
    let tls = http.web_config.as_deref().and_then(|path| WebConfig::load(path).ok());
    Some(Page { port, tls: tls.is_some_and(|config| config.has_tls()) })
}

/// What is known of this node before anything is sent.
struct Node {
    host: Host,
    forward: Forward,
    place: Place,
    page: Option<Page>,
}

impl Node {
    /// Wrong settings stay so until they are read again, by the next daemon; a full disk does not.
    fn prepare(&self) -> Prepared {
        let failed = |error: anyhow::Error| SinkError::Failed(format!("{error:#}"));
        let later = |error: anyhow::Error| SinkError::Retry(format!("{error:#}"));
        let address = address(&self.forward, &self.place).map_err(failed)?;
        let (address, node) =
            address.ok_or_else(|| SinkError::Failed("there is no server to send to".to_owned()))?;
        let folder = self.place.state.join(FOLDER);
        create_private(&folder)
            .with_context(|| format!("cannot store anything in {}", folder.display()))
            .map_err(later)?;
        let facts = self.host.facts();
        let id = node_id::of(&self.place.state, &facts.machine_id).map_err(|error| later(error.into()))?;
        let header = Header {
            id,
            node: node.unwrap_or_else(|| facts.hostname.clone()),
            boot_id: facts.boot_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: Some(i64::from(facts.cpu_count)),
            memory_bytes: facts.memory_total_bytes,
            page: self.page,
            ..Header::default()
        };
        let limits = Limits { bytes_max: self.forward.spool_bytes, age_max: self.forward.spool_age };
        let plan = Plan { address, folder: folder.join("spool"), limits, quiet: QUIET, header };
        Ok((plan, Box::new(Catalogue { state: self.place.state.clone(), reader: None })))
    }
}

/// The records of this node's catalogue in the order of change, read beside its writer.
struct Catalogue {
    state: PathBuf,
    reader: Option<Reader>,
}

impl Outbox for Catalogue {
    fn changed_after(&mut self, mark: i64, limit: usize) -> io::Result<Changed> {
        let other = |error: met_store::StoreError| io::Error::other(error.to_string());
        let reader = match self.reader.take().filter(|reader| !reader.is_replaced()) {
            Some(reader) => reader,
            None => Reader::open(&self.state).map_err(other)?,
        };
        // A new catalogue counts from the beginning, and all of it is new.
        let mark = if reader.newest_change().map_err(other)? < mark { 0 } else { mark };
        let changed = reader.changed_after(mark, limit).map_err(other)?;
        self.reader = Some(reader);
        let more = changed.len() == limit;
        let mark = changed.last().map_or(mark, |(mark, _)| *mark);
        let records = changed.into_iter().map(|(_, record)| record);
        // The server gets scheduler-only records from the scheduler, once for all nodes.
        let records = records.filter(|record| record.local.is_some()).collect();
        Ok(Changed { records, mark, more })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use met_core::sample;

    const HERE: &str = "https://one.example:9317";

    fn place(folder: &Path) -> Place {
        Place { state: folder.join("state"), runtime: folder.join("runtime"), system: false }
    }

    fn joined_to_one(place: &Place) {
        let token = Some("token-of-this-node".to_owned());
        join(place, &Address { url: HERE.to_owned(), token, ..Address::default() }, None).unwrap();
    }

    /// Opens it as its lane does, and says what its status shows then.
    fn why_not(config: &Config, place: &Place, folder: &Path) -> (String, String) {
        let (configured, monitor) = sink(&Host::at(folder).unwrap(), config, place, false).unwrap();
        let error = (configured.spec.open)(&configured.options).err().expect("it cannot be opened");
        assert!(matches!(error, SinkError::Failed(_)), "{error:?}");
        let status = monitor.status();
        (status.url, status.last_error.unwrap())
    }

    #[test]
    fn a_failure_to_send_is_reported_and_does_not_stop_measuring() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("proc")).unwrap();
        let place = place(folder.path());
        let mut config = Config::default();
        assert!(sink(&Host::at(folder.path()).unwrap(), &config, &place, false).is_none());

        joined_to_one(&place);
        let token = place.state.join(FOLDER).join(TOKEN);
        fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
        let (url, why) = why_not(&config, &place, folder.path());
        assert!(url == HERE && why.contains("chmod 600"), "{url} {why}");
        fs::remove_file(&token).unwrap();
        let (_, why) = why_not(&config, &place, folder.path());
        assert!(why.contains("No such file"), "{why}");
        fs::write(place.state.join(FOLDER).join(JOINED), "{").unwrap();
        let (url, why) = why_not(&config, &place, folder.path());
        assert!(url == "the server" && why.contains("join again"), "{url} {why}");

        config.forward.url = Some("http://10.0.0.1:9317".to_owned());
        config.forward.token_file = Some(folder.path().join("none"));
        let (url, why) = why_not(&config, &place, folder.path());
        assert!(url == "http://10.0.0.1:9317" && why.contains("No such file"), "{url} {why}");
        assert!(check(&config, &place).is_err(), "who joins is refused");
    }

    #[test]
    fn what_is_written_after_a_repair_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let record = |id: u32| sample::full(id, "train");
        let mut writer = met_store::Writer::open(folder.path()).unwrap();
        (1..=9).for_each(|id| writer.put(&record(id)).unwrap());
        let mut outbox = Catalogue { state: folder.path().to_owned(), reader: None };
        let mark = outbox.changed_after(0, 100).unwrap().mark;
        // A counter that is gone is damage: the next write goes to a new file.
        let path = folder.path().join("store.db");
        rusqlite::Connection::open(path).unwrap().execute("DELETE FROM change", []).unwrap();
        writer.put(&record(10)).unwrap();
        assert!(writer.salvaged.is_some());
        let changed = outbox.changed_after(mark, 100).unwrap();
        assert!(changed.records.iter().any(|record| record.key.id == "10"), "{:?}", changed.mark);
        assert!(changed.mark > mark);
    }

    #[test]
    fn a_page_that_only_this_machine_reaches_is_not_for_others() {
        let page = |listen: &[&str]| {
            let listen = listen.iter().map(|address| address.parse().unwrap()).collect();
            page_for_others(&Http { listen, ..Config::default().http })
        };
        assert_eq!((page(&[]), page(&["127.0.0.1:9317", "[::1]:9317"])), (None, None));
        assert_eq!(page(&["127.0.0.1:9317", "0.0.0.0:9400"]), Some(Page { port: 9400, tls: false }));
    }

    #[test]
    fn a_token_is_shown_only_to_the_server_it_was_given_for() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        joined_to_one(&place);
        let mut config = Config::default();
        for same in [HERE.to_owned(), format!("{HERE}/")] {
            config.forward.url = Some(same);
            let (address, _) = address(&config.forward, &place).unwrap().unwrap();
            assert_eq!(address.token.as_deref(), Some("token-of-this-node"));
        }
        config.forward.url = Some("https://two.example:9317".to_owned());
        assert!(address(&config.forward, &place).unwrap_err().to_string().contains("a token_file"));
    }
}
