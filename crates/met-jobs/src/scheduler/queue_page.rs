//! Pages of metrics on which a scheduler counts its queue.
//!
//! They come from another program: any bytes will do, and what cannot be read is counted and never 0.

use std::collections::BTreeMap;

/// Where a scheduler counts its queue.
pub struct QueuePages {
    pub by_partition: PageOf,
    /// Jobs in all partitions.
    pub by_user: PageOf,
    /// What an operator does about a page that is missing.
    pub remedy: &'static str,
}

/// One page: a path, a label, and the families whose samples have this label alone.
pub struct PageOf {
    pub path: &'static str,
    pub label: &'static str,
    /// All jobs that have not begun,
    pub pending: &'static str,
    /// and those of them that are held.
    pub held: &'static str,
}

/// Names on one page.
pub const NAMES_MAX: usize = 50_000;
const NAME_BYTES_MAX: usize = 256;

/// Reads a page line by line.
pub struct PageReader {
    of: &'static PageOf,
    pending: BTreeMap<String, u64>,
    held: BTreeMap<String, u64>,
    pub lines: u64,
    /// Lines that are no samples.
    pub unparsed: u64,
    /// Those of them that belong to the families.
    lost: u64,
}

impl PageReader {
    pub fn new(of: &'static PageOf) -> PageReader {
        PageReader { of, pending: BTreeMap::new(), held: BTreeMap::new(), lines: 0, unparsed: 0, lost: 0 }
    }

    pub fn line(&mut self, line: &[u8]) {
        let line = line.trim_ascii_end();
        if line.is_empty() || line.starts_with(b"#") {
            return;
        }
        self.lines += 1;
        let of = self.of;
        let families = [(of.pending, &mut self.pending), (of.held, &mut self.held)];
        let wanted = families.into_iter().find(|(family, _)| family_of(line) == family.as_bytes());
        let is_read = match wanted {
            None => is_sample(line),
            Some((_, counts)) => {
                let is_read = labelled(line, of.label).is_some_and(|(name, count)| put(counts, name, count));
                self.lost += u64::from(!is_read);
                is_read
            }
        };
        self.unparsed += u64::from(!is_read);
    }

    /// Jobs that wait and are not held, by partition; those of which one of the two is unknown are left out.
    pub fn by_partition(self) -> BTreeMap<String, u64> {
        let PageReader { pending, held, .. } = self;
        let waiting = |(name, pending): (String, u64)| {
            let waiting = pending.checked_sub(*held.get(&name)?)?;
            Some((name, waiting))
        };
        pending.into_iter().filter_map(waiting).collect()
    }

    /// The same by user, at most: what is not known to be held may wait. `None` if something of a user was lost.
    pub fn by_user(self) -> Option<BTreeMap<String, u64>> {
        let PageReader { pending, held, .. } = self;
        let waiting = |(name, pending): (String, u64)| {
            let waiting = pending.saturating_sub(held.get(&name).copied().unwrap_or(0));
            (waiting > 0).then_some((name, waiting))
        };
        (self.lost == 0).then(|| pending.into_iter().filter_map(waiting).collect())
    }
}

/// The first of two wins, and the page is not right.
fn put(counts: &mut BTreeMap<String, u64>, name: &str, count: u64) -> bool {
    let is_new = counts.len() < NAMES_MAX && !counts.contains_key(name);
    if is_new {
        counts.insert(name.to_owned(), count);
    }
    is_new
}

fn family_of(line: &[u8]) -> &[u8] {
    let end = line.iter().position(|&byte| byte == b'{' || byte == b' ').unwrap_or(line.len());
    &line[..end]
}

/// `family{label="name"} 7`. Names are not escaped on these pages: a name ends at the last quote before the value.
fn labelled<'l>(line: &'l [u8], label: &str) -> Option<(&'l str, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let rest = text[family_of(line).len()..].strip_prefix('{')?;
    let rest = rest.strip_prefix(label)?.strip_prefix("=\"")?;
    let (name, count) = rest.rsplit_once("\"} ")?;
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    is_name.then_some((name, whole(count)?))
}

/// Digits alone: a sign, a fraction or `NaN` is no number of jobs.
fn whole(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Slurm counts in 32 bits, and sums of these fit 64.
    text.parse::<u32>().ok().filter(|_| is_number).map(u64::from)
}

/// Any other sample of the page: a name, labels, a number.
fn is_sample(line: &[u8]) -> bool {
    let family = family_of(line);
    let is_name =
        !family.is_empty() && family.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let value = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    let is_number = std::str::from_utf8(value).is_ok_and(|value| value.parse::<f64>().is_ok());
    is_name && is_number && value.len() + family.len() < line.len()
}

/// For tests with any bytes: it has no jobs.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzzed(page: &[u8]) -> Vec<super::Recorded> {
    static PAGE: PageOf = PageOf { path: "/", label: "p", pending: "pending", held: "held" };
    let mut reader = PageReader::new(&PAGE);
    page.split(|&byte| byte == b'\n').for_each(|line| reader.line(line));
    assert!(reader.unparsed <= reader.lines);
    assert!(reader.by_partition().len() <= page.len());
    Vec::new()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static PARTITIONS: PageOf =
        PageOf { path: "/partitions", label: "partition", pending: "jobs_pending", held: "jobs_hold" };

    fn read(text: &[u8]) -> PageReader {
        let mut reader = PageReader::new(&PARTITIONS);
        text.split(|&byte| byte == b'\n').for_each(|line| reader.line(line));
        reader
    }

    #[test]
    fn held_jobs_do_not_wait() {
        let page = b"# HELP jobs_pending Number of jobs\n# TYPE jobs_pending gauge\n\
            jobs_pending{partition=\"main\"} 27\njobs_pending{partition=\"gpu\"} 3\n\
            jobs_hold{partition=\"main\"} 20\njobs_hold{partition=\"gpu\"} 3\nother 0.5\nother{a=\"b c\"} NaN\n";
        let reader = read(page);
        assert_eq!((reader.lines, reader.unparsed), (6, 0));
        let waiting = reader.by_partition();
        assert_eq!(waiting.into_iter().collect::<Vec<_>>(), [("gpu".to_owned(), 0), ("main".to_owned(), 7)]);
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_unknown() {
        for bad in [
            "jobs_pending{partition=\"p\"} -1",
            "jobs_pending{partition=\"p\"} 1.5",
            "jobs_pending{partition=\"p\"} NaN",
            "jobs_pending{partition=\"p\"} +1",
            "jobs_pending{partition=\"p\"} 4294967296",
            "jobs_pending{partition=\"p\"}",
            "jobs_pending{partition=\"p",
            "jobs_pending{partition=\"\"} 1",
            "jobs_pending{other=\"p\"} 1",
            "jobs_pending 1",
            "<html>",
            "jobs",
            "jobs x",
            " 1",
        ] {
            let reader = read(format!("{bad}\njobs_hold{{partition=\"p\"}} 0\n").as_bytes());
            assert_eq!((reader.unparsed, reader.by_partition().len()), (1, 0), "{bad}");
        }
        let twice = read(
            b"jobs_pending{partition=\"p\"} 1\njobs_pending{partition=\"p\"} 2\njobs_hold{partition=\"p\"} 0",
        );
        assert_eq!(twice.unparsed, 1);
        let alone = read(b"jobs_pending{partition=\"p\"} 1");
        assert!(alone.by_partition().is_empty(), "how many are held is unknown");
        let more_held = read(b"jobs_pending{partition=\"p\"} 1\njobs_hold{partition=\"p\"} 2");
        assert!(more_held.by_partition().is_empty());
    }

    #[test]
    fn a_user_of_whom_something_is_lost_may_have_any_number() {
        let of = |text: &str| read(text.as_bytes()).by_user();
        let counts = of(
            "jobs_pending{partition=\"ada\"} 4\njobs_hold{partition=\"ada\"} 1\njobs_pending{partition=\"bob\"} 2",
        );
        assert_eq!(
            counts.unwrap().into_iter().collect::<Vec<_>>(),
            [("ada".to_owned(), 3), ("bob".to_owned(), 2)]
        );
        assert_eq!(of("jobs_pending{partition=\"ada\"} 4x"), None);
        assert!(of("what 4x\n").is_some(), "another family");
        assert_eq!(of("jobs_pending{partition=\"ada\"} 0").unwrap().len(), 0);
    }

    proptest! {
        #[test]
        fn any_name_is_read_as_it_was_written(name in "[^\n\r]{1,40}", pending: u32, held: u32) {
            let held = held.min(pending);
            let page = format!("jobs_pending{{partition=\"{name}\"}} {pending}\njobs_hold{{partition=\"{name}\"}} {held}\n");
            let reader = read(page.as_bytes());
            prop_assert_eq!(reader.unparsed, 0);
            let waiting = reader.by_partition();
            prop_assert_eq!(waiting.get(&name), Some(&u64::from(pending - held)));
        }

        #[test]
        fn any_bytes_are_a_page(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let reader = read(&bytes);
            prop_assert!(reader.unparsed <= reader.lines);
            let _ = reader.by_user();
        }

        #[test]
        fn any_lines_are_a_page(text in "((jobs_pending|jobs_hold|x)(\\{(partition|p)=\"[a\"} ]{0,3}\"\\})? ?[0-9.x-]{0,11}\n){0,20}") {
            let reader = read(text.as_bytes());
            prop_assert!(reader.unparsed <= reader.lines);
            prop_assert!(reader.by_partition().len() <= text.lines().count());
        }
    }
}
