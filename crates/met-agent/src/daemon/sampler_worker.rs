//! What the sampling thread does: ticks when they are due, orders between them, looks at a machine without jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use met_config::Config;
use met_core::energy::idle::LearnedIdle;
use met_core::event;
use met_core::job::{JobKey, Record};
use met_core::node_health::FailingSource;
use met_core::series::{PackedSamples, Series};
use met_host::clock;
use met_query::protocol::SourceStatus;
use met_sinks::bus::Ticker;
use met_sources::{Fault, Heartbeat, Wrong};
use met_store::Device;

use super::idle_readings::IdleReadings;
use super::last_tick::MetricsCache;
use super::memory_release;
use super::orders::Taken;
use super::sampler_view::{Published, View};
use crate::node_energy::Charged;
use crate::node_series::NodePartSeries;
use crate::sampler::{Known, Sampled, Sampler};

/// Readings of a machine without jobs this far apart do not keep their code in memory.
const GIVE_BACK_FROM: Duration = Duration::from_secs(10);

/// What the sampling thread is to do between two ticks.
pub(super) type Order = Box<dyn FnOnce(&mut Worker) + Send>;

/// Jobs whose end was not asked for in time; of more than these the oldest are lost.
const ENDED_MAX: usize = 1024;

/// What was sampled since it was last taken out.
#[derive(Default)]
pub struct Drained {
    pub jobs: Vec<(JobKey, PackedSamples)>,
    /// GPUs by uuid, and what is known of each.
    pub gpus: Vec<(String, Series)>,
    pub devices: Vec<Device>,
    /// Parts of the machine by their tables and labels.
    pub node: Vec<NodePartSeries>,
    /// What the machine uses doing nothing.
    pub idle: Vec<LearnedIdle>,
    /// What was known of jobs that ended while the wait for it was over.
    pub ended: Vec<(JobKey, Sampled)>,
}

/// What was taken out for a caller that had given up waiting: it is for the next one.
#[derive(Default)]
pub(super) struct Undelivered {
    pub drained: Drained,
    settled: Vec<(JobKey, Charged)>,
}

impl Undelivered {
    fn hand_over(&mut self, fresh: Drained, to: &SyncSender<Drained>) {
        let mut all = std::mem::take(&mut self.drained);
        all.jobs.extend(fresh.jobs);
        all.gpus.extend(fresh.gpus);
        all.devices = fresh.devices;
        all.idle = fresh.idle;
        all.node.extend(fresh.node);
        all.ended.extend(fresh.ended);
        if let Err(mpsc::SendError(kept)) = to.send(all) {
            self.drained = kept;
        }
    }

    /// The samples of a job that ends: a later drain would bring them behind those of its end.
    pub fn take_of(&mut self, key: &JobKey) -> Vec<(JobKey, PackedSamples)> {
        let is_of = |(of, _): &mut (JobKey, PackedSamples)| event::of_series_key(of).0.as_ref() == key;
        self.drained.jobs.extract_if(.., is_of).collect()
    }

    /// What is known of a job that ends. If it reaches no one it comes with the next samples.
    pub fn hand_over_end(&mut self, key: JobKey, sampled: Option<Sampled>, to: &SyncSender<Option<Sampled>>) {
        let Err(mpsc::SendError(Some(kept))) = to.send(sampled) else { return };
        self.drained.ended.push((key, kept));
        if self.drained.ended.len() > ENDED_MAX {
            let (key, _) = self.drained.ended.remove(0);
            tracing::error!("job {}: what was sampled at its end is lost", key.id);
        }
    }

    pub fn hand_over_settled(
        &mut self,
        fresh: Vec<(JobKey, Charged)>,
        to: &SyncSender<Vec<(JobKey, Charged)>>,
    ) {
        let mut all = std::mem::take(&mut self.settled);
        all.extend(fresh);
        if let Err(mpsc::SendError(kept)) = to.send(all) {
            self.settled = kept;
        }
    }
}

/// What the sampling thread has.
pub(super) struct Worker {
    pub sampler: Sampler,
    pub slots: HashMap<JobKey, u32>,
    last_errors: HashMap<&'static str, String>,
    pub undelivered: Undelivered,
    rest: Option<IdleReadings>,
    /// When the machine without jobs is read for its series.
    next_node_ns: Option<i64>,
    published: Arc<Published>,
}

impl Worker {
    pub fn new(sampler: Sampler, published: Arc<Published>) -> Worker {
        let (slots, last_errors) = (HashMap::new(), HashMap::new());
        let undelivered = Undelivered::default();
        Worker { sampler, slots, last_errors, undelivered, rest: None, next_node_ns: None, published }
    }

    /// Shows readers the present state.
    pub fn publish(&mut self) {
        let view = self.view();
        self.published.publish(view);
    }

    fn view(&mut self) -> View {
        View {
            live: self.sampler.live().into_iter().collect(),
            sources: self.costs(),
            gpus: self.sampler.gpus.count(),
            machine: self.sampler.machine.now(),
            energy: self.sampler.energy().now(),
            idle: self.sampler.energy().learned_idle(),
            balance: self.sampler.energy().balance(),
            dropped_samples: Some(self.sampler.dropped_samples()),
        }
    }

    /// Samples jobs more often for a while. Returns those that are sampled here: others are ignored.
    pub(super) fn watch(&mut self, mut keys: Vec<JobKey>, for_ns: i64) -> Vec<JobKey> {
        keys.retain(|key| {
            let slot = self.slots.get(key).copied();
            slot.is_some_and(|slot| self.sampler.watch(slot, for_ns))
        });
        keys
    }

    pub fn work(
        &mut self,
        orders: &Taken,
        metrics_cache: Option<&MetricsCache>,
        ticker: Option<&Ticker>,
        heartbeat: &Heartbeat,
    ) {
        // A thread that was given up does nothing more, whatever is left in its channel.
        while !heartbeat.is_given_up() {
            // Without jobs there is nothing to wake up for, but for a look at the machine now and then.
            let timeout = self.timeout();
            heartbeat.rest();
            let order = orders.next(timeout.map(|timeout| timeout.max(Duration::from_micros(1))));
            heartbeat.begin();
            match order {
                Ok(order) => order(self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if heartbeat.is_given_up() {
                return;
            }
            if self.sampler.is_at_work() && self.sampler.tick_if_due() {
                if heartbeat.is_given_up() {
                    return;
                }
                self.report_errors();
                let published = Arc::clone(&self.published);
                published.ticked(|| self.view());
                if let Some(metrics_cache) = metrics_cache {
                    metrics_cache.ticked();
                }
                if let Some(ticker) = ticker {
                    self.sampler.publish_tick(ticker);
                }
                memory_release::limit_code();
            } else {
                self.look_at_node();
                self.look_at_rest();
                self.report_errors();
            }
        }
    }

    fn report_errors(&mut self) {
        for error in self.sampler.take_new_errors() {
            tracing::warn!("source {}: {}", error.source, error.message);
            self.last_errors.insert(error.source, error.message);
        }
    }

    /// How long the thread may sleep; `None` until the next order.
    fn timeout(&mut self) -> Option<Duration> {
        if self.sampler.is_at_work() {
            (self.rest, self.next_node_ns) = (None, None);
            return Some(self.sampler.until_next_tick());
        }
        let now_ns = clock::boottime_ns();
        let rest = self.rest.get_or_insert_with(|| IdleReadings::begin(now_ns, self.sampler.slowest_meter()));
        let until_look = rest.until_next(now_ns);
        self.plan_node(now_ns);
        let until_node = self.next_node_ns.map(|next| Duration::from_nanos((next - now_ns).max(0) as u64));
        until_look.into_iter().chain(until_node).min()
    }

    /// The machine is read at multiples of the interval, as ticks are.
    fn plan_node(&mut self, now_ns: i64) {
        let next_ns = self.sampler.node_interval().map(|interval| {
            let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX).max(1);
            (now_ns / interval_ns + 1).saturating_mul(interval_ns)
        });
        // A shorter interval holds at once, and so does that nothing is stored any more.
        self.next_node_ns =
            next_ns.map(|next_ns| self.next_node_ns.map_or(next_ns, |planned| planned.min(next_ns)));
    }

    /// Reads the machine without jobs if that is due.
    fn look_at_node(&mut self) {
        let now_ns = clock::boottime_ns();
        if self.next_node_ns.is_some_and(|next_ns| now_ns >= next_ns) && !self.sampler.is_at_work() {
            self.next_node_ns = None;
            self.sampler.look_at_node();
            // Between readings that are far apart nothing is held that the next one can get again.
            if self.sampler.node_interval() >= Some(GIVE_BACK_FROM) {
                memory_release::give_back_free();
                memory_release::give_back_code();
            }
        }
    }

    fn look_at_rest(&mut self) {
        let rest = self.rest.as_mut().filter(|rest| rest.is_due(clock::boottime_ns()));
        let Some(rest) = rest.filter(|_| !self.sampler.is_at_work()) else { return };
        self.sampler.look_at_rest(rest.is_first_look());
        let has_meters = !self.sampler.energy().meters().is_empty();
        if rest.took(clock::boottime_ns(), has_meters) {
            self.sampler.end_look_at_rest();
            memory_release::give_back_free();
            memory_release::give_back_code();
        }
    }

    pub fn add(&mut self, record: &Record, before: Option<&Series>) {
        if self.slots.contains_key(&record.key) {
            return;
        }
        if let Some(slot) = self.sampler.add(record) {
            self.slots.insert(record.key.clone(), slot);
            if let Some(before) = before {
                self.sampler.recall(slot, before);
            }
        }
    }

    pub fn remove(&mut self, key: &JobKey, known: Known) -> Option<Sampled> {
        let mut sampled = self.sampler.remove(self.slots.remove(key)?, known)?;
        sampled.put_before(self.undelivered.take_of(key));
        Some(sampled)
    }

    pub fn reconfigure(&mut self, before: &Config, config: &Config) {
        self.sampler.reconfigure(before, config);
        // There may be a meter now that would not be read until a job has come and gone.
        let rest = self.rest.take();
        self.rest = rest.map(|rest| rest.again(clock::boottime_ns(), self.sampler.slowest_meter()));
    }

    pub fn drain(&mut self, reply: &SyncSender<Drained>) {
        let sampler = &mut self.sampler;
        let (jobs, gpus, devices) = (sampler.drain(), sampler.gpus.drain(), sampler.gpus.devices());
        let (node, idle) = (sampler.machine.drain(), sampler.energy().learned_idle());
        self.undelivered.hand_over(Drained { jobs, gpus, devices, node, idle, ended: Vec::new() }, reply);
    }

    pub fn costs(&self) -> Vec<SourceStatus> {
        let costs = self.sampler.costs().into_iter().map(|cost| SourceStatus {
            name: cost.source.to_owned(),
            read_ns: cost.read_ns,
            background_ns: cost.background_ns,
            errors: cost.errors,
            rows: cost.rows,
            unparsed: cost.unparsed.count,
            first_unparsed: cost.unparsed.first,
            last_error: self.last_errors.get(cost.source).cloned(),
            failing: None,
            left_out: false,
        });
        let mut sources: Vec<SourceStatus> = costs.collect();
        // Without a job there may have been no tick yet.
        let read: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let is_unread = |name: &&str| !read.iter().any(|known| known == name);
        sources.extend(self.sampler.opened().filter(is_unread).map(SourceStatus::unread));
        for source in &mut sources {
            source.failing = self.sampler.fault(&source.name).map(|fault| failing(&source.name, fault));
        }
        sources
    }
}

/// What was wrong with the last reading of a source, in words.
fn failing(source: &str, fault: Fault) -> FailingSource {
    let problem = match fault.what {
        Wrong::Error(error) => format!("reading fails: {error}"),
        Wrong::Unparsed(file) => format!("cannot parse {file}"),
    };
    FailingSource { problem, since_ns: Some(fault.since_ns), ..FailingSource::of(source) }
}

#[cfg(test)]
mod tests {
    use met_host::Host;

    use super::*;
    use crate::sampler::Sampled;

    #[test]
    fn what_nobody_waited_for_is_delivered_to_the_next_one() {
        let mut undelivered = Undelivered::default();
        let one = |id: &str| Drained {
            gpus: vec![(id.to_owned(), Series::new(&met_core::JOB))],
            ..Drained::default()
        };
        let (gave_up, receiver) = mpsc::sync_channel(1);
        drop(receiver);
        undelivered.hand_over(one("a"), &gave_up);
        let (waits, receiver) = mpsc::sync_channel(1);
        undelivered.hand_over(one("b"), &waits);
        let gpus: Vec<String> = receiver.recv().unwrap().gpus.into_iter().map(|(id, _)| id).collect();
        assert_eq!(gpus, ["a", "b"]);
        assert!(undelivered.drained.gpus.is_empty());
    }

    #[test]
    fn the_end_of_a_job_that_was_asked_for_in_vain_comes_with_the_next_samples() {
        let mut undelivered = Undelivered::default();
        let key = |number: u32| met_core::sample::bare(number, "x").key;
        let (gave_up, receiver) = mpsc::sync_channel(1);
        undelivered.hand_over_end(key(1), Some(Sampled::default()), &gave_up);
        assert!(receiver.recv().unwrap().is_some() && undelivered.drained.ended.is_empty());
        drop(receiver);
        undelivered.hand_over_end(key(2), None, &gave_up);
        assert!(undelivered.drained.ended.is_empty(), "a job that was not sampled");
        for number in 1..=ENDED_MAX as u32 + 1 {
            undelivered.hand_over_end(key(number), Some(Sampled::default()), &gave_up);
        }
        let (waits, receiver) = mpsc::sync_channel(1);
        undelivered.hand_over(Drained::default(), &waits);
        let ended = receiver.recv().unwrap().ended;
        assert_eq!((ended.len(), &ended[0].0), (ENDED_MAX, &key(2)), "the oldest is lost");
        assert!(undelivered.drained.ended.is_empty());
    }

    #[test]
    fn samples_that_were_not_delivered_come_before_those_of_the_end() {
        let key = |id: &str| JobKey { id: id.to_owned(), ..met_core::sample::bare(1, "x").key };
        let samples_of = |table: &'static met_core::Table, time_ms: i64| {
            let mut samples = PackedSamples::new(table);
            samples.push(time_ms, &vec![met_core::MISSING; table.columns.len()]);
            samples
        };
        let samples = |time_ms: i64| samples_of(&met_core::JOB, time_ms);
        let mut undelivered = Undelivered::default();
        undelivered.drained.jobs = vec![
            (key("1"), samples(1000)),
            (key("2"), samples(1000)),
            (event::series_key(&key("1"), "faults"), samples_of(&event::TABLE, 1000)),
        ];
        let mut sampled = Sampled::default();
        sampled.series = samples(2000).unpack();
        sampled.put_before(undelivered.take_of(&key("1")));
        assert_eq!(sampled.series.times_ms, [1000, 2000]);
        let keys: Vec<&str> = sampled.more.iter().map(|(key, _)| event::of_series_key(key).1).collect();
        assert_eq!((keys, undelivered.drained.jobs.len()), (vec!["faults"], 1));
    }

    #[test]
    fn a_meter_that_is_switched_on_is_looked_at_without_any_job() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/stat", "cpu 0 0 0 0\n");
        put("proc/meminfo", "MemTotal: 8000000 kB\n");
        put("sys/class/powercap/intel-rapl:0/name", "package-0\n");
        put("sys/class/powercap/intel-rapl:0/energy_uj", "44444444444\n");
        put("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987\n");
        let config = |yaml| Config::parse(yaml, std::path::Path::new("met.yaml")).unwrap();
        let off = "sources: {rapl: off, ipmi: off, hwmon: off, cray: off}";
        let (without, with) = (config(off), config(&off.replace("rapl: off", "rapl: auto")));
        let host = Host::at(root.path()).unwrap();
        let mut worker =
            Worker::new(Sampler::of_node(host, Duration::from_secs(1), &without), Arc::default());
        assert_eq!(worker.timeout(), None, "there is nothing to look at");
        worker.reconfigure(&without, &with);
        assert!(worker.timeout().is_some());
        worker.reconfigure(&with, &without);
        assert_eq!(worker.timeout(), None);
    }

    #[test]
    fn a_machine_without_jobs_is_read_for_its_series_and_else_not() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "cpu 0 0 0 0\n").unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 8000000 kB\n").unwrap();
        let yaml = "node: {interval: 20ms}\nsources: {rapl: off, ipmi: off, hwmon: off, cray: off}";
        let config = Config::parse(yaml, std::path::Path::new("met.yaml")).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut worker = Worker::new(Sampler::of_node(host, Duration::from_secs(1), &config), Arc::default());
        assert_eq!(worker.timeout(), None, "nothing is stored");
        worker.sampler.machine.keep_series(true);
        let mut samples = 0;
        while samples < 3 {
            let timeout = worker.timeout().unwrap();
            assert!(timeout <= Duration::from_millis(20));
            std::thread::sleep(timeout);
            worker.look_at_node();
            let node = worker.sampler.machine.drain().into_iter().find(|(table, ..)| table.name == "node");
            samples += node.map_or(0, |(.., series)| series.len());
        }
        worker.sampler.machine.keep_series(false);
        assert_eq!(worker.timeout(), None);
    }
}
