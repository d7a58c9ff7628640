//! Prometheus remote write, version 1: samples as protocol buffers, compressed as one block of snappy.
//!
//! ```text
//! WriteRequest { repeated TimeSeries timeseries = 1; }
//! TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
//! Label        { string name = 1; string value = 2; }
//! Sample       { double value = 1; int64 timestamp = 2; }   // unix milliseconds
//! ```
//! Four messages that have not changed in years and never will: fewer lines than a library for them needs to
//! describe them, and the cells of a series go straight into the buffer.

use crate::protobuf::{BYTES, FIXED_64, VARINT, put_text, put_varint, tag, text_len, varint_len};

/// The headers that say how to read the body of a request.
pub const HEADERS: [(&str, &str); 3] = [
    ("Content-Type", "application/x-protobuf"),
    ("Content-Encoding", "snappy"),
    ("X-Prometheus-Remote-Write-Version", "0.1.0"),
];

/// A request in the making.
#[derive(Debug, Default)]
pub struct Request {
    bytes: Vec<u8>,
    /// The series that is being added; here to be used again.
    series: Vec<u8>,
    samples: usize,
}

impl Request {
    pub fn new() -> Request {
        Request::default()
    }

    /// Adds a series: its labels, `__name__` among them, and its samples in the order of time. Receivers refuse
    /// labels that are not in the order of their names or are empty, so those are put right here. A series
    /// without samples is left out.
    pub fn add(&mut self, labels: &mut [(&str, &str)], samples: impl IntoIterator<Item = (i64, f64)>) {
        self.series.clear();
        labels.sort_unstable();
        for (name, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
            self.series.push(tag(1, BYTES));
            put_varint(&mut self.series, (text_len(name) + text_len(value)) as u64);
            put_text(&mut self.series, 1, name);
            put_text(&mut self.series, 2, value);
        }
        let before = self.samples;
        for (time_ms, value) in samples {
            self.series.push(tag(2, BYTES));
            // Negative times are ten bytes: an int64 is not written zigzag.
            self.series.push(9 + 1 + varint_len(time_ms as u64) as u8);
            self.series.push(tag(1, FIXED_64));
            self.series.extend_from_slice(&value.to_le_bytes());
            self.series.push(tag(2, VARINT));
            put_varint(&mut self.series, time_ms as u64);
            self.samples += 1;
        }
        if self.samples > before {
            self.bytes.push(tag(1, BYTES));
            put_varint(&mut self.bytes, self.series.len() as u64);
            self.bytes.extend_from_slice(&self.series);
        }
    }

    /// How many samples it has so far.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Its size before it is compressed.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.samples = 0;
    }

    /// The body as it is sent; an error if it is beyond the 4 GiB that snappy can say.
    pub fn body(&self) -> Result<Vec<u8>, snap::Error> {
        snap::raw::Encoder::new().compress_vec(&self.bytes)
    }
}

#[cfg(test)]
#[path = "remote_write_tests.rs"]
mod tests;
