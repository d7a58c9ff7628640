//! Bytes per sample and speed of the series codec, and of what was tried instead of it.
//!
//! `series FILE.json[.gz]` takes a job archive of ClusterCockpit: per metric and level a list of series.
//! Values are taken at two decimals (as integers, times 100), nulls are kept, and every series is cut
//! into blocks of at most 1,441 samples, each compressed on its own. All samples in and all bytes out
//! count, nulls and headers included. One thread; the best of several rounds.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use met_core::MISSING;
use met_store::block::BLOCK_SAMPLES_MAX;
use met_store::column::{decode_column, encode_column};
use serde_json::Value;

const ROUNDS: usize = 15;
const SCALE: f64 = 100.0;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: series FILE.json[.gz]")?;
    let blocks = load(&path).with_context(|| path.clone())?;
    let samples: usize = blocks.iter().map(Vec::len).sum();
    println!("{path}: {samples} samples in {} blocks\n", blocks.len());
    println!("| codec | bytes per sample | encode M samples/s | decode M samples/s |");
    println!("| --- | ---: | ---: | ---: |");
    measure("met-store", &blocks, &Own)?;
    for level in [0, 2, 4, 8] {
        measure(&format!("pcodec level {level}"), &blocks, &Pcodec { level })?;
    }
    for (level, twice) in [(1, false), (3, false), (3, true)] {
        let name = format!("varint of {} + zstd -{level}", if twice { "deltas of deltas" } else { "deltas" });
        measure(&name, &blocks, &VarintZstd::new(level, twice)?)?;
    }
    measure("deltas packed by 64, each group at its own width", &blocks, &Packed)?;
    Ok(())
}

fn load(path: &str) -> Result<Vec<Vec<i64>>> {
    let mut text = String::new();
    let file = File::open(path)?;
    if path.ends_with(".gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        { file }.read_to_string(&mut text)?;
    }
    let archive: Value = serde_json::from_str(&text)?;
    let mut blocks = Vec::new();
    for levels in archive.as_object().context("not an object")?.values() {
        for level in levels.as_object().context("a metric is not an object")?.values() {
            for series in level["series"].as_array().context("no series")? {
                let data = series["data"].as_array().context("a series without data")?;
                let cells: Vec<i64> = data.iter().map(cell).collect();
                blocks.extend(cells.chunks(BLOCK_SAMPLES_MAX).map(<[i64]>::to_vec));
            }
        }
    }
    Ok(blocks)
}

fn cell(value: &Value) -> i64 {
    value.as_f64().map_or(MISSING, |value| (value * SCALE).round() as i64)
}

trait Codec {
    fn encode(&self, cells: &[i64], out: &mut Vec<u8>) -> Result<()>;
    fn decode(&self, bytes: &[u8], out: &mut Vec<i64>) -> Result<()>;
}

fn measure(name: &str, blocks: &[Vec<i64>], codec: &dyn Codec) -> Result<()> {
    let samples: usize = blocks.iter().map(Vec::len).sum();
    let mut encoded = vec![Vec::with_capacity(1 << 14); blocks.len()];
    let mut decoded = Vec::with_capacity(BLOCK_SAMPLES_MAX);
    let (mut encode_s, mut decode_s) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for (cells, bytes) in blocks.iter().zip(&mut encoded) {
            bytes.clear();
            codec.encode(black_box(cells), bytes)?;
        }
        encode_s = encode_s.min(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        for bytes in &encoded {
            codec.decode(black_box(bytes), &mut decoded)?;
            black_box(&decoded);
        }
        decode_s = decode_s.min(begin.elapsed().as_secs_f64());
    }
    for (cells, bytes) in blocks.iter().zip(&encoded) {
        codec.decode(bytes, &mut decoded)?;
        ensure!(decoded == *cells, "{name} does not give back what it was given");
    }
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    let speed = |seconds: f64| samples as f64 / seconds / 1e6;
    println!(
        "| {name} | {:.3} | {:.0} | {:.0} |",
        bytes as f64 / samples as f64,
        speed(encode_s),
        speed(decode_s)
    );
    Ok(())
}

/// What met-store writes. The number of samples, which a stored block has once for all its columns, is
/// counted here with every column.
struct Own;

impl Codec for Own {
    fn encode(&self, cells: &[i64], out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&(cells.len() as u16).to_le_bytes());
        encode_column(cells, out);
        Ok(())
    }

    fn decode(&self, bytes: &[u8], out: &mut Vec<i64>) -> Result<()> {
        let (count, bytes) = count_of(bytes)?;
        decode_column(bytes, count, out)?;
        Ok(())
    }
}

fn count_of(bytes: &[u8]) -> Result<(usize, &[u8])> {
    let (count, bytes) = bytes.split_first_chunk::<2>().context("no count")?;
    Ok((usize::from(u16::from_le_bytes(*count)), bytes))
}

/// The alternatives know no nulls: met-store's own run lengths go before their bytes.
fn split_nulls(cells: &[i64], out: &mut Vec<u8>) -> Vec<i64> {
    out.extend_from_slice(&(cells.len() as u16).to_le_bytes());
    let nulls: Vec<i64> = cells.iter().map(|&cell| if cell == MISSING { MISSING } else { 0 }).collect();
    encode_column(&nulls, out);
    cells.iter().copied().filter(|&cell| cell != MISSING).collect()
}

fn read_nulls<'a>(bytes: &'a [u8], out: &mut Vec<i64>) -> Result<(usize, &'a [u8])> {
    let (count, bytes) = count_of(bytes)?;
    let bytes = decode_column(bytes, count, out)?;
    Ok((out.iter().filter(|&&cell| cell != MISSING).count(), bytes))
}

fn fill_known(known: impl IntoIterator<Item = i64>, out: &mut [i64]) {
    for (cell, value) in out.iter_mut().filter(|cell| **cell != MISSING).zip(known) {
        *cell = value;
    }
}

struct Pcodec {
    level: usize,
}

impl Codec for Pcodec {
    fn encode(&self, cells: &[i64], out: &mut Vec<u8>) -> Result<()> {
        let known = split_nulls(cells, out);
        let config = pco::ChunkConfig::default().with_compression_level(self.level);
        out.extend(pco::standalone::simple_compress(&known, &config)?);
        Ok(())
    }

    fn decode(&self, bytes: &[u8], out: &mut Vec<i64>) -> Result<()> {
        let (_, bytes) = read_nulls(bytes, out)?;
        fill_known(pco::standalone::simple_decompress::<i64>(bytes)?, out);
        Ok(())
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(folded: u64) -> i64 {
    (folded >> 1) as i64 ^ -((folded & 1) as i64)
}

fn deltas(known: &[i64]) -> Vec<i64> {
    let mut before = 0;
    known.iter().map(|&value| value.wrapping_sub(std::mem::replace(&mut before, value))).collect()
}

fn sums(deltas: &mut [i64]) {
    let mut sum = 0_i64;
    for delta in deltas {
        sum = sum.wrapping_add(*delta);
        *delta = sum;
    }
}

/// The contexts are kept, as a store would do: making them takes longer than a block.
struct VarintZstd {
    compressor: RefCell<zstd::bulk::Compressor<'static>>,
    decompressor: RefCell<zstd::bulk::Decompressor<'static>>,
    twice: bool,
}

impl VarintZstd {
    fn new(level: i32, twice: bool) -> Result<VarintZstd> {
        Ok(VarintZstd {
            compressor: RefCell::new(zstd::bulk::Compressor::new(level)?),
            decompressor: RefCell::new(zstd::bulk::Decompressor::new()?),
            twice,
        })
    }
}

impl Codec for VarintZstd {
    fn encode(&self, cells: &[i64], out: &mut Vec<u8>) -> Result<()> {
        let mut steps = deltas(&split_nulls(cells, out));
        if self.twice {
            steps = deltas(&steps);
        }
        let mut varints = Vec::with_capacity(steps.len() * 2);
        for step in steps {
            let mut rest = zigzag(step);
            while rest >= 0x80 {
                varints.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            varints.push(rest as u8);
        }
        out.extend(self.compressor.borrow_mut().compress(&varints)?);
        Ok(())
    }

    fn decode(&self, bytes: &[u8], out: &mut Vec<i64>) -> Result<()> {
        let (known_count, bytes) = read_nulls(bytes, out)?;
        let varints = self.decompressor.borrow_mut().decompress(bytes, known_count * 10)?;
        let mut steps = Vec::with_capacity(known_count);
        let (mut value, mut shift) = (0_u64, 0);
        for byte in varints {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                steps.push(unzigzag(value));
                (value, shift) = (0, 0);
            }
        }
        for _ in 0..1 + usize::from(self.twice) {
            sums(&mut steps);
        }
        fill_known(steps, out);
        Ok(())
    }
}

/// The simplest thing that packs bits.
struct Packed;

const GROUP: usize = 64;

impl Codec for Packed {
    fn encode(&self, cells: &[i64], out: &mut Vec<u8>) -> Result<()> {
        for group in deltas(&split_nulls(cells, out)).chunks(GROUP) {
            let all = group.iter().fold(0, |all, &step| all | zigzag(step));
            let width = (64 - all.leading_zeros()).min(56);
            ensure!(all >> width == 0, "a step of more than 56 bits");
            out.push(width as u8);
            let (mut pending, mut bits) = (0_u64, 0);
            for &step in group {
                pending |= zigzag(step) << bits;
                bits += width;
                while bits >= 8 {
                    out.push(pending as u8);
                    pending >>= 8;
                    bits -= 8;
                }
            }
            if bits > 0 {
                out.push(pending as u8);
            }
        }
        Ok(())
    }

    fn decode(&self, bytes: &[u8], out: &mut Vec<i64>) -> Result<()> {
        let (known_count, mut bytes) = read_nulls(bytes, out)?;
        let mut steps = Vec::with_capacity(known_count);
        while steps.len() < known_count {
            let (&width, rest) = bytes.split_first().context("no group")?;
            let count = GROUP.min(known_count - steps.len());
            let (group, rest) = rest
                .split_at_checked((count * usize::from(width)).div_ceil(8))
                .context("a group ends early")?;
            bytes = rest;
            let mut at_bit = 0;
            for _ in 0..count {
                let mut word = [0; 8];
                let from = &group[at_bit / 8..group.len().min(at_bit / 8 + 8)];
                word[..from.len()].copy_from_slice(from);
                let value = u64::from_le_bytes(word) >> (at_bit % 8) & ((1 << width) - 1);
                steps.push(unzigzag(value));
                at_bit += usize::from(width);
            }
        }
        sums(&mut steps);
        fill_known(steps, out);
        Ok(())
    }
}
