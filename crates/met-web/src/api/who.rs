//! Who uses the machine of a daemon.

use utoipa::openapi::{Schema, Type};

use super::Needs;
use super::endpoint::{Action, Endpoint, Table, places};
use super::parameters::FORMAT;
use super::schemas::{list, of, optional, with_keys};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/who",
    help: "who uses the machine of a daemon now, by user and process",
    answer: "who uses the machine of a daemon now: `users` with cores, memory, jobs and what is outside \
            jobs, and the ten busiest `processes`, as `met who --json`. It looks for half a second; all who \
            ask within a second share a look. Users get their own; a server answers 404",
    parameters: &[FORMAT],
    action: Action::After(Needs::Processes, |visible, _| {
        serde_json::to_value(visible.who()?).map_err(Problem::asked)
    }),
    table: Table::Rows("users", || places(&USER_NOW)),
    schema: who_schema,
}];

const USER_NOW: [&str; 4] = ["user", "processes", "cores", "memory_bytes"];

fn who_schema() -> Schema {
    let outside = with_keys([("cores", of(Type::Number)), ("memory_bytes", of(Type::Integer))]);
    let user = with_keys([
        ("user", optional(Type::String)),
        ("processes", of(Type::Integer)),
        ("cores", of(Type::Number)),
        ("memory_bytes", of(Type::Integer)),
        ("jobs", list(of(Type::String))),
        ("outside_jobs", outside.into()),
    ]);
    let process = with_keys([
        ("pid", of(Type::Integer)),
        ("user", optional(Type::String)),
        ("job", optional(Type::String)),
        ("cores", of(Type::Number)),
        ("memory_bytes", optional(Type::Integer)),
        ("command", list(of(Type::String))),
    ]);
    with_keys([("users", list(user.into())), ("processes", list(process.into()))]).into()
}
