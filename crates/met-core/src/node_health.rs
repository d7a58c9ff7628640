//! What a machine says of itself beside its measurements: its GPUs, and the sources that it cannot read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::prefix;
use crate::units;

/// More failing sources than this are counted together.
const SOURCES_MAX: usize = 8;
const TEXT_BYTES_MAX: usize = 160;
/// More than any machine has.
const GPUS_MAX: i64 = 4096;

/// A source that failed at its last reading, in part or whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingSource {
    pub source: String,
    /// What is wrong, without the name and the time.
    pub problem: String,
    /// Unix time of the first of the readings in a row that failed; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<i64>,
}

impl FailingSource {
    pub fn of(source: &str) -> FailingSource {
        FailingSource { source: source.to_owned(), ..FailingSource::default() }
    }

    /// Without the details, which may name addresses and files: they are for operators.
    pub fn without_details(mut self) -> FailingSource {
        self.problem.truncate(self.problem.find(": ").unwrap_or(self.problem.len()));
        self
    }

    /// In one line, with how long that has been so.
    pub fn text(&self, now_ns: i64) -> String {
        match self.source.as_str() {
            "" => self.what(now_ns),
            name => format!("source {name}: {}", self.what(now_ns)),
        }
    }

    /// The same without the name.
    pub fn what(&self, now_ns: i64) -> String {
        let Some(since_ns) = self.since_ns else { return self.problem.clone() };
        let seconds = now_ns.saturating_sub(since_ns).max(0) as f64 / 1e9;
        format!("{} (for {})", self.problem, units::duration(seconds))
    }
}

/// What a node has not delivered to its server yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spool {
    #[serde(rename = "spool_batches")]
    pub batches: u64,
    #[serde(rename = "spool_bytes")]
    pub bytes: u64,
}

impl Spool {
    /// Says it in a request of a node, which an earlier server overlooks.
    pub const HEADER: &'static str = "Met-Spool";
}

impl fmt::Display for Spool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.batches, self.bytes)
    }
}

impl FromStr for Spool {
    type Err = ();

    fn from_str(text: &str) -> Result<Spool, ()> {
        let (batches, bytes) = text.split_once(' ').ok_or(())?;
        // Numbers in JSON are exact up to here.
        let number = |text: &str| text.parse().ok().filter(|&number: &u64| number < 1 << 53).ok_or(());
        Ok(Spool { batches: number(batches)?, bytes: number(bytes)? })
    }
}

/// As of the last readings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// GPUs that jobs can be given; a MIG instance is one. `None` where no driver was asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing_sources: Vec<FailingSource>,
}

impl NodeHealth {
    pub fn is_empty(&self) -> bool {
        *self == NodeHealth::default()
    }

    /// The same in bounded length: it may come from another machine.
    pub fn bounded(mut self) -> NodeHealth {
        self.gpus = self.gpus.filter(|gpus| (0..=GPUS_MAX).contains(gpus));
        // One line may say how many there are beyond these.
        let is_long = self.failing_sources.len() > SOURCES_MAX + 1;
        let more = if is_long { self.failing_sources.len() - SOURCES_MAX } else { 0 };
        self.failing_sources.truncate(if is_long { SOURCES_MAX } else { SOURCES_MAX + 1 });
        for failing in &mut self.failing_sources {
            failing.source = prefix(&failing.source, TEXT_BYTES_MAX).to_owned();
            failing.problem = prefix(&failing.problem, TEXT_BYTES_MAX).to_owned();
        }
        if more > 0 {
            let problem = format!("{more} more sources fail; see `met doctor` there");
            self.failing_sources.push(FailingSource { problem, ..FailingSource::default() });
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_comes_back_and_anything_else_is_unknown() {
        let spool = Spool { batches: 12, bytes: 34_567 };
        assert_eq!(spool.to_string().parse(), Ok(spool));
        for text in ["", "1", "1 -2", "1  2", "1 2 3", "99999999999999999999 1", "9007199254740993 0"] {
            assert!(text.parse::<Spool>().is_err(), "{text}");
        }
    }

    #[test]
    fn failing_sources_are_named_in_bounded_lines_with_how_long_they_fail() {
        let failing = |source: &str, since_ns| FailingSource {
            source: source.to_owned(),
            problem: "x".repeat(1000),
            since_ns,
        };
        let many: Vec<_> = (0..20).map(|number| failing(&format!("s{number}"), None)).collect();
        let health = NodeHealth { gpus: Some(-1), failing_sources: many }.bounded();
        assert_eq!(health.gpus, None, "no machine has less than no GPU");
        assert_eq!(health.failing_sources.len(), SOURCES_MAX + 1);
        assert_eq!(
            health.failing_sources[SOURCES_MAX].text(0),
            "12 more sources fail; see `met doctor` there"
        );
        assert!(health.failing_sources.iter().all(|failing| failing.problem.len() <= TEXT_BYTES_MAX));
        assert_eq!(health.clone().bounded(), health, "what is bounded stays as it is");

        let failing = FailingSource { problem: "reading fails: EIO".to_owned(), ..failing("rapl", Some(0)) };
        assert_eq!(failing.text(90_000_000_000), "source rapl: reading fails: EIO (for 1m30s)");
        assert_eq!(failing.text(-5), "source rapl: reading fails: EIO (for 0s)", "a clock that was set back");
    }
}
