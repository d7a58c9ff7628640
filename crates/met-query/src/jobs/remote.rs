//! Jobs by asking: a daemon on its socket, or a server over HTTP.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::cadence::WANTED_JOBS_MAX;
use met_core::conditions::{Conditions, OnNodes};
use met_core::grouping::{Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record};
use met_core::listing::sort_ns;
use met_core::queue::Queue;
use met_core::reaction::{Reaction, ReactionChange};
use met_core::series::{SPREAD_NAMES, Series, Spreads};
use met_core::usage::{Usage, UsageAsk};
use met_core::{JOB, MISSING, Table, gpu};
use met_store::{NodePart, Page};

use super::filter::PAGE_JOBS;
use super::{CALLER, JobRef, JobsFilter, PageAsk, Source, merge};
use crate::annotate::{self, Annotates};
use crate::handshake::CONDITIONS;
use crate::protocol::{NodeSeries, NodeStatus, Reply, Request, WireSeries};
use crate::query::{NodeSpan, Query, every_job, nothing, on_node, running};
use crate::react;
use crate::sample_more::SamplesMore;
use crate::viewer::Viewer;
use met_core::listing::Cursor;

/// A daemon without pages sends so many jobs in one reply.
const OLDER_PAGE_JOBS: usize = 1000;

/// What answers requests: a daemon on its socket, or a server.
pub trait Answers: Send {
    /// Asks and waits for the answer; the error says in full why there is none.
    fn call(&mut self, request: &Request) -> Result<Reply>;
    /// What it is called in complaints.
    fn what(&self) -> &'static str;
}

/// The daemon or server knows the caller by the connection and applies the rule of that viewer; the viewer given here narrows
/// the answer further.
pub struct Remote {
    answers: Mutex<Box<dyn Answers>>,
}

impl Remote {
    pub fn new(answers: impl Answers + 'static) -> Remote {
        Remote { answers: Mutex::new(Box::new(answers)) }
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).call(request)
    }

    fn unexpected<T>(&self, reply: &Reply) -> Result<T> {
        let what = self.answers.lock().unwrap_or_else(PoisonError::into_inner).what();
        bail!("unexpected reply from {what}: {reply:?}")
    }

    /// The rest of a list of which a daemon of an earlier version sent the first jobs: it continues by their times.
    fn older_jobs(&self, filter: &JobsFilter, first: Vec<Record>) -> Result<Vec<Record>> {
        let wanted = filter.page.limit.unwrap_or(usize::MAX);
        let (mut page, mut more, mut jobs) = (filter.clone(), first, Vec::new());
        loop {
            let (before, is_last) = (jobs.len(), more.len() < OLDER_PAGE_JOBS);
            // Pages overlap in the jobs of one instant: `merge` keeps each of them once.
            match more.last().map(sort_ns) {
                // Those that wait come first and have no time to go on from.
                Some(i64::MAX) => page.page.skip += more.len(),
                begun_ns => {
                    (page.times.until_ns, page.page.skip) = (begun_ns.map(|begun_ns| begun_ns + 1), 0)
                }
            }
            jobs.extend(more);
            jobs = merge(jobs);
            if is_last || jobs.len() == before || jobs.len() >= wanted {
                return Ok(jobs);
            }
            page.page.limit = Some(OLDER_PAGE_JOBS.min(wanted - jobs.len()));
            more = match self.ask(&Request::Jobs(page.clone()))? {
                Reply::Jobs(jobs) => jobs,
                reply => return self.unexpected(&reply),
            };
        }
    }

    /// A page from a daemon or server that overlooks conditions and order: all its jobs are asked for, page by page,
    /// and as many of those that fit are kept as the page has.
    fn narrowed_here(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let (order, count) = (filter.order(), filter.page.limit.unwrap_or(PAGE_JOBS).min(PAGE_JOBS));
        let mut asked = JobsFilter {
            conditions: Conditions::default(),
            page: PageAsk { sort: None, after: None, limit: None, ..filter.page.clone() },
            ..filter.clone()
        };
        let (mut kept, mut warnings) = (Vec::new(), Vec::new());
        loop {
            let (Page { mut jobs, next }, said) = self.jobs(viewer, &asked)?;
            jobs.retain(|record| {
                filter.conditions.accept(record, order.as_of_ns)
                    && filter.page.after.as_ref().is_none_or(|after| order.is_behind(record, after))
            });
            kept.extend(jobs);
            warnings.extend(said);
            let next = next.filter(|next| asked.page.after.as_ref().is_none_or(|after| next < after));
            // Not for every page: most of what is kept is sorted already.
            if next.is_none() || kept.len() >= 2 * count {
                order.sort(&mut kept);
                // One more says that the list goes on.
                kept.truncate(count + 1);
            }
            if next.is_none() {
                break;
            }
            asked.page.after = next;
        }
        warnings.sort_unstable();
        warnings.dedup();
        let goes_on = kept.len() > count;
        kept.truncate(count);
        let next = order.next(filter.page.after.as_ref(), &kept).filter(|_| goes_on);
        Ok((Page { jobs: kept, next }, warnings))
    }

    /// The newest jobs of each of some nodes, of those that ran at the time: a daemon or server of an earlier version can
    /// be asked for one node at a time.
    fn on_each_node(
        &self,
        viewer: &Viewer,
        filter: &JobsFilter,
        on_nodes: &OnNodes,
    ) -> Result<(Page, Vec<String>)> {
        let limit = filter.page.limit.map(|limit| limit.div_ceil(on_nodes.nodes.len().max(1)));
        let (mut jobs, mut warnings) = (Vec::new(), Vec::new());
        for node in &on_nodes.nodes {
            let conditions = Conditions { node: Some(node.clone()), ..filter.conditions.clone() };
            let asked = JobsFilter {
                on_nodes: None,
                conditions,
                page: PageAsk { limit, ..filter.page.clone() },
                ..filter.clone()
            };
            let (page, said) = self.jobs(viewer, &asked)?;
            jobs.extend(page.jobs);
            warnings.extend(said);
        }
        jobs.retain(|record| on_nodes.accept(record));
        warnings.sort_unstable();
        warnings.dedup();
        Ok((Page { jobs: merge(jobs), next: None }, warnings))
    }

    fn page_of_series(&self, table: &'static Table, request: &Request) -> Result<Series> {
        match self.ask(request)? {
            Reply::Series(series) => Ok(series.into_series(table)),
            reply => self.unexpected(&reply),
        }
    }

    /// Whether the viewer sees the job. The daemon or server may show more than this viewer may see.
    fn sees(&self, viewer: &Viewer, key: &JobKey) -> Result<bool> {
        if viewer.sees_all() {
            return Ok(true);
        }
        Ok(self.seen(viewer, key)?.is_some())
    }

    /// The job, if the viewer sees it.
    fn seen(&self, viewer: &Viewer, key: &JobKey) -> Result<Option<Record>> {
        let job =
            JobRef::Id { manager: Some(key.manager.clone()), id: key.id.clone(), node: None, user: None };
        Ok(self.find(viewer, &job, None)?.jobs.into_iter().find(|record| record.key == *key))
    }
}

impl Query for Remote {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(nothing()) };
        if let Some(on_nodes) = &filter.on_nodes {
            return self.on_each_node(viewer, &filter, on_nodes);
        }
        let paged = JobsFilter { page: PageAsk { paged: true, ..filter.page.clone() }, ..filter.clone() };
        let (mut page, warnings) = match self.ask(&Request::Jobs(paged))? {
            Reply::JobsPage { protocol, .. } if filter.is_extended() && protocol < CONDITIONS => {
                return self.narrowed_here(viewer, &filter);
            }
            Reply::JobsPage { jobs, next, warnings, .. } => (Page { jobs, next }, warnings),
            Reply::Jobs(_) if filter.is_extended() => return self.narrowed_here(viewer, &filter),
            // One that knows no pages has overlooked that they were asked for.
            Reply::Jobs(first) => (Page { jobs: self.older_jobs(&filter, first)?, next: None }, Vec::new()),
            reply => return self.unexpected(&reply),
        };
        page.jobs.retain(|record| viewer.sees(record));
        Ok((page, warnings))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> Result<Page> {
        let request = match (viewer, after) {
            (Viewer::Uid(uid), after) => {
                Request::FindOf { job: job.clone(), uid: *uid, after: after.cloned() }
            }
            (_, None) => Request::Find(job.clone()),
            (_, Some(after)) => Request::FindAfter { job: job.clone(), after: after.clone() },
        };
        let mut page = match self.ask(&request)? {
            Reply::Jobs(jobs) => Page { jobs, next: None },
            Reply::JobsPage { jobs, next, .. } => Page { jobs, next },
            reply => return self.unexpected(&reply),
        };
        page.jobs.retain(|record| viewer.sees(record));
        if page.jobs.is_empty() && page.next.is_none() && !viewer.sees_all() {
            // The newest of all belongs to another user.
            let name = match job {
                JobRef::Id { .. } => return Ok(page),
                JobRef::Name(name) => Some(name.clone()),
                JobRef::Last => None,
            };
            let own = JobsFilter { name, page: PageAsk::first(1), ..JobsFilter::default() };
            page.jobs = self.jobs(viewer, &own)?.0.jobs;
        }
        Ok(page)
    }

    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        match self.sees(viewer, key)? {
            true => self.page_of_series(&JOB, &Request::Series { key: key.clone(), after_ms }),
            false => Ok(Series::new(&JOB)),
        }
    }

    fn job_series(
        &self,
        viewer: &Viewer,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series> {
        let (key, part) = (key.clone(), part.to_owned());
        match self.sees(viewer, &key)? {
            true => {
                let request = Request::JobSeries { key, table: table.name.to_owned(), part, after_ms };
                self.page_of_series(table, &request)
            }
            false => Ok(Series::new(table)),
        }
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        let request = Request::GpuSeries { key: key.clone(), uuid: uuid.to_owned(), after_ms };
        match self.sees(viewer, key)? {
            true => self.page_of_series(&gpu::device::TABLE, &request),
            false => Ok(Series::new(&gpu::device::TABLE)),
        }
    }

    fn memberships(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Membership>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        match self.ask(&Request::Memberships { filter })? {
            Reply::Memberships(memberships) => Ok(memberships),
            reply => self.unexpected(&reply),
        }
    }

    fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
        // Who answers narrows sums to its own viewer; they cannot be narrowed further here.
        if !viewer.sees_all() {
            bail!("use over time is shown to the owner of this page only");
        }
        match self.ask(&Request::Usage(ask.clone()))? {
            Reply::Usage(usage) => Ok(usage),
            reply => self.unexpected(&reply),
        }
    }

    fn reactions(&self, viewer: &Viewer) -> Result<Vec<Reaction>> {
        match self.ask(&Request::Reactions { change: None })? {
            Reply::Reactions(reactions) => Ok(react::seen(viewer, reactions)),
            reply => self.unexpected(&reply),
        }
    }

    fn queues(&self, viewer: &Viewer) -> Result<Vec<Queue>> {
        match self.ask(&Request::Queues)? {
            Reply::Queues(queues) if viewer.sees_all() => Ok(queues),
            Reply::Queues(_) => Ok(Vec::new()),
            reply => self.unexpected(&reply),
        }
    }

    fn sums(&self, viewer: &Viewer, filter: &JobsFilter, span: &SumSpan) -> Result<Vec<Sum>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        match self.ask(&Request::Sums { filter, span: *span })? {
            Reply::Sums(sums) => Ok(sums),
            reply => self.unexpected(&reply),
        }
    }

    fn nodes(&self, viewer: &Viewer) -> Result<Vec<NodeStatus>> {
        let mut nodes = match self.ask(&Request::Nodes)? {
            Reply::Nodes(nodes) => nodes,
            reply => return self.unexpected(&reply),
        };
        if !viewer.sees_all() {
            let running = every_job(self, viewer, &running())?;
            nodes.iter_mut().for_each(|node| node.jobs = on_node(&running, &node.name));
        }
        Ok(nodes)
    }

    fn node_parts(&self, since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        match self.ask(&Request::NodeParts { since_ms })? {
            Reply::NodeParts(parts) => {
                Ok(Some(parts.into_iter().map(|(table, part)| NodePart { table, part }).collect()))
            }
            reply => self.unexpected(&reply),
        }
    }

    fn node_part_series(&self, table: &'static Table, part: &str, after_ms: i64) -> Result<Option<Series>> {
        let request =
            Request::NodePartSeries { table: table.name.to_owned(), part: part.to_owned(), after_ms };
        self.page_of_series(table, &request).map(Some)
    }

    fn node_series(&self, node: &str, after_ms: i64) -> Result<Option<NodeSpan>> {
        let NodeSeries { parts, until_ms } =
            match self.ask(&Request::NodeSeries { node: node.to_owned(), after_ms })? {
                Reply::NodeSeries(all_series) => all_series,
                reply => return self.unexpected(&reply),
            };
        let mut all_series = BTreeMap::new();
        for (table, part, series) in parts {
            // What a newer or older program measured has no name here.
            let Some(known) = met_sources::table(&table) else { continue };
            all_series.insert(NodePart { table, part }, series.into_series(known));
        }
        Ok(Some(NodeSpan { all_series: all_series.into_iter().collect(), until_ms }))
    }
}

impl Annotates for Remote {
    fn annotate(&self, viewer: &Viewer, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        if !viewer.sees_all() {
            annotate::permit(viewer, self.seen(viewer, key)?.as_ref())?;
        }
        match self.ask(&Request::Annotate { key: key.clone(), change: change.clone() })? {
            Reply::Annotated(annotation) => Ok(annotation),
            reply => self.unexpected(&reply),
        }
    }
}

impl SamplesMore for Remote {
    fn sample_more(&self, viewer: &Viewer, keys: &[JobKey], wanted_for: Duration) -> Result<Vec<JobKey>> {
        let mut jobs = keys[..keys.len().min(WANTED_JOBS_MAX)].to_vec();
        if !viewer.sees_all() {
            jobs.retain(|key| self.sees(viewer, key).unwrap_or(false));
        }
        match self.ask(&Request::Watch { jobs, seconds: wanted_for.as_secs() })? {
            Reply::Watched(jobs) => Ok(jobs),
            reply => self.unexpected(&reply),
        }
    }
}

impl Source for Remote {
    fn sample_more(&self, keys: &[JobKey], wanted_for: Duration) -> Result<Vec<JobKey>> {
        SamplesMore::sample_more(self, CALLER, keys, wanted_for)
    }

    fn remove(&mut self, key: &JobKey) -> Result<()> {
        self.ask(&Request::Remove(key.clone())).map(drop)
    }

    fn close(&mut self, end: &Record) -> Result<()> {
        self.ask(&Request::Ended(Box::new(end.clone()))).map(drop)
    }

    fn annotate(&mut self, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        Annotates::annotate(self, CALLER, key, change)
    }

    fn react(&mut self, change: &ReactionChange) -> Result<()> {
        self.ask(&Request::Reactions { change: Some(change.clone()) }).map(drop)
    }
}

impl WireSeries {
    pub fn of(series: &Series) -> WireSeries {
        let known = |cells: &&Vec<i64>| cells.iter().any(|&cell| cell != MISSING);
        let optional =
            |cells: &Vec<i64>| cells.iter().map(|&cell| (cell != MISSING).then_some(cell)).collect();
        let columns = series.table.columns.iter().zip(&series.columns).filter(|(_, cells)| known(cells));
        let mut spreads = Vec::new();
        for (which, all) in SPREAD_NAMES.iter().zip(series.spreads.iter().flat_map(|spreads| &spreads.cells))
        {
            let of_columns = series.table.columns.iter().zip(all).filter(|(_, cells)| known(cells));
            let named = of_columns
                .map(|(column, cells)| (column.name.to_owned(), (*which).to_owned(), optional(cells)));
            spreads.extend(named);
        }
        WireSeries {
            times_ms: series.times_ms.clone(),
            columns: columns.map(|(column, cells)| (column.name.to_owned(), optional(cells))).collect(),
            spreads,
        }
    }

    pub fn into_series(self, table: &'static Table) -> Series {
        let mut series = Series::new(table);
        let count = self.times_ms.len();
        series.columns.iter_mut().for_each(|column| column.resize(count, MISSING));
        let missing =
            |cells: Vec<Option<i64>>| cells.into_iter().map(|cell| cell.unwrap_or(MISSING)).collect();
        for (name, cells) in self.columns {
            if let Some(column) = table.column(&name).filter(|_| cells.len() == count) {
                series.columns[column] = missing(cells);
            }
        }
        for (name, which, cells) in self.spreads {
            let which = SPREAD_NAMES.iter().position(|known| *known == which);
            if let (Some(column), Some(which), true) = (table.column(&name), which, cells.len() == count) {
                let spreads = series.spreads.get_or_insert_with(|| Box::new(Spreads::new(table)));
                spreads.cells[which][column] = missing(cells);
            }
        }
        if let Some(spreads) = &mut series.spreads {
            spreads.resize(count);
        }
        series.times_ms = self.times_ms;
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has one job.
    struct Annotated(Record);

    impl Answers for Annotated {
        fn call(&mut self, request: &Request) -> Result<Reply> {
            match request {
                Request::Find(_) => Ok(Reply::Jobs(vec![self.0.clone()])),
                Request::Annotate { .. } => Ok(Reply::Annotated(Annotation::default())),
                request => anyhow::bail!("{request:?}"),
            }
        }

        fn what(&self) -> &'static str {
            "the daemon"
        }
    }

    #[test]
    fn who_sees_a_job_by_its_account_does_not_annotate_it() {
        let mut record = met_core::sample::full(1, "train");
        (record.user, record.account) = (Some("ada".to_owned()), Some("physics".to_owned()));
        let key = record.key.clone();
        let remote = Remote::new(Annotated(record));
        let annotate = |viewer: &Viewer| {
            Annotates::annotate(&remote, viewer, &key, &AnnotationChange::default())
                .map_err(|error| error.to_string())
        };
        let bob = Viewer::User { name: "bob".to_owned(), accounts: vec!["physics".to_owned()] };
        assert!(annotate(&bob).unwrap_err().contains("only its owner or an operator"));
        assert!(annotate(&Viewer::user("eve")).unwrap_err().contains("no such job"));
        assert!(annotate(&Viewer::user("ada")).is_ok() && annotate(&Viewer::Everything).is_ok());
    }

    /// Has some jobs, and knows conditions on one node, as in the message.
    struct OfNodes(Vec<Record>);

    impl Answers for OfNodes {
        fn call(&mut self, request: &Request) -> Result<Reply> {
            let sent = serde_json::to_string(request)?;
            let Request::Jobs(filter) = serde_json::from_str(&sent)? else { bail!("{sent}") };
            let mut jobs = self.0.clone();
            jobs.retain(|record| filter.conditions.accept_record(record));
            jobs.truncate(filter.page.limit.unwrap_or(usize::MAX));
            Ok(Reply::JobsPage { jobs, next: None, warnings: vec!["old".to_owned()], protocol: CONDITIONS })
        }

        fn what(&self) -> &'static str {
            "the daemon"
        }
    }

    #[test]
    fn over_a_connection_jobs_on_some_nodes_are_asked_for_by_node() {
        let job = |id: u32, nodes: &[&str], end_ns: Option<i64>| {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            Record { nodes, end_ns, start_ns: Some(-i64::from(id)), ..met_core::sample::full(id, "train") }
        };
        let jobs = vec![
            job(1, &["n1", "n2"], None),
            job(2, &["n3"], None),
            job(3, &["n2"], Some(100)),
            job(4, &["n2"], Some(101)),
        ];
        let on_nodes = OnNodes { nodes: vec!["n1".to_owned(), "n2".to_owned()], since_ns: 100 };
        let filter =
            JobsFilter { on_nodes: Some(on_nodes), page: PageAsk::first(10), ..JobsFilter::default() };
        let (page, warnings) = Remote::new(OfNodes(jobs)).jobs(&Viewer::Everything, &filter).unwrap();
        let ids: Vec<&str> = page.jobs.iter().map(|record| record.key.id.as_str()).collect();
        assert_eq!((ids, warnings), (vec!["1", "4"], vec!["old".to_owned()]), "each once, the newest first");
    }

    #[test]
    fn a_series_arrives_as_it_was_sent_thinned_or_not() {
        let mut series = Series::new(&JOB);
        for second in 0..200 {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[0], cells[1]) = (second * second, if second % 9 == 0 { MISSING } else { second });
            series.push(second * 1000, &cells);
        }
        let mut thinner = met_core::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series);
        for series in [series, thinner.finish()] {
            let text = serde_json::to_string(&WireSeries::of(&series)).unwrap();
            assert_eq!(text.contains("spreads"), series.spreads.is_some());
            let arrived = serde_json::from_str::<WireSeries>(&text).unwrap().into_series(&JOB);
            assert_eq!((&arrived.times_ms, &arrived.columns), (&series.times_ms, &series.columns));
            assert_eq!(arrived.spreads, series.spreads);
        }
    }
}
