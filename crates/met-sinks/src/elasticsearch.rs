//! Documents for Elasticsearch or OpenSearch.
//!
//! Documents are on disk before anything else happens to them. A thread of its own sends the oldest until the server
//! has them. Each has an id that follows from what it says, so that a second attempt changes nothing.
//! docs/decisions/055-elasticsearch.md has the reasons.

mod bulk;
mod documents;
mod indices;
mod quarantine;
mod sender;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use met_core::units::parse_size;

use crate::colmet_records::{self, Chosen, Gatherer};
use crate::event::{Event, Kind};
use crate::link::{Address, Link, private_lines};
use crate::sink::{Interest, Opened, Options, Report, Sink, SinkError, SinkOption, SinkSpec, one_of};
use crate::spool::{Limits, Spool};
use bulk::Body;
use documents::{Catalogue, Colmet, Maker, Rotation};
use indices::Indices;
use quarantine::Quarantine;
use sender::{GROUP_MAX, Handover, Sender};

const URL: &str = "http://127.0.0.1:9200";
const PREFIX_COLMET: &str = "colmet_";
const PREFIX_JOBMET: &str = "met_";
const COLMET: &str = "colmet";
const JOBMET: &str = "jobmet";
const BACKENDS: &str = "all";
const TABLES: &str = "job, node, gpu, block, network";
const TIMEOUT: &str = "30s";
const INTERVAL: &str = "5s";
const ROTATE: &str = "never";
const SPOOL_SIZE: &str = "1GiB";
const SPOOL_AGE: &str = "14d";
/// Of one body; servers take 100 MB.
const BODY_BYTES_MAX: usize = 4 << 20;
/// How often the state of the sending thread is looked at while something waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What waits when the process ends is sent if the server takes it in this time; else by the next one.
const CLOSE_WITHIN: Duration = Duration::from_millis(1500);
const PREFIX_BYTES_MAX: usize = 100;
const STACK_BYTES: usize = 512 << 10;

pub static SPEC: SinkSpec = SinkSpec {
    name: "elasticsearch",
    help: "documents for Elasticsearch or OpenSearch; spooled on disk until the server has them",
    options: &[
        SinkOption::url("url", URL, "address of the server"),
        SinkOption {
            name: "format",
            values: "`colmet` or `jobmet`",
            default: COLMET,
            many: false,
            help: "`colmet`: documents as a colmet-collector writes them. `jobmet`: rows of tables with our own names, as `stdout` writes them",
            check: |value, _| one_of(value, &[COLMET, JOBMET]),
        },
        SinkOption {
            name: "index_prefix",
            values: "lower-case letters, digits, `_`, `-` and `.`",
            default: PREFIX_COLMET,
            many: false,
            help: "how names of indices begin; with `format: jobmet` the default is `met_`",
            check: |value, _| check_prefix(value),
        },
        SinkOption::path(
            "credentials_file",
            "a file that only its owner may read, with `USER:PASSWORD` in its first line",
        ),
        SinkOption::path(
            "api_key_file",
            "a file that only its owner may read, with an API key: `ID:KEY`, or both encoded in base64",
        ),
        SinkOption::path("ca_file", "CA bundle (PEM; without it: system CAs)"),
        SinkOption::yes_or_no(
            "check_certificates",
            "yes",
            "`no`: accept any certificate; the server may be another one",
        ),
        SinkOption::yes_or_no(
            "plain",
            "no",
            "`yes`: allow http:// to other machines; the traffic can be read in transit",
        ),
        SinkOption::duration("timeout", TIMEOUT, "how long a request may take"),
        SinkOption::duration("interval", INTERVAL, "documents of this time are sent together"),
        colmet_records::PERIOD,
        colmet_records::backends(BACKENDS),
        colmet_records::EVENTS,
        colmet_records::MANAGERS,
        SinkOption::tables(TABLES, "what to send with `format: jobmet`; a server sends `job` and `node`"),
        SinkOption {
            name: "rotate",
            values: "`never`, `daily` or `monthly`",
            default: ROTATE,
            many: false,
            help: "`daily`: names of indices end with the date of their documents (`-2026.01.31`), so that old ones can be removed",
            check: |value, _| one_of(value, Rotation::NAMES),
        },
        SinkOption::yes_or_no("template", "yes", "`no`: do not put an index template; the site has its own"),
        SinkOption {
            name: "spool_size",
            values: "a size",
            default: SPOOL_SIZE,
            many: false,
            help: "maximum size of the spool; above it the oldest documents are dropped",
            check: |value, _| parse_size(value).map(drop).map_err(|error| error.to_string()),
        },
        SinkOption::duration("spool_age", SPOOL_AGE, "how long documents stay in the spool"),
    ],
    has_section: false,
    interest,
    open,
};

/// As the server demands it of names of indices.
fn check_prefix(value: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let begins =
        value.bytes().next().is_none_or(|first| first.is_ascii_lowercase() || first.is_ascii_digit());
    match begins && value.bytes().all(is_allowed) && value.len() <= PREFIX_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "{value:?} cannot begin the name of an index; write lower-case letters, digits and _"
        )),
    }
}

fn is_jobmet(options: &Options) -> bool {
    options.word("format") == Some(JOBMET)
}

/// A daemon sends what its sampler reads, a server what its nodes sent.
fn interest(options: &Options) -> Interest {
    if !is_jobmet(options) {
        return Chosen::of(options, BACKENDS).interest();
    }
    match options.node.is_some() {
        true => Interest { tables: options.tables(TABLES), ..Interest::default() },
        false => Interest { kinds: vec![Kind::Samples], ..Interest::default() },
    }
}

fn open(options: &Options) -> Opened {
    let failed = |why: String| SinkError::Failed(why);
    let address = Address {
        url: options.word("url").unwrap_or(URL).to_owned(),
        authority: options.word("ca_file").map(Into::into),
        plain: options.word("plain") == Some("yes"),
        unchecked: options.word("check_certificates") == Some("no"),
        ..Address::default()
    };
    let link = Link::open_within(&address, options.duration("timeout", TIMEOUT))
        .map_err(|error| failed(error.message("sinks.elasticsearch.plain: yes")))?;
    let headers = authorization(options).map_err(failed)?.into_iter();
    let headers = headers.map(|value| ("Authorization".to_owned(), value)).collect();
    let Some(folder) = &options.folder else {
        return Err(failed("there is no folder for its spool".to_owned()));
    };
    let spool =
        Spool::open(folder).map_err(|error| SinkError::Lost(format!("{}: {error}", folder.display())))?;
    let shared = Handover::new(spool);
    let (maker, template) = maker(options);
    let template = (options.word("template") != Some("no")).then_some(template);
    let sender = Sender {
        link,
        headers,
        shared: Arc::clone(&shared),
        indices: Indices::new(maker.scheme(), template),
        quarantine: Quarantine::new(folder),
        group_max: GROUP_MAX,
    };
    let builder = std::thread::Builder::new().name("elastic-send".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(move || sender.work()).map_err(|error| SinkError::Lost(error.to_string()))?;
    let limits = Limits {
        bytes_max: options.value("spool_size", SPOOL_SIZE, |text| parse_size(text).ok()),
        age_max: options.duration("spool_age", SPOOL_AGE),
    };
    let interval = options.duration("interval", INTERVAL);
    let outgoing = Outgoing { body: Body::default(), due: None, interval, limits, shared };
    Ok(Box::new(Elasticsearch { maker, outgoing, reported_dropped: 0 }))
}

/// What makes documents, and a name for the template of their indices.
fn maker(options: &Options) -> (Maker, String) {
    let default = if is_jobmet(options) { PREFIX_JOBMET } else { PREFIX_COLMET };
    let prefix = options.word("index_prefix").unwrap_or(default).to_owned();
    let rotation = Rotation::from_name(options.word("rotate").unwrap_or(ROTATE));
    let template = format!("met-{}", prefix.trim_end_matches(|last| "_-.".contains(last)));
    let maker = match is_jobmet(options) {
        true => Maker::Catalogue(Catalogue {
            prefix,
            node: options.node.clone(),
            tables: options.tables(TABLES),
            rotation,
        }),
        false => {
            let gatherer = Gatherer::new(Chosen::of(options, BACKENDS));
            Maker::Colmet(Box::new(Colmet::new(gatherer, &prefix, rotation)))
        }
    };
    (maker, template)
}

/// Whether a file can be a `credentials_file`, for a program that must end otherwise.
pub fn check_credentials(path: &str) -> Result<(), String> {
    let mut options = Options::default();
    options.set("credentials_file", vec![path.to_owned()]);
    authorization(&options).map(drop)
}

/// The value of the header. Nothing of a file is shown.
fn authorization(options: &Options) -> Result<Option<String>, String> {
    let first_line = |name: &str, what: &str| {
        let Some(path) = options.word(name) else { return Ok(None) };
        let unread = |error| format!("{error}; its first line must be {what}");
        let lines = private_lines(Path::new(path)).map_err(unread)?;
        let is_text = |line: &String| !line.bytes().any(|byte| byte.is_ascii_control());
        lines
            .into_iter()
            .next()
            .filter(is_text)
            .map(Some)
            .ok_or_else(|| format!("{path}: its first line is empty"))
    };
    match (first_line("credentials_file", "USER:PASSWORD")?, first_line("api_key_file", "the key")?) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err("credentials_file and api_key_file exclude each other".to_owned()),
        (Some(user), None) if user.contains(':') => {
            Ok(Some(format!("Basic {}", BASE64_STANDARD.encode(user))))
        }
        (Some(_), None) => {
            let path = options.word("credentials_file").unwrap_or_default();
            Err(format!("{path}: its first line is not USER:PASSWORD"))
        }
        (None, Some(key)) if key.contains(':') => Ok(Some(format!("ApiKey {}", BASE64_STANDARD.encode(key)))),
        (None, Some(key)) => Ok(Some(format!("ApiKey {key}"))),
    }
}

/// Documents that are not on disk yet.
struct Outgoing {
    body: Body,
    /// When the first of them has waited long enough.
    due: Option<Instant>,
    interval: Duration,
    limits: Limits,
    shared: Arc<Handover>,
}

impl Outgoing {
    fn push(&mut self, index: &str, id: &str, document: &[u8]) {
        self.body.push(index, id, document);
        self.due.get_or_insert_with(|| Instant::now() + self.interval);
        if self.is_full() {
            self.flush();
        }
    }

    fn is_full(&self) -> bool {
        self.body.bytes.len() >= BODY_BYTES_MAX || self.body.documents >= GROUP_MAX as u64
    }

    /// On a full disk documents stay in memory until they are too many.
    fn flush(&mut self) {
        self.due = None;
        if self.body.documents == 0 {
            return;
        }
        let is_kept = self.shared.put(&self.body.bytes, self.body.documents, &self.limits);
        if !is_kept && !self.is_full() {
            self.due = Some(Instant::now() + self.interval);
            return;
        }
        if !is_kept {
            self.shared.give_up(self.body.documents);
        }
        self.body.bytes.clear();
        self.body.documents = 0;
    }
}

struct Elasticsearch {
    maker: Maker,
    outgoing: Outgoing,
    /// Documents whose loss was reported.
    reported_dropped: u64,
}

impl Elasticsearch {
    fn finish(&mut self, now: Instant) {
        let Elasticsearch { maker, outgoing, .. } = self;
        maker.finish(now, &mut |index, id, document| outgoing.push(index, id, document));
    }

    fn flush_if_due(&mut self) {
        if self.outgoing.due.is_some_and(|due| due <= Instant::now()) {
            self.outgoing.flush();
        }
    }
}

impl Sink for Elasticsearch {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        let Elasticsearch { maker, outgoing, .. } = self;
        maker.write(event, &mut |index, id, document| outgoing.push(index, id, document));
        self.flush_if_due();
        Ok(())
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        self.finish(Instant::now());
        self.flush_if_due();
        Ok(())
    }

    fn report(&mut self) -> Option<Report> {
        let progress = self.outgoing.shared.progress();
        let dropped = progress.dropped - self.reported_dropped;
        self.reported_dropped = progress.dropped;
        let look = (progress.waiting > 0).then(|| Instant::now() + LOOK_EVERY);
        let wake = self.outgoing.due.into_iter().chain(look).chain(self.maker.due()).min();
        Some(Report {
            dropped,
            failure: progress.failure,
            is_retrying: progress.is_retrying,
            is_logged: false,
            wake,
        })
    }

    fn close(mut self: Box<Self>) {
        // No further row comes.
        self.finish(Instant::now() + CLOSE_WITHIN);
        self.outgoing.flush();
        self.outgoing.shared.stop(CLOSE_WITHIN);
    }
}

impl Drop for Elasticsearch {
    fn drop(&mut self) {
        self.outgoing.shared.stop(Duration::ZERO);
    }
}

#[cfg(test)]
#[path = "elasticsearch/tests.rs"]
mod tests;
