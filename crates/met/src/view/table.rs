//! Lists of jobs: for people, cut to their terminal, and as CSV, whole.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use comfy_table::{ContentLineStyle, LineStyle, TableStyle};
use met_core::JOB;
use met_core::job::{GpuUse, QualityKind, Record, State};
use met_core::job_table as column;
use met_insight::{allocation, average, gpu, json};

use super::{Style, text, units};

/// Which columns a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// What matters most
    #[default]
    Jobs,
    /// CPU and memory in per cent
    Cpu,
    /// Bytes read and written
    Io,
    /// Memory
    Mem,
    /// Graphics cards
    Gpu,
    /// Energy, CO2 and cost
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
    /// Only where it tells jobs apart.
    IfSeveral,
    /// Only where something is known of one of them.
    IfKnown,
    /// For programs; people see it in another column.
    InCsv,
}

enum Value {
    /// Foreign text; escaped when it is shown.
    Text(Option<String>),
    /// Our own words for people, and the word for programs.
    State(String, State),
    Amount(Option<f64>, fn(f64) -> String),
    /// A number for programs, and how people see it.
    Marked(Option<(f64, String)>),
    Time(Option<i64>),
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

/// A column that only managers' jobs fill.
const fn known_column(column: ListColumn) -> ListColumn {
    ListColumn { show: Show::IfKnown, ..column }
}

impl ListColumn {
    const fn rank(self, rank: u8) -> ListColumn {
        ListColumn { rank, ..self }
    }
}

const ID: ListColumn = text_column("JOB", "job", |job| Value::Text(Some(job.record.label())));
const MANAGER: ListColumn = ListColumn {
    show: Show::InCsv,
    ..text_column("MANAGER", "manager", |job| Value::Text(Some(job.record.key.manager.clone()))).rank(5)
};
const NAME: ListColumn = ListColumn {
    side: Side::Flexible,
    ..text_column("NAME", "name", |job| Value::Text(Some(job.record.name.clone())))
};
const USER: ListColumn = ListColumn {
    show: Show::IfSeveral,
    ..text_column("USER", "user", |job| Value::Text(job.user())).rank(6)
};
/// A job inside another one is counted there, too: whoever adds up leaves it out.
const INSIDE: ListColumn =
    known_column(text_column("INSIDE", "inside", |job| Value::Text(job.record.inside.clone())).rank(5));
const STATE: ListColumn =
    text_column("STATE", "state", |job| Value::State(state_words(job.record.state), job.record.state));
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
const MEMORY_RATIO: ListColumn = number_column("OF NODE", "memory_ratio", |job| {
    Value::Amount(average::memory_ratio(job.record), units::percent)
})
.rank(3);
const DURATION: ListColumn =
    number_column("DURATION", "wall_seconds", |job| Value::Amount(job.wall_seconds(), units::duration))
        .rank(1);
const STARTED: ListColumn = number_column("STARTED", "start", |job| Value::Time(job.record.start_ns)).rank(7);

static JOBS: &[ListColumn] =
    &[ID, MANAGER, NAME, USER, STATE, CORES, MEMORY, READ, WRITTEN, DURATION, STARTED, INSIDE];

/// The columns of a tool that people come from, with the job's own number in front.
static CPU: &[ListColumn] = &[
    ID,
    text_column("PPID", "ppid", |job| Value::Text(job.main_pid())).rank(3),
    ListColumn { header: "PROCESS NAME", ..NAME },
    ListColumn {
        short: "CPU %",
        ..text_column("CPU % (AVG)", "cores", |job| job.cores(units::percent_fixed))
    },
    ListColumn {
        short: "MEM %",
        rank: 2,
        value: |job| Value::Amount(average::memory_ratio(job.record), units::percent_fixed),
        ..text_column("MEM % (AVG)", "memory_ratio", |_| Value::Text(None))
    },
    text_column("STATUS", "state", |job| Value::State(job.status(), job.record.state)),
    ListColumn { side: Side::Left, ..DURATION },
];

/// Of the same tool, with the cards.
static GPU: &[ListColumn] = &[
    ID,
    text_column("PPID", "ppid", |job| Value::Text(job.main_pid())).rank(6),
    ListColumn { header: "PROCESS NAME", ..NAME },
    ListColumn {
        short: "GPU UTIL",
        ..text_column("GPU UTIL (AVG)", "gpu_utilization_ratio", |job| {
            Value::Amount(gpu::utilization(job.record), units::percent_fixed)
        })
    },
    ListColumn {
        short: "MEM",
        ..text_column("MEM (AVG)", "gpu_memory_bytes", |job| {
            Value::Amount(gpu::memory_bytes(job.record), units::gigabytes_fixed)
        })
        .rank(4)
    },
    ListColumn {
        short: "ENERGY",
        ..text_column("TOTAL POWER", "gpu_energy_joules", |job| {
            job.total(column::GPU_ENERGY, units::watt_hours_fixed)
        })
        .rank(2)
    },
    text_column("MAX TEMP", "gpu_temperature_max_celsius", |job| {
        Value::Amount(gpu::temperature_celsius(job.record), units::celsius_fixed)
    })
    .rank(5),
    text_column("STATUS", "state", |job| Value::State(job.status(), job.record.state)),
    ListColumn { side: Side::Left, ..DURATION.rank(3) },
    text_column("CARDS", "gpus", |job| Value::Text(job.cards())).rank(1),
];

static ENERGY: &[ListColumn] = &[
    ID,
    MANAGER,
    NAME,
    USER,
    STATE,
    number_column("ENERGY", "energy_joules", |job| job.marked(column::ENERGY, units::watt_hours)),
    number_column("CPU", "energy_cpu_joules", |job| job.marked(column::ENERGY_CPU, units::watt_hours))
        .rank(4),
    number_column("MEMORY", "energy_memory_joules", |job| {
        job.marked(column::ENERGY_MEMORY, units::watt_hours)
    })
    .rank(6),
    ListColumn {
        show: Show::IfKnown,
        ..number_column("GPU", "gpu_energy_joules", |job| job.marked(column::GPU_ENERGY, units::watt_hours))
            .rank(5)
    },
    number_column("REST", "energy_rest_joules", |job| job.marked(column::ENERGY_REST, units::watt_hours))
        .rank(7),
    number_column("IDLE", "energy_idle_joules", |job| job.marked(column::ENERGY_IDLE, units::watt_hours))
        .rank(3),
    number_column("CO2E", "emissions_grams", |job| job.marked(column::EMISSIONS, units::grams)).rank(1),
    ListColumn { show: Show::IfKnown, ..number_column("COST", "cost_money", |job| job.cost()).rank(2) },
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
    ListColumn { show: Show::Always, ..USER },
    known_column(text_column("ACCOUNT", "account", |job| Value::Text(job.record.account.clone())).rank(7)),
    known_column(
        text_column("PARTITION", "partition", |job| Value::Text(job.record.scheduling.partition.clone()))
            .rank(8),
    ),
    STATE,
    ListColumn { side: Side::Right, ..text_column("EXIT", "exit", |job| Value::Text(job.exit())).rank(6) },
    CORES,
    number_column("CPU TIME", "cpu_seconds", |job| job.total(column::CPU, units::duration)).rank(5),
    MEMORY,
    known_column(
        number_column("REQUESTED", "requested_memory_bytes", |job| {
            let bytes = job.record.requested.memory_bytes;
            Value::Amount(bytes.map(|bytes| bytes as f64), units::bytes)
        })
        .rank(8),
    ),
    MEMORY_RATIO,
    WITH_CACHE,
    READ,
    WRITTEN,
    READ_CALL,
    WRITE_CALL,
    number_column("PROCESSES", "processes", |job| job.total(column::PROCESSES, units::count)).rank(9),
    number_column("THREADS", "threads_peak", |job| job.total(column::THREADS_PEAK, units::count)).rank(9),
    known_column(
        number_column("QUEUED", "queue_wait_seconds", |job| {
            let wait_ns = allocation::queue_wait_ns(job.record, job.now_ns);
            Value::Amount(wait_ns.map(|ns| ns as f64 / 1e9), units::duration)
        })
        .rank(8),
    ),
    DURATION,
    STARTED,
    ListColumn {
        side: Side::Flexible,
        ..text_column("COMMAND", "command", |job| Value::Text(Some(text::command_line(&job.record.command))))
            .rank(10)
    },
    INSIDE,
];

impl Job<'_> {
    fn user(&self) -> Option<String> {
        // A user who has left the password file is still somebody.
        self.record.user.clone().or_else(|| self.record.uid.map(|uid| uid.to_string()))
    }

    fn main_pid(&self) -> Option<String> {
        Some(self.record.local.as_ref()?.main?.pid.to_string())
    }

    /// Each card with what the job used of it; of many, how many and which idle.
    fn cards(&self) -> Option<String> {
        const EACH_MAX: usize = 4;
        let is_idle = |gpu: &GpuUse| gpu.used_ns == 0 && gpu.idle_since_ns.is_some();
        let card = |gpu: &GpuUse| match gpu.utilization {
            _ if is_idle(gpu) => format!("{}: idle", gpu.index),
            Some(used) => format!("{}: {}", gpu.index, units::percent(used)),
            None => gpu.index.clone(),
        };
        let gpus = &self.record.gpus;
        let idle: Vec<&str> = gpus.iter().filter(|gpu| is_idle(gpu)).map(|gpu| gpu.index.as_str()).collect();
        match gpus.len() {
            0 => None,
            1..=EACH_MAX => Some(gpus.iter().map(card).collect::<Vec<_>>().join(", ")),
            count if idle.is_empty() => Some(format!("{count} cards")),
            count if idle.len() == count => Some(format!("{count} cards, all idle")),
            count if idle.len() <= EACH_MAX => Some(format!("{count} cards, idle: {}", idle.join(" "))),
            count => Some(format!("{count} cards, {} idle", idle.len())),
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
        let cell = self.record.totals.get(index);
        Value::Amount(cell.map(|cell| JOB.columns[index].scaled(cell)), format)
    }

    /// With a sign in front of what was not measured.
    fn marked(&self, index: usize, format: fn(f64) -> String) -> Value {
        Value::Marked(self.record.totals.figure(index).map(|figure| {
            let value = JOB.columns[index].scaled(figure.value);
            let sign = if figure.kind == QualityKind::Estimated { "~" } else { "" };
            // Nothing is nothing in any unit.
            let words = if value == 0.0 { "0".to_owned() } else { format(value) };
            (value, format!("{sign}{words}"))
        }))
    }

    /// The price that it was computed with names the currency.
    fn cost(&self) -> Value {
        let Value::Marked(Some((value, words))) = self.marked(column::COST, units::money) else {
            return Value::Marked(None);
        };
        let price = self.record.totals.figure(column::COST).map(|figure| figure.source.clone());
        let currency = price.as_deref().and_then(|price| price.split(' ').next()).unwrap_or("");
        Value::Marked(Some((value, format!("{words} {currency}"))))
    }

    fn energy_quality(&self) -> Option<String> {
        Some(self.record.totals.figure(column::ENERGY)?.kind.name().replace('_', " "))
    }

    fn cores(&self, format: fn(f64) -> String) -> Value {
        Value::Amount(average::cores(self.record, self.now_ns), format)
    }

    fn per_second(&self, index: usize) -> Value {
        Value::Amount(average::per_second(self.record, index, self.now_ns), units::bytes)
    }

    fn level(&self, index: usize) -> Value {
        Value::Amount(average::level(self.record, index), units::bytes)
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

impl Value {
    fn shown(&self, now_ns: i64, style: &Style) -> String {
        let known = match self {
            Value::Text(text) => text.as_deref().map(text::escape),
            Value::State(words, _) => Some(words.clone()),
            Value::Amount(value, format) => value.map(format),
            Value::Marked(value) => value.as_ref().map(|(_, words)| words.clone()),
            Value::Time(time_ns) => time_ns.map(|time_ns| units::time_short(time_ns, now_ns, &style.zone)),
        };
        known.unwrap_or_else(|| UNKNOWN.to_owned())
    }

    /// In base units and without rounding; nothing where nothing is known.
    fn raw(&self) -> String {
        match self {
            // A row stays one line, whatever a name holds: escaped here too.
            Value::Text(text) => text.as_deref().map(text::escape).unwrap_or_default(),
            Value::State(_, state) => state.name().to_owned(),
            Value::Amount(value, _) => value.map(|value| value.to_string()).unwrap_or_default(),
            Value::Marked(value) => value.as_ref().map(|(value, _)| value.to_string()).unwrap_or_default(),
            Value::Time(time_ns) => time_ns.and_then(json::time).unwrap_or_default(),
        }
    }
}

/// A list for people. Without a terminal's width nothing is cut and no column is dropped.
pub fn list(records: &[Record], view: View, now_ns: i64, style: &Style) -> String {
    if records.is_empty() {
        return NO_JOBS.to_owned();
    }
    let jobs: Vec<Job> = records.iter().map(|record| Job { record, now_ns }).collect();
    let mut shown: Vec<Shown> = (view.columns().iter())
        .map(|column| Shown {
            column,
            header: column.header,
            cells: jobs.iter().map(|job| (column.value)(job).shown(now_ns, style)).collect(),
        })
        .filter(Shown::is_wanted)
        .collect();
    let frame = Frame { boxed: matches!(view, View::Cpu | View::Gpu) };
    if let Some(width) = style.width {
        fit(&mut shown, frame, width, style.ascii);
    }
    draw(&shown, &jobs, frame, style)
}

/// RFC 4180 with a header, every column of the view, numbers in base units. A control character in a
/// name is escaped, so that a job is always one line. `all` has every total there is, by its JSON name.
pub fn csv(records: &[Record], view: View, now_ns: i64) -> String {
    let columns = view.columns();
    let shown = |name: &str| columns.iter().any(|column| column.csv == name);
    let others: Vec<usize> = (0..JOB.columns.len())
        .filter(|&index| view == View::All && !shown(&JOB.columns[index].json_name()))
        .collect();
    let mut header: Vec<String> = columns.iter().map(|column| column.csv.to_owned()).collect();
    header.extend(others.iter().map(|&index| JOB.columns[index].json_name()));
    let mut csv = csv_line(&header);
    for record in records {
        let job = Job { record, now_ns };
        let mut cells: Vec<String> = columns.iter().map(|column| (column.value)(&job).raw()).collect();
        cells.extend(others.iter().map(|&index| job.total(index, units::count).raw()));
        csv.push_str(&csv_line(&cells));
    }
    csv
}

/// One line of RFC 4180.
pub fn csv_line(fields: &[String]) -> String {
    let quoted: Vec<String> = (fields.iter())
        .map(|field| match field.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", field.replace('"', "\"\"")),
            false => field.clone(),
        })
        .collect();
    quoted.join(",") + "\r\n"
}

/// A column on its way to the screen.
struct Shown<'a> {
    column: &'a ListColumn,
    header: &'a str,
    cells: Vec<String>,
}

impl Shown<'_> {
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

/// What stands around and between the columns.
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

/// Makes the table as wide as the terminal at most: short headers, then shorter names, then fewer
/// columns, and at last very short names. A line is never wrapped.
fn fit(shown: &mut Vec<Shown>, frame: Frame, width: usize, ascii: bool) {
    let total = |shown: &[Shown]| shown.iter().map(Shown::width).sum::<usize>() + frame.width(shown.len());
    if total(shown) > width {
        shown.iter_mut().for_each(|shown| shown.header = shown.column.short);
    }
    for floor in [NAME_COLUMNS_WANTED, NAME_COLUMNS_MIN] {
        loop {
            let excess = total(shown).saturating_sub(width);
            if excess == 0 {
                return;
            }
            if cut_flexible(shown, excess, floor, ascii) >= excess {
                return;
            }
            let last = shown.iter().enumerate().filter(|(_, shown)| shown.column.rank > 0);
            let Some((index, _)) = last.max_by_key(|(_, shown)| shown.column.rank) else { break };
            shown.remove(index);
        }
    }
}

/// Cuts names by up to `excess` columns and says by how many.
fn cut_flexible(shown: &mut [Shown], excess: usize, floor: usize, ascii: bool) -> usize {
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
    gained
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
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::view::sample;

    fn check(view: View, width: usize, expected: Expect) {
        let style = Style { width: Some(width), ..Style::plain() };
        let drawn = list(&sample::several(), view, sample::NOW_NS, &style);
        for line in drawn.lines() {
            assert!(text::width(line) <= width, "{line}");
        }
        expected.assert_eq(&drawn);
    }

    #[test]
    fn energy_has_units_and_estimates_are_marked() {
        let records = [
            sample::charged(1, QualityKind::Attributed),
            sample::charged(2, QualityKind::Estimated),
            sample::bare(3, "x"),
        ];
        for (width, expected) in [
            (
                80,
                expect![[r#"
            JOB  NAME   STATE       ENERGY      IDLE      CO2E           COST  DURATION
            1    train  finished   2.50 Wh   500 mWh   85.0 mg   0.000525 EUR      1m8s
            2    train  finished  ~2.50 Wh  ~500 mWh  ~85.0 mg  ~0.000525 EUR      1m8s
            3    x      running          -         -         -              -      1m8s
        "#]],
            ),
            (
                140,
                expect![[r#"
            JOB  NAME   STATE       ENERGY       CPU    MEMORY      REST      IDLE      CO2E           COST  QUALITY     DURATION
            1    train  finished   2.50 Wh   2.00 Wh   300 mWh   200 mWh   500 mWh   85.0 mg   0.000525 EUR  attributed      1m8s
            2    train  finished  ~2.50 Wh  ~2.00 Wh  ~300 mWh  ~200 mWh  ~500 mWh  ~85.0 mg  ~0.000525 EUR  estimated       1m8s
            3    x      running          -         -         -         -         -         -              -  -               1m8s
        "#]],
            ),
        ] {
            let style = Style { width: Some(width), ..Style::plain() };
            expected.assert_eq(&list(&records, View::Energy, sample::NOW_NS, &style));
        }
        expect![[r#"
            job,manager,name,user,state,energy_joules,energy_cpu_joules,energy_memory_joules,gpu_energy_joules,energy_rest_joules,energy_idle_joules,emissions_grams,cost_money,energy_quality,wall_seconds
            1,local,train,alice,finished,9000,7200,1080,,720,1800,0.085,0.000525,attributed,68.25
        "#]].assert_eq(&csv(&records[..1], View::Energy, sample::NOW_NS).replace('\r', ""));
    }

    #[test]
    fn jobs_at_60() {
        check(
            View::Jobs,
            60,
            expect![[r#"
            JOB  NAME            STATE          CORES  DURATION
            41   some_job        running         3.76      1m8s
            42   train           finished        3.76      1m8s
            43   convert-the-w…  failed          3.76      1m8s
            44   evil\n\x1b[2J…  out of memory    734     350ms
            45   größe 大きい    lost               -         -
        "#]],
        );
    }

    #[test]
    fn jobs_at_80() {
        check(
            View::Jobs,
            80,
            expect![[r#"
            JOB  NAME            STATE          CORES    MEMORY      READ  WRITTEN  DURATION
            41   some_job        running         3.76         -         -        -      1m8s
            42   train           finished        3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            43   convert-the-w…  failed          3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            44   evil\n\x1b[2J…  out of memory    734  1.21 GiB  3.22 GiB  700 MiB     350ms
            45   größe 大きい    lost               -         -         -        -         -
        "#]],
        );
    }

    #[test]
    fn jobs_at_120() {
        check(
            View::Jobs,
            120,
            expect![[r#"
            JOB  NAME                                       STATE          CORES    MEMORY      READ  WRITTEN  DURATION   STARTED
            41   some_job                                   running         3.76         -         -        -      1m8s  17:39:36
            42   train                                      finished        3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
            43   convert-the-whole-archive-to-parquet-2026  failed          3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
            44   evil\n\x1b[2J\u202ename                    out of memory    734  1.21 GiB  3.22 GiB  700 MiB     350ms  16:40:44
            45   größe 大きい                               lost               -         -         -        -         -  17:39:36
        "#]],
        );
    }

    #[test]
    fn cpu_at_60() {
        check(
            View::Cpu,
            60,
            expect![[r#"
                ┌─────┬────────────────┬───────────┬───────────────┐
                │ JOB │ NAME           │ CPU %     │ STATUS        │
                ├─────┼────────────────┼───────────┼───────────────┤
                │ 41  │ some_job       │ 376.41%   │ Active        │
                │ 42  │ train          │ 376.41%   │ Finished      │
                │ 43  │ convert-the-w… │ 376.41%   │ Failed        │
                │ 44  │ evil\n\x1b[2J… │ 73400.00% │ Out of memory │
                │ 45  │ größe 大きい   │ -         │ Lost          │
                └─────┴────────────────┴───────────┴───────────────┘
            "#]],
        );
    }

    #[test]
    fn cpu_at_80() {
        check(
            View::Cpu,
            80,
            expect![[r#"
            ┌─────┬──────┬──────────────────┬───────────┬───────┬───────────────┬──────────┐
            │ JOB │ PPID │ NAME             │ CPU %     │ MEM % │ STATUS        │ DURATION │
            ├─────┼──────┼──────────────────┼───────────┼───────┼───────────────┼──────────┤
            │ 41  │ 3113 │ some_job         │ 376.41%   │ 0.01% │ Active        │ 1m8s     │
            │ 42  │ 3113 │ train            │ 376.41%   │ 5.88% │ Finished      │ 1m8s     │
            │ 43  │ 3113 │ convert-the-who… │ 376.41%   │ 5.88% │ Failed        │ 1m8s     │
            │ 44  │ 3113 │ evil\n\x1b[2J\u… │ 73400.00% │ 5.88% │ Out of memory │ 350ms    │
            │ 45  │ 3113 │ größe 大きい     │ -         │ -     │ Lost          │ -        │
            └─────┴──────┴──────────────────┴───────────┴───────┴───────────────┴──────────┘
        "#]],
        );
    }

    #[test]
    fn cpu_at_120() {
        check(
            View::Cpu,
            120,
            expect![[r#"
            ┌─────┬──────┬───────────────────────────────────────────┬─────────────┬─────────────┬───────────────┬──────────┐
            │ JOB │ PPID │ PROCESS NAME                              │ CPU % (AVG) │ MEM % (AVG) │ STATUS        │ DURATION │
            ├─────┼──────┼───────────────────────────────────────────┼─────────────┼─────────────┼───────────────┼──────────┤
            │ 41  │ 3113 │ some_job                                  │ 376.41%     │ 0.01%       │ Active        │ 1m8s     │
            │ 42  │ 3113 │ train                                     │ 376.41%     │ 5.88%       │ Finished      │ 1m8s     │
            │ 43  │ 3113 │ convert-the-whole-archive-to-parquet-2026 │ 376.41%     │ 5.88%       │ Failed        │ 1m8s     │
            │ 44  │ 3113 │ evil\n\x1b[2J\u202ename                   │ 73400.00%   │ 5.88%       │ Out of memory │ 350ms    │
            │ 45  │ 3113 │ größe 大きい                              │ -           │ -           │ Lost          │ -        │
            └─────┴──────┴───────────────────────────────────────────┴─────────────┴─────────────┴───────────────┴──────────┘
        "#]],
        );
    }

    #[test]
    fn io_at_80_and_120() {
        check(
            View::Io,
            80,
            expect![[r#"
            JOB  NAME            STATE              READ  WRITTEN    READ/S  DURATION
            41   some_job        running               -        -         -      1m8s
            42   train           finished       3.22 GiB  700 MiB  48.3 MiB      1m8s
            43   convert-the-w…  failed         3.22 GiB  700 MiB  48.3 MiB      1m8s
            44   evil\n\x1b[2J…  out of memory  3.22 GiB  700 MiB  9.20 GiB     350ms
            45   größe 大きい    lost                  -        -         -         -
        "#]],
        );
        check(
            View::Io,
            120,
            expect![[r#"
            JOB  NAME                       STATE              READ  WRITTEN    READ/S  WRITTEN/S  READ CALLS  WRITE CALLS  DURATION
            41   some_job                   running               -        -         -          -           -            -      1m8s
            42   train                      finished       3.22 GiB  700 MiB  48.3 MiB   10.3 MiB    9.20 GiB      775 MiB      1m8s
            43   convert-the-whole-archiv…  failed         3.22 GiB  700 MiB  48.3 MiB   10.3 MiB    9.20 GiB      775 MiB      1m8s
            44   evil\n\x1b[2J\u202ename    out of memory  3.22 GiB  700 MiB  9.20 GiB   1.95 GiB    9.20 GiB      775 MiB     350ms
            45   größe 大きい               lost                  -        -         -          -           -            -         -
        "#]],
        );
    }

    #[test]
    fn mem_at_80_and_120() {
        check(
            View::Mem,
            80,
            expect![[r#"
            JOB  NAME            STATE           AVERAGE      PEAK  OF NODE  DURATION
            41   some_job        running        1.62 MiB         -    <0.1%      1m8s
            42   train           finished        963 MiB  1.21 GiB     5.9%      1m8s
            43   convert-the-w…  failed          963 MiB  1.21 GiB     5.9%      1m8s
            44   evil\n\x1b[2J…  out of memory   963 MiB  1.21 GiB     5.9%     350ms
            45   größe 大きい    lost                  -         -        -         -
        "#]],
        );
        check(
            View::Mem,
            120,
            expect![[r#"
            JOB  NAME                       STATE           AVERAGE      PEAK  OF NODE     CACHE  WITH CACHE  MAJOR FAULTS  DURATION
            41   some_job                   running        1.62 MiB         -    <0.1%         -           -             -      1m8s
            42   train                      finished        963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312      1m8s
            43   convert-the-whole-archiv…  failed          963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312      1m8s
            44   evil\n\x1b[2J\u202ename    out of memory   963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312     350ms
            45   größe 大きい               lost                  -         -        -         -           -             -         -
        "#]],
        );
    }

    #[test]
    fn all_at_120() {
        check(
            View::All,
            120,
            expect![[r#"
                JOB  NAME            USER   STATE              EXIT  CORES  CPU TIME    MEMORY  OF NODE      READ  WRITTEN  DURATION
                41   some_job        alice  running               -   3.76     4m16s         -    <0.1%         -        -      1m8s
                42   train           alice  finished              0   3.76     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB      1m8s
                43   convert-the-w…  alice  failed                3   3.76     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB      1m8s
                44   evil\n\x1b[2J…  alice  out of memory  signal 9    734     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB     350ms
                45   größe 大きい    alice  lost                  -      -         -         -        -         -        -         -
            "#]],
        );
    }

    #[test]
    fn no_line_is_wrapped_and_no_job_is_lost_at_any_width() {
        for width in 20..130 {
            let style = Style { width: Some(width), ..Style::plain() };
            for view in <View as clap::ValueEnum>::value_variants().iter().copied() {
                let drawn = list(&sample::several(), view, sample::NOW_NS, &style);
                assert_eq!(drawn.lines().filter(|line| line.contains("4")).count(), 5, "{drawn}");
                // Below that the job, its name and its state alone are wider.
                if width >= 50 {
                    assert!(drawn.lines().all(|line| text::width(line) <= width), "{width}\n{drawn}");
                }
            }
        }
    }

    #[test]
    fn the_columns_of_the_older_tool_are_all_there_in_a_pipe() {
        let drawn = list(&sample::several()[..1], View::Cpu, sample::NOW_NS, &Style::plain());
        expect![[r#"
            ┌─────┬──────┬──────────────┬─────────────┬─────────────┬────────┬──────────┐
            │ JOB │ PPID │ PROCESS NAME │ CPU % (AVG) │ MEM % (AVG) │ STATUS │ DURATION │
            ├─────┼──────┼──────────────┼─────────────┼─────────────┼────────┼──────────┤
            │ 41  │ 3113 │ some_job     │ 376.41%     │ 0.01%       │ Active │ 1m8s     │
            └─────┴──────┴──────────────┴─────────────┴─────────────┴────────┴──────────┘
        "#]]
        .assert_eq(&drawn);
    }

    #[test]
    fn nothing_is_cut_in_a_pipe() {
        let mut record = sample::full(1, &"long".repeat(60));
        record.command = vec!["x".repeat(300)];
        let drawn = list(&[record], View::All, sample::NOW_NS, &Style::plain());
        assert!(drawn.contains(&"long".repeat(60)) && drawn.contains(&"x".repeat(300)), "{drawn}");
        assert!(!drawn.contains('…'));
    }

    #[test]
    fn users_are_named_where_there_are_several() {
        let mut records = sample::several();
        records[1].user = Some("bob".to_owned());
        let style = Style { width: Some(120), ..Style::plain() };
        let drawn = list(&records[..2], View::Jobs, sample::NOW_NS, &style);
        expect![[r#"
            JOB  NAME      USER   STATE     CORES    MEMORY      READ  WRITTEN  DURATION   STARTED
            41   some_job  alice  running    3.76         -         -        -      1m8s  17:39:36
            42   train     bob    finished   3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
        "#]]
        .assert_eq(&drawn);
    }

    #[test]
    fn jobs_of_managers_are_named_with_their_manager() {
        let mut pending = sample::scheduled();
        pending.state = State::Pending;
        (pending.start_ns, pending.end_ns) = (None, None);
        (pending.totals, pending.summaries) = Default::default();
        pending.key.id = "1250".to_owned();
        pending.scheduling.alias = Some("1250+1".to_owned());
        let records = [pending, sample::scheduled(), sample::full(42, "train")];
        let draw = |view, width| list(&records, view, sample::NOW_NS, &Style { width, ..Style::plain() });
        expect![[r#"
            JOB           NAME   STATE     CORES    MEMORY      READ  WRITTEN  DURATION
            slurm:1250+1  train  pending       -         -         -        -         -
            slurm:1234_7  train  timeout    3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            42            train  finished   3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
        "#]]
        .assert_eq(&draw(View::Jobs, Some(80)));
        expect![[r#"
            JOB           NAME   USER   ACCOUNT  PARTITION  STATE     EXIT  CORES  CPU TIME    MEMORY  REQUESTED  OF NODE  WITH CACHE      READ  WRITTEN  READ CALLS  WRITE CALLS  PROCESSES  THREADS  QUEUED  DURATION   STARTED  COMMAND
            slurm:1250+1  train  alice  physics  batch      pending      -      -         -         -   4.00 GiB        -           -         -        -           -            -          -        -   2h30m         -         -  python3 train.py --epochs 3 --label 'first try'
            slurm:1234_7  train  alice  physics  batch      timeout      -   3.76     4m17s  1.21 GiB   4.00 GiB     5.9%    4.70 GiB  3.22 GiB  700 MiB    9.20 GiB      775 MiB         23       41   1h30m      1m8s  16:40:44  python3 train.py --epochs 3 --label 'first try'
            42            train  alice  -        -          finished     0   3.76     4m17s  1.21 GiB          -     5.9%    4.70 GiB  3.22 GiB  700 MiB    9.20 GiB      775 MiB         23       41       -      1m8s  16:40:44  python3 train.py --epochs 3 --label 'first try'
        "#]].assert_eq(&draw(View::All, None));
        let csv = csv(&records, View::All, sample::NOW_NS);
        let columns: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').take(20).collect()).collect();
        expect![[r#"
            job,manager,name,user,account,partition,state,exit,cores,cpu_seconds,memory_needed_peak_bytes,requested_memory_bytes,memory_ratio,memory_peak_bytes,read_bytes,written_bytes,read_call_bytes,write_call_bytes,processes,threads_peak
            slurm:1250+1,slurm,train,alice,physics,batch,pending,,,,,4294967296,,,,,,,,
            slurm:1234_7,slurm,train,alice,physics,batch,timeout,,3.7641025641025636,256.9,1299227608,4294967296,0.05878973752260208,5046586572,3456789012,734003200,9876543210,812646400,23,41
            42,local,train,alice,,,finished,0,3.7641025641025636,256.9,1299227608,,0.05878973752260208,5046586572,3456789012,734003200,9876543210,812646400,23,41
        "#]].assert_eq(&columns.iter().map(|line| line.join(",") + "\n").collect::<String>());
    }

    #[test]
    fn states_have_colours_where_colours_are_wanted() {
        let style = Style { width: Some(60), color: true, ..Style::plain() };
        let drawn = list(&sample::several(), View::Jobs, sample::NOW_NS, &style);
        expect![[r#"
            ESC[1mJOBESC[0mESC[1m  NAME          ESC[0mESC[1m  STATE        ESC[0mESC[1m  CORESESC[0mESC[1m  DURATIONESC[0m
            41   some_job      ESC[38;5;10m  running      ESC[39m   3.76      1m8s
            42   train           finished        3.76      1m8s
            43   convert-the-w…ESC[38;5;9m  failed       ESC[39m   3.76      1m8s
            44   evil\n\x1b[2J…ESC[38;5;9m  out of memoryESC[39m    734     350ms
            45   größe 大きい  ESC[38;5;9m  lost         ESC[39m      -         -
        "#]].assert_eq(&drawn.replace('\x1b', "ESC"));
    }

    #[test]
    fn an_old_terminal_gets_plain_characters() {
        let style = Style { width: Some(80), ascii: true, ..Style::plain() };
        let drawn = list(&sample::several(), View::Cpu, sample::NOW_NS, &style);
        assert!(drawn.is_ascii(), "{drawn}");
        expect![[r#"
            +-----+------+------------------+-----------+-------+---------------+----------+
            | JOB | PPID | NAME             | CPU %     | MEM % | STATUS        | DURATION |
            +==============================================================================+
            | 41  | 3113 | some_job         | 376.41%   | 0.01% | Active        | 1m8s     |
            | 42  | 3113 | train            | 376.41%   | 5.88% | Finished      | 1m8s     |
            | 43  | 3113 | convert-the-who~ | 376.41%   | 5.88% | Failed        | 1m8s     |
            | 44  | 3113 | evil\n\x1b[2J\u~ | 73400.00% | 5.88% | Out of memory | 350ms    |
            | 45  | 3113 | gr??e ??????     | -         | -     | Lost          | -        |
            +-----+------+------------------+-----------+-------+---------------+----------+
        "#]]
        .assert_eq(&drawn);
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        assert_eq!(list(&[], View::Jobs, 0, &Style::plain()), "no jobs yet; try: met run -- CMD\n");
    }

    #[test]
    fn csv_has_whole_numbers_of_base_units_and_one_line_per_job() {
        let mut records = sample::several();
        records[1].name = "say \"a,b\"".to_owned();
        let csv = csv(&records, View::Jobs, sample::NOW_NS);
        assert_eq!(csv.matches("\r\n").count(), records.len() + 1);
        assert!(!csv.contains('\x1b'));
        expect![[r#"
            job,manager,name,user,state,cores,memory_needed_peak_bytes,read_bytes,written_bytes,wall_seconds,start,inside
            41,local,some_job,alice,running,3.7641,,,,68,2026-01-14T17:39:36.000000Z,
            42,local,"say ""a,b""",alice,finished,3.7641025641025636,1299227608,3456789012,734003200,68.25,2026-01-14T16:40:44.000000Z,
            43,local,convert-the-whole-archive-to-parquet-2026,alice,failed,3.7641025641025636,1299227608,3456789012,734003200,68.25,2026-01-14T16:40:44.000000Z,
            44,local,evil\n\x1b[2J\u202ename,alice,out_of_memory,734,1299227608,3456789012,734003200,0.35,2026-01-14T16:40:44.000000Z,
            45,local,größe 大きい,alice,lost,,,,,,2026-01-14T17:39:36.000000Z,
        "#]].assert_eq(&csv.replace("\r\n", "\n"));
    }

    #[test]
    fn csv_of_every_view_has_as_many_fields_as_its_header() {
        for view in <View as clap::ValueEnum>::value_variants().iter().copied() {
            let csv = csv(&sample::several(), view, sample::NOW_NS);
            let mut lines = csv.split("\r\n").filter(|line| !line.is_empty());
            let fields = lines.next().unwrap().matches(',').count();
            assert!(lines.all(|line| line.matches(',').count() == fields), "{csv}");
        }
        expect!["job,ppid,name,cores,memory_ratio,state,wall_seconds"]
            .assert_eq(csv(&[], View::Cpu, 0).trim_end());
        let header = csv(&[], View::All, 0);
        for column in JOB.columns {
            let name = column.json_name();
            assert_eq!(header.trim_end().split(',').filter(|field| **field == name).count(), 1, "{name}");
        }
    }
}
