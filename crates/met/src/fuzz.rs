//! What strangers can say to a daemon and to a server, as fuzz/ says it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use met_core::job::State;
use met_server::cluster::{ClusterView, Latest, Misunderstood};
use met_store::Backends;
use met_store::cluster::{Bearer, Log};

use crate::handshake::Hello;
use crate::protocol::{Reply, Request, read_frame, write_frame};
use crate::setting::Setting;
use crate::view::sample;
use crate::{jobs, server};

const JOB_NAME: &str = "a-private-name";

/// Requests in one input: more of them find nothing more.
const REQUESTS_MAX: usize = 32;
/// A daemon that needs longer hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Each line is a request to a daemon that runs in this process and serves on its socket. Whatever was asked, it
/// answers the next client.
pub fn socket(bytes: &[u8]) {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    let path = SOCKET.get_or_init(start_daemon);
    let requests = bytes.split(|&byte| byte == b'\n').take(REQUESTS_MAX);
    let Ok(mut link) = connect(path) else { panic!("the daemon is gone") };
    for request in requests {
        let stops = matches!(serde_json::from_slice(request), Ok(Request::Stop));
        if stops || !is_answered(&mut link, request) {
            break;
        }
    }
    assert!(serves(path), "the daemon does not answer any more");
}

/// Whether the connection is still there afterwards: nonsense ends it.
fn is_answered(link: &mut UnixStream, request: &[u8]) -> bool {
    let Ok(length) = u32::try_from(request.len()) else { return false };
    let frame = [&length.to_le_bytes(), request].concat();
    link.write_all(&frame).is_ok() && read_frame::<Reply>(link).is_ok()
}

fn serves(path: &PathBuf) -> bool {
    let Ok(mut link) = connect(path) else { return false };
    let asked = write_frame(&mut link, &Request::Status).is_ok();
    asked && matches!(read_frame(&mut link), Ok(Reply::Status(_)))
}

fn connect(path: &PathBuf) -> std::io::Result<UnixStream> {
    let mut link = UnixStream::connect(path)?;
    link.set_read_timeout(Some(ANSWER_WITHIN))?;
    link.set_write_timeout(Some(ANSWER_WITHIN))?;
    write_frame(&mut link, &Request::Hello(Hello::ours(false)))?;
    read_frame::<Reply>(&mut link)?;
    Ok(link)
}

fn start_daemon() -> PathBuf {
    let root = folder();
    let config = root.join("met.yaml");
    std::fs::write(&config, "jobs: {discover: false}\nstorage: {max_size: 100MB}\n")
        .expect("a configuration");
    // SAFETY: no other thread runs yet.
    unsafe {
        std::env::set_var("XDG_STATE_HOME", root.join("state"));
        std::env::set_var("XDG_RUNTIME_DIR", root.join("run"));
    }
    let setting = Setting::find(Some(&config)).expect("a setting");
    let socket = setting.user.socket();
    std::thread::spawn(move || {
        let place = setting.user.clone();
        panic!("the daemon ended: {:?}", crate::daemon::run(&setting, &place, false));
    });
    while connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    socket
}

/// Bytes as a question to a server, by an operator and by a user who has no job: of others' jobs no name may be in
/// what the user is answered.
pub fn server(bytes: &[u8]) {
    static VIEW: OnceLock<ClusterView> = OnceLock::new();
    let view = VIEW.get_or_init(server_with_jobs);
    let _ = server::answer_bytes(view, &Bearer::Operator("operator".to_owned()), bytes);
    let Ok(answer) = server::answer_bytes(view, &Bearer::User("stranger".to_owned()), bytes) else { return };
    let answer = String::from_utf8(answer).expect("an answer is text");
    assert!(!answer.contains(JOB_NAME), "a stranger is answered {answer}");
}

fn server_with_jobs() -> ClusterView {
    let state = folder().join("server");
    std::fs::create_dir_all(&state).expect("a folder for the server");
    drop(Log::open(&state).expect("a log of nodes"));
    let mut writer = jobs::open_writer(&state).expect("a store");
    for id in 1..20 {
        let mut record = sample::full(id, JOB_NAME);
        (record.start_ns, record.state) = (Some(i64::from(id / 4) * 1_000_000_000), State::Finished);
        record.user = Some("ann".to_owned());
        writer.put(&record).expect("a job is kept");
    }
    ClusterView {
        state,
        backends: Backends::default(),
        latest: Latest::default(),
        misunderstood: Misunderstood::default(),
        gap_ms: 60_000,
    }
}

/// Of this process alone; it stays, because the process ends whenever the fuzzer does.
fn folder() -> PathBuf {
    let root = std::env::temp_dir().join(format!("met-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a folder for the targets");
    root
}
