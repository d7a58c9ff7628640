//! Which jobs of many are wanted.

use std::cmp::Ordering;

use met_core::bounds;
use met_core::conditions::{Conditions, OnNodes};
use met_core::job::{Record, State};
use met_core::listing::{Cursor, Order, Sort};
use met_store::{Filter, JobOwner, JobTimes, Page, PageBounds};
use serde::{Deserialize, Serialize};

use super::now_ns;
use crate::handshake::PROTOCOL;
use crate::protocol::Reply;

/// Jobs among which earlier runs of one are looked for.
pub(super) const LINEAGE_CANDIDATES: usize = 300;

/// Which jobs are wanted, and in which order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobsFilter {
    #[serde(flatten)]
    pub times: JobTimes,
    pub states: Vec<State>,
    /// Narrowed for the viewer ([`crate::viewer::Viewer::restrict`]).
    #[serde(flatten)]
    pub owner: JobOwner,
    pub name: Option<String>,
    // A daemon of an earlier version sends none.
    #[serde(default)]
    pub manager: Option<String>,
    #[serde(flatten)]
    pub page: PageAsk,
    /// Only jobs that had a GPU.
    #[serde(default)]
    #[serde(rename = "with_cards")]
    pub with_gpus: bool,
    /// Only jobs of which a process with this number is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Without processes and marked work. Daemons and servers of earlier versions send these all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_brief: bool,
    /// Daemons and servers before [`crate::handshake::CONDITIONS`] overlook these and the order.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// For a store; over a connection it becomes one question for each node.
    #[serde(skip)]
    pub on_nodes: Option<OnNodes>,
}

/// Which part of the list is wanted, and in which order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PageAsk {
    pub limit: Option<usize>,
    /// Of a client that pages by the time of the start: so many jobs further on, among those that have not started.
    #[serde(default)]
    pub skip: usize,
    /// The answer may come in pages, which clients of earlier versions know only by their times.
    #[serde(default)]
    pub paged: bool,
    /// Behind which job the page begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
    /// `None`: newest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
}

/// Records in one reply: a reader may be slow, and the reply is held until it is read.
pub const PAGE_BYTES: usize = 4 << 20;
/// Records in a reply to a client that knows no pages: one of an earlier version asks for 1000 jobs at a time, and
/// takes a shorter list for the end of all. More than this is refused.
pub const WHOLE_BYTES: usize = 16 << 20;
/// Jobs in one reply.
pub const PAGE_JOBS: usize = 500;

impl PageAsk {
    /// The first jobs of the list.
    pub fn first(limit: usize) -> PageAsk {
        PageAsk { limit: Some(limit), ..PageAsk::default() }
    }

    /// The list in pages.
    pub fn paged() -> PageAsk {
        PageAsk { paged: true, ..PageAsk::default() }
    }

    pub fn order(&self) -> Order {
        Order::new(self.sort, self.after.as_ref(), now_ns())
    }

    fn to_store(&self) -> PageBounds {
        PageBounds {
            sort: self.sort,
            now_ns: now_ns(),
            after: self.after.clone(),
            limit: match self.paged {
                true => Some(self.limit.unwrap_or(usize::MAX).min(PAGE_JOBS)),
                false => self.limit.map(|limit| limit.saturating_add(self.skip)),
            },
            max_bytes: self.paged.then_some(PAGE_BYTES),
        }
    }
}

impl JobsFilter {
    pub fn to_store(&self) -> Filter {
        let mut states = self.states.clone();
        // The store knows that a job runs; whether it is stopped is seen by looking at it.
        if states.contains(&State::Suspended) {
            states.push(State::Running);
        }
        let mut page = self.page.to_store();
        // Running jobs are checked afterwards, and some of them are dropped; the page stays complete.
        if !self.page.paged && self.states.iter().any(|state| state.is_live()) {
            page.limit = None;
        }
        Filter {
            times: self.times,
            owner: self.owner.clone(),
            page,
            states,
            name: self.name.clone(),
            manager: self.manager.clone(),
            with_summaries: true,
            is_brief: self.is_brief,
            with_gpus: self.with_gpus,
            pid: self.pid,
            conditions: self.conditions.clone(),
            on_nodes: self.on_nodes.clone(),
        }
    }

    /// For what is counted over all jobs that fit.
    pub fn to_store_whole(&self) -> Filter {
        let store = self.to_store();
        Filter { page: PageBounds { now_ns: store.page.now_ns, ..PageBounds::default() }, ..store }
    }

    /// Whether a daemon or server of an earlier version would misunderstand it.
    pub fn is_extended(&self) -> bool {
        self.page.sort.is_some() || !self.conditions.is_empty()
    }

    /// Whether a page that begins behind this job is a later one: who does not get on is not asked for ever.
    pub fn continues_at(&self, next: &Cursor) -> bool {
        self.page.after.as_ref().is_none_or(|after| self.order().compare(after, next) == Ordering::Less)
    }

    /// The order of the list.
    pub fn order(&self) -> Order {
        self.page.order()
    }

    /// Narrows to the jobs of a user, by name or by number.
    pub fn of_user(mut self, user: Option<&str>) -> JobsFilter {
        let uid = user.and_then(|user| user.parse().ok());
        self.owner.uid = uid.or(self.owner.uid);
        self.owner.user = user.filter(|_| uid.is_none()).map(str::to_owned);
        self
    }

    /// The jobs among which earlier runs of a job are looked for: the newest of its user and manager, those that began
    /// before a time, without their processes; if a tag names its lineage, the newest of these that have it. `None` of a job without a user: there is no telling whose runs are alike.
    pub fn perhaps_of_lineage(record: &Record, until_ns: Option<i64>) -> Option<JobsFilter> {
        let user = met_insight::rules::user::owner(record)?;
        let manager = Some(record.key.manager.clone());
        let times = JobTimes { until_ns, ..JobTimes::default() };
        let page = PageAsk::first(LINEAGE_CANDIDATES);
        let conditions =
            Conditions { tag: met_insight::lineage::tag(record).map(str::to_owned), ..Conditions::default() };
        let filter = JobsFilter { times, manager, page, conditions, is_brief: true, ..JobsFilter::default() };
        Some(filter.of_user(Some(&user)))
    }

    /// As [`JobsFilter::to_store`], for a reply to another process: its size is bounded in any case.
    pub fn to_store_for_reply(&self) -> Filter {
        let mut store = self.to_store();
        store.page.max_bytes.get_or_insert(WHOLE_BYTES);
        store
    }

    /// The answer: a page that was asked for with [`JobsFilter::to_store_for_reply`], its running jobs looked at.
    pub fn reply(&self, page: Page, warnings: Vec<String>) -> Reply {
        let Page { mut jobs, next } = page;
        let is_below = |limit: Option<usize>, count: usize| limit.is_none_or(|limit| count < limit);
        let is_cut = next.is_some() && is_below(self.to_store().page.limit, jobs.len());
        self.retain(&mut jobs);
        if self.page.paged {
            let protocol = if self.is_extended() { PROTOCOL } else { 0 };
            return Reply::JobsPage { jobs, next, warnings, protocol };
        }
        if is_cut && is_below(self.page.limit, jobs.len()) {
            let most = WHOLE_BYTES >> 20;
            let message = format!(
                "more than {most} MiB of jobs, too many for one reply: query them in pages, as newer \
                 versions of met do, or fewer by time, state or limit"
            );
            return Reply::error(message);
        }
        Reply::Jobs(jobs)
    }

    /// Keeps the jobs of a page that have the requested state now. A page may have fewer jobs than its limit.
    pub fn retain_states(&self, jobs: &mut Vec<Record>) {
        jobs.retain(|record| self.states.is_empty() || self.states.contains(&record.state));
        jobs.retain(|record| !self.with_gpus || !record.gpus.is_empty());
    }

    /// Keeps what still fits after the running jobs were looked at.
    pub fn retain(&self, jobs: &mut Vec<Record>) {
        self.retain_states(jobs);
        jobs.drain(..self.page.skip.min(jobs.len()));
        jobs.truncate(self.page.limit.unwrap_or(usize::MAX));
    }
}

/// The part of a list behind `after` that fits one reply, and where the list goes on.
pub fn page_of(mut jobs: Vec<Record>, after: Option<&Cursor>) -> (Vec<Record>, Option<Cursor>) {
    met_core::listing::sort(&mut jobs);
    jobs.retain(|record| after.is_none_or(|after| Cursor::of(record) < *after));
    let mut bytes = 0;
    let fitting = jobs.iter().take_while(|record| {
        let fits = bytes < PAGE_BYTES;
        bytes += bounds::bytes(record);
        fits
    });
    let count = fitting.count().min(PAGE_JOBS);
    let next = (count < jobs.len()).then(|| jobs[..count].last().map(Cursor::of)).flatten();
    jobs.truncate(count);
    (jobs, next)
}

#[cfg(test)]
mod tests {
    use met_store::{Reader, Writer};

    use super::*;

    /// A store with jobs of this size.
    fn store(count: u32, bytes: usize) -> (tempfile::TempDir, Reader) {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let job = |id: u32| {
            let command = vec!["x".repeat(bytes)];
            Record { start_ns: Some(i64::from(id)), command, ..met_core::sample::full(id, "train") }
        };
        writer.put_all(&(1..=count).map(job).collect::<Vec<_>>()).unwrap();
        let reader = Reader::open(state.path()).unwrap();
        (state, reader)
    }

    fn answer(reader: &Reader, filter: &JobsFilter) -> Reply {
        filter.reply(reader.page(&filter.to_store_for_reply()).unwrap(), Vec::new())
    }

    #[test]
    fn a_list_without_pages_is_bounded_and_not_cut_silently() {
        let (_state, reader) = store(200, 120_000);
        let all = JobsFilter::default();
        let page = reader.page(&all.to_store_for_reply()).unwrap();
        let bytes: usize = page.jobs.iter().map(bounds::bytes).sum();
        assert!(bytes < WHOLE_BYTES + (10 << 20), "{bytes}");
        let Reply::Error { message, .. } = answer(&reader, &all) else { panic!("more than a reply holds") };
        assert!(message.contains("16 MiB") && message.contains("in pages"), "{message}");
        let older = JobsFilter { page: PageAsk::first(1000), ..JobsFilter::default() };
        assert!(
            matches!(answer(&reader, &older), Reply::Error { .. }),
            "a short list would be taken for all"
        );
        let some = JobsFilter { page: PageAsk::first(20), ..JobsFilter::default() };
        assert!(matches!(answer(&reader, &some), Reply::Jobs(jobs) if jobs.len() == 20));
        let running = JobsFilter { states: vec![State::Running, State::Finished], ..some };
        assert!(matches!(answer(&reader, &running), Reply::Jobs(jobs) if jobs.len() == 20));
        let paged = JobsFilter { page: PageAsk { paged: true, ..all.page }, ..all };
        assert!(matches!(answer(&reader, &paged), Reply::JobsPage { next: Some(_), .. }));
    }

    #[test]
    fn only_an_answer_to_an_extended_filter_says_a_version() {
        let (_state, reader) = store(1, 1);
        let said = |filter: JobsFilter| serde_json::to_string(&answer(&reader, &filter)).unwrap();
        let plain = JobsFilter { page: PageAsk::paged(), ..JobsFilter::default() };
        assert!(!said(plain.clone()).contains("protocol"));
        let sorted =
            JobsFilter { page: PageAsk { sort: Some("name".parse().unwrap()), ..plain.page }, ..plain };
        assert!(said(sorted).contains(&format!("\"protocol\":{PROTOCOL}")));
    }

    #[test]
    fn the_groups_of_a_filter_are_not_seen_on_the_wire() {
        // As daemons and servers of every version read it.
        let text = concat!(
            r#"{"since_ns":1,"states":["failed"],"uid":7,"user":"ada","name":null,"manager":null,"#,
            r#""account":"maths","member":{"user":"ada","accounts":["maths"]},"limit":3,"until_ns":9,"#,
            r#""with_cards":false,"skip":2,"paged":true,"sort":{"column":"name","descending":false},"ran_after_ns":5}"#
        );
        let filter: JobsFilter = serde_json::from_str(text).unwrap();
        assert_eq!(
            (filter.times.since_ns, filter.times.until_ns, filter.times.ran_after_ns),
            (Some(1), Some(9), Some(5))
        );
        assert_eq!((filter.owner.uid, filter.owner.account.as_deref()), (Some(7), Some("maths")));
        assert_eq!((filter.page.limit, filter.page.skip, filter.page.paged), (Some(3), 2, true));
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&serde_json::to_string(&filter).unwrap()), value(text));
        let oldest: JobsFilter = serde_json::from_str(r#"{"states":[]}"#).unwrap();
        assert!(oldest.page.limit.is_none() && oldest.owner.user.is_none() && !oldest.page.paged);
        let closed: JobsFilter =
            serde_json::from_str(r#"{"states":[],"settled_ns":5,"ended_after_ns":5}"#).unwrap();
        assert_eq!(
            (closed.times.settled_ns, closed.times.ended_after_ns),
            (None, None),
            "for the store alone"
        );
    }

    #[test]
    fn a_client_that_pages_by_time_gets_on_as_before() {
        let (_state, reader) = store(1500, 100);
        let mut filter = JobsFilter { page: PageAsk::first(1000), ..JobsFilter::default() };
        let Reply::Jobs(first) = answer(&reader, &filter) else { panic!("it fits") };
        assert_eq!(first.len(), 1000);
        filter.times.until_ns = first.last().and_then(|job| job.start_ns);
        assert!(matches!(answer(&reader, &filter), Reply::Jobs(rest) if rest.len() == 500));
    }
}
