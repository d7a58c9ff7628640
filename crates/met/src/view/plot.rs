//! The series of a job over time, in a few lines of a terminal.

use std::borrow::Cow;

use met_core::chart::Unit;
use met_core::event;
use met_core::gpu::device;
use met_core::job::Record;
use met_core::job_table as column;
use met_core::series::{Gaps, Series};
use met_insight::average;
use met_insight::resample::{self, Bin, gpu_gaps, nice_above};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::symbols::bar;
use ratatui_core::widgets::Widget;
use ratatui_widgets::sparkline::Sparkline;

use super::{Paint, Style, text};
use met_core::units;

const COLUMNS_DEFAULT: usize = 80;
const COLUMNS_MAX: usize = 120;
const COLUMNS_MIN: usize = 40;
/// Room for `1000 MiB/s` in front of the axis.
const SCALE_COLUMNS: usize = 11;
const ROWS: usize = 4;
/// A bar's height is counted in this many parts of the axis.
const PARTS: u64 = 1_000_000;

const ASCII_BARS: bar::Set = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "#",
    five_eighths: "+",
    half: "+",
    three_eighths: "-",
    one_quarter: "-",
    one_eighth: ".",
    empty: " ",
};

/// CPU, memory, I/O and GPUs over time, one small plot each; what was never sampled has no plot, nor has I/O that
/// there was none of.
/// A counter that has one rate only, and one whose
/// average is clearly above all rates that were sampled, has no plot: it would be one of what was missed.
pub fn series(series: &Series, gaps: Gaps, known: &Known, style: &Style) -> String {
    let columns = columns(style);
    let series = resample::until(Cow::Borrowed(series), known.end_ms);
    let series = &*series;
    let bins = |index: usize| bins(series, index, columns, gaps);
    let gpu_gaps = gpu_gaps(gaps);
    let gpu_bins = |index: usize| self::bins(series, index, columns, gpu_gaps);
    // Without one, what was sampled is all there is.
    let most = known.cores_peak.unwrap_or(f64::MAX);
    let no_higher = |bin: Bin| bin.map(|value| value.min(most));
    let cores = bins(column::CPU).into_iter().map(|bin| bin.map(no_higher)).collect();
    let cores = Panel { peak: known.cores_peak, ..Panel::new("CPU cores", cores, Unit::Cores) };
    let memory = Panel::new("memory needed", bins(column::MEMORY_NEEDED), Unit::Bytes);
    let memory = Panel { peak: known.memory_peak, ..memory };
    let both = resample::combined(series, &[column::READ, column::WRITTEN], None);
    let io = self::bins(&both, column::READ, columns, gaps);
    let io = Panel::new("read and written", io, Unit::BytesPerSecond);
    let has_rates = |series: &Series, index: usize| resample::rates(series, index, gaps).len() > 1;
    let cores = cores.at_least(known.cores).filter(|_| has_rates(series, column::CPU));
    let io = io.at_least(known.io_per_second).filter(|_| has_rates(&both, column::READ));
    let gpu = [
        Panel::new("GPU use, in GPUs", gpu_bins(column::GPU_UTILIZATION), Unit::Cores),
        Panel::new("GPU memory", gpu_bins(column::GPU_MEMORY), Unit::Bytes),
        Panel::new("GPU power", gpu_bins(column::GPU_POWER), Unit::Watts),
    ];
    let io = io.filter(Panel::did_something);
    let panels: Vec<Panel> = cores.into_iter().chain([memory]).chain(io).chain(gpu).collect();
    draw_series(&panels, series, columns, style)
}

/// What the record says of what is drawn. A peak is at most that of the report: between two samples that are close
/// together there may seem to be a higher one. And it is at least the average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub cores_peak: Option<f64>,
    pub memory_peak: Option<f64>,
    pub cores: Option<f64>,
    pub io_per_second: Option<f64>,
    /// When the job ended, in unix milliseconds.
    pub end_ms: Option<i64>,
}

impl Known {
    pub fn of(record: &Record, now_ns: i64) -> Known {
        let per_second = |index: usize| average::per_second(record, index, now_ns);
        let io = [column::READ, column::WRITTEN].map(per_second);
        Known {
            cores_peak: average::cores_peak(record),
            memory_peak: average::memory_needed_peak(record),
            cores: per_second(column::CPU),
            io_per_second: io.into_iter().flatten().reduce(|read, written| read + written),
            end_ms: record.end_ns.map(|end_ns| end_ns / 1_000_000),
        }
    }
}

/// A whole GPU while a job had it, including use by others.
pub fn gpu(series: &Series, index: &str, gaps: Gaps, style: &Style) -> String {
    let columns = columns(style);
    let title = |what: &str| format!("GPU {}, all jobs: {what}", text::escape(index));
    let panels = [
        Panel::new(&title("use"), bins(series, device::UTILIZATION, columns, gaps), Unit::Percent),
        Panel::new(&title("power"), bins(series, device::POWER, columns, gaps), Unit::Watts),
    ];
    draw_series(&panels, series, columns, style)
}

/// How often an event happened in a job, per second.
pub fn event(series: &Series, name: &str, gaps: Gaps, style: &Style) -> String {
    let columns = columns(style);
    let rates = bins(series, event::COUNT, columns, gaps);
    let panel = Panel::new(&text::escape(name), rates, Unit::PerSecond);
    if !panel.did_something() {
        return String::new();
    }
    draw_series(&[panel], series, columns, style)
}

fn bins(series: &Series, index: usize, columns: usize, gaps: Gaps) -> Vec<Option<Bin>> {
    let scale = series.table.columns[index].scale;
    let bins = resample::bins(series, index, bin_count(columns), gaps);
    let scaled = |bin: Bin| bin.map(|value| value * scale);
    bins.into_iter().map(|bin| bin.map(scaled)).collect()
}

/// The columns of a plot with its scale.
pub(super) fn columns(style: &Style) -> usize {
    style.width.unwrap_or(COLUMNS_DEFAULT).clamp(COLUMNS_MIN, COLUMNS_MAX)
}

/// As many bins as fit behind the scale.
pub(super) fn bin_count(columns: usize) -> usize {
    columns - SCALE_COLUMNS - 2
}

fn draw_series(panels: &[Panel], series: &Series, columns: usize, style: &Style) -> String {
    /// Two samples are a flat line.
    const SAMPLES_MIN: usize = 3;
    match (series.times_ms.first(), series.times_ms.last()) {
        _ if series.len() < SAMPLES_MIN => String::new(),
        (Some(&first_ms), Some(&last_ms)) => draw(panels, (first_ms, last_ms), columns, style),
        _ => String::new(),
    }
}

/// Plots one below the other, with the axis of time that they share.
pub(super) fn draw(
    panels: &[Panel],
    (first_ms, last_ms): (i64, i64),
    columns: usize,
    style: &Style,
) -> String {
    let known: Vec<&Panel> = panels.iter().filter(|panel| panel.bins.iter().any(Option::is_some)).collect();
    if known.is_empty() {
        return String::new();
    }
    let mut lines: Vec<String> = known.iter().flat_map(|panel| panel.draw(style)).collect();
    lines.push(time_axis(first_ms, last_ms, columns, style));
    if known.iter().any(|panel| panel.has_gap()) {
        let legend = "  gaps: no samples";
        lines.push(style.paint(Paint::Dim, &format!("{}{legend}", " ".repeat(SCALE_COLUMNS))));
    }
    let drawn = lines.join("\n") + "\n";
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// The same on an axis of the time since the start.
pub(super) fn draw_since_start(panels: &[Panel], span_ms: i64, columns: usize, style: &Style) -> String {
    let known = panels.iter().filter(|panel| panel.bins.iter().any(Option::is_some));
    let mut lines: Vec<String> = known.flat_map(|panel| panel.draw(style)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let end = format!("+{}", units::duration(span_ms as f64 / 1e3));
    let room = bin_count(columns).saturating_sub("start".len());
    let axis = format!("{:SCALE_COLUMNS$}  start{}", "", text::pad_left(&end, room));
    lines.push(style.paint(Paint::Dim, &axis));
    lines.join("\n") + "\n"
}

pub(super) struct Panel {
    pub title: String,
    pub bins: Vec<Option<Bin>>,
    pub unit: Unit,
    /// As the record has it.
    pub peak: Option<f64>,
}

impl Panel {
    pub fn new(title: &str, bins: Vec<Option<Bin>>, unit: Unit) -> Panel {
        Panel { title: title.to_owned(), bins, unit, peak: None }
    }

    /// Unless the average is clearly above everything that was sampled: then the busiest time was not.
    fn at_least(mut self, average: Option<f64>) -> Option<Panel> {
        const CLEARLY: f64 = 1.1;
        let Some(average) = average else { return Some(self) };
        let highest = self.bins.iter_mut().flatten().max_by(|one, other| one.max.total_cmp(&other.max));
        let highest = highest.filter(|highest| average <= highest.max * CLEARLY)?;
        highest.max = highest.max.max(average);
        Some(self)
    }

    pub fn did_something(&self) -> bool {
        self.bins.iter().flatten().any(|bin| bin.max > 0.0)
    }

    /// One bin at the end is no gap: levels are last known a moment before the job ends.
    fn has_gap(&self) -> bool {
        let inner = self.bins.split_last().map_or(&[][..], |(_, inner)| inner);
        inner.iter().any(Option::is_none)
    }

    fn draw(&self, style: &Style) -> Vec<String> {
        let known = || self.bins.iter().flatten();
        let peak = self.peak.unwrap_or_else(|| known().map(|bin| bin.max).fold(0.0, f64::max));
        let top = nice_above(known().map(|bin| bin.mean).fold(peak, f64::max), self.unit.step());
        let peak_words = format!(", peak {}", self.unit.write(peak));
        // Above the bars, unless the terminal is too narrow for that.
        let needs = text::width(&self.title) + text::width(&peak_words);
        let left = style.width.map_or(usize::MAX, |width| width.saturating_sub(needs)).min(SCALE_COLUMNS + 2);
        let title = format!("{:left$}{}", "", self.title);
        let mut lines = vec![style.paint(Paint::Bold, &title) + &style.paint(Paint::Dim, &peak_words)];
        for (index, row) in self.rows(top, style.ascii).into_iter().enumerate() {
            let scale = if index == 0 { self.unit.write(top) } else { String::new() };
            let scale =
                format!("{} {}", text::pad_left(&scale, SCALE_COLUMNS), if index == 0 { "┤" } else { "│" });
            lines.push(style.paint(Paint::Dim, &scale) + &style.paint(Paint::Cyan, row.trim_end()));
        }
        let gap = self.has_gap();
        let axis: String =
            self.bins.iter().map(|bin| if bin.is_some() || !gap { '─' } else { ' ' }).collect();
        let axis = format!("{} ┼{}", text::pad_left("0", SCALE_COLUMNS), axis.trim_end());
        lines.push(style.paint(Paint::Dim, &axis));
        lines
    }

    fn rows(&self, top: f64, ascii: bool) -> Vec<String> {
        let least = PARTS / (8 * ROWS as u64) + 1;
        let heights = self.bins.iter().map(|bin| {
            let share = bin.as_ref()?.mean / top;
            // Little is not nothing: it gets the lowest bar there is.
            Some(if share > 0.0 { ((share * PARTS as f64) as u64).max(least) } else { 0 })
        });
        let bars = if ascii { ASCII_BARS } else { bar::NINE_LEVELS };
        let area = Rect::new(0, 0, u16::try_from(self.bins.len()).unwrap_or(u16::MAX), ROWS as u16);
        let mut buffer = Buffer::empty(area);
        Sparkline::default().data(heights).max(PARTS).bar_set(bars).render(area, &mut buffer);
        (0..area.height)
            .map(|row| (0..area.width).map(|column| buffer[(column, row)].symbol()).collect())
            .collect()
    }
}

fn time_axis(first_ms: i64, last_ms: i64, columns: usize, style: &Style) -> String {
    let label = |time_ms: i64| units::time_short(time_ms * 1_000_000, last_ms * 1_000_000, &style.zone);
    let (first, mut last) = (label(first_ms), label(last_ms));
    let is_short = first == last;
    if is_short {
        // Within one second a clock says nothing: how long it took does.
        last = format!("+{}", units::duration((last_ms - first_ms) as f64 / 1e3));
    }
    let room = columns - SCALE_COLUMNS - 2;
    let between = room.saturating_sub(text::width(&first) + text::width(&last));
    let middle = label(first_ms + (last_ms - first_ms) / 2);
    let is_useful = !is_short && middle != first && middle != last;
    let middle = if is_useful && between > text::width(&middle) + 8 { middle } else { String::new() };
    let left = (room / 2).saturating_sub(text::width(&first) + text::width(&middle) / 2);
    let right = between.saturating_sub(left + text::width(&middle));
    let axis = format!("{first}{}{middle}{}{last}", " ".repeat(left), " ".repeat(right));
    style.paint(Paint::Dim, &format!("{:SCALE_COLUMNS$}  {axis}", ""))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use met_core::JOB;

    use super::*;
    use met_core::sample;

    fn check(style: Style, expected: Expect) {
        let drawn = series(&sample::series(), 10_000.into(), &Known::default(), &style);
        let width = style.width.unwrap_or(80);
        assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
        // The first line keeps the common indentation from being taken for the test's own.
        expected.assert_eq(&format!("{width} columns\n{drawn}"));
    }

    #[test]
    fn an_event_is_plotted_by_its_rate() {
        let mut series = Series::new(&event::TABLE);
        for (second, count) in [(0, 0), (10, 20_000_000), (20, 20_000_000), (30, 80_000_000)] {
            let mut cells = vec![met_core::MISSING; event::COLUMNS.len()];
            cells[event::COUNT] = count;
            series.push(second * 1000, &cells);
        }
        for width in [60, 80, 200] {
            let style = Style { width: Some(width), ..Style::plain() };
            let drawn = super::event(&series, "instructions", 25_000.into(), &style);
            assert!(drawn.contains("instructions, peak 6.00 M/s"), "{drawn}");
            assert!(drawn.lines().all(|line| line.chars().count() <= width), "{drawn}");
        }
        assert_eq!(super::event(&Series::new(&event::TABLE), "x", 25_000.into(), &Style::plain()), "");
    }

    #[test]
    fn a_job_without_io_has_no_plot_of_it() {
        let mut series = Series::new(&met_core::JOB);
        let mut cells = vec![met_core::MISSING; met_core::JOB.columns.len()];
        for second in 0..3 {
            (cells[column::CPU], cells[column::READ], cells[column::WRITTEN]) =
                (second * 1_000_000_000, 4096, 0);
            series.push(second * 1000, &cells);
        }
        let drawn = super::series(&series, 5000.into(), &Known::default(), &Style::plain());
        assert!(drawn.contains("CPU cores") && !drawn.contains("read and written"), "{drawn}");
        cells[column::READ] = 8192;
        series.push(3000, &cells);
        assert!(
            super::series(&series, 5000.into(), &Known::default(), &Style::plain())
                .contains("read and written")
        );
    }

    #[test]
    fn three_plots_at_60() {
        check(
            Style { width: Some(60), ..Style::plain() },
            expect![[r#"
                60 columns
                             CPU cores, peak 7.50
                          8 ┤  ▃▅▅▃            ▁                ▃▅▅▃
                            │▂▇█████▃         ▅█              ▃█████▇▂
                            │████████▆▁     ▃███            ▁▆████████▅
                            │██████████▅▂▂▃▆████         ▂▂▅████████████▄▂▂▃
                          0 ┼───────────────────         ───────────────────
                             memory needed, peak 5.58 GiB
                   6.00 GiB ┤                                 ▁▁▁▂▂▂▃▃▃▄▄▄▅▅
                            │               ▁▁▂▂         ▇▇▇████████████████
                            │    ▁▂▃▃▄▅▆▆▇▇█████         ███████████████████
                            │▂▅▆████████████████         ███████████████████
                          0 ┼───────────────────         ───────────────────
                             read and written, peak 172 MiB/s
                  200 MiB/s ┤▃▃▃▃▃▃▃▃▃
                            │█████████
                            │█████████▁ ▁                      ▃           ▅
                            │██████████▅█▁▁▁▁▁▁▁         ▁▁▁▁▁▁█▃▁▁▁▁▁▁▁▁▁▁█
                          0 ┼───────────────────         ───────────────────
                             16:40:44           16:45:43            16:50:43
                             gaps: no samples
            "#]],
        );
    }

    #[test]
    fn three_plots_at_80() {
        check(
            Style { width: Some(80), ..Style::plain() },
            expect![[r#"
                80 columns
                             CPU cores, peak 7.50
                          8 ┤   ▃▅▅▅▄▂                 ▂                      ▁▃▅▅▅▄▂
                            │▂▅███████▇▄             ▄▇█                    ▂▆███████▇▃
                            │████████████▄▁       ▁▄████                  ▃▆████████████▄
                            │██████████████▆▄▂▂▂▃▆██████             ▂▂▃▅▇████████████████▅▃▂▂▂▄
                          0 ┼───────────────────────────             ───────────────────────────
                             memory needed, peak 5.58 GiB
                   6.00 GiB ┤                                               ▁▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▄▅▅▅
                            │                      ▁▁▂▂▂             ▇▇▇▇███████████████████████
                            │      ▁▁▂▃▃▄▄▅▅▆▆▇▇████████             ███████████████████████████
                            │▂▄▅▆▇██████████████████████             ███████████████████████████
                          0 ┼───────────────────────────             ───────────────────────────
                             read and written, peak 172 MiB/s
                  200 MiB/s ┤▃▃▃▃▃▃▃▃▃▃▃▃▃
                            │█████████████
                            │█████████████  ▄▁                                ▅                ▅
                            │██████████████▁██▁▁▁▁▁▁▁▁▁▁             ▁▁▁▁▁▁▁▁▄█▃▁▁▁▁▁▁▁▁▁▁▁▁▁▁▇█
                          0 ┼───────────────────────────             ───────────────────────────
                             16:40:44                     16:45:43                      16:50:43
                             gaps: no samples
            "#]],
        );
    }

    #[test]
    fn three_plots_at_120() {
        check(
            Style { width: Some(120), ..Style::plain() },
            expect![[r#"
                120 columns
                             CPU cores, peak 7.50
                          8 ┤    ▁▃▄▅▅▅▅▅▃▂                           ▁▂                                    ▂▃▄▅▅▅▅▄▃▂
                            │▁▃▅▇███████████▆▄▂                    ▂▄▇██                                ▁▄▆████████████▆▄▂
                            │███████████████████▅▃▁            ▁▃▆██████                             ▂▅▇██████████████████▇▅▃▁
                            │██████████████████████▇▅▄▃▂▂▂▂▃▄▅▇█████████                     ▂▂▂▂▃▅▆██████████████████████████▇▅▄▃▂▂▂▂▃▄
                          0 ┼───────────────────────────────────────────                     ───────────────────────────────────────────
                             memory needed, peak 5.58 GiB
                   6.00 GiB ┤                                                                           ▁▁▁▁▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄▄▄▄▅▅▅▅▅▅
                            │                                   ▁▁▁▁▂▂▂▂                     ▇▇▇▇▇▇█████████████████████████████████████
                            │          ▁▁▂▂▂▃▃▄▄▄▅▅▅▅▆▆▆▇▇▇▇████████████                     ███████████████████████████████████████████
                            │▁▃▄▅▆▆▇▇███████████████████████████████████                     ███████████████████████████████████████████
                          0 ┼───────────────────────────────────────────                     ───────────────────────────────────────────
                             read and written, peak 172 MiB/s
                  200 MiB/s ┤▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃
                            │█████████████████████
                            │█████████████████████   ▄▅                                                    ▅▅                         ▅▅
                            │█████████████████████▇▁▁███▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁                     ▁▁▁▁▁▁▁▁▁▁▁▁▁▄██▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▆██
                          0 ┼───────────────────────────────────────────                     ───────────────────────────────────────────
                             16:40:44                                         16:45:43                                          16:50:43
                             gaps: no samples
            "#]],
        );
    }

    #[test]
    fn an_old_terminal_gets_plain_characters() {
        let style = Style { width: Some(60), ascii: true, ..Style::plain() };
        assert!(series(&sample::series(), 10_000.into(), &Known::default(), &style).is_ascii());
        check(
            style,
            expect![[r#"
                60 columns
                             CPU cores, peak 7.50
                          8 |  -++-            .                -++-
                            |-######-         +#              -######-
                            |#########.     -###            .#########+
                            |##########+---#####         --+############+---
                          0 +-------------------         -------------------
                             memory needed, peak 5.58 GiB
                   6.00 GiB |                                 ...------+++++
                            |               ..--         ###################
                            |    .---++#########         ###################
                            |-+#################         ###################
                          0 +-------------------         -------------------
                             read and written, peak 172 MiB/s
                  200 MiB/s |---------
                            |#########
                            |#########. .                      -           +
                            |##########+#.......         ......#-..........#
                          0 +-------------------         -------------------
                             16:40:44           16:45:43            16:50:43
                             gaps: no samples
            "#]],
        );
    }

    fn cores_of(times_ms: &[i64], cpu_ms: &[i64], cores_peak: Option<f64>) -> String {
        drawn_of(times_ms, cpu_ms, &Known { cores_peak, ..Known::default() })
    }

    fn drawn_of(times_ms: &[i64], cpu_ms: &[i64], known: &Known) -> String {
        let mut series = Series::new(&JOB);
        let mut cells = vec![met_core::MISSING; JOB.columns.len()];
        for (time_ms, cpu_ms) in times_ms.iter().zip(cpu_ms) {
            cells[column::CPU] = cpu_ms * 1_000_000;
            series.push(*time_ms, &cells);
        }
        super::series(&series, 5000.into(), known, &Style::plain())
    }

    #[test]
    fn titles_agree_with_the_bars_and_with_the_averages() {
        // Work within a moment between two looks, and none after it.
        let drawn = cores_of(&[0, 20, 1020, 2020, 3020], &[0, 5, 5, 5, 5], None);
        assert!(
            drawn.contains("CPU cores, peak 0.0049") || drawn.contains("CPU cores, peak 0.00"),
            "{drawn}"
        );
        assert!(!drawn.contains("0.06 ┤"), "{drawn}");
        let known = |cores, end_ms| Known { cores: Some(cores), end_ms, ..Known::default() };
        let steady = drawn_of(&[0, 1000, 2000, 3000], &[0, 900, 1800, 2700], &known(0.95, None));
        assert!(steady.contains("peak 0.95"), "a peak below the average: {steady}");
        let missed = drawn_of(&[0, 1000, 2000, 3000], &[0, 100, 200, 300], &known(0.95, None));
        assert_eq!(missed, "", "the busiest time was not sampled");
        let short = drawn_of(&[0, 24], &[0, 1], &known(0.07, Some(15)));
        assert_eq!(short, "", "two samples are no course");
        let clipped = drawn_of(&[0, 100, 200, 300, 424], &[0, 40, 80, 120, 160], &known(0.4, Some(400)));
        assert!(clipped.contains("+400ms") && clipped.contains("peak 0.40"), "{clipped}");
    }

    #[test]
    fn the_peak_in_words_is_that_of_the_bars_and_fits_the_axis() {
        let mut record = met_core::sample::bare(1, "x");
        record.totals.set(column::CORES_PEAK, 0, met_core::job::QualityKind::Sampled, "/proc");
        let young = cores_of(&[0, 100, 200], &[0, 4, 8], Known::of(&record, 0).cores_peak);
        assert!(young.contains("peak 0.04") && young.contains("0.04 ┤"), "{young}");
        let capped = cores_of(&[0, 20, 1020, 2020], &[0, 25, 855, 1000], Some(0.83));
        assert!(capped.contains("peak 0.83") && capped.contains(" 1 ┤"), "{capped}");
        let shorter = cores_of(&[0, 1000, 2000, 3000], &[0, 220, 400, 600], Some(0.23));
        assert!(shorter.contains("peak 0.23"), "as the report has it: {shorter}");
    }

    #[test]
    fn below_a_second_the_axis_tells_how_long_it_was() {
        let short = cores_of(&[0, 100, 400, 800], &[0, 40, 60, 80], None);
        let axis = short.lines().last().unwrap();
        assert!(axis.trim_start().starts_with("00:00:00  ") && axis.ends_with(" +800ms"), "{axis}");
        let longer = cores_of(&[0, 1000, 1500], &[0, 40, 80], None);
        let axis = longer.lines().last().unwrap();
        assert_eq!(axis.split_whitespace().collect::<Vec<_>>(), ["00:00:00", "00:00:01"], "{axis}");
    }

    #[test]
    fn nothing_sampled_is_no_plot() {
        let known = Known::default();
        assert_eq!(series(&Series::new(&JOB), 10_000.into(), &known, &Style::plain()), "");
        let mut one = Series::new(&JOB);
        one.push(5, &vec![7; JOB.columns.len()]);
        assert_eq!(series(&one, 10_000.into(), &known, &Style::plain()), "");
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        let tops = [0.0, 0.02, 0.97, 1.000_000_1, 7.5, 128.0, 999.0].map(|value| nice_above(value, 1000.0));
        assert_eq!(tops, [1.0, 0.02, 1.0, 1.0, 8.0, 150.0, 1000.0]);
        let bytes = [5.58e9, 1023.0, 180e6].map(|value| units::bytes(nice_above(value, 1024.0)));
        assert_eq!(bytes, ["6.00 GiB", "1.00 KiB", "200 MiB"]);
    }
}
