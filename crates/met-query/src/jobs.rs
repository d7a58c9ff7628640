//! Jobs as commands ask for them: by reference or filter, from a daemon or from the files themselves.

mod around;
mod by_process;
mod completing;
mod earlier_runs;
mod files;
mod filter;
mod forgetting;
mod housekeeping;
mod joint_usage;
mod leftovers;
mod liveness;
mod own;
mod pages;
mod reference;
mod remote;
mod summing;
mod together;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::belief;
use met_core::job::{JobKey, Record, State};
use met_core::listing::{self, sort_ns};
use met_core::queue::Queue;
use met_core::reaction::{Reaction, ReactionChange, ReactionStep, ReactionTarget};
use met_core::series::{Columns, Series};
use met_core::usage::{Usage, UsageAsk};
use met_core::{DETAIL, JOB, Table, event, gpu};
use met_host::{Host, clock};
use met_jobs::cgroup_layouts::Layout;
use met_jobs::processes;
use met_store::inbox::JobDir;
use met_store::{NodePart, PROCESS_ROWS, Queries, StoreError};

use crate::annotate::no_such_job;
use crate::client::Unreachable;
use crate::query::Query;
use crate::queues;
use crate::setting::Setting;
use crate::viewer::Viewer;
use by_process::{Running, Wanted};
use files::FromFiles;
use met_config::Failure;
use pages::{every_page, every_sample, every_span, joined, newest_of_process, own_series, pages};

pub use around::{beside, beside_if_asked};
pub use completing::complete_by_samples;
pub use earlier_runs::EarlierRuns;
pub use files::unreadable;
pub use filter::{JobsFilter, PageAsk, page_of};
pub use forgetting::forget_reactions;
pub use housekeeping::{
    Imported, hand_over_ends, has_lost, import, import_some, import_unless_locked, log_moved_aside,
    log_removed, open_writer, retention, thin, thinning, tidy,
};
pub use leftovers::{leave_cgroup, remove_left_cgroups};
pub use liveness::{remove_empty_cgroups, settle, settle_or_end, supervision};
pub use met_store::{JobOwner, JobTimes};
pub use own::OwnJobs;
pub use pages::every_found;
pub use reference::{JobRef, Meant, find, is_free_as_name, one_of, step};
pub use remote::{Answers, Remote};
pub use summing::{sum_jobs, sum_machine};
pub use together::Together;

/// Where commands find jobs, and change what is kept of them.
trait Source: Query {
    /// Whether an answer has all samples there are, however many.
    fn has_whole_series(&self) -> bool {
        false
    }
    /// All samples of a job; `None` where they are asked for page by page. Columns that are not wanted may be empty.
    fn whole_series(&self, _: &Record, _: Columns) -> Result<Option<Series>> {
        Ok(None)
    }
    /// The same for another thread; `None` where one is asked who answers one after the other.
    fn again(&self) -> Option<Box<dyn Source>> {
        None
    }
    /// Why jobs may be missing from its answers.
    fn unread(&self) -> Option<String> {
        None
    }
    /// Has running jobs sampled more often for a while, and says which; none where nothing samples.
    fn sample_more(&self, _: &[JobKey], _wanted_for: Duration) -> Result<Vec<JobKey>> {
        Ok(Vec::new())
    }
    fn remove(&mut self, key: &JobKey) -> Result<()>;
    /// Stores the end of a job without a supervisor.
    fn close(&mut self, end: &Record) -> Result<()>;
    /// Changes what people say of a job.
    fn annotate(&mut self, key: &JobKey, change: &AnnotationChange) -> Result<Annotation>;
    /// Keeps what is done about findings.
    fn react(&mut self, change: &ReactionChange) -> Result<()>;
}

/// Sources know the caller of a command by the connection or by the owner of the files.
const CALLER: &Viewer = &Viewer::Everything;

/// Stored jobs of which a process is looked for, the newest; in pages, between which others are answered.
const PROCESS_JOBS: usize = 20 * PROCESS_ROWS;

/// Every job that the caller may see, wherever it is kept.
pub struct AllJobs {
    sources: Vec<Box<dyn Source>>,
    /// Warnings that were given already.
    warned: Vec<String>,
    /// The configuration's own, whose managers' jobs are asked for by their names.
    layouts: Vec<Layout>,
    /// Where running processes are looked up; not for jobs of a server.
    host: Option<Host>,
}

impl AllJobs {
    pub fn open(setting: &Setting) -> Result<AllJobs> {
        let layouts = setting.config.jobs.layouts.clone();
        if let Some(server) = setting.server_client()? {
            return Ok(AllJobs::of(vec![Box::new(Remote::new(server))], layouts));
        }
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        let system = setting.system_daemon_to_read();
        // Root reads no files that another user could replace.
        match (&system, setting.user.check_own()) {
            (Some(_), Err(error)) => tracing::warn!("{error:#}"),
            (None, Err(error)) => return Err(error),
            (_, Ok(())) => {}
        }
        match setting.user_daemon() {
            Ok(client) => sources.push(Box::new(Remote::new(client))),
            Err(_) if setting.user.check_own().is_err() => {}
            Err(_) if setting.user.state.is_dir() => sources.push(Box::new(FromFiles::open(setting)?)),
            Err(_) => {}
        }
        if let Some(client) = system {
            sources.push(Box::new(Remote::new(client)));
        }
        Ok(AllJobs { host: Some(setting.host.clone()), ..AllJobs::of(sources, layouts) })
    }

    /// The same for another thread, if all of it can be read by two.
    fn again(&self) -> Option<AllJobs> {
        let sources = self.sources.iter().map(|source| source.again()).collect::<Option<Vec<_>>>()?;
        Some(AllJobs { host: self.host.clone(), ..AllJobs::of(sources, self.layouts.clone()) })
    }

    fn of(sources: Vec<Box<dyn Source>>, layouts: Vec<Layout>) -> AllJobs {
        AllJobs { sources, warned: Vec::new(), layouts, host: None }
    }

    /// In the order of the filter.
    pub fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let mut warnings = Vec::new();
        let jobs = self.gather(|source| every_page(source, filter, &mut warnings))?;
        self.listed(filter, jobs, warnings)
    }

    /// The list of what was gathered.
    fn listed(
        &mut self,
        filter: &JobsFilter,
        jobs: Vec<Record>,
        warnings: Vec<String>,
    ) -> Result<Vec<Record>> {
        self.warn(warnings);
        let mut jobs = merge(jobs);
        if filter.page.sort.is_some() {
            filter.order().sort(&mut jobs);
        }
        if jobs.is_empty() {
            self.check_read()?;
        }
        jobs.truncate(filter.page.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.warned.contains(&warning) {
                tracing::warn!("{warning}");
                self.warned.push(warning);
            }
        }
    }

    /// "No jobs" is not an answer if some cannot be read.
    fn check_read(&self) -> Result<()> {
        self.sources.iter().find_map(|source| source.unread()).map_or(Ok(()), |why| bail!("{why}"))
    }

    /// Asks all sources. One that stops answering is left out, as long as there is another.
    fn gather<T>(&mut self, mut ask: impl FnMut(&dyn Source) -> Result<Vec<T>>) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let mut index = 0;
        while index < self.sources.len() {
            match ask(self.sources[index].as_ref()) {
                Ok(records) => {
                    found = joined(found, records);
                    index += 1;
                }
                Err(error) if error.is::<Unreachable>() && self.sources.len() > 1 => {
                    tracing::warn!("{error}; continuing without it");
                    self.sources.remove(index);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The one job meant by `text`.
    pub fn find(&mut self, text: &str) -> Result<Record> {
        let job = JobRef::parse(text, &self.layouts)?;
        if let Some(found) = self.find_ref(text, &job)? {
            return Ok(found);
        }
        if let Some(found) = self.find_of_user(text)? {
            return Ok(found);
        }
        self.check_read()?;
        Err(Failure::usage(reference::not_found(text, &job, self.host.is_none())))
    }

    /// As [`AllJobs::find`], for a command that ends or removes the job. The newest job of a name need not be the one
    /// that is meant: of those that the command can be about there must be one alone.
    pub fn find_to_change(&mut self, text: &str, is_meant: impl Fn(&Record) -> bool) -> Result<Record> {
        let JobRef::Name(name) = JobRef::parse(text, &self.layouts)? else { return self.find(text) };
        let of_name = JobsFilter { name: Some(name.clone()), ..JobsFilter::default() };
        let mut named = self.jobs(&of_name)?;
        if let Some((user, name)) = name.split_once('/').filter(|_| named.is_empty()) {
            let of_name = JobsFilter { name: Some(name.to_owned()), ..JobsFilter::default() };
            named = self.jobs(&of_name.of_user(Some(user)))?;
        }
        if let Some((name, node)) = name.rsplit_once('@').filter(|_| named.is_empty()) {
            let mut of_name = JobsFilter { name: Some(name.to_owned()), ..JobsFilter::default() };
            of_name.conditions.node = Some(node.to_owned());
            named = self.jobs(&of_name)?;
        }
        named.retain(is_meant);
        match &named[..] {
            [] => self.find(text),
            [one] => {
                let JobKey { manager, id, .. } = one.key.clone();
                let job = JobRef::Id { manager: Some(manager), id, node: None, user: one.user.clone() };
                self.find_ref(text, &job)?.map_or_else(|| self.find(text), Ok)
            }
            several => Err(Failure::usage(reference::several_named(text, several))),
        }
    }

    /// The newest job of a name and a user: `alice/train`, where that is not a name itself.
    fn find_of_user(&mut self, text: &str) -> Result<Option<Record>> {
        let Some((user, name)) = text.split_once('/') else { return Ok(None) };
        if user.is_empty() || name.is_empty() {
            return Ok(None);
        }
        let filter =
            JobsFilter { name: Some(name.to_owned()), page: PageAsk::first(1), ..JobsFilter::default() };
        let newest = self.jobs(&filter.of_user(Some(user)))?.into_iter().next();
        let Some(JobKey { manager, id, .. }) = newest.map(|newest| newest.key) else { return Ok(None) };
        let user = Some(user.to_owned());
        self.find_ref(text, &JobRef::Id { manager: Some(manager), id, node: None, user })
    }

    /// As [`AllJobs::find`], also by one of its processes. Only to show it: numbers of processes are given again, and
    /// nothing may be ended or removed by one.
    pub fn find_to_show(&mut self, text: &str) -> Result<Record> {
        let Some((pid, node)) = reference::process_in(text) else { return self.find(text) };
        self.job_of_process(pid, node)?.ok_or_else(|| {
            Failure::usage(format!(
                "process {pid} is not part of a running job, nor among the stored processes of the newest \
                 {PROCESS_JOBS} jobs; run `met list`"
            ))
        })
    }

    /// The job of a process that runs, or else the newest of which one with this number is stored.
    fn job_of_process(&mut self, pid: u32, node: Option<&str>) -> Result<Option<Record>> {
        let host = self.host.clone().filter(|host| node.is_none_or(|node| node == host.facts().hostname));
        let caller = self.host.as_ref().map(|_| rustix::process::getuid().as_raw());
        let mut wanted = Wanted { pid, node, running: None, caller };
        if let Some((host, process)) = host.and_then(|host| host.process(pid).ok().map(|id| (host, id))) {
            wanted.running = Some(Running::of(&host, process));
            let states = vec![State::Running, State::Suspended];
            let running = self.jobs(&JobsFilter { states, ..JobsFilter::default() })?;
            if let Some(found) = processes::job_of(&host, &running, process) {
                return Ok(Some(found.clone()));
            }
        }
        let is_meant = |record: &Record| wanted.is_of(record);
        let mut warnings = Vec::new();
        let kept = self.gather(|source| newest_of_process(source, pid, is_meant, &mut warnings))?;
        self.warn(warnings);
        let found = merge(kept).into_iter().next();
        if found.is_none() {
            self.check_read()?;
        }
        Ok(found)
    }

    /// The one job or step meant by `text`; a step is shown like a job.
    pub fn find_or_step(&mut self, text: &str) -> Result<Meant> {
        let layouts = std::mem::take(&mut self.layouts);
        let step = reference::step(text, &layouts, |job| self.find_ref(text, job));
        self.layouts = layouts;
        match step? {
            Some(step) => Ok(Meant::Step(step)),
            None => self.find_to_show(text).map(Meant::Job),
        }
    }

    fn find_ref(&mut self, text: &str, job: &JobRef) -> Result<Option<Record>> {
        let found = self.gather(|source| every_found(source, CALLER, job))?;
        reference::one_of(text, job, merge(found))
    }

    pub fn series(&mut self, record: &Record) -> Result<Series> {
        self.columns(record, Columns::ALL)
    }

    /// The same, where columns that are not wanted may be empty.
    pub fn columns(&mut self, record: &Record, wanted: Columns) -> Result<Series> {
        self.first_series(&JOB, |source, after_ms| match source.whole_series(record, wanted)? {
            Some(whole) => Ok(whole),
            None => source.series(CALLER, &record.key, after_ms),
        })
    }

    /// A further series of a job: its details, or the event that is the `part`.
    pub fn job_series(&mut self, key: &JobKey, table: &'static Table, part: &str) -> Result<Series> {
        self.first_series(table, |source, after_ms| source.job_series(CALLER, key, table, part, after_ms))
    }

    /// The series of a GPU while the job had it; nothing where it was not kept.
    pub fn gpu_series(&mut self, key: &JobKey, uuid: &str) -> Result<Series> {
        let page = |source: &dyn Source, after_ms| source.gpu_series(CALLER, key, uuid, after_ms);
        self.first_series(&gpu::device::TABLE, page)
    }

    /// From the first source that has one.
    fn first_series(
        &self,
        table: &'static Table,
        page: impl Fn(&dyn Source, i64) -> Result<Series>,
    ) -> Result<Series> {
        for source in &self.sources {
            let series = match source.has_whole_series() {
                true => page(source.as_ref(), i64::MIN)?,
                false => every_sample(table, i64::MIN, |after_ms| page(source.as_ref(), after_ms))?,
            };
            if !series.is_empty() {
                return Ok(series);
            }
        }
        Ok(Series::new(table))
    }

    /// A node of a cluster, or this machine, since a time, by part. What a system daemon kept is preferred.
    pub fn node_series(&mut self, node: Option<&str>, since_ms: i64) -> Result<Vec<(NodePart, Series)>> {
        let (mut parts, after_ms) = (BTreeMap::new(), since_ms.saturating_sub(1));
        for source in &self.sources {
            parts.extend(match node {
                Some(node) => every_span(source.as_ref(), node, after_ms)?,
                None => own_series(source.as_ref(), after_ms)?,
            });
        }
        Ok(parts.into_iter().collect())
    }

    /// Use over time, of everything that the caller may see.
    pub fn usage(&mut self, ask: &UsageAsk) -> Result<Usage> {
        joint_usage::of(&self.sources, CALLER, ask)
    }

    pub fn remove(&mut self, key: &JobKey) -> Result<()> {
        for source in &mut self.sources {
            source.remove(key)?;
        }
        Ok(())
    }

    /// Reports the end of a job to the source that has it.
    pub fn close(&mut self, end: &Record) -> Result<()> {
        for source in &mut self.sources {
            if has(source.as_ref(), &end.key)? {
                source.close(end)?;
            }
        }
        Ok(())
    }

    /// Changes what people say of a job, wherever it is kept.
    pub fn annotate(&mut self, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        let mut said = None;
        for source in &mut self.sources {
            if has(source.as_ref(), key)? {
                said = Some(source.annotate(key, change)?);
            }
        }
        said.ok_or_else(no_such_job)
    }

    /// How many jobs wait, as schedulers count them. Where that is unknown, the jobs that are known to wait are enough; an
    /// earlier version does not know it.
    pub fn queues(&mut self) -> Vec<Queue> {
        let of = |source: &dyn Source| {
            source.queues(CALLER).unwrap_or_else(|error| {
                tracing::debug!("cannot read the queues of schedulers: {error:#}");
                Vec::new()
            })
        };
        queues::newest(self.sources.iter().flat_map(|source| of(source.as_ref())).collect())
    }

    /// What was done about findings. Unless all of it is needed, what cannot be read is left out: an older daemon keeps
    /// nothing of it.
    pub fn reactions(&mut self, all_needed: bool) -> Result<Vec<Reaction>> {
        let mut all = Vec::new();
        for source in &self.sources {
            match source.reactions(CALLER) {
                Ok(reactions) => all.extend(reactions),
                Err(error) if all_needed => return Err(error.context("cannot read which findings are muted")),
                Err(error) => tracing::warn!("cannot read which findings are muted: {error:#}"),
            }
        }
        // A job that two places have is muted in both.
        all.sort_by_cached_key(|one: &Reaction| {
            let key = (one.user.clone(), one.lineage.clone(), one.rule.clone());
            (key, one.kind, std::cmp::Reverse(one.at_ns))
        });
        let key = |one: &Reaction| (one.user.clone(), one.lineage.clone(), one.rule.clone(), one.kind);
        all.dedup_by(|one, other| key(one) == key(other));
        Ok(all)
    }

    /// Has running jobs sampled more often for a while, wherever they are sampled, and says which. A daemon that is too old
    /// for that samples as before.
    pub fn sample_more(&mut self, keys: &[JobKey], wanted_for: Duration) -> Vec<JobKey> {
        let mut watched = Vec::new();
        for source in &self.sources {
            match source.sample_more(keys, wanted_for) {
                Ok(jobs) => watched.extend(jobs),
                Err(error) => tracing::warn!("jobs are not sampled more often: {error:#}"),
            }
        }
        watched
    }

    /// Keeps what is done about findings of a job, wherever that is kept, or about a user, everywhere: who sends
    /// messages may read another place than the user does. One place may have nothing to take back.
    pub fn react(&mut self, change: &ReactionChange) -> Result<()> {
        let (mut done, mut failure) = (false, None);
        for source in &mut self.sources {
            let is_there = match &change.target {
                ReactionTarget::Job(key) => has(source.as_ref(), key)?,
                ReactionTarget::User(_) => true,
            };
            if !is_there {
                continue;
            }
            match source.react(change) {
                Ok(()) => done = true,
                Err(error) => failure = Some(error),
            }
        }
        match (done, failure) {
            (true, None) => Ok(()),
            (true, Some(_)) if change.step == ReactionStep::Unmute => Ok(()),
            (_, Some(error)) => Err(error),
            (false, None) => Err(no_such_job()),
        }
    }
}

/// Whether a source has a job.
fn has(source: &dyn Source, key: &JobKey) -> Result<bool> {
    let (manager, id) = (Some(key.manager.clone()), key.id.clone());
    let job = JobRef::Id { manager, id, node: None, user: None };
    Ok(every_found(source, CALLER, &job)?.iter().any(|known| known.key == *key))
}

/// The table of a job's further series of this name.
pub fn further_table(name: &str) -> Option<&'static Table> {
    [&DETAIL, &event::TABLE, &JOB].into_iter().find(|table| table.name == name)
}

/// Whether the supervisor of a job of this user only has to report its end to a system daemon that is away.
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

/// The series of a GPU while a job had it, after a time.
pub fn gpu_series(store: &Queries, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series, StoreError> {
    match held(store, key, uuid, after_ms)? {
        Some((begin_ms, end_ms)) => store.device_series(uuid, begin_ms, end_ms),
        None => Ok(Series::new(&gpu::device::TABLE)),
    }
}

/// When a job held a GPU, after a time, in unix milliseconds; `None` if the store does not know that it did.
pub fn held(
    store: &Queries,
    key: &JobKey,
    uuid: &str,
    after_ms: i64,
) -> Result<Option<(i64, i64)>, StoreError> {
    let allocations = store.allocations(key)?;
    Ok(allocations.iter().find(|had| had.uuid == uuid).map(|had| {
        let begin_ms = (had.begin_ns / 1_000_000).max(after_ms.saturating_add(1));
        (begin_ms, had.end_ns.map_or(i64::MAX, |end_ns| end_ns / 1_000_000))
    }))
}

/// Now, in unix nanoseconds.
pub fn now_ns() -> i64 {
    clock::realtime_ns()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use met_core::job::State;
    use met_core::listing::Cursor;

    use met_store::Page;

    use super::*;
    use crate::protocol::{NodeStatus, Reply, Request};

    /// A source with one job, or one that stops answering.
    struct One(Option<Record>);

    impl Query for One {
        fn jobs(&self, _: &Viewer, _: &JobsFilter) -> Result<(Page, Vec<String>)> {
            let record = self.0.clone().ok_or(Unreachable::Silent { pid: Some(7) })?;
            Ok((Page { jobs: vec![record], next: None }, Vec::new()))
        }

        fn find(&self, viewer: &Viewer, _: &JobRef, _: Option<&Cursor>) -> Result<Page> {
            Ok(self.jobs(viewer, &JobsFilter::default())?.0)
        }

        fn series(&self, _: &Viewer, _: &JobKey, _: i64) -> Result<Series> {
            Ok(Series::new(&JOB))
        }

        fn gpu_series(&self, _: &Viewer, _: &JobKey, _: &str, _: i64) -> Result<Series> {
            Ok(Series::new(&JOB))
        }

        fn nodes(&self, _: &Viewer) -> Result<Vec<NodeStatus>> {
            Ok(Vec::new())
        }
    }

    impl Source for One {
        fn remove(&mut self, _: &JobKey) -> Result<()> {
            Ok(())
        }

        fn close(&mut self, _: &Record) -> Result<()> {
            Ok(())
        }

        fn annotate(&mut self, _: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
            change.apply(&Annotation::default(), 1).map_err(anyhow::Error::msg)
        }

        fn react(&mut self, _: &ReactionChange) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_daemon_that_stops_answering_is_left_out_if_there_is_another_source() {
        let known = One(Some(met_core::sample::full(1, "train")));
        let mut all = AllJobs::of(vec![Box::new(known), Box::new(One(None))], Vec::new());
        assert_eq!(all.jobs(&JobsFilter::default()).unwrap().len(), 1);
        assert_eq!(all.find("1").unwrap().key.id, "1");
        let mut all = AllJobs::of(vec![Box::new(One(None))], Vec::new());
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

    #[test]
    fn of_a_job_that_runs_no_sample_is_asked_for_that_is_newer_than_the_question() {
        let asked = AtomicUsize::new(0);
        let page = |after_ms: i64| {
            // Every request finds newer ones.
            assert!(asked.fetch_add(1, Ordering::Relaxed) < 3, "asked for ever");
            let mut series = Series::new(&JOB);
            series.push(
                after_ms.max(now_ns() / 1_000_000 - 1) + 1,
                &vec![met_core::MISSING; JOB.columns.len()],
            );
            Ok(series)
        };
        assert_eq!(every_sample(&JOB, i64::MIN, page).unwrap().len(), asked.into_inner());
        // A source that returns the same page again is not asked for ever, either.
        let mut same = Series::new(&JOB);
        same.push(7, &vec![met_core::MISSING; JOB.columns.len()]);
        assert_eq!(every_sample(&JOB, i64::MIN, |_| Ok(same.clone())).unwrap().len(), 1);
    }

    /// A daemon with jobs, of this version or of one that knows no pages.
    struct Daemon {
        jobs: Vec<Record>,
        pages: bool,
        asked: Arc<AtomicUsize>,
    }

    impl Answers for Daemon {
        fn call(&mut self, request: &Request) -> Result<Reply> {
            let Request::Jobs(filter) = request else { bail!("{request:?}") };
            self.asked.fetch_add(1, Ordering::Relaxed);
            let mut jobs = merge(self.jobs.clone());
            if self.pages && filter.page.paged {
                let (mut jobs, mut next) = page_of(jobs, filter.page.after.as_ref());
                if filter.page.limit.is_some_and(|limit| limit < jobs.len()) {
                    jobs.truncate(filter.page.limit.unwrap_or_default());
                    next = jobs.last().map(Cursor::of);
                }
                let warnings = vec!["one is missing".to_owned()];
                // As one that overlooks conditions and orders.
                return Ok(Reply::JobsPage { jobs, next, warnings, protocol: 0 });
            }
            jobs.retain(|job| filter.times.until_ns.is_none_or(|until_ns| sort_ns(job) < until_ns));
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
        let asked = Arc::<AtomicUsize>::default();
        let daemon = Daemon { jobs: jobs_at(2600, |_| 7), pages: true, asked: Arc::clone(&asked) };
        let mut source = AllJobs::of(vec![Box::new(Remote::new(daemon))], Vec::new());
        assert_eq!(source.jobs(&JobsFilter::default()).unwrap().len(), 2600);
        assert!(asked.load(Ordering::Relaxed) >= 6, "{asked:?} pages");
        assert_eq!(source.warned.len(), 1, "said once");
        let some = JobsFilter { page: PageAsk::first(1234), ..JobsFilter::default() };
        let first = source.jobs(&some).unwrap();
        assert_eq!((first.len(), first[0].key.id.as_str()), (1234, "2600"));
    }

    #[test]
    fn a_daemon_without_pages_is_asked_as_before() {
        let jobs = jobs_at(2600, |id| i64::from(id) / 3);
        let daemon = Daemon { jobs, pages: false, asked: Arc::default() };
        let mut source = AllJobs::of(vec![Box::new(Remote::new(daemon))], Vec::new());
        assert_eq!(source.jobs(&JobsFilter::default()).unwrap().len(), 2600);
    }

    #[test]
    fn what_an_earlier_version_overlooks_is_done_here() {
        for pages in [true, false] {
            let mut jobs = jobs_at(1300, i64::from);
            jobs.iter_mut().for_each(|job| job.name = format!("{:04}", 9999 - job.start_ns.unwrap_or(0)));
            jobs[4].command = vec!["needle".to_owned()];
            let daemon = Daemon { jobs, pages, asked: Arc::default() };
            let mut source = AllJobs::of(vec![Box::new(Remote::new(daemon))], Vec::new());
            let sort = Some("name".parse().unwrap());
            let sorted = source
                .jobs(&JobsFilter { page: PageAsk { sort, ..PageAsk::default() }, ..JobsFilter::default() })
                .unwrap();
            assert_eq!((sorted.len(), sorted[0].key.id.as_str()), (1300, "1300"), "{pages}");
            assert!(sorted.is_sorted_by(|one, next| one.name < next.name));
            let mut found = JobsFilter::default();
            found.conditions.command = Some("needle".to_owned());
            let found = source.jobs(&found).unwrap();
            assert_eq!((found.len(), found[0].key.id.as_str()), (1, "5"), "{pages}");
        }
    }

    /// Has examined many jobs for every page and found none that fits.
    struct Endless(Arc<AtomicUsize>);

    impl Answers for Endless {
        fn call(&mut self, request: &Request) -> Result<Reply> {
            let Request::Jobs(JobsFilter { pid: Some(4711), .. }) = request else { bail!("{request:?}") };
            let asked = self.0.fetch_add(1, Ordering::Relaxed) as i64;
            let next = Some(Cursor::at(-asked, met_core::sample::full(1, "train").key));
            Ok(Reply::JobsPage { jobs: Vec::new(), next, warnings: Vec::new(), protocol: 0 })
        }

        fn what(&self) -> &'static str {
            "the daemon"
        }
    }

    #[test]
    fn a_process_is_looked_for_in_the_newest_jobs_page_by_page() {
        let asked = Arc::<AtomicUsize>::default();
        let mut source = AllJobs::of(vec![Box::new(Remote::new(Endless(Arc::clone(&asked))))], Vec::new());
        let error = source.find_to_show("pid:4711").unwrap_err().to_string();
        assert!(error.contains("process 4711") && error.contains("newest 10240 jobs"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 20);
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
        JobsFilter { page: PageAsk { skip: 1, limit: Some(2), ..PageAsk::default() }, ..Default::default() }
            .retain(&mut jobs);
        assert_eq!(ids(&jobs), rest);
        JobsFilter { page: PageAsk { skip: 5, ..PageAsk::default() }, ..Default::default() }
            .retain(&mut jobs);
        assert!(jobs.is_empty());
    }
}
