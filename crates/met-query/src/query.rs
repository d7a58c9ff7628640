//! The one way to ask: what a daemon, a server and the web answer from.

use anyhow::Result;
use met_config::Failure;
use met_core::Table;
use met_core::grouping::{self, Group, Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record, State};
use met_core::listing::Cursor;
use met_core::queue::Queue;
use met_core::reaction::Reaction;
use met_core::series::Series;
use met_core::usage::{Usage, UsageAsk, UsageTooLong};
use met_store::{Filter, NodePart, Page, Queries, StoreError};

use crate::jobs::{self, JobOwner, JobRef, JobsFilter, PageAsk};
use crate::protocol::{NodeSeries, NodeStatus, Reply, Request, WireSeries};
use crate::viewer::Viewer;

/// Samples in one answer: some ten megabytes.
pub const PAGE_SAMPLES: usize = 50_000;

/// The series of a node, by part.
#[derive(Debug, Default)]
pub struct NodeSpan {
    pub all_series: Vec<(NodePart, Series)>,
    /// Up to here there is nothing else; `None` at the end.
    pub until_ms: Option<i64>,
}

/// Jobs and their series, read-only. Viewers get what they may see; the rest does not exist for them.
pub trait Query: Send + Sync {
    /// Jobs, newest first, as many as fit an answer, and in sentences what is missing from the list.
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)>;
    /// The jobs that a reference may mean, newest first; `after` continues a list that did not fit.
    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> Result<Page>;
    /// The samples of a job after a time, as many as fit an answer; none when there are no more.
    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series>;
    /// The same of a further series of the job: its details, the event that is the `part`, or of a job on several nodes
    /// what it did on the node that is the `part`.
    fn job_series(
        &self,
        _: &Viewer,
        _: &JobKey,
        table: &'static Table,
        _part: &str,
        _after_ms: i64,
    ) -> Result<Series> {
        Ok(Series::new(table))
    }
    /// The same of a GPU, while the job had it.
    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series>;
    /// Who had jobs in which account, of the jobs that fit and that the viewer sees.
    fn memberships(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Membership>> {
        Ok(grouping::memberships(&every_job(self, viewer, filter)?))
    }
    /// The users whose jobs the viewer sees, with their accounts.
    fn users(&self, viewer: &Viewer) -> Result<Vec<Group>> {
        Ok(grouping::users(&self.memberships(viewer, &JobsFilter::default())?))
    }
    /// The accounts of the jobs that the viewer sees, with their users.
    fn accounts(&self, viewer: &Viewer) -> Result<Vec<Group>> {
        Ok(grouping::accounts(&self.memberships(viewer, &JobsFilter::default())?))
    }
    /// What jobs used that ended within a time, of those that fit and that the viewer sees.
    fn sums(&self, viewer: &Viewer, filter: &JobsFilter, span: &SumSpan) -> Result<Vec<Sum>> {
        Ok(grouping::sums(&every_job(self, viewer, filter)?, span))
    }
    /// Use over time, of the jobs that the viewer sees, and of machines.
    fn usage(&self, _: &Viewer, _: &UsageAsk) -> Result<Usage> {
        Ok(Usage::default())
    }
    /// What was done about findings of jobs that the viewer sees.
    fn reactions(&self, _: &Viewer) -> Result<Vec<Reaction>> {
        Ok(Vec::new())
    }
    /// How many jobs wait, as schedulers count them; only for viewers who see all jobs.
    fn queues(&self, _: &Viewer) -> Result<Vec<Queue>> {
        Ok(Vec::new())
    }
    /// The machines. All users may see them; their number of jobs is that of jobs which the viewer sees.
    fn nodes(&self, viewer: &Viewer) -> Result<Vec<NodeStatus>>;
    /// The parts of this machine with samples from a time on; `None` from a server, which is no node.
    fn node_parts(&self, _since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        Ok(None)
    }
    /// The samples of such a part after a time, as those of a job.
    fn node_part_series(&self, _: &'static Table, _part: &str, _after_ms: i64) -> Result<Option<Series>> {
        Ok(None)
    }
    /// The series after a time of a node of a cluster, as far as they fit an answer; `None` if there is no such node.
    fn node_series(&self, _node: &str, _after_ms: i64) -> Result<Option<NodeSpan>> {
        Ok(None)
    }
}

/// Answers a request that only reads; `None` for any other.
pub fn answer(query: &dyn Query, viewer: &Viewer, request: &Request) -> Result<Option<Reply>> {
    let series = |series: Series| Reply::Series(WireSeries::of(&series));
    Ok(Some(match request {
        Request::Jobs(filter) => {
            let (page, warnings) = query.jobs(viewer, filter)?;
            filter.reply(page, warnings)
        }
        Request::Find(job) => found(query.find(viewer, job, None)?),
        Request::FindAfter { job, after } => found(query.find(viewer, job, Some(after))?),
        Request::FindOf { job, uid, after } => match viewer {
            Viewer::Everything => found(query.find(&Viewer::Uid(*uid), job, after.as_ref())?),
            Viewer::Uid(own) if own == uid => found(query.find(viewer, job, after.as_ref())?),
            _ => found(Page::default()),
        },
        Request::Series { key, after_ms } => series(query.series(viewer, key, *after_ms)?),
        Request::JobSeries { key, table, part, after_ms } => match jobs::further_table(table) {
            None => Reply::Series(WireSeries::default()),
            Some(table) => series(query.job_series(viewer, key, table, part, *after_ms)?),
        },
        Request::GpuSeries { key, uuid, after_ms } => series(query.gpu_series(viewer, key, uuid, *after_ms)?),
        Request::Memberships { filter } => Reply::Memberships(query.memberships(viewer, filter)?),
        Request::Sums { filter, span } => Reply::Sums(query.sums(viewer, filter, span)?),
        Request::Usage(ask) => Reply::Usage(query.usage(viewer, ask)?),
        Request::Reactions { change: None } => Reply::Reactions(query.reactions(viewer)?),
        Request::Queues => Reply::Queues(query.queues(viewer)?),
        Request::Nodes => Reply::Nodes(nodes(query, viewer)?),
        Request::NodeParts { since_ms } => {
            let Some(parts) = query.node_parts(*since_ms)? else { return Ok(None) };
            Reply::NodeParts(parts.into_iter().map(|part| (part.table, part.part)).collect())
        }
        Request::NodePartSeries { table, part, after_ms } => match met_sources::table(table) {
            // What a newer or older program measured has no name here.
            None => Reply::Series(WireSeries::default()),
            Some(table) => return Ok(query.node_part_series(table, part, *after_ms)?.map(series)),
        },
        Request::NodeSeries { node, after_ms } => match query.node_series(node, *after_ms)? {
            Some(span) => Reply::NodeSeries(wire(span)),
            None => Reply::refusal(&Failure::usage(format!("no node named {node:?}; `met nodes` lists all"))),
        },
        _ => return Ok(None),
    }))
}

/// The nodes, as a viewer may see them: why a source fails is for those who see everything.
pub fn nodes<Q: Query + ?Sized>(query: &Q, viewer: &Viewer) -> Result<Vec<NodeStatus>> {
    let mut nodes = query.nodes(viewer)?;
    if !viewer.sees_all() {
        for failing in nodes.iter_mut().flat_map(|node| &mut node.health.failing_sources) {
            *failing = std::mem::take(failing).without_details();
        }
    }
    Ok(nodes)
}

fn wire(span: NodeSpan) -> NodeSeries {
    let one = |(part, series): (NodePart, Series)| (part.table, part.part, WireSeries::of(&series));
    NodeSeries { parts: span.all_series.into_iter().map(one).collect(), until_ms: span.until_ms }
}

/// Jobs that run.
pub fn running() -> JobsFilter {
    JobsFilter {
        states: vec![State::Running, State::Suspended],
        page: PageAsk::paged(),
        ..JobsFilter::default()
    }
}

/// How many of these jobs are on a node.
pub fn on_node(jobs: &[Record], node: &str) -> usize {
    jobs.iter().filter(|record| record.nodes.iter().any(|known| known == node)).count()
}

/// All pages of a list.
pub fn every_job<Q: Query + ?Sized>(query: &Q, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Record>> {
    Ok(first_jobs(query, viewer, filter, usize::MAX)?.jobs)
}

/// The first jobs of a list.
#[derive(Debug, Default)]
pub struct FirstJobs {
    pub jobs: Vec<Record>,
    /// The list goes on.
    pub is_cut: bool,
    /// In sentences what is missing from the list.
    pub warnings: Vec<String>,
}

/// The same, until there are so many jobs.
pub fn first_jobs<Q: Query + ?Sized>(
    query: &Q,
    viewer: &Viewer,
    filter: &JobsFilter,
    count: usize,
) -> Result<FirstJobs> {
    let (mut filter, mut first) = (
        JobsFilter { page: PageAsk { paged: true, ..filter.page.clone() }, ..filter.clone() },
        FirstJobs::default(),
    );
    loop {
        let (Page { jobs, next }, warnings) = query.jobs(viewer, &filter)?;
        first.jobs.extend(jobs);
        for warning in warnings {
            if !first.warnings.contains(&warning) {
                first.warnings.push(warning);
            }
        }
        match next.filter(|next| filter.continues_at(next)) {
            None => return Ok(first),
            Some(_) if first.jobs.len() >= count => return Ok(FirstJobs { is_cut: true, ..first }),
            next => filter.page.after = next,
        }
    }
}

/// Use over time from a store, and of the jobs that run, of those that the viewer sees.
pub fn usage_in(store: &Queries, viewer: &Viewer, ask: &UsageAsk, live: &[Record]) -> Result<Usage> {
    if let Some(problem) = ask.problem() {
        return Err(Failure::usage(problem.to_owned()));
    }
    let sees = |group: met_core::usage::GroupRef<'_>| viewer.sees_group(group);
    let answer = met_store::usage(store, ask, &sees, live, jobs::now_ns())?;
    let answer = answer.map(|usage| Usage { is_partial: !viewer.sees_all(), ..usage });
    answer.map_err(|UsageTooLong| {
        Failure::usage(
            "that is too many lines; ask for a shorter time, longer periods or one user".to_owned(),
        )
    })
}

/// A list without jobs.
pub fn nothing() -> (Page, Vec<String>) {
    (Page { jobs: Vec::new(), next: None }, Vec::new())
}

/// An answer to `Find`. One that fits is what clients of every version understand.
fn found(page: Page) -> Reply {
    match page.next {
        Some(_) => {
            let Page { jobs, next } = page;
            Reply::JobsPage { jobs, next, warnings: Vec::new(), protocol: 0 }
        }
        None => Reply::Jobs(page.jobs),
    }
}

/// The jobs in a store that a reference may mean, of those that the viewer sees.
pub fn find_in(store: &Queries, viewer: &Viewer, job: &JobRef) -> Result<Vec<Record>, StoreError> {
    let own = viewer.restrict(&JobsFilter::default()).unwrap_or_default();
    let whose = Filter {
        owner: JobOwner { uid: own.owner.uid, member: own.owner.member, ..JobOwner::default() },
        ..Filter::default()
    };
    let mut found = jobs::find(store, job, &whose)?;
    found.retain(|record| viewer.sees(record));
    Ok(found)
}

/// Warnings about jobs that could not be read. Only those who may see all jobs get their ids.
pub fn warn_unreadable(viewer: &Viewer, names: &[String]) -> Vec<String> {
    let warning = match viewer.sees_all() {
        true => jobs::unreadable(names),
        false => (!names.is_empty()).then(|| "the store is damaged; jobs may be missing".to_owned()),
    };
    warning.into_iter().collect()
}

/// Whether the viewer sees a job of a store.
pub fn sees(store: &Queries, viewer: &Viewer, key: &JobKey) -> Result<bool, StoreError> {
    Ok(viewer.sees_all() || store.get(key)?.is_some_and(|record| viewer.sees(&record)))
}
