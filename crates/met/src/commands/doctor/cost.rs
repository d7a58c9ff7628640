//! `met doctor --cost`: what each source costs with the jobs that run now.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use met_core::job::State;
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::jobs::{AllJobs, JobsFilter};
use crate::output;
use crate::sampler::{Cost, Sampler};
use crate::setting::Setting;
use crate::view::{Paint, units};

/// Looks a second apart, as a daemon does: in a loop everything would be in a cache, and look cheap.
const LOOKS: u32 = 5;

/// What each source costs with the jobs that run now.
pub(super) fn cost(setting: &Setting, args: &DoctorArgs) -> Result<i32> {
    let interval = setting.config.sampling.interval;
    let mut sampler = Sampler::of_node(setting.host.clone(), interval, &setting.config);
    let running = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
    for record in AllJobs::open(setting)?.jobs(&running)? {
        sampler.add(&record);
    }
    let terminal = io::stderr().is_terminal();
    sampler.look();
    for look in 1..=LOOKS {
        if terminal {
            let _ = write!(io::stderr(), "\rlooking {look} of {LOOKS}\x1b[K");
        }
        std::thread::sleep(Duration::from_secs(1));
        sampler.look();
    }
    if terminal {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let lines: Vec<CostLine> = sampler.costs().iter().map(|cost| CostLine::of(cost, interval)).collect();
    let mut stdout = output::stdout();
    if args.json {
        writeln!(stdout, "{}", serde_json::Value::Array(lines.iter().map(CostLine::object).collect()))?;
        return Ok(0);
    }
    let head =
        format!("{:<12} {:>7} {:>6} {:>12} {:>10}", "SOURCE", "EVERY", "ROWS", "PER READING", "OF A CORE");
    writeln!(stdout, "{}", stdout.style().paint(Paint::Bold, &head))?;
    for line in &lines {
        writeln!(
            stdout,
            "{:<12} {:>7} {:>6} {:>12} {:>10}",
            line.source,
            units::duration(line.every.as_secs_f64()),
            line.rows,
            line.each_ns.map_or("-".to_owned(), |ns| units::duration(ns / 1e9)),
            line.core_ratio().map_or("-".to_owned(), |ratio| format!("{:.3}%", ratio * 100.0)),
        )?;
    }
    let total: f64 = lines.iter().filter_map(CostLine::core_ratio).sum();
    writeln!(stdout, "{:<12} {:>38.3}%", "together", total * 100.0)?;
    Ok(0)
}

/// One source and its price.
struct CostLine {
    source: &'static str,
    every: Duration,
    rows: i64,
    /// Own threads included; nothing for what has not been read yet.
    each_ns: Option<f64>,
}

impl CostLine {
    fn of(cost: &Cost, interval: Duration) -> CostLine {
        let spent_ns = (cost.read_ns + cost.background_ns) as f64;
        CostLine {
            source: cost.source,
            every: cost.period.unwrap_or(interval),
            rows: cost.rows,
            each_ns: (cost.readings > 0).then(|| spent_ns / cost.readings as f64),
        }
    }

    fn core_ratio(&self) -> Option<f64> {
        Some(self.each_ns? / 1e9 / self.every.as_secs_f64())
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "source": self.source,
            "every_seconds": self.every.as_secs_f64(),
            "rows": self.rows,
            "reading_seconds": self.each_ns.map(|ns| ns / 1e9),
            "core_ratio": self.core_ratio(),
        })
    }
}
