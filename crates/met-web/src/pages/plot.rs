//! A chart as SVG, for pages without a script, for print and for screen readers; and as data for the script.

use jiff::tz::TimeZone;
use maud::{Markup, PreEscaped, html};
use met_core::text::escape;
use met_core::units;
use serde_json::{Value, json};

use super::charts::{Chart, Line, Span};

/// Heights are counted in this many parts of the axis.
const PARTS: f64 = 1000.0;
/// Colours that the style sheet has; further lines begin again.
const COLOURS: usize = 8;

/// A chart with its title, a summary in words, and the axes as text beside the drawing: text in a drawing would be
/// stretched with it.
pub fn figure(chart: &Chart, span: Span, zone: &TimeZone) -> Markup {
    let middle_ms = span.begin_ms + (span.end_ms - span.begin_ms) / 2;
    let label = |time_ms: i64| time_label(time_ms, span, zone);
    labelled(chart, [span.begin_ms, middle_ms, span.end_ms].map(label), true)
}

/// A time on the axis; within a few seconds, with tenths.
fn time_label(time_ms: i64, span: Span, zone: &TimeZone) -> String {
    const TENTHS_MS: i64 = 4_000;
    let clock = units::time_short(time_ms * 1_000_000, span.end_ms * 1_000_000, zone);
    match span.end_ms - span.begin_ms < TENTHS_MS {
        true => format!("{clock}.{}", time_ms.rem_euclid(1000) / 100),
        false => clock,
    }
}

/// The next time above that is a round one, and so is its half.
pub fn round_span_ms(span_ms: i64) -> i64 {
    const ROUND: [i64; 9] = [1, 2, 3, 4, 6, 8, 10, 20, 30];
    const UNITS_MS: [i64; 6] = [100, 1_000, 10_000, 60_000, 600_000, 3_600_000];
    let mut round = UNITS_MS.iter().flat_map(|unit_ms| ROUND.iter().map(move |round| unit_ms * round));
    let day_ms = 86_400_000;
    let days_ms = || (span_ms + 2 * day_ms - 1) / (2 * day_ms) * 2 * day_ms;
    round.find(|&round_ms| round_ms >= span_ms).unwrap_or_else(days_ms)
}

/// A chart of several jobs, each from its own start. The script has no such axis and leaves it as it is.
pub fn figure_since_start(chart: &Chart, span_ms: i64) -> Markup {
    let since_start = |ms: i64| if ms == 0 { "0".to_owned() } else { units::duration(ms as f64 / 1e3) };
    labelled(chart, [0, span_ms / 2, span_ms].map(since_start), false)
}

fn labelled(chart: &Chart, [from, middle, to]: [String; 3], is_scripted: bool) -> Markup {
    let (top, summary) = (chart.top(), summary(chart));
    let spoken = format!("{} {} from {from} to {to}: {summary}", escape(&chart.title), chart.scope);
    html! {
        figure.chart id={ "chart-" (chart.id) } data-chart=[is_scripted.then_some(&chart.id)] {
            figcaption {
                strong { (escape(&chart.title)) } " " span.dim { (chart.scope) }
                " " span.sum { (summary) }
            }
            div.plot role="img" aria-label=(spoken) {
                div.y aria-hidden="true" {
                    span { (chart.unit.write(top)) } span { (chart.unit.write_beside(top / 2.0, top)) } span { "0" }
                }
                div.canvas { (drawing(chart, top)) }
                div.x aria-hidden="true" { span { (from) } span { (middle) } span { (to) } }
            }
            (legend(chart))
        }
    }
}

fn summary(chart: &Chart) -> String {
    let mean = chart.mean().map(|mean| format!("average {}", chart.unit.write(mean)));
    let peak = format!("peak {}", chart.unit.write(chart.known_peak()));
    let limit = chart.limit.map(|(name, value)| format!("{name} {}", chart.unit.write(value)));
    let is_one = chart.stacked || chart.lines.len() == 1;
    let parts = [mean.filter(|_| is_one), Some(peak), limit];
    let words = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
    match chart.of_line.filter(|_| chart.lines.len() > 1) {
        Some(line) => format!("{line}: {words}"),
        None => words,
    }
}

/// One line needs no legend, unless there are gaps or peaks to explain.
fn legend(chart: &Chart) -> Markup {
    let (names, peak) = (chart.lines.len() > 1, chart.has_peak_line());
    html! {
        @if names || peak || chart.has_gap() {
            ul.legend {
                @for line in chart.lines.iter().filter(|_| names) {
                    li { (swatch(line.colour, "")) (escape(&line.label)) }
                }
                @for line in chart.lines.iter().filter(|_| peak) {
                    li { (swatch(line.colour, "")) "average" }
                    li { (swatch(line.colour, "faint")) "highest" }
                }
                @if chart.has_gap() { li.dim { "gaps: no samples" } }
            }
        }
    }
}

fn swatch(colour: usize, class: &str) -> Markup {
    html! {
        svg class={ "swatch " (class) } width="10" height="10" viewBox="0 0 10 10" aria-hidden="true" {
            rect.{ "f" (colour % COLOURS) } width="10" height="10" rx="2" {}
        }
    }
}

fn drawing(chart: &Chart, top: f64) -> Markup {
    let bins = chart.lines.iter().map(|line| line.bins.len()).max().unwrap_or(0);
    let limit = chart.limit.map(|(_, value)| value).filter(|&value| value <= top);
    html! {
        svg viewBox={ "0 0 " (bins) " " (PARTS) } preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            path.grid d={ "M0 " (PARTS / 2.0) "H" (bins) "M0 0H" (bins) } {}
            @if chart.stacked { (stack(chart, top)) } @else { (lines(chart, top)) }
            @if let Some(limit) = limit {
                path.limit d={ "M0 " (height(limit, top)) "H" (bins) } {}
            }
        }
    }
}

fn lines(chart: &Chart, top: f64) -> Markup {
    let is_alone = chart.lines.len() == 1;
    html! {
        @for line in &chart.lines {
            @let means: Vec<Option<f64>> = line.bins.iter().map(|bin| bin.map(|bin| bin.mean)).collect();
            @let colour = line.colour % COLOURS;
            @if is_alone { path.area.{ "f" (colour) } d=(area(&means, &vec![0.0; means.len()], top)) {} }
            @if chart.has_peak_line() { path.peak.{ "s" (colour) } d=(steps(&peaks(line), top)) {} }
            path.line.{ "s" (colour) } d=(steps(&means, top)) {}
        }
    }
}

/// Parts of a whole, each on top of those before it.
fn stack(chart: &Chart, top: f64) -> Markup {
    let mut below = vec![0.0; chart.lines.iter().map(|line| line.bins.len()).max().unwrap_or(0)];
    let mut layers = Vec::new();
    for line in &chart.lines {
        let above: Vec<Option<f64>> =
            line.bins.iter().zip(&below).map(|(bin, below)| bin.map(|bin| bin.mean + below)).collect();
        layers.push((area(&above, &below, top), steps(&above, top)));
        for (below, above) in below.iter_mut().zip(&above) {
            *below = above.unwrap_or(*below);
        }
    }
    html! {
        @for (index, (area, line)) in layers.iter().enumerate() {
            path.area.{ "f" (index % COLOURS) } d=(area) {}
            path.line.{ "s" (index % COLOURS) } d=(line) {}
        }
    }
}

fn peaks(line: &Line) -> Vec<Option<f64>> {
    line.bins.iter().map(|bin| bin.map(|bin| bin.max)).collect()
}

fn height(value: f64, top: f64) -> i64 {
    (PARTS - (value / top * PARTS).clamp(0.0, PARTS)).round() as i64
}

/// The runs of known values: where each begins, and its values.
fn runs(values: &[Option<f64>]) -> Vec<(usize, Vec<f64>)> {
    let mut runs: Vec<(usize, Vec<f64>)> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        match runs.last_mut().filter(|(begin, run)| begin + run.len() == index) {
            Some((_, run)) => run.push(*value),
            None => runs.push((index, vec![*value])),
        }
    }
    runs
}

/// A step for each value; a gap stays a gap.
fn steps(values: &[Option<f64>], top: f64) -> String {
    let mut path = String::new();
    for (begin, run) in runs(values) {
        let mut before = None;
        for (index, value) in run.iter().enumerate() {
            let (x, y) = (begin + index, height(*value, top));
            match before {
                None => path += &format!("M{x} {y}"),
                Some(before) if before != y => path += &format!("H{x}V{y}"),
                Some(_) => {}
            }
            before = Some(y);
        }
        path += &format!("H{}", begin + run.len());
    }
    path
}

/// What is between the steps of some values and those below them.
fn area(values: &[Option<f64>], below: &[f64], top: f64) -> String {
    let mut path = String::new();
    for (begin, run) in runs(values) {
        let end = begin + run.len();
        let upper: Vec<Option<f64>> =
            (0..end).map(|index| values[index].filter(|_| index >= begin)).collect();
        path += &steps(&upper, top);
        for index in (begin..end).rev() {
            let y = height(below.get(index).copied().unwrap_or(0.0), top);
            path += &format!("V{y}H{index}");
        }
        path.push('Z');
    }
    path
}

/// The same charts for the script, in a block that is data and never run.
pub fn data(charts: &[Chart], span: Span) -> Markup {
    let line = |line: &Line, has_peak_line: bool| {
        let means: Vec<Value> = line.bins.iter().map(|bin| number(bin.map(|bin| bin.mean))).collect();
        let mut object = json!({ "label": escape(&line.label), "mean": means });
        if has_peak_line {
            object["max"] = line.bins.iter().map(|bin| number(bin.map(|bin| bin.max))).collect();
        }
        object
    };
    let chart = |chart: &Chart| {
        let has_peak_line = chart.has_peak_line();
        let lines: Vec<Value> = chart.lines.iter().map(|of| line(of, has_peak_line)).collect();
        let limit = chart.limit.map(|(name, value)| json!({ "label": name, "value": number(Some(value)) }));
        json!({
            "id": chart.id, "unit": chart.unit.name(), "stacked": chart.stacked, "top": chart.top(),
            "limit": limit, "lines": lines,
        })
    };
    let object = json!({
        "begin": span.begin_ms, "step": span.step_ms(), "bins": span.bins,
        "charts": charts.iter().map(chart).collect::<Vec<_>>(),
    });
    // Nothing in it ends the block.
    let text = object.to_string().replace('<', "\\u003c");
    html! { script type="application/json" id="chart-data" { (PreEscaped(text)) } }
}

/// Four digits are more than a line shows.
fn number(value: Option<f64>) -> Value {
    let Some(value) = value.filter(|value| value.is_finite()) else { return Value::Null };
    if value == 0.0 {
        return json!(0);
    }
    let unit = 10f64.powi(value.abs().log10().floor() as i32 - 3);
    let rounded = (value / unit).round() * unit;
    match rounded.abs() >= 1000.0 {
        true => json!(rounded.round() as i64),
        false => json!((rounded * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use met_core::chart::Unit;
    use met_insight::resample::Bin;

    use super::super::charts::Reported;
    use super::*;

    fn one_line(bins: Vec<Option<Bin>>) -> Chart {
        Chart {
            id: "power".to_owned(),
            title: "Power".to_owned(),
            scope: "of the machine",
            unit: Unit::Watts,
            lines: vec![Line { label: "power".to_owned(), bins, colour: 0 }],
            stacked: false,
            is_main: false,
            limit: None,
            of_line: None,
            reported: Reported::default(),
        }
    }

    #[test]
    fn a_gap_is_not_drawn() {
        let values = [Some(0.0), Some(5.0), None, Some(10.0), Some(10.0)];
        assert_eq!(steps(&values, 10.0), "M0 1000H1V500H2M3 0H5");
        let area = area(&values, &[0.0; 5], 10.0);
        assert_eq!(area, "M0 1000H1V500H2V1000H1V1000H0ZM3 0H5V1000H4V1000H3Z");
        assert_eq!(steps(&[None, None], 1.0), "");
    }

    #[test]
    fn labels_of_a_short_time_do_not_repeat() {
        let span = Span { begin_ms: 1_700_000_000_100, end_ms: 1_700_000_002_400, bins: 40 };
        let labels = [span.begin_ms, 1_700_000_001_250, span.end_ms]
            .map(|time_ms| time_label(time_ms, span, &TimeZone::UTC));
        assert_eq!(labels, ["22:13:20.1", "22:13:21.2", "22:13:22.4"]);
        let long = Span { end_ms: span.begin_ms + 60_000, ..span };
        assert_eq!(time_label(span.begin_ms, long, &TimeZone::UTC), "22:13:20");
    }

    #[test]
    fn a_span_since_the_start_is_round() {
        let spans = [0, 883, 1_000, 1_001, 59_000, 61_000, 3_700_000, 90_000_000, 500_000_000];
        let round = [100, 1_000, 1_000, 2_000, 60_000, 80_000, 4_800_000, 108_000_000, 518_400_000];
        assert_eq!(spans.map(round_span_ms), round);
    }

    #[test]
    fn a_chart_of_one_line_explains_its_peaks() {
        let span = Span { begin_ms: 0, end_ms: 60_000, bins: 2 };
        let chart = one_line(vec![Some(Bin { min: 1.0, mean: 2.0, max: 9.0 }), None]);
        let drawn = figure(&chart, span, &TimeZone::UTC).into_string();
        assert!(drawn.contains("average</li>") && drawn.contains("highest</li>"), "{drawn}");
        let flat = one_line(vec![Some(Bin { min: 2.0, mean: 2.0, max: 2.0 }); 2]);
        let drawn = figure(&flat, span, &TimeZone::UTC).into_string();
        assert!(!drawn.contains("legend") && !drawn.contains("peak s0"), "{drawn}");
    }

    #[test]
    fn numbers_for_the_script_are_short_and_unknown_ones_null() {
        let numbers =
            [Some(1_299_227_608.0), Some(0.123_456), Some(0.0), Some(12.3456), None, Some(f64::NAN)];
        let written: Vec<String> = numbers.map(|value| number(value).to_string()).into();
        assert_eq!(written, ["1299000000", "0.1235", "0", "12.35", "null", "null"]);
    }
}
