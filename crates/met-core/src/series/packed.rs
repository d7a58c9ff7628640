//! Samples on their way to the store.

use crate::series::Series;
use crate::varint::{put, take, unzigzag, zigzag};
use crate::{MISSING, Table};

const BITS: usize = u8::BITS as usize;

/// Samples in the order in which they were taken, without the cells that are missing: most columns of a job are read by
/// few ticks. One allocation for each series instead of one for each column.
#[derive(Clone, Debug)]
pub struct PackedSamples {
    pub table: &'static Table,
    /// Of each sample: a bit for each column that is known, and of its time and these cells what they are more than the
    /// last that was known, in as few bytes as that needs.
    bytes: Vec<u8>,
    /// The last known cells. Empty before the first sample.
    before: Vec<i64>,
    count: usize,
    /// Of the last sample, also of one that was taken out.
    last_ms: Option<i64>,
}

/// Samples closer than this may have times in the wrong order.
const CLOSE_MS: i64 = 10;
/// Many jobs hold samples: room grows by so much or by a quarter, not to twice of what there is.
const MORE_BYTES: usize = 256;

impl PackedSamples {
    pub fn new(table: &'static Table) -> PackedSamples {
        PackedSamples { table, bytes: Vec::new(), before: Vec::new(), count: 0, last_ms: None }
    }

    /// Of two samples of one millisecond the later one is a millisecond later: readers want times that ascend.
    pub fn push(&mut self, time_ms: i64, cells: &[i64]) {
        debug_assert_eq!(cells.len(), self.table.columns.len());
        let is_close = |last_ms: &i64| time_ms <= *last_ms && last_ms.saturating_sub(time_ms) < CLOSE_MS;
        let time_ms = self.last_ms.filter(is_close).map_or(time_ms, |last_ms| last_ms.saturating_add(1));
        let before_ms = self.last_ms.replace(time_ms).filter(|_| self.count > 0).unwrap_or(0);
        self.make_room(cells);
        put(&mut self.bytes, zigzag(time_ms.wrapping_sub(before_ms)));
        for part in cells.chunks(BITS) {
            let known = part.iter().enumerate().filter(|(_, cell)| **cell != MISSING);
            self.bytes.push(known.fold(0, |mask, (bit, _)| mask | 1 << bit));
        }
        for (before, &cell) in self.before.iter_mut().zip(cells).filter(|(_, cell)| **cell != MISSING) {
            put(&mut self.bytes, zigzag(cell.wrapping_sub(*before)));
            *before = cell;
        }
        self.count += 1;
    }

    /// At least for the bits and a sample whose cells have changed little.
    fn make_room(&mut self, cells: &[i64]) {
        self.before.resize(cells.len(), 0);
        let sample_bytes = cells.len();
        if self.bytes.capacity() - self.bytes.len() < sample_bytes {
            self.bytes.reserve_exact((self.bytes.len() / 4).max(MORE_BYTES).max(sample_bytes));
        }
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

    pub fn unpack(&self) -> Series {
        let width = self.table.columns.len();
        let mut series = Series {
            table: self.table,
            times_ms: Vec::with_capacity(self.count),
            columns: (0..width).map(|_| Vec::with_capacity(self.count)).collect(),
            spreads: None,
        };
        let (mut left, mut time_ms) = (&self.bytes[..], 0);
        let (mut cells, mut before) = (vec![MISSING; width], vec![0; width]);
        // The bytes are this type's own, and end with a whole sample.
        let next = |left: &mut &[u8], before: i64| before.wrapping_add(take(left).map_or(0, unzigzag));
        while !left.is_empty() {
            time_ms = next(&mut left, time_ms);
            let Some((masks, mut values)) = left.split_at_checked(width.div_ceil(BITS)) else { break };
            for (index, (cell, before)) in cells.iter_mut().zip(&mut before).enumerate() {
                let is_known = masks[index / BITS] >> (index % BITS) & 1 == 1;
                *cell = if is_known { next(&mut values, *before) } else { MISSING };
                *before = if is_known { *cell } else { *before };
            }
            series.push(time_ms, &cells);
            left = values;
        }
        series
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
            let (mut packed, mut series) = (PackedSamples::new(&JOB), Series::new(&JOB));
            for (time_ms, mask, value) in rows {
                let cell = |bit: usize| if mask >> (bit % 128) & 1 == 1 { value ^ bit as i64 } else { MISSING };
                let cells: Vec<i64> = (0..JOB.columns.len()).map(cell).collect();
                packed.push(time_ms, &cells);
                series.push(time_ms, &cells);
            }
            let unpacked = packed.unpack();
            prop_assert_eq!((packed.len(), &unpacked.times_ms), (series.len(), &series.times_ms));
            prop_assert_eq!(&unpacked.columns, &series.columns);
            prop_assert_eq!(packed.take().unpack().len(), series.len());
            prop_assert!(packed.is_empty() && packed.unpack().is_empty());
        }
    }

    #[test]
    fn times_ascend_also_within_a_millisecond_and_after_samples_were_taken_out() {
        let mut packed = PackedSamples::new(&JOB);
        let cells = vec![7; JOB.columns.len()];
        [1000, 2000, 2000, 2000].into_iter().for_each(|time_ms| packed.push(time_ms, &cells));
        assert_eq!(packed.take().unpack().times_ms, [1000, 2000, 2001, 2002]);
        [2002, 2003, 3000].into_iter().for_each(|time_ms| packed.push(time_ms, &cells));
        assert_eq!(packed.unpack().times_ms, [2003, 2004, 3000]);
        assert_eq!(packed.unpack().columns[0], [7, 7, 7]);
    }

    #[test]
    fn what_is_missing_takes_no_room() {
        let mut packed = PackedSamples::new(&JOB);
        let mut cells = vec![MISSING; JOB.columns.len()];
        (0..60).for_each(|time_ms| packed.push(time_ms, &cells));
        assert!(packed.bytes.len() <= 60 * (JOB.columns.len().div_ceil(8) + 2));
        cells.fill(1);
        packed.push(60, &cells);
        assert_eq!(packed.unpack().columns[3][60], 1);
        // An hour of seconds of a job of which a few columns are read.
        let mut packed = PackedSamples::new(&JOB);
        cells.fill(MISSING);
        for time_ms in (1..3600).map(|second| 1_700_000_000_000 + second * 1000) {
            cells[..10].fill(time_ms / 1000);
            packed.push(time_ms, &cells);
        }
        assert!(packed.bytes.capacity() <= 3600 * 28, "{}", packed.bytes.capacity());
    }
}
