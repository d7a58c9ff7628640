//! A listener in one thread of its own: TLS and passwords by the file that exporters share, bounds on everything.
//!
//! Nothing else of this program is asynchronous: the caller that starts a `Server` hands it a router and goes on.

mod acceptor;
mod connection_limits;
mod headers;
mod idle_timeout;
mod open_connections;
mod passwords;
mod peer;
mod unix_socket;
mod web_config;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::server::graceful::GracefulShutdown;
use met_host::Address;
use tokio::sync::oneshot;

use acceptor::Acceptor;
pub use open_connections::ConnectionState;
pub use passwords::{PasswordFile, Refused, Verdict};
pub use peer::{Certificate, Peer};
use unix_socket::Socket;
pub use web_config::WebConfig;

/// Connections that are still at work when the listener is to end.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Where to listen, and what is allowed there.
#[derive(Clone, Debug)]
pub struct Options {
    pub listen: Vec<Address>,
    /// A Unix socket that every local user can connect to.
    pub socket: Option<PathBuf>,
    /// The file about certificates and passwords.
    pub web_config: Option<PathBuf>,
    /// Where the passwords of this file are found by others, as they are now.
    pub passwords: Arc<PasswordFile>,
    /// Speak without TLS on addresses that others can reach.
    pub plain: bool,
    /// A request with more than this is refused.
    pub body_bytes_max: usize,
    /// Beyond them, connections end whose clients have proven nothing; if there is none, new ones wait. One address has
    /// at most three quarters of them, unless it is this machine's own.
    pub connections_max: usize,
    /// From the last byte of the head to the answer.
    pub answer_within: Duration,
    /// These paths and those below them need no password: their handlers authenticate. `/` is only itself.
    pub own_checks: &'static [&'static str],
    /// For what blocks: passwords, and what handlers do in the background.
    pub background_threads: usize,
    /// Called first in the thread, to drop privileges there. If it fails, nothing is served.
    pub in_thread: Option<fn() -> io::Result<()>>,
}

impl Options {
    pub fn new(listen: Vec<Address>) -> Options {
        Options {
            listen,
            socket: None,
            web_config: None,
            passwords: Arc::default(),
            plain: false,
            body_bytes_max: 64 << 10,
            connections_max: 256,
            // Findings wait for their turn, and then take their time.
            answer_within: Duration::from_secs(60),
            own_checks: &[],
            background_threads: 1,
            in_thread: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{address}: {error}")]
    Listen { address: Address, error: io::Error },
    #[error("{}: {error}", path.display())]
    Socket { path: PathBuf, error: io::Error },
    #[error(
        "{address} can be reached by other machines, and TLS is off: set web_config with tls_server_config, \
         or plain: yes"
    )]
    Plain { address: Address },
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {message}", path.display())]
    Content { path: PathBuf, message: String },
    #[error("{0}")]
    Login(String),
    #[error("cannot start the HTTP thread: {0}")]
    Thread(io::Error),
}

/// Does what blocks beside the thread that listens; `None` if it could not be done.
pub async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// What a listener with these options would refuse to start for, found without listening.
pub fn check(options: &Options) -> Result<(), Error> {
    let web = options.web_config.as_deref().map(WebConfig::load).transpose()?;
    acceptor::refuse_plain(options, &web.unwrap_or_default())
}

/// A listener that runs until it is stopped or dropped.
pub struct Server {
    addrs: Vec<SocketAddr>,
    acceptor: Arc<Acceptor>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens when this returns; every fault of the configuration is reported here.
    pub fn start(options: Options, router: Router) -> Result<Server, Error> {
        let listeners = listen(&options)?;
        let socket = options.socket.as_deref().map(Socket::bind).transpose()?;
        let (in_thread, background_threads) = (options.in_thread, options.background_threads);
        let acceptor = Arc::new(Acceptor::open(options, router)?);
        let addrs = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        // The timer and the sockets need it; a password is checked by a second thread that goes again.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(background_threads)
            .thread_name("http-beside")
            .build()
            .map_err(Error::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let at_work = Arc::clone(&acceptor);
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                if let Some(Err(error)) = in_thread.map(|first| first()) {
                    return tracing::error!("http: {error}: no requests are served");
                }
                runtime.block_on(serve(at_work, listeners, socket, stopped));
                runtime.shutdown_background();
            })
            .map_err(Error::Thread)?;
        Ok(Server { addrs, acceptor, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens: port 0 has become a real one.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Reads certificates and passwords again, as it does by itself when their files change. Bad ones change nothing.
    pub fn reread(&self) {
        self.acceptor.reread();
    }

    /// Takes no more requests, finishes those that it has, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        let begin = Instant::now();
        // A handler that never comes back ends with the process.
        while !thread.is_finished() && begin.elapsed() < STOP_WITHIN * 2 {
            std::thread::sleep(Duration::from_millis(2));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(options: &Options) -> Result<Vec<TcpListener>, Error> {
    let mut listeners = Vec::new();
    for address in &options.listen {
        let fail = |error| Error::Listen { address: address.clone(), error };
        let found = address.resolve().map_err(fail)?;
        let bound = TcpListener::bind(found.as_slice());
        let listener =
            bound.map_err(|error| fail(with_holder(error, found.first().map(SocketAddr::port))))?;
        listener.set_nonblocking(true).map_err(fail)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Adds the process that has the address, if there is one.
fn with_holder(error: io::Error, port: Option<u16>) -> io::Error {
    let Some(port) = port.filter(|_| error.kind() == io::ErrorKind::AddrInUse) else { return error };
    let holder = match met_host::listener_of(port) {
        Some((pid, name)) => format!("{name} (pid {pid}) listens there; stop it, or choose another address"),
        None => format!("another program listens there; as root, see: ss -ltnp 'sport = :{port}'"),
    };
    io::Error::new(error.kind(), format!("{error}; {holder}"))
}

async fn serve(
    acceptor: Arc<Acceptor>,
    listeners: Vec<TcpListener>,
    mut socket: Option<Socket>,
    stopped: oneshot::Receiver<()>,
) {
    let graceful = Arc::new(GracefulShutdown::new());
    let mut accepting = Vec::new();
    for listener in listeners {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                accepting.push(tokio::spawn(Arc::clone(&acceptor).accept(listener, Arc::clone(&graceful))));
            }
            Err(error) => tracing::error!("http: {error}"),
        }
    }
    if let Some(listener) = socket.as_mut().and_then(Socket::take_listener) {
        match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => {
                let accept = Arc::clone(&acceptor).accept_local(listener, Arc::clone(&graceful));
                accepting.push(tokio::spawn(accept));
            }
            Err(error) => tracing::error!("http: {error}"),
        }
    }
    // Sent or dropped, both mean the end.
    let _ = stopped.await;
    for task in accepting {
        task.abort();
        let _ = task.await;
    }
    if let Some(graceful) = Arc::into_inner(graceful) {
        let _ = tokio::time::timeout(STOP_WITHIN, graceful.shutdown()).await;
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
