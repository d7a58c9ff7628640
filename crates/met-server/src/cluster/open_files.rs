//! Files of the server that stay open between questions: to open a database and read its schema takes longer than most
//! questions. Nothing is locked meanwhile, so a server that writes is not disturbed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use met_store::cluster::Log;
use met_store::{Reader, StoreError};

use super::view::ClusterView;

/// As many as answer at once. Each has a cache of a megabyte at most.
const IDLE_MAX: usize = 4;

#[derive(Default)]
pub(super) struct OpenFiles {
    stores: Idle<Reader>,
    logs: Idle<Log>,
}

/// What is not in use now; `None` when nothing is to stay open.
struct Idle<T>(Mutex<Option<Vec<T>>>);

impl<T> Default for Idle<T> {
    fn default() -> Idle<T> {
        Idle(Mutex::new(Some(Vec::new())))
    }
}

impl<T> Idle<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<T> {
        self.lock().as_mut()?.pop()
    }

    fn put(&self, one: T) {
        let mut idle = self.lock();
        if let Some(idle) = idle.as_mut().filter(|idle| idle.len() < IDLE_MAX) {
            idle.push(one);
        }
    }
}

impl OpenFiles {
    /// Closes what is open, and from now on after each question: the writer, which closes its files last, then puts away
    /// their logs and shared memory.
    pub fn close(&self) {
        *self.stores.lock() = None;
        *self.logs.lock() = None;
    }

    /// Asks the store. One that could not answer is opened again by the next question.
    pub fn with_store<T>(
        &self,
        view: &ClusterView,
        ask: impl FnOnce(&Reader) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.stores.take().filter(|reader| reader.is_current());
        let reader = match idle {
            Some(reader) => reader,
            None => Reader::open_without_space(&view.state, &view.backends)?,
        };
        let answer = ask(&reader)?;
        // Day files are removed by others, and their space is free once they are closed.
        reader.close_files();
        if reader.is_current() {
            self.stores.put(reader);
        }
        Ok(answer)
    }

    /// The same of what nodes sent.
    pub fn with_log<T>(
        &self,
        view: &ClusterView,
        ask: impl FnOnce(&Log) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let log = match self.logs.take() {
            Some(mut log) => {
                log.refresh()?;
                log
            }
            None => Log::open_for_reading(&view.state)?,
        };
        let answer = ask(&log)?;
        self.logs.put(log);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use met_store::Backends;
    use met_store::cluster::TokenOwner;

    use super::*;

    fn enroll(state: &Path, node: &str) {
        let mut log = Log::open(state).unwrap();
        log.enroll(&TokenOwner::Node(node.to_owned()), node.as_bytes(), 1, false).unwrap();
    }

    #[test]
    fn a_file_that_was_replaced_is_not_asked_any_more() {
        let (state, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let view = ClusterView {
            state: state.path().to_owned(),
            backends: Backends::default(),
            latest: Default::default(),
            incompatible: Default::default(),
            gap_ms: 1000,
            lists: Default::default(),
            watching: Default::default(),
        };
        enroll(state.path(), "n1");
        enroll(backup.path(), "n2");
        let files = OpenFiles::default();
        let nodes = || {
            let nodes = files.with_log(&view, Log::nodes).unwrap();
            nodes.into_iter().map(|node| node.name).collect::<Vec<_>>()
        };
        assert_eq!((nodes(), nodes()), (vec!["n1".to_owned()], vec!["n1".to_owned()]));
        fs::rename(backup.path().join("cluster.db"), state.path().join("cluster.db")).unwrap();
        assert_eq!((nodes(), nodes()), (vec!["n2".to_owned()], vec!["n2".to_owned()]));
        fs::remove_file(state.path().join("cluster.db")).unwrap();
        assert!(files.with_log(&view, Log::nodes).is_err());
        enroll(state.path(), "n3");
        assert_eq!(nodes(), ["n3"]);
    }
}
