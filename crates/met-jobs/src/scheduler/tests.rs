//! The parsers on what schedulers of several versions write, and the two halves of a job meeting.

use std::path::Path;

use expect_test::{Expect, expect};
use met_core::job::{JobKey, Part, QualityKind, Record, Resources, State};
use met_core::job_table::CPU;
use proptest::prelude::*;

use super::join::{Joined, adopt, forgotten, join};
use super::text::SECOND_NS;
use super::*;

pub(super) fn fixture(path: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schedulers");
    std::fs::read(folder.join(path)).unwrap()
}

/// All captured answers.
fn fixtures() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schedulers");
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries(&folder).flat_map(|version| entries(&version).collect::<Vec<_>>());
    files.map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn every_scheduler_has_a_parser() {
    assert!(kinds().all(|kind| !kind.parsers.is_empty()));
    let runs = |answer: &[u8]| fuzz::parsers().map(|parse| parse(answer).len()).max();
    assert!(
        fixtures().iter().all(|answer| runs(answer) > Some(0)),
        "a captured answer that none of them reads"
    );
}

#[test]
fn slurm_counts_its_queue_on_two_pages() {
    let pages = queue_pages(managers::Scheduler::Slurm).unwrap();
    let read = |of: &'static PageOf, name: &str| {
        let mut reader = PageReader::new(of);
        let page = fixture(&format!("../queue-pages/slurm-25.11/{name}"));
        page.split(|&byte| byte == b'\n').for_each(|line| reader.line(line));
        assert!(reader.lines > 100 && reader.unparsed == 0, "{} {}", reader.lines, reader.unparsed);
        reader
    };
    let partitions = read(&pages.by_partition, "partitions.txt").by_partition();
    expect![[r#"{"debug": 0, "gpu": 9, "long": 0, "main": 7}"#]].assert_eq(&format!("{partitions:?}"));
    let users = read(&pages.by_user, "jobs-users-accts.txt").by_user().unwrap();
    expect![[r#"{"DOM\\eve": 4, "ada": 3, "bob": 9}"#]].assert_eq(&format!("{users:?}"));
    assert!(queue_pages(managers::Scheduler::Oar).is_none());
}

/// One line for each run, and one for each of its parts; what is not known is left out.
fn shown(recorded: &[Recorded]) -> String {
    let mut text = String::new();
    for run in recorded {
        let cluster = run.cluster.as_deref().unwrap_or("-");
        text += &format!("{cluster} {}:{} {} {:?}", run.manager, run.id, run.state.name(), run.name);
        let mut say = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!(" {name}={value}");
            }
        };
        say("said", run.manager_state.clone());
        say("user", run.user.clone());
        say("uid", run.uid.map(|uid| uid.to_string()));
        say("account", run.account.clone());
        say("exit", run.exit_code.map(|code| code.to_string()));
        say("signal", run.signal.map(|signal| signal.to_string()));
        let scheduling = &run.scheduling;
        let second = |time_ns: Option<i64>| time_ns.map(|time_ns| (time_ns / SECOND_NS).to_string());
        say("submit", second(scheduling.submit_ns));
        say("eligible", second(scheduling.eligible_ns));
        say("start", second(run.start_ns));
        say("end", second(run.end_ns));
        say("nodes", Some(run.nodes.join("+")).filter(|nodes| !nodes.is_empty()));
        say("requested", resources(&run.requested));
        say("allocated", resources(&run.allocated));
        say("alias", scheduling.alias.clone());
        say("array", scheduling.array_id.clone());
        say("index", scheduling.array_index.map(|index| index.to_string()));
        say("het", scheduling.het_id.clone());
        say("offset", scheduling.het_offset.map(|offset| offset.to_string()));
        say("restarts", scheduling.restarts.map(|restarts| restarts.to_string()));
        say("partition", scheduling.partition.clone());
        say("qos", scheduling.qos.clone());
        say("exclusive", scheduling.exclusive.map(|exclusive| exclusive.to_string()));
        say("reason", scheduling.reason.as_ref().map(|reason| format!("{reason:?}")));
        say("cpu", scheduling.cpu_ns.map(|cpu_ns| (cpu_ns as f64 / 1e9).to_string()));
        say("peak", scheduling.memory_peak_bytes.map(|bytes| bytes.to_string()));
        text.push('\n');
        for part in &run.parts {
            let name = part.name.as_deref().unwrap_or("");
            let (start, end) = (second(part.start_ns), second(part.end_ns));
            text += &format!(
                "  {} on {} {name:?} {start:?} {end:?} {:?}\n",
                part.step, part.node, part.exit_code
            );
        }
    }
    text
}

fn resources(resources: &Resources) -> Option<String> {
    let numbers = [
        ("nodes", resources.nodes),
        ("cpus", resources.cpus),
        ("memory", resources.memory_bytes),
        ("gpus", resources.gpus),
        ("seconds", resources.time_limit_ns.map(|limit_ns| limit_ns / SECOND_NS)),
    ];
    let known = numbers.iter().filter_map(|(name, value)| Some(format!("{name}:{}", (*value)?)));
    let other = resources.other.iter().map(|(name, value)| format!("{name}:{value}"));
    let all: Vec<String> = known.chain(other).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Times in fixtures without a zone are read as if the machine were in UTC.
pub(super) fn check(recorded: &[Recorded], expected: Expect) {
    expected.assert_eq(&shown(recorded));
}

const DIVIDED: &str = fuzz::DELIMITER;

#[test]
fn slurm_20_11_with_old_memory_and_words_for_nothing() {
    check(
        &slurm::parse_sacct(&fixture("slurm-20.11/sacct-old.txt"), DIVIDED),
        expect![[r#"
        alpha slurm:4711 finished "relax" said=COMPLETED user=ada uid=1000 account=chem exit=0 submit=1614585600 eligible=1614585600 start=1614585900 end=1614589500 nodes=node01+node02 requested=nodes:2,cpus:8,memory:34359738368,seconds:86400 allocated=nodes:2,cpus:8,memory:268972326912,billing:8 partition=long qos=normal cpu=28512.001 peak=2401974272
          batch on node01 "" Some("1614585900") Some("1614589500") Some(0)
          extern on node[01-02] "" Some("1614585900") Some("1614589500") Some(0)
          0 on node[01-02] "vasp_std" Some("1614585902") Some("1614589498") Some(0)
        alpha slurm:4712 cancelled "never started" said=CANCELLED by 1000 user=ada uid=1000 account=chem submit=1614586200 end=1614586320 requested=nodes:4,cpus:4,memory:2097152000 partition=long qos=normal reason="JobHeldUser"
        alpha slurm:4713 timeout "train" said=TIMEOUT user=bob uid=1001 account=bio signal=15 submit=1614586800 eligible=1614586800 start=1614586805 end=1614586880 nodes=gpu1 requested=nodes:1,cpus:2,memory:524288000 allocated=nodes:1,cpus:2,memory:524288000,gpus:2,billing:2,gres/gpu:v100:2 partition=short qos=normal cpu=70.5 peak=402653184
          batch on gpu1 "" Some("1614586805") Some("1614586882") None
        alpha slurm:4714 pending "sweep" said=PENDING user=bob uid=1001 account=bio submit=1614586800 eligible=1614586800 requested=nodes:1,cpus:1,memory:1073741824,seconds:3600,billing:1 alias=4714_[5-9%2] array=4714 partition=short qos=normal reason="Resources"
    "#]],
    );
}

#[test]
fn slurm_22_05_as_it_answered() {
    check(
        &slurm::parse_sacct(&fixture("slurm-22.05/sacct.txt"), DIVIDED),
        expect![[r#"
        test slurm:1 cancelled "requeue" said=REQUEUED user=tester uid=1001 account=proj1 signal=15 submit=1794723249 eligible=1794723249 start=1794723251 end=1794723252 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 partition=main qos=normal cpu=0.002 peak=225280
          batch on vm "" Some("1794723251") Some("1794723253") None
        test slurm:2 failed "evil|name�line2��;$(id)" said=FAILED user=tester uid=1001 account=proj1 exit=3 submit=1794723252 eligible=1794723252 start=1794723254 end=1794723254 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 partition=main qos=normal cpu=0.001
          batch on vm "" Some("1794723254") Some("1794723254") Some(3)
        test slurm:4 out_of_memory "oom" said=OUT_OF_MEMORY user=tester uid=1001 account=proj1 submit=1794723252 eligible=1794723252 start=1794723254 end=1794723254 nodes=vm requested=nodes:1,cpus:1,memory:41943040,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:41943040,billing:1 partition=main qos=normal cpu=0.04
          batch on vm "" Some("1794723254") Some("1794723254") None
        test slurm:6 finished "steps" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723252 start=1794723260 end=1794723261 nodes=vm requested=nodes:1,cpus:1,memory:104857600,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:104857600,billing:1 partition=main qos=normal cpu=0.02
          batch on vm "" Some("1794723260") Some("1794723261") Some(0)
          0 on vm "first step" Some("1794723260") Some("1794723260") Some(0)
          1 on vm "false" Some("1794723260") Some("1794723260") Some(1)
        test slurm:7 cancelled "cancelme" said=CANCELLED by 0 user=tester uid=1001 account=proj1 signal=15 submit=1794723252 eligible=1794723252 start=1794723260 end=1794723260 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 partition=main qos=normal cpu=0.001 peak=110592
          batch on vm "" Some("1794723260") Some("1794723260") None
        test slurm:9 running "wait" said=RUNNING user=tester uid=1001 account=proj1 submit=1794723252 eligible=1794723252 start=1794723263 nodes=vm requested=nodes:1,cpus:2,memory:52428800,seconds:300,billing:2 allocated=nodes:1,cpus:2,memory:52428800,billing:2 partition=main qos=normal
          batch on vm "" Some("1794723263") None None
        test slurm:10 finished "arr" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723254 start=1794723257 end=1794723258 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:93840,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 alias=5_1 array=5 index=1 partition=main qos=normal cpu=0.002
          batch on vm "" Some("1794723257") Some("1794723258") Some(0)
        test slurm:5 finished "arr" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723254 start=1794723257 end=1794723258 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:93840,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 alias=5_2 array=5 index=2 partition=main qos=normal cpu=0.002
          batch on vm "" Some("1794723257") Some("1794723258") Some(0)
    "#]],
    );
}

#[test]
fn slurm_22_05_without_accounting() {
    check(
        &slurm::parse_squeue(&fixture("slurm-22.05/squeue.txt"), DIVIDED),
        expect![[r#"
        test slurm:7 cancelled "cancelme" said=CANCELLED user=tester uid=1001 account=proj1 signal=15 submit=1794723252 eligible=1794723252 start=1794723260 end=1794723260 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 restarts=0 partition=main qos=normal
        test slurm:8 cancelled "never" said=CANCELLED user=tester uid=1001 account=proj1 submit=1794723252 eligible=1794726852 end=1794723260 requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 restarts=0 partition=main qos=normal reason="BeginTime"
        test slurm:10 finished "arr" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723254 start=1794723257 end=1794723258 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:93840,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 alias=5_1 array=5 index=1 restarts=0 partition=main qos=normal
        test slurm:5 finished "arr" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723254 start=1794723257 end=1794723258 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:93840,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 alias=5_2 array=5 index=2 restarts=0 partition=main qos=normal
        test slurm:6 finished "steps" said=COMPLETED user=tester uid=1001 account=proj1 exit=0 submit=1794723252 eligible=1794723252 start=1794723260 end=1794723261 nodes=vm requested=nodes:1,cpus:1,memory:104857600,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:104857600,billing:1 restarts=0 partition=main qos=normal
        test slurm:2 failed "evil|name�line2��;$(id)" said=FAILED user=tester uid=1001 account=proj1 exit=3 submit=1794723252 eligible=1794723252 start=1794723254 end=1794723254 nodes=vm requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:52428800,billing:1 restarts=0 partition=main qos=normal reason="NonZeroExitCode"
        test slurm:4 out_of_memory "oom" said=OUT_OF_MEMORY user=tester uid=1001 account=proj1 submit=1794723252 eligible=1794723252 start=1794723254 end=1794723254 nodes=vm requested=nodes:1,cpus:1,memory:41943040,seconds:300,billing:1 allocated=nodes:1,cpus:1,memory:41943040,billing:1 restarts=0 partition=main qos=normal reason="OutOfMemory"
        test slurm:1 pending "requeue" said=PENDING user=tester uid=1001 account=proj1 submit=1794723254 eligible=1794723375 requested=nodes:1,cpus:1,memory:52428800,seconds:300,billing:1 restarts=1 partition=main qos=normal reason="BeginTime"
        test slurm:3 pending "held" said=PENDING user=tester uid=1001 account=proj1 submit=1794723252 requested=nodes:1,cpus:1,memory:52428800,billing:1 alias=3_[5-9%2] array=3 restarts=0 partition=main qos=normal reason="JobHeldUser"
        test slurm:9 running "wait" said=RUNNING user=tester uid=1001 account=proj1 submit=1794723252 eligible=1794723252 start=1794723263 nodes=vm requested=nodes:1,cpus:2,memory:52428800,seconds:300,billing:2 allocated=nodes:1,cpus:2,memory:52428800,billing:2 restarts=0 partition=main qos=normal
    "#]],
    );
}

#[test]
fn slurm_23_11_with_gpus_and_a_second_run() {
    check(
        &slurm::parse_sacct(&fixture("slurm-23.11/sacct-new.txt"), DIVIDED),
        expect![[r#"
        beta slurm:900 failed "train" said=NODE_FAIL user=ada uid=1000 account=chem exit=1 submit=1700000000 eligible=1700000000 start=1700000100 end=1700000400 nodes=gpu08 requested=nodes:1,cpus:24,memory:503316480000,gpus:4,seconds:14400,billing:96,gres/gpu:a100:4,license/x:1 allocated=nodes:1,cpus:24,memory:503316480000,gpus:4,billing:96,energy:1234567,gres/gpu:a100:4 restarts=0 partition=gpu qos=high
        beta slurm:900 running "train" said=RUNNING user=ada uid=1000 account=chem submit=1700000410 eligible=1700000530 start=1700000600 nodes=gpu09 requested=nodes:1,cpus:24,memory:503316480000,gpus:4,seconds:14400,billing:96,gres/gpu:a100:4,license/x:1 allocated=nodes:1,cpus:24,memory:503316480000,gpus:4,billing:96,energy:1234567,gres/gpu:a100:4 restarts=1 partition=gpu qos=high
          batch on gpu09 "" Some("1700000600") None None
        beta slurm:902 cancelled "het" said=PREEMPTED user=ada uid=1000 account=chem submit=1700000410 eligible=1700000530 start=1700000600 end=1700000700 nodes=cpu1 requested=nodes:1,cpus:1,memory:1073741824,seconds:14400 allocated=nodes:1,cpus:1,memory:1073741824 alias=901+1 het=901 offset=1 restarts=0 partition=cpu qos=high
    "#]],
    );
}

#[test]
fn slurm_24_05_with_unknown_words() {
    check(
        &slurm::parse_sacct(&fixture("slurm-24.05/sacct-newest.txt"), DIVIDED),
        expect![[r#"
        gamma slurm:77 out_of_memory "big" said=OUT_OF_MEMORY user=ada uid=1000 account=chem submit=1717200000 eligible=1717200000 start=1717200010 end=1717200070 nodes=rack1n1+rack2n1+login requested=nodes:3,cpus:4,memory:4294967296,seconds:3600,billing:4,gres/shard:2 allocated=nodes:3,cpus:4,memory:4294967296,billing:4,gres/shard:2 restarts=2 partition=gpu,cpu qos=high cpu=59.999 peak=4294967296
          batch on login "" Some("1717200010") Some("1717200070") None
        gamma slurm:78 running "odd" said=SOMETHING_NEW user=ada uid=1000 account=chem submit=1717200000 eligible=1717200000 start=1717200010 nodes=login requested=nodes:1,cpus:4,seconds:3600 allocated=cpus:4 restarts=0 partition=cpu qos=high
        gamma slurm:79 timeout "late" said=DEADLINE user=ada uid=1000 account=chem submit=1717200000 eligible=1717200000 end=1717209999 requested=nodes:1,cpus:4,memory:16777216,seconds:3600 restarts=0 partition=cpu qos=high reason="DeadLine"
    "#]],
    );
}

#[test]
fn oar_2_5_as_it_answered() {
    check(
        &oar::parse(&fixture("oar-2.5/oarstat-ended.json")).recorded,
        expect![[r#"
        - oar:4 cancelled "del" said=Error user=oartest account=default submit=1794722204 start=1794722210 end=1794722215 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 partition=default reason="User oartest requested to frag the job 4"
        - oar:3 timeout "short" said=Error user=oartest account=default submit=1794722204 start=1794722210 end=1794722218 nodes=localhost requested=seconds:3,resources:-l "{type = 'default'}/core=1,walltime=0:0:3" allocated=nodes:1,seconds:3,resources:1 partition=default reason="[sarko] Job [3] from 1794722210 with 3; current time=1794722216 (Elapsed)"
        - oar:2 finished "ev\"il\\ name" said=Terminated user=oartest account=default exit=0 submit=1794722203 start=1794722204 end=1794722207 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 partition=default
        - oar:7 finished "arr" said=Terminated user=oartest account=default exit=0 submit=1794722205 start=1794722222 end=1794722225 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 array=5 index=3 partition=default
        - oar:1 failed "demo" said=Terminated user=oartest account=p1 exit=3 submit=1794722203 start=1794722204 end=1794722208 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 partition=default
        - oar:6 finished "arr" said=Terminated user=oartest account=default exit=0 submit=1794722205 start=1794722220 end=1794722222 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 array=5 index=2 partition=default
        - oar:8 pending "late" said=Waiting user=oartest account=default submit=1794722205 requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" partition=default reason="R=1,W=0:5:0,J=R,N=late"
        - oar:5 finished "arr" said=Terminated user=oartest account=default exit=0 submit=1794722205 start=1794722217 end=1794722220 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 array=5 index=1 partition=default
    "#]],
    );
    check(
        &oar::parse(&fixture("oar-2.5/oarstat-live.json")).recorded,
        expect![[r#"
        - oar:5 pending "arr" said=Waiting user=oartest account=default submit=1794722205 requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" array=5 index=1 partition=default reason="R=1,W=0:5:0,J=B,N=arr (Karma=0.000,quota_ok)"
        - oar:6 pending "arr" said=Waiting user=oartest account=default submit=1794722205 requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" array=5 index=2 partition=default reason="R=1,W=0:5:0,J=B,N=arr (Karma=0.000,quota_ok)"
        - oar:3 running "short" said=Running user=oartest account=default submit=1794722204 start=1794722210 nodes=localhost requested=seconds:3,resources:-l "{type = 'default'}/core=1,walltime=0:0:3" allocated=nodes:1,seconds:3,resources:1 partition=default
        - oar:7 pending "arr" said=Waiting user=oartest account=default submit=1794722205 requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" array=5 index=3 partition=default reason="R=1,W=0:5:0,J=B,N=arr (Karma=0.000,quota_ok)"
        - oar:4 running "del" said=Running user=oartest account=default submit=1794722204 start=1794722210 nodes=localhost requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" allocated=nodes:1,seconds:300,resources:1 partition=default
        - oar:8 pending "late" said=Waiting user=oartest account=default submit=1794722205 requested=seconds:300,resources:-l "{type = 'default'}/core=1,walltime=0:5:0" partition=default reason="R=1,W=0:5:0,J=R,N=late"
    "#]],
    );
    check(&oar::parse(b"").recorded, expect![[""]]);
}

#[test]
fn openpbs_22_with_json_that_is_none() {
    check(
        &pbs::parse(&fixture("openpbs-22/qstat-full.json")).recorded,
        expect![[r#"
        pbs01 pbs:12.pbs01 finished "relax" said=F user=ada account=chem exit=0 submit=1794721200 eligible=1794721200 start=1794721260 end=1794721860 nodes=node1+node2 requested=nodes:2,cpus:4,memory:4294967296,gpus:2,seconds:3600,mpiprocs:4,place:scatter,select:2:ncpus=2:mem=2gb:ngpus=1 allocated=nodes:2,cpus:4,memory:4294967296,gpus:2,seconds:3600 alias=12 restarts=0 partition=workq reason="Job run at Sun Nov 15 at 05:41 on (node1:ncpus=2)+(node2:ncpus=2) and finished" cpu=2390 peak=1073741824
        pbs01 pbs:13.pbs01 cancelled "1e5" said=F user=bob signal=9 submit=1794721200 start=1794721260 end=1794721265 nodes=node1 requested=nodes:1,cpus:1,seconds:5 allocated=nodes:1,cpus:1,seconds:5 alias=13 restarts=1 partition=workq reason="Job run at Sun Nov 15 at 05:41 on (node1:ncpus=1) and terminated" cpu=1
        pbs01 pbs:14.pbs01 timeout "slow" said=F user=bob submit=1794721200 start=1794721260 end=1794721560 nodes=node1 requested=nodes:1,cpus:1,seconds:300 allocated=nodes:1,cpus:1,seconds:300 alias=14 restarts=0 partition=workq
        pbs01 pbs:15[].pbs01 running "sweep" said=B user=ada submit=1794721200 requested=nodes:1,cpus:1 alias=15[] array=15 partition=workq
        pbs01 pbs:15[2].pbs01 running "sweep" said=R user=ada submit=1794721200 start=1794721320 nodes=node2 requested=nodes:1,cpus:1,memory:524288000 allocated=nodes:1,cpus:1,memory:524288000 alias=15[2] array=15 index=2 restarts=0 partition=workq
        pbs01 pbs:16.pbs01 pending "STDIN" said=Q user=ada submit=1794721200 requested=nodes:1,cpus:64 alias=16 partition=workq reason="Not Running: Insufficient amount of resource: ncpus"
    "#]],
    );
}

#[test]
fn lsf_10_1_with_times_without_a_year() {
    check(
        &lsf::parse(&fixture("lsf-10.1/bjobs.json"), 1_794_722_500).recorded,
        expect![[r#"
        - lsf:101 finished "relax" said=DONE user=ada account=chem exit=0 submit=1794721200 start=1794721260 end=1794721860 nodes=node1+node2 requested=cpus:6,memory:4294967296,seconds:3600,resreq:select[type == local] order[r15s:pg] span[hosts=2] allocated=nodes:2,cpus:6 partition=normal cpu=2390.5 peak=1610612736
        - lsf:102[3] timeout "sweep[3]" said=EXIT user=bob signal=12 submit=1794721210 start=1794721272 end=1794721333 nodes=node1 requested=cpus:1,seconds:60 allocated=nodes:1,cpus:1 array=102 index=3 partition=normal reason="TERM_RUNLIMIT: job killed after reaching LSF run time limit" cpu=60.1
        - lsf:103 failed "big" said=EXIT user=bob exit=3 submit=1794721200 start=1794721260 end=1794721320 nodes=node1 allocated=nodes:1 partition=normal
        - lsf:104 running "train" said=RUN user=ada submit=1794721200 start=1794721800 nodes=gpu1 allocated=nodes:1,cpus:8 partition=gpu cpu=4
        - lsf:105 pending "next" said=PEND user=ada submit=1794722100 partition=gpu reason="New job is waiting for scheduling;"
        - lsf:106 cancelled "unwanted" said=EXIT user=ada submit=1767225300 end=1767225360 reason="TERM_OWNER: job killed by owner"
    "#]],
    );
}

/// A scheduler whose commands are these scripts.
fn saying(scripts: &[(&str, &str)]) -> (tempfile::TempDir, Programs) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in scripts {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let programs = Programs::only(folder.path(), std::time::Duration::from_secs(60), 1 << 20);
    (folder, programs)
}

/// Prints a table with the delimiter that it was asked to use.
const SACCT: &str = r#"
case "$*" in *Restarts*) echo 'sacct: error: Invalid field requested: "Restarts"' >&2; exit 1;; esac
for argument; do case "$argument" in --delimiter=*) d=${argument#--delimiter=};; esac; done
echo "JobIDRaw${d}JobID${d}State${d}Submit${d}Start${d}Reason${d}JobName"
echo "1${d}1${d}RUNNING${d}100${d}200${d}Priority${d}one"
echo "2${d}2${d}PENDING${d}100${d}Unknown${d}None${d}two""#;
const SQUEUE: &str = r#"
for argument; do case "$argument" in --Format=*) f=${argument#--Format=Cluster:32};; esac; done
d=${f%%,*}
case "$*" in *--states=PENDING*) ;; *--states=all*) echo "c${d}9${d}9${d}0${d}root${d}a${d}p${d}q${d}RUNNING${d}0${d}100${d}100${d}200${d}300${d}5:00${d}None${d}1${d}n1${d}cpu=1${d}50M${d}1${d}0${d}OK${d}nine${d}";; *) exit 1;; esac
echo "c${d}2${d}2${d}0${d}root${d}a${d}p${d}q${d}PENDING${d}0${d}100${d}100${d}N/A${d}N/A${d}5:00${d}Resources${d}1${d}${d}cpu=1${d}50M${d}1${d}0${d}OK${d}two${d}"
echo "c${d}3${d}3_[1-4]${d}0${d}root${d}a${d}p${d}q${d}PENDING${d}0${d}100${d}N/A${d}N/A${d}N/A${d}5:00${d}JobHeldUser${d}1${d}${d}cpu=1${d}50M${d}1${d}0${d}OK${d}held${d}""#;

const NOW: Window = Window { since_s: 0, until_s: 1000, now_s: 1000 };

#[test]
fn slurm_is_queried_without_unknown_fields_and_for_pending_jobs() {
    let (_folder, mut programs) = saying(&[("sacct", SACCT), ("squeue", SQUEUE)]);
    check(
        &slurm::Slurm::new(None).ask(&mut programs, NOW).unwrap(),
        expect![[r#"
        - slurm:1 running "one" said=RUNNING submit=100 start=200
        c slurm:2 pending "two" said=PENDING user=root uid=0 account=a submit=100 eligible=100 requested=nodes:1,cpus:1,memory:52428800,seconds:300 restarts=0 partition=p qos=q reason="Resources"
        c slurm:3 pending "held" said=PENDING user=root uid=0 account=a submit=100 requested=nodes:1,cpus:1,memory:52428800,seconds:300 alias=3_[1-4] array=3 restarts=0 partition=p qos=q reason="JobHeldUser"
    "#]],
    );
    check(
        &slurm::Slurm::new(Some("n1".into())).ask(&mut programs, NOW).unwrap(),
        expect![[r#"
        - slurm:1 running "one" said=RUNNING submit=100 start=200
        - slurm:2 pending "two" said=PENDING submit=100
    "#]],
    );
}

/// The long format as in IBM's "Host status" of LSF 10.1; `closed_Excl` as in its reference of `bhosts` and `bsub -x`.
const BHOSTS: &str = r#"
case "$*" in "-l n1 n2") ;; *) echo "$*: No such host" >&2; exit 255;; esac
for host in n1 n2; do
echo "HOST  $host"
echo "STATUS           CPUF  JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV DISPATCH_WINDOW"
case $host in n1) s=closed_Excl;; *) s=ok;; esac
echo "$s      23.10     -     55      2      2      0      0      0      -"
echo
echo " CURRENT LOAD USED FOR SCHEDULING:"
echo "              r15s   r1m  r15m    ut    pg    io   ls    it   tmp   swp   mem   slots"
echo " Total         1.0  -0.0  -0.0    4%   9.4   148    2     3 4231M  698M  233M       8"
done"#;

#[test]
fn lsf_pauses_after_bhosts_failed() {
    let job = r#"{"JOBID":"1","JOBINDEX":"0","STAT":"RUN","USER":"ada","EXEC_HOST":"n1"}"#;
    let bjobs = format!("echo '{{\"RECORDS\":[{job}]}}'");
    let (folder, mut programs) = saying(&[("bjobs", &bjobs), ("bhosts", "echo asked >> $0.asked; exit 1")]);
    let asked = || std::fs::read_to_string(folder.path().join("bhosts.asked")).unwrap().lines().count();
    let mut lsf = lsf::Lsf::new(None);
    for round in 0..lsf::PAUSE_ROUNDS {
        assert_eq!(lsf.ask(&mut programs, NOW).unwrap().len(), 1, "its jobs are known all the same");
        assert_eq!(asked(), 1, "round {round}");
    }
    lsf.ask(&mut programs, NOW).unwrap();
    assert_eq!(asked(), 2);
}

#[test]
fn lsf_hosts_in_exclusive_mode_are_those_of_the_one_job_on_them() {
    let job = |id: u32, state: &str, hosts: &str| {
        format!(r#"{{"JOBID":"{id}","JOBINDEX":"0","STAT":"{state}","USER":"ada","EXEC_HOST":"{hosts}"}}"#)
    };
    let jobs = [
        job(1, "RUN", "8*n1:8*n3"),
        job(2, "RUN", "n2"),
        job(3, "RUN", "n3"),
        job(4, "DONE", "n1"),
        job(5, "PEND", "-"),
    ];
    let bjobs = format!("echo '{{\"RECORDS\":[{}]}}'", jobs.join(","));
    let exclusive = |recorded: Vec<Recorded>| -> Vec<Option<bool>> {
        recorded.iter().map(|job| job.scheduling.exclusive).collect()
    };
    let (_folder, mut programs) = saying(&[("bjobs", &bjobs), ("bhosts", BHOSTS)]);
    let mut lsf = lsf::Lsf::new(None);
    let found = [Some(true), None, None, None, None];
    assert_eq!(exclusive(lsf.ask(&mut programs, NOW).unwrap()), found);
    let (_folder, mut programs) =
        saying(&[("bjobs", &bjobs), ("bhosts", "echo asked again > $0.again; exit 1")]);
    assert_eq!(exclusive(lsf.ask(&mut programs, NOW).unwrap()), found, "each is asked about once");
    assert_eq!(exclusive(lsf.ask_about(&mut programs, &["1".to_owned()]).unwrap()), found);
    assert!(!_folder.path().join("bhosts.again").exists());
    let mut lsf = lsf::Lsf::new(None);
    let away = BHOSTS.replace("closed_Excl", "unreach");
    let (_folder, mut programs) = saying(&[("bjobs", &bjobs), ("bhosts", &away)]);
    assert_eq!(exclusive(lsf.ask(&mut programs, NOW).unwrap()), [None; 5], "not known while it is away");
    let here = BHOSTS.replace("-l n1 n2", "-l n1");
    let (_folder, mut programs) = saying(&[("bjobs", &bjobs), ("bhosts", &here)]);
    assert_eq!(exclusive(lsf.ask(&mut programs, NOW).unwrap()), found, "asked again");
    let (_folder, mut programs) = saying(&[("bjobs", &bjobs)]);
    assert_eq!(exclusive(lsf::Lsf::new(None).ask(&mut programs, NOW).unwrap()), [None; 5], "without bhosts");
    assert!(lsf::host_states(b"HOST n1\nSTATUS CPUF\n").is_empty());
    assert!(lsf::host_states(b"STATUS CPUF\nok\nHOST\nclosed_Excl").is_empty());
}

#[test]
fn whole_nodes_are_known_where_a_scheduler_reports_them() {
    let queued = |sharing: &str| {
        let before = "c|9|9|0|root|a|p|q|RUNNING|0|100|100|200|300|5:00|None|1|n1|cpu=1|50M|1|0";
        slurm::parse_squeue(format!("{before}|{sharing}   |nine|").as_bytes(), "|")[0].scheduling.exclusive
    };
    assert_eq!(["NO", "OK", "YES", "USER", ""].map(queued), [Some(true), None, None, None, None]);
    let placed = |place: &str| {
        let answer =
            format!(r#"{{"Jobs":{{"1.pbs":{{"job_state":"R","Resource_List":{{"place":"{place}"}}}}}}}}"#);
        pbs::parse(answer.as_bytes()).recorded[0].scheduling.exclusive
    };
    assert_eq!(["excl", "scatter:exclhost", "pack:excl:group=rack"].map(placed), [Some(true); 3]);
    assert_eq!(
        ["scatter", "free:shared", ""].map(placed),
        [None; 3],
        "its vnodes may be exclusive themselves"
    );
    let wanted = |request: &str, types: &str| {
        let answer =
            format!(r#"{{"7":{{"state":"Running","types":[{types}],"wanted_resources":"{request}"}}}}"#);
        oar::parse(answer.as_bytes()).recorded[0].scheduling.exclusive
    };
    let group = "{type = 'default'}/";
    let whole = format!(r#"-l \"{group}host=2,walltime=1:0:0\" "#);
    assert_eq!(wanted(&whole, ""), Some(true));
    assert_eq!(wanted(&whole, r#""timesharing=*,*""#), None);
    assert_eq!(
        wanted(&format!(r#"-l \"{group}cluster=1/network_address=2,walltime=1:0:0\" "#), ""),
        Some(true)
    );
    assert_eq!(wanted(&format!(r#"-l \"{group}host=1/core=2,walltime=1:0:0\" "#), ""), None);
    assert_eq!(wanted(&format!(r#"-l \"{group}host=1+{group}core=2,walltime=1:0:0\" "#), ""), None);
    assert_eq!(wanted(&format!("{whole}-l \\\"{group}core=2,walltime=1:0:0\\\" "), ""), None, "one of two");
    assert_eq!(wanted("", ""), None);
}

#[test]
fn slurm_without_accounting_is_asked_for_its_queue() {
    let disabled = "echo 'Slurm accounting storage is disabled' >&2; exit 1";
    let (_folder, mut programs) = saying(&[("sacct", disabled), ("squeue", SQUEUE)]);
    let mut slurm = slurm::Slurm::new(None);
    check(
        &slurm.ask(&mut programs, NOW).unwrap(),
        expect![[r#"
        c slurm:9 running "nine" said=RUNNING user=root uid=0 account=a submit=100 eligible=100 start=200 nodes=n1 requested=nodes:1,cpus:1,memory:52428800,seconds:300 allocated=cpus:1 restarts=0 partition=p qos=q
        c slurm:2 pending "two" said=PENDING user=root uid=0 account=a submit=100 eligible=100 requested=nodes:1,cpus:1,memory:52428800,seconds:300 restarts=0 partition=p qos=q reason="Resources"
        c slurm:3 pending "held" said=PENDING user=root uid=0 account=a submit=100 requested=nodes:1,cpus:1,memory:52428800,seconds:300 alias=3_[1-4] array=3 restarts=0 partition=p qos=q reason="JobHeldUser"
    "#]],
    );
    let about = slurm.ask_about(&mut programs, &["9".into(), "10".into(), "1;id".into()]).unwrap();
    assert_eq!(about.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), ["9"]);
    let (_folder, mut down) = saying(&[("sacct", "echo no database >&2; exit 1"), ("squeue", SQUEUE)]);
    assert!(slurm.ask(&mut down, NOW).is_err(), "a database that is down is not one that is not there");
}

#[test]
fn a_job_whose_step_is_in_the_accounts_first_is_not_another_job() {
    let answer = "JobIDRaw|JobID|State|JobName|User|UID|Submit|Start|ReqCPUS|ReqNodes\n\
                  7|7|PENDING|allocation|ada|0|1794746558|Unknown|0|0\n\
                  8|8|PENDING|allocation|root|0|1794746558|Unknown|1|1\n";
    let found = slurm::parse_sacct(answer.as_bytes(), "|");
    assert_eq!(found.iter().map(|run| run.uid).collect::<Vec<_>>(), [None, Some(0)]);
    assert_eq!((found[0].requested.cpus, found[0].requested.nodes), (None, None));
    // So it is joined with what its node saw, whichever comes first, and not left waiting for ever.
    let mut measured = measured(1_794_746_560, None);
    (measured.key.id, measured.uid) = ("7".to_owned(), Some(1000));
    let first = join(&[], &found[..1], 1);
    assert_eq!(adopt(&measured, &first.write).remove, [first.write[0].key.clone()]);
    let second = join(std::slice::from_ref(&measured), &found[..1], 1);
    assert_eq!(second.write.iter().map(|record| &record.key).collect::<Vec<_>>(), [&measured.key]);
}

#[test]
fn a_name_cannot_become_another_job_or_field() {
    let header = "JobIDRaw<?>JobID<?>State<?>JobName\n";
    let forged = "1<?>1<?>RUNNING<?>x\n2|2|FAILED|y\x1f\n\x1b[31m\n\n";
    let answer = format!("{header}{forged}3<?>3<?>RUNNING<?>z\n");
    check(
        &slurm::parse_sacct(answer.as_bytes(), "<?>"),
        expect![[r#"
            - slurm:1 running "x�2|2|FAILED|y���[31m" said=RUNNING
            - slurm:3 running "z" said=RUNNING
        "#]],
    );
    let huge = [b"1<?>1<?>RUNNING<?>".as_slice(), &[0xff; 1 << 20], b"\n3<?>3<?>RUNNING<?>z\n"].concat();
    let found = slurm::parse_sacct(&[header.as_bytes(), &huge].concat(), "<?>");
    assert!(found[0].name.len() < 16 << 10);
    assert_eq!((found.len(), found[1].name.as_str()), (2, "z"));
}

proptest! {
    #[test]
    fn any_bytes_are_some_jobs_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz::parsers().for_each(|parse| drop(parse(&bytes)));
    }

    #[test]
    fn any_damage_to_an_answer_is_survived(at in 0_usize..12_000, byte in any::<u8>(), cut in 0_usize..12_000) {
        for mut bytes in fixtures() {
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length - cut % length);
            fuzz::parsers().for_each(|parse| drop(parse(&bytes)));
        }
    }
}

const BEGIN_S: i64 = 1_794_722_000;
const ASKED_NS: i64 = 7;

fn run(state: State, submit_s: i64, start_s: Option<i64>, end_s: Option<i64>) -> Recorded {
    let mut run = Recorded::new("slurm", "12".into());
    run.cluster = Some("alpha".into());
    (run.state, run.start_ns, run.end_ns) = (state, start_s.map(at), end_s.map(at));
    run.manager_state = Some(state.name().to_uppercase());
    run.scheduling.submit_ns = Some(at(submit_s));
    run.nodes = start_s.map(|_| "node1".to_owned()).into_iter().collect();
    run
}

fn measured(start_s: i64, end_s: Option<i64>) -> Record {
    let state = if end_s.is_some() { State::Finished } else { State::Running };
    let mut record = adopted_shape(BEGIN_S + start_s, state);
    (record.start_ns, record.end_ns) = (Some(at(start_s)), end_s.map(at));
    record.totals.set(CPU, 42, QualityKind::Measured, "cgroup");
    record
}

fn adopted_shape(incarnation: i64, state: State) -> Record {
    let key = JobKey { cluster: None, manager: "slurm".into(), id: "12".into(), incarnation };
    Record { user: Some("ada".into()), uid: Some(1000), ..Record::new(key, "found", state) }
}

/// Keys relative to the begin, with states; what is removed behind.
fn outcome(joined: &Joined) -> String {
    let key = |key: &JobKey| key.incarnation - BEGIN_S;
    let written = joined.write.iter().map(|record| format!("{} {}", key(&record.key), record.state.name()));
    let removed = joined.remove.iter().map(|gone| format!("-{}", key(gone)));
    written.chain(removed).collect::<Vec<_>>().join(", ")
}

/// What the store holds after all of these were reported, one after the other.
fn after(known: &mut Vec<Record>, runs: &[Recorded]) -> String {
    let joined = join(known, runs, ASKED_NS);
    known.retain(|record| !joined.remove.contains(&record.key));
    for record in &joined.write {
        known.retain(|before| before.key != record.key);
        known.push(record.clone());
    }
    outcome(&joined)
}

#[test]
fn a_job_that_waited_leaves_no_ghost_when_it_runs_and_ends() {
    let mut known = Vec::new();
    let waiting = run(State::Pending, 0, None, None);
    assert_eq!(after(&mut known, std::slice::from_ref(&waiting)), "0 pending");
    assert_eq!(after(&mut known, &[waiting]), "", "what is known already is not written again");
    assert_eq!(after(&mut known, &[run(State::Running, 0, Some(30), None)]), "30 running, -0");
    assert_eq!(after(&mut known, &[run(State::Finished, 0, Some(30), Some(90))]), "30 finished");
    assert_eq!(known.len(), 1);
    let mut known = Vec::new();
    after(&mut known, &[run(State::Pending, 0, None, None)]);
    assert_eq!(after(&mut known, &[run(State::Cancelled, 0, None, Some(20))]), "0 cancelled");
}

#[test]
fn measured_and_recorded_meet_whichever_comes_first() {
    let mut known = vec![measured(32, None)];
    assert_eq!(after(&mut known, &[run(State::Running, 0, Some(30), None)]), "32 running");
    assert_eq!(known[0].start_ns, Some(at(30)), "the scheduler's start");
    assert_eq!(known[0].key.incarnation, BEGIN_S + 32, "and the node's key");

    let mut known = Vec::new();
    after(&mut known, &[run(State::Running, 0, Some(30), None)]);
    known.push(measured(31, None));
    assert_eq!(after(&mut known, &[run(State::Running, 0, Some(30), None)]), "31 running, -30");
}

#[test]
fn a_job_found_on_the_node_takes_over_earlier_reports() {
    let mut known = Vec::new();
    let mut reported = run(State::Running, 0, Some(30), None);
    reported.account = Some("chem".into());
    reported.requested.cpus = Some(4);
    after(&mut known, &[reported]);
    let adopted = adopt(&measured(31, None), &known);
    assert_eq!(outcome(&adopted), "31 running, -30");
    let record = &adopted.write[0];
    assert_eq!((record.account.as_deref(), record.requested.cpus), (Some("chem"), Some(4)));
    assert_eq!(record.scheduling.asked_ns, Some(ASKED_NS));
    assert_eq!(outcome(&adopt(&measured(500, None), &known)), "500 running", "another run is another job");
    known[0].manager_state = Some("RUNNING".into());
    assert_eq!(adopt(&measured(31, None), &known).write[0].manager_state.as_deref(), Some("RUNNING"));
    let ended = &adopt(&measured(31, Some(40)), &known).write[0];
    assert_eq!((ended.state, &ended.manager_state), (State::Finished, &None), "that is no word on its end");
}

#[test]
fn an_answer_that_ends_in_the_middle_is_not_whole() {
    type Parser = fn(&[u8]) -> Answer;
    let parsers: [(&str, Parser); 3] = [
        ("oar-2.5/oarstat-live.json", oar::parse),
        ("openpbs-22/qstat-full.json", pbs::parse),
        ("lsf-10.1/bjobs.json", |bytes| lsf::parse(bytes, 1_794_722_500)),
    ];
    for (path, parse) in parsers {
        let text = fixture(path);
        let text = text.trim_ascii_end();
        let all = parse(text).whole("x").unwrap();
        for length in 1..text.len() {
            let Err(Trouble::CutShort { read, .. }) = parse(&text[..length]).whole("x") else {
                panic!("{path}: {length} bytes are taken for all of it");
            };
            assert!(read.len() <= all.len());
        }
        assert!(parse(b"").whole("x").unwrap().is_empty(), "no job at all is no text at all");
    }
}

fn at(second: i64) -> i64 {
    (BEGIN_S + second) * SECOND_NS
}

#[test]
fn a_job_whose_end_is_known_before_it_is_found_has_ended() {
    let mut known = Vec::new();
    let mut reported = run(State::Failed, 0, Some(30), Some(32));
    (reported.exit_code, reported.cluster) = (Some(7), Some("tux".into()));
    after(&mut known, &[reported]);
    let adopted = adopt(&measured(31, None), &known);
    assert_eq!(outcome(&adopted), "31 failed, -30");
    let record = &adopted.write[0];
    assert_eq!((record.exit_code, record.end_ns), (Some(7), Some(at(32))));
    assert_eq!(record.cluster(), Some("tux"));
}

#[test]
fn whole_seconds_do_not_replace_what_was_measured() {
    let fine = |second: i64, more_ms: i64| Some(at(second) + more_ms * 1_000_000);
    let mut job = measured(30, None);
    (job.start_ns, job.end_ns, job.state) = (fine(30, 900), fine(32, 100), State::Finished);
    let mut reported = run(State::Finished, 0, Some(30), Some(32));
    reported.cluster = Some("tux".into());
    let mut known = vec![job];
    after(&mut known, std::slice::from_ref(&reported));
    assert_eq!((known[0].start_ns, known[0].end_ns), (fine(30, 900), fine(32, 100)));
    assert_eq!((known[0].key.cluster.as_deref(), known[0].cluster()), (None, Some("tux")));
    // Farther away it is another time, and the scheduler's holds.
    (reported.start_ns, reported.end_ns) = (Some(at(29)), Some(at(40)));
    after(&mut known, &[reported]);
    assert_eq!((known[0].start_ns, known[0].end_ns), (Some(at(29)), Some(at(40))));
}

#[test]
fn a_job_within_one_second_does_not_end_before_it_began() {
    let begin_ns = Some(at(30) + 220_000_000);
    let mut job = measured(30, None);
    job.start_ns = begin_ns;
    let reported = run(State::Finished, 0, Some(30), Some(30));
    let mut known = vec![job.clone()];
    after(&mut known, std::slice::from_ref(&reported));
    assert_eq!((known[0].start_ns, known[0].end_ns), (begin_ns, begin_ns));
    let mut known = Vec::new();
    after(&mut known, &[reported]);
    let adopted = adopt(&job, &known);
    assert_eq!((adopted.write[0].start_ns, adopted.write[0].end_ns), (begin_ns, begin_ns));
}

#[test]
fn a_requeued_job_is_two() {
    let mut known = vec![measured(31, Some(40)), measured(62, None)];
    let runs = [run(State::Cancelled, 0, Some(30), Some(41)), run(State::Running, 42, Some(60), None)];
    assert_eq!(after(&mut known, &runs), "31 cancelled, 62 running");
    let mut known = vec![measured(31, Some(40))];
    after(&mut known, &runs[..1]);
    assert_eq!(after(&mut known, &runs[1..]), "60 running", "the first run is not taken for the second");
    assert_eq!(known.len(), 2);
}

#[test]
fn a_run_restarted_elsewhere_does_not_run_for_ever() {
    let mut known = Vec::new();
    after(&mut known, &[run(State::Running, 0, Some(30), None)]);
    assert_eq!(after(&mut known, &[run(State::Pending, 0, None, None)]), "0 pending, 30 lost");
    assert_eq!(after(&mut known, &[run(State::Running, 0, Some(500), None)]), "500 running, -0");
}

#[test]
fn the_scheduler_decides_how_it_ended_and_the_node_what_it_used() {
    let mut ended = measured(31, Some(90));
    ended.parts = vec![Part { node: "node1".into(), step: "0".into(), ..Part::default() }];
    ended.requested.memory_bytes = Some(1 << 30);
    let mut reported = run(State::Timeout, 0, Some(30), Some(92));
    reported.signal = Some(15);
    reported.requested.cpus = Some(4);
    reported.scheduling.cpu_ns = Some(5);
    reported.scheduling.alias = Some("10_2".into());
    let step = |step: &str| Part {
        node: "node[1-2]".into(),
        step: step.into(),
        name: Some("solve".into()),
        exit_code: Some(1),
        ..Part::default()
    };
    reported.parts = vec![step("0"), step("1")];
    let joined = join(&[ended], &[reported], ASKED_NS);
    let [record] = &joined.write[..] else { panic!("{joined:?}") };
    assert_eq!((record.state, record.signal, record.exit_code), (State::Timeout, Some(15), None));
    assert_eq!(record.end_ns, Some((BEGIN_S + 92) * SECOND_NS));
    assert_eq!(record.totals.get(CPU), Some(42));
    assert_eq!((record.scheduling.cpu_ns, record.shown_id()), (Some(5), "10_2"));
    assert_eq!((record.requested.cpus, record.requested.memory_bytes), (Some(4), Some(1 << 30)));
    let parts: Vec<_> = record.parts.iter().map(|part| (&*part.node, &*part.step, part.exit_code)).collect();
    assert_eq!(parts, [("node1", "0", Some(1)), ("node[1-2]", "1", Some(1))]);
}

#[test]
fn steps_without_a_line_of_their_own_are_counted() {
    let reported = |steps: i64| {
        let mut answer = "JobIDRaw|State|Start|End|NodeList|TotalCPU\n".to_owned();
        answer += &format!("12|RUNNING|{BEGIN_S}|Unknown|node[1-2]|\n");
        for step in 0..steps {
            let node = if step < 299 { "node1" } else { "node2" };
            let begin_s = BEGIN_S + step;
            answer += &format!("12.{step}|COMPLETED|{begin_s}|{}|{node}|00:00:01\n", begin_s + 1);
        }
        let [run] = &slurm::parse_sacct(answer.as_bytes(), "|")[..] else { panic!("{answer}") };
        assert_eq!(run.scheduling.cpu_ns, Some(steps * SECOND_NS), "whatever has a line");
        run.clone()
    };
    let others = |parts: &[Part]| -> Vec<(String, Option<u64>, Option<i64>)> {
        let end_s = |part: &Part| part.end_ns.map(|end_ns| end_ns / SECOND_NS - BEGIN_S);
        let folded = parts.iter().filter(|part| part.folded.is_some());
        folded.map(|part| (part.node.clone(), part.folded, end_s(part))).collect()
    };
    assert_eq!((reported(256).parts.len(), others(&reported(256).parts)), (256, Vec::new()));
    assert_eq!(others(&reported(257).parts), [("node1".to_owned(), Some(1), Some(257))]);
    assert_eq!(others(&reported(300).parts), [(String::new(), Some(44), Some(300))]);

    // Reported again they are not there twice.
    let mut known = Vec::new();
    for steps in [257, 290, 300, 300] {
        after(&mut known, &[reported(steps)]);
    }
    assert_eq!(others(&known[0].parts), [(String::new(), Some(44), Some(300))]);
    assert_eq!(known[0].parts.len(), 257);

    // A node that counted them says what they used.
    let mut ended = measured(0, None);
    let mut seen = Part::others("node1".to_owned(), false);
    seen.folded = Some(40);
    seen.totals.set(CPU, 5, QualityKind::Measured, "cgroup");
    ended.parts = vec![seen];
    let joined = join(&[ended], &[reported(300)], ASKED_NS);
    assert_eq!(others(&joined.write[0].parts), [("node1".to_owned(), Some(40), None)]);
}

#[test]
fn an_end_unknown_to_the_scheduler_stays() {
    let joined = join(&[measured(31, Some(90))], &[run(State::Running, 0, Some(30), None)], ASKED_NS);
    assert_eq!(outcome(&joined), "31 finished");
    assert_eq!(joined.write[0].end_ns, Some((BEGIN_S + 90) * SECOND_NS));
}

#[test]
fn a_running_job_is_not_pending_whatever_its_scheduler_says() {
    let mut known = vec![measured(31, None)];
    let waits = run(State::Pending, 29, None, None);
    assert_eq!(after(&mut known, std::slice::from_ref(&waits)), "31 running");
    assert_eq!(known[0].manager_state, None, "no stale state is shown");
    // Reported before it was seen.
    let mut known = Vec::new();
    assert_eq!(after(&mut known, std::slice::from_ref(&waits)), "29 pending");
    assert_eq!(outcome(&adopt(&measured(31, None), &known)), "31 running, -29");
    // A restarted job waits for its next run.
    let mut restarted = waits;
    restarted.scheduling.restarts = Some(1);
    assert_eq!(after(&mut vec![measured(31, None)], &[restarted]), "29 pending");
}

#[test]
fn unrelated_jobs_with_the_same_id_are_left_alone() {
    let mut elsewhere = measured(31, None);
    elsewhere.key.cluster = Some("beta".into());
    assert_eq!(
        outcome(&join(&[elsewhere], &[run(State::Running, 0, Some(30), None)], ASKED_NS)),
        "30 running"
    );
    let long_ago = measured(-86_400, Some(-80_000));
    assert_eq!(
        outcome(&join(&[long_ago], &[run(State::Running, 0, Some(30), None)], ASKED_NS)),
        "30 running"
    );
}

#[test]
fn the_job_of_another_user_is_not_claimed_by_its_number() {
    let reported = |uid: u32| Recorded { uid: Some(uid), ..run(State::Running, 0, Some(30), None) };
    let mut known = vec![measured(31, None)];
    assert_eq!(after(&mut known, &[reported(1001)]), "30 running");
    assert_eq!(known[0].scheduling.asked_ns, None, "the measured one has no report");
    let of_another: Vec<Record> = known.split_off(1);
    assert_eq!(outcome(&adopt(&measured(31, None), &of_another)), "31 running");
    // Two runs of one job are reported, and one of them is this user's.
    let mut known = vec![measured(31, None)];
    assert_eq!(after(&mut known, &[reported(1001), reported(1000)]), "30 running, 31 running");

    let mut known = vec![measured(31, None)];
    assert_eq!(after(&mut known, &[reported(1000)]), "31 running");
    // Its manager's own process was there before its user's.
    let mut known = vec![Record { uid: Some(0), ..measured(31, None) }];
    assert_eq!(after(&mut known, &[reported(1000)]), "31 running");
    let mut known = vec![measured(31, None)];
    assert_eq!(after(&mut known, &[reported(0)]), "30 running", "a user is not root");
}

#[test]
fn an_element_that_the_node_knows_by_the_array_meets_its_own_run() {
    let mut element = measured(31, None);
    element.scheduling.array_index = Some(3);
    element.local = Some(met_core::job::Local::new("b", met_core::job::Origin::Found, "/"));
    let reported = |index: i64| {
        let mut reported = run(State::Running, 0, Some(30), None);
        reported.id = format!("12[{index}]");
        reported.scheduling.array_id = Some("12".into());
        reported.scheduling.array_index = Some(index);
        reported
    };
    assert_eq!(outcome(&join(std::slice::from_ref(&element), &[reported(3)], ASKED_NS)), "31 running");
    assert_eq!(outcome(&join(&[element], &[reported(4)], ASKED_NS)), "30 running");
}

#[test]
fn a_job_that_its_scheduler_forgot_is_lost_unless_it_is_measured_here() {
    let mut known = Vec::new();
    after(&mut known, &[run(State::Running, 0, Some(30), None)]);
    assert_eq!(forgotten(&known).iter().map(|record| record.state).collect::<Vec<_>>(), [State::Lost]);
    assert_eq!(forgotten(&[measured(31, None)]), []);
}

#[test]
fn a_guess_of_the_scheduler_does_not_undo_an_end_that_was_seen() {
    let lost = run(State::Lost, 0, Some(30), None);
    let joined = join(&[measured(31, Some(40))], std::slice::from_ref(&lost), ASKED_NS);
    assert_eq!(outcome(&joined), "31 finished");
    let mut known = Vec::new();
    after(&mut known, &[lost]);
    assert_eq!(outcome(&adopt(&measured(31, Some(40)), &known)), "31 finished, -30");
}

#[test]
fn an_answer_after_the_clock_was_set_back_is_the_later_one() {
    let joined = join(&[measured(31, None)], &[run(State::Running, 0, Some(30), None)], ASKED_NS);
    let joined = join(&joined.write, &[run(State::Suspended, 0, Some(30), None)], ASKED_NS - SECOND_NS);
    assert_eq!(outcome(&joined), "31 suspended");
    assert_eq!(joined.write[0].scheduling.asked_ns, Some(ASKED_NS));
}

proptest! {
    #[test]
    fn a_job_is_the_same_whether_its_node_or_its_scheduler_is_first(
        state in 0_usize..9, start in 0_i64..60, lasts in prop::option::of(0_i64..60),
        measured_end in prop::option::of(30_i64..90), steps in 0_usize..3, says_more: bool,
    ) {
        let mut reported = run(State::ALL[state], 0, Some(start), lasts.map(|lasts| start + lasts));
        reported.forget_plans();
        prop_assume!(reported.start_ns.is_some());
        if says_more {
            (reported.uid, reported.command, reported.account) = (Some(1000), vec!["sh".into()], Some("chem".into()));
            reported.scheduling.reason = Some("why".into());
        }
        reported.parts = (0..steps).map(|step| Part {
            node: "node[1-2]".into(),
            step: step.to_string(),
            name: Some("solve".into()),
            ..Part::default()
        }).collect();
        let mut job = Record { user: None, uid: None, ..measured(30, measured_end) };
        job.start_ns = job.start_ns.map(|start_ns| start_ns + 250_000_000);
        job.parts = vec![Part { node: "node1".into(), step: "0".into(), ..Part::default() }];
        job.parts[0].totals.set(CPU, 7, QualityKind::Measured, "cgroup");
        let joined = join(std::slice::from_ref(&job), std::slice::from_ref(&reported), ASKED_NS);
        prop_assume!(joined.write.iter().all(|record| record.key == job.key));
        let mut known = Vec::new();
        after(&mut known, &[reported]);
        let adopted = adopt(&job, &known);
        prop_assume!(!adopted.remove.is_empty());
        prop_assert_eq!(joined.write, adopted.write);
    }

    #[test]
    fn joining_is_settled_after_one_time(
        runs in prop::collection::vec((0_usize..9, 0_i64..400, prop::option::of(0_i64..400), prop::option::of(0_i64..400)), 0..4),
        starts in prop::collection::vec((0_i64..400, prop::option::of(0_i64..400)), 0..4),
    ) {
        let runs: Vec<Recorded> = runs.into_iter().map(|(state, submit, start, end)| {
            let mut run = run(State::ALL[state], submit, start, end);
            run.forget_plans();
            run
        }).collect();
        let mut known: Vec<Record> = starts.into_iter().map(|(start, end)| measured(start, end)).collect();
        let measured: Vec<JobKey> = known.iter().map(|record| record.key.clone()).collect();
        after(&mut known, &runs);
        for key in &measured {
            prop_assert!(known.iter().any(|record| record.key == *key), "what was measured is never removed");
        }
        let pending = known.iter().filter(|record| record.state == State::Pending).count();
        prop_assert!(pending <= runs.iter().filter(|run| run.state == State::Pending).count());
    }
}
