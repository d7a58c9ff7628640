//! Where a page of a list begins and ends: the place of a job in a list, and the order of all of them.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{Listed, Sort, SortValue, id_number, sort_ns};
use crate::job::{JobKey, Record, State};

/// The position of a job in a list. Without [`Cursor::sorted`] lists run from the greatest to the least; no two jobs
/// have the same position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cursor {
    pub start_ns: i64,
    pub key: JobKey,
    /// In a list that is sorted by a column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sorted: Option<Sorted>,
}

/// The place of a job in a sorted list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sorted {
    /// `None`: unknown, at the end of the list.
    pub value: Option<SortValue>,
    /// Until when running jobs have run, as far as this list is concerned: the time of its first page.
    pub as_of_ns: i64,
    /// The order of the list. Versions that did not say it yet are believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
    /// While jobs whose values change are still to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Box<Unsettled>>,
}

/// How far a list has got with its unsettled jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsettled {
    /// Those on the first page, each by [`mark`].
    pub shown: String,
    /// The last one behind the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<(i64, JobKey)>,
}

/// How long before the first page of a list a job must have ended for its values to be settled: ends are reported late,
/// clocks differ, and energy is charged afterwards.
const SETTLED_AFTER_NS: i64 = 60_000_000_000;
/// Hexadecimal digits of a job in a cursor: of 500 jobs beside 10,000 others two are the same once in 50 million lists.
const MARK_DIGITS: usize = 12;

/// A short name of a job, the same in every process.
fn mark(key: &JobKey) -> String {
    let JobKey { cluster, manager, id, incarnation } = key;
    let texts = [cluster.as_deref().unwrap_or(""), manager, id];
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0xff])).chain(incarnation.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:012x}", (hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
}

impl Unsettled {
    fn has_shown(&self, key: &JobKey) -> bool {
        let mark = mark(key);
        self.shown.as_bytes().chunks(MARK_DIGITS).any(|shown| shown == mark.as_bytes())
    }
}

impl Cursor {
    /// In a list without another order.
    pub fn of(job: &impl Listed) -> Cursor {
        Cursor::at(sort_ns(job), job.key().clone())
    }

    pub fn at(start_ns: i64, key: JobKey) -> Cursor {
        Cursor { start_ns, key, sorted: None }
    }

    /// In a list with this order.
    pub fn in_order(job: &impl Listed, order: &Order) -> Cursor {
        let plain = Cursor::of(job);
        let sorted = order.sort.map(|sort| order.sorted(sort.value(job, order.as_of_ns)));
        let unsettled = (order.is_continued && order.is_unsettled(job))
            .then(|| Unsettled { shown: String::new(), last: Some((plain.start_ns, plain.key.clone())) })
            .map(Box::new);
        Cursor { sorted: sorted.map(|sorted| Sorted { unsettled, ..sorted }), ..plain }
    }

    fn value(&self) -> Option<&SortValue> {
        self.sorted.as_ref()?.value.as_ref()
    }

    fn unsettled(&self) -> Option<&Unsettled> {
        self.sorted.as_ref()?.unsettled.as_deref()
    }

    /// The place behind the unsettled jobs: where the settled ones go on.
    pub fn settled(&self) -> Cursor {
        let sorted = self.sorted.clone().map(|sorted| Sorted { unsettled: None, ..sorted });
        Cursor { sorted, ..self.clone() }
    }

    /// The same order as the store's SQL has; texts are compared byte by byte.
    fn rank(&self) -> (i64, i64, &str, &str, i64, &str) {
        rank(self.start_ns, &self.key)
    }
}

fn rank(start_ns: i64, key: &JobKey) -> (i64, i64, &str, &str, i64, &str) {
    let JobKey { cluster, manager, id, incarnation } = key;
    (start_ns, id_number(id), id, manager, *incarnation, cluster.as_deref().unwrap_or(""))
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

impl PartialEq for Cursor {
    fn eq(&self, other: &Cursor) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Cursor {}

/// The order of a list: newest first, or by a column.
///
/// The first page of a list by a value that changes is in the order of this value. Values of some jobs are others by the
/// time of the next page: of those that run, and of those that ended since. Each of these that was not on the first page
/// comes next, newest first; then come all others in the order of their values. So no job comes twice, and none is left
/// out, however its value grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub sort: Option<Sort>,
    /// Until when running jobs have run.
    pub as_of_ns: i64,
    /// Behind the first page of a list by a value that changes.
    is_continued: bool,
}

impl Order {
    /// The order of a list that continues after this job, or begins now.
    pub fn new(sort: Option<Sort>, after: Option<&Cursor>, now_ns: i64) -> Order {
        let begun_ns = after.and_then(|after| after.sorted.as_ref()).map(|sorted| sorted.as_of_ns);
        let changes = sort.is_some_and(|sort| sort.column.changes());
        Order { sort, as_of_ns: begun_ns.unwrap_or(now_ns), is_continued: changes && after.is_some() }
    }

    /// The place of a settled job with this value.
    pub fn sorted(&self, value: Option<SortValue>) -> Sorted {
        Sorted { value, as_of_ns: self.as_of_ns, sort: self.sort, unsettled: None }
    }

    /// Jobs that ended until then are settled.
    pub fn settled_ns(&self) -> i64 {
        self.as_of_ns.saturating_sub(SETTLED_AFTER_NS)
    }

    /// Whether this is behind the first page of a list by a value that changes.
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Whether jobs whose values change may come behind this place.
    pub fn has_unsettled(&self, after: &Cursor) -> bool {
        !self.is_continued || after.unsettled().is_some()
    }

    /// Whether the values of a job may be others on the next page.
    pub fn is_unsettled(&self, job: &impl Listed) -> bool {
        matches!(job.state(), State::Running | State::Suspended)
            || job.end_ns().is_some_and(|end_ns| end_ns > self.settled_ns())
    }

    /// `Less`: `left` comes first.
    pub fn compare(&self, left: &Cursor, right: &Cursor) -> Ordering {
        if self.is_continued {
            match (left.unsettled(), right.unsettled()) {
                (Some(left), Some(right)) => {
                    let place = |one: &Unsettled| one.last.clone();
                    return match (place(left), place(right)) {
                        (Some(left), Some(right)) => rank(right.0, &right.1).cmp(&rank(left.0, &left.1)),
                        (left, right) => left.is_some().cmp(&right.is_some()),
                    };
                }
                (None, None) => {}
                (left, _) => return if left.is_some() { Ordering::Less } else { Ordering::Greater },
            }
        }
        let by_value = self.sort.map_or(Ordering::Equal, |sort| sort.compare(left.value(), right.value()));
        by_value.then_with(|| right.cmp(left))
    }

    /// Whether a job comes behind this one.
    pub fn is_behind(&self, job: &impl Listed, after: &Cursor) -> bool {
        // Most lists are by nothing else, and long: no job's texts are copied.
        if self.sort.is_none() {
            return rank(sort_ns(job), job.key()) < rank(after.start_ns, &after.key);
        }
        let place = Cursor::in_order(job, self);
        match (place.unsettled(), after.unsettled()) {
            (Some(_), Some(begun)) if begun.has_shown(job.key()) => false,
            // From the first page, the settled ones go on.
            (None, Some(_)) if self.is_continued => {
                self.compare(&place, &after.settled()) == Ordering::Greater
            }
            _ => self.compare(&place, after) == Ordering::Greater,
        }
    }

    /// Where a list goes on behind a page that began after `after`. `None` of an empty page.
    pub fn next(&self, after: Option<&Cursor>, page: &[impl Listed]) -> Option<Cursor> {
        let place = Cursor::in_order(page.last()?, self);
        Some(match (place.unsettled().and_then(|unsettled| unsettled.last.clone()), after) {
            (Some(last), Some(after)) => {
                let mut next = after.clone();
                if let Some(unsettled) = next.sorted.as_mut().and_then(|sorted| sorted.unsettled.as_mut()) {
                    unsettled.last = Some(last);
                }
                next
            }
            _ => self.begun(place, page),
        })
    }

    /// The place, which is the end of this page, if it is the first.
    pub fn begun(&self, mut place: Cursor, page: &[impl Listed]) -> Cursor {
        let changes = self.sort.is_some_and(|sort| sort.column.changes());
        if let Some(sorted) = place.sorted.as_mut().filter(|_| changes && !self.is_continued) {
            let shown = page.iter().filter(|&job| self.is_unsettled(job));
            let shown = shown.map(|job| mark(job.key())).collect();
            sorted.as_of_ns = self.as_of_ns;
            sorted.unsettled = Some(Box::new(Unsettled { shown, last: None }));
        }
        place
    }

    /// The first of these jobs, which all run, as [`Order::sort`] has them.
    pub fn first_running<'l, L: Listed>(
        &self,
        jobs: impl IntoIterator<Item = &'l L>,
        count: usize,
    ) -> Vec<&'l L> {
        // Behind the first page values do not matter. A cursor for each job, with its texts, would take longer than this.
        let sort = self.sort.filter(|_| !self.is_continued);
        let value = |job: &'l L| (sort.and_then(|sort| sort.value(job, self.as_of_ns)), job);
        let mut places: Vec<(Option<SortValue>, &'l L)> = jobs.into_iter().map(value).collect();
        let newest_first =
            |left: &L, right: &L| rank(sort_ns(right), right.key()).cmp(&rank(sort_ns(left), left.key()));
        let compare = |left: &(Option<SortValue>, &L), right: &(Option<SortValue>, &L)| {
            let by_value =
                sort.map_or(Ordering::Equal, |sort| sort.compare(left.0.as_ref(), right.0.as_ref()));
            by_value.then_with(|| newest_first(left.1, right.1))
        };
        if count < places.len() {
            places.select_nth_unstable_by(count, compare);
            places.truncate(count);
        }
        places.sort_unstable_by(compare);
        places.into_iter().map(|(_, job)| job).collect()
    }

    pub fn sort(&self, records: &mut [impl Listed]) {
        struct Place(Order, Cursor);
        impl PartialEq for Place {
            fn eq(&self, other: &Place) -> bool {
                self.cmp(other) == Ordering::Equal
            }
        }
        impl Eq for Place {}
        impl PartialOrd for Place {
            fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for Place {
            fn cmp(&self, other: &Place) -> Ordering {
                self.0.compare(&self.1, &other.1)
            }
        }
        // What was read in this order is not moved.
        let is_sorted = || {
            records.is_sorted_by(|one, next| rank(sort_ns(one), one.key()) >= rank(sort_ns(next), next.key()))
        };
        if self.sort.is_none() && is_sorted() {
            return;
        }
        records.sort_by_cached_key(|job| Place(*self, Cursor::in_order(job, self)));
    }
}

/// Sorts newest first.
pub fn sort(records: &mut [Record]) {
    Order::default().sort(records);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_table::ENERGY;

    #[test]
    fn jobs_of_one_instant_have_an_order() {
        let cursor = |start_ns: i64, manager: &str, id: &str, incarnation: i64| {
            Cursor::at(
                start_ns,
                JobKey { cluster: None, manager: manager.into(), id: id.into(), incarnation },
            )
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

    #[test]
    fn unknown_values_come_last_in_both_directions() {
        let job = |id: u32, energy: Option<i64>| {
            let mut record = crate::sample::bare(id, "train");
            record.start_ns = Some(i64::from(id));
            energy.into_iter().for_each(|energy| {
                record.totals.set(ENERGY, energy, crate::job::QualityKind::Measured, "rapl");
            });
            record
        };
        let sorted = |text: &str| {
            let mut jobs =
                vec![job(1, None), job(2, Some(5)), job(3, Some(7)), job(4, None), job(5, Some(5))];
            let order = Order::new(Some(text.parse().unwrap()), None, 9);
            order.sort(&mut jobs);
            jobs.into_iter().map(|job| job.key.id).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(sorted("energy"), "5 2 3 4 1", "of one value the newest comes first");
        assert_eq!(sorted("energy:desc"), "3 5 2 4 1");
    }

    #[test]
    fn a_cursor_of_an_earlier_version_is_understood() {
        let old = r#"{"start_ns":5,"key":{"cluster":null,"manager":"local","id":"1","incarnation":2}}"#;
        let cursor: Cursor = serde_json::from_str(old).unwrap();
        assert!(cursor.sorted.is_none());
        assert_eq!(serde_json::to_string(&cursor).unwrap(), old);
    }
}
