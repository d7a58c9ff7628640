//! Blocks: some samples of one table, every column that holds anything, in one run of bytes.
//!
//! ```text
//! version, number of samples, times,
//! number of masks, masks,
//! number of columns, for each: its name, its mask (0: nothing missing), length of its values, its values,
//! check sum of all that (4 bytes)
//! ```
//! Columns go by name, so a table may gain, lose or reorder columns and old blocks still read right. A
//! column without a known cell is left out. Columns read from one source miss the same cells, so a mask
//! is written once and referred to. What thinning left of the samples it removed are columns, too, such as
//! `cpu:max`: readers that do not know them pass them over.

use std::borrow::Cow;
use std::ops::Range;

use met_core::series::{Columns, SPREAD_NAMES, Series, Spreads};
use met_core::{MISSING, Table};

use crate::bits::{Input, put_varint};
use crate::column::{Damaged, Mask, decode_values, encode_values};

/// A day of samples, one per minute, with both ends.
pub const BLOCK_SAMPLES_MAX: usize = 1441;

/// More than any table has; bounds what a damaged block can ask for.
const COLUMNS_MAX: u64 = 2048;
/// Between the name of a column and what of its spread is meant.
const SPREAD_SIGN: char = ':';
const VERSION: u8 = 1;

/// Adds the samples `range` of `series`, at most [`BLOCK_SAMPLES_MAX`], as one block to `out`.
pub fn encode(series: &Series, range: Range<usize>, out: &mut Vec<u8>) {
    debug_assert!(range.len() <= BLOCK_SAMPLES_MAX);
    let begin = out.len();
    out.push(VERSION);
    put_varint(out, range.len() as u64);
    encode_values(&series.times_ms[range.clone()], out);

    let mut masks: Vec<Mask> = Vec::new();
    let mut present = Vec::new();
    each_column(series, |name, cells| {
        let cells = &cells[range.clone()];
        if cells.iter().all(|&cell| cell == MISSING) {
            return;
        }
        let mask = Mask::of(cells);
        let number = if mask.is_empty() { 0 } else { 1 + position_or_push(&mut masks, mask) };
        present.push((name, cells, number));
    });
    put_varint(out, masks.len() as u64);
    for mask in &masks {
        mask.encode(out);
    }
    put_varint(out, present.len() as u64);
    let (mut known, mut bytes) = (Vec::new(), Vec::new());
    for (name, cells, number) in present {
        put_varint(out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
        put_varint(out, number as u64);
        known.clear();
        known.extend(cells.iter().copied().filter(|&cell| cell != MISSING));
        bytes.clear();
        encode_values(&known, &mut bytes);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    let sum = check_sum(&out[begin..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// The columns of a series, and those of its spreads.
fn each_column<'c>(series: &'c Series, mut each: impl FnMut(Cow<'static, str>, &'c [i64])) {
    for (column, cells) in series.table.columns.iter().zip(&series.columns) {
        each(Cow::Borrowed(column.name), cells);
    }
    for (which, all) in SPREAD_NAMES.iter().zip(series.spreads.iter().flat_map(|spreads| &spreads.cells)) {
        for (column, cells) in series.table.columns.iter().zip(all) {
            each(Cow::Owned(format!("{}{SPREAD_SIGN}{which}", column.name)), cells);
        }
    }
}

/// What a name in a block means: a column, or what of its spread.
fn meant(table: &Table, name: &[u8]) -> Option<(usize, Option<usize>)> {
    let name = std::str::from_utf8(name).ok()?;
    let (name, which) =
        name.split_once(SPREAD_SIGN).map_or((name, None), |(name, which)| (name, Some(which)));
    let column = table.column(name)?;
    let Some(which) = which else { return Some((column, None)) };
    Some((column, Some(SPREAD_NAMES.iter().position(|known| *known == which)?)))
}

/// The cells of that.
fn cells_of(series: &mut Series, column: usize, which: Option<usize>) -> Option<&mut Vec<i64>> {
    let Some(which) = which else { return series.columns.get_mut(column) };
    let table = series.table;
    let spreads = series.spreads.get_or_insert_with(|| Box::new(Spreads::new(table)));
    spreads.cells[which].get_mut(column)
}

fn position_or_push(masks: &mut Vec<Mask>, mask: Mask) -> usize {
    masks.iter().position(|known| *known == mask).unwrap_or_else(|| {
        masks.push(mask);
        masks.len() - 1
    })
}

/// Whether a block is one, and whole, and how many times it has samples for; what they are is not looked at.
pub fn check(bytes: &[u8]) -> Result<usize, Damaged> {
    let mut input = Input::new(body_of(bytes)?);
    if input.byte()? != VERSION {
        return Err(Damaged("unknown version"));
    }
    bounded(input.varint()?, BLOCK_SAMPLES_MAX as u64)
}

fn body_of(bytes: &[u8]) -> Result<&[u8], Damaged> {
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Damaged("block ends early"))?;
    match check_sum(body) == u32::from_le_bytes(*sum) {
        true => Ok(body),
        false => Err(Damaged("check sum differs")),
    }
}

/// Reads one block of `table`. A column that the table does not have came from another version of it and
/// is passed over.
pub fn decode(bytes: &[u8], table: &'static Table) -> Result<Series, Damaged> {
    let mut unpacker = Unpacker::new(table);
    unpacker.push(bytes)?;
    Ok(unpacker.finish())
}

/// As [`decode`], to replace the block: `None` if a column of it is of another version, and would be lost.
pub fn decode_known(bytes: &[u8], table: &'static Table) -> Result<Option<Series>, Damaged> {
    let mut unpacker = Unpacker::new(table);
    let is_all = unpacker.push(bytes)?;
    Ok(is_all.then(|| unpacker.finish()))
}

/// Blocks of a series, in order, become one series. Columns that no block has are written once, at the end.
pub struct Unpacker {
    /// Its columns may be shorter than its times: what follows is missing.
    series: Series,
    wanted: Columns,
    times_ms: Vec<i64>,
    known: Vec<i64>,
    cells: Vec<i64>,
}

impl Unpacker {
    pub fn new(table: &'static Table) -> Unpacker {
        Unpacker::only(table, Columns::ALL)
    }

    /// Only these columns become more than empty. Which times samples were removed from is known from all.
    pub fn only(table: &'static Table, wanted: Columns) -> Unpacker {
        let (times_ms, known, cells) = Default::default();
        Unpacker { series: Series::new(table), wanted, times_ms, known, cells }
    }

    /// Adds the samples of a block that are later than those before. Returns whether the table has all its columns.
    /// Nothing is added of a block that is damaged.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, Damaged> {
        let body = body_of(bytes)?;
        let count = self.series.len();
        let added = self.add(body);
        if added.is_err() {
            self.series.times_ms.truncate(count);
            let spreads =
                self.series.spreads.iter_mut().flat_map(|spreads| spreads.cells.iter_mut().flatten());
            self.series.columns.iter_mut().chain(spreads).for_each(|cells| cells.truncate(count));
        }
        added
    }

    fn add(&mut self, body: &[u8]) -> Result<bool, Damaged> {
        let mut input = Input::new(body);
        if input.byte()? != VERSION {
            return Err(Damaged("unknown version"));
        }
        let count = bounded(input.varint()?, BLOCK_SAMPLES_MAX as u64)?;
        decode_values(&mut input, count, &mut self.times_ms)?;
        let mask_count = bounded(input.varint()?, COLUMNS_MAX)?;
        let masks: Vec<Mask> =
            (0..mask_count).map(|_| Mask::decode(&mut input, count)).collect::<Result<_, _>>()?;
        let before = self.series.len();
        let last_ms = self.series.times_ms.last().copied();
        let skip = last_ms.map_or(0, |last_ms| self.times_ms.partition_point(|&time| time <= last_ms));
        let mut is_all = true;
        for _ in 0..bounded(input.varint()?, COLUMNS_MAX)? {
            let name_length = bounded(input.varint()?, u64::from(u8::MAX))?;
            let name = input.take(name_length)?;
            let number = bounded(input.varint()?, mask_count as u64)?;
            let length = bounded(input.varint()?, body.len() as u64)?;
            let mut values = Input::new(input.take(length)?);
            let Some((column, which)) = meant(self.series.table, name) else {
                is_all = false;
                continue;
            };
            if which.is_none() && !self.wanted.has(column) {
                continue;
            }
            let Some(column) = cells_of(&mut self.series, column, which) else { continue };
            self.cells.clear();
            match number.checked_sub(1).and_then(|index| masks.get(index)) {
                None => decode_values(&mut values, count, &mut self.cells)?,
                Some(mask) => {
                    decode_values(&mut values, mask.known_count(count), &mut self.known)?;
                    mask.spread(&self.known, &mut self.cells);
                }
            }
            // A name that comes twice is the last of the two.
            column.resize(before, MISSING);
            column.extend_from_slice(self.cells.get(skip..).unwrap_or_default());
        }
        self.series.times_ms.extend_from_slice(self.times_ms.get(skip..).unwrap_or_default());
        Ok(is_all)
    }

    pub fn finish(self) -> Series {
        let mut series = self.series;
        let count = series.len();
        for (column, cells) in series.columns.iter_mut().enumerate() {
            if self.wanted.has(column) {
                cells.resize(count, MISSING);
            }
        }
        if let Some(spreads) = &mut series.spreads {
            spreads.resize(count);
        }
        series
    }
}

/// For fuzz/: a block of these bytes under their own check sum, which else hides all that is behind it. What can
/// be read can be written and read again.
#[cfg(feature = "fuzzing")]
pub fn fuzz(body: &[u8], table: &'static Table) {
    let _ = decode(body, table);
    let sealed = [body, &check_sum(body).to_le_bytes()].concat();
    let Ok(series) = decode(&sealed, table) else { return };
    let mut again = Vec::new();
    encode(&series, 0..series.len(), &mut again);
    let read = decode(&again, table).expect("what was just written is whole");
    assert_eq!((&read.times_ms, &read.columns), (&series.times_ms, &series.columns));
}

fn bounded(value: u64, max: u64) -> Result<usize, Damaged> {
    if value <= max { Ok(value as usize) } else { Err(Damaged("a count is out of bounds")) }
}

/// FNV-1a, taken eight bytes at a time: not against forgery, but against half-written files.
fn check_sum(bytes: &[u8]) -> u32 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for eight in bytes.chunks(8) {
        let word = eight.iter().rev().fold(eight.len() as u64, |word, &byte| word << 8 | u64::from(byte));
        sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        sum ^= sum >> 29;
    }
    (sum ^ (sum >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::JOB;
    use met_core::job_table::{CPU, MEMORY_NEEDED, OOM_KILLS};
    use proptest::prelude::*;

    fn series(samples: &[(i64, i64, i64)]) -> Series {
        let mut series = Series::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED], cells[OOM_KILLS]) = (cpu, memory, 0);
            series.push(time_ms, &cells);
        }
        series
    }

    fn same(left: &Series, right: &Series) -> bool {
        left.times_ms == right.times_ms && left.columns == right.columns
    }

    #[test]
    fn a_block_of_part_of_a_series_comes_back() {
        let whole = series(&[(1, 5, MISSING), (2, 6, 4096), (3, MISSING, 8192), (9, 7, 8192)]);
        let mut bytes = Vec::new();
        encode(&whole, 1..4, &mut bytes);
        let part = series(&[(2, 6, 4096), (3, MISSING, 8192), (9, 7, 8192)]);
        assert!(same(&decode(&bytes, &JOB).unwrap(), &part));
    }

    #[test]
    fn what_thinning_left_comes_back_and_others_pass_over_it() {
        let samples: Vec<_> = (0..300).map(|second| (second * 1000, second * second, second % 60)).collect();
        let mut thinner = met_core::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series(&samples));
        let thinned = thinner.finish();
        let mut bytes = Vec::new();
        encode(&thinned, 0..thinned.len(), &mut bytes);
        let read = decode(&bytes, &JOB).unwrap();
        assert!(same(&read, &thinned) && thinned.spreads.is_some());
        assert_eq!(read.spreads, thinned.spreads);
        // An earlier version knows no such columns, and reads the samples that are left.
        let named = |name: &str| bytes.windows(name.len()).filter(|text| *text == name.as_bytes()).count();
        assert_eq!((named("cpu:min"), named("cpu:max"), named("cpu:mean")), (1, 1, 0));
    }

    #[test]
    fn blocks_that_overlap_or_lack_columns_become_one_series() {
        let pieces = [
            series(&[(1, 5, MISSING), (2, 6, MISSING)]),
            series(&[(2, 6, 4096), (3, MISSING, 8192), (9, 7, 8192)]),
            series(&[(9, 7, 1), (10, MISSING, MISSING)]),
        ];
        let mut thinner = met_core::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series(&(1..300).map(|second| (second * 1000, second, second)).collect::<Vec<_>>()));
        let thinned = thinner.finish();
        let (mut unpacker, mut expected) = (Unpacker::new(&JOB), Series::new(&JOB));
        for piece in pieces.iter().chain([&thinned, &series(&[(300_000, 1, 1)])]) {
            let mut bytes = Vec::new();
            encode(piece, 0..piece.len(), &mut bytes);
            assert!(unpacker.push(&bytes).unwrap());
            expected.append(piece);
            // A check sum that fits does not make a block of what is behind it.
            let mut damaged = bytes[..bytes.len() - 6].to_vec();
            damaged.extend_from_slice(&check_sum(&damaged).to_le_bytes());
            assert!(unpacker.push(&damaged).is_err());
        }
        let whole = unpacker.finish();
        assert!(same(&whole, &expected));
        assert_eq!(whole.spreads, expected.spreads);
        assert!(whole.columns.iter().all(|cells| cells.len() == whole.len()));
    }

    #[test]
    fn columns_that_are_not_wanted_stay_empty_and_the_others_are_the_same() {
        let samples: Vec<_> = (1..300).map(|second| (second * 1000, second * 7, second % 9)).collect();
        let mut thinner = met_core::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series(&samples));
        let later = series(&[(400_000, 5000, MISSING), (401_000, MISSING, 4)]);
        let (mut all, mut some) = (Unpacker::new(&JOB), Unpacker::only(&JOB, Columns::of(&[CPU])));
        for piece in [&thinner.finish(), &later] {
            let mut bytes = Vec::new();
            encode(piece, 0..piece.len(), &mut bytes);
            assert!(all.push(&bytes).unwrap() && some.push(&bytes).unwrap());
        }
        let (all, some) = (all.finish(), some.finish());
        assert_eq!((&some.times_ms, &some.spreads), (&all.times_ms, &all.spreads));
        assert_eq!(some.columns[CPU], all.columns[CPU]);
        assert!(some.columns.iter().enumerate().all(|(column, cells)| column == CPU || cells.is_empty()));
    }

    #[test]
    fn a_regular_series_takes_little() {
        let samples: Vec<_> =
            (0..1441).map(|i| (1_700_000_000_000 + i * 10_000, i * 10_000_000, 5 << 20)).collect();
        let mut bytes = Vec::new();
        encode(&series(&samples), 0..1441, &mut bytes);
        assert!(bytes.len() < 120, "{} bytes", bytes.len());
    }

    #[test]
    fn a_column_of_another_version_is_passed_over() {
        static COLUMNS: &[met_core::Column] = &[JOB.columns[MEMORY_NEEDED]];
        static SMALL: Table = Table { name: "job", subject: "", labels: &[], columns: COLUMNS };
        let mut bytes = Vec::new();
        encode(&series(&[(1, 5, 4096), (2, 6, 8192)]), 0..2, &mut bytes);
        assert_eq!(decode(&bytes, &SMALL).unwrap().columns, [[4096, 8192]]);
        assert!(decode_known(&bytes, &SMALL).unwrap().is_none(), "who replaces it is not to lose a column");
        assert!(decode_known(&bytes, &JOB).unwrap().is_some());
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        encode(&series(&[(1, 5, 4096), (2, 6, 8192)]), 0..2, &mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, &JOB).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn any_series_comes_back(samples in prop::collection::vec((any::<i64>(), cell(), cell()), 1..300)) {
            let series = series(&samples);
            let mut bytes = Vec::new();
            encode(&series, 0..series.len(), &mut bytes);
            prop_assert!(same(&decode(&bytes, &JOB).unwrap(), &series));
        }

        #[test]
        fn any_pieces_of_a_series_come_back(
            samples in prop::collection::vec((cell(), cell()), 2..200),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let samples: Vec<_> =
                samples.into_iter().zip(0..).map(|((cpu, memory), time)| (time, cpu, memory)).collect();
            let series = series(&samples);
            let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(series.len())).collect();
            cuts.extend([0, series.len()]);
            cuts.sort_unstable();
            let mut unpacker = Unpacker::new(&JOB);
            for pair in cuts.windows(2).filter(|pair| pair[0] < pair[1]) {
                let mut bytes = Vec::new();
                encode(&series, pair[0]..pair[1], &mut bytes);
                prop_assert!(unpacker.push(&bytes).is_ok());
            }
            prop_assert!(same(&unpacker.finish(), &series));
        }

        #[test]
        fn any_bytes_decode_or_fail(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            // The right check sum lets the bytes through to the parsers behind it.
            if let Some(first) = bytes.first_mut() { *first = VERSION; }
            let sum = check_sum(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            let _ = decode(&bytes, &JOB);
        }

        #[test]
        fn mutated_blocks_decode_or_fail(
            samples in prop::collection::vec((any::<i64>(), cell(), 0..9_i64), 1..100),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let series = series(&samples);
            let mut bytes = Vec::new();
            encode(&series, 0..series.len(), &mut bytes);
            bytes.truncate(bytes.len() - 4);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let sum = check_sum(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            let _ = decode(&bytes, &JOB);
        }
    }

    fn cell() -> impl Strategy<Value = i64> {
        prop_oneof![Just(MISSING), any::<i64>(), 0..100_i64]
    }
}
