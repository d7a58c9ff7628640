//! The machine as it is now: one block for each thing that it has.

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::gpu::device;
use met_core::gpus::GpuNow;
use met_core::job::QualityKind;
use met_core::node::{Freshness, NodeRow};
use met_core::node_block::Sensor;
use met_core::{Kind, MISSING, Table, Unit};
use met_sources::node::{TABLE as MACHINE, UPTIME};

use super::{Paint, Style, text};
use met_core::energy::EnergyWindow;
use met_core::units;

pub struct Machine<'a> {
    pub name: &'a str,
    pub cpus: u32,
    pub gpus: &'a [GpuNow<'a>],
}

type Rows<'a> = &'a [(&'a NodeRow, Freshness)];

const HEAD_COLUMNS: usize = 13;
const NAME_COLUMNS: usize = 24;
/// Of so many temperatures the hottest are shown.
const TEMPERATURES_MAX: usize = 8;

pub fn machine(machine: &Machine<'_>, rows: Rows<'_>, style: &Style) -> String {
    let uptime = of_table(rows, &MACHINE).find_map(|(row, _)| row.level(UPTIME));
    let up = uptime.map(|seconds| format!(", up {}", units::duration(seconds))).unwrap_or_default();
    let plural = if machine.cpus == 1 { "" } else { "s" };
    let head = format!("{}, {} CPU{plural}{up}", text::escape(machine.name), machine.cpus);
    let mut drawn = style.paint(Paint::Bold, &head) + "\n\n";
    let mut blocks = described(rows, machine.cpus);
    blocks.push(("Power", power(rows).into_iter().chain(gpu_power(machine.gpus)).collect()));
    blocks.push(("Temperature", temperatures(rows)));
    for (head, lines) in blocks.into_iter().chain(others(rows, met_sources::charts())) {
        for (index, line) in lines.iter().flat_map(|line| whole(line, style)).enumerate() {
            let head = if index == 0 {
                text::pad(&format!("{head} "), HEAD_COLUMNS)
            } else {
                " ".repeat(HEAD_COLUMNS)
            };
            drawn += &format!("{}{line}\n", style.paint(Paint::Cyan, &head));
        }
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// GPUs that answered when everything else was shown.
pub fn late_gpus(lines: &[String], style: &Style) -> String {
    let mut drawn = String::new();
    for (index, line) in lines.iter().flat_map(|line| whole(line, style)).enumerate() {
        let head = if index == 0 { text::pad("GPUs", HEAD_COLUMNS) } else { " ".repeat(HEAD_COLUMNS) };
        drawn += &format!("{}{line}\n", style.paint(Paint::Cyan, &head));
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// A line for each GPU whose power is known.
pub fn gpu_lines(gpus: &[GpuNow<'_>]) -> Vec<String> {
    gpu_power(gpus)
}

/// Whose the power was in the last window of the ledger: the parts add up to the meter.
pub fn energy(window: &EnergyWindow, style: &Style) -> String {
    let sign = match window.kind {
        QualityKind::Estimated => "~",
        QualityKind::LowerBound => "≥",
        _ => "",
    };
    let idle_sign = if window.idle_estimated { "~" } else { "" };
    let watts = |energy_uj: i64| units::watts(window.watts(energy_uj));
    let gpus = match window.gpus_uj {
        0 => String::new(),
        gpus_uj => format!(", GPUs {}", watts(gpus_uj)),
    };
    let unassigned = match window.unassigned_uj {
        0 => String::new(),
        unassigned_uj => format!("   unassigned {}", watts(unassigned_uj)),
    };
    let line = format!(
        "{} total{gpus}   jobs {}   system {}   idle {}{unassigned}   ({}, {})",
        units::marked(sign, &watts(window.whole_uj)),
        watts(window.jobs_uj),
        watts(window.system_uj),
        units::marked(idle_sign, &watts(window.idle_uj)),
        units::duration((window.end_ns - window.begin_ns) as f64 / 1e9),
        window.meter,
    );
    let lines = whole(&line, style).join(&format!("\n{}", " ".repeat(HEAD_COLUMNS)));
    let drawn = format!("{}{lines}\n", style.paint(Paint::Cyan, &text::pad("Energy", HEAD_COLUMNS)));
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// A line that is too long for the terminal is broken between its parts, or between words of a part that is.
fn whole(line: &str, style: &Style) -> Vec<String> {
    let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(HEAD_COLUMNS).max(20));
    if text::width(line) <= room {
        return vec![line.to_owned()];
    }
    let parts = line.split("   ").map(str::trim).filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.flat_map(|part| text::words(part, room - 2)).collect();
    let lines = text::filled(parts.into_iter(), "   ", room - 2).into_iter().enumerate();
    lines.map(|(index, line)| if index == 0 { line } else { format!("  {line}") }).collect()
}

fn of_table<'a>(rows: Rows<'a>, table: &'static Table) -> impl Iterator<Item = (&'a NodeRow, Freshness)> {
    rows.iter().copied().filter(move |(row, _)| std::ptr::eq(row.table, table))
}

/// A name, what is known of it, and a mark if that is stale.
fn line(name: &str, parts: Vec<String>, freshness: Freshness) -> Option<String> {
    if parts.is_empty() {
        return None;
    }
    let name = text::pad(&text::escape(name), NAME_COLUMNS);
    let mark = if freshness == Freshness::Stale { "   (stale)" } else { "" };
    Some(format!("{name} {}{mark}", parts.join("   ")))
}

/// The blocks that sources describe; of the same title, one.
fn described<'a>(rows: Rows<'a>, cpus: u32) -> Vec<(&'static str, Vec<String>)> {
    let mut blocks: Vec<(&'static str, Vec<String>)> = Vec::new();
    for block in met_sources::NODE_BLOCKS {
        let drawn = |(row, freshness): (&'a NodeRow, Freshness)| {
            let lines = (block.lines)(row, cpus).into_iter();
            lines.filter_map(move |one| match &one.name {
                Some(name) => line(name, one.parts, freshness),
                None => (!one.parts.is_empty()).then(|| one.parts.join("   ")),
            })
        };
        if of_table(rows, block.table).count() < block.rows_min {
            continue;
        }
        let lines = of_table(rows, block.table).flat_map(drawn);
        match blocks.iter_mut().find(|(title, _)| *title == block.title) {
            Some((_, known)) => known.extend(lines),
            None => blocks.push((block.title, lines.collect())),
        }
    }
    blocks
}

/// Every meter: its power, or the growth of its energy counter, which is power too.
fn power(rows: Rows<'_>) -> Vec<String> {
    let one = |&(row, freshness): &(&NodeRow, Freshness)| {
        let power = row.table.reading(Kind::Gauge, Unit::Watts).and_then(|column| row.level(column));
        let energy = || row.rate(row.table.reading(Kind::Counter, Unit::Joules)?);
        let watts = power.or_else(energy);
        line(&sensor_name(row)?, vec![units::watts(watts?), format!("by {}", row.source)], freshness)
    };
    rows.iter().filter_map(one).collect()
}

/// The charts of tables that no other block shows: the value of each row.
fn others<'a>(
    rows: Rows<'a>,
    charts: Vec<&'static MachineChart>,
) -> impl Iterator<Item = (&'static str, Vec<String>)> + 'a {
    let is_shown = move |chart: &&MachineChart| {
        let tables = met_sources::NODE_BLOCKS.iter().map(|block| block.table);
        matches!(chart.unit, ChartUnit::Watts | ChartUnit::Celsius)
            || tables.chain([&device::TABLE]).any(|table| std::ptr::eq(table, chart.table))
    };
    let block = move |chart: &'static MachineChart| {
        let one = |(row, freshness): (&NodeRow, Freshness)| {
            let value = chart.unit.write(chart.now(row)?);
            let line = line(&row.labels.join(" "), vec![value], freshness)?;
            // Of the whole machine there is nothing to name.
            Some(line.trim_start().to_owned())
        };
        (chart.title, of_table(rows, chart.table).filter_map(one).collect())
    };
    charts.into_iter().filter(move |chart| !is_shown(chart)).map(block)
}

/// How a source names the sensors of a table.
fn sensor(row: &NodeRow) -> Option<&'static Sensor> {
    met_sources::SENSORS.iter().copied().find(|sensor| std::ptr::eq(sensor.table, row.table))
}

/// The name of a meter of power or temperature; GPUs have lines of their own.
fn sensor_name(row: &NodeRow) -> Option<String> {
    let is_gpu = std::ptr::eq(row.table, &device::TABLE);
    (!is_gpu).then(|| sensor(row).map_or_else(|| row.labels.join(" "), |sensor| (sensor.name)(row)))
}

/// Parts of a GPU draw what the GPU draws.
fn gpu_power(gpus: &[GpuNow<'_>]) -> Vec<String> {
    let is_whole = |gpu: &&GpuNow<'_>| gpu.labels[device::label::PARENT].is_empty();
    let one = |gpu: &GpuNow<'_>| {
        let power_mw = Some(gpu.cells[device::POWER]).filter(|&cell| cell != MISSING);
        let power = power_mw.map(|mw| {
            vec![units::watts(mw as f64 / 1e3), format!("by {}", gpu.labels[device::label::VENDOR])]
        });
        let name = format!("GPU {} {}", gpu.labels[device::label::INDEX], gpu.labels[device::label::NAME]);
        line(&name, power.unwrap_or_else(|| vec!["power unknown".to_owned()]), Freshness::Current)
    };
    gpus.iter().filter(is_whole).filter_map(one).collect()
}

/// The hottest first.
fn temperatures(rows: Rows<'_>) -> Vec<String> {
    let one = |&(row, freshness): &(&NodeRow, Freshness)| {
        let degrees = row.level(row.table.reading(Kind::Gauge, Unit::Celsius)?)?;
        let critical = sensor(row).and_then(|sensor| row.level(sensor.critical?));
        let critical = critical.map(|degrees| format!("critical at {}", units::celsius(degrees)));
        let parts = [units::celsius(degrees)].into_iter().chain(critical).collect();
        Some((degrees, line(&sensor_name(row)?, parts, freshness)?))
    };
    let mut found: Vec<(f64, String)> = rows.iter().filter_map(one).collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    let more = found.len().saturating_sub(TEMPERATURES_MAX);
    let mut lines: Vec<String> = found.into_iter().take(TEMPERATURES_MAX).map(|(_, line)| line).collect();
    if more > 0 {
        lines.push(format!("and {more} cooler ones"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use met_core::node::NodeRows;
    use met_core::{Batch, Subject, Table, Window};

    const SECOND: i64 = 1_000_000_000;

    fn table(name: &str) -> &'static Table {
        met_sources::catalogue().into_iter().find(|table| table.name == name).unwrap()
    }

    /// Two readings a second apart.
    fn read(rows: &mut NodeRows, name: &str, labels: &[&str], cells: &[(&str, i64, i64)]) {
        let table = table(name);
        let part = u32::try_from(rows.known(2 * SECOND).count()).unwrap();
        let mut all = vec![Vec::new(); part as usize];
        all.push(labels.iter().map(|label| (*label).to_owned()).collect());
        for second in [1, 2] {
            let mut batch = Batch::new(table);
            let row = batch.push_part(Subject::Node, part);
            for (column, before, now) in cells {
                row[table.column(column).unwrap()] = if second == 1 { *before } else { *now };
            }
            batch.window = Window { begin_ns: second * SECOND - 1000, end_ns: second * SECOND };
            rows.take(name_of(name), &batch, &all, SECOND);
        }
    }

    fn name_of(name: &str) -> &'static str {
        met_sources::SOURCES.iter().map(|spec| spec.name).find(|known| *known == name).unwrap()
    }

    fn draw(rows: &NodeRows, now_ns: i64) -> String {
        draw_in(rows, now_ns, None)
    }

    fn draw_in(rows: &NodeRows, now_ns: i64, width: Option<usize>) -> String {
        let known: Vec<_> = rows.known(now_ns).collect();
        let labels = ["0", "GPU-a", "Fake H200", "nvidia", "", "195:0"].map(str::to_owned);
        let mut cells = vec![MISSING; device::TABLE.columns.len()];
        cells[device::POWER] = 489_500;
        let gpu = GpuNow { labels: &labels, cells: &cells, processes: Vec::new(), holders: Vec::new() };
        let gpus = if rows.known(now_ns).next().is_some() { vec![gpu] } else { Vec::new() };
        let style = Style { width, ..Style::plain() };
        machine(&Machine { name: "n1", cpus: 4, gpus: &gpus }, &known, &style)
    }

    #[test]
    fn no_value_is_cut_and_no_word_broken_at_any_width() {
        let rows = sample();
        let all = draw(&rows, 2 * SECOND);
        for width in [60, 80, 200] {
            let drawn = draw_in(&rows, 2 * SECOND, Some(width));
            assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
            let words = |drawn: &str| drawn.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&drawn), words(&all), "{width} columns");
        }
    }

    const NODE: &[(&str, i64, i64)] = &[
        ("uptime", 7_380 * SECOND, 7_380 * SECOND),
        ("load_1", 1250, 1250),
        ("load_5", 500, 500),
        ("load_15", 50, 50),
        ("threads_runnable", 3, 3),
        ("threads", 456, 456),
        ("cpu_user", 0, 2 * SECOND),
        ("cpu_nice", 0, 0),
        ("cpu_system", 0, SECOND / 2),
        ("cpu_interrupt", 0, 0),
        ("cpu_soft_interrupt", 0, 0),
        ("cpu_io_wait", 0, 0),
        ("cpu_idle", 0, 3 * SECOND / 2),
        ("context_switches", 1000, 13_345),
        ("memory_total", 16 << 30, 16 << 30),
        ("memory_available", 12 << 30, 12 << 30),
        ("memory_cached", 6 << 30, 6 << 30),
        ("swap_total", 2 << 30, 2 << 30),
        ("swap_free", 1 << 30, 1 << 30),
        ("swapped_in", 0, 4096),
        ("swapped_out", 0, 0),
        ("pressure_cpu", 0, SECOND / 5),
        ("pressure_io", 0, 0),
    ];

    fn sample() -> NodeRows {
        let mut rows = NodeRows::default();
        read(&mut rows, "node", &[], NODE);
        read(
            &mut rows,
            "block",
            &["nvme0n1", "disk"],
            &[
                ("read", 0, 5 << 20),
                ("written", 0, 1 << 20),
                ("reads", 0, 40),
                ("writes", 0, 2),
                ("busy", 0, SECOND / 8),
            ],
        );
        read(
            &mut rows,
            "network",
            &["eth0"],
            &[("received", 0, 1 << 20), ("sent", 0, 2048), ("dropped_sent", 0, 3)],
        );
        read(&mut rows, "network", &["eth9"], &[("received", 0, 0), ("sent", 0, 0)]);
        read(
            &mut rows,
            "infiniband",
            &["mlx5_0", "1", "InfiniBand"],
            &[("received", 0, 3 << 30), ("sent", 0, 1 << 30), ("link_rate", 12_500_000_000, 12_500_000_000)],
        );
        read(
            &mut rows,
            "lustre",
            &["scratch", "scratch-ff"],
            &[("read", 0, 9 << 20), ("written", 0, 0), ("opens", 0, 12)],
        );
        read(&mut rows, "rapl", &["package-0", "package-0", "intel-rapl:0"], &[("energy", 0, 98_500_000)]);
        read(&mut rows, "rapl", &["dram", "package-0", "intel-rapl:0:0"], &[("energy", 0, 12_000_000)]);
        read(&mut rows, "ipmi", &["node"], &[("power", 220_000, 221_000)]);
        read(&mut rows, "thermal", &["0", "x86_pkg_temp"], &[("temperature", 45_000, 45_000)]);
        read(
            &mut rows,
            "hwmon",
            &["coretemp", "hwmon0/temp1", "Package id 0"],
            &[("temperature", 61_000, 61_000), ("temperature_critical", 100_000, 100_000)],
        );
        rows
    }

    #[test]
    fn a_machine_is_shown_with_what_it_has() {
        expect![[r#"
            n1, 4 CPUs, up 2h03m

            CPU          user 50%   system 12%   waiting for I/O 0%   idle 38%
                         load 1.25 0.50 0.05   3 of 456 threads runnable
                         12,345 context switches/s
            Memory       4.00 GiB of 16.0 GiB in use (25%)   cache 6.00 GiB
                         swap 1.00 GiB of 2.00 GiB in use   in 4.00 KiB/s   out 0 B/s
            Pressure     CPU 20%   I/O 0%   (share of time in which some task waited)
            Disks        nvme0n1                  read 5.00 MiB/s   written 1.00 MiB/s   requests/s 42   busy 12%
            Network      eth0                     received 1.00 MiB/s   sent 2.00 KiB/s   packets lost/s 3
            Fabric       mlx5_0/1 InfiniBand      received 3.00 GiB/s   sent 1.00 GiB/s   of 11.6 GiB/s
            Lustre       scratch                  read 9.00 MiB/s   written 0 B/s   opens/s 12
            Power        package-0                98.5 W   by rapl
                         package-0 dram           12.0 W   by rapl
                         node                     221 W   by ipmi
                         GPU 0 Fake H200          490 W   by nvidia
            Temperature  coretemp Package id 0    61 °C   critical at 100 °C
                         zone 0 x86_pkg_temp      45 °C
        "#]].assert_eq(&draw(&sample(), 2 * SECOND));
    }

    #[test]
    fn a_table_without_a_block_of_its_own_is_shown_by_its_charts() {
        met_core::columns! { COLUMNS:
            TURNS = met_core::Column::counter("turns", Unit::Count, 1.0, "turns"),
            SLOTS = met_core::Column::gauge("slots", Unit::Bytes, 1.0, "slots"),
        }
        static FAN: Table = Table { name: "fan", subject: "a fan", labels: &["fan"], columns: COLUMNS };
        static SPIN: MachineChart =
            MachineChart::new("fan", ["Fans of the case", "fan"], ChartUnit::PerSecond, &FAN, &[TURNS]);
        static ROOM: MachineChart =
            MachineChart::new("room", ["Room", "room"], ChartUnit::Bytes, &FAN, &[SLOTS]);
        let mut rows = NodeRows::default();
        for second in [1, 2] {
            let mut batch = Batch::new(&FAN);
            batch.push_part(Subject::Node, 0)[TURNS] = 30 * second;
            batch.window = Window { begin_ns: second * SECOND - 1000, end_ns: second * SECOND };
            rows.take("fan", &batch, &[vec!["left".to_owned()]], SECOND);
        }
        let known: Vec<_> = rows.known(2 * SECOND).collect();
        let drawn: Vec<_> = others(&known, vec![&SPIN, &ROOM, &device::CHARTS[0]]).collect();
        let line = format!("{:24} 30.0 /s", "left");
        assert_eq!(drawn, [("Fans of the case", vec![line]), ("Room", Vec::new())]);
    }

    #[test]
    fn the_parts_of_the_last_window_are_shown_with_their_meter() {
        let window = EnergyWindow {
            begin_ns: 0,
            end_ns: 10 * SECOND,
            meter: "IPMI".into(),
            kind: QualityKind::Measured,
            whole_uj: 2_000_000_000,
            jobs_uj: 1_000_000_000,
            system_uj: 50_000_000,
            idle_uj: 950_000_000,
            unassigned_uj: 0,
            gpus_uj: 0,
            idle_estimated: false,
        };
        expect![[r#"
            Energy       200 W total   jobs 100 W   system 5.00 W   idle 95.0 W   (10s, IPMI)
        "#]]
        .assert_eq(&energy(&window, &Style::plain()));
        let with_gpus = EnergyWindow { gpus_uj: 800_000_000, ..window.clone() };
        expect![[r#"
            Energy       200 W total, GPUs 80.0 W   jobs 100 W   system 5.00 W   idle 95.0 W   (10s, IPMI)
        "#]]
        .assert_eq(&energy(&with_gpus, &Style::plain()));
        expect![[r#"
            Energy       200 W total, GPUs 80.0 W   jobs 100 W   system 5.00 W
                           idle 95.0 W   (10s, IPMI)
        "#]]
        .assert_eq(&energy(&with_gpus, &Style { width: Some(80), ..Style::plain() }));
        let gap = EnergyWindow { unassigned_uj: 500_000_000, idle_uj: 450_000_000, ..window.clone() };
        expect![[r#"
            Energy       200 W total   jobs 100 W   system 5.00 W   idle 45.0 W   unassigned 50.0 W   (10s, IPMI)
        "#]]
        .assert_eq(&energy(&gap, &Style::plain()));
        let doubtful = EnergyWindow { kind: QualityKind::LowerBound, idle_estimated: true, ..window };
        expect![[r#"
            Energy       ≥200 W total   jobs 100 W   system 5.00 W   idle ~95.0 W   (10s, IPMI)
        "#]]
        .assert_eq(&energy(&doubtful, &Style::plain()));
    }

    #[test]
    fn what_is_old_is_marked_and_then_left_out() {
        assert_eq!(draw(&sample(), 2 * SECOND + 3 * SECOND / 2).matches("(stale)").count(), 9);
        assert_eq!(draw(&sample(), 5 * SECOND), "n1, 4 CPUs\n\n");
    }
}
