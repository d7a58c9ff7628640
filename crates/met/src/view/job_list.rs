//! Lists of jobs: for people, cut to their terminal, and as CSV, whole.

mod columns;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use comfy_table::{ContentLineStyle, LineStyle, TableStyle};
use met_core::JOB;
use met_core::job::{QualityKind, Record, State};
use met_core::listing::SortColumn;
use met_insight::csv::{self, CRLF, Cell as CsvCell};
use met_insight::json;

use super::{Paint, Style, text};
use met_core::units;
use met_core::units::Scale;
use met_insight::report::words::mark;

pub use columns::View;
use columns::{Amount, Format, Job, ListColumn, Show, Side, Value, columns};

const UNKNOWN: &str = "-";

/// What an empty list says.
pub const NO_JOBS: &str = "no jobs yet; try: met run -- CMD\n";

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
