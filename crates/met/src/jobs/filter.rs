//! Which jobs of many are wanted.

use met_core::job::{Record, State};
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

    /// Keeps what still fits after the running jobs were looked at.
    pub fn retain(&self, jobs: &mut Vec<Record>) {
        jobs.retain(|record| self.states.is_empty() || self.states.contains(&record.state));
        jobs.retain(|record| !self.with_cards || !record.gpus.is_empty());
        jobs.drain(..self.skip.min(jobs.len()));
        jobs.truncate(self.limit.unwrap_or(usize::MAX));
    }
}
