//! What the rules find in many jobs, the most worthwhile first.

use maud::{Markup, html};
use met_core::text::escape;
use met_core::units;
use met_insight::answers::words;
use met_insight::check::{self, Checked, Group};
use met_insight::finding::Severity;

use super::layout::{self, Site, Tab};
use super::{Asked, Made};
use crate::api::Visible;
use crate::api::findings::{FINDINGS, LookedAt, found};
use crate::api::parameters::Given;
use crate::problem::Problem;

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let given = match Given::of(&asked.search, FINDINGS) {
        Ok(given) => given,
        Err(problem) => {
            let notice = layout::notice("bad", &problem.reason);
            return Ok(Made::Refused(framed(site, asked, &notice)));
        }
    };
    let content = found(visible, &given, |checked, of| content(site, checked, of))?;
    Ok(Made::Page(framed(site, asked, &content)))
}

fn framed(site: &Site, asked: &Asked, content: &Markup) -> Markup {
    let field = |name: &str, label: &str, example: &str| {
        html! {
            div.field {
                label for={ "f-" (name) } { (label) }
                input id={ "f-" (name) } type="text" name=(name) value=(asked.get(name).unwrap_or("")) placeholder=(example) autocomplete="off" spellcheck="false" autocapitalize="none";
            }
        }
    };
    let page = html! {
        div.head { h1 { "Findings" } }
        search {
            form.filter method="get" action=(site.to("findings")) {
                div.fields {
                    (field("since", "Since", "30d, 2026-01-14"))
                    (field("user", "User", "ada"))
                    button type="submit" { "Show" }
                }
            }
        }
        (content)
    };
    layout::page(site, Some(Tab::Findings), "Findings", None, &page)
}

fn content(site: &Site, checked: &Checked<'_>, of: &LookedAt) -> Markup {
    let groups = check::groups(&checked.findings);
    let taken = checked.followed.iter().filter(|one| one.is_taken).count();
    html! {
        @for warning in &of.warnings { (layout::notice("warn", warning)) }
        @if let Some(user) = &of.unknown_user {
            (layout::notice("warn", &format!("no job of a user named {user:?} in this time that you may see")))
        }
        p.dim {
            (units::counted(checked.findings.len(), "finding")) " in " (units::counted(checked.jobs, "job"))
            @if of.is_cut { ", the newest" }
            @if !checked.hidden.is_empty() { "; " (checked.hidden.len()) " muted or acknowledged" }
            @if !checked.followed.is_empty() { "; advice was taken in " (taken) " of " (units::counted(checked.followed.len(), "later run")) }
        }
        @if groups.is_empty() && of.unknown_user.is_none() { p.empty { "Nothing to report." } }
        ul.findings aria-label="Findings" { @for group in &groups { (self::group(site, group)) } }
    }
}

fn group(site: &Site, group: &Group) -> Markup {
    let kind = match group.severity {
        Severity::High => "low",
        Severity::Medium => "mid",
        Severity::Low | Severity::Info => "plain",
    };
    let named = if group.is_sum { &[][..] } else { &group.subjects[..] };
    let more = group.count.saturating_sub(named.len());
    html! {
        li.finding.(kind) {
            p { strong { (escape(&group.what)) } }
            p { (escape(&group.how)) }
            p {
                @if let Some(user) = &group.user { (escape(user)) ": " }
                @if group.is_sum { "all jobs of " (units::counted(group.count, "week")) }
                @for job in named { a href=(site.job_path(job)) { (escape(job)) } " " }
                @if !group.is_sum && more > 0 { span.dim { "and " (more) " more" } }
            }
            p.dim {
                @if let Some(saves) = words::saving(&group.saving) { (saves) " · " }
                "rule " code { (group.rule) } ", " (group.severity.name())
            }
        }
    }
}
