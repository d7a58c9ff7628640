//! The sinks of a daemon, and what it publishes to them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_core::job::{JobKey, Record, Summaries};
use met_core::node_health::NodeHealth;
use met_core::series::Series;
use met_core::{JOB, Kind};
use met_jobs::identity::{NAMED_WITHIN, is_unnamed};
use met_sinks::Bus;
use met_sinks::event::{self, Event, Samples};
use met_sinks::forward::{Monitor, Status as ForwardStatus};
use met_wire::batch::{Interim, Subject};

use super::forwarding;
use super::last_tick::MetricsCache;
use super::live_messages::LiveMessages;
use super::sampler_thread::Sampling;
use super::service::{Ended, OnEnd};
use met_config::Place;
use met_query::live::Live;
use met_query::protocol::HttpStatus;
use met_query::setting::Setting;
use met_store::Queries;

/// A spool is usually open in milliseconds.
const OPENED_WITHIN: Duration = Duration::from_secs(1);

/// Opens all that are configured, and says how forwarding goes if there is a server. One that cannot be opened keeps
/// nothing from being measured; its status says why.
fn open(setting: &Setting, place: &Place, metrics_cache: Option<&MetricsCache>) -> (Bus, Option<Monitor>) {
    // As with `http`, the machine's file is meant for the machine's daemon.
    let is_machines = setting.config_path.as_deref() == Some(Path::new(met_config::MACHINE_FILE));
    let mut configured = if place.system || !is_machines { setting.config.sinks.clone() } else { Vec::new() };
    let forward = forwarding::sink(&setting.host, &setting.config, place, metrics_cache.is_some());
    let forward = forward.map(|(sink, monitor)| {
        configured.push(sink);
        monitor
    });
    let mut bus = Bus::open(&configured, Some(&setting.host.facts().hostname), &place.state);
    if let Some(metrics_cache) = metrics_cache {
        bus.attach(Arc::clone(&metrics_cache.hub));
        if let Some(monitor) = forward.clone() {
            metrics_cache.watch(move || monitor.rows());
        }
        if !bus.is_empty() {
            metrics_cache.watch(bus.watch());
        }
    }
    (bus, forward)
}

/// Where jobs and samples go beside the store: to sinks, and to the page that others read.
pub(super) struct Outputs {
    pub(super) bus: Bus,
    /// If there is a subscriber.
    pub(super) metrics_cache: Option<Arc<MetricsCache>>,
    /// If an address is configured.
    pub(super) http: Option<HttpStatus>,
    /// If messages of live configuration are taken.
    pub(super) configure: Option<LiveMessages>,
    /// Jobs not published yet, because they will soon have another name: since when.
    withheld: HashMap<JobKey, Instant>,
    /// As it was last published.
    health: NodeHealth,
    /// If there is a server.
    forward: Option<Monitor>,
}

impl Outputs {
    pub(super) fn open(
        setting: &Setting,
        place: &Place,
        metrics_cache: Option<Arc<MetricsCache>>,
    ) -> Outputs {
        let (bus, forward) = open(setting, place, metrics_cache.as_deref());
        Outputs {
            bus,
            forward,
            metrics_cache,
            http: None,
            configure: None,
            withheld: HashMap::new(),
            health: NodeHealth::default(),
        }
    }

    /// Informs the sampling thread of jobs that are watched at the server, from now on.
    pub(super) fn tell_watched(&self, sampling: &Sampling) {
        if let Some(Monitor { watch, .. }) = &self.forward {
            let pace = Arc::clone(&watch.pace);
            watch.tell_with(sampling.watcher(move || pace.hold(Instant::now())));
        }
    }

    /// Lets the first status of the daemon say what waits for the server; a disk that hangs is not waited for.
    pub(super) fn wait_opened(&self) {
        if let Some(forward) = &self.forward {
            forward.wait_opened(OPENED_WITHIN);
        }
    }

    /// How batches get to the server, if there is one.
    pub(super) fn forward_status(&self) -> Option<ForwardStatus> {
        self.forward.as_ref().map(Monitor::status)
    }

    /// How long samples wait at most, where a client waits for them.
    pub(super) fn within(&self) -> Option<Duration> {
        let watched = self.forward.as_ref().and_then(|forward| forward.watch.pace.within(Instant::now()));
        self.bus.within().into_iter().chain(watched).min()
    }

    /// How the machine is, if that has changed.
    pub(super) fn publish_health(&mut self, health: impl FnOnce() -> NodeHealth) {
        if self.bus.wants(event::Kind::Health) {
            let before = std::mem::replace(&mut self.health, health());
            if self.health != before {
                self.bus.publish(&Event::Health(Arc::new(self.health.clone())));
            }
        }
    }

    /// How jobs are sampled from now on.
    pub(super) fn publish_sampling(&mut self, sampling: event::Sampling) {
        if self.bus.wants(event::Kind::Sampling) {
            self.bus.publish(&Event::Sampling(Arc::new(sampling)));
        }
    }

    /// After the store has it.
    pub(super) fn publish_start(&mut self, record: &Record) {
        if is_unnamed(&record.key) {
            self.withheld.insert(record.key.clone(), Instant::now());
        } else if self.bus.wants(event::Kind::Started) {
            self.bus.publish(&Event::Started(Arc::new(record.clone())));
        }
    }

    pub(super) fn is_withheld(&self, key: &JobKey) -> bool {
        self.withheld.contains_key(key)
    }

    /// Those that were to have another name by now.
    pub(super) fn withheld_for_long(&self) -> Vec<JobKey> {
        let is_over = |since: &Instant| since.elapsed() > NAMED_WITHIN;
        self.withheld.iter().filter(|(_, since)| is_over(since)).map(|(key, _)| key.clone()).collect()
    }

    /// Whether a job was withheld, which it no longer is.
    pub(super) fn stop_withholding(&mut self, key: &JobKey) -> bool {
        self.withheld.remove(key).is_some()
    }

    /// A job that keeps the name it was found under: publishes what was held back while the name might change.
    pub(super) fn publish_unnamed(&mut self, record: &Record, series: Option<Series>) {
        if !self.stop_withholding(&record.key) {
            return;
        }
        if self.bus.wants(event::Kind::Started) {
            self.bus.publish(&Event::Started(Arc::new(record.clone())));
        }
        if let Some(series) = series {
            publish_samples(&mut self.bus, Subject::Job(record.key.clone()), series);
        }
    }

    pub(super) fn publish_end(&mut self, record: &Record) {
        publish_end(&mut self.bus, record);
    }

    /// As the store has it: there an end is joined with what is known from elsewhere.
    pub(super) fn publish_stored_end(&mut self, store: &Queries, record: &Record) {
        if self.bus.wants(event::Kind::Ended) {
            let stored = store.get(&record.key).ok().flatten();
            publish_end(&mut self.bus, stored.as_ref().unwrap_or(record));
        }
    }

    pub(super) fn on_metrics_cache(&self, update: impl FnOnce(&MetricsCache)) {
        if let Some(metrics_cache) = &self.metrics_cache {
            update(metrics_cache);
        }
    }
}

impl OnEnd for Outputs {
    fn job_ended(&mut self, Ended { record, store, .. }: &Ended<'_>) {
        self.on_metrics_cache(|metrics_cache| metrics_cache.ended(record));
        self.publish_stored_end(store, record);
    }
}

/// After the commit, and again when the record of a finished job has changed.
pub(super) fn publish_end(bus: &mut Bus, record: &Record) {
    if !record.state.is_live() && bus.wants(event::Kind::Ended) {
        bus.publish(&Event::Ended(Arc::new(record.clone())));
    }
}

pub(super) fn publish_samples(bus: &mut Bus, subject: Subject, series: Series) {
    if !series.is_empty() && bus.wants(event::Kind::Samples) {
        bus.publish(&Event::Samples(Arc::new(Samples { node: None, subject, series })));
    }
}

/// The figures of a running job; means of counters follow from their totals.
pub(super) fn publish_interim(bus: &mut Bus, key: &JobKey, live: &Live) {
    let mut summaries = Summaries::default();
    let levels = live.summaries.iter().filter(|&(column, _)| JOB.columns[column].kind == Kind::Gauge);
    levels.for_each(|(column, summary)| summaries.set(column, *summary));
    let (totals, emission) = (live.totals.clone(), live.emission.clone());
    bus.publish(&Event::Interim(Arc::new(Interim { key: key.clone(), totals, summaries, emission })));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use met_core::job::{Origin, State};
    use met_core::sample;
    use met_sinks::sink::{Interest, Sink, SinkError};

    use super::super::service::Service;
    use super::super::write_retries::tests::service;
    use super::*;

    /// Reports events by name and job.
    struct Reports(mpsc::Sender<String>);

    impl Sink for Reports {
        fn take(&mut self, event: &Event) -> Result<(), SinkError> {
            let (Event::Started(record) | Event::Ended(record)) = event else { return Ok(()) };
            let line = format!("{:?} {}", event.kind(), record.key.id);
            self.0.send(line).map_err(|error| SinkError::Failed(error.to_string()))
        }
    }

    fn listen(service: &mut Service) -> Receiver<String> {
        let (sender, received) = mpsc::channel();
        let interest =
            Interest { kinds: vec![event::Kind::Started, event::Kind::Ended], ..Default::default() };
        service.outputs.bus.add("reports", interest, move || Ok(Box::new(Reports(sender.clone()))));
        received
    }

    fn next(received: &Receiver<String>) -> String {
        received.recv_timeout(Duration::from_secs(60)).expect("an event")
    }

    fn running(id: u32) -> Record {
        let mut record = sample::full(id, "x");
        (record.state, record.end_ns, record.inside) = (State::Running, None, None);
        if let Some(local) = &mut record.local {
            (local.origin, local.supervisor) = (Origin::Found, None);
        }
        record
    }

    #[test]
    fn an_end_is_published_when_the_store_has_it_and_not_before() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let received = listen(&mut service);
        let record = running(7);
        service.recorder.writer.put(&record).unwrap();
        service.watch(record.clone());
        let other = rusqlite::Connection::open(root.path().join("state/store.db")).unwrap();
        let full = |when: &str| {
            format!("CREATE TRIGGER full_{when} BEFORE {when} ON job BEGIN SELECT RAISE(FAIL, 'full'); END;")
        };
        other.execute_batch(&(full("INSERT") + &full("UPDATE"))).unwrap();
        let mut ended = record.clone();
        (ended.state, ended.end_ns) = (State::Finished, record.start_ns);
        assert!(service.close_job(ended.clone()).is_err());
        service.flush();
        assert!(service.recorder.unwritten.record_of(&record.key).is_some());
        other.execute_batch("DROP TRIGGER full_INSERT; DROP TRIGGER full_UPDATE").unwrap();
        // Whatever comes is published after this.
        service.outputs.publish_start(&running(8));
        service.flush();
        assert_eq!([next(&received), next(&received)], ["Started 8", "Ended 7"]);
        service.close();
        assert!(received.try_recv().is_err());
    }

    const SLUID: &str = "s7XK2M9PQ4RTVW";

    /// A daemon that has found a job of Slurm by its directory.
    fn found_by_sluid(root: &std::path::Path) -> (Service, Receiver<String>) {
        let mut service = service(root);
        let received = listen(&mut service);
        service.found(met_jobs::discover::Found {
            job: 1,
            manager: "slurm".to_owned(),
            id: SLUID.to_owned(),
            captures: met_jobs::cgroup_layouts::Captures {
                sluid: Some(SLUID.to_owned()),
                ..Default::default()
            },
            cgroup: Default::default(),
            start_ns: 1_700_000_000_000_000_000,
            pids: Vec::new(),
        });
        (service, received)
    }

    fn end_all(service: &mut Service) {
        let running: Vec<Record> = service.registry.jobs.values().map(|kept| kept.record.clone()).collect();
        running.into_iter().for_each(|record| service.close_found(record));
    }

    #[test]
    fn a_job_that_is_renamed_starts_and_ends_once_under_its_last_name() {
        let root = tempfile::tempdir().unwrap();
        let (mut service, received) = found_by_sluid(root.path());
        service.flush();
        service.rename(1, "42");
        end_all(&mut service);
        assert_eq!([next(&received), next(&received)], ["Started 42", "Ended 42"]);
        service.close();
        // It may be published again with the last share of energy.
        assert!(received.try_iter().all(|event| event == "Ended 42"));
    }

    #[test]
    fn a_job_that_is_not_named_for_long_is_published_as_it_was_found() {
        let root = tempfile::tempdir().unwrap();
        let (mut service, received) = found_by_sluid(root.path());
        service.flush();
        assert!(received.try_recv().is_err(), "it may be named yet");
        for since in service.outputs.withheld.values_mut() {
            *since = Instant::now().checked_sub(2 * NAMED_WITHIN).unwrap();
        }
        service.flush();
        assert_eq!(next(&received), format!("Started {SLUID}"));
        end_all(&mut service);
        assert_eq!(next(&received), format!("Ended {SLUID}"));
        service.close();
    }

    #[test]
    fn a_job_that_is_never_named_starts_and_ends_under_the_name_of_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let (mut service, received) = found_by_sluid(root.path());
        end_all(&mut service);
        assert_eq!(
            [next(&received), next(&received)],
            [format!("Started {SLUID}"), format!("Ended {SLUID}")]
        );
        service.close();
        assert!(received.try_iter().all(|event| event == format!("Ended {SLUID}")));
    }

    #[test]
    fn an_end_that_lay_in_the_inbox_is_published() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let received = listen(&mut service);
        let mut record = sample::full(3, "x");
        (record.state, record.inside) = (State::Finished, None);
        let (id, dir) = met_store::inbox::JobDir::reserve(&root.path().join("state"), 1).unwrap();
        record.key.id = id.to_string();
        dir.write_end(&record).unwrap();
        service.import(None);
        assert_eq!(next(&received), format!("Ended {}", record.key.id));
        service.import(None);
        service.close();
        assert!(received.try_recv().is_err(), "once");
    }

    #[test]
    fn many_ends_are_imported_in_several_goes_without_jobs_that_are_followed() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let left = |number: u64| {
            let dir = met_store::inbox::JobDir::claim(&root.path().join("state"), number).unwrap();
            let mut record = running(u32::try_from(number).unwrap());
            (record.key.manager, record.key.id) = (met_core::job::LOCAL.to_owned(), number.to_string());
            dir.write_start(&record).unwrap();
            dir.write_end(&Record { state: State::Failed, end_ns: record.start_ns, ..record.clone() })
                .unwrap();
            record
        };
        let records: Vec<Record> = (1..=4).map(left).collect();
        service.registry.insert(records[0].clone());
        let ends = |service: &Service| {
            let stored = |record: &Record| service.recorder.writer.get(&record.key).unwrap().unwrap();
            let is_left =
                |record: &&Record| root.path().join("state/jobs").join(&record.key.id).join("end").exists();
            assert!(
                records.iter().all(|record| stored(record).state == State::Failed),
                "read where they are"
            );
            records.iter().filter(is_left).count()
        };
        // A go that has no time takes one all the same; the next one follows when others were answered.
        for left in [3, 2, 1] {
            service.import(Some(Duration::ZERO));
            assert_eq!(ends(&service), left);
            assert!(service.housekeeping.next_import() <= Instant::now());
        }
        service.tidy(Instant::now());
        assert!(service.housekeeping.next_import() > Instant::now(), "nothing is left to import");
        assert_eq!(ends(&service), 1, "the end of the job that is followed comes from its supervisor");
        service.close();
    }

    #[test]
    fn a_job_whose_supervisor_died_before_it_announced_it_is_imported_as_lost() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let received = listen(&mut service);
        let (id, dir) = met_store::inbox::JobDir::reserve(&root.path().join("state"), 1).unwrap();
        let mut record = running(u32::try_from(id).unwrap());
        if let Some(local) = &mut record.local {
            (local.origin, local.main) = (Origin::Run, None);
        }
        dir.write_start(&record).unwrap();
        service.tidy(Instant::now() + Duration::from_secs(10));
        assert_eq!(next(&received), format!("Ended {id}"));
        assert_eq!(service.recorder.writer.get(&record.key).unwrap().unwrap().state, State::Lost);
        service.close();
    }

    #[test]
    fn without_sinks_there_is_no_bus() {
        let root = tempfile::tempdir().unwrap();
        let service = service(root.path());
        assert!(service.outputs.bus.is_empty() && service.outputs.bus.ticker().is_none());
        service.close();
    }
}
