//! Samples on their way to the store.

use crate::series::Course;
use crate::{MISSING, Table};

const BITS: usize = u64::BITS as usize;

/// Samples in the order in which they were taken, without the cells that are missing: most columns of a job are read by
/// few ticks. One allocation for each series instead of one for each column.
#[derive(Clone, Debug)]
pub struct PackedSamples {
    pub table: &'static Table,
    /// Of each sample: its time, a bit for each column that is known, and the cells of these.
    words: Vec<i64>,
    count: usize,
    /// Of the last sample, also of one that was taken out.
    last_ms: Option<i64>,
}

/// Samples closer than this may have times in the wrong order.
const CLOSE_MS: i64 = 10;

impl PackedSamples {
    pub fn new(table: &'static Table) -> PackedSamples {
        PackedSamples { table, words: Vec::new(), count: 0, last_ms: None }
    }

    /// Of two samples of one millisecond the later one is a millisecond later: readers want times that ascend.
    pub fn push(&mut self, time_ms: i64, cells: &[i64]) {
        debug_assert_eq!(cells.len(), self.table.columns.len());
        let is_close = |last_ms: &i64| time_ms <= *last_ms && last_ms.saturating_sub(time_ms) < CLOSE_MS;
        let time_ms = self.last_ms.filter(is_close).map_or(time_ms, |last_ms| last_ms.saturating_add(1));
        self.last_ms = Some(time_ms);
        self.words.push(time_ms);
        for part in cells.chunks(BITS) {
            let known = part.iter().enumerate().filter(|(_, cell)| **cell != MISSING);
            self.words.push(known.fold(0, |mask: u64, (bit, _)| mask | 1 << bit) as i64);
        }
        self.words.extend(cells.iter().copied().filter(|&cell| cell != MISSING));
        self.count += 1;
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The samples so far, of which none is left here.
    pub fn take(&mut self) -> PackedSamples {
        let fresh = PackedSamples { last_ms: self.last_ms, ..PackedSamples::new(self.table) };
        std::mem::replace(self, fresh)
    }

    pub fn unpack(&self) -> Course {
        let width = self.table.columns.len();
        let mut course = Course {
            table: self.table,
            times_ms: Vec::with_capacity(self.count),
            columns: (0..width).map(|_| Vec::with_capacity(self.count)).collect(),
            spreads: None,
        };
        let (mut rest, mut cells) = (&self.words[..], vec![MISSING; width]);
        while let Some((time_ms, body)) = rest.split_first() {
            let (masks, values) = body.split_at(width.div_ceil(BITS));
            let mut values = values.iter();
            for (part, &mask) in cells.chunks_mut(BITS).zip(masks) {
                for (bit, cell) in part.iter_mut().enumerate() {
                    let value = if mask as u64 >> bit & 1 == 1 { values.next() } else { None };
                    *cell = value.copied().unwrap_or(MISSING);
                }
            }
            course.push(*time_ms, &cells);
            rest = values.as_slice();
        }
        course
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::JOB;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            rows in prop::collection::vec((any::<i64>(), any::<u128>(), any::<i64>()), 0..20),
        ) {
            let (mut packed, mut course) = (PackedSamples::new(&JOB), Course::new(&JOB));
            for (time_ms, mask, value) in rows {
                let cell = |bit: usize| if mask >> (bit % 128) & 1 == 1 { value ^ bit as i64 } else { MISSING };
                let cells: Vec<i64> = (0..JOB.columns.len()).map(cell).collect();
                packed.push(time_ms, &cells);
                course.push(time_ms, &cells);
            }
            let unpacked = packed.unpack();
            prop_assert_eq!((packed.len(), &unpacked.times_ms), (course.len(), &course.times_ms));
            prop_assert_eq!(&unpacked.columns, &course.columns);
            prop_assert_eq!(packed.take().unpack().len(), course.len());
            prop_assert!(packed.is_empty() && packed.unpack().is_empty());
        }
    }

    #[test]
    fn times_ascend_also_within_a_millisecond_and_after_samples_were_taken_out() {
        let mut packed = PackedSamples::new(&JOB);
        let cells = vec![MISSING; JOB.columns.len()];
        [1000, 2000, 2000, 2000].into_iter().for_each(|time_ms| packed.push(time_ms, &cells));
        assert_eq!(packed.take().unpack().times_ms, [1000, 2000, 2001, 2002]);
        [2002, 2003, 3000].into_iter().for_each(|time_ms| packed.push(time_ms, &cells));
        assert_eq!(packed.unpack().times_ms, [2003, 2004, 3000]);
    }

    #[test]
    fn what_is_missing_takes_no_room() {
        let mut packed = PackedSamples::new(&JOB);
        let mut cells = vec![MISSING; JOB.columns.len()];
        (0..60).for_each(|time_ms| packed.push(time_ms, &cells));
        assert!(packed.words.len() <= 60 * 3);
        cells.fill(1);
        packed.push(60, &cells);
        assert_eq!(packed.unpack().columns[3][60], 1);
    }
}
