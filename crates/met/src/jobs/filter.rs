//! Which jobs of many are wanted.

use met_core::bounds;
use met_core::job::{Record, State};
use met_core::listing::{self, Cursor};
use met_store::Filter;
use serde::{Deserialize, Serialize};

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
    /// The answer may come in pages, which the older fields above know only by their times.
    #[serde(default)]
    pub paged: bool,
    /// Behind which job the page begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
}

/// Records in one reply: a reader may be slow, and the reply is held until it is read.
pub const PAGE_BYTES: usize = 4 << 20;
/// Jobs in one reply.
pub const PAGE_JOBS: usize = 500;

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
            // Jobs that run are looked at afterwards, and some of them fall out; of a page that costs nothing.
            limit: match self.paged {
                true => Some(self.limit.unwrap_or(usize::MAX).min(PAGE_JOBS)),
                false => self
                    .limit
                    .filter(|_| !self.states.iter().any(|state| state.is_live()))
                    .map(|limit| limit.saturating_add(self.skip)),
            },
            after: self.after.clone(),
            max_bytes: self.paged.then_some(PAGE_BYTES),
            until_ns: self.until_ns,
            with_summaries: true,
            with_cards: self.with_cards,
        }
    }

    /// Keeps what still fits after the running jobs were looked at.
    pub fn retain(&self, jobs: &mut Vec<Record>) {
        jobs.retain(|record| self.states.is_empty() || self.states.contains(&record.state));
        jobs.retain(|record| !self.with_cards || !record.gpus.is_empty());
        jobs.drain(..self.skip.min(jobs.len()));
        jobs.truncate(self.limit.unwrap_or(usize::MAX));
    }
}

/// The part of a list behind `after` that fits one reply, and where the list goes on.
pub fn page_of(mut jobs: Vec<Record>, after: Option<&Cursor>) -> (Vec<Record>, Option<Cursor>) {
    listing::sort(&mut jobs);
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
