//! Login by an OpenID provider: authorization code with PKCE.
//!
//! What has to be remembered on the way travels in a sealed cookie: a client that begins a thousand logins takes no
//! memory here, and a code works only in the browser that began.

mod provider;
mod token;

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use met_host::clock;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};

use super::form;
use super::random::{is_same, secret};
use met_config::Login;
use provider::Provider;
use token::Expected;

/// Under the address of the listener.
pub(super) const BEGIN: &str = "/login/oidc";
pub(super) const CALLBACK: &str = "/login/oidc/callback";
/// How long a person may take at the provider.
pub(super) const LOGIN_WITHIN_S: u64 = 600;
/// Conversations with the provider at once, each in a thread: one that hangs blocks no other request.
const AT_ONCE: usize = 4;
const CODE_BYTES_MAX: usize = 4096;

pub struct Oidc {
    provider: Arc<Provider>,
    claim: String,
    scopes: String,
    redirect: String,
    key: LessSafeKey,
    turns: Arc<Semaphore>,
}

/// A login that began.
#[derive(Debug, Serialize, Deserialize)]
struct Pending {
    state: String,
    nonce: String,
    verifier: String,
    next: String,
    begun_s: i64,
}

/// Why a login failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotLoggedIn {
    /// Too many at once.
    Busy,
    /// The person can begin again.
    Stale,
    /// As the provider says, or what is wrong with that.
    Provider(String),
}

impl Oidc {
    /// `None` where no provider is configured. `public_url` is without a slash at its end.
    pub(super) fn open(
        login: &Login,
        secret: Option<String>,
        public_url: Option<&str>,
    ) -> Result<Option<Oidc>, String> {
        let Some(issuer) = &login.oidc_issuer else { return Ok(None) };
        let client_id = login.oidc_client_id.clone().filter(|id| !id.is_empty());
        let client_id = client_id.ok_or("login.oidc_issuer needs login.oidc_client_id")?;
        let public_url =
            public_url.ok_or("login.oidc_issuer needs login.public_url, to which the provider returns")?;
        let provider = Provider::new(issuer.clone(), client_id, secret, login.oidc_ca_file.as_deref())?;
        Ok(Some(Oidc {
            provider: Arc::new(provider),
            claim: login.oidc_user_claim.clone(),
            scopes: login.oidc_scopes.clone(),
            redirect: format!("{public_url}{CALLBACK}"),
            key: sealing_key().ok_or("no random numbers")?,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }))
    }

    /// Where the browser goes, and the cookie that it brings back.
    pub(super) async fn begin(&self, next: &str) -> Result<(String, String), NotLoggedIn> {
        let provider = Arc::clone(&self.provider);
        let about = self.beside(move || provider.about()).await?;
        let random = || secret().ok_or_else(|| NotLoggedIn::Provider("no random numbers".to_owned()));
        let pending = Pending {
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            next: next.to_owned(),
            begun_s: now_s(),
        };
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, pending.verifier.as_bytes()));
        let query = form::encode(&[
            ("response_type", "code"),
            ("client_id", self.provider.client_id()),
            ("redirect_uri", &self.redirect),
            ("scope", &self.scopes),
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let joint = if about.authorization.contains('?') { '&' } else { '?' };
        let cookie = seal(&self.key, &pending).ok_or(NotLoggedIn::Stale)?;
        Ok((format!("{}{joint}{query}", about.authorization), cookie))
    }

    /// Who came back from the provider, and where to.
    pub(super) async fn finish(
        &self,
        cookie: &str,
        fields: &[(String, String)],
    ) -> Result<(String, String), NotLoggedIn> {
        let pending = unseal(&self.key, cookie).ok_or(NotLoggedIn::Stale)?;
        let age_s = now_s().saturating_sub(pending.begun_s);
        let is_ours = form::field(fields, "state").is_some_and(|state| is_same(state, &pending.state));
        if !is_ours || !(0..LOGIN_WITHIN_S as i64).contains(&age_s) {
            return Err(NotLoggedIn::Stale);
        }
        // Who answers under another name mixes up two providers.
        if form::field(fields, "iss").is_some_and(|issuer| issuer != self.provider.issuer()) {
            return Err(NotLoggedIn::Provider("the answer is of another provider".to_owned()));
        }
        if let Some(error) = form::field(fields, "error") {
            let error: String = error.chars().filter(char::is_ascii_graphic).take(100).collect();
            return Err(NotLoggedIn::Provider(format!("the provider says {error}")));
        }
        let code = form::field(fields, "code").filter(|code| (1..=CODE_BYTES_MAX).contains(&code.len()));
        let code = code.ok_or(NotLoggedIn::Stale)?.to_owned();
        let (provider, claim, redirect) =
            (Arc::clone(&self.provider), self.claim.clone(), self.redirect.clone());
        let next = pending.next.clone();
        let work = move || {
            let expected = Expected {
                issuer: provider.issuer(),
                client_id: provider.client_id(),
                nonce: &pending.nonce,
                claim: &claim,
                now_s: now_s(),
            };
            provider.person(&code, &pending.verifier, &redirect, expected)
        };
        Ok((self.beside(work).await?, next))
    }

    async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, NotLoggedIn> {
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(|_| NotLoggedIn::Busy)?;
        let (sender, receiver) = oneshot::channel();
        let thread = std::thread::Builder::new().name("oidc".to_owned()).spawn(move || {
            let _ = sender.send(work());
            drop(turn);
        });
        thread.map_err(|_| NotLoggedIn::Busy)?;
        receiver.await.map_err(|_| NotLoggedIn::Busy)?.map_err(NotLoggedIn::Provider)
    }
}

fn now_s() -> i64 {
    clock::realtime_ns() / 1_000_000_000
}

/// Of this process alone: a restart makes the person begin again.
fn sealing_key() -> Option<LessSafeKey> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?))
}

fn seal(key: &LessSafeKey, pending: &Pending) -> Option<String> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let mut bytes = serde_json::to_vec(pending).ok()?;
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut bytes).ok()?;
    Some(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat()))
}

fn unseal(key: &LessSafeKey, cookie: &str) -> Option<Pending> {
    let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(cookie).ok()?;
    let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let opened = key.open_in_place(nonce, Aad::empty(), sealed).ok()?;
    serde_json::from_slice(opened).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sealed_cookie_is_read_by_its_key_alone() {
        let (key, other) = (sealing_key().unwrap(), sealing_key().unwrap());
        let text = |text: &str| text.to_owned();
        let pending = Pending {
            state: text("s"),
            nonce: text("n"),
            verifier: text("v"),
            next: text("/jobs"),
            begun_s: 7,
        };
        let cookie = seal(&key, &pending).unwrap();
        assert_eq!(unseal(&key, &cookie).unwrap().next, "/jobs");
        assert!(unseal(&other, &cookie).is_none());
        assert_ne!(seal(&key, &pending).unwrap(), cookie);
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(&cookie).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(unseal(&key, &BASE64_URL_SAFE_NO_PAD.encode(bytes)).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_no_cookie_of_ours(text in "[A-Za-z0-9_-]{0,200}") {
            prop_assert!(unseal(&sealing_key().unwrap(), &text).is_none());
        }
    }
}
