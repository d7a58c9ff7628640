//! Parsers of what the kernel prints. Total: any bytes in, a value or nothing out, no panic.

use met_core::MISSING;

/// Decimal digits and nothing else.
pub fn u64(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    Some(value)
}

pub fn u32(text: &[u8]) -> Option<u32> {
    u64(text)?.try_into().ok()
}

pub fn i64(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        // The magnitude of the smallest value does not fit an i64, so it is negated as a wider integer.
        Some(magnitude) => i64::try_from(-i128::from(u64(magnitude)?)).ok(),
        None => u64(text)?.try_into().ok(),
    }
}

/// A cell: the number, or missing. The reserved value itself is no number either.
pub fn cell(text: &[u8]) -> i64 {
    i64(text).unwrap_or(MISSING)
}

/// The cell in a finer unit. What does not fit is missing rather than wrong.
pub fn scaled(cell: i64, factor: i64) -> i64 {
    if cell == MISSING { MISSING } else { cell.checked_mul(factor).unwrap_or(MISSING) }
}

/// The sum, missing if either part is.
pub fn sum(left: i64, right: i64) -> i64 {
    if left == MISSING || right == MISSING { MISSING } else { left.checked_add(right).unwrap_or(MISSING) }
}

/// The difference, missing if either part is. Two files are not read at one instant: never below 0.
pub fn difference(whole: i64, part: i64) -> i64 {
    if whole == MISSING || part == MISSING {
        MISSING
    } else {
        whole.checked_sub(part).map_or(MISSING, |difference| difference.max(0))
    }
}

pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

pub fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty())
}

/// Lines of `key value` or `key: value`, as in memory.stat, cpu.stat and /proc/PID/io.
pub fn key_values(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines(text).filter_map(|line| {
        let mut parts = fields(line);
        let key = parts.next()?;
        Some((key.strip_suffix(b":").unwrap_or(key), parts.next()?))
    })
}

pub fn value_of(text: &[u8], key: &str) -> i64 {
    key_values(text).find(|(name, _)| *name == key.as_bytes()).map_or(MISSING, |(_, value)| cell(value))
}

/// What is used of /proc/PID/stat. Times are in ticks; a cell that does not parse is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    pub pid: u32,
    pub name: &'a [u8],
    pub state: u8,
    pub parent_pid: u32,
    pub process_group: i64,
    pub session: i64,
    /// The device number of the controlling terminal; 0 is none.
    pub terminal: i64,
    pub faults_minor: i64,
    pub faults_minor_reaped: i64,
    pub faults_major: i64,
    pub faults_major_reaped: i64,
    pub user_ticks: i64,
    pub system_ticks: i64,
    pub user_reaped_ticks: i64,
    pub system_reaped_ticks: i64,
    pub threads: i64,
    pub start_ticks: u64,
}

impl Stat<'_> {
    /// Whether every cell could be parsed.
    pub fn is_whole(&self) -> bool {
        let ids = [self.process_group, self.session, self.terminal, self.threads];
        let faults =
            [self.faults_minor, self.faults_minor_reaped, self.faults_major, self.faults_major_reaped];
        let times = [self.user_ticks, self.system_ticks, self.user_reaped_ticks, self.system_reaped_ticks];
        ![ids, faults, times].as_flattened().contains(&MISSING)
    }
}

pub fn stat(text: &[u8]) -> Option<Stat<'_>> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    // A process may call itself anything, `) R 1` included: its name ends at the last parenthesis.
    let close = text.iter().rposition(|&byte| byte == b')')?;
    let name = text.get(open + 1..close)?;
    let mut rest = fields(text.get(close + 1..)?);
    let state = *rest.next()?.first()?;
    let parent_pid = u32(rest.next()?)?;
    let mut skip_then_cell = |skip: usize| rest.nth(skip).map_or(MISSING, cell);
    Some(Stat {
        pid: u32(text.get(..open)?.trim_ascii())?,
        name,
        state,
        parent_pid,
        process_group: skip_then_cell(0),
        session: skip_then_cell(0),
        terminal: skip_then_cell(0),
        faults_minor: skip_then_cell(2),
        faults_minor_reaped: skip_then_cell(0),
        faults_major: skip_then_cell(0),
        faults_major_reaped: skip_then_cell(0),
        user_ticks: skip_then_cell(0),
        system_ticks: skip_then_cell(0),
        user_reaped_ticks: skip_then_cell(0),
        system_reaped_ticks: skip_then_cell(0),
        threads: skip_then_cell(2),
        start_ticks: u64::try_from(skip_then_cell(1)).ok()?,
    })
}

/// How many CPUs a list such as `0-3,8` names.
pub fn cpu_list_count(text: &[u8]) -> Option<u32> {
    let mut count: u32 = 0;
    for range in text.trim_ascii().split(|&byte| byte == b',') {
        let mut ends = range.splitn(2, |&byte| byte == b'-');
        let first = u32(ends.next()?)?;
        let last = ends.next().map_or(Some(first), u32)?;
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAIL: &[u8] = b") S 41 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26\n";

    fn stat_named(name: &[u8]) -> Vec<u8> {
        [b"42 (", name, TAIL].concat()
    }

    #[test]
    fn a_stat_line_is_read_field_by_field() {
        let text = stat_named(b"sleep");
        let stat = stat(&text).unwrap();
        assert_eq!((stat.pid, stat.name, stat.state, stat.parent_pid), (42, &b"sleep"[..], b'S', 41));
        assert_eq!((stat.session, stat.faults_minor, stat.faults_major_reaped), (8, 12, 15));
        assert_eq!((stat.user_ticks, stat.system_ticks), (16, 17));
        assert_eq!((stat.user_reaped_ticks, stat.system_reaped_ticks), (18, 19));
        assert_eq!((stat.threads, stat.start_ticks), (22, 24));
    }

    #[test]
    fn any_name_is_kept_apart_from_the_fields() {
        for name in [&b"a b"[..], b") R 1 (", b"((", b"))", b"a\nb", b"\xff\xfe", b""] {
            let text = stat_named(name);
            let stat = stat(&text).unwrap();
            assert_eq!((stat.name, stat.parent_pid, stat.start_ticks), (name, 41, 24));
        }
    }

    #[test]
    fn a_field_that_is_no_number_is_missing_alone() {
        let text = String::from_utf8(stat_named(b"x")).unwrap().replace(" 16 ", " oops ");
        let stat = stat(text.as_bytes()).unwrap();
        assert_eq!((stat.user_ticks, stat.system_ticks), (MISSING, 17));
    }

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        assert_eq!(u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(u64(b"18446744073709551616"), None);
        assert_eq!((u64(b""), u64(b"+1"), u64(b"1 "), u64(b"-1")), (None, None, None, None));
        assert_eq!(i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!((i64(b"-1"), i64(b"--1"), i64(b"-")), (Some(-1), None, None));
        assert_eq!(scaled(i64::MAX, 1000), MISSING);
        assert_eq!(difference(3, 5), 0);
    }

    #[test]
    fn a_key_is_found_whole_or_not_at_all() {
        let text = b"rss 1\ntotal_rss 2\nshmem\nwchar: 7\n";
        assert_eq!((value_of(text, "rss"), value_of(text, "total_rss")), (1, 2));
        assert_eq!((value_of(text, "shmem"), value_of(text, "wchar")), (MISSING, 7));
        assert_eq!(value_of(text, "total"), MISSING);
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(cpu_list_count(b"0-3,8\n"), Some(5));
        assert_eq!(cpu_list_count(b"0"), Some(1));
        assert_eq!((cpu_list_count(b""), cpu_list_count(b"3-1"), cpu_list_count(b"x")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (u64(&text), i64(&text), cpu_list_count(&text), value_of(&text, "rss"));
            if let Some(stat) = stat(&text) {
                prop_assert!(stat.name.len() < text.len());
            }
            let _ = stat(&stat_named(&text));
        }

        #[test]
        fn printed_numbers_come_back(value in any::<i64>(), unsigned in any::<u64>()) {
            prop_assert_eq!(i64(value.to_string().as_bytes()), Some(value));
            prop_assert_eq!(u64(unsigned.to_string().as_bytes()), Some(unsigned));
        }

        #[test]
        fn any_name_leaves_the_fields_alone(name in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = stat_named(&name);
            let stat = stat(&text).unwrap();
            prop_assert_eq!((stat.name, stat.parent_pid, stat.start_ticks), (&name[..], 41, 24));
        }
    }
}
