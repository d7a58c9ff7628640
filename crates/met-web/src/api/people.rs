//! Users, accounts, and what their jobs used.

use met_core::grouping::{Group, Sum, SumBy, SumSpan};
use met_host::clock;
use met_insight::json;
use met_query::jobs::JobsFilter;
use serde_json::{Value, json};
use utoipa::openapi::{Schema, Type};

use super::endpoint::{Action, Endpoint, Table, places};
use super::parameters::{FORMAT, Kind, Parameter, parameter};
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/v1/users",
        help: "users, with their accounts",
        answer: "`{\"users\": [...]}` with their accounts, number of jobs, first and last start",
        parameters: &[FORMAT],
        action: Action::Answer(users),
        table: Table::Rows("users", || places(&USER)),
        schema: users_schema,
    },
    Endpoint {
        path: "/api/v1/accounts",
        help: "accounts, with their users",
        answer: "`{\"accounts\": [...]}` with their users, number of jobs, first and last start",
        parameters: &[FORMAT],
        action: Action::Answer(accounts),
        table: Table::Rows("accounts", || places(&ACCOUNT)),
        schema: accounts_schema,
    },
    Endpoint {
        path: "/api/v1/energy",
        help: "energy of the jobs that ended within a time",
        answer: "sums over the jobs that ended from `since` (default: 30 days ago) until `until`, `by` user, \
            account, node or manager; `null` where no job has the figure",
        parameters: RANGE,
        action: Action::Answer(energy),
        table: Table::Rows("energy", || places(&ENERGY)),
        schema: energy_schema,
    },
    Endpoint {
        path: "/api/v1/emissions",
        help: "emissions of the jobs that ended within a time",
        answer: "the same sums of emissions",
        parameters: RANGE,
        action: Action::Answer(emissions),
        table: Table::Rows("emissions", || places(&EMISSIONS)),
        schema: emissions_schema,
    },
];

const RANGE: &[Parameter] = &[
    parameter("by", Kind::Choice(&["user", "account", "node", "manager"]), "what to sum by (default: user)"),
    parameter("since", Kind::Time, "jobs that ended at or after this time (default: 30 days ago)"),
    parameter("until", Kind::Time, "jobs that ended before this time (default: now)"),
    FORMAT,
];

const USER: [&str; 5] = ["name", "jobs", "first_start", "last_start", "accounts"];
const ACCOUNT: [&str; 5] = ["name", "jobs", "first_start", "last_start", "users"];
const ENERGY: [&str; 4] = ["name", "jobs", "jobs_with_energy", "energy_joules"];
const EMISSIONS: [&str; 4] = ["name", "jobs", "jobs_with_emissions", "emissions_grams"];

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

fn users(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let users = visible.query.users(visible.viewer).map_err(|error| Problem::failed(&error))?;
    Ok(json!({ "users": users.iter().map(group("accounts")).collect::<Vec<_>>() }))
}

fn accounts(visible: &Visible<'_>, _: &Asked) -> Result<Value, Problem> {
    let accounts = visible.query.accounts(visible.viewer).map_err(|error| Problem::failed(&error))?;
    Ok(json!({ "accounts": accounts.iter().map(group("users")).collect::<Vec<_>>() }))
}

fn energy(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    // Of no job is the energy known: that is not zero.
    let energy = |sum: &Sum| (sum.jobs_with_energy > 0).then_some(sum.energy_uj as f64 / 1e6);
    sums(
        visible,
        asked,
        "energy",
        |sum| json!({ "name": sum.name, "jobs": sum.jobs, "jobs_with_energy": sum.jobs_with_energy, "energy_joules": energy(sum) }),
    )
}

fn emissions(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
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

fn users_schema() -> Schema {
    with_keys([("users", list(group_schema("accounts")))]).into()
}

fn accounts_schema() -> Schema {
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

fn energy_schema() -> Schema {
    sums_schema("energy", ENERGY)
}

fn emissions_schema() -> Schema {
    sums_schema("emissions", EMISSIONS)
}
