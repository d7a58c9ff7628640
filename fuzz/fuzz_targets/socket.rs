//! What other users can send to a daemon.
#![no_main]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use met_query::handshake::Hello;
use met_query::protocol::{Reply, Request, read_frame, write_frame};
use met_query::setting::Setting;

#[path = "../folder.rs"]
mod folder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| socket(bytes));

/// Requests in one input: more of them find nothing more.
const REQUESTS_MAX: usize = 32;
/// A daemon that needs longer hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A user who owns no other jobs.
const STRANGER: u32 = 65_534;

/// Each line is a request to a daemon that runs in this process and serves on its socket: as root, of another user to
/// a system daemon; else to the user's own. Whatever was asked, it answers the next client.
fn socket(bytes: &[u8]) {
    static DAEMON: OnceLock<Running> = OnceLock::new();
    let daemon = DAEMON.get_or_init(Running::start);
    let mut link = daemon.connect();
    for request in bytes.split(|&byte| byte == b'\n').take(REQUESTS_MAX) {
        let parsed = serde_json::from_slice(request);
        // These end the daemon of the same user, as they should.
        let ends = matches!(parsed, Ok(Request::Stop | Request::Hello(_))) && !daemon.is_strangers;
        if ends || !is_answered(&mut link, request) {
            break;
        }
    }
    let mut next = daemon.connect();
    let asked = write_frame(&mut next, &Request::Status);
    let answered = asked.and_then(|()| read_frame(&mut next));
    assert!(matches!(answered, Ok(Reply::Status(_))), "the next client is answered {answered:?}");
}

/// Whether the connection is still there afterwards: what cannot be parsed ends it.
fn is_answered(link: &mut UnixStream, request: &[u8]) -> bool {
    let Ok(length) = u32::try_from(request.len()) else { return false };
    let frame = [&length.to_le_bytes(), request].concat();
    link.write_all(&frame).is_ok() && read_frame::<Reply>(link).is_ok()
}

struct Running {
    socket: PathBuf,
    is_strangers: bool,
}

impl Running {
    fn start() -> Running {
        let root = folder::folder();
        let config = root.join("met.yaml");
        let is_strangers = rustix::process::getuid().is_root();
        let text = format!(
            "jobs: {{discover: false}}\nstorage: {{max_size: 100MB}}\nsystem: {{state: {0}/state, runtime: {0}/run}}\n",
            root.display()
        );
        std::fs::write(&config, text).expect("a configuration");
        // SAFETY: no other thread runs yet.
        unsafe {
            std::env::set_var("XDG_STATE_HOME", root.join("own"));
            std::env::set_var("XDG_RUNTIME_DIR", &root);
        }
        let setting = Setting::find(Some(&config)).expect("a setting");
        let place = if is_strangers { setting.system.clone() } else { setting.user.clone() };
        let running = Running { socket: place.socket(), is_strangers };
        std::thread::spawn(move || {
            panic!("the daemon ended: {:?}", met_agent::daemon::run(&setting, &place, false));
        });
        while !running.socket.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// By a thread of the user who asks: the kernel notes who connects.
    fn connect(&self) -> UnixStream {
        let (socket, is_strangers) = (self.socket.clone(), self.is_strangers);
        let connecting = std::thread::spawn(move || {
            if is_strangers {
                // SAFETY: the plain system call changes this thread alone, which ends right after.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER) };
                assert_eq!(changed, 0, "a thread of another user");
            }
            UnixStream::connect(socket)
        });
        let connected = connecting.join().expect("a thread that connects");
        let mut link = connected.expect("the daemon accepts connections");
        let limit = Some(ANSWER_WITHIN);
        link.set_read_timeout(limit).and_then(|()| link.set_write_timeout(limit)).expect("a socket");
        write_frame(&mut link, &Request::Hello(Hello::ours(false))).expect("the daemon reads");
        read_frame::<Reply>(&mut link).expect("the daemon greets");
        link
    }
}
