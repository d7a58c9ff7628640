//! The directories that outlive their jobs: in which hierarchies each of them is, and in which one it is followed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::tree::{Change, Node, Role, Tree, Way};

impl Tree {
    /// Whether this is the directory that outlives the jobs of a route.
    pub(super) fn ends_at_home(&self, way: &Way) -> bool {
        way.at == self.routes[way.route].home
    }

    /// Below the directory that outlives its jobs one hierarchy alone is followed.
    pub(super) fn leads_on(&self, node: &Node, way: &Way) -> bool {
        let home = self.routes[way.route].home;
        if way.at < home {
            return true;
        }
        let path: PathBuf = node.path.components().take(home).collect();
        self.homes.get(&path).and_then(BTreeSet::first) == Some(&node.hierarchy)
    }

    /// Whether a directory outlives jobs, and its children are to be followed.
    pub(super) fn is_active_home(&self, node: &Node) -> bool {
        let Role::Way(ways) = &node.role else { return false };
        let ends_here = |way: &&Way| way.at > 0 && self.ends_at_home(way);
        ways.iter().filter(ends_here).any(|way| self.leads_on(node, way))
    }

    /// A directory that outlives its jobs is there in one more hierarchy; the best of them is followed.
    pub(super) fn register_home(&mut self, id: u32) {
        let Some(node) = self.nodes.get(&id) else { return };
        let Role::Way(ways) = &node.role else { return };
        if !ways.iter().any(|way| self.ends_at_home(way)) {
            return;
        }
        let (hierarchy, path) = (node.hierarchy, node.path.clone());
        let home = self.homes.entry(path.clone()).or_default();
        let before = home.first().copied();
        home.insert(hierarchy);
        if let Some(worse) = before.filter(|&before| hierarchy < before) {
            self.leave_home(worse, &path);
        }
    }

    /// Lets go of what was followed below a home in a hierarchy; its jobs are taken up in another one.
    fn leave_home(&mut self, hierarchy: usize, path: &Path) {
        let Some(id) = self.node_at(hierarchy, path) else { return };
        let children: Vec<u32> =
            self.nodes.get(&id).map_or_else(Vec::new, |node| node.children.values().copied().collect());
        self.ledger.forget(id);
        for child in children {
            for id in self.subtree(child) {
                if let Some(node) = self.drop_node(id)
                    && matches!(node.role, Role::Job { .. })
                {
                    self.changes.push(Change::Left { id, path: node.path });
                }
                self.ledger.forget(id);
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.children.clear();
        }
        self.watches.stop(id);
    }

    pub(super) fn node_at(&self, hierarchy: usize, path: &Path) -> Option<u32> {
        let is_root = |node: &Node| node.parent.is_none() && node.hierarchy == hierarchy;
        let mut id = self.nodes.iter().find(|(_, node)| is_root(node)).map(|(id, _)| *id)?;
        for name in path.components() {
            id = *self.nodes.get(&id)?.children.get(name.as_os_str())?;
        }
        Some(id)
    }

    /// The home is gone from the hierarchy in which it was followed; another one may still have it.
    pub(super) fn lose_home(&mut self, hierarchy: usize, path: &Path, now_ns: i64) {
        let Some(home) = self.homes.get_mut(path) else { return };
        let was_followed = home.first() == Some(&hierarchy);
        home.remove(&hierarchy);
        match home.first().copied() {
            Some(next) if was_followed => {
                if let Some(id) = self.node_at(next, path) {
                    self.descend(id, true, None, now_ns);
                }
            }
            Some(_) => {}
            None => drop(self.homes.remove(path)),
        }
    }
}
