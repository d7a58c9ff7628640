//! Indices and the template that new ones are made by.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::bulk;
use crate::link::{Answer, Link};

const ANSWER_BYTES_MAX: u64 = 64 << 10;
const JSON: &str = "application/json";
/// Templates of the site are above it.
const PRIORITY: u32 = 10;
const EXISTS: &str = "resource_already_exists_exception";

/// How documents are mapped, and which indices there may be.
#[derive(Clone, Debug)]
pub struct Scheme {
    pub mappings: Value,
    /// Names without the date.
    pub stems: Vec<String>,
}

impl Scheme {
    pub fn template(&self) -> Value {
        let patterns: Vec<String> =
            self.stems.iter().flat_map(|stem| [stem.clone(), format!("{stem}-*")]).collect();
        json!({"index_patterns": patterns, "priority": PRIORITY, "template": {"mappings": self.mappings}})
    }
}

/// Indices that are known to exist.
pub struct Indices {
    scheme: Scheme,
    template_name: Option<String>,
    ready: HashSet<String>,
}

/// More are forgotten: dates come and go.
const READY_MAX: usize = 1000;

impl Indices {
    /// Without a name no template is put.
    pub fn new(scheme: Scheme, template_name: Option<String>) -> Indices {
        Indices { scheme, template_name, ready: HashSet::new() }
    }

    pub fn forget(&mut self) {
        self.ready.clear();
    }

    /// Makes an index if there is none. Who may not look or make one may still be allowed to write; the reply to the
    /// documents says so. An error means that the server is not there.
    pub fn prepare(&mut self, link: &Link, headers: &[(String, String)], index: &str) -> Result<(), String> {
        if self.ready.contains(index) {
            return Ok(());
        }
        let ask = |method: &str, path: &str, body: &[u8]| {
            let mut all: Vec<_> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            all.push(("Content-Type", JSON));
            let answer = link
                .request(method, path, &all, body, ANSWER_BYTES_MAX)
                .map_err(|error| error.to_string())?;
            match answer.status {
                429 | 500..=599 => Err(format!("{} {}", answer.status, bulk::reason(&answer.body))),
                _ => Ok(answer),
            }
        };
        if let Some(name) = &self.template_name {
            let answer = ask("PUT", &format!("/_index_template/{name}"), &bytes(&self.scheme.template()))?;
            note_refusal("the index template", &answer);
            self.template_name = None;
        }
        if ask("HEAD", &format!("/{index}"), b"")?.status == 404 {
            let answer =
                ask("PUT", &format!("/{index}"), &bytes(&json!({"mappings": self.scheme.mappings})))?;
            if bulk::kind(&answer.body).as_deref() != Some(EXISTS) {
                note_refusal(&format!("index {index}"), &answer);
            }
        }
        if self.ready.len() >= READY_MAX {
            self.ready.clear();
        }
        self.ready.insert(index.to_owned());
        Ok(())
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn note_refusal(what: &str, answer: &Answer) {
    if answer.status >= 300 {
        let reason = bulk::reason(&answer.body);
        tracing::warn!("sink elasticsearch: {what} was not made: {} {reason}", answer.status);
    }
}
