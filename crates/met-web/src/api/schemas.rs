//! What forms of answers are made of, for the OpenAPI document. The forms are beside their endpoints.

use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};

pub fn of(kind: Type) -> Schema {
    ObjectBuilder::new().schema_type(kind).into()
}

/// Of this type, or null where it is unknown.
pub fn optional(kind: Type) -> Schema {
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![kind, Type::Null])).into()
}

pub fn time() -> Schema {
    let format = Some(SchemaFormat::Custom("date-time".to_owned()));
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![Type::String, Type::Null])).format(format).into()
}

pub fn list(of: Schema) -> Schema {
    ArrayBuilder::new().items(RefOr::T(of)).into()
}

/// These keys are always there; there may be others.
pub fn with_keys<const N: usize>(required: [(&str, Schema); N]) -> ObjectBuilder {
    required
        .into_iter()
        .fold(ObjectBuilder::new(), |object, (name, schema)| object.property(name, schema).required(name))
}

pub fn any() -> Schema {
    of(Type::Object)
}

pub fn problem() -> Schema {
    with_keys([
        ("type", of(Type::String)),
        ("title", of(Type::String)),
        ("status", of(Type::Integer)),
        ("detail", of(Type::String)),
        ("error", of(Type::String)),
    ])
    .property("field", of(Type::String))
    .into()
}
