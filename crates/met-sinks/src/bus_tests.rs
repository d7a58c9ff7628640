use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use met_core::job::Record;
use met_core::{Column, MISSING, Unit, sample};

use super::*;
use crate::event::{Samples, TickRow};
use crate::sink::{QUEUE, Report};

static COLUMNS: &[Column] = &[Column::gauge("level", Unit::Count, 1.0, "")];
static TABLE: Table = Table { name: "meter", subject: "", labels: &[], columns: COLUMNS };

fn ended(id: u32) -> Event {
    Event::Ended(Arc::new(sample::bare(id, "x")))
}

fn started(id: u32) -> Event {
    Event::Started(Arc::new(sample::bare(id, "x")))
}

fn interim(id: u32) -> Event {
    let Record { key, totals, .. } = sample::bare(id, "x");
    let interim = met_wire::batch::Interim { key, totals, summaries: Default::default(), emission: None };
    Event::Interim(Arc::new(interim))
}

/// Waits without a limit that a slow machine could miss.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Behaviour = Arc<dyn Fn(&Event) -> Result<(), SinkError> + Send + Sync>;

/// Follows its script, and reports what it took.
struct Puppet {
    taken: Sender<String>,
    behaviour: Behaviour,
}

fn interest(tables: &[&str]) -> Interest {
    let tables = tables.iter().map(|&name| name.to_owned()).collect();
    Interest { kinds: vec![Kind::Started, Kind::Ended, Kind::Interim], tables, ..Interest::default() }
}

impl Sink for Puppet {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        (self.behaviour)(event)?;
        let _ = self.taken.send(match event {
            Event::Started(record) | Event::Ended(record) => record.key.id.clone(),
            Event::Tick(tick) => tick.table.name.to_owned(),
            other => format!("{:?}", other.kind()),
        });
        Ok(())
    }
}

fn add(bus: &mut Bus, name: &str, tables: &[&str], behaviour: Behaviour) -> Receiver<String> {
    let (taken, received) = channel();
    bus.add(name, interest(tables), move || {
        let (taken, behaviour) = (taken.clone(), Arc::clone(&behaviour));
        Ok(Box::new(Puppet { taken, behaviour }))
    });
    received
}

fn well() -> Behaviour {
    Arc::new(|_| Ok(()))
}

fn next(received: &Receiver<String>) -> String {
    received.recv_timeout(Duration::from_secs(60)).expect("an event")
}

fn of(bus: &Bus, name: &str) -> Status {
    bus.status().into_iter().find(|status| status.name == name).unwrap()
}

/// A sink that buffers: it gives up 40 samples, and adds what it is reported to have missed.
struct Buffers {
    missed: Sender<u64>,
    dropped: u64,
}

impl Sink for Buffers {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        match event.kind() {
            Kind::Ended => Err(SinkError::Lost("full".to_owned())),
            _ => Ok(()),
        }
    }

    fn missed(&mut self, samples: u64) {
        let _ = self.missed.send(samples);
    }

    fn report(&mut self) -> Option<Report> {
        Some(Report { dropped: std::mem::take(&mut self.dropped), ..Report::default() })
    }
}

#[test]
fn the_page_and_the_status_say_the_same_of_a_sink_that_buffers() {
    let mut bus = Bus::default();
    let left = AtomicUsize::new(40);
    let (missed, _) = channel();
    bus.add("buffers", interest(&[]), move || {
        let dropped = left.swap(0, Ordering::Relaxed) as u64;
        Ok(Box::new(Buffers { missed: missed.clone(), dropped }))
    });
    let page = bus.watch();
    [started(1), ended(1), ended(2)].iter().for_each(|event| bus.publish(event));
    until("both ends are lost", || of(&bus, "buffers").dropped == 42 && of(&bus, "buffers").failed == 2);
    let status = &bus.status()[0];
    assert_eq!((status.delivered, status.dropped, status.failed), (1, 42, 2));
    assert_eq!(format!("{:?}", page()), format!("{:?}", rows(&bus.status())));
}

#[test]
fn a_sink_is_told_of_samples_that_found_no_room() {
    let mut series = met_core::series::Series::new(&TABLE);
    (0..3).for_each(|at| series.push(at, &[if at == 1 { MISSING } else { at }]));
    let subject = met_wire::batch::Subject::Node(String::new());
    let samples = Event::Samples(Arc::new(Samples { node: None, subject, series }));
    let mut bus = Bus::default();
    let (told, received) = channel();
    let (open, opening) = channel::<()>();
    let opening = Mutex::new(opening);
    let interest = Interest { kinds: vec![Kind::Samples], queue: 4, ..Interest::default() };
    bus.add("small", interest, move || {
        let _ = opening.lock().unwrap().recv();
        Ok(Box::new(Buffers { missed: told.clone(), dropped: 0 }))
    });
    // A quarter of the queue is for starts and ends.
    (0..5).for_each(|_| bus.publish(&samples));
    assert_eq!(of(&bus, "small").dropped, 2);
    drop(open);
    assert_eq!(received.recv_timeout(Duration::from_secs(60)).unwrap(), 4, "known cells");
    bus.close();
    assert!(received.try_recv().is_err(), "once");
}

#[test]
fn a_sink_with_work_of_its_own_is_opened_again_without_an_event() {
    let mut bus = Bus::default();
    let left = AtomicUsize::new(2);
    bus.add("timed", Interest { is_timed: true, ..Interest::default() }, move || {
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(SinkError::Retry("no such file".to_owned())),
            Err(_) => Ok(Box::new(Buffers { missed: channel().0, dropped: 0 })),
        }
    });
    until("it works", || of(&bus, "timed").failed == 2 && of(&bus, "timed").state == State::Running);
    bus.close();
}

#[test]
fn closing_does_not_wait_for_a_sink_that_hangs_when_it_is_closed() {
    struct Hangs(Receiver<()>);
    impl Sink for Hangs {
        fn take(&mut self, _: &Event) -> Result<(), SinkError> {
            Ok(())
        }

        fn close(self: Box<Self>) {
            let _ = self.0.recv();
        }
    }
    let mut bus = Bus::default();
    let (release, held) = channel();
    let held = Mutex::new(Some(held));
    bus.add("hangs", interest(&[]), move || Ok(Box::new(Hangs(held.lock().unwrap().take().unwrap()))));
    let begin = Instant::now();
    bus.close_within(Duration::from_millis(50));
    assert!(begin.elapsed() < Duration::from_secs(50));
    drop(release);
}

#[test]
fn closing_waits_for_each_sink_in_its_own_time() {
    struct Syncs(Duration);
    impl Sink for Syncs {
        fn take(&mut self, _: &Event) -> Result<(), SinkError> {
            Ok(())
        }

        fn close(self: Box<Self>) {
            std::thread::sleep(self.0);
        }
    }
    let mut bus = Bus::default();
    let mut add = |name, takes, close_within| {
        let interest = Interest { close_within, ..interest(&[]) };
        bus.add(name, interest, move || Ok(Box::new(Syncs(takes))));
    };
    add("hangs", Duration::from_secs(300), Duration::from_millis(1));
    add("syncs", Duration::from_millis(100), Duration::from_secs(60));
    let syncs = Arc::clone(&bus.lanes[1].shared);
    let begin = Instant::now();
    bus.close();
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(Arc::strong_count(&syncs), 1, "its thread has ended");
}

#[test]
fn a_bus_without_sinks_wants_nothing_and_holds_nothing() {
    let mut bus = Bus::default();
    assert!(bus.is_empty() && bus.ticker().is_none() && !bus.wants(Kind::Ended) && bus.within().is_none());
    assert!(bus.status().is_empty() && bus.lanes.capacity() == 0);
    bus.publish(&ended(1));
    bus.close();
}

#[test]
fn a_sink_gets_the_kinds_and_tables_it_asks_for() {
    let mut bus = Bus::default();
    let all = add(&mut bus, "all", &["meter"], well());
    let none = add(&mut bus, "none", &["other"], well());
    assert!(bus.wants(Kind::Ended) && !bus.wants(Kind::Samples));
    let ticker = bus.ticker().unwrap();
    assert!(ticker.wants(&TABLE));
    let mut tick = Tick::new(1, &TABLE);
    tick.push(TickRow { job: None, user: None, labels: Vec::new() }, &[MISSING]);
    ticker.publish(tick);
    ticker.publish(Tick::new(2, &TABLE));
    bus.publish(&started(7));
    assert_eq!([next(&all), next(&all)], ["meter", "7"]);
    assert_eq!(next(&none), "7", "neither the other table nor an empty tick");
    bus.close();
    assert!(all.try_recv().is_err() && none.try_recv().is_err());
}

#[test]
fn what_is_queued_is_delivered_before_the_end() {
    let mut bus = Bus::default();
    let received = add(&mut bus, "one", &[], well());
    let ticker = bus.ticker();
    (0..100).for_each(|id| bus.publish(&ended(id)));
    bus.close();
    assert!(ticker.is_none());
    assert_eq!(received.iter().count(), 100);
}

#[test]
fn a_sink_that_panics_loses_that_event_alone_and_disturbs_no_other() {
    let mut bus = Bus::default();
    let panics: Behaviour = Arc::new(|event| match event {
        Event::Ended(record) if record.key.id == "2" => panic!("on purpose"),
        _ => Ok(()),
    });
    let (bad, good) = (add(&mut bus, "bad", &[], panics), add(&mut bus, "good", &[], well()));
    (1..=3).for_each(|id| bus.publish(&ended(id)));
    assert_eq!([next(&good), next(&good), next(&good)], ["1", "2", "3"]);
    assert_eq!([next(&bad), next(&bad)], ["1", "3"]);
    until("both are counted", || of(&bus, "bad").delivered == 2);
    let status = of(&bus, "bad");
    assert_eq!((status.state, status.dropped, status.dropped_ends), (State::Running, 1, 1));
    assert_eq!(status.dropped_jobs, ["local:2"]);
    assert_eq!(status.last_error.as_deref(), Some("panicked: on purpose"));
    assert_eq!(of(&bus, "good").dropped, 0);
    bus.close();
}

#[test]
fn a_sink_that_fails_for_a_while_gets_the_same_event_again() {
    let mut bus = Bus::default();
    let left = AtomicUsize::new(2);
    let fails: Behaviour = Arc::new(move |_| {
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(SinkError::Retry("no answer".to_owned())),
            Err(_) => Ok(()),
        }
    });
    let received = add(&mut bus, "far", &[], fails);
    (1..=2).for_each(|id| bus.publish(&ended(id)));
    assert_eq!([next(&received), next(&received)], ["1", "2"]);
    until("both are counted", || of(&bus, "far").delivered == 2);
    let status = of(&bus, "far");
    assert_eq!((status.state, status.dropped), (State::Running, 0));
    assert_eq!(status.last_error.as_deref(), Some("no answer"));
    bus.close();
}

#[test]
fn a_sink_that_has_failed_stays_so_and_what_it_misses_is_counted() {
    let mut bus = Bus::default();
    let closed: Behaviour = Arc::new(|_| Err(SinkError::Failed("closed".to_owned())));
    let (_gone, good) = (add(&mut bus, "gone", &[], closed), add(&mut bus, "good", &[], well()));
    bus.publish(&ended(1));
    until("it has failed", || of(&bus, "gone").state == State::Failed);
    bus.publish(&ended(2));
    assert_eq!([next(&good), next(&good)], ["1", "2"]);
    until("both are counted", || of(&bus, "gone").dropped_ends == 2);
    let status = of(&bus, "gone");
    assert_eq!((status.delivered, status.queued, status.last_error.as_deref()), (0, 0, Some("closed")));
    bus.close();

    let mut bus = Bus::default();
    let soon = Interest { within: Some(Duration::from_secs(1)), ..interest(&[]) };
    bus.add("broken", soon, || Err(SinkError::Failed("no such file".to_owned())));
    bus.publish(&ended(1));
    until("it has failed, and missed an end", || of(&bus, "broken").dropped_ends == 1);
    let status = of(&bus, "broken");
    assert_eq!((status.state, status.failed), (State::Failed, 1));
    assert_eq!(bus.within(), None, "nobody waits for samples");
    bus.close();
}

#[test]
fn a_sink_that_reads_records_elsewhere_loses_no_end_and_gets_nothing_once_it_has_failed() {
    let mut bus = Bus::default();
    let (taken, _received) = channel();
    let fails: Behaviour = Arc::new(|event| match event.kind() {
        Kind::Interim => Err(SinkError::Failed("bad token".to_owned())),
        _ => Err(SinkError::Lost("away".to_owned())),
    });
    bus.add("outbox", Interest { has_records: true, ..interest(&[]) }, move || {
        Ok(Box::new(Puppet { taken: taken.clone(), behaviour: Arc::clone(&fails) }))
    });
    bus.publish(&ended(1));
    until("it did not take the end", || of(&bus, "outbox").failed == 1);
    assert!(bus.wants(Kind::Ended) && bus.wants(Kind::Interim));
    bus.publish(&interim(1));
    until("it has failed", || of(&bus, "outbox").state == State::Failed);
    assert!(!bus.wants(Kind::Ended) && !bus.wants(Kind::Interim), "nothing is made for it");
    [ended(2), interim(2)].iter().for_each(|event| bus.publish(event));
    let status = of(&bus, "outbox");
    assert_eq!((status.state, status.dropped, status.dropped_ends), (State::Failed, 1, 0));
    assert!(status.dropped_jobs.is_empty());
    bus.close();
}

/// A sink whose first attempts to be opened end so.
fn opened_later(bus: &mut Bus, attempts: usize, wrong: fn() -> Opened) -> Receiver<String> {
    let ((taken, received), left) = (channel(), AtomicUsize::new(attempts));
    bus.add("late", interest(&[]), move || {
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => wrong(),
            Err(_) => Ok(Box::new(Puppet { taken: taken.clone(), behaviour: well() })),
        }
    });
    received
}

#[test]
fn a_sink_that_cannot_be_opened_at_first_is_opened_later_and_what_it_missed_is_counted() {
    for wrong in [|| Err(SinkError::Lost("no such file".to_owned())), || panic!("on purpose")] {
        let mut bus = Bus::default();
        let (late, good) = (opened_later(&mut bus, 2, wrong), add(&mut bus, "good", &[], well()));
        assert!(bus.wants(Kind::Ended), "it is known what it wants");
        until("it was tried", || of(&bus, "late").failed == 1);
        assert_eq!((of(&bus, "late").state, of(&bus, "late").dropped), (State::Retrying, 0));
        bus.publish(&ended(1));
        until("it was tried again, and missed an end", || of(&bus, "late").dropped_ends == 1);
        bus.publish(&ended(2));
        assert_eq!(next(&late), "2");
        assert_eq!([next(&good), next(&good)], ["1", "2"]);
        until("it works", || of(&bus, "late").state == State::Running);
        let status = of(&bus, "late");
        assert_eq!((status.delivered, status.dropped, status.failed), (1, 1, 2));
        let shown: Vec<_> = bus.watch()().iter().map(|(_, cells)| cells.to_vec()).collect();
        assert_eq!(shown[0], [1, 1, 2, 0]);
        bus.close();
    }
}

#[test]
fn a_sink_that_hangs_delays_no_other_and_ends_of_jobs_have_room_after_samples() {
    let mut bus = Bus::default();
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let hangs: Behaviour = Arc::new(move |_| {
        let _ = held.lock().unwrap().recv();
        Ok(())
    });
    let (stuck, good) = (add(&mut bus, "stuck", &[], hangs), add(&mut bus, "good", &[], well()));
    bus.publish(&started(0));
    until("the first is being taken", || of(&bus, "stuck").queued == 0 && of(&bus, "good").delivered == 1);
    // The good sink is given time to keep up; nothing waits for the other one.
    for id in 0..QUEUE as u32 {
        bus.publish(&interim(id));
        until("the good sink takes it", || of(&bus, "good").delivered == u64::from(id) + 2);
    }
    let (all, most) = (QUEUE as u64, (QUEUE - QUEUE / RESERVED) as u64);
    let status = of(&bus, "stuck");
    assert_eq!((status.queued, status.dropped, status.dropped_ends), (most, all - most, 0));
    bus.publish(&ended(5000));
    assert_eq!((of(&bus, "stuck").queued, of(&bus, "stuck").dropped_ends), (most + 1, 0));
    // Even that room is bounded.
    (0..QUEUE as u32).for_each(|id| bus.publish(&ended(id)));
    let status = of(&bus, "stuck");
    assert_eq!((status.queued, status.dropped_ends), (all, most + 1));
    assert_eq!(status.dropped_jobs.len(), NAMED_MAX);
    assert_eq!(status.dropped_jobs.last().unwrap(), &format!("local:{}", QUEUE - 1));
    // A process that ends does not wait for it for ever.
    bus.close();
    drop(release);
    assert_eq!(next(&stuck), "0");
    drop(good);
}

#[test]
fn bytes_are_bounded_too() {
    let mut inner = Inner::new("x", &Interest::default());
    let mut record = sample::bare(1, "x");
    record.command = vec!["a".repeat(QUEUE_BYTES_MAX / 3)];
    let event = Event::Ended(Arc::new(record));
    (0..3).for_each(|_| inner.push(event.clone()));
    assert_eq!((inner.events.len(), inner.status.dropped), (2, 1));
    inner.pop();
    inner.push(event);
    assert_eq!((inner.events.len(), inner.status.dropped), (2, 1));
    while inner.pop().is_some() {}
    assert_eq!(inner.bytes, 0);
}

#[test]
fn what_a_sink_that_hangs_does_not_take_before_the_end_is_counted() {
    let mut bus = Bus::default();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let hangs: Behaviour = Arc::new(move |_| {
        let _ = held.lock().unwrap().recv();
        Ok(())
    });
    let _stuck = add(&mut bus, "stuck", &[], hangs);
    bus.publish(&ended(0));
    until("the first is being taken", || of(&bus, "stuck").queued == 0);
    (1..=3).for_each(|id| bus.publish(&ended(id)));
    let shared = Arc::clone(&bus.lanes[0].shared);
    bus.close();
    let status = shared.status();
    assert_eq!((status.dropped, status.dropped_ends, status.queued), (3, 3, 0));
    drop(let_go);
}
