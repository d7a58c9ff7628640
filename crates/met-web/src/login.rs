//! Who is at the other end of a request, and how people log in with a browser.
//!
//! A request proves a name by a token, by a password, by a reverse proxy or by the cookie of a session; a session begins
//! with a token, a password or an OpenID provider. What the name may see is for the [`Directory`] to say, each time:
//! a revoked token or a changed password ends its sessions. Which jobs a viewer sees: `met_query::viewer`.

pub(crate) mod attempts;
pub mod audit;
mod cookies;
pub mod cross_site;
pub(crate) mod form;
pub(crate) mod guard;
mod next;
mod oidc;
mod page;
mod proxy;
pub(crate) mod random;
mod routes;
mod sessions;

use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use met_config::Login;
use ring::hmac;

use crate::api::{Admission, Admitted};
use crate::listener::{PasswordFile, Peer, Refused, in_background};
use crate::problem::Problem;
use audit::{Audit, Event};
pub use cookies::CookieShape;
pub use guard::guard;
use oidc::Oidc;
use proxy::{Named, SECRET_LETTERS_MIN, TrustedProxy};
use sessions::Sessions;

const NAME_BYTES_MAX: usize = 128;
const SECRET_BYTES_MAX: u64 = 4096;
/// Below these, handlers or the guard find out who asks; for [`crate::listener::Options::own_checks`].
pub const OWN_CHECKS: &[&str] = &[
    crate::api::ROOT,
    "/",
    "/jobs",
    "/nodes",
    "/usage",
    "/compare",
    "/who",
    "/findings",
    "/assets",
    "/login",
    "/logout",
];

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub name: String,
    pub proof: Proof,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The hash of a token.
    Token(Vec<u8>),
    /// What the password was when it was given.
    Password(Vec<u8>),
    Proxy,
    Provider,
}

impl Proof {
    fn word(&self) -> &'static str {
        match self {
            Proof::Token(_) => "token",
            Proof::Password(_) => "password",
            Proof::Proxy => "proxy",
            Proof::Provider => "oidc",
        }
    }
}

/// Work that may take its time.
pub type Errand = Box<dyn FnOnce() + Send>;

/// What a daemon or a server knows of people.
pub trait Directory: Send + Sync {
    /// Whose token this is.
    fn by_token(&self, token: &str) -> Result<Option<Person>, Problem>;
    /// What a person sees now; a problem for those who see nothing here, and for a token that was revoked.
    fn admit(&self, person: &Person) -> Result<Admitted, Problem>;
    /// What [`Directory::admit`] would wait for, if anything. It is done first, beside the thread that listens.
    fn look_up(&self, _: &Person) -> Option<Errand> {
        None
    }
    /// Whether tokens are known at all.
    fn has_tokens(&self) -> bool;
    /// What a request needs, for those who prove nothing.
    fn needed(&self) -> &'static str;
}

/// Names as clusters have them. Other letters could imitate another user's name.
pub fn is_person_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// All ways to log in.
pub struct Logins {
    directory: Arc<dyn Directory>,
    passwords: Arc<PasswordFile>,
    sessions: Sessions,
    proxy: Option<TrustedProxy>,
    oidc: Option<Oidc>,
    audit: Arc<Audit>,
    public: Public,
    cookie: CookieShape,
    /// For the write tokens of people whom a proxy names: they have no session.
    key: hmac::Key,
    style: Option<String>,
}

/// Under which address browsers see the listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Public {
    /// Without a slash at its end.
    url: Option<String>,
    is_https: bool,
    host: Option<String>,
    /// The path before all of ours, without a slash at its end.
    base: String,
}

impl Public {
    fn parse(url: Option<&str>) -> Result<Public, String> {
        let Some(url) = url.map(|url| url.trim_end_matches('/')) else { return Ok(Public::default()) };
        let bad = || {
            format!("login.public_url: {url:?} is not an address; write https://HOST or https://HOST/PATH")
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = |text: &str, more: &[u8]| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        let fits = matches!(scheme, "http" | "https") && !host.is_empty();
        if !fits || !is_plain(host, b".-:[]") || !is_plain(path, b"/-_.~") || path.contains("//") {
            return Err(bad());
        }
        let (is_https, host, base) = (scheme == "https", Some(host.to_owned()), path.to_owned());
        Ok(Public { url: Some(url.to_owned()), is_https, host, base })
    }
}

impl Logins {
    /// Why it refuses is for the person who wrote the configuration. `has_socket`: there is one for a proxy; `style`:
    /// the address of a style sheet for the login page.
    pub fn open(
        login: &Login,
        has_socket: bool,
        directory: Arc<dyn Directory>,
        passwords: Arc<PasswordFile>,
        style: Option<String>,
    ) -> Result<Logins, String> {
        let Checked { public, proxy, oidc } = Checked::of(login, has_socket)?;
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        let audit = Audit::start(login.audit_file.as_deref()).map(Arc::new).map_err(|error| {
            let path = login.audit_file.as_deref().unwrap_or(Path::new(""));
            format!("login.audit_file: {}: {error}", path.display())
        })?;
        let of_listener = Arc::clone(&audit);
        passwords.on_refusal(Box::new(move |peer: &Peer, refused: Refused<'_>| {
            let Refused { name, request, status, reason } = refused;
            let status = Some(status.as_u16());
            let event = Event { name, by: "password", request, status, reason, ..Event::default() };
            of_listener.note_refusal(peer, event);
        }));
        Ok(Logins {
            cookie: CookieShape { name: "met".to_owned(), path: format!("{}/", public.base) },
            sessions: Sessions::new(login.session),
            key: key.map_err(|_| "no random numbers")?,
            directory,
            passwords,
            audit,
            public,
            proxy,
            oidc,
            style,
        })
    }

    fn is_secure(&self, peer: &Peer) -> bool {
        peer.is_tls || self.public.is_https
    }

    /// Where attempts are counted; `None` behind a proxy, where all clients have one address.
    fn address(&self, peer: &Peer, headers: &HeaderMap) -> Option<IpAddr> {
        let is_proxy = self.proxy.as_ref().is_some_and(|proxy| proxy.is_trusted(peer, headers));
        (!is_proxy && peer.uid.is_none()).then(|| peer.address.ip())
    }

    /// Who sends a request, and what a write of theirs must carry.
    fn person(&self, peer: &Peer, headers: &HeaderMap) -> Result<(Person, Option<String>), Problem> {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(token) = shown.and_then(|shown| shown.strip_prefix("Bearer ")) {
            let person = self.directory.by_token(token.trim())?;
            return person.map(|person| (person, None)).ok_or_else(unknown_token);
        }
        if let Some(name) = &peer.user {
            // A stream stays open while passwords change.
            let now = self.passwords.fingerprint(name).filter(|now| peer.password.as_ref() == Some(now));
            let proof = Proof::Password(now.ok_or_else(|| unauthorized("this password is no longer valid"))?);
            return Ok((Person { name: name.clone(), proof }, None));
        }
        match self.proxy.as_ref().map_or(Named::Nobody, |proxy| proxy.person(peer, headers)) {
            Named::Person(name) => {
                let csrf = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, name.as_bytes()));
                return Ok((Person { name, proof: Proof::Proxy }, Some(csrf)));
            }
            Named::Unclear => {
                let reason = "the reverse proxy must send one user name, of ASCII letters without spaces";
                return Err(Problem::asked(reason));
            }
            Named::Nobody => {}
        }
        self.of_session(peer, headers).ok_or_else(|| unauthorized(self.directory.needed()))
    }

    /// As [`Admission::admit`], without blocking the thread that listens. After it, that does not block either.
    async fn admit_in_time(&self, peer: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem> {
        let (person, csrf) = self.person(peer, headers)?;
        self.look_up(&person).await;
        Ok(Admitted { csrf, ..self.directory.admit(&person)? })
    }

    async fn look_up(&self, person: &Person) {
        if let Some(errand) = self.directory.look_up(person) {
            in_background(errand).await;
        }
    }

    fn of_session(&self, peer: &Peer, headers: &HeaderMap) -> Option<(Person, Option<String>)> {
        let cookies = self.cookie.values(headers, "", self.is_secure(peer));
        let (cookie, session) =
            cookies.into_iter().find_map(|cookie| Some((cookie, self.sessions.get(cookie)?)))?;
        if let Proof::Password(before) = &session.person.proof
            && self.passwords.fingerprint(&session.person.name).as_ref() != Some(before)
        {
            self.sessions.end(cookie);
            return None;
        }
        Some((session.person, Some(session.csrf)))
    }
}

impl Admission for Logins {
    fn admit(&self, peer: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem> {
        let (person, csrf) = self.person(peer, headers)?;
        Ok(Admitted { csrf, ..self.directory.admit(&person)? })
    }
}

/// What the configuration says of logins, read and without contradictions.
struct Checked {
    public: Public,
    proxy: Option<TrustedProxy>,
    oidc: Option<Oidc>,
}

impl Checked {
    fn of(login: &Login, has_socket: bool) -> Result<Checked, String> {
        let public = Public::parse(login.public_url.as_deref())?;
        let secret = login.oidc_client_secret_file.as_deref();
        let secret = secret.map(|path| secret_in(path, "login.oidc_client_secret_file", 1)).transpose()?;
        let oidc = Oidc::open(login, secret, public.url.as_deref())?;
        Ok(Checked { public, proxy: trusted_proxy(login, has_socket)?, oidc })
    }
}

/// Why [`Logins::open`] would refuse, found without opening anything for writing.
pub fn check(login: &Login, has_socket: bool) -> Result<(), String> {
    Checked::of(login, has_socket).map(drop)
}

fn unauthorized(reason: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, reason)
}

fn unknown_token() -> Problem {
    unauthorized("unknown token; run on the server: met server enroll NAME")
}

fn trusted_proxy(login: &Login, has_socket: bool) -> Result<Option<TrustedProxy>, String> {
    if login.proxy_user.is_none() && login.proxy_secret_file.is_none() {
        return Ok(None);
    }
    let header = HeaderName::try_from(login.proxy_header.as_str());
    let header =
        header.map_err(|_| format!("login.proxy_header: {:?} is not a header", login.proxy_header))?;
    let uid = match login.proxy_user.as_deref() {
        Some(_) if !has_socket => return Err("login.proxy_user needs http.socket".to_owned()),
        Some(user) => {
            let uid = user.parse().ok().or_else(|| met_host::users::uid_of(user));
            Some(uid.ok_or_else(|| format!("login.proxy_user: there is no user {user:?}"))?)
        }
        None => None,
    };
    let secret = login.proxy_secret_file.as_deref();
    let secret =
        secret.map(|path| secret_in(path, "login.proxy_secret_file", SECRET_LETTERS_MIN)).transpose()?;
    Ok(Some(TrustedProxy { header, uid, secret }))
}

/// One line of a file that only its owner may read.
fn secret_in(path: &Path, key: &str, letters_min: usize) -> Result<String, String> {
    let refuse = |why: String| format!("{key}: {}: {why}", path.display());
    let file = std::fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mode = file.metadata().map_err(|error| refuse(error.to_string()))?.mode();
    if mode & 0o077 != 0 {
        return Err(refuse(format!("others may read it; close it with: chmod 600 {}", path.display())));
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
    let secret = text.trim();
    if secret.len() < letters_min || secret.bytes().any(|byte| !byte.is_ascii_graphic()) {
        let form = format!("a secret of one line and at least {letters_min} letters is needed");
        return Err(refuse(format!("{form}; make one with: openssl rand -hex 32")));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
