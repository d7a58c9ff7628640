//! The list of jobs: filters, order, columns and pages, all of them in the address.

use maud::{Markup, html};
use met_core::job::{Record, State};
use met_core::managers::MANAGERS;
use met_core::text::escape;
use met_query::viewer::Viewer;

use super::layout::{self, Site, Tab};
use super::list_columns::{COLUMNS, ListColumn, USUAL};
use super::{Asked, Made};
use crate::api::Visible;
use crate::api::parameters::{self, Given};
use crate::problem::Problem;

const COMPARE_FORM: &str = "compare";
/// Own jobs above those of all.
const OWN_SHOWN: &str = "5";
/// How often a list with running jobs is fetched again.
const EVERY_S: u32 = 10;

/// A field of the form: its name in the address, its label, an example, and how it is typed.
struct Field {
    name: &'static str,
    label: &'static str,
    example: &'static str,
    kind: &'static str,
}

const fn field(name: &'static str, label: &'static str, example: &'static str, kind: &'static str) -> Field {
    Field { name, label, example, kind }
}

/// What is asked for most.
static FIRST: &[Field] = &[
    field("name", "Name", "train", "search"),
    field("user", "User", "ada", "search"),
    field("since", "Since", "7d, 2026-01-14", "text"),
];

static FURTHER: &[Field] = &[
    field("until", "Until", "2026-01-14", "text"),
    field("account", "Account", "physics", "text"),
    field("command", "Command contains", "train.py", "text"),
    field("manager", "Manager", MANAGERS[0].name, "text"),
    field("partition", "Partition", "gpu", "text"),
    field("node", "Node", "n1", "text"),
    field("uid", "Uid", "1000", "text"),
    field("pid", "Process", "4711", "text"),
    field("min_duration", "Lasted at least", "10m", "text"),
    field("max_efficiency", "CPU efficiency at most", "0.25", "text"),
    field("min_energy", "Energy at least, in J", "3600000", "text"),
    field("tag", "Tag", "paper", "text"),
];

/// Links to what is asked for all the time.
const QUICK: [(&str, &str); 4] = [
    ("All", ""),
    ("Running", "running"),
    ("Waiting", "pending"),
    ("Failed", "failed,timeout,out_of_memory,lost"),
];

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let read = Given::of(&asked.search, parameters::JOBS)
        .and_then(|given| parameters::jobs_filter(&given).map(|filter| (given, filter)));
    let (given, filter) = match read {
        Ok(read) => read,
        Err(problem) => return Ok(Made::Refused(refused(site, visible, asked, &problem))),
    };
    let (page, warnings) = visible.jobs(&filter)?;
    let mut columns = chosen(given.list("columns"))?;
    if given.list("columns").is_none() && page.jobs.iter().all(|record| record.gpus.is_empty()) {
        columns.retain(|column| !column.needs_gpus);
    }
    let next = page.next.as_ref().and_then(parameters::encode);
    let live = page.jobs.iter().any(|record| record.state.is_live());
    let has_running_first =
        filter.page.after.as_ref().is_some_and(|after| filter.order().has_unsettled(after))
            && filter.page.sort.is_some_and(|sort| sort.column.changes());
    let own = own_first(site, visible, asked, &columns, &page.jobs)?;
    let content = html! {
        (head(site, visible, asked))
        (form(site, asked, &columns))
        div id="jobs" data-live {
            @if let Some(own) = &own { (own) h2 { "All jobs" } }
            @if has_running_first {
                p.dim { "Running jobs that were not on the first page come first here, newest first: their values change." }
            }
            @for warning in &warnings { (layout::notice("warn", warning)) }
            @if page.jobs.is_empty() {
                p.empty { "No jobs match." @if !asked.search.is_empty() { " " a href=(site.to("jobs")) { "Show all" } } }
            } @else {
                (table(site, asked, &columns, &page.jobs))
            }
            (pager(site, asked, &columns, page.jobs.len(), next.as_deref()))
        }
        (compare_form(site))
    };
    let every_s = (live || asked.get("after").is_none()).then_some(EVERY_S);
    Ok(Made::Page(layout::page(site, Some(Tab::Jobs), "Jobs", every_s, &content)))
}

/// Below the list, which is fetched again; what is ticked in its rows stays.
fn compare_form(site: &Site) -> Markup {
    html! {
        form.filter.compare method="get" action=(site.to("compare")) id=(COMPARE_FORM) {
            div.fields {
                div.field {
                    label for="c-jobs" { "Compare the jobs ticked above and" }
                    input id="c-jobs" type="text" name="jobs" placeholder="12, 15" autocomplete="off" spellcheck="false" autocapitalize="none";
                }
                button type="submit" { "Compare" }
            }
        }
    }
}

/// The form stays, with what was typed, and says what is wrong with it.
fn refused(site: &Site, visible: &Visible<'_>, asked: &Asked, problem: &Problem) -> Markup {
    let usual: Vec<&ListColumn> = COLUMNS.iter().filter(|column| USUAL.contains(&column.name())).collect();
    let content = html! {
        (head(site, visible, asked))
        (layout::notice("bad", &problem.reason))
        (form(site, asked, &usual))
    };
    layout::page(site, Some(Tab::Jobs), "Jobs", None, &content)
}

/// The columns that were asked for, in the order of the list.
fn chosen(wanted: Option<&[String]>) -> Result<Vec<&'static ListColumn>, Problem> {
    let Some(wanted) = wanted else {
        return Ok(COLUMNS.iter().filter(|column| USUAL.contains(&column.name())).collect());
    };
    if let Some(unknown) = wanted.iter().find(|name| !COLUMNS.iter().any(|known| known.name() == *name)) {
        let known = COLUMNS.iter().map(ListColumn::name).collect::<Vec<_>>().join(", ");
        return Err(Problem::asked(format!("columns: unknown column {unknown:?}; known: {known}")));
    }
    Ok(COLUMNS.iter().filter(|column| wanted.iter().any(|name| name == column.name())).collect())
}

/// The same address with one parameter changed; the list begins at its start again.
fn with(site: &Site, asked: &Asked, name: &str, value: &str) -> String {
    let others =
        asked.search.iter().filter(|(known, value)| known != name && known != "after" && !value.is_empty());
    let pairs = others.map(|(known, value)| (known.as_str(), value.as_str()));
    let changed = Some((name, value)).filter(|_| !value.is_empty());
    let search = layout::search(pairs.chain(changed));
    site.to(&if search.is_empty() { "jobs".to_owned() } else { format!("jobs?{search}") })
}

fn head(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Markup {
    let state = asked.get("state").unwrap_or("");
    html! {
        div.head {
            h1 { "Jobs" }
            nav.quick aria-label="Quick filters" {
                @for (label, states) in QUICK {
                    a href=(with(site, asked, "state", states)) aria-current=[(state == states).then_some("true")] { (label) }
                }
                // Who sees jobs of others looks for their own first.
                @if sees_others(visible.viewer) && !site.who.is_empty() {
                    @let mine = asked.get("user") == Some(site.who.as_str());
                    a.apart href=(with(site, asked, "user", if mine { "" } else { &site.who })) aria-current=[mine.then_some("true")] { "Mine" }
                }
                @let gpu = asked.get("gpu").is_some();
                a href=(with(site, asked, "gpu", if gpu { "" } else { "1" })) aria-current=[gpu.then_some("true")] { "With GPU" }
            }
        }
    }
}

/// The newest jobs of a viewer who sees those of others, above the list as it is first shown. The list itself stays as
/// it is: its pages continue, and its CSV has, what it shows.
fn own_first(
    site: &Site,
    visible: &Visible<'_>,
    asked: &Asked,
    columns: &[&ListColumn],
    shown: &[Record],
) -> Result<Option<Markup>, Problem> {
    // Without jobs of others between them, the list below begins with the same rows.
    let has_others = shown.iter().any(|record| record.user.as_deref() != Some(&site.who));
    let is_default = asked.search.iter().all(|(name, value)| name == "columns" || value.is_empty());
    if !is_default || !has_others || site.who.is_empty() || !sees_others(visible.viewer) {
        return Ok(None);
    }
    let wanted = [("user", site.who.as_str()), ("limit", OWN_SHOWN)];
    let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let filter = Given::of(&wanted, parameters::JOBS).and_then(|given| parameters::jobs_filter(&given))?;
    let (page, _) = visible.jobs(&filter)?;
    let more = with(site, asked, "user", &site.who);
    Ok((!page.jobs.is_empty()).then(|| {
        html! {
            section.own aria-labelledby="own-title" {
                div.bar-line {
                    h2 id="own-title" { "Yours" }
                    @if page.next.is_some() { a href=(more) { "All of yours" } }
                }
                (plain_rows(site, columns, &page.jobs, "Your newest jobs", "own"))
            }
        }
    }))
}

fn sees_others(viewer: &Viewer) -> bool {
    matches!(viewer, Viewer::Everything)
        || matches!(viewer, Viewer::User { accounts, .. } if !accounts.is_empty())
}

fn form(site: &Site, asked: &Asked, columns: &[&ListColumn]) -> Markup {
    let is_open = FURTHER.iter().any(|field| asked.get(field.name).is_some());
    html! {
        search {
            form.filter method="get" action=(site.to("jobs")) id="filter" {
                div.fields {
                    @for field in FIRST { (input(field, asked)) }
                    div.field {
                        label for="f-state" { "State" }
                        select id="f-state" name="state" { (states(asked.get("state"))) }
                    }
                    button type="submit" { "Show" }
                }
                @if let Some(sort) = asked.get("sort") { input type="hidden" name="sort" value=(sort); }
                @if asked.get("gpu").is_some() { input type="hidden" name="gpu" value="1"; }
                details open[is_open] {
                    summary { "More filters" }
                    div.fields { @for field in FURTHER.iter().filter(|field| is_known(field)) { (input(field, asked)) } }
                }
                details {
                    summary { "Columns" }
                    fieldset.columns {
                        legend.hidden { "Columns shown" }
                        @for column in COLUMNS {
                            @let is_shown = columns.iter().any(|shown| shown.name() == column.name());
                            label { input type="checkbox" name="columns" value=(column.name()) checked[is_shown]; (column.head) }
                        }
                    }
                }
            }
        }
    }
}

/// A field that the list can be filtered by.
fn is_known(field: &Field) -> bool {
    parameters::JOBS.iter().any(|parameter| parameter.name == field.name)
}

fn input(field: &Field, asked: &Asked) -> Markup {
    let id = format!("f-{}", field.name);
    html! {
        div.field {
            label for=(id) { (field.label) }
            input id=(id) type=(field.kind) name=(field.name) value=[asked.get(field.name)] placeholder=(field.example)
                autocomplete="off" spellcheck="false" autocapitalize="none";
        }
    }
}

fn states(now: Option<&str>) -> Markup {
    let is_other = now.is_some_and(|now| State::parse(now).is_none());
    html! {
        option value="" { "any" }
        @for state in State::ALL {
            option value=(state.name()) selected[now == Some(state.name())] { (state.name().replace('_', " ")) }
        }
        @if let Some(now) = now.filter(|_| is_other) {
            option value=(now) selected { (escape(&now.replace('_', " ").replace(',', ", "))) }
        }
    }
}

fn table(site: &Site, asked: &Asked, columns: &[&ListColumn], jobs: &[Record]) -> Markup {
    let heads = html! {
        th.pick scope="col" role="columnheader" { span.hidden { "Compare" } }
        @for column in columns { (head_cell(site, asked, column)) }
    };
    framed(site, columns, jobs, &Frame { label: "Jobs", rows: "job", with_boxes: true }, &heads)
}

struct Frame {
    label: &'static str,
    /// What the ids of its rows begin with.
    rows: &'static str,
    /// With boxes to choose jobs for the form below the list, which they belong to by its id.
    with_boxes: bool,
}

/// Explicit roles: on a small screen the rows are laid out as blocks, which would take the table's own ones away.
fn framed(
    site: &Site,
    columns: &[&ListColumn],
    jobs: &[Record],
    &Frame { label, rows, with_boxes }: &Frame,
    heads: &Markup,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table.list role="table" {
                thead role="rowgroup" { tr role="row" { (heads) } }
                tbody role="rowgroup" {
                    @for record in jobs {
                        tr role="row" id={ (rows) "-" (row_id(record)) } {
                            @if with_boxes {
                                @let label = record.label();
                                td.pick role="cell" { input type="checkbox" name="jobs" value=(label) form=(COMPARE_FORM) aria-label={ "Compare job " (escape(&label)) }; }
                            }
                            @for column in columns {
                                @let class = column.class();
                                td class={ (class) " c-" (column.name()) } role="cell" data-head=(column.head) { (column.shown(site, record)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Jobs without links that sort them.
pub(super) fn plain_table(
    site: &Site,
    columns: &[&ListColumn],
    jobs: &[Record],
    label: &'static str,
) -> Markup {
    plain_rows(site, columns, jobs, label, "job")
}

fn plain_rows(
    site: &Site,
    columns: &[&ListColumn],
    jobs: &[Record],
    label: &'static str,
    rows: &'static str,
) -> Markup {
    let has_gpus = jobs.iter().any(|record| !record.gpus.is_empty());
    let is_shown = |column: &&&ListColumn| has_gpus || !column.needs_gpus;
    let columns: Vec<&ListColumn> = columns.iter().filter(is_shown).copied().collect();
    let heads = html! {
        @for column in &columns {
            th class={ (column.class()) " c-" (column.name()) } scope="col" role="columnheader" { (column.head) }
        }
    };
    framed(site, &columns, jobs, &Frame { label, rows, with_boxes: false }, &heads)
}

/// Names a row, for an update that moves none.
fn row_id(record: &Record) -> String {
    layout::percent_encoded(&format!("{}-{}", record.label(), record.key.incarnation)).replace('%', "_")
}

/// A head that sorts: first by the largest, then by the least, then as before.
fn head_cell(site: &Site, asked: &Asked, column: &ListColumn) -> Markup {
    let can_sort = parameters::JOBS.iter().any(|parameter| parameter.name == "sort");
    let Some(sort) = column.sort.filter(|_| can_sort) else {
        return html! { th class={ (column.class()) " c-" (column.name()) } scope="col" role="columnheader" { (column.head) } };
    };
    let is_text = column.class() == "t";
    let (asc, desc) = (format!("{sort}:asc"), format!("{sort}:desc"));
    let now = asked.get("sort").unwrap_or("");
    let is_asc = now == asc || now == sort;
    let (first, second) = if is_text { (&asc, &desc) } else { (&desc, &asc) };
    let next = match (now == desc, is_asc) {
        (false, false) => first.as_str(),
        (is_desc, _) if is_desc != is_text => second.as_str(),
        _ => "",
    };
    let order = if now == desc {
        Some("descending")
    } else if is_asc {
        Some("ascending")
    } else {
        None
    };
    html! {
        th class={ (column.class()) " c-" (column.name()) } scope="col" role="columnheader" aria-sort=[order] {
            a href=(with(site, asked, "sort", next)) { (column.head) @if let Some(order) = order { span.arrow aria-hidden="true" { @if order == "descending" { "▾" } @else { "▴" } } } }
        }
    }
}

fn pager(site: &Site, asked: &Asked, columns: &[&ListColumn], count: usize, next: Option<&str>) -> Markup {
    let later = next.map(|next| {
        let others = asked.search.iter().filter(|(known, value)| known != "after" && !value.is_empty());
        let pairs = others.map(|(known, value)| (known.as_str(), value.as_str()));
        format!("jobs?{}", layout::search(pairs.chain([("after", next)])))
    });
    html! {
        nav.pager aria-label="Pages of the list" {
            span.dim { (count) @if count == 1 { " job" } @else { " jobs" } @if next.is_some() { ", more follow" } }
            @if asked.get("after").is_some() { a href=(with(site, asked, "after", "")) rel="first" { "First page" } }
            @if let Some(later) = later { a.next href=(site.to(&later)) rel="next" { "Next page" } }
            @if count > 0 { a href=(csv_link(site, asked, columns)) download="jobs.csv" { "CSV of this list" } }
        }
    }
}

/// The API has the same parameters, and the columns that are shown by name.
fn csv_link(site: &Site, asked: &Asked, columns: &[&ListColumn]) -> String {
    let columns = columns.iter().flat_map(|column| column.csv).copied().collect::<Vec<_>>().join(",");
    let others = asked.search.iter().filter(|(name, value)| name != "columns" && !value.is_empty());
    let pairs = others.map(|(name, value)| (name.as_str(), value.as_str()));
    let search = layout::search(pairs.chain([("columns", columns.as_str()), ("format", "csv")]));
    site.to(&format!("api/v1/jobs?{search}"))
}
