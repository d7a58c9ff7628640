//! How the names of cgroups tell who made them: one table of layouts, which the configuration may extend.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use met_host::{Host, parse};

use crate::environ;

/// Longer ids are cut: no manager gives such ones, and they would only fill the store.
const ID_BYTES_MAX: usize = 128;
/// Each `*` of one name multiplies the work of comparing it.
const STARS_MAX: usize = 3;
/// Deeper patterns than any manager's are a mistake.
const SEGMENTS_MAX: usize = 16;

/// How the cgroups of one manager are recognised.
struct Line {
    manager: &'static str,
    class: Class,
    /// The directories from the top of a hierarchy down to that of a job; those in parentheses may be
    /// missing. `{name}` stands for any characters, `{name:pattern}` for those that fit, `*` for any.
    path: &'static str,
    /// The directories of the parts of a job, below its own.
    parts: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// A resource manager, which cleans up after its jobs: no cgroup of ours may be made inside.
    Managed,
    /// Jobs, beside which others may make cgroups.
    Plain,
    /// Recognised and not a job by itself.
    Known,
}

const fn line(manager: &'static str, class: Class, path: &'static str, parts: &'static str) -> Line {
    Line { manager, class, path, parts }
}

/// The order is that of precedence: of the layouts that fit one directory the first is taken. A directory
/// inside a job is never another job, so the outermost manager wins: a container inside a Slurm job is
/// still the Slurm job, and a pod is one job whatever runs its containers.
#[rustfmt::skip]
static LINES: &[Line] = &[
    line("slurm", Class::Managed, "slurm/uid_{uid:#}/job_{id:#}", "step_{step}/task_{task}"),
    line("slurm", Class::Managed, "slurm_{node}/uid_{uid:#}/job_{id:#}", "step_{step}/task_{task}"),
    line("slurm", Class::Managed, "(system.slice/)slurmstepd.scope/job_{id:#}", "step_{step}/user/task_{task}"),
    line("slurm", Class::Managed, "(system.slice/){node}_slurmstepd.scope/job_{id:#}", "step_{step}/user/task_{task}"),
    // From Slurm 26.05 on a job is named by its SLUID; the id is in the environment of its processes.
    line("slurm", Class::Managed, "(system.slice/)slurmstepd.scope/{sluid:s%}", "step_{step}/user/task_{task}"),
    line("slurm", Class::Managed, "(system.slice/){node}_slurmstepd.scope/{sluid:s%}", "step_{step}/user/task_{task}"),
    // The last underscore divides: names of users may hold one.
    line("oar", Class::Managed, "oar/{user}_{id:#}", ""),
    line("pbs", Class::Managed, "(system.slice/)pbs*.service/jobid/{id}", ""),
    line("pbs", Class::Managed, "(system.slice/)pbs*.service/jobs/{id}", ""),
    line("pbs", Class::Managed, "pbs*.slice/pbs*-{id}.slice", ""),
    line("lsf", Class::Managed, "lsf/{cluster}/job.{id:#}.{index:#}.#.#", ""),
    line("lsf", Class::Managed, "lsf/{cluster}/job.{id:#}.#.#", ""),
    line("htcondor", Class::Managed, "htcondor*/condor*{id:slot*}", ""),
    line("htcondor", Class::Managed, "(system.slice/)condor.service/*{id:slot*}", ""),
    line("kubernetes", Class::Plain, "kubepods/pod{id}", "{step}"),
    line("kubernetes", Class::Plain, "kubepods/{qos}/pod{id}", "{step}"),
    line("kubernetes", Class::Plain, "kubepods.slice/kubepods-pod{id}.slice", "*{step:^}*"),
    line("kubernetes", Class::Plain, "kubepods.slice/kubepods-{qos}.slice/kubepods-*-pod{id}.slice", "*{step:^}*"),
    line("docker", Class::Plain, "docker/{id:^}", ""),
    line("docker", Class::Plain, "(system.slice/)docker-{id:^}.scope", ""),
    line("podman", Class::Plain, "(machine.slice/)libpod-{id:^}.scope", ""),
    line("podman", Class::Plain, "(machine.slice/machine-libpod_pod_*.slice/)libpod-{id:^}.scope", ""),
    line("podman", Class::Plain, "(user.slice/user-{uid:#}.slice/user@#.service/user.slice/)libpod-{id:^}.scope", ""),
    line("podman", Class::Plain, "libpod_parent/libpod-{id:^}", ""),
    line("systemd", Class::Known, "user.slice/user-{uid:#}.slice/session-{id}.scope", ""),
    line("systemd", Class::Known, "user@{uid:#}.service/app.slice/{id}", ""),
    line("systemd", Class::Known, "system.slice/{id}.service", ""),
];

/// What a path may tell of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Sluid,
    Uid,
    User,
    Node,
    Cluster,
    Index,
    Step,
    Task,
    /// Told apart from its neighbours and of no further use.
    Qos,
}

const FIELDS: &[(&str, Field)] = &[
    ("id", Field::Id),
    ("sluid", Field::Sluid),
    ("uid", Field::Uid),
    ("user", Field::User),
    ("node", Field::Node),
    ("cluster", Field::Cluster),
    ("index", Field::Index),
    ("step", Field::Step),
    ("task", Field::Task),
    ("qos", Field::Qos),
];

/// What the path of a job told. Text in it is printable, whatever the directory was called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures {
    pub id: Option<String>,
    /// The name of a job whose id only its processes know.
    pub sluid: Option<String>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub node: Option<String>,
    pub cluster: Option<String>,
    pub index: Option<String>,
    pub step: Option<String>,
    pub task: Option<String>,
}

impl Captures {
    /// What its manager calls the job, if the path tells: of an array each element is a job.
    pub fn job_id(&self) -> Option<String> {
        let id = self.id.as_ref()?;
        Some(match &self.index {
            Some(index) => format!("{id}[{index}]"),
            None => id.clone(),
        })
    }

    fn set(&mut self, field: Field, bytes: &[u8]) {
        let text = || Some(printable(bytes));
        match field {
            Field::Id => self.id = text(),
            Field::Sluid => self.sluid = text(),
            Field::Uid => self.uid = parse::u32(bytes),
            Field::User => self.user = text(),
            Field::Node => self.node = text(),
            Field::Cluster => self.cluster = text(),
            Field::Index => self.index = text(),
            Field::Step => self.step = text(),
            Field::Task => self.task = text(),
            Field::Qos => {}
        }
    }
}

/// A name from a directory as it may be shown and stored: what is not printable ASCII is written as `%0a`.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if text.len() + 3 > ID_BYTES_MAX {
            break;
        }
        match byte {
            b'!'..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// One way in which a manager names its cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    manager: Cow<'static, str>,
    class: Class,
    /// Of the path, how many at the beginning stand in parentheses.
    optional: usize,
    segments: Vec<Segment>,
    parts: Vec<Segment>,
}

impl Layout {
    /// A layout as the configuration gives it.
    pub fn parse(manager: &str, path: &str, parts: &str) -> Result<Layout, String> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if manager.is_empty() || manager.len() > 32 || !manager.bytes().all(known) || manager == "local" {
            return Err(format!("{manager:?} is no name for a manager; write a short word in lower case"));
        }
        let layout = Layout::of(Cow::Owned(manager.to_owned()), Class::Managed, path, parts)?;
        let names_job = |segment: &Segment| segment.captures(Field::Id);
        if !layout.segments.last().is_some_and(names_job) {
            return Err(format!("{path:?} does not end in a name with {{id}}"));
        }
        Ok(layout)
    }

    fn of(manager: Cow<'static, str>, class: Class, path: &str, parts: &str) -> Result<Layout, String> {
        let (optional, rest) = match path.strip_prefix('(') {
            Some(inner) => inner.split_once("/)").ok_or_else(|| format!("{path:?}: no closing \"/)\""))?,
            None => ("", path),
        };
        let split = |text: &str| match text {
            "" => Ok(Vec::new()),
            text => text.trim_matches('/').split('/').map(Segment::parse).collect::<Result<Vec<_>, _>>(),
        };
        let mut segments = split(optional)?;
        let optional = segments.len();
        segments.extend(split(rest)?);
        let parts = split(parts)?;
        if segments.len() == optional || segments.len() > SEGMENTS_MAX || parts.len() > SEGMENTS_MAX {
            return Err(format!("{path:?}: one to {SEGMENTS_MAX} names are needed"));
        }
        Ok(Layout { manager, class, optional, segments, parts })
    }

    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// The patterns of the directories from the top of a hierarchy, with and without the optional ones,
    /// and how many of them lead to the directory that outlives its jobs.
    pub(crate) fn routes(&self) -> Vec<(&[Segment], usize)> {
        let core = self.segments.len() - self.optional;
        // A job that lies alone in a directory of many others is accounted for there.
        let home = |optional: usize| optional + usize::from(core > 1);
        let mut routes = vec![(&self.segments[..], home(self.optional))];
        if self.optional > 0 {
            routes.push((&self.segments[self.optional..], home(0)));
        }
        routes
    }

    pub(crate) fn parts(&self) -> &[Segment] {
        &self.parts
    }
}

/// The layouts in use: those of the configuration, then those that are built in.
#[derive(Clone, Debug)]
pub struct Layouts {
    all: Vec<Layout>,
}

impl Layouts {
    pub fn builtin() -> Layouts {
        Layouts::with(Vec::new())
    }

    /// The user's own come first: whoever writes one knows his machine.
    pub fn with(mut own: Vec<Layout>) -> Layouts {
        let builtin = LINES.iter().filter_map(|line| {
            let layout = Layout::of(Cow::Borrowed(line.manager), line.class, line.path, line.parts);
            debug_assert!(layout.is_ok(), "{}", line.path);
            layout.ok()
        });
        own.extend(builtin);
        Layouts { all: own }
    }

    /// Those by which jobs are found, in order of precedence.
    pub fn of_jobs(&self) -> impl Iterator<Item = &Layout> {
        self.all.iter().filter(|layout| layout.class != Class::Known)
    }

    /// Who made the cgroup with this path, with or without its mount point, if the path tells.
    pub fn manager_of(&self, path: &Path) -> Option<&str> {
        self.layout_of(path).map(Layout::manager)
    }

    /// Whether the path lies inside a job of a resource manager.
    pub fn is_managed(&self, path: &Path) -> bool {
        self.layout_of(path).is_some_and(|layout| layout.class == Class::Managed)
    }

    fn layout_of(&self, path: &Path) -> Option<&Layout> {
        self.captured(path).map(|(layout, _)| layout)
    }

    /// In any place of the path: a container shows the cgroups of others below its own.
    fn captured(&self, path: &Path) -> Option<(&Layout, Captures)> {
        let names: Vec<&[u8]> = path.components().map(|part| part.as_os_str().as_encoded_bytes()).collect();
        self.all.iter().find_map(|layout| {
            let core = &layout.segments[layout.optional..];
            let captures = names.windows(core.len()).find_map(|window| {
                let mut captures = Captures::default();
                let fits = |(name, segment): (&&[u8], &Segment)| segment.capture(name, &mut captures);
                window.iter().zip(core).all(fits).then_some(captures)
            });
            Some((layout, captures?))
        })
    }

    /// The job in which a process runs, as it is written: `slurm:1234`. Every hierarchy is asked.
    pub fn job_around(&self, host: &Host, pid: u32) -> Option<String> {
        let mut text = Vec::new();
        host.read_small(format!("/proc/{pid}/cgroup"), &mut text).ok()?;
        paths_in(&text).find_map(|path| {
            let (layout, captures) =
                self.captured(path).filter(|(layout, _)| layout.class != Class::Known)?;
            let by_process = || match captures.sluid {
                Some(_) => environ::number(host, pid, SLURM_JOB_ID, &mut Vec::new()),
                None => None,
            };
            Some(format!("{}:{}", layout.manager(), captures.job_id().or_else(by_process)?))
        })
    }
}

/// The variable that names a job whose directory does not.
pub(crate) const SLURM_JOB_ID: &str = "SLURM_JOB_ID";

/// What `/proc/PID/cgroup` names.
fn paths_in(text: &[u8]) -> impl Iterator<Item = &Path> {
    let paths = parse::lines(text).filter_map(|line| line.splitn(3, |&byte| byte == b':').nth(2));
    paths.map(|path| Path::new(OsStr::from_bytes(path)))
}

/// The resource manager in whose job a process runs. Every hierarchy is asked: some managers use few.
pub fn resource_manager_of(host: &Host, pid: u32) -> io::Result<Option<String>> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/cgroup"), &mut text)?;
    let layouts = Layouts::builtin();
    let mut found = paths_in(&text).filter_map(|path| layouts.layout_of(path));
    Ok(found.find(|layout| layout.class == Class::Managed).map(|layout| layout.manager().to_owned()))
}

/// The pattern of one directory's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `*`: any characters.
    Any,
    /// Any characters, one at least.
    Some,
    /// `#`: digits.
    Digits,
    /// `^`: 64 hexadecimal digits.
    Hex64,
    /// `%`: 13 characters of Crockford's base 32.
    Base32,
    Begin(Field),
    End(Field),
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, String> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            push_glob(&rest[..open], &mut tokens);
            let close = rest[open..].find('}').ok_or_else(|| format!("{text:?}: no closing brace"))? + open;
            let (name, glob) = rest[open + 1..close].split_once(':').unwrap_or((&rest[open + 1..close], ""));
            let field = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field);
            let field = field.ok_or_else(|| {
                let names = FIELDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                format!("{text:?}: {{{name}}} is none of {names}")
            })?;
            tokens.push(Token::Begin(field));
            match glob {
                "" => tokens.push(Token::Some),
                glob => push_glob(glob, &mut tokens),
            }
            tokens.push(Token::End(field));
            rest = &rest[close + 1..];
        }
        push_glob(rest, &mut tokens);
        let stars = tokens.iter().filter(|token| matches!(token, Token::Any | Token::Some)).count();
        if tokens.is_empty() || stars > STARS_MAX || text == "." || text == ".." {
            return Err(format!("{text:?} is no name with at most {STARS_MAX} variable parts"));
        }
        Ok(Segment { tokens })
    }

    /// A name that stands for itself.
    pub(crate) fn literal(name: &[u8]) -> Segment {
        Segment { tokens: name.iter().copied().map(Token::Byte).collect() }
    }

    /// Whether the name fits; what it tells is added to `captures` then.
    pub(crate) fn capture(&self, name: &[u8], captures: &mut Captures) -> bool {
        let mut found = Vec::new();
        let fits = self.find(name, &mut |field, range| found.push((field, range)));
        for (field, range) in found {
            captures.set(field, &name[range]);
        }
        fits
    }

    fn captures(&self, wanted: Field) -> bool {
        self.tokens.contains(&Token::Begin(wanted))
    }

    fn find(&self, name: &[u8], tell: &mut dyn FnMut(Field, Range<usize>)) -> bool {
        fit(&self.tokens, name, 0, 0, tell)
    }
}

fn push_glob(text: &str, tokens: &mut Vec<Token>) {
    tokens.extend(text.bytes().map(|byte| match byte {
        b'*' => Token::Any,
        b'#' => Token::Digits,
        b'^' => Token::Hex64,
        b'%' => Token::Base32,
        byte => Token::Byte(byte),
    }));
}

/// Compares from byte `at` on; the capture that is open began at `begin`. The shortest that fits is taken.
fn fit(
    tokens: &[Token],
    name: &[u8],
    at: usize,
    begin: usize,
    tell: &mut dyn FnMut(Field, Range<usize>),
) -> bool {
    let Some((token, rest)) = tokens.split_first() else { return at == name.len() };
    let text = &name[at..];
    let run = |count: usize, is_of_it: fn(&u8) -> bool| {
        text.get(..count).is_some_and(|run| run.iter().all(is_of_it)).then_some(at + count)
    };
    let next = match token {
        Token::Byte(byte) => (text.first() == Some(byte)).then_some(at + 1),
        Token::Any | Token::Some => {
            let least = usize::from(*token == Token::Some);
            return (at + least..=name.len()).any(|skip| fit(rest, name, skip, begin, tell));
        }
        Token::Digits => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (digits > 0).then_some(at + digits)
        }
        Token::Hex64 => run(64, u8::is_ascii_hexdigit),
        Token::Base32 => run(13, u8::is_ascii_alphanumeric),
        Token::Begin(_) => return fit(rest, name, at, at, tell),
        Token::End(field) => {
            let fits = fit(rest, name, at, begin, tell);
            if fits {
                tell(*field, begin..at);
            }
            return fits;
        }
    };
    next.is_some_and(|next| fit(rest, name, next, begin, tell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;
    use std::fmt::Write;

    const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    const PATHS: &[&str] = &[
        "/sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0/task_0",
        "/slurm_node7/uid_1000/job_42",
        "/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0",
        "/system.slice/node7_slurmstepd.scope/job_42",
        "/system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW/step_0",
        "/system.slice/slurmstepd.scope/system",
        "/system.slice/slurmd.service",
        "/slurm",
        "/oar/first_last_1234",
        "/oar/first_last_1234/0",
        "/oar",
        "/pbs_jobs.service/jobid/17.server",
        "/pbs_jobs.service/jobs/17[3].server",
        "/pbspro.service/jobid/17.server",
        "/pbspro.slice/pbspro-17.server.slice",
        "/lsf/cluster1/job.99.1234.1700000000",
        "/lsf/cluster1/job.99.3.1234.1700000000",
        "/htcondor/condor_var_lib_condor_execute_slot1_2@node",
        "/system.slice/condor.service/condor_slot1@node",
        "/system.slice/condor.service",
        "/kubepods/besteffort/pod1234/CONTAINER",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-CONTAINER.scope",
        "/docker/CONTAINER",
        "/docker/1234",
        "/system.slice/docker-CONTAINER.scope",
        "/machine.slice/libpod-CONTAINER.scope",
        "/slurm/uid_0/job_1/docker/CONTAINER",
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/met.service",
        "/system.slice/cron.service",
        "/",
    ];

    #[test]
    fn each_manager_is_known_by_its_paths() {
        let layouts = Layouts::builtin();
        let mut text = String::new();
        for path in PATHS {
            let full = path.replace("CONTAINER", CONTAINER);
            let manager = layouts.manager_of(Path::new(&full)).unwrap_or("-");
            let managed = if layouts.is_managed(Path::new(&full)) { "managed" } else { "" };
            writeln!(text, "{manager:<10} {managed:<7} {path}").unwrap();
        }
        expect![[r#"
            slurm      managed /sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0/task_0
            slurm      managed /slurm_node7/uid_1000/job_42
            slurm      managed /system.slice/slurmstepd.scope/job_42/step_batch/user/task_0
            slurm      managed /system.slice/node7_slurmstepd.scope/job_42
            slurm      managed /system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW/step_0
            -                  /system.slice/slurmstepd.scope/system
            systemd            /system.slice/slurmd.service
            -                  /slurm
            oar        managed /oar/first_last_1234
            oar        managed /oar/first_last_1234/0
            -                  /oar
            pbs        managed /pbs_jobs.service/jobid/17.server
            pbs        managed /pbs_jobs.service/jobs/17[3].server
            pbs        managed /pbspro.service/jobid/17.server
            pbs        managed /pbspro.slice/pbspro-17.server.slice
            lsf        managed /lsf/cluster1/job.99.1234.1700000000
            lsf        managed /lsf/cluster1/job.99.3.1234.1700000000
            htcondor   managed /htcondor/condor_var_lib_condor_execute_slot1_2@node
            htcondor   managed /system.slice/condor.service/condor_slot1@node
            systemd            /system.slice/condor.service
            kubernetes         /kubepods/besteffort/pod1234/CONTAINER
            kubernetes         /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-CONTAINER.scope
            docker             /docker/CONTAINER
            -                  /docker/1234
            docker             /system.slice/docker-CONTAINER.scope
            podman             /machine.slice/libpod-CONTAINER.scope
            slurm      managed /slurm/uid_0/job_1/docker/CONTAINER
            systemd            /user.slice/user-1000.slice/session-3.scope
            systemd            /user.slice/user-1000.slice/user@1000.service/app.slice/met.service
            systemd            /system.slice/cron.service
            -                  /
        "#]].assert_eq(&text);
    }

    #[test]
    fn a_job_is_recognised_in_any_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/7")).unwrap();
        let text = "5:freezer:/slurm/uid_0/job_3\n4:memory:/\n0::/user.slice/user-0.slice/session-1.scope\n";
        std::fs::write(root.path().join("proc/7/cgroup"), text).unwrap();
        let host = Host::at(root.path()).unwrap();
        assert_eq!(resource_manager_of(&host, 7).unwrap(), Some("slurm".to_owned()));
        assert!(resource_manager_of(&host, 8).is_err());
        assert_eq!(Layouts::builtin().job_around(&host, 7).as_deref(), Some("slurm:3"));
        assert_eq!(Layouts::builtin().job_around(&host, 8), None);
    }

    #[test]
    fn the_job_around_a_process_is_named_as_its_manager_names_it() {
        let root = tempfile::tempdir().unwrap();
        let own = Layouts::with(vec![Layout::parse("mine", "mine/job-{id}", "").unwrap()]);
        let around = |cgroup: &str, environ: &str| {
            let folder = root.path().join("proc/7");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup"), cgroup).unwrap();
            std::fs::write(folder.join("environ"), environ).unwrap();
            own.job_around(&Host::at(root.path()).unwrap(), 7).unwrap_or_default()
        };
        assert_eq!(around("4:cpuacct:/slurm_n1/uid_1/job_12/step_batch/task_0\n", ""), "slurm:12");
        assert_eq!(around("0::/oar/alice_77\n", "SLURM_JOB_ID=1\0"), "oar:77");
        assert_eq!(around("0::/lsf/c/job.99.3.1234.1700000000\n", ""), "lsf:99[3]");
        assert_eq!(around("0::/mine/job-x7/inner\n", ""), "mine:x7");
        // Where the directory names no number, the process does.
        let sluid = "0::/system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW/step_0\n";
        assert_eq!(around(sluid, "A=1\0SLURM_JOB_ID=42\0"), "slurm:42");
        assert_eq!(around(sluid, "SLURM_JOB_ID=x\0"), "");
        assert_eq!(around("0::/user.slice/user-0.slice/session-1.scope\n", ""), "");
    }

    /// What the first layout that fits says of a path from the top of a hierarchy.
    fn told(layouts: &Layouts, path: &str) -> Option<String> {
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        layouts.of_jobs().find_map(|layout| {
            layout.routes().into_iter().find_map(|(segments, home)| {
                let below = names.get(segments.len()..)?;
                let mut captures = Captures::default();
                let mut pairs = segments.iter().zip(&names).chain(layout.parts().iter().zip(below));
                pairs.all(|(segment, name)| segment.capture(name, &mut captures)).then(|| {
                    let Captures { id, sluid, uid, user, node, cluster, index, step, task } = captures;
                    let uid = uid.map(|uid| uid.to_string());
                    let named = [("id", id), ("sluid", sluid), ("uid", uid), ("user", user), ("node", node)];
                    let more = [("cluster", cluster), ("index", index), ("step", step), ("task", task)];
                    let mut text = format!("{} home {home}", layout.manager());
                    for (name, value) in named.into_iter().chain(more) {
                        if let Some(value) = value {
                            write!(text, " {name}={value}").unwrap();
                        }
                    }
                    text
                })
            })
        })
    }

    const FROM_THE_TOP: &[&str] = &[
        "slurm/uid_1000/job_42",
        "slurm_node_7/uid_1000/job_42/step_batch/task_0",
        "system.slice/slurmstepd.scope/job_42/step_0/user/task_3",
        "slurmstepd.scope/job_42/step_extern",
        "system.slice/n1_slurmstepd.scope/s7XK2M9PQ4RTVW/step_0",
        "system.slice/slurmstepd.scope/system",
        "oar/first_last_1234",
        "oar/first_last_1234/0",
        "oar/nobody",
        "pbs_jobs.service/jobid/17.server",
        "pbs_jobs.service/jobs/17[3].server",
        "pbspro.slice/pbspro-17.server.slice",
        "lsf/c1/job.99.1234.1700000000",
        "lsf/c1/job.99.3.1234.1700000000",
        "htcondor/condor_var_lib_condor_execute_slot1_2@node",
        "system.slice/condor.service/condor_slot1@node",
        "kubepods/pod12-ab",
        "kubepods/burstable/pod12-ab/CONTAINER",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice/cri-containerd-CONTAINER.scope",
        "kubepods.slice/kubepods-pod12_ab.slice",
        "docker/CONTAINER",
        "system.slice/docker-CONTAINER.scope",
        "machine.slice/libpod-CONTAINER.scope",
        "user.slice/user-7.slice/user@7.service/user.slice/libpod-CONTAINER.scope",
        "machine.slice/libpod-conmon-CONTAINER.scope",
        "user.slice/user-1000.slice/session-3.scope",
    ];

    #[test]
    fn a_path_tells_what_the_manager_put_into_it() {
        let layouts = Layouts::builtin();
        let mut text = String::new();
        for path in FROM_THE_TOP {
            let told = told(&layouts, &path.replace("CONTAINER", CONTAINER));
            let told = told.map(|told| told.replace(CONTAINER, "CONTAINER"));
            writeln!(text, "{path}\n    {}", told.as_deref().unwrap_or("-")).unwrap();
        }
        expect![[r#"
            slurm/uid_1000/job_42
                slurm home 1 id=42 uid=1000
            slurm_node_7/uid_1000/job_42/step_batch/task_0
                slurm home 1 id=42 uid=1000 node=node_7 step=batch task=0
            system.slice/slurmstepd.scope/job_42/step_0/user/task_3
                slurm home 2 id=42 step=0 task=3
            slurmstepd.scope/job_42/step_extern
                slurm home 1 id=42 step=extern
            system.slice/n1_slurmstepd.scope/s7XK2M9PQ4RTVW/step_0
                slurm home 2 sluid=s7XK2M9PQ4RTVW node=n1 step=0
            system.slice/slurmstepd.scope/system
                -
            oar/first_last_1234
                oar home 1 id=1234 user=first_last
            oar/first_last_1234/0
                oar home 1 id=1234 user=first_last
            oar/nobody
                -
            pbs_jobs.service/jobid/17.server
                pbs home 1 id=17.server
            pbs_jobs.service/jobs/17[3].server
                pbs home 1 id=17[3].server
            pbspro.slice/pbspro-17.server.slice
                pbs home 1 id=17.server
            lsf/c1/job.99.1234.1700000000
                lsf home 1 id=99 cluster=c1
            lsf/c1/job.99.3.1234.1700000000
                lsf home 1 id=99 cluster=c1 index=3
            htcondor/condor_var_lib_condor_execute_slot1_2@node
                htcondor home 1 id=slot1_2@node
            system.slice/condor.service/condor_slot1@node
                htcondor home 2 id=slot1@node
            kubepods/pod12-ab
                kubernetes home 1 id=12-ab
            kubepods/burstable/pod12-ab/CONTAINER
                kubernetes home 1 id=12-ab step=CONTAINER
            kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice/cri-containerd-CONTAINER.scope
                kubernetes home 1 id=12_ab step=CONTAINER
            kubepods.slice/kubepods-pod12_ab.slice
                kubernetes home 1 id=12_ab
            docker/CONTAINER
                docker home 1 id=CONTAINER
            system.slice/docker-CONTAINER.scope
                docker home 1 id=CONTAINER
            machine.slice/libpod-CONTAINER.scope
                podman home 1 id=CONTAINER
            user.slice/user-7.slice/user@7.service/user.slice/libpod-CONTAINER.scope
                podman home 4 id=CONTAINER uid=7
            machine.slice/libpod-conmon-CONTAINER.scope
                -
            user.slice/user-1000.slice/session-3.scope
                -
        "#]].assert_eq(&text);
    }

    #[test]
    fn a_layout_of_the_configuration_comes_first_and_must_name_its_job() {
        let own = Layout::parse("mine", "slurm/uid_{uid:#}/job_{id}", "part-{step}").unwrap();
        let layouts = Layouts::with(vec![own]);
        assert_eq!(
            told(&layouts, "slurm/uid_7/job_x/part-2").as_deref(),
            Some("mine home 1 id=x uid=7 step=2")
        );
        for (manager, path) in [
            ("", "a/{id}"),
            ("local", "a/{id}"),
            ("my sched", "a/{id}"),
            ("m", ""),
            ("m", "a/b"),
            ("m", "{id}/b"),
            ("m", "a/{job}"),
            ("m", "a/{id"),
            ("m", "(a/{id}"),
            ("m", "../{id}"),
            ("m", "a/*x*y*z{id}"),
        ] {
            assert!(Layout::parse(manager, path, "").is_err(), "{manager:?} {path:?}");
        }
    }

    #[test]
    fn a_hostile_name_is_written_in_plain_letters() {
        let segment = Segment::parse("{id}").unwrap();
        let mut captures = Captures::default();
        assert!(segment.capture(b"a\n\xff%\x1b[0m ../", &mut captures));
        assert_eq!(captures.id.as_deref(), Some("a%0a%ff%25%1b[0m%20../"));
        assert!(segment.capture(&[b'\n'; 255], &mut captures));
        assert!(captures.id.unwrap().len() <= ID_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_name_fits_or_not(name in prop::collection::vec(any::<u8>(), 0..255)) {
            for layout in Layouts::builtin().of_jobs() {
                for segment in layout.segments.iter().chain(layout.parts()) {
                    let mut captures = Captures::default();
                    let fits = segment.capture(&name, &mut captures);
                    prop_assert!(fits || captures == Captures::default());
                }
            }
        }

        #[test]
        fn the_user_of_an_oar_job_is_all_before_the_last_underscore(user in "[a-z0-9_]{1,20}", id in 0u32..) {
            let told = told(&Layouts::builtin(), &format!("oar/{user}_{id}"));
            prop_assert_eq!(told, Some(format!("oar home 1 id={id} user={user}")));
        }
    }
}
