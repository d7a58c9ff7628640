//! The OpenAPI document, made from the endpoints.

use met_core::annotation::TAG_BYTES_MAX;
use met_core::job::State;
use met_core::listing::SortColumn;
use serde_json::{Value, json};
use utoipa::openapi::path::{
    OperationBuilder, Parameter as Described, ParameterBuilder, ParameterIn, ParameterStyle,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, ObjectBuilder, OpenApiBuilder,
    PathItem, PathsBuilder, Ref, RefOr, Required, Response, ResponseBuilder, Schema, SecurityRequirement,
    Type,
};

use super::endpoint::{Action, Endpoint, Table};
use super::endpoints;
use super::parameters::{Kind, Parameter};
use super::schemas;
use super::writes::{WRITES, Write, annotation_schema};
use crate::problem::{self, Problem};

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/api/v1/openapi.json",
    help: "this document",
    answer: "all of this in OpenAPI 3.1",
    parameters: &[],
    action: Action::Answer(|_, _| document()),
    table: Table::None,
    schema: schemas::any,
}];

const REFUSALS: [(&str, &str); 6] = [
    ("400", "a parameter is wrong; `field` names it"),
    ("401", "a login is needed"),
    ("403", "this login may not do this"),
    ("404", "not found, or not visible to this login"),
    ("429", "too many requests; `Retry-After` has the seconds to wait"),
    ("503", "temporarily unavailable"),
];

/// Of a cursor: a longer one would not fit the head of a request.
const CURSOR_LETTERS: usize = 12_000;

/// Unix milliseconds, how long ago, a day or RFC 3339; more is accepted.
const TIME: &str = "^([0-9]{1,13}|[0-9]{1,4}[smhdw]|20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z)?)$";

fn document() -> Result<Value, Problem> {
    let paths = endpoints().fold(PathsBuilder::new(), |paths, endpoint| {
        paths.path(endpoint.path, PathItem::new(HttpMethod::Get, operation(endpoint)))
    });
    let paths = WRITES
        .iter()
        .fold(paths, |paths, one| paths.path(one.path, PathItem::new(one.documented_method(), write(one))));
    let components = ComponentsBuilder::new()
        .schema("Problem", schemas::problem())
        .security_scheme(
            "token",
            SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()),
        )
        .security_scheme(
            "password",
            SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Basic).build()),
        );
    let none: [&str; 0] = [];
    let info = InfoBuilder::new()
        .title("met")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("What jobs did with the machine. Every answer has only what its caller may see."));
    let document =
        OpenApiBuilder::new().info(info).paths(paths).components(Some(components.build())).security(Some([
            SecurityRequirement::new("token", none),
            SecurityRequirement::new("password", none),
        ]));
    serde_json::to_value(document.build()).map_err(|error| Problem::failed(&error.into()))
}

fn operation(endpoint: &Endpoint) -> OperationBuilder {
    let operation = described_path("", endpoint.path, endpoint.help, endpoint.parameters)
        .description(Some(endpoint.answer))
        .response("200", answer(endpoint))
        .response("304", Response::new("it has not changed since the answer with this ETag"));
    refusals(operation, &[])
}

fn write(write: &Write) -> OperationBuilder {
    let operation =
        described_path(write.method.as_str(), write.path, write.help, &[]).description(Some(write.answer));
    let content = |schema: Schema| ContentBuilder::new().schema(Some(schema)).build();
    let said = ResponseBuilder::new().description("tags and note after the change");
    let operation =
        operation.response("200", said.content("application/json", content(annotation_schema())).build());
    match write.body {
        None => refusals(operation, &[]),
        Some(body) => {
            let body = RequestBodyBuilder::new()
                .content("application/json", content(body()))
                .required(Some(Required::True));
            let more = [("413", "the request is too large"), ("415", "the request is not application/json")];
            refusals(operation.request_body(Some(body.build())), &more)
        }
    }
}

fn described_path(method: &str, path: &str, help: &str, parameters: &[Parameter]) -> OperationBuilder {
    let in_path = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        let schema = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
        let schema = match name {
            "tag" => schema.max_length(Some(TAG_BYTES_MAX)).pattern(Some("^[a-z0-9._][a-z0-9._-]*$")),
            _ => schema,
        };
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(Schema::from(schema)))
            .build()
    });
    let id = path.trim_start_matches("/api/v1/").replace(['{', '}'], "").replace(['/', '.'], "_");
    let id = if method.is_empty() { id } else { format!("{}_{id}", method.to_lowercase()) };
    OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(help))
        .parameters(Some(in_path.chain(parameters.iter().map(described))))
}

fn refusals(operation: OperationBuilder, more: &[(&str, &str)]) -> OperationBuilder {
    REFUSALS.iter().chain(more).fold(operation, |operation, (status, meaning)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(*meaning).content(problem::CONTENT_TYPE, content);
        operation.response(*status, response.build())
    })
}

fn answer(endpoint: &Endpoint) -> Response {
    let content = |schema: Schema| ContentBuilder::new().schema(Some(schema)).build();
    let text = || Schema::from(ObjectBuilder::new().schema_type(Type::String));
    let response = ResponseBuilder::new().description(endpoint.help);
    let response = match endpoint.action {
        Action::Stream => response.content("text/event-stream", content(text())),
        Action::Answer(_) | Action::After(..) | Action::List(_) => {
            response.content("application/json", content((endpoint.schema)()))
        }
    };
    match endpoint.table {
        Table::None => response.build(),
        _ => response.content("text/csv", content(text())).build(),
    }
}

fn described(parameter: &Parameter) -> Described {
    let builder = ParameterBuilder::new()
        .name(parameter.name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(parameter.help))
        .schema(Some(schema(parameter.kind)));
    match parameter.kind {
        Kind::States | Kind::List => builder.style(Some(ParameterStyle::Form)).explode(Some(false)).build(),
        _ => builder.build(),
    }
}

fn schema(kind: Kind) -> Schema {
    let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(256));
    match kind {
        // Any letter but NUL.
        Kind::Text => text().pattern(Some("^[^\\u0000]+$")).into(),
        Kind::Whole { least, most } => {
            let number = ObjectBuilder::new().schema_type(Type::Integer);
            number.minimum(Some(least as f64)).maximum(Some(most as f64)).into()
        }
        Kind::Amount => ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).into(),
        Kind::Time => {
            let examples = [json!("2026-01-31T12:00:00Z"), json!("1769860800000"), json!("24h")];
            text().pattern(Some(TIME)).examples(examples).into()
        }
        Kind::Duration => {
            text().pattern(Some("^[0-9]{1,6}(s|m|h|d|)$")).examples([json!("90"), json!("10m")]).into()
        }
        Kind::Cursor => text().max_length(Some(CURSOR_LETTERS)).into(),
        Kind::Flag => ObjectBuilder::new().schema_type(Type::Boolean).into(),
        Kind::Choice(words) => {
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied())).into()
        }
        Kind::Table => {
            let names = met_sources::catalogue().into_iter().map(|table| table.name);
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
        }
        Kind::Sort => {
            let names = SortColumn::ALL.map(SortColumn::name);
            let sorts = names.iter().flat_map(|name| ["", ":asc", ":desc"].map(|way| format!("{name}{way}")));
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(sorts)).into()
        }
        Kind::States => {
            let states = State::ALL.map(State::name);
            let one = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(states));
            ArrayBuilder::new().items(RefOr::T(Schema::from(one))).min_items(Some(1)).into()
        }
        Kind::List => {
            let name = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[a-z0-9_]+$"));
            ArrayBuilder::new().items(RefOr::T(Schema::from(name))).min_items(Some(1)).into()
        }
    }
}
