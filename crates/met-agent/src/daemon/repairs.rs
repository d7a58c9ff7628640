//! When a damaged store is repaired: lists of any user meet the damage, and a repair is costly. A list itself repairs
//! nothing.

use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Repairs {
    /// A reader met damage.
    is_wanted: bool,
    last: Option<Instant>,
    /// The failure that was logged, until a look at the store succeeds.
    logged: Option<String>,
}

impl Repairs {
    /// A reader met damage.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether an attempt that a list wants begins at `now`; it counts as one.
    pub fn begin(&mut self, now: Instant) -> bool {
        let is_wanted = std::mem::take(&mut self.is_wanted);
        let is_due = is_wanted && self.last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }

    /// What to log of an attempt: a failure is logged once, however often it is met.
    pub fn ended(&mut self, failure: Option<String>) -> Option<&str> {
        if self.logged == failure {
            return None;
        }
        self.logged = failure;
        self.logged.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_meet_damage_start_one_repair_a_minute() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        assert!(!repairs.begin(now), "no list met damage");
        let mut list_at = |now| {
            repairs.want();
            repairs.begin(now)
        };
        assert!(list_at(now));
        assert!(!list_at(now) && !list_at(now + PAUSE / 2));
        assert!(list_at(now + PAUSE));
        assert!(!list_at(now + PAUSE), "the pause restarts");
    }

    #[test]
    fn a_failure_is_logged_once_and_again_after_a_success() {
        let mut repairs = Repairs::default();
        let failure = |text: &str| Some(text.to_owned());
        assert_eq!(repairs.ended(failure("no space")), Some("no space"));
        assert_eq!(repairs.ended(failure("no space")), None);
        assert_eq!(repairs.ended(failure("input/output error")), Some("input/output error"));
        assert_eq!(repairs.ended(None), None);
        assert_eq!(repairs.ended(failure("no space")), Some("no space"));
    }
}
