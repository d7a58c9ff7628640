//! What a running server says of itself, in a file beside its data: `met doctor` reads it without asking the server.

use std::path::{Path, PathBuf};

use met_query::protocol::SchedulerStatus;
use serde::{Deserialize, Serialize};

use crate::colmet::Received;

const NAME: &str = "status.json";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub pid: u32,
    /// Addresses, with their ports.
    pub listening: Vec<String>,
    /// What it queries for its nodes.
    pub schedulers: Vec<SchedulerStatus>,
    /// What it received of nodes of Colmet; empty if it takes nothing of them.
    #[serde(default)]
    pub colmet: Vec<Received>,
}

impl ServerStatus {
    /// As last written; the caller checks that the server runs.
    pub fn read(state: &Path) -> Option<ServerStatus> {
        serde_json::from_slice(&std::fs::read(state.join(NAME)).ok()?).ok()
    }
}

/// The server's end: writes the file when there is news.
pub struct StatusFile {
    path: PathBuf,
    status: ServerStatus,
    is_written: bool,
}

impl StatusFile {
    pub fn new(state: &Path, listening: Vec<String>) -> StatusFile {
        let status = ServerStatus { pid: std::process::id(), listening, ..ServerStatus::default() };
        StatusFile { path: state.join(NAME), status, is_written: false }
    }

    /// A disk that is full is reported elsewhere; the next change is written again.
    pub fn update(&mut self, schedulers: Vec<SchedulerStatus>, colmet: Vec<Received>) {
        if self.is_written && schedulers == self.status.schedulers && colmet == self.status.colmet {
            return;
        }
        (self.status.schedulers, self.status.colmet) = (schedulers, colmet);
        let beside = self.path.with_extension("json.new");
        let text = serde_json::to_vec(&self.status).unwrap_or_default();
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &self.path));
        self.is_written = written.is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_written_and_read_back() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(ServerStatus::read(state.path()), None);
        let mut file = StatusFile::new(state.path(), vec!["127.0.0.1:9317".to_owned()]);
        file.update(Vec::new(), Vec::new());
        assert_eq!(ServerStatus::read(state.path()).unwrap().listening, ["127.0.0.1:9317"]);
        let failed = SchedulerStatus {
            manager: "slurm".to_owned(),
            last_error: Some("sacct: down".to_owned()),
            ..SchedulerStatus::default()
        };
        file.update(vec![failed.clone()], Vec::new());
        assert_eq!(ServerStatus::read(state.path()).unwrap().schedulers, [failed]);
        let received = Received { peer: "rust".to_owned(), taken: 3, skipped: 1 };
        file.update(Vec::new(), vec![received.clone()]);
        assert_eq!(ServerStatus::read(state.path()).unwrap().colmet, [received]);
    }
}
