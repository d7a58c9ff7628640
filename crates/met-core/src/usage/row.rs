//! The sums of one day as bytes: few rows are full, and neighbouring buckets are often alike.

use super::{Amounts, BUCKETS_PER_DAY, FIGURES};
use crate::bounds::checksum;
use crate::varint::{put, take, unzigzag, zigzag};

/// The buckets of one UTC day of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayRow {
    pub buckets: Box<[Amounts; BUCKETS_PER_DAY]>,
}

impl Default for DayRow {
    fn default() -> DayRow {
        DayRow { buckets: Box::new([[0; FIGURES]; BUCKETS_PER_DAY]) }
    }
}

/// A day of a group, as a job added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the group in its store.
    pub group: i64,
    pub kind: i64,
    pub day: i64,
    /// As [`DayRow::encode`] writes it: many of them are held together.
    pub row: Vec<u8>,
}

const CHECKSUM_BYTES: usize = 4;
const ENTRIES_MAX: u64 = 1 << 20;

impl DayRow {
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(|amounts| amounts.iter().all(|&amount| amount == 0))
    }

    pub fn add(&mut self, other: &DayRow) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &DayRow) {
        self.combine(other, i64::saturating_sub);
    }

    fn combine(&mut self, other: &DayRow, with: impl Fn(i64, i64) -> i64) {
        for (amounts, others) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            amounts.iter_mut().zip(others).for_each(|(amount, &other)| *amount = with(*amount, other));
        }
    }

    /// Figure by figure, each as runs of equal values; then a checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let used = |figure: usize| self.buckets.iter().any(|amounts| amounts[figure] != 0);
        let mask = (0..FIGURES).filter(|&figure| used(figure)).fold(0, |mask, figure| mask | 1u64 << figure);
        put(&mut bytes, mask);
        for figure in (0..FIGURES).filter(|figure| mask >> figure & 1 == 1) {
            let values: Vec<i64> = self.buckets.iter().map(|amounts| amounts[figure]).collect();
            for run in values.chunk_by(|one, next| one == next) {
                put(&mut bytes, run.len() as u64);
                put(&mut bytes, zigzag(run[0]));
            }
        }
        let sum = checksum(&bytes) as u32;
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` where the bytes are not those of [`DayRow::encode`].
    pub fn decode(bytes: &[u8]) -> Option<DayRow> {
        let mut row = DayRow::default();
        each_run(bytes, |figure, begin, end, value| {
            row.buckets[begin..end].iter_mut().for_each(|amounts| amounts[figure] = value);
        })?;
        Some(row)
    }
}

/// Calls `each` with figure, first bucket, the one behind the last, and value of every run that is not 0.
pub(super) fn each_run(bytes: &[u8], mut each: impl FnMut(usize, usize, usize, i64)) -> Option<()> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    if sum != (checksum(body) as u32).to_le_bytes() {
        return None;
    }
    let mut left = body;
    let mask = take(&mut left)?;
    if mask >> FIGURES != 0 {
        return None;
    }
    for figure in (0..FIGURES).filter(|figure| mask >> figure & 1 == 1) {
        let mut at = 0;
        while at < BUCKETS_PER_DAY {
            let length = usize::try_from(take(&mut left)?).ok().filter(|&length| length > 0)?;
            let end = at.checked_add(length).filter(|&end| end <= BUCKETS_PER_DAY)?;
            let value = unzigzag(take(&mut left)?);
            if value != 0 {
                each(figure, at, end, value);
            }
            at = end;
        }
    }
    left.is_empty().then_some(())
}

/// What a job added to the sums, as it is kept to take it back.
pub fn encode_entries(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, entries.len() as u64);
    for entry in entries {
        for number in [entry.kind, entry.group, entry.day] {
            put(&mut bytes, zigzag(number));
        }
        put(&mut bytes, entry.row.len() as u64);
        bytes.extend_from_slice(&entry.row);
    }
    bytes
}

pub fn decode_entries(mut bytes: &[u8]) -> Option<Vec<Entry>> {
    let count = take(&mut bytes).filter(|&count| count <= ENTRIES_MAX)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let [kind, group, day] = [take(&mut bytes)?, take(&mut bytes)?, take(&mut bytes)?].map(unzigzag);
        let length = usize::try_from(take(&mut bytes)?).ok()?;
        let (row, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        entries.push(Entry { kind, group, day, row: row.to_vec() });
    }
    bytes.is_empty().then_some(entries)
}
