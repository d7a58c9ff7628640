//! Jobs as commands ask for them: by reference or filter, from a daemon or from the files themselves.

mod files;
mod filter;
mod reference;
mod settling;

use std::collections::BTreeMap;
use std::io;

use anyhow::{Result, bail};
use met_core::belief::{self, is_known_end};
use met_core::course::Course;
use met_core::job::{JobKey, Origin, Record};
use met_core::listing::{self, sort_ns};
use met_core::{JOB, MISSING, Table, gpu};
use met_host::clock;
use met_jobs::layouts::Layout;
use met_store::inbox::JobDir;
use met_store::{NodePart, Queries, StoreError, inbox};

use crate::client::{Client, Unreachable};
use crate::protocol::{NodeCourses, Reply, Request, WireCourse};
use crate::setting::Setting;
use files::FromFiles;
use met_config::Failure;
use reference::{one_managers, one_nodes, one_users};

pub use files::{import, log_removed, open_writer, retention, unreadable};
pub use filter::{JobsFilter, page_of};
pub use reference::{JobRef, Meant, find, newest_of};
pub use settling::{overlay, remove_empty_cgroups, settle, settle_or_end, supervision};

/// Somebody who knows jobs.
trait JobSource {
    /// Why it may know of more jobs than it tells.
    fn unread(&self) -> Option<&str> {
        None
    }
    fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>>;
    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>>;
    fn course(&mut self, key: &JobKey) -> Result<Course>;
    /// Of a card, while the job had it.
    fn card_course(&mut self, key: &JobKey, uuid: &str) -> Result<Course>;
    /// Of the machine, since a time: every part of which there are samples.
    fn node_courses(&mut self, since_ms: i64) -> Result<Vec<(NodePart, Course)>>;
    /// Of another one; only a server knows of any.
    fn courses_of(&mut self, _node: &str, _since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        Ok(Vec::new())
    }
    fn remove(&mut self, key: &JobKey) -> Result<()>;
    /// Keeps the end of a job that nobody waited for.
    fn close(&mut self, end: &Record) -> Result<()>;
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
            return Ok(AllJobs { sources: vec![Box::new(FromDaemon::new(server))], layouts });
        }
        let mut sources: Vec<Box<dyn JobSource>> = Vec::new();
        let mut system = setting.system_daemon_to_read();
        // Root reads no files that another user could replace.
        let foreign = setting.user.check_own().err();
        match (&mut system, foreign) {
            (Some(system), None) => hand_over_ends(setting, system),
            (Some(_), Some(error)) => tracing::warn!("{error:#}"),
            (None, Some(error)) => return Err(error),
            (None, None) => {}
        }
        match setting.user_daemon() {
            Ok(client) => sources.push(Box::new(FromDaemon::new(client))),
            Err(_) if setting.user.check_own().is_err() => {}
            Err(_) if setting.user.state.is_dir() => sources.push(Box::new(FromFiles::open(setting)?)),
            Err(_) => {}
        }
        if let Some(client) = system {
            sources.push(Box::new(FromDaemon::new(client)));
        }
        Ok(AllJobs { sources, layouts })
    }

    /// Newest first.
    pub fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let jobs = self.gather(|source| source.jobs(filter))?;
        self.correct(&jobs);
        let mut jobs = merge(jobs);
        self.doubt(jobs.is_empty())?;
        jobs.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    /// Asks all sources. One that stops answering is left out, as long as there is another.
    fn gather(&mut self, ask: impl Fn(&mut dyn JobSource) -> Result<Vec<Record>>) -> Result<Vec<Record>> {
        let mut found = Vec::new();
        let mut index = 0;
        while index < self.sources.len() {
            match ask(self.sources[index].as_mut()) {
                Ok(records) => {
                    found.extend(records);
                    index += 1;
                }
                Err(error) if error.is::<Unreachable>() && self.sources.len() > 1 => {
                    tracing::warn!("{error}; going on without it");
                    self.sources.remove(index);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// That there is no job is not said of a store that cannot be read.
    fn doubt(&self, nothing: bool) -> Result<()> {
        match self.sources.iter().find_map(|source| source.unread()) {
            Some(why) if nothing => bail!("{why}"),
            Some(why) => tracing::warn!("{why}"),
            None => {}
        }
        Ok(())
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
                    let known = reference::steps_in_words(&steps);
                    Failure::usage(format!("job {label} has no step {step}; known: {known}"))
                });
            }
        }
        self.find(text).map(Meant::Job)
    }

    fn find_ref(&mut self, text: &str, job: &JobRef) -> Result<Option<Record>> {
        let found = self.gather(|source| source.find(job))?;
        self.correct(&found);
        let found = merge(found);
        self.doubt(found.is_empty())?;
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

    /// A system daemon that was away when a job ended calls it lost, or running while its supervisor is about to
    /// tell; who knows better tells it.
    fn correct(&mut self, found: &[Record]) {
        for unaware in found.iter().filter(|record| !is_known_end(record)) {
            let known = |record: &&Record| record.key == unaware.key && is_known_end(record);
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

    /// The same of a node of a cluster.
    pub fn courses_of(&mut self, node: &str, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut parts = BTreeMap::new();
        for source in &mut self.sources {
            parts.extend(source.courses_of(node, since_ms)?);
        }
        Ok(parts.into_iter().collect())
    }

    pub fn remove(&mut self, key: &JobKey) -> Result<()> {
        for source in &mut self.sources {
            source.remove(key)?;
        }
        Ok(())
    }

    /// Tells the end of a job to whoever has it.
    pub fn close(&mut self, end: &Record) -> Result<()> {
        let job = JobRef::Id { manager: Some(end.key.manager.clone()), id: end.key.id.clone(), node: None };
        for source in &mut self.sources {
            if source.find(&job)?.iter().any(|known| known.key == end.key) {
                source.close(end)?;
            }
        }
        Ok(())
    }
}

/// Whether the supervisor of a job of this user has nothing to do any more but to tell a system daemon that is away.
pub fn waits_for_daemon(setting: &Setting, record: &Record) -> bool {
    let id = record.key.id.parse().ok().filter(|_| setting.user.check_own().is_ok());
    let folder = id.map(|id| JobDir::open(&setting.user.state, id));
    let end = folder.and_then(|folder| folder.read().end);
    end.is_some_and(|end| end.key == record.key) && !has_daemon(setting)
}

/// Whether there is a daemon to which a supervisor may be handing an end over.
pub fn has_daemon(setting: &Setting) -> bool {
    setting.system_daemon().is_some() || setting.user_daemon().is_ok()
}

/// Newest first, each job once.
fn merge(jobs: Vec<Record>) -> Vec<Record> {
    let mut jobs = belief::believe_all(jobs);
    listing::sort(&mut jobs);
    jobs
}

/// Sends the system daemon the ends that it does not have: of its own jobs, which ended while it was down, and of jobs
/// that were started while it could not be asked for an id.
fn hand_over_ends(setting: &Setting, system: &mut Client) {
    for folder in inbox::pending(&setting.user.state).unwrap_or_default() {
        // What a terminal sampled is its user's own, course and all.
        let Some(end) = folder.read_unreported() else { continue };
        if end.local.as_ref().is_none_or(|local| local.origin == Origin::Time) {
            continue;
        }
        let is_old = end.end_ns.is_some_and(|end_ns| now_ns() - end_ns > UNREPORTED_NS_MAX);
        match system.call(&Request::Ended(Box::new(end))) {
            Ok(_) => drop(folder.reported()),
            // It keeps refusing.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_old => {
                let _ = folder.forget_unreported();
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            // It is gone, or hangs.
            Err(_) => return,
        }
    }
}

/// How long a system daemon that refuses an end is asked to take it.
const UNREPORTED_NS_MAX: i64 = 30 * 86_400 * 1_000_000_000;

/// A daemon before pages tells so many jobs in one reply.
const OLDER_PAGE_JOBS: usize = 1000;

/// Somebody who answers requests: a daemon on its socket, or a server.
pub trait Answers {
    /// Asks and waits for the answer; why there is none is told in full.
    fn call(&mut self, request: &Request) -> Result<Reply>;
    /// What it is called in complaints.
    fn what(&self) -> &'static str;
}

struct FromDaemon {
    client: Box<dyn Answers>,
    /// What was said of its lists already.
    warned: Vec<String>,
}

impl FromDaemon {
    fn new(client: impl Answers + 'static) -> FromDaemon {
        FromDaemon { client: Box::new(client), warned: Vec::new() }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.client.call(request)
    }

    /// Says what is missing from a list, once.
    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.warned.contains(&warning) {
                tracing::warn!("{warning}");
                self.warned.push(warning);
            }
        }
    }

    /// The rest of a list of which a daemon of an earlier version told the first jobs: it goes on by their times.
    fn older_jobs(&mut self, filter: &JobsFilter, first: Vec<Record>) -> Result<Vec<Record>> {
        let wanted = filter.limit.unwrap_or(usize::MAX);
        let (mut page, mut more, mut jobs) = (filter.clone(), first, Vec::new());
        loop {
            let (before, is_last) = (jobs.len(), more.len() < OLDER_PAGE_JOBS);
            // Pages overlap in the jobs of one instant: `merge` keeps each of them once.
            match more.last().map(sort_ns) {
                // Those that wait come first and have no time to go on from.
                Some(i64::MAX) => page.skip += more.len(),
                begun_ns => (page.until_ns, page.skip) = (begun_ns.map(|begun_ns| begun_ns + 1), 0),
            }
            jobs.extend(more);
            jobs = merge(jobs);
            if is_last || jobs.len() == before || jobs.len() >= wanted {
                return Ok(jobs);
            }
            page.limit = Some(OLDER_PAGE_JOBS.min(wanted - jobs.len()));
            more = match self.ask(&Request::Jobs(page.clone()))? {
                Reply::Jobs(jobs) => jobs,
                reply => bail!("{} answered {reply:?}", self.client.what()),
            };
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
        let mut page = JobsFilter { paged: true, ..filter.clone() };
        let mut jobs: Vec<Record> = Vec::new();
        loop {
            page.limit = Some(OLDER_PAGE_JOBS.min(wanted - jobs.len()));
            let next = match self.ask(&Request::Jobs(page.clone()))? {
                Reply::JobsPage { jobs: more, next, warnings } => {
                    jobs.extend(more);
                    self.warn(warnings);
                    next
                }
                // One that knows no pages has overlooked that they were asked for.
                Reply::Jobs(first) => return self.older_jobs(filter, first),
                reply => bail!("{} answered {reply:?}", self.client.what()),
            };
            match next {
                // One that does not get on is not asked for ever.
                Some(next)
                    if jobs.len() < wanted && page.after.as_ref().is_none_or(|after| next < *after) =>
                {
                    page.after = Some(next);
                }
                _ => return Ok(merge(jobs)),
            }
        }
    }

    fn find(&mut self, job: &JobRef) -> Result<Vec<Record>> {
        let mut found: Vec<Record> = Vec::new();
        let mut request = Request::Find(job.clone());
        loop {
            let (more, next) = match self.ask(&request)? {
                Reply::Jobs(jobs) => (jobs, None),
                Reply::JobsPage { jobs, next, .. } => (jobs, next),
                reply => bail!("{} answered {reply:?}", self.client.what()),
            };
            let gets_on = !more.is_empty();
            found.extend(more);
            match next.filter(|_| gets_on) {
                Some(after) => request = Request::FindAfter { job: job.clone(), after },
                None => return Ok(found),
            }
        }
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
        let asked = self.ask(&Request::NodeParts { since_ms })?;
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

    fn courses_of(&mut self, node: &str, since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
        let mut courses: BTreeMap<NodePart, Course> = BTreeMap::new();
        let mut after_ms = Some(since_ms.saturating_sub(1));
        while let Some(after) = after_ms {
            let asked = Request::NodeCourses { node: node.to_owned(), after_ms: after };
            let NodeCourses { parts, until_ms } = match self.ask(&asked)? {
                Reply::NodeCourses(courses) => courses,
                _ => bail!("{} did not answer", self.client.what()),
            };
            for (table, part, course) in parts {
                // What a newer or older program measured has no name here.
                let Some(known) = table_named(&table) else { continue };
                let whole = courses.entry(NodePart { table, part }).or_insert_with(|| Course::new(known));
                whole.append(&course.into_course(known));
            }
            // A server that does not get on is not asked for ever.
            after_ms = until_ms.filter(|&until_ms| until_ms > after);
        }
        Ok(courses.into_iter().collect())
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.ask(&Request::Remove(key.clone())).map(drop)
    }

    fn close(&mut self, end: &Record) -> Result<()> {
        self.ask(&Request::Ended(Box::new(end.clone()))).map(drop)
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

/// Now, in unix nanoseconds.
pub fn now_ns() -> i64 {
    clock::realtime_ns()
}

#[cfg(test)]
mod tests {
    use met_core::job::State;
    use met_core::listing::Cursor;

    use super::*;

    /// A source with one job, or one that stops answering.
    struct One(Option<Record>);

    impl JobSource for One {
        fn jobs(&mut self, _filter: &JobsFilter) -> Result<Vec<Record>> {
            let record = self.0.clone().ok_or(Unreachable::Silent { pid: Some(7) })?;
            Ok(vec![record])
        }

        fn find(&mut self, _job: &JobRef) -> Result<Vec<Record>> {
            self.jobs(&JobsFilter::default())
        }

        fn course(&mut self, _key: &JobKey) -> Result<Course> {
            Ok(Course::new(&JOB))
        }

        fn card_course(&mut self, _key: &JobKey, _uuid: &str) -> Result<Course> {
            Ok(Course::new(&JOB))
        }

        fn node_courses(&mut self, _since_ms: i64) -> Result<Vec<(NodePart, Course)>> {
            Ok(Vec::new())
        }

        fn remove(&mut self, _key: &JobKey) -> Result<()> {
            Ok(())
        }

        fn close(&mut self, _end: &Record) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_daemon_that_stops_answering_is_left_out_if_there_is_another_source() {
        let known = One(Some(met_core::sample::full(1, "train")));
        let mut all = AllJobs { sources: vec![Box::new(known), Box::new(One(None))], layouts: Vec::new() };
        assert_eq!(all.jobs(&JobsFilter::default()).unwrap().len(), 1);
        assert_eq!(all.find("1").unwrap().key.id, "1");
        let mut all = AllJobs { sources: vec![Box::new(One(None))], layouts: Vec::new() };
        let error = all.jobs(&JobsFilter::default()).unwrap_err();
        assert_eq!(error.to_string(), "the daemon (pid 7) does not answer");
    }

    #[test]
    fn of_two_words_on_a_running_job_the_one_that_was_sampled_is_shown() {
        let mut sampled = met_core::sample::full(1, "train");
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
    fn an_end_from_one_source_keeps_what_another_one_sampled() {
        let mut end = met_core::sample::bare(1, "train");
        (end.state, end.exit_code, end.end_ns) = (State::Finished, Some(3), Some(now_ns()));
        let mut lost = met_core::sample::full(1, "train");
        (lost.state, lost.exit_code, lost.end_ns) = (State::Lost, None, None);
        // The two may know different starts.
        lost.start_ns = lost.start_ns.map(|start_ns| start_ns + 1);
        for both in [[end.clone(), lost.clone()], [lost, end]] {
            let merged = merge(both.into());
            assert_eq!(merged.len(), 1);
            assert_eq!((merged[0].state, merged[0].exit_code), (State::Finished, Some(3)));
            assert!(!merged[0].summaries.is_empty());
        }
    }

    /// A daemon with jobs, of this version or of one that knows no pages.
    struct Daemon {
        jobs: Vec<Record>,
        pages: bool,
        asked: std::rc::Rc<std::cell::Cell<usize>>,
    }

    impl Answers for Daemon {
        fn call(&mut self, request: &Request) -> Result<Reply> {
            let Request::Jobs(filter) = request else { bail!("{request:?}") };
            self.asked.set(self.asked.get() + 1);
            let mut jobs = merge(self.jobs.clone());
            if self.pages && filter.paged {
                let (mut jobs, mut next) = page_of(jobs, filter.after.as_ref());
                if filter.limit.is_some_and(|limit| limit < jobs.len()) {
                    jobs.truncate(filter.limit.unwrap_or_default());
                    next = jobs.last().map(Cursor::of);
                }
                return Ok(Reply::JobsPage { jobs, next, warnings: vec!["one is missing".to_owned()] });
            }
            jobs.retain(|job| filter.until_ns.is_none_or(|until_ns| sort_ns(job) < until_ns));
            filter.retain(&mut jobs);
            Ok(Reply::Jobs(jobs))
        }

        fn what(&self) -> &'static str {
            "the daemon"
        }
    }

    fn jobs_at(count: u32, start_ns: impl Fn(u32) -> i64) -> Vec<Record> {
        let job = |id: u32| Record { start_ns: Some(start_ns(id)), ..met_core::sample::full(id, "train") };
        (1..=count).map(job).collect()
    }

    #[test]
    fn all_jobs_of_one_instant_come_page_by_page() {
        let asked = std::rc::Rc::default();
        let daemon = Daemon { jobs: jobs_at(2600, |_| 7), pages: true, asked: std::rc::Rc::clone(&asked) };
        let mut source = FromDaemon::new(daemon);
        assert_eq!(source.jobs(&JobsFilter::default()).unwrap().len(), 2600);
        assert!(asked.get() >= 6, "{} pages", asked.get());
        assert_eq!(source.warned.len(), 1, "said once");
        let some = JobsFilter { limit: Some(1234), ..JobsFilter::default() };
        let first = source.jobs(&some).unwrap();
        assert_eq!((first.len(), first[0].key.id.as_str()), (1234, "2600"));
    }

    #[test]
    fn a_daemon_without_pages_is_asked_as_before() {
        let jobs = jobs_at(2600, |id| i64::from(id) / 3);
        let mut source = FromDaemon::new(Daemon { jobs, pages: false, asked: std::rc::Rc::default() });
        assert_eq!(source.jobs(&JobsFilter::default()).unwrap().len(), 2600);
    }

    #[test]
    fn a_page_of_large_records_is_bounded_and_goes_on() {
        let mut jobs = jobs_at(40, |_| 7);
        jobs.iter_mut().for_each(|job| job.command = vec!["x".repeat(400_000)]);
        let (mut after, mut seen, mut pages) = (None, 0, 0);
        loop {
            let (page, next) = page_of(jobs.clone(), after.as_ref());
            (seen, pages, after) = (seen + page.len(), pages + 1, next);
            assert!(!page.is_empty() && page.len() <= 12);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, 40);
        assert!(pages >= 4);
    }

    #[test]
    fn jobs_that_wait_are_the_newest_and_have_pages_of_their_own() {
        let mut jobs: Vec<Record> = (1..=3).map(|id| met_core::sample::full(id, "train")).collect();
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
}
