//! Two to eight jobs side by side, their charts aligned at their start. Earlier runs of the first are offered.

use std::borrow::Cow;

use maud::{Markup, html};
use met_core::job::Record;
use met_core::job_table as column;
use met_core::text::{command_line, escape};
use met_core::{JOB, units};
use met_insight::answers::{compared, words};
use met_insight::comparison::{self, EARLIER, JOBS_MAX, Row};
use met_insight::resample;

use super::charts::{self, Chart, Compared, Unit};
use super::layout::{self, Site, Tab};
use super::{Asked, Made, plot};
use crate::api::Visible;
use crate::api::compare::{earlier, named};
use crate::api::parameters::{Given, Kind, Parameter, parameter};
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

const BINS: usize = 240;
/// Samples of one job that are held.
const SAMPLES_KEPT: usize = 5_000;
const JOBS: &[Parameter] = &[parameter("jobs", Kind::List, "jobs to compare")];

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let given = Given::of(&asked.search, JOBS)?;
    let names = given.list("jobs").unwrap_or_default();
    let mut records = named(visible, "jobs", names)?;
    let runs = match records.first() {
        Some(first) => earlier(visible, first)?,
        None => Vec::new(),
    };
    if records.len() == 1 {
        records.extend(runs.iter().take(EARLIER).cloned());
    }
    let content = html! {
        div.head { h1 { "Compare" } }
        (form(site, &records, &runs))
        @if records.len() >= 2 { (body(site, visible, &records, &runs)?) }
        @else if let [one] = records.as_slice() {
            p.empty { "Job " (escape(&one.label())) " has no earlier run. Name another job to compare it with." }
        }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Jobs), "Compare", None, &content)))
}

/// Works without a script: every choice is in the address.
fn form(site: &Site, records: &[Record], runs: &[Record]) -> Markup {
    let is_chosen = |run: &Record| records.iter().any(|record| record.key == run.key);
    let first = records.first();
    let others: Vec<String> = records
        .iter()
        .skip(1)
        .filter(|record| runs.iter().take(JOBS_MAX - 1).all(|run| run.key != record.key))
        .map(Record::label)
        .collect();
    html! {
        form.filter method="get" action=(site.to("compare")) {
            div.fields {
                @if let Some(first) = first {
                    div.field {
                        label for="f-first" { "Job" }
                        input id="f-first" type="text" name="jobs" value=(first.label()) autocomplete="off" spellcheck="false" autocapitalize="none";
                    }
                }
                div.field {
                    label for="f-others" { @if first.is_some() { "Other jobs" } @else { "Jobs, two to eight" } }
                    input id="f-others" type="text" name="jobs" value=(others.join(", ")) placeholder="12, 15" autocomplete="off" spellcheck="false" autocapitalize="none";
                }
                button type="submit" { "Compare" }
            }
            @if !runs.is_empty() {
                fieldset.columns {
                    legend { "Earlier runs" }
                    @for run in runs.iter().take(JOBS_MAX - 1) {
                        label {
                            input type="checkbox" name="jobs" value=(run.label()) checked[is_chosen(run)];
                            (escape(&run.label()))
                            @if let Some(start_ns) = run.start_ns { " " span.dim { (site.time(start_ns)) } }
                        }
                    }
                }
            }
        }
    }
}

fn body(site: &Site, visible: &Visible<'_>, records: &[Record], runs: &[Record]) -> Result<Markup, Problem> {
    let rows = comparison::rows(records.iter(), site.now_ns);
    let runs: Vec<&Record> = runs.iter().collect();
    let differences = words::differences(&compared::differences(&records[0], &runs, site.now_ns));
    let (charts, span_ms) = drawn(visible, records)?;
    Ok(html! {
        (table(site, records, &rows))
        @let signs = comparison::legend(&rows);
        @if !signs.is_empty() { p.dim { (signs.join(" · ")) } }
        @if !differences.is_empty() {
            p { "Job " (escape(&records[0].label())) " and its earlier runs: " (escape(&differences.join(" · "))) "." }
        }
        @if !charts.is_empty() {
            section.timelines aria-labelledby="timelines-title" {
                h2 id="timelines-title" { "Since their start" }
                div.charts { @for chart in &charts { (plot::figure_since_start(chart, span_ms)) } }
            }
        }
    })
}

fn table(site: &Site, records: &[Record], rows: &[Row]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Figures" {
            table.shares {
                caption { "Figures, × of the first job" }
                thead { tr {
                    th scope="col" { "Figure" }
                    @for record in records {
                        th.n scope="col" { a href=(site.job_path(&record.label())) { "Job " (escape(&record.label())) } }
                    }
                } }
                tbody {
                    tr {
                        th scope="row" { "name" }
                        @for record in records { td.n title=(command_line(&record.command)) { (escape(&record.name)) } }
                    }
                    tr {
                        th scope="row" { "state" }
                        @for record in records { td.n { (layout::state(record.state)) } }
                    }
                    tr {
                        th scope="row" { "start" }
                        @for record in records { td.n { @if let Some(start_ns) = record.start_ns { (site.time(start_ns)) } @else { "–" } } }
                    }
                    @for row in rows {
                        tr {
                            th scope="row" { (row.label) }
                            @for index in 0..records.len() {
                                td.n {
                                    @if let Some((value, ratio)) = row.words(index) {
                                        (value)
                                        @if let Some(ratio) = ratio { " " span.dim { (units::times(ratio)) } }
                                    } @else { "–" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A line for each job in every chart; all as long as the longest.
fn drawn(visible: &Visible<'_>, records: &[Record]) -> Result<(Vec<Chart>, i64), Problem> {
    let mut jobs: Vec<Compared<'_>> = Vec::new();
    for (place, record) in records.iter().enumerate() {
        let series = samples::whole(&JOB, (i64::MIN, i64::MAX), SAMPLES_KEPT, |after_ms| {
            visible.series(&record.key, after_ms)
        })?;
        let end_ms = record.end_ns.map(|end_ns| end_ns / 1_000_000);
        let series = resample::until(Cow::Owned(series), end_ms).into_owned();
        let begin_ms = record.start_ns.map(|ns| ns / 1_000_000).or(series.times_ms.first().copied());
        if let Some(begin_ms) = begin_ms.filter(|_| !series.is_empty()) {
            let gaps = resample::gaps(&series, SAMPLED_EVERY, Some(begin_ms));
            jobs.push(Compared { place, record, series, begin_ms, gaps });
        }
    }
    let long = |job: &Compared<'_>| Some(job.series.times_ms.last()? - job.begin_ms);
    let Some(span_ms) = jobs.iter().filter_map(long).max().filter(|&span_ms| span_ms > 0) else {
        return Ok((Vec::new(), 0));
    };
    let span_ms = plot::round_span_ms(span_ms);
    let kinds = [
        ("cpu", "CPU cores", Unit::Cores, column::CPU),
        ("memory", "Memory needed", Unit::Bytes, column::MEMORY_NEEDED),
        ("gpu", "GPU use, in GPUs", Unit::Cores, column::GPU_UTILIZATION),
        ("read", "Read", Unit::BytesPerSecond, column::READ),
        ("written", "Written", Unit::BytesPerSecond, column::WRITTEN),
        ("power", "Power", Unit::Watts, column::ENERGY),
    ];
    let drawn = kinds.into_iter().filter_map(|kind| charts::side_by_side(kind, &jobs, (span_ms, BINS)));
    Ok((drawn.collect(), span_ms))
}
