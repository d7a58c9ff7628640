//! Bytes and bits of a block: variable-length integers, a bit writer and a bit reader that may run dry.

use crate::column::Damaged;

pub(crate) use met_core::varint::{put as put_varint, unzigzag, zigzag};

/// Bytes not read yet.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (&first, rest) = self.rest.split_first().ok_or(Damaged("column ends early"))?;
        self.rest = rest;
        Ok(first)
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Damaged("block ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or(&[]);
    }

    pub fn varint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged("integer of more than 64 bits"))
    }
}

/// Lowest bit first.
pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    pending_bits: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { out, pending: 0, pending_bits: 0 }
    }

    /// Adds the lowest `count` bits of `value`, at most 32; the bits above must be 0.
    #[inline(always)]
    pub fn put(&mut self, value: u64, count: u32) {
        debug_assert!(count <= 32 && value >> count == 0);
        self.pending |= value << self.pending_bits;
        self.pending_bits += count;
        if self.pending_bits >= 32 {
            self.out.extend_from_slice(&(self.pending as u32).to_le_bytes());
            self.pending >>= 32;
            self.pending_bits -= 32;
        }
    }

    /// As `put`, for any count.
    #[inline(always)]
    pub fn put_wide(&mut self, value: u64, count: u32) {
        if count <= 32 {
            self.put(value, count);
        } else {
            self.put(value & 0xffff_ffff, 32);
            self.put(value >> 32, count - 32);
        }
    }

    pub fn finish(self) {
        let bytes = self.pending_bits.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..bytes]);
    }
}

/// Reads zeros past the end and knows that it did, so that the inner loop needs no check per read.
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    at_bit: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, at_bit: 0 }
    }

    /// How many bits `peek` shows at least.
    pub const PEEK_BITS: u32 = 56;

    #[inline(always)]
    pub fn peek(&self) -> u64 {
        let at = self.at_bit / 8;
        let word = match self.bytes.get(at..at + 8) {
            Some(eight) => u64::from_le_bytes([
                eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7],
            ]),
            None => self.tail(at),
        };
        word >> (self.at_bit % 8)
    }

    #[cold]
    fn tail(&self, at: usize) -> u64 {
        let rest = self.bytes.get(at..).unwrap_or(&[]);
        rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    #[inline(always)]
    pub fn skip(&mut self, count: u32) {
        self.at_bit += count as usize;
    }

    /// The next `count` bits, at most 63.
    #[cold]
    pub fn take_wide(&mut self, count: u32) -> u64 {
        let low_bits = count.min(32);
        let low = self.peek() & ((1 << low_bits) - 1);
        self.skip(low_bits);
        let high = self.peek() & ((1 << (count - low_bits)) - 1);
        self.skip(count - low_bits);
        low | high << 32
    }

    /// The bytes begun, or `None` if more was read than there is.
    pub fn used_bytes(&self) -> Option<usize> {
        Some(self.at_bit.div_ceil(8)).filter(|&used| used <= self.bytes.len())
    }
}
