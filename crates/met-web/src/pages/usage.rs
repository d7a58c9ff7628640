//! Use over time: totals, a heat map of the week, the series by day, and a table by user or another group.

use maud::{Markup, html};
use met_core::text::escape;
use met_core::units;
use met_core::usage::{By, Every, Period, UsageAsk};
use met_insight::usage::{self, Heat, HeatMap, Line, MachineLine, Report, heat_map, period_name};

use super::layout::{self, Site, Tab};
use super::{Asked, Made};
use crate::api::Visible;
use crate::api::parameters::Given;
use crate::api::usage::{USAGE, ask, report};
use crate::problem::Problem;

/// Lines of the table; the API has all.
const LINES_MAX: usize = 500;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Up to so many days are drawn day by day, up to so many more by week.
const DAYS_MAX_NS: i64 = 100 * 86_400_000_000_000;
const WEEKS_MAX_NS: i64 = 800 * 86_400_000_000_000;
const COST: &str = "Cost";
/// Of the series, in its own units.
const HEIGHT: f64 = 100.0;

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let ask = match Given::of(&asked.search, USAGE).and_then(|given| ask(&given, &site.zone)) {
        Ok(ask) => ask,
        Err(problem) => return Ok(Made::Refused(refused(site, asked, &problem)?)),
    };
    let lines = report(visible, &ask)?;
    // Nodes of a server may count in another one.
    let currency = visible.host.map(|_| visible.currency);
    let system = UsageAsk { by: By::System, ..ask.clone() };
    // Sums of commands are of whole days.
    let zone = UsageAsk { every: Every::HourOfWeek, ..system.clone() };
    let heat = report(visible, &zone)?;
    let series = UsageAsk { every: series_of(ask.to_ns - ask.from_ns), ..system };
    let series_report = report(visible, &series)?;
    let content = html! {
        div.head { h1 { "Usage" } }
        (form(site, asked, &ask))
        (totals(&lines, currency))
        div.pair {
            section aria-labelledby="heat-title" {
                h2 id="heat-title" { "By hour of the week" span.dim { " in " (escape(&ask.zone.name)) } }
                (heat_figure(&heat_map(&heat, &zone)))
            }
            section aria-labelledby="course-title" {
                h2 id="course-title" { "By " (series.every.name()) }
                (series_figure(&series_report, &series))
            }
        }
        section aria-labelledby="table-title" {
            h2 id="table-title" { "By " (ask.by.name()) @if ask.every != Every::All { " and " (ask.every.name()) } }
            (table(&lines, &ask, currency))
            (notes(&lines))
            @if !lines.lines.is_empty() { p.pager { a href=(csv_link(site, asked)) download="usage.csv" { "CSV of this table" } } }
        }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Usage), "Usage", None, &content)))
}

/// The form stays, with what was typed, and says what is wrong with it.
fn refused(site: &Site, asked: &Asked, problem: &Problem) -> Result<Markup, Problem> {
    let usual = ask(&Given::of(&[], USAGE)?, &site.zone)?;
    let content = html! {
        div.head { h1 { "Usage" } }
        (layout::notice("bad", &problem.reason))
        (form(site, asked, &usual))
    };
    Ok(layout::page(site, Some(Tab::Usage), "Usage", None, &content))
}

/// The API has the same parameters; its time zone is UTC unless one is given.
fn csv_link(site: &Site, asked: &Asked) -> String {
    let given = asked.search.iter().filter(|(_, value)| !value.is_empty());
    let pairs = given.map(|(name, value)| (name.as_str(), value.as_str()));
    let zone = site.zone.iana_name().filter(|_| asked.get("zone").is_none()).map(|zone| ("zone", zone));
    let search = layout::search(pairs.chain(zone).chain([("format", "csv")]));
    site.to(&format!("api/v1/usage?{search}"))
}

/// A period of the form in words.
fn every_words(every: &str) -> String {
    if every == "all" { "whole time".to_owned() } else { every.replace('-', " ") }
}

fn series_of(length_ns: i64) -> Every {
    match length_ns {
        length if length <= DAYS_MAX_NS => Every::Day,
        length if length <= WEEKS_MAX_NS => Every::Week,
        _ => Every::Month,
    }
}

fn form(site: &Site, asked: &Asked, ask: &UsageAsk) -> Markup {
    let text = |name: &str, label: &str, example: &str| {
        html! {
            div.field {
                label for={ "f-" (name) } { (label) }
                input id={ "f-" (name) } type="text" name=(name) value=(asked.get(name).unwrap_or("")) placeholder=(example) autocomplete="off" spellcheck="false" autocapitalize="none";
            }
        }
    };
    let choice = |name: &str, label: &str, values: &[&str], chosen: &str, words: fn(&str) -> String| {
        html! {
            div.field {
                label for={ "f-" (name) } { (label) }
                select id={ "f-" (name) } name=(name) {
                    @for value in values { option value=(value) selected[*value == chosen] { (words(value)) } }
                }
            }
        }
    };
    html! {
        search {
            form.filter method="get" action=(site.to("usage")) {
                div.fields {
                    (choice("by", "Sum by", &By::ALL.map(By::name), ask.by.name(), str::to_owned))
                    (choice("every", "Divide by", &Every::ALL.map(Every::name), ask.every.name(), every_words))
                    (text("since", "Since", "30d, 2026-01-14"))
                    (text("until", "Until", "now"))
                    (text("user", "User", "ada"))
                    (text("account", "Account", "physics"))
                    (text("zone", "Time zone", &ask.zone.name))
                    button type="submit" { "Show" }
                }
            }
        }
    }
}

/// The amounts of the whole time. `currency`: of costs, where it is known.
fn totals(report: &Report, currency: Option<&str>) -> Markup {
    let total = &report.total;
    let used = total.core_hours.used.map_or("–".to_owned(), units::hours);
    let mut facts = vec![("Core-hours used", used), ("Jobs started", total.jobs.all.to_string())];
    let mut put = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    put("Core-hours held", total.core_hours.held.map(units::hours));
    put("Used of held", total.core_hours.efficiency.map(units::percent));
    put("GPU-hours used", total.gpu_hours.used.map(units::hours));
    put("GPU-hours held", total.gpu_hours.held.map(units::hours));
    put("GiB-hours held", total.memory_gib_hours.held.map(units::hours));
    put("Energy", total.energy_joules.map(units::watt_hours));
    put("CO\u{2082}e", total.emissions_grams.map(usage::emissions));
    put(COST, total.cost.map(|cost| escape(&units::money_in(cost, currency))));
    if let Some(machine) = &report.machine_total {
        let span = |hours: f64| units::duration(hours * 3600.0);
        put("CPUs busy", machine.busy().map(units::percent));
        put("Core-hours free", machine.free.core_hours.map(units::hours));
        put("GiB-hours free", machine.free.memory_gib_hours.map(units::hours));
        put("GPU-hours free", machine.free.gpu_hours.map(units::hours));
        put("Time measured", Some(span(machine.hours_measured)));
        put("Time down", (machine.hours_down > 0.0).then(|| span(machine.hours_down)));
        put("Time unknown", (machine.hours_unknown > 0.02).then(|| span(machine.hours_unknown)));
    }
    html! { dl.facts { @for (name, value) in facts { div { dt { (name) } dd { strong { (value) } } } } } }
}

/// Rectangles whose titles say what they are; without a script.
fn heat_figure(map: &HeatMap) -> Markup {
    let words = |heat: Heat| match heat {
        Heat::Unknown => "unknown".to_owned(),
        Heat::Known { value, .. } if map.of_machines => format!("{} of the CPUs busy", units::percent(value)),
        Heat::Known { value, .. } => format!("{} cores used by jobs", units::cores(value)),
    };
    let busiest = busiest(map).map_or("nothing known".to_owned(), |(day, hour, heat)| {
        format!("most on {} at {hour:02}:00: {}", DAYS[day], words(heat))
    });
    let legend = if map.of_machines {
        "100% of the CPUs".to_owned()
    } else {
        format!("{} cores", units::cores(map.most))
    };
    html! {
        figure.heat {
            svg viewBox="0 0 516 172" role="img" aria-label={ "Use by hour of the week, " (busiest) } {
                @for hour in (0..24).step_by(3) { text x=(36 + hour * 20) y="12" { (format!("{hour:02}")) } }
                @for (day, cells) in map.days.iter().enumerate() {
                    text x="0" y=(33 + day * 22) { (DAYS[day]) }
                    @for (hour, heat) in cells.iter().enumerate() {
                        @let (x, y) = (36 + hour * 20, 18 + day * 22);
                        @match heat {
                            Heat::Unknown => { rect.unknown x=(x) y=(y) width="18" height="20" { title { (DAYS[day]) " " (format!("{hour:02}:00")) ": unknown" } } }
                            Heat::Known { share, .. } => {
                                rect.none x=(x) y=(y) width="18" height="20" {}
                                rect.hot x=(x) y=(y) width="18" height="20" fill-opacity=(format!("{:.2}", shade(*share))) { title { (DAYS[day]) " " (format!("{hour:02}:00")) ": " (words(*heat)) } }
                            }
                        }
                    }
                }
            }
            figcaption.dim {
                (sentence(&busiest)) ". "
                svg.scale viewBox="0 0 100 12" aria-hidden="true" { @for step in 0..10 { rect.hot x=(step * 10) y="0" width="10" height="12" fill-opacity=(format!("{:.2}", shade(f64::from(step) / 9.0))) {} } }
                " 0 to " (legend) "; dashed: unknown"
            }
        }
    }
}

/// A little is visible.
fn shade(share: f64) -> f64 {
    if share > 0.0 { 0.08 + 0.92 * share.clamp(0.0, 1.0) } else { 0.0 }
}

fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn busiest(map: &HeatMap) -> Option<(usize, usize, Heat)> {
    let mut best: Option<(usize, usize, Heat, f64)> = None;
    for (day, cells) in map.days.iter().enumerate() {
        for (hour, heat) in cells.iter().enumerate() {
            if let Heat::Known { share, .. } = heat
                && best.is_none_or(|(.., most)| *share > most)
            {
                best = Some((day, hour, *heat, *share));
            }
        }
    }
    best.map(|(day, hour, heat, _)| (day, hour, heat))
}

/// Bars of core-hours: used, and what was held beyond that.
fn series_figure(report: &Report, ask: &UsageAsk) -> Markup {
    let line = |place: usize| report.lines.iter().find(|line| line.period == place);
    let machine = |place: usize| report.machines.iter().find(|line| line.period == place);
    let heights = report.lines.iter().flat_map(|line| [line.core_hours.used, line.core_hours.held]);
    let most = heights.flatten().fold(0.0, f64::max);
    if most <= 0.0 {
        let is_known = report.lines.iter().any(|line| line.core_hours.used.is_some());
        let reason = match (report.lines.is_empty(), is_known) {
            (true, _) => "No jobs in this time.",
            (_, true) => "No CPU time was used.",
            (_, false) => "The CPU time of the jobs is unknown.",
        };
        return html! { p.empty { (reason) } };
    }
    let count = report.periods.len();
    let named = |period: Option<&Period>| {
        period.map(|period| period_name(period, ask.every, &ask.zone)).unwrap_or_default()
    };
    let (from, to) = (named(report.periods.first()), named(report.periods.last()));
    let (top, half) = (units::hours(most), units::hours(most / 2.0));
    let middle = named(report.periods.get(count / 2).filter(|_| count > 2));
    html! {
        figure.series {
            div.plot {
                div.y aria-hidden="true" { span { (top) } @if half != top { span { (half) } } span { "0" } }
                div.canvas {
                    svg viewBox={ "0 0 " (count * 10) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label={ "Core-hours by " (ask.every.name()) ", at most " (units::hours(most)) } {
                        @for (place, period) in report.periods.iter().enumerate() {
                            @let title = period_words(&named(Some(period)), line(place), machine(place));
                            g {
                                title { (title) }
                                rect.gap x=(place * 10) y="0" width="10" height=(HEIGHT) {}
                                @if let Some(line) = line(place) {
                                    @if let Some(held) = line.core_hours.held { (bar("held", place, held / most)) }
                                    @if let Some(used) = line.core_hours.used { (bar("used", place, used / most)) }
                                }
                            }
                        }
                    }
                }
                div.x aria-hidden="true" { span { (from) } @if !middle.is_empty() { span { (middle) } } @if count > 1 { span { (to) } } }
            }
            figcaption.dim { "Core-hours: " span.square.run {} " used, " span.square.ok {} " held; at most " (units::hours(most)) " in a " (ask.every.name()) }
        }
    }
}

fn period_words(name: &str, line: Option<&Line>, machine: Option<&MachineLine>) -> String {
    let mut words = match line.map_or(Some(0.0), |line| line.core_hours.used) {
        Some(used) => format!("{name}: {} core-hours used", units::hours(used)),
        None => format!("{name}: CPU time unknown"),
    };
    if let Some(held) = line.and_then(|line| line.core_hours.held) {
        words += &format!(", {} held", units::hours(held));
    }
    if let Some(machine) = machine {
        if let Some(busy) = machine.busy() {
            words += &format!(", CPUs {} busy", units::percent(busy));
        }
        if machine.hours_unknown > 0.02 {
            words += &format!(", {} unknown", units::duration(machine.hours_unknown * 3600.0));
        }
    }
    words
}

fn bar(kind: &str, place: usize, share: f64) -> Markup {
    let height = (share.clamp(0.0, 1.0) * HEIGHT * 10.0).round() / 10.0;
    html! { rect.(kind) x=(place * 10 + 1) y=(HEIGHT - height) width="8" height=(height) {} }
}

type CellOf = fn(&Line) -> Option<String>;
/// Columns of figures with what they show of a line.
const FIGURES: [(&str, CellOf); 11] = [
    ("Jobs", |line| Some(line.jobs.all.to_string())),
    ("Core-hours", |line| line.core_hours.used.map(units::hours)),
    ("Held", |line| line.core_hours.held.map(units::hours)),
    ("Used of held", |line| line.core_hours.efficiency.map(units::percent)),
    ("GPU-hours", |line| line.gpu_hours.used.map(units::hours)),
    ("GPUs held", |line| line.gpu_hours.held.map(units::hours)),
    ("GiB-hours", |line| line.memory_gib_hours.used.map(units::hours)),
    ("GiB held", |line| line.memory_gib_hours.held.map(units::hours)),
    ("Energy", |line| line.energy_joules.map(units::watt_hours)),
    ("CO\u{2082}e", |line| line.emissions_grams.map(usage::emissions)),
    (COST, |line| line.cost.map(units::money)),
];

fn table(report: &Report, ask: &UsageAsk, currency: Option<&str>) -> Markup {
    let mut lines: Vec<&Line> = report.lines.iter().collect();
    if lines.is_empty() {
        return html! { p.empty { "No jobs in this time." } };
    }
    if ask.every == Every::All {
        lines.sort_by(|one, other| one.by_use(other));
    } else {
        lines.sort_by(|one, other| (one.period, &one.name).cmp(&(other.period, &other.name)));
    }
    let known = FIGURES.iter().filter(|(_, cell)| lines.iter().any(|line| cell(line).is_some()));
    let known: Vec<_> = known.map(|(head, cell)| (headed(head, currency), cell)).collect();
    let left = lines.len().saturating_sub(LINES_MAX);
    html! {
        div.scroll tabindex="0" role="group" aria-label="Usage" {
            table.list role="table" {
                thead role="rowgroup" { tr role="row" {
                    @if ask.every != Every::All { th.t scope="col" role="columnheader" { "Period" } }
                    th.t scope="col" role="columnheader" { (heading(ask.by)) }
                    @for (head, _) in &known { th.n scope="col" role="columnheader" { (head) } }
                } }
                tbody role="rowgroup" {
                    @for line in lines.iter().take(LINES_MAX) {
                        tr role="row" {
                            @if ask.every != Every::All {
                                td.t role="cell" data-head="Period" { @if let Some(period) = report.periods.get(line.period) { (period_name(period, ask.every, &ask.zone)) } }
                            }
                            td.t.c-name role="cell" data-head=(heading(ask.by)) { (name(line, ask.by)) }
                            @for (head, cell) in &known { td.n role="cell" data-head=(head) { @if let Some(text) = cell(line) { (text) } @else { span.unknown { "–" } } } }
                        }
                    }
                }
            }
        }
        @if left > 0 { p.dim { (left) " more lines; the API and CSV have all of them" } }
    }
}

fn headed(head: &str, currency: Option<&str>) -> String {
    match currency {
        Some(currency) if head == COST => format!("{head} {}", escape(currency)),
        _ => head.to_owned(),
    }
}

fn heading(by: By) -> &'static str {
    match by {
        By::System => "System",
        By::User => "User",
        By::Account => "Account",
        By::Partition => "Partition",
        By::Node => "Node",
        By::Command => "Command",
    }
}

fn name(line: &Line, by: By) -> String {
    match (by, line.name.as_deref()) {
        (By::System, _) => "all".to_owned(),
        (_, Some(name)) => escape(name),
        (_, None) => "(unknown)".to_owned(),
    }
}

fn notes(report: &Report) -> Markup {
    let total = &report.total;
    html! {
        @if let Some(even) = total.even_share().filter(|&even| even > 0.0) {
            p.dim { (units::percent(even)) " of the CPU time has no samples and is spread evenly over the time of its job." }
        }
        @for unknown in total.unknown() { p.dim { (sentence(&unknown)) "." } }
        @if report.pending > 0 { p.dim { (units::counted(report.pending as usize, "job")) " not summed yet." } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_have_their_currency_where_it_is_known() {
        assert_eq!(headed(COST, Some("CHF")), "Cost CHF");
        assert_eq!(
            (headed(COST, None), headed("Energy", Some("CHF"))),
            (COST.to_owned(), "Energy".to_owned())
        );
    }
}
