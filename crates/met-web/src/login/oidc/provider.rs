//! An OpenID provider over HTTP: its description, its keys, and codes that it changes into tokens. Replies are bounded
//! in size and time, and redirections are not followed.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::super::form;
use super::token::{self, Expected, Key, Refused};

const REPLY_BYTES_MAX: u64 = 256 << 10;
const REPLY_WITHIN: Duration = Duration::from_secs(10);
const URL_BYTES_MAX: usize = 2048;
/// How long what the provider says of itself is used.
const FRESH_FOR: Duration = Duration::from_secs(3600);
/// Its keys are fetched again for a token with an unknown one, but not more often than this: any client can send tokens.
const REFETCH_AFTER: Duration = Duration::from_secs(60);

pub(super) struct Provider {
    agent: ureq::Agent,
    issuer: String,
    client_id: String,
    client_secret: Option<String>,
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    about: About,
    keys: Vec<Key>,
    fetched: Instant,
}

/// What a provider says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About {
    pub(super) authorization: String,
    token: String,
    jwks: String,
    /// The secret goes into the form and not into a header.
    secret_in_form: bool,
}

impl About {
    /// Endpoints are where the traffic cannot be read, and the issuer is exactly the configured one.
    fn parse(body: &[u8], issuer: &str) -> Result<About, String> {
        let document: Value =
            serde_json::from_slice(body).map_err(|_| "its description is not JSON".to_owned())?;
        let said = document["issuer"].as_str().unwrap_or_default();
        if said != issuer {
            return Err(format!("it calls itself {:?}; write that as login.oidc_issuer", shortened(said)));
        }
        let url = |name: &str| {
            let url = document[name].as_str().filter(|url| is_safe_url(url));
            url.map(str::to_owned).ok_or_else(|| format!("its {name} is missing or not https"))
        };
        let methods = document["token_endpoint_auth_methods_supported"].as_array();
        let offers =
            |name: &str| methods.is_some_and(|all| all.iter().any(|method| method.as_str() == Some(name)));
        Ok(About {
            authorization: url("authorization_endpoint")?,
            token: url("token_endpoint")?,
            jwks: url("jwks_uri")?,
            secret_in_form: offers("client_secret_post") && !offers("client_secret_basic"),
        })
    }
}

/// https, or a provider on this machine. Without a user name: what precedes an `@` looks like a host and is none.
pub(super) fn is_safe_url(url: &str) -> bool {
    let is_plain = url.len() <= URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic());
    let Some((scheme, rest)) = url.split_once("://").filter(|_| is_plain) else { return false };
    let host = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    match scheme {
        "https" => !name.is_empty() && !host.contains('@'),
        "http" => matches!(name, "127.0.0.1" | "localhost" | "[::1]"),
        _ => false,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}

impl Provider {
    pub(super) fn new(
        issuer: String,
        client_id: String,
        client_secret: Option<String>,
        ca: Option<&Path>,
    ) -> Result<Provider, String> {
        if !is_safe_url(&issuer) {
            return Err(format!("login.oidc_issuer: {issuer:?} is not an https address"));
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = ca {
            tls = tls.root_certs(RootCerts::from(certificates(path)?));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REPLY_WITHIN))
            .max_redirects(0)
            .http_status_as_error(false)
            .tls_config(tls.build());
        let agent = config.build().new_agent();
        Ok(Provider { agent, issuer, client_id, client_secret, known: Mutex::new(None) })
    }

    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// What the provider says of itself. Blocks while it is fetched.
    pub(super) fn about(&self) -> Result<About, String> {
        self.known(FRESH_FOR).map(|known| known.about)
    }

    /// Whose token a code is exchanged for. Blocks.
    pub(super) fn person(
        &self,
        code: &str,
        verifier: &str,
        redirect: &str,
        expected: Expected<'_>,
    ) -> Result<String, String> {
        let known = self.known(FRESH_FOR)?;
        let token = self.exchange(&known.about, code, verifier, redirect)?;
        let verified = match token::verify(&token, &known.keys, expected) {
            Err(Refused::UnknownKey) => token::verify(&token, &self.known(REFETCH_AFTER)?.keys, expected),
            verified => verified,
        };
        verified.map_err(|refused| refused.to_string())
    }

    /// What is known of the provider, unless that is older.
    fn known(&self, fresh_for: Duration) -> Result<Known, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.fetched.elapsed() < fresh_for) {
            return Ok(known.clone());
        }
        let fetched = self.fetch()?;
        *known = Some(fetched.clone());
        Ok(fetched)
    }

    fn fetch(&self) -> Result<Known, String> {
        let well_known = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let about = About::parse(&self.get(&well_known)?, &self.issuer)?;
        let keys = token::keys(&self.get(&about.jwks)?).ok_or("its keys cannot be read")?;
        Ok(Known { about, keys, fetched: Instant::now() })
    }

    fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let reply = self.agent.get(url).header("Accept", "application/json").call();
        body(reply)
    }

    fn exchange(&self, about: &About, code: &str, verifier: &str, redirect: &str) -> Result<String, String> {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect),
            ("code_verifier", verifier),
        ];
        let mut request =
            self.agent.post(&about.token).header("Content-Type", "application/x-www-form-urlencoded");
        match &self.client_secret {
            Some(secret) if !about.secret_in_form => {
                let pair = format!("{}:{}", form::escape(&self.client_id), form::escape(secret));
                request = request.header("Authorization", format!("Basic {}", BASE64_STANDARD.encode(pair)));
            }
            Some(secret) => {
                fields.extend([("client_id", self.client_id.as_str()), ("client_secret", secret)])
            }
            None => fields.push(("client_id", &self.client_id)),
        }
        let reply = body(request.header("Accept", "application/json").send(form::encode(&fields)))?;
        let reply: Value =
            serde_json::from_slice(&reply).map_err(|_| "its token reply is not JSON".to_owned())?;
        reply["id_token"].as_str().map(str::to_owned).ok_or_else(|| "it returned no id token".to_owned())
    }
}

type Reply = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

fn body(reply: Reply) -> Result<Vec<u8>, String> {
    let mut reply = reply.map_err(|error| error.to_string())?;
    let status = reply.status().as_u16();
    let read = reply.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec();
    let bytes = read.map_err(|error| error.to_string())?;
    match status {
        200 => Ok(bytes),
        _ => {
            let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let said = said["error"].as_str().map(|error| format!(" ({error:?})")).unwrap_or_default();
            Err(format!("it answers {status}{}", shortened(&said)))
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let refuse = |why: String| format!("login.oidc_ca_file: {}: {why}", path.display());
    let text = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| refuse(error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(refuse("no certificate is in it".to_owned())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "issuer": "https://sso", "authorization_endpoint": "https://sso/auth", "token_endpoint": "https://sso/token",
            "jwks_uri": "https://sso/keys",
        })
    }

    #[test]
    fn a_provider_describes_itself_under_its_own_name_and_with_safe_addresses() {
        let read = |document: &Value| About::parse(document.to_string().as_bytes(), "https://sso");
        assert!(!read(&document()).unwrap().secret_in_form);
        for (name, value) in [
            ("issuer", json!("https://sso/")),
            ("issuer", json!("https://evil")),
            ("authorization_endpoint", json!("javascript:alert(1)")),
            ("authorization_endpoint", json!("http://sso/auth")),
            ("token_endpoint", Value::Null),
            ("jwks_uri", json!("file:///etc/passwd")),
            ("jwks_uri", json!("https://a b")),
        ] {
            let mut document = document();
            document[name] = value.clone();
            assert!(read(&document).is_err(), "{name} {value}");
        }
        let mut posted = document();
        posted["token_endpoint_auth_methods_supported"] = json!(["client_secret_post"]);
        assert!(read(&posted).unwrap().secret_in_form);
    }

    #[test]
    fn plain_addresses_are_on_this_machine() {
        for safe in
            ["https://sso.example/realms/a", "http://127.0.0.1:8080/x", "http://localhost", "http://[::1]:1/"]
        {
            assert!(is_safe_url(safe), "{safe}");
        }
        for unsafe_url in [
            "",
            "https://",
            "http://sso.example",
            "http://127.0.0.1.evil.example",
            "http://127.0.0.1@evil",
            "https://a@b",
            "//x",
            "http://localhost:1@evil/",
            "https://a\n",
        ] {
            assert!(!is_safe_url(unsafe_url), "{unsafe_url}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_describe_a_provider_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(About::parse(&bytes, "https://sso").is_err());
        }
    }
}
