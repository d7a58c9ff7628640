//! What a node sends to a server: a batch of records of jobs and pieces of series.
//!
//! ```text
//! "MET", version (1 byte), then frames of: kind (1 byte), length (varint), payload
//!   H  who sends, as JSON; the first frame and only there
//!   R  the record of a job, as JSON
//!   L  interim totals of a running job, as JSON; beside its samples, with the series
//!   S  a piece of a series: length and JSON of whose it is, length and name of its table, a block
//! ```
//! On the way and on disk it is gzip in two members: records, then series. A spool that is full cuts the
//! second one off, and what remains is a batch.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use met_core::job::{Emission, JobKey, Record, Summaries, Totals};
use met_core::node_health::NodeHealth;
use met_core::series::Series;
use serde::{Deserialize, Serialize};

use crate::bits::put_varint;
use crate::block;

mod spooled;

pub use spooled::{split, with_header};

const MAGIC: &[u8; 3] = b"MET";
/// The first one described its columns in less detail; batches in spools and on servers may be of it.
const VERSION: u8 = 2;
const BEGIN_BYTES: usize = MAGIC.len() + 1;
const HEADER: u8 = b'H';
const RECORD: u8 = b'R';
const SERIES: u8 = b'S';
const INTERIM: u8 = b'L';
/// Means nothing; readers skip it like any frame they do not know.
const PADDING: u8 = b'P';

/// Bounds of what is taken from a sender: compressed, and unpacked.
pub const PACKED_BYTES_MAX: usize = 8 << 20;
pub const UNPACKED_BYTES_MAX: usize = 64 << 20;
/// Nothing that is sent shrinks by more.
const RATIO_MAX: usize = 100;
/// Samples in one batch: those of a hundred jobs in a minute, a tenth of a second apart.
pub const SAMPLES_MAX: usize = 100_000;

/// What a batch may have when it is unpacked.
pub fn unpacked_max(packed: usize) -> usize {
    packed.saturating_mul(RATIO_MAX).saturating_add(64 << 10).min(UNPACKED_BYTES_MAX)
}

/// A record of a job with all its steps.
pub const RECORD_BYTES_MAX: usize = 4 << 20;
/// A job's interim totals have a few thousand; a longer text is not ours.
const STANDING_BYTES_MAX: usize = 64 << 10;
const NAME_BYTES_MAX: usize = 255;
/// Far more tables, and columns of one, than there are.
const TABLES_MAX: usize = 256;
const DESCRIPTION_BYTES_MAX: usize = 512 * 32;

/// The sender, and its position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub node: String,
    /// Drawn whenever a daemon opens its spool: it makes batch numbers unique.
    pub spool: String,
    /// From 1 on, in the order in which they were made.
    pub sequence: u64,
    /// Identifies the state folder of the node, whatever the node is called. Empty from versions that have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Identifies the start of the daemon that sends it. Empty from versions that have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// Every record up to here has been sent with this batch; for the sender alone.
    pub mark: i64,
    /// Unix time by the sender's clock.
    pub made_ns: i64,
    pub boot_id: String,
    pub version: String,
    pub cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// Its own page for Prometheus, if it has one that others can reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
    /// Its GPUs and failing sources.
    #[serde(default, skip_serializing_if = "NodeHealth::is_empty")]
    pub health: NodeHealth,
    /// Samples that found no room since the spool was made.
    #[serde(default)]
    pub dropped_samples: u64,
    /// What is meant by the columns of each table in this batch: see [`crate::schema`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// The same as the first version said it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, String>,
}

/// Where a page is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    pub port: u16,
    pub tls: bool,
}

/// Whose a piece of a series is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    Job(JobKey),
    /// A GPU by its uuid.
    Device(String),
    /// A part of the node: a disk, a zone; empty where there is one of its kind.
    Node(String),
}

/// Some samples of one table; the block is the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub subject: Subject,
    pub table: String,
    pub block: Vec<u8>,
}

impl Piece {
    /// A whole series.
    pub fn of(subject: Subject, series: &Series) -> Piece {
        let mut packed = Vec::new();
        block::encode(series, 0..series.len(), &mut packed);
        Piece { subject, table: series.table.name.to_owned(), block: packed }
    }
}

/// The interim totals of a running job, as far as its samples do not contain them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interim {
    pub key: JobKey,
    /// How well each figure is known, and by what. The values are those of then; newer ones are in the samples.
    #[serde(default)]
    pub totals: Totals,
    #[serde(default)]
    pub summaries: Summaries,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emission: Option<Emission>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeBatch {
    pub header: Header,
    pub records: Vec<Record>,
    pub interims: Vec<Interim>,
    pub pieces: Vec<Piece>,
}

/// Why bytes are no batch.
#[derive(Debug, thiserror::Error)]
pub enum BadBatch {
    #[error("it is not compressed with gzip, or was cut off: {0}")]
    Packing(io::Error),
    #[error("it is larger than {UNPACKED_BYTES_MAX} bytes when unpacked, or than {RATIO_MAX} times its size")]
    TooLarge,
    #[error("it is not a batch")]
    Magic,
    #[error("it has version {0}, at most {VERSION} is supported")]
    Version(u8),
    #[error("a frame is cut off or too long at byte {0}")]
    Frame(usize),
    #[error("{0} at byte {1}")]
    Content(&'static str, usize),
    #[error("{what} cannot be read: {error}")]
    Json { what: &'static str, error: serde_json::Error },
}

/// A batch as it is spooled and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Where the records end and the series begin: what is before is a batch by itself.
    pub records_end: usize,
}

impl NodeBatch {
    pub fn pack(&self) -> io::Result<Packed> {
        let mut plain = begin().to_vec();
        put_json(&mut plain, HEADER, &self.header)?;
        for record in &self.records {
            put_json(&mut plain, RECORD, record)?;
        }
        let mut bytes = Vec::with_capacity(plain.len() / 4);
        gzip_within_ratio(&mut plain, &mut bytes)?;
        let records_end = bytes.len();
        if !self.pieces.is_empty() || !self.interims.is_empty() {
            plain.clear();
            for interim in &self.interims {
                put_json(&mut plain, INTERIM, interim)?;
            }
            for piece in &self.pieces {
                put_piece(&mut plain, piece)?;
            }
            gzip_within_ratio(&mut plain, &mut bytes)?;
        }
        Ok(Packed { bytes, records_end })
    }

    /// Reads all of a batch. Whatever the bytes are, no more than [`unpacked_max`] is held.
    pub fn unpack(packed: &[u8]) -> Result<NodeBatch, BadBatch> {
        NodeBatch::read_within(&unpacked_within(packed, unpacked_max(packed.len()))?, RECORD_BYTES_MAX)
    }

    fn read_within(plain: &[u8], record_bytes_max: usize) -> Result<NodeBatch, BadBatch> {
        let mut frames = Frames::of(plain)?;
        let mut batch = NodeBatch { header: frames.header()?, ..NodeBatch::default() };
        while let Some((kind, payload, at)) = frames.next()? {
            match kind {
                RECORD if payload.len() > record_bytes_max => {
                    return Err(BadBatch::Content("a record is too long", at));
                }
                RECORD => batch.records.push(json("a record", payload)?),
                // A server can do without.
                INTERIM if payload.len() <= STANDING_BYTES_MAX => {
                    batch.interims.extend(serde_json::from_slice::<Interim>(payload).ok());
                }
                SERIES => batch.pieces.push(piece(payload, at)?),
                HEADER => return Err(BadBatch::Content("a second header", at)),
                // A later version may say more; what is not understood is not ours to refuse.
                _ => {}
            }
        }
        Ok(batch)
    }
}

/// For fuzz/: packed and plain, since the packing would hide what is behind it.
#[cfg(feature = "fuzzing")]
pub fn fuzz(bytes: &[u8]) {
    let _ = NodeBatch::unpack(bytes);
    let _ = header(bytes);
    let plain = [&begin(), bytes].concat();
    let Ok(batch) = NodeBatch::read_within(&plain, RECORD_BYTES_MAX) else { return };
    let meant = crate::schema::Meaning::of(&met_core::JOB);
    for said in batch.header.columns.values().chain(batch.header.tables.values()) {
        let _ = (meant.compare(said), meant.compare_letters(said));
    }
    let packed = batch.pack().expect("what was read can be written");
    assert_eq!(NodeBatch::unpack(&packed.bytes).expect("and read again"), batch);
}

fn begin() -> [u8; BEGIN_BYTES] {
    let [one, two, three] = *MAGIC;
    [one, two, three, VERSION]
}

/// The header alone: what a spool needs to know of a batch it holds.
pub fn header(packed: &[u8]) -> Result<Header, BadBatch> {
    let mut begin = Vec::new();
    let most = (BEGIN_BYTES + 11 + RECORD_BYTES_MAX) as u64;
    MultiGzDecoder::new(packed).take(most).read_to_end(&mut begin).map_err(BadBatch::Packing)?;
    Frames::of(&begin)?.header()
}

/// Compresses so that a receiver does not take it for a bomb: what would shrink by more than [`RATIO_MAX`], such as a
/// command line of one letter, gets one percent of padding that does not shrink.
fn gzip_within_ratio(plain: &mut Vec<u8>, out: &mut Vec<u8>) -> io::Result<()> {
    // Half of what a batch may have beyond the ratio: it has two members.
    const ALLOWANCE: usize = 32 << 10;
    let begin = out.len();
    gzip(plain, out)?;
    let excess = plain.len().saturating_sub(ALLOWANCE + (out.len() - begin) * RATIO_MAX);
    if excess > 0 {
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = || {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            (bits >> 32) as u8
        };
        let padding: Vec<u8> = (0..excess / (RATIO_MAX - 1) + 64).map(|_| noise()).collect();
        put_frame(plain, PADDING, &padding);
        out.truncate(begin);
        gzip(plain, out)?;
    }
    Ok(())
}

fn gzip(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::new(5));
    encoder.write_all(plain)?;
    encoder.finish().map(drop)
}

fn unpacked_within(packed: &[u8], most: usize) -> Result<Vec<u8>, BadBatch> {
    let mut plain = Vec::with_capacity((packed.len() * 4).min(most));
    let read = MultiGzDecoder::new(packed).take(most as u64 + 1).read_to_end(&mut plain);
    read.map_err(BadBatch::Packing)?;
    if plain.len() > most {
        return Err(BadBatch::TooLarge);
    }
    Ok(plain)
}

fn put_json(out: &mut Vec<u8>, kind: u8, value: &impl Serialize) -> io::Result<()> {
    put_frame(out, kind, &serde_json::to_vec(value)?);
    Ok(())
}

fn put_piece(out: &mut Vec<u8>, piece: &Piece) -> io::Result<()> {
    let subject = serde_json::to_vec(&piece.subject)?;
    let mut payload = Vec::with_capacity(subject.len() + piece.table.len() + piece.block.len() + 4);
    for part in [&subject[..], piece.table.as_bytes()] {
        put_varint(&mut payload, part.len() as u64);
        payload.extend_from_slice(part);
    }
    payload.extend_from_slice(&piece.block);
    put_frame(out, SERIES, &payload);
    Ok(())
}

fn put_frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.push(kind);
    put_varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Reads a length in front of `bytes`, which must hold that many more.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (index, &byte) in bytes.iter().enumerate().take(5) {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return bytes[index + 1..].split_at_checked(length);
        }
    }
    None
}

fn json<'de, T: Deserialize<'de>>(what: &'static str, bytes: &'de [u8]) -> Result<T, BadBatch> {
    serde_json::from_slice(bytes).map_err(|error| BadBatch::Json { what, error })
}

fn piece(payload: &[u8], at: usize) -> Result<Piece, BadBatch> {
    let (subject, rest) = sized(payload).ok_or(BadBatch::Frame(at))?;
    let (table, block) = sized(rest).ok_or(BadBatch::Frame(at))?;
    let table = std::str::from_utf8(table).ok().filter(|table| table.len() <= NAME_BYTES_MAX);
    let table = table.ok_or(BadBatch::Content("a table without a proper name", at))?.to_owned();
    Ok(Piece { subject: json("whose a series is", subject)?, table, block: block.to_vec() })
}

/// Kind and payload of a frame, and where it begins.
type Frame<'a> = (u8, &'a [u8], usize);

struct Frames<'a> {
    whole: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    fn of(plain: &'a [u8]) -> Result<Frames<'a>, BadBatch> {
        match plain.strip_prefix(MAGIC).and_then(<[u8]>::split_first).ok_or(BadBatch::Magic)? {
            (1..=VERSION, rest) => Ok(Frames { whole: plain, rest }),
            (version, _) => Err(BadBatch::Version(*version)),
        }
    }

    fn header(&mut self) -> Result<Header, BadBatch> {
        match self.next()? {
            Some((HEADER, payload, at)) => {
                let mut header: Header = json("the header", payload)?;
                header.health = header.health.bounded();
                let Header { node, spool, id, run, boot_id, version, .. } = &header;
                let texts = [node, spool, id, run, boot_id, version];
                if texts.iter().any(|text| text.len() > NAME_BYTES_MAX) || header.node.is_empty() {
                    return Err(BadBatch::Content("a header without proper names", at));
                }
                let is_long = |(name, said): (&String, &String)| {
                    name.len() > NAME_BYTES_MAX || said.len() > DESCRIPTION_BYTES_MAX
                };
                let says_much = |tables: &BTreeMap<String, String>| {
                    tables.len() > TABLES_MAX || tables.iter().any(is_long)
                };
                if says_much(&header.columns) || says_much(&header.tables) {
                    return Err(BadBatch::Content("a header that says too much of its tables", at));
                }
                Ok(header)
            }
            _ => Err(BadBatch::Content("no header", BEGIN_BYTES)),
        }
    }

    fn next(&mut self) -> Result<Option<Frame<'a>>, BadBatch> {
        let Some((&kind, rest)) = self.rest.split_first() else { return Ok(None) };
        let at = self.whole.len() - self.rest.len();
        let (payload, rest) = sized(rest).ok_or(BadBatch::Frame(at))?;
        self.rest = rest;
        Ok(Some((kind, payload, at)))
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
