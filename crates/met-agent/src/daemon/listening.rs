//! The daemon's HTTP listener, if an address is configured: a page for Prometheus, the API, and pages for people.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use met_web::api::{self, Admitted, Api, Live};
use met_web::listener::{Options, PasswordFile, Peer, Server, in_background};
use met_web::login::{self, Directory, Errand, Logins, Person};
use met_web::pages::{self, Pages};
use met_web::problem::Problem;
use met_web::scrape::{METRICS, Wanted};

use super::last_tick::MetricsCache;
use super::memory_release;
use super::privilege;
use met_config::Place;
use met_query::client::{Client, Unreachable};
use met_query::jobs::{Answers, Remote};
use met_query::protocol::{Reply, Request};
use met_query::setting::Setting;
use met_query::systems;
use met_query::viewer::Viewer;

/// Users that `http.operators` names may read all jobs. Others see nothing, since a password may be that of a scraper,
/// unless `login.local_users` says that names are those of this machine's users.
struct LocalPeople {
    operators: Vec<String>,
    local_users: bool,
    uids: Arc<Uids>,
}

/// Numbers of users by their names. A directory service may take its time, and every request needs one.
#[derive(Default)]
struct Uids(Mutex<HashMap<String, (Instant, Option<u32>)>>);

/// How long a user's number is remembered.
const UID_FOR: Duration = Duration::from_secs(60);
/// Users whose numbers are remembered.
const UIDS_MAX: usize = 1024;

impl Uids {
    /// As it was within this time; `None` if that is not known.
    fn known(&self, name: &str, within: Duration) -> Option<Option<u32>> {
        let uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.get(name).filter(|(at, _)| at.elapsed() < within).map(|(_, uid)| *uid)
    }

    /// Blocks, and delays no one who asks for another.
    fn look_up(&self, name: &str) -> Option<u32> {
        let uid = met_host::users::uid_of(name);
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if uids.len() >= UIDS_MAX {
            uids.clear();
        }
        uids.insert(name.to_owned(), (Instant::now(), uid));
        uid
    }
}

impl LocalPeople {
    /// Users are looked up before; what was known then still holds while their request is answered.
    fn uid_of(&self, name: &str) -> Option<u32> {
        self.uids.known(name, 2 * UID_FOR).unwrap_or_else(|| self.uids.look_up(name))
    }
}

impl Directory for LocalPeople {
    fn by_token(&self, _: &str) -> Result<Option<Person>, Problem> {
        Ok(None)
    }

    fn admit(&self, person: &Person) -> Result<Admitted, Problem> {
        let name = &person.name;
        if self.operators.contains(name) {
            return Ok(Admitted::operator(name));
        }
        match Some(name).filter(|_| self.local_users).and_then(|name| self.uid_of(name)) {
            Some(uid) => Ok(Admitted { viewer: Viewer::Uid(uid), ..Admitted::user(name) }),
            None => {
                let reason = format!("{name} is not in http.operators of met.yaml");
                Err(Problem::new(StatusCode::FORBIDDEN, reason))
            }
        }
    }

    fn look_up(&self, person: &Person) -> Option<Errand> {
        let name = person.name.clone();
        if !self.local_users || self.operators.contains(&name) || self.uids.known(&name, UID_FOR).is_some() {
            return None;
        }
        let uids = Arc::clone(&self.uids);
        Some(Box::new(move || _ = uids.look_up(&name)))
    }

    fn has_tokens(&self) -> bool {
        false
    }

    fn needed(&self) -> &'static str {
        "a user and a password of http.web_config are needed"
    }
}

/// The daemon as its own listener asks it: on its socket, like every other client. What is not on disk yet is known to
/// one thread, and its answers are the same for a command and for a browser.
struct OwnSocket(Place);

impl Answers for OwnSocket {
    fn call(&mut self, request: &Request) -> anyhow::Result<Reply> {
        let (mut client, _) = Client::connect_to(&self.0).map_err(|error| match error {
            Unreachable::Absent => anyhow::anyhow!("the daemon is starting; ask again"),
            error => error.into(),
        })?;
        Ok(client.call(request)?)
    }

    fn what(&self) -> &'static str {
        "the daemon"
    }
}

/// Whether a daemon in this place is to listen. A user's daemon leaves the address in the machine's file to the
/// machine's daemon.
pub fn is_configured(setting: &Setting, place: &Place) -> bool {
    let is_machines = setting.config_path.as_deref() == Some(Path::new(met_config::MACHINE_FILE));
    let http = &setting.config.http;
    (!http.listen.is_empty() || http.socket.is_some()) && (place.system || !is_machines)
}

/// Why a daemon with this configuration would not listen, as far as that shows before it tries.
pub fn refusal(setting: &Setting, place: &Place) -> Option<String> {
    if !is_configured(setting, place) {
        return None;
    }
    let checked = met_web::listener::check(&options(setting)).map_err(|error| error.to_string());
    let (login, has_socket) = (&setting.config.login, setting.config.http.socket.is_some());
    checked.and_then(|()| login::check(login, has_socket)).err()
}

fn options(setting: &Setting) -> Options {
    let http = &setting.config.http;
    let mut options = Options::new(http.listen.clone());
    options.socket.clone_from(&http.socket);
    options.web_config.clone_from(&http.web_config);
    options.plain = http.plain;
    options
}

fn logins(setting: &Setting, passwords: &Arc<PasswordFile>) -> Result<Arc<Logins>, String> {
    let (http, login) = (&setting.config.http, &setting.config.login);
    let style = Some(format!("/{}", pages::style_path()));
    let people = LocalPeople {
        operators: http.operators.clone(),
        local_users: login.local_users,
        uids: Arc::default(),
    };
    Logins::open(login, http.socket.is_some(), Arc::new(people), Arc::clone(passwords), style).map(Arc::new)
}

/// The thread that serves others drops root's privileges.
pub fn listen(
    setting: &Setting,
    place: &Place,
    metrics_cache: &Arc<MetricsCache>,
) -> Result<Server, met_web::listener::Error> {
    let mut options = options(setting);
    // The daemon needs descriptors for its jobs, too.
    let part = usize::try_from(met_host::open_file_limit() / 100 * met_host::percent::LISTENER)
        .unwrap_or(usize::MAX);
    options.connections_max = options.connections_max.min(part.max(8));
    options.own_checks = login::OWN_CHECKS;
    // More than answers that are made at once: a password is checked by one of them.
    options.background_threads = 4;
    options.in_thread = place.system.then_some(privilege::drop_privileges_before_serving);
    let logins = logins(setting, &options.passwords).map_err(met_web::listener::Error::Login)?;
    let admission: Arc<dyn api::Admission> = Arc::<Logins>::clone(&logins);
    let daemon = Arc::new(Remote::new(OwnSocket(place.clone())));
    let api = Api {
        query: Arc::<Remote>::clone(&daemon),
        annotates: daemon,
        output: None,
        host: Some(setting.host.clone()),
        systems: systems::of(&setting.config).into(),
        currency: setting.config.energy.currency.clone(),
        admission,
        answers: Arc::default(),
        layouts: setting.config.jobs.layouts.clone(),
        live: Arc::new(Live::new(Arc::clone(&metrics_cache.hub))),
    };
    let api = Arc::new(api);
    let pages = Arc::new(Pages { api: Arc::clone(&api), base: "/".to_owned(), has_logout: true });
    let router = router(metrics_cache).merge(api::router(api)).merge(pages::router(pages));
    let server = Server::start(options, login::guard(&logins, router))?;
    for address in server.local_addrs() {
        tracing::info!("http: listening on {address}");
    }
    Ok(server)
}

fn router(metrics_cache: &Arc<MetricsCache>) -> Router {
    let metrics_cache = Arc::clone(metrics_cache);
    let metrics = get(move |Extension(peer): Extension<Peer>, headers: HeaderMap| {
        let metrics_cache = Arc::clone(&metrics_cache);
        async move {
            if metrics_cache.is_stale() {
                let asking = Arc::clone(&metrics_cache);
                in_background(move || asking.refresh()).await;
            }
            answer(&metrics_cache, &peer, &headers)
        }
    });
    Router::new().route(METRICS, metrics)
}

fn answer(metrics_cache: &MetricsCache, peer: &Peer, headers: &HeaderMap) -> Response {
    // Every user of this machine can read the page without a login, so user names are shown only to
    // authenticated clients.
    let wanted = Wanted::of(headers, peer.is_known());
    let page = metrics_cache.page(wanted);
    memory_release::limit_code();
    match page {
        Ok(page) => wanted.respond(axum::body::Bytes::from_owner(page)),
        Err(old) => (StatusCode::SERVICE_UNAVAILABLE, format!("{old}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use met_web::api::Admission;
    use met_web::login::Proof;
    use std::io::{Read, Write};

    use super::super::watchdog::tests::daemon_of;
    use super::*;

    struct Anybody;

    impl Admission for Anybody {
        fn admit(&self, _: &Peer, _: &HeaderMap) -> Result<Admitted, Problem> {
            Ok(Admitted::operator("anybody"))
        }
    }

    #[test]
    fn a_user_is_looked_up_once_and_an_operator_never() {
        let people =
            LocalPeople { operators: vec!["op".to_owned()], local_users: true, uids: Arc::default() };
        let person = |name: &str| Person { name: name.to_owned(), proof: Proof::Proxy };
        assert!(people.look_up(&person("op")).is_none());
        let errand = people.look_up(&person("root")).unwrap();
        errand();
        assert!(people.look_up(&person("root")).is_none());
        assert_eq!(people.uids.known("root", UID_FOR), Some(Some(0)));
        assert_eq!(people.admit(&person("root")).unwrap().viewer, Viewer::Uid(0));
        let unknown = LocalPeople { local_users: false, ..people };
        assert!(unknown.look_up(&person("root")).is_none() && unknown.admit(&person("root")).is_err());
    }

    #[test]
    fn a_request_in_flight_is_answered_when_the_daemon_leaves() {
        let root = tempfile::tempdir().unwrap();
        let mut daemon = daemon_of(super::super::write_retries::tests::service(root.path()));
        let asked = Arc::new(Remote::new(OwnSocket(daemon.service.place.clone())));
        let api = Api {
            query: Arc::<Remote>::clone(&asked),
            annotates: asked,
            output: None,
            host: None,
            systems: Arc::default(),
            currency: String::new(),
            admission: Arc::new(Anybody),
            answers: Arc::default(),
            layouts: Vec::new(),
            live: Arc::default(),
        };
        let options = Options::new(vec!["127.0.0.1:0".parse().unwrap()]);
        let server = Server::start(options, api::router(Arc::new(api))).unwrap();
        let mut client = std::net::TcpStream::connect(server.local_addrs()[0]).unwrap();
        daemon.http = Some(server);
        write!(client, "GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        // It asks the daemon, which greets it and answers no more.
        let oldest = met_query::handshake::PROTOCOL_OLDEST;
        let begin = Instant::now();
        while daemon.connections.len() == 0 || daemon.connections.get(0).protocol == oldest {
            assert!(begin.elapsed() < Duration::from_secs(60), "the listener asks");
            daemon.let_in();
            let ready = vec![true; daemon.connections.len()];
            daemon.serve_connections(&ready);
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.leave();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer:?}");
    }
}
