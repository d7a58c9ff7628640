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
    let label = |time_ms: i64| units::time_short(time_ms * 1_000_000, span.end_ms * 1_000_000, zone);
    let middle = label(span.begin_ms + (span.end_ms - span.begin_ms) / 2);
    labelled(chart, [label(span.begin_ms), middle, label(span.end_ms)], true)
}

/// A chart of several jobs, each from its own start. The script has no such axis and leaves it as it is.
pub fn figure_since_start(chart: &Chart, span_ms: i64) -> Markup {
    let labels = [0, span_ms / 2, span_ms].map(super::compare::since_start);
    labelled(chart, labels, false)
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
                    span { (chart.unit.write(top)) } span { (chart.unit.write(top / 2.0)) } span { "0" }
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
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// One line needs no legend, unless there are gaps to explain.
fn legend(chart: &Chart) -> Markup {
    let names = chart.lines.len() > 1;
    html! {
        @if names || chart.has_gap() {
            ul.legend {
                @if names {
                    @for (index, line) in chart.lines.iter().enumerate() {
                        li { (swatch(index)) (escape(&line.label)) }
                    }
                }
                @if chart.has_gap() { li.dim { "gaps: no samples" } }
            }
        }
    }
}

fn swatch(index: usize) -> Markup {
    html! {
        svg.swatch width="10" height="10" viewBox="0 0 10 10" aria-hidden="true" {
            rect.{ "f" (index % COLOURS) } width="10" height="10" rx="2" {}
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
        @for (index, line) in chart.lines.iter().enumerate() {
            @let means: Vec<Option<f64>> = line.bins.iter().map(|bin| bin.map(|bin| bin.mean)).collect();
            @if is_alone {
                path.area.f0 d=(area(&means, &vec![0.0; means.len()], top)) {}
                path.peak d=(steps(&peaks(line), top)) {}
            }
            path.line.{ "s" (index % COLOURS) } d=(steps(&means, top)) {}
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
    let line = |line: &Line, is_alone: bool| {
        let means: Vec<Value> = line.bins.iter().map(|bin| number(bin.map(|bin| bin.mean))).collect();
        let mut object = json!({ "label": escape(&line.label), "mean": means });
        if is_alone {
            object["max"] = line.bins.iter().map(|bin| number(bin.map(|bin| bin.max))).collect();
        }
        object
    };
    let chart = |chart: &Chart| {
        let is_alone = chart.lines.len() == 1 && !chart.stacked;
        let lines: Vec<Value> = chart.lines.iter().map(|of| line(of, is_alone)).collect();
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
    use super::*;

    #[test]
    fn a_gap_is_not_drawn() {
        let values = [Some(0.0), Some(5.0), None, Some(10.0), Some(10.0)];
        assert_eq!(steps(&values, 10.0), "M0 1000H1V500H2M3 0H5");
        let area = area(&values, &[0.0; 5], 10.0);
        assert_eq!(area, "M0 1000H1V500H2V1000H1V1000H0ZM3 0H5V1000H4V1000H3Z");
        assert_eq!(steps(&[None, None], 1.0), "");
    }

    #[test]
    fn numbers_for_the_script_are_short_and_unknown_ones_null() {
        let numbers =
            [Some(1_299_227_608.0), Some(0.123_456), Some(0.0), Some(12.3456), None, Some(f64::NAN)];
        let written: Vec<String> = numbers.map(|value| number(value).to_string()).into();
        assert_eq!(written, ["1299000000", "0.1235", "0", "12.35", "null", "null"]);
    }
}
