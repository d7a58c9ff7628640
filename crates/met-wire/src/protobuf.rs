//! Fields of protocol buffers: a message is a list of them.

pub(crate) use crate::bits::put_varint;

/// The wire type after a field number: how its value is encoded.
pub const VARINT: u8 = 0;
pub const FIXED_64: u8 = 1;
pub const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

pub const fn tag(field: u8, wire: u8) -> u8 {
    field << 3 | wire
}

pub fn text_len(text: &str) -> usize {
    1 + varint_len(text.len() as u64) + text.len()
}

pub fn put_text(out: &mut Vec<u8>, field: u8, text: &str) {
    put_bytes(out, field, text.as_bytes());
}

/// Text, or a message inside another.
pub fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(tag(field, BYTES));
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// A field as it was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

/// The fields of a foreign message with their numbers, up to the first that is malformed.
pub fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        loop {
            let tag = take_varint(&mut bytes)?;
            let field = match (tag & 7) as u8 {
                VARINT => Field::Varint(take_varint(&mut bytes)?),
                FIXED_64 => Field::Fixed64(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
                BYTES => {
                    let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                    Field::Bytes(take(&mut bytes, length)?)
                }
                // None of the messages that are read here has one.
                FIXED_32 => {
                    take(&mut bytes, 4)?;
                    continue;
                }
                _ => return None,
            };
            return Some((tag >> 3, field));
        }
    })
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
