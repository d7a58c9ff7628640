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

#[inline]
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
#[inline]
pub fn per_second(before: i64, now: i64, elapsed_ns: i64) -> Option<f64> {
    match step(before, now) {
        Step::Delta(delta) if elapsed_ns > 0 => Some(delta as f64 * 1e9 / elapsed_ns as f64),
        _ => None,
    }
}

/// Power in milliwatts from the growth of a counter of microjoules.
pub fn power_mw(before_uj: i64, now_uj: i64, elapsed_ns: i64) -> Option<i64> {
    per_second(before_uj, now_uj, elapsed_ns).map(|uw| (uw / 1e3).round() as i64)
}

/// Which part of the time something worked, in thousandths, from the growth of a counter of nanoseconds. Of
/// several working at once no more than one is counted.
pub fn busy_thousandths(before_ns: i64, now_ns: i64, elapsed_ns: i64) -> Option<i64> {
    match step(before_ns, now_ns) {
        Step::Delta(worked_ns) if elapsed_ns > 0 => {
            let thousandths = i128::from(worked_ns) * 1000 / i128::from(elapsed_ns);
            Some(i64::try_from(thousandths).unwrap_or(1000).min(1000))
        }
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

    #[test]
    fn power_is_the_growth_of_energy() {
        assert_eq!(power_mw(0, 150_000_000, 1_000_000_000), Some(150_000));
        assert_eq!(power_mw(0, 150_000_000, 2_000_000_000), Some(75_000));
        assert_eq!(power_mw(10, 3, 1_000_000_000), None, "a counter that fell is not growth");
        assert_eq!(power_mw(MISSING, 3, 1_000_000_000), None);
    }

    #[test]
    fn nothing_works_more_than_all_the_time() {
        assert_eq!(busy_thousandths(200, 700, 1000), Some(500));
        assert_eq!(busy_thousandths(0, i64::MAX, 1), Some(1000));
        assert_eq!(busy_thousandths(700, 200, 1000), None);
        assert_eq!(busy_thousandths(0, 5, 0), None);
    }
}
