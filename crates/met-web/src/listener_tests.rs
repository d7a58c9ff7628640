use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use axum::Extension;
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use expect_test::expect;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tls");
/// Of "secret", by few rounds: tests are to be fast.
const HASH: &str = "$2b$04$OeOFNLNMNAnOpkYzx1z61OITJ8QAZlXVZWaOkgpUcpFc6HW81U...";

fn router() -> Router {
    async fn who(Extension(peer): Extension<Peer>) -> String {
        let certificate = peer.certificate.unwrap_or_default();
        format!("user {:?}, name {:?} {:?}\n", peer.user, certificate.common_name, certificate.dns_names)
    }
    let slow = get(|| async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        "late\n"
    });
    Router::new()
        .route("/", get(who))
        .route("/nodes/push", get(who))
        .route(
            "/own",
            get(|Extension(peer): Extension<Peer>| async move {
                peer.connection.mark_authenticated();
                "welcome\n"
            }),
        )
        .route("/echo", post(|body: String| async { body }))
        .route("/slow", slow)
        .route(
            "/fault",
            get(|| async {
                if true {
                    panic!("a fault in a handler")
                }
            }),
        )
}

fn options(web_config: Option<&Path>) -> Options {
    let mut options = Options::new(vec!["127.0.0.1:0".parse().unwrap()]);
    options.web_config = web_config.map(Path::to_owned);
    options.answer_within = Duration::from_millis(300);
    options.body_bytes_max = 1000;
    options.own_checks = &["/nodes/"];
    options
}

fn start(web_config: Option<&Path>) -> Server {
    Server::start(options(web_config), router()).unwrap()
}

/// A folder with this as `web.yml`.
fn web(yaml: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["ca.pem", "server.pem", "server-key.pem"] {
        std::fs::copy(Path::new(FIXTURES).join(name), folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("web.yml");
    std::fs::write(&path, yaml).unwrap();
    (folder, path)
}

/// Status line and body.
fn answer(mut stream: impl Read + Write, request: &str) -> (String, String) {
    let _ = stream.write_all(request.as_bytes());
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.local_addrs()[0]).unwrap()
}

fn get_with(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
}

fn login(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}

fn ask(server: &Server, path: &str, headers: &str) -> (String, String) {
    answer(connect(server), &get_with(path, headers))
}

const OK: &str = "HTTP/1.1 200 OK";
const NOBODY: &str = "user None, name None []\n";

#[test]
fn who_holds_an_address_is_said() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let error = listen(&Options::new(vec![address.parse().unwrap()])).unwrap_err().to_string();
    let holder = format!("(pid {}) listens there; stop it, or choose another address", std::process::id());
    assert!(error.starts_with(&address) && error.ends_with(&holder), "{error}");
}

#[test]
fn a_listener_without_a_file_answers_every_local_user() {
    let server = start(None);
    assert_eq!(ask(&server, "/", ""), (OK.to_owned(), NOBODY.to_owned()));
    assert_eq!(ask(&server, "/nothing", "").0, "HTTP/1.1 404 Not Found");
    server.stop();
}

#[test]
fn with_passwords_nothing_is_answered_without_one() {
    let (_folder, path) = web(&format!("basic_auth_users:\n  ann: {HASH}\n"));
    let server = start(Some(&path));
    assert_eq!(ask(&server, "/", "").0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(ask(&server, "/", &login("ann", "wrong")).0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(ask(&server, "/", &login("bob", "secret")).0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(ask(&server, "/nothing", "").0, "HTTP/1.1 401 Unauthorized", "not even what there is");
    for _ in 0..2 {
        let answer = ask(&server, "/", &login("ann", "secret"));
        assert_eq!(answer, (OK.to_owned(), "user Some(\"ann\"), name None []\n".to_owned()));
    }
    assert_eq!(ask(&server, "/nodes/push", "").1, NOBODY, "it has other means to know who this is");
    assert_eq!(ask(&server, "/nodes/push", &login("ann", "wrong")).0, "HTTP/1.1 401 Unauthorized");
}

#[test]
fn a_changed_file_holds_soon_and_a_bad_one_changes_nothing() {
    let (_folder, path) = web("");
    let server = start(Some(&path));
    assert_eq!(ask(&server, "/", "").0, OK);
    std::fs::write(&path, format!("basic_auth_users: {{ann: {HASH}}}\n")).unwrap();
    let begin = Instant::now();
    while ask(&server, "/", "").0 == OK {
        assert!(begin.elapsed() < Duration::from_secs(60), "the new file was never read");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(&path, "basic_auth_users: {ann: secret}\n").unwrap();
    server.reread();
    assert_eq!(ask(&server, "/", "").0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(ask(&server, "/", &login("ann", "secret")).0, OK);
}

/// A certificate and its key.
type Pair = (&'static str, &'static str);
const CLIENT: Pair = ("client.pem", "client-key.pem");
const STRANGER: Pair = ("stranger.pem", "stranger-key.pem");

fn client(certificate: Option<Pair>) -> Arc<ClientConfig> {
    let file = |name: &str| Path::new(FIXTURES).join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let shown = CertificateDer::from_pem_file(file(certificate)).unwrap();
            let key = PrivateKeyDer::from_pem_file(file(key)).unwrap();
            builder.with_client_auth_cert(vec![shown], key).unwrap()
        }
    };
    Arc::new(config)
}

fn ask_tls(server: &Server, certificate: Option<Pair>) -> (String, String) {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(client(certificate), name).unwrap();
    answer(StreamOwned::new(connection, connect(server)), &get_with("/", ""))
}

const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n";

#[test]
fn tls_is_spoken_and_nothing_else() {
    let (_folder, path) = web(TLS);
    let server = start(Some(&path));
    assert_eq!(ask_tls(&server, None), (OK.to_owned(), NOBODY.to_owned()));
    assert_eq!(ask(&server, "/", "").0, "\u{15}\u{3}\u{3}\0\u{2}\u{2}2", "an alert, and no page");
}

#[test]
fn a_certificate_proves_its_owner_if_the_authority_signed_it() {
    let ca = "  client_ca_file: ca.pem\n  client_auth_type:";
    let (_folder, path) = web(&format!("{TLS}{ca} RequireAndVerifyClientCert\n"));
    let server = start(Some(&path));
    let named = "user None, name Some(\"node7\") [\"node7.example.org\"]\n";
    assert_eq!(ask_tls(&server, Some(CLIENT)), (OK.to_owned(), named.to_owned()));
    assert_eq!(ask_tls(&server, Some(STRANGER)).0, "");
    assert_eq!(ask_tls(&server, None).0, "");

    let (_folder, path) =
        web(&format!("{TLS}{ca} VerifyClientCertIfGiven\n  client_allowed_sans: [other]\n"));
    let server = start(Some(&path));
    assert_eq!(ask_tls(&server, Some(CLIENT)).0, "", "another name is asked for");
    let (_folder, path) = web(&format!("{TLS}{ca} VerifyClientCertIfGiven\n"));
    let server = start(Some(&path));
    assert_eq!(ask_tls(&server, Some(CLIENT)).1, named);
    assert_eq!(ask_tls(&server, None).1, NOBODY);
}

#[test]
fn others_are_not_spoken_to_in_plain_words_unless_asked_for() {
    let open = |plain: bool, web_config: Option<&Path>| {
        let listen = vec!["0.0.0.0:0".parse().unwrap()];
        Server::start(Options { listen, plain, ..options(web_config) }, router())
    };
    let refused = open(false, None).err().unwrap().to_string();
    assert!(refused.starts_with("0.0.0.0:0 can be reached by other machines"), "{refused}");
    assert!(open(true, None).is_ok());
    let (_folder, path) = web(TLS);
    assert!(open(false, Some(&path)).is_ok());
}

#[test]
fn what_is_too_much_is_refused() {
    let server = start(None);
    let post = |length: usize, body: &str| {
        let head = "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
        answer(connect(&server), &format!("{head} {length}\r\n\r\n{body}")).0
    };
    assert_eq!(post(3, "abc"), OK);
    assert_eq!(post(1001, ""), "HTTP/1.1 413 Payload Too Large");
    let chunk = "x".repeat(600);
    let chunked = format!(
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n{chunk}\r\n258\r\n{chunk}\r\n0\r\n\r\n"
    );
    assert_eq!(answer(connect(&server), &chunked).0, "HTTP/1.1 413 Payload Too Large");
    let many: String = (0..200).map(|number| format!("X-{number}: y\r\n")).collect();
    let refused = "HTTP/1.1 431 Request Header Fields Too Large";
    assert_eq!(ask(&server, "/", &many).0, refused);
    assert_eq!(ask(&server, "/", &format!("X: {}\r\n", "y".repeat(20_000))).0, refused);
    assert_eq!(ask(&server, "/slow", "").0, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(ask(&server, "/fault", "").0, "", "a fault ends its own connection");
    assert_eq!(answer(connect(&server), "\0\x01garbage\r\n\r\n").0, "HTTP/1.1 400 Bad Request");
    assert_eq!(ask(&server, "/", "").0, OK);
}

#[test]
fn more_connections_than_allowed_wait_for_their_turn() {
    let server = Server::start(Options { connections_max: 1, ..options(None) }, router()).unwrap();
    let idle = connect(&server);
    // It is in when it is answered.
    let mut idle_too = idle.try_clone().unwrap();
    idle_too.write_all(b"GET /own HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    idle_too.read_exact(&mut [0; 12]).unwrap();
    let mut second = connect(&server);
    second.write_all(get_with("/", "").as_bytes()).unwrap();
    second.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(second.read(&mut [0; 1]).is_err(), "there is no room yet");
    drop((idle, idle_too));
    second.set_read_timeout(None).unwrap();
    assert_eq!(answer(second, "").0, OK);
}

#[test]
fn a_stop_is_quick_and_ends_listening() {
    let server = start(None);
    let (address, mut idle) = (server.local_addrs()[0], connect(&server));
    server.stop();
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(idle.read(&mut [0; 1]).unwrap_or(0), 0);
}

fn complaint(yaml: &str) -> String {
    let (folder, path) = web(yaml);
    let text = WebConfig::load(&path).unwrap_err().to_string();
    text.replace(&folder.path().display().to_string(), "")
}

#[test]
fn a_file_that_cannot_be_followed_is_refused_with_the_reason() {
    let all: String = [
        "basic_auth_users: {ann: secret}\n",
        "basic_auth_user: {}\n",
        "tls_server_config: {cert_file: server.pem}\n",
        "tls_server_config: {cert_file: none.pem, key_file: server-key.pem}\n",
        "tls_server_config: {cert_file: server-key.pem, key_file: server-key.pem}\n",
        "tls_server_config: {cert_file: server.pem, key_file: server.pem}\n",
        &format!("{TLS}  min_version: TLS10\n"),
        &format!("{TLS}  min_version: TLS13\n  max_version: TLS12\n"),
        &format!("{TLS}  client_auth_type: RequireAnyClientCert\n"),
        &format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n"),
        &format!("{TLS}  client_auth_type: Maybe\n"),
        &format!("{TLS}  client_ca_file: ca.pem\n"),
        "http_server_config: {headers: {\"a b\": c}}\n",
        "basic_auth_users:\n  ann:\n",
        "basic_auth_users:\n  ann: \"\"\n",
        "[1\n",
    ]
    .into_iter()
    .map(|yaml| complaint(yaml) + "\n")
    .collect();
    expect![[r#"
        /web.yml: basic_auth_users: the password of "ann" is not a bcrypt hash; write one with `htpasswd -nBC 10 ann`
        /web.yml: line 1 column 1: unknown field `basic_auth_user`, expected one of tls_server_config, http_server_config, basic_auth_users
        /web.yml: tls_server_config.key_file is missing
        /none.pem: No such file or directory (os error 2)
        /server-key.pem: has no certificate (PEM)
        /server.pem: has no private key (PEM)
        /web.yml: tls_server_config.min_version: "TLS10" is not supported; write TLS12 or TLS13
        /web.yml: tls_server_config: min_version is above max_version
        /web.yml: tls_server_config.client_auth_type: RequireAnyClientCert: the certificate would not be verified; write VerifyClientCertIfGiven or RequireAndVerifyClientCert
        /web.yml: tls_server_config.client_ca_file is missing
        /web.yml: tls_server_config.client_auth_type: "Maybe" is unknown
        /web.yml: tls_server_config: client_ca_file needs client_auth_type: RequireAndVerifyClientCert
        /web.yml: http_server_config.headers: "a b" is not a header with a value
        /web.yml: basic_auth_users: "ann" has no password hash; write one with `htpasswd -nBC 10 ann`
        /web.yml: basic_auth_users: "ann" has no password hash; write one with `htpasswd -nBC 10 ann`
        /web.yml: line 1 column 1: unclosed bracket '['
    "#]].assert_eq(&all);
}

#[test]
fn passwords_are_not_guessed_without_end_and_a_right_one_goes_on() {
    let (_folder, path) = web(&format!("basic_auth_users:\n  ann: {HASH}\n"));
    let server = start(Some(&path));
    assert_eq!(ask(&server, "/", &login("ann", "secret")).0, OK);
    // As many as a name has from anywhere.
    let statuses: Vec<String> = (0..102).map(|_| ask(&server, "/", &login("ann", "wrong")).0).collect();
    assert_eq!(statuses[0], "HTTP/1.1 401 Unauthorized");
    assert_eq!(statuses[101], "HTTP/1.1 429 Too Many Requests");
    assert_eq!(ask(&server, "/", &login("ann", "secret")).0, OK, "guessing locks no user out");
}

#[test]
fn idle_connections_keep_nobody_out_and_who_was_admitted_stays() {
    let mut options = options(None);
    options.connections_max = 8;
    let server = Server::start(options, router()).unwrap();
    let ask_on = |stream: &mut TcpStream, path: &str| {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).starts_with(OK)
    };
    let mut own = connect(&server);
    assert!(ask_on(&mut own, "/own"));
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&server);
        // Some have begun to say something.
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHo");
        }
        idle.push(stream);
    }
    for _ in 0..3 {
        assert_eq!(ask(&server, "/", ""), (OK.to_owned(), NOBODY.to_owned()));
        assert!(ask_on(&mut own, "/own"), "its connection is still there");
    }
    drop(idle);
}
