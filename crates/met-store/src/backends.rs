//! Where catalogue and series are kept, if not in files of the state directory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::Uri;

use crate::engine::Remote;
use crate::error::StoreError;
use crate::postgresql::Postgres;

/// More than any password or token.
const SECRET_BYTES_MAX: u64 = 16 << 10;
/// Paths of the system CA certificates, by distribution.
const SYSTEM_CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Files are the default.
#[derive(Clone, Debug, Default)]
pub struct Backends {
    pub catalogue: Option<PostgresServer>,
    pub series: Option<Engine>,
}

impl Backends {
    /// Asks both whether they would do, and changes nothing there: what it is, and what it says.
    pub fn probe(&self) -> Vec<(&'static str, Result<String, StoreError>)> {
        let catalogue = self.catalogue.as_ref().map(|server| ("catalogue", Postgres::probe(server)));
        let series = self.series.as_ref().map(|engine| {
            let probed = Remote::new(engine).and_then(|remote| remote.probe());
            ("series", probed.map(|()| engine.url.clone()))
        });
        catalogue.into_iter().chain(series).collect()
    }
}

/// A database in a PostgreSQL server.
#[derive(Clone, Debug)]
pub struct PostgresServer {
    /// `postgres://user@host:port/database`; a password may be in it.
    pub url: Secret,
    pub password: Option<Secret>,
    /// Authorities to trust; those of the machine by default.
    pub ca_file: Option<PathBuf>,
}

/// An engine that takes Prometheus remote write and answers PromQL.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Before `/api/v1/query`.
    pub url: String,
    /// Where samples go; `/api/v1/write` behind `url` by default.
    pub write_url: Option<String>,
    pub credentials: Option<Credentials>,
    /// Whose samples they are, in engines with several tenants.
    pub tenant: Option<String>,
    pub ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub enum Credentials {
    /// `user:password`.
    Basic(Secret),
    Token(Secret),
}

/// What no log may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The one line of a file that only its owner may read.
    pub fn read(path: &Path) -> Result<Secret, StoreError> {
        let refuse = |why: &str| StoreError::Io { path: path.to_path_buf(), error: io::Error::other(why) };
        let file = File::open(path).map_err(StoreError::io(path))?;
        let mode = file.metadata().map_err(StoreError::io(path))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(refuse("other users can read it; run: chmod 600"));
        }
        let mut text = String::new();
        file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(StoreError::io(path))?;
        let line = text.trim();
        match line.is_empty() || line.chars().any(char::is_control) {
            true => Err(refuse("it must have one line, the secret")),
            false => Ok(Secret(line.to_owned())),
        }
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl Engine {
    /// Says what is wrong with an address.
    pub fn check(url: &str) -> Result<(), String> {
        let parsed: Uri = url.parse().map_err(|_| format!("{url:?} is not an address"))?;
        let scheme = parsed.scheme_str().unwrap_or_default();
        if !matches!(scheme, "http" | "https") || parsed.host().is_none_or(str::is_empty) {
            return Err(format!("{url:?} is not an address; write http://host:port or https://host"));
        }
        if parsed.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("the address contains a password; put it into a file".to_owned());
        }
        if parsed.query().is_some() {
            return Err(format!("{url:?} has a query part; write only the address"));
        }
        Ok(())
    }

    /// Whether what is sent there can be read on the way.
    pub(crate) fn is_open(url: &str) -> bool {
        let parsed: Option<Uri> = url.parse().ok();
        parsed.is_none_or(|url| {
            url.scheme_str() != Some("https") && !is_loopback(url.host().unwrap_or_default())
        })
    }
}

/// Whether a name or an address is this machine itself.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The authorities in a file, or those of this machine.
pub(crate) fn certificates(file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let system = SYSTEM_CERTIFICATES.into_iter().map(Path::new).find(|path| path.exists());
    let path = file.or(system).unwrap_or(Path::new(SYSTEM_CERTIFICATES[0]));
    let refuse = |why: String| StoreError::Io { path: path.to_path_buf(), error: io::Error::other(why) };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| refuse(error.to_string()))?.collect();
    match found.map_err(|error| refuse(error.to_string()))? {
        found if found.is_empty() => Err(refuse("it has no certificate".to_owned())),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_secret_is_one_line_of_a_closed_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "hunter2\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(Secret::read(&path).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let secret = Secret::read(&path).unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        assert!(!format!("{:?}", Credentials::Token(secret)).contains("hunter2"));
        for text in ["", "\n\n", "one\ntwo\n"] {
            fs::write(&path, text).unwrap();
            assert!(Secret::read(&path).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_address_of_an_engine_is_http_and_has_no_password() {
        for url in ["http://localhost:8428", "https://mimir.example/prometheus", "http://[::1]:9090"] {
            assert_eq!(Engine::check(url), Ok(()));
        }
        for url in ["", "localhost:8428", "ftp://x", "http://", "http://ada:secret@x", "http://x/?a=b"] {
            assert!(Engine::check(url).is_err(), "{url}");
        }
        assert!(!Engine::check("http://ada:secret@x").unwrap_err().contains("secret"));
    }

    #[test]
    fn only_tls_and_this_machine_are_closed_to_others() {
        for url in ["http://localhost:1", "http://127.0.0.9:1", "http://[::1]:1", "https://far.example"] {
            assert!(!Engine::is_open(url), "{url}");
        }
        for url in ["http://10.0.0.1", "http://localhost.example", "http://127.0.0.1.example"] {
            assert!(Engine::is_open(url), "{url}");
        }
    }
}
