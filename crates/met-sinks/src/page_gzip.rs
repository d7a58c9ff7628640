//! Gzip for pages of metrics: lines of which each repeats most of one shortly before it, and digits that repeat nothing.
//!
//! A general encoder treats every byte of such a page in the same way. This one looks for what follows only at the last
//! place where the same four bytes were seen, which is mostly the line before, does not search for digits, and gives them
//! short codes. Any bytes can be packed.

use flate2::Crc;

/// How far back a repetition may be, and how long.
const WINDOW: usize = 32 << 10;
const REPEAT_MAX: usize = 258;
const HASH_BITS: u32 = 13;
/// Bytes and repetitions that share their codes.
const BLOCK_ITEMS: usize = 1 << 14;
/// Symbols are bytes, the end of a block, and steps of lengths; those of distances have a code of their own.
const END: usize = 256;
const LENGTHS_FROM: usize = 257;
const SYMBOLS: usize = 286;
const DISTANCES: usize = 30;
const CODE_BITS_MAX: u8 = 15;
/// The lengths of words are coded themselves, and their own lengths come in this order.
const LENGTH_SYMBOLS: usize = 19;
const LENGTH_BITS_MAX: u8 = 7;
const LENGTH_ORDER: [usize; LENGTH_SYMBOLS] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

pub fn gzip(page: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.len() / 6 + 64);
    // Deflate, no flags, no time, the fastest way, Unix.
    out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3]);
    let mut bits = Bits { out: &mut out, pending: 0, count: 0 };
    let mut places = vec![0_u32; 1 << HASH_BITS];
    let mut block = Block::default();
    let mut at = 0;
    loop {
        at = block.fill(page, at, &mut places);
        let is_last = at == page.len();
        block.write(is_last, &mut bits);
        if is_last {
            break;
        }
    }
    bits.finish();
    let mut sum = Crc::new();
    sum.update(page);
    out.extend_from_slice(&sum.sum().to_le_bytes());
    out.extend_from_slice(&sum.amount().to_le_bytes());
    out
}

/// What is written with the same codes, and how often each symbol occurs in it.
struct Block {
    /// A byte, or a length and, in the lower half, a distance.
    items: Vec<u32>,
    symbols: [u32; SYMBOLS],
    distances: [u32; DISTANCES],
}

impl Default for Block {
    fn default() -> Block {
        Block { items: Vec::with_capacity(BLOCK_ITEMS), symbols: [0; SYMBOLS], distances: [0; DISTANCES] }
    }
}

impl Block {
    /// Takes items from a place on, and returns where those of the next block begin. `places` has the last place of four
    /// bytes that were seen, plus one.
    fn fill(&mut self, page: &[u8], mut at: usize, places: &mut [u32]) -> usize {
        self.items.clear();
        (self.symbols, self.distances) = ([0; SYMBOLS], [0; DISTANCES]);
        self.symbols[END] = 1;
        while self.items.len() < BLOCK_ITEMS && at < page.len() {
            match repeated(page, at, places) {
                Some((length, distance)) => {
                    self.symbols[LENGTHS_FROM + usize::from(STEP_OF_LENGTH[length])] += 1;
                    self.distances[distance_step(distance)] += 1;
                    self.items.push((length as u32) << 16 | distance as u32);
                    at += length;
                }
                None => {
                    self.symbols[usize::from(page[at])] += 1;
                    self.items.push(u32::from(page[at]));
                    at += 1;
                }
            }
        }
        at
    }

    fn write(&mut self, is_last: bool, bits: &mut Bits<'_>) {
        // A code of less than two words would need a case of its own.
        for count in self.distances[..2].iter_mut().chain(&mut self.symbols[..1]) {
            *count = (*count).max(1);
        }
        let symbols: Code<SYMBOLS> = Code::of(&self.symbols, CODE_BITS_MAX);
        let distances: Code<DISTANCES> = Code::of(&self.distances, CODE_BITS_MAX);
        bits.put(u64::from(is_last) | 0b10 << 1, 3);
        write_codes(&symbols, &distances, bits);
        for &item in &self.items {
            let (length, low) = (item as usize >> 16, item as usize & 0xffff);
            if length == 0 {
                symbols.put(low, bits);
                continue;
            }
            let step = usize::from(STEP_OF_LENGTH[length]);
            symbols.put(LENGTHS_FROM + step, bits);
            LENGTH_STEPS[step].put_rest(length, bits);
            let step = distance_step(low);
            distances.put(step, bits);
            DISTANCE_STEPS[step].put_rest(low, bits);
        }
        symbols.put(END, bits);
    }
}

/// The length and distance of what was there before and is repeated here, if that takes fewer bits than the bytes.
#[inline(always)]
fn repeated(page: &[u8], at: usize, places: &mut [u32]) -> Option<(usize, usize)> {
    let here = page[at..].first_chunk::<4>()?;
    let four = u32::from_le_bytes(*here);
    // Digits: what they have in common with others is not worth a search.
    if four & 0xf0f0_f0f0 == 0x3030_3030 {
        return None;
    }
    let hash = four.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
    let before = std::mem::replace(&mut places[hash as usize], at as u32 + 1).checked_sub(1)? as usize;
    let distance = at - before;
    if distance > WINDOW || page[before..].first_chunk() != Some(here) {
        return None;
    }
    let length = 4 + common(&page[before + 4..], &page[at + 4..]);
    let is_worthwhile = match length {
        4 => distance <= 512,
        5 => distance <= 4096,
        _ => true,
    };
    is_worthwhile.then_some((length, distance))
}

/// How many bytes both begin with, up to those of the longest repetition.
fn common(before: &[u8], here: &[u8]) -> usize {
    let most = here.len().min(REPEAT_MAX - 4);
    let ((befores, before_rest), (heres, here_rest)) =
        (before[..most].as_chunks::<8>(), here[..most].as_chunks::<8>());
    for (index, (before, here)) in befores.iter().zip(heres).enumerate() {
        let differs = u64::from_le_bytes(*before) ^ u64::from_le_bytes(*here);
        if differs != 0 {
            return index * 8 + differs.trailing_zeros() as usize / 8;
        }
    }
    let rest = before_rest.iter().zip(here_rest).take_while(|(before, here)| before == here);
    befores.len() * 8 + rest.count()
}

/// A length or distance is the beginning of a step, and some plain bits.
struct Step {
    from: u16,
    extra_bits: u8,
}

impl Step {
    #[inline(always)]
    fn put_rest(&self, value: usize, bits: &mut Bits<'_>) {
        bits.put(value as u64 - u64::from(self.from), u32::from(self.extra_bits));
    }
}

static LENGTH_STEPS: [Step; SYMBOLS - LENGTHS_FROM] = {
    let mut steps = [const { Step { from: 0, extra_bits: 0 } }; SYMBOLS - LENGTHS_FROM];
    let (mut index, mut from) = (0, 3);
    while index < steps.len() - 1 {
        let extra_bits = if index < 8 { 0 } else { (index / 4 - 1) as u8 };
        steps[index] = Step { from, extra_bits };
        from += 1 << extra_bits;
        index += 1;
    }
    // The longest has a step of its own.
    steps[index] = Step { from: REPEAT_MAX as u16, extra_bits: 0 };
    steps
};

static DISTANCE_STEPS: [Step; DISTANCES] = {
    let mut steps = [const { Step { from: 0, extra_bits: 0 } }; DISTANCES];
    let (mut index, mut from) = (0, 1_u32);
    while index < DISTANCES {
        let extra_bits = if index < 4 { 0 } else { (index / 2 - 1) as u8 };
        steps[index] = Step { from: from as u16, extra_bits };
        from += 1 << extra_bits;
        index += 1;
    }
    steps
};

/// The step of every length.
static STEP_OF_LENGTH: [u8; REPEAT_MAX + 1] = {
    let mut steps = [0; REPEAT_MAX + 1];
    let (mut length, mut step) = (3, 0);
    while length <= REPEAT_MAX {
        while step + 1 < LENGTH_STEPS.len() && LENGTH_STEPS[step + 1].from as usize <= length {
            step += 1;
        }
        steps[length] = step as u8;
        length += 1;
    }
    steps
};

/// There are two steps for each power of two.
#[inline(always)]
fn distance_step(distance: usize) -> usize {
    let before = distance - 1;
    match before {
        ..2 => before,
        _ => {
            let power = before.ilog2() as usize;
            2 * power + (before >> (power - 1) & 1)
        }
    }
}

/// Words for symbols: the more often one occurs, the shorter.
struct Code<const N: usize> {
    /// Of each symbol: its word, in the order in which bits are read, and how many bits it has; none if it does not occur.
    words: [(u16, u8); N],
}

impl<const N: usize> Code<N> {
    /// At least two symbols must occur.
    fn of(counts: &[u32; N], bits_max: u8) -> Code<N> {
        let lengths = lengths(counts, bits_max);
        // Words of one length are numbered, from behind those of the shorter ones.
        let mut next = [0_u16; CODE_BITS_MAX as usize + 2];
        for &length in lengths.iter().filter(|&&length| length > 0) {
            next[usize::from(length) + 1] += 1;
        }
        for length in 1..next.len() {
            next[length] = next[length].wrapping_add(next[length - 1]) << 1;
        }
        let words = lengths.map(|length| {
            if length == 0 {
                return (0, 0);
            }
            let next = &mut next[usize::from(length)];
            let word = next.reverse_bits() >> (16 - u16::from(length));
            *next += 1;
            (word, length)
        });
        Code { words }
    }

    #[inline(always)]
    fn put(&self, symbol: usize, bits: &mut Bits<'_>) {
        let (word, length) = self.words[symbol];
        bits.put(u64::from(word), u32::from(length));
    }

    /// The lengths of words, up to the last symbol that occurs.
    fn lengths(&self) -> impl Iterator<Item = u8> + '_ {
        let unused = self.words.iter().rev().take_while(|(_, length)| *length == 0).count();
        self.words[..N - unused].iter().map(|(_, length)| *length)
    }
}

/// Huffman's lengths; where one is too long, counts are levelled until none is.
fn lengths<const N: usize>(counts: &[u32; N], bits_max: u8) -> [u8; N] {
    let mut leaves: Vec<(u32, usize)> =
        counts.iter().copied().zip(0..).filter(|&(count, _)| count > 0).collect();
    loop {
        leaves.sort_unstable();
        let depths = depths(&leaves);
        if depths.iter().all(|&depth| depth <= bits_max) {
            let mut lengths = [0; N];
            leaves.iter().zip(depths).for_each(|(&(_, symbol), depth)| lengths[symbol] = depth);
            return lengths;
        }
        leaves.iter_mut().for_each(|(count, _)| *count = *count / 2 + 1);
    }
}

/// The depth of each leaf in Huffman's tree; the leaves, at least one, are sorted by count.
fn depths(leaves: &[(u32, usize)]) -> Vec<u8> {
    let inner = leaves.len() - 1;
    let mut parents = vec![0_usize; leaves.len() + inner];
    let mut sums: Vec<u32> = Vec::with_capacity(inner);
    let (mut leaf, mut node) = (0, 0);
    for made in 0..inner {
        let mut sum = 0;
        for _ in 0..2 {
            // Nodes are made in the order of their sums, so the two smallest are at two fronts.
            if leaf < leaves.len() && (node >= made || leaves[leaf].0 <= sums[node]) {
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
    let mut depths = vec![0_u8; leaves.len() + inner];
    for at in (0..leaves.len() + inner - 1).rev() {
        depths[at] = depths[parents[at]].saturating_add(1);
    }
    depths.truncate(leaves.len());
    depths
}

/// Writes the lengths of the words of both codes, in a code of their own, with runs shortened.
fn write_codes(symbols: &Code<SYMBOLS>, distances: &Code<DISTANCES>, bits: &mut Bits<'_>) {
    let mut all: Vec<u8> = symbols.lengths().collect();
    // The end of a block always occurs, and two distances, so there are as many as there must be.
    let of_symbols = all.len().max(LENGTHS_FROM);
    all.resize(of_symbols, 0);
    all.extend(distances.lengths());
    let runs = runs(&all);
    let mut counts = [0; LENGTH_SYMBOLS];
    runs.iter().for_each(|run| counts[run.symbol] += 1);
    counts[0] = counts[0].max(1);
    let code = Code::of(&counts, LENGTH_BITS_MAX);
    let listed = LENGTH_ORDER.iter().rposition(|&symbol| code.words[symbol].1 > 0).unwrap_or(0).max(3) + 1;
    bits.put((of_symbols - LENGTHS_FROM) as u64, 5);
    bits.put((all.len() - of_symbols - 1) as u64, 5);
    bits.put(listed as u64 - 4, 4);
    for &symbol in &LENGTH_ORDER[..listed] {
        bits.put(u64::from(code.words[symbol].1), 3);
    }
    for run in runs {
        code.put(run.symbol, bits);
        bits.put(run.rest, run.rest_bits);
    }
}

/// A length, or how often one follows.
struct Run {
    symbol: usize,
    rest: u64,
    rest_bits: u32,
}

fn runs(lengths: &[u8]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut rest = lengths;
    while let Some(&length) = rest.first() {
        let count = rest.iter().take_while(|&&other| other == length).count();
        let (symbol, least, most, rest_bits) = match (length, count) {
            (0, 11..) => (18, 11, 138, 7),
            (0, 3..) => (17, 3, 10, 3),
            // The length itself, then its repetitions.
            (1.., 4..) => {
                runs.push(Run { symbol: usize::from(length), rest: 0, rest_bits: 0 });
                rest = &rest[1..];
                (16, 3, 6, 2)
            }
            _ => (usize::from(length), 1, 1, 0),
        };
        let taken = rest.iter().take(most).take_while(|&&other| other == length).count();
        runs.push(Run { symbol, rest: (taken - least) as u64, rest_bits });
        rest = &rest[taken..];
    }
    runs
}

/// The lowest bit first.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    count: u32,
}

impl Bits<'_> {
    /// At most 32 bits; those above are 0.
    #[inline(always)]
    fn put(&mut self, value: u64, count: u32) {
        debug_assert!(count <= 32 && value >> count == 0);
        self.pending |= value << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out.extend_from_slice(&(self.pending as u32).to_le_bytes());
            self.pending >>= 32;
            self.count -= 32;
        }
    }

    fn finish(self) {
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..bytes]);
    }
}

#[cfg(test)]
#[path = "page_gzip_tests.rs"]
mod tests;
