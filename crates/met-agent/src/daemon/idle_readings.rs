//! When to measure a machine without jobs, to learn its idle power.
//!
//! A look is a few readings of the meters some seconds apart, as many as the ledger needs to believe them: a
//! controller answers one query while the next is sent. Between looks nothing wakes up.

use std::time::Duration;

const SECOND_NS: i64 = 1_000_000_000;
/// Fans and averages of controllers go on for a while after the last job.
const SETTLES_NS: i64 = 10 * SECOND_NS;
/// Readings further apart than the ledger's timeout have nothing to do with each other.
pub(crate) const APART_NS: i64 = 2 * SECOND_NS;
/// For meters that are read at once, and for the slowest controller that is worth it.
const READINGS_MIN: u32 = 4;
const READINGS_MAX: u32 = 80;
const LOOK_EVERY_NS: i64 = 300 * SECOND_NS;

/// The times of the next readings. `None`: there is nothing to be learned.
#[derive(Debug)]
pub(super) struct IdleReadings {
    next_ns: Option<i64>,
    readings: u32,
    readings_left: u32,
    is_first: bool,
}

impl IdleReadings {
    /// How often the slowest meter is read; without meters nothing ever wakes up.
    pub(super) fn begin(now_ns: i64, slowest: Option<Duration>) -> IdleReadings {
        let Some(slowest) = slowest else {
            return IdleReadings { next_ns: None, readings: 0, readings_left: 0, is_first: true };
        };
        let slowest_ns = i64::try_from(slowest.as_nanos()).unwrap_or(i64::MAX);
        // It is queried at the first reading and reported at the one after the answer: four answers, which end
        // three windows, and some slack.
        let most = slowest_ns.saturating_mul(9) / 2 / APART_NS + 2;
        let readings = u32::try_from(most).unwrap_or(READINGS_MAX).clamp(READINGS_MIN, READINGS_MAX);
        IdleReadings { next_ns: Some(now_ns + SETTLES_NS), readings, readings_left: readings, is_first: true }
    }

    /// From the beginning, for other meters.
    pub(super) fn again(self, now_ns: i64, slowest: Option<Duration>) -> IdleReadings {
        IdleReadings { is_first: self.is_first, ..IdleReadings::begin(now_ns, slowest) }
    }

    /// Right after the last job drivers of GPUs are still awake.
    pub(super) fn is_first_look(&self) -> bool {
        self.is_first
    }

    /// How long one may sleep.
    pub(super) fn until_next(&self, now_ns: i64) -> Option<Duration> {
        self.next_ns.map(|next_ns| Duration::from_nanos((next_ns - now_ns).max(0) as u64))
    }

    pub(super) fn is_due(&self, now_ns: i64) -> bool {
        self.next_ns.is_some_and(|next_ns| now_ns >= next_ns)
    }

    /// The meters were read; true when that was the last time for this look. Without any meter there is no
    /// other look.
    pub(super) fn took(&mut self, now_ns: i64, has_meters: bool) -> bool {
        self.readings_left = self.readings_left.saturating_sub(1);
        if self.readings_left > 0 {
            self.next_ns = Some(now_ns + APART_NS);
            return false;
        }
        (self.readings_left, self.is_first) = (self.readings, false);
        self.next_ns = has_meters.then_some(now_ns + LOOK_EVERY_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of readings in seconds, up to an hour.
    fn readings(slowest_s: u64, has_meters: bool) -> Vec<i64> {
        let mut rest = IdleReadings::begin(0, Some(Duration::from_secs(slowest_s)));
        let (mut now_ns, mut found) = (0, Vec::new());
        while let Some(wait) = rest.until_next(now_ns).filter(|_| now_ns < 3600 * SECOND_NS) {
            now_ns += wait.as_nanos() as i64;
            assert!(rest.is_due(now_ns) && !rest.is_due(now_ns - 1));
            found.push(now_ns / SECOND_NS);
            rest.took(now_ns, has_meters);
        }
        found
    }

    #[test]
    fn an_empty_machine_is_read_now_and_then() {
        assert_eq!(readings(1, true)[..6], [10, 12, 14, 16, 316, 318]);
        assert!(readings(10, true).len() < 3600 / 13, "of 3600 seconds nearly all are slept through");
        assert!(readings(3600, true).len() < 3600 / 4, "whatever is configured");
    }

    #[test]
    fn a_look_lasts_for_four_answers_of_the_slowest_meter() {
        let found = readings(10, true);
        let first: Vec<i64> = found.iter().copied().take_while(|&second| second < 300).collect();
        assert_eq!((first.len(), first[0], first[23]), (24, 10, 56));
    }

    #[test]
    fn without_meters_there_is_one_look() {
        assert_eq!(readings(1, false), [10, 12, 14, 16]);
        assert_eq!(
            IdleReadings::begin(0, None).until_next(0),
            None,
            "and where there can be none, not even that"
        );
    }
}
