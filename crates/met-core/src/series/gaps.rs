//! Which times between two samples are gaps, and which are how often a job was sampled.

use super::Series;
use crate::cadence::{self, LONGEST_NS, TOGETHER_NS};

/// Decides which times between neighbouring samples are gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// No time up to this is one.
    least_ms: i64,
    pace: Option<Pace>,
}

/// What a longer time is compared with, besides its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// When the job began; unknown: at the first sample.
    start_ms: Option<i64>,
    /// Samples of this kind are never further apart, at any age.
    longest_ms: i64,
}

impl From<i64> for Gaps {
    /// Every longer time is a gap.
    fn from(least_ms: i64) -> Gaps {
        Gaps { least_ms, pace: None }
    }
}

impl Gaps {
    /// A longer time is a gap if it is more than 2.5 times as long as its neighbours and as the time between two
    /// samples at that age of the job: one missed sample is bridged. That time is the default one, because how a job
    /// was sampled is not stored.
    pub fn paced(least_ms: i64, start_ms: Option<i64>) -> Gaps {
        Gaps { least_ms, pace: Some(Pace { start_ms, longest_ms: i64::MAX }) }
    }

    /// The same for what is read at least as often as all jobs are read together.
    pub fn read_together(self) -> Gaps {
        let longest_ms = TOGETHER_NS / 1_000_000;
        Gaps { pace: self.pace.map(|pace| Pace { longest_ms, ..pace }), ..self }
    }

    /// The same with shorter gaps.
    pub fn from_ms(self, least_ms: i64) -> Gaps {
        Gaps { least_ms: least_ms.min(self.least_ms), ..self }
    }

    /// Every longer time is a gap, whatever is beside it; `None` where that depends on more.
    pub(super) fn longest_ms(self) -> Option<i64> {
        self.pace.is_none().then_some(self.least_ms)
    }

    pub fn least_ms(self) -> i64 {
        self.least_ms
    }

    /// Whether there is one before this sample.
    pub(super) fn has_before(self, series: &Series, index: usize) -> bool {
        let here_ms = span_ms(series, index);
        let is_clearly_longer = |than_ms: i64| here_ms > than_ms.saturating_mul(5) / 2;
        let is_long_for_its_age = |pace: Pace| {
            let age_ms = series.times_ms[index] - pace.start_ms.unwrap_or(series.times_ms[0]);
            is_clearly_longer(cadence::default_ms(age_ms).min(pace.longest_ms))
        };
        let is_long_here = || {
            let beside = index > 1 && index + 1 < series.len();
            let beside_ms =
                if beside { span_ms(series, index - 1).min(span_ms(series, index + 1)) } else { 0 };
            is_clearly_longer(beside_ms)
                && is_clearly_longer(usual_ms(series, (1..index).rev()))
                && is_clearly_longer(usual_ms(series, index + 1..series.len()))
        };
        here_ms > self.least_ms
            && self
                .pace
                .is_none_or(|pace| is_long_for_its_age(pace) && is_long_here() && !are_few_alike(series))
    }
}

/// Whether there are two or three samples at what can be their own pace, which has no neighbours to be compared with:
/// two equal times, or one that a ladder may have, since a longer one may as well be an absence. A tick may be late by
/// a quarter.
fn are_few_alike(series: &Series) -> bool {
    let longest_ms = LONGEST_NS / 1_000_000;
    let (one_ms, other_ms) = match series.len() {
        2 => (span_ms(series, 1), longest_ms.min(span_ms(series, 1))),
        3 => (span_ms(series, 1).max(span_ms(series, 2)), span_ms(series, 1).min(span_ms(series, 2))),
        _ => return false,
    };
    one_ms <= other_ms.saturating_mul(5) / 4
}

fn span_ms(series: &Series, index: usize) -> i64 {
    series.times_ms[index] - series.times_ms[index - 1]
}

/// The middle one of the nearest times on one side, so that one gap beside another does not hide it. One alone says
/// nothing.
fn usual_ms(series: &Series, nearest: impl Iterator<Item = usize>) -> i64 {
    const ASKED: usize = 3;
    /// Where many samples were removed, no neighbour is near.
    const LOOKED_AT: usize = 16;
    let taken = nearest.take(LOOKED_AT).filter(|&index| !series.is_thinned(index));
    let mut spans = [0; ASKED];
    let mut count = 0;
    for (place, index) in spans.iter_mut().zip(taken) {
        *place = span_ms(series, index);
        count += 1;
    }
    let known = &mut spans[..count];
    known.sort_unstable();
    if count < 2 { 0 } else { known[(count - 1) / 2] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JOB, MISSING};

    /// Whether there is a gap before each sample but the first, by the spans between them in seconds.
    fn gaps(spans_s: &[i64], gaps: Gaps) -> Vec<bool> {
        let mut series = Series::new(&JOB);
        let mut time_ms = 1_000_000;
        series.push(time_ms, &vec![MISSING; JOB.columns.len()]);
        for span_s in spans_s {
            time_ms += span_s * 1000;
            series.push(time_ms, &vec![MISSING; JOB.columns.len()]);
        }
        (1..series.len()).map(|index| gaps.has_before(&series, index)).collect()
    }

    #[test]
    fn a_fixed_length_is_compared_with_nothing_else() {
        assert_eq!(gaps(&[5, 6, 6, 6], 5000.into()), [false, true, true, true]);
    }

    #[test]
    fn a_pace_that_is_no_default_is_known_from_its_neighbours() {
        let by_second = Gaps::paced(5000, None);
        assert_eq!(gaps(&[20, 20, 20, 20], by_second), [false; 4]);
        assert_eq!(gaps(&[1, 1, 1, 20, 20, 20], by_second), [false; 6], "from a step of the ladder on");
        assert_eq!(gaps(&[20, 20, 70, 20, 20], by_second), [false, false, true, false, false]);
    }

    #[test]
    fn a_gap_beside_another_does_not_hide_it() {
        let by_second = Gaps::paced(5000, None);
        let expected = [false, false, true, true, false, false];
        assert_eq!(gaps(&[1, 1, 120, 120, 1, 1], by_second), expected);
        assert_eq!(gaps(&[120, 1, 1, 1, 120], by_second), [true, false, false, false, true], "at the ends");
        assert_eq!(gaps(&[120, 120, 1, 1], by_second), [true, true, false, false]);
    }

    #[test]
    fn few_samples_at_one_distance_have_no_gap() {
        let by_second = Gaps::paced(5000, None);
        assert_eq!(gaps(&[60], by_second), [false], "an interval that a ladder may have");
        assert_eq!(gaps(&[60, 61], by_second), [false; 2]);
        assert_eq!(gaps(&[300, 300], by_second), [false; 2], "of another program, say");
        assert_eq!(gaps(&[60, 60, 60], by_second), [false; 3]);
        assert_eq!(gaps(&[120], by_second), [true], "it may be an absence");
        assert_eq!(gaps(&[1, 60], by_second), [false, true], "it was sampled more often");
        assert_eq!(gaps(&[60, 120], by_second), [true; 2], "too few to say");
        assert_eq!(gaps(&[60, 60], 5000.into()), [true; 2], "a fixed length is compared with nothing");
    }

    #[test]
    fn the_age_of_the_job_says_its_pace() {
        let hours_old = Gaps::paced(5000, Some(1_000_000 - 7_200_000));
        assert_eq!(gaps(&[1, 1, 1, 30], hours_old), [false; 4], "it is no longer watched");
        assert_eq!(gaps(&[1, 1, 1, 30], hours_old.read_together()), [false, false, false, true]);
        assert_eq!(gaps(&[1, 1, 1, 90], hours_old), [false, false, false, true]);
    }
}
