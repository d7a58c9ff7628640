//! One job from the records of its nodes: which job a part belongs to, and the sum of all parts.

use std::collections::HashSet;

use met_core::annotation::Annotation;
use met_core::bounds;
use met_core::cluster_job::{distance_ns, together, whole};
use met_core::job::{JobKey, Record, Summaries};
use met_core::managers::spans_nodes;
use met_core::provenance::{Account, Provenance};
use met_jobs::scheduler::join;
use met_store::cluster::{Log, NodeJob, NodeJobKey};
use met_store::{StoreError, Writer};
use met_wire::batch::Subject;

use super::absent::Presence;
use super::moving::add_waiting;
use super::publishing::Publisher;
use super::{Latest, Plan, Received, now_ns};

/// The means of a job on more nodes are not computed when it ends: others would wait for it.
const SUMMED_PARTS_MAX: usize = 16;

/// Jobs joined from all nodes' records: the records, the stored jobs, and which nodes are present.
pub(super) struct Wholes {
    pub(super) writer: Writer,
    pub(super) log: Log,
    pub(super) latest: Latest,
    pub(super) presence: Presence,
    pub(super) publisher: Publisher,
    /// An older sample is not used for levels.
    gap_ms: i64,
}

/// A node's part of a job. What was said in the name of a node without a proof gives way to what it says itself.
struct Placed {
    job: NodeJob,
    /// What gives way to it.
    overruled: Vec<NodeJobKey>,
    /// Whether it gives way.
    is_overruled: bool,
}

impl Placed {
    fn among(job: NodeJob, known: &[NodeJob]) -> Placed {
        let unproven = job.record.unproven;
        let is_other = |other: &&NodeJob| {
            (&other.node, other.whole) == (&job.node, job.whole) && other.record.unproven != unproven
        };
        let others: Vec<NodeJobKey> = known.iter().filter(is_other).map(node_job_key).collect();
        match unproven {
            true => Placed { is_overruled: !others.is_empty(), job, overruled: Vec::new() },
            false => Placed { job, overruled: others, is_overruled: false },
        }
    }
}

impl Wholes {
    pub(super) fn open(plan: &Plan, latest: Latest) -> Result<Wholes, StoreError> {
        let mut writer = Writer::open_with(&plan.state, &plan.backends)?;
        // The acknowledgement lets nodes remove their copy.
        writer.always_durable = true;
        let mut log = Log::open(&plan.state)?;
        log.settle_standings()?;
        let presence = Presence::open(&log, now_ns(), plan.lost_after)?;
        let publisher = Publisher::open(plan);
        let mut wholes = Wholes { writer, log, latest, presence, publisher, gap_ms: plan.gap_ms };
        wholes.mark_unproven()?;
        Ok(wholes)
    }

    /// Earlier versions did not keep who had to prove nothing: Colmet's records would pass for those of a node, and win
    /// over what Colmet says next.
    fn mark_unproven(&mut self) -> Result<(), StoreError> {
        for (manager, id) in self.log.unmarked()? {
            let reported = self.log.node_jobs(&manager, &id)?;
            let (claims, proven): (Vec<NodeJob>, Vec<NodeJob>) =
                reported.into_iter().partition(|job| is_of_colmet(&job.record));
            let proven: HashSet<JobKey> = proven.iter().map(whole_key).collect();
            let is_claimed =
                |key: &JobKey| claims.iter().any(|job| whole_key(job) == *key) && !proven.contains(key);
            // The records of nodes last: after an interruption all is done again.
            for known in self.writer.find(Some(&manager), &id)? {
                if !known.unproven && is_claimed(&known.key) && has_no_other(&known) {
                    let key = known.key.clone();
                    self.writer.put_instead(&[Record { unproven: true, ..known }], &[key])?;
                }
            }
            self.log.mark_unproven(&claims)?;
        }
        self.log.end_marking()
    }

    /// Computes again what a damaged catalogue lost.
    pub(super) fn restore(&mut self) -> Result<(), StoreError> {
        if let Some(salvage) = self.writer.salvaged.take() {
            self.writer.moved_aside = None;
            tracing::error!("{}", salvage.sentence());
            self.log.set_rebuilding(true)?;
        }
        if self.log.is_rebuilding()? {
            self.rebuild()?;
        }
        Ok(())
    }

    /// Writes the records of some batches, of which those up to `applied` were written before.
    pub(super) fn put_records(&mut self, group: &[Received], applied: i64) -> Result<(), StoreError> {
        let mut jobs = Vec::new();
        for Received { node, received_ns, batch } in group {
            for record in &batch.records {
                let mut record = record.clone();
                not_ahead(&mut record.annotation, *received_ns);
                let Placed { job, overruled, is_overruled } = self.place(node, record, &jobs)?;
                if is_overruled {
                    continue;
                }
                if !overruled.is_empty() {
                    jobs.retain(|job| !overruled.contains(&node_job_key(job)));
                    self.log.forget_node_jobs(&overruled)?;
                }
                jobs.push(NodeJob { received_ns: Some(*received_ns), ..job });
            }
        }
        // Noted as applied when it is: what is reported twice changes nothing.
        self.log.note(&jobs, applied)?;
        let keys: HashSet<JobKey> = jobs.iter().map(whole_key).collect();
        self.put(keys)
    }

    /// Writes jobs as computed from all records of their nodes.
    pub(super) fn put(&mut self, keys: impl IntoIterator<Item = JobKey>) -> Result<(), StoreError> {
        let (mut write, mut instead_of, mut revived) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            let Some((job, may_have_ended)) = self.whole(key)? else { continue };
            if may_have_ended && job.state.is_live() && !self.is_known_by_others(&job)? {
                revived.push(job.key.clone());
            }
            if !spans_nodes(&job.key.manager) {
                write.push(job);
                continue;
            }
            let mut known = self.writer.find(Some(&job.key.manager), &job.key.id)?;
            known.retain(|record| record.key != job.key);
            let joined = join::adopt(&job, &known);
            write.extend(joined.write);
            instead_of.extend(joined.remove);
        }
        let before = self.publisher.before(&self.writer, &write);
        self.writer.put_revived(&write, &instead_of, &revived)?;
        self.publisher.written(&self.writer, before, &write);
        Ok(())
    }

    /// Whether only unproven nodes say this of a job that others have reported, too.
    fn is_known_by_others(&self, job: &Record) -> Result<bool, StoreError> {
        let is_by_other = |known: &Record| known.key == job.key && !known.unproven;
        Ok(job.unproven && self.writer.find(Some(&job.key.manager), &job.key.id)?.iter().any(is_by_other))
    }

    /// Writes all jobs again, for a new catalogue.
    fn rebuild(&mut self) -> Result<(), StoreError> {
        // Sinks have received these jobs before.
        let bus = std::mem::take(&mut self.publisher.bus);
        let written = self.write_all();
        self.publisher.bus = bus;
        written?;
        self.log.set_rebuilding(false)
    }

    fn write_all(&mut self) -> Result<(), StoreError> {
        for (manager, id) in self.log.reported_jobs()? {
            let keys: HashSet<JobKey> = self.log.node_jobs(&manager, &id)?.iter().map(whole_key).collect();
            self.put(keys)?;
        }
        Ok(())
    }

    /// Which job a node's part belongs to: the one it was assigned to before, else the nearest candidate.
    fn place(&self, node: &str, mut record: Record, group: &[NodeJob]) -> Result<Placed, StoreError> {
        bounds::bound(&mut record);
        let whole = record.key.incarnation;
        let mut placed = NodeJob { node: node.to_owned(), whole, record, received_ns: None, given_up: false };
        let key = &placed.record.key;
        if !spans_nodes(&key.manager) {
            return Ok(Placed { job: placed, overruled: Vec::new(), is_overruled: false });
        }
        let mut known = self.log.node_jobs(&key.manager, &key.id)?;
        let in_group = |job: &&NodeJob| job.record.key.manager == key.manager && job.record.key.id == key.id;
        known.extend(group.iter().filter(in_group).cloned());
        let is_mine = |job: &&NodeJob| job.node == node && job.record.key.incarnation == key.incarnation;
        if let Some(before) = known.iter().find(is_mine) {
            placed.whole = before.whole;
            return Ok(Placed::among(placed, &known));
        }
        // A node has one part in a run: another one of it there means that the run is over. What was said in its name without a
        // proof is not its own.
        let is_own = |job: &&NodeJob| job.node == node && job.record.unproven == placed.record.unproven;
        let taken: HashSet<i64> = known.iter().filter(is_own).map(|job| job.whole).collect();
        let free = known.iter().filter(|job| !taken.contains(&job.whole));
        let near = free.filter_map(|job| Some((distance_ns(&job.record, &placed.record)?, job.whole))).min();
        placed.whole = near.map_or(placed.whole, |(_, whole)| whole);
        Ok(Placed::among(placed, &known))
    }

    /// A job from all records of its nodes, and whether it may have been recorded as ended although it has not: because of a
    /// node that was gone, or one that was done before another one had said that it takes part.
    fn whole(&self, key: JobKey) -> Result<Option<(Record, bool)>, StoreError> {
        let mut jobs = self.log.node_jobs(&key.manager, &key.id)?;
        jobs.retain(|job| whole_key(job) == key);
        let is_gone = |job: &NodeJob| self.presence.is_over(&job.node, &job.record);
        let is_done = |job: &NodeJob| !job.record.state.is_live();
        let may_have_ended = jobs.iter().any(|job| job.given_up && !is_gone(job) || is_done(job));
        // Its own node would have computed them at the end.
        let is_lost = jobs.iter().any(|job| job.record.state.is_live() && is_gone(job));
        let parts: Vec<(String, Record)> = jobs.into_iter().map(|job| self.as_known(job)).collect();
        let summed = (2..=SUMMED_PARTS_MAX).contains(&parts.len()) || is_lost && parts.len() == 1;
        let mut job = whole(key, &parts);
        if let Some(job) = job.as_mut().filter(|job| summed && !job.state.is_live()) {
            // Without its series, which an engine that is away may have, a job is still a job.
            job.summaries = self.series_of(&parts).unwrap_or_default();
        }
        Ok(job.map(|job| (job, may_have_ended)))
    }

    /// The means and peaks of a job on several nodes.
    fn series_of(&self, parts: &[(String, Record)]) -> Result<Summaries, StoreError> {
        let mut all_series = Vec::new();
        for (node, record) in parts {
            let ms = |ns: Option<i64>, none: i64| ns.map_or(none, |ns| ns / 1_000_000);
            let (begin_ms, end_ms) = (ms(record.start_ns, i64::MIN), ms(record.end_ns, i64::MAX));
            let key = series_key(node, &record.key);
            let mut series = self.writer.series_of_job_between(
                &key,
                begin_ms.saturating_sub(60_000),
                end_ms.saturating_add(60_000),
            )?;
            for (_, data) in self.log.waiting(node)? {
                add_waiting(&data, &Subject::Job(record.key.clone()), &mut series);
            }
            all_series.push(series);
        }
        Ok(together(&all_series, self.gap_ms).summaries(self.gap_ms))
    }
}

/// Under which key the series of a node's part of a job are kept: ids of nodes' own jobs are not unique.
pub(in crate::cluster) fn series_key(node: &str, key: &JobKey) -> JobKey {
    JobKey { cluster: Some(node.to_owned()), ..key.clone() }
}

/// The job that a part belongs to; a job of one node is kept under that node's name.
pub(super) fn whole_key(job: &NodeJob) -> JobKey {
    key_of_whole(&node_job_key(job))
}

/// Whether all of it is measured by Colmet.
fn is_of_colmet(record: &Record) -> bool {
    let of_totals = record.totals.iter().map(|(_, figure)| figure.source.account.clone());
    let of_events = record.events.iter().map(|event| Provenance::from(event.source.clone()).account);
    let mut accounts = of_totals.chain(of_events).peekable();
    has_no_other(record) && accounts.peek().is_some() && accounts.all(|account| account == Account::Colmet)
}

/// Whether nothing in it is from a scheduler or a daemon: these know the owner.
fn has_no_other(record: &Record) -> bool {
    let has_owner = record.user.is_some() || record.uid.is_some();
    !has_owner && record.local.is_none() && record.scheduling.asked_ns.is_none()
}

/// What names a part.
pub(super) fn node_job_key(job: &NodeJob) -> NodeJobKey {
    let JobKey { manager, id, incarnation, .. } = job.record.key.clone();
    NodeJobKey { manager, id, node: job.node.clone(), incarnation, whole: job.whole }
}

pub(super) fn key_of_whole(job: &NodeJobKey) -> JobKey {
    let (cluster, incarnation) = match spans_nodes(&job.manager) {
        true => (None, job.whole),
        false => (Some(job.node.clone()), job.incarnation),
    };
    JobKey { cluster, manager: job.manager.clone(), id: job.id.clone(), incarnation }
}

/// Under which key the series of a part are kept, by what names the part.
pub(super) fn series_of(job: &NodeJobKey) -> JobKey {
    let NodeJobKey { manager, id, node, incarnation, .. } = job.clone();
    JobKey { cluster: Some(node), manager, id, incarnation }
}

/// The keys under which the series of a job's parts are kept.
pub(in crate::cluster) fn part_keys(log: &Log, key: &JobKey) -> Result<Vec<(String, JobKey)>, StoreError> {
    // Nodes number their own jobs alike: of a job that is kept under the name of its node, others have nothing.
    let jobs = match &key.cluster {
        Some(node) => log.jobs_on_node(&key.manager, &key.id, node)?,
        None => log.node_jobs(&key.manager, &key.id)?,
    };
    let parts = jobs.into_iter().filter(|job| whole_key(job) == *key);
    Ok(parts.map(|job| (job.node.clone(), job.record.key)).collect())
}

/// The same as their series are kept. Records are not read for it, which takes a tenth of the time.
pub(in crate::cluster) fn part_series(log: &Log, key: &JobKey) -> Result<Vec<JobKey>, StoreError> {
    // A job of one node has its samples under its own key.
    if key.cluster.is_some() && !spans_nodes(&key.manager) {
        return Ok(vec![key.clone()]);
    }
    let jobs = log.node_job_keys(&key.manager, &key.id, key.cluster.as_deref())?;
    Ok(jobs.iter().filter(|&job| key_of_whole(job) == *key).map(series_of).collect())
}

/// Bounds when an annotation claims to have been written: of two the later one counts, and one from a far future could
/// never be changed.
fn not_ahead(annotation: &mut Annotation, received_ns: i64) {
    const AHEAD_NS_MAX: i64 = 86_400_000_000_000;
    let latest_ns = received_ns.saturating_add(AHEAD_NS_MAX);
    annotation.written_ns = annotation.written_ns.map(|written_ns| written_ns.min(latest_ns));
}
