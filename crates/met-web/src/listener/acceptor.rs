//! Accepts connections, one task each, and authenticates them before routing.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::connection_limits::ConnectionLimits;
use super::headers;
use super::idle_timeout::IdleTimeout;
use super::open_connections::{ConnectionState, OpenConnections};
use super::passwords::{self, Passwords, Verdict};
use super::peer::{Certificate, Peer};
use super::web_config::{Files, WebConfig};
use super::{Error, Options};
use met_host::Address;

const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A connection that waits for its next question, or for the rest of one. Scrapers come every minute.
const NEXT_HEAD_WITHIN: Duration = Duration::from_secs(75);
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Without a byte in either direction.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// Out of descriptors: open connections have to close first.
const BREATHER: Duration = Duration::from_millis(100);
/// How soon a changed file is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Acceptor {
    options: Options,
    router: Router,
    room: Arc<Semaphore>,
    open: Arc<OpenConnections>,
    limits: ConnectionLimits,
    rules: Mutex<Rules>,
}

/// The current web configuration, and when it was last checked.
struct Rules {
    web: Arc<Web>,
    files: Files,
    looked: Instant,
}

struct Web {
    config: WebConfig,
    passwords: Arc<Passwords>,
}

impl Web {
    fn load(path: Option<&Path>, files: &mut Files) -> Result<Web, Error> {
        let config = match path {
            Some(path) => WebConfig::load_with(path, files)?,
            None => WebConfig::default(),
        };
        if let (false, Some(path)) = (config.unheeded.is_empty(), path) {
            let keys = config.unheeded.join(", ");
            tracing::warn!("{}: {keys}: ignored; safe defaults used", path.display());
        }
        let passwords = Passwords::new(config.users.clone());
        let passwords = passwords.ok_or_else(|| Error::Thread(std::io::Error::other("no random numbers")))?;
        Ok(Web { config, passwords: Arc::new(passwords) })
    }
}

/// Connections that others can read must be encrypted, unless configured otherwise.
pub(super) fn refuse_plain(options: &Options, web: &WebConfig) -> Result<(), Error> {
    if web.tls.is_some() || options.plain {
        return Ok(());
    }
    let is_open = |address: &&Address| {
        let found = address.resolve().unwrap_or_default();
        !found.iter().all(|found| found.ip().to_canonical().is_loopback())
    };
    match options.listen.iter().find(is_open) {
        Some(address) => Err(Error::Plain { address: address.clone() }),
        None => Ok(()),
    }
}

impl Acceptor {
    pub(super) fn open(options: Options, router: Router) -> Result<Acceptor, Error> {
        let mut files = Files::default();
        let web = Web::load(options.web_config.as_deref(), &mut files)?;
        let acceptor = Acceptor {
            room: Arc::new(Semaphore::new(options.connections_max)),
            open: Arc::default(),
            limits: ConnectionLimits::of(options.connections_max),
            rules: Mutex::new(Rules { web: Arc::new(web), files, looked: Instant::now() }),
            options,
            router,
        };
        refuse_plain(&acceptor.options, &acceptor.rules().web.config)?;
        acceptor.options.passwords.replace(&acceptor.rules().web.passwords);
        Ok(acceptor)
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reread(&self) {
        let mut rules = self.rules();
        let mut files = Files::default();
        let loaded = Web::load(self.options.web_config.as_deref(), &mut files);
        match loaded.and_then(|web| refuse_plain(&self.options, &web.config).map(|()| web)) {
            Ok(web) => {
                self.options.passwords.replace(&web.passwords);
                rules.web = Arc::new(web);
            }
            Err(error) => tracing::error!("http: certificates and passwords not reloaded: {error}"),
        }
        // Also of refused ones: they are reported once.
        (rules.files, rules.looked) = (files, Instant::now());
    }

    fn web(&self) -> Arc<Web> {
        let is_due = {
            let mut rules = self.rules();
            let is_due = rules.looked.elapsed() >= LOOK_EVERY;
            if is_due {
                rules.looked = Instant::now();
            }
            is_due && rules.files.have_changed()
        };
        if is_due {
            self.reread();
        }
        Arc::clone(&self.rules().web)
    }

    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener, graceful: Arc<GracefulShutdown>) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let Some(slot) = self.limits.take(address.ip()) else { continue };
                    let Some(place) = self.place().await else { return };
                    let (acceptor, watcher) = (Arc::clone(&self), graceful.watcher());
                    let open = self.open.add();
                    tokio::spawn(async move {
                        let peer = Peer { connection: open.state.clone(), ..Peer::at(address) };
                        open.serve(acceptor.admit(stream, peer, watcher)).await;
                        drop((place, slot, open));
                    });
                }
                Err(error) => {
                    tracing::debug!("http: {error}");
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    /// A place for a connection. Where there is none, one whose client has proven nothing ends.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.room).try_acquire_owned() {
            return Some(place);
        }
        loop {
            self.open.make_room();
            let place = Arc::clone(&self.room).acquire_owned();
            // Another listener may have been faster.
            if let Ok(place) = tokio::time::timeout(BREATHER, place).await {
                return place.ok();
            }
        }
    }

    /// As [`Acceptor::accept`], on a Unix socket.
    pub(super) async fn accept_local(
        self: Arc<Self>,
        listener: UnixListener,
        graceful: Arc<GracefulShutdown>,
    ) {
        loop {
            let accepted = listener.accept().await.and_then(|(stream, _)| {
                let uid = met_host::Peer::of(&stream)?.uid;
                Ok((stream, uid))
            });
            match accepted {
                Ok((stream, uid)) => {
                    let Some(slot) = self.limits.take(slot_of(uid)) else { continue };
                    let Some(place) = self.place().await else { return };
                    let (acceptor, watcher) = (Arc::clone(&self), graceful.watcher());
                    let open = self.open.add();
                    tokio::spawn(async move {
                        let connection = open.state.clone();
                        open.serve(acceptor.admit_local(stream, uid, connection, watcher)).await;
                        drop((place, slot, open));
                    });
                }
                Err(error) => {
                    tracing::debug!("http: {error}");
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    async fn admit_local(
        self: Arc<Self>,
        stream: UnixStream,
        uid: u32,
        connection: ConnectionState,
        watcher: Watcher,
    ) {
        let nowhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let peer = Peer { uid: Some(uid), connection, ..Peer::at(nowhere) };
        self.converse(stream, peer, watcher).await;
    }

    async fn admit(self: Arc<Self>, stream: TcpStream, mut peer: Peer, watcher: Watcher) {
        let address = peer.address;
        // An answer is one write: nothing is gained by waiting for more.
        let _ = stream.set_nodelay(true);
        let web = self.web();
        let Some(tls) = web.config.tls.clone() else {
            return self.converse(stream, peer, watcher).await;
        };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        let stream = match tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!("http: {address}: {error}"),
            Err(_) => return,
        };
        peer.is_tls = true;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        peer.certificate = shown.and_then(Certificate::read);
        if shown.is_some() && peer.certificate.is_none() {
            tracing::warn!("http: the client certificate of {address} cannot be read; it identifies no one");
        }
        if web.config.admits(peer.certificate.as_ref()) {
            self.converse(stream, peer, watcher).await;
        }
    }

    async fn converse<S>(self: Arc<Self>, stream: S, peer: Peer, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = peer.address;
        let service = service_fn(move |request| {
            let (acceptor, peer) = (Arc::clone(&self), peer.clone());
            async move { Ok::<_, Infallible>(acceptor.answer(request, peer).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(NEXT_HEAD_WITHIN)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(IdleTimeout::new(stream, SILENCE_MAX)), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!("http: {address}: {error}");
        }
    }

    async fn answer(&self, request: Request<Incoming>, mut peer: Peer) -> Response<Body> {
        let web = self.web();
        let _busy = peer.connection.busy();
        let mut response = match self.identify(&web, &request, &mut peer).await {
            Ok(()) => self.ask_router(request, peer).await,
            Err(refusal) => refusal,
        };
        headers::secure(response.headers_mut());
        for (name, value) in &web.config.headers {
            response.headers_mut().insert(name, value.clone());
        }
        response
    }

    /// Authenticates the client, or refuses.
    async fn identify(
        &self,
        web: &Web,
        request: &Request<Incoming>,
        peer: &mut Peer,
    ) -> Result<(), Response<Body>> {
        if web.passwords.is_empty() {
            return Ok(());
        }
        let path = request.uri().path();
        let checks_itself = self.options.own_checks.iter().any(|own| is_at_or_below(path, own));
        let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((user, password)) = given.and_then(passwords::basic) else {
            return if checks_itself { Ok(()) } else { Err(unauthorized()) };
        };
        // All users of this machine have its own addresses in common, as have those behind a proxy on it.
        let address = Some(peer.address.ip().to_canonical());
        let address = address.filter(|address| peer.uid.is_none() && !address.is_loopback());
        let attempts = &self.options.passwords.attempts;
        // Others who guess do not lock out a scraper that has the right one.
        if let Some(wait) =
            attempts.wait(address, Some(&user)).filter(|_| !web.passwords.is_known(&user, &password))
        {
            let retry = [(header::RETRY_AFTER, wait.as_secs().max(1).to_string())];
            let reason = "too many failed logins; try again in a few minutes\n";
            let refusal = (StatusCode::TOO_MANY_REQUESTS, retry, reason).into_response();
            self.options.passwords.refused(peer, &user, path, &refusal);
            return Err(refusal);
        }
        match web.passwords.check(&user, &password).await {
            Verdict::Right => {
                attempts.succeeded(address, Some(&user));
                peer.password = web.passwords.fingerprint(&user);
                peer.user = Some(user);
                peer.connection.mark_authenticated();
            }
            Verdict::Wrong => {
                attempts.failed(address, Some(&user));
                let refusal = unauthorized();
                self.options.passwords.refused(peer, &user, path, &refusal);
                return Err(refusal);
            }
            Verdict::Busy => {
                let retry = [(header::RETRY_AFTER, "1")];
                return Err(
                    (StatusCode::TOO_MANY_REQUESTS, retry, "too many logins in progress\n").into_response()
                );
            }
        }
        Ok(())
    }

    async fn ask_router(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let most = self.options.body_bytes_max;
        let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if announced.and_then(|text| text.parse().ok()).is_some_and(|bytes: u64| bytes > most as u64) {
            return (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n").into_response();
        }
        let mut request = request.map(|body| Body::new(Limited::new(body, most)));
        request.extensions_mut().insert(peer);
        let answer = self.router.clone().call(request);
        match tokio::time::timeout(self.options.answer_within, answer).await {
            Ok(Ok(response)) => response,
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "timed out\n").into_response(),
        }
    }
}

/// Whether a path is this one or, unless that is the root, below it.
fn is_at_or_below(path: &str, own: &str) -> bool {
    let own = own.trim_end_matches('/');
    let rest = path.strip_prefix(own);
    rest.is_some_and(|rest| match own {
        "" => rest == "/",
        _ => rest.is_empty() || rest.starts_with('/'),
    })
}

/// Connections to the Unix socket are counted per user, by an address that no machine has.
fn slot_of(uid: u32) -> IpAddr {
    let [high, low] = [(uid >> 16) as u16, uid as u16];
    IpAddr::V6(Ipv6Addr::new(0xfdff, 0, 0, 0, 0, 0, high, low))
}

fn unauthorized() -> Response<Body> {
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"met\"")];
    (StatusCode::UNAUTHORIZED, challenge, "user name and password required\n").into_response()
}
