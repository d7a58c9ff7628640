//! Why a request is not answered, as HTTP says it: problem details of RFC 9457.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

const COME_AGAIN: Duration = Duration::from_secs(5);
pub const CONTENT_TYPE: &str = "application/problem+json";

/// A refusal with its reason.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub reason: String,
    /// The same request may succeed later.
    pub come_again: bool,
    /// The request was checked and will never be accepted; a proxy cannot say this.
    pub refused: bool,
    /// The parameter that is wrong.
    pub field: Option<String>,
}

impl Problem {
    pub fn new(status: StatusCode, reason: impl ToString) -> Problem {
        Problem { status, reason: reason.to_string(), come_again: false, refused: false, field: None }
    }

    pub fn later(status: StatusCode, reason: impl ToString) -> Problem {
        Problem { come_again: true, ..Problem::new(status, reason) }
    }

    pub fn never(status: StatusCode, reason: impl ToString) -> Problem {
        Problem { refused: true, ..Problem::new(status, reason) }
    }

    /// The request is malformed.
    pub fn asked(reason: impl ToString) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, reason)
    }

    /// A parameter has a wrong value.
    pub fn field(name: &str, reason: impl ToString) -> Problem {
        let reason = format!("{name}: {}", reason.to_string());
        Problem { field: Some(name.to_owned()), ..Problem::asked(reason) }
    }

    /// Something here does not work.
    pub fn failed(error: &anyhow::Error) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
    }

    /// `error` is the same as `detail`, for clients of earlier versions.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.reason,
            "error": self.reason,
        });
        if let Some(field) = &self.field {
            body["field"] = json!(field);
        }
        if self.refused {
            body["refused"] = json!(true);
        }
        body
    }

    pub fn unread() -> Problem {
        let reason = "this client has too many unread replies; read them and retry";
        Problem::later(StatusCode::TOO_MANY_REQUESTS, reason)
    }

    pub fn busy() -> Problem {
        Problem::later(StatusCode::TOO_MANY_REQUESTS, "overloaded; try again later")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
        let mut response = (self.status, kind, self.body().to_string()).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = header::HeaderValue::from_static("Basic realm=\"met\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if self.come_again {
            response.headers_mut().insert(header::RETRY_AFTER, COME_AGAIN.as_secs().into());
        }
        response
    }
}
