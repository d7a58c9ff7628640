//! Users, accounts, and what their jobs used.

use met_core::grouping::{Group, Sum, SumBy, SumSpan};
use met_host::clock;
use met_insight::json;
use met_query::jobs::JobsFilter;
use serde_json::{Value, json};
use utoipa::openapi::{Schema, Type};

use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const USER: [&str; 5] = ["name", "jobs", "first_start", "last_start", "accounts"];
pub(super) const ACCOUNT: [&str; 5] = ["name", "jobs", "first_start", "last_start", "users"];
pub(super) const ENERGY: [&str; 4] = ["name", "jobs", "jobs_with_energy", "energy_joules"];
pub(super) const EMISSIONS: [&str; 4] = ["name", "jobs", "jobs_with_emissions", "emissions_grams"];

/// How far back sums reach if no time is given.
const USUAL_NS: i64 = 30 * 86_400 * 1_000_000_000;

fn group(of: &'static str) -> impl Fn(&Group) -> Value {
    move |group: &Group| {
        json!({
            "name": group.name,
            "jobs": group.jobs,
            "first_start": group.first_start_ns.and_then(json::time),
            "last_start": group.last_start_ns.and_then(json::time),
            of: group.of,
        })
    }
}

pub(super) fn users(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let users = visible.query.users(visible.viewer).map_err(|error| Problem::failed(&error))?;
    Ok(json!({ "users": users.iter().map(group("accounts")).collect::<Vec<_>>() }))
}

pub(super) fn accounts(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let accounts = visible.query.accounts(visible.viewer).map_err(|error| Problem::failed(&error))?;
    Ok(json!({ "accounts": accounts.iter().map(group("users")).collect::<Vec<_>>() }))
}

pub(super) fn energy(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    // Of no job is the energy known: that is not zero.
    let energy = |sum: &Sum| (sum.jobs_with_energy > 0).then_some(sum.energy_uj as f64 / 1e6);
    sums(
        visible,
        asked,
        "energy",
        |sum| json!({ "name": sum.name, "jobs": sum.jobs, "jobs_with_energy": sum.jobs_with_energy, "energy_joules": energy(sum) }),
    )
}

pub(super) fn emissions(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let emissions = |sum: &Sum| (sum.jobs_with_emissions > 0).then_some(sum.emissions_ug as f64 / 1e6);
    sums(visible, asked, "emissions", |sum| {
        json!({
            "name": sum.name,
            "jobs": sum.jobs,
            "jobs_with_emissions": sum.jobs_with_emissions,
            "emissions_grams": emissions(sum),
        })
    })
}

fn sums(
    visible: &Visible<'_>,
    asked: &Asked,
    what: &str,
    object: impl Fn(&Sum) -> Value,
) -> Result<Value, Problem> {
    let given = &asked.given;
    let by = given.text("by").and_then(|by| SumBy::parse(&by)).unwrap_or(SumBy::User);
    let to_ns = given.ns("until").unwrap_or_else(clock::realtime_ns);
    let from_ns = given.ns("since").unwrap_or(to_ns.saturating_sub(USUAL_NS));
    let span = SumSpan { by, from_ns, to_ns };
    let sums = visible.query.sums(visible.viewer, &JobsFilter::default(), &span);
    let sums = sums.map_err(|error| Problem::failed(&error))?;
    Ok(json!({
        "by": by.name(),
        "since": json::time(from_ns),
        "until": json::time(to_ns),
        what: sums.iter().map(object).collect::<Vec<_>>(),
    }))
}

fn group_schema(of_name: &str) -> Schema {
    with_keys([
        ("name", of(Type::String)),
        ("jobs", of(Type::Integer)),
        ("first_start", time()),
        ("last_start", time()),
        (of_name, list(of(Type::String))),
    ])
    .into()
}

pub(super) fn users_schema() -> Schema {
    with_keys([("users", list(group_schema("accounts")))]).into()
}

pub(super) fn accounts_schema() -> Schema {
    with_keys([("accounts", list(group_schema("users")))]).into()
}

fn sums_schema(what: &str, [name, jobs, known, figure]: [&str; 4]) -> Schema {
    let sum = with_keys([
        (name, optional(Type::String)),
        (jobs, of(Type::Integer)),
        (known, of(Type::Integer)),
        (figure, optional(Type::Number)),
    ]);
    with_keys([("by", of(Type::String)), ("since", time()), ("until", time()), (what, list(sum.into()))])
        .into()
}

pub(super) fn energy_schema() -> Schema {
    sums_schema("energy", ENERGY)
}

pub(super) fn emissions_schema() -> Schema {
    sums_schema("emissions", EMISSIONS)
}
