//! The sinks of a daemon, and what it publishes to them.

use std::path::Path;
use std::sync::Arc;

use met_core::course::Course;
use met_core::job::{JobKey, Record, Summaries};
use met_core::{JOB, Kind};
use met_sinks::bus::{self, Bus};
use met_sinks::event::{self, Event, Samples};
use met_sinks::forward;
use met_wire::batch::{Standing, Subject};

use super::board::Board;
use super::forwarding;
use super::keeping::Keeping;
use met_config::Place;
use met_query::live::Live;
use met_query::setting::Setting;

/// Opens all that are configured. One that cannot be opened keeps nothing from being measured; its status says why.
pub(super) fn open(setting: &Setting, place: &Place, board: Option<&Board>) -> Bus {
    // As with `http`, the machine's file is meant for the machine's daemon.
    let is_machines = setting.config_path.as_deref() == Some(Path::new(met_config::MACHINE_FILE));
    let configured: &[_] = if place.system || !is_machines { &setting.config.sinks } else { &[] };
    let mut bus = Bus::open(configured);
    let name = forward::SPEC.name;
    match forwarding::start(&setting.host, &setting.config, place, board.is_some()) {
        Ok(None) => {}
        Ok(Some(forward)) => {
            if let Some(board) = board {
                board.watch_spool(forward.watch());
            }
            bus.add_direct(name, Box::new(forward));
        }
        Err(why) => {
            let mut status = bus::Status { name: name.to_owned(), ..bus::Status::default() };
            status.add_forward(*why);
            status.state = bus::State::Failed;
            bus.add_failed(status);
        }
    }
    bus
}

impl Keeping {
    /// After the store has it.
    pub(super) fn publish_start(&mut self, record: &Record) {
        if self.bus.wants(event::Kind::Started) {
            self.bus.publish(&Event::Started(Arc::new(record.clone())));
        }
    }

    pub(super) fn publish_end(&mut self, record: &Record) {
        publish_end(&mut self.bus, record);
    }
}

/// After the commit, and again when the record of a finished job has changed.
pub(super) fn publish_end(bus: &mut Bus, record: &Record) {
    if !record.state.is_live() && bus.wants(event::Kind::Ended) {
        bus.publish(&Event::Ended(Arc::new(record.clone())));
    }
}

pub(super) fn publish_samples(bus: &mut Bus, subject: Subject, course: Course) {
    if !course.is_empty() && bus.wants(event::Kind::Samples) {
        bus.publish(&Event::Samples(Arc::new(Samples { node: None, subject, course })));
    }
}

/// The figures of a running job; means of counters follow from their totals.
pub(super) fn publish_interim(bus: &mut Bus, key: &JobKey, live: &Live) {
    let mut summaries = Summaries::default();
    let levels = live.summaries.iter().filter(|&(column, _)| JOB.columns[column].kind == Kind::Gauge);
    levels.for_each(|(column, summary)| summaries.set(column, *summary));
    let (totals, emission) = (live.totals.clone(), live.emission.clone());
    bus.publish(&Event::Interim(Arc::new(Standing { key: key.clone(), totals, summaries, emission })));
}
