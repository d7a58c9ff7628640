//! The one thread that writes: it makes batches durable, then records of them, and moves series to the store.

mod absent;
mod boots;
mod clearing;
mod moving;
mod publishing;
mod read_only;
mod senders;
mod wholes;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::JOB;
use met_core::job::Record;
pub(super) use met_query::jobs::now_ns;
use met_sinks::Configured;
use met_sinks::live::Hub;
use met_sources::node::TABLE as MACHINE;
use met_store::cluster::{About, Arrival, Arrived, Kept};
use met_store::{Backends, Retention, StoreError, Thinning, Writer};
use met_wire::batch::{NodeBatch, Subject};
use met_wire::colmet;
use tokio::sync::oneshot;

use clearing::Clearing;
use moving::readable;
pub(super) use moving::{add_waiting, gather};
pub use publishing::SinksFile;
pub use senders::Denied;
use senders::Senders;
use wholes::Wholes;
pub(super) use wholes::{part_keys, part_series, series_key};

use super::latest::Latest;
use super::watching::Watching;

/// Batches that wait for the disk; more are refused with a time to retry.
const QUEUE: usize = 512;
/// Batches that become durable together.
const GROUP: usize = 256;
/// Batches that are held in memory when they are read again.
const REPLAY_GROUP: usize = 16;
/// How often it is looked what there is to move, and what is too old.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Of the upgrade of a store, in one go.
const UPGRADE_FOR: Duration = Duration::from_millis(100);
const RETAIN_EVERY: Duration = Duration::from_secs(3600);
/// How long a server that starts restores live job state, before it listens.
const RECALL_WITHIN: Duration = Duration::from_secs(10);

/// What it needs to know.
#[derive(Clone)]
pub struct Plan {
    pub state: PathBuf,
    /// Where catalogue and series are, if not in files of the state.
    pub backends: Backends,
    pub retention: Retention,
    pub thinning: Vec<Thinning>,
    /// A sample that is older says nothing of a level.
    pub gap_ms: i64,
    /// Series of a node are moved to the store when the oldest has waited for so long.
    pub move_after: Duration,
    /// Jobs of a node that sent nothing for so long are lost.
    pub lost_after: Duration,
    /// Where jobs and samples go, beside the store.
    pub sinks: Vec<Configured>,
    /// Starts and ends go there while clients watch.
    pub hub: Arc<Hub>,
}

/// Why a batch was not kept.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("node {0} is not enrolled here; on the server: met server enroll {0}")]
    Stranger(String),
    #[error("it could not be written: {0}")]
    Disk(String),
    #[error("{}", .0.reason())]
    Denied(Denied),
    #[error("this server is read-only until there is space: {0}")]
    ReadOnly(String),
}

/// There is too much to do.
#[derive(Debug)]
pub struct Busy;

struct Incoming {
    batch: NodeBatch,
    packed: Vec<u8>,
    received_ns: i64,
    clock_offset_ns: Option<i64>,
    reply: oneshot::Sender<Result<(), Refusal>>,
}

/// Returns the records that it wrote.
type WithWriter = Box<dyn FnOnce(&mut Writer) -> Vec<Record> + Send>;

enum Order {
    Batch(Box<Incoming>),
    /// This node sent something at that time, which was refused.
    Saw(String, i64),
    /// Records of Colmet's nodes, for sinks that take them as they came.
    Colmet(Vec<colmet::Record>),
    /// Something to do with the store, between two groups.
    Work(WithWriter),
    /// Moves all series now.
    MoveAll(SyncSender<()>),
    Stop,
}

pub struct ClusterWriter {
    orders: SyncSender<Order>,
    thread: Option<JoinHandle<()>>,
    latest: Latest,
    hub: Arc<Hub>,
    watching: Watching,
}

impl ClusterWriter {
    /// Everything is as the last server left it when this returns, so the first reply is complete. Without
    /// space on the disk batches are refused until there is some.
    pub fn start(plan: Plan) -> Result<ClusterWriter, StoreError> {
        let (latest, hub) = (Latest::default(), Arc::clone(&plan.hub));
        let work = match Work::open(plan.clone(), latest.clone()) {
            Err(error) if error.is_no_space() => Err(error),
            opened => Ok(opened?),
        };
        let (orders, receiver) = mpsc::sync_channel(QUEUE);
        let to_learn = latest.clone();
        let run = move || match work {
            Ok(mut work) => work.run(&receiver),
            Err(error) => read_only::run(&plan, &to_learn, error, &receiver),
        };
        let thread = std::thread::Builder::new().name("cluster-writer".to_owned()).spawn(run);
        let thread = thread.map_err(|error| StoreError::Io { path: PathBuf::from("thread"), error })?;
        Ok(ClusterWriter { orders, thread: Some(thread), latest, hub, watching: Watching::default() })
    }

    pub fn latest(&self) -> &Latest {
        &self.latest
    }

    /// Which jobs clients watch.
    pub fn watching(&self) -> &Watching {
        &self.watching
    }

    /// Where starts and ends of jobs are published.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Submits a batch; the receiver is notified when it is durable.
    pub fn keep(
        &self,
        batch: NodeBatch,
        packed: Vec<u8>,
        received_ns: i64,
        clock_offset_ns: Option<i64>,
    ) -> Result<oneshot::Receiver<Result<(), Refusal>>, Busy> {
        let (reply, kept) = oneshot::channel();
        let incoming = Incoming { batch, packed, received_ns, clock_offset_ns, reply };
        match self.orders.try_send(Order::Batch(Box::new(incoming))) {
            Ok(()) => Ok(kept),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Busy),
        }
    }

    /// Notes that a node is there though nothing of it is taken: its jobs are not lost. One that is not noted now
    /// comes again.
    pub fn saw(&self, node: &str, seen_ns: i64) {
        let _ = self.orders.try_send(Order::Saw(node.to_owned(), seen_ns));
    }

    /// Passes records on to sinks, as they came. Waits for room, so that nodes that send too much at once wait, too.
    pub fn publish_colmet(&self, records: Vec<colmet::Record>) {
        let _ = self.orders.send(Order::Colmet(records));
    }

    /// Does something with the store, in its turn. It returns the records that it wrote.
    pub fn with_writer(&self, work: impl FnOnce(&mut Writer) -> Vec<Record> + Send + 'static) {
        let _ = self.orders.send(Order::Work(Box::new(work)));
    }

    /// As [`ClusterWriter::with_writer`], for one that cannot wait until there is room for the order.
    pub fn try_with_writer(
        &self,
        work: impl FnOnce(&mut Writer) -> Vec<Record> + Send + 'static,
    ) -> Result<(), Busy> {
        self.orders.try_send(Order::Work(Box::new(work))).map_err(|_| Busy)
    }

    /// Moves all series to the store, and waits for it.
    pub fn move_all(&self) {
        let (done, wait) = mpsc::sync_channel(1);
        if self.orders.send(Order::MoveAll(done)).is_ok() {
            let _ = wait.recv();
        }
    }

    /// Keeps what was handed over, and ends.
    pub fn stop(mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A batch that is durable.
struct Received {
    node: String,
    received_ns: i64,
    batch: NodeBatch,
}

/// The thread's own state.
struct Work {
    plan: Plan,
    wholes: Wholes,
    senders: Senders,
    clearing: Clearing,
    /// Records up to this batch are in the store.
    applied: i64,
    /// Some could not be written, and are to be before later ones.
    behind: bool,
    next_look: Instant,
    next_retain: Instant,
}

impl Work {
    fn open(plan: Plan, latest: Latest) -> Result<Work, StoreError> {
        let wholes = Wholes::open(&plan, latest)?;
        let mut work = Work {
            plan,
            senders: Senders::new(wholes.presence.started_ns),
            clearing: Clearing::default(),
            applied: wholes.log.applied()?,
            behind: false,
            wholes,
            next_look: Instant::now(),
            next_retain: Instant::now() + RETAIN_EVERY,
        };
        work.learn_waiting();
        work.wholes.restore()?;
        work.recall();
        Ok(work)
    }

    /// What is not in the store yet is the newest there is.
    fn learn_waiting(&mut self) {
        let mut number = 0;
        while let Some(group) = self.received_after(&mut number) {
            self.learn(&group);
        }
    }

    /// Applies what an earlier server had no time for, and restores the state of running jobs.
    fn recall(&mut self) {
        self.catch_up();
        if let Err(error) = moving::recall(&self.wholes, RECALL_WITHIN) {
            tracing::warn!("cannot restore live job state; it comes with the next batches: {error}");
        }
    }

    /// Applies, in the order of arrival, what is not in the store yet.
    fn catch_up(&mut self) {
        self.behind = false;
        let mut number = self.applied;
        while let Some(group) = self.received_after(&mut number) {
            self.apply(&group, number);
            self.wholes.publisher.ends();
            if self.behind {
                return;
            }
        }
    }

    /// Some batches after this one, which moves on to the last of them; `None` when there are no more.
    fn received_after(&mut self, number: &mut i64) -> Option<Vec<Received>> {
        let batches = match self.wholes.log.after(*number, REPLAY_GROUP) {
            Ok(batches) => batches,
            Err(error) => {
                tracing::error!("what was received cannot be read: {error}");
                return None;
            }
        };
        *number = batches.last()?.number;
        let mut group = Vec::new();
        for Kept { number: at, node, received_ns, data } in batches {
            match NodeBatch::unpack(&data) {
                Ok(batch) => group.push(Received { node, received_ns, batch }),
                Err(error) => tracing::error!("batch {at} of {node} is skipped: {error}"),
            }
        }
        Some(group)
    }

    fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            let timeout = self.next_look.saturating_duration_since(Instant::now());
            let first = match orders.recv_timeout(timeout) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut group = Vec::new();
            for order in first.into_iter().chain(orders.try_iter()) {
                match order {
                    Order::Batch(incoming) => group.push(*incoming),
                    Order::Saw(node, seen_ns) => {
                        if let Err(error) = self.wholes.log.saw(&node, seen_ns) {
                            tracing::warn!("that node {node} was here is not noted: {error}");
                        }
                    }
                    Order::Colmet(records) => self.wholes.publisher.colmet(records),
                    Order::Work(work) => {
                        self.take(std::mem::take(&mut group));
                        self.with_writer(work);
                    }
                    Order::MoveAll(done) => {
                        self.take(std::mem::take(&mut group));
                        self.move_due(i64::MAX);
                        let _ = done.send(());
                    }
                    Order::Stop => {
                        self.take(group);
                        return;
                    }
                }
                if group.len() == GROUP {
                    break;
                }
            }
            self.take(group);
            self.keep_house();
        }
    }

    fn with_writer(&mut self, work: WithWriter) {
        let written = work(&mut self.wholes.writer);
        self.wholes.publisher.scheduler_records(written);
    }

    fn move_due(&mut self, before_ns: i64) {
        moving::move_due(&mut self.wholes, self.applied, before_ns);
    }

    fn take(&mut self, group: Vec<Incoming>) {
        if group.is_empty() {
            return;
        }
        let arrived: Vec<Arrived<'_>> = group.iter().map(arrived).collect();
        let mut denied = HashMap::new();
        let kinds = self.wholes.log.take(&arrived, |index, bound| {
            let Incoming { batch, received_ns, .. } = &group[index];
            let verdict = self.senders.admit(&batch.header, bound, *received_ns);
            verdict.map_err(|why| denied.insert(index, why)).is_ok()
        });
        let kinds = match kinds {
            Ok(kinds) => kinds,
            Err(error) => {
                tracing::error!("{} batches are not kept, their nodes send them again: {error}", group.len());
                let text = error.to_string();
                group
                    .into_iter()
                    .for_each(|incoming| drop(incoming.reply.send(Err(Refusal::Disk(text.clone())))));
                return;
            }
        };
        let (mut fresh, mut last) = (Vec::new(), self.applied);
        for (index, (incoming, kind)) in group.into_iter().zip(kinds).enumerate() {
            let node = incoming.batch.header.node.clone();
            let answer = match kind {
                Arrival::Stranger => Err(Refusal::Stranger(node)),
                Arrival::Refused => Err(denied
                    .remove(&index)
                    .map_or_else(|| Refusal::Disk("the sender was not checked".to_owned()), Refusal::Denied)),
                Arrival::Known => Ok(()),
                Arrival::New(number) => {
                    last = last.max(number);
                    if self.wholes.presence.note_boot(&node, &incoming.batch.header.boot_id) {
                        self.next_look = Instant::now();
                    }
                    fresh.push(Received { node, received_ns: incoming.received_ns, batch: incoming.batch });
                    Ok(())
                }
            };
            // A sender that has gone meanwhile sends it again, and gets an acknowledgement.
            let _ = incoming.reply.send(answer);
        }
        self.learn(&fresh);
        if !self.behind {
            self.apply(&fresh, last);
        }
        self.wholes.publisher.batches(&fresh);
        self.wholes.publisher.ends();
    }

    /// What running jobs showed last.
    fn learn(&mut self, group: &[Received]) {
        for Received { node, batch, .. } in group {
            self.wholes.latest.note_health(node, &batch.header.health);
            for piece in batch.pieces.iter().filter(|piece| piece.table == MACHINE.name) {
                if let Some(series) = readable(piece, &MACHINE) {
                    self.wholes.latest.learn_machine(node, &series);
                }
            }
            for piece in batch.pieces.iter().filter(|piece| piece.table == JOB.name) {
                if let Subject::Job(key) = &piece.subject
                    && let Some(series) = readable(piece, &JOB)
                {
                    self.wholes.latest.learn(&series_key(node, key), &series);
                }
            }
            for standing in &batch.interims {
                self.wholes.latest.stand(&series_key(node, &standing.key), standing);
            }
            for record in batch.records.iter().filter(|record| !record.state.is_live()) {
                self.wholes.latest.forget(&series_key(node, &record.key));
            }
        }
    }

    /// Puts the records of batches up to `last` into the store.
    fn apply(&mut self, group: &[Received], last: i64) {
        let put = self.wholes.put_records(group, self.applied);
        match put.and_then(|()| self.wholes.log.note(&[], last)) {
            Ok(()) => self.applied = self.applied.max(last),
            Err(error) => {
                // They are durable as batches, and wait there.
                self.behind = true;
                tracing::error!("records of jobs are not in the store yet: {error}");
            }
        }
    }

    fn keep_house(&mut self) {
        let now = Instant::now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY.min(self.plan.move_after);
        self.wholes.publisher.write_status();
        if self.behind {
            self.catch_up();
        }
        let move_after_ns = i64::try_from(self.plan.move_after.as_nanos()).unwrap_or(i64::MAX);
        self.move_due(now_ns().saturating_sub(move_after_ns));
        let now_ns = now_ns();
        if let Err(error) = self.wholes.look_for_nodes(now_ns) {
            tracing::warn!("jobs of nodes that are gone stay as they are for now: {error}");
        }
        self.wholes.publisher.ends();
        if let Err(error) = self.wholes.writer.complete_lists(UPGRADE_FOR) {
            tracing::warn!("the upgrade of the store continues later: {error}");
        }
        if now >= self.next_retain {
            self.next_retain = now + RETAIN_EVERY;
            if let Err(error) = self.clearing.retain(&mut self.wholes, &self.plan.retention, now_ns) {
                tracing::warn!("old jobs could not be removed: {error}");
            }
            self.clearing.begin_thinning();
        }
        if let Err(error) = self.clearing.thin(&mut self.wholes, &self.plan.thinning, now_ns) {
            tracing::warn!("old samples could not be thinned: {error}");
        }
        if let Err(error) = self.clearing.sum(&mut self.wholes, now_ns / 1_000_000) {
            tracing::warn!("use could not be summed: {error}");
        }
    }
}

fn arrived(incoming: &Incoming) -> Arrived<'_> {
    let header = &incoming.batch.header;
    Arrived {
        node: &header.node,
        spool: &header.spool,
        sequence: header.sequence,
        received_ns: incoming.received_ns,
        data: &incoming.packed,
        about: About {
            version: &header.version,
            id: &header.id,
            boot_id: &header.boot_id,
            cpus: header.cpus,
            memory_bytes: header.memory_bytes,
            clock_offset_ns: incoming.clock_offset_ns,
            dropped_samples: header.dropped_samples,
            page: header.page,
        },
    }
}

#[cfg(test)]
#[path = "cluster_writer_tests.rs"]
pub(super) mod tests;
