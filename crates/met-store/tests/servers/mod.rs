//! Real servers, each in a folder of its own and on this machine alone, for as long as a test runs.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use met_store::{Engine, PostgresServer, Secret};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PASSWORD: &str = "a pass:word/with@all of it";

/// A process that ends with its test.
pub struct Server {
    child: Child,
    folder: TempDir,
    pub port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // At once, and PostgreSQL with all its children.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::QUIT);
        }
        let _ = self.child.wait();
    }
}

/// The server, or why there is none.
pub type Started = Result<Server, String>;

fn program(name: &str) -> Result<PathBuf, String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.exists());
    found.ok_or_else(|| format!("{name} is not installed"))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(mut command: Command, folder: TempDir, port: u16, is_ready: impl Fn() -> bool) -> Started {
    let log = folder.path().join("log");
    let out = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out).current_dir("/");
    let child = command.spawn().map_err(|error| error.to_string())?;
    let mut server = Server { child, folder, port };
    for _ in 0..600 {
        if is_ready() {
            return Ok(server);
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("it ended with {status}: {}", fs::read_to_string(&log).unwrap_or_default()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("it does not answer: {}", fs::read_to_string(&log).unwrap_or_default()))
}

fn answers(port: u16, path: &str) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    answer.starts_with("HTTP/1.1 200")
}

impl Server {
    pub fn engine(&self) -> Engine {
        let url = format!("http://127.0.0.1:{}", self.port);
        Engine { url, write_url: None, credentials: None, tenant: None, ca_file: None }
    }
}

pub fn victoria_metrics() -> Started {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("victoria-metrics")?);
    command
        .arg(format!("-storageDataPath={}", folder.path().join("data").display()))
        .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
        .args(["-retentionPeriod=100y", "-memory.allowedPercent=20"]);
    start(command, folder, port, || answers(port, "/health"))
}

pub fn prometheus() -> Started {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("prometheus.yml");
    fs::write(&config, "scrape_configs: []\n").unwrap();
    let mut command = Command::new(program("prometheus")?);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .args(["--web.enable-remote-write-receiver", "--web.enable-admin-api"]);
    start(command, folder, port, || answers(port, "/-/ready"))
}

/// PostgreSQL refuses to run as root.
fn as_who() -> Result<Option<u32>, String> {
    if !rustix::process::getuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let user = users.lines().find_map(|line| line.strip_prefix("postgres:")?.split(':').nth(1)?.parse().ok());
    user.map(Some).ok_or_else(|| "there is no user postgres to run it as".to_owned())
}

fn run(program: &Path, user: Option<u32>, arguments: &[&OsStr]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/");
    if let Some(user) = user {
        command.uid(user);
    }
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub fn postgresql() -> Started {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| "postgresql is not installed")?;
    let newest = versions.flatten().map(|version| version.path().join("bin")).max();
    let programs = newest.ok_or("postgresql is not installed")?;
    let user = as_who()?;
    let folder = tempfile::tempdir().unwrap();
    let (data, secret) = (folder.path().join("data"), folder.path().join("password"));
    fs::write(&secret, PASSWORD).unwrap();
    let certificate = certificate(folder.path());
    if let Some(user) = user {
        for path in [folder.path(), &secret, &folder.path().join("key"), &folder.path().join("certificate")] {
            let _ = std::os::unix::fs::chown(path, Some(user), None);
        }
    }
    let arguments = ["-D", "-U", "met", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "-N", "--pwfile"];
    let mut arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    arguments.insert(1, data.as_os_str());
    arguments.push(secret.as_os_str());
    run(&programs.join("initdb"), user, &arguments)?;
    let port = free_port();
    let mut command = Command::new(programs.join("postgres"));
    let setting = |name: &str, value: &str| format!("-c{name}={value}");
    command.arg("-D").arg(&data).args([
        setting("port", &port.to_string()),
        setting("listen_addresses", "127.0.0.1"),
        setting("unix_socket_directories", &folder.path().display().to_string()),
        setting("fsync", "off"),
    ]);
    if certificate {
        command.args([
            setting("ssl", "on"),
            setting("ssl_cert_file", &folder.path().join("certificate").display().to_string()),
            setting("ssl_key_file", &folder.path().join("key").display().to_string()),
        ]);
    }
    if let Some(user) = user {
        command.uid(user);
    }
    start(command, folder, port, || connect(port).is_ok())
}

fn connect(port: u16) -> Result<postgres::Client, postgres::Error> {
    let mut config = postgres::Config::new();
    config.host("127.0.0.1").port(port).user("met").password(PASSWORD).dbname("postgres");
    config.connect(postgres::NoTls)
}

/// A certificate for localhost that signs itself; whether one could be made.
fn certificate(folder: &Path) -> bool {
    let Ok(openssl) = program("openssl") else { return false };
    let made = Command::new(openssl)
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("key"))
        .arg("-out")
        .arg(folder.join("certificate"))
        .output();
    let made = made.is_ok_and(|output| output.status.success());
    let _ = fs::set_permissions(folder.join("key"), Permissions::from_mode(0o600));
    made
}

impl Server {
    pub fn client(&self) -> postgres::Client {
        connect(self.port).unwrap()
    }

    /// A new database.
    pub fn database(&self, name: &str) -> PostgresServer {
        self.client().batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        self.at("127.0.0.1", name, "")
    }

    pub fn at(&self, host: &str, name: &str, rest: &str) -> PostgresServer {
        let url = Secret::new(format!("postgres://met@{host}:{}/{name}{rest}", self.port));
        PostgresServer { url, password: Some(Secret::new(PASSWORD)), ca_file: None }
    }

    /// What is in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
