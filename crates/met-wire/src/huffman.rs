//! A canonical Huffman code over the tokens of one column.

use crate::bits::{BitReader, Input};
use crate::column::Damaged;

/// Tokens are bytes.
pub(crate) const TOKENS: usize = 256;

/// No code word is longer: the table that decodes them stays in the first-level cache.
const LENGTH_MAX: u8 = 11;

/// Marks, in the list of code lengths, a run of tokens that do not occur.
const RUN: u8 = 15;
const RUN_MIN: usize = 2;

/// Which tokens occur. Of the few of a short column the others are not looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Occurring([u64; TOKENS / 64]);

impl Occurring {
    #[inline(always)]
    pub fn insert(&mut self, token: u8) {
        self.0[usize::from(token >> 6)] |= 1 << (token & 63);
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..).zip(self.0).flat_map(|(part, bits): (u8, u64)| {
            let rest = std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)));
            let each = rest.take_while(|&bits| bits != 0);
            each.map(move |bits| part << 6 | bits.trailing_zeros() as u8)
        })
    }
}

/// The code of a column being written. The lengths decide everything: canonical words are numbered by
/// length, then by token.
pub(crate) struct Code {
    /// 0: does not occur. Also of the only token of a column, which needs no bits.
    lengths: [u8; TOKENS],
    words: [u16; TOKENS],
    only: Option<u8>,
}

impl Code {
    /// The code for the tokens that occur, `counts` times each. At least one must occur.
    pub fn of(counts: &[u32; TOKENS], occurring: &Occurring) -> Code {
        let mut lengths = [0; TOKENS];
        let mut tokens = occurring.iter();
        let first = tokens.next().unwrap_or(0);
        let only = tokens.next().is_none().then_some(first);
        if only.is_none() {
            lengths = limited_lengths(counts, occurring);
        }
        let words = canonical_words(&lengths, occurring);
        Code { lengths, words, only }
    }

    /// The number of bits and the bits of `token`.
    #[inline(always)]
    pub fn word(&self, token: u8) -> (u32, u64) {
        (u32::from(self.lengths[token as usize]), u64::from(self.words[token as usize]))
    }

    /// As half-bytes: the number of tokens listed, then the lengths with runs of zeros shortened.
    pub fn write(&self, out: &mut Vec<u8>) {
        if let Some(only) = self.only {
            out.extend_from_slice(&[0, only]);
            return;
        }
        let listed = TOKENS - self.lengths.iter().rev().take_while(|&&length| length == 0).count();
        let mut halves = Vec::with_capacity(listed);
        let mut token = 0;
        while token < listed {
            let ahead = self.lengths[token..listed].iter().take(RUN_MIN + 15);
            let run = ahead.take_while(|&&length| length == 0).count();
            if run >= RUN_MIN {
                halves.extend_from_slice(&[RUN, (run - RUN_MIN) as u8]);
                token += run;
            } else {
                halves.push(self.lengths[token]);
                token += 1;
            }
        }
        // At least two tokens occur: 255 is the highest number of the second, and 0 never occurs.
        out.push((listed - 1) as u8);
        for pair in halves.chunks(2) {
            out.push(pair[0] | pair.get(1).copied().unwrap_or(0) << 4);
        }
    }
}

const TABLE_SIZE: usize = 1 << LENGTH_MAX;

/// The code of a column being read: for every value of the next bits, as many as the longest word has, a
/// token, the length of its word and the number of plain bits behind it, packed.
pub(crate) struct Decoder {
    /// As long as the longest word of the column needs it: most columns have few tokens.
    table: Vec<u32>,
    index_mask: usize,
}

impl Decoder {
    pub fn read(input: &mut Input, extra_bits: fn(u8) -> u8) -> Result<Decoder, Damaged> {
        let listed = usize::from(input.byte()?) + 1;
        if listed == 1 {
            let only = input.byte()?;
            return Ok(Decoder { table: vec![entry(only, 0, extra_bits(only))], index_mask: 0 });
        }
        let mut lengths = [0_u8; TOKENS];
        let mut halves = Halves { input, second: None };
        let mut token = 0;
        while token < listed {
            match halves.next()? {
                RUN => token += usize::from(halves.next()?) + RUN_MIN,
                length if length <= LENGTH_MAX => {
                    lengths[token] = length;
                    token += 1;
                }
                _ => return Err(Damaged("code word too long")),
            }
        }
        if token != listed {
            return Err(Damaged("more code lengths than tokens"));
        }
        // Every bit string must be the beginning of exactly one code word: then the table has no holes.
        let filled: usize =
            lengths[..listed].iter().filter(|&&length| length > 0).map(|&length| TABLE_SIZE >> length).sum();
        if filled != TABLE_SIZE {
            return Err(Damaged("code lengths do not make a code"));
        }
        let mut occurring = Occurring::default();
        (0..listed).filter(|&token| lengths[token] > 0).for_each(|token| occurring.insert(token as u8));
        let words = canonical_words(&lengths, &occurring);
        let used = 1 << lengths[..listed].iter().copied().max().unwrap_or(0);
        let mut table = vec![0; used];
        for token in occurring.iter().map(usize::from) {
            let entry = entry(token as u8, lengths[token], extra_bits(token as u8));
            for slot in table[usize::from(words[token])..].iter_mut().step_by(1 << lengths[token]) {
                *slot = entry;
            }
        }
        Ok(Decoder { table, index_mask: used - 1 })
    }

    /// The next token and its plain bits.
    #[inline(always)]
    pub fn next(&self, bits: &mut BitReader) -> (u8, u64) {
        let window = bits.peek();
        let entry = self.table[window as usize & self.index_mask];
        let (length, extra_bits) = (entry & 0xff, entry >> 8 & 0xff);
        let token = (entry >> 16) as u8;
        bits.skip(length);
        if extra_bits <= BitReader::PEEK_BITS - LENGTH_MAX as u32 {
            bits.skip(extra_bits);
            (token, window >> length & ((1 << extra_bits) - 1))
        } else {
            (token, bits.take_wide(extra_bits))
        }
    }
}

fn entry(token: u8, length: u8, extra_bits: u8) -> u32 {
    u32::from(token) << 16 | u32::from(extra_bits) << 8 | u32::from(length)
}

struct Halves<'i, 'a> {
    input: &'i mut Input<'a>,
    second: Option<u8>,
}

impl Halves<'_, '_> {
    fn next(&mut self) -> Result<u8, Damaged> {
        if let Some(second) = self.second.take() {
            return Ok(second);
        }
        let both = self.input.byte()?;
        self.second = Some(both >> 4);
        Ok(both & 15)
    }
}

/// The code word of each token, its bits reversed because the stream is read from the lowest bit.
fn canonical_words(lengths: &[u8; TOKENS], occurring: &Occurring) -> [u16; TOKENS] {
    // The only token of a column has no word.
    let coded = || occurring.iter().map(usize::from).filter(|&token| lengths[token] > 0);
    let mut next = [0_u16; LENGTH_MAX as usize + 2];
    for token in coded() {
        next[usize::from(lengths[token]) + 1] += 1;
    }
    for length in 1..next.len() {
        next[length] = (next[length] + next[length - 1]) << 1;
    }
    let mut words = [0; TOKENS];
    for token in coded() {
        let length = lengths[token];
        let word = &mut next[usize::from(length)];
        words[token] = word.reverse_bits() >> (16 - u16::from(length));
        *word += 1;
    }
    words
}

/// Huffman's lengths; where one is too long the counts are flattened until none is.
fn limited_lengths(counts: &[u32; TOKENS], occurring: &Occurring) -> [u8; TOKENS] {
    let mut leaves: Vec<(u32, u8)> =
        occurring.iter().map(|token| (counts[usize::from(token)], token)).collect();
    loop {
        leaves.sort_unstable();
        let depths = depths(&leaves);
        if depths.iter().all(|&depth| depth <= LENGTH_MAX) {
            let mut lengths = [0; TOKENS];
            for (&(_, token), &depth) in leaves.iter().zip(&depths) {
                lengths[token as usize] = depth;
            }
            return lengths;
        }
        for (count, _) in &mut leaves {
            *count = *count / 2 + 1;
        }
    }
}

/// The depth of each leaf in Huffman's tree; the leaves are sorted by count.
fn depths(leaves: &[(u32, u8)]) -> Vec<u8> {
    let inner = leaves.len() - 1;
    let mut parents = vec![0_usize; leaves.len() + inner];
    let mut sums: Vec<u32> = Vec::with_capacity(inner);
    let (mut leaf, mut node) = (0, 0);
    for made in 0..inner {
        let mut sum = 0;
        for _ in 0..2 {
            // Made nodes appear in the order of their sums, so the two smallest are at two fronts.
            let take_leaf = leaf < leaves.len() && (node >= made || leaves[leaf].0 <= sums[node]);
            if take_leaf {
                sum += leaves[leaf].0;
                parents[leaf] = leaves.len() + made;
                leaf += 1;
            } else {
                sum += sums[node];
                parents[leaves.len() + node] = leaves.len() + made;
                node += 1;
            }
        }
        sums.push(sum);
    }
    let mut depth = vec![0_u8; leaves.len() + inner];
    for at in (0..leaves.len() + inner - 1).rev() {
        depth[at] = depth[parents[at]].saturating_add(1);
    }
    depth.truncate(leaves.len());
    depth
}
