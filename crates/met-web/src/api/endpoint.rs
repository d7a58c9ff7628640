//! What an endpoint is. Lists are bounded and continued by `next`; times are RFC 3339.

use serde_json::Value;
use utoipa::openapi::Schema;

use super::parameters::Parameter;
use super::{Asked, Needs, Visible};
use crate::problem::Problem;

/// One endpoint: all that the router, the OpenAPI document and the tests know of it.
pub struct Endpoint {
    pub path: &'static str,
    pub help: &'static str,
    /// What `docs/api.md` says of its answer.
    pub answer: &'static str,
    pub parameters: &'static [Parameter],
    pub action: Action,
    pub table: Table,
    pub schema: fn() -> Schema,
}

impl Endpoint {
    /// The answer of one that does not stay open.
    pub(super) fn content(&self, visible: &Visible<'_>, asked: &Asked) -> Result<Content, Problem> {
        match self.action {
            Action::Answer(make) | Action::After(_, make) => make(visible, asked).map(Content::Value),
            Action::List(make) => make(visible, asked),
            Action::Stream => Ok(Content::Value(Value::Null)),
        }
    }

    pub(super) fn needs(&self) -> Needs {
        if let Action::After(needs, _) = self.action { needs } else { Needs::Nothing }
    }
}

#[derive(Clone, Copy)]
pub enum Action {
    /// Makes the answer, in a background thread.
    Answer(fn(&Visible<'_>, &Asked) -> Result<Value, Problem>),
    /// The same, after this was waited for.
    After(Needs, fn(&Visible<'_>, &Asked) -> Result<Value, Problem>),
    /// The same, of one that is so long that it is written at once.
    List(fn(&Visible<'_>, &Asked) -> Result<Content, Problem>),
    /// Stays open and sends events.
    Stream,
}

/// What an answer says.
pub enum Content {
    Value(Value),
    /// JSON, and where the list goes on.
    Text {
        json: String,
        next: Option<String>,
    },
}

/// What of an answer is a table, and can be had as CSV.
#[derive(Clone, Copy)]
pub enum Table {
    None,
    /// The objects below this key; columns by name and place in an object.
    Rows(&'static str, fn() -> Vec<(String, String)>),
    /// Times and columns of one series.
    Series,
    /// Several of them, each with its table and part.
    ManySeries,
}

/// Columns that have the names of keys.
pub fn places(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), format!("/{name}"))).collect()
}
