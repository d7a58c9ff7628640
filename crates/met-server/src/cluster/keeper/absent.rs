//! Nodes that are gone, and the jobs that were last seen there.
//!
//! What such a node told stays as it was told. While it is gone its jobs count as lost, as far as they were seen;
//! when it speaks again they count as what it says.

use std::collections::HashSet;
use std::time::Duration;

use met_core::job::{JobKey, Record, State};
use met_store::StoreError;
use met_store::cluster::{Log, Told};

use super::Work;
use super::wholes::{key_of_whole, series_key};

/// A server that was away hears of its nodes within this time, and calls none of them silent before.
const HEARD_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The nodes whose jobs were given up by an earlier server.
pub(super) fn given_up(log: &Log) -> Result<HashSet<String>, StoreError> {
    Ok(log.nodes_with_jobs(true)?.into_iter().collect())
}

impl Work {
    /// Gives up the jobs of nodes that were expelled or not heard of for long, and takes back those of nodes that
    /// are here again.
    pub(super) fn look_for_nodes(&mut self, now_ns: i64) -> Result<(), StoreError> {
        let (living, given_up) = (self.log.nodes_with_jobs(false)?, self.log.nodes_with_jobs(true)?);
        let here = self.nodes_here(now_ns)?;
        self.gone = living.iter().chain(&given_up).filter(|node| !here.contains(*node)).cloned().collect();
        for node in living.iter().filter(|node| !here.contains(*node)) {
            self.settle(node, true)?;
            tracing::warn!("node {node} is gone, and its jobs are called lost until it speaks again");
        }
        for node in given_up.iter().filter(|node| here.contains(*node)) {
            self.settle(node, false)?;
        }
        Ok(())
    }

    /// The nodes that were enrolled and are not silent for too long.
    fn nodes_here(&self, now_ns: i64) -> Result<HashSet<String>, StoreError> {
        let ns = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let patience_ns = ns(self.plan.lost_after.min(HEARD_WITHIN));
        let may_tell = now_ns.saturating_sub(self.started_ns) >= patience_ns;
        let oldest_ns = now_ns.saturating_sub(ns(self.plan.lost_after));
        let mut nodes = self.log.nodes()?;
        // One that was just enrolled anew has the time to say something.
        nodes.retain(|node| !may_tell || node.seen_ns.unwrap_or(i64::MIN).max(node.enrolled_ns) >= oldest_ns);
        Ok(nodes.into_iter().map(|node| node.name).collect())
    }

    /// Writes the jobs of a node anew, and then how it stands with them: what fails is done at the next look.
    fn settle(&mut self, node: &str, give_up: bool) -> Result<(), StoreError> {
        let told = self.log.unfinished(node, !give_up)?;
        let keys: HashSet<JobKey> = told.iter().map(key_of_whole).collect();
        self.put_wholes(keys)?;
        self.log.give_up(&told, give_up)
    }

    /// What a node told of a job, and what is known of that if the node is gone.
    pub(super) fn as_known(&self, told: Told) -> (String, Record) {
        let Told { node, mut record, heard_ns, .. } = told;
        if !record.state.is_live() || !self.gone.contains(&node) {
            return (node, record);
        }
        let key = series_key(&node, &record.key);
        let sampled_ns = self.latest.get(&key).map(|sample| sample.time_ms.saturating_mul(1_000_000));
        record.state = State::Lost;
        // When it ended nobody knows; it was last heard of then.
        record.end_ns = [sampled_ns, heard_ns, record.start_ns].into_iter().flatten().max();
        self.latest.leave(&key, &mut record);
        (node, record)
    }
}
