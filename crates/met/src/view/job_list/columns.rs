//! The columns of lists: where their cells come from.

use met_core::JOB;
use met_core::job::{GpuUse, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::listing::{self, SortColumn};
use met_core::units::{self, Scale};
use met_insight::report::cause;
use met_insight::{allocation, average, gpu};

use crate::view::text;

/// Which columns a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// What matters most
    #[default]
    Jobs,
    /// CPU and memory in percent
    Cpu,
    /// Bytes read and written
    Io,
    /// Memory
    Mem,
    /// GPUs
    Gpu,
    /// Energy, CO2e and cost
    Energy,
    /// Everything
    All,
}

impl View {
    pub(super) fn columns(self) -> &'static [ListColumn] {
        match self {
            View::Jobs => JOBS,
            View::Cpu => CPU,
            View::Io => IO,
            View::Mem => MEM,
            View::Gpu => GPU,
            View::Energy => ENERGY,
            View::All => EVERYTHING,
        }
    }
}

/// One column of a list: what it is called and where its cells come from.
#[derive(Clone, Copy)]
pub(super) struct ListColumn {
    pub(super) header: &'static str,
    /// For a narrow terminal.
    pub(super) short: &'static str,
    pub(super) csv: &'static str,
    pub(super) side: Side,
    /// The column with the highest rank leaves first when the terminal is narrow; 0 stays.
    pub(super) rank: u8,
    pub(super) show: Show,
    pub(super) value: fn(&Job) -> Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    /// Left, and cut when room is short.
    Flexible,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Always,
    /// Only where it differs between jobs.
    IfSeveral,
    /// Only where something is known of one of them.
    IfKnown,
    /// For programs; people see it in another column.
    InCsv,
}

pub(super) enum Value {
    /// Foreign text; escaped when it is shown.
    Text(Option<String>),
    /// Our own words for people, why it failed, and the word for programs.
    State(String, Option<String>, State),
    Amount(Option<Amount>),
    Time(Option<i64>),
}

/// A number for programs, and how people see it.
pub(super) struct Amount {
    pub(super) value: f64,
    /// How well it is known.
    pub(super) kind: QualityKind,
    pub(super) format: Format,
    /// Printed after it, such as a currency.
    pub(super) unit: String,
}

#[derive(Clone, Copy)]
pub(super) enum Format {
    /// Each cell as it is read best.
    Alone(fn(f64) -> String),
    /// One unit for the whole column, of these.
    Together(&'static [Scale]),
}

impl Value {
    pub(super) fn amount(value: Option<f64>, kind: QualityKind, format: Format) -> Value {
        Value::Amount(value.map(|value| Amount { value, kind, format, unit: String::new() }))
    }

    /// One that is as it is: a time, a request, something of which the mean of samples is all there is.
    pub(super) fn plain(value: Option<f64>, format: fn(f64) -> String) -> Value {
        Value::amount(value, QualityKind::Measured, Format::Alone(format))
    }
}

pub(super) struct Job<'a> {
    pub(super) record: &'a Record,
    pub(super) now_ns: i64,
}

pub(super) const fn text_column(
    header: &'static str,
    csv: &'static str,
    value: fn(&Job) -> Value,
) -> ListColumn {
    ListColumn { header, short: header, csv, side: Side::Left, rank: 0, show: Show::Always, value }
}

pub(super) const fn number_column(
    header: &'static str,
    csv: &'static str,
    value: fn(&Job) -> Value,
) -> ListColumn {
    ListColumn { side: Side::Right, ..text_column(header, csv, value) }
}

impl ListColumn {
    pub(super) const fn rank(self, rank: u8) -> ListColumn {
        ListColumn { rank, ..self }
    }

    pub(super) const fn short(self, short: &'static str) -> ListColumn {
        ListColumn { short, ..self }
    }

    pub(super) const fn side(self, side: Side) -> ListColumn {
        ListColumn { side, ..self }
    }

    pub(super) const fn show(self, show: Show) -> ListColumn {
        ListColumn { show, ..self }
    }
}

pub(super) const ID: ListColumn = text_column("JOB", "job", |job| Value::Text(Some(job.record.label())));
pub(super) const MANAGER: ListColumn =
    text_column("MANAGER", "manager", |job| Value::Text(Some(job.record.key.manager.clone())))
        .rank(5)
        .show(Show::InCsv);
pub(super) const NAME: ListColumn =
    text_column("NAME", "name", |job| Value::Text(Some(job.record.name.clone()))).side(Side::Flexible);
pub(super) const USER: ListColumn =
    text_column("USER", "user", |job| Value::Text(job.user())).rank(6).show(Show::IfSeveral);
/// A job inside another one is counted there, too: leave it out of sums.
pub(super) const INSIDE: ListColumn =
    text_column("INSIDE", "inside", |job| Value::Text(job.record.inside.clone())).rank(5).show(Show::IfKnown);
pub(super) const STATE: ListColumn = text_column("STATE", "state", |job| {
    Value::State(state_words(job.record.state), cause(job.record), job.record.state)
});
pub(super) const CORES: ListColumn = number_column("CORES", "cores", |job| job.cores(units::cores)).rank(1);
pub(super) const MEMORY: ListColumn = number_column("MEMORY", "memory_needed_peak_bytes", |job| {
    job.total(column::MEMORY_NEEDED_PEAK, units::bytes)
})
.rank(2);
pub(super) const READ: ListColumn =
    number_column("READ", "read_bytes", |job| job.total(column::READ, units::bytes)).rank(4);
pub(super) const WRITTEN: ListColumn =
    number_column("WRITTEN", "written_bytes", |job| job.total(column::WRITTEN, units::bytes)).rank(3);
pub(super) const READ_CALL: ListColumn =
    number_column("READ CALLS", "read_call_bytes", |job| job.total(column::READ_CALL, units::bytes)).rank(8);
pub(super) const WRITE_CALL: ListColumn =
    number_column("WRITE CALLS", "write_call_bytes", |job| job.total(column::WRITE_CALL, units::bytes))
        .rank(8);
pub(super) const WITH_CACHE: ListColumn =
    number_column("WITH CACHE", "memory_peak_bytes", |job| job.total(column::MEMORY_PEAK, units::bytes))
        .rank(9);
pub(super) const MEMORY_RATIO: ListColumn =
    number_column("OF NODE", "memory_ratio", |job| job.memory_ratio(units::percent)).rank(3);
pub(super) const DURATION: ListColumn =
    number_column("DURATION", "wall_seconds", |job| Value::plain(job.wall_seconds(), units::duration))
        .rank(1);
pub(super) const STARTED: ListColumn =
    number_column("STARTED", "start", |job| Value::Time(job.record.start_ns)).rank(7);

pub(super) static JOBS: &[ListColumn] =
    &[ID, MANAGER, NAME, USER, STATE, CORES, MEMORY, READ, WRITTEN, DURATION, STARTED, INSIDE];

/// As that tool calls it.
pub(super) const PROCESS_NAME: ListColumn = ListColumn { header: "PROCESS NAME", ..NAME };

/// The columns of a tool that people come from, with the job's own number in front.
pub(super) static CPU: &[ListColumn] = &[
    ID,
    text_column("PPID", "ppid", |job| Value::Text(job.main_pid())).rank(3),
    PROCESS_NAME,
    text_column("CPU % (AVG)", "cores", |job| job.cores(units::percent_fixed)).short("CPU %"),
    text_column("MEM % (AVG)", "memory_ratio", |job| job.memory_ratio(units::percent_fixed))
        .short("MEM %")
        .rank(2),
    text_column("STATUS", "state", |job| Value::State(job.status(), cause(job.record), job.record.state)),
    DURATION.side(Side::Left),
];

/// Of the same tool, with the GPUs.
pub(super) static GPU: &[ListColumn] = &[
    ID,
    text_column("PPID", "ppid", |job| Value::Text(job.main_pid())).rank(8),
    PROCESS_NAME,
    text_column("GPU UTIL (AVG)", "gpu_ratio", |job| {
        Value::plain(gpu::ratio(job.record), units::percent_fixed)
    })
    .short("UTIL"),
    text_column("MEM (AVG)", "gpu_memory_bytes", |job| {
        Value::plain(gpu::memory_bytes(job.record), units::gibibytes_fixed)
    })
    .short("MEM")
    .rank(4),
    text_column("TOTAL ENERGY", "gpu_energy_joules", |job| {
        job.total(column::GPU_ENERGY, units::watt_hours_fixed)
    })
    .short("ENERGY")
    .rank(2),
    text_column("MAX TEMP", "gpu_temperature_max_celsius", |job| {
        Value::plain(gpu::temperature_celsius(job.record), units::celsius_fixed)
    })
    .short("TEMP")
    .rank(5),
    text_column("STATUS", "state", |job| Value::State(job.status(), cause(job.record), job.record.state)),
    DURATION.rank(3).short("TIME").side(Side::Left),
    text_column("CARDS", "cards", |job| Value::Text(job.gpus())).rank(9),
];

pub(super) static ENERGY: &[ListColumn] = &[
    ID,
    MANAGER,
    NAME,
    USER,
    STATE,
    number_column("ENERGY", "energy_joules", |job| job.energy(column::ENERGY)),
    number_column("CPU", "energy_cpu_joules", |job| job.energy(column::ENERGY_CPU)).rank(4),
    number_column("MEMORY", "energy_memory_joules", |job| job.energy(column::ENERGY_MEMORY)).rank(6),
    number_column("GPU", "gpu_energy_joules", |job| job.energy(column::GPU_ENERGY))
        .rank(5)
        .show(Show::IfKnown),
    number_column("REST", "energy_rest_joules", |job| job.energy(column::ENERGY_REST)).rank(7),
    number_column("IDLE", "energy_idle_joules", |job| job.energy(column::ENERGY_IDLE)).rank(3),
    number_column("CO2E", "emissions_grams", |job| {
        job.figure(column::EMISSIONS, Format::Together(&units::EMISSIONS))
    })
    .rank(1),
    number_column("COST", "cost_money", |job| job.cost()).rank(2).show(Show::IfKnown),
    text_column("QUALITY", "energy_quality", |job| Value::Text(job.energy_quality())).rank(8),
    DURATION.rank(2),
];

pub(super) static IO: &[ListColumn] = &[
    ID,
    MANAGER,
    NAME,
    USER,
    STATE,
    READ.rank(0),
    WRITTEN.rank(0),
    number_column("READ/S", "read_bytes_per_second", |job| job.per_second(column::READ)).rank(2),
    number_column("WRITTEN/S", "written_bytes_per_second", |job| job.per_second(column::WRITTEN)).rank(2),
    READ_CALL,
    WRITE_CALL,
    DURATION,
];

pub(super) static MEM: &[ListColumn] = &[
    ID,
    MANAGER,
    NAME,
    USER,
    STATE,
    number_column("AVERAGE", "memory_needed_bytes", |job| job.level(column::MEMORY_NEEDED)).rank(1),
    ListColumn { header: "PEAK", short: "PEAK", ..MEMORY.rank(0) },
    MEMORY_RATIO,
    number_column("CACHE", "memory_cache_bytes", |job| job.level(column::MEMORY_CACHE)).rank(4),
    WITH_CACHE,
    number_column("MAJOR FAULTS", "page_faults_major", |job| {
        job.total(column::PAGE_FAULTS_MAJOR, units::count)
    })
    .rank(10),
    DURATION,
];

pub(super) static EVERYTHING: &[ListColumn] = &[
    ID,
    MANAGER,
    NAME,
    USER.show(Show::Always),
    text_column("ACCOUNT", "account", |job| Value::Text(job.record.account.clone()))
        .rank(7)
        .show(Show::IfKnown),
    text_column("PARTITION", "partition", |job| Value::Text(job.record.scheduling.partition.clone()))
        .rank(8)
        .show(Show::IfKnown),
    STATE,
    number_column("EXIT", "exit", |job| Value::Text(job.exit())).rank(6),
    CORES,
    number_column("CPU TIME", "cpu_seconds", |job| job.total(column::CPU, units::duration)).rank(5),
    MEMORY,
    number_column("REQUESTED", "requested_memory_bytes", |job| {
        let bytes = job.record.requested.memory_bytes;
        Value::plain(bytes.map(|bytes| bytes as f64), units::bytes)
    })
    .rank(8)
    .show(Show::IfKnown),
    MEMORY_RATIO,
    WITH_CACHE,
    READ,
    WRITTEN,
    READ_CALL,
    WRITE_CALL,
    number_column("PROCESSES", "processes", |job| job.total(column::PROCESSES, units::count)).rank(9),
    number_column("THREADS", "threads_peak", |job| job.total(column::THREADS_PEAK, units::count)).rank(9),
    number_column("QUEUED", "queue_wait_seconds", |job| {
        let wait_ns = allocation::queue_wait_ns(job.record, job.now_ns);
        Value::plain(wait_ns.map(|ns| ns as f64 / 1e9), units::duration)
    })
    .rank(8)
    .show(Show::IfKnown),
    DURATION,
    STARTED,
    text_column("COMMAND", "command", |job| Value::Text(Some(text::command_line(&job.record.command))))
        .rank(10)
        .side(Side::Flexible),
    INSIDE,
];

/// What lists can be sorted by and no view has.
pub(super) static SORTED: &[ListColumn] = &[
    number_column("ENDED", "end", |job| Value::Time(job.record.end_ns)),
    number_column("NODES", "nodes", |job| job.count(listing::nodes(job.record))),
    number_column("EFFICIENCY", "efficiency", |job| {
        let share = listing::efficiency_millionths(job.record, job.now_ns).map(|share| share as f64 / 1e6);
        Value::amount(share, job.kind_of(column::CPU), Format::Alone(units::percent))
    }),
    number_column("GPUS", "gpus", |job| job.count(listing::gpus(job.record))),
    text_column("TAGS", "tags", |job| {
        let tags: Vec<&str> = job.record.annotation.tags.iter().map(String::as_str).collect();
        Value::Text((!tags.is_empty()).then(|| tags.join(" ")))
    })
    .side(Side::Flexible),
];

/// The column that shows what a list is sorted by, by its name for programs.
pub(super) fn sorted_by(sort: SortColumn) -> &'static str {
    match sort {
        SortColumn::Duration => "wall_seconds",
        SortColumn::Cpu => "cpu_seconds",
        SortColumn::Memory => "memory_needed_peak_bytes",
        SortColumn::MemoryPeak => "memory_peak_bytes",
        SortColumn::Read => "read_bytes",
        SortColumn::Written => "written_bytes",
        SortColumn::GpuUtilization => "gpu_ratio",
        SortColumn::Energy => "energy_joules",
        SortColumn::Emissions => "emissions_grams",
        SortColumn::Queued => "queue_wait_seconds",
        same => same.name(),
    }
}

/// The columns of a view. Without a choice of columns what the list is sorted by is among them, whatever the width.
pub(super) fn columns(view: View, sort: Option<SortColumn>) -> Vec<ListColumn> {
    let mut columns = view.columns().to_vec();
    let Some(name) = sort.filter(|_| view == View::Jobs).map(sorted_by) else { return columns };
    if columns.iter().all(|column| column.csv != name) {
        let all = EVERYTHING.iter().chain(ENERGY).chain(GPU).chain(SORTED);
        let behind = columns.iter().position(|column| column.csv == STATE.csv).map_or(0, |state| state + 1);
        let sorted = all.copied().find(|column| column.csv == name);
        columns.splice(behind..behind, sorted.map(|column| column.short(column.header)));
    }
    let shown = columns.iter_mut().filter(|column| column.csv == name);
    shown.for_each(|column| *column = column.rank(0).show(Show::Always));
    columns
}

impl Job<'_> {
    pub(super) fn count(&self, count: Option<i64>) -> Value {
        Value::plain(count.map(|count| count as f64), units::count)
    }

    pub(super) fn user(&self) -> Option<String> {
        // A user who is no longer in the password file is shown as a number.
        self.record.user.clone().or_else(|| self.record.uid.map(|uid| uid.to_string()))
    }

    pub(super) fn main_pid(&self) -> Option<String> {
        Some(self.record.local.as_ref()?.main?.pid.to_string())
    }

    /// Each GPU with what the job used of it; of many, how many and which idle.
    pub(super) fn gpus(&self) -> Option<String> {
        const EACH_MAX: usize = 4;
        let is_idle = |gpu: &GpuUse| gpu.used_ns == 0 && gpu.idle_since_ns.is_some();
        let one = |gpu: &GpuUse| match gpu.utilization {
            _ if is_idle(gpu) => format!("{}: idle", gpu.index),
            Some(used) => format!("{}: {}", gpu.index, units::percent(used)),
            None => gpu.index.clone(),
        };
        let gpus = &self.record.gpus;
        let idle: Vec<&str> = gpus.iter().filter(|gpu| is_idle(gpu)).map(|gpu| gpu.index.as_str()).collect();
        match gpus.len() {
            0 => None,
            1..=EACH_MAX => Some(gpus.iter().map(one).collect::<Vec<_>>().join(", ")),
            count if idle.is_empty() => Some(format!("{count} GPUs")),
            count if idle.len() == count => Some(format!("{count} GPUs, all idle")),
            count if idle.len() <= EACH_MAX => Some(format!("{count} GPUs, idle: {}", idle.join(" "))),
            count => Some(format!("{count} GPUs, {} idle", idle.len())),
        }
    }

    pub(super) fn exit(&self) -> Option<String> {
        match (self.record.signal, self.record.exit_code) {
            (Some(signal), _) => Some(format!("signal {signal}")),
            (None, code) => code.map(|code| code.to_string()),
        }
    }

    pub(super) fn wall_seconds(&self) -> Option<f64> {
        Some(average::wall_ns(self.record, self.now_ns)? as f64 / 1e9)
    }

    pub(super) fn total(&self, index: usize, format: fn(f64) -> String) -> Value {
        self.figure(index, Format::Alone(format))
    }

    pub(super) fn energy(&self, index: usize) -> Value {
        self.figure(index, Format::Together(&units::ENERGY))
    }

    pub(super) fn figure(&self, index: usize, format: Format) -> Value {
        let figure = self.record.totals.figure(index);
        let value = figure.map(|figure| JOB.columns[index].scaled(figure.value));
        Value::amount(value, self.kind_of(index), format)
    }

    pub(super) fn kind_of(&self, index: usize) -> QualityKind {
        self.record.totals.figure(index).map_or(QualityKind::Measured, |figure| figure.kind)
    }

    /// The price that it was computed with names the currency.
    pub(super) fn cost(&self) -> Value {
        let Some(figure) = self.record.totals.figure(column::COST) else { return Value::Amount(None) };
        Value::Amount(Some(Amount {
            value: JOB.columns[column::COST].scaled(figure.value),
            kind: figure.kind,
            format: Format::Alone(units::money),
            unit: figure.source.text().split(' ').next().unwrap_or("").to_owned(),
        }))
    }

    pub(super) fn energy_quality(&self) -> Option<String> {
        Some(self.record.totals.figure(column::ENERGY)?.kind.name().replace('_', " "))
    }

    /// A rate is as well known as the total that it is made of.
    pub(super) fn cores(&self, format: fn(f64) -> String) -> Value {
        let value = average::cores(self.record, self.now_ns);
        Value::amount(value, self.kind_of(column::CPU), Format::Alone(format))
    }

    pub(super) fn per_second(&self, index: usize) -> Value {
        let value = average::per_second(self.record, index, self.now_ns);
        Value::amount(value, self.kind_of(index), Format::Alone(units::bytes))
    }

    pub(super) fn level(&self, index: usize) -> Value {
        let kind = average::level_kind(self.record, index);
        Value::amount(average::level(self.record, index), kind, Format::Alone(units::bytes))
    }

    pub(super) fn memory_ratio(&self, format: fn(f64) -> String) -> Value {
        let kind = average::level_kind(self.record, column::MEMORY_NEEDED);
        Value::amount(average::memory_ratio(self.record), kind, Format::Alone(format))
    }

    /// The older tool's words: capitals, and a running job is active.
    pub(super) fn status(&self) -> String {
        if self.record.state == State::Running {
            return "Active".to_owned();
        }
        let words = state_words(self.record.state);
        let mut letters = words.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or(words)
    }
}

pub(super) fn state_words(state: State) -> String {
    state.name().replace('_', " ")
}
