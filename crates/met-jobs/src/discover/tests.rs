use std::fmt::Write;
use std::fs;
use std::path::Path;

use expect_test::{Expect, expect};
use met_core::job::Figure;
use met_host::Host;

use super::schedule::{RESCAN_EVERY_NS, UPKEEP_EVERY_NS};
use super::*;
use crate::cgroup_layouts::Layout;

/// A machine of plain directories. Their counters are files that a test writes.
struct Machine {
    root: tempfile::TempDir,
    discovery: Option<Discovery>,
}

const CPUACCT: &str = "sys/fs/cgroup/cpuacct";
const FREEZER: &str = "sys/fs/cgroup/freezer";
const MOUNTS: &str = "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
                      34 31 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine { root, discovery: None };
        machine.write("proc/self/mountinfo", MOUNTS);
        machine.write("proc/sys/kernel/hostname", "n0\n");
        for top in [CPUACCT, FREEZER] {
            machine.make(top, 0);
        }
        machine
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A cgroup whose processes have used this much.
    fn make(&self, path: &str, cpu_ns: u64) {
        if let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| above.len() > CPUACCT.len())
            && !self.root.path().join(above).exists()
        {
            self.make(above, 0);
        }
        self.write(&format!("{path}/cgroup.procs"), "");
        self.write(&format!("{path}/cpuacct.usage"), cpu_ns.to_string());
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.root.path().join(path)).unwrap();
    }

    fn open(&mut self, layouts: &Layouts, below: Option<&Path>) {
        let host = Host::at(self.root.path()).unwrap();
        self.discovery = Some(Discovery::open(&host, layouts, below).unwrap());
    }

    fn open_builtin(&mut self) {
        self.open(&Layouts::builtin(), None);
    }

    fn work(&mut self) -> Vec<Event> {
        self.discovery().work()
    }

    /// Until this many notices were taken and not acted on.
    fn wait_for_notices(&self, count: usize) {
        let begin = std::time::Instant::now();
        while self.discovery.as_ref().unwrap().tree.watches.watcher.waiting() < count {
            assert!(begin.elapsed().as_secs() < 20, "the notices were not taken");
            std::thread::yield_now();
        }
    }

    /// Opens it, and takes what was there before.
    fn begin(&mut self) {
        self.open_builtin();
        self.work();
    }

    fn discovery(&mut self) -> &mut Discovery {
        self.discovery.as_mut().unwrap()
    }

    fn health(&self) -> Health {
        self.discovery.as_ref().unwrap().health()
    }

    /// How many jobs are new.
    fn found(&mut self) -> usize {
        self.work().iter().filter(|event| matches!(event, Event::Found(_))).count()
    }

    fn unseen(&self) -> Unseen {
        self.health().unseen
    }

    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&text(&self.work()));
    }
}

fn text(events: &[Event]) -> String {
    let mut text = String::new();
    let figure = |figure: &Option<Figure>| match figure {
        Some(figure) => format!("{} {} {}", figure.value, figure.kind.name(), figure.source),
        None => "-".to_owned(),
    };
    for event in events {
        match event {
            Event::Found(found) => {
                let Found { job, manager, id, captures, cgroup, .. } = &**found;
                let paths = [&cgroup.unified, &cgroup.cpuacct, &cgroup.memory];
                let paths: Vec<_> =
                    paths.into_iter().flatten().map(|path| path.display().to_string()).collect();
                let (uid, user, node) = (captures.uid, &captures.user, &captures.node);
                writeln!(text, "{job} found {manager}:{id} {uid:?} {user:?} {node:?} {paths:?}").unwrap();
            }
            Event::Named(job, id) => writeln!(text, "{job} is slurm's {id}").unwrap(),
            Event::Inhabited(job) => writeln!(text, "{job} inhabited").unwrap(),
            Event::Parts(job, parts) => writeln!(text, "{job} has {} parts", parts.len()).unwrap(),
            Event::Ended(ended) => {
                writeln!(text, "{} ended, cpu {}", ended.job, figure(&ended.cpu)).unwrap();
                for part in &ended.parts {
                    let cpu = figure(&part.totals.figure(met_core::job_table::CPU).cloned());
                    writeln!(text, "  {} {} {:?} cpu {cpu}", part.node, part.step, part.task).unwrap();
                }
            }
            Event::Looked => writeln!(text, "looked").unwrap(),
        }
    }
    text
}

#[test]
fn a_job_that_came_and_went_with_the_directory_of_its_user_is_reported() {
    let mut machine = Machine::new();
    let home = format!("{CPUACCT}/slurm_n1");
    machine.make(&home, 1000);
    machine.begin();
    machine.make(&format!("{home}/uid_7"), 0);
    machine.wait_for_notices(1);
    machine.make(&format!("{home}/uid_7/job_5"), 0);
    machine.write(&format!("{home}/cpuacct.usage"), "1700");
    machine.remove(&format!("{home}/uid_7"));
    machine.check(expect![[r#"
        1 found slurm:5 Some(7) None Some("n1") ["/sys/fs/cgroup/cpuacct/slurm_n1/uid_7/job_5"]
        1 ended, cpu 700 measured cgroup ancestor
    "#]]);
    assert_eq!(machine.unseen(), Unseen::default());
    machine.check(expect![""]);
}

#[test]
fn the_usage_of_unseen_jobs_is_reported() {
    let mut machine = Machine::new();
    let home = format!("{CPUACCT}/slurm_n1");
    machine.make(&home, 1000);
    machine.begin();
    machine.make(&format!("{home}/uid_7"), 0);
    machine.write(&format!("{home}/cpuacct.usage"), "1050");
    machine.remove(&format!("{home}/uid_7"));
    machine.check(expect![""]);
    assert_eq!(machine.unseen(), Unseen { directories: 1, cpu_ns: 50 });
    machine.write(&format!("{home}/cpuacct.usage"), "1080");
    machine.discovery().rescan(true, 0);
    assert_eq!(machine.unseen(), Unseen { directories: 1, cpu_ns: 80 }, "as after notices were lost");
}

#[test]
fn a_job_that_was_found_to_be_gone_is_not_found_again_by_the_notice() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/slurm_n1/uid_7/job_5");
    machine.make(&job, 0);
    machine.begin();
    machine.remove(&job);
    machine.discovery().rescan(false, 0);
    machine.check(expect![[r#"
        1 ended, cpu 0 measured cgroup ancestor
    "#]]);
    machine.check(expect![""]);
}

#[test]
fn jobs_are_found_below_roots_that_did_not_exist_yet() {
    let mut machine = Machine::new();
    machine.open_builtin();
    machine.check(expect![[r#"
        looked
    "#]]);
    machine.make(&format!("{CPUACCT}/slurm_n1"), 0);
    machine.make(&format!("{CPUACCT}/slurm_n2"), 0);
    machine.check(expect![""]);
    machine.make(&format!("{CPUACCT}/slurm_n1/uid_7/job_5"), 0);
    machine.make(&format!("{CPUACCT}/slurm_n2/uid_7/job_6"), 0);
    machine.make(&format!("{CPUACCT}/oar/a_b_9"), 0);
    machine.check(expect![[r#"
        1 found slurm:5 Some(7) None Some("n1") ["/sys/fs/cgroup/cpuacct/slurm_n1/uid_7/job_5"]
        2 found slurm:6 Some(7) None Some("n2") ["/sys/fs/cgroup/cpuacct/slurm_n2/uid_7/job_6"]
        3 found oar:9 None Some("a_b") Some("n0") ["/sys/fs/cgroup/cpuacct/oar/a_b_9"]
    "#]]);
}

#[test]
fn a_job_and_its_parts_are_closed_from_what_remains() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/slurm/uid_7/job_5");
    machine.make(&format!("{CPUACCT}/slurm"), 1000);
    machine.make(&format!("{CPUACCT}/slurm/uid_7"), 100);
    machine.make(&job, 100);
    machine.make(&format!("{job}/step_0"), 100);
    machine.make(&format!("{job}/step_0/task_0"), 60);
    machine.make(&format!("{job}/step_0/task_1"), 40);
    machine.begin();
    // Both tasks go; the counters above keep what they used. The job of another user goes on.
    machine.make(&format!("{CPUACCT}/slurm/uid_8/job_6"), 0);
    machine.work();
    machine.make(&format!("{CPUACCT}/slurm/uid_8/job_6"), 70);
    machine.make(&format!("{CPUACCT}/slurm/uid_8"), 70);
    machine.make(&job, 130);
    machine.make(&format!("{job}/step_0"), 130);
    machine.remove(&format!("{job}/step_0/task_0"));
    machine.check(expect![""]);
    machine.make(&format!("{CPUACCT}/slurm"), 1105);
    machine.make(&format!("{CPUACCT}/slurm/uid_7"), 135);
    machine.remove(&format!("{CPUACCT}/slurm/uid_7"));
    machine.check(expect![[r#"
        1 ended, cpu 135 measured cgroup ancestor
          n0 0 Some("0") cpu 90 measured cgroup ancestor
          n0 0 Some("1") cpu 45 measured cgroup ancestor
          n0 0 None cpu 135 measured cgroup ancestor
    "#]]);
}

#[test]
fn a_directory_of_the_same_name_is_another_job() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/slurm/uid_7/job_5");
    machine.make(&format!("{CPUACCT}/slurm/uid_7"), 0);
    machine.make(&job, 0);
    machine.begin();
    machine.remove(&job);
    machine.make(&job, 0);
    machine.check(expect![[r#"
        1 ended, cpu 0 measured cgroup ancestor
        2 found slurm:5 Some(7) None Some("n0") ["/sys/fs/cgroup/cpuacct/slurm/uid_7/job_5"]
    "#]]);
}

#[test]
fn a_container_inside_a_job_is_no_job_and_own_layouts_come_first() {
    let mut machine = Machine::new();
    let container = "a".repeat(64);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5/docker/{container}"), 0);
    machine.make(&format!("{CPUACCT}/mine/job-x"), 0);
    machine.make(&format!("{CPUACCT}/mine/other"), 0);
    let own = Layout::parse("mine", "mine/job-{id}", "").unwrap();
    machine.open(&Layouts::with(vec![own]), None);
    let mut found: Vec<String> = text(&machine.work()).lines().map(|line| line[2..].to_owned()).collect();
    found.sort();
    expect![[r#"
        found mine:x None None Some("n0") ["/sys/fs/cgroup/cpuacct/mine/job-x"]
        found slurm:5 Some(7) None Some("n0") ["/sys/fs/cgroup/cpuacct/slurm/uid_7/job_5"]
        oked"#]]
    .assert_eq(&found.join("\n"));
}

#[test]
fn only_directories_below_a_cgroup_are_read() {
    let mut machine = Machine::new();
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    machine.open(&Layouts::builtin(), Some(Path::new("/test/a")));
    machine.work();
    machine.make(&format!("{CPUACCT}/test/a/slurm/uid_7/job_6"), 0);
    machine.check(expect![[r#"
        1 found slurm:6 Some(7) None Some("n0") ["/sys/fs/cgroup/cpuacct/test/a/slurm/uid_7/job_6"]
    "#]]);
}

#[test]
fn a_better_hierarchy_takes_over_and_the_job_stays_the_same() {
    let mut machine = Machine::new();
    machine.begin();
    machine.make(&format!("{FREEZER}/slurm/uid_7/job_5"), 0);
    // Nothing counts it yet: its manager may still be at it.
    machine.check(expect![""]);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    machine.check(expect![[r#"
        1 found slurm:5 Some(7) None Some("n0") ["/sys/fs/cgroup/cpuacct/slurm/uid_7/job_5"]
    "#]]);
    machine.remove(&format!("{FREEZER}/slurm"));
    machine.check(expect![""]);
    machine.remove(&format!("{CPUACCT}/slurm/uid_7/job_5"));
    machine.check(expect![[r#"
        1 ended, cpu 0 measured cgroup ancestor
    "#]]);
}

#[test]
fn all_jobs_of_a_home_move_to_the_better_hierarchy() {
    let mut machine = Machine::new();
    let jobs = ["slurm/uid_7/job_5", "slurm/uid_7/job_6", "slurm/uid_8/job_7"];
    jobs.iter().for_each(|job| machine.make(&format!("{FREEZER}/{job}"), 0));
    machine.open_builtin();
    let found = machine.found();
    assert_eq!(found, 3);
    jobs.iter().for_each(|job| machine.make(&format!("{CPUACCT}/{job}"), 0));
    machine.check(expect![""]);
    assert_eq!(machine.health().jobs, [("slurm".to_owned(), 3)]);
}

#[test]
fn what_is_left_of_a_job_in_other_hierarchies_is_no_other_job() {
    let mut machine = Machine::new();
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    machine.make(&format!("{FREEZER}/slurm/uid_7/job_5"), 0);
    machine.make(&format!("{FREEZER}/slurm/uid_7/job_6"), 0);
    machine.begin();
    machine.remove(&format!("{CPUACCT}/slurm"));
    // The other one is in this hierarchy alone.
    machine.check(expect![[r#"
        1 ended, cpu 0 lower_bound cgroup
        3 found slurm:6 Some(7) None Some("n0") []
    "#]]);
    machine.write(&format!("{FREEZER}/slurm/uid_7/job_5/cgroup.procs"), "77\n");
    machine.make(&format!("{FREEZER}/slurm/uid_7/job_5/step_0"), 0);
    // A process is in it, so it is a job again.
    machine.check(expect![[r#"
        2 found slurm:5 Some(7) None Some("n0") []
    "#]]);
}

/// The sluid of a job that got its manager's number, and that ends in the first hierarchy.
fn ended_sluid(machine: &mut Machine) -> &'static str {
    const PATH: &str = "system.slice/slurmstepd.scope/s0123456789ABC";
    machine.make(&format!("{CPUACCT}/{PATH}"), 0);
    machine.make(&format!("{FREEZER}/{PATH}"), 0);
    machine.write("proc/77/stat", format!("77 (x) S 1 {}5 0", "0 ".repeat(17)));
    machine.write("proc/77/environ", b"SLURM_JOB_ID=1234\0");
    machine.write(&format!("{CPUACCT}/{PATH}/cgroup.procs"), "77\n");
    machine.begin();
    PATH
}

#[test]
fn a_directory_that_goes_unseen_after_the_end_of_its_job_is_no_other_job() {
    let mut machine = Machine::new();
    let path = ended_sluid(&mut machine);
    // It goes in the other hierarchy after that is watched and before it is listed: only the notice reveals it.
    machine.remove(&format!("{FREEZER}/{path}"));
    machine.remove(&format!("{CPUACCT}/system.slice"));
    machine.check(expect![[r#"
        1 ended, cpu 0 lower_bound cgroup
    "#]]);
    let (home, name) = path.rsplit_once('/').unwrap();
    let discovery = machine.discovery();
    let home = discovery.tree.node_at(1, Path::new(home)).unwrap();
    discovery.tree.noticed_removal(home, name.as_ref(), clock::boottime_ns());
    discovery.apply_changes(clock::boottime_ns());
    machine.check(expect![""]);
}

#[test]
fn directories_that_were_left_at_the_end_of_a_job_are_known_until_they_are_gone() {
    let mut machine = Machine::new();
    let path = ended_sluid(&mut machine);
    machine.remove(&format!("{CPUACCT}/{path}"));
    machine.check(expect![[r#"
        1 ended, cpu 0 measured cgroup ancestor
    "#]]);
    // An hour passes until the manager removes its own directory.
    machine.discovery().jobs.remnants.ended[0].end_ns -= 3_600_000_000_000;
    machine.remove(&format!("{CPUACCT}/system.slice"));
    machine.check(expect![""]);
    machine.remove(&format!("{FREEZER}/system.slice"));
    machine.check(expect![""]);
}

#[test]
fn a_home_that_is_not_followed_may_go() {
    let mut machine = Machine::new();
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    machine.make(&format!("{FREEZER}/slurm/uid_7/job_5"), 0);
    machine.begin();
    machine.remove(&format!("{FREEZER}/slurm"));
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_6"), 0);
    machine.check(expect![[r#"
        2 found slurm:6 Some(7) None Some("n0") ["/sys/fs/cgroup/cpuacct/slurm/uid_7/job_6"]
    "#]]);
}

#[test]
fn a_job_that_is_named_by_a_sluid_is_asked_for_its_id() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/system.slice/slurmstepd.scope/s0123456789ABC");
    machine.make(&format!("{CPUACCT}/system.slice/slurmstepd.scope"), 0);
    machine.make(&job, 0);
    machine.open_builtin();
    machine.check(expect![[r#"
        1 found slurm:s0123456789ABC None None Some("n0") ["/sys/fs/cgroup/cpuacct/system.slice/slurmstepd.scope/s0123456789ABC"]
        looked
    "#]]);
    let zeros = "0 ".repeat(17);
    machine.write("proc/77/stat", format!("77 (x) S 1 {zeros}5 0"));
    machine.write("proc/77/environ", b"A=\xff\0SLURM_JOB_ID=1234\0B=2\0");
    machine.write(&format!("{job}/step_0/cgroup.procs"), "77\n");
    machine.check(expect![[r#"
        1 inhabited
        1 is slurm's 1234
    "#]]);
    let other = format!("{CPUACCT}/system.slice/slurmstepd.scope/s0123456789ABD");
    machine.make(&other, 0);
    machine.write(&format!("{other}/cgroup.procs"), "77\n");
    machine.check(expect![[r#"
        2 found slurm:1234 None None Some("n0") ["/sys/fs/cgroup/cpuacct/system.slice/slurmstepd.scope/s0123456789ABD"]
    "#]]);
}

#[test]
fn an_id_is_believed_only_of_the_first_user() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/system.slice/slurmstepd.scope/s0123456789ABC");
    machine.make(&format!("{CPUACCT}/system.slice/slurmstepd.scope"), 0);
    let zeros = "0 ".repeat(17);
    for (pid, start, uid, environ) in [(76, 9, 1001, "SLURM_JOB_ID=666"), (77, 5, 1000, "SLURM_JOB_ID=12")] {
        machine.write(&format!("proc/{pid}/stat"), format!("{pid} (x) S 1 {zeros}{start} 0"));
        machine.write(&format!("proc/{pid}/status"), format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
        machine.write(&format!("proc/{pid}/environ"), format!("{environ}\0"));
    }
    machine.make(&job, 0);
    machine.write(&format!("{job}/cgroup.procs"), "76\n77\n");
    machine.open_builtin();
    machine.check(expect![[r#"
        1 found slurm:12 None None Some("n0") ["/sys/fs/cgroup/cpuacct/system.slice/slurmstepd.scope/s0123456789ABC"]
        looked
    "#]]);
}

#[test]
fn what_was_not_noticed_is_found_by_looking() {
    let mut machine = Machine::new();
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5/step_0"), 0);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_6"), 0);
    machine.begin();
    machine.remove(&format!("{CPUACCT}/slurm/uid_7/job_6"));
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_7"), 0);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5/step_1"), 0);
    let discovery = machine.discovery();
    discovery.tree.watches.watcher.drain();
    let now_ns = clock::boottime_ns();
    discovery.rescan(true, now_ns);
    discovery.close_removed(now_ns);
    discovery.announce_due(now_ns);
    let events = std::mem::take(&mut discovery.jobs.events);
    let ended = events.iter().filter(|event| matches!(event, Event::Ended(_))).count();
    let found = events.iter().filter(|event| matches!(event, Event::Found(_))).count();
    assert_eq!((ended, found), (1, 1));
    assert!(discovery.jobs.has_parts());
    assert_eq!(discovery.health().jobs, [("slurm".to_owned(), 2)]);
}

#[test]
fn looks_that_find_nothing_become_rare() {
    let mut machine = Machine::new();
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5/step_0"), 0);
    machine.make(&format!("{CPUACCT}/user.slice"), 0);
    machine.begin();
    let minutes_until_next = |machine: &mut Machine| {
        let discovery = machine.discovery();
        discovery.tree.watches.watcher.drain();
        discovery.rescan(false, 0);
        discovery.schedule.rescan_ns / RESCAN_EVERY_NS
    };
    assert_eq!([(); 5].map(|()| minutes_until_next(&mut machine)), [2, 4, 8, 8, 8]);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_6"), 0);
    assert_eq!([(); 3].map(|()| minutes_until_next(&mut machine)), [1, 2, 4], "one was not noticed");
}

#[test]
fn hostile_names_are_jobs_like_others_or_none() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mut machine = Machine::new();
    let jobs = machine.root.path().join(format!("{CPUACCT}/pbs_jobs.service/jobs"));
    machine.begin();
    for name in [&b"1.a\nb"[..], b"\xff\xfe", b"...", &[b'x'; 255], b"slurm", b"%0a"] {
        fs::create_dir_all(jobs.join(OsStr::from_bytes(name))).unwrap();
    }
    fs::create_dir_all(machine.root.path().join(format!("{CPUACCT}/slurm/uid_99999999999/job_1"))).unwrap();
    let events = machine.work();
    let mut ids: Vec<String> = (events.iter())
        .filter_map(|event| match event {
            Event::Found(found) => Some(format!("{}:{}", found.manager, found.id)),
            _ => None,
        })
        .collect();
    ids.sort();
    let long = format!("pbs:{}", "x".repeat(126));
    assert_eq!(ids, ["pbs:%250a", "pbs:%ff%fe", "pbs:...", "pbs:1.a%0ab", "pbs:slurm", &long, "slurm:1"]);
    machine.remove(&format!("{CPUACCT}/pbs_jobs.service"));
    let ended = machine.work().iter().filter(|event| matches!(event, Event::Ended(_))).count();
    assert_eq!(ended, 6);
    assert_eq!(machine.health().jobs, [("slurm".to_owned(), 1)]);
}

/// The home of a user's containers, owned by the user.
fn slice_of(uid: u32) -> String {
    format!("{CPUACCT}/user.slice/user-{uid}.slice/user@{uid}.service/user.slice")
}

#[test]
fn a_user_who_makes_directories_without_end_hides_no_job_of_others() {
    let mut machine = Machine::new();
    let flooded = slice_of(1000);
    machine.make(&flooded, 0);
    machine.make(&slice_of(1001), 0);
    machine.begin();
    let made = dir_limits::IN_HOME_OF_USER + 20;
    for number in 0..made {
        fs::create_dir(machine.root.path().join(format!("{flooded}/libpod-{number:064x}.scope"))).unwrap();
    }
    let found = machine.found();
    assert_eq!(found, dir_limits::IN_HOME_OF_USER);
    assert!(machine.discovery().take_news());
    let left_out = machine.health().left_out;
    assert_eq!(left_out, [(PathBuf::from("/").join(&flooded), 20)]);
    machine.make(&format!("{}/libpod-{:064x}.scope", slice_of(1001), 1), 0);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    let found: Vec<String> = (machine.work().iter())
        .filter_map(|event| match event {
            Event::Found(found) => Some(found.manager.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(found, ["podman", "slurm"]);
    // There is room again when some are gone: the next look at everything finds the others.
    for number in 0..30 {
        fs::remove_dir(machine.root.path().join(format!("{flooded}/libpod-{number:064x}.scope"))).unwrap();
    }
    machine.work();
    let discovery = machine.discovery();
    discovery.rescan(false, clock::boottime_ns());
    let health = discovery.health();
    assert_eq!(health.left_out, []);
    assert_eq!(health.jobs, [("podman".to_owned(), made - 30 + 1), ("slurm".to_owned(), 1)]);
}

#[test]
fn a_job_that_makes_directories_without_end_hides_no_other() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/slurm/uid_7/job_5");
    machine.make(&job, 0);
    machine.begin();
    for number in 0..dir_limits::IN_JOB + 5 {
        fs::create_dir(machine.root.path().join(format!("{job}/step_{number}"))).unwrap();
    }
    machine.work();
    let left_out = machine.health().left_out;
    assert_eq!(left_out, [(PathBuf::from("/").join(&job), 5)]);
    machine.remove(&job);
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_6/step_0"), 0);
    machine.work();
    let health = machine.health();
    assert_eq!((health.jobs, health.left_out), (vec![("slurm".to_owned(), 1)], Vec::new()));
}

#[test]
fn every_resource_manager_is_known_by_its_directory_alone() {
    let homes = [
        ("slurm", "slurm"),
        ("slurm_n1", "slurm"),
        ("slurmstepd.scope", "slurm"),
        ("system.slice/slurmstepd.scope", "slurm"),
        ("system.slice/n1_slurmstepd.scope", "slurm"),
        ("oar", "oar"),
        ("pbs_jobs.service", "pbs"),
        ("system.slice/pbs.service", "pbs"),
        ("pbs.slice", "pbs"),
        ("lsf", "lsf"),
        ("htcondor", "htcondor"),
        ("system.slice/condor.service", "htcondor"),
        ("mine", "mine"),
    ];
    for (home, manager) in homes {
        for hierarchy in [CPUACCT, FREEZER] {
            let mut machine = Machine::new();
            let own = Layout::parse("mine", "mine/job-{id}", "").unwrap();
            machine.make(&format!("{CPUACCT}/system.slice/docker-{:064x}.scope", 1), 0);
            machine.open(&Layouts::with(vec![own]), None);
            machine.work();
            assert!(machine.discovery().take_news());
            assert!(machine.health().managers.is_empty());
            machine.make(&format!("{hierarchy}/{home}"), 0);
            machine.work();
            assert!(machine.discovery().take_news(), "{home}: it came later");
            assert_eq!(machine.health().managers, [manager], "{hierarchy}/{home}");
            machine.remove(&format!("{hierarchy}/{home}"));
            machine.work();
            assert!(machine.discovery().take_news(), "{home}: it is gone");
            assert!(machine.health().managers.is_empty());
        }
    }
}

#[test]
fn a_job_of_many_steps_has_some_lines_and_the_sum_of_the_others() {
    let mut machine = Machine::new();
    let job = format!("{CPUACCT}/slurm/uid_7/job_5");
    let steps = job::LINES_MAX as u64 + 60;
    machine.make(&job, 0);
    machine.begin();
    for number in 0..steps {
        machine.make(&format!("{job}/step_{number}/task_0"), 10);
        machine.make(&format!("{job}/step_{number}"), 10);
        machine.make(&job, 10 * (number + 1));
        machine.work();
        if number % 2 == 0 {
            machine.remove(&format!("{job}/step_{number}"));
            machine.work();
        }
    }
    let discovery = machine.discovery();
    discovery.jobs.read_parts(&mut discovery.tree, clock::boottime_ns());
    let events = machine.work();
    let [.., Event::Parts(1, so_far)] = &events[..] else { panic!("{events:?}") };
    let sum_of = |parts: &[Part], of_tasks: bool| {
        let parts = parts.iter().filter(|part| part.task.is_some() == of_tasks);
        let figures = parts.map(|part| (part.folded.unwrap_or(1), part.totals.get(met_core::job_table::CPU)));
        figures.fold((0, 0), |sum, (count, cpu)| (sum.0 + count, sum.1 + cpu.unwrap_or(0)))
    };
    for of_tasks in [false, true] {
        assert_eq!(sum_of(so_far, of_tasks), (steps, 10 * steps as i64));
    }
    assert!(so_far.len() <= job::LINES_MAX + 4);
    let others = |has_ended: bool| {
        let others = so_far.iter().filter(|part| part.task.is_none() && part.end_ns.is_some() == has_ended);
        others.filter_map(|part| part.folded).collect::<Vec<_>>()
    };
    let half = steps - job::LINES_MAX as u64 / 2;
    assert_eq!(
        (others(true), others(false)),
        (vec![half / 2], vec![half / 2]),
        "a daemon after this sees one"
    );
    machine.make(&format!("{CPUACCT}/slurm/uid_7"), 10 * steps);
    machine.make(&format!("{CPUACCT}/slurm"), 10 * steps);
    machine.remove(&job);
    let events = machine.work();
    let [.., Event::Ended(ended)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(ended.cpu.as_ref().map(|cpu| cpu.value), Some(10 * steps as i64));
    assert_eq!(ended.parts.len(), job::LINES_MAX + 2);
    for of_tasks in [false, true] {
        assert_eq!(sum_of(&ended.parts, of_tasks), (steps, 10 * steps as i64));
    }
    let others = ended.parts.iter().filter_map(|part| Some((part.task.as_deref(), part.folded?)));
    assert_eq!(others.collect::<Vec<_>>(), [(None, half), (Some("others"), half)]);
}

#[test]
fn notices_of_a_user_who_makes_directories_without_end_are_ignored_for_a_while() {
    let mut machine = Machine::new();
    let flooded = slice_of(1000);
    machine.make(&flooded, 0);
    machine.begin();
    let watches = |machine: &Machine| machine.health().watches;
    let before = watches(&machine);
    let path = machine.root.path().join(format!("{flooded}/noise"));
    let churn = |times: usize| {
        for _ in 0..times {
            fs::create_dir(&path).unwrap();
            fs::remove_dir(&path).unwrap();
        }
    };
    for _ in 0..dir_limits::MADE_IN_HOME_OF_USER / 256 {
        churn(256);
        machine.work();
    }
    assert_eq!(watches(&machine), before);
    churn(1);
    machine.work();
    assert_eq!(watches(&machine), before - 1);
    churn(256);
    assert_eq!(machine.discovery().tree.watches.watcher.drain(), [], "no notice of it arrives");
    machine.make(&format!("{CPUACCT}/slurm/uid_7/job_5"), 0);
    machine.make(&format!("{flooded}/libpod-{:064x}.scope", 1), 0);
    machine.work();
    let discovery = machine.discovery();
    assert_eq!(discovery.health().jobs, [("slurm".to_owned(), 1)]);
    assert!(discovery.timeout() <= Duration::from_nanos(UPKEEP_EVERY_NS as u64));
    // A minute later what is there is found, and listened to again.
    discovery.schedule.upkeep_ns = 0;
    machine.work();
    let discovery = machine.discovery();
    assert_eq!(discovery.rescans, 0);
    assert_eq!(discovery.health().jobs, [("podman".to_owned(), 1), ("slurm".to_owned(), 1)]);
    machine.make(&format!("{flooded}/libpod-{:064x}.scope", 2), 0);
    machine.work();
    let health = machine.health();
    assert_eq!(health.jobs, [("podman".to_owned(), 2), ("slurm".to_owned(), 1)]);
}
