//! A report as text, at most 80 columns wide: one key block, meters, groups of figures, notes.

use met_core::job::{QualityKind, State};
use met_insight::report::{Amount, Detail, FactValue, Line, Measure, Meter, Report};

use super::{Paint, Style, text, units};

const COLUMNS_MAX: usize = 80;
const COLUMNS_MIN: usize = 40;
/// Labels end here, right-aligned; values begin two columns on, one of them for a mark.
const LABEL_COLUMNS: usize = 16;
const AMOUNT_COLUMNS: usize = 12;
/// What stands beside a meter's bar: ` 47%  3.76 of 8 cores, average`.
const METER_TEXT_COLUMNS: usize = 36;
/// A longer command is cut on a terminal: the report is about what it did.
const COMMAND_LINES_MAX: usize = 3;

pub fn render(report: &Report, style: &Style) -> String {
    let width = style.width.unwrap_or(COLUMNS_MAX).clamp(COLUMNS_MIN, COLUMNS_MAX);
    let page = Page { style, width };
    let mut blocks = vec![page.head(report)];
    blocks.push(report.meters.iter().map(|meter| page.meter(meter)).collect());
    for section in &report.sections {
        blocks.push(section.lines.iter().map(|line| page.line(line)).collect());
    }
    blocks.push(page.notes(report));
    blocks.retain(|block: &Vec<String>| !block.is_empty());
    let blocks: Vec<String> = blocks.iter().map(|lines| lines.join("\n")).collect();
    let drawn = blocks.join("\n\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// The sign in front of an amount that was not measured as such.
fn mark(quality: QualityKind) -> Option<(&'static str, &'static str)> {
    match quality {
        QualityKind::Measured | QualityKind::Sampled => None,
        QualityKind::Attributed => Some(("*", "a share of something measured for several jobs")),
        QualityKind::Estimated => Some(("~", "estimated")),
        QualityKind::LowerBound => Some(("≥", "at least this much")),
    }
}

pub fn amount(amount: &Amount) -> String {
    match amount.measure {
        Measure::Seconds => units::duration_long(amount.value),
        Measure::Bytes => units::bytes(amount.value),
        Measure::BytesPerSecond => units::bytes_per_second(amount.value),
        Measure::Count => units::count(amount.value),
        Measure::Cores => units::cores(amount.value),
        Measure::Share => units::percent(amount.value),
    }
}

fn marked(value: &Amount) -> String {
    format!("{}{}", mark(value.quality).map_or("", |(sign, _)| sign), amount(value))
}

struct Page<'a> {
    style: &'a Style,
    width: usize,
}

impl Page<'_> {
    fn head(&self, report: &Report) -> Vec<String> {
        let id = format!("Job {}", text::escape(&report.id));
        let outcome = text::cut(&text::escape(&report.outcome), self.width - 12, self.style.ascii);
        let room = self.width.saturating_sub(text::width(&id) + text::width(&outcome) + 4);
        let name = text::cut(&text::escape(&report.name), room, self.style.ascii);
        let used = text::width(&id) + 2 + text::width(&name) + text::width(&outcome);
        let mut lines = vec![
            format!(
                "{}  {}{}{}",
                self.style.paint(Paint::Bold, &id),
                self.style.paint(Paint::Bold, &name),
                " ".repeat(self.width.saturating_sub(used)),
                self.style.paint(state_paint(report.state), &outcome),
            ),
            self.style.paint(Paint::Dim, &"─".repeat(self.width)),
        ];
        for fact in &report.facts {
            for (index, part) in self.fact(&fact.value).into_iter().enumerate() {
                let label = if index == 0 { fact.label } else { "" };
                lines.push(format!("{}  {part}", self.label(label)));
            }
        }
        lines
    }

    fn label(&self, label: &str) -> String {
        self.style.paint(Paint::Dim, &text::pad_left(label, LABEL_COLUMNS))
    }

    fn fact(&self, value: &FactValue) -> Vec<String> {
        let room = self.width - LABEL_COLUMNS - 2;
        match value {
            FactValue::Text(words) => vec![self.cut(&text::escape(words), room)],
            FactValue::Amount(value) => vec![amount(value)],
            FactValue::Times(start_ns, end_ns) => vec![self.times(*start_ns, *end_ns)],
            FactValue::Command(words) => {
                let mut lines = wrap(&text::command_line(words), room);
                if self.style.width.is_some() && lines.len() > COMMAND_LINES_MAX {
                    lines.truncate(COMMAND_LINES_MAX);
                    if let Some(last) = lines.last_mut() {
                        // One column more than fits, so that the cut is marked.
                        *last = text::cut(&text::pad(last, room + 1), room, self.style.ascii);
                    }
                }
                lines
            }
        }
    }

    fn cut(&self, words: &str, room: usize) -> String {
        match self.style.width {
            Some(_) => text::cut(words, room, self.style.ascii),
            None => words.to_owned(),
        }
    }

    fn times(&self, start_ns: i64, end_ns: Option<i64>) -> String {
        let start = units::time(start_ns, &self.style.zone);
        let Some(end_ns) = end_ns else { return start };
        let end = units::time(end_ns, &self.style.zone);
        match (start.split_once(' '), end.split_once(' ')) {
            (Some((day, _)), Some((same_day, time))) if day == same_day => format!("{start} to {time}"),
            _ => format!("{start} to {end}"),
        }
    }

    fn meter(&self, meter: &Meter) -> String {
        let room = self.width.saturating_sub(LABEL_COLUMNS + 2 + METER_TEXT_COLUMNS).max(8);
        let filled = filled_columns(meter.share, room);
        let paint = if meter.share > 0.9 { Paint::Yellow } else { Paint::Cyan };
        let unit = if meter.used.measure == Measure::Cores { " cores" } else { "" };
        let words = format!("{} of {}{unit}, {}", marked(&meter.used), amount(&meter.whole), meter.of);
        let words = text::cut(&words, self.width - LABEL_COLUMNS - 2 - room - 7, self.style.ascii);
        format!(
            "{}  {}{} {}  {words}",
            self.label(meter.label),
            self.style.paint(paint, &"█".repeat(filled)),
            self.style.paint(Paint::Dim, &"░".repeat(room - filled)),
            text::pad_left(&units::percent(meter.share), 4),
        )
    }

    fn line(&self, line: &Line) -> String {
        let sign = mark(line.amount.quality).map_or(" ", |(sign, _)| sign);
        let value = format!("{sign}{}", amount(&line.amount));
        let begin = LABEL_COLUMNS + 1;
        let details: Vec<String> = line.details.iter().map(detail).collect();
        let room = self.width.saturating_sub(begin + AMOUNT_COLUMNS + 2);
        let details = text::cut(&details.join(" · "), room, self.style.ascii);
        let value = if details.is_empty() { value } else { text::pad(&value, AMOUNT_COLUMNS) };
        format!("{} {value}  {}", self.label(line.label), self.style.paint(Paint::Dim, &details))
            .trim_end()
            .to_owned()
    }

    fn notes(&self, report: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        for note in &report.notes {
            for (index, part) in wrap(&text::escape(note), self.width - 2).into_iter().enumerate() {
                lines.push(format!("{} {part}", if index == 0 { "*" } else { " " }));
            }
        }
        let signs = legend(report);
        if !signs.is_empty() {
            lines.push(self.style.paint(Paint::Dim, &signs.join("   ")));
        }
        lines
    }
}

fn detail(detail: &Detail) -> String {
    let value = detail.amount.as_ref().map(marked).unwrap_or_default();
    let words = [detail.before, value.as_str(), detail.after];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The signs that the report uses, in words; most reports use none.
fn legend(report: &Report) -> Vec<String> {
    let lines = report.sections.iter().flat_map(|section| &section.lines);
    let amounts = lines.flat_map(|line| {
        line.details.iter().filter_map(|detail| detail.amount.as_ref()).chain([&line.amount])
    });
    let used: Vec<QualityKind> = amounts.map(|amount| amount.quality).collect();
    let kinds = QualityKind::ALL.into_iter().filter(|kind| used.contains(kind));
    kinds.filter_map(mark).map(|(sign, words)| format!("{sign} {words}")).collect()
}

/// Something used is never an empty bar, and all of it is never less than a full one.
fn filled_columns(share: f64, columns: usize) -> usize {
    let exact = share.clamp(0.0, 1.0) * columns as f64;
    if exact > 0.0 { (exact.round() as usize).max(1) } else { 0 }
}

fn state_paint(state: State) -> Paint {
    match state {
        State::Running | State::Finished => Paint::Green,
        State::Pending | State::Suspended | State::Cancelled => Paint::Yellow,
        State::Failed | State::Timeout | State::OutOfMemory | State::Lost => Paint::Red,
    }
}

/// Lines of at most `columns`, broken at spaces where there are any.
fn wrap(words: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words.split(' ') {
        if !line.is_empty() && text::width(&line) + 1 + text::width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for character in word.chars() {
            if text::width(&line) + text::width(character.encode_utf8(&mut [0; 4])) > columns {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines
}
