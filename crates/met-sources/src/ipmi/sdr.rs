//! The controller's list of its sensors (the SDR repository), and how their readings become values.

use std::io;

use super::bmc::{self, Ask, Completion};

/// More than any controller has; one whose list has no end is left.
const RECORDS_MAX: usize = 1024;
/// As much of a record as every controller hands out at once.
const CHUNK_BYTES: usize = 16;
const RECORD_MAX_BYTES: usize = 128;
const HEADER_BYTES: usize = 5;
const LAST_RECORD: u16 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Celsius,
    Watts,
}

/// A sensor that measures power or temperature with a straight line: value = (m·x + b·10^bx) · 10^rx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sensor {
    pub number: u8,
    pub name: String,
    pub quantity: Quantity,
    signed: bool,
    m: i16,
    b: i16,
    b_exponent: i8,
    result_exponent: i8,
}

/// All sensors of power and temperature. A controller without a list has none; after a temporary failure the
/// whole list is requested again.
pub(super) fn sensors(ask: &mut dyn Ask) -> io::Result<Vec<Sensor>> {
    let mut found = Vec::new();
    let Some(mut reservation) = reserve(ask)? else { return Ok(found) };
    let mut id = 0;
    for _ in 0..RECORDS_MAX {
        let Some((next, record)) = record(ask, &mut reservation, id)? else { break };
        found.extend(sensor(&record));
        if next == LAST_RECORD || next == id {
            break;
        }
        id = next;
    }
    Ok(found)
}

fn reserve(ask: &mut dyn Ask) -> io::Result<Option<[u8; 2]>> {
    let reply = ask.ask(bmc::STORAGE, bmc::RESERVE_SDR, &[])?;
    match bmc::complete(&reply) {
        Completion::Done([low, high, ..]) => Ok(Some([*low, *high])),
        Completion::Later(code) => Err(bmc::not_now(code)),
        Completion::Done(_) | Completion::Never(_) => Ok(None),
    }
}

/// A record and the number of the next one.
fn record(ask: &mut dyn Ask, reservation: &mut [u8; 2], id: u16) -> io::Result<Option<(u16, Vec<u8>)>> {
    const RESERVATION_LOST: u8 = 0xc5;
    let (mut record, mut next, mut lost) = (Vec::new(), LAST_RECORD, 0);
    let mut length = HEADER_BYTES;
    while record.len() < length {
        let wanted = (length - record.len()).min(CHUNK_BYTES);
        let [[low, high], [id_low, id_high]] = [*reservation, id.to_le_bytes()];
        let question = [low, high, id_low, id_high, record.len() as u8, wanted as u8];
        let reply = ask.ask(bmc::STORAGE, bmc::GET_SDR, &question)?;
        match bmc::complete(&reply) {
            Completion::Done([low, high, piece @ ..]) if !piece.is_empty() => {
                next = u16::from_le_bytes([*low, *high]);
                record.extend_from_slice(&piece[..piece.len().min(wanted)]);
            }
            // Another client reads the list: start over, but not for ever.
            Completion::Later(RESERVATION_LOST) if lost < 3 => {
                lost += 1;
                let Some(new) = reserve(ask)? else { return Ok(None) };
                *reservation = new;
                continue;
            }
            Completion::Later(code) => return Err(bmc::not_now(code)),
            Completion::Done(_) | Completion::Never(_) => return Ok(None),
        }
        if record.len() == HEADER_BYTES {
            length = (HEADER_BYTES + usize::from(record[4])).min(RECORD_MAX_BYTES);
        }
    }
    Ok(Some((next, record)))
}

/// The sensor that a record describes, if it is one of ours.
pub(super) fn sensor(record: &[u8]) -> Option<Sensor> {
    const FULL_SENSOR: u8 = 1;
    const OWNER_BMC: u8 = 0x20;
    const ANALOG_SIGNED: u8 = 2;
    const PERCENTAGE: u8 = 1;
    let byte = |index: usize| record.get(index).copied();
    if byte(3)? != FULL_SENSOR || byte(5)? != OWNER_BMC || byte(6)? & 3 != 0 {
        return None;
    }
    let units = byte(20)?;
    let format = units >> 6;
    // A rate, a product of units, a percentage, or a reading in ones' complement is none of ours.
    if units & (PERCENTAGE | 0x3e) != 0 || format == 1 || format == 3 {
        return None;
    }
    let quantity = match byte(21)? {
        1 => Quantity::Celsius,
        6 => Quantity::Watts,
        _ => return None,
    };
    // Only straight lines: the curves are for other things.
    if byte(23)? & 0x7f != 0 {
        return None;
    }
    let ten_bits = |low: u8, high: u8| sign(u16::from(low) | u16::from(high >> 6) << 8, 10);
    let exponents = byte(29)?;
    Some(Sensor {
        number: byte(7)?,
        name: name(record),
        quantity,
        signed: format == ANALOG_SIGNED,
        m: ten_bits(byte(24)?, byte(25)?),
        b: ten_bits(byte(26)?, byte(27)?),
        b_exponent: sign(u16::from(exponents & 0xf), 4) as i8,
        result_exponent: sign(u16::from(exponents >> 4), 4) as i8,
    })
}

/// An integer of the given number of bits in two's complement.
fn sign(value: u16, bits: u32) -> i16 {
    let shift = 16 - bits;
    ((value << shift) as i16) >> shift
}

fn name(record: &[u8]) -> String {
    const TEXT: u8 = 3;
    let (Some(&kind), Some(text)) = (record.get(47), record.get(48..)) else { return String::new() };
    let text = &text[..text.len().min(usize::from(kind & 0x1f))];
    match kind >> 6 {
        TEXT => String::from_utf8_lossy(text).trim_end_matches('\0').trim().to_owned(),
        // Packed letters are rare: a number identifies the sensors as well.
        _ => format!("sensor {}", record.get(7).copied().unwrap_or(0)),
    }
}

impl Sensor {
    /// The value in thousandths, or nothing where the sensor is switched off or its reading is not ready.
    pub(super) fn value(&self, reply: &[u8]) -> Option<i64> {
        const SCANNING: u8 = 0x40;
        const NOT_READY: u8 = 0x20;
        let &[0, raw, state, ..] = reply else { return None };
        if state & SCANNING == 0 || state & NOT_READY != 0 {
            return None;
        }
        let x = if self.signed { i128::from(raw as i8) } else { i128::from(raw) };
        // Exponents go from -8 to 7: with these factors none leaves a fraction before the division at the end.
        let power = |exponent: i32| 10i128.pow(u32::try_from(exponent).unwrap_or(0));
        let line =
            i128::from(self.m) * x * power(8) + i128::from(self.b) * power(8 + i32::from(self.b_exponent));
        let value = line * power(11 + i32::from(self.result_exponent)) / power(16);
        i64::try_from(value).ok()
    }
}
