//! For how much of a job's life nothing was read.

use crate::series::Series;

/// Samples that are not further apart than this are every sample of most jobs.
pub const CLOSE_MS: i64 = 2_500;

/// How long a job ran until it is followed again, or until its end, and what was missed of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    pub lived_ms: i64,
    pub missed_ms: i64,
    /// For longer than between two samples: a peak may have been in it.
    pub has_missed_peak: bool,
}

impl Watched {
    /// Of a job that began at `start_ms` and was not sampled until `now_ms`.
    pub fn late(start_ms: Option<i64>, now_ms: i64) -> Watched {
        let lived_ms = start_ms.map_or(0, |start_ms| (now_ms - start_ms).max(0));
        Watched { lived_ms, missed_ms: lived_ms, has_missed_peak: lived_ms > CLOSE_MS }
    }

    /// Of one with these samples until `now_ms`. Spans above `gap_ms` between them were not watched.
    pub fn of(series: &Series, start_ms: Option<i64>, now_ms: i64, gap_ms: i64) -> Watched {
        let (Some(first_ms), Some(last_ms)) =
            (series.times_ms.first().copied(), series.times_ms.last().copied())
        else {
            return Watched::late(start_ms, now_ms);
        };
        let (gaps_ms, usual_ms): (Vec<i64>, Vec<i64>) =
            series.spans_ms().into_iter().partition(|&span_ms| span_ms > gap_ms);
        let usual_ms = usual_ms.into_iter().max().unwrap_or(0).max(CLOSE_MS);
        let before = Some(Watched::late(start_ms, first_ms)).filter(|before| before.has_missed_peak);
        let before = before.unwrap_or_default();
        let since_ms = Some(now_ms - last_ms).filter(|&since_ms| since_ms > CLOSE_MS).unwrap_or(0);
        Watched {
            lived_ms: now_ms - start_ms.unwrap_or(first_ms).min(first_ms),
            missed_ms: before.missed_ms + gaps_ms.iter().sum::<i64>() + since_ms,
            has_missed_peak: before.has_missed_peak || !gaps_ms.is_empty() || since_ms > usual_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JOB, MISSING};

    fn series(times_s: &[i64]) -> Series {
        let mut series = Series::new(&JOB);
        for time_s in times_s {
            series.push(time_s * 1000, &vec![MISSING; JOB.columns.len()]);
        }
        series
    }

    #[test]
    fn a_job_without_samples_was_not_watched_at_all() {
        let missed = Watched { lived_ms: 20_000, missed_ms: 20_000, has_missed_peak: true };
        assert_eq!(Watched::late(Some(1_000), 21_000), missed);
        assert_eq!(Watched::of(&series(&[]), Some(1_000), 21_000, 32_000), missed);
        let at_once = Watched { lived_ms: 400, missed_ms: 400, has_missed_peak: false };
        assert_eq!(Watched::late(Some(1_000), 1_400), at_once);
        assert_eq!(Watched::late(None, 1_400), Watched::default(), "its age is unknown");
    }

    #[test]
    fn what_lies_before_between_and_after_the_samples_was_missed() {
        let of = |times_s: &[i64], now_s: i64| Watched::of(&series(times_s), Some(0), now_s * 1000, 32_000);
        let watched = |lived_s: i64, missed_s: i64, has_missed_peak: bool| Watched {
            lived_ms: lived_s * 1000,
            missed_ms: missed_s * 1000,
            has_missed_peak,
        };
        assert_eq!(of(&[0, 1, 11, 21], 22), watched(22, 0, false));
        assert_eq!(of(&[0, 1, 11, 21], 29), watched(29, 8, false), "samples are ten seconds apart");
        assert_eq!(of(&[0, 1, 11, 21], 40), watched(40, 19, true));
        assert_eq!(of(&[5, 6, 7], 8), watched(8, 5, true));
        assert_eq!(of(&[0, 1, 101, 102], 103), watched(103, 100, true));
    }
}
