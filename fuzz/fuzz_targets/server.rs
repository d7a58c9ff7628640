//! What users can send to a server.
#![no_main]

use std::sync::OnceLock;

use met_core::job::State;
use met_core::sample;
use met_query::jobs;
use met_query::viewer::Viewer;
use met_server::cluster::{ClusterView, Incompatible, Latest, api};
use met_store::Backends;
use met_store::cluster::Log;

#[path = "../folder.rs"]
mod folder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| server(bytes));

const JOB_NAME: &str = "a-private-name";

/// Bytes as a request to a server, by an operator and by a user who has no job: the reply to the user may not contain
/// the name of another user's job.
fn server(bytes: &[u8]) {
    static VIEW: OnceLock<ClusterView> = OnceLock::new();
    let view = VIEW.get_or_init(server_with_jobs);
    let _ = api::answer(view, &Viewer::Everything, bytes);
    let Ok(answer) = api::answer(view, &Viewer::User("stranger".to_owned()), bytes) else { return };
    let answer = serde_json::to_string(&answer).expect("an answer is text");
    assert!(!answer.contains(JOB_NAME), "a stranger is answered {answer}");
}

fn server_with_jobs() -> ClusterView {
    let state = folder::folder().join("server");
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
        incompatible: Incompatible::default(),
        gap_ms: 60_000,
    }
}
