//! Why a request is not answered, as HTTP says it.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

const COME_AGAIN: Duration = Duration::from_secs(5);

/// A refusal with its reason.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub reason: String,
    /// The same request may succeed later.
    pub come_again: bool,
    /// The request was checked and will never be accepted; a proxy cannot say this.
    pub refused: bool,
}

impl Problem {
    pub fn new(status: StatusCode, reason: impl ToString) -> Problem {
        Problem { status, reason: reason.to_string(), come_again: false, refused: false }
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

    /// Something here does not work.
    pub fn failed(error: &anyhow::Error) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
    }

    pub fn body(&self) -> Value {
        match self.refused {
            true => json!({ "error": self.reason, "refused": true }),
            false => json!({ "error": self.reason }),
        }
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
        let mut response = (self.status, Json(self.body())).into_response();
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
