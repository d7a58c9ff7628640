use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::thread::ThreadId;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Extension;
use axum::http::{Method, Request, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tower_service::Service;

use super::cross_site::CSRF_HEADER;
use super::*;

/// Tokens are names with an exclamation mark. Those in `revoked` are none any more.
#[derive(Default)]
struct People {
    revoked: Mutex<Vec<String>>,
    /// Threads that looked up a user.
    looked_up: Arc<Mutex<Vec<ThreadId>>>,
}

impl Directory for People {
    fn by_token(&self, token: &str) -> Result<Option<Person>, Problem> {
        let name = token
            .strip_suffix('!')
            .filter(|name| !self.revoked.lock().unwrap().contains(&(*name).to_owned()));
        let proof = Proof::Token(token.as_bytes().to_vec());
        Ok(name.map(|name| Person { name: name.to_owned(), proof }))
    }

    fn admit(&self, person: &Person) -> Result<Admitted, Problem> {
        match person.name.as_str() {
            name if self.revoked.lock().unwrap().contains(&person.name) => Err(unauthorized(name)),
            "op" => Ok(Admitted::operator("op")),
            name => Ok(Admitted::user(name)),
        }
    }

    fn look_up(&self, person: &Person) -> Option<Errand> {
        let looked_up = Arc::clone(&self.looked_up);
        let errand = move || looked_up.lock().unwrap().push(std::thread::current().id());
        (person.name == "remote").then(|| Box::new(errand) as Errand)
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn needed(&self) -> &'static str {
        "who are you?"
    }
}

struct Site {
    people: Arc<People>,
    router: Router,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    /// The cookie that was set, as a browser sends it back.
    fn cookie(&self) -> Option<&str> {
        let set = self.headers.get_all(header::SET_COOKIE).into_iter().find_map(|value| value.to_str().ok());
        set.and_then(|set| set.split(';').next())
    }

    fn location(&self) -> Option<&str> {
        self.headers.get(header::LOCATION).and_then(|value| value.to_str().ok())
    }
}

impl Site {
    fn with(login: &Login) -> Site {
        let people = Arc::new(People::default());
        let directory: Arc<dyn Directory> = Arc::<People>::clone(&people);
        let logins = Arc::new(Logins::open(login, false, directory, Arc::default(), None).unwrap());
        let admission = Arc::clone(&logins);
        let who = move |Extension(peer): Extension<Peer>, headers: HeaderMap| async move {
            admission.admit(&peer, &headers).map(|admitted| {
                format!("{} {}", admitted.name, admitted.csrf.unwrap_or_default()).into_response()
            })
        };
        let routes = Router::new().route("/jobs", get(who.clone())).route("/api/v1/jobs", get(who.clone()));
        let routes = ["/", "/nodes/{node}", "/api/v1/stream", "/api/v1/users", "/api/v1/catalogue"]
            .into_iter()
            .fold(routes, |routes, path| routes.route(path, get(who.clone())));
        let routes = routes.route("/api/v1/tags", post(who.clone())).route("/api/v1/ask", post(who));
        Site { people, router: guard(&logins, routes) }
    }

    fn new() -> Site {
        Site::with(&Login { session: std::time::Duration::from_secs(60), ..Login::default() })
    }

    fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        let form = ("content-type", "application/x-www-form-urlencoded");
        let has_kind = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        for (name, value) in
            headers.iter().chain([&form].into_iter().filter(|_| path == "/login" && !has_kind))
        {
            request = request.header(*name, *value);
        }
        let peer = Peer::at(([10, 0, 0, 1], 7).into());
        let request = request.extension(peer).body(Body::from(body.to_owned())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let response = self.router.clone().call(request).await.unwrap();
            let (status, headers) = (response.status(), response.headers().clone());
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            Answer { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
        })
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(Method::GET, path, headers, "")
    }

    /// The cookie of a new session.
    fn log_in(&self, name: &str) -> String {
        let answer = self.send(Method::POST, "/login", &[], &format!("token={name}%21&next=%2Fjobs"));
        assert_eq!(
            (answer.status, answer.location()),
            (StatusCode::SEE_OTHER, Some("/jobs")),
            "{}",
            answer.text
        );
        answer.cookie().unwrap().to_owned()
    }

    /// What a write of this session must carry.
    fn csrf(&self, cookie: &str) -> String {
        let answer = self.get("/api/v1/jobs", &[("Cookie", cookie)]);
        answer.text.split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

#[test]
fn a_session_begins_with_a_token_and_ends_with_it() {
    let site = Site::new();
    let cookie = site.log_in("ada");
    assert!(site.get("/jobs", &[("Cookie", &cookie)]).text.starts_with("ada "));
    site.people.revoked.lock().unwrap().push("ada".to_owned());
    assert_eq!(site.get("/api/v1/jobs", &[("Cookie", &cookie)]).status, StatusCode::UNAUTHORIZED);
}

#[test]
fn what_an_operator_reads_is_in_the_audit_log_with_its_subject() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let site = Site::with(&Login { audit_file: Some(path.clone()), ..Login::default() });
    let reads = ["/", "/nodes/n1", "/api/v1/stream", "/api/v1/users?since=1d", "/api/v1/jobs"];
    for read in ["/api/v1/catalogue"].iter().chain(&reads) {
        assert_eq!(site.get(read, &[("Authorization", "Bearer op!")]).status, StatusCode::OK, "{read}");
        assert_eq!(site.get(read, &[("Authorization", "Bearer ada!")]).status, StatusCode::OK, "{read}");
    }
    for asked in [
        "\"nodes\"",
        r#"{"course":{"key":{"cluster":null,"manager":"local","id":"7","incarnation":0},"after_ms":1}}"#,
    ] {
        assert_eq!(
            site.send(Method::POST, "/api/v1/ask", &[("Authorization", "Bearer op!")], asked).status,
            StatusCode::OK
        );
    }
    let expected: Vec<String> = reads
        .iter()
        .map(|read| format!("op read {read} "))
        .chain(["nodes", "course local/7"].map(|subject| format!("op read /api/v1/ask {subject}")))
        .collect();
    let noted = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let words = |line: serde_json::Value| {
            ["name", "event", "request", "subject"]
                .map(|key| line[key].as_str().unwrap_or_default().to_owned())
                .join(" ")
        };
        lines.map(words).collect::<Vec<_>>()
    };
    // Another thread writes them.
    let begin = std::time::Instant::now();
    while noted().len() < expected.len() && begin.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(noted(), expected);
}

#[test]
fn a_password_that_was_changed_or_removed_proves_nothing() {
    let passwords = Arc::<PasswordFile>::default();
    let set = |user: &str, hash: &str| passwords.set([(user.to_owned(), hash.to_owned())].into());
    set("ada", "first");
    let people = Arc::new(People::default());
    let logins = Logins::open(&Login::default(), false, people, Arc::clone(&passwords), None).unwrap();
    let mut peer = Peer::at(([10, 0, 0, 1], 7).into());
    (peer.user, peer.password) = (Some("ada".to_owned()), passwords.fingerprint("ada"));
    let status = || logins.admit(&peer, &HeaderMap::new()).map_err(|problem| problem.status);
    assert!(status().is_ok());
    set("ada", "second");
    assert_eq!(status().err(), Some(StatusCode::UNAUTHORIZED));
    set("bob", "first");
    assert_eq!(status().err(), Some(StatusCode::UNAUTHORIZED));
    set("ada", "first");
    assert!(status().is_ok());
}

#[test]
fn people_are_looked_up_beside_the_thread_that_listens() {
    let site = Site::new();
    let looked_up = || std::mem::take(&mut *site.people.looked_up.lock().unwrap());
    site.log_in("ada");
    assert!(looked_up().is_empty());
    let cookie = site.log_in("remote");
    assert_eq!(looked_up().len(), 1);
    for path in ["/jobs", "/api/v1/jobs", "/login"] {
        assert_eq!(site.get(path, &[("Cookie", &cookie)]).status, StatusCode::OK, "{path}");
        let threads = looked_up();
        assert!(threads.len() == 1 && threads[0] != std::thread::current().id(), "{path}");
    }
}

#[test]
fn a_planted_cookie_is_no_session_after_a_login() {
    let site = Site::new();
    let planted = site.log_in("eve");
    let answer = site.send(Method::POST, "/login", &[("Cookie", &planted)], "token=ada%21");
    assert_ne!(answer.cookie(), Some(planted.as_str()));
    assert_eq!(site.get("/api/v1/jobs", &[("Cookie", &planted)]).status, StatusCode::UNAUTHORIZED);
}

#[test]
fn a_page_leads_to_the_login_and_the_api_does_not() {
    let site = Site::new();
    let page = site.get("/jobs?user=ada", &[("Accept", "text/html")]);
    assert_eq!(
        (page.status, page.location()),
        (StatusCode::SEE_OTHER, Some("/login?next=%2Fjobs%3Fuser%3Dada"))
    );
    assert_eq!(site.get("/jobs", &[]).status, StatusCode::UNAUTHORIZED);
    let api = site.get("/api/v1/jobs", &[("Accept", "text/html")]);
    assert_eq!(api.status, StatusCode::UNAUTHORIZED);
    assert!(api.headers.contains_key(header::WWW_AUTHENTICATE));
    let script = site.get("/api/v1/jobs", &[("Sec-Fetch-Mode", "cors")]);
    assert!(!script.headers.contains_key(header::WWW_AUTHENTICATE), "a browser would ask for a password");
}

#[test]
fn a_write_needs_more_than_the_cookie() {
    let site = Site::new();
    let cookie = site.log_in("ada");
    let csrf = site.csrf(&cookie);
    let write =
        |headers: &[(&str, &str)], body: &str| site.send(Method::POST, "/api/v1/tags", headers, body).status;
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let own = ("Cookie", cookie.as_str());
    assert_eq!(write(&[own], ""), StatusCode::FORBIDDEN);
    assert_eq!(write(&[own, (CSRF_HEADER, "")], ""), StatusCode::FORBIDDEN);
    assert_eq!(write(&[own, (CSRF_HEADER, &site.csrf(&site.log_in("ada")))], ""), StatusCode::FORBIDDEN);
    assert_eq!(write(&[own, form], "tag=a&csrf=b"), StatusCode::FORBIDDEN);
    assert_eq!(write(&[own, ("Content-Type", "text/plain")], &format!("csrf={csrf}")), StatusCode::FORBIDDEN);
    assert_eq!(write(&[own, (CSRF_HEADER, &csrf)], ""), StatusCode::OK);
    assert_eq!(write(&[own, form], &format!("tag=a&csrf={csrf}")), StatusCode::OK);
    assert_eq!(
        write(&[own, (CSRF_HEADER, &csrf), ("Sec-Fetch-Site", "cross-site")], ""),
        StatusCode::FORBIDDEN
    );
    assert_eq!(write(&[("Authorization", "Bearer ada!")], ""), StatusCode::OK, "a program logs in each time");
    assert_eq!(
        write(&[("Authorization", "Bearer ada!"), ("Origin", "http://evil")], ""),
        StatusCode::FORBIDDEN
    );
}

#[test]
fn another_site_logs_nobody_in_or_out() {
    let site = Site::new();
    let foreign = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(site.send(Method::POST, "/login", &foreign, "token=eve%21").status, StatusCode::FORBIDDEN);
    let cookie = site.log_in("ada");
    assert_eq!(site.send(Method::POST, "/logout", &[("Cookie", &cookie)], "").status, StatusCode::FORBIDDEN);
    let csrf = site.csrf(&cookie);
    let out = site.send(Method::POST, "/logout", &[("Cookie", &cookie), (CSRF_HEADER, &csrf)], "");
    assert_eq!((out.status, out.location()), (StatusCode::SEE_OTHER, Some("/login")));
    assert!(out.cookie().unwrap().ends_with('='), "it is removed");
    assert_eq!(site.get("/api/v1/jobs", &[("Cookie", &cookie)]).status, StatusCode::UNAUTHORIZED);
}

#[test]
fn what_is_typed_or_linked_is_shown_as_text() {
    let site = Site::new();
    for next in ["/%22%3E%3Cscript%3E", "//evil.example", "javascript:alert(1)", "/x%0d%0aSet-Cookie:a=b"] {
        let shown = site.get(&format!("/login?next={next}"), &[]);
        assert!(
            !shown.text.contains("<script") && !shown.text.contains("evil") && !shown.text.contains("alert")
        );
        let answer = site.send(Method::POST, "/login", &[], &format!("token=ada%21&next={next}"));
        let location = answer.location().unwrap();
        assert!(location.starts_with('/') && !location.starts_with("//"), "{location}");
        assert_eq!(answer.headers.get_all(header::SET_COOKIE).into_iter().count(), 1);
    }
    let wrong = site.send(Method::POST, "/login", &[], "user=%3Cb%3E%1b&password=x");
    assert!(
        wrong.status == StatusCode::UNAUTHORIZED
            && !wrong.text.contains("<b>")
            && !wrong.text.contains('\u{1b}')
    );
}

#[test]
fn what_is_not_a_form_logs_nobody_in() {
    let site = Site::new();
    for kind in ["text/plain", "multipart/form-data", "application/json", ""] {
        let answer = site.send(Method::POST, "/login", &[("content-type", kind)], "token=ada%21");
        assert_eq!((answer.status, answer.cookie()), (StatusCode::UNSUPPORTED_MEDIA_TYPE, None), "{kind}");
    }
    let kind = [("content-type", "application/x-www-form-urlencoded; charset=UTF-8")];
    assert!(site.send(Method::POST, "/login", &kind, "token=ada%21").cookie().is_some());
}

#[test]
fn guessing_is_slowed_down() {
    let site = Site::new();
    let statuses: Vec<_> =
        (0..12).map(|_| site.send(Method::POST, "/login", &[], "user=ada&password=x").status).collect();
    assert_eq!(statuses[0], StatusCode::UNAUTHORIZED);
    assert_eq!(statuses[11], StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn behind_a_proxy_every_address_has_its_prefix() {
    let login = Login {
        session: std::time::Duration::from_secs(60),
        public_url: Some("https://hpc.example/met/".to_owned()),
        ..Login::default()
    };
    let site = Site::with(&login);
    let page = site.get("/jobs", &[("Accept", "text/html")]);
    assert_eq!(page.location(), Some("/met/login?next=%2Fjobs"));
    let answer =
        site.send(Method::POST, "/login", &[("Origin", "https://hpc.example")], "token=ada%21&next=/jobs");
    assert_eq!(answer.location(), Some("/met/jobs"));
    let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(
        cookie.starts_with("__Secure-met=")
            && cookie.contains("Path=/met/; ")
            && cookie.ends_with("; Secure")
    );
}

#[test]
fn an_address_for_browsers_is_one() {
    for bad in
        ["met.example", "ftp://a", "https://", "https://a b", "https://a/b?c", "https://u@a", "https://a//b"]
    {
        assert!(Public::parse(Some(bad)).is_err(), "{bad}");
    }
    let public = Public::parse(Some("http://localhost:9317")).unwrap();
    assert_eq!((public.base.as_str(), public.is_https), ("", false));
}

#[test]
fn a_secret_that_is_empty_or_readable_by_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let write = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let login = Login {
            proxy_header: "X-User".into(),
            proxy_secret_file: Some(path.clone()),
            ..Login::default()
        };
        trusted_proxy(&login, false).map(|proxy| proxy.unwrap().secret.unwrap())
    };
    for short in ["", "\n", "   \n", "0123456789abcde"] {
        assert!(write(short, 0o600).unwrap_err().contains("at least 16 letters"), "{short:?}");
    }
    assert!(write("0123456789abcdef\n", 0o644).unwrap_err().contains("chmod 600"));
    assert_eq!(write("0123456789abcdef\n", 0o600), Ok("0123456789abcdef".to_owned()));
    std::fs::remove_file(&path).unwrap();
    let login = Login { proxy_header: "X-User".into(), proxy_user: Some("0".into()), ..Login::default() };
    assert_eq!(trusted_proxy(&login, false).unwrap_err(), "login.proxy_user needs http.socket");
    assert_eq!(trusted_proxy(&login, true).unwrap().unwrap().uid, Some(0));
    let login = Login { proxy_user: Some("no such user".into()), ..login };
    assert!(trusted_proxy(&login, true).unwrap_err().contains("there is no user"));
}

#[test]
fn every_page_finds_out_by_itself_who_asks() {
    for path in crate::pages::paths() {
        let is_below = |own: &str| path == own || (own.len() > 1 && path.starts_with(&format!("{own}/")));
        assert!(
            OWN_CHECKS.iter().any(|own| is_below(own)),
            "{path} asks a browser for a password of the listener"
        );
    }
}
