//! `/login` and `/logout`.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::audit::Event;
use super::oidc::{self, LOGIN_WITHIN_S, NotLoggedIn};
use super::page::{self, LoginPage};
use super::{Logins, Person, Proof, form, is_person_name, next, unknown_token};
use crate::listener::{Peer, Verdict};

const FORM_BYTES_MAX: usize = 16 << 10;
/// The cookie of a login that is under way at a provider.
const PENDING: &str = "-oidc";

pub(super) fn routes(logins: &Arc<Logins>) -> Router {
    Router::new()
        .route("/login", get(show).post(log_in))
        .route("/logout", get(show).post(log_out))
        .route(oidc::BEGIN, get(begin))
        .route(oidc::CALLBACK, get(finish))
        .with_state(Arc::clone(logins))
}

impl Logins {
    fn page(&self, next: &str, message: Option<&str>, status: StatusCode) -> Response {
        let page = LoginPage {
            base: &self.public.base,
            style: self.style.as_deref(),
            next,
            message,
            passwords: !self.passwords.is_empty(),
            tokens: self.directory.has_tokens(),
            provider: self.oidc.is_some(),
        };
        page.respond(status)
    }

    /// Begins a session, which always has a new cookie: one that an attacker planted stays without a session.
    async fn welcome(&self, peer: &Peer, headers: &HeaderMap, person: Person, next: &str) -> Response {
        self.look_up(&person).await;
        if let Err(problem) = self.directory.admit(&person) {
            self.refused(peer, &person.name, person.proof.word(), &problem.reason);
            return self.page(next, Some(&problem.reason), problem.status);
        }
        let is_secure = self.is_secure(peer);
        for old in self.cookie.values(headers, "", is_secure) {
            self.sessions.end(old);
        }
        let (name, by) = (person.name.clone(), person.proof.word());
        let Some(cookie) = self.sessions.begin(person) else {
            return self.page(next, Some("no random numbers"), StatusCode::SERVICE_UNAVAILABLE);
        };
        self.audit.note(peer, Event { what: "login", name: &name, by, ..Event::default() });
        let cookie = self.cookie.set("", &cookie, self.sessions.lifetime.as_secs(), is_secure);
        let mut response = see_other(&format!("{}{}", self.public.base, next::own_path(next)));
        response.headers_mut().append(header::SET_COOKIE, cookie);
        response
    }

    pub(super) fn refused(&self, peer: &Peer, name: &str, by: &'static str, reason: &str) {
        self.audit.note_refusal(peer, Event { name, by, reason, ..Event::default() });
    }

    /// Where a browser logs in that wants this page.
    pub(super) fn to_login(&self, uri: &Uri) -> Response {
        see_other(&format!("{}/login?next={}", self.public.base, form::escape(&next::of(uri))))
    }
}

fn see_other(location: &str) -> Response {
    let location = HeaderValue::try_from(location).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

fn query(uri: &Uri) -> Vec<(String, String)> {
    form::parse(uri.query().unwrap_or_default().as_bytes())
}

async fn show(
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    if let Ok(admitted) = logins.admit_in_time(&peer, &headers).await
        && let Some(csrf) = &admitted.csrf
    {
        return page::logged_in(&logins.public.base, logins.style.as_deref(), &admitted.name, csrf);
    }
    let fields = query(&uri);
    logins.page(next::own_path(form::field(&fields, "next").unwrap_or("/")), None, StatusCode::OK)
}

async fn log_in(
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !form::is_form(&headers) {
        return logins.page("/", Some("this is not a form"), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let Ok(body) = to_bytes(body, FORM_BYTES_MAX).await else {
        return logins.page("/", Some("the form is too large"), StatusCode::PAYLOAD_TOO_LARGE);
    };
    let fields = form::parse(&body);
    let next = next::own_path(form::field(&fields, "next").unwrap_or("/"));
    let (user, token) = (form::field(&fields, "user").unwrap_or_default(), form::field(&fields, "token"));
    let (address, named) = (logins.address(&peer, &headers), Some(user).filter(|_| token.is_none()));
    if let Some(wait) = logins.passwords.attempts.wait(address, named) {
        logins.refused(&peer, "", "form", "too many failed logins");
        let message = "too many failed logins; try again in a few minutes";
        let mut response = logins.page(next, Some(message), StatusCode::TOO_MANY_REQUESTS);
        response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
        return response;
    }
    let proven = match token {
        Some(token) => by_token(&logins, token),
        None => by_password(&logins, user, form::field(&fields, "password").unwrap_or_default()).await,
    };
    match proven {
        Ok(person) => {
            logins.passwords.attempts.succeeded(address, named);
            logins.welcome(&peer, &headers, person, next).await
        }
        Err((status, reason)) => {
            if status == StatusCode::UNAUTHORIZED {
                logins.passwords.attempts.failed(address, named);
            }
            // A name that is not known may be a password in the wrong field.
            let name = if logins.passwords.fingerprint(user).is_some() { user } else { "" };
            logins.refused(&peer, name, if token.is_some() { "token" } else { "password" }, &reason);
            logins.page(next, Some(&reason), status)
        }
    }
}

type Proven = Result<Person, (StatusCode, String)>;

fn by_token(logins: &Logins, token: &str) -> Proven {
    let found = logins.directory.by_token(token.trim());
    let found = found.and_then(|person| person.ok_or_else(unknown_token));
    found.map_err(|problem| match problem.status {
        StatusCode::UNAUTHORIZED => (problem.status, "unknown token".to_owned()),
        status => (status, problem.reason),
    })
}

async fn by_password(logins: &Logins, user: &str, password: &str) -> Proven {
    match logins.passwords.check(user, password).await {
        Verdict::Right if is_person_name(user) => {
            let proof = Proof::Password(logins.passwords.fingerprint(user).unwrap_or_default());
            Ok(Person { name: user.to_owned(), proof })
        }
        Verdict::Busy => {
            Err((StatusCode::TOO_MANY_REQUESTS, "too many logins in progress; try again".to_owned()))
        }
        Verdict::Right | Verdict::Wrong => {
            Err((StatusCode::UNAUTHORIZED, "wrong user or password".to_owned()))
        }
    }
}

/// The guard has checked that the person's own page sent this.
async fn log_out(
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let is_secure = logins.is_secure(&peer);
    for cookie in logins.cookie.values(&headers, "", is_secure) {
        if let Some(person) = logins.sessions.end(cookie) {
            let (name, by) = (person.name.as_str(), person.proof.word());
            logins.audit.note(&peer, Event { what: "logout", name, by, ..Event::default() });
        }
    }
    let mut response = see_other(&format!("{}/login", logins.public.base));
    response.headers_mut().append(header::SET_COOKIE, logins.cookie.set("", "", 0, is_secure));
    response
}

async fn begin(State(logins): State<Arc<Logins>>, Extension(peer): Extension<Peer>, uri: Uri) -> Response {
    let Some(oidc) = &logins.oidc else { return StatusCode::NOT_FOUND.into_response() };
    let fields = query(&uri);
    let next = next::own_path(form::field(&fields, "next").unwrap_or("/"));
    match oidc.begin(next).await {
        Ok((location, cookie)) => {
            let mut response = see_other(&location);
            let cookie = logins.cookie.set(PENDING, &cookie, LOGIN_WITHIN_S, logins.is_secure(&peer));
            response.headers_mut().append(header::SET_COOKIE, cookie);
            response
        }
        Err(why) => not_logged_in(&logins, &peer, why),
    }
}

async fn finish(
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let Some(oidc) = &logins.oidc else { return StatusCode::NOT_FOUND.into_response() };
    let is_secure = logins.is_secure(&peer);
    let pending = logins.cookie.values(&headers, PENDING, is_secure);
    let cookie = pending.first().copied().unwrap_or_default();
    let mut response = match oidc.finish(cookie, &query(&uri)).await {
        Ok((name, next)) => {
            logins.welcome(&peer, &headers, Person { name, proof: Proof::Provider }, &next).await
        }
        Err(why) => not_logged_in(&logins, &peer, why),
    };
    response.headers_mut().append(header::SET_COOKIE, logins.cookie.set(PENDING, "", 0, is_secure));
    response
}

fn not_logged_in(logins: &Logins, peer: &Peer, why: NotLoggedIn) -> Response {
    let (status, message) = match why {
        NotLoggedIn::Busy => {
            (StatusCode::TOO_MANY_REQUESTS, "too many logins in progress; try again".to_owned())
        }
        NotLoggedIn::Stale => {
            (StatusCode::BAD_REQUEST, "this login was not begun here or took too long".to_owned())
        }
        NotLoggedIn::Provider(reason) => {
            tracing::warn!("login by the OpenID provider failed: {reason:?}");
            (StatusCode::BAD_GATEWAY, format!("login failed: {reason}"))
        }
    };
    logins.refused(peer, "", "oidc", &message);
    logins.page("/", Some(&message), status)
}
