//! Use over time, from stored sums.

use jiff::tz::TimeZone;
use met_core::usage::{By, Every, UsageAsk};
use met_host::clock;
use met_insight::usage::{self, Report};
use serde_json::Value;
use utoipa::openapi::{Schema, Type};

use super::endpoint::{Action, Endpoint, Table, places};
use super::parameters::{FORMAT, Given, Kind, Parameter, parameter};
use super::schemas::{list, of, optional, time, with_keys};
use super::{Asked, Visible};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/usage",
    help: "what was used over time, by user or another group, and what machines did",
    answer: "what was used from `since` (default: 30 days ago) until `until`, `by` system, user, account, \
            partition, node or command, `every` all, hour, day, week, month, hour-of-day, weekday or \
            hour-of-week, in `zone` (default: UTC); `user`, `account`, `partition`, `node` narrow it. \
            `usage`: what jobs held and used. `machines`: what machines did; `hours_unknown` is not idle; \
            `core_hours_free`, `memory_gib_hours_free` and `gpu_hours_free` are what no job held, for those \
            who see all jobs. Unknown figures are `null`. Users get sums of their own jobs and accounts",
    parameters: USAGE,
    action: Action::Answer(usage),
    table: Table::Rows("usage", || places(&met_insight::usage::COLUMNS)),
    schema,
}];

/// How far back sums reach if no time is given.
pub const USUAL_NS: i64 = 30 * 86_400 * 1_000_000_000;

pub const BY: Parameter = parameter(
    "by",
    Kind::Choice(&["system", "user", "account", "partition", "node", "command"]),
    "what to sum by (default: user)",
);
pub const EVERY: Parameter = parameter(
    "every",
    Kind::Choice(&["all", "hour", "day", "week", "month", "hour-of-day", "weekday", "hour-of-week"]),
    "into which times to divide it (default: all)",
);
pub const ZONE: Parameter = parameter("zone", Kind::Text, "time zone, such as Europe/Berlin (default: UTC)");

pub const USAGE: &[Parameter] = &[
    BY,
    EVERY,
    parameter("since", Kind::Time, "from this time on (default: 30 days ago)"),
    parameter("until", Kind::Time, "before this time (default: now)"),
    ZONE,
    parameter("user", Kind::Text, "only jobs of this user"),
    parameter("account", Kind::Text, "only jobs of this account or project"),
    parameter("partition", Kind::Text, "only jobs in this partition or queue"),
    parameter("node", Kind::Text, "only what was used on this node"),
    FORMAT,
];

/// What a query string with [`USAGE`] means.
pub fn ask(given: &Given, usual_zone: &TimeZone) -> Result<UsageAsk, Problem> {
    // Nothing was used in the future: hours of it would make averages smaller.
    let now_ns = clock::realtime_ns();
    let to_ns = given.ns("until").unwrap_or(now_ns).min(now_ns);
    let from_ns = given.ns("since").unwrap_or(to_ns.saturating_sub(USUAL_NS));
    let zone = match given.text("zone") {
        None => usual_zone.clone(),
        Some(name) => TimeZone::get(&name).map_err(|_| {
            Problem::field("zone", format!("{name:?} is not a known time zone; write Europe/Berlin"))
        })?,
    };
    let by = given.text("by").and_then(|by| By::parse(&by)).unwrap_or(By::User);
    let every = given.text("every").and_then(|every| Every::parse(&every)).unwrap_or(Every::All);
    let ask = UsageAsk {
        zone: usage::zone(&zone, from_ns, to_ns),
        user: given.text("user"),
        account: given.text("account"),
        partition: given.text("partition"),
        node: given.text("node"),
        ..UsageAsk::new(from_ns, to_ns, by, every)
    };
    match ask.problem() {
        Some(problem) => Err(Problem::asked(problem)),
        None => Ok(ask),
    }
}

pub fn report(visible: &Visible<'_>, ask: &UsageAsk) -> Result<Report, Problem> {
    let answer = visible.query.usage(visible.viewer, ask).map_err(|error| {
        match error.is::<met_config::Failure>() {
            true => Problem::asked(format!("{error:#}")),
            false => Problem::failed(&error),
        }
    })?;
    Ok(usage::report(ask, &answer, clock::realtime_ns()))
}

fn usage(visible: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let ask = ask(&asked.given, &TimeZone::UTC)?;
    Ok(usage::object(&report(visible, &ask)?, &ask))
}

fn schema() -> Schema {
    let column = |name: &'static str| match name {
        "name" | "period" => (name, optional(Type::String)),
        "begin" => (name, time()),
        name if name.starts_with("jobs") => (name, of(Type::Integer)),
        name => (name, optional(Type::Number)),
    };
    let line = with_keys(met_insight::usage::COLUMNS.map(column));
    let machine = with_keys([
        ("name", optional(Type::String)),
        ("period", optional(Type::String)),
        ("begin", time()),
        ("hours_measured", of(Type::Number)),
        ("hours_down", of(Type::Number)),
        ("hours_unknown", of(Type::Number)),
        ("core_hours", of(Type::Number)),
        ("core_hours_busy", of(Type::Number)),
        ("core_hours_idle", of(Type::Number)),
        ("core_hours_free", optional(Type::Number)),
        ("memory_gib_hours", of(Type::Number)),
        ("memory_gib_hours_used", of(Type::Number)),
        ("memory_gib_hours_free", optional(Type::Number)),
        ("gpu_hours", optional(Type::Number)),
        ("gpu_hours_free", optional(Type::Number)),
    ]);
    with_keys([
        ("by", of(Type::String)),
        ("every", of(Type::String)),
        ("since", time()),
        ("until", time()),
        ("time_zone", of(Type::String)),
        ("usage", list(line.into())),
        ("machines", list(machine.into())),
        ("jobs_not_summed_yet", of(Type::Integer)),
    ])
    .into()
}
