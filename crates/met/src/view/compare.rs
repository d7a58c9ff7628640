//! Jobs side by side: a table of their figures, and their charts aligned at their start.

use met_core::chart::Unit;
use met_core::job::Record;
use met_core::job_table as column;
use met_core::series::{Gaps, Series};
use met_insight::average;
use met_insight::comparison::{self, Row};
use met_insight::resample::{self, Bin};

use super::plot::{self, Panel};
use super::{Paint, Style, text};
use met_core::units;

pub struct Compared {
    pub record: Record,
    pub series: Series,
    pub gaps: Gaps,
}

const LABEL_COLUMNS: usize = 16;

pub fn render(jobs: &[Compared], now_ns: i64, style: &Style) -> String {
    let figures = comparison::rows(jobs.iter().map(|job| &job.record), now_ns);
    let mut lines = table(jobs, &figures, style);
    let signs = comparison::legend(&figures);
    if !signs.is_empty() {
        lines.push(style.paint(Paint::Dim, &signs.join(" · ")));
    }
    let charts = charts(jobs, style);
    if !charts.is_empty() {
        lines.push(String::new());
        lines.push(charts.trim_end().to_owned());
    }
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// A column for each job; the others with what they are of the first.
fn table(jobs: &[Compared], figures: &[Row], style: &Style) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let head = jobs.iter().map(|job| format!("Job {}", text::escape(&job.record.label())));
    rows.push([String::new()].into_iter().chain(head).collect());
    for row in figures {
        let cell = |index: usize| match row.words(index) {
            None => "-".to_owned(),
            Some((value, Some(ratio))) => format!("{value} {}", units::times(ratio)),
            Some((value, None)) => value,
        };
        rows.push([row.label.to_owned()].into_iter().chain((0..jobs.len()).map(cell)).collect());
    }
    let width = |index: usize| rows.iter().map(|row| text::width(&row[index])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut lines = Vec::new();
    for columns in blocks(&widths, style.width.unwrap_or(usize::MAX)) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(rows.iter().enumerate().map(|(at, row)| {
            let cells: Vec<String> =
                columns.clone().map(|index| text::pad_left(&row[index], widths[index])).collect();
            let line = format!("{}  {}", text::pad_left(&row[0], LABEL_COLUMNS), cells.join("  "));
            if at == 0 { style.paint(Paint::Bold, &line) } else { line }
        }));
    }
    lines
}

/// The jobs that fit side by side, one table after the other.
fn blocks(widths: &[usize], room: usize) -> Vec<std::ops::Range<usize>> {
    let mut blocks = Vec::new();
    let (mut begin, mut used) = (1, LABEL_COLUMNS);
    for (index, width) in widths.iter().enumerate().skip(1) {
        if index > begin && used + 2 + width > room {
            blocks.push(begin..index);
            (begin, used) = (index, LABEL_COLUMNS);
        }
        used += 2 + width;
    }
    blocks.push(begin..widths.len());
    blocks
}

/// All on one axis, as long as the longest.
fn charts(jobs: &[Compared], style: &Style) -> String {
    let begin = |job: &Compared| {
        job.record.start_ns.map(|ns| ns / 1_000_000).or(job.series.times_ms.first().copied())
    };
    let long = |job: &Compared| Some(job.series.times_ms.last()? - begin(job)?);
    let Some(span_ms) = jobs.iter().filter_map(long).max().filter(|&span_ms| span_ms > 0) else {
        return String::new();
    };
    let columns = plot::columns(style);
    let mut panels = Vec::new();
    let kinds =
        [("CPU cores", column::CPU, Unit::Cores), ("memory needed", column::MEMORY_NEEDED, Unit::Bytes)];
    for (title, index, unit) in kinds {
        for job in jobs {
            let Some(begin_ms) = begin(job) else { continue };
            let scale = job.series.table.columns[index].scale;
            let count = plot::bin_count(columns);
            let bins = resample::between(&job.series, index, begin_ms, begin_ms + span_ms, count, job.gaps);
            let scaled =
                |bin: Bin| Bin { min: bin.min * scale, mean: bin.mean * scale, max: bin.max * scale };
            // The peak of a report is of at least half a second; no chart is higher.
            let most = average::cores_peak(&job.record).filter(|_| index == column::CPU);
            let needed = average::memory_needed_peak(&job.record).filter(|_| index == column::MEMORY_NEEDED);
            let no_higher = |bin: Bin| bin.map(|value| value.min(most.unwrap_or(f64::MAX)));
            let bins = bins.into_iter().map(|bin| bin.map(scaled).map(no_higher)).collect();
            let title = format!("job {}: {title}", text::escape(&job.record.label()));
            panels.push(Panel { title, bins, unit, peak: most.or(needed) });
        }
    }
    plot::draw_since_start(&panels, span_ms, columns, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use met_core::sample;

    #[test]
    fn jobs_are_side_by_side_and_aligned_at_their_start() {
        let job = |id, hours: i64| {
            let mut record = sample::full(id, "train");
            let mut series = sample::series();
            let shift_ms = hours * 3_600_000;
            record.start_ns = series.times_ms.first().map(|first| (first + shift_ms) * 1_000_000);
            series.times_ms.iter_mut().for_each(|time_ms| *time_ms += shift_ms);
            Compared { record, series, gaps: 10_000.into() }
        };
        let jobs = [job(1, 0), job(2, 5)];
        let drawn = render(&jobs, sample::NOW_NS, &Style { width: Some(80), ..Style::plain() });
        assert!(drawn.lines().all(|line| text::width(line) <= 80), "{drawn}");
        assert!(drawn.contains("1.00×") && drawn.contains("job 2: memory needed"), "{drawn}");
        let many: Vec<Compared> = (1..=8).map(|id| job(id, 0)).collect();
        let wide = render(&many, sample::NOW_NS, &Style { width: Some(80), ..Style::plain() });
        assert!(wide.lines().all(|line| text::width(line) <= 80), "{wide}");
        assert!((1..=8).all(|id| wide.contains(&format!("Job {id}"))), "{wide}");
        let bars = |title: &str| {
            let at = drawn.lines().position(|line| line.contains(title)).unwrap();
            drawn.lines().skip(at + 1).take(4).collect::<Vec<_>>()
        };
        assert_eq!(bars("job 1: CPU cores"), bars("job 2: CPU cores"), "whenever they began");
    }
}
