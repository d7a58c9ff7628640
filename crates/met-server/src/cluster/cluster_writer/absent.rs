//! Nodes that are gone, and the jobs that were last seen there.
//!
//! Records of such a node stay as they were sent. While it is gone, its jobs count as lost, as far as they were seen;
//! when it sends again, its records count.

use std::collections::HashSet;
use std::time::Duration;

use met_core::job::{JobKey, Record, State};
use met_store::StoreError;
use met_store::cluster::{Log, NodeJob, NodeJobKey};

use super::boots::Boots;
use super::wholes::{Wholes, key_of_whole, series_key};

/// A server that was away receives from its nodes within this time, and considers none of them silent before.
const HEARD_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Shown where a part is lost though its node is here.
const OTHER_BOOT: &str = "the node was replaced or rebooted";

/// Which nodes are here, and in which boot.
pub(super) struct Presence {
    /// Nodes that are not here, of those that jobs were seen on.
    pub(super) gone: HashSet<String>,
    boots: Boots,
    pub(super) started_ns: i64,
    /// Jobs of a node that was silent for this long are lost.
    lost_after: Duration,
}

impl Presence {
    pub(super) fn open(log: &Log, started_ns: i64, lost_after: Duration) -> Result<Presence, StoreError> {
        let boots = Boots::open(log)?;
        // The nodes whose jobs were given up by an earlier server because the node was gone.
        let mut gone = HashSet::new();
        for node in log.nodes_with_jobs(true)? {
            if !boots.without_over(log, &node, log.unfinished(&node, true)?)?.is_empty() {
                gone.insert(node);
            }
        }
        Ok(Presence { gone, boots, started_ns, lost_after })
    }

    /// A node sent something; whether it is in another boot than before. Jobs that it does not report follow at the
    /// next look.
    pub(super) fn note_boot(&mut self, node: &str, boot_id: &str) -> bool {
        self.gone.remove(node);
        self.boots.note_boot(node, boot_id)
    }

    /// Whether nothing more is expected of a part: its node is gone, or the boot that ran it is.
    pub(super) fn is_over(&self, node: &str, record: &Record) -> bool {
        self.gone.contains(node) || self.boots.is_over(node, record)
    }

    /// The nodes that were enrolled and are not silent for too long.
    fn nodes_here(&self, log: &Log, now_ns: i64) -> Result<HashSet<String>, StoreError> {
        let ns = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let timeout_ns = ns(self.lost_after.min(HEARD_WITHIN));
        let may_decide = now_ns.saturating_sub(self.started_ns) >= timeout_ns;
        let oldest_ns = now_ns.saturating_sub(ns(self.lost_after));
        let mut nodes = log.nodes()?;
        // One that was just enrolled again has the time to send something.
        let is_here =
            |seen_ns: Option<i64>, enrolled_ns: i64| seen_ns.max(Some(enrolled_ns)) >= Some(oldest_ns);
        nodes.retain(|node| !may_decide || is_here(node.seen_ns, node.enrolled_ns));
        Ok(nodes.into_iter().map(|node| node.name).collect())
    }
}

impl Wholes {
    /// Records as lost the jobs of nodes that were expelled or silent for long, and restores those of nodes that
    /// are here again.
    pub(super) fn look_for_nodes(&mut self, now_ns: i64) -> Result<(), StoreError> {
        let (living, given_up) = (self.log.nodes_with_jobs(false)?, self.log.nodes_with_jobs(true)?);
        let here = self.presence.nodes_here(&self.log, now_ns)?;
        self.latest.keep_health(&here);
        self.presence.gone =
            living.iter().chain(&given_up).filter(|node| !here.contains(*node)).cloned().collect();
        for node in living.iter().filter(|node| !here.contains(*node)) {
            let jobs = self.log.unfinished(node, false)?;
            self.settle(node, jobs, true)?;
            tracing::warn!("node {node} is gone; its jobs are recorded as lost until it sends again");
        }
        for node in given_up.iter().filter(|node| here.contains(*node)) {
            let jobs = self.presence.boots.without_over(&self.log, node, self.log.unfinished(node, true)?)?;
            self.settle(node, jobs, false)?;
        }
        self.close_other_boots(&here)
    }

    /// Gives up the jobs of nodes that are here in another boot than the one that ran them: with it their processes ended.
    /// A node that was rebooted reports them itself; one that was replaced knows nothing of them.
    fn close_other_boots(&mut self, here: &HashSet<String>) -> Result<(), StoreError> {
        for node in self.presence.boots.changed() {
            if here.contains(&node) {
                let jobs = self.presence.boots.over(&self.log, &node, false)?;
                if !jobs.is_empty() {
                    tracing::warn!(
                        "node {node}: {OTHER_BOOT}; running jobs recorded as lost: {}",
                        jobs.len()
                    );
                }
                self.settle(&node, jobs, true)?;
            }
            self.presence.boots.settled(&node);
        }
        Ok(())
    }

    /// Writes the jobs of a node again, then its state: what fails is retried at the next look.
    fn settle(&mut self, node: &str, jobs: Vec<NodeJobKey>, give_up: bool) -> Result<(), StoreError> {
        if give_up {
            self.recall_parts(node, &jobs)?;
        }
        let keys: HashSet<JobKey> = jobs.iter().map(key_of_whole).collect();
        self.put(keys)?;
        self.log.give_up(&jobs, give_up)
    }

    /// The last known state of these parts of jobs. Where that cannot be read now it is not decided that they
    /// are lost either: that would be final.
    fn recall_parts(&self, node: &str, parts: &[NodeJobKey]) -> Result<(), StoreError> {
        for part in parts {
            for job in self.log.node_jobs(&part.manager, &part.id)? {
                if job.node == node && job.record.key.incarnation == part.incarnation {
                    self.recall_part(node, &job.record)?;
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
            self.latest.learn(&key, &self.writer.series_of_job_between(&key, begin_ms, i64::MAX)?);
        }
        Ok(())
    }

    /// The record that a node sent of a job, and its last state if the node is gone.
    pub(super) fn as_known(&self, job: NodeJob) -> (String, Record) {
        let NodeJob { node, mut record, received_ns, .. } = job;
        if !record.state.is_live() || !self.presence.is_over(&node, &record) {
            return (node, record);
        }
        if let Err(error) = self.recall_part(&node, &record) {
            tracing::warn!("cannot read the live state of job {} on {node}: {error}", record.key.id);
        }
        let key = series_key(&node, &record.key);
        let sampled_ns = self.latest.get(&key).map(|sample| sample.time_ms.saturating_mul(1_000_000));
        // The last sample counts as long as the job runs.
        self.latest.leave(&key, &mut record);
        record.state = State::Lost;
        if self.presence.boots.is_over(&node, &record) {
            record.scheduling.reason.get_or_insert_with(|| OTHER_BOOT.to_owned());
        }
        // Its end is unknown; this is when it was last reported.
        record.end_ns = [sampled_ns, received_ns, record.start_ns].into_iter().flatten().max();
        (node, record)
    }
}
