//! Lists of jobs: for people, cut to their terminal, and as CSV, whole.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use comfy_table::{ContentLineStyle, LineStyle, TableStyle};
use met_core::JOB;
use met_core::job::{GpuUse, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::listing::{self, SortColumn};
use met_insight::csv::{self, CRLF, Cell as CsvCell};
use met_insight::report::cause;
use met_insight::{allocation, average, gpu, json};

use super::{Paint, Style, text};
use met_core::units;
use met_core::units::Scale;
use met_insight::report::words::mark;

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
    fn columns(self) -> &'static [ListColumn] {
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

const UNKNOWN: &str = "-";

/// What an empty list says.
pub const NO_JOBS: &str = "no jobs yet; try: met run -- CMD\n";

/// One column of a list: what it is called and where its cells come from.
#[derive(Clone, Copy)]
struct ListColumn {
    header: &'static str,
    /// For a narrow terminal.
    short: &'static str,
    csv: &'static str,
    side: Side,
    /// The column with the highest rank leaves first when the terminal is narrow; 0 stays.
    rank: u8,
    show: Show,
    value: fn(&Job) -> Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// Left, and cut when room is short.
    Flexible,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Always,
    /// Only where it differs between jobs.
    IfSeveral,
    /// Only where something is known of one of them.
    IfKnown,
    /// For programs; people see it in another column.
    InCsv,
}

enum Value {
    /// Foreign text; escaped when it is shown.
    Text(Option<String>),
    /// Our own words for people, why it failed, and the word for programs.
    State(String, Option<String>, State),
    Amount(Option<Amount>),
    Time(Option<i64>),
}

/// A number for programs, and how people see it.
struct Amount {
    value: f64,
    /// How well it is known.
    kind: QualityKind,
    format: Format,
    /// Printed after it, such as a currency.
    unit: String,
}

#[derive(Clone, Copy)]
enum Format {
    /// Each cell as it is read best.
    Alone(fn(f64) -> String),
    /// One unit for the whole column, of these.
    Together(&'static [Scale]),
}

impl Value {
    fn amount(value: Option<f64>, kind: QualityKind, format: Format) -> Value {
        Value::Amount(value.map(|value| Amount { value, kind, format, unit: String::new() }))
    }

    /// One that is as it is: a time, a request, something of which the mean of samples is all there is.
    fn plain(value: Option<f64>, format: fn(f64) -> String) -> Value {
        Value::amount(value, QualityKind::Measured, Format::Alone(format))
    }
}

struct Job<'a> {
    record: &'a Record,
    now_ns: i64,
}

const fn text_column(header: &'static str, csv: &'static str, value: fn(&Job) -> Value) -> ListColumn {
    ListColumn { header, short: header, csv, side: Side::Left, rank: 0, show: Show::Always, value }
}

const fn number_column(header: &'static str, csv: &'static str, value: fn(&Job) -> Value) -> ListColumn {
    ListColumn { side: Side::Right, ..text_column(header, csv, value) }
}

impl ListColumn {
    const fn rank(self, rank: u8) -> ListColumn {
        ListColumn { rank, ..self }
    }

    const fn short(self, short: &'static str) -> ListColumn {
        ListColumn { short, ..self }
    }

    const fn side(self, side: Side) -> ListColumn {
        ListColumn { side, ..self }
    }

    const fn show(self, show: Show) -> ListColumn {
        ListColumn { show, ..self }
    }
}

const ID: ListColumn = text_column("JOB", "job", |job| Value::Text(Some(job.record.label())));
const MANAGER: ListColumn =
    text_column("MANAGER", "manager", |job| Value::Text(Some(job.record.key.manager.clone())))
        .rank(5)
        .show(Show::InCsv);
const NAME: ListColumn =
    text_column("NAME", "name", |job| Value::Text(Some(job.record.name.clone()))).side(Side::Flexible);
const USER: ListColumn =
    text_column("USER", "user", |job| Value::Text(job.user())).rank(6).show(Show::IfSeveral);
/// A job inside another one is counted there, too: leave it out of sums.
const INSIDE: ListColumn =
    text_column("INSIDE", "inside", |job| Value::Text(job.record.inside.clone())).rank(5).show(Show::IfKnown);
const STATE: ListColumn = text_column("STATE", "state", |job| {
    Value::State(state_words(job.record.state), cause(job.record), job.record.state)
});
const CORES: ListColumn = number_column("CORES", "cores", |job| job.cores(units::cores)).rank(1);
const MEMORY: ListColumn = number_column("MEMORY", "memory_needed_peak_bytes", |job| {
    job.total(column::MEMORY_NEEDED_PEAK, units::bytes)
})
.rank(2);
const READ: ListColumn =
    number_column("READ", "read_bytes", |job| job.total(column::READ, units::bytes)).rank(4);
const WRITTEN: ListColumn =
    number_column("WRITTEN", "written_bytes", |job| job.total(column::WRITTEN, units::bytes)).rank(3);
const READ_CALL: ListColumn =
    number_column("READ CALLS", "read_call_bytes", |job| job.total(column::READ_CALL, units::bytes)).rank(8);
const WRITE_CALL: ListColumn =
    number_column("WRITE CALLS", "write_call_bytes", |job| job.total(column::WRITE_CALL, units::bytes))
        .rank(8);
const WITH_CACHE: ListColumn =
    number_column("WITH CACHE", "memory_peak_bytes", |job| job.total(column::MEMORY_PEAK, units::bytes))
        .rank(9);
const MEMORY_RATIO: ListColumn =
    number_column("OF NODE", "memory_ratio", |job| job.memory_ratio(units::percent)).rank(3);
const DURATION: ListColumn =
    number_column("DURATION", "wall_seconds", |job| Value::plain(job.wall_seconds(), units::duration))
        .rank(1);
const STARTED: ListColumn = number_column("STARTED", "start", |job| Value::Time(job.record.start_ns)).rank(7);

static JOBS: &[ListColumn] =
    &[ID, MANAGER, NAME, USER, STATE, CORES, MEMORY, READ, WRITTEN, DURATION, STARTED, INSIDE];

/// As that tool calls it.
const PROCESS_NAME: ListColumn = ListColumn { header: "PROCESS NAME", ..NAME };

/// The columns of a tool that people come from, with the job's own number in front.
static CPU: &[ListColumn] = &[
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
static GPU: &[ListColumn] = &[
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

static ENERGY: &[ListColumn] = &[
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

static IO: &[ListColumn] = &[
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

static MEM: &[ListColumn] = &[
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

static EVERYTHING: &[ListColumn] = &[
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
static SORTED: &[ListColumn] = &[
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
fn sorted_by(sort: SortColumn) -> &'static str {
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
fn columns(view: View, sort: Option<SortColumn>) -> Vec<ListColumn> {
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
    fn count(&self, count: Option<i64>) -> Value {
        Value::plain(count.map(|count| count as f64), units::count)
    }

    fn user(&self) -> Option<String> {
        // A user who is no longer in the password file is shown as a number.
        self.record.user.clone().or_else(|| self.record.uid.map(|uid| uid.to_string()))
    }

    fn main_pid(&self) -> Option<String> {
        Some(self.record.local.as_ref()?.main?.pid.to_string())
    }

    /// Each GPU with what the job used of it; of many, how many and which idle.
    fn gpus(&self) -> Option<String> {
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

    fn exit(&self) -> Option<String> {
        match (self.record.signal, self.record.exit_code) {
            (Some(signal), _) => Some(format!("signal {signal}")),
            (None, code) => code.map(|code| code.to_string()),
        }
    }

    fn wall_seconds(&self) -> Option<f64> {
        Some(average::wall_ns(self.record, self.now_ns)? as f64 / 1e9)
    }

    fn total(&self, index: usize, format: fn(f64) -> String) -> Value {
        self.figure(index, Format::Alone(format))
    }

    fn energy(&self, index: usize) -> Value {
        self.figure(index, Format::Together(&units::ENERGY))
    }

    fn figure(&self, index: usize, format: Format) -> Value {
        let figure = self.record.totals.figure(index);
        let value = figure.map(|figure| JOB.columns[index].scaled(figure.value));
        Value::amount(value, self.kind_of(index), format)
    }

    fn kind_of(&self, index: usize) -> QualityKind {
        self.record.totals.figure(index).map_or(QualityKind::Measured, |figure| figure.kind)
    }

    /// The price that it was computed with names the currency.
    fn cost(&self) -> Value {
        let Some(figure) = self.record.totals.figure(column::COST) else { return Value::Amount(None) };
        Value::Amount(Some(Amount {
            value: JOB.columns[column::COST].scaled(figure.value),
            kind: figure.kind,
            format: Format::Alone(units::money),
            unit: figure.source.text().split(' ').next().unwrap_or("").to_owned(),
        }))
    }

    fn energy_quality(&self) -> Option<String> {
        Some(self.record.totals.figure(column::ENERGY)?.kind.name().replace('_', " "))
    }

    /// A rate is as well known as the total that it is made of.
    fn cores(&self, format: fn(f64) -> String) -> Value {
        let value = average::cores(self.record, self.now_ns);
        Value::amount(value, self.kind_of(column::CPU), Format::Alone(format))
    }

    fn per_second(&self, index: usize) -> Value {
        let value = average::per_second(self.record, index, self.now_ns);
        Value::amount(value, self.kind_of(index), Format::Alone(units::bytes))
    }

    fn level(&self, index: usize) -> Value {
        let kind = average::level_kind(self.record, index);
        Value::amount(average::level(self.record, index), kind, Format::Alone(units::bytes))
    }

    fn memory_ratio(&self, format: fn(f64) -> String) -> Value {
        let kind = average::level_kind(self.record, column::MEMORY_NEEDED);
        Value::amount(average::memory_ratio(self.record), kind, Format::Alone(format))
    }

    /// The older tool's words: capitals, and a running job is active.
    fn status(&self) -> String {
        if self.record.state == State::Running {
            return "Active".to_owned();
        }
        let words = state_words(self.record.state);
        let mut letters = words.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or(words)
    }
}

fn state_words(state: State) -> String {
    state.name().replace('_', " ")
}

impl Amount {
    /// With a sign in front of what is estimated or a lower bound. Shares of a meter add up to it and have none.
    fn shown(&self, scale: Option<&Scale>) -> String {
        let sign = sign(self.kind).unwrap_or("");
        let words = match (self.format, scale) {
            (Format::Together(_), Some(scale)) => scale.write(self.value),
            (Format::Together(scales), None) => Scale::of(scales, [self.value].into_iter()).write(self.value),
            (Format::Alone(format), _) => format(self.value),
        };
        format!("{} {}", units::marked(sign, &words), self.unit).trim_end().to_owned()
    }
}

fn sign(kind: QualityKind) -> Option<&'static str> {
    mark(kind).map(|(sign, _)| sign).filter(|_| kind != QualityKind::Attributed)
}

impl Value {
    fn known(&self) -> Option<&Amount> {
        if let Value::Amount(amount) = self { amount.as_ref() } else { None }
    }

    fn shown(&self, scale: Option<&Scale>, now_ns: i64, style: &Style) -> String {
        let known = match self {
            Value::Text(text) => text.as_deref().map(text::escape),
            Value::State(words, Some(why), _) => Some(format!("{words} ({why})")),
            Value::State(words, ..) => Some(words.clone()),
            Value::Amount(amount) => amount.as_ref().map(|amount| amount.shown(scale)),
            Value::Time(time_ns) => time_ns.map(|time_ns| units::time_short(time_ns, now_ns, &style.zone)),
        };
        known.unwrap_or_else(|| UNKNOWN.to_owned())
    }

    /// In base units and without rounding; nothing where nothing is known.
    /// For programs. `time` holds the text of a time.
    fn raw<'a>(&'a self, time: &'a mut Option<String>) -> CsvCell<'a> {
        match self {
            Value::Text(text) => text.as_deref().into(),
            Value::State(.., state) => CsvCell::Plain(state.name()),
            Value::Amount(amount) => {
                amount.as_ref().map_or(CsvCell::Unknown, |amount| CsvCell::Real(amount.value))
            }
            Value::Time(time_ns) => {
                *time = time_ns.and_then(json::time);
                time.as_deref().map_or(CsvCell::Unknown, CsvCell::Plain)
            }
        }
    }
}

/// A list for people. Without a terminal's width nothing is cut and no column is dropped.
pub fn list(records: &[Record], view: View, sort: Option<SortColumn>, now_ns: i64, style: &Style) -> String {
    if records.is_empty() {
        return NO_JOBS.to_owned();
    }
    let jobs: Vec<Job> = records.iter().map(|record| Job { record, now_ns }).collect();
    let columns = columns(view, sort);
    let columns: Vec<(&ListColumn, Vec<Value>)> = (columns.iter())
        .map(|column| (column, jobs.iter().map(|job| (column.value)(job)).collect()))
        .collect();
    let all = || columns.iter().flat_map(|(_, values)| values);
    let mut shown: Vec<Shown> = (columns.iter())
        .map(|(column, values)| Shown::of(column, values, common_scale(values, all()), now_ns, style))
        .filter(Shown::is_wanted)
        .collect();
    let frame = Frame { boxed: matches!(view, View::Cpu | View::Gpu) };
    if let Some(width) = style.width {
        let keep = if view == View::Gpu { GPU_KEPT_RANK } else { 0 };
        fit(&mut shown, frame, width, keep, style.ascii);
    }
    let mut text = draw(&shown, &jobs, frame, style);
    // For people at a terminal; who reads a pipe line by line finds jobs alone.
    if style.width.is_some() {
        text.push_str(&legend(&shown, style));
    }
    text
}

/// The unit of a column whose numbers are compared with each other, and with those of every other column of the same
/// kind: a part is read beside its whole.
fn common_scale<'v>(values: &[Value], all: impl Iterator<Item = &'v Value>) -> Option<&'static Scale> {
    let scales_of = |amount: &Amount| match amount.format {
        Format::Together(scales) => Some(scales),
        Format::Alone(_) => None,
    };
    let scales = values.iter().filter_map(Value::known).find_map(scales_of)?;
    let is_same = |amount: &&Amount| scales_of(amount).is_some_and(|other| std::ptr::eq(other, scales));
    Some(Scale::of(scales, all.filter_map(Value::known).filter(is_same).map(|amount| amount.value)))
}

/// The signs that the list uses, in words.
fn legend(shown: &[Shown], style: &Style) -> String {
    let used = |kind: &QualityKind| shown.iter().any(|shown| shown.kinds.contains(kind));
    let kinds = QualityKind::ALL.into_iter().filter(|kind| sign(*kind).is_some()).filter(used);
    let words: Vec<String> = kinds.filter_map(mark).map(|(sign, words)| format!("{sign} {words}")).collect();
    if words.is_empty() {
        return String::new();
    }
    let lines = text::filled(words.into_iter(), "   ", style.width.unwrap_or(usize::MAX));
    let legend: String = lines.iter().map(|line| style.paint(Paint::Dim, line) + "\n").collect();
    if style.ascii { text::to_ascii(&legend) } else { legend }
}

/// RFC 4180 with a header, every column of the view, numbers in base units. A control character in a
/// name is escaped, so that a job is always one line. `all` has every total there is, by its JSON name.
pub fn csv(records: &[Record], view: View, now_ns: i64) -> String {
    let columns = view.columns();
    let shown = |name: &str| columns.iter().any(|column| column.csv == name);
    let others: Vec<usize> = (0..JOB.columns.len())
        .filter(|&index| view == View::All && !shown(&JOB.columns[index].json_name()))
        .collect();
    let other_names: Vec<String> = others.iter().map(|&index| JOB.columns[index].json_name()).collect();
    let names = columns.iter().map(|column| column.csv).chain(other_names.iter().map(String::as_str));
    let mut lines = csv::header(names);
    for record in records {
        let job = Job { record, now_ns };
        let shown = columns.iter().map(|column| (column.value)(&job));
        let values: Vec<Value> =
            shown.chain(others.iter().map(|&index| job.total(index, units::count))).collect();
        let mut times = vec![None; values.len()];
        let cells = values.iter().zip(&mut times).map(|(value, time)| value.raw(time));
        csv::write_line(&mut lines, cells, CRLF);
    }
    lines
}

/// A column on its way to the screen.
struct Shown<'a> {
    column: &'a ListColumn,
    header: &'a str,
    cells: Vec<String>,
    /// How well what is in them is known.
    kinds: Vec<QualityKind>,
}

impl<'a> Shown<'a> {
    fn of(
        column: &'a ListColumn,
        values: &[Value],
        scale: Option<&Scale>,
        now_ns: i64,
        style: &Style,
    ) -> Shown<'a> {
        Shown {
            column,
            header: column.header,
            cells: values.iter().map(|value| value.shown(scale, now_ns, style)).collect(),
            kinds: values.iter().filter_map(Value::known).map(|amount| amount.kind).collect(),
        }
    }

    fn is_wanted(&self) -> bool {
        match self.column.show {
            Show::Always => true,
            Show::IfSeveral => self.is_several(),
            Show::IfKnown => self.cells.iter().any(|cell| cell != UNKNOWN),
            Show::InCsv => false,
        }
    }

    fn is_several(&self) -> bool {
        self.cells.windows(2).any(|pair| pair[0] != pair[1])
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| text::width(cell)).max().unwrap_or(0).max(text::width(self.header))
    }
}

/// Borders around and between the columns.
#[derive(Clone, Copy)]
struct Frame {
    boxed: bool,
}

impl Frame {
    fn width(self, columns: usize) -> usize {
        if self.boxed { 3 * columns + 1 } else { 2 * columns.saturating_sub(1) }
    }
}

/// A name shorter than this says little; a column of figures goes before it is cut further.
const NAME_COLUMNS_WANTED: usize = 14;
const NAME_COLUMNS_MIN: usize = 6;
/// In the list of GPUs: all but the GPUs and the process, which leave first.
const GPU_KEPT_RANK: u8 = 7;

/// Makes the table as wide as the terminal at most: short headers, then shorter names, then fewer
/// columns, and at last very short names. A line is never wrapped. Columns of up to the rank `keep` stay as long as
/// shorter names make room for them. Names have their whole header again where it fits after that.
fn fit(shown: &mut Vec<Shown>, frame: Frame, width: usize, keep: u8, ascii: bool) {
    if total(shown, frame) > width {
        let is_short = |shown: &Shown| keep == 0 || shown.column.side != Side::Flexible;
        shown.iter_mut().filter(|shown| is_short(shown)).for_each(|shown| shown.header = shown.column.short);
        shorten(shown, frame, width, keep, ascii);
    }
    let excess = |shown: &Shown| text::width(shown.column.header).saturating_sub(shown.width());
    let room = width.saturating_sub(total(shown, frame));
    let names = shown.iter_mut().filter(|shown| shown.column.side == Side::Flexible);
    names.filter(|shown| excess(shown) <= room).for_each(|shown| shown.header = shown.column.header);
}

fn total(shown: &[Shown], frame: Frame) -> usize {
    shown.iter().map(Shown::width).sum::<usize>() + frame.width(shown.len())
}

fn shorten(shown: &mut Vec<Shown>, frame: Frame, width: usize, keep: u8, ascii: bool) {
    for (floor, keep) in [(NAME_COLUMNS_WANTED, keep), (NAME_COLUMNS_MIN, 0)] {
        loop {
            let excess = total(shown, frame).saturating_sub(width);
            if excess == 0 {
                return;
            }
            // Names are cut only if that is enough: a column that leaves makes room for them.
            if flexible_columns(shown, floor) >= excess {
                cut_flexible(shown, excess, floor, ascii);
                return;
            }
            let last = shown.iter().enumerate().filter(|(_, shown)| shown.column.rank > keep);
            let Some((index, _)) = last.max_by_key(|(_, shown)| shown.column.rank) else { break };
            shown.remove(index);
        }
        // Columns above `keep` leave before the header of names is short.
        shown.iter_mut().for_each(|shown| shown.header = shown.column.short);
    }
    let excess = total(shown, frame).saturating_sub(width);
    cut_flexible(shown, excess, NAME_COLUMNS_MIN, ascii);
}

/// By how many columns names can be cut.
fn flexible_columns(shown: &[Shown], floor: usize) -> usize {
    let flexible = shown.iter().filter(|shown| shown.column.side == Side::Flexible);
    flexible.map(|shown| shown.width().saturating_sub(floor.max(text::width(shown.header)))).sum()
}

/// Cuts names by up to `excess` columns.
fn cut_flexible(shown: &mut [Shown], excess: usize, floor: usize, ascii: bool) {
    let mut gained = 0;
    for shown in shown.iter_mut().rev().filter(|shown| shown.column.side == Side::Flexible) {
        let before = shown.width();
        let target = before.saturating_sub(excess - gained).max(floor.max(text::width(shown.header)));
        if target < before {
            shown.cells.iter_mut().for_each(|cell| *cell = text::cut(cell, target, ascii));
            gained += before - shown.width();
        }
        if gained >= excess {
            break;
        }
    }
}

/// One frame and no line between rows: twice as many jobs on a screen.
const BOX: TableStyle = TableStyle::new()
    .top_border(LineStyle::new('┌', '─', '┬', '┐'))
    .header_lines(ContentLineStyle::new('│', '│', '│'))
    .header_separator(LineStyle::new('├', '─', '┼', '┤'))
    .content_lines(ContentLineStyle::new('│', '│', '│'))
    .bottom_border(LineStyle::new('└', '─', '┴', '┘'));

fn draw(shown: &[Shown], jobs: &[Job], frame: Frame, style: &Style) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).force_no_tty();
    table.load_style(match (frame.boxed, style.ascii) {
        (true, false) => BOX,
        (true, true) => presets::ASCII_FULL_CONDENSED,
        (false, _) => presets::NOTHING,
    });
    if style.color {
        table.enforce_styling();
    }
    table.set_header(shown.iter().map(|shown| Cell::new(shown.header).add_attribute(Attribute::Bold)));
    for (index, job) in jobs.iter().enumerate() {
        table.add_row(shown.iter().map(|shown| cell(&shown.cells[index], shown.column, job)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if shown[index].column.side == Side::Right {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if !frame.boxed {
            column.set_padding((if index == 0 { 0 } else { 2 }, 0));
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let text = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&text) } else { text }
}

fn cell(content: &str, column: &ListColumn, job: &Job) -> Cell {
    let cell = Cell::new(content);
    if !matches!((column.value)(job), Value::State(..)) {
        return cell;
    }
    match job.record.state {
        State::Running => cell.fg(Color::Green),
        State::Pending | State::Suspended | State::Cancelled => cell.fg(Color::Yellow),
        State::Failed | State::Timeout | State::OutOfMemory | State::Lost => cell.fg(Color::Red),
        State::Finished => cell,
    }
}

#[cfg(test)]
#[path = "job_list_tests.rs"]
mod tests;
