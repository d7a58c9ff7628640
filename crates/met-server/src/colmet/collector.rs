//! A collector as Colmet's: takes records of any node and hands them to sinks. It stores nothing by itself.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use met_sinks::event::Event;
use met_sinks::zeromq::{Pull, Received};
use met_sinks::{Bus, Configured};
use met_wire::colmet::variant::{self, Sample};
use met_wire::colmet::{MESSAGE_BYTES_MAX, Record, records_with};

use super::counts::{Complaints, Kind};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long it does not read while a sink is behind.
const CROWDED_FOR: Duration = Duration::from_millis(2);
/// How long sinks may take for what waits at the end; a service manager waits longer.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
/// Some megabytes.
const RECORDS_OF_EVENT: usize = 1000;
/// Events whose records are used again when sinks are done with them.
const EVENTS_KEPT: usize = 256;
/// Records of such events together, and those that wait for use. Sinks bound what waits for them; this is beside it.
const RECORDS_KEPT: usize = 4000;
/// A record with more jobs is not kept.
const JOBS_KEPT: usize = 64;

/// Collects until `is_over`, which is asked several times a second. Spools of sinks are in the state folder. As with Colmet's
/// own collector, every node is taken. `round`: how often it logs what it has taken, if it does.
pub fn collect(
    listen: &[SocketAddr],
    sinks: &[Configured],
    state: &Path,
    round: Option<Duration>,
    mut is_over: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut pull = Pull::bind(listen, MESSAGE_BYTES_MAX)?;
    for address in pull.addresses()? {
        tracing::info!(
            "taking records of Colmet at {address}; any host can send, so keep others out by a firewall"
        );
    }
    let mut bus = Bus::open(sinks, None, state);
    let mut complaints = Complaints::new(Arc::default());
    let mut recycled = Recycled::default();
    let mut round = round.map(|every| Round { every, next: Instant::now() + every, hosts: HashSet::new() });
    while !is_over() {
        // While a sink is behind, nodes wait: nothing that was taken is dropped.
        if bus.is_crowded() {
            std::thread::sleep(CROWDED_FOR);
            continue;
        }
        let mut taken: Vec<Record> = Vec::new();
        recycled.collect();
        pull.serve(Some(LOOK_EVERY), |_| true, &mut |peer, received: Received<'_>| {
            take(peer, received, &mut complaints, &mut recycled, &mut taken);
        });
        if let Some(round) = &mut round {
            round.hosts.extend(taken.iter().map(|record| record.hostname.clone()));
            round.log(&complaints);
        }
        // Those of many nodes are one event: sinks have room for so many.
        while !taken.is_empty() {
            let rest = taken.split_off(taken.len().min(RECORDS_OF_EVENT));
            bus.publish(&recycled.event(std::mem::replace(&mut taken, rest)));
        }
    }
    // Sinks write what they have.
    bus.close_within(CLOSED_WITHIN);
    let (taken, skipped) = complaints.counts.sums();
    tracing::info!("{taken} records taken, {skipped} skipped");
    Ok(())
}

/// Adds the records of a message.
fn take(
    peer: IpAddr,
    received: Received<'_>,
    complaints: &mut Complaints,
    recycled: &mut Recycled,
    taken: &mut Vec<Record>,
) {
    let bytes = match received {
        Ok(bytes) => bytes,
        Err(why) => {
            return complaints.refuse(Kind::Connection, peer, "connection closed", &format!(": {why}"));
        }
    };
    let before = taken.len();
    if variant::is_variant(bytes) {
        match variant::samples(bytes) {
            Ok(samples) => {
                taken.extend(samples.iter().filter_map(Sample::record));
                for _ in taken.len() - before..samples.len() {
                    complaints.refuse(Kind::Rust, peer, "no event that Colmet's tables have", "");
                }
            }
            Err(bad) => complaints.refuse(Kind::Rust, peer, bad.text(), ""),
        }
        complaints.counts.take(Kind::Rust, (taken.len() - before) as u64);
        return;
    }
    for record in records_with(bytes, || recycled.spare.pop()) {
        match record {
            Ok(record) => taken.push(record),
            Err(bad) => complaints.refuse(Kind::ColmetNode, peer, bad.text(), ""),
        }
    }
    complaints.counts.take(Kind::ColmetNode, (taken.len() - before) as u64);
}

/// Records that sinks are done with. The next ones take their memory: to allocate it in one thread and free it in another was much
/// of what a record cost.
#[derive(Default)]
struct Recycled {
    published: VecDeque<Arc<Vec<Record>>>,
    spare: Vec<Record>,
}

impl Recycled {
    fn event(&mut self, records: Vec<Record>) -> Event {
        let records = Arc::new(records);
        // The last one gives way, not the first: that is done first, unless a sink is stuck. Then a new one shows it.
        while self.published.len() >= EVENTS_KEPT || self.published_records() + records.len() > RECORDS_KEPT {
            if self.published.pop_back().is_none() {
                return Event::Colmet(records);
            }
        }
        self.published.push_back(Arc::clone(&records));
        Event::Colmet(records)
    }

    fn published_records(&self) -> usize {
        self.published.iter().map(|records| records.len()).sum()
    }

    /// Takes the records of events that sinks are done with. They take events in order: one that is held while a later one is
    /// done belongs to a sink that is stuck, and is left to it.
    fn collect(&mut self) {
        let is_done = |records: &Arc<Vec<Record>>| Arc::strong_count(records) == 1;
        let Some(last) = self.published.iter().rposition(is_done) else { return };
        for records in self.published.drain(..=last).filter_map(|records| Arc::try_unwrap(records).ok()) {
            let room = RECORDS_KEPT.saturating_sub(self.spare.len());
            let is_small = |record: &Record| record.involved_jobs.capacity() <= JOBS_KEPT;
            self.spare.extend(records.into_iter().filter(is_small).take(room));
        }
    }
}

/// The log of what was taken.
struct Round {
    every: Duration,
    next: Instant,
    /// Which sent in this round.
    hosts: HashSet<String>,
}

impl Round {
    fn log(&mut self, complaints: &Complaints) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + self.every;
        let ((taken, skipped), hosts) = (complaints.counts.sums(), self.hosts.len());
        tracing::info!(
            "hosts in this round: {hosts}; records since the start: {taken} taken, {skipped} skipped"
        );
        self.hosts.clear();
    }
}

#[cfg(test)]
mod tests {
    use met_wire::colmet::Backend;

    use super::*;

    fn records(count: usize) -> Vec<Record> {
        (0..count as u64).map(|second| Record::new(Backend::Taskstats, "n1", 7, second)).collect()
    }

    #[test]
    fn records_of_events_that_sinks_are_done_with_are_used_again() {
        let mut recycled = Recycled::default();
        let mut queue: VecDeque<Event> = (0..10).map(|_| recycled.event(records(100))).collect();
        recycled.collect();
        assert!(recycled.spare.is_empty());
        queue.drain(..3);
        recycled.collect();
        assert_eq!((recycled.spare.len(), recycled.published.len()), (300, 7));
        // A sink that is always behind: what is at the front is done some time.
        recycled.spare.clear();
        for _ in 0..100 {
            queue.push_back(recycled.event(records(RECORDS_OF_EVENT)));
            queue.drain(..queue.len().saturating_sub(20));
            recycled.collect();
        }
        assert_eq!(recycled.spare.len(), RECORDS_KEPT);
    }

    #[test]
    fn a_sink_that_is_stuck_holds_no_more_records_than_its_queue() {
        let mut recycled = Recycled::default();
        let mut of_stuck = Vec::new();
        for round in 0..2 * EVENTS_KEPT {
            let event = recycled.event(records(RECORDS_OF_EVENT));
            // Then its queue is full, and only others get events.
            match round < 10 {
                true => of_stuck.push(event),
                false => drop(event),
            }
            let kept = recycled.published_records();
            assert!(kept <= RECORDS_KEPT, "{kept} records of {} events", recycled.published.len());
            recycled.collect();
        }
        // The others' are used again meanwhile.
        assert_eq!((recycled.spare.len(), recycled.published.len()), (RECORDS_KEPT, 0));
        drop(of_stuck);
    }
}
