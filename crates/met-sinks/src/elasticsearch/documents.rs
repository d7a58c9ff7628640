//! Documents from events, with the id by which a server recognises one that it has.

use std::borrow::Cow;
use std::io::Write;
use std::time::Instant;

use met_insight::json::time;
use met_wire::colmet::{LAYOUTS, Record, Value};
use serde_json::json;

use super::indices::Scheme;
use crate::clock::now_ns;
use crate::colmet_records::Gatherer;
use crate::event::Event;
use crate::event_json;

/// How long an index is written to, for those who remove old ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    #[default]
    Never,
    Daily,
    Monthly,
}

impl Rotation {
    pub const NAMES: &'static [&'static str] = &["never", "daily", "monthly"];

    pub fn from_name(name: &str) -> Rotation {
        match name {
            "daily" => Rotation::Daily,
            "monthly" => Rotation::Monthly,
            _ => Rotation::Never,
        }
    }

    /// The index of a document with this time (`2026-01-31T…`): by its own date, so that a second attempt finds the
    /// first.
    fn index<'a>(self, stem: &'a str, time: &str) -> Cow<'a, str> {
        let length = match self {
            Rotation::Never => 0,
            Rotation::Daily => "2026-01-31".len(),
            Rotation::Monthly => "2026-01".len(),
        };
        match time.get(..length).filter(|date| !date.is_empty()) {
            Some(date) => format!("{stem}-{}", date.replace('-', ".")).into(),
            None => stem.into(),
        }
    }
}

/// Takes a document for an index under an id.
pub type Put<'a> = dyn FnMut(&str, &str, &[u8]) + 'a;

/// Makes documents of events.
pub enum Maker {
    Colmet(Box<Colmet>),
    Catalogue(Catalogue),
}

impl Maker {
    pub fn write(&mut self, event: &Event, put: &mut Put<'_>) {
        match self {
            Maker::Colmet(colmet) => {
                colmet.gatherer.take(event, &mut colmet.records);
                colmet.write(put);
            }
            Maker::Catalogue(catalogue) => catalogue.write(event, put),
        }
    }

    /// Writes what is complete by now without a further event.
    pub fn finish(&mut self, now: Instant, put: &mut Put<'_>) {
        if let Maker::Colmet(colmet) = self {
            colmet.gatherer.idle(now, &mut colmet.records);
            colmet.write(put);
        }
    }

    /// When that is so.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Maker::Colmet(colmet) => colmet.gatherer.due(),
            Maker::Catalogue(_) => None,
        }
    }

    pub fn scheme(&self) -> Scheme {
        match self {
            Maker::Colmet(colmet) => colmet.scheme(),
            Maker::Catalogue(catalogue) => catalogue.scheme(),
        }
    }
}

/// Makes the documents that a collector of Colmet makes of records.
pub struct Colmet {
    gatherer: Gatherer,
    rotation: Rotation,
    /// The index of each kind of record, in the order of the layouts.
    stems: Vec<String>,
    /// Made and not written yet.
    records: Vec<Record>,
    document: Vec<u8>,
    id: String,
}

impl Colmet {
    pub fn new(gatherer: Gatherer, prefix: &str, rotation: Rotation) -> Colmet {
        let stems = LAYOUTS.iter().map(|layout| format!("{prefix}{}", layout.name.to_ascii_lowercase()));
        let (records, document, id) = (Vec::new(), Vec::new(), String::new());
        Colmet { gatherer, rotation, stems: stems.collect(), records, document, id }
    }

    fn write(&mut self, put: &mut Put<'_>) {
        for record in self.records.drain(..) {
            let place = LAYOUTS.iter().position(|layout| layout.backend == record.backend);
            let Some(stem) = place.and_then(|place| self.stems.get(place)) else { continue };
            let date = match self.rotation {
                Rotation::Never => None,
                _ => i64::try_from(record.timestamp)
                    .ok()
                    .and_then(|time_s| time(time_s.saturating_mul(1_000_000_000))),
            };
            self.document.clear();
            write_record(&mut self.document, &record);
            self.id.clear();
            let (job, time_s) = (record.job_id, record.timestamp);
            let _ = std::fmt::Write::write_fmt(
                &mut self.id,
                format_args!("{}-{job}-{time_s}-{:016x}", record.hostname, fingerprint(&record)),
            );
            put(&self.rotation.index(stem, date.as_deref().unwrap_or_default()), &self.id, &self.document);
        }
    }

    fn scheme(&self) -> Scheme {
        let mappings = json!({
            "properties": {
                "timestamp": {"type": "date", "format": "epoch_second"},
                "hostname": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}},
                "job_id": {"type": "long"},
                "involved_jobs": {"type": "long"},
            },
            // A first value of 0 must not make it a column of whole numbers.
            "dynamic_templates": [{"loads": {"match": "loadavg_*", "mapping": {"type": "float"}}}],
        });
        Scheme { mappings, stems: self.stems.clone() }
    }
}

/// What is not known is left out.
fn write_record(out: &mut Vec<u8>, record: &Record) {
    // Memory can always be written to.
    out.extend_from_slice(b"{\"hostname\":");
    let _ = serde_json::to_writer(&mut *out, &record.hostname);
    let _ = write!(out, ",\"job_id\":{},\"timestamp\":{}", record.job_id, record.timestamp);
    for (name, value) in record.counters() {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        let _ = match value {
            Value::Int(value) => serde_json::to_writer(&mut *out, &value),
            Value::Float(value) => serde_json::to_writer(&mut *out, &value),
        };
    }
    if record.backend.layout().has_involved_jobs {
        out.extend_from_slice(b",\"involved_jobs\":");
        let _ = serde_json::to_writer(&mut *out, &record.involved_jobs);
    }
    out.push(b'}');
}

/// Of two records of a job in one second each is a document: the last sample and the end may fall together.
fn fingerprint(record: &Record) -> u64 {
    let bits = |(_, value)| match value {
        None => u64::MAX,
        Some(Value::Int(value)) => value as u64,
        Some(Value::Float(value)) => u64::from(value.to_bits()),
    };
    fnv(record.values().map(bits).chain(record.involved_jobs.iter().copied()))
}

/// FNV-1a by words: the same in every version of this program.
fn fnv(words: impl Iterator<Item = u64>) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word ^ (word >> 32)).wrapping_mul(0x100_0000_01b3);
    words.fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Makes documents with the names of our own catalogue, as the sink `stdout` writes rows.
pub struct Catalogue {
    pub prefix: String,
    pub node: Option<String>,
    pub tables: Vec<String>,
    pub rotation: Rotation,
}

impl Catalogue {
    pub fn write(&self, event: &Event, put: &mut Put<'_>) {
        event_json::objects(event, now_ns(), |mut object| {
            let table = object["table"].as_str().unwrap_or_default().to_owned();
            if !self.tables.contains(&table) {
                return;
            }
            if object["node"].is_null() {
                object["node"] = json!(self.node);
            }
            let time = object["time"].as_str().unwrap_or_default();
            let node = object["node"].as_str().unwrap_or_default();
            let subject = ["job", "part", "labels"].map(|key| object[key].to_string());
            let id = format!("{node}-{time}-{:016x}", hash(&subject));
            let stem = format!("{}{table}", self.prefix);
            let index = self.rotation.index(&stem, time);
            put(&index, &id, object.to_string().as_bytes());
        });
    }

    pub fn scheme(&self) -> Scheme {
        let keyword = json!({"type": "keyword", "ignore_above": 1024});
        let mappings = json!({
            "properties": {"time": {"type": "date"}, "node": keyword},
            // A first value of 0 must not make a column one of whole numbers.
            "dynamic_templates": [
                {"values": {"path_match": "values.*", "mapping": {"type": "double"}}},
                {"texts": {"match_mapping_type": "string", "mapping": keyword}},
            ],
        });
        Scheme {
            mappings,
            stems: self.tables.iter().map(|table| format!("{}{table}", self.prefix)).collect(),
        }
    }
}

/// Identifies what a row is about.
fn hash(texts: &[String]) -> u64 {
    fnv(texts.iter().flat_map(|text| text.bytes().map(u64::from).chain([u64::MAX])))
}
