//! Jobs as commands ask for them: by reference or filter, from a daemon or from the files themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use met_core::course::Course;
use met_core::job::{CgroupPaths, JobKey, LOCAL, Local, Origin, ProcessId, Record, State};
use met_core::job_table::{GPU_ENERGY, GPU_ENERGY_IDLE};
use met_core::{JOB, MISSING, Table, gpu};
use met_host::{Host, clock, parse};
use met_jobs::layouts::Layout;
use met_store::{Filter, NodePart, Queries, Reader, Retention, StoreError, Writer, inbox};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::config::Storage;
use crate::failure::Failure;
use crate::protocol::{Reply, Request, WireCourse};
use crate::sampler::Live;
use crate::setting::Setting;

/// The managers whose name may stand before an id.
const MANAGERS: [&str; 13] = [
    LOCAL,
    "slurm",
    "oar",
    "pbs",
    "lsf",
    "condor",
    "htcondor",
    "kubernetes",
    "docker",
    "podman",
    "systemd",
    "session",
    "group",
];
/// Steps of a job that have a name instead of a number.
const STEPS: [&str; 3] = ["batch", "extern", "interactive"];

/// How a user names a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobRef {
    /// The newest of all.
    Last,
    Id {
        manager: Option<String>,
        id: String,
        /// Of a cluster: the node, where ids are those of nodes.
        #[serde(default)]
        node: Option<String>,
    },
    /// The newest of this name.
    Name(String),
}

impl JobRef {
    /// `own`: managers that the configuration names.
    pub fn parse(text: &str, own: &[Layout]) -> Result<JobRef> {
        if text == "@last" {
            return Ok(JobRef::Last);
        }
        if text.is_empty() || text.starts_with('@') {
            return Err(Failure::usage(format!("{text:?} is no job; write 12, local:12, a name or @last")));
        }
        let (whole, node) = match text.rsplit_once('@') {
            Some((whole, node)) if !node.is_empty() => (whole, Some(node.to_owned())),
            _ => (text, None),
        };
        if let Some((manager, id)) = whole.split_once(':')
            && (MANAGERS.contains(&manager) || own.iter().any(|layout| layout.manager() == manager))
            && !id.is_empty()
        {
            return Ok(JobRef::Id { manager: Some(manager.to_owned()), id: id.to_owned(), node });
        }
        if is_number(whole) {
            return Ok(JobRef::Id { manager: None, id: whole.to_owned(), node });
        }
        Ok(JobRef::Name(text.to_owned()))
    }
}

/// `12`, `1234_7`, `1234+1`, `17[3]`, and a step of one of them: `1234.0`, `1234.batch`.
fn is_number(text: &str) -> bool {
    let step = text.rsplit_once('.').filter(|(_, step)| STEPS.contains(step));
    let number = step.map_or(text, |(job, _)| job);
    let of_it = |byte: u8| byte.is_ascii_digit() || b"_.+[]".contains(&byte);
    number.bytes().next().is_some_and(|first| first.is_ascii_digit()) && number.bytes().all(of_it)
}

/// What a reference turned out to mean.
pub enum Meant {
    Job(Record),
    /// A step, in the form of a job.
    Step(Record),
}

/// Which jobs are wanted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobsFilter {
    pub since_ns: Option<i64>,
    pub states: Vec<State>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub name: Option<String>,
    // A daemon of an earlier version sends neither.
    #[serde(default)]
    pub manager: Option<String>,
    #[serde(default)]
    pub account: Option<String>,
    pub limit: Option<usize>,
    /// Started before this: where the next page begins.
    pub until_ns: Option<i64>,
    /// Only jobs that had a card.
    #[serde(default)]
    pub with_cards: bool,
    /// Or, among jobs that have not started, so many further on.
    #[serde(default)]
    pub skip: usize,
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
            manager: self.manager.clone(),
            account: self.account.clone(),
            // Jobs that run are looked at afterwards, and some of them fall out.
            limit: self
                .limit
                .filter(|_| !self.states.iter().any(|state| state.is_live()))
                .map(|limit| limit.saturating_add(self.skip)),
            until_ns: self.until_ns,
            with_summaries: true,
            with_cards: self.with_cards,
        }
    }
}

impl JobsFilter {
    /// Keeps what still fits after the running jobs were looked at.
    pub fn retain(&self, jobs: &mut Vec<Record>) {
        jobs.retain(|record| self.states.is_empty() || self.states.contains(&record.state));
        jobs.retain(|record| !self.with_cards || !record.gpus.is_empty());
        jobs.drain(..self.skip.min(jobs.len()));
        jobs.truncate(self.limit.unwrap_or(usize::MAX));
    }
}

/// Somebody who knows jobs.
trait JobSource {
    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>>;
    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>>;
    fn course(&mut self, key: &JobKey) -> Result<Course>;
    /// Of a card, while the job had it.
    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course>;
    /// Of the machine, since a time: every part of which there are samples.
    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>>;
    fn remove(&mut self, key: &JobKey) -> Result<()>;
    /// Takes over an end that another source knows.
    fn learn(&mut self, _end: &Record) {}
}

/// Every job that the caller may see, wherever it is kept.
pub struct AllJobs {
    sources: Vec<Box<dyn JobSource>>,
    /// The configuration's own, whose managers' jobs are asked for by their names.
    layouts: Vec<Layout>,
}

impl AllJobs {
    pub fn open(setting: &Setting) -> Result<AllJobs> {
        let layouts = setting.config.jobs.layouts.clone();
        if let Some(server) = setting.server_client()? {
            return Ok(AllJobs { sources: vec![Box::new(FromDaemon { client: Box::new(server) })], layouts });
        }
        let mut sources: Vec<Box<dyn JobSource>> = Vec::new();
        let mut system = setting.system_daemon();
        if let Some(system) = &mut system {
            hand_over_ends(setting, system);
        }
        match setting.user_daemon() {
            Ok(client) => sources.push(Box::new(FromDaemon { client: Box::new(client) })),
            Err(_) if setting.user.state.is_dir() => sources.push(Box::new(FromFiles::open(setting)?)),
            Err(_) => {}
        }
        if let Some(client) = system {
            sources.push(Box::new(FromDaemon { client: Box::new(client) }));
        }
        Ok(AllJobs { sources, layouts })
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
        let job = JobRef::parse(text, &self.layouts)?;
        self.find_ref(text, &job)?.ok_or_else(|| {
            Failure::usage(match job {
                JobRef::Last => "no jobs yet; start one with: met run -- CMD".to_owned(),
                _ => format!("no job {text}; `met list` shows those there are"),
            })
        })
    }

    /// The one job or step meant by `text`; a step is shown like a job.
    pub fn find_or_step(&mut self, text: &str) -> Result<Meant> {
        let meant = JobRef::parse(text, &self.layouts)?;
        if let JobRef::Id { manager, id, node } = &meant
            && let Some((whole, step)) = id.rsplit_once('.')
            && self.find_ref(text, &meant)?.is_none()
        {
            let whole = JobRef::Id { manager: manager.clone(), id: whole.to_owned(), node: node.clone() };
            if let Some(record) = self.find_ref(text, &whole)? {
                let label = record.label();
                return met_insight::allocation::step(&record, step).map(Meant::Step).ok_or_else(|| {
                    let mut steps: Vec<&str> = record.parts.iter().map(|part| part.step.as_str()).collect();
                    steps.retain(|step| !step.is_empty());
                    steps.dedup();
                    let known = if steps.is_empty() { "none is".to_owned() } else { steps.join(", ") };
                    Failure::usage(format!("job {label} has no step {step}; known: {known}"))
                });
            }
        }
        self.find(text).map(Meant::Job)
    }

    fn find_ref(&mut self, text: &str, job: &JobRef) -> Result<Option<Record>> {
        let mut found = Vec::new();
        for source in &mut self.sources {
            found.extend(source.find(job)?);
        }
        self.correct(&found);
        let found = merge(found);
        let Some(newest) = found.first() else { return Ok(None) };
        // Of one manager's jobs with the same id the newest incarnation is meant; of two managers', none.
        if let JobRef::Id { manager: None, .. } = job {
            one_managers(text, &found)?;
        }
        if let JobRef::Id { id, node: None, .. } = job {
            one_nodes(text, id, &found)?;
        }
        one_users(text, job, newest, &found).map(Some)
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

    /// The course of a card while the job had it; nothing where nobody kept it.
    pub fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course> {
        for source in &mut self.sources {
            let course = source.card_course(key, uuid)?;
            if !course.is_empty() {
                return Ok(course);
            }
        }
        Ok(Course::new(&gpu::card::TABLE))
    }

    /// The machine since a time, by part. What a system daemon kept is preferred.
    pub fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut parts = BTreeMap::new();
        for source in &mut self.sources {
            parts.extend(source.node_courses(since_ms)?);
        }
        Ok(parts.into_iter().collect())
    }

    pub fn remove(&mut self, key: &JobKey) -> Result<()> {
        for source in &mut self.sources {
            source.remove(key)?;
        }
        Ok(())
    }
}

/// A number that several managers gave is nobody's.
fn one_managers(text: &str, found: &[Record]) -> Result<()> {
    let mut names: Vec<String> =
        found.iter().map(|record| format!("{}:{}", record.key.manager, record.shown_id())).collect();
    let mut managers: Vec<&str> = found.iter().map(|record| record.key.manager.as_str()).collect();
    managers.sort_unstable();
    managers.dedup();
    if managers.len() < 2 {
        return Ok(());
    }
    names.sort_unstable();
    names.dedup();
    Err(Failure::usage(format!("job {text} is ambiguous: {}", names.join(" or "))))
}

/// A number that several nodes gave is nobody's.
fn one_nodes(text: &str, id: &str, found: &[Record]) -> Result<()> {
    const SHOWN: usize = 4;
    let mut nodes: Vec<&str> = found.iter().filter_map(|record| record.own_node()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> = nodes.iter().take(SHOWN).map(|node| format!("{id}@{node}")).collect();
    let more = if nodes.len() > SHOWN { ", …" } else { "" };
    Err(Failure::usage(format!(
        "job {text} is ambiguous on {} nodes: {}{more}",
        nodes.len(),
        names.join(", ")
    )))
}

/// Users have numbers of their own. Who sees several users' jobs means his own, if he has one.
fn one_users(text: &str, job: &JobRef, newest: &Record, found: &[Record]) -> Result<Record> {
    let me = Some(rustix::process::getuid().as_raw());
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

/// As the store sorts: what has yet to start is the newest.
fn sort_ns(record: &Record) -> i64 {
    record.start_ns.or(record.end_ns).unwrap_or(i64::MAX)
}

/// How much somebody can tell of a job: who samples it knows more than who reads its files.
fn knowledge(record: &Record) -> (bool, usize) {
    (!record.summaries.is_empty(), record.totals.iter().count() + record.events.len())
}

/// Newest first, each job once: an end that somebody knows beats a job that somebody else lost sight of, and of
/// two words on a job the one that tells more is believed.
fn merge(mut jobs: Vec<Record>) -> Vec<Record> {
    jobs.sort_by(|left, right| {
        let order = |record: &Record| (sort_ns(record), record.key.id.parse::<u64>().ok());
        order(right)
            .cmp(&order(left))
            .then_with(|| left.key.cmp(&right.key))
            .then_with(|| is_known_end(right).cmp(&is_known_end(left)))
            .then_with(|| knowledge(right).cmp(&knowledge(left)))
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

/// Somebody who answers requests: a daemon on its socket, or a server.
pub trait Answers {
    fn call(&mut self, request: &Request) -> std::io::Result<Reply>;
    /// What it is called in complaints.
    fn what(&self) -> &'static str;
}

struct FromDaemon {
    client: Box<dyn Answers>,
}

impl FromDaemon {
    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let what = self.client.what();
        self.client.call(request).with_context(|| format!("cannot ask {what}"))
    }

    fn records(&mut self, request: &Request) -> Result<Vec<Record>> {
        match self.ask(request)? {
            Reply::Jobs(jobs) => Ok(jobs),
            reply => bail!("{} answered {reply:?}", self.client.what()),
        }
    }

    fn all_pages(&mut self, table: &'static Table, request: impl Fn(i64) -> Request) -> Result<Course> {
        let mut whole = Course::new(table);
        loop {
            let after_ms = whole.times_ms.last().copied().unwrap_or(i64::MIN);
            let course = match self.ask(&request(after_ms))? {
                Reply::Course(course) => course.into_course(table),
                reply => bail!("{} answered {reply:?}", self.client.what()),
            };
            if course.is_empty() {
                return Ok(whole);
            }
            whole.append(&course);
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
            match more.last().map(sort_ns) {
                // Those that wait come first and have no time to go on from.
                Some(i64::MAX) => page.skip += more.len(),
                begun_ns => (page.until_ns, page.skip) = (begun_ns.map(|begun_ns| begun_ns + 1), 0),
            }
            jobs.extend(more);
            jobs = merge(jobs);
            if last || jobs.len() == before || jobs.len() >= wanted {
                return Ok(jobs);
            }
        }
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        self.records(&Request::Find(job.clone()))
    }

    fn course(&mut self, key: &JobKey) -> Result<Course> {
        self.all_pages(&JOB, |after_ms| Request::Course { key: key.clone(), after_ms })
    }

    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course> {
        self.all_pages(&gpu::card::TABLE, |after_ms| Request::CardCourse {
            key: key.clone(),
            uuid: uuid.to_owned(),
            after_ms,
        })
    }

    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let asked = self.client.call(&Request::NodeParts { since_ms }).context("cannot ask the daemon")?;
        let Reply::NodeParts(parts) = asked else { bail!("the daemon answered {asked:?}") };
        let mut courses = Vec::new();
        for (table, part) in parts {
            // What a newer or older program measured has no name here.
            let Some(known) = table_named(&table) else { continue };
            let course = self.all_pages(known, |after_ms| Request::NodeCourse {
                table: table.clone(),
                part: part.clone(),
                after_ms: after_ms.max(since_ms),
            })?;
            courses.push((NodePart { table, part }, course));
        }
        Ok(courses)
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.ask(&Request::Remove(key.clone())).map(drop)
    }

    fn learn(&mut self, end: &Record) {
        // It is shown as it is known here, even if the daemon does not want to know.
        let _ = self.client.call(&Request::Ended(Box::new(end.clone())));
    }
}

fn table_named(name: &str) -> Option<&'static Table> {
    met_sources::catalogue().into_iter().find(|table| table.name == name)
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

    fn into_course(self, table: &'static Table) -> Course {
        let mut course = Course::new(table);
        let count = self.times_ms.len();
        course.columns.iter_mut().for_each(|column| column.resize(count, MISSING));
        for (name, cells) in self.columns {
            if let Some(column) = table.column(&name).filter(|_| cells.len() == count) {
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
    /// Where a daemon would answer.
    daemon: PathBuf,
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
        Ok(FromFiles { host, state: state.clone(), daemon: setting.user.socket(), store })
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

    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course> {
        Ok(card_course(self.queries(), key, uuid, i64::MIN)?)
    }

    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut courses = Vec::new();
        for part in self.queries().node_parts_between(since_ms, i64::MAX)? {
            let Some(table) = table_named(&part.table) else { continue };
            let course = self.queries().node_course(table, &part.part, since_ms, i64::MAX)?;
            courses.push((part, course));
        }
        Ok(courses)
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        if let Files::Ours(writer) = &mut self.store {
            return Ok(writer.remove(key)?);
        }
        // Who writes is done in a moment, or is a daemon that was just starting: then it is the one to ask.
        let begin = Instant::now();
        loop {
            match Writer::open(&self.state) {
                Err(StoreError::Locked { .. }) if begin.elapsed() < STORE_PATIENCE => {}
                opened => return Ok(opened?.remove(key)?),
            }
            if let Ok(client) = Client::connect(&self.daemon) {
                return FromDaemon { client: Box::new(client) }.remove(key);
            }
            std::thread::sleep(Duration::from_millis(5));
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
    if local.origin == Origin::Found {
        record.state = found_state(host, local);
        return;
    }
    let waited_for = local.boot_id == host.facts().boot_id
        && local.supervisor.is_some_and(|supervisor| host.is_alive(supervisor));
    record.state = match waited_for {
        false => State::Lost,
        true if local.main.is_some_and(|main| is_stopped(host, main)) => State::Suspended,
        true => State::Running,
    };
}

/// A job that somebody else started lives as long as its cgroup does, in this boot.
fn found_state(host: &Host, local: &Local) -> State {
    let CgroupPaths { unified, cpuacct, memory } = &local.cgroup;
    let Some(path) = unified.as_ref().or(cpuacct.as_ref()).or(memory.as_ref()) else {
        // One without a cgroup of its own is known by its first process alone.
        let alive =
            local.boot_id == host.facts().boot_id && local.main.is_some_and(|main| host.is_alive(main));
        return if alive { State::Running } else { State::Lost };
    };
    if local.boot_id != host.facts().boot_id || host.cgroup_dir(path).is_err() {
        return State::Lost;
    }
    let mut text = Vec::new();
    let frozen_v2 = unified.as_ref().is_some_and(|path| {
        host.read_small(path.join("cgroup.events"), &mut text).is_ok()
            && parse::value_of(&text, "frozen") == 1
    });
    let hierarchies = host.hierarchies();
    let freezer = hierarchies.other("freezer").and_then(|freezer| hierarchies.same_in(path, freezer));
    let frozen_v1 = freezer.is_some_and(|path| {
        host.read_small(path.join("freezer.state"), &mut text).is_ok() && text.trim_ascii() == b"FROZEN"
    });
    if frozen_v1 || frozen_v2 { State::Suspended } else { State::Running }
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
        let ours = |local: &&Local| local.origin != Origin::Found && local.boot_id == host.facts().boot_id;
        if let Some(local) = record.local.as_ref().filter(ours) {
            met_jobs::enclosure::remove(&local.cgroup);
        }
    }
}

/// Adds what is known of a running job to its record.
pub fn overlay(record: &mut Record, live: Live) {
    for column in [GPU_ENERGY, GPU_ENERGY_IDLE] {
        // Written now and then for the next daemon; who samples knows more by now.
        if live.totals.get(column).is_some() {
            record.totals.remove(column);
        }
    }
    record.totals.fill_from(&live.totals);
    if record.summaries.is_empty() {
        record.summaries = live.summaries;
    }
    if !live.events.is_empty() {
        record.events = live.events;
    }
    if !live.gpus.is_empty() {
        record.gpus = live.gpus;
    }
    record.emission = record.emission.take().or(live.emission);
}

/// The course of a card while a job had it, after a time.
pub fn card_course(store: &Queries, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Course, StoreError> {
    let allocations = store.allocations(key)?;
    let Some(had) = allocations.iter().find(|had| had.uuid == uuid) else {
        return Ok(Course::new(&gpu::card::TABLE));
    };
    let begin_ms = (had.begin_ns / 1_000_000).max(after_ms.saturating_add(1));
    let end_ms = had.end_ns.map_or(i64::MAX, |end_ns| end_ns / 1_000_000);
    store.device_course(uuid, begin_ms, end_ms)
}

/// The candidates for a reference, newest first.
pub fn find(store: &Queries, job: &JobRef) -> Result<Vec<Record>, StoreError> {
    Ok(match job {
        JobRef::Last => store.newest()?.into_iter().collect(),
        JobRef::Id { manager, id, node } => {
            let mut found = store.find(manager.as_deref(), id)?;
            found.retain(|record| node.as_ref().is_none_or(|node| record.nodes.contains(node)));
            found
        }
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
        JobRef::Id { manager: manager.map(str::to_owned), id: id.to_owned(), node: None }
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
    fn of_two_words_on_a_running_job_the_one_that_was_sampled_is_shown() {
        let mut sampled = crate::view::sample::full(1, "train");
        sampled.state = State::Running;
        let mut bare = sampled.clone();
        bare.summaries = Default::default();
        for both in [[bare.clone(), sampled.clone()], [sampled, bare]] {
            let merged = merge(both.into());
            assert_eq!(merged.len(), 1);
            assert!(!merged[0].summaries.is_empty());
        }
    }

    #[test]
    fn jobs_that_wait_are_the_newest_and_have_pages_of_their_own() {
        let mut jobs: Vec<Record> = (1..=3).map(|id| crate::view::sample::full(id, "train")).collect();
        jobs[0].start_ns = None;
        jobs[0].end_ns = None;
        jobs[0].state = State::Pending;
        let ids = |jobs: &[Record]| jobs.iter().map(|job| job.key.id.clone()).collect::<Vec<_>>();
        let mut jobs = merge(jobs);
        assert_eq!(ids(&jobs)[0], "1");
        let rest = ids(&jobs)[1..].to_vec();
        JobsFilter { skip: 1, limit: Some(2), ..Default::default() }.retain(&mut jobs);
        assert_eq!(ids(&jobs), rest);
        JobsFilter { skip: 5, ..Default::default() }.retain(&mut jobs);
        assert!(jobs.is_empty());
    }

    #[test]
    fn a_job_that_was_found_runs_as_long_as_its_cgroup_or_its_first_process() {
        let host = Host::real().unwrap();
        let mut record = crate::view::sample::scheduled();
        record.state = State::Running;
        let local = record.local.as_mut().unwrap();
        (local.origin, local.supervisor, local.main) = (Origin::Found, None, None);
        local.boot_id.clone_from(&host.facts().boot_id);
        let folder = tempfile::tempdir().unwrap();
        local.cgroup.memory = Some(folder.path().to_owned());
        settle(&host, &mut record);
        assert_eq!(record.state, State::Running);
        let path = folder.path().to_owned();
        let mut ended = record.clone();
        ended.state = State::Finished;
        remove_empty_cgroups(&host, &[ended]);
        assert!(path.is_dir(), "the manager cleans up itself");
        folder.close().unwrap();
        let mut gone = record.clone();
        settle(&host, &mut gone);
        assert_eq!(gone.state, State::Lost);
        let local = record.local.as_mut().unwrap();
        (local.cgroup, local.main) = (CgroupPaths::default(), host.process(std::process::id()).ok());
        settle(&host, &mut record);
        assert_eq!(record.state, State::Running);
        record.local.as_mut().unwrap().main = None;
        settle(&host, &mut record);
        assert_eq!(record.state, State::Lost);
    }

    #[test]
    fn a_number_of_two_managers_names_both() {
        let [slurm, ours] = [crate::view::sample::scheduled(), crate::view::sample::full(1240, "train")];
        assert!(one_managers("1240", std::slice::from_ref(&slurm)).is_ok());
        let error = one_managers("1240", &[ours, slurm]).unwrap_err().to_string();
        assert_eq!(error, "job 1240 is ambiguous: local:1240 or slurm:1234_7");
    }

    #[test]
    fn jobs_are_named_in_four_ways() {
        let parse = |text| JobRef::parse(text, &[]).unwrap();
        assert_eq!(parse("12"), id(None, "12"));
        assert_eq!(parse("local:12"), id(Some("local"), "12"));
        assert_eq!(parse("slurm:1234_7"), id(Some("slurm"), "1234_7"));
        assert_eq!(parse("1234.0"), id(None, "1234.0"));
        assert_eq!(parse("1234_7.batch"), id(None, "1234_7.batch"));
        assert_eq!(parse("1234+1"), id(None, "1234+1"));
        assert_eq!(parse("17[3]"), id(None, "17[3]"));
        assert_eq!(parse("2024.run"), JobRef::Name("2024.run".to_owned()));
        assert_eq!(parse("@last"), JobRef::Last);
        assert_eq!(parse("train"), JobRef::Name("train".to_owned()));
        assert_eq!(parse("a:b"), JobRef::Name("a:b".to_owned()));
        assert!(JobRef::parse("", &[]).is_err() && JobRef::parse("@first", &[]).is_err());
        // A manager that the configuration names.
        let own = [Layout::parse("mysched", "mysched/{id}", "").unwrap()];
        assert_eq!(JobRef::parse("mysched:12", &own).unwrap(), id(Some("mysched"), "12"));
        assert_eq!(JobRef::parse("mysched:", &own).unwrap(), JobRef::Name("mysched:".to_owned()));
        assert_eq!(parse("mysched:12"), JobRef::Name("mysched:12".to_owned()));
    }
}
