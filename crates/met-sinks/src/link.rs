//! The way to a server: HTTP(S) with a token or a certificate of one's own.

use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv6Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const FILE_BYTES_MAX: u64 = 1 << 20;
const TOKEN_BYTES_MAX: usize = 512;
const REASON_BYTES_MAX: usize = 600;
/// Of a reply that is not ours.
pub const LINE_CHARS_MAX: usize = 200;

/// The address of a server, and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub url: String,
    pub token: Option<String>,
    /// The CA of the server, unless a system CA signed it.
    pub authority: Option<PathBuf>,
    /// A certificate of one's own and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Plain HTTP also to other machines.
    pub plain: bool,
    /// Any certificate of the server is accepted.
    pub unchecked: bool,
}

pub struct Link {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The reason that a server gives, within bounds and in printable letters.
    pub fn reason(&self) -> String {
        let body: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let error = body.as_ref().and_then(|body| body["error"].as_str()).map(str::as_bytes);
        match error {
            Some(reason) => {
                let text = String::from_utf8_lossy(&reason[..reason.len().min(REASON_BYTES_MAX)]);
                text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
            }
            None => one_line(&self.body),
        }
    }
}

/// The beginning of what a stranger sent, for a log: a page of HTML has many lines.
pub fn one_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(8 * LINE_CHARS_MAX)]);
    let printable = text.split(|letter: char| letter.is_whitespace() || letter.is_control());
    let line = printable.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LINE_CHARS_MAX - 1) {
        Some((at, letter)) if at + letter.len_utf8() < line.len() => format!("{}…", &line[..at]),
        _ => line,
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadAddress {
    #[error("{0:?} is not a server address; write https://HOST:9317")]
    Url(String),
    #[error("{0}: plain HTTP can be read in transit; use https")]
    Plain(String),
    #[error("cannot read {path}: {error}", path = .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {why}", path = .path.display())]
    Content { path: PathBuf, why: String },
}

impl BadAddress {
    /// The message, with the option that allows plain HTTP.
    pub fn message(&self, allowed_by: &str) -> String {
        match self {
            BadAddress::Plain(_) => format!("{self}, or allow it: {allowed_by}"),
            _ => self.to_string(),
        }
    }
}

impl Link {
    pub fn open(address: &Address) -> Result<Link, BadAddress> {
        Link::open_within(address, ANSWER_WITHIN)
    }

    /// A request may take this long in all.
    pub fn open_within(address: &Address, within: Duration) -> Result<Link, BadAddress> {
        let url = address.url.trim_end_matches('/').to_owned();
        check(&url, address.plain)?;
        let mut tls = TlsConfig::builder().disable_verification(address.unchecked);
        if let Some(path) = &address.authority {
            tls = tls.root_certs(RootCerts::from(certificates(path)?));
        }
        if let Some((chain, key)) = &address.certificate {
            private(key)?;
            let refuse =
                |error: ureq::Error| BadAddress::Content { path: key.clone(), why: error.to_string() };
            let key = PrivateKey::from_pem(&read(key)?).map_err(refuse)?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&certificates(chain)?, key)));
        }
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_WITHIN.min(within)))
            .timeout_global(Some(within))
            .max_redirects(0)
            .max_idle_connections_per_host(1)
            .http_status_as_error(false)
            .tls_config(tls.build());
        let authorization = address.token.as_ref().map(|token| format!("Bearer {token}"));
        Ok(Link { agent: config.build().new_agent(), url, authorization })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends `body` and waits for all of the answer, of which at most `bytes_max` are taken.
    pub fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        bytes_max: u64,
    ) -> Result<Answer, io::Error> {
        self.request("POST", path, headers, body, bytes_max)
    }

    /// The same with any method; `HEAD` has no body.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        bytes_max: u64,
    ) -> Result<Answer, io::Error> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // A body of no bytes would still be announced.
        let sent = match method {
            "GET" | "HEAD" => self.agent.run(request.body(()).map_err(io::Error::other)?),
            _ => self.agent.run(request.body(body).map_err(io::Error::other)?),
        };
        let mut response = sent.map_err(cause)?;
        let retry_after =
            response.headers().get("Retry-After").and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.body_mut().with_config().limit(bytes_max).read_to_vec().map_err(cause)?;
        Ok(Answer {
            status: response.status().as_u16(),
            retry_after: retry_after.map(Duration::from_secs),
            body,
        })
    }
}

/// What happened, without the words of the library around it.
fn cause(error: ureq::Error) -> io::Error {
    if let Some(words) = mix_up(&error) {
        return io::Error::new(io::ErrorKind::InvalidInput, words);
    }
    match error {
        ureq::Error::Io(error) => error,
        ureq::Error::HostNotFound => io::Error::new(io::ErrorKind::NotFound, "no host has this name"),
        ureq::Error::Timeout(_) => io::Error::new(io::ErrorKind::TimedOut, "no answer in time"),
        other => io::Error::other(other.to_string()),
    }
}

/// What the libraries have no plain words for.
fn mix_up(error: &ureq::Error) -> Option<&'static str> {
    let text = error.to_string();
    if text.contains("InvalidContentType") {
        return Some("it uses plain HTTP, not TLS; write http://");
    }
    if text.contains("CaUsedAsEndEntity") {
        return Some(
            "its certificate is that of an authority (CA:TRUE) and may not be a server's own; make one with openssl \
             req -x509 ... -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:HOST",
        );
    }
    // A TLS server answers a line of HTTP with an alert.
    let is_none = matches!(error, ureq::Error::Protocol(_)) && text.contains("http parse fail");
    is_none.then_some("it does not use plain HTTP; if it uses TLS, write https://")
}

fn check(url: &str, plain: bool) -> Result<(), BadAddress> {
    // A password in the address would be shown with it.
    let bad = || BadAddress::Url(url.to_owned());
    if url.contains('@') || url.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(bad());
    }
    let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
    let host = rest.split('/').next().filter(|host| !host.is_empty()).ok_or_else(bad)?;
    // A port that is none would be taken for the usual one of the web.
    let after_name = match host.strip_prefix('[') {
        Some(inner) => {
            let (name, after) = inner.split_once(']').ok_or_else(bad)?;
            let is_port = after.is_empty() || after.starts_with(':');
            // One of a link has its interface behind a percent sign.
            let name = name.split('%').next().unwrap_or(name);
            name.parse::<Ipv6Addr>().ok().filter(|_| is_port).ok_or_else(bad)?;
            after
        }
        None => host,
    };
    if after_name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(bad());
    }
    match scheme {
        "https" => return Ok(()),
        "http" => {}
        _ => return Err(bad()),
    }
    let name = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or("") };
    let is_here = name == "localhost" || name.starts_with("127.") || host.starts_with("[::1]");
    if is_here || plain { Ok(()) } else { Err(BadAddress::Plain(url.to_owned())) }
}

/// One line from a file that only its owner may read.
pub fn token_of(path: &Path) -> Result<String, BadAddress> {
    private(path)?;
    token_in(&read(path)?).ok_or_else(|| BadAddress::Content {
        path: path.to_path_buf(),
        why: "one line with a token is needed, as `met server enroll` prints it".to_owned(),
    })
}

/// A token as it is printed: letters and digits, and white space around.
pub fn token_in(text: &[u8]) -> Option<String> {
    let token = std::str::from_utf8(text.trim_ascii()).ok()?;
    let fits = (8..=TOKEN_BYTES_MAX).contains(&token.len());
    let proper = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (fits && proper).then(|| token.to_owned())
}

/// Lines of a file that only its owner may read, without comments and empty ones.
pub fn private_lines(path: &Path) -> Result<Vec<String>, BadAddress> {
    private(path)?;
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn private(path: &Path) -> Result<(), BadAddress> {
    let error = |error| BadAddress::File { path: path.to_path_buf(), error };
    let found = std::fs::metadata(path).map_err(error)?;
    let why = match found.mode() & 0o077 {
        _ if found.is_dir() => "it is a folder; name a file in it".to_owned(),
        0 => return Ok(()),
        _ => format!("others may read it; close it with: chmod 600 {}", path.display()),
    };
    Err(BadAddress::Content { path: path.to_path_buf(), why })
}

fn read(path: &Path) -> Result<Vec<u8>, BadAddress> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| BadAddress::File { path: path.to_path_buf(), error })?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, BadAddress> {
    let refuse = |why: String| BadAddress::Content { path: path.to_path_buf(), why };
    let mut found = Vec::new();
    for item in parse_pem(&read(path)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| refuse(error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(refuse("no certificate is in it".to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_is_no_file_of_a_token_and_its_mode_stays() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let error = private_lines(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("it is a folder; name a file in it"), "{error}");
    }

    #[test]
    fn plain_http_is_for_this_machine_unless_asked_for() {
        for here in [
            "http://127.0.0.1:1",
            "http://localhost/",
            "http://[::1]:9317",
            "https://a.example",
            "https://[::1]",
            "https://[fe80::1%eth0]:9317",
        ] {
            assert!(check(here, false).is_ok(), "{here}");
        }
        assert!(matches!(check("http://10.0.0.1:1", false), Err(BadAddress::Plain(_))));
        assert!(matches!(check("http://localhost.evil.example", false), Err(BadAddress::Plain(_))));
        assert!(check("http://10.0.0.1:1", true).is_ok());
        for bad in [
            "",
            "ftp://a",
            "http://",
            "https://",
            "https://user:secret@a",
            "https://a b",
            "a:9317",
            "https://a:99999",
            "https://a:",
            "http://127.0.0.1:9x",
            "http://[::1]:70000",
            "http://[::1",
            "http://[::1]9317",
            "http://[]:9317",
            "https://[a.example]",
        ] {
            assert!(matches!(check(bad, true), Err(BadAddress::Url(_))), "{bad}");
        }
    }

    #[test]
    fn a_reply_of_a_stranger_is_one_short_line() {
        let page = format!("<html>\r\n  <h1>502\u{7}</h1>\n{}", "é".repeat(5000));
        let answer = Answer { status: 502, retry_after: None, body: page.into_bytes() };
        let reason = answer.reason();
        assert!(reason.starts_with("<html> <h1>502 </h1> éé") && reason.ends_with('…'), "{reason}");
        assert_eq!((reason.chars().count(), reason.lines().count()), (LINE_CHARS_MAX, 1));
        assert_eq!(one_line(b"all of it\n"), "all of it");
        assert_eq!(one_line(&[0xff; 4000]).chars().count(), LINE_CHARS_MAX);
        assert_eq!(one_line("x".repeat(LINE_CHARS_MAX).as_bytes()), "x".repeat(LINE_CHARS_MAX));
        // What our own servers say is whole.
        let long = "x".repeat(400);
        let body = format!("{{\"error\": \"{long}\"}}").into_bytes();
        assert_eq!(Answer { status: 409, retry_after: None, body }.reason(), long);
    }

    /// The error for a server that answers with these bytes.
    fn error_for(scheme: &str, answer: &'static [u8]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            use std::io::Write;
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            stream.write_all(answer).unwrap();
        });
        let link = Link::open(&Address { url, ..Address::default() }).unwrap();
        let error = link.post("/", &[], b"", 100).unwrap_err().to_string();
        server.join().unwrap();
        error
    }

    #[test]
    fn the_wrong_scheme_is_reported_with_the_right_one() {
        let error = error_for("https", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(error, "it uses plain HTTP, not TLS; write http://");
        let error = error_for("http", b"\x15\x03\x03\x00\x02\x02\x46");
        assert_eq!(error, "it does not use plain HTTP; if it uses TLS, write https://");
    }

    #[test]
    fn the_caller_says_how_plain_http_is_allowed() {
        let plain = BadAddress::Plain("http://n1".to_owned());
        assert!(plain.message("--plain").ends_with("use https, or allow it: --plain"));
        assert!(!BadAddress::Url("n1".to_owned()).message("--plain").contains("--plain"));
    }

    #[test]
    fn a_token_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, " node-0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(token_of(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(token_of(&path).unwrap(), "node-0123456789abcdef");
        for bad in ["", "short", "two words here", "line\nline-line", "über-geheimes-wort"] {
            assert_eq!(token_in(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
