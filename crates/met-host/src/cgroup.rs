//! Where cgroups are mounted, which one a process is in, and the open directories of one of them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use met_core::job::CgroupPaths;

use crate::{Dir, Host, parse};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    None,
    V1,
    V2,
    /// Controllers in v1 hierarchies and a v2 hierarchy beside them.
    Hybrid,
}

/// The hierarchies that count something, where they are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    pub unified: Option<Mount>,
    pub memory_v1: Option<Mount>,
    pub cpuacct_v1: Option<Mount>,
    /// Where quotas are, which is not always where CPU time is counted.
    pub cpu_v1: Option<Mount>,
    /// Where huge pages are counted.
    pub hugetlb_v1: Option<Mount>,
    /// Where perf events are counted, if not in v2: the controller is in one hierarchy at a time.
    pub perf_event_v1: Option<Mount>,
    /// Those of v1 that count nothing of ours and still show the cgroups of jobs, in the order of `OTHERS`.
    pub others: Vec<(&'static str, Mount)>,
}

/// Where a job's cgroup can be found that is in none of the hierarchies that count.
const OTHERS: [&str; 4] = ["freezer", "pids", "cpuset", "devices"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    /// Which cgroup is seen at the mount point: in a container mostly not the root.
    pub root: PathBuf,
}

impl Mount {
    /// The directory of a cgroup that /proc/PID/cgroup names, if it lies below this mount.
    pub fn dir_of(&self, cgroup: &Path) -> Option<PathBuf> {
        // Names that begin with /.. are outside this cgroup namespace, where nothing can be found.
        if cgroup.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        Some(join_below(&self.point, cgroup.strip_prefix(&self.root).ok()?))
    }
}

// A join with the empty path would leave a slash at the end, which shows when the path is printed.
fn join_below(point: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { point.to_path_buf() } else { point.join(below) }
}

impl Hierarchies {
    pub fn read(host: &Host) -> io::Result<Hierarchies> {
        let mut text = Vec::new();
        host.read_small("/proc/self/mountinfo", &mut text)?;
        Ok(parse_mountinfo(&text))
    }

    pub fn kind(&self) -> Kind {
        let v1 = self.memory_v1.is_some() || self.cpuacct_v1.is_some();
        match (self.unified.is_some(), v1) {
            (false, false) => Kind::None,
            (false, true) => Kind::V1,
            (true, false) => Kind::V2,
            (true, true) => Kind::Hybrid,
        }
    }

    /// Where a v1 controller that counts nothing is mounted.
    pub fn other(&self, name: &str) -> Option<&Mount> {
        self.others.iter().find(|(other, _)| *other == name).map(|(_, mount)| mount)
    }

    /// The directory of the same cgroup in another hierarchy, if its path is below one of these mounts.
    pub fn same_in(&self, path: &Path, other: &Mount) -> Option<PathBuf> {
        let mounts = [&self.unified, &self.memory_v1, &self.cpuacct_v1].into_iter().flatten();
        let below = mounts.filter_map(|mount| path.strip_prefix(&mount.point).ok());
        // Mount points may lie inside each other; the innermost is meant.
        let below = below.min_by_key(|below| below.components().count())?;
        Some(join_below(&other.point, below))
    }

    /// The directories of the cgroup a process is in, as far as they can be seen from here.
    pub fn of_process(&self, host: &Host, pid: u32) -> io::Result<CgroupPaths> {
        let mut text = Vec::new();
        host.read_small(format!("/proc/{pid}/cgroup"), &mut text)?;
        let names = parse_proc_cgroup(&text);
        let dir = |mount: &Option<Mount>, name: &Option<PathBuf>| mount.as_ref()?.dir_of(name.as_ref()?);
        Ok(CgroupPaths {
            unified: dir(&self.unified, &names.unified),
            memory: dir(&self.memory_v1, &names.memory),
            cpuacct: dir(&self.cpuacct_v1, &names.cpuacct),
        })
    }

    /// The directory of a process in the hierarchy in which events can be counted.
    pub fn events_of_process(&self, host: &Host, pid: u32) -> Option<PathBuf> {
        let (mount, controller) = match &self.perf_event_v1 {
            Some(v1) => (v1, &b"perf_event"[..]),
            None => (self.unified.as_ref()?, &b""[..]),
        };
        let mut text = Vec::new();
        host.read_small(format!("/proc/{pid}/cgroup"), &mut text).ok()?;
        mount.dir_of(&parse_controller_cgroup(&text, controller)?)
    }

    /// The directory of the same cgroup where v1 counts events, whether it exists or not.
    pub fn events_v1_of(&self, paths: &CgroupPaths) -> Option<PathBuf> {
        self.same_as(paths, self.perf_event_v1.as_ref()?)
    }

    /// Managers use the same path in all hierarchies of v1.
    fn same_as(&self, paths: &CgroupPaths, other: &Mount) -> Option<PathBuf> {
        let known = paths.memory.as_deref().or(paths.cpuacct.as_deref()).or(paths.unified.as_deref())?;
        self.same_in(known, other)
    }

    /// The directory of a process where its CPU quota is, the top of that hierarchy, and whether that is v1.
    pub fn cpu_of_process(&self, host: &Host, pid: u32) -> Option<(PathBuf, PathBuf, bool)> {
        self.dir_of_process(host, pid, &self.cpu_v1, b"cpu")
    }

    /// The same where its memory limit is.
    pub fn memory_of_process(&self, host: &Host, pid: u32) -> Option<(PathBuf, PathBuf, bool)> {
        self.dir_of_process(host, pid, &self.memory_v1, b"memory")
    }

    fn dir_of_process(
        &self,
        host: &Host,
        pid: u32,
        v1: &Option<Mount>,
        controller: &[u8],
    ) -> Option<(PathBuf, PathBuf, bool)> {
        let (mount, controller, is_v1) = match (v1, &self.unified) {
            (Some(v1), _) => (v1, controller, true),
            (None, Some(unified)) => (unified, &b""[..], false),
            (None, None) => return None,
        };
        let mut text = Vec::new();
        host.read_small(format!("/proc/{pid}/cgroup"), &mut text).ok()?;
        let name = parse_controller_cgroup(&text, controller)?;
        Some((mount.dir_of(&name)?, mount.point.clone(), is_v1))
    }
}

impl Host {
    /// Opens the directory of a cgroup by its path on the machine, mount point included. There may be thousands.
    pub fn cgroup_dir(&self, path: &Path) -> io::Result<Dir> {
        let below = path.strip_prefix("/").unwrap_or(path);
        Dir::open_budgeted(&self.root().join(below), self.budget())
    }
}

/// The open directories of one cgroup.
#[derive(Debug)]
pub struct CgroupDirs {
    /// The inode number of the unified directory, else of the memory one, else of the cpuacct one.
    pub id: u64,
    pub unified: Option<Dir>,
    pub memory: Option<Dir>,
    pub cpuacct: Option<Dir>,
    /// The directories of the same path where v1 counts huge pages,
    pub hugetlb: Option<Dir>,
    /// and events.
    pub perf_event: Option<Dir>,
}

impl CgroupDirs {
    /// The directory that gives the id must exist; without another one its figures are missing.
    pub fn open(host: &Host, paths: &CgroupPaths) -> io::Result<CgroupDirs> {
        let named = paths.unified.as_deref().or(paths.memory.as_deref()).or(paths.cpuacct.as_deref());
        let id = host.cgroup_dir(named.ok_or(io::ErrorKind::NotFound)?)?.inode()?;
        let hierarchies = host.hierarchies();
        let hugetlb = hierarchies.hugetlb_v1.as_ref().and_then(|mount| hierarchies.same_as(paths, mount));
        let dir = |path: &Option<PathBuf>| path.as_deref().and_then(|path| host.cgroup_dir(path).ok());
        Ok(CgroupDirs {
            id,
            unified: dir(&paths.unified),
            memory: dir(&paths.memory),
            cpuacct: dir(&paths.cpuacct),
            hugetlb: dir(&hugetlb),
            perf_event: dir(&hierarchies.events_v1_of(paths)),
        })
    }
}

/// `id parent major:minor root point options… - type source super-options`
fn parse_mountinfo(text: &[u8]) -> Hierarchies {
    let mut hierarchies = Hierarchies::default();
    for line in parse::lines(text) {
        let Some((mount, kind, options)) = parse_mount(line) else { continue };
        let has = |name: &str| options.split(|&byte| byte == b',').any(|option| option == name.as_bytes());
        // The first mount of a hierarchy is the usual one; a later one is some container's view.
        if kind == b"cgroup2" {
            hierarchies.unified.get_or_insert(mount);
        } else if kind == b"cgroup" {
            for name in OTHERS.into_iter().filter(|name| has(name)) {
                if hierarchies.other(name).is_none() {
                    hierarchies.others.push((name, mount.clone()));
                }
            }
            let counting = [
                ("memory", &mut hierarchies.memory_v1),
                ("hugetlb", &mut hierarchies.hugetlb_v1),
                ("cpu", &mut hierarchies.cpu_v1),
                ("cpuacct", &mut hierarchies.cpuacct_v1),
                ("perf_event", &mut hierarchies.perf_event_v1),
            ];
            for (_, known) in counting.into_iter().filter(|(name, _)| has(name)) {
                known.get_or_insert_with(|| mount.clone());
            }
        }
    }
    hierarchies.others.sort_by_key(|(name, _)| OTHERS.iter().position(|other| other == name));
    hierarchies
}

fn parse_mount(line: &[u8]) -> Option<(Mount, &[u8], &[u8])> {
    let mut fields = parse::fields(line);
    let root = fields.nth(3)?;
    let point = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    let options = fields.nth(1)?;
    Some((Mount { point: unescape(point), root: unescape(root) }, kind, options))
}

/// Spaces, tabs, newlines and backslashes in a mount's path are written as three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(octal_byte);
        path.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u8::from_str_radix(digits, 8).ok()
}

/// The name of a process's cgroup in the hierarchy of one v1 controller, or in the unified one (an empty name).
fn parse_controller_cgroup(text: &[u8], controller: &[u8]) -> Option<PathBuf> {
    parse::lines(text).find_map(|line| {
        let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
        let (controllers, name) = (parts.next()?, parts.next()?);
        let is_there = controllers.split(|&byte| byte == b',').any(|one| one == controller);
        (is_there && !name.ends_with(b" (deleted)")).then(|| PathBuf::from(OsStr::from_bytes(name)))
    })
}

/// The names of a process's cgroup in each hierarchy that counts. A removed cgroup has none.
fn parse_proc_cgroup(text: &[u8]) -> CgroupPaths {
    let mut names = CgroupPaths::default();
    for line in parse::lines(text) {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if name.ends_with(b" (deleted)") {
            continue;
        }
        let name = || PathBuf::from(OsStr::from_bytes(name));
        let has = |controller: &[u8]| controllers.split(|&byte| byte == b',').any(|one| one == controller);
        if number == b"0" && controllers.is_empty() {
            names.unified = Some(name());
        }
        if has(b"memory") {
            names.memory = Some(name());
        }
        if has(b"cpuacct") {
            names.cpuacct = Some(name());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn mount(point: &str, root: &str) -> Option<Mount> {
        Some(Mount { point: point.into(), root: root.into() })
    }

    #[test]
    fn the_layout_is_read_from_the_mounts() {
        let hybrid = parse_mountinfo(HYBRID.as_bytes());
        assert_eq!(hybrid.kind(), Kind::Hybrid);
        assert_eq!(hybrid.unified, mount("/sys/fs/cgroup/unified", "/"));
        assert_eq!(hybrid.cpuacct_v1, mount("/sys/fs/cgroup/cpu,cpuacct", "/"));
        assert_eq!(hybrid.others.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["freezer", "cpuset"]);
        let freezer = hybrid.other("freezer").unwrap();
        let job = Path::new("/sys/fs/cgroup/cpu,cpuacct/oar/ann_1");
        assert_eq!(hybrid.same_in(job, freezer), Some("/sys/fs/cgroup/freezer/oar/ann_1".into()));
        assert_eq!(hybrid.same_in(Path::new("/elsewhere"), freezer), None);
        let v1: String =
            HYBRID.lines().filter(|line| !line.contains("cgroup2")).collect::<Vec<_>>().join("\n");
        assert_eq!(parse_mountinfo(v1.as_bytes()).kind(), Kind::V1);
        let v2 = b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(parse_mountinfo(v2).kind(), Kind::V2);
        assert_eq!(parse_mountinfo(b"nonsense\n\n1 2 3").kind(), Kind::None);
    }

    #[test]
    fn events_are_counted_where_their_controller_is() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/7/cgroup", "5:perf_event:/oar/ann_1\n2:cpuacct:/oar/ann_1\n0::/\n");
        let host = Host::at(root.path()).unwrap();
        let hybrid = parse_mountinfo(HYBRID.as_bytes());
        assert_eq!(hybrid.events_of_process(&host, 7), Some("/sys/fs/cgroup/unified".into()));
        let mounts =
            format!("{HYBRID}42 31 0:39 / /sys/fs/cgroup/perf_event rw - cgroup cgroup rw,perf_event\n");
        let v1 = parse_mountinfo(mounts.as_bytes());
        let own = Some("/sys/fs/cgroup/perf_event/oar/ann_1".into());
        assert_eq!(v1.events_of_process(&host, 7), own);
        let cpuacct = Some("/sys/fs/cgroup/cpu,cpuacct/oar/ann_1".into());
        let paths = CgroupPaths { cpuacct, ..CgroupPaths::default() };
        assert_eq!((v1.events_v1_of(&paths), hybrid.events_v1_of(&paths)), (own, None));
    }

    #[test]
    fn a_cgroup_is_found_below_what_is_mounted() {
        let at = |point: &str, root: &str, name: &str| mount(point, root)?.dir_of(Path::new(name));
        assert_eq!(at("/cg", "/", "/"), Some("/cg".into()));
        assert_eq!(at("/cg", "/", "/a/b"), Some("/cg/a/b".into()));
        assert_eq!(at("/cg", "/docker/1", "/docker/1/a"), Some("/cg/a".into()));
        assert_eq!(at("/cg", "/docker/1", "/docker/12"), None, "a longer name is another cgroup");
        assert_eq!(at("/cg", "/", "/../other"), None);
        assert_eq!(at("/cg", "/..", "/"), None);
    }

    #[test]
    fn the_cgroup_of_a_process_is_read_in_each_hierarchy() {
        let names = parse_proc_cgroup(b"4:memory:/a:b\n2:cpu,cpuacct:/c\n1:name=systemd:/d\n0::/e (x)\n");
        assert_eq!(names.memory, Some("/a:b".into()));
        assert_eq!(names.cpuacct, Some("/c".into()));
        assert_eq!(names.unified, Some("/e (x)".into()));
        assert_eq!(parse_proc_cgroup(b"0::/gone (deleted)\n"), CgroupPaths::default());
    }

    #[test]
    fn odd_mount_points_are_unescaped() {
        assert_eq!(unescape(br"/a\040b\134c\04"), PathBuf::from(r"/a b\c\04"));
    }

    #[test]
    fn this_machine_finds_its_own_cgroup() {
        let host = Host::real().unwrap();
        let hierarchies = Hierarchies::read(&host).unwrap();
        if hierarchies.kind() == Kind::None {
            met_core::skipped::skipped("no cgroup hierarchy is mounted");
            return;
        }
        let paths = hierarchies.of_process(&host, std::process::id()).unwrap();
        let dirs = CgroupDirs::open(&host, &paths).unwrap();
        assert!(dirs.id > 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_layout(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse_mountinfo(&text), parse_proc_cgroup(&text), unescape(&text));
            let _ = parse_controller_cgroup(&text, b"cpu");
        }
    }
}
