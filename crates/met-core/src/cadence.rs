//! How often a job is sampled: by its age, and more often while it changes or a user watches it.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use crate::units::{self, ParseError};

/// CPU time and needed memory of all jobs are read together at least this often, and I/O where it can have changed.
pub const TOGETHER_NS: i64 = 10_000_000_000;
/// A job whose figures changed sharply is sampled at the shortest interval for this long.
pub const CHANGED_FOR_NS: i64 = 30_000_000_000;
/// So is a watched one after the last request for it.
pub const WATCHED_FOR_NS: i64 = 15_000_000_000;
/// A rule may want a job to be sampled like that for this long at most, and so many jobs at once.
pub const WANTED_FOR_MAX: Duration = Duration::from_secs(3600);
pub const WANTED_JOBS_MAX: usize = 100;

/// Requests this close together come from a user who watches,
pub const WATCHED_WITHIN: Duration = Duration::from_secs(10);
/// and requests this close together are one: a page or a command asks for several things of a job.
pub const ASKED_ONCE_WITHIN: Duration = Duration::from_millis(500);

/// What another request for a job means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It belongs to the one before.
    Same,
    /// Such a request does not mean that a user watches the job.
    Once,
    /// Its client watches the job.
    Again,
}

impl Asked {
    /// After the time that has passed since the request before, if there was one.
    pub fn after(past: Option<Duration>) -> Asked {
        match past {
            Some(past) if past < ASKED_ONCE_WITHIN => Asked::Same,
            Some(past) if past < WATCHED_WITHIN => Asked::Again,
            _ => Asked::Once,
        }
    }
}

const STEPS_MAX: usize = 8;
const SHORTEST_NS: i64 = 10_000_000;
/// An hour has at least 60 samples.
pub(crate) const LONGEST_NS: i64 = 60_000_000_000;

/// Intervals by the age of a job: the first holds from its start, each other one from a later age, and none is
/// shorter than the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    after_ns: i64,
    interval_ns: i64,
}

/// What a job's interval depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub age_ns: i64,
    /// Time since its figures last changed sharply.
    pub changed_ns: Option<i64>,
    /// Time since the last request of a user who watches it.
    pub watched_ns: Option<i64>,
}

/// The ladder of a machine whose configuration names none, as it would be written there.
pub const DEFAULT: &str = "1s, 10s after 5m, 30s after 1h, 60s after 1d";

static DEFAULT_LADDER: LazyLock<Ladder> = LazyLock::new(|| {
    // It parses; a test reads its steps.
    Ladder::parse(DEFAULT.split(',')).unwrap_or_else(|_| Ladder::fixed(Duration::from_secs(1)))
});

/// The time between two samples of a job of this age, in milliseconds, where nothing else is configured.
pub fn default_ms(age_ms: i64) -> i64 {
    let interest = Interest { age_ns: age_ms.saturating_mul(1_000_000), ..Interest::default() };
    DEFAULT_LADDER.interval_ns(&interest) / 1_000_000
}

impl Default for Ladder {
    fn default() -> Ladder {
        DEFAULT_LADDER.clone()
    }
}

impl Ladder {
    /// The same interval at any age.
    pub fn fixed(interval: Duration) -> Ladder {
        Ladder { steps: vec![Step { after_ns: 0, interval_ns: nanoseconds(interval) }] }
    }

    /// From steps such as `1s` and `10s after 5m`.
    pub fn parse<'t>(steps: impl Iterator<Item = &'t str>) -> Result<Ladder, ParseError> {
        let steps: Vec<Step> = steps.map(|text| Step::parse(text.trim())).collect::<Result<_, _>>()?;
        let Some(first) = steps.first() else {
            return Err(ParseError("at least one interval is needed; write [1s, 10s after 5m]".to_owned()));
        };
        if first.after_ns != 0 {
            return Err(ParseError(format!(
                "\"{first}\": the first interval holds from the start; omit \"after\""
            )));
        }
        for pair in steps.windows(2) {
            if pair[1].after_ns <= pair[0].after_ns || pair[1].interval_ns < pair[0].interval_ns {
                return Err(ParseError(format!(
                    "\"{}\" must be longer and later than \"{}\"",
                    pair[1], pair[0]
                )));
            }
        }
        if steps.len() > STEPS_MAX {
            return Err(ParseError(format!("{} steps; at most {STEPS_MAX} are possible", steps.len())));
        }
        Ok(Ladder { steps })
    }

    pub fn is_fixed(&self) -> bool {
        self.steps.len() == 1
    }

    /// The interval of a new, changing or watched job.
    pub fn shortest_ns(&self) -> i64 {
        self.steps[0].interval_ns
    }

    pub fn longest_ns(&self) -> i64 {
        self.steps[self.steps.len() - 1].interval_ns
    }

    /// The longest time between two readings of all jobs together.
    pub fn together_ns(&self) -> i64 {
        self.longest_ns().min(TOGETHER_NS).max(self.shortest_ns())
    }

    /// The time between two samples of a job.
    pub fn interval_ns(&self, interest: &Interest) -> i64 {
        let is_recent = |past: Option<i64>, within_ns: i64| past.is_some_and(|past_ns| past_ns < within_ns);
        if is_recent(interest.changed_ns, CHANGED_FOR_NS) || is_recent(interest.watched_ns, WATCHED_FOR_NS) {
            return self.shortest_ns();
        }
        let passed = self.steps.partition_point(|step| step.after_ns <= interest.age_ns);
        self.steps[passed.saturating_sub(1)].interval_ns
    }
}

/// Which ladder holds for which job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cadence {
    ladder: Ladder,
    /// Instead of it, for the jobs of some resource managers.
    managers: Vec<(String, Ladder)>,
}

impl Cadence {
    pub fn new(ladder: Ladder, managers: impl Iterator<Item = (String, Duration)>) -> Cadence {
        let managers = managers.map(|(name, interval)| (name, Ladder::fixed(interval))).collect();
        Cadence { ladder, managers }
    }

    /// The same interval for every job.
    pub fn fixed(interval: Duration) -> Cadence {
        Cadence { ladder: Ladder::fixed(interval), managers: Vec::new() }
    }

    /// The ladder of most jobs.
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The ladder of a manager's jobs.
    pub fn of(&self, manager: &str) -> &Ladder {
        let own = self.managers.iter().find(|(name, _)| name == manager);
        own.map_or(&self.ladder, |(_, ladder)| ladder)
    }

    /// The shortest time between two samples of any job.
    pub fn shortest_ns(&self) -> i64 {
        let all = self.managers.iter().map(|(_, ladder)| ladder).chain([&self.ladder]);
        all.map(Ladder::shortest_ns).min().unwrap_or(LONGEST_NS)
    }

    pub fn shortest(&self) -> Duration {
        Duration::from_nanos(self.shortest_ns() as u64)
    }

    /// The longest time between two readings of all jobs together.
    pub fn together_ns(&self) -> i64 {
        self.ladder.together_ns()
    }
}

impl Step {
    fn parse(text: &str) -> Result<Step, ParseError> {
        let (interval, after) = match text.split_once(" after ") {
            Some((interval, after)) => (interval, nanoseconds(units::parse_duration(after)?)),
            None => (text, 0),
        };
        let interval_ns = nanoseconds(units::parse_duration(interval)?);
        match interval_ns {
            ..SHORTEST_NS => Err(ParseError(format!("{interval:?} is too short; the shortest is 10ms"))),
            SHORTEST_NS..=LONGEST_NS => Ok(Step { after_ns: after, interval_ns }),
            _ => Err(ParseError(format!("{interval:?} is too long; the longest is 60s"))),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", Short(self.interval_ns))?;
        if self.after_ns > 0 {
            write!(out, " after {}", Short(self.after_ns))?;
        }
        Ok(())
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            write!(out, "{}{step}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A duration in the largest unit of which it is a multiple.
struct Short(i64);

impl fmt::Display for Short {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(i64, &str); 5] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
        ];
        let found = UNITS.iter().find(|(unit_ns, _)| self.0 >= *unit_ns && self.0 % unit_ns == 0);
        match found {
            Some((unit_ns, unit)) => write!(out, "{}{unit}", self.0 / unit_ns),
            None => write!(out, "{}s", self.0 as f64 / 1e9),
        }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn aged(age_s: i64) -> Interest {
        Interest { age_ns: age_s * SECOND_NS, ..Interest::default() }
    }

    fn parse(text: &str) -> Result<Ladder, ParseError> {
        Ladder::parse(text.split(','))
    }

    #[test]
    fn the_default_grows_with_age() {
        let ladder = Ladder::default();
        let seconds = |age_s| ladder.interval_ns(&aged(age_s)) / SECOND_NS;
        let found = [-5, 0, 299, 300, 3599, 3600, 86_399, 86_400, i64::MAX / SECOND_NS].map(seconds);
        assert_eq!(found, [1, 1, 1, 10, 10, 30, 30, 60, 60]);
        assert_eq!(ladder.to_string(), "1s, 10s after 5m, 30s after 1h, 1m after 1d");
        assert_eq!(ladder.together_ns(), TOGETHER_NS);
    }

    #[test]
    fn a_fixed_interval_holds_at_any_age() {
        let ladder = Ladder::fixed(Duration::from_secs(300));
        assert_eq!(ladder.interval_ns(&aged(90_000)), 300 * SECOND_NS);
        assert!(ladder.is_fixed() && ladder.together_ns() == 300 * SECOND_NS);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text| parse(text).unwrap_err().to_string();
        assert_eq!(
            error("1s after 5m"),
            "\"1s after 5m\": the first interval holds from the start; omit \"after\""
        );
        assert_eq!(error("10s, 1s after 5m"), "\"1s after 5m\" must be longer and later than \"10s\"");
        assert_eq!(
            error("1s, 10s after 5m, 30s after 1m"),
            "\"30s after 1m\" must be longer and later than \"10s after 5m\""
        );
        assert_eq!(error("1s, 5m after 1d"), "\"5m\" is too long; the longest is 60s");
        assert_eq!(error("1ms"), "\"1ms\" is too short; the shortest is 10ms");
        assert_eq!(error("fast"), "\"fast\" is not a duration; write 1s, 500ms or 2m");
    }

    prop_compose! {
        fn ladder()(steps in prop::collection::vec((1..100_000i64, 1..20i64), 1..6)) -> Ladder {
            let (mut after_ns, mut interval_ns) = (0, 0);
            let step = |(index, (later_s, longer_s)): (usize, (i64, i64))| {
                after_ns += if index == 0 { 0 } else { later_s * SECOND_NS };
                interval_ns = (interval_ns + longer_s * SECOND_NS).min(LONGEST_NS);
                Step { after_ns, interval_ns }
            };
            Ladder { steps: steps.into_iter().enumerate().map(step).collect() }
        }
    }

    proptest! {
        #[test]
        fn older_jobs_are_never_sampled_more_often(ladder in ladder(), age_s in 0..1_000_000i64, older_s in 0..1_000_000i64) {
            let (young, old) = (ladder.interval_ns(&aged(age_s)), ladder.interval_ns(&aged(age_s + older_s)));
            prop_assert!(young <= old);
            prop_assert!((ladder.shortest_ns()..=ladder.longest_ns()).contains(&young));
        }

        #[test]
        fn interest_only_shortens_the_interval(ladder in ladder(), age_s in 0..1_000_000i64,
                                               changed_s in prop::option::of(0..100i64), watched_s in prop::option::of(0..100i64)) {
            let interest = Interest {
                changed_ns: changed_s.map(|past_s| past_s * SECOND_NS),
                watched_ns: watched_s.map(|past_s| past_s * SECOND_NS),
                ..aged(age_s)
            };
            let found = ladder.interval_ns(&interest);
            let is_fast = changed_s.is_some_and(|past_s| past_s < 30) || watched_s.is_some_and(|past_s| past_s < 15);
            prop_assert_eq!(found, if is_fast { ladder.shortest_ns() } else { ladder.interval_ns(&aged(age_s)) });
        }

        #[test]
        fn every_hour_has_sixty_samples(ladder in ladder(), hour in 0..1000i64) {
            let mut samples = 0;
            let mut age_ns = hour * 3600 * SECOND_NS;
            let end_ns = age_ns + 3600 * SECOND_NS;
            while age_ns < end_ns {
                samples += 1;
                age_ns += ladder.interval_ns(&Interest { age_ns, ..Interest::default() });
            }
            prop_assert!(samples >= 60, "{}", samples);
        }

        #[test]
        fn what_is_shown_can_be_read_again(ladder in ladder()) {
            prop_assert_eq!(parse(&ladder.to_string()).unwrap(), ladder);
        }
    }
}
