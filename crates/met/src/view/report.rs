//! A report as text, at most 80 columns wide: one key block, meters, groups of figures, notes.

use met_core::job::{QualityKind, State};
use met_insight::report::{Amount, Detail, FactValue, Line, Measure, Meter, PartLine, Report, ShareLine};

use super::{Paint, Style, text, units};

const COLUMNS_MAX: usize = 80;
const COLUMNS_MIN: usize = 40;
/// Labels end here, right-aligned; values begin two columns on, one of them for a mark.
const LABEL_COLUMNS: usize = 16;
const AMOUNT_COLUMNS: usize = 12;
const SEPARATOR: &str = " · ";
/// What stands beside a meter's bar: ` 47%  3.76 of 8 cores, average`.
const METER_TEXT_COLUMNS: usize = 36;
/// A longer command is cut on a terminal: the report is about what it did.
const COMMAND_LINES_MAX: usize = 3;
/// Steps and tasks on a terminal; a file gets all of them.
const PARTS_MAX: usize = 20;

pub fn render(report: &Report, style: &Style) -> String {
    let width = style.width.unwrap_or(COLUMNS_MAX).clamp(COLUMNS_MIN, COLUMNS_MAX);
    let page = Page { style, width };
    let mut blocks = vec![page.head(report)];
    blocks.push(report.meters.iter().map(|meter| page.meter(meter)).collect());
    blocks.push(page.shares(&report.shares));
    for section in &report.sections {
        let heading = section.heading.iter().map(|(label, words)| page.heading(label, words));
        blocks.push(heading.chain(section.lines.iter().map(|line| page.line(line))).collect());
    }
    blocks.push(page.parts(&report.parts));
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
        Measure::Joules => units::watt_hours(amount.value),
        Measure::Grams => units::grams(amount.value),
        Measure::Money => units::money(amount.value),
        Measure::Watts => units::watts(amount.value),
        Measure::Celsius => units::celsius(amount.value),
        Measure::Hertz => units::hertz(amount.value),
        Measure::Cards => units::cores(amount.value),
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

    /// Foreign text is cut on a terminal only; a file gets all of it.
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
        let unit = match meter.used.measure {
            Measure::Cores => " cores",
            Measure::Cards if meter.whole.value == 1.0 => " card",
            Measure::Cards => " cards",
            _ => "",
        };
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

    /// What was asked for, given and used, one line for each resource.
    fn shares(&self, shares: &[ShareLine]) -> Vec<String> {
        if shares.is_empty() {
            return Vec::new();
        }
        let known = |value: &Option<Amount>| value.as_ref().map_or("-".to_owned(), marked);
        let row = |cells: [&str; 4]| {
            let [requested, allocated, used, efficiency] = cells;
            let words =
                [(requested, 12), (allocated, 12), (used, 12)].map(|(text, room)| text::pad(text, room));
            format!("{}{efficiency}", words.concat()).trim_end().to_owned()
        };
        let head = row(["requested", "allocated", "used", "share"]);
        let mut lines = vec![format!("{}  {}", self.label(""), self.style.paint(Paint::Dim, &head))];
        for share in shares {
            let efficiency = share.efficiency.map(units::percent).unwrap_or_default();
            let cells = [&share.requested, &share.allocated, &share.used].map(known);
            let words = row([&cells[0], &cells[1], &cells[2], &efficiency]);
            lines.push(format!("{}  {words}", self.label(share.label)));
        }
        lines
    }

    /// A table of steps and tasks. Nodes are named where there are several.
    fn parts(&self, parts: &[PartLine]) -> Vec<String> {
        let Some(first) = parts.first() else { return Vec::new() };
        let several = parts.iter().any(|part| part.node != first.node);
        let shown = if self.style.width.is_some() { PARTS_MAX } else { usize::MAX };
        let mut rows = vec![["step", "CPU time", "memory", "duration", "exit", ""].map(str::to_owned)];
        rows.extend(parts.iter().take(shown).map(|part| part_cells(part, several)));
        let columns: Vec<usize> = (0..rows[0].len())
            .map(|index| rows.iter().map(|row| text::width(&row[index])).max().unwrap_or(0))
            .collect();
        let mut lines = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let step = text::pad(&self.cut(&row[0], LABEL_COLUMNS), columns[0].min(LABEL_COLUMNS));
            let figures = (1..5).map(|column| text::pad_left(&row[column], columns[column]));
            let line = format!("{}  {}", figures.collect::<Vec<_>>().join("  "), row[5]);
            let line = self.cut(line.trim_end(), self.width - LABEL_COLUMNS - 2);
            let paint =
                |words: &str| if index == 0 { self.style.paint(Paint::Dim, words) } else { words.to_owned() };
            let step = text::pad_left(&step, LABEL_COLUMNS);
            lines.push(paint(&format!("{step}  {line}")));
        }
        if parts.len() > shown {
            let more = format!("{} more; --json has all", parts.len() - shown);
            lines.push(format!("{}  {}", self.label(""), self.style.paint(Paint::Dim, &more)));
        }
        lines
    }

    fn heading(&self, label: &str, words: &str) -> String {
        let words = self.cut(&text::escape(words), self.width - LABEL_COLUMNS - 2);
        let label = self.style.paint(Paint::Bold, &text::pad_left(label, LABEL_COLUMNS));
        format!("{label}  {words}")
    }

    fn line(&self, line: &Line) -> String {
        let sign = mark(line.amount.quality).map_or(" ", |(sign, _)| sign);
        let value = format!("{sign}{}", amount(&line.amount));
        let begin = LABEL_COLUMNS + 1;
        let room = self.width.saturating_sub(begin + AMOUNT_COLUMNS + 2);
        let mut details: Vec<String> = line.details.iter().map(detail).collect();
        // A detail that does not fit is left out as a whole: half a number is a wrong number.
        while details.len() > 1 && text::width(&details.join(SEPARATOR)) > room {
            details.pop();
        }
        let details = text::cut(&details.join(SEPARATOR), room, self.style.ascii);
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

fn detail(detail: &Detail) -> String {
    let value = detail.amount.as_ref().map(marked).unwrap_or_default();
    let words = [detail.before, value.as_str(), &detail.after];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The signs that the report uses, in words; most reports use none.
fn legend(report: &Report) -> Vec<String> {
    let lines = report.sections.iter().flat_map(|section| &section.lines);
    let amounts = lines.flat_map(|line| {
        line.details.iter().filter_map(|detail| detail.amount.as_ref()).chain([&line.amount])
    });
    let shares = report.shares.iter().filter_map(|share| share.used.as_ref());
    let parts = report.parts.iter().flat_map(|part| [part.cpu.as_ref(), part.memory.as_ref()]).flatten();
    let used: Vec<QualityKind> = amounts.chain(shares).chain(parts).map(|amount| amount.quality).collect();
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

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use met_core::job::Record;
    use met_core::job_table as column;
    use met_insight::report::{Machine, report};

    use super::*;
    use crate::view::sample;

    fn draw(record: &Record, style: &Style) -> String {
        render(&report(record, Machine { cpus: Some(8) }, sample::NOW_NS), style)
    }

    fn check(record: &Record, width: usize, expected: Expect) {
        let drawn = draw(record, &Style { width: Some(width), ..Style::plain() });
        for line in drawn.lines() {
            assert!(text::width(line) <= width.min(80), "{line}");
        }
        expected.assert_eq(&drawn);
    }

    #[test]
    fn everything_known_at_60() {
        check(
            &sample::full(42, "train"),
            60,
            expect![[r#"
                Job 42  train                          finished, exit code 0
                ────────────────────────────────────────────────────────────
                         command  python3 train.py --epochs 3 --label 'first
                                  try'
                            user  alice
                            node  n1
                         started  2026-01-14 16:40:44 to 16:41:52
                        duration  1m8.3s

                             CPU  ████░░░░  47%  3.76 of 8 cores, average
                          memory  █░░░░░░░ 7.6%  1.21 GiB of 16.0 GiB, peak

                        CPU time  4m16.9s      user 4m3.8s · system 13.1s
                           cores  3.76         average · peak 7.91
                          waited  4.18s        ready to run, no CPU free
                        switches  57,214       45,210 voluntary

                   memory needed  1.21 GiB     peak · average 963 MiB
                           cache  2.70 GiB     average · reclaimable
                 peak with cache  4.70 GiB
                     page faults  2,345,990    2,345,678 minor · 312 major

                            read  3.22 GiB     from storage · 48.3 MiB/s
                         written  700 MiB      towards storage · 10.3 MiB/s
                      read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                     write calls  775 MiB      11.4 MiB/s · 98,123 calls

                       processes  23           seen · 9 at once
                         threads  41           at once

                    CPU pressure  6.9s         10% of the time
                 memory pressure  0s           0% of the time
                    I/O pressure  9.42s        14% of the time
            "#]],
        );
    }

    #[test]
    fn everything_known_at_80() {
        check(
            &sample::full(42, "train"),
            80,
            expect![[r#"
            Job 42  train                                              finished, exit code 0
            ────────────────────────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first try'
                        user  alice
                        node  n1
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                         CPU  ████████████░░░░░░░░░░░░░░  47%  3.76 of 8 cores, average
                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░░ 7.6%  1.21 GiB of 16.0 GiB, peak

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        ready to run, no CPU free
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      towards storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           seen · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time · all tasks 3.1%
        "#]],
        );
    }

    #[test]
    fn a_job_of_a_manager_at_80() {
        check(
            &sample::scheduled(),
            80,
            expect![[r#"
                Job slurm:1234_7  train                                                  timeout
                ────────────────────────────────────────────────────────────────────────────────
                         command  python3 train.py --epochs 3 --label 'first try'
                         manager  slurm on tux
                            user  alice, account physics
                       partition  batch, QOS normal
                           array  element 7 of 1234, id 1240
                        restarts  1
                          reason  TimeLimit
                            node  n1
                   manager state  TIMEOUT
                      queued for  1h30m30s
                         started  2026-01-14 16:40:44 to 16:41:52
                        duration  1m8.3s

                                  requested   allocated   used        share
                            CPUs  4           6           3.76        63%
                          memory  4.00 GiB    4.00 GiB    1.21 GiB    30%
                            GPUs  1           1           -
                            time  1m0s        -           1m8.3s      114%

                        CPU time  4m16.9s      user 4m3.8s · system 13.1s
                           cores  3.76         average · peak 7.91
                          waited  4.18s        ready to run, no CPU free
                        switches  57,214       45,210 voluntary · 12,004 preempted

                   memory needed  1.21 GiB     peak · average 963 MiB
                           cache  2.70 GiB     average · reclaimable
                 peak with cache  4.70 GiB
                     page faults  2,345,990    2,345,678 minor · 312 major

                            read  3.22 GiB     from storage · 48.3 MiB/s
                         written  700 MiB      towards storage · 10.3 MiB/s
                      read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                     write calls  775 MiB      11.4 MiB/s · 98,123 calls

                       processes  23           seen · 9 at once
                         threads  41           at once

                    CPU pressure  6.9s         10% of the time
                 memory pressure  0s           0% of the time
                    I/O pressure  9.42s        14% of the time · all tasks 3.1%

                       step       CPU time    memory  duration  exit
                       batch          5.4s  25.7 MiB         -     -
                       0           4m11.5s  1.17 GiB      1m1s   143  solve\x1b[2J
                       0, task 0      2m0s   572 MiB      1m1s     0
                       0, task 1   2m11.5s   627 MiB      1m1s   143
            "#]],
        );
    }

    #[test]
    fn a_job_of_a_manager_at_60() {
        check(
            &sample::scheduled(),
            60,
            expect![[r#"
                Job slurm:1234_7  train                              timeout
                ────────────────────────────────────────────────────────────
                         command  python3 train.py --epochs 3 --label 'first
                                  try'
                         manager  slurm on tux
                            user  alice, account physics
                       partition  batch, QOS normal
                           array  element 7 of 1234, id 1240
                        restarts  1
                          reason  TimeLimit
                            node  n1
                   manager state  TIMEOUT
                      queued for  1h30m30s
                         started  2026-01-14 16:40:44 to 16:41:52
                        duration  1m8.3s

                                  requested   allocated   used        share
                            CPUs  4           6           3.76        63%
                          memory  4.00 GiB    4.00 GiB    1.21 GiB    30%
                            GPUs  1           1           -
                            time  1m0s        -           1m8.3s      114%

                        CPU time  4m16.9s      user 4m3.8s · system 13.1s
                           cores  3.76         average · peak 7.91
                          waited  4.18s        ready to run, no CPU free
                        switches  57,214       45,210 voluntary

                   memory needed  1.21 GiB     peak · average 963 MiB
                           cache  2.70 GiB     average · reclaimable
                 peak with cache  4.70 GiB
                     page faults  2,345,990    2,345,678 minor · 312 major

                            read  3.22 GiB     from storage · 48.3 MiB/s
                         written  700 MiB      towards storage · 10.3 MiB/s
                      read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                     write calls  775 MiB      11.4 MiB/s · 98,123 calls

                       processes  23           seen · 9 at once
                         threads  41           at once

                    CPU pressure  6.9s         10% of the time
                 memory pressure  0s           0% of the time
                    I/O pressure  9.42s        14% of the time

                       step       CPU time    memory  duration  exit
                       batch          5.4s  25.7 MiB         -     -
                       0           4m11.5s  1.17 GiB      1m1s   143  solve…
                       0, task 0      2m0s   572 MiB      1m1s     0
                       0, task 1   2m11.5s   627 MiB      1m1s   143
            "#]],
        );
    }

    #[test]
    fn steps_beyond_a_screen_are_counted() {
        let mut record = sample::scheduled();
        let part = record.parts[3].clone();
        record.parts =
            (0..30).map(|step| met_core::job::Part { step: step.to_string(), ..part.clone() }).collect();
        let terminal = draw(&record, &Style { width: Some(80), ..Style::plain() });
        assert!(terminal.contains("10 more; --json has all"), "{terminal}");
        assert!(draw(&record, &Style::plain()).contains("\n            29  "));
    }

    #[test]
    fn steps_without_a_line_of_their_own_are_counted() {
        let mut record = sample::scheduled();
        for of_tasks in [false, true] {
            let mut others = met_core::job::Part::others("n1".to_owned(), of_tasks);
            (0..3000).for_each(|_| others.take_in(&record.parts[3]));
            record.parts.push(others);
        }
        let shown = draw(&record, &Style::plain());
        for what in ["3000 other steps", "3000 other tasks"] {
            assert!(shown.contains(what), "{shown}");
        }
    }

    #[test]
    fn a_wide_terminal_does_not_stretch_the_page() {
        let [at_80, at_120] = [80, 120]
            .map(|width| draw(&sample::full(42, "train"), &Style { width: Some(width), ..Style::plain() }));
        assert_eq!(at_80, at_120);
    }

    #[test]
    fn what_is_not_certain_is_marked_and_explained() {
        check(
            &sample::uncertain(),
            80,
            expect![[r#"
            Job 7  server                              failed, killed by signal 11 (SIGSEGV)
            ────────────────────────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first try'
                        user  alice
                        node  n1
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                         CPU  ████████████░░░░░░░░░░░░░░  47%  ≥3.76 of 8 cores, average
                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░░ 7.6%  ~1.21 GiB of 16.0 GiB, peak

                    CPU time ≥4m16.9s      user ≥4m3.8s · system ≥13.1s
                       cores ≥3.76         average · peak 7.91
                      waited  4.18s        ready to run, no CPU free
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed ~1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      towards storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           seen · 9 at once
                     threads  41           at once

            * still running: redis-server (3120), tail\x1b[31m (3121)
            ~ estimated   ≥ at least this much
        "#]],
        );
    }

    #[test]
    fn energy_is_told_by_part_with_its_meter_its_factor_and_its_price() {
        let energy = |kind| {
            let drawn = draw(&sample::charged(1, kind), &Style::plain());
            drawn[drawn.find("          energy").unwrap()..].to_owned()
        };
        expect![[r#"
                      energy *2.50 Wh      *132 W average · RAPL, by CPU time
                  CPU energy *2.00 Wh
               memory energy *300 mWh
                other energy *200 mWh      board, fans, disks, losses
                  of it idle *500 mWh      for what the job holds
                   emissions *85.0 mg      CO2e at 34 g/kWh, rte eco2mix
                        cost *0.000525     EUR at 0.21 per kWh

            * a share of something measured for several jobs
        "#]]
        .assert_eq(&energy(QualityKind::Attributed));
        expect![[r#"
                      energy ~2.50 Wh      ~132 W average · RAPL, by CPU time
                  CPU energy ~2.00 Wh
               memory energy ~300 mWh
                other energy ~200 mWh      board, fans, disks, losses
                  of it idle ~500 mWh      for what the job holds
                   emissions ~85.0 mg      CO2e at 34 g/kWh, rte eco2mix
                        cost ~0.000525     EUR at 0.21 per kWh

            * no meter of energy was read; `met doctor` says what would make one readable
            ~ estimated
        "#]]
        .assert_eq(&energy(QualityKind::Estimated));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        check(
            &sample::bare(1, "x"),
            80,
            expect![[r#"
            Job 1  x                                                                 running
            ────────────────────────────────────────────────────────────────────────────────
                     command  x
                        user  alice
                        node  n1
                     started  2026-01-14 17:39:36
                 running for  1m8s
        "#]],
        );
    }

    #[test]
    fn a_long_command_and_a_hostile_name_stay_in_their_place() {
        let mut record =
            sample::bare(1, "evil\n\x1b]0;title\x07name-that-goes-on-and-on-and-on-and-on-and-on");
        record.command = (0..60).map(|index| format!("argument-{index}")).collect();
        record.totals = sample::full(1, "x").totals;
        record.totals.remove(column::CPU);
        check(
            &record,
            80,
            expect![[r#"
            Job 1  evil\n\x1b]0;title\x07name-that-goes-on-and-on-and-on-and-on-an…  running
            ────────────────────────────────────────────────────────────────────────────────
                     command  argument-0 argument-1 argument-2 argument-3 argument-4
                              argument-5 argument-6 argument-7 argument-8 argument-9
                              argument-10 argument-11 argument-12 argument-13 argument-14  …
                        user  alice
                        node  n1
                     started  2026-01-14 17:39:36
                 running for  1m8s

                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░░ 7.6%  1.21 GiB of 16.0 GiB, peak

                      waited  4.18s        ready to run, no CPU free
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.5 MiB/s
                     written  700 MiB      towards storage · 10.3 MiB/s
                  read calls  9.20 GiB     139 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           seen · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time · all tasks 3.1%
        "#]],
        );
    }

    #[test]
    fn colours_and_plain_characters() {
        let record = sample::uncertain();
        let colored = draw(&record, &Style { color: true, ..Style::plain() });
        let head: Vec<&str> = colored.lines().take(12).collect();
        expect![[r#"
            ESC[1mJob 7ESC[0m  ESC[1mserverESC[0m                              ESC[31mfailed, killed by signal 11 (SIGSEGV)ESC[0m
            ESC[2m────────────────────────────────────────────────────────────────────────────────ESC[0m
            ESC[2m         commandESC[0m  python3 train.py --epochs 3 --label 'first try'
            ESC[2m            userESC[0m  alice
            ESC[2m            nodeESC[0m  n1
            ESC[2m         startedESC[0m  2026-01-14 16:40:44 to 16:41:52
            ESC[2m        durationESC[0m  1m8.3s

            ESC[2m             CPUESC[0m  ESC[36m████████████ESC[0mESC[2m░░░░░░░░░░░░░░ESC[0m  47%  ≥3.76 of 8 cores, average
            ESC[2m          memoryESC[0m  ESC[36m██ESC[0mESC[2m░░░░░░░░░░░░░░░░░░░░░░░░ESC[0m 7.6%  ~1.21 GiB of 16.0 GiB, peak

            ESC[2m        CPU timeESC[0m ≥4m16.9s      ESC[2muser ≥4m3.8s · system ≥13.1sESC[0m"#]].assert_eq(&head.join("\n").replace('\x1b', "ESC"));
        let plain = draw(&record, &Style { ascii: true, ..Style::plain() });
        assert!(plain.is_ascii(), "{plain}");
    }

    #[test]
    fn a_bar_is_empty_only_for_nothing_and_full_only_for_all() {
        assert_eq!([0.0, 0.001, 0.5, 1.0, 7.0].map(|share| filled_columns(share, 10)), [0, 1, 5, 10, 10]);
    }
}
