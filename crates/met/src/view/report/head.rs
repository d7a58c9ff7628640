//! The head of a report: who the job is, how it ended, and the facts about it.

use met_core::job::State;
use met_insight::report::{FactValue, Report};

use super::{LABEL_COLUMNS, Page};
use crate::view::{Paint, text};
use met_core::units;
use met_insight::report::words::amount;

/// A longer command is cut on a terminal: the report is about what it did.
const COMMAND_LINES_MAX: usize = 3;

impl Page<'_> {
    pub(super) fn head(&self, report: &Report) -> Vec<String> {
        // A job that is not stored has no number.
        let id = format!("Job {}", text::escape(&report.id)).trim_end().to_owned();
        let outcome = text::cut(&text::escape(&report.outcome), self.width - 12, self.style.ascii);
        let room = self.width.saturating_sub(text::width(&id) + text::width(&outcome) + 4);
        let name = self.cut(&text::escape(&report.name), room);
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
        for (index, part) in self.verdict(report).into_iter().enumerate() {
            lines.push(format!("{}  {part}", self.label(if index == 0 { "verdict" } else { "" })));
        }
        for fact in &report.facts {
            for (index, part) in self.fact(&fact.value).into_iter().enumerate() {
                let label = if index == 0 { fact.label } else { "" };
                lines.push(format!("{}  {part}", self.label(label)));
            }
        }
        lines.extend(self.annotation(report));
        lines
    }

    /// Tags in one line, and the whole note.
    fn annotation(&self, report: &Report) -> Vec<String> {
        let room = self.width - LABEL_COLUMNS - 2;
        let tags = report.annotation.tags.iter().cloned().collect::<Vec<_>>().join(" ");
        let note = report.annotation.note.as_deref().unwrap_or_default().trim_end();
        let mut lines = Vec::new();
        for (label, words) in [("tags", tags.as_str()), ("note", note)] {
            let parts = words.lines().flat_map(|line| text::wrap(&text::escape(line), room));
            let labels = [label].into_iter().chain(std::iter::repeat(""));
            lines.extend(labels.zip(parts).map(|(label, part)| format!("{}  {part}", self.label(label))));
        }
        lines
    }

    fn verdict(&self, report: &Report) -> Vec<String> {
        let Some(answers) = &report.answers else { return Vec::new() };
        let lines = text::wrap(&text::escape(&answers.verdict), self.width - LABEL_COLUMNS - 2);
        lines.iter().map(|line| self.style.paint(Paint::Bold, line)).collect()
    }

    fn fact(&self, value: &FactValue) -> Vec<String> {
        let room = self.width - LABEL_COLUMNS - 2;
        match value {
            FactValue::Text(words) => vec![self.cut(&text::escape(words), room)],
            FactValue::Amount(value) => vec![amount(value)],
            FactValue::Change(words, by_ns) => {
                text::wrap(&format!("{words} by {}", units::time(*by_ns, &self.style.zone)), room)
            }
            FactValue::Times(start_ns, end_ns) => text::wrap(&self.times(*start_ns, *end_ns), room),
            FactValue::Command(words) => {
                let mut lines = text::wrap(&text::command_line(words), room);
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

    fn times(&self, start_ns: i64, end_ns: Option<i64>) -> String {
        let start = units::time(start_ns, &self.style.zone);
        let Some(end_ns) = end_ns else { return start };
        let end = units::time(end_ns, &self.style.zone);
        match (start.split_once(' '), end.split_once(' ')) {
            (Some((day, _)), Some((same_day, time))) if day == same_day => format!("{start} to {time}"),
            _ => format!("{start} to {end}"),
        }
    }
}

fn state_paint(state: State) -> Paint {
    match state {
        State::Running | State::Finished => Paint::Green,
        State::Pending | State::Suspended | State::Cancelled => Paint::Yellow,
        State::Failed | State::Timeout | State::OutOfMemory | State::Lost => Paint::Red,
    }
}
