//! The directories that are followed: the ways to jobs, the jobs, their parts, and what is beside them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use met_host::KeptFile;

use super::dir_limits::{self, Places};
use super::files::Files;
use super::ledger::{Closed, CpuLedger, Reading};
use super::watch::{Trail, Watch, Watcher};
use super::watches::Watches;
use crate::cgroup_layouts::{Captures, Layouts, Segment};

/// One layout from the top of a hierarchy.
pub(super) struct Route {
    pub(super) manager: String,
    /// Of a resource manager.
    is_managed: bool,
    segments: Vec<Segment>,
    parts: Vec<Segment>,
    /// So many directories lead to the one that outlives its jobs, itself included.
    pub(super) home: usize,
    /// That directory belongs to this manager alone, and shows that it is running.
    has_own_home: bool,
}

/// In order of precedence.
fn routes(layouts: &Layouts, below: Option<&Path>) -> Vec<Route> {
    let above = below.map(literals).unwrap_or_default();
    let mut routes = Vec::new();
    for layout in layouts.of_jobs() {
        for (segments, home) in layout.routes() {
            routes.push(Route {
                manager: layout.manager().to_owned(),
                is_managed: layout.is_managed(),
                segments: above.iter().chain(segments).cloned().collect(),
                parts: layout.parts().to_vec(),
                home: above.len() + home,
                has_own_home: layout.has_own_home(),
            });
        }
    }
    routes
}

/// The directories named before any layout's, each by its own name.
fn literals(below: &Path) -> Vec<Segment> {
    let names = below.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(Segment::literal(name.as_encoded_bytes())),
        _ => None,
    });
    names.collect()
}

pub(super) struct Node {
    pub(super) hierarchy: usize,
    pub(super) parent: Option<u32>,
    /// From the top of the hierarchy.
    pub(super) path: PathBuf,
    pub(super) role: Role,
    pub(super) inode: u64,
    /// In which it is counted.
    place: u32,
    pub(super) children: HashMap<OsString, u32>,
    /// Whether some of its directories are not followed for want of room.
    is_crowded: bool,
    /// Whether it was made while it was read, and nothing was ever seen in it.
    pub(super) unexplored: bool,
    /// What counts its CPU time, of those that are accounted for.
    counter: Option<KeptFile>,
}

impl Node {
    /// Whether this is its directory of that name.
    pub(super) fn holds(&self, name: &OsStr, id: u32) -> bool {
        self.children.get(name) == Some(&id)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Role {
    /// On the way to jobs: how far along which routes.
    Way(Vec<Way>),
    /// What is known of it is in the list of jobs.
    Job { route: usize },
    /// A part of a job, or on the way to one.
    Part { job: u32, route: usize, depth: usize, captures: Captures, is_part: bool },
    /// Something else that shares a counter with jobs.
    Beside,
}

#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) route: usize,
    pub(super) at: usize,
    captures: Captures,
}

/// What happened to jobs in the tree.
pub(super) enum Change {
    /// The directory of a job is followed from now on.
    Job {
        id: u32,
        route: usize,
        captures: Captures,
        existed: bool,
    },
    Part {
        id: u32,
        job: u32,
    },
    /// It is no longer followed in this hierarchy, since there is a better one.
    Left {
        id: u32,
        path: PathBuf,
    },
    /// Something happened in a job: it is to be read at once.
    Stirred(u32),
    Removed(u32),
}

pub(super) struct Tree {
    pub(super) files: Files,
    pub(super) routes: Vec<Route>,
    pub(super) watches: Watches,
    pub(super) nodes: HashMap<u32, Node>,
    next_node: u32,
    /// The hierarchies in which a directory that outlives its jobs is there; the first is followed.
    pub(super) homes: HashMap<PathBuf, BTreeSet<usize>>,
    pub(super) places: Places,
    pub(super) ledger: CpuLedger,
    pub(super) changes: Vec<Change>,
    /// Whether there is something new to report about the tree itself.
    pub(super) has_news: bool,
}

impl Tree {
    pub(super) fn new(files: Files, watcher: Watcher, layouts: &Layouts, below: Option<&Path>) -> Tree {
        Tree {
            files,
            routes: routes(layouts, below),
            watches: Watches::new(watcher),
            nodes: HashMap::new(),
            next_node: 0,
            homes: HashMap::new(),
            places: Places::default(),
            ledger: CpuLedger::default(),
            changes: Vec::new(),
            has_news: true,
        }
    }

    pub(super) fn add_root(&mut self, hierarchy: usize, now_ns: i64) {
        let way = |route| Way { route, at: 0, captures: Captures::default() };
        let role = Role::Way((0..self.routes.len()).map(way).collect());
        let id = self.insert(hierarchy, None, PathBuf::new(), role);
        self.places.open(id, None, dir_limits::IN_HIERARCHY, usize::MAX);
        self.homes.entry(PathBuf::new()).or_default().insert(hierarchy);
        self.descend(id, true, None, now_ns);
    }

    pub(super) fn roots(&self) -> Vec<u32> {
        let mut roots: Vec<u32> =
            self.nodes.iter().filter(|(_, node)| node.parent.is_none()).map(|(id, _)| *id).collect();
        roots.sort_unstable();
        roots
    }

    /// The directories of jobs, and by which route each was found.
    fn jobs(&self) -> impl Iterator<Item = (&Node, usize)> {
        self.nodes.values().filter_map(|node| match node.role {
            Role::Job { route } => Some((node, route)),
            _ => None,
        })
    }

    /// How many jobs of each manager are followed.
    pub(super) fn job_counts(&self) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.jobs().for_each(|(_, route)| *counts.entry(&self.routes[route].manager).or_default() += 1);
        counts.into_iter().map(|(manager, count)| (manager.to_owned(), count)).collect()
    }

    /// The directories in which jobs were searched or found, without the tops of the hierarchies.
    pub(super) fn home_paths(&self) -> Vec<PathBuf> {
        let parents =
            self.jobs().filter_map(|(node, _)| Some((node.hierarchy, self.nodes.get(&node.parent?)?)));
        let homes: BTreeSet<PathBuf> = parents
            .map(|(hierarchy, parent)| self.files.hierarchies[hierarchy].point.join(&parent.path))
            .collect();
        homes.into_iter().collect()
    }

    /// Resource managers whose own directories are there, in whichever hierarchy, or jobs of them.
    pub(super) fn managers_here(&self) -> Vec<String> {
        let of_jobs = self.jobs().map(|(_, route)| route);
        let ways = self.places.ids().filter_map(|id| match &self.nodes.get(&id)?.role {
            Role::Way(ways) => Some(ways),
            _ => None,
        });
        let of_homes = ways.flatten().filter(|way| self.ends_at_home(way)).map(|way| way.route);
        let routes = of_jobs.chain(of_homes.filter(|&route| self.routes[route].has_own_home));
        let managed = routes.filter(|&route| self.routes[route].is_managed);
        let names: BTreeSet<&str> = managed.map(|route| self.routes[route].manager.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// The places with more directories than are followed.
    pub(super) fn crowded_places(&self) -> Vec<(PathBuf, u64)> {
        let path = |id: u32| {
            let node = self.nodes.get(&id)?;
            Some(self.files.hierarchies[node.hierarchy].point.join(&node.path))
        };
        let mut places: Vec<(PathBuf, u64)> =
            self.places.left_out().filter_map(|(id, count)| Some((path(id)?, count))).collect();
        places.sort();
        places
    }

    /// The place in which a directory of this one is counted.
    fn place_in(&self, id: u32) -> Option<u32> {
        match self.places.is_place(id) {
            true => Some(id),
            false => self.nodes.get(&id).map(|node| node.place),
        }
    }

    /// Opens a place where a directory is one: it outlives its jobs, or is a job.
    fn open_place(&mut self, id: u32) {
        let Some(node) = self.nodes.get(&id) else { return };
        let (room, made_max) = match &node.role {
            Role::Job { .. } => (dir_limits::IN_JOB, usize::MAX),
            Role::Way(ways) => {
                let mut homes = ways.iter().filter(|way| self.ends_at_home(way)).peekable();
                if homes.peek().is_none() {
                    return;
                }
                match homes.any(|way| way.captures.uid.is_some()) {
                    true => (dir_limits::IN_HOME_OF_USER, dir_limits::MADE_IN_HOME_OF_USER),
                    false => (dir_limits::IN_HOME, usize::MAX),
                }
            }
            Role::Part { .. } | Role::Beside => return,
        };
        self.places.open(id, Some(node.place), room, made_max);
        self.has_news = true;
    }

    fn insert(&mut self, hierarchy: usize, parent: Option<u32>, path: PathBuf, role: Role) -> u32 {
        let id = self.next_node;
        self.next_node += 1;
        let inode = self.files.look_at(hierarchy, &path).map_or(0, |(inode, _)| inode);
        let node = Node {
            hierarchy,
            parent,
            path,
            role,
            inode,
            place: parent.and_then(|parent| self.place_in(parent)).unwrap_or(id),
            children: HashMap::new(),
            is_crowded: false,
            unexplored: false,
            counter: None,
        };
        self.nodes.insert(id, node);
        id
    }

    /// A directory was made, and is watched already if `ahead`. One of the same name that was known is
    /// another one, and gone.
    pub(super) fn appeared(&mut self, parent: u32, name: &OsStr, ahead: Option<Watch>, now_ns: i64) {
        let Some(&known) = self.nodes.get(&parent).and_then(|node| node.children.get(name)) else {
            self.add_child(parent, name, false, ahead, now_ns);
            return self.stir_job_of(parent);
        };
        let inode = self.nodes.get(&known).map(|known| known.inode);
        let found = self.nodes.get(&known).map(|known| self.files.look_at(known.hierarchy, &known.path));
        match found {
            Some(Ok((found, _))) if Some(found) != inode => {
                self.vanished(parent, name);
                self.add_child(parent, name, false, ahead, now_ns);
                self.stir_job_of(parent);
            }
            // Found by a listing before the notice came; if it is gone since then, that is noticed, too.
            _ => ahead.into_iter().for_each(|ahead| self.watches.adopt(known, ahead)),
        }
    }

    /// The kernel reports that a directory is gone. A job that was never seen is recorded now.
    pub(super) fn noticed_removal(&mut self, parent: u32, name: &OsStr, now_ns: i64) {
        let is_known = self.nodes.get(&parent).is_some_and(|node| node.children.contains_key(name));
        let was_awaited = self.watches.was_awaited(parent, name);
        if !is_known && !was_awaited && matches!(self.role_of(parent, name), Some((Role::Job { .. }, _))) {
            self.add_child(parent, name, false, None, now_ns);
        }
        self.vanished(parent, name);
    }

    /// A directory is gone. The job around it is read at once: it may go next.
    fn vanished(&mut self, parent: u32, name: &OsStr) {
        let child = self.nodes.get(&parent).and_then(|node| self.nodes.get(node.children.get(name)?));
        // A notice may be of an earlier one of the same name, which was gone before it could be read.
        let is_there = child.is_some_and(|child| {
            let found = self.files.look_at(child.hierarchy, &child.path);
            found.is_ok_and(|(inode, _)| inode == child.inode)
        });
        if !is_there && let Some(id) = self.nodes.get_mut(&parent).and_then(|node| node.children.remove(name))
        {
            self.changes.push(Change::Removed(id));
        }
        self.stir_job_of(parent);
    }

    fn stir_job_of(&mut self, id: u32) {
        match self.nodes.get(&id).map(|node| &node.role) {
            Some(Role::Job { .. }) => self.changes.push(Change::Stirred(id)),
            Some(Role::Part { job, .. }) => self.changes.push(Change::Stirred(*job)),
            _ => {}
        }
    }

    /// Follows a directory, if it is of interest, and those below it; whether it is.
    fn add_child(
        &mut self,
        parent: u32,
        name: &OsStr,
        existing: bool,
        ahead: Option<Watch>,
        now_ns: i64,
    ) -> bool {
        let role = self.role_of(parent, name).filter(|_| self.make_room(parent));
        let Some((role, found)) = role else {
            self.watches.discard(ahead);
            return false;
        };
        let Some(node) = self.nodes.get(&parent) else { return false };
        let (hierarchy, path) = (node.hierarchy, node.path.join(name));
        let id = self.insert(hierarchy, Some(parent), path.clone(), role);
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children.insert(name.to_owned(), id);
            node.unexplored = false;
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.unexplored = !existing;
        }
        if self.ledger.follows(parent) {
            self.open_account(id, existing, now_ns);
        }
        if let Some((route, captures)) = found {
            self.changes.push(Change::Job { id, route, captures, existed: existing });
        } else if let Some(&Role::Part { job, is_part: true, .. }) =
            self.nodes.get(&id).map(|node| &node.role)
        {
            self.changes.push(Change::Part { id, job });
        }
        self.open_place(id);
        self.register_home(id);
        self.descend(id, existing, ahead, now_ns);
        true
    }

    /// Room for one more directory. The usage of one without room cannot be separated from its neighbours'.
    fn make_room(&mut self, parent: u32) -> bool {
        let Some(place) = self.place_in(parent) else { return false };
        let has_room = self.places.take(place);
        if !has_room {
            self.has_news = true;
            if self.places.is_flooded(place) {
                self.watches.stop(place);
            }
            self.ledger.set_inhabited(parent, true);
            if let Some(node) = self.nodes.get_mut(&parent) {
                node.is_crowded = true;
            }
        }
        has_room
    }

    /// Looks at the places that had too many notices, and watches them again; whether something was found there.
    pub(super) fn listen_again(&mut self, now_ns: i64) -> bool {
        let mut has_found = false;
        for id in self.places.begin_count() {
            has_found |= self.reconcile(id, true, now_ns);
            self.descend(id, false, None, now_ns);
        }
        has_found
    }

    /// What a directory is to its parent; `None` if it is of no interest.
    fn role_of(&self, parent: u32, name: &OsStr) -> Option<(Role, Option<(usize, Captures)>)> {
        let node = self.nodes.get(&parent)?;
        let name = name.as_encoded_bytes();
        let (job, route, depth, captures) = match &node.role {
            Role::Way(ways) => return self.role_on_way(parent, node, ways, name),
            Role::Job { route } => (parent, *route, 0, &Captures::default()),
            Role::Part { job, route, depth, captures, .. } => (*job, *route, *depth, captures),
            Role::Beside => return None,
        };
        let segment = self.routes[route].parts.get(depth)?;
        let mut all = captures.clone();
        let role = match segment.capture(name, &mut all) {
            true => Role::Part { job, route, depth: depth + 1, is_part: all != *captures, captures: all },
            false => Role::Beside,
        };
        Some((role, None))
    }

    fn role_on_way(
        &self,
        parent: u32,
        node: &Node,
        ways: &[Way],
        name: &[u8],
    ) -> Option<(Role, Option<(usize, Captures)>)> {
        let mut further = Vec::new();
        for way in ways.iter().filter(|way| self.leads_on(node, way)) {
            let route = &self.routes[way.route];
            let mut captures = way.captures.clone();
            if !route.segments[way.at].capture(name, &mut captures) {
                continue;
            }
            if way.at + 1 == route.segments.len() {
                return Some((Role::Job { route: way.route }, Some((way.route, captures))));
            }
            further.push(Way { route: way.route, at: way.at + 1, captures });
        }
        match further.is_empty() {
            false => Some((Role::Way(further), None)),
            true => self.ledger.follows(parent).then_some((Role::Beside, None)),
        }
    }

    fn open_account(&mut self, id: u32, existing: bool, now_ns: i64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let parent = node.parent.filter(|parent| self.ledger.follows(*parent));
        node.counter = self.files.open_counter(node.hierarchy, &node.path);
        let Some(counter) = &node.counter else {
            // Gone before it could be read: its parent accounts for its usage. One that exists but cannot be read
            // is not followed, and makes its parent's children uncertain.
            let gone = self.files.look_at(node.hierarchy, &node.path).is_err();
            match parent {
                Some(parent) if gone => self.ledger.begin_new(id, Some(parent), now_ns),
                Some(parent) => self.ledger.set_inhabited(parent, true),
                None => {}
            }
            return;
        };
        let read = self.files.read_counter(node.hierarchy, &node.path, counter);
        match read {
            Reading::At(counter_ns) if existing => {
                self.ledger.begin_existing(id, parent, counter_ns, now_ns);
            }
            // Its past would be taken for what it uses from now on.
            Reading::Failed if existing => {
                if let Some(parent) = parent {
                    self.ledger.set_inhabited(parent, true);
                }
                return;
            }
            _ => self.ledger.begin_new(id, parent, now_ns),
        }
        if matches!(node.role, Role::Way(_)) {
            let own = self.files.has_own_processes(node.hierarchy, &node.path);
            self.ledger.set_hollow(id);
            self.ledger.set_inhabited(id, own);
        }
    }

    /// Watches a directory, unless it is already, then lists what was made in it before.
    pub(super) fn descend(&mut self, id: u32, existing: bool, ahead: Option<Watch>, now_ns: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let wanted = match &node.role {
            Role::Way(ways) => ways.iter().any(|way| self.leads_on(node, way)),
            Role::Job { .. } => true,
            Role::Part { route, depth, .. } => *depth < self.routes[*route].parts.len(),
            Role::Beside => false,
        };
        if !wanted {
            return self.watches.discard(ahead);
        }
        if self.watches.is_watched(id) {
            return;
        }
        let trails = self.trails_from(node);
        let (hierarchy, path, is_job) =
            (node.hierarchy, node.path.clone(), matches!(node.role, Role::Job { .. }));
        if !self.ledger.follows(id) && self.is_active_home(node) {
            self.open_account(id, existing, now_ns);
        }
        let real = self.files.real_path(hierarchy, &path);
        match ahead {
            Some(ahead) => self.watches.adopt(id, ahead),
            None => self.watches.watch_directory(id, &real, trails),
        }
        if is_job && self.files.is_unified(hierarchy) {
            self.watches.watch_events(id, &real.join("cgroup.events"));
        }
        for (name, _) in self.files.list(hierarchy, &path).unwrap_or_default() {
            let known = self.nodes.get(&id).is_none_or(|node| node.children.contains_key(&name));
            if !known {
                self.add_child(id, &name, existing, None, now_ns);
            }
        }
    }

    /// What is to be watched below a directory as soon as it is made: the directories that lead to jobs.
    fn trails_from(&self, node: &Node) -> Vec<Trail> {
        let Role::Way(ways) = &node.role else { return Vec::new() };
        let trail = |way: &Way| {
            let Route { segments, home, .. } = &self.routes[way.route];
            // In which hierarchy it goes on from there is not known yet.
            let end = if way.at < *home { *home } else { segments.len() - 1 };
            segments.get(way.at..end).filter(|names| !names.is_empty()).map(Trail::from)
        };
        ways.iter().filter(|way| self.leads_on(node, way)).filter_map(trail).collect()
    }

    /// A node and all below it, the inner ones first.
    pub(super) fn subtree(&self, id: u32) -> Vec<u32> {
        let mut found = vec![id];
        let mut next = 0;
        while let Some(node) = found.get(next).and_then(|id| self.nodes.get(id)) {
            found.extend(node.children.values());
            next += 1;
        }
        found.reverse();
        found
    }

    /// Forgets a node and its watches; its place in its parent is given free if it still holds it.
    pub(super) fn drop_node(&mut self, id: u32) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        self.has_news |= self.places.close(id);
        self.places.leave(node.place);
        self.watches.forget(id);
        if let (Some(parent), Some(name)) = (node.parent, node.path.file_name())
            && let Some(parent) = self.nodes.get_mut(&parent)
            && parent.children.get(name) == Some(&id)
        {
            parent.children.remove(name);
        }
        Some(node)
    }

    /// Forgets a directory that is gone. Returns whether it was one on the way to jobs in which none was ever seen.
    pub(super) fn forget(&mut self, id: u32, now_ns: i64) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        let parent = node.parent.zip(node.path.file_name().map(OsStr::to_owned));
        let still_known = parent
            .filter(|(parent, name)| self.nodes.get(parent).is_some_and(|parent| parent.holds(name, id)));
        let Some(node) = self.drop_node(id) else { return false };
        if let Some((parent, name)) = still_known {
            self.watches.await_removal(parent, &name);
        }
        let is_way = matches!(node.role, Role::Way(_));
        let is_below_home = node.parent.is_some_and(|parent| self.ledger.follows(parent));
        if is_way {
            self.lose_home(node.hierarchy, &node.path, now_ns);
        }
        self.ledger.forget(id);
        is_way && node.unexplored && is_below_home
    }

    /// Compares what is known of a directory with what is there; whether that is not the same.
    pub(super) fn reconcile(&mut self, id: u32, full: bool, now_ns: i64) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        if matches!(node.role, Role::Beside) {
            return false;
        }
        let (hierarchy, path) = (node.hierarchy, node.path.clone());
        let inside_job = !matches!(node.role, Role::Way(_));
        if inside_job && !full {
            let known = node.children.len() as u64 + 2;
            // Those that do not count directories by links say 1.
            if self.files.look_at(hierarchy, &path).is_ok_and(|(_, links)| links == known) {
                return self.reconcile_below(id, full, now_ns);
            }
        }
        let Ok(listed) = self.files.list(hierarchy, &path) else { return false };
        let listed: HashMap<OsString, u64> = listed.into_iter().collect();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.is_crowded = false;
        }
        let Some(node) = self.nodes.get(&id) else { return false };
        let is_there = |name: &OsString, child: &u32| {
            let inode = self.nodes.get(child).map(|child| child.inode);
            listed.get(name).is_some_and(|found| Some(*found) == inode)
        };
        let gone: Vec<OsString> = (node.children.iter())
            .filter(|(name, child)| !is_there(name, child))
            .map(|(name, _)| name.clone())
            .collect();
        let mut has_found = !gone.is_empty();
        for name in gone {
            self.vanished(id, &name);
            self.watches.await_removal(id, &name);
        }
        for name in listed.keys() {
            if self.nodes.get(&id).is_some_and(|node| !node.children.contains_key(name)) {
                has_found |= self.add_child(id, name, false, None, now_ns);
            }
        }
        self.reconcile_below(id, full, now_ns) | has_found
    }

    fn reconcile_below(&mut self, id: u32, full: bool, now_ns: i64) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        let children: Vec<u32> = node.children.values().copied().collect();
        children.into_iter().fold(false, |found, child| self.reconcile(child, full, now_ns) | found)
    }

    /// A directory on the way to jobs may have processes of its own, which let its counter grow.
    pub(super) fn mark_own_processes(&mut self) {
        for (id, node) in &self.nodes {
            if self.ledger.follows(*id) && matches!(node.role, Role::Way(_)) {
                let own = node.is_crowded || self.files.has_own_processes(node.hierarchy, &node.path);
                self.ledger.set_inhabited(*id, own);
            }
        }
    }

    /// Settles what no child explains; returns how much of it no known job can have used.
    pub(super) fn rebase_all(&mut self, now_ns: i64) -> u64 {
        self.mark_own_processes();
        self.rebase(CpuLedger::follows, now_ns)
    }

    /// Where processes of its own let a directory grow, that is settled before a child of it ends.
    pub(super) fn rebase_inhabited(&mut self, now_ns: i64) {
        self.rebase(CpuLedger::has_own_processes, now_ns);
    }

    fn rebase(&mut self, which: fn(&CpuLedger, u32) -> bool, now_ns: i64) -> u64 {
        let ids: Vec<u32> = self.nodes.keys().copied().filter(|id| which(&self.ledger, *id)).collect();
        ids.into_iter().map(|id| self.with_counters(|ledger, read| ledger.rebase(id, read, now_ns))).sum()
    }

    /// The ledger, and how it reads the counters of nodes.
    fn with_counters<T>(
        &mut self,
        act: impl FnOnce(&mut CpuLedger, &mut dyn FnMut(u32) -> Reading) -> T,
    ) -> T {
        let Tree { ledger, nodes, files, .. } = self;
        let mut read = |id: u32| {
            let Some(node) = nodes.get(&id) else { return Reading::Gone };
            let Some(counter) = &node.counter else { return Reading::Gone };
            files.read_counter(node.hierarchy, &node.path, counter)
        };
        act(ledger, &mut read)
    }

    /// The counter of a node as it is now.
    pub(super) fn counter_ns(&mut self, id: u32) -> Option<u64> {
        match self.with_counters(|_, read| read(id)) {
            Reading::At(counter_ns) => Some(counter_ns),
            Reading::Gone | Reading::Failed => None,
        }
    }

    /// Closes the accounts of directories that are gone, and of others that turn out to be gone.
    pub(super) fn close_accounts(&mut self, removed: &[u32], now_ns: i64) -> Vec<Closed> {
        self.with_counters(|ledger, read| ledger.close(removed, read, now_ns))
    }

    /// Reads the counter of a node and notes it; `deserted`: nothing is left in it that could make it grow.
    pub(super) fn note_counter(&mut self, id: u32, deserted: bool, now_ns: i64) -> Option<u64> {
        let counter_ns = self.counter_ns(id)?;
        self.ledger.note(id, counter_ns, deserted, now_ns);
        Some(counter_ns)
    }
}
