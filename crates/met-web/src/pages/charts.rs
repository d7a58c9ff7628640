//! What is drawn of a series: charts of one job, its GPUs, or a machine, all in the same steps of time.

use met_core::chart::MachineChart;
pub use met_core::chart::Unit;
use met_core::event;
use met_core::gpu::device;
use met_core::job::{GpuUse, Record};
use met_core::job_table as column;
use met_core::series::{Gaps, Series};
use met_core::text::escape;
use met_core::{MISSING, Table};
use met_insight::average;
use met_insight::resample::{self, Bin};

use crate::samples::Parts;

/// The memory that a job could not do without.
const NEEDED: &str = "needed";
/// More lines in one chart cannot be distinguished; the busiest are drawn.
const LINES_MAX: usize = 8;

/// The time that charts show, in this many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub bins: usize,
}

impl Span {
    pub fn step_ms(self) -> f64 {
        (self.end_ms - self.begin_ms) as f64 / self.bins.max(1) as f64
    }

    /// The middle of a step.
    pub fn middle_ms(self, bin: usize) -> i64 {
        self.begin_ms + ((bin as f64 + 0.5) * self.step_ms()) as i64
    }
}

#[derive(Clone, Debug)]
pub struct Chart {
    /// Names it in the page; letters, digits and hyphens.
    pub id: String,
    pub title: String,
    /// What the figures are of: the job, the whole GPU, the machine.
    pub scope: &'static str,
    pub unit: Unit,
    pub lines: Vec<Line>,
    /// The lines are parts of a whole and drawn on top of each other.
    pub stacked: bool,
    /// Also where there is room for a few.
    pub is_main: bool,
    /// A level that the lines are compared with.
    pub limit: Option<(&'static str, f64)>,
    /// The line that average and peak are of, where they are not of all.
    pub of_line: Option<&'static str>,
    /// Average and peak as the report has them, if they are of the same time: bins are means, and shorter than what
    /// lasted.
    pub reported: Reported,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    pub mean: Option<f64>,
    pub peak: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub label: String,
    /// In the chart's unit; `None` is a gap.
    pub bins: Vec<Option<Bin>>,
    /// Its place in the list of colours.
    pub colour: usize,
}

impl Line {
    fn peak(&self) -> f64 {
        self.bins.iter().flatten().map(|bin| bin.max).fold(0.0, f64::max)
    }

    fn mean(&self) -> Option<f64> {
        let known: Vec<f64> = self.bins.iter().flatten().map(|bin| bin.mean).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

impl Chart {
    fn new(id: &str, title: &str, scope: &'static str, unit: Unit) -> Chart {
        let (id, title) = (id.to_owned(), title.to_owned());
        let (lines, reported) = (Vec::new(), Reported::default());
        let (stacked, is_main, limit, of_line) = (false, false, None, None);
        Chart { id, title, scope, unit, lines, stacked, is_main, limit, of_line, reported }
    }

    fn stacked(self) -> Chart {
        Chart { stacked: true, ..self }
    }

    /// Adds a line unless nothing is known of it.
    fn add(&mut self, label: &str, bins: Vec<Option<Bin>>) {
        if bins.iter().any(Option::is_some) {
            self.lines.push(Line { label: label.to_owned(), bins, colour: self.lines.len() });
        }
    }

    fn line(mut self, label: &str, bins: Vec<Option<Bin>>) -> Chart {
        self.add(label, bins);
        self
    }

    /// The highest value that is drawn.
    pub fn peak(&self) -> f64 {
        if !self.stacked {
            return self.lines.iter().map(Line::peak).fold(0.0, f64::max);
        }
        let count = self.lines.iter().map(|line| line.bins.len()).max().unwrap_or(0);
        let sum =
            |bin: usize| self.lines.iter().filter_map(move |line| line.bins.get(bin)?.map(|bin| bin.mean));
        (0..count).map(|bin| sum(bin).sum()).fold(0.0, f64::max)
    }

    /// The line that average and peak are of; `None`: of all.
    fn reported_line(&self) -> Option<&Line> {
        self.lines.iter().find(|line| Some(line.label.as_str()) == self.of_line)
    }

    /// The highest value, as the report has it if it is of the same time.
    pub fn known_peak(&self) -> f64 {
        let drawn = || self.reported_line().map_or_else(|| self.peak(), Line::peak);
        self.reported.peak.unwrap_or_else(drawn)
    }

    /// Mean over the time that samples cover, of all lines together where they are parts of a whole, else of the
    /// first; as the report has it if it is of the same time.
    pub fn mean(&self) -> Option<f64> {
        if let Some(line) = self.reported_line() {
            return self.reported.mean.or(line.mean());
        }
        let lines = if self.stacked { &self.lines[..] } else { self.lines.get(..1)? };
        let drawn = lines.iter().filter_map(Line::mean).reduce(|sum, mean| sum + mean);
        self.reported.mean.filter(|_| drawn.is_some()).or(drawn)
    }

    /// Whether the highest values of steps are a line of their own: of one line, where they are clearly above its means.
    pub fn has_peak_line(&self) -> bool {
        let least = self.top() / 100.0;
        let is_above = |bin: &Bin| bin.max - bin.mean > least;
        !self.stacked && self.lines.len() == 1 && self.lines[0].bins.iter().flatten().any(is_above)
    }

    /// The upper end of the axis: a round number above all lines, and above a limit that is not far away.
    pub fn top(&self) -> f64 {
        let peak = self.peak().max(self.known_peak());
        let limit = self.limit.map(|(_, value)| value).filter(|&value| value <= peak * 4.0);
        resample::nice_above(limit.unwrap_or(0.0).max(peak), self.unit.step())
    }

    pub fn has_gap(&self) -> bool {
        // Before the first sample and after the last nothing is missing.
        let inner = |line: &Line| {
            let is_known = |bin: &Option<Bin>| bin.is_some();
            let (first, last) = (line.bins.iter().position(is_known), line.bins.iter().rposition(is_known));
            first.zip(last).is_some_and(|(first, last)| line.bins[first..last].contains(&None))
        };
        self.lines.iter().any(inner)
    }

    fn did_something(&self) -> bool {
        self.peak() > 0.0
    }
}

/// The charts of a job over a span. What was never read has none, and so has I/O that there was none of.
pub fn job(record: &Record, series: &Series, span: Span, gaps: Gaps) -> Vec<Chart> {
    const OF_JOB: &str = "of the job";
    let of = |index: usize| bins(series, index, span, gaps);
    let chart = |id: &str, title: &str, unit: Unit| Chart::new(id, title, OF_JOB, unit);
    let cores = chart("cpu", "CPU cores", Unit::Cores);
    let has_split = [column::CPU_USER, column::CPU_SYSTEM].iter().all(|&index| is_read(series, index));
    let cores = match has_split {
        true => cores.stacked().line("user", of(column::CPU_USER)).line("system", of(column::CPU_SYSTEM)),
        false => cores.line("cores", of(column::CPU)),
    };
    let memory = chart("memory", "Memory", Unit::Bytes)
        .stacked()
        .line(NEEDED, of(column::MEMORY_NEEDED))
        .line("cache", of(column::MEMORY_CACHE));
    let io = chart("io", "Storage", Unit::BytesPerSecond)
        .line("read", of(column::READ))
        .line("written", of(column::WRITTEN));
    let network = chart("network", "Network", Unit::BytesPerSecond)
        .line("received", of(column::NETWORK_RECEIVED))
        .line("sent", of(column::NETWORK_SENT));
    let power = chart("power", "Power", Unit::Watts).line("power", of(column::ENERGY));
    let pressure = chart("pressure", "Waiting (pressure)", Unit::Percent)
        .line("CPU", of(column::PRESSURE_CPU))
        .line("memory", of(column::PRESSURE_MEMORY))
        .line("I/O", of(column::PRESSURE_IO));
    let gpu_gaps = resample::gpu_gaps(gaps);
    let gpu = chart("gpu", "GPU use, in GPUs", Unit::Cores)
        .line("use", bins(series, column::GPU_UTILIZATION, span, gpu_gaps));
    let gpu_memory = chart("gpu-memory", "GPU memory", Unit::Bytes)
        .line("held", bins(series, column::GPU_MEMORY, span, gpu_gaps));
    let gpu_power = chart("gpu-power", "GPU power", Unit::Watts)
        .line("power", bins(series, column::GPU_POWER, span, gpu_gaps));
    let cores = no_higher(cores, average::cores_peak(record));
    let [of_cores, of_memory, of_power] = reported(record, series, span);
    let cores = Chart { limit: cpu_limit(record), reported: of_cores, ..cores };
    let memory = Chart { limit: memory_limit(record), of_line: Some(NEEDED), reported: of_memory, ..memory };
    let power = Chart { reported: of_power, ..power };
    let always = |chart: &Chart| !chart.lines.is_empty();
    let busy = |chart: &Chart| always(chart) && chart.did_something();
    let mut charts: Vec<Chart> = [cores, memory].into_iter().filter(always).collect();
    charts.extend([gpu, gpu_memory].into_iter().filter(always));
    charts.extend([io, network, power, gpu_power, pressure].into_iter().filter(busy));
    charts
}

/// What a job on several nodes computed on each. Of many nodes, the busiest and the idlest are drawn.
pub fn by_node<E>(
    record: &Record,
    span: Span,
    gaps: impl Fn(&Series) -> Gaps,
    mut read: impl FnMut(&str) -> Result<Series, E>,
) -> Result<Option<Chart>, E> {
    let mut nodes: Vec<(Option<i64>, &str)> = Vec::new();
    for node in &record.nodes {
        let part = record.parts.iter().find(|part| part.node == *node && part.task.is_none());
        nodes.push((part.and_then(|part| part.totals.get(column::CPU)), node));
    }
    if nodes.len() < 2 {
        return Ok(None);
    }
    nodes.sort_by_key(|&(cpu, _)| std::cmp::Reverse(cpu));
    let is_all = nodes.len() <= LINES_MAX;
    if !is_all {
        nodes.drain(LINES_MAX / 2..nodes.len() - LINES_MAX / 2);
    }
    let scope = if is_all { "of the job" } else { "of the job, the busiest and the idlest nodes" };
    let mut chart = Chart::new("cpu-by-node", "CPU cores by node", scope, Unit::Cores);
    for (_, node) in nodes {
        let series = read(node)?;
        chart.add(&escape(node), bins(&series, column::CPU, span, gaps(&series)));
    }
    Ok((chart.lines.len() > 1).then_some(chart))
}

/// What the report says of cores, memory and power, if the span is of the whole job.
fn reported(record: &Record, series: &Series, span: Span) -> [Reported; 3] {
    let is_whole = series.times_ms.first().is_none_or(|&first_ms| span.begin_ms <= first_ms)
        && series.times_ms.last().is_none_or(|&last_ms| last_ms <= span.end_ms);
    if !is_whole {
        return [Reported::default(); 3];
    }
    let per_second = |index: usize| average::per_second(record, index, span.end_ms.saturating_mul(1_000_000));
    [
        Reported { mean: per_second(column::CPU), peak: average::cores_peak(record) },
        Reported {
            mean: average::level(record, column::MEMORY_NEEDED),
            peak: average::memory_needed_peak(record),
        },
        Reported { mean: per_second(column::ENERGY), peak: None },
    ]
}

/// Draws nothing above the peak of the report: between two samples that are close together there may seem to be more.
fn no_higher(mut chart: Chart, most: Option<f64>) -> Chart {
    let Some(most) = most else { return chart };
    let drawn = chart.lines.iter().map(|line| line.bins.len()).max().unwrap_or(0);
    for index in 0..drawn {
        let bins = || chart.lines.iter().filter_map(|line| line.bins.get(index).copied().flatten());
        let is_higher = |value: f64| value > most;
        let sum: f64 = bins().map(|bin| bin.mean).sum();
        // Parts of a whole keep their shares.
        let share = if chart.stacked && is_higher(sum) { most / sum } else { 1.0 };
        for bin in chart.lines.iter_mut().filter_map(|line| line.bins.get_mut(index)?.as_mut()) {
            *bin = bin.map(|value| (value * share).min(most));
        }
    }
    chart
}

fn cpu_limit(record: &Record) -> Option<(&'static str, f64)> {
    record.allocated.cpus.map(|cpus| ("allocated", cpus as f64))
}

fn memory_limit(record: &Record) -> Option<(&'static str, f64)> {
    let own = record.local.as_ref().and_then(|local| local.memory_limit);
    let limit = own.map(|limit| ("limit", limit.bytes as f64));
    limit.or(record.allocated.memory_bytes.map(|bytes| ("allocated", bytes as f64)))
}

/// The whole GPUs of a job while it had them, including use by others. `series` reads the samples of one.
pub fn gpus<E>(
    gpus: &[GpuUse],
    span: Span,
    gaps: impl Fn(&Series) -> Gaps,
    mut read: impl FnMut(&GpuUse) -> Result<Series, E>,
) -> Result<Vec<Chart>, E> {
    let empty =
        |kind: &MachineChart| Chart::new(kind.id, kind.title, "of the whole GPU, all jobs", kind.unit);
    let mut charts: Vec<Chart> = device::CHARTS.iter().map(empty).collect();
    for gpu in gpus {
        let series = read(gpu)?;
        for (chart, kind) in charts.iter_mut().zip(device::CHARTS) {
            chart.add(&gpu.label(), bins(&series, kind.plus[0], span, gaps(&series)));
        }
    }
    Ok(charts.into_iter().map(busiest).filter(|chart| !chart.lines.is_empty()).collect())
}

/// A job among others: its place says its colour, which is the same in all charts.
pub struct Compared<'a> {
    pub place: usize,
    pub record: &'a Record,
    pub series: Series,
    pub begin_ms: i64,
    pub gaps: Gaps,
}

/// One figure of several jobs, each over its own time; `None` where nothing is known or happened. The peak is the
/// highest of the reports.
pub fn side_by_side(
    (id, title, unit, index): (&str, &str, Unit, usize),
    jobs: &[Compared<'_>],
    (span_ms, count): (i64, usize),
) -> Option<Chart> {
    let mut chart = Chart::new(id, title, "by job", unit);
    let mut highest = 0.0_f64;
    for job in jobs {
        let span = Span { begin_ms: job.begin_ms, end_ms: job.begin_ms + span_ms, bins: count };
        let bins = bins(&job.series, index, span, job.gaps);
        let most = average::cores_peak(job.record).filter(|_| index == column::CPU);
        let label = format!("job {}", job.record.label());
        let one = no_higher(Chart::new(id, title, "by job", unit).line(&label, bins), most);
        let needed = average::memory_needed_peak(job.record).filter(|_| index == column::MEMORY_NEEDED);
        highest =
            highest.max(most.or(needed).filter(|_| !one.lines.is_empty()).unwrap_or_else(|| one.peak()));
        chart.lines.extend(one.lines.into_iter().map(|line| Line { colour: job.place, ..line }));
    }
    chart.reported.peak = Some(highest);
    // One line has no legend.
    if let [line] = chart.lines.as_slice() {
        chart.title = format!("{title}, {}", line.label);
    }
    Some(chart).filter(Chart::did_something)
}

/// How often an event happened in a job, if it did.
pub fn event(index: usize, name: &str, series: &Series, span: Span, gaps: Gaps) -> Option<Chart> {
    let chart = Chart::new(&format!("event-{index}"), name, "of the job", Unit::PerSecond);
    Some(chart.line("rate", bins(series, event::COUNT, span, gaps))).filter(Chart::did_something)
}

/// The machine over a span: one chart for each thing that it has and that did something.
pub fn machine(
    parts: &Parts,
    span: Span,
    gap_ms: impl Fn(&Series) -> i64,
    limits: [(&str, Option<f64>); 2],
) -> Vec<Chart> {
    let chart = |wanted: &MachineChart| {
        let mut chart = Chart::new(wanted.id, wanted.title, "of the machine", wanted.unit);
        for (part, series) in parts.iter().filter(|(_, series)| std::ptr::eq(series.table, wanted.table)) {
            let Some(&first) = wanted.plus.first() else { continue };
            let combined = resample::combined(series, wanted.plus, wanted.minus);
            let bins = bins(&combined, first, span, gap_ms(series));
            let label = if part.part.is_empty() { wanted.title } else { &part.part };
            if bins.iter().flatten().any(|bin| bin.max > 0.0) {
                chart = chart.line(label, bins);
            }
        }
        let limit = limits.iter().find(|(id, _)| *id == wanted.id).and_then(|(_, limit)| *limit);
        busiest(Chart { limit: limit.map(|limit| ("of", limit)), is_main: wanted.is_main, ..chart })
    };
    met_sources::charts().into_iter().map(chart).filter(|chart| !chart.lines.is_empty()).collect()
}

/// Whether charts of a machine show something of a table.
pub fn is_drawn(table: &Table) -> bool {
    met_sources::charts().iter().any(|wanted| wanted.table.name == table.name)
}

/// Keeps the lines with the highest means, in their order.
fn busiest(mut chart: Chart) -> Chart {
    let sum = |line: &Line| line.bins.iter().flatten().map(|bin| bin.mean).sum::<f64>();
    let mut sums: Vec<f64> = chart.lines.iter().map(sum).collect();
    sums.sort_by(|one, other| other.total_cmp(one));
    let least = sums.get(LINES_MAX - 1).copied().unwrap_or(f64::MIN);
    chart.lines.retain(|line| sum(line) >= least);
    chart.lines.truncate(LINES_MAX);
    chart
}

fn is_read(series: &Series, index: usize) -> bool {
    series.columns[index].iter().any(|&cell| cell != MISSING)
}

fn bins(series: &Series, index: usize, span: Span, gaps: impl Into<Gaps>) -> Vec<Option<Bin>> {
    let scale = series.table.columns[index].scale;
    let bins = resample::between(series, index, span.begin_ms, span.end_ms, span.bins, gaps);
    let scaled = |bin: Bin| Bin { min: bin.min * scale, mean: bin.mean * scale, max: bin.max * scale };
    bins.into_iter().map(|bin| bin.map(scaled)).collect()
}

#[cfg(test)]
mod tests {
    use met_core::sample;

    use super::*;

    fn span() -> Span {
        let series = sample::series();
        let (begin_ms, end_ms) = (series.times_ms[0], *series.times_ms.last().unwrap());
        Span { begin_ms, end_ms, bins: 20 }
    }

    #[test]
    fn what_was_never_read_has_no_chart() {
        let charts = job(&sample::full(1, "train"), &sample::series(), span(), 10_000.into());
        let ids: Vec<&str> = charts.iter().map(|chart| chart.id.as_str()).collect();
        assert!(ids.contains(&"cpu") && ids.contains(&"memory") && !ids.contains(&"network"), "{ids:?}");
        assert!(
            job(&sample::full(1, "train"), &Series::new(&met_core::JOB), span(), 10_000.into()).is_empty()
        );
    }

    #[test]
    fn the_axis_ends_above_what_is_drawn_and_at_a_limit_that_is_near() {
        let bins = vec![
            Some(Bin { min: 3.0, mean: 3.0, max: 3.0 }),
            None,
            Some(Bin { min: 0.0, mean: 1.0, max: 2.0 }),
        ];
        let chart = Chart::new("cpu", "CPU", "of the job", Unit::Cores).line("cores", bins);
        assert_eq!((chart.peak(), chart.top(), chart.mean()), (3.0, 3.0, Some(2.0)));
        assert!(chart.has_gap());
        let near = Chart { limit: Some(("allocated", 8.0)), ..chart.clone() };
        let far = Chart { limit: Some(("allocated", 800.0)), ..chart };
        assert_eq!((near.top(), far.top()), (8.0, 3.0));
    }

    fn compared(records: &[Record]) -> Vec<Compared<'_>> {
        let series = |place: usize| if place == 0 { Series::new(&met_core::JOB) } else { sample::series() };
        let job = |(place, record)| Compared {
            place,
            record,
            series: series(place),
            begin_ms: sample::series().times_ms[0],
            gaps: 10_000.into(),
        };
        records.iter().enumerate().map(job).collect()
    }

    #[test]
    fn a_job_has_one_colour_in_all_charts_and_the_peak_is_that_of_the_reports() {
        let mut records = [1, 2, 3].map(|id| sample::full(id, "train"));
        for (record, thousandths) in records.iter_mut().zip([9_000, 3_000, 2_000]) {
            let kind = met_core::job::QualityKind::Measured;
            record.totals.set(column::CORES_PEAK, thousandths, kind, "samples");
            record.totals.set(column::MEMORY_NEEDED_PEAK, thousandths << 30, kind, "samples");
        }
        let jobs = compared(&records);
        let of = |unit, index| side_by_side(("x", "x", unit, index), &jobs, (60_000, 20)).unwrap();
        let (cores, memory) = (of(Unit::Cores, column::CPU), of(Unit::Bytes, column::MEMORY_NEEDED));
        let colours = |chart: &Chart| chart.lines.iter().map(|line| line.colour).collect::<Vec<_>>();
        assert_eq!((colours(&cores), colours(&memory)), (vec![1, 2], vec![1, 2]), "the first has no samples");
        assert_eq!(cores.known_peak(), 3.0, "of those that are drawn");
        assert!(cores.lines[1].peak() <= 2.0, "{}", cores.lines[1].peak());
        assert_eq!(memory.known_peak(), 3000.0 * (1_u64 << 30) as f64);
        assert!(memory.top() >= memory.known_peak());
    }

    #[test]
    fn a_chart_of_the_whole_job_says_what_the_report_says_and_a_part_of_it_what_is_drawn() {
        let mut record = sample::full(1, "train");
        let kind = met_core::job::QualityKind::Measured;
        record.totals.set(column::MEMORY_NEEDED_PEAK, 123 << 30, kind, "samples");
        record.summaries.set(
            column::MEMORY_NEEDED,
            *sample::series().summaries(10_000).get(column::MEMORY_NEEDED).unwrap(),
        );
        // Sampling began after the job.
        record.start_ns = Some((span().begin_ms - 700) * 1_000_000);
        let memory = |span: Span| {
            let charts = job(&record, &sample::series(), span, 10_000.into());
            charts.into_iter().find(|chart| chart.id == "memory").unwrap()
        };
        let whole = memory(span());
        assert_eq!(whole.known_peak(), 123.0 * (1_u64 << 30) as f64);
        assert_eq!(whole.mean(), average::level(&record, column::MEMORY_NEEDED));
        let part = memory(Span { begin_ms: span().begin_ms + 5_000, ..span() });
        assert_eq!(part.known_peak(), part.reported_line().unwrap().peak());
        assert_eq!(part.reported, Reported::default());
    }

    #[test]
    fn a_line_of_peaks_is_drawn_where_they_differ_from_the_means() {
        let bin = |mean: f64, max: f64| Some(Bin { min: mean, mean, max });
        let new = || Chart::new("power", "Power", "of the job", Unit::Watts);
        assert!(!new().line("power", vec![bin(5.0, 5.0), None, bin(4.0, 4.01)]).has_peak_line());
        assert!(new().line("power", vec![bin(5.0, 9.0)]).has_peak_line());
        let two = new().line("read", vec![bin(5.0, 9.0)]).line("written", vec![bin(5.0, 9.0)]);
        assert!(!two.has_peak_line());
    }

    #[test]
    fn nothing_is_drawn_above_the_peak_of_the_report() {
        let bins = |means: [f64; 2]| means.map(|mean| Some(Bin { min: 0.0, mean, max: mean + 1.0 })).to_vec();
        let new = || Chart::new("cpu", "CPU", "of the job", Unit::Cores);
        let one = no_higher(new().line("cores", bins([1.0, 9.0])), Some(3.0));
        assert_eq!((one.peak(), one.lines[0].bins[0].unwrap().mean), (3.0, 1.0));
        let parts = new().stacked().line("user", bins([1.0, 6.0])).line("system", bins([1.0, 2.0]));
        let drawn = no_higher(parts.clone(), Some(4.0));
        assert_eq!((drawn.peak(), drawn.lines[0].bins[1].unwrap().mean), (4.0, 3.0), "in their shares");
        assert_eq!(no_higher(parts, None).peak(), 8.0, "of a report without a peak");
    }
}
