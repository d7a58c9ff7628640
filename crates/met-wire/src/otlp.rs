//! OTLP, the protocol of OpenTelemetry, as far as a sender of metrics needs it: protocol buffers over HTTP.
//!
//! ```text
//! ExportMetricsServiceRequest { repeated ResourceMetrics resource_metrics = 1; }
//! ResourceMetrics  { Resource resource = 1; repeated ScopeMetrics scope_metrics = 2; string schema_url = 3; }
//! Resource         { repeated KeyValue attributes = 1; }
//! ScopeMetrics     { InstrumentationScope scope = 1; repeated Metric metrics = 2; }
//! InstrumentationScope { string name = 1; string version = 2; }
//! Metric           { string name = 1; string description = 2; string unit = 3; Gauge gauge = 5; Sum sum = 7; }
//! Gauge            { repeated NumberDataPoint data_points = 1; }
//! Sum              { repeated NumberDataPoint data_points = 1; enum aggregation_temporality = 2; bool is_monotonic = 3; }
//! NumberDataPoint  { fixed64 start_time_unix_nano = 2; fixed64 time_unix_nano = 3; double as_double = 4;
//!                    sfixed64 as_int = 6; repeated KeyValue attributes = 7; }
//! KeyValue         { string key = 1; AnyValue value = 2; }
//! AnyValue         { string string_value = 1; int64 int_value = 3; }
//!
//! ExportMetricsServiceResponse { ExportMetricsPartialSuccess partial_success = 1; }
//! ExportMetricsPartialSuccess  { int64 rejected_data_points = 1; string error_message = 2; }
//! Status           { int32 code = 1; string message = 2; }                        // body of an error
//! ```
//! These messages are stable: their fields are never renumbered.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::protobuf::{self, FIXED_64, Field, VARINT, put_bytes, put_text, put_varint, tag};

pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// The path below an endpoint.
pub const PATH: &str = "/v1/metrics";
const CUMULATIVE: u8 = 2;
/// Of a message of a receiver.
const MESSAGE_CHARS_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute {
    Text(String),
    Int(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Attribute {
        Attribute::Text(text.to_owned())
    }
}

/// Names and values, in the order of names.
pub type Attributes = BTreeMap<Cow<'static, str>, Attribute>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A cumulative sum that only grows.
    Counter,
    /// A cumulative sum that also shrinks: levels that add up across attributes.
    UpDownCounter,
    Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: String,
    pub help: &'static str,
    /// In UCUM.
    pub unit: &'static str,
    pub form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i64),
    Double(f64),
}

#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    pub attributes: &'a Attributes,
    /// Since when a sum counts, if that is known.
    pub start_ns: Option<i64>,
    pub time_ns: i64,
    pub number: Number,
}

/// The points of one metric, encoded.
#[derive(Debug)]
struct Family {
    metric: Metric,
    points: Vec<u8>,
}

/// A request in the making: points by resource and metric.
#[derive(Debug, Default)]
pub struct Request {
    resources: BTreeMap<Attributes, BTreeMap<String, Family>>,
    points: usize,
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub schema_url: &'a str,
}

impl Request {
    pub fn add(&mut self, resource: &Attributes, metric: &Metric, point: Point<'_>) {
        if !self.resources.contains_key(resource) {
            self.resources.insert(resource.clone(), BTreeMap::new());
        }
        let Some(families) = self.resources.get_mut(resource) else { return };
        if !families.contains_key(&metric.name) {
            families.insert(metric.name.clone(), Family { metric: metric.clone(), points: Vec::new() });
        }
        let Some(family) = families.get_mut(&metric.name) else { return };
        // Both forms have their points in field 1.
        put_bytes(&mut family.points, 1, &encode_point(metric.form, point));
        self.points += 1;
    }

    pub fn points(&self) -> usize {
        self.points
    }

    /// The body of the request, not compressed.
    pub fn encode(&self, scope: Scope<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (resource, families) in &self.resources {
            let mut inner = Vec::new();
            let mut attributes = Vec::new();
            put_attributes(&mut attributes, 1, resource);
            put_bytes(&mut inner, 1, &attributes);
            put_bytes(&mut inner, 2, &encode_scope(scope, families.values()));
            put_text(&mut inner, 3, scope.schema_url);
            put_bytes(&mut bytes, 1, &inner);
        }
        bytes
    }
}

fn encode_scope<'a>(scope: Scope<'_>, families: impl Iterator<Item = &'a Family>) -> Vec<u8> {
    let (mut bytes, mut sender) = (Vec::new(), Vec::new());
    put_text(&mut sender, 1, scope.name);
    put_text(&mut sender, 2, scope.version);
    put_bytes(&mut bytes, 1, &sender);
    for Family { metric, points } in families {
        let mut inner = Vec::new();
        put_text(&mut inner, 1, &metric.name);
        put_text(&mut inner, 2, metric.help);
        put_text(&mut inner, 3, metric.unit);
        match metric.form {
            Form::Gauge => put_bytes(&mut inner, 5, points),
            Form::Counter | Form::UpDownCounter => {
                let mut sum = points.clone();
                sum.extend_from_slice(&[tag(2, VARINT), CUMULATIVE]);
                if metric.form == Form::Counter {
                    sum.extend_from_slice(&[tag(3, VARINT), 1]);
                }
                put_bytes(&mut inner, 7, &sum);
            }
        }
        put_bytes(&mut bytes, 2, &inner);
    }
    bytes
}

fn encode_point(form: Form, point: Point<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    let mut fixed = |field: u8, eight: [u8; 8]| {
        bytes.push(tag(field, FIXED_64));
        bytes.extend_from_slice(&eight);
    };
    // A start after the time would be refused: a clock was set back.
    let start_ns = point.start_ns.filter(|&start_ns| form != Form::Gauge && start_ns > 0);
    if let Some(start_ns) = start_ns {
        fixed(2, start_ns.min(point.time_ns).to_le_bytes());
    }
    fixed(3, point.time_ns.max(0).to_le_bytes());
    match point.number {
        Number::Double(value) => fixed(4, value.to_le_bytes()),
        Number::Int(value) => fixed(6, value.to_le_bytes()),
    }
    put_attributes(&mut bytes, 7, point.attributes);
    bytes
}

fn put_attributes(out: &mut Vec<u8>, field: u8, attributes: &Attributes) {
    for (key, value) in attributes {
        let (mut pair, mut inner) = (Vec::new(), Vec::new());
        match value {
            Attribute::Text(text) => put_text(&mut inner, 1, text),
            Attribute::Int(number) => {
                inner.push(tag(3, VARINT));
                // Negative numbers are ten bytes: an int64 is not written zigzag.
                put_varint(&mut inner, *number as u64);
            }
        }
        put_text(&mut pair, 1, key);
        put_bytes(&mut pair, 2, &inner);
        put_bytes(out, field, &pair);
    }
}

/// What a receiver that took a request did not take of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    pub points: u64,
    pub message: String,
}

/// Reads the answer to a request that was taken. Bytes that are no such message reject nothing.
pub fn rejected(body: &[u8]) -> Rejected {
    let mut rejected = Rejected::default();
    let partial = protobuf::fields(body).filter_map(|field| match field {
        (1, Field::Bytes(partial)) => Some(partial),
        _ => None,
    });
    for field in partial.flat_map(protobuf::fields) {
        match field {
            (1, Field::Varint(points)) => rejected.points = u64::try_from(points as i64).unwrap_or(0),
            (2, Field::Bytes(message)) => rejected.message = printable(message),
            _ => {}
        }
    }
    rejected
}

/// The message of an error; the body itself if it is plain text, as those of proxies are.
pub fn error_message(body: &[u8]) -> String {
    let message = protobuf::fields(body).find_map(|field| match field {
        (2, Field::Bytes(message)) => std::str::from_utf8(message).ok().map(|_| printable(message)),
        _ => None,
    });
    message.unwrap_or_else(|| printable(body))
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MESSAGE_CHARS_MAX)]);
    let letters = text.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
#[path = "otlp_tests.rs"]
mod tests;
