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
fn captured(layouts: &Layouts, path: &str) -> Option<String> {
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
fn a_path_yields_what_the_manager_put_into_it() {
    let layouts = Layouts::builtin();
    let mut text = String::new();
    for path in FROM_THE_TOP {
        let found = captured(&layouts, &path.replace("CONTAINER", CONTAINER));
        let found = found.map(|text| text.replace(CONTAINER, "CONTAINER"));
        writeln!(text, "{path}\n    {}", found.as_deref().unwrap_or("-")).unwrap();
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
fn a_directory_that_others_use_does_not_show_that_a_manager_is_there() {
    let own = |path: &str| Layout::parse("mine", path, "").unwrap().has_own_home();
    assert!(own("mine/job-{id}") && own("(system.slice/)mine.service/job-{id}"));
    assert!(!own("(user.slice/app.slice/)mine-{id}.service") && !own("mine-{id}"));
}

#[test]
fn a_layout_of_the_configuration_comes_first_and_must_name_its_job() {
    let own = Layout::parse("mine", "slurm/uid_{uid:#}/job_{id}", "part-{step}").unwrap();
    let layouts = Layouts::with(vec![own]);
    assert_eq!(
        captured(&layouts, "slurm/uid_7/job_x/part-2").as_deref(),
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
fn an_expression_finds_the_number_of_a_job_in_a_name() {
    let layout = Layout::searched("oar", "a/b", r"(?:job|task)-(\d+)(?:-\w+)?$").unwrap();
    let layouts = Layouts::with(vec![layout]);
    let found = |path: &str| captured(&layouts, path);
    assert_eq!(found("a/b/x.job-12-ada").as_deref(), Some("oar home 1 id=12"));
    assert_eq!(found("a/b/task-7").as_deref(), Some("oar home 1 id=7"));
    for other in ["a/b/step-7", "a/b/job-", "a/job-7"] {
        assert_eq!(found(other), None, "{other}");
    }
    let words = Layout::searched("oar", "a", r"_(\w+)$").unwrap();
    assert_eq!(captured(&Layouts::with(vec![words]), "a/b_c"), None, "an id is a number");
    for wrong in ["", "(", r"job-\d+", r"(?<!a)(\d+)", &format!("({})", "a".repeat(2000))] {
        assert!(Layout::searched("oar", "a", wrong).is_err(), "{wrong}");
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
        let found = captured(&Layouts::builtin(), &format!("oar/{user}_{id}"));
        prop_assert_eq!(found, Some(format!("oar home 1 id={id} user={user}")));
    }
}
