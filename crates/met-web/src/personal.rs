//! A listener on loopback for one person: everything is below a random path, and only who was given a ticket gets in.
//!
//! Every user of a machine can reach its loopback addresses, a page of any site can make a browser send requests there,
//! and browsers send cookies to all ports of a host. So paths, the cookie's name and its value are random; a ticket is
//! worth one login; and a `Host` that is not this listener's is refused.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Query as Search, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use met_query::viewer::Viewer;
use tower_service::Service;

use crate::api::{Admission, Admitted, Api};
use crate::listener::Peer;
use crate::login::cross_site::{is_cross_site, is_write};
use crate::login::guard::with_token;
use crate::login::random::{is_same, secret};
use crate::pages::{self, Pages};
use crate::problem::Problem;

/// Tickets that wait to be used; the oldest makes room.
const TICKETS_MAX: usize = 16;

/// What only this listener and its person know.
pub struct Personal {
    /// The path that everything is below, with a slash at both ends.
    pub base: String,
    /// With it, tickets are made.
    pub control: String,
    name: String,
    cookie: String,
    session: String,
    /// What writes must carry. A page of another port is of the same site for a browser, and gets the cookie sent.
    csrf: String,
    tickets: Mutex<VecDeque<String>>,
    asked: Mutex<Instant>,
    /// Known when it listens.
    port: OnceLock<u16>,
}

impl Personal {
    /// For this person. `None`: the machine has no random numbers.
    pub fn new(name: &str) -> Option<Arc<Personal>> {
        Some(Arc::new(Personal {
            base: format!("/{}/", secret()?),
            control: secret()?,
            name: name.to_owned(),
            cookie: format!("met-{}", secret()?),
            session: secret()?,
            csrf: secret()?,
            tickets: Mutex::default(),
            asked: Mutex::new(Instant::now()),
            port: OnceLock::new(),
        }))
    }

    /// Requests are answered from now on, if they name this port.
    pub fn listens_on(&self, port: u16) {
        self.port.get_or_init(|| port);
    }

    /// A ticket, good for one login.
    pub fn ticket(&self) -> Option<String> {
        let ticket = secret()?;
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.push_back(ticket.clone());
        if tickets.len() > TICKETS_MAX {
            tickets.pop_front();
        }
        Some(ticket)
    }

    /// Time since the last request.
    pub fn idle(&self) -> Duration {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn take(&self, ticket: &str) -> bool {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let before = tickets.len();
        tickets.retain(|known| !is_same(known, ticket));
        tickets.len() < before
    }
}

impl Admission for Personal {
    fn admit(&self, _: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        if !pairs.any(|(name, value)| name == self.cookie && is_same(value, &self.session)) {
            let reason =
                "this link has been used, or belongs to another browser; run `met web` for a new one";
            return Err(Problem::new(StatusCode::FORBIDDEN, reason));
        }
        let client = "owner".to_owned();
        Ok(Admitted {
            viewer: Viewer::Everything,
            client,
            name: self.name.clone(),
            csrf: Some(self.csrf.clone()),
        })
    }
}

/// Pages and API below the random path, the way in, and nothing else.
pub fn router(personal: &Arc<Personal>, api: Api) -> Router {
    let api = Arc::new(api);
    let pages = Pages { api: Arc::clone(&api), base: personal.base.clone(), has_logout: false };
    let inner = pages::router(Arc::new(pages)).merge(crate::api::router(api));
    let personal = Arc::clone(personal);
    Router::new().fallback(move |request: Request| answer(Arc::clone(&personal), inner.clone(), request))
}

async fn answer(personal: Arc<Personal>, mut inner: Router, mut request: Request) -> Response {
    if !is_own_host(request.headers(), personal.port.get()) {
        return (StatusCode::MISDIRECTED_REQUEST, "this listener has another name\n").into_response();
    }
    let Some(path) = request.uri().path().strip_prefix(&personal.base).map(str::to_owned) else {
        return (StatusCode::NOT_FOUND, "not found\n").into_response();
    };
    *personal.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    if let Some(ticket) = path.strip_prefix("enter/") {
        return enter(&personal, ticket, request.method(), request.uri());
    }
    if path == "ticket" {
        return new_ticket(&personal, &request);
    }
    if is_write(request.method()) {
        if is_cross_site(request.headers(), None) {
            return Problem::new(StatusCode::FORBIDDEN, "a page of another site sent this").into_response();
        }
        request = match with_token(request, &personal.csrf).await {
            Some(request) => request,
            None => {
                return Problem::new(StatusCode::FORBIDDEN, "a write needs the token of its page")
                    .into_response();
            }
        };
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    match format!("/{path}{query}").parse::<Uri>() {
        Ok(uri) => *request.uri_mut() = uri,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
    inner.call(request).await.unwrap_or_else(|never| match never {})
}

/// A ticket becomes a cookie; the browser goes on without the ticket in its address.
fn enter(personal: &Personal, ticket: &str, method: &Method, uri: &Uri) -> Response {
    if method != Method::GET || !personal.take(ticket) {
        let content = html! {
            h1 { "This link no longer works" }
            p { (pages::said("It has been used already. Run `met web` for a new one.")) }
        };
        let style = format!("{}{}", personal.base, pages::style_path());
        let page = pages::plain(Some(&style), "This link no longer works", &content).into_string();
        return (StatusCode::FORBIDDEN, Html(page)).into_response();
    }
    let search: Vec<(String, String)> =
        Search::try_from_uri(uri).map(|Search(search)| search).unwrap_or_default();
    let next = search.into_iter().find(|(name, _)| name == "next").map(|(_, next)| next).unwrap_or_default();
    let cookie =
        format!("{}={}; Path={}; HttpOnly; SameSite=Lax", personal.cookie, personal.session, personal.base);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let location = HeaderValue::from_str(&format!("{}{next}", personal.base));
    let location = location.or_else(|_| HeaderValue::from_str(&personal.base));
    let headers = response.headers_mut();
    if let (Ok(location), Ok(cookie)) = (location, HeaderValue::from_str(&cookie)) {
        headers.insert(header::LOCATION, location);
        headers.insert(header::SET_COOKIE, cookie);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// For the same person on the command line, who can read the control secret.
fn new_ticket(personal: &Personal, request: &Request) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|given| given.strip_prefix("Bearer "));
    if request.method() != Method::POST || !given.is_some_and(|given| is_same(given, &personal.control)) {
        return (StatusCode::FORBIDDEN, "not allowed\n").into_response();
    }
    match personal.ticket() {
        Some(ticket) => ticket.into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no random numbers\n").into_response(),
    }
}

/// Whether a request names this listener: a page of another site may have its own name point here.
fn is_own_host(headers: &HeaderMap, own: Option<&u16>) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else {
        return false;
    };
    let Some((name, port)) = host.rsplit_once(':') else { return false };
    let is_local = matches!(name, "127.0.0.1" | "localhost" | "[::1]");
    is_local && port.parse().ok().as_ref() == own
}

#[cfg(test)]
#[path = "personal_tests.rs"]
mod tests;
