//! Differences of counters, in one place. Everything else keeps counters as they were read.

use crate::MISSING;

/// What happened to a counter between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Delta(i64),
    /// It fell: whatever it counted began again. The growth in between is unknown.
    Restarted,
    /// One of the two readings is missing.
    Gap,
}

pub fn step(before: i64, now: i64) -> Step {
    if before == MISSING || now == MISSING {
        Step::Gap
    } else if now < before {
        Step::Restarted
    } else {
        Step::Delta(now - before)
    }
}

/// Growth per second, or nothing where it is unknown.
pub fn per_second(before: i64, now: i64, elapsed_ns: i64) -> Option<f64> {
    match step(before, now) {
        Step::Delta(delta) if elapsed_ns > 0 => Some(delta as f64 * 1e9 / elapsed_ns as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_and_a_restart_are_not_growth() {
        assert_eq!(step(3, 10), Step::Delta(7));
        assert_eq!(step(10, 3), Step::Restarted);
        assert_eq!(step(MISSING, 3), Step::Gap);
        assert_eq!(step(3, MISSING), Step::Gap);
        assert_eq!(per_second(0, 10, 0), None);
        assert_eq!(per_second(0, 10, 2_000_000_000), Some(5.0));
    }
}
