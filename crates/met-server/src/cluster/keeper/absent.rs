//! Nodes that are gone, and the jobs that were last seen there.
//!
//! What such a node told stays as it was told. While it is gone its jobs count as lost, as far as they were seen;
//! when it speaks again they count as what it says.

use std::collections::HashSet;
use std::time::Duration;

use met_core::job::{JobKey, Record, State};
use met_store::StoreError;
use met_store::cluster::{Log, Told, ToldKey};

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
        if give_up {
            self.recall_parts(node, &told)?;
        }
        let keys: HashSet<JobKey> = told.iter().map(key_of_whole).collect();
        self.put_wholes(keys)?;
        self.log.give_up(&told, give_up)
    }

    /// How these parts of jobs stood when they were last seen. Where that cannot be read now it is not decided that they
    /// are lost either: nobody looks again.
    fn recall_parts(&self, node: &str, parts: &[ToldKey]) -> Result<(), StoreError> {
        for part in parts {
            for told in self.log.told(&part.manager, &part.id)? {
                if told.node == node && told.record.key.incarnation == part.incarnation {
                    self.recall_part(node, &told.record)?;
                }
            }
        }
        Ok(())
    }

    /// A server that was started since the node fell silent knows it from the store alone, however long ago it was.
    fn recall_part(&self, node: &str, record: &Record) -> Result<(), StoreError> {
        let key = series_key(node, &record.key);
        if self.latest.get(&key).is_none() {
            let begin_ms = record.start_ns.map_or(i64::MIN, |ns| (ns / 1_000_000).saturating_sub(60_000));
            self.latest.learn(&key, &self.writer.course_between(&key, begin_ms, i64::MAX)?);
        }
        Ok(())
    }

    /// What a node told of a job, and what is known of that if the node is gone.
    pub(super) fn as_known(&self, told: Told) -> (String, Record) {
        let Told { node, mut record, heard_ns, .. } = told;
        if !record.state.is_live() || !self.gone.contains(&node) {
            return (node, record);
        }
        if let Err(error) = self.recall_part(&node, &record) {
            tracing::warn!("how job {} stood on {node} cannot be read: {error}", record.key.id);
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
