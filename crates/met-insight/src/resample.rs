//! A course in as many steps as a plot has columns.

use met_core::course::Course;

/// What a column did in one step of the plot, in the column's sub-unit; counters: their growth per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Weighted by time, over the part of the bin that was covered by samples.
    pub mean: f64,
    pub max: f64,
}

/// The span of a course cut into equal bins. A bin that no sample covers is `None`: a gap stays a gap.
pub fn bins(course: &Course, column: usize, count: usize, gap_ms: i64) -> Vec<Option<Bin>> {
    let (Some(&first_ms), Some(&last_ms)) = (course.times_ms.first(), course.times_ms.last()) else {
        return vec![None; count];
    };
    between(course, column, first_ms, last_ms, count, gap_ms)
}

/// The same over a span that the caller chooses, so that several courses share an axis.
pub fn between(
    course: &Course,
    column: usize,
    begin_ms: i64,
    end_ms: i64,
    count: usize,
    gap_ms: i64,
) -> Vec<Option<Bin>> {
    let mut sums = vec![Sum::default(); count];
    let span_ms = end_ms.saturating_sub(begin_ms);
    if count == 0 || span_ms <= 0 {
        return vec![None; count];
    }
    let bin_ms = span_ms as f64 / count as f64;
    for interval in course.intervals(column, gap_ms) {
        let from = (interval.begin_ms.max(begin_ms) - begin_ms) as f64;
        let to = (interval.end_ms.min(end_ms) - begin_ms) as f64;
        if to <= from {
            continue;
        }
        let first = ((from / bin_ms) as usize).min(count - 1);
        let last = ((to / bin_ms).ceil() as usize).clamp(first + 1, count);
        for (index, sum) in sums.iter_mut().enumerate().take(last).skip(first) {
            let covered_ms = to.min((index + 1) as f64 * bin_ms) - from.max(index as f64 * bin_ms);
            sum.add(interval.value, covered_ms);
        }
    }
    sums.into_iter().map(Sum::bin).collect()
}

#[derive(Clone, Copy, Default)]
struct Sum {
    weighted: f64,
    covered_ms: f64,
    max: f64,
}

impl Sum {
    fn add(&mut self, value: f64, covered_ms: f64) {
        // Rounding may leave a sliver of a bin that the interval only touches.
        if covered_ms <= 0.0 {
            return;
        }
        self.max = if self.covered_ms > 0.0 { self.max.max(value) } else { value };
        self.weighted += value * covered_ms;
        self.covered_ms += covered_ms;
    }

    fn bin(self) -> Option<Bin> {
        (self.covered_ms > 0.0).then(|| Bin { mean: self.weighted / self.covered_ms, max: self.max })
    }
}
