//! The pages to log in and out: forms that need no script.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};

use super::cross_site::CSRF_FIELD;
use crate::pages::plain;

/// What a page offers and says.
#[derive(Clone, Debug, Default)]
pub(super) struct LoginPage<'a> {
    /// Before every path.
    pub(super) base: &'a str,
    /// Where styles are, if there are any.
    pub(super) style: Option<&'a str>,
    /// Where to go afterwards.
    pub(super) next: &'a str,
    pub(super) message: Option<&'a str>,
    pub(super) passwords: bool,
    pub(super) tokens: bool,
    pub(super) provider: bool,
}

impl LoginPage<'_> {
    pub(super) fn respond(&self, status: StatusCode) -> Response {
        let action = format!("{}/login", self.base);
        let provider = format!("{}{}?next={}", self.base, super::oidc::BEGIN, super::form::escape(self.next));
        let body = html! {
            h1 { "Log in" }
            @if let Some(message) = self.message { p.notice.bad role="alert" { (message) } }
            @if self.provider { p { a.button href=(provider) { "Log in with your organization" } } }
            @if self.passwords {
                form method="post" action=(action) {
                    input type="hidden" name="next" value=(self.next);
                    p { label for="user" { "User" } input id="user" name="user" autocomplete="username" required; }
                    p {
                        label for="password" { "Password" }
                        input id="password" name="password" type="password" autocomplete="current-password" required;
                    }
                    p { button { "Log in" } }
                }
            }
            @if self.tokens {
                form method="post" action=(action) {
                    input type="hidden" name="next" value=(self.next);
                    p {
                        label for="token" { "Token" }
                        input id="token" name="token" type="password" autocomplete="off" required;
                    }
                    p.dim { span { code { "met token" } " prints yours." } }
                    p { button { "Log in with a token" } }
                }
            }
            @if !self.provider && !self.passwords && !self.tokens {
                p { "No login is configured here. See http.web_config in the configuration." }
            }
        };
        page("Log in", self.style, &body, status)
    }
}

/// For a person who is logged in.
pub(super) fn logged_in(base: &str, style: Option<&str>, name: &str, csrf: &str) -> Response {
    let body = html! {
        h1 { "Logged in" }
        p { "You are logged in as " strong { (name) } ". " a href=(format!("{base}/")) { "Continue" } }
        form method="post" action=(format!("{base}/logout")) {
            input type="hidden" name=(CSRF_FIELD) value=(csrf);
            p { button { "Log out" } }
        }
    };
    page("Logged in", style, &body, StatusCode::OK)
}

fn page(title: &str, style: Option<&str>, body: &Markup, status: StatusCode) -> Response {
    (status, Html(plain(style, title, body).into_string())).into_response()
}
