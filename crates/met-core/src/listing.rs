//! The order of job lists: newest first, and total, so that a list can be continued after any job.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::job::{JobKey, Record};

/// The start that lists sort by. A job that has not started yet sorts as the newest.
pub fn sort_ns(record: &Record) -> i64 {
    record.start_ns.or(record.end_ns).unwrap_or(i64::MAX)
}

/// The digits an id begins with: `12` sorts after `9`, and `12_3` beside `12`.
pub fn id_number(id: &str) -> i64 {
    let digits = id.bytes().take_while(u8::is_ascii_digit).take(18);
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// The position of a job in a list. Lists run from the greatest to the least; no two jobs have the same position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub start_ns: i64,
    pub key: JobKey,
}

impl Cursor {
    pub fn of(record: &Record) -> Cursor {
        Cursor { start_ns: sort_ns(record), key: record.key.clone() }
    }

    /// The same order as the store's SQL has; texts are compared byte by byte.
    fn rank(&self) -> (i64, i64, &str, &str, i64, &str) {
        let JobKey { cluster, manager, id, incarnation } = &self.key;
        (self.start_ns, id_number(id), id, manager, *incarnation, cluster.as_deref().unwrap_or(""))
    }
}

impl Ord for Cursor {
    fn cmp(&self, other: &Cursor) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Cursor {
    fn partial_cmp(&self, other: &Cursor) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Sorts newest first.
pub fn sort(records: &mut [Record]) {
    records.sort_by_cached_key(|record| std::cmp::Reverse(Cursor::of(record)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_instant_have_an_order() {
        let cursor = |start_ns: i64, manager: &str, id: &str, incarnation: i64| Cursor {
            start_ns,
            key: JobKey { cluster: None, manager: manager.into(), id: id.into(), incarnation },
        };
        let mut cursors = [
            cursor(5, "local", "9", 1),
            cursor(5, "slurm", "12", 1),
            cursor(5, "local", "12", 2),
            cursor(5, "local", "12_3", 1),
            cursor(i64::MAX, "local", "1", 1),
            cursor(5, "local", "12", 1),
        ];
        cursors.sort_by(|left, right| right.cmp(left));
        let ids: Vec<String> =
            cursors.iter().map(|c| format!("{}:{}.{}", c.key.manager, c.key.id, c.key.incarnation)).collect();
        let expected = ["local:1.1", "local:12_3.1", "slurm:12.1", "local:12.2", "local:12.1", "local:9.1"];
        assert_eq!(ids, expected);
    }
}
