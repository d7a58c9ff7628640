//! One job: what it is, what it was given and used, how that went over time, and how well each figure is known.

use std::borrow::Cow;

use jiff::tz::TimeZone;
use maud::{Markup, html};
use met_core::job::Record;
use met_core::series::{SPARSE_MS, Series};
use met_core::text::{command_line, escape};
use met_core::{JOB, Table, event, gpu, units};
use met_insight::answers::{Answers, GPUS_MAX};
use met_insight::report::{
    self, Detail, Fact, FactValue, Heading, Machine, Meter, Report, Section, ShareLine, words,
};
use met_insight::resample;
use met_query::jobs::Meant;

use super::annotation::Typed;
use super::charts::{self, Chart, Span};
use super::job_answers;
use super::layout::{self, Site, Tab, amount};
use super::{Asked, Made, annotation, job_tables, plot};
use crate::api::Visible;
use crate::api::answers::known_beside;
use crate::api::compare::earlier;
use crate::problem::Problem;
use crate::samples::{self, SAMPLED_EVERY};

/// Steps of a chart on a page, and in a file of its own.
const BINS: usize = 360;
const BINS_IN_FILE: usize = 2_000;
const EVENTS_MAX: usize = 8;
/// A running job is looked at again so often.
const EVERY_S: u32 = 5;

/// A job and its series as they are drawn.
pub struct Shown<'a> {
    pub record: &'a Record,
    pub machine: Machine,
    /// A step has no series of its own.
    pub charts: Vec<Chart>,
    pub span: Option<Span>,
    /// What happened and what to do; samples and earlier runs say nothing of a step.
    pub answers: Option<Answers>,
}

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    made(site, visible, asked, None)
}

/// The page with a form that was refused, with what was typed. It is not fetched again: that would lose it.
pub(super) fn page_again(
    site: &Site,
    visible: &Visible<'_>,
    name: String,
    typed: &Typed,
) -> Result<Made, Problem> {
    made(site, visible, &Asked { name, search: Vec::new() }, Some(typed))
}

fn made(site: &Site, visible: &Visible<'_>, asked: &Asked, typed: Option<&Typed>) -> Result<Made, Problem> {
    let (record, is_whole) = found(visible, asked)?;
    let window = Window::of(asked)?;
    let shown = shown(visible, &record, is_whole, window, BINS, site.now_ns)?;
    let others = job_tables::neighbours(site, visible, &record)?;
    let every_s = (record.state.is_live() && typed.is_none()).then_some(EVERY_S);
    let form = is_whole && visible.viewer.may_annotate(&record);
    let output = visible.output.filter(|_| is_whole).map(|output| job_tables::output(&output.tails(&record)));
    let beside = Beside { others, form: form.then(|| annotation::form(site, &record, typed)), output };
    let content = content(site, &shown, window, beside);
    Ok(Made::Page(layout::page(site, Some(Tab::Jobs), &title(&record), every_s, &content)))
}

/// The same as one file.
pub(super) fn download(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let (record, is_whole) = found(visible, asked)?;
    let shown = shown(visible, &record, is_whole, Window::default(), BINS_IN_FILE, site.now_ns)?;
    let name: String =
        record.label().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let content = file(&shown, site.now_ns, site.zone.clone());
    Ok(Made::File { name: format!("job-{name}.html"), content })
}

/// A page that needs nothing else: style and script are in it, and it loads nothing.
pub fn file(shown: &Shown<'_>, now_ns: i64, zone: TimeZone) -> Markup {
    let site = Site {
        base: String::new(),
        who: String::new(),
        csrf: None,
        has_logout: false,
        has_stream: false,
        is_file: true,
        now_ns,
        zone,
    };
    let content = content(&site, shown, Window::default(), Beside::default());
    layout::page(&site, None, &title(shown.record), None, &content)
}

/// The charts of a job for [`file`]; `series` reads the samples of a table and part.
pub fn charts_of(
    record: &Record,
    now_ns: i64,
    mut series: impl FnMut(&'static Table, &str) -> anyhow::Result<Series>,
) -> anyhow::Result<(Vec<Chart>, Option<Span>)> {
    charts_between(record, Window::default(), BINS_IN_FILE, now_ns, &mut series)
}

fn found(visible: &Visible<'_>, asked: &Asked) -> Result<(Record, bool), Problem> {
    Ok(match visible.find(&asked.name)? {
        Meant::Job(record) => (record, true),
        Meant::Step(record) => (record, false),
    })
}

fn title(record: &Record) -> String {
    format!("{} · {}", record.name, record.label())
}

/// The part of the time that was asked for.
#[derive(Clone, Copy, Default)]
struct Window {
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

impl Window {
    fn of(asked: &Asked) -> Result<Window, Problem> {
        let one = |name: &str| {
            let time = asked.get(name).map(|text| {
                let wrong = || Problem::asked(format!("{name}: {text:?} is not a time in unix milliseconds"));
                text.parse::<i64>().ok().filter(|ms| (0..1 << 43).contains(ms)).ok_or_else(wrong)
            });
            time.transpose()
        };
        Ok(Window { from_ms: one("from")?, to_ms: one("to")? })
    }

    /// The time to read for it. Rates need a sample before it, and those of a thinned series are far apart.
    fn read_ms(self, now_ms: i64) -> (i64, i64) {
        let length_ms = self.from_ms.map_or(0, |from_ms| self.to_ms.unwrap_or(now_ms) - from_ms);
        let around_ms = length_ms.max(SPARSE_MS);
        let begin_ms = self.from_ms.map_or(i64::MIN, |from_ms| from_ms - around_ms);
        (begin_ms, self.to_ms.map_or(i64::MAX, |to_ms| to_ms + around_ms))
    }

    fn is_zoomed(self) -> bool {
        self.from_ms.is_some() || self.to_ms.is_some()
    }
}

fn shown<'a>(
    visible: &Visible<'_>,
    record: &'a Record,
    is_whole: bool,
    window: Window,
    bins: usize,
    now_ns: i64,
) -> Result<Shown<'a>, Problem> {
    let machine = visible.machines()?.of_job(record);
    if !is_whole {
        return Ok(Shown { record, machine, charts: Vec::new(), span: None, answers: None });
    }
    let earlier = earlier(visible, record)?;
    let mut known = known_beside(visible, record, machine, &earlier, now_ns)?;
    let answers = known.answers(record, &earlier, now_ns);
    let window_ms = window.read_ms(now_ns / 1_000_000);
    let mut drawn = |table: &'static Table, part: &str| match known.take(table, part) {
        Some(series) if !window.is_zoomed() => Ok(series),
        _ => samples::of_job(visible, record, table, part, window_ms),
    };
    let (charts, span) =
        charts_between(record, window, bins, now_ns, &mut drawn).map_err(|error| Problem::failed(&error))?;
    Ok(Shown { record, machine, charts, span, answers: Some(answers) })
}

fn charts_between(
    record: &Record,
    window: Window,
    bins: usize,
    now_ns: i64,
    read: &mut dyn FnMut(&'static Table, &str) -> anyhow::Result<Series>,
) -> anyhow::Result<(Vec<Chart>, Option<Span>)> {
    let series = resample::until(Cow::Owned(read(&JOB, "")?), record.end_ns.map(|end_ns| end_ns / 1_000_000));
    let start_ms = record.start_ns.map(|start_ns| start_ns / 1_000_000);
    let gaps = |series: &Series| resample::gaps(series, SAMPLED_EVERY, start_ms);
    let Some(span) = span(record, &series, window, bins, now_ns) else { return Ok((Vec::new(), None)) };
    let mut drawn = charts::job(record, &series, span, gaps(&series));
    drop(series);
    // One series is held at a time. A daemon or server of an earlier version has none by node.
    let by_node = charts::by_node(record, span, gaps, |node| read(&JOB, node));
    if let Ok(Some(by_node)) = by_node {
        drawn.insert(drawn.len().min(1), by_node);
    }
    let gpus = &record.gpus[..record.gpus.len().min(GPUS_MAX)];
    drawn.extend(charts::gpus(gpus, span, gaps, |gpu| read(&gpu::device::TABLE, &gpu.uuid))?);
    for (index, of) in record.events.iter().take(EVENTS_MAX).enumerate() {
        // An older daemon has no such series.
        let series = read(&event::TABLE, &of.name).unwrap_or_else(|_| Series::new(&event::TABLE));
        drawn.extend(charts::event(index, &of.name, &series, span, gaps(&series)));
    }
    Ok((drawn, Some(span)))
}

/// What is drawn: the samples, or the part of their time that was asked for. Fewer samples than steps need no more
/// steps than there are.
fn span(record: &Record, series: &Series, window: Window, bins: usize, now_ns: i64) -> Option<Span> {
    /// Two samples are a flat line.
    const SAMPLES_MIN: usize = 3;
    if series.len() < SAMPLES_MIN {
        return None;
    }
    let (&first_ms, &last_ms) = (series.times_ms.first()?, series.times_ms.last()?);
    let last_ms = if record.state.is_live() { last_ms.max(now_ns / 1_000_000 - 2_000) } else { last_ms };
    let begin_ms = window.from_ms.unwrap_or(first_ms).clamp(first_ms, last_ms);
    let end_ms = window.to_ms.unwrap_or(last_ms).clamp(begin_ms, last_ms);
    let inside = series.times_ms.iter().filter(|ms| (begin_ms..=end_ms).contains(ms)).count();
    (end_ms > begin_ms).then(|| Span { begin_ms, end_ms, bins: bins.min(inside.max(40)) })
}

/// What a page has and a file has not.
#[derive(Default)]
struct Beside {
    others: Option<Markup>,
    form: Option<Markup>,
    output: Option<Markup>,
}

fn content(site: &Site, shown: &Shown<'_>, window: Window, beside: Beside) -> Markup {
    let record = shown.record;
    let report = report::report(record, shown.machine, site.now_ns);
    html! {
        (head(site, record, &report))
        div.live id="job-body" data-live {
            @if let Some(answers) = &shown.answers { (job_answers::verdict(answers)) }
            (facts(site, &report.facts))
            (annotation(site, record))
            (meters(&report.meters))
            (shares(&report.shares))
            @if let Some(answers) = &shown.answers { (job_answers::section(answers)) }
        }
        @if let Some(form) = beside.form { (form) }
        (timelines(site, shown, window))
        section id="figures" data-live aria-labelledby="figures-title" {
            h2 id="figures-title" { "Figures" }
            div.cards { @for section in &report.sections { (self::section(site, section)) } }
        }
        (job_tables::parts(&report.parts))
        (job_tables::stragglers(record))
        (job_tables::processes(site, record))
        @if let Some(output) = beside.output { (output) }
        @if let Some(others) = beside.others { (others) }
        (notes(&report))
    }
}

fn head(site: &Site, record: &Record, report: &Report) -> Markup {
    let here = site.job_path(&record.label());
    html! {
        div.head {
            div {
                p.over { "Job " (escape(&report.id)) }
                h1 { (escape(&report.name)) }
            }
            p.outcome id="outcome" data-live aria-live="polite" {
                (layout::state(report.state))
                @let state = report.state.name().replace('_', " ");
                @let more = report.outcome.strip_prefix(&state).unwrap_or(&report.outcome).trim_start_matches(", ");
                @if !more.is_empty() { span { (escape(more)) } }
            }
            @if !site.is_file {
                ul.actions {
                    li { a href=(site.to(&format!("compare?{}", layout::search([("jobs", record.label().as_str())])))) { "Compare" } }
                    li { a href={ (here) "/scale" } { "Scaling" } }
                    li { a href={ (here) "/job.html" } download { "HTML file" } }
                    li { a href=(site.to(&format!("api/v1/jobs/{}", layout::percent_encoded(&record.label())))) { "JSON" } }
                    li {
                        a href=(site.to(&format!("api/v1/jobs/{}/series?format=csv", layout::percent_encoded(&record.label())))) { "Samples as CSV" }
                    }
                }
            }
        }
    }
}

fn facts(site: &Site, facts: &[Fact]) -> Markup {
    html! {
        dl.facts {
            @for fact in facts {
                div.{ "fact-" (fact.label.replace(' ', "-")) } {
                    dt { (fact.label) }
                    dd { (fact_value(site, fact)) }
                }
            }
        }
    }
}

/// What its owner says of it.
fn annotation(site: &Site, record: &Record) -> Markup {
    let said = &record.annotation;
    html! {
        @if !said.tags.is_empty() {
            ul.tags aria-label="Tags" {
                @for tag in &said.tags {
                    li {
                        @if site.is_file { (escape(tag)) }
                        @else { a href=(site.to(&format!("jobs?{}", layout::search([("tag", tag.as_str())])))) { (escape(tag)) } }
                    }
                }
            }
        }
        @if let Some(note) = &said.note { blockquote.note { @for line in note.lines() { p { (escape(line)) } } } }
    }
}

fn fact_value(site: &Site, fact: &Fact) -> Markup {
    html! {
        @match &fact.value {
            FactValue::Text(text) => (escape(text)),
            FactValue::Command(words) => code { (command_line(words)) },
            FactValue::Times(start_ns, end_ns) => (site.time_span(*start_ns, *end_ns)),
            FactValue::Amount(value) => (amount(value)),
            FactValue::Change(words, by_ns) => { (words) " by " (site.time(*by_ns)) },
        }
    }
}

fn meters(meters: &[Meter]) -> Markup {
    html! {
        @if !meters.is_empty() {
            ul.meters aria-label="Used of what there is" {
                @for meter in meters {
                    li {
                        span.label { (meter.label) }
                        (layout::bar(meter.share, "good"))
                        span.share { (units::percent(meter.share)) }
                        span.dim { (words::meter(meter)) }
                    }
                }
            }
        }
    }
}

fn shares(shares: &[ShareLine]) -> Markup {
    let optional = |value: &Option<report::Amount>| html! { @if let Some(value) = value { (amount(value)) } @else { "–" } };
    html! {
        @if !shares.is_empty() {
            div.scroll tabindex="0" role="group" aria-label="Requested and used" {
                table.shares {
                    caption { "Requested and used" }
                    thead { tr {
                        th scope="col" { "Resource" } th.n scope="col" { "Requested" }
                        th.n scope="col" { "Allocated" } th.n scope="col" { "Used" } th scope="col" { "Efficiency" }
                    } }
                    tbody {
                        @for line in shares {
                            tr {
                                th scope="row" { (line.label) }
                                td.n { (optional(&line.requested)) }
                                td.n { (optional(&line.allocated)) }
                                td.n { (optional(&line.used)) }
                                td.eff {
                                    @if let Some(share) = line.efficiency {
                                        (layout::bar(share, share_kind(line.label, share)))
                                        span.share { (units::percent(share)) }
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

/// All of the memory or the time is close to a limit; all of the CPUs is what they are for.
fn share_kind(label: &str, share: f64) -> &'static str {
    match label {
        "memory" | "time" => layout::closeness_kind(share),
        _ => layout::efficiency_kind(share),
    }
}

fn timelines(site: &Site, shown: &Shown<'_>, window: Window) -> Markup {
    let Some(span) = shown.span.filter(|_| !shown.charts.is_empty()) else {
        return html! {};
    };
    html! {
        section.timelines id="timelines" aria-labelledby="timelines-title" {
            div.bar-line {
                h2 id="timelines-title" { "Over time" }
                @if !site.is_file { (zoom(site, shown.record, span, window)) }
            }
            div.charts id="charts" data-live {
                @for chart in &shown.charts { (plot::figure(chart, span, &site.zone)) }
            }
            div id="chart-source" data-live { (plot::data(&shown.charts, span)) }
        }
    }
}

/// Links that show less or more of the time: they work without the script and by keyboard.
fn zoom(site: &Site, record: &Record, span: Span, window: Window) -> Markup {
    let here = site.job_path(&record.label());
    let (length, quarter) = (span.end_ms - span.begin_ms, (span.end_ms - span.begin_ms) / 4);
    let to = |from: i64, to: i64| {
        let (from, to) = (from.max(0).to_string(), to.to_string());
        format!("{here}?{}#timelines", layout::search([("from", from.as_str()), ("to", to.as_str())]))
    };
    html! {
        nav.zoom id="zoom" data-live aria-label="Time shown" {
            @if length > 4_000 { a href=(to(span.begin_ms + quarter, span.end_ms - quarter)) data-zoom { "Zoom in" } }
            @if window.is_zoomed() {
                a href=(to(span.begin_ms - length / 2, span.end_ms + length / 2)) data-zoom { "Zoom out" }
                a href=(to(span.begin_ms - length / 2, span.end_ms - length / 2)) data-zoom { "Earlier" }
                a href=(to(span.begin_ms + length / 2, span.end_ms + length / 2)) data-zoom { "Later" }
                a href={ (here) "#timelines" } data-zoom { "All" }
            }
            span.hint { "drag in a chart to zoom" }
        }
    }
}

fn section(site: &Site, section: &Section) -> Markup {
    html! {
        section.card {
            h3 {
                @match &section.heading {
                    Some(heading) => (self::heading(site, heading)),
                    None => (section.title),
                }
            }
            dl {
                @for line in &section.lines {
                    dt { (line.label) }
                    dd {
                        (amount(&line.amount))
                        @if !line.details.is_empty() { span.dim { (details(&line.details)) } }
                    }
                }
            }
        }
    }
}

fn heading(site: &Site, heading: &Heading) -> Markup {
    html! {
        (escape(&heading.label))
        span.dim {
            (escape(&heading.words.join(", ")))
            @if let Some((what, since_ns)) = heading.since { ", " (what) " " (site.time(since_ns)) }
        }
    }
}

fn details(details: &[Detail]) -> String {
    details.iter().map(|detail| escape(&words::detail(detail))).collect::<Vec<_>>().join(" · ")
}

/// What a reader must know: remarks, then what the signs mean.
fn notes(report: &Report) -> Markup {
    let signs = words::legend(report);
    html! {
        @if !report.notes.is_empty() || !signs.is_empty() {
            section.notes id="notes" data-live aria-labelledby="notes-title" {
                h2 id="notes-title" { "Data quality and notes" }
                @if !report.notes.is_empty() { ul { @for note in &report.notes { li { (layout::said(note)) } } } }
                @if !signs.is_empty() { p.dim { "Signs: " (signs.join(" · ")) } }
            }
        }
    }
}
