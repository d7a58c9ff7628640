//! Meters, shares of what was given, and the table of steps and tasks.

use met_insight::report::{Amount, Meter, PartLine, ShareLine};

use super::{LABEL_COLUMNS, Page};
use crate::view::{Paint, text};
use met_core::units;
use met_insight::report::words::{self, marked};

/// The text beside a meter's bar: `  47%  3.76 of 8 cores, average`.
const METER_TEXT_COLUMNS: usize = 37;
/// Steps and tasks on a terminal; a file gets all of them.
const PARTS_MAX: usize = 20;

pub(super) fn meter(page: &Page<'_>, meter: &Meter) -> String {
    let room = page.width.saturating_sub(LABEL_COLUMNS + 2 + METER_TEXT_COLUMNS).max(8);
    let bar = bar(meter.share, room);
    let paint = if meter.share > 0.9 { Paint::Yellow } else { Paint::Cyan };
    let words = words::meter(meter);
    let words = text::cut(&words, page.width - LABEL_COLUMNS - 2 - room - 8, page.style.ascii);
    format!(
        "{}  {}{} {}  {words}",
        page.label(meter.label),
        page.style.paint(paint, &bar),
        page.style.paint(Paint::Dim, &"░".repeat(room - text::width(&bar))),
        // As wide as `<0.1%`.
        text::pad_left(&units::percent(meter.share), 5),
    )
}

/// What was asked for, given and used, one line for each resource.
pub(super) fn shares(page: &Page<'_>, shares: &[ShareLine]) -> Vec<String> {
    if shares.is_empty() {
        return Vec::new();
    }
    let known = |value: &Option<Amount>| value.as_ref().map_or("-".to_owned(), marked);
    let row = |cells: [&str; 4]| {
        let [requested, allocated, used, efficiency] = cells;
        let words = [(requested, 12), (allocated, 12), (used, 12)].map(|(text, room)| text::pad(text, room));
        format!("{}{efficiency}", words.concat()).trim_end().to_owned()
    };
    let head = row(["requested", "allocated", "used", "share"]);
    let mut lines = vec![format!("{}  {}", page.label(""), page.style.paint(Paint::Dim, &head))];
    for share in shares {
        let efficiency = share.efficiency.map(units::percent).unwrap_or_default();
        let cells = [&share.requested, &share.allocated, &share.used].map(known);
        let words = row([&cells[0], &cells[1], &cells[2], &efficiency]);
        lines.push(format!("{}  {words}", page.label(share.label)));
    }
    lines
}

/// A table of steps and tasks. Nodes are named where there are several.
pub(super) fn parts(page: &Page<'_>, parts: &[PartLine]) -> Vec<String> {
    let Some(first) = parts.first() else { return Vec::new() };
    let several = parts.iter().any(|part| part.node != first.node);
    let shown = if page.style.width.is_some() { PARTS_MAX } else { usize::MAX };
    let mut rows = vec![["step", "CPU time", "memory", "duration", "exit", ""].map(str::to_owned)];
    rows.extend(parts.iter().take(shown).map(|part| part_cells(part, several)));
    let columns: Vec<usize> = (0..rows[0].len())
        .map(|index| rows.iter().map(|row| text::width(&row[index])).max().unwrap_or(0))
        .collect();
    let mut lines = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let step = text::pad(&page.cut(&row[0], LABEL_COLUMNS), columns[0].min(LABEL_COLUMNS));
        let figures = (1..5).map(|column| text::pad_left(&row[column], columns[column]));
        let line = format!("{}  {}", figures.collect::<Vec<_>>().join("  "), row[5]);
        let line = page.cut(line.trim_end(), page.width - LABEL_COLUMNS - 2);
        let paint =
            |words: &str| if index == 0 { page.style.paint(Paint::Dim, words) } else { words.to_owned() };
        let step = text::pad_left(&step, LABEL_COLUMNS);
        lines.push(paint(&format!("{step}  {line}")));
    }
    if parts.len() > shown {
        let more = format!("{} more; --json has all", parts.len() - shown);
        lines.push(format!("{}  {}", page.label(""), page.style.paint(Paint::Dim, &more)));
    }
    lines
}

/// The step or task, its figures, and what it is called.
fn part_cells(part: &PartLine, several_nodes: bool) -> [String; 6] {
    let known = |value: &Option<Amount>| value.as_ref().map_or("-".to_owned(), marked);
    let step = match &part.task {
        _ if part.step.is_empty() => "all".to_owned(),
        task if part.folded.is_some() => {
            let what = if task.is_some() { "tasks" } else { "steps" };
            format!("{} other {what}", part.folded.unwrap_or_default())
        }
        Some(task) => format!("{}, task {}", text::escape(&part.step), text::escape(task)),
        None => text::escape(&part.step),
    };
    let node = Some(part.node.as_str()).filter(|_| several_nodes);
    let name = part.name.as_deref().filter(|_| part.task.is_none());
    let words: Vec<String> = name.into_iter().chain(node).map(text::escape).collect();
    let exit = part.exit_code.map_or("-".to_owned(), |code| code.to_string());
    [step, known(&part.cpu), known(&part.memory), known(&part.duration), exit, words.join(" on ")]
}

/// Something used is never an empty bar, little of it is less than a block, and all of it is a full bar.
pub(super) fn bar(share: f64, columns: usize) -> String {
    let exact = share.clamp(0.0, 1.0) * columns as f64;
    match exact.round() as usize {
        0 if exact > 0.0 => "▏".to_owned(),
        filled => "█".repeat(filled),
    }
}
