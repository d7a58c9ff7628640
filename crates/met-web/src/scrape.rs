//! What a scraper of a page for Prometheus asks for, and how it gets it.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use met_sinks::prometheus::{self, Format};

/// The path of the page.
pub const METRICS: &str = "/metrics";

/// What a scraper asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub format: Format,
    pub gzip: bool,
    /// Who jobs belong to.
    pub people: bool,
}

impl Wanted {
    /// As its headers request.
    pub fn of(headers: &HeaderMap, people: bool) -> Wanted {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let format = Format::accepted(text(header::ACCEPT));
        Wanted { format, gzip: prometheus::accepts_gzip(text(header::ACCEPT_ENCODING)), people }
    }

    /// A page with the headers that say what it is.
    pub fn respond(self, page: impl IntoResponse) -> Response {
        let mut response = page.into_response();
        let own = response.headers_mut();
        own.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.format.content_type()));
        own.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding, Authorization"));
        if self.gzip {
            own.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}
