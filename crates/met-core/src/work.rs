//! Units of work that a job marked while it ran: steps, epochs, tokens, or a figure of merit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::text::prefix;

/// A job's file of marks grows no further.
pub const MARKS_BYTES_MAX: u64 = 4 << 20;
/// Names that are kept of a job, and points of each.
pub const NAMES_MAX: usize = 16;
const POINTS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 40;

/// One kind of mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub name: String,
    /// How often it was marked.
    pub marks: u64,
    pub first: Mark,
    pub last: Mark,
    /// No value was lower than the one before: it counts something.
    pub counts: bool,
    /// Some of the marks, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Mark>,
    /// The job marked other names, too, which are not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub others_left_out: bool,
}

/// A value, and when it was reached in unix nanoseconds, where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    pub value: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<i64>,
}

/// Whether a name can be one: it is in tables and JSON.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_plain)
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
}

/// `step=100`, with a finite number.
pub fn parse_pair(word: &str) -> Option<(&str, f64)> {
    let (name, value) = word.split_once('=')?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    is_name(name).then_some((name, value))
}

/// Reads a file of marks: a line is a time, `@` and unix nanoseconds, and pairs. Without a time it was written by a
/// shell. What is not a mark is passed over: the job writes it.
pub fn parse(bytes: &[u8]) -> Vec<Work> {
    let bytes = &bytes[..bytes.len().min(MARKS_BYTES_MAX as usize)];
    let (mut found, mut others_left_out) = (BTreeMap::<String, Gathered>::new(), false);
    for line in bytes.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let mut time_ns = None;
        for word in line.split_ascii_whitespace() {
            if let Some(time) = word.strip_prefix('@') {
                time_ns = time.parse().ok().filter(|time: &i64| *time > 0);
            } else if let Some((name, value)) = parse_pair(word) {
                if !found.contains_key(name) && found.len() >= NAMES_MAX {
                    others_left_out = true;
                    continue;
                }
                found.entry(name.to_owned()).or_default().take(Mark { value, time_ns });
            }
        }
    }
    let work = found.into_iter().filter_map(|(name, gathered)| gathered.finish(name));
    work.map(|one| Work { others_left_out, ..one }).collect()
}

#[derive(Default)]
struct Gathered {
    count: u64,
    first: Option<Mark>,
    last: Option<Mark>,
    falls: bool,
    points: Vec<Mark>,
    /// Every so many marks are a point.
    step: u64,
}

impl Gathered {
    fn take(&mut self, mark: Mark) {
        self.first.get_or_insert(mark);
        self.falls |= self.last.is_some_and(|last| mark.value < last.value);
        self.last = Some(mark);
        self.step = self.step.max(1);
        if self.count.is_multiple_of(self.step) {
            self.points.push(mark);
        }
        self.count += 1;
        if self.points.len() >= POINTS_MAX {
            // Every other one stays.
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step *= 2;
        }
    }

    fn finish(self, name: String) -> Option<Work> {
        let Gathered { count, first, last, falls, points, .. } = self;
        let (counts, others_left_out) = (!falls, false);
        Some(Work { name, marks: count, first: first?, last: last?, counts, points, others_left_out })
    }
}

/// Cuts what no [`parse`] could have made: a record may come from elsewhere.
pub fn bound(work: &mut Vec<Work>) {
    work.truncate(NAMES_MAX);
    for one in work.iter_mut() {
        one.name = prefix(&one.name, NAME_BYTES_MAX).to_owned();
        one.points.truncate(POINTS_MAX);
    }
    work.retain(|one| is_name(&one.name) && one.first.value.is_finite() && one.last.value.is_finite());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_are_counted_by_name_and_the_first_and_last_are_kept() {
        let text =
            "@1000 step=10 loss=0.5\nstep=20\ngarbage\nloss=nan\n@3000 step=30 loss=0.25\n=1\n9x=1\nstep=";
        let work = parse(text.as_bytes());
        let shown: Vec<_> = work
            .iter()
            .map(|one| (one.name.as_str(), one.marks, one.first.value, one.last.value, one.counts))
            .collect();
        assert_eq!(shown, [("loss", 2, 0.5, 0.25, false), ("step", 3, 10.0, 30.0, true)]);
        assert_eq!((work[1].first.time_ns, work[1].last.time_ns), (Some(1000), Some(3000)));
        assert_eq!(work[1].points[1].time_ns, None, "written by a shell");
    }

    #[test]
    fn many_marks_are_few_points() {
        let text: String = (0..100_000).map(|step| format!("@{} step={step}\n", step + 1)).collect();
        let work = parse(text.as_bytes());
        assert_eq!((work[0].marks, work[0].last.value), (100_000, 99_999.0));
        assert!(work[0].points.len() < POINTS_MAX && work[0].points.len() >= POINTS_MAX / 2);
        let names: String = (0..100).map(|name| format!("n{name}=1\n")).collect();
        assert_eq!(parse(names.as_bytes()).len(), NAMES_MAX);
        assert!(parse(names.as_bytes()).iter().all(|one| one.others_left_out));
        assert!(parse(b"a=1\na=2\n").iter().all(|one| !one.others_left_out));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut work = parse(&bytes);
            let before = work.clone();
            bound(&mut work);
            prop_assert_eq!(work, before);
        }
    }
}
