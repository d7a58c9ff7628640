//! Perf events of jobs: counters of the kernel and the processor on a job's cgroup. Only where asked for.
//!
//! A job with a supervisor is counted by that, from its first instruction on. This source counts the jobs
//! that other programs started, by their cgroup in the v2 hierarchy, and what a running job is asked for later.
//! Which events are counted where is said with each target.

mod counter;
mod event;
mod job;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use met_core::job::{EventCount, QualityKind, UncountedEvent};
use met_core::{Batch, MISSING, Subject};
use met_host::{CgroupTarget, Dir, Host, Look, Targets, parse};

use crate::{Opened, Options, Pace, ReadError, Shortfall, Source, SourceSpec, TickInfo, Unavailable};

use counter::Sum;

pub use counter::Begin;
pub use event::{EVENTS, Event, FLOPS};
pub use job::{Counters, Passed};

pub use met_core::event::{COUNT, ENABLED, RUNNING, TABLE};

pub static SPEC: SourceSpec = SourceSpec {
    name: "perf",
    help: "events of the kernel and the processor, as configured in perf.events",
    pace: Pace::Tick,
    tables: &[&TABLE],
    charts: &[],
    options: &[],
    open,
};

struct Perf {
    vendor: &'static str,
    /// Whether the controller is mounted as v1.
    by_v1: bool,
    /// All that were ever asked for, in the order of their labels.
    events: Vec<Event>,
    labels: Vec<Vec<String>>,
    cpus: Vec<u32>,
    jobs: HashMap<u64, Followed>,
    generation: u64,
    refused: Vec<UncountedEvent>,
    given_up: Vec<String>,
}

/// A cgroup in which events are counted.
#[derive(Default)]
struct Followed {
    asked: Option<Arc<[String]>>,
    /// Whether there was a directory to count in when it was asked for.
    placed: bool,
    counters: Option<Counters>,
    /// What was counted of events that were asked for before, and may be again.
    earlier: Vec<(Event, Sum)>,
    seen: u64,
}

fn open(host: &Host, options: &Options) -> Opened {
    if options.events.is_empty() {
        return Err(Unavailable::Unset {
            what: "no events configured (perf.events)",
            enable: "perf: {events: [page_faults, instructions]}    (in met.yaml; `met metrics` lists them)",
        });
    }
    let vendor = vendor(host);
    let events = named(vendor, &options.events).map_err(Unavailable::Absent)?;
    // Tried on this very process: what is refused here is refused everywhere.
    let (counters, refused) = Counters::of_tree(&[0], &events, Begin::Later);
    if counters.is_empty() {
        let words = refused.first().map_or("no events left to count", |refused| &refused.reason);
        return Err(Unavailable::Absent(format!("no event can be counted: {words}")));
    }
    let labels = events.iter().map(|event| vec![event.name.clone()]).collect();
    Ok(Box::new(Perf {
        vendor,
        by_v1: host.hierarchies().perf_event_v1.is_some(),
        events,
        labels,
        cpus: online_cpus(host),
        jobs: HashMap::new(),
        generation: 0,
        refused,
        given_up: Vec::new(),
    }))
}

/// The events that are asked for, each of them once.
pub fn events(host: &Host, names: &[String]) -> Result<Vec<Event>, String> {
    named(vendor(host), names)
}

/// Those of the events that exist on this machine, and why the others do not.
pub fn known_events(host: &Host, names: &[String]) -> (Vec<Event>, Vec<UncountedEvent>) {
    let vendor = vendor(host);
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        match Event::parse(name, vendor) {
            Ok(events) if events.is_empty() => unknown.push(UncountedEvent {
                name: name.clone(),
                reason: "not known for this processor".to_owned(),
            }),
            Ok(_) => known.push(name.clone()),
            Err(reason) => unknown.push(UncountedEvent { name: name.clone(), reason }),
        }
    }
    (named(vendor, &known).unwrap_or_default(), unknown)
}

fn vendor(host: &Host) -> &'static str {
    let mut cpuinfo = Vec::new();
    match host.read_small("/proc/cpuinfo", &mut cpuinfo) {
        Ok(()) => event::vendor_of(&cpuinfo),
        Err(_) => "",
    }
}

fn named(vendor: &str, names: &[String]) -> Result<Vec<Event>, String> {
    let mut events: Vec<Event> = Vec::new();
    for name in names {
        for event in Event::parse(name, vendor)? {
            if !events.contains(&event) {
                events.push(event);
            }
        }
    }
    Ok(events)
}

/// Whether a word names an event on some machine.
pub fn check(name: &str) -> Result<(), String> {
    Event::parse(name, "").map(|_| ())
}

/// Whether `word`, as in `perf.events`, means the event of this name on some processor.
pub fn means(word: &str, name: &str) -> bool {
    let is_one = |events: Vec<Event>| events.iter().any(|event| event.name == name);
    event::VENDORS.iter().any(|vendor| Event::parse(word, vendor).is_ok_and(is_one))
}

/// Whether it is an event with a name of its own, as records name it. Of other names there is no end.
pub fn is_listed(name: &str) -> bool {
    let base = name.strip_suffix(":u").or_else(|| name.strip_suffix(":k")).unwrap_or(name);
    event::EVENTS.iter().any(|known| known.name == base)
}

/// The events with a name of their own.
pub fn listed() -> impl Iterator<Item = &'static str> {
    event::EVENTS.iter().map(|known| known.name)
}

pub fn online_cpus(host: &Host) -> Vec<u32> {
    let mut text = Vec::new();
    match host.read_small("/sys/devices/system/cpu/online", &mut text) {
        Ok(()) => cpu_list(&text),
        Err(_) => (0..host.facts().cpu_count).collect(),
    }
}

/// `0-3,8`
pub(crate) fn cpu_list(text: &[u8]) -> Vec<u32> {
    const CPUS_MAX: u32 = 1 << 16;
    let mut ranges = Vec::new();
    for range in text.trim_ascii().split(|&byte| byte == b',') {
        let mut ends = range.splitn(2, |&byte| byte == b'-');
        let Some(first) = ends.next().and_then(parse::u32).filter(|&first| first < CPUS_MAX) else {
            continue;
        };
        let last = ends.next().and_then(parse::u32).unwrap_or(first).min(CPUS_MAX);
        ranges.push((first, last));
    }
    ranges.sort_unstable();
    // Each CPU is listed once, so overlapping ranges cost no more than one of them.
    let mut cpus: Vec<u32> = Vec::new();
    for (first, last) in ranges {
        let next = cpus.last().map_or(0, |&listed| listed + 1);
        cpus.extend(first.max(next)..=last);
    }
    cpus
}

const NO_DIRECTORY: &str = "a job has no cgroup in the hierarchy of perf events";

/// Where events are counted: where the controller is mounted as v1, the kernel refuses directories of v2.
fn directory_of(target: &CgroupTarget, by_v1: bool) -> Option<&Dir> {
    let own = if by_v1 { &target.dirs.perf_event } else { &target.dirs.unified };
    own.as_ref().or(target.counted_in.as_deref())
}

const CLOCK_SKEW_NS: i64 = 1_000_000;

/// What a row of the table says of an event. It was opened when the job was found, and not before.
pub fn count_of(name: &str, cells: &[i64]) -> Option<EventCount> {
    let (count, enabled, running) = (cells[COUNT], cells[ENABLED], cells[RUNNING]);
    let counted = if enabled > 0 { running as f64 / enabled as f64 } else { 1.0 };
    // The kernel's two clocks are read one after the other: that little was not left uncounted.
    let is_scaled = counted < 0.999 && enabled - running > CLOCK_SKEW_NS;
    let kind = if is_scaled { QualityKind::Estimated } else { QualityKind::LowerBound };
    let (name, source) = (name.to_owned(), "perf, cgroup".to_owned());
    (count != MISSING).then_some(EventCount { name, count, counted, kind, source })
}

impl Source for Perf {
    fn read(&mut self, targets: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        self.generation += 1;
        for target in &targets.cgroups {
            match target.look {
                Look::No => {
                    if let Some(followed) = self.jobs.get_mut(&target.dirs.id) {
                        followed.seen = self.generation;
                    }
                }
                _ => self.read_one(target, batch),
            }
        }
        // The counters of a job that is over are closed with it.
        let generation = self.generation;
        self.jobs.retain(|_, followed| followed.seen == generation);
        Ok(())
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn missing(&self) -> Vec<(&str, &str)> {
        self.refused.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect()
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let refused = self.refused.iter().map(|one| format!("{} ({})", one.name, one.reason));
        let given_up = self.given_up.iter().map(|name| {
            format!(
                "{name} (stopped: the counters are in use by \
            another program)"
            )
        });
        let missing: Vec<_> = refused.chain(given_up).collect();
        let detail = format!("not counted: {}", missing.join(", "));
        (!missing.is_empty()).then_some(Shortfall { detail, remedy: None })
    }
}

impl Perf {
    fn read_one(&mut self, target: &CgroupTarget, batch: &mut Batch) {
        if target.events.is_none() && !self.jobs.contains_key(&target.dirs.id) {
            return;
        }
        let mut followed = self.jobs.remove(&target.dirs.id).unwrap_or_default();
        followed.seen = self.generation;
        let is_placed = directory_of(target, self.by_v1).is_some();
        // A directory may be made for it later.
        if followed.asked != target.events || is_placed && !followed.placed {
            followed.placed = is_placed;
            self.ask_for(&mut followed, target);
        }
        for name in followed.counters.as_mut().map(Counters::yield_if_crowded).unwrap_or_default() {
            if !self.given_up.contains(&name) {
                self.given_up.push(name);
            }
        }
        for (event, sum) in followed.counters.iter().flat_map(Counters::read) {
            let before = followed.earlier.iter().find(|(known, _)| known == event).map(|&(_, sum)| sum);
            let sum = sum.and(before.unwrap_or_default());
            let part = self.events.iter().position(|known| known == event).unwrap_or(0);
            let cells = batch.push_part(Subject::Cgroup(target.dirs.id), part as u32);
            if sum.counted().is_some() {
                cells[COUNT] = sum.count;
            }
            cells[ENABLED] = i64::try_from(sum.enabled_ns).unwrap_or(i64::MAX);
            cells[RUNNING] = i64::try_from(sum.running_ns).unwrap_or(i64::MAX);
        }
        self.jobs.insert(target.dirs.id, followed);
    }

    /// Opens what is asked for now and closes what no longer is; what goes on is not disturbed.
    fn ask_for(&mut self, followed: &mut Followed, target: &CgroupTarget) {
        followed.asked.clone_from(&target.events);
        let names = target.events.as_deref().unwrap_or_default();
        let wanted = named(self.vendor, names).unwrap_or_default();
        for (event, sum) in followed.counters.as_mut().map(|open| open.keep(&wanted)).unwrap_or_default() {
            match followed.earlier.iter_mut().find(|(known, _)| *known == event) {
                Some((_, before)) => *before = sum.and(*before),
                None => followed.earlier.push((event, sum)),
            }
        }
        let is_open = |event: &Event| followed.counters.as_ref().is_some_and(|open| open.counts(event));
        let new: Vec<Event> = wanted.into_iter().filter(|event| !is_open(event)).collect();
        let (more, refused) = match directory_of(target, self.by_v1) {
            _ if new.is_empty() => return,
            Some(dir) => {
                self.refused.retain(|one| one.reason != NO_DIRECTORY);
                let Ok(dir) = dir.descriptor() else {
                    // Asked for again at the next reading.
                    followed.asked = None;
                    return;
                };
                Counters::of_cgroup(dir.as_fd(), &self.cpus, &new, Begin::Now)
            }
            None => {
                let refuse = |event: &Event| UncountedEvent {
                    name: event.name.clone(),
                    reason: NO_DIRECTORY.to_owned(),
                };
                return self.refuse(new.iter().map(refuse).collect());
            }
        };
        match &mut followed.counters {
            Some(open) => open.join(more),
            None => followed.counters = Some(more),
        }
        for event in new.into_iter().filter(|event| !self.events.contains(event)).collect::<Vec<_>>() {
            self.labels.push(vec![event.name.clone()]);
            self.events.push(event);
        }
        self.refuse(refused);
    }

    /// Each of them is reported once.
    fn refuse(&mut self, refused: Vec<UncountedEvent>) {
        for one in refused {
            if !self.refused.contains(&one) {
                self.refused.push(one);
            }
        }
    }
}

/// For fuzz/.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let sum = Sum::of(bytes.chunks(24).filter_map(counter::Count::parse));
    assert!(sum.counted().is_none_or(|share| (0.0..=1.0).contains(&share)), "{sum:?}");
    let _ = cpu_list(bytes);
    let _ = Event::parse(&String::from_utf8_lossy(bytes), event::vendor_of(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cpus_are_listed_by_ranges() {
        assert_eq!(cpu_list(b"0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(cpu_list(b"0\n"), [0]);
        assert_eq!(cpu_list(b""), [0u32; 0]);
        assert_eq!(cpu_list(b"4-6,0-2,5-7,1,3-2\n"), [0, 1, 2, 4, 5, 6, 7]);
    }

    #[test]
    fn ranges_that_overlap_cost_no_more_than_one() {
        assert_eq!(cpu_list("0-65535,".repeat(100_000).as_bytes()).len(), 1 << 16);
    }

    #[test]
    fn a_count_is_an_estimate_only_where_time_was_left_uncounted() {
        let kind = |enabled, running| {
            let mut cells = [0; 3];
            (cells[COUNT], cells[ENABLED], cells[RUNNING]) = (7, enabled, running);
            count_of("page_faults", &cells).unwrap().kind
        };
        assert_eq!(kind(5_000_000, 4_990_000), QualityKind::LowerBound, "two readings of a clock");
        assert_eq!(kind(5_000_000_000, 4_990_000_000), QualityKind::Estimated, "counters that are shared");
    }

    #[test]
    fn nothing_is_counted_unless_asked_for() {
        let host = Host::real().unwrap();
        let Err(Unavailable::Unset { what, .. }) = open(&host, &Options::default()) else { panic!("opened") };
        assert!(what.contains("perf.events"), "{what}");
    }

    #[test]
    fn an_event_is_listed_once_however_often_it_is_asked_for() {
        let host = Host::real().unwrap();
        let names = ["page_faults", "page-faults", "page_faults:u"].map(str::to_owned);
        let found = events(&host, &names).unwrap();
        assert_eq!(
            found.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(),
            ["page_faults", "page_faults:u"]
        );
        assert!(events(&host, &["nonsense".to_owned()]).is_err());
    }

    #[test]
    fn a_word_of_the_configuration_means_the_events_that_records_name() {
        assert!(means("page-faults", "page_faults") && means("cycles:u", "cpu_cycles:u"));
        assert!(!means("cycles", "cpu_cycles:u") && !means("nonsense", "nonsense"));
        let arithmetic: Vec<_> = EVENTS.iter().filter(|event| event.name.starts_with("fp_")).collect();
        assert!(!arithmetic.is_empty() && arithmetic.iter().all(|event| means(FLOPS, event.name)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_list(text in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(cpu_list(&text).len() <= (1 << 16) + 1);
        }
    }
}
