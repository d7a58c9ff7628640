//! Checks passwords against their bcrypt hashes. A check is expensive by design, so successful ones are cached.

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{hmac, rand};

use super::peer::Peer;
use crate::login::attempts::Attempts;

/// Checks that may be queued. Later clients are asked to retry.
const WAITING_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Right,
    Wrong,
    /// Too many are being checked.
    Busy,
}

/// The passwords of the web configuration as it is now, for those who check one outside the listener.
#[derive(Default)]
pub struct PasswordFile {
    current: Mutex<Option<Arc<Passwords>>>,
    /// Of all who give a password, in a form or with a request.
    pub attempts: Attempts,
    on_refusal: OnceLock<OnRefusal>,
}

/// A login that failed at the listener, before its request reached a route.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// A known user's, or empty: a name that is not known may be a password in the wrong field.
    pub name: &'a str,
    pub request: &'a str,
    pub status: StatusCode,
    pub reason: &'a str,
}

pub type OnRefusal = Box<dyn Fn(&Peer, Refused<'_>) + Send + Sync>;

impl std::fmt::Debug for PasswordFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PasswordFile").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl PasswordFile {
    /// Is called with every login that fails at the listener itself. The first one stays.
    pub fn on_refusal(&self, noted: OnRefusal) {
        let _ = self.on_refusal.set(noted);
    }

    pub(super) fn refused(&self, peer: &Peer, user: &str, request: &str, refusal: &Response<Body>) {
        let Some(noted) = self.on_refusal.get() else { return };
        let (name, status) = (if self.fingerprint(user).is_some() { user } else { "" }, refusal.status());
        let reason = match status {
            StatusCode::UNAUTHORIZED => "wrong user or password",
            _ => "too many failed logins",
        };
        noted(peer, Refused { name, request, status, reason });
    }

    pub(super) fn replace(&self, passwords: &Arc<Passwords>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(passwords));
    }

    fn current(&self) -> Option<Arc<Passwords>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_empty(&self) -> bool {
        self.current().is_none_or(|passwords| passwords.is_empty())
    }

    pub async fn check(&self, user: &str, password: &str) -> Verdict {
        match self.current().filter(|passwords| !passwords.is_empty()) {
            Some(passwords) => passwords.check(user, password).await,
            None => Verdict::Wrong,
        }
    }

    /// Another one when the user's password has changed; `None` if there is no such user any more.
    pub fn fingerprint(&self, user: &str) -> Option<Vec<u8>> {
        self.current()?.fingerprint(user)
    }

    #[cfg(test)]
    pub(crate) fn set(&self, hashes: BTreeMap<String, String>) {
        self.replace(&Arc::new(Passwords::new(hashes).unwrap()));
    }
}

pub(super) struct Passwords {
    hashes: BTreeMap<String, String>,
    /// Keeps the cached values from being useful in a core dump.
    key: hmac::Key,
    right: Mutex<HashSet<Vec<u8>>>,
    waiting: AtomicUsize,
    /// One check at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Passwords {
    /// Hashes stay out of logs.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} passwords", self.hashes.len())
    }
}

impl Passwords {
    /// `None`: the machine gives no random numbers.
    pub(super) fn new(hashes: BTreeMap<String, String>) -> Option<Passwords> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok()?;
        Some(Passwords {
            hashes,
            key,
            right: Mutex::default(),
            waiting: AtomicUsize::new(0),
            turn: Mutex::default(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    pub(super) fn fingerprint(&self, user: &str) -> Option<Vec<u8>> {
        let hash = self.hashes.get(user)?;
        Some(ring::digest::digest(&ring::digest::SHA256, hash.as_bytes()).as_ref().to_vec())
    }

    /// Whether this was found right before.
    pub(super) fn is_known(&self, user: &str, password: &str) -> bool {
        let mark = self.mark(user, password);
        self.right.lock().unwrap_or_else(PoisonError::into_inner).contains(&mark)
    }

    pub(super) async fn check(self: &Arc<Self>, user: &str, password: &str) -> Verdict {
        if self.is_known(user, password) {
            return Verdict::Right;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Verdict::Busy;
        }
        let mark = self.mark(user, password);
        let (own, user, password) = (Arc::clone(self), user.to_owned(), password.to_owned());
        let checked = tokio::task::spawn_blocking(move || {
            let is_right = own.compare(&user, &password);
            own.waiting.fetch_sub(1, Ordering::Relaxed);
            is_right
        });
        if !checked.await.unwrap_or(false) {
            return Verdict::Wrong;
        }
        // One for each user at most: there is one right password.
        self.right.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
        Verdict::Right
    }

    fn mark(&self, user: &str, password: &str) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        context.update(password.as_bytes());
        context.sign().as_ref().to_vec()
    }

    fn compare(&self, user: &str, password: &str) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        // An unknown user takes as long as a known one, so that names cannot be probed.
        let known = self.hashes.get(user);
        let hash = known.or_else(|| self.hashes.values().next());
        let fits = hash.is_some_and(|hash| bcrypt::verify(password, hash).unwrap_or(false));
        let is_right = fits && known.is_some();
        if !is_right {
            // Guessing gets a quarter of a core at most.
            std::thread::sleep(begin.elapsed() * 3);
        }
        is_right
    }
}

/// User and password of an `Authorization` header.
pub(super) fn basic(header: &str) -> Option<(String, String)> {
    let (scheme, text) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()?;
    let (user, password) = pair.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Whether it is a hash that can be checked at all.
pub(super) fn is_hash(text: &str) -> bool {
    bcrypt::HashParts::from_str(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn user_and_password_are_split_at_the_first_colon() {
        let read = |text: &str| basic(&format!("basic {}", STANDARD.encode(text)));
        assert_eq!(read("ann:se:cret"), Some(("ann".to_owned(), "se:cret".to_owned())));
        assert_eq!(read("ann"), None);
        assert_eq!(basic("Bearer YW5uOng="), None);
        assert_eq!(basic("Basic ***"), None);
    }

    #[test]
    fn a_user_has_one_password_and_an_unknown_user_none() {
        let hash = bcrypt::hash("secret", 4).unwrap();
        assert!(is_hash(&hash) && !is_hash("secret") && !is_hash("$1$abc$def"));
        let passwords = Passwords::new(BTreeMap::from([("ann".to_owned(), hash)])).unwrap();
        assert!(passwords.compare("ann", "secret"));
        assert!(!passwords.compare("ann", "Secret"));
        assert!(!passwords.compare("bob", "secret"), "another user's hash only takes the time");
    }

    #[test]
    fn a_changed_password_has_another_fingerprint_and_a_removed_user_none() {
        let file = PasswordFile::default();
        assert!(file.is_empty() && file.fingerprint("ann").is_none());
        let with = |user: &str, password: &str| {
            let hashes = BTreeMap::from([(user.to_owned(), bcrypt::hash(password, 4).unwrap())]);
            file.replace(&Arc::new(Passwords::new(hashes).unwrap()));
            file.fingerprint("ann")
        };
        let first = with("ann", "secret").unwrap();
        assert_ne!(with("ann", "other").unwrap(), first);
        assert_eq!(with("bob", "secret"), None);
    }

    #[test]
    fn a_cached_login_is_valid_for_no_other_user() {
        let passwords = Passwords::new(BTreeMap::new()).unwrap();
        assert_ne!(passwords.mark("ann", "x"), passwords.mark("an", "nx"));
        assert_eq!(passwords.mark("ann", "x"), passwords.mark("ann", "x"));
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_not(header in ".{0,80}") {
            let _ = basic(&header);
        }
    }
}
