use std::fmt::Write;
use std::path::PathBuf;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

struct Machine {
    root: tempfile::TempDir,
    host: Host,
}

/// A text archive of `-- path --` and contents; `\0`, `\n`, `\e` and `\xff` are escapes of such bytes.
fn machine(archive: &str) -> Machine {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    for file in archive.split("-- ").skip(1) {
        let (path, contents) = file.split_once(" --\n").unwrap();
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = contents.replace("\\0\n", "\\0").replace("\\n", "\n").replace("\\e", "\x1b");
        let mut bytes = Vec::new();
        for (index, piece) in text.replace("\\0", "\0").split("\\xff").enumerate() {
            bytes.extend(std::iter::repeat_n(0xff, usize::from(index > 0)));
            bytes.extend_from_slice(piece.as_bytes());
        }
        std::fs::write(path, bytes).unwrap();
    }
    let host = Host::at(root.path()).unwrap();
    Machine { root, host }
}

fn unified(path: &str) -> CgroupPaths {
    CgroupPaths { unified: Some(PathBuf::from(path)), ..CgroupPaths::default() }
}

fn v1(below: &str) -> CgroupPaths {
    let path = |controller: &str| Some(PathBuf::from(format!("/sys/fs/cgroup/{controller}/{below}")));
    CgroupPaths { unified: None, memory: path("memory"), cpuacct: path("cpuacct") }
}

/// Everything that is known, one line for each part.
fn print(identity: &Identity) -> String {
    let mut text = String::new();
    let json = |value: &dyn std::fmt::Debug| format!("{value:?}");
    let lines = [
        ("id", identity.id.as_ref().map(|id| json(id))),
        ("owner", identity.uid.map(|uid| format!("{uid} {:?}", identity.user))),
        ("name", identity.name.as_ref().map(|name| json(name))),
        ("account", identity.account.as_ref().map(|account| json(account))),
        ("command", (!identity.command.is_empty()).then(|| json(&identity.command))),
        ("nodes", (!identity.nodes.is_empty()).then(|| json(&identity.nodes))),
        ("requested", resources(&identity.requested)),
        ("allocated", resources(&identity.allocated)),
        ("scheduling", scheduling(&identity.scheduling)),
        ("main", identity.main.map(|main| main.pid.to_string())),
        ("start", identity.start_ticks.map(|ticks| ticks.to_string())),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            writeln!(text, "{name}: {value}").unwrap();
        }
    }
    text
}

fn resources(resources: &Resources) -> Option<String> {
    let Resources { nodes, cpus, tasks, memory_bytes, gpus, time_limit_ns, .. } = resources;
    let cells = [
        ("nodes", nodes),
        ("cpus", cpus),
        ("tasks", tasks),
        ("bytes", memory_bytes),
        ("gpus", gpus),
        ("limit_ns", time_limit_ns),
    ];
    let known = cells.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", (*value)?)));
    let known: Vec<String> = known.collect();
    (!known.is_empty()).then(|| known.join(", "))
}

fn scheduling(scheduling: &Scheduling) -> Option<String> {
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    let cells = [
        ("alias", scheduling.alias.clone()),
        ("array", scheduling.array_id.clone()),
        ("index", number(scheduling.array_index)),
        ("restarts", number(scheduling.restarts)),
        ("partition", scheduling.partition.clone()),
        ("qos", scheduling.qos.clone()),
        ("folder", scheduling.folder.clone()),
        ("lineage", scheduling.lineage.clone()),
    ];
    let known = cells.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    let known: Vec<String> = known.collect();
    (!known.is_empty()).then(|| known.join(", "))
}

fn check(archive: &str, question: &Question<'_>, expected: Expect) {
    let machine = machine(archive);
    expected.assert_eq(&print(&identify(&machine.host, question)));
}

const RECORD: &str = r#"{"key":{"cluster":null,"manager":"slurm","id":"31","incarnation":1},"name":"","user":null,
    "uid":null,"account":null,"command":[],"state":"running","manager_state":null,"exit_code":null,
    "signal":null,"start_ns":null,"end_ns":null,"nodes":[],"node_memory_bytes":null,
    "local":{"boot_id":"","origin":"found","supervisor":null,"main":null,"cgroup":{},"cwd":"/","stdout":null,
    "stderr":null}}"#;
const SLURM: &str = include_str!("../../../../fixtures/jobs/slurm-v1.txt");
const SLUID: &str = include_str!("../../../../fixtures/jobs/slurm-sluid.txt");
const CONTAIN: &str = include_str!("../../../../fixtures/jobs/slurm-contain.txt");
const OAR: &str = include_str!("../../../../fixtures/jobs/oar.txt");
const OTHERS: &str = include_str!("../../../../fixtures/jobs/others.txt");

#[test]
fn an_element_of_a_slurm_array() {
    let cgroup = v1("slurm/uid_1000/job_1240");
    let pids = &[52, 51, 50];
    let question =
        Question { manager: "slurm", id: "1240", uid: Some(1000), user: None, cgroup: &cgroup, pids };
    check(
        SLURM,
        &question,
        expect![[r#"
        owner: 1000 None
        name: "train"
        account: "physics"
        command: ["/bin/bash", "/var/spool/slurmd/job01240/slurm_script"]
        nodes: ["n7"]
        requested: cpus 4, tasks 2, bytes 536870912, limit_ns 3600000000000
        allocated: nodes 1, cpus 3, bytes 536870912, gpus 2
        scheduling: alias 1234_7, array 1234, index 7, restarts 1, partition batch, qos normal, folder /home/alice/runs, lineage night
        main: 51
        start: 900
    "#]],
    );
}

#[test]
fn a_slurm_job_named_by_its_sluid_with_a_hostile_environment() {
    let cgroup = unified("/sys/fs/cgroup/system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW");
    let pids = &[50, 51];
    let question =
        Question { manager: "slurm", id: "s7XK2M9PQ4RTVW", uid: None, user: None, cgroup: &cgroup, pids };
    check(
        SLUID,
        &question,
        expect![[r#"
        id: "77"
        owner: 1000 None
        name: "a�b�[2J�../../etc"
        command: ["evil"]
        allocated: cpus 2
        main: 51
        start: 900
    "#]],
    );
}

#[test]
fn a_waiting_root_process_is_not_the_first_of_a_job() {
    let cgroup = unified("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_31");
    let question =
        Question { manager: "slurm", id: "31", uid: None, user: None, cgroup: &cgroup, pids: &[40, 41, 42] };
    // Whose it is, and by what it is called, is not known before its user's first process is there.
    check(CONTAIN, &question, expect!["start: 900\n"]);
    // A process that came later is not what was submitted, but better than nothing.
    let adopted = expect![[r#"
        owner: 1000 None
        command: ["-bash"]
        main: 45
        start: 900
    "#]];
    check(CONTAIN, &Question { pids: &[40, 41, 42, 45], ..question }, adopted);
    let whole = expect![[r#"
        owner: 1000 None
        name: "train"
        command: ["/bin/bash", "/var/spool/slurmd/job00031/slurm_script"]
        allocated: gpus 2
        main: 51
        start: 900
    "#]];
    check(CONTAIN, &Question { pids: &[40, 41, 42, 45, 50, 51], ..question }, whole);
    // A job of root's own.
    let of_root = Question { uid: Some(0), pids: &[40, 41, 42, 50, 52], ..question };
    let identity = identify(&machine(CONTAIN).host, &of_root);
    assert_eq!((identity.uid, identity.main.map(|main| main.pid)), (Some(0), Some(52)));
    let held: Vec<_> = identity.holdings.iter().map(|held| (held.source, held.gpus.len())).collect();
    assert_eq!(held, [("SLURM_JOB_GPUS", 2)]);
}

#[test]
fn a_process_identified_by_its_environment_is_the_first_process() {
    let machine = machine(CONTAIN);
    let cgroup = CgroupPaths::default();
    let question =
        Question { manager: "slurm", id: "31", uid: None, user: None, cgroup: &cgroup, pids: &[41, 45] };
    let mut record: Record = serde_json::from_str(RECORD).unwrap();
    let main = |record: &Record| record.local.as_ref().unwrap().main.map(|main| main.pid);
    for (pids, expected) in
        [(&[41][..], None), (&[41, 45], Some(45)), (&[41, 45, 51], Some(51)), (&[45], Some(51))]
    {
        identify(&machine.host, &Question { pids, ..question }).apply(&mut record);
        assert_eq!(main(&record), expected, "{pids:?}");
    }
}

#[test]
fn the_owner_of_an_oar_job_is_its_user() {
    let cgroup = v1("oar/first_last_42");
    let question = Question {
        manager: "oar",
        id: "42",
        uid: None,
        user: Some("first_last"),
        cgroup: &cgroup,
        pids: &[60, 61],
    };
    check(
        OAR,
        &question,
        expect![[r#"
        owner: 1001 Some("first_last")
        name: "demo"
        account: "p1"
        command: ["bash", "-c", "./sim"]
        nodes: ["node1"]
        requested: limit_ns 300000000000
        allocated: nodes 1, cpus 1
        scheduling: array 41, index 2
        main: 61
        start: 800
    "#]],
    );
    let question = Question { pids: &[60], user: Some("elsewhere"), ..question };
    check(
        OAR,
        &question,
        expect![[r#"
        allocated: cpus 1
        start: 800
    "#]],
    );
}

#[test]
fn jobs_of_other_managers() {
    let nothing = CgroupPaths::default();
    let question =
        Question { manager: "pbs", id: "17[3].server", uid: None, user: None, cgroup: &nothing, pids: &[70] };
    check(
        OTHERS,
        &question,
        expect![[r#"
        owner: 1000 None
        name: "sweep"
        account: "chem"
        command: ["sh"]
        allocated: cpus 2
        scheduling: alias 17[3], array 17, index 3, partition workq
        main: 70
        start: 700
    "#]],
    );
    let cgroup = unified("/sys/fs/cgroup/lsf/c/job.99.3.5.6");
    let question = Question { manager: "lsf", id: "99[3]", cgroup: &cgroup, pids: &[80, 81], ..question };
    check(
        OTHERS,
        &question,
        expect![[r#"
        owner: 1000 None
        name: "solve[3]"
        account: "bio"
        command: ["./a.out"]
        nodes: ["hostA", "hostB"]
        allocated: nodes 2, cpus 6
        scheduling: alias 99[3], array 99, index 3, partition normal
        main: 81
        start: 600
    "#]],
    );
    let cgroup = unified("/sys/fs/cgroup/kubepods/pod1");
    let question = Question { manager: "kubernetes", id: "1", cgroup: &cgroup, pids: &[90, 91], ..question };
    check(
        OTHERS,
        &question,
        expect![[r#"
        owner: 33 None
        name: "web-0"
        command: ["nginx"]
        allocated: cpus 1, bytes 1073741824
        main: 91
        start: 500
    "#]],
    );
    let cgroup = unified("/sys/fs/cgroup/docker/c0ffee0123456789");
    let question =
        Question { manager: "docker", id: "c0ffee0123456789", cgroup: &cgroup, pids: &[95], ..question };
    check(
        OTHERS,
        &question,
        expect![[r#"
        owner: 999 None
        command: ["redis-server"]
        main: 95
        start: 400
    "#]],
    );
}

#[test]
fn the_name_of_a_podman_container_comes_from_its_monitor() {
    let cgroup = unified("/sys/fs/cgroup/libpod_parent/libpod-beef0123456789ab");
    let question = Question {
        manager: "podman",
        id: "beef0123456789ab",
        uid: None,
        user: None,
        cgroup: &cgroup,
        pids: &[97, 98],
    };
    check(
        OTHERS,
        &question,
        expect![[r#"
        owner: 999 None
        name: "trainer"
        command: ["python3", "train.py"]
        main: 98
        start: 400
    "#]],
    );
    // Before it begins its own program it is the runtime's.
    check(
        OTHERS,
        &Question { pids: &[97], ..question },
        expect![[r#"
        start: 400
    "#]],
    );
    // Another container's watcher has nothing to say.
    let id = "beef01234567cdef";
    let cgroup = unified("/sys/fs/cgroup/libpod_parent/libpod-beef01234567cdef");
    check(
        OTHERS,
        &Question { id, cgroup: &cgroup, ..question },
        expect![[r#"
        owner: 999 None
        command: ["python3", "train.py"]
        main: 98
        start: 400
    "#]],
    );
}

#[test]
fn a_job_without_processes_or_privilege_is_identified_by_its_cgroup() {
    let machine = machine(SLURM);
    let cgroup = v1("slurm/uid_1000/job_1240");
    let question =
        Question { manager: "slurm", id: "1240", uid: Some(1000), user: None, cgroup: &cgroup, pids: &[] };
    let identity = identify(&machine.host, &question);
    assert_eq!((identity.uid, identity.allocated.cpus, identity.main), (Some(1000), Some(3), None));
    assert!(!identity.environment_read);
    std::fs::remove_file(machine.root.path().join("proc/51/environ")).unwrap();
    let identity = identify(&machine.host, &Question { pids: &[51], ..question });
    assert_eq!((identity.name, identity.main.map(|main| main.pid)), (None, Some(51)));
}

#[test]
fn an_environment_longer_than_any_is_read_to_its_limit() {
    let machine = machine(SLURM);
    let huge = [b"SLURM_JOB_ID=1240\0SLURM_JOB_NAME=".as_slice(), &vec![b'x'; 1 << 20], b"\0"].concat();
    std::fs::write(machine.root.path().join("proc/51/environ"), huge).unwrap();
    let cgroup = CgroupPaths::default();
    let question =
        Question { manager: "slurm", id: "1240", uid: Some(1000), user: None, cgroup: &cgroup, pids: &[51] };
    assert_eq!(identify(&machine.host, &question).name, None, "a value that was cut is none");
    let long = [b"SLURM_JOB_ID=1240\0SLURM_JOB_NAME=".as_slice(), &vec![b'x'; 10_000], b"\0"].concat();
    std::fs::write(machine.root.path().join("proc/51/environ"), long).unwrap();
    assert_eq!(identify(&machine.host, &question).name.map(|name| name.len()), Some(VALUE_BYTES_MAX));
}

#[test]
fn what_the_manager_reported_is_kept() {
    let machine = machine(SLURM);
    let cgroup = v1("slurm/uid_1000/job_1240");
    let question =
        Question { manager: "slurm", id: "1240", uid: Some(1000), user: None, cgroup: &cgroup, pids: &[51] };
    let identity = identify(&machine.host, &question);
    let text = r#"{"key":{"cluster":null,"manager":"slurm","id":"1240","incarnation":1},"name":"","user":"alice",
        "uid":null,"account":"billed","command":[],"state":"running","manager_state":null,"exit_code":null,
        "signal":null,"start_ns":null,"end_ns":null,"nodes":["n7"],"node_memory_bytes":null,"local":null}"#;
    let mut record: Record = serde_json::from_str(text).unwrap();
    identity.apply(&mut record);
    assert_eq!((record.user.as_deref(), record.account.as_deref()), (Some("alice"), Some("billed")));
    assert_eq!((record.name.as_str(), record.uid, record.shown_id()), ("train", Some(1000), "1234_7"));
    assert_eq!(record.allocated.memory_bytes, Some(512 << 20));
    let before = record.clone();
    identity.apply(&mut record);
    assert_eq!(record, before, "a second time changes nothing");
}

proptest! {
    #[test]
    fn no_environment_changes_the_owner_or_the_id(environ: Vec<u8>, manager in 0..4usize) {
        let machine = machine(SLURM);
        let written = [environ.as_slice(), b"\0SLURM_JOB_UID=0\0SLURM_JOB_ID=5\0OAR_USER=root\0"].concat();
        std::fs::write(machine.root.path().join("proc/51/environ"), written).unwrap();
        let cgroup = v1("slurm/uid_1000/job_1240");
        let manager = ["slurm", "oar", "pbs", "docker"][manager];
        let question = Question { manager, id: "1240", uid: None, user: None, cgroup: &cgroup, pids: &[51] };
        let identity = identify(&machine.host, &question);
        prop_assert_eq!((identity.uid, identity.id), (Some(1000), None));
        prop_assert!(identity.name.is_none_or(|name| !name.contains(char::is_control)));
    }

    #[test]
    fn values_are_short_and_harmless(bytes: Vec<u8>) {
        let text = printable(&bytes);
        prop_assert!(!text.contains(char::is_control));
        // A byte that is no text is shown with three.
        prop_assert!(text.len() <= 3 * VALUE_BYTES_MAX);
    }
}
