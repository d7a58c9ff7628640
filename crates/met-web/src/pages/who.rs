//! Who uses the machine of a daemon now: by user and process, inside jobs and outside.

use maud::{Markup, html};
use met_core::text::{command_line, escape};
use met_core::units;
use met_query::who::{InUse, ProcessUse, UserUse};

use super::layout::{self, Site, Tab};
use super::{Asked, Made};
use crate::api::Visible;
use crate::problem::Problem;

const EVERY_S: u32 = 10;
/// Jobs of a user that are named.
const JOBS_MAX: usize = 8;

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    if let Some((name, _)) = asked.search.first() {
        return Err(Problem::asked(format!("unknown parameter {name:?}; this page has none")));
    }
    let in_use = visible.who()?;
    let cpus = visible.host.map(|host| host.facts().cpu_count);
    let content = html! {
        div.head { div { p.over { "Now" } h1 { "Who uses this machine" } } }
        div id="who" data-live { (shown(site, &in_use, cpus)) }
    };
    Ok(Made::Page(layout::page(site, Some(Tab::Now), "Who uses this machine", Some(EVERY_S), &content)))
}

fn shown(site: &Site, InUse { users, processes }: &InUse, cpus: Option<u32>) -> Markup {
    let cores: f64 = users.iter().map(|user| user.cores).sum();
    html! {
        p { strong { (units::cores(cores)) } @if let Some(cpus) = cpus { " of " (cpus) } " cores busy over the last half second" }
        section aria-label="Users" {
            (table("Users", "User", &["Processes", "Cores", "Memory", "Cores outside jobs"], &["Jobs"], html! {
                @for user in users { (self::user(site, user)) }
            }))
        }
        section aria-labelledby="processes-title" {
            h2 id="processes-title" { "Busiest processes" }
            (table("Busiest processes", "Process", &["Cores", "Memory"], &["User", "Job", "Command"], html! {
                @for process in processes { (self::process(site, process)) }
            }))
        }
    }
}

/// With a column that names the row, then numbers, then words. Explicit roles: on a small screen the rows are laid out
/// as blocks, which would take the table's own ones away.
fn table(label: &str, name: &str, numbers: &[&str], words: &[&str], rows: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table.list.who role="table" {
                thead role="rowgroup" { tr role="row" {
                    th scope="col" role="columnheader" { (name) }
                    @for head in numbers { th.n scope="col" role="columnheader" { (head) } }
                    @for head in words { th scope="col" role="columnheader" { (head) } }
                } }
                tbody role="rowgroup" { (rows) }
            }
        }
    }
}

fn number(head: &str, value: Markup) -> Markup {
    html! { td.n role="cell" data-head=(head) { (value) } }
}

fn user(site: &Site, user: &UserUse) -> Markup {
    let more = user.jobs.len().saturating_sub(JOBS_MAX);
    html! {
        tr role="row" {
            th scope="row" role="rowheader" { (name(user.name.as_deref())) }
            (number("Processes", html! { (user.processes) }))
            (number("Cores", html! { (units::cores(user.cores)) }))
            (number("Memory", html! { (units::bytes(user.memory_bytes as f64)) }))
            (number("Cores outside jobs", html! { (units::cores(user.outside.cores)) }))
            td.t role="cell" data-head="Jobs" {
                @for job in user.jobs.iter().take(JOBS_MAX) { a href=(site.job_path(job)) { (escape(job)) } " " }
                @if more > 0 { span.dim { "and " (more) " more" } }
            }
        }
    }
}

fn process(site: &Site, process: &ProcessUse) -> Markup {
    let words = command_line(&process.command);
    let memory = html! { @if let Some(bytes) = process.memory_bytes { (units::bytes(bytes as f64)) } @else { span.unknown { "–" } } };
    html! {
        tr role="row" {
            th scope="row" role="rowheader" { (process.pid) }
            (number("Cores", html! { (units::cores(process.cores)) }))
            (number("Memory", memory))
            td.t role="cell" data-head="User" { (name(process.user.as_deref())) }
            td.t role="cell" data-head="Job" { @if let Some(job) = &process.job { a href=(site.job_path(job)) { (escape(job)) } } @else { span.unknown { "–" } } }
            td.t role="cell" data-head="Command" { code.cmd title=(words) { (words) } }
        }
    }
}

fn name(user: Option<&str>) -> String {
    user.map_or_else(|| "unknown".to_owned(), escape)
}
