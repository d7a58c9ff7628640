//! Checksums of a job's stored data. They detect accidents (a changed byte, a misplaced page), not an attacker who
//! may write the file.

use met_core::bounds::checksum;
use met_core::job::Summary;

use crate::sql::Value;

/// Of the columns of a row, in their order.
pub(crate) fn of_row<'v>(values: impl IntoIterator<Item = Value<'v>>) -> i64 {
    let mut bytes = Vec::with_capacity(2048);
    for value in values {
        match value {
            Value::Null => bytes.push(0),
            Value::Integer(value) => {
                bytes.push(1);
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            Value::Real(value) => {
                bytes.push(2);
                bytes.extend_from_slice(&bits(value).to_le_bytes());
            }
            Value::Bytes(value) => {
                bytes.push(4);
                bytes.extend_from_slice(value);
            }
            Value::Text(text) => {
                bytes.push(3);
                // PostgreSQL keeps a NUL as this character.
                text.split('\0').enumerate().for_each(|(number, piece)| {
                    bytes.extend_from_slice(if number > 0 { "\u{fffd}".as_bytes() } else { b"" });
                    bytes.extend_from_slice(piece.as_bytes());
                });
            }
        }
    }
    checksum(&bytes) as i64
}

pub(crate) fn of_term(key: i64, text: &str) -> i64 {
    of_row([Value::Integer(key), Value::Text(text)])
}

/// Of one total. The checksum of all is their sum: they have no order.
pub(crate) fn of_total(metric: i64, value: i64, kind: i64, source: i64) -> i64 {
    of_row([metric, value, kind, source].map(Value::Integer))
}

/// Of one summary; likewise.
pub(crate) fn of_summary(metric: i64, summary: &Summary) -> i64 {
    let Summary { mean, min, max, p50, p95 } = *summary;
    // What is not a number comes back as unknown.
    let known = |value: Option<f64>| value.filter(|value| !value.is_nan());
    let values = [Some(mean), Some(min), Some(max), known(p50), known(p95)].map(Value::from);
    of_row(std::iter::once(Value::Integer(metric)).chain(values))
}

/// SQLite keeps -0 as 0.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}
