//! The newest sample of every job that runs: what lists and scrapes show of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use met_core::belief::{self, Live};
use met_core::job::{Emission, JobKey, QualityKind, Record, Summaries, Summary, Totals};
use met_core::job_table::{
    GPU_MEMORY, GPU_MEMORY_PEAK, GPU_UTILIZATION, MEMORY_NEEDED, MEMORY_NEEDED_PEAK, PROCESSES_PEAK,
    PROCESSES_RUNNING, THREADS_PEAK, THREADS_RUNNING,
};
use met_core::listing::FIGURES;
use met_core::node_health::{NodeHealth, Spool};
use met_core::series::Series;
use met_core::{Across, FastMap, JOB, Kind, MISSING};
use met_query::machine_now::{CpuAt, MachineNow};
use met_store::LiveFigures;
use met_wire::batch::Interim;

/// More jobs than any cluster runs at once; later ones have no figures until they end.
const JOBS_MAX: usize = 400_000;

/// What has no samples of its own: the highest of another figure so far.
const PEAKS: [(usize, usize); 4] = [
    (MEMORY_NEEDED_PEAK, MEMORY_NEEDED),
    (PROCESSES_PEAK, PROCESSES_RUNNING),
    (THREADS_PEAK, THREADS_RUNNING),
    (GPU_MEMORY_PEAK, GPU_MEMORY),
];

/// Of figures whose own source is not known.
const LAST_SAMPLE: &str = "last sample";
/// Far more than nodes have; names beyond this share one entry.
const SOURCES_MAX: usize = 4096;
/// More nodes than any cluster has.
const NODES_MAX: usize = 100_000;

/// By the key under which a node's series are kept.
#[derive(Clone, Default)]
pub struct Latest {
    inner: Arc<Mutex<Inner>>,
}

/// Older samples of a machine are not shown as what it does.
const MACHINE_MS: i64 = 300_000;

/// What a machine did at its last sample, and its CPU time then.
#[derive(Clone, Copy)]
struct MachineAt {
    time_ms: i64,
    now: MachineNow,
    cpu: Option<CpuAt>,
}

#[derive(Default)]
struct Inner {
    jobs: FastMap<JobKey, Sample>,
    /// The same few words on every node.
    sources: HashSet<Arc<str>>,
    /// Of each node that has something to say.
    health: HashMap<String, NodeHealth>,
    /// What nodes have not delivered yet, of those that say so.
    spools: HashMap<String, Spool>,
    /// What each machine did last, and its CPU time then.
    machines: HashMap<String, MachineAt>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub time_ms: i64,
    pub cells: Box<[i64]>,
    totals: Option<Box<LiveTotals>>,
}

/// What a node says of the figures of a job.
#[derive(Clone, Debug, PartialEq)]
struct LiveTotals {
    known: BTreeMap<usize, (QualityKind, Arc<str>)>,
    /// Peaks that no sample has.
    peaks: Totals,
    summaries: Summaries,
    emission: Option<Emission>,
}

impl Inner {
    fn source(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.sources.get(name) {
            return Arc::clone(known);
        }
        let named: Arc<str> = if self.sources.len() < SOURCES_MAX { name } else { LAST_SAMPLE }.into();
        self.sources.insert(Arc::clone(&named));
        named
    }
}

impl Latest {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up the last sample of a series. A figure that is read now and then stays until the next reading.
    pub fn learn(&self, key: &JobKey, series: &Series) {
        let Some((&time_ms, last)) = series.times_ms.last().zip(series.len().checked_sub(1)) else { return };
        let jobs = &mut self.lock().jobs;
        let highest = |of: usize| series.maximum(of).unwrap_or(MISSING);
        if let Some(known) = jobs.get_mut(key) {
            if known.time_ms <= time_ms {
                known.time_ms = time_ms;
                for (cell, column) in known.cells.iter_mut().zip(&series.columns) {
                    let newest = column.iter().rev().copied().find(|&cell| cell != MISSING);
                    *cell = newest.unwrap_or(*cell);
                }
                for (peak, of) in PEAKS {
                    // What is missing is lower than anything.
                    known.cells[peak] = known.cells[peak].max(highest(of));
                }
            }
            return;
        }
        if jobs.len() < JOBS_MAX {
            let mut cells: Box<[i64]> = series.columns.iter().map(|column| column[last]).collect();
            PEAKS.into_iter().for_each(|(peak, of)| cells[peak] = cells[peak].max(highest(of)));
            jobs.insert(key.clone(), Sample { time_ms, cells, totals: None });
        }
    }

    /// Takes what a node says of itself with its newest batch.
    pub fn note_health(&self, node: &str, health: &NodeHealth) {
        let known = &mut self.lock().health;
        if health.is_empty() {
            known.remove(node);
        } else if known.len() < NODES_MAX || known.contains_key(node) {
            known.insert(node.to_owned(), health.clone());
        }
    }

    /// Takes what a node says to wait there besides the batch that has just arrived; an earlier version does not say.
    pub fn note_spool(&self, node: &str, spool: Option<Spool>) {
        let known = &mut self.lock().spools;
        match spool {
            None => drop(known.remove(node)),
            Some(spool) if known.len() < NODES_MAX || known.contains_key(node) => {
                known.insert(node.to_owned(), spool);
            }
            Some(_) => {}
        }
    }

    pub fn spool(&self, node: &str) -> Option<Spool> {
        self.lock().spools.get(node).copied()
    }

    /// Forgets what other nodes said of themselves: they were expelled, or have been silent for long.
    pub fn keep_health(&self, nodes: &HashSet<String>) {
        let inner = &mut *self.lock();
        inner.health.retain(|node, _| nodes.contains(node));
        inner.spools.retain(|node, _| nodes.contains(node));
        inner.machines.retain(|node, _| nodes.contains(node));
    }

    /// Takes the newest samples of a machine.
    pub fn learn_machine(&self, node: &str, series: &Series) {
        let known = &mut self.lock().machines;
        let before = known.get(node);
        let Some(&time_ms) = series.times_ms.last() else { return };
        // What waited on the node comes after what is newer, too.
        let is_new = before.is_none_or(|before| before.time_ms < time_ms);
        if is_new && (known.len() < NODES_MAX || before.is_some()) {
            let (now, cpu) = MachineNow::of(series, before.and_then(|before| before.cpu));
            known.insert(node.to_owned(), MachineAt { time_ms, now, cpu });
        }
    }

    /// What a machine did last, as far as it has said so since this server began and that is not long ago.
    pub fn machine(&self, node: &str, now_ms: i64) -> MachineNow {
        let known = self.lock().machines.get(node).copied();
        known.filter(|known| now_ms - known.time_ms <= MACHINE_MS).map(|known| known.now).unwrap_or_default()
    }

    /// The same; nothing of a node that has sent nothing since this server began.
    pub fn health(&self, node: &str) -> NodeHealth {
        self.lock().health.get(node).cloned().unwrap_or_default()
    }

    /// Takes the quality of the figures of a job that has samples.
    pub fn stand(&self, key: &JobKey, interim: &Interim) {
        let inner = &mut *self.lock();
        if !inner.jobs.contains_key(key) {
            return;
        }
        let mut totals = LiveTotals {
            known: BTreeMap::new(),
            peaks: Totals::default(),
            summaries: interim.summaries.clone(),
            emission: interim.emission.clone(),
        };
        for (column, figure) in interim.totals.iter() {
            let source = inner.source(&figure.source.text());
            totals.known.insert(column, (figure.kind, source));
            if JOB.columns[column].kind == Kind::Gauge {
                totals.peaks.set(column, figure.value, figure.kind, figure.source.clone());
            }
        }
        if let Some(sample) = inner.jobs.get_mut(key) {
            sample.totals = Some(Box::new(totals));
        }
    }

    pub fn forget(&self, key: &JobKey) {
        self.lock().jobs.remove(key);
    }

    pub fn get(&self, key: &JobKey) -> Option<Sample> {
        self.lock().jobs.get(key).cloned()
    }

    /// Puts what was last seen of a running job into its totals.
    pub fn complete(&self, keys: &[JobKey], record: &mut Record) {
        let inner = self.lock();
        let samples: Vec<&Sample> = keys.iter().filter_map(|key| inner.jobs.get(key)).collect();
        let all = 0..JOB.columns.len();
        let totals = totals(&samples, all, |column| known_by_all(&samples, column));
        let mut last = Live { totals, as_of_ns: mean_time_ns(&samples), ..Live::default() };
        let totals: Vec<&LiveTotals> = samples.iter().filter_map(|sample| sample.totals.as_deref()).collect();
        if !totals.is_empty() && totals.len() == keys.len() {
            if let [one] = totals[..] {
                last.totals.fill_from(&one.peaks);
            }
            last.summaries = summaries_together(&totals);
            last.emission = totals.iter().find_map(|totals| totals.emission.clone());
        }
        belief::overlay(record, last);
    }

    /// The figures of them that lists are filtered and sorted by.
    pub fn figures(&self, keys: &[JobKey]) -> LiveFigures {
        let inner = self.lock();
        let samples: Vec<&Sample> = keys.iter().filter_map(|key| inner.jobs.get(key)).collect();
        let live: Vec<&LiveTotals> = samples.iter().filter_map(|sample| sample.totals.as_deref()).collect();
        let is_known = !live.is_empty() && live.len() == keys.len();
        let peaks = if let ([one], true) = (&live[..], is_known) { Some(&one.peaks) } else { None };
        let value = |column: usize| total(&samples, column).or_else(|| peaks?.get(column));
        let utilization = summary_together(&live, GPU_UTILIZATION).filter(|_| is_known);
        LiveFigures {
            totals: FIGURES.map(|column| value(column).unwrap_or(MISSING)),
            gpu_utilization: utilization.map(|utilization| utilization.mean),
            as_of_ns: mean_time_ns(&samples),
        }
    }

    /// The same for a part of a job that is no longer seen: its totals are lower bounds. Its last levels are
    /// not totals.
    pub fn leave(&self, key: &JobKey, record: &mut Record) {
        let is_peak = |column: usize| PEAKS.iter().any(|&(peak, _)| peak == column);
        let is_total = |&column: &usize| JOB.columns[column].kind == Kind::Counter || is_peak(column);
        let columns = (0..JOB.columns.len()).filter(is_total);
        let inner = self.lock();
        let samples: Vec<&Sample> = inner.jobs.get(key).into_iter().collect();
        let totals = totals(&samples, columns, |_| (QualityKind::LowerBound, Cow::Borrowed(LAST_SAMPLE)));
        belief::add_sample(record, Live { totals, ..Live::default() });
    }
}

/// What the parts of a job used together.
fn total(samples: &[&Sample], column: usize) -> Option<i64> {
    let cells = samples.iter().map(|sample| sample.cells[column]).filter(|&cell| cell != MISSING);
    match JOB.columns[column].across {
        Across::Max => cells.max(),
        _ => cells.reduce(i64::saturating_add),
    }
}

fn totals(
    samples: &[&Sample],
    columns: impl Iterator<Item = usize>,
    known: impl Fn(usize) -> (QualityKind, Cow<'static, str>),
) -> Totals {
    let mut totals = Totals::default();
    for column in columns {
        if let Some(value) = total(samples, column) {
            let (kind, source) = known(column);
            totals.set(column, value, kind, source);
        }
    }
    totals
}

/// A figure of several nodes is no better known than the worst of theirs. What no node says of it is a sample.
fn known_by_all(samples: &[&Sample], column: usize) -> (QualityKind, Cow<'static, str>) {
    let known = |sample: &&Sample| sample.totals.as_ref()?.known.get(&column).cloned();
    let (mut kinds, mut sources) = (Vec::new(), Vec::new());
    for (kind, source) in samples.iter().filter_map(known) {
        kinds.push(kind);
        sources.push(source);
    }
    if kinds.len() < samples.len() {
        kinds.push(QualityKind::Sampled);
    }
    let source = match sources.first() {
        None => Cow::Borrowed(LAST_SAMPLE),
        Some(first) if sources.iter().all(|source| source == first) => Cow::Owned(first.to_string()),
        Some(_) => Cow::Borrowed("several nodes"),
    };
    (kinds.into_iter().max().unwrap_or(QualityKind::Sampled), source)
}

fn summaries_together(totals: &[&LiveTotals]) -> Summaries {
    let mut all = Summaries::default();
    for column in 0..JOB.columns.len() {
        if let Some(together) = summary_together(totals, column) {
            all.set(column, together);
        }
    }
    all
}

/// Levels of nodes that run at the same time: the mean of a sum is the sum of the means.
fn summary_together(totals: &[&LiveTotals], column: usize) -> Option<Summary> {
    let known: Vec<&Summary> = totals.iter().filter_map(|totals| totals.summaries.get(column)).collect();
    // Not of all nodes: of the job nothing is known.
    if known.is_empty() || known.len() < totals.len() {
        return None;
    }
    let together = |of: fn(&Summary) -> f64| match JOB.columns[column].across {
        Across::Sum => known.iter().map(|summary| of(summary)).sum(),
        Across::Max => known.iter().map(|summary| of(summary)).fold(f64::MIN, f64::max),
        Across::Mean => known.iter().map(|summary| of(summary)).sum::<f64>() / known.len() as f64,
    };
    let (mean, min, max) = (together(|of| of.mean), together(|of| of.min), together(|of| of.max));
    Some(Summary { mean, min, max, p50: None, p95: None })
}

/// Nodes send at different times: what they used together, over the mean of these times, is what they use at once.
fn mean_time_ns(samples: &[&Sample]) -> Option<i64> {
    let sum_ms = samples.iter().map(|sample| i128::from(sample.time_ms)).sum::<i128>();
    let mean_ms = sum_ms.checked_div(i128::try_from(samples.len()).ok()?)?;
    i64::try_from(mean_ms).ok()?.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use met_core::job_table::{CORES_PEAK, CPU};

    use super::*;

    fn series(samples: &[(i64, i64, i64)]) -> Series {
        let mut series = Series::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
            series.push(time_ms, &cells);
        }
        series
    }

    #[test]
    fn what_a_machine_does_is_known_from_its_newest_samples_for_a_while() {
        use met_sources::node::{LOAD_1, TABLE};
        let latest = Latest::default();
        let loads = |loads: &[(i64, i64)]| {
            let mut series = Series::new(&TABLE);
            for &(time_ms, load) in loads {
                let mut cells = vec![MISSING; TABLE.columns.len()];
                cells[LOAD_1] = load;
                series.push(time_ms, &cells);
            }
            series
        };
        let shown = |now_ms: i64| latest.machine("n1", now_ms).load.is_some();
        assert!(!shown(0), "unknown is not 0");
        latest.learn_machine("n1", &loads(&[(10_000_000, 5), (10_060_000, 7)]));
        let newest = latest.machine("n1", 10_060_000).load;
        assert!(newest.is_some());
        // Its spool is sent later.
        latest.learn_machine("n1", &loads(&[(1_000_000, 900)]));
        latest.learn_machine("n1", &loads(&[]));
        assert_eq!(latest.machine("n1", 10_060_000).load, newest);
        assert!(shown(10_300_000) && !shown(20_000_000), "long ago is not now");
    }

    #[test]
    fn the_health_of_a_node_is_that_of_its_newest_batch() {
        let (latest, gpus) =
            (Latest::default(), |gpus| NodeHealth { gpus: Some(gpus), ..NodeHealth::default() });
        latest.note_health("n1", &gpus(4));
        latest.note_health("n2", &gpus(8));
        latest.note_health("n1", &gpus(3));
        assert_eq!([latest.health("n1"), latest.health("n2")], [gpus(3), gpus(8)]);
        latest.note_health("n1", &NodeHealth::default());
        assert!(latest.health("n1").is_empty() && latest.health("n3").is_empty(), "unknown is not 0");
    }

    #[test]
    fn what_a_node_has_not_delivered_is_unknown_unless_it_says_so() {
        let (latest, spool) = (Latest::default(), Some(Spool { batches: 2, bytes: 700 }));
        assert_eq!(latest.spool("n1"), None, "unknown is not 0");
        latest.note_spool("n1", spool);
        assert_eq!(latest.spool("n1"), spool);
        latest.note_spool("n1", None);
        assert_eq!(latest.spool("n1"), None, "another version sends now");
        latest.note_spool("n1", spool);
        latest.keep_health(&HashSet::new());
        assert_eq!(latest.spool("n1"), None);
    }

    #[test]
    fn the_newest_known_figure_wins_over_late_samples() {
        let latest = Latest::default();
        let key =
            JobKey { cluster: Some("n1".into()), manager: "local".into(), id: "1".into(), incarnation: 1 };
        latest.learn(&key, &series(&[(1000, 1, 50), (2000, 2, MISSING)]));
        latest.learn(&key, &series(&[(3000, 3, 60), (4000, 4, MISSING)]));
        latest.learn(&key, &series(&[(500, 0, 10)]));
        latest.learn(&key, &series(&[]));
        let sample = latest.get(&key).unwrap();
        assert_eq!((sample.time_ms, sample.cells[CPU], sample.cells[MEMORY_NEEDED]), (4000, 4, 60));
        assert_eq!((sample.cells[MEMORY_NEEDED_PEAK], sample.cells[GPU_MEMORY_PEAK]), (60, MISSING));
        latest.forget(&key);
        assert_eq!(latest.get(&key), None);
    }

    #[test]
    fn totals_of_nodes_that_sent_at_different_times_are_of_the_time_between() {
        let latest = Latest::default();
        let keys = ["n1", "n2", "n3"].map(|node| JobKey {
            cluster: Some(node.into()),
            manager: "slurm".into(),
            id: "1".into(),
            incarnation: 1,
        });
        latest.learn(&keys[0], &series(&[(95_000, 95, 1)]));
        latest.learn(&keys[1], &series(&[(101_000, 101, 1)]));
        let mut record =
            crate::cluster::cluster_writer::tests::record("slurm", "1", 0, met_core::job::State::Running, 0);
        latest.complete(&keys, &mut record);
        assert_eq!((record.totals.get(CPU), record.as_of_ns), (Some(196), Some(98_000_000_000)));
        latest.complete(&keys[2..], &mut record);
        assert_eq!(record.as_of_ns, None, "nothing is known of it");
    }

    fn interim(key: &JobKey, kind: QualityKind, mean: f64) -> Interim {
        let (mut totals, mut summaries) = (Totals::default(), Summaries::default());
        totals.set(CPU, 1, kind, "cgroup");
        totals.set(CORES_PEAK, 1500, QualityKind::Sampled, "cgroup");
        summaries.set(MEMORY_NEEDED, Summary { mean, min: 1.0, max: mean, p50: None, p95: None });
        let emission = Some(Emission {
            factor_mg_per_kwh: 7,
            factor_source: "given".to_owned(),
            factor_time_ns: None,
            pue_millionths: None,
        });
        Interim { key: key.clone(), totals, summaries, emission }
    }

    #[test]
    fn how_well_figures_are_known_comes_from_their_nodes() {
        let latest = Latest::default();
        let keys = ["n1", "n2"].map(|node| JobKey {
            cluster: Some(node.into()),
            manager: "slurm".into(),
            id: "1".into(),
            incarnation: 1,
        });
        let completed = |keys: &[JobKey]| {
            let mut record = crate::cluster::cluster_writer::tests::record(
                "slurm",
                "1",
                0,
                met_core::job::State::Running,
                0,
            );
            latest.complete(keys, &mut record);
            let cpu = record.totals.figure(CPU).map(|cpu| (cpu.value, cpu.kind, cpu.source.to_string()));
            let memory = record.summaries.get(MEMORY_NEEDED).map(|memory| memory.mean);
            (cpu, memory, record.totals.get(CORES_PEAK), record.emission.is_some())
        };
        latest.stand(&keys[0], &interim(&keys[0], QualityKind::Measured, 5.0));
        latest.learn(&keys[0], &series(&[(1000, 3, 1)]));
        let unsaid = Some((3, QualityKind::Sampled, LAST_SAMPLE.to_owned()));
        assert_eq!(completed(&keys[..1]), (unsaid, None, None, false), "no totals without a sample");
        latest.stand(&keys[0], &interim(&keys[0], QualityKind::Measured, 5.0));
        let one = Some((3, QualityKind::Measured, "cgroup".to_owned()));
        assert_eq!(completed(&keys[..1]), (one, Some(5.0), Some(1500), true));
        latest.learn(&keys[1], &series(&[(1000, 4, 1)]));
        let half = Some((7, QualityKind::Sampled, "cgroup".to_owned()));
        assert_eq!(completed(&keys), (half, None, None, false), "one of two says nothing");
        latest.stand(&keys[1], &interim(&keys[1], QualityKind::Estimated, 6.0));
        let both = Some((7, QualityKind::Estimated, "cgroup".to_owned()));
        assert_eq!(completed(&keys), (both, Some(11.0), None, true));
    }
}
