//! What was used over time, as a table or a heat map.

use jiff::tz::TimeZone;
use met_core::units;
use met_core::usage::{By, Every, UsageAsk};
use met_insight::usage::{self, Heat, HeatMap, Line, MachineLine, Report, heat_map, period_name};

use super::{Paint, Style, text};

/// From nothing to all.
const SHADES: [&str; 5] = [" ", "\u{2591}", "\u{2592}", "\u{2593}", "\u{2588}"];
const ASCII_SHADES: [&str; 5] = [" ", ".", "+", "x", "#"];
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const NARROW: usize = 80;

/// `currency`: of costs, where it is known.
pub fn text(
    report: &Report,
    ask: &UsageAsk,
    currency: Option<&str>,
    zone: &TimeZone,
    style: &Style,
) -> String {
    let mut drawn = text::hanging_lines(&head(report, ask, zone), 2, style) + "\n";
    if ask.every == Every::HourOfWeek {
        drawn += &heat(&heat_map(report, ask), style);
    } else if report.lines.is_empty() {
        drawn += "no jobs in this time\n";
    } else {
        drawn += &table(report, ask, currency, style);
    }
    drawn += &notes(report, ask, style);
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

fn head(report: &Report, ask: &UsageAsk, zone: &TimeZone) -> String {
    let name = if ask.by == By::Command { "UTC, whole days" } else { &ask.zone.name };
    let (from, to) = (units::time(ask.from_ns, zone), units::time(ask.to_ns, zone));
    let total = &report.total;
    let mut parts = vec![
        total
            .core_hours
            .used
            .map_or("CPU time unknown".to_owned(), |used| format!("{} core-hours used", units::hours(used))),
        format!("{} started", units::counted(total.jobs.all as usize, "job")),
    ];
    if let Some(held) = total.core_hours.held {
        parts.insert(1, format!("{} held", units::hours(held)));
    }
    if let Some(joules) = total.energy_joules {
        parts.push(units::watt_hours(joules));
    }
    format!("{from} to {to} ({name})\n{}\n{}", parts.join(" · "), machine(report.machine_total.as_ref()))
}

/// Idle is what was measured; the rest of the time is unknown.
fn machine(line: Option<&MachineLine>) -> String {
    let Some(line) = line else { return "machine not measured in this time\n".to_owned() };
    let mut parts = Vec::new();
    if let Some(busy) = line.busy() {
        parts.push(format!("CPUs {} busy, {} idle", units::percent(busy), units::percent(1.0 - busy)));
    }
    let free = line.free;
    for (free, what) in [(free.core_hours, "core"), (free.memory_gib_hours, "GiB"), (free.gpu_hours, "GPU")] {
        parts.extend(free.map(|free| format!("{} {what}-hours free", units::hours(free))));
    }
    let hours = |hours: f64| units::duration(hours * 3600.0);
    parts.push(format!("measured {}", hours(line.hours_measured)));
    if line.hours_down > 0.0 {
        parts.push(format!("down {}", hours(line.hours_down)));
    }
    if line.hours_unknown > 0.02 {
        parts.push(format!("unknown {}", hours(line.hours_unknown)));
    }
    format!("machine: {}\n", parts.join(" · "))
}

struct Column {
    header: String,
    /// The highest leaves first on a narrow terminal; 0 stays.
    rank: u8,
    cells: Vec<Option<String>>,
}

fn table(report: &Report, ask: &UsageAsk, currency: Option<&str>, style: &Style) -> String {
    let mut lines: Vec<&Line> = report.lines.iter().collect();
    if ask.every == Every::All {
        lines.sort_by(|one, other| one.by_use(other));
    } else {
        lines.sort_by(|one, other| (one.period, &one.name).cmp(&(other.period, &other.name)));
    }
    let column = |header: &str, rank, cell: &dyn Fn(&Line) -> Option<String>| Column {
        header: header.to_owned(),
        rank,
        cells: lines.iter().map(|line| cell(line)).collect(),
    };
    let period = |line: &Line| {
        let period = report.periods.get(line.period)?;
        Some(period_name(period, ask.every, &ask.zone))
    };
    let name = |line: &Line| Some(text::escape(line.name.as_deref().unwrap_or("(unknown)")));
    let cost = currency.map_or("COST".to_owned(), |currency| format!("COST {}", text::escape(currency)));
    let mut columns = vec![
        column("PERIOD", 0, &|line| period(line).filter(|_| ask.every != Every::All)),
        column(heading(ask.by), 0, &|line| name(line).filter(|_| ask.by != By::System)),
        column("JOBS", 3, &|line| Some(line.jobs.all.to_string())),
        column("CORE-H", 0, &|line| line.core_hours.used.map(units::hours)),
        column("HELD", 1, &|line| line.core_hours.held.map(units::hours)),
        column("USED", 2, &|line| line.core_hours.efficiency.map(units::percent)),
        column("GPU-H", 2, &|line| line.gpu_hours.used.map(units::hours)),
        column("GPU HELD", 4, &|line| line.gpu_hours.held.map(units::hours)),
        column("GPU FREE", 5, &|line| line.free.gpu_hours.map(units::hours)),
        column("GIB-H", 6, &|line| line.memory_gib_hours.used.map(units::hours)),
        column("GIB HELD", 7, &|line| line.memory_gib_hours.held.map(units::hours)),
        column("ENERGY", 2, &|line| line.energy_joules.map(units::watt_hours)),
        column("CO2E", 5, &|line| line.emissions_grams.map(usage::emissions)),
        column(&cost, 4, &|line| line.cost.map(units::money)),
    ];
    // What is known of nothing is not a column.
    columns.retain(|column| column.cells.iter().any(Option::is_some));
    drawn(fitting(columns, style.width.unwrap_or(usize::MAX)), lines.len(), style)
}

fn heading(by: By) -> &'static str {
    match by {
        By::System => "SYSTEM",
        By::User => "USER",
        By::Account => "ACCOUNT",
        By::Partition => "PARTITION",
        By::Node => "NODE",
        By::Command => "COMMAND",
    }
}

fn width(column: &Column) -> usize {
    let cells = column.cells.iter().flatten().map(|cell| text::width(cell));
    cells.max().unwrap_or(0).max(text::width(&column.header))
}

fn fitting(mut columns: Vec<Column>, room: usize) -> Vec<Column> {
    while columns.iter().map(|column| width(column) + 2).sum::<usize>() > room.saturating_add(2) {
        let ranked = columns.iter().enumerate().filter(|(_, column)| column.rank > 0);
        let Some((index, _)) = ranked.max_by_key(|(_, column)| column.rank) else { break };
        columns.remove(index);
    }
    columns
}

fn drawn(columns: Vec<Column>, count: usize, style: &Style) -> String {
    let is_text = |column: &Column| column.rank == 0 && column.header != "CORE-H";
    let pad = |column: &Column, cell: &str| match is_text(column) {
        true => text::pad(cell, width(column)),
        false => text::pad_left(cell, width(column)),
    };
    let row = |cell: &dyn Fn(&Column) -> String| {
        columns
            .iter()
            .map(|column| pad(column, &cell(column)))
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    let mut text = style.paint(Paint::Bold, &row(&|column| column.header.to_owned())) + "\n";
    for index in 0..count {
        text += &row(&|column| column.cells[index].clone().unwrap_or_else(|| "-".to_owned()));
        text.push('\n');
    }
    text
}

fn heat(map: &HeatMap, style: &Style) -> String {
    let shades = if style.ascii { ASCII_SHADES } else { SHADES };
    let columns = if style.width.unwrap_or(NARROW) >= 56 { 2 } else { 1 };
    let cell = |heat: Heat| match heat {
        Heat::Unknown => if style.ascii { "?" } else { "\u{b7}" }.to_owned(),
        Heat::Known { share, .. } => {
            // A little is not nothing.
            let step = if share > 0.0 { (share * 4.0).ceil().clamp(1.0, 4.0) } else { 0.0 };
            shades[step as usize].to_owned()
        }
    };
    let mut drawn = String::from("     ");
    for hour in (0..24).step_by(6) {
        drawn += &text::pad(&format!("{hour:02}"), 6 * columns);
    }
    drawn = drawn.trim_end().to_owned() + "\n";
    for (name, day) in DAYS.iter().zip(&map.days) {
        let cells: String = day.iter().map(|heat| cell(*heat).repeat(columns)).collect();
        drawn += format!("{name}  {cells}  {}", mean(day, map.of_machines)).trim_end();
        drawn.push('\n');
    }
    let (of, most) = match map.of_machines {
        true => ("CPUs busy", "100%".to_owned()),
        false => ("cores used by jobs", units::cores(map.most)),
    };
    let unknown = if style.ascii { "?" } else { "\u{b7}" };
    let legend = format!("{of}: blank 0, {} up to {most}, {unknown} unknown", shades[1..].concat());
    drawn + "\n" + &text::hanging(&legend, 2, style)
}

fn mean(day: &[Heat; 24], of_machines: bool) -> String {
    let known: Vec<f64> = day
        .iter()
        .filter_map(|heat| if let Heat::Known { value, .. } = heat { Some(*value) } else { None })
        .collect();
    if known.is_empty() {
        return String::new();
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    if of_machines { units::percent(mean) } else { units::cores(mean) }
}

fn notes(report: &Report, ask: &UsageAsk, style: &Style) -> String {
    let mut notes = Vec::new();
    let total = &report.total;
    if let Some(even) = total.even_share().filter(|&even| even > 0.005 && ask.every != Every::All) {
        let share = units::percent(even);
        notes.push(format!(
            "{share} of the CPU time has no samples and is spread evenly over the time of its job"
        ));
    }
    if total.energy_joules.is_some() {
        notes.push(usage::ENERGY_NOTE.to_owned());
    }
    notes.extend(total.unknown());
    if report.pending > 0 {
        let jobs = units::counted(report.pending as usize, "job");
        notes.push(format!("{jobs} will be added by the daemon"));
    }
    let notes: Vec<String> = notes.iter().map(|note| text::hanging(note, 2, style)).collect();
    if notes.is_empty() { String::new() } else { format!("\n{}", notes.concat()) }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use met_core::usage::{FIGURES, Period, Usage, UsageLine, figure, machine_figure};

    use super::*;
    use met_insight::usage::report;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn ask(by: By, every: Every) -> UsageAsk {
        UsageAsk::new(0, 14 * 24 * HOUR_NS, by, every)
    }

    fn drawn(ask: &UsageAsk, usage: &Usage, width: usize) -> String {
        let style = Style { width: Some(width), ..Style::plain() };
        text(&report(ask, usage, ask.to_ns), ask, Some("EUR"), &TimeZone::UTC, &style)
    }

    fn sums(pairs: &[(usize, i64)]) -> [i128; FIGURES] {
        let mut sums = [0; FIGURES];
        pairs.iter().for_each(|&(figure, value)| sums[figure] = value.into());
        sums
    }

    #[test]
    fn use_by_user_fits_80_columns_and_says_what_is_not_known() {
        let ask = ask(By::User, Every::All);
        let line = |name: Option<&str>, jobs: i64, hours: i64| UsageLine {
            name: name.map(str::to_owned),
            period: 0,
            sums: sums(&[
                (figure::JOBS, jobs),
                (figure::JOBS_WITH_CPU, jobs),
                (figure::JOBS_WITH_ENERGY, jobs - 1),
                (figure::CORES_HELD_NS, hours * 4 * HOUR_NS),
                (figure::CPU_NS, hours * HOUR_NS),
                (figure::CPU_OF_HELD_NS, hours * HOUR_NS),
                (figure::GPUS_HELD_NS, hours * HOUR_NS / 4),
                (figure::GPU_NS, hours * HOUR_NS / 5),
                (figure::MEMORY, hours << 35),
                (figure::ENERGY_UJ, hours * 50_000_000_000),
                (figure::EMISSIONS_UG, hours * 3_000_000),
                (figure::COST_NANO, hours * 10_000_000),
            ]),
        };
        let periods = vec![Period { number: 0, begin_ns: Some(0), length_ms: ask.to_ns / 1_000_000 }];
        let lines = vec![line(None, 1, 3), line(Some("ada"), 120, 5_000), line(Some("bob"), 7, 80_000)];
        let usage = Usage { periods, lines, pending: 3, ..Usage::default() };
        expect![[r#"
            1970-01-01 00:00:00 to 1970-01-15 00:00:00 (UTC)
            85,003 core-hours used · 340,012 held · 128 jobs started · 1181 kWh
            machine not measured in this time

            USER       JOBS  CORE-H     HELD  USED   GPU-H  GPU HELD    ENERGY  COST EUR
            bob           7  80,000  320,000   25%  16,000    20,000  1111 kWh    800.00
            ada         120    5000   20,000   25%    1000      1250  69.4 kWh     50.00
            (unknown)     1    3.00     12.0   25%    0.60      0.75   41.7 Wh    0.0300

            energy and CO2e include estimates; `met list energy` marks each
            energy of 3 of 128 jobs is unknown
            3 jobs will be added by the daemon
        "#]]
        .assert_eq(&drawn(&ask, &usage, 80));
        for width in [40, 60, 80, 120] {
            let widest = drawn(&ask, &usage, width).lines().skip(4).map(text::width).max().unwrap();
            assert!(widest <= width, "{widest} of {width}");
        }
    }

    #[test]
    fn cpu_time_that_no_job_knows_is_not_0() {
        let ask = ask(By::User, Every::All);
        let line = |name: &str, amounts: &[(usize, i64)]| UsageLine {
            name: Some(name.to_owned()),
            period: 0,
            sums: sums(amounts),
        };
        let of_queue = [(figure::JOBS, 3), (figure::CORES_HELD_NS, 8 * HOUR_NS)];
        let known = [(figure::JOBS, 1), (figure::JOBS_WITH_CPU, 1), (figure::CPU_NS, HOUR_NS)];
        let periods = vec![Period { number: 0, begin_ns: Some(0), length_ms: ask.to_ns / 1_000_000 }];
        let lines = vec![line("ada", &of_queue), line("bob", &known)];
        let usage = Usage { periods, lines, ..Usage::default() };
        expect![[r#"
            1970-01-01 00:00:00 to 1970-01-15 00:00:00 (UTC)
            1.00 core-hours used · 8.00 held · 4 jobs started
            machine not measured in this time

            USER  JOBS  CORE-H  HELD
            bob      1    1.00     -
            ada      3       -  8.00

            CPU time of 3 of 4 jobs is unknown
        "#]]
        .assert_eq(&drawn(&ask, &usage, 80));
        let usage = Usage { lines: usage.lines[..1].to_vec(), ..usage };
        let head = drawn(&ask, &usage, 80);
        assert!(head.contains("\nCPU time unknown · 8.00 held · 3 jobs started\n"), "{head}");
    }

    #[test]
    fn a_heat_map_tells_idle_hours_from_unknown_ones() {
        let ask = ask(By::System, Every::HourOfWeek);
        let line = |period: usize, busy: i64| UsageLine {
            name: Some(String::new()),
            period,
            sums: sums(&[
                (machine_figure::MEASURED_MS, 3_600_000),
                (machine_figure::CPU_CAPACITY_NS, 100 * HOUR_NS),
                (machine_figure::CPU_BUSY_NS, busy * HOUR_NS),
            ]),
        };
        let machines =
            (0..120).map(|hour| line(hour, if hour % 24 < 8 { 0 } else { (hour % 24) as i64 * 4 }));
        let usage = Usage {
            periods: ask.calendar().periods,
            machines: machines.collect(),
            machine_since: vec![("n1".to_owned(), 0)],
            ..Usage::default()
        };
        expect![[r#"
            1970-01-01 00:00:00 to 1970-01-15 00:00:00 (UTC)
            0.00 core-hours used · 0 jobs started
            machine: CPUs 41% busy, 59% idle · measured 5d00h · unknown 9d00h

                 00          06          12          18
            Mon                  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓██████████  41%
            Tue                  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓██████████  41%
            Wed                  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓██████████  41%
            Thu                  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓██████████  41%
            Fri                  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓██████████  41%
            Sat  ················································
            Sun  ················································

            CPUs busy: blank 0, ░▒▓█ up to 100%, · unknown
        "#]]
        .assert_eq(&drawn(&ask, &usage, 80));
    }
}
