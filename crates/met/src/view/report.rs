//! A report as text, at most 80 columns wide: one key block, meters, groups of figures, notes.

mod answers;
mod head;
mod tables;

use met_insight::report::{Heading, Line, Report};

use super::{Paint, Style, text};
use met_core::units;
use met_insight::report::words::{amount, detail, legend, mark};

const COLUMNS_MAX: usize = 80;
const COLUMNS_MIN: usize = 40;
/// Labels end here, right-aligned; values begin two columns on, one of them for a mark.
const LABEL_COLUMNS: usize = 16;
const AMOUNT_COLUMNS: usize = 12;
const DETAIL_COLUMNS_MIN: usize = 20;
const SEPARATOR: &str = " · ";

pub fn render(report: &Report, style: &Style) -> String {
    let width = style.width.unwrap_or(COLUMNS_MAX).clamp(COLUMNS_MIN, COLUMNS_MAX);
    let page = Page { style, width };
    let mut blocks = vec![page.head(report)];
    blocks.push(report.meters.iter().map(|meter| tables::meter(&page, meter)).collect());
    blocks.push(tables::shares(&page, &report.shares));
    blocks.push(answers::lines(&page, report));
    for section in &report.sections {
        let heading = section.heading.iter().map(|heading| page.heading(heading));
        blocks.push(heading.chain(section.lines.iter().map(|line| page.line(line))).collect());
    }
    blocks.push(tables::parts(&page, &report.parts));
    blocks.push(answers::next_time(&page, report));
    blocks.push(answers::findings(&page, report));
    blocks.push(page.notes(report));
    blocks.retain(|block: &Vec<String>| !block.is_empty());
    let blocks: Vec<String> = blocks.iter().map(|lines| lines.join("\n")).collect();
    let drawn = blocks.join("\n\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// Details in as few lines as they fit into. One that is too long for a line is broken between words: half a number
/// is a wrong number.
fn filled(details: impl Iterator<Item = String>, separator: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for detail in details {
        match lines.last_mut() {
            Some(last) if text::width(last) + text::width(separator) + text::width(&detail) <= room => {
                last.push_str(separator);
                last.push_str(&detail);
            }
            _ => lines.extend(text::wrap(&detail, room)),
        }
    }
    lines
}

struct Page<'a> {
    style: &'a Style,
    width: usize,
}

impl Page<'_> {
    fn label(&self, label: &str) -> String {
        self.style.paint(Paint::Dim, &text::pad_left(label, LABEL_COLUMNS))
    }

    /// Foreign text is cut on a terminal only; a file gets all of it.
    fn cut(&self, words: &str, room: usize) -> String {
        match self.style.width {
            Some(_) => text::cut(words, room, self.style.ascii),
            None => words.to_owned(),
        }
    }

    /// Never cut, and broken between what there is to say: since when a GPU idles comes last.
    fn heading(&self, heading: &Heading) -> String {
        let since = heading.since.map(|(what, since_ns)| {
            let time = units::time(since_ns, &self.style.zone);
            format!("{what} {time}")
        });
        let words = heading.words.iter().map(|words| text::escape(words)).chain(since);
        let lines = filled(words, ", ", self.width - LABEL_COLUMNS - 2);
        let label = self.style.paint(Paint::Bold, &text::pad_left(&heading.label, LABEL_COLUMNS));
        let indent = format!("\n{}  ", " ".repeat(LABEL_COLUMNS));
        format!("{label}  {}", lines.join(&indent))
    }

    fn line(&self, line: &Line) -> String {
        let sign = mark(line.amount.quality).map_or(" ", |(sign, _)| sign);
        let value = units::marked(sign, &amount(&line.amount));
        let beside = LABEL_COLUMNS + 1 + AMOUNT_COLUMNS + 2;
        // Where there is no room beside the value, details go below it.
        let fits_beside = self.width >= beside + DETAIL_COLUMNS_MIN;
        let indent = if fits_beside { beside } else { LABEL_COLUMNS + 2 };
        let details = filled(line.details.iter().map(detail), SEPARATOR, self.width - indent);
        let mut details = details.iter().map(|words| self.style.paint(Paint::Dim, words)).peekable();
        let first = match details.next_if(|_| fits_beside) {
            Some(words) => format!("{}  {words}", text::pad(&value, AMOUNT_COLUMNS)),
            None => value,
        };
        let below = details.map(|words| format!("\n{:indent$}{words}", ""));
        format!("{} {first}{}", self.label(line.label), below.collect::<String>())
    }

    fn notes(&self, report: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        for note in &report.notes {
            for (index, part) in text::wrap(&text::escape(note), self.width - 2).into_iter().enumerate() {
                // Not a star: that marks figures.
                lines.push(format!("{} {part}", if index == 0 { "-" } else { " " }));
            }
        }
        let signs = legend(report);
        if !signs.is_empty() {
            let signs = filled(signs.into_iter(), "   ", self.width).into_iter();
            lines.extend(signs.map(|line| self.style.paint(Paint::Dim, &line)));
        }
        lines
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
