//! The catalogue of tables and columns.

use serde_json::{Value, json};
use utoipa::openapi::{Schema, Type};

use super::endpoint::{Action, Endpoint, Table, places};
use super::parameters::{FORMAT, Kind, parameter};
use super::schemas::{list, of, with_keys};
use super::{Asked, Visible, series};
use crate::problem::Problem;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/catalogue",
    help: "every table with its columns, units and meanings",
    answer: "every table with its columns, units, kinds and meanings ([metrics.md](metrics.md))",
    parameters: &[parameter("table", Kind::Table, "only this table"), FORMAT],
    action: Action::Answer(catalogue),
    table: Table::Rows("columns", || places(&CATALOGUE)),
    schema: catalogue_schema,
}];

const CATALOGUE: [&str; 8] = ["table", "column", "name", "kind", "unit", "metric", "subject", "help"];

fn catalogue(_: &Visible<'_>, asked: &Asked) -> Result<Value, Problem> {
    let mut tables = met_sources::catalogue();
    if let Some(name) = asked.given.text("table") {
        tables.retain(|table| table.name == name);
    }
    let mut columns = Vec::new();
    for table in &tables {
        for column in table.columns {
            columns.push(json!({
                "table": table.name,
                "column": column.name,
                "name": column.json_name(),
                "kind": series::kind_of(column),
                "unit": column.unit.suffix().trim_start_matches('_'),
                "metric": table.prometheus_name(column),
                "subject": table.subject,
                "help": column.help,
            }));
        }
    }
    let table = |table: &&'static met_core::Table| json!({ "name": table.name, "subject": table.subject, "labels": table.labels });
    Ok(json!({ "tables": tables.iter().map(table).collect::<Vec<_>>(), "columns": columns }))
}

fn catalogue_schema() -> Schema {
    let text = || of(Type::String);
    let table = with_keys([("name", text()), ("subject", text()), ("labels", list(text()))]);
    let column = with_keys([
        ("table", text()),
        ("column", text()),
        ("name", text()),
        ("kind", text()),
        ("unit", text()),
    ]);
    with_keys([("tables", list(table.into())), ("columns", list(column.into()))]).into()
}
