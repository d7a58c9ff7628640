//! Records of Colmet 0.6: what its nodes push to its collector, one message per node and period.
//!
//! ```text
//! message: records back to back, little-endian, packed; a record's length follows from its name
//! record:  metric_backend 255 bytes, hostname 255 bytes (both padded with NUL), job_id u64, timestamp u64 (unix seconds),
//!          counters, and for some kinds involved_jobs: a JSON list of ids, padded with NUL to 8192 bytes
//! ```
//! The protocol has no word for an unknown value. What is unknown is written as Colmet writes it, -1 where it is signed and
//! 0 where it is not, because a collector with Elasticsearch loses the whole record for a larger number. Read are -1, and
//! unsigned numbers that no i64 holds, as unknown.

mod layout;
pub mod shape;
pub mod variant;

pub use layout::{
    At, Backend, CONTROLLER_POWER, Counter, EVENTS, LAYOUTS, Layout, Meaning, PACKAGES, THERMAL,
    THERMAL_ZONES, Type, UPTIME, ZONE_ENERGY, ZONE_RANGE, ZONES, Zone,
};

const NAME_BYTES: usize = 255;
const JOB_ID: usize = 2 * NAME_BYTES;
const TIMESTAMP: usize = JOB_ID + 8;
const COUNTERS: usize = TIMESTAMP + 8;
pub const JOBS_BYTES: usize = 8192;
/// Nothing is read beyond: a record of the longest kind for each of some hundred jobs.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f32),
}

impl Value {
    /// The cell of a column that holds `factor` of these.
    pub fn times(self, factor: i64) -> Option<i64> {
        match self {
            Value::Int(value) => value.checked_mul(factor),
            Value::Float(value) => {
                let cell = (f64::from(value) * factor as f64).round();
                (cell.is_finite() && cell.abs() < i64::MAX as f64).then_some(cell as i64)
            }
        }
    }

    /// The counter of a cell.
    pub fn of_cell(kind: Type, cell: i64, factor: i64) -> Value {
        match kind {
            Type::F32 => Value::Float((cell as f64 / factor as f64) as f32),
            Type::U32 | Type::U64 | Type::I64 => Value::Int(cell / factor),
        }
    }
}

/// One record: the counters of a job or of the node at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub backend: Backend,
    pub hostname: String,
    /// 0 is the whole node.
    pub job_id: u64,
    /// Unix seconds.
    pub timestamp: u64,
    /// One for each counter of the layout, as small as it can be: one thread writes and another one reads them.
    words: Vec<i64>,
    /// The jobs that ran, for kinds that say so.
    pub involved_jobs: Vec<u64>,
}

/// Why bytes were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bad {
    /// Bytes that begin with no known `metric_backend`; the next known one is looked for.
    UnknownBackend,
    Truncated,
    Hostname,
    InvolvedJobs,
    TooLong,
    MessagePack,
}

impl Bad {
    pub fn text(self) -> &'static str {
        match self {
            Bad::UnknownBackend => "unknown metric_backend",
            Bad::Truncated => "truncated record",
            Bad::Hostname => "malformed hostname",
            Bad::InvolvedJobs => "malformed involved_jobs",
            Bad::TooLong => "message too long",
            Bad::MessagePack => "malformed MessagePack",
        }
    }
}

impl Layout {
    /// The length of a record.
    pub const fn bytes(&self) -> usize {
        let (mut bytes, mut index) = (COUNTERS, 0);
        while index < self.counters.len() {
            bytes += self.counters[index].kind.bytes();
            index += 1;
        }
        bytes + if self.has_involved_jobs { JOBS_BYTES } else { 0 }
    }
}

/// The length of a record of each layout: every record needs it.
static LENGTHS: [usize; LAYOUTS.len()] = {
    let (mut lengths, mut index) = ([0; LAYOUTS.len()], 0);
    while index < LAYOUTS.len() {
        lengths[index] = LAYOUTS[index].bytes();
        index += 1;
    }
    lengths
};

/// The names of all layouts as records have them.
static NAMES: [[u8; NAME_BYTES]; LAYOUTS.len()] = {
    let (mut names, mut index) = ([[0; NAME_BYTES]; LAYOUTS.len()], 0);
    while index < LAYOUTS.len() {
        let (name, mut at) = (LAYOUTS[index].name.as_bytes(), 0);
        while at < name.len() {
            names[index][at] = name[at];
            at += 1;
        }
        index += 1;
    }
    names
};

/// A word of an unknown value; also the catalogue's own.
const UNKNOWN: i64 = i64::MIN;

/// Integers are as they are, floats are their bits.
fn word_of(kind: Type, value: Option<Value>) -> i64 {
    match (kind, value) {
        (_, None) => UNKNOWN,
        (Type::F32, Some(Value::Float(value))) => i64::from(value.to_bits()),
        (Type::F32, Some(Value::Int(value))) => i64::from((value as f32).to_bits()),
        (_, Some(Value::Float(value))) => value as i64,
        (_, Some(Value::Int(value))) => value,
    }
}

fn value_of(kind: Type, word: i64) -> Option<Value> {
    match (kind, word) {
        (_, UNKNOWN) => None,
        (Type::F32, bits) => Some(Value::Float(f32::from_bits(bits as u32))),
        (_, word) => Some(Value::Int(word)),
    }
}

/// Counters of one type that follow each other: to look at each counter took longer than to read it.
#[derive(Clone, Copy)]
struct Run {
    kind: Type,
    count: usize,
}

const RUNS_MAX: usize = 3;

static RUNS: [[Run; RUNS_MAX]; LAYOUTS.len()] = {
    let (mut runs, mut index) = ([[Run { kind: Type::U64, count: 0 }; RUNS_MAX]; LAYOUTS.len()], 0);
    while index < LAYOUTS.len() {
        let (counters, mut at, mut run) = (LAYOUTS[index].counters, 0, 0);
        while at < counters.len() {
            if at > 0 && counters[at].kind as u8 != counters[at - 1].kind as u8 {
                run += 1;
            }
            runs[index][run].kind = counters[at].kind;
            runs[index][run].count += 1;
            at += 1;
        }
        index += 1;
    }
    runs
};

impl Record {
    /// One in which nothing is known yet.
    pub fn new(backend: Backend, hostname: &str, job_id: u64, timestamp: u64) -> Record {
        let words = vec![UNKNOWN; backend.layout().counters.len()];
        Record { backend, hostname: hostname.to_owned(), job_id, timestamp, words, involved_jobs: Vec::new() }
    }

    /// All counters in the order of the wire.
    pub fn values(&self) -> impl Iterator<Item = (&'static Counter, Option<Value>)> + '_ {
        let counters = self.backend.layout().counters.iter();
        counters.zip(&self.words).map(|(counter, &word)| (counter, value_of(counter.kind, word)))
    }

    /// Sets the counter with this index.
    pub fn set(&mut self, index: usize, value: Option<Value>) {
        self.words[index] = word_of(self.backend.layout().counters[index].kind, value);
    }

    /// Sets all counters.
    pub fn set_all(&mut self, mut value: impl FnMut(usize, &'static Counter) -> Option<Value>) {
        let counters = self.backend.layout().counters.iter().enumerate();
        for ((index, counter), word) in counters.zip(&mut self.words) {
            *word = word_of(counter.kind, value(index, counter));
        }
    }

    /// The known counters with their names, in the order of the wire.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        self.values().filter_map(|(counter, value)| Some((counter.name, value?)))
    }

    pub fn value(&self, name: &str) -> Option<Value> {
        self.counters().find(|(counter, _)| *counter == name).map(|(_, value)| value)
    }

    /// `involved_jobs` as Colmet writes it: as many ids as fit.
    pub fn involved_jobs_json(&self) -> String {
        let mut text = [0; JOBS_BYTES];
        let bytes = self.put_involved_jobs(&mut text);
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    }

    /// Writes that to a place of `JOBS_BYTES`; how many bytes it has. The rest stays as it is.
    fn put_involved_jobs(&self, out: &mut [u8]) -> usize {
        let mut end = 1;
        out[0] = b'[';
        for &id in &self.involved_jobs {
            let mut digits = [0; 20];
            let digits = decimal(id, &mut digits);
            // One byte stays for the end of the list, and one is NUL.
            if end + digits.len() + 4 > JOBS_BYTES {
                break;
            }
            if end > 1 {
                out[end..end + 2].copy_from_slice(b", ");
                end += 2;
            }
            out[end..end + digits.len()].copy_from_slice(digits);
            end += digits.len();
        }
        out[end] = b']';
        end + 1
    }

    /// Appends the record. A name that is too long is cut, so that the record has its length in any case.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let layout = self.backend.layout();
        padded(out, layout.name.as_bytes(), NAME_BYTES);
        padded(out, self.hostname.as_bytes(), NAME_BYTES);
        out.extend_from_slice(&self.job_id.to_le_bytes());
        out.extend_from_slice(&self.timestamp.to_le_bytes());
        for (counter, &word) in layout.counters.iter().zip(&self.words) {
            encode_word(out, counter.kind, word);
        }
        if layout.has_involved_jobs {
            padded(out, self.involved_jobs_json().as_bytes(), JOBS_BYTES);
        }
    }

    /// Reads a record of exactly its length, into the memory of another one if there is any.
    fn decode(index: usize, bytes: &[u8], spare: Option<Record>) -> Result<Record, Bad> {
        let layout = &LAYOUTS[index];
        let hostname =
            text(&bytes[NAME_BYTES..JOB_ID]).filter(|name| is_hostname(name)).ok_or(Bad::Hostname)?;
        let mut record = match spare {
            Some(spare) => Record { backend: layout.backend, ..spare },
            None => Record::new(layout.backend, "", 0, 0),
        };
        record.hostname.clear();
        record.hostname.push_str(hostname);
        (record.job_id, record.timestamp) = (word(bytes, JOB_ID), word(bytes, TIMESTAMP));
        record.words.clear();
        record.involved_jobs.clear();
        let mut rest = &bytes[COUNTERS..];
        for &Run { kind, count } in &RUNS[index] {
            let (own, behind) = rest.split_at(count * kind.bytes());
            rest = behind;
            decode_words(kind, own, &mut record.words);
        }
        if layout.has_involved_jobs {
            text(rest).and_then(|text| job_ids(text, &mut record.involved_jobs)).ok_or(Bad::InvolvedJobs)?;
        }
        Ok(record)
    }
}

fn padded(out: &mut Vec<u8>, text: &[u8], bytes: usize) {
    let text = &text[..text.len().min(bytes)];
    out.extend_from_slice(text);
    out.resize(out.len() + bytes - text.len(), 0);
}

/// The text before the padding.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

/// Names of hosts as systems have them: they become labels, file names and lines of logs.
pub fn is_hostname(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(is_fit) && !name.starts_with(['.', '-'])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn encode_word(out: &mut Vec<u8>, kind: Type, word: i64) {
    match kind {
        Type::U32 => out.extend_from_slice(&u32::try_from(word).unwrap_or(0).to_le_bytes()),
        Type::U64 => out.extend_from_slice(&u64::try_from(word).unwrap_or(0).to_le_bytes()),
        Type::I64 => out.extend_from_slice(&if word == UNKNOWN { -1 } else { word }.to_le_bytes()),
        Type::F32 => out.extend_from_slice(&if word == UNKNOWN { 0 } else { word as u32 }.to_le_bytes()),
    }
}

fn decode_words(kind: Type, bytes: &[u8], out: &mut Vec<i64>) {
    let (fours, eights) = (bytes.as_chunks::<4>().0, bytes.as_chunks::<8>().0);
    match kind {
        Type::U32 => out.extend(fours.iter().map(|four| i64::from(u32::from_le_bytes(*four)))),
        Type::U64 => out.extend(eights.iter().map(|eight| {
            let word = i64::from_le_bytes(*eight);
            if word >= 0 { word } else { UNKNOWN }
        })),
        Type::I64 => out.extend(eights.iter().map(|eight| {
            let word = i64::from_le_bytes(*eight);
            if word != -1 { word } else { UNKNOWN }
        })),
        Type::F32 => out.extend(fours.iter().map(|four| {
            let bits = u32::from_le_bytes(*four);
            if f32::from_bits(bits).is_finite() { i64::from(bits) } else { UNKNOWN }
        })),
    }
}

/// The digits of a number, at the end of the place for them.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

/// A JSON list of ids.
fn job_ids(text: &str, ids: &mut Vec<u64>) -> Option<()> {
    // A field of only padding: Colmet's default.
    if text.is_empty() {
        return Some(());
    }
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    if inner.is_empty() {
        return Some(());
    }
    inner.split(',').try_for_each(|id| {
        ids.push(id.trim().parse().ok()?);
        Some(())
    })
}

/// The records of a message, and what could not be read of it. Bytes that begin no record are skipped up to the next one.
pub fn records(message: &[u8]) -> impl Iterator<Item = Result<Record, Bad>> + '_ {
    records_with(message, || None)
}

/// The same, in the memory of records that are no longer needed.
pub fn records_with<'a>(
    message: &'a [u8],
    mut spare: impl FnMut() -> Option<Record> + 'a,
) -> impl Iterator<Item = Result<Record, Bad>> + 'a {
    let (mut rest, too_long) = match message.len() > MESSAGE_BYTES_MAX {
        true => (&[][..], Some(Err(Bad::TooLong))),
        false => (message, None),
    };
    let read = std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(index) = layout_at(rest) else {
            rest = &rest[next_record(rest)..];
            return Some(Err(Bad::UnknownBackend));
        };
        let Some((own, behind)) = rest.split_at_checked(LENGTHS[index]) else {
            // Another may begin within it.
            rest = &rest[next_record(rest)..];
            return Some(Err(Bad::Truncated));
        };
        rest = behind;
        Some(Record::decode(index, own, spare()))
    });
    too_long.into_iter().chain(read)
}

/// Which layout the record that begins here has.
fn layout_at(bytes: &[u8]) -> Option<usize> {
    let name: &[u8; NAME_BYTES] = bytes.first_chunk()?;
    // No two have the same first letters.
    let index = NAMES.iter().position(|known| known[..8] == name[..8])?;
    (NAMES[index] == *name).then_some(index)
}

/// Where the next record begins behind the first byte; the end if there is none.
fn next_record(bytes: &[u8]) -> usize {
    (1..bytes.len()).find(|&at| layout_at(&bytes[at..]).is_some()).unwrap_or(bytes.len())
}

#[cfg(test)]
#[path = "colmet/tests.rs"]
mod tests;
