//! The daemon's HTTP listener: a page for Prometheus, if an address is configured.

use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use met_sinks::prometheus::{self, Format};
use met_web::listener::{Asker, Options, Server};

use super::board::{Board, Wanted};
use super::privilege;
use met_config::Http;

const WELCOME: &str = "<!doctype html>\n<title>met</title>\n<p>met: what jobs do with this machine.\n\
                       <p><a href=\"/metrics\">/metrics</a> for Prometheus.\n";

/// `system`: the thread that speaks with others gives up what root may.
pub fn listen(http: &Http, board: &Arc<Board>, system: bool) -> Result<Server, met_web::listener::Error> {
    let mut options = Options::new(http.listen.clone());
    options.web_config.clone_from(&http.web_config);
    options.plain = http.plain;
    // The daemon needs descriptors for its jobs, too.
    let part = usize::try_from(met_host::open_file_limit() / 16).unwrap_or(usize::MAX);
    options.connections_max = options.connections_max.min(part.max(8));
    options.in_thread = system.then_some(privilege::give_up_before_strangers);
    let server = Server::start(options, router(board))?;
    for address in server.local_addrs() {
        tracing::info!("http: listening on {address}");
    }
    Ok(server)
}

fn router(board: &Arc<Board>) -> Router {
    let board = Arc::clone(board);
    let metrics = get(move |Extension(asker): Extension<Asker>, headers: HeaderMap| {
        let answer = answer(&board, &asker, &headers);
        async { answer }
    });
    let welcome = get(|| async { axum::response::Html(WELCOME) });
    Router::new().route("/metrics", metrics).route("/", welcome)
}

fn answer(board: &Board, asker: &Asker, headers: &HeaderMap) -> Response {
    // Every user of this machine can ask without a name, so names are for those alone who have one.
    let wanted = wanted(headers, asker.is_known());
    match board.page(wanted) {
        Ok(page) => respond(wanted, axum::body::Bytes::from_owner(page)),
        Err(old) => (StatusCode::SERVICE_UNAVAILABLE, format!("{old}\n")).into_response(),
    }
}

/// What a scraper asks for by its headers.
pub fn wanted(headers: &HeaderMap, people: bool) -> Wanted {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(text(header::ACCEPT));
    Wanted { format, gzip: prometheus::accepts_gzip(text(header::ACCEPT_ENCODING)), people }
}

/// A page with the headers that say what it is.
pub fn respond(wanted: Wanted, page: impl IntoResponse) -> Response {
    let mut response = page.into_response();
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(wanted.format.content_type()));
    own.insert(header::VARY, header::HeaderValue::from_static("Accept, Accept-Encoding, Authorization"));
    if wanted.gzip {
        own.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    response
}
