//! Documents from events, with the id by which a server recognises one that it has.

use serde_json::json;

use super::indices::Scheme;
use crate::event::Event;
use crate::event_json;
use crate::forward::now_ns;

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
    fn index(self, stem: &str, time: &str) -> String {
        let length = match self {
            Rotation::Never => 0,
            Rotation::Daily => "2026-01-31".len(),
            Rotation::Monthly => "2026-01".len(),
        };
        match time.get(..length).filter(|date| !date.is_empty()) {
            Some(date) => format!("{stem}-{}", date.replace('-', ".")),
            None => stem.to_owned(),
        }
    }
}

/// Takes a document for an index under an id.
pub type Put<'a> = dyn FnMut(&str, &str, &[u8]) + 'a;

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
            let index = self.rotation.index(&format!("{}{table}", self.prefix), time);
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

/// FNV-1a: the same in every version of this program.
fn hash(texts: &[String]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
