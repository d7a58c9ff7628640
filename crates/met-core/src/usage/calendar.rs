//! Hours, days, weeks and months as people in a time zone have them: a day may have 23 or 25 hours.

use serde::{Deserialize, Serialize};

use super::{BUCKET_NS, bucket_of};
use crate::job::named;

const SECOND_NS: i64 = 1_000_000_000;
const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 86_400;

named! {
    /// Into which times sums are divided.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Every {
        All = "all",
        Hour = "hour",
        Day = "day",
        Week = "week",
        Month = "month",
        HourOfDay = "hour-of-day",
        Weekday = "weekday",
        HourOfWeek = "hour-of-week",
    }
}

impl Every {
    /// Whether times that come again are added up.
    pub fn is_cyclic(self) -> bool {
        matches!(self, Every::HourOfDay | Every::Weekday | Every::HourOfWeek)
    }
}

/// A time zone within the time that is asked for. Who asks knows its rules; who answers need not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    pub name: String,
    /// From when on which offset to UTC holds, in unix nanoseconds and seconds; ascending. The first one holds before,
    /// too.
    pub offsets: Vec<(i64, i64)>,
}

impl Default for Zone {
    fn default() -> Zone {
        Zone { name: "UTC".to_owned(), offsets: vec![(i64::MIN, 0)] }
    }
}

/// No zone has more changes in a time that is asked for.
const OFFSETS_MAX: usize = 1_000;

impl Zone {
    /// Whether it can be computed with; others come from a broken client.
    pub fn is_sound(&self) -> bool {
        let offsets = &self.offsets;
        (1..=OFFSETS_MAX).contains(&offsets.len())
            && offsets.iter().all(|(_, offset_s)| offset_s.abs() <= 2 * DAY_S)
            && offsets.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && self.name.len() <= 100
    }

    fn offset_s(&self, time_ns: i64) -> i64 {
        let behind = self.offsets.partition_point(|(since_ns, _)| *since_ns <= time_ns);
        self.offsets.get(behind.saturating_sub(1)).map_or(0, |(_, offset_s)| *offset_s)
    }

    /// Seconds of the wall clock since 1970.
    fn local_s(&self, time_ns: i64) -> i64 {
        time_ns.div_euclid(SECOND_NS) + self.offset_s(time_ns)
    }

    /// The first bucket in which the wall clock shows this or later.
    fn bucket_at(&self, local_s: i64) -> i64 {
        let offsets = self.offsets.iter().map(|(_, offset_s)| *offset_s);
        let (least, most) = offsets.fold((0, 0), |(least, most), one| (one.min(least), one.max(most)));
        let mut bucket = bucket_of((local_s - most).saturating_mul(SECOND_NS)) - 1;
        let last = bucket_of((local_s - least).saturating_mul(SECOND_NS)) + 1;
        while bucket < last && self.local_s(bucket * BUCKET_NS) < local_s {
            bucket += 1;
        }
        bucket
    }
}

/// A time that sums are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// The hour of the day, the day of the week from Monday on, or the hour of the week; of others their place.
    pub number: i64,
    /// Its begin in unix nanoseconds, if it comes once. It may lie before the time that is asked for.
    pub begin_ns: Option<i64>,
    /// How much of it is in the time that is asked for.
    pub length_ms: i64,
}

/// Which bucket is in which period.
#[derive(Debug)]
pub struct Calendar {
    pub first: i64,
    /// By bucket, from the first one on.
    pub places: Vec<u32>,
    pub periods: Vec<Period>,
}

impl Calendar {
    pub fn new(from_ns: i64, to_ns: i64, zone: &Zone, every: Every) -> Calendar {
        let (first, end) = (bucket_of(from_ns), bucket_of(to_ns.max(from_ns).saturating_add(BUCKET_NS - 1)));
        let (mut places, mut periods) = (Vec::new(), Vec::<Period>::new());
        let bucket_ms = BUCKET_NS / 1_000_000;
        if every.is_cyclic() {
            let count = [24, 7, 168][[Every::HourOfDay, Every::Weekday, Every::HourOfWeek]
                .iter()
                .position(|one| *one == every)
                .unwrap_or(0)];
            periods.extend((0..count).map(|number| Period { number, begin_ns: None, length_ms: 0 }));
        }
        let mut last_key = None;
        for bucket in first..end {
            let local_s = zone.local_s(bucket * BUCKET_NS);
            let (day, hour) = (local_s.div_euclid(DAY_S), local_s.rem_euclid(DAY_S) / HOUR_S);
            let key = match every {
                Every::All => 0,
                // The hour that a clock shows twice is two hours.
                Every::Hour => bucket * BUCKET_NS / SECOND_NS - local_s.rem_euclid(HOUR_S),
                Every::Day => day,
                Every::Week => weeks(day),
                Every::Month => months(day),
                Every::HourOfDay => hour,
                Every::Weekday => weekday(day),
                Every::HourOfWeek => weekday(day) * 24 + hour,
            };
            let place = if every.is_cyclic() {
                key as usize
            } else {
                if last_key != Some(key) {
                    let begin = match every {
                        Every::All => first,
                        Every::Hour => bucket_of(key.saturating_mul(SECOND_NS)),
                        Every::Day => zone.bucket_at(day * DAY_S),
                        Every::Week => zone.bucket_at((day - weekday(day)) * DAY_S),
                        _ => zone.bucket_at((day - civil(day).2 + 1) * DAY_S),
                    };
                    let number = periods.len() as i64;
                    periods.push(Period { number, begin_ns: Some(begin * BUCKET_NS), length_ms: 0 });
                    last_key = Some(key);
                }
                periods.len() - 1
            };
            periods[place].length_ms += bucket_ms;
            places.push(place as u32);
        }
        Calendar { first, places, periods }
    }
}

/// Days since 1970 to the day of the week, 0 for Monday: that day was a Thursday.
fn weekday(day: i64) -> i64 {
    (day + 3).rem_euclid(7)
}

fn weeks(day: i64) -> i64 {
    (day + 3).div_euclid(7)
}

fn months(day: i64) -> i64 {
    let (year, month, _) = civil(day);
    year * 12 + month
}

/// Year, month and day of the month of a day since 1970, in the Gregorian calendar.
fn civil(day: i64) -> (i64, i64, i64) {
    // Years that begin in March have their leap day at the end.
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400, if month < 10 { month + 3 } else { month - 9 });
    (year + i64::from(month <= 2), month, of_month)
}
