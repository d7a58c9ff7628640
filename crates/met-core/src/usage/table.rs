//! Sums by group and period, added up from the rows of days.

use serde::{Deserialize, Serialize};

use super::row::each_run;
use super::{
    BUCKET_NS, BUCKETS_PER_DAY, Calendar, DayRow, Every, FIGURES, GroupRef, Kind, Period, Sums, Zone,
};
use crate::FastMap;
use crate::job::{JobKey, named};

/// Lines of one answer; more help no reader.
const LINES_MAX: usize = 100_000;
const NOWHERE: u32 = u32::MAX;

named! {
    /// What use is summed by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum By {
        System = "system",
        User = "user",
        Account = "account",
        Partition = "partition",
        Node = "node",
        Command = "command",
    }
}

impl By {
    /// The rows that it is added up from.
    pub fn kind(self) -> Kind {
        match self {
            By::System | By::User | By::Account | By::Partition => Kind::Who,
            By::Node => Kind::Node,
            By::Command => Kind::Command,
        }
    }

    pub fn name_of(self, group: GroupRef<'_>) -> Option<&str> {
        match self {
            By::System => Some(""),
            By::User => group.user,
            By::Account => group.account,
            By::Partition => group.partition,
            By::Node => group.node,
            By::Command => group.command,
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAsk {
    /// Unix nanoseconds; whole quarters of an hour are answered.
    pub from_ns: i64,
    pub to_ns: i64,
    pub by: By,
    pub every: Every,
    pub zone: Zone,
    /// Only what has this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Jobs that another source counts. Daemons of earlier versions count them all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<JobKey>,
}

/// Jobs of [`UsageAsk::except`]: each is looked up.
pub const EXCEPT_MAX: usize = 2_000;
/// As long as sums of 15 minutes can be asked for: ten years.
const SPAN_MAX_NS: i64 = 3_660 * 86_400_000_000_000;

impl UsageAsk {
    /// Everything of a time, with days of UTC.
    pub fn new(from_ns: i64, to_ns: i64, by: By, every: Every) -> UsageAsk {
        UsageAsk {
            from_ns,
            to_ns,
            by,
            every,
            zone: Zone::default(),
            user: None,
            account: None,
            partition: None,
            node: None,
            except: Vec::new(),
        }
    }

    /// Why it cannot be answered.
    pub fn problem(&self) -> Option<&'static str> {
        let length = self.to_ns.checked_sub(self.from_ns);
        if !self.zone.is_sound() {
            return Some("the time zone is malformed");
        }
        if length.is_none_or(|length| length <= 0) {
            return Some("the time must end after it begins");
        }
        if length.is_some_and(|length| length > SPAN_MAX_NS) {
            return Some("at most ten years can be summed");
        }
        if self.except.len() > EXCEPT_MAX {
            return Some("at most 2000 jobs can be left out");
        }
        let other = [&self.partition, &self.node].into_iter().any(Option::is_some);
        if other && self.by == By::Command {
            return Some("sums by command cannot be narrowed to a partition or node");
        }
        if self.by == By::Command && matches!(self.every, Every::Hour | Every::HourOfDay | Every::HourOfWeek)
        {
            return Some("commands are summed by day, week, month or weekday");
        }
        if self.partition.is_some() && self.kind() == Kind::Node {
            return Some("sums of nodes cannot be narrowed to a partition");
        }
        None
    }

    /// The rows that it is added up from.
    pub fn kind(&self) -> Kind {
        if self.node.is_some() { Kind::Node } else { self.by.kind() }
    }

    pub fn accepts(&self, group: GroupRef<'_>) -> bool {
        let fits =
            |wanted: &Option<String>, known: Option<&str>| wanted.is_none() || wanted.as_deref() == known;
        fits(&self.user, group.user)
            && fits(&self.account, group.account)
            && fits(&self.partition, group.partition)
            && fits(&self.node, group.node)
    }

    pub fn calendar(&self) -> Calendar {
        if self.by != By::Command {
            return Calendar::new(self.from_ns, self.to_ns, &self.zone, self.every);
        }
        // Sums of commands are of whole days of UTC.
        let day_ns = BUCKETS_PER_DAY as i64 * BUCKET_NS;
        let from_ns = self.from_ns.div_euclid(day_ns) * day_ns;
        Calendar::new(from_ns, self.to_ns, &Zone::default(), self.every)
    }
}

/// More lines than an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageTooLong;

/// One sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageLine {
    /// `None`: not known.
    pub name: Option<String>,
    /// The place in [`Usage::periods`].
    pub period: usize,
    #[serde(with = "as_text")]
    pub sums: Sums,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub periods: Vec<Period>,
    /// What jobs held and used, by name and period.
    pub lines: Vec<UsageLine>,
    /// What machines had and did: of each if it is asked by node, else of all together.
    pub machines: Vec<UsageLine>,
    /// Machine and time since which it is known.
    pub machine_since: Vec<(String, i64)>,
    /// Jobs that are stored and not added up yet.
    pub pending: u64,
    /// Who asked does not see the jobs of all: what is in no line may be held all the same.
    #[serde(default)]
    pub is_partial: bool,
}

/// Adds up rows.
pub struct Table<'a> {
    by: By,
    calendar: &'a Calendar,
    /// By name; and the sums of each by period.
    names: FastMap<String, usize>,
    nameless: Option<usize>,
    sums: Vec<Sums>,
    /// The last day that was added to: rows come day by day.
    day: Option<Day>,
}

/// Into which periods the buckets of a day are added.
struct Day {
    day: i64,
    periods: [u32; BUCKETS_PER_DAY],
    /// Of each bucket: behind the last one that follows it in the same period.
    ends: [usize; BUCKETS_PER_DAY],
}

impl<'a> Table<'a> {
    pub fn new(by: By, calendar: &'a Calendar) -> Table<'a> {
        Table { by, calendar, names: FastMap::default(), nameless: None, sums: Vec::new(), day: None }
    }

    /// The place of a group's sums.
    pub fn place<'g>(&mut self, group: impl Into<GroupRef<'g>>) -> Result<usize, UsageTooLong> {
        let name = self.by.name_of(group.into());
        let known = name.map_or(self.nameless, |name| self.names.get(name).copied());
        if let Some(place) = known {
            return Ok(place);
        }
        let next = self.names.len() + usize::from(self.nameless.is_some());
        let periods = self.calendar.periods.len();
        if (next + 1) * periods > LINES_MAX.max(periods) {
            return Err(UsageTooLong);
        }
        match name {
            Some(name) => drop(self.names.insert(name.to_owned(), next)),
            None => self.nameless = Some(next),
        }
        self.sums.resize((next + 1) * periods, [0; FIGURES]);
        Ok(next)
    }

    /// Adds the stored row of a day; false if it is damaged.
    pub fn add_encoded(&mut self, place: usize, day: i64, bytes: &[u8]) -> bool {
        // Large, and the same for the rows of a day: it stays where it is.
        self.day.take_if(|known| known.day != day);
        let of_day = self.day.get_or_insert_with(|| Day::new(day, periods_of(self.calendar, day)));
        let begin = place * self.calendar.periods.len();
        let sums = &mut self.sums[begin..];
        let is_whole = each_run(bytes, |figure, from, to, value| {
            let mut at = from;
            while at < to {
                let (period, end) = (of_day.periods[at], of_day.ends[at].min(to));
                if period != NOWHERE {
                    sums[period as usize][figure] += i128::from(value) * (end - at) as i128;
                }
                at = end;
            }
        });
        is_whole.is_some()
    }

    /// Adds a row, or takes it back.
    pub fn add(&mut self, place: usize, day: i64, row: &DayRow, sign: i128) {
        let periods = periods_of(self.calendar, day);
        let begin = place * self.calendar.periods.len();
        for (amounts, &period) in row.buckets.iter().zip(&periods).filter(|(_, period)| **period != NOWHERE) {
            let sums = &mut self.sums[begin + period as usize];
            sums.iter_mut().zip(amounts).for_each(|(sum, &amount)| *sum += sign * i128::from(amount));
        }
    }

    /// Lines with anything in them, by name and period.
    pub fn finish(self) -> Vec<UsageLine> {
        let periods = self.calendar.periods.len();
        let named = self.names.into_iter().map(|(name, place)| (Some(name), place));
        let mut names: Vec<(Option<String>, usize)> =
            named.chain(self.nameless.map(|place| (None, place))).collect();
        names.sort();
        let mut lines = Vec::new();
        for (name, place) in names {
            for period in 0..periods {
                let sums = self.sums[place * periods + period];
                if sums.iter().any(|&sum| sum != 0) {
                    lines.push(UsageLine { name: name.clone(), period, sums });
                }
            }
        }
        lines
    }
}

fn periods_of(calendar: &Calendar, day: i64) -> [u32; BUCKETS_PER_DAY] {
    let first = day.saturating_mul(BUCKETS_PER_DAY as i64).saturating_sub(calendar.first);
    let place = |at: usize| {
        let at = usize::try_from(first.saturating_add(at as i64)).ok();
        at.and_then(|at| calendar.places.get(at)).copied().unwrap_or(NOWHERE)
    };
    std::array::from_fn(place)
}

impl Day {
    fn new(day: i64, periods: [u32; BUCKETS_PER_DAY]) -> Day {
        let mut ends = [BUCKETS_PER_DAY; BUCKETS_PER_DAY];
        for at in (1..BUCKETS_PER_DAY).rev() {
            ends[at - 1] = if periods[at - 1] == periods[at] { ends[at] } else { at };
        }
        Day { day, periods, ends }
    }
}

/// Numbers of more than 64 bits as text: JSON readers have none.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{FIGURES, Sums};

    pub fn serialize<S: Serializer>(sums: &Sums, to: S) -> Result<S::Ok, S::Error> {
        let words: Vec<String> = sums.iter().map(i128::to_string).collect();
        to.serialize_str(&words.join(" "))
    }

    /// Further figures of a newer program are left out.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Sums, D::Error> {
        let text = String::deserialize(from)?;
        let mut sums = [0; FIGURES];
        for (sum, word) in sums.iter_mut().zip(text.split(' ')) {
            *sum = word.parse().map_err(|_| D::Error::custom("not a number"))?;
        }
        Ok(sums)
    }
}
