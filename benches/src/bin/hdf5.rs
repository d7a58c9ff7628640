//! What the sink `hdf5` does with Colmet's records of 1,000 hosts (taskstats and procstats): records in a second and CPU
//! time of each, at level 0 and 9, with and without waiting for the disk.
//!
//! Run it with `cargo run --release -p met-benches --bin hdf5 [ROUNDS]`; `benches/colmet` runs it beside Colmet.

use std::time::Instant;

use anyhow::{Context, Result};
use met_benches::colmet_round::{HOSTS, cpu_s, round};
use met_benches::say;
use met_sinks::sink::Options;
use met_sinks::{Event, SINKS};

const ROUNDS: u64 = 20;

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |text| text.parse())?;
    // Of one job, as in `benches/colmet`.
    let events: Vec<Event> = (0..rounds).map(|number| round(number, |_| 7)).collect();
    for level in ["0", "9"] {
        for sync in ["yes", "no"] {
            measure(&events, level, sync)?;
        }
    }
    Ok(())
}

fn measure(events: &[Event], level: &str, sync: &str) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let path = folder.path().join("out.hdf5").to_string_lossy().into_owned();
    let mut options = Options::default();
    for (name, value) in [("path", &*path), ("level", level), ("sync", sync), ("flush", "5s")] {
        options.set(name, vec![value.to_owned()]);
    }
    let spec = SINKS.iter().find(|spec| spec.name == "hdf5").context("no such sink")?;
    let mut sink = (spec.open)(&options)?;
    let (begin, cpu_begin_s) = (Instant::now(), cpu_s());
    events.iter().try_for_each(|event| sink.take(event))?;
    sink.close();
    let (took_s, cpu_took_s) = (begin.elapsed().as_secs_f64(), cpu_s() - cpu_begin_s);
    let records = (events.len() as u64 * HOSTS * 2) as f64;
    say(&format!(
        "hdf5 {level}, {records:.0} records, met, sync: {sync}: {:.0}/s, CPU time of each {:.2} µs",
        records / took_s,
        cpu_took_s / records * 1e6
    ));
    Ok(())
}
