//! Jobs as commands ask for them: by reference or filter, from a daemon or from the files themselves.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use met_core::course::Course;
use met_core::job::{JobKey, LOCAL, Origin, ProcessId, Record, State};
use met_core::{JOB, MISSING};
use met_host::{Host, clock, parse};
use met_store::{Filter, Queries, Reader, Retention, StoreError, Writer, inbox};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::config::Storage;
use crate::failure::Failure;
use crate::protocol::{Reply, Request, WireCourse};
use crate::sampler::Live;
use crate::setting::Setting;

/// The managers whose name may stand before an id.
const MANAGERS: [&str; 9] =
    [LOCAL, "slurm", "oar", "pbs", "lsf", "htcondor", "kubernetes", "docker", "podman"];

/// How a user names a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobRef {
    /// The newest of all.
    Last,
    Id {
        manager: Option<String>,
        id: String,
    },
    /// The newest of this name.
    Name(String),
}

impl JobRef {
    pub fn parse(text: &str) -> Result<JobRef> {
        if text == "@last" {
            return Ok(JobRef::Last);
        }
        if text.is_empty() || text.starts_with('@') {
            return Err(Failure::usage(format!("{text:?} is no job; write 12, local:12, a name or @last")));
        }
        if let Some((manager, id)) = text.split_once(':')
            && MANAGERS.contains(&manager)
            && !id.is_empty()
        {
            return Ok(JobRef::Id { manager: Some(manager.to_owned()), id: id.to_owned() });
        }
        if text.bytes().next().is_some_and(|first| first.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'_' | b'.' | b'+'))
        {
            return Ok(JobRef::Id { manager: None, id: text.to_owned() });
        }
        Ok(JobRef::Name(text.to_owned()))
    }
}

/// Which jobs are wanted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobsFilter {
    pub since_ns: Option<i64>,
    pub states: Vec<State>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub name: Option<String>,
    pub limit: Option<usize>,
    /// Started before this: where the next page begins.
    pub until_ns: Option<i64>,
}

impl JobsFilter {
    pub fn to_store(&self) -> Filter {
        let mut states = self.states.clone();
        // The store knows that a job runs; whether it is stopped is seen by looking at it.
        if states.contains(&State::Suspended) {
            states.push(State::Running);
        }
        Filter {
            since_ns: self.since_ns,
            states,
            uid: self.uid,
            user: self.user.clone(),
            name: self.name.clone(),
            // Jobs that run are looked at afterwards, and some of them fall out.
            limit: self.limit.filter(|_| !self.states.iter().any(|state| state.is_live())),
            until_ns: self.until_ns,
            with_summaries: true,
            ..Filter::default()
        }
    }
}

impl JobsFilter {
    /// Keeps what still fits after the running jobs were looked at.
    pub fn retain(&self, jobs: &mut Vec<Record>) {
        jobs.retain(|record| self.states.is_empty() || self.states.contains(&record.state));
        jobs.truncate(self.limit.unwrap_or(usize::MAX));
    }
}

/// Somebody who knows jobs.
trait JobSource {
    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>>;
    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>>;
    fn course(&mut self, key: &JobKey) -> Result<Course>;
    fn remove(&mut self, key: &JobKey) -> Result<()>;
    /// Takes over an end that another source knows.
    fn learn(&mut self, _end: &Record) {}
}

/// Every job that the caller may see, wherever it is kept.
pub struct AllJobs {
    sources: Vec<Box<dyn JobSource>>,
}

impl AllJobs {
    pub fn open(setting: &Setting) -> Result<AllJobs> {
        let mut sources: Vec<Box<dyn JobSource>> = Vec::new();
        let mut system = setting.system_daemon();
        if let Some(system) = &mut system {
            hand_over_ends(setting, system);
        }
        match setting.user_daemon() {
            Ok(client) => sources.push(Box::new(FromDaemon { client })),
            Err(_) if setting.user.state.is_dir() => sources.push(Box::new(FromFiles::open(setting)?)),
            Err(_) => {}
        }
        if let Some(client) = system {
            sources.push(Box::new(FromDaemon { client }));
        }
        Ok(AllJobs { sources })
    }

    /// Newest first.
    pub fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let mut jobs = Vec::new();
        for source in &mut self.sources {
            jobs.extend(source.jobs(filter)?);
        }
        self.correct(&jobs);
        let mut jobs = merge(jobs);
        jobs.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    /// The one job meant by `text`.
    pub fn find(&mut self, text: &str) -> Result<Record> {
        let job = JobRef::parse(text)?;
        let mut found = Vec::new();
        for source in &mut self.sources {
            found.extend(source.find(&job)?);
        }
        self.correct(&found);
        let found = merge(found);
        let Some(newest) = found.first() else {
            return Err(Failure::usage(match job {
                JobRef::Last => "no jobs yet; start one with: met run -- CMD".to_owned(),
                _ => format!("no job {text}; `met list` shows those there are"),
            }));
        };
        // Of one manager's jobs with the same id the newest incarnation is meant; of two managers', none.
        if let JobRef::Id { manager: None, .. } = job
            && let Some(other) = found.iter().find(|record| record.key.manager != newest.key.manager)
        {
            let name = |record: &Record| format!("{}:{}", record.key.manager, record.key.id);
            return Err(Failure::usage(format!(
                "job {text} is ambiguous: {} or {}",
                name(newest),
                name(other)
            )));
        }
        one_users(text, &job, &found)
    }

    /// A system daemon that was away when a job ended calls it lost; who knows better tells it.
    fn correct(&mut self, found: &[Record]) {
        for lost in found.iter().filter(|record| record.state == State::Lost) {
            let known = |record: &&Record| record.key == lost.key && is_known_end(record);
            if let (Some(end), Some(system)) = (found.iter().find(known), self.sources.last_mut()) {
                system.learn(end);
            }
        }
    }

    pub fn course(&mut self, key: &JobKey) -> Result<Course> {
        for source in &mut self.sources {
            let course = source.course(key)?;
            if !course.is_empty() {
                return Ok(course);
            }
        }
        Ok(Course::new(&JOB))
    }

    pub fn remove(&mut self, key: &JobKey) -> Result<()> {
        for source in &mut self.sources {
            source.remove(key)?;
        }
        Ok(())
    }
}

/// Users have numbers of their own. Who sees several users' jobs means his own, if he has one.
fn one_users(text: &str, job: &JobRef, found: &[Record]) -> Result<Record> {
    let me = Some(rustix::process::getuid().as_raw());
    let newest = &found[0];
    let of_id = matches!(job, JobRef::Id { .. });
    if let Some(mine) = found.iter().find(|record| record.uid == me).filter(|_| of_id) {
        return Ok(mine.clone());
    }
    if let Some(other) = found.iter().find(|record| record.uid != newest.uid).filter(|_| of_id) {
        let user = |record: &Record| record.user.clone().unwrap_or_else(|| "somebody".to_owned());
        let (one, other) = (user(newest), user(other));
        return Err(Failure::usage(format!(
            "job {text} is ambiguous: {one} and {other} have one; say it by name"
        )));
    }
    Ok(newest.clone())
}

fn is_known_end(record: &Record) -> bool {
    !record.state.is_live() && record.state != State::Lost
}

/// Newest first, each job once: an end that somebody knows beats a job that somebody else lost sight of.
fn merge(mut jobs: Vec<Record>) -> Vec<Record> {
    jobs.sort_by(|left, right| {
        let order = |record: &Record| (record.start_ns, record.key.id.parse::<u64>().ok());
        order(right)
            .cmp(&order(left))
            .then_with(|| left.key.cmp(&right.key))
            .then_with(|| is_known_end(right).cmp(&is_known_end(left)))
    });
    jobs.dedup_by(|later, earlier| later.key == earlier.key);
    jobs
}

/// Ends of jobs that a system daemon knows, written while it was away.
fn hand_over_ends(setting: &Setting, system: &mut Client) {
    for folder in inbox::pending(&setting.user.state).unwrap_or_default() {
        // What a terminal sampled is its user's own, course and all.
        if let Some(end) = folder.read().end
            && end.local.as_ref().is_some_and(|local| local.origin != Origin::Time)
            && system.call(&Request::Ended(Box::new(end))).is_ok()
        {
            let _ = folder.remove();
        }
    }
}

const RETAIN_EVERY: Duration = Duration::from_secs(86_400);
/// How long one waits for another writer of the store.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// One reply must fit a frame of the socket, whatever the jobs are called.
const PAGE_JOBS: usize = 1000;

struct FromDaemon {
    client: Client,
}

impl FromDaemon {
    fn records(&mut self, request: &Request) -> Result<Vec<Record>> {
        match self.client.call(request).context("cannot ask the daemon")? {
            Reply::Jobs(jobs) => Ok(jobs),
            reply => bail!("the daemon answered {reply:?}"),
        }
    }
}

impl JobSource for FromDaemon {
    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let wanted = filter.limit.unwrap_or(usize::MAX);
        let mut jobs: Vec<Record> = Vec::new();
        let mut page = filter.clone();
        loop {
            page.limit = Some(PAGE_JOBS.min(wanted - jobs.len()));
            let before = jobs.len();
            let more = self.records(&Request::Jobs(page.clone()))?;
            let last = more.len() < PAGE_JOBS;
            // Pages overlap in the jobs of one instant: `merge` keeps each of them once.
            page.until_ns = more.last().and_then(|record| record.start_ns).map(|start_ns| start_ns + 1);
            jobs.extend(more);
            jobs = merge(jobs);
            if last || jobs.len() == before || jobs.len() >= wanted || page.until_ns.is_none() {
                return Ok(jobs);
            }
        }
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        self.records(&Request::Find(job.clone()))
    }

    fn course(&mut self, key: &JobKey) -> Result<Course> {
        let mut whole = Course::new(&JOB);
        loop {
            let after_ms = whole.times_ms.last().copied().unwrap_or(i64::MIN);
            let request = Request::Course { key: key.clone(), after_ms };
            let course = match self.client.call(&request).context("cannot ask the daemon")? {
                Reply::Course(course) => course.into_course(),
                reply => bail!("the daemon answered {reply:?}"),
            };
            if course.is_empty() {
                return Ok(whole);
            }
            whole.append(&course);
        }
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.client.call(&Request::Remove(key.clone())).context("cannot ask the daemon").map(drop)
    }

    fn learn(&mut self, end: &Record) {
        // It is shown as it is known here, even if the daemon does not want to know.
        let _ = self.client.call(&Request::Ended(Box::new(end.clone())));
    }
}

impl WireCourse {
    pub fn of(course: &Course) -> WireCourse {
        let known = |cells: &&Vec<i64>| cells.iter().any(|&cell| cell != MISSING);
        let optional =
            |cells: &Vec<i64>| cells.iter().map(|&cell| (cell != MISSING).then_some(cell)).collect();
        let columns = course.table.columns.iter().zip(&course.columns).filter(|(_, cells)| known(cells));
        WireCourse {
            times_ms: course.times_ms.clone(),
            columns: columns.map(|(column, cells)| (column.name.to_owned(), optional(cells))).collect(),
        }
    }

    fn into_course(self) -> Course {
        let mut course = Course::new(&JOB);
        let count = self.times_ms.len();
        course.columns.iter_mut().for_each(|column| column.resize(count, MISSING));
        for (name, cells) in self.columns {
            if let Some(column) = JOB.column(&name).filter(|_| cells.len() == count) {
                course.columns[column] = cells.into_iter().map(|cell| cell.unwrap_or(MISSING)).collect();
            }
        }
        course.times_ms = self.times_ms;
        course
    }
}

/// The store as it lies on disk, where no daemon runs.
struct FromFiles {
    host: Host,
    state: PathBuf,
    store: Files,
}

enum Files {
    /// Nobody else writes: what waits in the inbox is imported.
    Ours(Box<Writer>),
    /// Somebody writes at this moment.
    Theirs(Box<Reader>),
}

impl FromFiles {
    fn open(setting: &Setting) -> Result<FromFiles> {
        let state = &setting.user.state;
        let host = setting.host.clone();
        let store = match Writer::open(state) {
            Ok(mut writer) => {
                retain_daily(&mut writer, setting);
                // What cannot be imported, on a full disk, is read where it lies.
                if let Err(error) = import(&mut writer, state, &host) {
                    tracing::warn!("{error:#}");
                }
                Files::Ours(Box::new(writer))
            }
            Err(StoreError::Locked { .. }) => Files::Theirs(Box::new(Reader::open(state)?)),
            Err(error @ (StoreError::Io { .. } | StoreError::Database { .. })) => {
                tracing::warn!("{error}");
                Files::Theirs(Box::new(Reader::open(state)?))
            }
            Err(error) => return Err(Failure::usage(error.to_string())),
        };
        Ok(FromFiles { host, state: state.clone(), store })
    }

    fn queries(&self) -> &Queries {
        match &self.store {
            Files::Ours(writer) => writer,
            Files::Theirs(reader) => reader,
        }
    }

    fn up_to_date(&self, mut jobs: Vec<Record>) -> Vec<Record> {
        for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
            settle_or_end(&self.host, self.queries(), record);
            if record.state.is_live() {
                let live = Live::now(&self.host, record);
                overlay(record, live);
            }
        }
        remove_empty_cgroups(&self.host, &jobs);
        jobs
    }
}

impl JobSource for FromFiles {
    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let jobs = self.queries().jobs(&filter.to_store())?;
        let mut jobs = self.up_to_date(jobs);
        filter.retain(&mut jobs);
        Ok(jobs)
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        let jobs = find(self.queries(), job)?;
        Ok(self.up_to_date(jobs))
    }

    fn course(&mut self, key: &JobKey) -> Result<Course> {
        Ok(self.queries().course(key)?)
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        match &mut self.store {
            Files::Ours(writer) => Ok(writer.remove(key)?),
            // Somebody writes for a moment; then it is our turn.
            Files::Theirs(_) => {
                let mut writer = open_writer(&self.state)?;
                Ok(writer.remove(key)?)
            }
        }
    }
}

/// Opens the store for writing; a command that lists jobs holds it for a moment, too.
pub fn open_writer(state: &Path) -> Result<Writer, StoreError> {
    let begin = Instant::now();
    loop {
        match Writer::open(state) {
            Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Where no daemon runs, whoever lists jobs removes the old ones, once a day.
fn retain_daily(writer: &mut Writer, setting: &Setting) {
    let mark = setting.user.state.join("retained");
    let age =
        std::fs::metadata(&mark).and_then(|mark| mark.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age < RETAIN_EVERY) {
        return;
    }
    let result = writer.retain(&retention(&setting.config.storage), now_ns()).map_err(anyhow::Error::from);
    if let Err(error) = result.and_then(|_| Ok(std::fs::write(&mark, "")?)) {
        tracing::warn!("old jobs could not be removed: {error:#}");
    }
}

pub fn retention(storage: &Storage) -> Retention {
    Retention { max_age_ns: i64::try_from(storage.keep.as_nanos()).ok(), max_bytes: Some(storage.max_bytes) }
}

/// Takes what lies in the inbox into the store. Jobs whose supervisor is gone are lost.
pub fn import(writer: &mut Writer, state: &Path, host: &Host) -> Result<()> {
    if let Some(aside) = writer.moved_aside.take() {
        tracing::warn!("the store was damaged; it was moved to {} and a new one begun", aside.display());
    }
    let imported = writer.import()?;
    for problem in &imported.problems {
        tracing::warn!("{problem}");
    }
    let mut ended_meanwhile = false;
    for mut record in imported.live {
        settle(host, &mut record);
        let Some(folder) = record.key.id.parse().ok().map(|id| inbox::JobDir::open(state, id)) else {
            continue;
        };
        if record.state != State::Lost {
            continue;
        }
        // Between the listing and the look at its supervisor it may have written its end and gone. A
        // supervisor that is dead now writes no more.
        if folder.read().end.is_some() {
            ended_meanwhile = true;
        } else {
            writer.put(&record)?;
            folder.remove()?;
        }
    }
    if ended_meanwhile {
        writer.import()?;
    }
    Ok(())
}

/// A job that nobody waits for any more is lost, whatever its last record says.
pub fn settle(host: &Host, record: &mut Record) {
    let Some(local) = record.local.as_ref().filter(|_| record.state.is_live()) else { return };
    let waited_for = local.boot_id == host.facts().boot_id
        && local.supervisor.is_some_and(|supervisor| host.is_alive(supervisor));
    record.state = match waited_for {
        false => State::Lost,
        true if local.main.is_some_and(|main| is_stopped(host, main)) => State::Suspended,
        true => State::Running,
    };
}

/// The same for a record that was read a moment ago: its supervisor may have written the end and gone since.
/// One that is dead writes no more, so a second look is final.
pub fn settle_or_end(host: &Host, store: &Queries, record: &mut Record) {
    settle(host, record);
    if record.state == State::Lost
        && let Ok(Some(now)) = store.get(&record.key)
        && !now.state.is_live()
    {
        *record = now;
    }
}

fn is_stopped(host: &Host, process: ProcessId) -> bool {
    let mut text = Vec::new();
    let read = host.read_small(format!("/proc/{}/stat", process.pid), &mut text);
    let stat = parse::stat(&text).filter(|stat| read.is_ok() && stat.start_ticks == process.start_ticks);
    stat.is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Processes that outlived their job, or a daemon that was just leaving it, kept its cgroup; it goes when
/// they are gone, too.
pub fn remove_empty_cgroups(host: &Host, jobs: &[Record]) {
    for record in jobs.iter().filter(|record| !record.state.is_live()) {
        if let Some(local) = record.local.as_ref().filter(|local| local.boot_id == host.facts().boot_id) {
            met_jobs::enclosure::remove(&local.cgroup);
        }
    }
}

/// Adds what is known of a running job to its record.
pub fn overlay(record: &mut Record, live: Live) {
    record.totals.fill_from(&live.totals);
    if record.summaries.is_empty() {
        record.summaries = live.summaries;
    }
    if !live.gpus.is_empty() {
        record.gpus = live.gpus;
    }
    record.emission = record.emission.take().or(live.emission);
}

/// The candidates for a reference, newest first.
pub fn find(store: &Queries, job: &JobRef) -> Result<Vec<Record>, StoreError> {
    Ok(match job {
        JobRef::Last => store.newest()?.into_iter().collect(),
        JobRef::Id { manager, id } => store.find(manager.as_deref(), id)?,
        JobRef::Name(name) => store.newest_named(name)?.into_iter().collect(),
    })
}

/// Now, in unix nanoseconds.
pub fn now_ns() -> i64 {
    clock::realtime_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(manager: Option<&str>, id: &str) -> JobRef {
        JobRef::Id { manager: manager.map(str::to_owned), id: id.to_owned() }
    }

    #[test]
    fn a_job_of_an_earlier_boot_or_without_its_supervisor_is_lost() {
        let host = Host::real().unwrap();
        let mut record = crate::view::sample::full(1, "train");
        let local = record.local.as_mut().unwrap();
        local.supervisor = host.process(std::process::id()).ok();
        local.boot_id.clone_from(&host.facts().boot_id);
        local.main = None;
        record.state = State::Running;
        let settled = |record: &Record| {
            let mut record = record.clone();
            settle(&host, &mut record);
            record.state
        };
        assert_eq!(settled(&record), State::Running);
        let mut rebooted = record.clone();
        rebooted.local.as_mut().unwrap().boot_id = "before".to_owned();
        assert_eq!(settled(&rebooted), State::Lost);
        let mut reused = record.clone();
        reused.local.as_mut().unwrap().supervisor.as_mut().unwrap().start_ticks += 1;
        assert_eq!(settled(&reused), State::Lost, "the pid is somebody else's now");
        record.state = State::Finished;
        assert_eq!(settled(&record), State::Finished);
    }

    #[test]
    fn jobs_are_named_in_four_ways() {
        let parse = |text| JobRef::parse(text).unwrap();
        assert_eq!(parse("12"), id(None, "12"));
        assert_eq!(parse("local:12"), id(Some("local"), "12"));
        assert_eq!(parse("slurm:1234_7"), id(Some("slurm"), "1234_7"));
        assert_eq!(parse("1234.0"), id(None, "1234.0"));
        assert_eq!(parse("@last"), JobRef::Last);
        assert_eq!(parse("train"), JobRef::Name("train".to_owned()));
        assert_eq!(parse("a:b"), JobRef::Name("a:b".to_owned()));
        assert!(JobRef::parse("").is_err() && JobRef::parse("@first").is_err());
    }
}
