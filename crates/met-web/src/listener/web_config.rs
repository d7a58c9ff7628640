//! The web configuration file that Prometheus exporters share: certificates and passwords.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use serde::Deserialize;

use super::peer::Certificate;
use super::{Error, passwords};

/// Larger ones are not what they seem to be.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    tls_server_config: Option<Tls>,
    http_server_config: Option<HttpServer>,
    basic_auth_users: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_auth_type: Option<String>,
    client_ca_file: Option<PathBuf>,
    client_allowed_sans: Vec<String>,
    min_version: Option<String>,
    max_version: Option<String>,
    cipher_suites: Option<Vec<String>>,
    curve_preferences: Option<Vec<String>>,
    prefer_server_cipher_suites: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HttpServer {
    http2: Option<bool>,
    headers: BTreeMap<String, String>,
}

/// What a file was when it was read. Another one has another of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let data = std::fs::metadata(path).ok()?;
        Some(Stamp { inode: data.ino(), bytes: data.len(), changed: (data.mtime(), data.mtime_nsec()) })
    }
}

/// The file and what it names, read and checked.
#[derive(Debug, Default)]
pub struct WebConfig {
    pub(super) tls: Option<Arc<ServerConfig>>,
    allowed_sans: Vec<String>,
    checks_certificates: bool,
    /// Hashes by user.
    pub(super) users: BTreeMap<String, String>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Keys that say something this program does not do.
    pub(super) unheeded: Vec<&'static str>,
}

impl WebConfig {
    pub fn load(path: &Path) -> Result<WebConfig, Error> {
        let mut files = Files::default();
        WebConfig::load_with(path, &mut files)
    }

    /// Notes in `files` what it read, also when that is refused.
    pub(super) fn load_with(path: &Path, files: &mut Files) -> Result<WebConfig, Error> {
        let text = files.read(path)?;
        let refuse = |message: String| Error::Content { path: path.to_owned(), message };
        let text = String::from_utf8(text).map_err(|_| refuse("is not text".to_owned()))?;
        // An empty file is valid.
        let content: Option<Content> = match text.trim().is_empty() {
            true => None,
            false => serde_saphyr::from_str(&text).map_err(|error| refuse(first_line(&error.to_string())))?,
        };
        let content = content.unwrap_or_default();
        let users = hashes(content.basic_auth_users.unwrap_or_default()).map_err(refuse)?;
        let http = content.http_server_config.unwrap_or_default();
        let mut config =
            WebConfig { users, headers: headers(&http.headers).map_err(refuse)?, ..WebConfig::default() };
        if http.http2 == Some(true) {
            config.unheeded.push("http_server_config.http2");
        }
        if let Some(tls) = content.tls_server_config {
            let folder = path.parent().unwrap_or(Path::new("."));
            config.take_tls(tls, folder, files, &refuse)?;
        }
        Ok(config)
    }

    fn take_tls(
        &mut self,
        tls: Tls,
        folder: &Path,
        files: &mut Files,
        refuse: &dyn Fn(String) -> Error,
    ) -> Result<(), Error> {
        let needed = |file: &Option<PathBuf>, key: &str| match file {
            Some(file) => Ok(folder.join(file)),
            None => Err(refuse(format!("tls_server_config.{key} is missing"))),
        };
        let certificates = files.certificates(&needed(&tls.cert_file, "cert_file")?)?;
        let key = files.key(&needed(&tls.key_file, "key_file")?)?;
        let authority = tls.client_ca_file.as_ref().map(|file| files.certificates(&folder.join(file)));
        let provider = Arc::new(ring::default_provider());
        let versions = versions(&tls).map_err(refuse)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| refuse(format!("tls_server_config: {error}")))?;
        let verifier = verifier(tls.client_auth_type.as_deref(), authority.transpose()?).map_err(refuse)?;
        self.checks_certificates = verifier.is_some();
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|error| refuse(format!("tls_server_config: {error}")))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.tls = Some(Arc::new(config));
        self.allowed_sans = tls.client_allowed_sans;
        for (key, is_given) in [
            ("cipher_suites", tls.cipher_suites.is_some()),
            ("curve_preferences", tls.curve_preferences.is_some()),
            ("prefer_server_cipher_suites", tls.prefer_server_cipher_suites.is_some()),
        ] {
            self.unheeded.extend(is_given.then_some(key));
        }
        Ok(())
    }

    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether clients can authenticate.
    pub fn knows_clients(&self) -> bool {
        !self.users.is_empty() || self.checks_certificates
    }

    /// Whether a client with this certificate is accepted.
    pub(super) fn admits(&self, certificate: Option<&Certificate>) -> bool {
        let is_allowed = |name: &String| certificate.is_some_and(|shown| shown.dns_names.contains(name));
        self.allowed_sans.is_empty() || self.allowed_sans.iter().any(is_allowed)
    }
}

/// Files that were read, as they were then.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

impl Files {
    pub(super) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, stamp)| Stamp::of(path) != *stamp)
    }

    fn read(&mut self, path: &Path) -> Result<Vec<u8>, Error> {
        use std::io::Read;
        // Before it is read: what changes meanwhile is read again.
        self.0.push((path.to_owned(), Stamp::of(path)));
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| Error::Read { path: path.to_owned(), error })?;
        Ok(bytes)
    }

    fn certificates(&mut self, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
        let bytes = self.read(path)?;
        let refuse = |message: String| Error::Content { path: path.to_owned(), message };
        let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
            .collect::<Result<_, _>>()
            .map_err(|error| refuse(error.to_string()))?;
        if found.is_empty() { Err(refuse("has no certificate (PEM)".to_owned())) } else { Ok(found) }
    }

    fn key(&mut self, path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
        let bytes = self.read(path)?;
        let refuse =
            |_| Error::Content { path: path.to_owned(), message: "has no private key (PEM)".to_owned() };
        PrivateKeyDer::from_pem_slice(&bytes).map_err(refuse)
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The hash of every user's password.
fn hashes(given: BTreeMap<String, Option<String>>) -> Result<BTreeMap<String, String>, String> {
    let hash = |(user, hash): (String, Option<String>)| {
        let hash = hash.unwrap_or_default();
        let wrong = match hash.trim() {
            "" => format!("{user:?} has no password hash"),
            _ if !passwords::is_hash(&hash) => format!("the password of {user:?} is not a bcrypt hash"),
            _ => return Ok((user, hash)),
        };
        Err(format!("basic_auth_users: {wrong}; write one with `htpasswd -nBC 10 {user}`"))
    };
    given.into_iter().map(hash).collect()
}

fn headers(given: &BTreeMap<String, String>) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let header = |(name, value): (&String, &String)| {
        let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
        parsed.ok_or_else(|| format!("http_server_config.headers: {name:?} is not a header with a value"))
    };
    given.iter().map(header).collect()
}

fn versions(tls: &Tls) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let number = |key: &str, text: &Option<String>, default: u8| match text.as_deref() {
        None => Ok(default),
        Some("TLS12") => Ok(12),
        Some("TLS13") => Ok(13),
        Some(other) => {
            Err(format!("tls_server_config.{key}: {other:?} is not supported; write TLS12 or TLS13"))
        }
    };
    let lowest = number("min_version", &tls.min_version, 12)?;
    let highest = number("max_version", &tls.max_version, 13)?;
    if lowest > highest {
        return Err("tls_server_config: min_version is above max_version".to_owned());
    }
    let all = [(12, &version::TLS12), (13, &version::TLS13)];
    let wanted = all.into_iter().filter(|(number, _)| (lowest..=highest).contains(number));
    Ok(wanted.map(|(_, version)| version).collect())
}

fn verifier(
    kind: Option<&str>,
    authority: Option<Vec<CertificateDer<'static>>>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let optional = match kind {
        None | Some("" | "NoClientCert") => match authority {
            None => return Ok(None),
            Some(_) => {
                let message = "client_ca_file needs client_auth_type: RequireAndVerifyClientCert";
                return Err(format!("tls_server_config: {message}"));
            }
        },
        Some("VerifyClientCertIfGiven") => true,
        Some("RequireAndVerifyClientCert") => false,
        Some(unchecked @ ("RequestClientCert" | "RequireAnyClientCert")) => {
            return Err(format!(
                "tls_server_config.client_auth_type: {unchecked}: the certificate would not be verified; \
                 write VerifyClientCertIfGiven or RequireAndVerifyClientCert"
            ));
        }
        Some(other) => return Err(format!("tls_server_config.client_auth_type: {other:?} is unknown")),
    };
    let authority = authority.ok_or("tls_server_config.client_ca_file is missing")?;
    let mut roots = RootCertStore::empty();
    for certificate in authority {
        roots.add(certificate).map_err(|error| format!("tls_server_config.client_ca_file: {error}"))?;
    }
    let provider = Arc::new(ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map(Some).map_err(|error| format!("tls_server_config.client_ca_file: {error}"))
}
