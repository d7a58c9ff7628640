//! Where a figure comes from: the account it was read from, and what limits it.
//!
//! Files, messages and JSON hold one text: the account, then each caveat after a comma. Any text is read and written
//! back unchanged; what is not known here is part of the account's name.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    Cgroup,
    /// Resource usage of reaped processes.
    Rusage,
    ProcStat,
    /// Memory of single processes.
    Statm,
    TaskClock,
    /// The wall time of a job whose end only `met cancel` observed.
    Cancel,
    /// Records of Colmet's nodes, which are not authenticated.
    Colmet,
    Other(Cow<'static, str>),
}

/// What a figure does not include, or why it is less certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caveat {
    IdleEstimated,
    MeterMissing,
    /// CPU time of the job that samples did not see as its own.
    CpuUnseen,
    /// No daemon sampled the job for some time.
    NotWatched,
    /// Readings were missing or wrong, and the energy was divided over the gap.
    GapBridged,
    /// What a meter counted in a gap belongs to no job.
    EnergyUnassigned,
    /// GPUs and inner meters counted more than the meter of the node.
    MeterShort,
    /// A service ran containers for the job.
    NoContainers,
    /// The job ran more containers at once than are followed.
    SomeContainers,
    /// The command ran before it was moved into its cgroup.
    EnteredLate,
    /// A peak of samples some of which were so far apart.
    SecondsApart,
    MinuteApart,
}

const ACCOUNTS: [(Account, &str); 7] = [
    (Account::Cgroup, "cgroup"),
    (Account::Rusage, "rusage"),
    (Account::ProcStat, "/proc/PID/stat"),
    (Account::Statm, "/proc/PID/statm"),
    (Account::TaskClock, "perf task-clock"),
    (Account::Cancel, "met cancel"),
    (Account::Colmet, "colmet"),
];

/// In the order in which they are written.
const CAVEATS: [(Caveat, &str); 12] = [
    (Caveat::IdleEstimated, ", idle power estimated"),
    (Caveat::MeterMissing, ", a meter missing"),
    (Caveat::CpuUnseen, ", without processes that left its tree"),
    (Caveat::NotWatched, ", not watched all the time"),
    (Caveat::GapBridged, ", across missing readings"),
    (Caveat::EnergyUnassigned, ", part of it unassigned"),
    (Caveat::MeterShort, ", the node meter shows less than its parts"),
    (Caveat::NoContainers, ", containers not included"),
    (Caveat::SomeContainers, ", too many containers, some not included"),
    (Caveat::EnteredLate, ", without memory allocated before the cgroup was entered"),
    (Caveat::SecondsApart, ", samples up to 10 s apart"),
    (Caveat::MinuteApart, ", samples up to 60 s apart"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    pub account: Account,
    /// One bit for each of `Caveat`.
    caveats: u16,
}

impl Account {
    fn text(&self) -> &str {
        match self {
            Account::Other(text) => text,
            known => ACCOUNTS.iter().find(|(account, _)| account == known).map_or("", |(_, text)| text),
        }
    }
}

impl Provenance {
    /// How far apart samples of a peak were at most, in seconds, where that is further than those of most jobs.
    pub fn apart_s(&self) -> Option<u32> {
        let kinds = [(Caveat::MinuteApart, 60), (Caveat::SecondsApart, 10)];
        kinds.into_iter().find(|(caveat, _)| self.has(*caveat)).map(|(_, apart_s)| apart_s)
    }

    pub fn has(&self, caveat: Caveat) -> bool {
        self.caveats & 1 << caveat as u16 != 0
    }

    pub fn with(mut self, caveat: impl Into<Option<Caveat>>) -> Provenance {
        self.caveats |= caveat.into().map_or(0, |caveat| 1 << caveat as u16);
        self
    }

    pub fn with_caveats_of(self, other: &Provenance) -> Provenance {
        Provenance { caveats: self.caveats | other.caveats, ..self }
    }

    /// The same caveats on an account with these words after its own.
    pub fn followed_by(&self, words: &str) -> Provenance {
        let account = Account::Other(format!("{}{words}", self.account.text()).into());
        Provenance { account, caveats: self.caveats }
    }

    pub fn text(&self) -> Cow<'_, str> {
        match self.caveats {
            0 => Cow::Borrowed(self.account.text()),
            _ => Cow::Owned(self.to_string()),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.account.text())?;
        let mut caveats = CAVEATS.iter().filter(|(caveat, _)| self.has(*caveat));
        caveats.try_for_each(|(_, text)| to.write_str(text))
    }
}

impl From<Account> for Provenance {
    fn from(account: Account) -> Provenance {
        Provenance { account, caveats: 0 }
    }
}

impl From<Cow<'static, str>> for Provenance {
    fn from(mut text: Cow<'static, str>) -> Provenance {
        let mut caveats = 0;
        // Backwards, and each once: what is written again is the same text.
        for (caveat, ending) in CAVEATS.iter().rev() {
            if let Some(rest) = text.strip_suffix(ending).map(str::len) {
                caveats |= 1 << *caveat as u16;
                text = match text {
                    Cow::Borrowed(text) => Cow::Borrowed(&text[..rest]),
                    Cow::Owned(text) => Cow::Owned(text[..rest].to_owned()),
                };
            }
        }
        let known = ACCOUNTS.iter().find(|(_, name)| *name == text);
        let account = known.map_or(Account::Other(text), |(account, _)| account.clone());
        Provenance { account, caveats }
    }
}

impl From<&'static str> for Provenance {
    fn from(text: &'static str) -> Provenance {
        Cow::Borrowed(text).into()
    }
}

impl From<String> for Provenance {
    fn from(text: String) -> Provenance {
        Cow::<'static, str>::Owned(text).into()
    }
}

/// Code outside tests compares accounts and caveats.
#[cfg(any(test, feature = "tests"))]
impl PartialEq<&str> for Provenance {
    fn eq(&self, text: &&str) -> bool {
        self.text() == *text
    }
}

impl Serialize for Provenance {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Provenance {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Provenance, D::Error> {
        String::deserialize(from).map(Provenance::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_and_written_unchanged() {
        for text in [
            "",
            "cgroup",
            "cgroup, containers not included",
            "cgroup, containers not included, too many containers, some not included",
            // In another order than this version writes, and something unknown at the end.
            "cgroup, too many containers, some not included, containers not included",
            "cgroup, containers not included, containers not included",
            "IPMI, by CPU time, idle power estimated",
            "energy counter of GPUs; RAPL, by CPU time, a meter missing, seen by a newer version",
            ", a meter missing",
            "a meter missing",
        ] {
            let read = Provenance::from(text.to_owned());
            assert_eq!(read, text);
            assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(text).unwrap());
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::from_str::<Provenance>(&json).unwrap(), read);
        }
    }

    #[test]
    fn each_account_and_each_caveat_has_one_text() {
        for (index, (caveat, _)) in CAVEATS.iter().enumerate() {
            assert_eq!(*caveat as usize, index, "the order of the variants is that of the texts");
            for (account, name) in ACCOUNTS.iter() {
                let made = Provenance::from(account.clone()).with(*caveat);
                let read = Provenance::from(made.to_string());
                assert_eq!(read, made);
                assert!(made.to_string().starts_with(name) && made.has(*caveat));
                assert!(CAVEATS.iter().filter(|(other, _)| read.has(*other)).count() == 1);
            }
        }
    }

    #[test]
    fn a_condition_is_not_read_from_words_elsewhere_in_the_text() {
        let sensor = Provenance::from("sensor \"idle power estimated\" of a board");
        assert!(CAVEATS.iter().all(|(caveat, _)| !sensor.has(*caveat)));
        assert_eq!(sensor.account, Account::Other("sensor \"idle power estimated\" of a board".into()));
    }

    #[test]
    fn more_words_leave_the_caveats_at_the_end() {
        let read = Provenance::from("rusage, containers not included");
        assert_eq!(read.account, Account::Rusage);
        let more = read.followed_by(" and taskstats");
        assert_eq!(more, "rusage and taskstats, containers not included");
        assert!(more.has(Caveat::NoContainers));
    }
}
