//! Words, sizes, times and lists of nodes as schedulers write them. All total, all bounded.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use met_core::hostlist;

/// Longer names are cut.
const WORD_BYTES_MAX: usize = 4 << 10;
pub const SECOND_NS: i64 = 1_000_000_000;

/// Foreign text: made one line, valid and bounded.
pub fn word(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(WORD_BYTES_MAX)];
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

/// What schedulers write where there is nothing to say.
pub fn filled(text: &str) -> Option<&str> {
    let text = text.trim();
    let nothing = ["", "Unknown", "None", "N/A", "n/a", "(null)", "INVALID", "None assigned", "-", "NULL"];
    (!nothing.contains(&text)).then_some(text)
}

/// `250.5G`, `500`, `1048576kb`, `4Gc`: bytes, and what it is per (`c` a CPU, `n` a node).
pub fn size(text: &str, default_unit: i64) -> Option<(i64, Option<char>)> {
    let text = filled(text)?.trim_end_matches('?');
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = text[digits..].trim();
    let per = unit.chars().last().filter(|letter| matches!(letter, 'c' | 'n'));
    let unit = per.map_or(unit, |_| &unit[..unit.len() - 1]);
    let lower = unit.to_ascii_lowercase().replace("bytes", "b");
    let bytes = match lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower) {
        "" if unit.is_empty() => default_unit,
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        // PBS counts words, too, of eight bytes.
        "w" => 8,
        "kw" => 8 << 10,
        "mw" => 8 << 20,
        "gw" => 8 << 30,
        _ => return None,
    };
    let bytes = number * bytes as f64;
    (bytes < i64::MAX as f64).then_some((bytes.round() as i64, per))
}

/// `1-02:03:04`, `01:00:00`, `05:00`, `00:00.376`; a lone number is of `lone_unit_ns`.
pub fn span_ns(text: &str, lone_unit_ns: i64) -> Option<i64> {
    let text = filled(text)?;
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<i64>().ok()?, clock),
        None => (0, text),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let parts: Vec<i64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if parts.iter().chain([&days]).any(|part| !(0..=1_000_000_000).contains(part)) {
        return None;
    }
    let seconds = match (parts.as_slice(), text.contains('-')) {
        ([hours], true) => hours * 3600,
        ([hours, minutes], true) => hours * 3600 + minutes * 60,
        ([lone], false) => return lone.checked_mul(lone_unit_ns)?.checked_add(fraction_ns(fraction)?),
        ([minutes, seconds], false) => minutes * 60 + seconds,
        ([hours, minutes, seconds], _) => hours * 3600 + minutes * 60 + seconds,
        _ => return None,
    };
    let seconds = days.checked_mul(86_400)?.checked_add(seconds)?;
    seconds.checked_mul(SECOND_NS)?.checked_add(fraction_ns(fraction)?)
}

fn fraction_ns(digits: &str) -> Option<i64> {
    if digits.is_empty() {
        return Some(0);
    }
    let digits = &digits.get(..9).unwrap_or(digits);
    let value: i64 = digits.parse().ok().filter(|value| *value >= 0)?;
    value.checked_mul(10_i64.checked_pow(9 - digits.len() as u32)?)
}

/// Unix seconds, or a calendar time; without an offset it is the zone of this machine. 0 is none.
pub fn time_ns(text: &str) -> Option<i64> {
    let text = filled(text)?;
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<i64>().ok().filter(|&seconds| seconds > 0)?.checked_mul(SECOND_NS);
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return i64::try_from(time.as_nanosecond()).ok();
    }
    local_ns(text.parse::<DateTime>().ok()?)
}

/// Of times that are written without one. Tests are the same everywhere.
pub fn zone() -> TimeZone {
    if cfg!(test) { TimeZone::UTC } else { TimeZone::system() }
}

pub fn local_ns(time: DateTime) -> Option<i64> {
    let zoned = zone().to_ambiguous_zoned(time).compatible().ok()?;
    i64::try_from(zoned.timestamp().as_nanosecond()).ok()
}

/// The names in `node[01-03,7],gpu1`.
pub fn hosts(list: &str) -> Vec<String> {
    filled(list).map(hostlist::hosts).unwrap_or_default()
}

/// As `wait` gives it.
pub(super) fn exit_of_status(status: i64) -> (Option<i32>, Option<i32>) {
    match status {
        0..=0xffff if status & 0x7f == 0 => (Some((status >> 8) as i32), None),
        0..=0xffff => (None, Some((status & 0x7f) as i32).filter(|signal| (1..=64).contains(signal))),
        _ => (None, None),
    }
}

pub(super) fn month_of(name: &str) -> Option<i8> {
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    months.iter().position(|month| *month == name).map(|at| at as i8 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use hostlist::NODES_MAX;

    #[test]
    fn sizes_have_fractions_units_or_neither() {
        let megabytes = |text| size(text, 1 << 20);
        assert_eq!(megabytes("250.5G"), Some((268_972_326_912, None)));
        assert_eq!(megabytes("500"), Some((500 << 20, None)));
        assert_eq!(megabytes("4Gc"), Some((4 << 30, Some('c'))));
        assert_eq!(megabytes("1000Mn"), Some((1000 << 20, Some('n'))));
        assert_eq!(size("1048576kb", 1), Some((1 << 30, None)));
        assert_eq!(size("12b", 1), Some((12, None)));
        assert_eq!(size("16gb", 1), Some((16 << 30, None)));
        assert_eq!(size("1.5 Gbytes", 1), Some((3 << 29, None)));
        for nothing in ["", "Unknown", "INVALID", "G", "1.2.3G", "1Z", "-5M", "9999999999999999P", "16?é"] {
            assert_eq!(megabytes(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn spans_are_days_and_clocks() {
        let minutes = |text| span_ns(text, 60 * SECOND_NS).map(|ns| ns / SECOND_NS);
        assert_eq!(minutes("1-02:03:04"), Some(93_784));
        assert_eq!(minutes("1-02"), Some(93_600));
        assert_eq!(minutes("01:00:00"), Some(3600));
        assert_eq!(minutes("05:00"), Some(300));
        assert_eq!(minutes("5"), Some(300));
        assert_eq!(span_ns("00:00.376", 1), Some(376_000_000));
        assert_eq!(span_ns("1.5", SECOND_NS), Some(1_500_000_000));
        for nothing in ["UNLIMITED", "Partition_Limit", "INVALID", "", "1:2:3:4", "-1", "99999999999999999"] {
            assert_eq!(minutes(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn times_are_seconds_or_calendar_times() {
        assert_eq!(time_ns("1794721979"), Some(1_794_721_979 * SECOND_NS));
        assert_eq!(time_ns("2026-11-15T05:52:59Z"), Some(1_794_721_979 * SECOND_NS));
        assert_eq!(time_ns("2026-11-15T05:52:59"), Some(1_794_721_979 * SECOND_NS));
        for nothing in ["Unknown", "None", "N/A", "0", "soon", "2026-13-99T00:00:00"] {
            assert_eq!(time_ns(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn lists_of_nodes_are_spelt_out() {
        assert_eq!(hosts("node[01-03,7],gpu1"), ["node01", "node02", "node03", "node7", "gpu1"]);
        assert_eq!(hosts("rack[1-2]n[1,3]-ib"), ["rack1n1-ib", "rack1n3-ib", "rack2n1-ib", "rack2n3-ib"]);
        assert_eq!(hosts("None assigned"), Vec::<String>::new());
        assert_eq!(hosts("a["), ["a["]);
        assert_eq!(hosts("n[0-99999999999]").len(), NODES_MAX);
        assert_eq!(hosts("n[0-9999]m[0-9999]").len(), NODES_MAX);
        assert_eq!(hosts("n[0-9999999999]m[2-1]").len(), 0);
        assert_eq!(hosts(&"[a,b]".repeat(800)).len(), 1);
    }

    #[test]
    fn foreign_words_stay_on_their_line() {
        assert_eq!(word(b"a\nb\x1b[31m\xff"), "a\u{fffd}b\u{fffd}[31m\u{fffd}");
        assert_eq!(word(&[b'a'; 1 << 20]).len(), WORD_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,60}", list in "[a0-9,\\[\\]-]{0,30}") {
            let _ = (size(&text, 1), span_ns(&text, 60), time_ns(&text), word(text.as_bytes()));
            prop_assert!(hosts(&list).len() <= NODES_MAX);
        }
    }
}
