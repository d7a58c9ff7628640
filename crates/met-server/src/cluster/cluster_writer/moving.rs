//! Series on their way from batches to the store.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use met_core::Table;
use met_core::job::JobKey;
use met_core::series::Series;
use met_store::{StoreError, device_on, node_on};
use met_wire::batch::{NodeBatch, Piece, Subject};
use met_wire::block;

use super::wholes::{Wholes, series_key, series_of};
use super::{REPLAY_GROUP, now_ns};

/// Samples that are held when series are moved.
const MOVE_SAMPLES: usize = 200_000;
/// A clock that is further ahead is wrong.
const AHEAD_MAX_MS: i64 = 86_400_000;
/// Series of a node are moved early when this much is waiting.
const MOVE_BYTES: i64 = 4 << 20;
/// A job that runs was seen in this time, or its node is away.
const RECENT_MS: i64 = 3_600_000;

/// The live state of jobs whose samples are in the store already, which pages and lists show. For a while:
/// what is missing then comes with the next batches.
pub(super) fn recall(wholes: &Wholes, timeout: Duration) -> Result<(), StoreError> {
    let begin = Instant::now();
    let since_ms = now_ns() / 1_000_000 - RECENT_MS;
    for node in wholes.log.nodes_with_jobs(false)? {
        for job in wholes.log.unfinished(&node, false)? {
            let key = series_of(&job);
            if wholes.latest.get(&key).is_some() {
                continue;
            }
            if begin.elapsed() >= timeout {
                tracing::info!("the newest figures of some jobs come with the next batches of their nodes");
                return Ok(());
            }
            wholes.latest.learn(&key, &wholes.writer.series_of_job_between(&key, since_ms, i64::MAX)?);
        }
    }
    Ok(())
}

/// Moves the series of nodes whose oldest batch came before `before_ns`, or of which much waits.
pub(super) fn move_due(wholes: &mut Wholes, applied: i64, before_ns: i64) {
    let backlog = match wholes.log.backlog() {
        Ok(backlog) => backlog,
        Err(error) => return tracing::error!("what was received cannot be read: {error}"),
    };
    for (node, _, _) in
        backlog.into_iter().filter(|&(_, oldest_ns, bytes)| oldest_ns < before_ns || bytes > MOVE_BYTES)
    {
        let moved = std::iter::repeat_with(|| move_some(wholes, applied, &node))
            .find(|moved| !matches!(moved, Ok(true)));
        if let Some(Err(error)) = moved {
            // What holds for one node holds for all: there is no room, or an engine is away.
            return tracing::error!("series stay where they are for now, node {node} is the first: {error}");
        }
    }
}

/// Moves as much as fits in memory; false when nothing is left.
fn move_some(wholes: &mut Wholes, applied: i64, node: &str) -> Result<bool, StoreError> {
    let mut moved: HashMap<(Subject, &'static str), Series> = HashMap::new();
    let (mut last, mut samples) = (None, 0);
    while samples < MOVE_SAMPLES {
        let after = last.unwrap_or(0);
        let waiting = wholes.log.oldest_waiting(node, after, applied, REPLAY_GROUP)?;
        let Some(&(newest, _)) = waiting.last() else { break };
        for (number, data) in &waiting {
            match NodeBatch::unpack(data) {
                Ok(batch) => samples += gather(batch.pieces, met_sources::table, &mut moved),
                Err(error) => tracing::error!("batch {number} of {node} is skipped: {error}"),
            }
        }
        last = Some(newest);
    }
    let Some(last) = last else { return Ok(false) };
    let moved: Vec<(JobKey, Series)> =
        moved.into_iter().map(|((subject, _), series)| (subject_key(node, subject), series)).collect();
    let all_series: Vec<(&JobKey, &Series)> = moved.iter().map(|(key, series)| (key, series)).collect();
    wholes.writer.append_all(&all_series)?;
    wholes.log.forget(node, last)?;
    Ok(true)
}

/// Adds pieces to the series that they continue, and says how many samples they have. What cannot be read is a gap.
pub(in crate::cluster) fn gather(
    pieces: Vec<Piece>,
    table: impl Fn(&str) -> Option<&'static Table>,
    into: &mut HashMap<(Subject, &'static str), Series>,
) -> usize {
    let mut samples = 0;
    for piece in pieces {
        let Some(table) = table(&piece.table) else { continue };
        let Some(series) = readable(&piece, table) else { continue };
        samples += series.len();
        into.entry((piece.subject, table.name)).or_insert_with(|| Series::new(table)).append(&series);
    }
    samples
}

/// The samples of a piece, if their times can be true.
pub(super) fn readable(piece: &Piece, table: &'static Table) -> Option<Series> {
    let series = block::decode(&piece.block, table).ok()?;
    let now_ms = now_ns() / 1_000_000;
    let is_true = series.times_ms.is_sorted_by(|one, next| one < next)
        && series.times_ms.last().is_none_or(|&last_ms| last_ms <= now_ms.saturating_add(AHEAD_MAX_MS));
    is_true.then_some(series)
}

/// Under which key a node's series are kept: under its own name, whatever it says.
pub(super) fn subject_key(node: &str, subject: Subject) -> JobKey {
    match subject {
        Subject::Job(key) => series_key(node, &key),
        Subject::Device(uuid) => device_on(node, &uuid),
        Subject::Node(part) => node_on(node, &part),
    }
}

/// Adds what a batch has of a job to its series.
pub(in crate::cluster) fn add_waiting(data: &[u8], subject: &Subject, series: &mut Series) {
    let Ok(batch) = NodeBatch::unpack(data) else { return };
    for piece in
        batch.pieces.iter().filter(|piece| piece.subject == *subject && piece.table == series.table.name)
    {
        if let Some(more) = readable(piece, series.table) {
            series.append(&more);
        }
    }
}
