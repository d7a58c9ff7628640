//! What is said on a daemon's socket: frames of a length and JSON, one reply to each request.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use met_config::Failure;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::energy::emission::Factor;
use met_core::energy::idle::LearnedIdle;
use met_core::energy::{Balance, EnergyWindow};
use met_core::grouping::{Membership, Sum, SumSpan};
use met_core::job::{CgroupPaths, JobKey, Record};
use met_core::listing::Cursor;
use met_core::node_health::{FailingSource, NodeHealth, Spool};
use met_core::queue::Queue;
use met_core::reaction::{Reaction, ReactionChange};
use met_core::usage::{Usage, UsageAsk};
use met_core::{Unparsed, lossless_path};
use serde::{Deserialize, Serialize};

use crate::free::Free;
use crate::handshake::Hello;
use crate::jobs::{JobRef, JobsFilter};
use crate::machine_now::MachineNow;

/// Bounds what a daemon can make a client hold.
const REPLY_BYTES_MAX: u32 = 64 << 20;
/// Bounds what each client can make a daemon hold. A record is the largest thing a client says.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Samples that fit a request, whatever they are: of a longer series, so many of its points.
pub const TIMED_SAMPLES_MAX: usize = 500;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Hello(Hello),
    /// The next free job id, at least this one.
    Reserve {
        at_least: u64,
        /// For `met time`, which announces its job at its end.
        #[serde(default)]
        timed: bool,
    },
    /// A cgroup for a child of the asking supervisor that waits before its exec.
    Enclose {
        name: String,
        pid: u32,
    },
    Started(Box<Record>),
    Ended(Box<Record>),
    /// The end of a job of `met time`, with what that sampled.
    Timed {
        record: Box<Record>,
        #[serde(rename = "course")]
        series: WireSeries,
    },
    Jobs(JobsFilter),
    Find(JobRef),
    /// The rest of an answer to `Find` that was too large for one reply.
    FindAfter {
        job: JobRef,
        after: Cursor,
    },
    /// As `Find`, of the jobs of one user: nothing is done for jobs of others.
    FindOf {
        job: JobRef,
        uid: u32,
        after: Option<Cursor>,
    },
    /// Counters of the events of a job, from its supervisor, which sends their descriptors with it.
    Counters {
        key: JobKey,
        in_cgroup: bool,
        events: Vec<PassedEvent>,
    },
    /// The samples after a time, as many as fit a reply; none when there are no more.
    #[serde(rename = "course")]
    Series {
        key: JobKey,
        after_ms: i64,
    },
    /// The same of a further series of the job: `job_detail`, or `event` with the name of one.
    JobSeries {
        key: JobKey,
        table: String,
        part: String,
        after_ms: i64,
    },
    /// The same of a GPU, while the job had it.
    #[serde(rename = "card_course")]
    GpuSeries {
        key: JobKey,
        uuid: String,
        after_ms: i64,
    },
    /// What of the machine has samples since then.
    NodeParts {
        since_ms: i64,
    },
    /// The samples of such a part after a time, as those of a job.
    #[serde(rename = "node_course")]
    NodePartSeries {
        table: String,
        part: String,
        after_ms: i64,
    },
    /// The samples of all parts of a node after a time, as many as fit a reply; asked of a server.
    #[serde(rename = "node_courses")]
    NodeSeries {
        node: String,
        after_ms: i64,
    },
    Remove(JobKey),
    /// Tags and note of a job.
    Annotate {
        key: JobKey,
        change: AnnotationChange,
    },
    /// Who had jobs in which account, of the jobs that fit.
    Memberships {
        filter: JobsFilter,
    },
    /// What jobs used that ended within a time.
    Sums {
        filter: JobsFilter,
        span: SumSpan,
    },
    /// Use over time.
    Usage(UsageAsk),
    /// What was done about findings, after a change if there is one.
    Reactions {
        change: Option<ReactionChange>,
    },
    /// How many jobs wait, as schedulers count them.
    Queues,
    /// Rules want running jobs to be sampled at the shortest interval for this long.
    Watch {
        jobs: Vec<JobKey>,
        seconds: u64,
    },
    /// The reported factors of emissions, in the order of time.
    Factors,
    Correct(Correction),
    /// Whose the node's energy was in the last window.
    Energy,
    /// The nodes of a cluster; asked of a server.
    Nodes,
    /// Period and events as they hold, and why.
    InForce,
    Configure(Change),
    Status,
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Hello {
        /// The version to speak; one that the client does not know where none is in common.
        protocol: u32,
        pid: u32,
        /// The daemon makes room for a newer one of the same user.
        #[serde(default)]
        leaving: bool,
    },
    Reserved {
        id: u64,
    },
    Enclosed(CgroupPaths),
    Done,
    Jobs(Vec<Record>),
    /// Some of the jobs that were asked for, as many as fit a reply.
    JobsPage {
        jobs: Vec<Record>,
        /// Where the list goes on; `None` at its end.
        next: Option<Cursor>,
        /// What is missing from the list, in sentences.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
        /// The newest version that its sender knows, where the filter is one that earlier versions misunderstand; they
        /// did not say. A server has no handshake.
        #[serde(default, skip_serializing_if = "is_zero")]
        protocol: u32,
    },
    Annotated(Annotation),
    Memberships(Vec<Membership>),
    Sums(Vec<Sum>),
    Usage(Usage),
    Reactions(Vec<Reaction>),
    Queues(Vec<Queue>),
    /// Those of the jobs that run are sampled like that.
    Watched(Vec<JobKey>),
    #[serde(rename = "course")]
    Series(WireSeries),
    /// By table and label.
    NodeParts(Vec<(String, String)>),
    #[serde(rename = "node_courses")]
    NodeSeries(NodeSeries),
    Status(Box<Status>),
    Factors(Vec<Factor>),
    Corrected(Corrected),
    Energy(Option<EnergyWindow>),
    Nodes(Vec<NodeStatus>),
    InForce(Box<InForce>),
    /// The daemon ends on purpose: no other is to be started for it.
    Leaving,
    /// To a supervisor: the daemon has no descriptor for its connection and looks for its end without it.
    Unlinked,
    Error {
        message: String,
        /// What was asked is wrong, and nothing was done.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_usage: bool,
    },
}

impl Reply {
    pub fn error(message: impl Into<String>) -> Reply {
        Reply::Error { message: message.into(), is_usage: false }
    }

    pub fn refusal(error: &anyhow::Error) -> Reply {
        let is_usage = error.downcast_ref::<Failure>().is_some_and(|failure| failure.code == 2);
        Reply::Error { message: format!("{error:#}"), is_usage }
    }

    /// A refusal is an error; only wrong input has the exit code of wrong input.
    pub fn accepted(self) -> Result<Reply, Failure> {
        match self {
            Reply::Error { message, is_usage } => {
                Err(Failure { code: if is_usage { 2 } else { 1 }, message })
            }
            reply => Ok(reply),
        }
    }
}

/// A change of what was reported, or of what was computed from it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// The factor from a time on, up to another one.
    Set { mg_per_kwh: i64, from_ns: i64, to_ns: Option<i64> },
    /// Takes back what was set by hand for a time.
    Unset { from_ns: i64, to_ns: i64 },
    /// What a provider reported later.
    #[serde(rename = "told")]
    Reported { factors: Vec<Factor> },
    /// The emissions of jobs that started since then.
    Recompute { since_ns: Option<i64> },
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrected {
    /// These jobs have other figures now.
    pub jobs: u64,
    /// These were left unchanged: what their building used was not stored.
    #[serde(default)]
    pub without_pue: u64,
}

/// A span of the series of a node, by table and part.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct NodeSeries {
    pub parts: Vec<(String, String, WireSeries)>,
    /// Up to here there is nothing else; `None` at the end.
    pub until_ms: Option<i64>,
}

/// A live change, in the words of the configuration file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Change {
    pub period: Option<String>,
    pub perf: Option<String>,
    /// While it runs, and of events in it alone; `None` is until the daemon ends.
    pub job: Option<JobRef>,
    /// Takes earlier changes back first.
    pub reset: bool,
    /// Without a job: until any of them ends.
    #[serde(default)]
    pub until_a_job_ends: bool,
}

/// What a daemon does now. Of what holds for all, the first does; the others follow when it ends.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    pub intervals: Vec<Held<Duration>>,
    /// What the last of these begins with, where intervals depend on the age of a job.
    #[serde(default)]
    pub ladder: Option<String>,
    pub events: Vec<Held<Vec<String>>>,
    /// Counted there instead.
    pub events_in_jobs: Vec<Held<Vec<String>>>,
    /// What of a change cannot be done.
    pub note: Option<String>,
    /// For the owner of the daemon and root, and for all users who may read the file.
    #[serde(default)]
    pub file: Option<ConfigFile>,
    /// Sections and keys of that file that a new daemon will follow.
    #[serde(default)]
    pub after_restart: Vec<String>,
    /// What a kilowatt hour emits now.
    #[serde(default)]
    pub factor: Option<Factor>,
    /// Why the daemon does not listen, although an address is configured.
    #[serde(default)]
    pub http_refused: Option<String>,
    /// Why the file does not hold as it is now, for those who may read it.
    #[serde(default)]
    pub file_refused: Option<String>,
}

/// A configuration file as a daemon read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// `None`: there is none, and the defaults hold.
    #[serde(with = "lossless_path::option")]
    pub path: Option<PathBuf>,
    pub text: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Held<T> {
    pub value: T,
    #[serde(rename = "whence")]
    pub origin: ValueOrigin,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOrigin {
    Default,
    File(#[serde(with = "lossless_path")] PathBuf),
    Live,
    /// Live, until this job ends; its name is for those who may see it.
    Job(Option<String>),
}

impl ValueOrigin {
    /// Whether it was changed live.
    pub fn is_temporary(&self) -> bool {
        matches!(self, ValueOrigin::Live | ValueOrigin::Job(_))
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => out.write_str("default"),
            ValueOrigin::File(path) => write!(out, "{}", path.display()),
            ValueOrigin::Live => out.write_str("temporary until the daemon ends"),
            ValueOrigin::Job(Some(job)) => write!(out, "temporary until job {job} ends"),
            ValueOrigin::Job(None) => out.write_str("temporary until a job ends"),
        }
    }
}

/// An event of a job and how many of the descriptors are its counters, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedEvent {
    pub name: String,
    pub counters: usize,
    pub software: bool,
    pub user_only: bool,
}

/// A series of the job's or the GPU's table with its columns by name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WireSeries {
    pub times_ms: Vec<i64>,
    pub columns: Vec<(String, Vec<Option<i64>>)>,
    /// What thinning left of removed samples, by column and by which of `SPREAD_NAMES`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<(String, String, Vec<Option<i64>>)>,
}

/// What a daemon says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub version: String,
    pub system: bool,
    pub jobs: usize,
    /// The shortest time between two samples,
    pub interval_ms: i64,
    /// and all of them by the age of a job, where they differ.
    #[serde(default)]
    pub ladder: Option<String>,
    #[serde(with = "lossless_path")]
    pub state: PathBuf,
    pub sources: Vec<SourceStatus>,
    /// Samples that could not be written, or not in time; `None` while the sampler does not answer.
    #[serde(default)]
    pub dropped_samples: Option<u64>,
    #[serde(default)]
    pub schedulers: Vec<SchedulerStatus>,
    /// `None` where it does not look for jobs of others.
    #[serde(default)]
    pub discovery: Option<DiscoveryStatus>,
    /// What the machine uses doing nothing, as far as it was learned.
    #[serde(default)]
    pub idle: Vec<LearnedIdle>,
    /// Whether all energy that meters counted is booked; `None` before the first window.
    #[serde(default)]
    pub ledger: Option<Balance>,
    /// `None` where nothing is sent to a server.
    #[serde(default)]
    pub forward: Option<met_sinks::forward::Status>,
    /// All sinks, `forward` among them.
    #[serde(default)]
    pub sinks: Vec<met_sinks::bus::Status>,
    /// `None` where no address is configured.
    #[serde(default)]
    pub http: Option<HttpStatus>,
    /// `None` where no messages of live configuration are taken.
    #[serde(default)]
    pub configure: Option<ConfigureStatus>,
    /// Samples that the series database rejected since the daemon started, and that are lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples_refused: u64,
}

/// Messages of live configuration (`colmet.configure`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureStatus {
    pub endpoint: String,
    pub taken: u64,
    pub skipped: u64,
    /// Why none are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The HTTP listener of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpStatus {
    pub listening: Vec<String>,
    /// Why it does not listen.
    pub refused: Option<String>,
}

/// A node that sends to a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub name: String,
    pub jobs: usize,
    /// Sent nothing for a while.
    pub late: bool,
    /// Unix time of its last batch; `None` before the first.
    pub seen_ns: Option<i64>,
    pub version: Option<String>,
    pub cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// How far its clock is behind the server's.
    pub clock_offset_ns: Option<i64>,
    /// Samples that it had to give up.
    pub dropped_samples: i64,
    /// What of its batches the server does not understand, or that two machines send under this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its GPUs, and the sources that it cannot read, as of its last batch.
    #[serde(flatten)]
    pub health: NodeHealth,
    /// What it does, unless it is late.
    #[serde(flatten)]
    pub now: MachineNow,
    /// What it has not delivered, as of its last batch, unless it is late or does not say so.
    #[serde(flatten)]
    pub spool: Option<Spool>,
    /// What no job holds, for those who see all jobs.
    #[serde(flatten)]
    pub free: Free,
}

impl NodeStatus {
    /// What needs attention, one line each.
    pub fn problems(&self, now_ns: i64) -> Vec<String> {
        let failing = self.health.failing_sources.iter().map(|failing| failing.text(now_ns));
        self.problem.iter().cloned().chain(failing).collect()
    }
}

/// A resource manager that is asked about jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerStatus {
    pub manager: String,
    /// Unix time of the last answer; `None` before the first.
    pub answered_ns: Option<i64>,
    /// How long the last question took.
    pub took_ms: Option<i64>,
    /// Runs of jobs that were news.
    #[serde(rename = "told")]
    pub reported: u64,
    /// Since the last answer.
    pub last_error: Option<String>,
    /// How many jobs the next query is about; `None`: all that have changed.
    #[serde(default)]
    pub jobs: Option<usize>,
    /// A query is in progress.
    #[serde(default)]
    pub asking: bool,
    /// It is the page at this address, on which the manager counts its queue; `reported` counts partitions then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Lines of it that could not be read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unparsed: u64,
}

impl SchedulerStatus {
    /// What is known of the page on which the manager counts its queue, if this is one.
    pub fn page_words(&self, now_ns: i64) -> Option<String> {
        let (manager, page) = (&self.manager, self.page.as_ref()?);
        if let Some(error) = &self.last_error {
            let instead = "how many jobs wait is taken from commands";
            return Some(format!("{manager}: cannot read the queue from {page}: {error}; {instead}"));
        }
        let Some(answered_ns) = self.answered_ns else {
            return Some(format!("{manager}: the queue has not been read from {page} yet"));
        };
        let ago = (now_ns - answered_ns).max(0) / 1_000_000_000;
        let count = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let mut text =
            format!("{manager}: queue of {} read from {page} {ago} s ago", count(self.reported, "partition"));
        if self.unparsed > 0 {
            text.push_str(&format!("; {} could not be read", count(self.unparsed, "line")));
        }
        Some(text)
    }
}

/// How the search for jobs of others goes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DiscoveryStatus {
    pub jobs: Vec<(String, usize)>,
    #[serde(with = "lossless_path::list")]
    pub homes: Vec<PathBuf>,
    pub watches: usize,
    /// Why not everything is watched.
    pub refused: Option<String>,
    pub left_out: u64,
    /// Where there are more than are followed.
    #[serde(default, with = "lossless_path::list")]
    pub crowded: Vec<PathBuf>,
    /// Directories of users that were gone before a job was seen in them, and what was used unseen.
    #[serde(default)]
    pub unseen_directories: u64,
    #[serde(default)]
    pub unseen_cpu_ns: u64,
    /// Jobs of v1 managers whose events are counted in v2 directories of ours, and why others are not.
    #[serde(default)]
    #[serde(rename = "shadows")]
    pub perf_cgroups: usize,
    #[serde(default)]
    #[serde(rename = "shadows_refused")]
    pub perf_cgroups_refused: Option<String>,
}

impl From<met_jobs::discover::Health> for DiscoveryStatus {
    fn from(health: met_jobs::discover::Health) -> DiscoveryStatus {
        let met_jobs::discover::Health { jobs, homes, watches, refused, left_out, unseen, .. } = health;
        let (unseen_directories, unseen_cpu_ns) = (unseen.directories, unseen.cpu_ns);
        DiscoveryStatus {
            jobs,
            homes,
            watches,
            refused,
            left_out: left_out.iter().map(|(_, count)| count).sum(),
            crowded: left_out.into_iter().map(|(place, _)| place).collect(),
            unseen_directories,
            unseen_cpu_ns,
            ..DiscoveryStatus::default()
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SourceStatus {
    pub name: String,
    pub read_ns: i64,
    /// By the source's own threads.
    #[serde(default)]
    pub background_ns: i64,
    pub errors: i64,
    pub rows: i64,
    /// Readings that could not be parsed, and the file of the first.
    #[serde(default)]
    pub unparsed: i64,
    #[serde(default)]
    pub first_unparsed: Option<String>,
    pub last_error: Option<String>,
    /// What was wrong with its last reading; absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<FailingSource>,
    /// A reading of it did not return, and it is no longer read.
    #[serde(default)]
    pub left_out: bool,
}

impl SourceStatus {
    pub fn unparsed(&self) -> Unparsed {
        Unparsed { count: self.unparsed, first: self.first_unparsed.clone() }
    }

    /// Of one that has not been read yet.
    pub fn unread(name: &str) -> SourceStatus {
        SourceStatus { name: name.to_owned(), ..SourceStatus::default() }
    }
}

/// The sources that fail as of their last readings; what is no longer read at all comes first.
pub fn failing_sources(sources: &[SourceStatus]) -> Vec<FailingSource> {
    let (blocked, others): (Vec<_>, Vec<_>) = sources.iter().partition(|source| source.left_out);
    blocked.into_iter().chain(others).filter_map(|source| source.failing.clone()).collect()
}

/// Whether a daemon would read a request of this size.
pub fn fits(request: &Request) -> bool {
    serde_json::to_vec(request).is_ok_and(|json| json.len() <= REQUEST_BYTES_MAX as usize)
}

pub fn write_frame<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|&length| length <= REPLY_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("message is too large for the daemon's socket"))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&frame)
}

pub fn read_frame<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(hung_up)?;
    let length = u32::from_le_bytes(length);
    if length > REPLY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is too long"));
    }
    // Read as it arrives: a peer that announces much and sends little costs little.
    let mut body = Vec::with_capacity(length.min(64 << 10) as usize);
    from.take(u64::from(length)).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(hung_up(io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&body).map_err(|error| {
        let why = format!("cannot parse reply; it may be another version of met ({error})");
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

/// Who ends in the midst of a frame, or before it, has said nothing of why.
fn hung_up(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, "it closed the connection"),
        kind @ io::ErrorKind::WouldBlock => io::Error::new(kind, "no reply"),
        _ => error,
    }
}

/// Whether a whole frame has arrived, or one that is too long to be taken.
pub fn has_frame(arrived: &[u8]) -> bool {
    let Some(header) = arrived.first_chunk::<4>() else { return false };
    let length = u32::from_le_bytes(*header);
    length > REQUEST_BYTES_MAX || arrived.len() >= 4 + length as usize
}

/// Takes one whole frame off the front of what has arrived so far, if there is one.
pub fn take_frame<T: for<'de> Deserialize<'de>>(arrived: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(header) = arrived.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header);
    if length > REQUEST_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is too long"));
    }
    let end = 4 + length as usize;
    if arrived.len() < end {
        return Ok(None);
    }
    let message = serde_json::from_slice(&arrived[4..end]);
    arrived.drain(..end);
    Ok(Some(message?))
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_whose_last_reading_failed_are_named_with_those_first_that_are_no_longer_read() {
        let once =
            SourceStatus { errors: 7, last_error: Some("EIO".to_owned()), ..SourceStatus::unread("rapl") };
        let failing = |name: &str, problem: &str| SourceStatus {
            failing: Some(FailingSource { problem: problem.to_owned(), ..FailingSource::of(name) }),
            ..SourceStatus::unread(name)
        };
        let blocked = SourceStatus { left_out: true, ..failing("nfs", "blocked and no longer read") };
        let named = failing_sources(&[once, failing("ipmi", "no answer"), blocked]);
        let node = NodeStatus {
            problem: Some("two machines".to_owned()),
            now: MachineNow { load: Some(1.5), ..MachineNow::default() },
            health: NodeHealth { gpus: Some(4), failing_sources: named },
            ..NodeStatus::default()
        };
        let expected = ["two machines", "source nfs: blocked and no longer read", "source ipmi: no answer"];
        assert_eq!(node.problems(0), expected);
        let json = serde_json::to_value(&node).unwrap();
        assert_eq!((&json["gpus"], &json["failing_sources"][1]["source"]), (&4.into(), &"ipmi".into()));
        let bare = serde_json::to_value(NodeStatus::default()).unwrap();
        assert!(bare.get("gpus").is_none() && bare.get("failing_sources").is_none(), "unknown is absent");
        assert!(bare.get("spool_batches").is_none() && bare.get("free_cores").is_none(), "unknown is absent");
        let spool = Some(Spool { batches: 3, bytes: 9 });
        let said = NodeStatus { spool, ..NodeStatus::default() };
        let read: NodeStatus = serde_json::from_value(serde_json::to_value(&said).unwrap()).unwrap();
        assert_eq!((read.spool, serde_json::from_value::<NodeStatus>(bare).unwrap().spool), (spool, None));
    }

    #[test]
    fn frames_are_taken_only_when_whole() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Request::Status).unwrap();
        write_frame(&mut bytes, &Request::Stop).unwrap();
        let whole = bytes.clone();
        let mut arrived = Vec::new();
        let mut taken = 0;
        for byte in whole {
            arrived.push(byte);
            while let Some(request) = take_frame::<Request>(&mut arrived).unwrap() {
                taken += 1;
                assert!(matches!(request, Request::Status | Request::Stop));
            }
        }
        assert_eq!((taken, arrived.len()), (2, 0));
    }

    #[test]
    fn a_frame_that_is_too_long_or_no_message_is_refused() {
        assert!(take_frame::<Request>(&mut vec![0xff; 8]).is_err());
        assert!(take_frame::<Request>(&mut b"\x02\0\0\0{]".to_vec()).is_err());
        assert!(read_frame::<Request>(&mut &b"\xff\xff\xff\xff"[..]).is_err());
        let said = |bytes: &[u8]| read_frame::<Request>(&mut &bytes[..]).unwrap_err().to_string();
        assert_eq!(said(b"\x09\0\0\0{}"), "it closed the connection");
        assert_eq!(said(b""), "it closed the connection");
        assert!(said(b"\x02\0\0\0{]").contains("another version of met"));
    }
}
