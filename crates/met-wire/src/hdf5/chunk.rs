//! Chunks of a table as the filters shuffle and deflate store them.
//!
//! Shuffled, a chunk holds the first byte of every row, then the second one, and so on. Texts are padded to 255 or 8192 bytes, so
//! most of it is zeros in long runs. These are not handed to the deflater: a block of their own says how many they are.

use flate2::{Compress, CompressError, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Shorter runs of zeros are compressed like everything else.
const ZEROS_MIN: usize = 4096;
/// To search longer takes three to seven times as long and finds nothing more in such tables.
const EFFORT_MAX: u32 = 6;
/// Columns of bytes that are shuffled together: they fit into the fastest cache.
const BLOCK: usize = 64;
const ADLER: u32 = 65521;
/// So many bytes are summed before the sums could overflow.
const ADLER_BYTES: usize = 5552;
/// The longest copy of DEFLATE.
const COPY_BYTES: usize = 258;

/// Makes stored chunks.
pub struct Encoder {
    deflate: Compress,
    level: u32,
    /// What any row has at each of its bytes.
    any: Vec<u8>,
    shuffled: Vec<u8>,
}

impl Encoder {
    /// Level 1 to 9.
    pub fn new(level: u32) -> Encoder {
        let deflate = Compress::new(Compression::new(level.clamp(1, EFFORT_MAX)), false);
        Encoder { deflate, level, any: Vec::new(), shuffled: Vec::new() }
    }

    /// The stored form of a chunk whose first rows are these; the others are zeros.
    pub fn encode(
        &mut self,
        rows: &[u8],
        row_bytes: usize,
        chunk_rows: usize,
    ) -> Result<Vec<u8>, CompressError> {
        self.any.clear();
        self.any.resize(row_bytes, 0);
        for row in rows.chunks_exact(row_bytes) {
            self.any.iter_mut().zip(row).for_each(|(any, &byte)| *any |= byte);
        }
        // How hard it was tried is all that the second byte says.
        let mut out = vec![0x78, [0x01, 0x5e, 0x9c, 0xda][(self.level as usize + 1) / 3 % 4]];
        let mut sum = Sum::default();
        let mut from = 0;
        while from < row_bytes {
            let zeros = self.any[from..].iter().take_while(|&&any| any == 0).count();
            if zeros * chunk_rows >= ZEROS_MIN {
                put_zeros(&mut out, zeros * chunk_rows);
                sum.add_zeros(zeros * chunk_rows);
                from += zeros;
                continue;
            }
            let to = self.end_of_data(from + zeros, chunk_rows);
            shuffle(rows, row_bytes, from..to, chunk_rows, &mut self.shuffled);
            sum.add(&self.shuffled);
            self.deflate.reset();
            deflate(&mut self.deflate, &self.shuffled, &mut out)?;
            from = to;
        }
        // The last block is stored and empty.
        out.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
        out.extend_from_slice(&sum.value().to_be_bytes());
        Ok(out)
    }

    /// Where the next long run of zeros begins.
    fn end_of_data(&self, mut at: usize, chunk_rows: usize) -> usize {
        while at < self.any.len() {
            let zeros = self.any[at..].iter().take_while(|&&any| any == 0).count();
            if zeros * chunk_rows >= ZEROS_MIN {
                return at;
            }
            at += zeros.max(1);
        }
        self.any.len()
    }
}

/// These bytes of all rows, one after the other.
fn shuffle(
    rows: &[u8],
    row_bytes: usize,
    columns: std::ops::Range<usize>,
    chunk_rows: usize,
    out: &mut Vec<u8>,
) {
    out.clear();
    out.resize(columns.len() * chunk_rows, 0);
    for (block, out) in columns.clone().step_by(BLOCK).zip(out.chunks_mut(BLOCK * chunk_rows)) {
        let end = columns.end.min(block + BLOCK);
        for (index, row) in rows.chunks_exact(row_bytes).enumerate() {
            for (column, &byte) in row[block..end].iter().enumerate() {
                out[column * chunk_rows + index] = byte;
            }
        }
    }
}

/// Blocks that refer to nothing before them, and end with a whole byte.
fn deflate(deflate: &mut Compress, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), CompressError> {
    loop {
        out.reserve(bytes.len() / 8 + 1024);
        let taken = deflate.total_in() as usize;
        deflate.compress_vec(&bytes[taken..], out, FlushCompress::Full)?;
        if deflate.total_in() as usize == bytes.len() && out.len() < out.capacity() {
            return Ok(());
        }
    }
}

/// A block of only zeros, and an empty stored one that ends with a whole byte. Its codes: 0 copies 258 bytes, 10 is a zero, 11 the
/// end; the distance has one code, 0, which is one byte.
fn put_zeros(out: &mut Vec<u8>, count: usize) {
    let mut bits = Bits { out, held: 0, count: 0 };
    // Not the last one, codes of its own: 286 for bytes and lengths, 1 for distances, 18 for their lengths.
    for (value, width) in [(0, 1), (2, 2), (29, 5), (0, 5), (14, 4)] {
        bits.put(value, width);
    }
    // Lengths of the codes for lengths, in their order: 16, 17, 18, 0, 8, 7, …, 2, 14, 1. A run of zeros (18) has code 0, a
    // length of one 10, one of two 11.
    for index in 0..18 {
        bits.put(
            match index {
                2 => 1,
                15 | 17 => 2,
                _ => 0,
            },
            3,
        );
    }
    let (run, one, two) = ((0, 1), (0b01, 2), (0b11, 2));
    // 0 has two bits, 1 to 255 none, 256 two, 257 to 284 none, 285 one; the distance 0 has one.
    for (value, width) in [two, run, (138 - 11, 7), run, (117 - 11, 7), two, run, (28 - 11, 7), one, one] {
        bits.put(value, width);
    }
    const ZERO: (u32, u32) = (0b01, 2);
    const END: (u32, u32) = (0b11, 2);
    let (copies, rest) = ((count - 1) / COPY_BYTES, (count - 1) % COPY_BYTES);
    bits.put(ZERO.0, ZERO.1);
    for _ in 0..copies {
        bits.put(0, 2);
    }
    for _ in 0..rest {
        bits.put(ZERO.0, ZERO.1);
    }
    bits.put(END.0, END.1);
    bits.put(0, 3);
    bits.fill();
    out.extend_from_slice(&[0, 0, 0xff, 0xff]);
}

/// Bits, the lowest one first.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    held: u32,
    count: u32,
}

impl Bits<'_> {
    fn put(&mut self, value: u32, width: u32) {
        self.held |= value << self.count;
        self.count += width;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// Zeros up to the next whole byte.
    fn fill(&mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }
}

/// Adler-32.
struct Sum {
    low: u32,
    high: u32,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { low: 1, high: 0 }
    }
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(ADLER_BYTES) {
            for &byte in part {
                self.low += u32::from(byte);
                self.high += self.low;
            }
            self.low %= ADLER;
            self.high %= ADLER;
        }
    }

    fn add_zeros(&mut self, count: usize) {
        let added = u64::from(self.low) * (count as u64 % u64::from(ADLER));
        self.high = ((u64::from(self.high) + added) % u64::from(ADLER)) as u32;
    }

    fn value(&self) -> u32 {
        self.high << 16 | self.low
    }
}

/// The rows of a stored chunk.
pub fn decode(stored: &[u8], row_bytes: usize, chunk_rows: usize) -> Option<Vec<u8>> {
    let mut shuffled = Vec::with_capacity(row_bytes.checked_mul(chunk_rows)?);
    let mut inflate = Decompress::new(true);
    let status = inflate.decompress_vec(stored, &mut shuffled, FlushDecompress::Finish).ok()?;
    // A stream that goes on was cut off, or is of another chunk; its sum was not compared.
    if status != Status::StreamEnd || chunk_rows == 0 || shuffled.len() != row_bytes * chunk_rows {
        return None;
    }
    let mut rows = vec![0; shuffled.len()];
    for (column, bytes) in shuffled.chunks_exact(chunk_rows).enumerate() {
        for (row, &byte) in bytes.iter().enumerate() {
            rows[row * row_bytes + column] = byte;
        }
    }
    Some(rows)
}
