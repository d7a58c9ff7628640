//! Numbers as people write them, in both directions.

use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// What was not understood, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);

const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// `1.21 GiB`: three digits that count, and a unit that keeps the number below 1000.
pub fn bytes(value: f64) -> String {
    let mut scaled = value;
    let mut unit = 0;
    while scaled.abs() >= 999.5 && unit + 1 < BINARY.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{scaled:.0} B");
    }
    format!("{} {}", three_digits(scaled), BINARY[unit])
}

pub fn bytes_per_second(value: f64) -> String {
    format!("{}/s", bytes(value))
}

/// `12,345,678`.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 job`, `12,345 jobs`.
pub fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number as f64))
}

/// Whole numbers as counts, others with four digits that matter.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return count(value);
    }
    let exponent = value.abs().log10().floor();
    if !(-5.0..15.0).contains(&exponent) {
        return format!("{value:.3e}");
    }
    let decimals = (3.0 - exponent).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// How often something happens: `12.5 /s`, `950 /s`, `6.00 M/s`.
pub fn count_per_second(value: f64) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut prefix) = (value, 0);
    // What would be written as 1000 is 1 of the next.
    while value >= 999.5 && prefix + 1 < PREFIXES.len() {
        (value, prefix) = (value / 1000.0, prefix + 1);
    }
    format!("{} {}/s", three_digits(value), PREFIXES[prefix])
}

/// A number of cores: `3.76`, `12.4`, `128`.
pub fn cores(value: f64) -> String {
    let text = three_digits(value);
    // 8.00 cores are 8 cores.
    match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => whole.to_owned(),
        _ => text,
    }
}

/// A positive number below 0.01, with two digits that matter.
pub fn small(value: f64) -> String {
    let decimals = (1.0 - value.log10().floor()).clamp(2.0, 9.0) as usize;
    format!("{value:.decimals$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Energy as people pay for it: `690 mWh`, `12.4 Wh`, `1.20 kWh`.
pub fn watt_hours(joules: f64) -> String {
    let hours = joules / 3600.0;
    match hours.abs() {
        h if h > 0.0 && h < 0.9995e-3 => format!("{} µWh", three_digits(hours * 1e6)),
        h if h < 0.9995 => format!("{} mWh", three_digits(hours * 1e3)),
        h if h < 999.5 => format!("{} Wh", three_digits(hours)),
        _ => format!("{} kWh", three_digits(hours / 1e3)),
    }
}

/// A unit that a whole column is written in.
#[derive(Debug, PartialEq)]
pub struct Scale {
    name: &'static str,
    /// In base units.
    size: f64,
}

const fn scale(name: &'static str, size: f64) -> Scale {
    Scale { name, size }
}

/// Units of energy, in joules.
pub static ENERGY: [Scale; 3] = [scale("mWh", 3.6), scale("Wh", 3600.0), scale("kWh", 3.6e6)];
/// Units of emissions, in grams.
pub static EMISSIONS: [Scale; 4] = [scale("mg", 1e-3), scale("g", 1.0), scale("kg", 1e3), scale("t", 1e6)];

impl Scale {
    /// The unit in which most of these are easily read: that of the middle one, or the next one if the largest has too
    /// many digits in it and the middle one is still a number in that.
    pub fn of(scales: &'static [Scale], values: impl Iterator<Item = f64>) -> &'static Scale {
        let mut sizes: Vec<f64> = values.map(f64::abs).filter(|&size| size > 0.0).collect();
        sizes.sort_by(f64::total_cmp);
        let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        let of_middle = scales.iter().rposition(|scale| middle >= 0.9995 * scale.size).unwrap_or(0);
        let largest = sizes.last().copied().unwrap_or(0.0);
        let fits = |pair: &&[Scale]| {
            let (scale, next) = (&pair[0], &pair[1]);
            let is_short = largest < 999.5 * scale.size;
            let is_lost = middle < 0.0095 * next.size && largest < 99_999.5 * scale.size;
            is_short || is_lost
        };
        scales[of_middle..].windows(2).find(fits).map_or(&scales[scales.len() - 1], |pair| &pair[0])
    }

    /// `0.690 Wh`, `12.4 Wh`, `12,400 Wh`: never in another unit, and nothing is nothing in any.
    pub fn write(&self, value: f64) -> String {
        let scaled = value / self.size;
        let number = match scaled.abs() {
            0.0 => return "0".to_owned(),
            s if s < 0.0005 => "<0.001".to_owned(),
            s if s < 0.9995 => format!("{scaled:.3}"),
            s if s < 999.5 => three_digits(scaled),
            _ => count(scaled),
        };
        format!("{number} {}", self.name)
    }
}

/// Energy in one unit, for columns that line up: `0.69 Wh`.
pub fn watt_hours_fixed(joules: f64) -> String {
    format!("{:.2} Wh", joules / 3600.0)
}

/// CO2 equivalent: `31.4 mg`, `1.20 kg`. It is stored in micrograms and an estimate in any case: below a milligram two
/// digits are enough.
pub fn grams(value: f64) -> String {
    match value.abs() {
        0.0 => "0 mg".to_owned(),
        g if g < 0.5e-6 => "<0.001 mg".to_owned(),
        g if g < 0.0995e-3 => format!("{:.3} mg", value * 1e3),
        g if g < 0.995e-3 => format!("{:.2} mg", value * 1e3),
        g if g < 0.9995 => format!("{} mg", three_digits(value * 1e3)),
        g if g < 999.5 => format!("{} g", three_digits(value)),
        g if g < 999.5e3 => format!("{} kg", three_digits(value / 1e3)),
        _ => format!("{} t", three_digits(value / 1e6)),
    }
}

pub fn grams_per_kwh(value: f64) -> String {
    format!("{} g/kWh", three_digits(value))
}

/// An amount with its currency, where that is known: `0.0031 EUR`.
pub fn money_in(value: f64, currency: Option<&str>) -> String {
    match currency.filter(|currency| !currency.is_empty()) {
        Some(currency) => format!("{} {currency}", money(value)),
        None => money(value),
    }
}

/// An amount of whatever currency; small ones keep their digits.
pub fn money(value: f64) -> String {
    if value == 0.0 || value.abs() >= 0.1 { format!("{value:.2}") } else { three_digits_small(value) }
}

fn three_digits_small(value: f64) -> String {
    let places = (2 - value.abs().log10().floor() as i32).clamp(2, 9) as usize;
    format!("{value:.places$}")
}

/// Hours of cores, GPUs or memory, with as many digits as matter; never 0 for something.
pub fn hours(value: f64) -> String {
    match value {
        value if value >= 9_999.5 => count(value),
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value > 0.0 && value < 0.01 => "<0.01".to_owned(),
        value => format!("{value:.2}"),
    }
}

/// How many times as much.
pub fn times(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.01 { "<0.01×".to_owned() } else { format!("{ratio:.2}×") }
}

pub fn watts(value: f64) -> String {
    format!("{} W", three_digits(value))
}

pub fn celsius(value: f64) -> String {
    format!("{value:.0} °C")
}

/// `53.00 C`, for columns that line up.
pub fn celsius_fixed(value: f64) -> String {
    format!("{value:.2} C")
}

/// `12.37 GiB`, for columns that line up.
pub fn gibibytes_fixed(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / f64::from(1 << 30))
}

pub fn hertz(value: f64) -> String {
    match value {
        v if v < 999.5e6 => format!("{} MHz", three_digits(v / 1e6)),
        v => format!("{} GHz", three_digits(v / 1e9)),
    }
}

/// A share of 1 as a percentage: `47%`, `4.7%`, `<0.1%`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0%".to_owned(),
        p if p > 0.0 && p < 0.05 => "<0.1%".to_owned(),
        p if p < 9.95 => format!("{p:.1}%"),
        p => format!("{p:.0}%"),
    }
}

/// A share of 1 with two decimals, for columns that line up: `376.41%`.
pub fn percent_fixed(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// `350ms`, `1.25s`, `48s`, `1m8s`, `2h03m`, `3d04h`: two parts at most, for lists.
pub fn duration(seconds: f64) -> String {
    if seconds < 9.995 {
        return below_a_minute(seconds);
    }
    let whole = seconds.round() as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{minutes}m{}s", whole % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// The same with the parts that a list leaves out: `48.3s`, `1m8.3s`, `2h03m08s`, `3d04h12m`.
pub fn duration_long(seconds: f64) -> String {
    if seconds < 59.95 {
        return below_a_minute(seconds);
    }
    let tenths = (seconds * 10.0).round() as u64;
    if tenths < 36_000 {
        let rest = tenths % 600;
        let fraction = if rest.is_multiple_of(10) { String::new() } else { format!(".{}", rest % 10) };
        return format!("{}m{}{fraction}s", tenths / 600, rest / 10);
    }
    let whole = seconds.round() as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match days {
        0 => format!("{hours}h{:02}m{:02}s", minutes % 60, whole % 60),
        _ => format!("{days}d{:02}h{:02}m", hours % 24, minutes % 60),
    }
}

fn below_a_minute(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0s".to_owned(),
        s if s < 999.5e-6 => format!("{:.0}µs", s * 1e6),
        s if s < 0.9995 => format!("{}ms", shortest(&three_digits(s * 1e3))),
        s => format!("{}s", shortest(&three_digits(s))),
    }
}

pub(crate) fn three_digits(value: f64) -> String {
    match value.abs() {
        // Little is not nothing: one digit that counts.
        s if s > 0.0 && s < 0.000_05 => "<0.0001".to_owned(),
        s if s > 0.0 && s < 0.000_95 => format!("{value:.4}"),
        s if s > 0.0 && s < 0.009_5 => format!("{value:.3}"),
        s if s < 9.995 => format!("{value:.2}"),
        s if s < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A number with the sign of how well it is known. A bound below, or an estimate, that is too small to be written is
/// about nothing: `≥<0.0001 W` says two things at once.
pub fn marked(sign: &str, number: &str) -> String {
    match number.strip_prefix('<') {
        Some(rest) if matches!(sign, "≥" | "~") => {
            let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            format!("{sign}0{unit}")
        }
        _ => format!("{sign}{number}"),
    }
}

/// Without the zeros that say nothing: `2.50` is `2.5`, `350` stays.
fn shortest(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// `2026-01-14 16:40:44` on the reader's clock.
pub fn time(unix_ns: i64, zone: &TimeZone) -> String {
    zoned(unix_ns, zone).map(|time| time.strftime("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

/// As much of a time as distinguishes it from now: `16:40:44` today, `Jan 14 16:40` this year, else the date.
pub fn time_short(unix_ns: i64, now_ns: i64, zone: &TimeZone) -> String {
    let (Some(time), Some(now)) = (zoned(unix_ns, zone), zoned(now_ns, zone)) else { return String::new() };
    let pattern = if time.date() == now.date() {
        "%H:%M:%S"
    } else if time.year() == now.year() {
        "%b %e %H:%M"
    } else {
        "%Y-%m-%d"
    };
    time.strftime(pattern).to_string()
}

fn zoned(unix_ns: i64, zone: &TimeZone) -> Option<Zoned> {
    Some(Timestamp::from_nanosecond(unix_ns.into()).ok()?.to_zoned(zone.clone()))
}

/// `10s`, `1.5s`, `500ms`, `5m`, `2h`, `1d`, `1h30m`. A number alone is refused: a thousand of what?
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let refuse = || ParseError(format!("{text:?} is not a duration; write 1s, 500ms or 2m"));
    let days_max = u64::MAX / 86_400_000_000_000;
    let too_long = || ParseError(format!("{text:?} is too long; write at most {days_max}d"));
    let trimmed = text.trim();
    if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let advice = format!("{text:?} has no unit; write {trimmed}s, {trimmed}ms or {trimmed}m");
        return Err(ParseError(advice));
    }
    let mut rest = trimmed;
    let mut total_ns: u128 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let unit_ns = match after[..end].trim() {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "w" => 604_800_000_000_000,
            _ => return Err(refuse()),
        };
        let wrong = || {
            if number.bytes().all(|byte| byte.is_ascii_digit()) && !number.is_empty() {
                too_long()
            } else {
                refuse()
            }
        };
        let part_ns = multiply(number, unit_ns).ok_or_else(wrong)?;
        total_ns = total_ns.checked_add(part_ns).ok_or_else(too_long)?;
        rest = after[end..].trim_start();
    }
    if trimmed.is_empty() {
        return Err(refuse());
    }
    u64::try_from(total_ns).map(Duration::from_nanos).map_err(|_| too_long())
}

/// `2GiB`, `500MB`, `64K` (1024 each, as in other tools), or plain bytes.
pub fn parse_size(text: &str) -> Result<u64, ParseError> {
    let refuse = || ParseError(format!("{text:?} is not a size; write 2GiB, 500MB or a number of bytes"));
    let (number, unit) = split_number(text.trim());
    let unit_bytes: u128 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(refuse()),
    };
    multiply(number, unit_bytes).and_then(|bytes| u64::try_from(bytes).ok()).ok_or_else(refuse)
}

/// `500Wh`, `2kWh` or `3MJ`, in microjoules.
pub fn parse_energy(text: &str) -> Result<i64, ParseError> {
    let refuse = || ParseError(format!("{text:?} is not an energy; write 500Wh, 2kWh or 3MJ"));
    let (number, unit) = split_number(text.trim());
    let unit_uj: u128 = match unit.trim().to_ascii_lowercase().as_str() {
        "j" => 1_000_000,
        "kj" => 1_000_000_000,
        "mj" => 1_000_000_000_000,
        "wh" => 3_600_000_000,
        "kwh" => 3_600_000_000_000,
        "mwh" => 3_600_000_000_000_000,
        _ => return Err(refuse()),
    };
    multiply(number, unit_uj).and_then(|energy| i64::try_from(energy).ok()).ok_or_else(refuse)
}

/// `0.5` or `50%`.
pub fn parse_ratio(text: &str) -> Result<f64, ParseError> {
    let refuse = || ParseError(format!("{text:?} is not a ratio; write 0.5 or 50%"));
    let (number, unit) = split_number(text.trim());
    let scale = match unit.trim() {
        "" => 1.0,
        "%" => 100.0,
        _ => return Err(refuse()),
    };
    let ratio: f64 = number.parse().map_err(|_| refuse())?;
    if ratio.is_finite() { Ok(ratio / scale) } else { Err(refuse()) }
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

/// A decimal number times a unit, exactly: no digit passes through a float.
fn multiply(decimal: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 20 || fraction.len() > 15 {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let parts = digits(whole)?.checked_mul(unit)?;
    parts.checked_add(digits(fraction)?.checked_mul(unit)? / scale)
}

/// A moment in the past, as unix nanoseconds: how long ago (`2h`, `7d`), a day (`2026-01-14`, `today`,
/// `yesterday`), a time on the reader's clock (`2026-01-14 16:40`), or RFC 3339.
pub fn parse_since(text: &str, now_ns: i64, zone: &TimeZone) -> Result<i64, ParseError> {
    let refuse = || {
        let examples = "2h, 7d, today, yesterday, 2026-01-14 or 2026-01-14T16:40:44Z";
        ParseError(format!("{text:?} is not a time; write {examples}"))
    };
    let trimmed = text.trim();
    let too_far = || ParseError(format!("{text:?} is too far away; write a time between 1678 and 2261"));
    let nanoseconds = |time: Timestamp| i64::try_from(time.as_nanosecond()).map_err(|_| too_far());
    let midnight = |date: Date| {
        let start = date.to_zoned(zone.clone()).and_then(|day| day.start_of_day());
        start.map_err(|_| refuse()).and_then(|day| nanoseconds(day.timestamp()))
    };
    let today = || zoned(now_ns, zone).map(|now| now.date()).ok_or_else(refuse);
    match trimmed {
        "now" => return Ok(now_ns),
        "today" => return midnight(today()?),
        "yesterday" => return midnight(today()?.checked_sub(1.day()).map_err(|_| refuse())?),
        _ => {}
    }
    if let Ok(ago) = parse_duration(trimmed) {
        let ago_ns = i64::try_from(ago.as_nanos()).map_err(|_| refuse())?;
        return Ok(now_ns.saturating_sub(ago_ns));
    }
    if trimmed.len() == 10
        && let Ok(date) = trimmed.parse::<Date>()
    {
        return midnight(date);
    }
    if let Ok(time) = trimmed.parse::<Timestamp>() {
        return nanoseconds(time);
    }
    let local = trimmed.parse::<DateTime>().map_err(|_| refuse())?;
    let zoned = local.to_zoned(zone.clone()).map_err(|_| refuse())?;
    nanoseconds(zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_of_one_report_is_in_watt_hours_whatever_its_size() {
        let all = [2.16, 14.3, 3600.0, 7.2e6].map(watt_hours);
        assert_eq!(all, ["600 µWh", "3.97 mWh", "1.00 Wh", "2.00 kWh"]);
        assert_eq!(gibibytes_fixed(4e9), "3.73 GiB", "as `met gpus` writes it");
    }

    #[test]
    fn numbers_keep_their_fraction() {
        let written =
            [1.5, 0.0001, 0.93, 100.0, 1234567.0, 1234567.8, -2.25, 1.0e-9, 0.999_99, 3.0e20].map(number);
        let expected =
            ["1.5", "0.0001", "0.93", "100", "1,234,567", "1234568", "-2.25", "1.000e-9", "1", "3.000e20"];
        assert_eq!(written, expected);
        assert_eq!([f64::NAN, f64::INFINITY].map(number), ["NaN", "inf"]);
    }

    #[test]
    fn rates_of_counts_have_three_digits() {
        let shown = [0.0, 12.5, 950.0, 999.9, 6_000_000.0, 3.2e10].map(count_per_second);
        assert_eq!(shown, ["0.00 /s", "12.5 /s", "950 /s", "1.00 k/s", "6.00 M/s", "32.0 G/s"]);
    }

    #[test]
    fn bytes_have_three_digits() {
        let values = [0.0, 999.0, 1000.0, 1024.0, 123_456.0, 1_299_227_608.0, 1023.0 * 1048576.0, 1e19, 1e30];
        let texts = values.map(bytes);
        assert_eq!(texts[..5], ["0 B", "999 B", "0.98 KiB", "1.00 KiB", "121 KiB"]);
        assert_eq!(texts[5..8], ["1.21 GiB", "1.00 GiB", "8.67 EiB"]);
    }

    #[test]
    fn little_is_distinguished_from_nothing() {
        let values = [0.0, 0.000_03, 0.000_3, 0.000_96, 0.003_76, 0.009_6, 8.0];
        assert_eq!(values.map(cores), ["0", "<0.0001", "0.0003", "0.001", "0.004", "0.01", "8"]);
        assert_eq!([0.0, 0.0001].map(watts), ["0.00 W", "0.0001 W"]);
    }

    #[test]
    fn a_sign_and_a_small_number_do_not_contradict_each_other() {
        assert_eq!(marked("≥", &watts(0.000_01)), "≥0 W");
        assert_eq!(marked("~", &watts(0.000_3)), "~0.0003 W");
        assert_eq!(marked("~", &percent(0.000_2)), "~0%");
        assert_eq!(marked("≥", &Scale::of(&ENERGY, [0.36].into_iter()).write(0.001)), "≥0 mWh");
        assert_eq!(marked(" ", &cores(0.000_01)), " <0.0001");
        assert_eq!(marked("*", &cores(0.000_01)), "*<0.0001");
    }

    #[test]
    fn durations_have_two_parts() {
        let cases = [
            (0.0, "0s", "0s"),
            (0.000_05, "50µs", "50µs"),
            (0.35, "350ms", "350ms"),
            (0.9999, "1s", "1s"),
            (1.25, "1.25s", "1.25s"),
            (9.999, "10s", "10s"),
            (48.32, "48s", "48.3s"),
            (59.99, "1m0s", "1m0s"),
            (68.25, "1m8s", "1m8.3s"),
            (3599.99, "1h00m", "1h00m00s"),
            (7380.0, "2h03m", "2h03m00s"),
            (86_399.9, "1d00h", "1d00h00m"),
            (274_000.0, "3d04h", "3d04h06m"),
        ];
        for (seconds, short, long) in cases {
            assert_eq!((duration(seconds).as_str(), duration_long(seconds).as_str()), (short, long));
        }
    }

    #[test]
    fn counts_cores_and_percentages() {
        assert_eq!([0.0, 999.0, 1000.0, 1_204_117.0].map(count), ["0", "999", "1,000", "1,204,117"]);
        assert_eq!(
            [0.0, 0.016, 3.764, 8.0, 12.44, 128.0].map(cores),
            ["0", "0.02", "3.76", "8", "12.4", "128"]
        );
        assert_eq!(
            [0.0, 0.0002, 0.003, 0.0994, 0.47, 3.7641].map(percent),
            ["0%", "<0.1%", "0.3%", "9.9%", "47%", "376%"]
        );
        assert_eq!(percent_fixed(3.7641), "376.41%");
    }

    #[test]
    fn durations_are_read() {
        let cases = [
            ("10s", 10_000),
            ("1.5s", 1500),
            ("500ms", 500),
            ("5m", 300_000),
            ("2h", 7_200_000),
            (".5s", 500),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse_duration(" 1h 30m "), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0.1s"), Ok(Duration::from_millis(100)), "exactly");
    }

    #[test]
    fn a_bad_duration_gets_an_example() {
        let error = |text| parse_duration(text).unwrap_err().to_string();
        assert_eq!(error("10"), "\"10\" has no unit; write 10s, 10ms or 10m");
        assert_eq!(error("10x"), "\"10x\" is not a duration; write 1s, 500ms or 2m");
        for text in ["", " ", "s", "-1s", "1s1", "1..5s", ".s", "1e3s", "1\ns\x1b"] {
            assert!(error(text).contains("write 1s, 500ms or 2m"), "{text:?}");
        }
        for text in ["99999999999999999999d", "213504d", "213503d 99999999999999999999s"] {
            assert_eq!(error(text), format!("{text:?} is too long; write at most 213503d"));
        }
        assert!(parse_duration("213503d").is_ok());
        assert!(!error("\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn sizes_are_read() {
        let cases =
            [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5k", 1536), ("42", 42), ("1 TiB", 1 << 40)];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "2 apples", "-1", "99999999999TiB"] {
            assert!(parse_size(text).unwrap_err().to_string().contains("write 2GiB"), "{text:?}");
        }
    }

    #[test]
    fn a_column_has_the_unit_of_its_middle_value() {
        let joules = [7.2, 18.0, 7200.0, 0.001, 0.0];
        let scale = Scale::of(&ENERGY, joules.into_iter());
        let shown: Vec<String> = joules.iter().map(|&joules| scale.write(joules)).collect();
        assert_eq!(shown, ["2.00 mWh", "5.00 mWh", "2,000 mWh", "<0.001 mWh", "0"]);
        assert_eq!(Scale::of(&ENERGY, std::iter::empty()).write(0.36), "0.100 mWh");
        // More digits than a reader needs, and the middle one fits the next unit.
        let grams = [0.012, 0.020, 5.265];
        let scale = Scale::of(&EMISSIONS, grams.into_iter());
        assert_eq!(grams.map(|grams| scale.write(grams)), ["0.012 g", "0.020 g", "5.26 g"]);
        assert_eq!(Scale::of(&EMISSIONS, [1500.0].into_iter()).write(1500.0), "1.50 kg");
        let uneven = Scale::of(&EMISSIONS, [1e-6, 2e-6, 0.188_63].into_iter());
        assert_eq!([1e-6, 0.188_63].map(|grams| uneven.write(grams)), ["0.001 mg", "189 mg"]);
    }

    #[test]
    fn moments_are_read_on_the_clock_of_the_reader() {
        let now: Timestamp = "2026-01-14T16:40:44.5Z".parse().unwrap();
        let now_ns = i64::try_from(now.as_nanosecond()).unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let since = |text: &str| {
            let ns = parse_since(text, now_ns, &zone).unwrap();
            Timestamp::from_nanosecond(ns.into()).unwrap().to_string()
        };
        assert_eq!(since("2h"), "2026-01-14T14:40:44.5Z");
        assert_eq!(since("7d"), "2026-01-07T16:40:44.5Z");
        assert_eq!(since("today"), "2026-01-13T22:00:00Z");
        assert_eq!(since("yesterday"), "2026-01-12T22:00:00Z");
        assert_eq!(since("2026-01-14"), "2026-01-13T22:00:00Z");
        assert_eq!(since("2026-01-14 08:30"), "2026-01-14T06:30:00Z");
        assert_eq!(since("2026-01-14T08:30:00Z"), "2026-01-14T08:30:00Z");
        assert_eq!(since("2026-01-14T08:30:00+01:00"), "2026-01-14T07:30:00Z");
    }

    #[test]
    fn a_bad_moment_gets_an_example() {
        for text in ["", "10", "tomorrow", "2026-13-01", "99999-01-01", "2026-01-14T25:00"] {
            let error = parse_since(text, 0, &TimeZone::UTC).unwrap_err().to_string();
            assert!(error.contains("write 2h, 7d, today"), "{text}: {error}");
        }
        for text in ["3000-01-01", "3000-01-01T00:00:00Z", "1500-01-01 10:00"] {
            let error = parse_since(text, 0, &TimeZone::UTC).unwrap_err().to_string();
            assert!(error.ends_with("is too far away; write a time between 1678 and 2261"), "{error}");
        }
    }

    #[test]
    fn a_time_says_as_much_as_is_needed() {
        let unix_ns = |text: &str| i64::try_from(text.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap();
        let now_ns = unix_ns("2026-01-14T16:40:44Z");
        let short = |text| time_short(unix_ns(text), now_ns, &TimeZone::UTC);
        assert_eq!(short("2026-01-14T06:07:08Z"), "06:07:08");
        assert_eq!(short("2026-01-04T06:07:08Z"), "Jan  4 06:07");
        assert_eq!(short("2025-12-31T06:07:08Z"), "2025-12-31");
    }
}
