//! How a job scales, in words and for programs.

use met_core::job::Record;
use met_insight::scale::{Bounds, Fit, Interval, Model, Plan, Prediction, Scaling, UNSIZED};

use super::{Paint, Style, text};
use met_core::units;

/// `currency`: of the prices of systems.
pub fn render(
    record: &Record,
    plan: &Plan,
    left_out: &[String],
    currency: Option<&str>,
    style: &Style,
) -> String {
    let head = format!("Job {}  {}", text::escape(&record.label()), text::escape(&record.name));
    let mut lines = vec![painted(Paint::Bold, &head, style)];
    if let Some(bounds) = &plan.bounds {
        lines.extend(of_bounds(bounds));
    }
    if !left_out.is_empty() {
        lines.extend([String::new(), "Left out:".to_owned()]);
        let (unsized_runs, others): (Vec<&String>, Vec<&String>) =
            left_out.iter().partition(|words| words.ends_with(UNSIZED));
        lines.extend(others.iter().map(|words| format!("  {}", text::escape(words))));
        lines.extend(match unsized_runs[..] {
            [] => None,
            [one] => Some(format!("  {}", text::escape(one))),
            _ => Some(format!("  {} jobs whose size is not known", unsized_runs.len())),
        });
    }
    match &plan.scaling {
        Err(cannot) => {
            let sizes: Vec<String> = cannot.run_next.iter().map(|size| units::cores(*size)).collect();
            lines.push(String::new());
            lines.push(format!("cannot say: {}", cannot.why));
            if !sizes.is_empty() {
                let by_hand = "; give the sizes of runs without an allocation by --sizes";
                let by_hand =
                    if left_out.iter().any(|words| words.ends_with(UNSIZED)) { by_hand } else { "" };
                lines.push(format!("run it next with N = {} workers{by_hand}", sizes.join(" and ")));
            }
        }
        Ok(model) => lines.extend(of_model(model, plan, style)),
    }
    lines.extend(of_systems(&plan.systems, currency, style));
    let wrapped = |line: &String| match line.contains('\x1b') {
        true => format!("{line}\n"),
        false => text::hanging(line, 4, style),
    };
    let drawn: String = lines.iter().map(wrapped).collect();
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// Codes of colours have no width: such a line is wrapped before.
fn painted(paint: Paint, line: &str, style: &Style) -> String {
    style.paint(paint, text::hanging(line, 4, style).trim_end())
}

fn of_bounds(bounds: &Bounds) -> Vec<String> {
    let mut lines = vec![String::new(), "From this run alone:".to_owned()];
    lines.extend(bounds.words().iter().map(|words| format!("  {words}")));
    lines.extend(bounds.serial_words().map(|words| format!("  {words}")));
    lines
}

fn workers(size: f64) -> String {
    format!("{} worker{}", units::cores(size), if size == 1.0 { "" } else { "s" })
}

fn percent_range(interval: &Interval) -> String {
    let [value, low, high] = [interval.value, interval.low, interval.high].map(units::percent);
    format!("{value} ({low} to {high})")
}

fn of_model(model: &Scaling, plan: &Plan, style: &Style) -> Vec<String> {
    let law = match model.model {
        Model::KarpFlatt => "Karp-Flatt, two sizes",
        Model::Amdahl => "Amdahl's law",
        Model::Usl => "universal scalability law",
    };
    let runs: usize = model.sizes.iter().map(|(.., runs)| runs).sum();
    let mut lines = vec![String::new(), format!("{law}, from {runs} runs of {} sizes:", model.sizes.len())];
    lines.push(format!("  serial share    {}", percent_range(&model.serial)));
    if model.model == Model::Usl {
        lines.push(format!("  coherency       {:.2e}", model.coherency.value));
        lines.push(format!("  fastest with    {}", workers(model.best_size())));
    }
    lines.push(format!(
        "  efficient up to {} (each does at least half of what it does with {})",
        workers(model.efficient_size()),
        units::cores(model.size_base())
    ));
    lines.push(String::new());
    // Without any energy, there is no column for it.
    let has_energy = plan.predictions.iter().any(|prediction| prediction.joules.is_some());
    lines.extend(table(plan, model, has_energy, style));
    if let Some((seconds, size)) = plan.target {
        let time = units::duration(seconds);
        lines.push(match size {
            Some(size) => format!("{time} is reached with {}", workers(size)),
            None => format!("{time} is not reached with up to {}", workers(model.size_max)),
        });
    }
    lines
}

/// Widths of the columns, and the columns of the whole table; in fewer, each is as wide as it must be.
const WIDTHS: [usize; 5] = [8, 10, 20, 7, 9];
const TABLE_COLUMNS: usize = 64;
const NARROW: &str = " ";
const WIDE: &str = "  ";

/// Energy leaves a table that is too wide for its terminal.
fn table(plan: &Plan, model: &Scaling, has_energy: bool, style: &Style) -> Vec<String> {
    let head = ["workers", "time", "95 % interval", "speedup", "energy"].map(str::to_owned);
    let rows: Vec<Row> = plan.predictions.iter().map(|prediction| row(prediction, model)).collect();
    let known = || std::iter::once(&head).chain(rows.iter().filter_map(|row| row.as_ref().ok()));
    let widest = |column: usize| known().map(|cells| text::width(&cells[column])).max().unwrap_or(0);
    let is_narrow = style.width.is_some_and(|width| width < TABLE_COLUMNS);
    let (least, gap) = if is_narrow { ([0; 5], NARROW) } else { (WIDTHS, WIDE) };
    let widths: [usize; 5] = std::array::from_fn(|column| widest(column).max(least[column]));
    let needs = widths.iter().sum::<usize>() + 4 * gap.len();
    let shown = if has_energy && style.width.is_none_or(|width| needs <= width) { 5 } else { 4 };
    let line = |cells: &[String; 5]| {
        let padded = (0..shown).map(|column| match column {
            2 => text::pad(&cells[column], widths[column]),
            _ => text::pad_left(&cells[column], widths[column]),
        });
        padded.collect::<Vec<_>>().join(gap).trim_end().to_owned()
    };
    let of_row = |row: &Row| match row {
        Ok(cells) => line(cells),
        Err((size, why)) => format!("{}{gap}{why}", text::pad_left(size, widths[0])),
    };
    std::iter::once(painted(Paint::Dim, &line(&head), style)).chain(rows.iter().map(of_row)).collect()
}

/// The cells of a line, or its size and why there are none.
type Row = Result<[String; 5], (String, String)>;

fn row(prediction: &Prediction, model: &Scaling) -> Row {
    let size = units::cores(prediction.size);
    let (Some(seconds), Some(speedup)) = (prediction.seconds, prediction.speedup) else {
        let [least, most] = [model.size_min, model.size_max].map(units::cores);
        return Err((size, format!("cannot say: these runs are about {least} to {most} workers")));
    };
    let range = format!("{} to {}", units::duration(seconds.low), units::duration(seconds.high));
    let energy = prediction.joules.map_or("-".to_owned(), |joules| format!("~{}", units::watt_hours(joules)));
    Ok([size, units::duration(seconds.value), range, format!("{:.2}", speedup.value), energy])
}

fn of_systems(systems: &[Fit], currency: Option<&str>, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, fit) in systems.iter().enumerate() {
        if index == 0 {
            lines.extend([
                String::new(),
                painted(Paint::Dim, "systems, if a core there is as fast as here", style),
            ]);
        }
        let mut words = vec![if fit.fits { "fits" } else { "does not fit" }.to_owned()];
        words.extend(fit.size.zip(fit.seconds).map(|(size, seconds)| {
            format!("{} on {} cores", units::duration(seconds.value), units::cores(size))
        }));
        words.extend(fit.price.map(|price| format!("costs {}", units::money_in(price, currency))));
        words.extend(fit.notes.iter().cloned());
        lines.push(format!(
            "  {}  {}",
            text::pad(&text::escape(&fit.name), 12),
            text::escape(&words.join("; "))
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use met_insight::scale::{Run, Wishes, plan};

    use super::*;

    fn drawn(width: Option<usize>, powers: &[met_insight::scale::Power]) -> String {
        drawn_of(1.0, width, powers)
    }

    fn drawn_of(times: f64, width: Option<usize>, powers: &[met_insight::scale::Power]) -> String {
        let run = |size, seconds| Run { size, seconds: seconds * times };
        let runs = [run(1.0, 700.0), run(1.0, 702.0), run(2.0, 420.0), run(2.0, 421.0)];
        let record = met_core::sample::full(42, "train");
        let plan = plan(&runs, powers, None, &record, &[], &Wishes::default());
        render(&record, &plan, &[], None, &Style { width, ..Style::plain() })
    }

    #[test]
    fn a_narrow_table_fits_and_unknown_energy_has_no_column() {
        let without = drawn(None, &[]);
        assert!(without.contains("speedup\n") && !without.contains("energy"), "{without}");
        let watts = |size, watts| met_insight::scale::Power {
            size,
            watts,
            grams_per_joule: None,
            money_per_joule: None,
        };
        let narrow = drawn(Some(60), &[watts(1.0, 1000.0), watts(2.0, 1800.0)]);
        assert!(narrow.lines().all(|line| text::width(line) <= 60), "{narrow}");
        let rows = narrow.lines().filter(|line| line.contains(" to ") && line.contains("Wh")).count();
        assert_eq!(rows, 3, "each size is one line:\n{narrow}");
        // Of hours, too, each line is one row, and its columns are below their heads.
        for width in [50, 60, 63, 64, 80] {
            let long = drawn_of(21.3, Some(width), &[watts(1.0, 1000.0), watts(2.0, 1800.0)]);
            assert!(long.lines().all(|line| text::width(line) <= width), "{width}:\n{long}");
            let head = long.lines().find(|line| line.contains("95 % interval")).unwrap();
            let end = |line: &str, word: &str| text::width(&line[..line.find(word).unwrap() + word.len()]);
            let rows: Vec<&str> = long.lines().filter(|line| line.contains("m to ")).collect();
            assert_eq!(rows.len(), 3, "{width}:\n{long}");
            for row in rows {
                let speedup = row
                    .split_whitespace()
                    .find(|word| word.contains('.') && word.parse::<f64>().is_ok())
                    .unwrap();
                assert_eq!(end(row, speedup), end(head, "speedup"), "{width}:\n{long}");
            }
        }
    }
}
