//! Use of a system over time, in sums of a quarter of an hour. A job's totals are divided over the time it ran, so that
//! the parts add up to the total.

mod calendar;
mod contribution;
mod machine;
mod row;
mod table;

use serde::{Deserialize, Serialize};

pub use calendar::{Calendar, Every, Period, Zone};
pub use contribution::{contribute, needs_series};
pub use machine::{Machine, MachineSample};
pub use row::{DayRow, Entry, decode_entries, encode_entries};
pub use table::{By, EXCEPT_MAX, Table, Usage, UsageAsk, UsageLine, UsageTooLong};

use crate::job::named;

/// Sums are of this much time, in UTC: every time zone of today begins its hours at a multiple of it.
pub const BUCKET_NS: i64 = 900_000_000_000;
pub const BUCKETS_PER_DAY: usize = 96;
/// Figures of a sum.
pub const FIGURES: usize = 14;

/// The figures of one sum, see [`figure`] and [`machine_figure`].
pub type Amounts = [i64; FIGURES];
/// The same of many: nanoseconds of a cluster and year need more than 64 bits.
pub type Sums = [i128; FIGURES];

/// What jobs held and used.
pub mod figure {
    /// Jobs that began, and of how many of them CPU time and energy are known.
    pub const JOBS: usize = 0;
    pub const JOBS_WITH_CPU: usize = 1;
    pub const JOBS_WITH_ENERGY: usize = 2;
    pub const CORES_HELD_NS: usize = 3;
    pub const CPU_NS: usize = 4;
    /// CPU time of jobs of which it is known how many cores they held.
    pub const CPU_OF_HELD_NS: usize = 5;
    /// CPU time that was divided evenly, because no samples say when it was used.
    pub const CPU_EVEN_NS: usize = 6;
    pub const GPUS_HELD_NS: usize = 7;
    pub const GPU_NS: usize = 8;
    /// KiB × ms.
    pub const MEMORY_HELD: usize = 9;
    pub const MEMORY: usize = 10;
    pub const ENERGY_UJ: usize = 11;
    pub const EMISSIONS_UG: usize = 12;
    /// Billionths of the currency.
    pub const COST_NANO: usize = 13;
}

/// What a machine had and did, for all its users together.
pub mod machine_figure {
    /// Time in which it was measured, and in which it was certainly not running.
    pub const MEASURED_MS: usize = 0;
    pub const DOWN_MS: usize = 1;
    /// Time of all its CPUs, and the part in which they computed.
    pub const CPU_CAPACITY_NS: usize = 2;
    pub const CPU_BUSY_NS: usize = 3;
    /// KiB × ms.
    pub const MEMORY_CAPACITY: usize = 4;
    pub const MEMORY_USED: usize = 5;
    /// Measured time in which it was known how many GPUs there were, and the time of all these. Sums of earlier versions
    /// have neither.
    pub const GPUS_KNOWN_MS: usize = 6;
    pub const GPU_CAPACITY_NS: usize = 7;
}

named! {
    /// What a row is a sum of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind {
        Who = "who",
        Node = "node",
        Command = "command",
        Machine = "machine",
    }
}

impl Kind {
    /// As it is stored.
    pub fn number(self) -> i64 {
        self as i64
    }
}

/// Whose or what a row is. What is not known, or not distinguished here, is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The same without a copy of its texts: an answer looks at as many groups as there are jobs, and keeps a few names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupRef<'a> {
    #[serde(borrow)]
    pub user: Option<&'a str>,
    pub uid: Option<u32>,
    #[serde(borrow)]
    pub account: Option<&'a str>,
    #[serde(borrow)]
    pub partition: Option<&'a str>,
    #[serde(borrow)]
    pub node: Option<&'a str>,
    #[serde(borrow)]
    pub command: Option<&'a str>,
}

impl<'a> From<&'a Group> for GroupRef<'a> {
    fn from(group: &'a Group) -> GroupRef<'a> {
        let Group { user, uid, account, partition, node, command } = group;
        GroupRef {
            user: user.as_deref(),
            uid: *uid,
            account: account.as_deref(),
            partition: partition.as_deref(),
            node: node.as_deref(),
            command: command.as_deref(),
        }
    }
}

/// The number of the bucket that a time is in.
pub fn bucket_of(time_ns: i64) -> i64 {
    time_ns.div_euclid(BUCKET_NS)
}

/// The UTC day of a bucket, and its place in it.
pub fn day_of(bucket: i64) -> (i64, usize) {
    let per_day = BUCKETS_PER_DAY as i64;
    (bucket.div_euclid(per_day), bucket.rem_euclid(per_day) as usize)
}

pub fn add(to: &mut Sums, amounts: &Amounts) {
    to.iter_mut().zip(amounts).for_each(|(sum, &amount)| *sum += i128::from(amount));
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
