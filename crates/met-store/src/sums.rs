//! Checksums of a job's stored data. They detect accidents (a changed byte, a misplaced page), not an attacker who
//! may write the file.

use met_core::job::Summary;

use crate::sql::Value;

/// FNV-1a, as [`met_core::bounds::checksum`], over values as they come: rows are large, and millions of figures small.
#[derive(Clone, Copy)]
struct Sum(u64);

const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Powers of the prime: a run of zeros multiplies a sum by one of them.
const POWERS: [u64; 9] = {
    let mut powers = [1u64; 9];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1].wrapping_mul(PRIME);
        at += 1;
    }
    powers
};

impl Sum {
    const EMPTY: Sum = Sum(0xcbf2_9ce4_8422_2325);

    fn byte(self, byte: u8) -> Sum {
        Sum((self.0 ^ u64::from(byte)).wrapping_mul(PRIME))
    }

    fn bytes(self, bytes: &[u8]) -> Sum {
        bytes.iter().fold(self, |sum, &byte| sum.byte(byte))
    }

    /// Eight bytes, the lowest first. Most numbers end with zeros, which need one multiplication together.
    fn word(mut self, mut word: u64) -> Sum {
        let mut left = POWERS.len() - 1;
        while word != 0 {
            self = self.byte(word as u8);
            word >>= 8;
            left -= 1;
        }
        Sum(self.0.wrapping_mul(POWERS[left]))
    }

    fn value(self, value: Value<'_>) -> Sum {
        match value {
            Value::Null => self.byte(0),
            Value::Integer(value) => self.byte(1).word(value as u64),
            Value::Real(value) => self.byte(2).word(bits(value)),
            Value::Bytes(value) => self.byte(4).bytes(value),
            // PostgreSQL keeps a NUL as this character.
            Value::Text(text) => text.split('\0').enumerate().fold(self.byte(3), |sum, (number, piece)| {
                let sum = if number > 0 { sum.bytes("\u{fffd}".as_bytes()) } else { sum };
                sum.bytes(piece.as_bytes())
            }),
        }
    }
}

/// Of the columns of a row, in their order.
pub(crate) fn of_row<'v>(values: impl IntoIterator<Item = Value<'v>>) -> i64 {
    values.into_iter().fold(Sum::EMPTY, Sum::value).0 as i64
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

#[cfg(test)]
mod tests {
    use met_core::bounds::checksum;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sum_is_the_checksum_of_all_bytes(
            integers in proptest::collection::vec(prop_oneof![any::<i64>(), 0..300i64], 1..6),
            real in any::<f64>(), text in "[a\0é]{0,9}", raw in proptest::collection::vec(any::<u8>(), 0..9))
        {
            let mut bytes = Vec::new();
            for integer in &integers {
                bytes.push(1);
                bytes.extend(integer.to_le_bytes());
            }
            bytes.push(2);
            bytes.extend((real + 0.0).to_bits().to_le_bytes());
            bytes.push(3);
            bytes.extend(text.replace('\0', "\u{fffd}").as_bytes());
            bytes.extend([0, 4]);
            bytes.extend(&raw);
            let values = integers.iter().map(|&integer| Value::Integer(integer));
            let rest = [Value::Real(real), Value::Text(&text), Value::Null, Value::Bytes(&raw)];
            prop_assert_eq!(of_row(values.chain(rest)), checksum(&bytes) as i64);
        }
    }
}
