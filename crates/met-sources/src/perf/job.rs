//! The counters of one job: every event on every CPU of its cgroup, or on every thread it begins with.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use met_core::job::{EventCount, QualityKind, UncountedEvent};

use super::counter::{Begin, Counter, Scope, Sum};
use super::event::{Event, Mode};

/// Below this share of its time a hardware counter has been displaced by other programs' counters.
const CROWDED_SHARE: f64 = 0.25;
/// What every processor can count at once: below that, it is not ourselves who are in the way.
const COUNTERS_MIN: usize = 4;
/// A share is judged after so much time.
const JUDGED_NS: u64 = 500_000_000;

const IN_CGROUP: &str = "perf, cgroup";
const IN_TREE: &str = "perf, process tree";

/// Open counters of a job.
#[derive(Debug)]
pub struct Counters {
    /// In the words of a record.
    source: &'static str,
    begin: Begin,
    events: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    event: Event,
    counters: Vec<Counter>,
    /// Counted in user code alone, because nothing else was allowed.
    user_only: bool,
    /// The reading when the counters were closed for other programs.
    given_up: Option<Sum>,
    judged: Sum,
}

/// What a process says of an event whose counters it passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    pub name: String,
    pub software: bool,
    pub user_only: bool,
}

impl Counters {
    /// The events that are counted, each with its descriptors.
    pub fn to_pass(&self) -> impl Iterator<Item = (Passed, Vec<BorrowedFd<'_>>)> {
        let held = self.events.iter().filter(|counted| counted.given_up.is_none());
        held.map(|counted| {
            let (software, user_only) = (counted.event.is_software(), counted.user_only);
            let passed = Passed { name: counted.event.name.clone(), software, user_only };
            (passed, counted.counters.iter().map(Counter::descriptor).collect())
        })
    }

    pub fn is_in_cgroup(&self) -> bool {
        self.source == IN_CGROUP
    }

    /// Those that another process opened. An event with a descriptor that is no counter is left out.
    pub fn received(in_cgroup: bool, events: Vec<(Passed, Vec<OwnedFd>)>) -> Counters {
        let counted = |(passed, descriptors): (Passed, Vec<OwnedFd>)| {
            let counters = descriptors.into_iter().map(Counter::received).collect::<Option<Vec<_>>>()?;
            let event = Event::passed(passed.name, passed.software);
            let (user_only, given_up) = (passed.user_only, None);
            let judged = Sum::default();
            (!counters.is_empty()).then_some(Counted { event, counters, user_only, given_up, judged })
        };
        let events = events.into_iter().filter_map(counted).collect();
        let source = if in_cgroup { IN_CGROUP } else { IN_TREE };
        Counters { source, begin: Begin::Now, events }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.events.iter().map(|counted| counted.event.name.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        self.events.iter().map(|counted| counted.counters.len()).sum()
    }

    pub fn of_cgroup(
        dir: BorrowedFd<'_>,
        cpus: &[u32],
        events: &[Event],
        begin: Begin,
    ) -> (Counters, Vec<UncountedEvent>) {
        let scopes: Vec<_> = cpus.iter().map(|&cpu| Scope::Cgroup(dir, cpu)).collect();
        Counters::open(IN_CGROUP, &scopes, events, begin)
    }

    /// Of threads and all they will fork.
    pub fn of_tree(tids: &[i32], events: &[Event], begin: Begin) -> (Counters, Vec<UncountedEvent>) {
        let scopes: Vec<_> = tids.iter().map(|&tid| Scope::Tree(tid)).collect();
        Counters::open(IN_TREE, &scopes, events, begin)
    }

    fn open(
        source: &'static str,
        scopes: &[Scope<'_>],
        events: &[Event],
        begin: Begin,
    ) -> (Counters, Vec<UncountedEvent>) {
        let mut refused = Vec::new();
        let mut counters = Counters { source, begin, events: Vec::new() };
        for event in events {
            match open_event(event, scopes, begin) {
                Ok(counted) => counters.events.push(counted),
                Err(error) => {
                    refused.push(UncountedEvent { name: event.name.clone(), reason: reason(&error) })
                }
            }
        }
        (counters, refused)
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Goes on with only these events; what the others counted is returned.
    pub fn keep(&mut self, wanted: &[Event]) -> Vec<(Event, Sum)> {
        let (kept, closed): (Vec<_>, Vec<_>) =
            self.events.drain(..).partition(|counted| wanted.contains(&counted.event));
        self.events = kept;
        closed.into_iter().filter_map(|counted| Some((counted.event.clone(), counted.read()?))).collect()
    }

    pub fn counts(&self, event: &Event) -> bool {
        self.events.iter().any(|counted| counted.event == *event)
    }

    /// Goes on with the events of another one, too.
    pub fn join(&mut self, more: Counters) {
        self.events.extend(more.events);
    }

    /// Lets those count that were opened for later.
    pub fn begin(&self) {
        if self.begin != Begin::Later {
            return;
        }
        self.events.iter().flat_map(|counted| &counted.counters).for_each(Counter::begin);
    }

    /// Each event with what it counted so far. One that cannot be read everywhere is absent.
    pub fn read(&self) -> impl Iterator<Item = (&Event, Sum)> {
        self.events.iter().filter_map(|counted| Some((&counted.event, counted.read()?)))
    }

    /// What a record keeps. An event that was never counted is absent.
    pub fn totals(&self) -> Vec<EventCount> {
        let total = |counted: &Counted| counted.total(counted.read()?, self.source);
        self.events.iter().filter_map(total).collect()
    }

    /// The same with [`Counters::yield_if_crowded`], by one reading of each counter.
    pub fn totals_yielding(&mut self) -> Vec<EventCount> {
        let (held, source) = (self.held(), self.source);
        let total = |counted: &mut Counted| {
            let now = counted.read()?;
            counted.yield_if_crowded(held, now);
            counted.total(now, source)
        };
        self.events.iter_mut().filter_map(total).collect()
    }

    pub fn has_hardware(&self) -> bool {
        self.events.iter().any(|counted| counted.is_held())
    }

    /// Closes the processor's counters if other programs need them: ours ran far less than they could.
    /// Returns the events that were given up now.
    pub fn yield_if_crowded(&mut self) -> Vec<String> {
        let held = self.held();
        let yields = |counted: &mut Counted| {
            let now = counted.read()?;
            counted.yield_if_crowded(held, now).then(|| counted.event.name.clone())
        };
        self.events.iter_mut().filter(|counted| counted.is_held()).filter_map(yields).collect()
    }

    fn held(&self) -> usize {
        self.events.iter().filter(|counted| counted.is_held()).count()
    }
}

/// Whether ours were pushed aside, and not by ourselves.
fn is_crowded(held: usize, enabled_ns: u64, running_ns: u64) -> bool {
    let fair = (COUNTERS_MIN as f64 / held.max(1) as f64).min(1.0);
    (running_ns as f64) < CROWDED_SHARE * fair * enabled_ns as f64
}

impl Counted {
    fn read(&self) -> Option<Sum> {
        let is_software = self.event.is_software();
        let read = |counter: &Counter| {
            let count = counter.read()?;
            Ok(if is_software { count.unshared() } else { count })
        };
        self.given_up.or_else(|| Sum::of_all(self.counters.iter().map(read)))
    }

    /// What a record keeps of a reading.
    fn total(&self, sum: Sum, source: &str) -> Option<EventCount> {
        let share = sum.counted()?;
        let kind = match share {
            _ if self.user_only || self.given_up.is_some() => QualityKind::LowerBound,
            share if share < 0.999 => QualityKind::Estimated,
            _ if source == IN_TREE && !self.is_of_user_code() => QualityKind::LowerBound,
            _ => QualityKind::Measured,
        };
        let note = match (self.user_only, self.given_up.is_some()) {
            (_, true) => ", stopped for another user of the counters",
            (true, false) => ", user code only",
            (false, false) => "",
        };
        let (name, source) = (self.event.name.clone(), format!("{source}{note}"));
        Some(EventCount { name, count: sum.count, counted: share, kind, source })
    }

    /// Counters of a process tree begin with the command and stop early in the end of each process, which is kernel
    /// code. Clocks count there, too, whatever was excluded.
    fn is_of_user_code(&self) -> bool {
        self.event.mode == Mode::User && !is_clock(&self.event)
    }

    /// Closes the counters if they ran far less than they could since they were last judged.
    fn yield_if_crowded(&mut self, held: usize, now: Sum) -> bool {
        let enabled_ns = now.enabled_ns.saturating_sub(self.judged.enabled_ns);
        let running_ns = now.running_ns.saturating_sub(self.judged.running_ns);
        if !self.is_held() || enabled_ns < JUDGED_NS {
            return false;
        }
        self.judged = now;
        let is_crowded = is_crowded(held, enabled_ns, running_ns);
        if is_crowded {
            self.given_up = Some(now);
            self.counters.clear();
        }
        is_crowded
    }

    fn is_held(&self) -> bool {
        !self.event.is_software() && self.given_up.is_none()
    }
}

/// All counters of an event, or none: a sum over some of them would look like a total.
fn open_event(event: &Event, scopes: &[Scope<'_>], begin: Begin) -> io::Result<Counted> {
    let open = |event: &Event| scopes.iter().map(|&scope| Counter::open(event, scope, begin)).collect();
    let counted = |counters: Vec<Counter>, user_only: bool| Counted {
        event: event.clone(),
        counters,
        user_only,
        given_up: None,
        judged: Sum::default(),
    };
    let first: io::Result<Vec<Counter>> = open(event);
    match first {
        Ok(counters) => Ok(counted(counters, false)),
        // An ordinary user may count his own code; what happens in the kernel alone would read as 0.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && event.mode == Mode::Everywhere
                && !event.is_of_the_kernel() =>
        {
            let in_user_code = Event { mode: Mode::User, ..event.clone() };
            open(&in_user_code).map(|counters| counted(counters, !is_clock(event)))
        }
        Err(error) => Err(error),
    }
}

/// Clocks count kernel time whatever was excluded.
fn is_clock(event: &Event) -> bool {
    event.is_software() && event.config <= 1
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => {
            "this machine's processor, or its hypervisor, does not count it".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "not allowed: sudo sysctl kernel.perf_event_paranoid=1".to_owned()
        }
        Some(libc::EBUSY) => "the counters are in use by another program".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    fn events(names: &[&str]) -> Vec<Event> {
        names.iter().flat_map(|name| Event::parse(name, "").unwrap()).collect()
    }

    #[test]
    fn events_come_and_go_and_the_others_count_on() {
        let (mut counters, refused) =
            Counters::of_tree(&[0], &events(&["task_clock", "page_faults"]), Begin::Now);
        if counters.is_empty() {
            met_core::skipped::skipped(format!("{refused:?}"));
            return;
        }
        let spin = |counters: &Counters| loop {
            let clock = counters.read().find(|(event, _)| event.name == "task_clock").unwrap().1;
            if clock.count > 1_000_000 {
                return clock;
            }
        };
        let before = spin(&counters);
        let closed = counters.keep(&events(&["task_clock"]));
        assert_eq!(closed.iter().map(|(event, _)| event.name.as_str()).collect::<Vec<_>>(), ["page_faults"]);
        counters.join(Counters::of_tree(&[0], &events(&["context_switches"]), Begin::Now).0);
        assert!(!counters.counts(&events(&["page_faults"])[0]));
        let after = spin(&counters);
        assert!(after.count >= before.count, "what goes on is not disturbed");
        assert_eq!(after.and(before).count, after.count + before.count);
    }

    #[test]
    fn counters_that_are_passed_on_read_the_same_and_other_descriptors_are_refused() {
        let (counters, refused) = Counters::of_tree(&[0], &events(&["task_clock"]), Begin::Now);
        if counters.is_empty() {
            met_core::skipped::skipped(format!("{refused:?}"));
            return;
        }
        let copies = counters.to_pass().map(|(passed, descriptors)| {
            let copies = descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            (passed, copies)
        });
        let received = Counters::received(false, copies.collect());
        drop(counters);
        let totals = received.totals();
        assert_eq!((totals[0].name.as_str(), totals[0].source.as_str()), ("task_clock", IN_TREE));
        assert!(totals[0].count > 0 && received.has("task_clock"));
        // Reading it would wait for ever.
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        let passed = Passed { name: "x".to_owned(), software: true, user_only: false };
        assert!(Counters::received(true, vec![(passed, vec![pipe])]).is_empty());
    }

    #[test]
    fn this_thread_is_counted() {
        let (counters, refused) =
            Counters::of_tree(&[0], &events(&["task_clock", "page_faults"]), Begin::Now);
        if counters.is_empty() {
            met_core::skipped::skipped(format!("{refused:?}"));
            return;
        }
        let pages = 200;
        let mut memory = vec![0u8; pages * 4096 + (64 << 20)];
        for page in memory.chunks_mut(4096).take(pages) {
            page[0] = black_box(1);
        }
        let mut counters = counters;
        let totals = counters.totals_yielding();
        assert_eq!(totals.len(), counters.totals().len(), "software events are not given up");
        let of = |name: &str| totals.iter().find(|event| event.name == name).unwrap();
        assert!(of("task_clock").count > 0);
        assert!(of("page_faults").count >= 1, "huge pages may serve many pages with one fault");
        assert_eq!(of("task_clock").counted, 1.0);
        assert_eq!(of("task_clock").kind, QualityKind::LowerBound, "the end of a process is not counted");
    }

    #[test]
    fn what_a_machine_does_not_count_is_refused_in_words() {
        let impossible = Event { name: "x".to_owned(), kind: 0xffff, config: 0, mode: Mode::Everywhere };
        let (counters, refused) = Counters::of_tree(&[0], &[impossible], Begin::Now);
        assert!(counters.is_empty() && counters.totals().is_empty());
        assert!(refused[0].reason.contains("does not count it"), "{refused:?}");
    }

    #[test]
    fn counters_are_given_up_to_others_and_not_to_ourselves() {
        assert!(is_crowded(2, 1_000, 100));
        assert!(!is_crowded(2, 1_000, 500));
        assert!(!is_crowded(20, 1_000, 180), "twenty events share the counters among themselves");
        assert!(is_crowded(20, 1_000, 20));
    }
}
