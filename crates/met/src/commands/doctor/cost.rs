//! `met doctor --cost`: what each source costs with the jobs that run now.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use met_core::job::State;
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::output;
use crate::view::{Paint, Style, text};
use met_agent::sampler::{Cost, Sampler};
use met_core::units;
use met_query::jobs::{AllJobs, JobsFilter};
use met_query::setting::Setting;

/// Looks a second apart, as a daemon does: in a loop everything would be in a cache, and look cheap.
const LOOKS: u32 = 5;

/// What each source costs with the jobs that run now.
pub(super) fn cost(setting: &Setting, args: &DoctorArgs) -> Result<i32> {
    let interval = setting.config.sampling.shortest();
    let mut sampler = Sampler::of_node(setting.host.clone(), interval, &setting.config);
    let running = JobsFilter { states: vec![State::Running, State::Suspended], ..JobsFilter::default() };
    for record in AllJobs::open(setting)?.jobs(&running)? {
        sampler.add(&record);
    }
    let terminal = io::stderr().is_terminal();
    sampler.look();
    for look in 1..=LOOKS {
        if terminal {
            let _ = write!(io::stderr(), "\rmeasuring, {look} of {LOOKS}\x1b[K");
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
    stdout.write_all(table(&lines, &stdout.style()).as_bytes())?;
    Ok(0)
}

fn table(lines: &[CostLine], style: &Style) -> String {
    let head =
        format!("{:<12} {:>7} {:>6} {:>12} {:>10}", "SOURCE", "EVERY", "ROWS", "PER READING", "OF A CORE");
    let mut drawn = style.paint(Paint::Bold, &head) + "\n";
    for line in lines {
        drawn += &format!(
            "{:<12} {:>7} {:>6} {:>12} {:>10}\n",
            line.source,
            units::duration(line.every.as_secs_f64()),
            line.rows,
            line.each_ns.map_or("-".to_owned(), |ns| units::duration(ns / 1e9)),
            line.core_ratio().map_or("-".to_owned(), |ratio| format!("{:.3}%", ratio * 100.0)),
        );
    }
    let total: f64 = lines.iter().filter_map(CostLine::core_ratio).sum();
    drawn += &format!("{:<12} {:>38.3}%\n", "together", total * 100.0);
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_terminal_without_greek_letters_shows_microseconds_too() {
        let line =
            CostLine { source: "proc", every: Duration::from_secs(1), rows: 3, each_ns: Some(61_000.0) };
        let style = Style { ascii: true, ..Style::plain() };
        expect![[r#"
            SOURCE         EVERY   ROWS  PER READING  OF A CORE
            proc              1s      3         61us     0.006%
            together                                      0.006%
        "#]]
        .assert_eq(&table(&[line], &style));
    }
}
