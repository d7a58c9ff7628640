//! What is watched for which directory, and which notices of removals are still to come.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::watch::{Trail, Watch, Watcher};

/// Notices of removals that are waited for: more were lost.
const AWAITED_MAX: usize = 1 << 14;

/// What a watch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Directory(u32),
    /// The events file of a job.
    Events(u32),
}

/// Directories are keyed by the numbers of their nodes.
pub(super) struct Watches {
    pub(super) watcher: Watcher,
    by_watch: HashMap<Watch, Watched>,
    by_node: HashMap<u32, Vec<Watch>>,
    /// Directories that were found to be gone, by their parents: the notice of it is to come.
    awaited: HashSet<(u32, OsString)>,
}

impl Watches {
    pub(super) fn new(watcher: Watcher) -> Watches {
        Watches { watcher, by_watch: HashMap::new(), by_node: HashMap::new(), awaited: HashSet::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.by_watch.len()
    }

    pub(super) fn get(&self, watch: Watch) -> Option<Watched> {
        self.by_watch.get(&watch).copied()
    }

    pub(super) fn is_watched(&self, id: u32) -> bool {
        self.by_node.contains_key(&id)
    }

    /// Whether the kernel says when the first process enters a job.
    pub(super) fn reports_processes(&self, id: u32) -> bool {
        let watches = self.by_node.get(&id).map(Vec::as_slice).unwrap_or_default();
        watches.iter().any(|watch| self.get(*watch) == Some(Watched::Events(id)))
    }

    pub(super) fn watch_directory(&mut self, id: u32, path: &Path, trails: Vec<Trail>) {
        if let Some(watch) = self.watcher.add_dir(path, trails) {
            self.assign(watch, Watched::Directory(id), id);
        }
    }

    pub(super) fn watch_events(&mut self, id: u32, path: &Path) {
        if let Some(watch) = self.watcher.add_file(path) {
            self.assign(watch, Watched::Events(id), id);
        }
    }

    /// Takes over a watch that was set before the directory was known.
    pub(super) fn adopt(&mut self, id: u32, ahead: Watch) {
        self.assign(ahead, Watched::Directory(id), id);
    }

    fn assign(&mut self, watch: Watch, watched: Watched, id: u32) {
        self.by_watch.insert(watch, watched);
        let watches = self.by_node.entry(id).or_default();
        if !watches.contains(&watch) {
            watches.push(watch);
        }
    }

    /// Removes a watch that was set ahead for a directory of no interest.
    pub(super) fn discard(&mut self, ahead: Option<Watch>) {
        if let Some(ahead) = ahead {
            self.watcher.remove(ahead);
        }
    }

    /// The kernel has removed a watch.
    pub(super) fn ended(&mut self, watch: Watch) {
        self.by_watch.remove(&watch);
    }

    /// Until it is watched again nothing is noticed of what happens in a directory.
    pub(super) fn stop(&mut self, id: u32) {
        for watch in self.by_node.remove(&id).unwrap_or_default() {
            // A directory that is followed again has the same watch.
            let is_own = |watched| [Watched::Directory(id), Watched::Events(id)].contains(&watched);
            if self.get(watch).is_some_and(is_own) {
                self.by_watch.remove(&watch);
                self.watcher.remove(watch);
            }
        }
    }

    /// Forgets a directory.
    pub(super) fn forget(&mut self, id: u32) {
        self.stop(id);
        if !self.awaited.is_empty() {
            self.awaited.retain(|(parent, _)| *parent != id);
        }
    }

    /// A directory was found to be gone, and the notice of that is still to come.
    pub(super) fn await_removal(&mut self, parent: u32, name: &OsStr) {
        if self.is_watched(parent) && self.awaited.len() < AWAITED_MAX {
            self.awaited.insert((parent, name.to_owned()));
        }
    }

    /// Whether the removal that was noticed is known.
    pub(super) fn was_awaited(&mut self, parent: u32, name: &OsStr) -> bool {
        !self.awaited.is_empty() && self.awaited.remove(&(parent, name.to_owned()))
    }

    /// Notices that were lost do not come.
    pub(super) fn await_nothing(&mut self) {
        self.awaited.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_followed_again_keeps_its_watch() {
        let folder = tempfile::tempdir().unwrap();
        let mut watches = Watches::new(Watcher::new());
        watches.watch_directory(1, folder.path(), Vec::new());
        // The kernel gives the same number for the same directory.
        watches.watch_directory(2, folder.path(), Vec::new());
        assert_eq!(watches.count(), 1);
        watches.stop(1);
        assert!(!watches.is_watched(1) && watches.is_watched(2));
        std::fs::create_dir(folder.path().join("new")).unwrap();
        assert_eq!(watches.watcher.drain().len(), 1, "it is still noticed");
        watches.stop(2);
        assert_eq!(watches.count(), 0);
    }

    #[test]
    fn a_removal_is_awaited_once_and_only_where_it_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut watches = Watches::new(Watcher::new());
        watches.await_removal(1, "a".as_ref());
        assert!(!watches.was_awaited(1, "a".as_ref()), "nothing is watched");
        watches.watch_directory(1, folder.path(), Vec::new());
        watches.await_removal(1, "a".as_ref());
        assert!(watches.was_awaited(1, "a".as_ref()) && !watches.was_awaited(1, "a".as_ref()));
        watches.await_removal(1, "b".as_ref());
        watches.forget(1);
        assert!(!watches.was_awaited(1, "b".as_ref()));
    }
}
