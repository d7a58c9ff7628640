//! The machine over time: one plot for each thing that it has and that did something.

use met_core::chart::MachineChart;
use met_core::series::Series;
use met_insight::csv::{self, CRLF, Cell};
use met_insight::json;
use met_insight::resample::{self, Bin};
use met_store::NodePart;
use serde_json::{Map, Value};

use super::plot::{self, Panel};
use super::{Style, text};

/// More plots of one kind are for a program; these are the busiest.
const PARTS_PLOTTED: usize = 4;

type Parts<'a> = &'a [(NodePart, Series)];

/// Plots that share one axis of time. What never did anything has none.
pub fn plots(parts: Parts<'_>, gap_ms: impl Fn(&Series) -> i64, style: &Style) -> String {
    let columns = plot::columns(style);
    let times = || parts.iter().flat_map(|(_, series)| &series.times_ms);
    let (Some(&first_ms), Some(&last_ms)) = (times().min(), times().max()) else { return String::new() };
    let span = Span { first_ms, last_ms, bins: plot::bin_count(columns) };
    let mut panels = Vec::new();
    for wanted in met_sources::charts() {
        let of_table = parts.iter().filter(|(_, series)| std::ptr::eq(series.table, wanted.table));
        let drawn =
            of_table.filter_map(|(part, series)| span.panel(wanted, &part.part, series, gap_ms(series)));
        panels.extend(busiest(drawn.collect()));
    }
    plot::draw(&panels, (first_ms, last_ms), columns, style)
}

/// Those with the highest means, in the order in which they came.
fn busiest(panels: Vec<Panel>) -> Vec<Panel> {
    let sum = |panel: &Panel| panel.bins.iter().flatten().map(|bin| bin.mean).sum::<f64>();
    let mut sums: Vec<f64> = panels.iter().map(sum).collect();
    sums.sort_by(|one, other| other.total_cmp(one));
    let least = sums.get(PARTS_PLOTTED - 1).copied().unwrap_or(f64::MIN);
    panels.into_iter().filter(|panel| sum(panel) >= least).take(PARTS_PLOTTED).collect()
}

struct Span {
    first_ms: i64,
    last_ms: i64,
    bins: usize,
}

impl Span {
    fn panel(&self, wanted: &MachineChart, label: &str, series: &Series, gap_ms: i64) -> Option<Panel> {
        let combined = resample::combined(series, wanted.plus, wanted.minus);
        let bins = self.of(&combined, *wanted.plus.first()?, gap_ms);
        // Of a disk the kind is a label, too: once is enough.
        let words = label.split(' ').filter(|word| !word.is_empty() && *word != wanted.part_title);
        let title = std::iter::once(wanted.part_title).chain(words).collect::<Vec<_>>().join(" ");
        let panel = Panel::new(&text::escape(&title), bins, wanted.unit);
        Some(panel).filter(Panel::did_something)
    }

    fn of(&self, series: &Series, index: usize, gap_ms: i64) -> Vec<Option<Bin>> {
        let scale = series.table.columns[index].scale;
        let bins = resample::between(series, index, self.first_ms, self.last_ms, self.bins, gap_ms);
        let scaled = |bin: Bin| bin.map(|value| value * scale);
        bins.into_iter().map(|bin| bin.map(scaled)).collect()
    }
}

/// Every sample: a list of parts, each with its times and the columns that were read, in their units.
pub fn object(parts: Parts<'_>) -> Value {
    let one = |(part, series): &(NodePart, Series)| {
        let mut object = Map::new();
        object.insert("table".to_owned(), part.table.as_str().into());
        object.insert("part".to_owned(), part.part.as_str().into());
        object.extend(json::series(series));
        Value::Object(object)
    };
    Value::Array(parts.iter().map(one).collect())
}

/// One line for each value that was read.
pub fn csv(parts: Parts<'_>) -> String {
    let mut lines = csv::header(["time", "table", "part", "column", "value"]);
    for (part, series) in parts {
        for (index, &time_ms) in series.times_ms.iter().enumerate() {
            let Some(time) = json::time(time_ms * 1_000_000) else { continue };
            for (column, cells) in series.table.columns.iter().zip(&series.columns) {
                let Some(cell) = known(cells[index]) else { continue };
                let name = column.json_name();
                let texts = [Cell::Plain(&time), Cell::Text(&part.table), Cell::Text(&part.part)];
                let value = [Cell::Plain(&name), Cell::Real(column.scaled(cell))];
                csv::write_line(&mut lines, texts.into_iter().chain(value), CRLF);
            }
        }
    }
    lines
}

fn known(cell: i64) -> Option<i64> {
    (cell != met_core::MISSING).then_some(cell)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn series(table: &str, part: &str, samples: &[&[(&str, i64)]]) -> (NodePart, Series) {
        let found = met_sources::catalogue().into_iter().find(|known| known.name == table).unwrap();
        let mut series = Series::new(found);
        for (index, cells) in (0..).zip(samples) {
            let mut row = vec![met_core::MISSING; found.columns.len()];
            cells.iter().for_each(|(column, cell)| row[found.column(column).unwrap()] = *cell);
            series.push(1_700_000_000_000 + index * 10_000, &row);
        }
        (NodePart { table: table.to_owned(), part: part.to_owned() }, series)
    }

    fn sample() -> Vec<(NodePart, Series)> {
        const GIB: i64 = 1 << 30;
        let memory = |free: i64| [("memory_total", 16 * GIB), ("memory_available", free * GIB)];
        vec![
            series("node", "", &[&memory(12), &memory(12), &memory(4)]),
            series(
                "rapl",
                "package-0",
                &[&[("energy", 0)], &[("energy", 900_000_000)], &[("energy", 2_900_000_000)]],
            ),
            series("network", "lo", &[&[("received", 0), ("sent", 0)], &[("received", 0), ("sent", 0)]]),
        ]
    }

    #[test]
    fn of_many_parts_the_busiest_are_plotted() {
        let network =
            |name: &str, bytes| series("network", name, &[&[("received", 0)], &[("received", bytes)]]);
        let parts: Vec<_> = [("a", 1), ("b", 50), ("c", 2), ("d", 70), ("e", 30), ("f", 40)]
            .map(|(name, megabytes)| network(name, megabytes * 1_000_000))
            .into();
        let text = plots(&parts, |_| 60_000, &Style::plain());
        let titles: Vec<&str> =
            text.lines().filter_map(|line| line.trim().strip_prefix("network ")).collect();
        let names: Vec<&str> = titles.iter().filter_map(|title| title.split(',').next()).collect();
        assert_eq!(names, ["b", "d", "e", "f"]);
    }

    #[test]
    fn what_did_something_is_plotted_on_one_axis() {
        let style = Style { width: Some(50), ..Style::plain() };
        expect![[r#"
            50 columns
                         memory in use, peak 12.0 GiB
               15.0 GiB ┤
                        │                   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
                        │                  ▄██████████████████
                        │█████████████████████████████████████
                      0 ┼─────────────────────────────────────
                         power package-0, peak 200 W
                  200 W ┤                   ██████████████████
                        │                  ▇██████████████████
                        │▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆███████████████████
                        │█████████████████████████████████████
                      0 ┼─────────────────────────────────────
                         22:13:20      22:13:30       22:13:40
        "#]]
        .assert_eq(&format!("50 columns\n{}", plots(&sample(), |_| 25_000, &style)));
        assert_eq!(plots(&[], |_| 1, &Style::plain()), "");
        let disk = series("block", "vda disk", &[&[("read", 0)], &[("read", 4096)]]);
        assert!(plots(&[disk], |_| 25_000, &style).contains("  disk vda, peak"));
    }

    #[test]
    fn programs_get_every_value_that_was_read_and_no_other() {
        let rapl = &sample()[1..2];
        expect![[r#"[{"table":"rapl","part":"package-0","times":["2023-11-14T22:13:20.000000Z","2023-11-14T22:13:30.000000Z","2023-11-14T22:13:40.000000Z"],"columns":{"energy_joules":[0.0,900.0,2900.0]}}]"#]].assert_eq(&object(rapl).to_string());
        expect![[r#"
            time,table,part,column,value
            2023-11-14T22:13:20.000000Z,thermal,"0 a,b",temperature_celsius,45
        "#]]
        .assert_eq(
            &csv(&[series("thermal", "0 a,b", &[&[("temperature", 45_000)], &[]])]).replace("\r\n", "\n"),
        );
    }
}
