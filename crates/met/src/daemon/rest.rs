//! When a machine without jobs is looked at, to learn what it uses doing nothing.
//!
//! A look is a few readings of the meters some seconds apart: a controller answers one question while the next
//! is asked, so two are not enough. Between looks nobody wakes up.

const SECOND_NS: i64 = 1_000_000_000;
/// Fans and averages of controllers go on for a while after the last job.
const SETTLES_NS: i64 = 10 * SECOND_NS;
/// Long enough for two answers of a controller that is asked every ten seconds.
const READINGS: u32 = 6;
const APART_NS: i64 = 4 * SECOND_NS;
const LOOK_EVERY_NS: i64 = 300 * SECOND_NS;

/// The times of the next readings. `None`: there is nothing to be learned.
#[derive(Debug)]
pub(super) struct Rest {
    next_ns: Option<i64>,
    readings_left: u32,
    is_first: bool,
}

impl Rest {
    pub(super) fn begin(now_ns: i64) -> Rest {
        Rest { next_ns: Some(now_ns + SETTLES_NS), readings_left: READINGS, is_first: true }
    }

    /// Right after the last job drivers of cards are still awake.
    pub(super) fn is_first_look(&self) -> bool {
        self.is_first
    }

    /// How long one may sleep.
    pub(super) fn until_next(&self, now_ns: i64) -> Option<std::time::Duration> {
        self.next_ns.map(|next_ns| std::time::Duration::from_nanos((next_ns - now_ns).max(0) as u64))
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
        (self.readings_left, self.is_first) = (READINGS, false);
        self.next_ns = has_meters.then_some(now_ns + LOOK_EVERY_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of readings in seconds, up to an hour.
    fn readings(has_meters: bool) -> Vec<i64> {
        let (mut rest, mut now_ns, mut found) = (Rest::begin(0), 0, Vec::new());
        while let Some(wait) = rest.until_next(now_ns).filter(|_| now_ns < 3600 * SECOND_NS) {
            now_ns += wait.as_nanos() as i64;
            assert!(rest.is_due(now_ns) && !rest.is_due(now_ns - 1));
            found.push(now_ns / SECOND_NS);
            rest.took(now_ns, has_meters);
        }
        found
    }

    #[test]
    fn an_empty_machine_is_looked_at_now_and_then() {
        let found = readings(true);
        assert_eq!(found[..8], [10, 14, 18, 22, 26, 30, 330, 334]);
        assert!(found.len() < 80, "an hour has 3600 seconds, and nearly all of them are slept through");
    }

    #[test]
    fn without_meters_there_is_one_look() {
        assert_eq!(readings(false), [10, 14, 18, 22, 26, 30]);
    }
}
