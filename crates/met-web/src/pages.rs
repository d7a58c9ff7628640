//! The pages, the same for daemon and server, over the same jobs as the API: who looks is found out first, and only
//! what this viewer may see is there.
//!
//! Every page works without its script, holds its whole query in the address, and loads nothing from elsewhere.

mod annotation;
mod assets;
mod charts;
mod compare;
mod findings;
mod job;
mod job_answers;
mod job_tables;
mod jobs;
mod layout;
mod list_columns;
mod node;
mod nodes;
mod now;
mod plot;
mod scale;
mod usage;
mod who;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, Query as Search};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use met_host::clock;

use crate::api::{Admitted, Api, Needs, Visible};
use crate::listener::Peer;
use crate::problem::Problem;
pub use job::{Shown, charts_of, file};
use layout::Site;
pub(crate) use layout::{plain, said};

/// Where the page of a job is, below the base.
pub fn job_path(label: &str) -> String {
    format!("jobs/{}", layout::percent_encoded(label))
}

/// The style sheet, below the base.
pub fn style_path() -> String {
    format!("assets/{}", assets::ASSETS.style.name)
}

/// A text as a value in a query string.
pub fn encoded(text: &str) -> String {
    layout::percent_encoded(text)
}

/// What the pages are made from and where they are.
pub struct Pages {
    pub api: Arc<Api>,
    /// The path that everything is below, with a slash at its end.
    pub base: String,
    /// People log in here and may log out.
    pub has_logout: bool,
}

/// What was asked for: the text in the path, and the parameters.
pub(crate) struct Asked {
    pub name: String,
    pub search: Vec<(String, String)>,
}

impl Asked {
    pub fn get(&self, name: &str) -> Option<&str> {
        let given = self.search.iter().find(|(known, value)| known == name && !value.is_empty());
        given.map(|(_, value)| value.as_str())
    }
}

/// A page, or a file to be stored.
pub(crate) enum Made {
    Page(Markup),
    /// A page whose form was refused: it stays, with what was typed and the reason.
    Refused(Markup),
    File {
        name: String,
        content: Markup,
    },
}

type Maker = fn(&Site, &Visible<'_>, &Asked) -> Result<Made, Problem>;

/// Each with what its page waits for.
const ROUTES: &[(&str, Needs, Maker)] = &[
    ("/", Needs::Nothing, now::page),
    ("/jobs", Needs::Nothing, jobs::page),
    ("/jobs/{name}", Needs::Nothing, job::page),
    ("/jobs/{name}/job.html", Needs::Nothing, job::download),
    ("/jobs/{name}/scale", Needs::Nothing, scale::page),
    ("/nodes", Needs::Nothing, nodes::page),
    ("/nodes/{name}", Needs::Nothing, node::page),
    ("/usage", Needs::Nothing, usage::page),
    ("/compare", Needs::Nothing, compare::page),
    ("/who", Needs::Processes, who::page),
    ("/findings", Needs::FindingsTurn, findings::page),
];

/// The routes, without the base: a caller that has one nests them below it.
pub fn router(pages: Arc<Pages>) -> Router {
    let mut router = Router::new()
        .route("/assets/{name}", get(|Path(name): Path<String>| async move { assets::serve(&name) }));
    for &(path, needs, maker) in ROUTES {
        let pages = Arc::clone(&pages);
        let handler = get(
            move |Extension(peer): Extension<Peer>,
                  headers: HeaderMap,
                  name: Option<Path<String>>,
                  uri: Uri| {
                let name = name.map(|Path(name)| name).unwrap_or_default();
                answer(Arc::clone(&pages), (needs, maker), peer, headers, name, uri)
            },
        );
        router = router.route(path, handler);
    }
    let unknown = Arc::clone(&pages);
    let router = annotation::routes(&pages, router);
    router.fallback(
        move |Extension(peer): Extension<Peer>, method: Method, headers: HeaderMap, uri: Uri| async move {
            let path = uri.path().to_owned();
            let problem = Problem::new(StatusCode::NOT_FOUND, format!("there is no {path}"));
            if method != Method::GET || path.starts_with("/api/") {
                return problem.into_response();
            }
            let page =
                answer(Arc::clone(&unknown), (Needs::Nothing, no_page), peer, headers, path, uri).await;
            // Who may see no page at all needs no login to learn that there is none.
            if page.status() == StatusCode::NOT_FOUND { page } else { problem.into_response() }
        },
    )
}

fn no_page(_: &Site, _: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no page {:?}", asked.name)))
}

async fn answer(
    pages: Arc<Pages>,
    (needs, maker): (Needs, Maker),
    peer: Peer,
    headers: HeaderMap,
    name: String,
    uri: Uri,
) -> Response {
    let mut site = pages.site();
    let Admitted { viewer, client, name: who, csrf } = match pages.api.admission.admit(&peer, &headers) {
        Ok(admitted) => admitted,
        Err(problem) => return refused(&site, problem),
    };
    peer.connection.mark_authenticated();
    (site.who, site.csrf) = (who, csrf);
    let search = match Search::<Vec<(String, String)>>::try_from_uri(&uri) {
        Ok(Search(search)) => search,
        Err(error) => return refused(&site, Problem::asked(error)),
    };
    let Some(turn) = pages.api.answers.turn(&client).await else { return refused(&site, Problem::unread()) };
    let waited = match pages.api.wait_for(needs, &client, &turn).await {
        Ok(waited) => waited,
        Err(problem) => return refused(&site, problem),
    };
    let (asked, busy) = (Arc::clone(&pages), pages.site());
    let work = move || {
        let visible = Visible::new(&viewer, &asked.api).after(&waited);
        match maker(&site, &visible, &Asked { name, search }) {
            Ok(made) => revalidated(made.into_response()),
            Err(problem) => refused(&site, problem),
        }
    };
    match pages.api.answers.make(turn, work).await {
        Some(response) => response,
        None => refused(&busy, Problem::busy()),
    }
}

impl Pages {
    fn site(&self) -> Site {
        Site {
            base: self.base.clone(),
            who: String::new(),
            csrf: None,
            has_logout: self.has_logout,
            has_stream: self.api.live.has_bus,
            is_file: false,
            now_ns: clock::realtime_ns(),
            zone: TimeZone::system(),
        }
    }
}

impl IntoResponse for Made {
    fn into_response(self) -> Response {
        match self {
            Made::Page(markup) => Html(markup.into_string()).into_response(),
            Made::Refused(markup) => (StatusCode::BAD_REQUEST, Html(markup.into_string())).into_response(),
            Made::File { name, content } => {
                let mut response = Html(content.into_string()).into_response();
                // The name has only letters, digits and hyphens.
                let disposition = format!("attachment; filename=\"{name}\"");
                if let Ok(value) = HeaderValue::from_str(&disposition) {
                    response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
                }
                response
            }
        }
    }
}

/// Why there is no such page, as a page; with the headers that a refusal has.
fn refused(site: &Site, problem: Problem) -> Response {
    let title = match problem.status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::BAD_REQUEST => "Something in the address is wrong",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::TOO_MANY_REQUESTS => "Too much at once",
        _ => "Something does not work",
    };
    let content = html! { h1 { (title) } (layout::notice("bad", &problem.reason)) };
    let is_stranger = matches!(problem.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let page = if is_stranger && site.who.is_empty() {
        // There is nowhere to go from here.
        layout::plain(Some(&site.to(&style_path())), title, &content)
    } else {
        let content = html! { div.narrow { (content) p { a href=(site.to("jobs")) { "All jobs" } } } };
        layout::page(site, None, title, None, &content)
    };
    let page = page.into_string();
    let mut response = problem.into_response();
    *response.body_mut() = page.into();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, html);
    revalidated(response)
}

/// Back shows the page as it was; a reload asks again. The rest of the headers is the listener's.
fn revalidated(mut response: Response) -> Response {
    let again = HeaderValue::from_static("private, no-cache");
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(again);
    response
}

/// The pages, for a test of what is in front of them.
#[cfg(test)]
pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().map(|(path, ..)| *path)
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
