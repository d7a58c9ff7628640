//! Messages of Colmet's variant in Rust (2019): MessagePack of `{job_id: [hostname, timestamp_ms, [[backend, [id…],
//! [value…]], …]]}`, and the message that sets its events and period.

use super::{At, Backend, Bad, Record, Value, is_hostname};

/// Jobs of one message; more are not read.
const JOBS_MAX: usize = 4096;
const LISTS_MAX: usize = 16;
const METRICS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 4096;

/// The figures of one job at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub job_id: u64,
    pub hostname: String,
    pub time_ms: i64,
    /// Ids of [`metric`] with their values, in the order of the message.
    pub metrics: Vec<(u64, Option<i64>)>,
}

impl Sample {
    /// Its events as a record: the first five of the message, in their order. Colmet's tables have no columns for the rest.
    pub fn record(&self) -> Option<Record> {
        let timestamp = u64::try_from(self.time_ms / 1000).ok()?;
        let mut record = Record::new(Backend::Perfhw, &self.hostname, self.job_id, timestamp);
        let is_event = |id: u64| matches!(metric(id), Some(Metric::Event(_)));
        let events = self.metrics.iter().filter(|&&(id, _)| is_event(id));
        let mut counts = events.map(|&(_, count)| count.map(Value::Int));
        record.set_all(|_, _| counts.next().flatten());
        let is_known = record.values().any(|(_, value)| value.is_some());
        is_known.then_some(record)
    }
}

/// What an id denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    Cell(At),
    /// A perf event by its name in the catalogue.
    Event(&'static str),
}

/// The statistics of a cgroup's memory, ids 1 to 17; those from 18 to 33 are the first 16 with all cgroups below.
const MEMORY: [Option<At>; 17] = {
    const fn detail(column: &'static str) -> Option<At> {
        Some(At { table: "job_detail", column })
    }
    [
        Some(At { table: "job", column: "memory_cache" }),
        detail("memory_anonymous"),
        detail("memory_huge"),
        Some(At { table: "job", column: "memory_shared" }),
        detail("memory_mapped"),
        detail("memory_dirty"),
        detail("memory_writeback"),
        detail("pages_charged"),
        detail("pages_uncharged"),
        detail("page_faults"),
        detail("page_faults_major"),
        detail("memory_inactive_anonymous"),
        detail("memory_active_anonymous"),
        detail("memory_inactive_file"),
        detail("memory_active_file"),
        detail("memory_unevictable"),
        detail("memory_limit"),
    ]
};

/// Ids 34 to 36.
const QUOTA: [At; 3] = [
    At { table: "job_detail", column: "cpu_quota_periods" },
    At { table: "job", column: "cpu_throttles" },
    At { table: "job", column: "cpu_throttled" },
];

/// The events, from id 37 on, in the order of the variant's list.
pub const EVENTS: [&str; 28] = [
    "cpu_cycles",
    "instructions",
    "cache_references",
    "cache_misses",
    "branch_instructions",
    "branch_misses",
    "bus_cycles",
    "ref_cpu_cycles",
    "cache_l1d",
    "cache_ll",
    "cache_dtlb",
    "cache_itlb",
    "cache_bpu",
    "cache_node",
    "cache_op_read",
    "cache_op_prefetch",
    "cache_result_access",
    "cpu_clock",
    "task_clock",
    "page_faults",
    "context_switches",
    "cpu_migrations",
    "page_faults_min",
    "page_faults_maj",
    "alignment_faults",
    "emulation_faults",
    "dummy",
    "bpf_output",
];

pub fn metric(id: u64) -> Option<Metric> {
    let index = usize::try_from(id).ok()?;
    match index {
        1..=17 => MEMORY[index - 1].map(Metric::Cell),
        18..=33 => MEMORY[index - 18].map(Metric::Cell),
        34..=36 => Some(Metric::Cell(QUOTA[index - 34])),
        37..=64 => Some(Metric::Event(EVENTS[index - 37])),
        _ => None,
    }
}

/// Whether the id counts a cgroup together with those below it: it is believed where both are there.
pub fn is_total(id: u64) -> bool {
    (18..=33).contains(&id)
}

/// Whether a message is of the variant: records begin with a letter.
pub fn is_variant(message: &[u8]) -> bool {
    matches!(message.first(), Some(0x80..=0x8f | 0xde | 0xdf))
}

/// The samples of a message.
pub fn samples(message: &[u8]) -> Result<Vec<Sample>, Bad> {
    let mut reader = Reader { rest: message };
    let samples = reader.samples().ok_or(Bad::MessagePack)?;
    match reader.rest.is_empty() {
        true => Ok(samples),
        false => Err(Bad::MessagePack),
    }
}

/// What a message of live configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The names of the events, as they were written.
    pub perfhw_metrics: Option<Vec<String>>,
    /// Seconds, as they were written.
    pub sample_period: Option<String>,
}

/// Reads `{"perfhw_metrics": "a,b", "sample_period": "1.5"}`; other keys are refused.
pub fn settings(message: &[u8]) -> Result<Settings, Bad> {
    let mut reader = Reader { rest: message };
    let settings = reader.settings().ok_or(Bad::MessagePack)?;
    match reader.rest.is_empty() {
        true => Ok(settings),
        false => Err(Bad::MessagePack),
    }
}

/// Reads MessagePack from the front.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (own, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(own)
    }

    /// A big-endian number.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn int(&mut self) -> Option<i64> {
        Some(match self.byte()? {
            byte @ 0x00..=0x7f => i64::from(byte),
            byte @ 0xe0..=0xff => i64::from(byte as i8),
            0xcc => self.number(1)? as i64,
            0xcd => self.number(2)? as i64,
            0xce => self.number(4)? as i64,
            0xcf => i64::try_from(self.number(8)?).ok()?,
            0xd0 => i64::from(self.number(1)? as i8),
            0xd1 => i64::from(self.number(2)? as i16),
            0xd2 => i64::from(self.number(4)? as i32),
            0xd3 => self.number(8)? as i64,
            _ => return None,
        })
    }

    fn text(&mut self) -> Option<&'a str> {
        let bytes = match self.byte()? {
            byte @ 0xa0..=0xbf => usize::from(byte & 0x1f),
            0xd9 => self.number(1)? as usize,
            0xda => self.number(2)? as usize,
            0xdb => self.number(4)? as usize,
            _ => return None,
        };
        (bytes <= TEXT_BYTES_MAX)
            .then(|| self.take(bytes))
            .flatten()
            .and_then(|text| std::str::from_utf8(text).ok())
    }

    /// The length of a list or map of at most `most` entries.
    fn length(&mut self, fix: u8, wide: u8, most: usize) -> Option<usize> {
        let length = match self.byte()? {
            byte if byte & 0xf0 == fix => usize::from(byte & 0x0f),
            byte if byte == wide => self.number(2)? as usize,
            byte if byte == wide + 1 => self.number(4)? as usize,
            _ => return None,
        };
        (length <= most).then_some(length)
    }

    fn list(&mut self, most: usize) -> Option<usize> {
        self.length(0x90, 0xdc, most)
    }

    fn map(&mut self, most: usize) -> Option<usize> {
        self.length(0x80, 0xde, most)
    }

    fn samples(&mut self) -> Option<Vec<Sample>> {
        let jobs = self.map(JOBS_MAX)?;
        (0..jobs).map(|_| self.sample()).collect()
    }

    fn sample(&mut self) -> Option<Sample> {
        let job_id = u64::try_from(self.int()?).ok()?;
        (self.list(3)? == 3).then_some(())?;
        let hostname = self.text().filter(|name| is_hostname(name))?.to_owned();
        let time_ms = self.int()?;
        let mut metrics = Vec::new();
        for _ in 0..self.list(LISTS_MAX)? {
            (self.list(3)? == 3).then_some(())?;
            self.text()?;
            let ids: Option<Vec<i64>> = (0..self.list(METRICS_MAX)?).map(|_| self.int()).collect();
            let ids = ids?;
            let values: Option<Vec<i64>> = (0..self.list(METRICS_MAX)?).map(|_| self.int()).collect();
            let values = values?;
            (ids.len() == values.len()).then_some(())?;
            let known =
                ids.into_iter().zip(values).map(|(id, value)| (id, Some(value).filter(|&value| value >= 0)));
            metrics.extend(known.filter_map(|(id, value)| Some((u64::try_from(id).ok()?, value))));
        }
        Some(Sample { job_id, hostname, time_ms, metrics })
    }

    fn settings(&mut self) -> Option<Settings> {
        let mut settings = Settings::default();
        for _ in 0..self.map(2)? {
            match (self.text()?, self.text()?) {
                ("perfhw_metrics", names) => {
                    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                    settings.perfhw_metrics = Some(names.map(str::to_owned).collect());
                }
                ("sample_period", period) => settings.sample_period = Some(period.trim().to_owned()),
                _ => return None,
            }
        }
        Some(settings)
    }
}
