//! GPUs of jobs of other managers, on a machine whose NVIDIA library plays a script.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use met_core::job::GpuUse;

use super::super::service::Service;
use super::super::write_retries::tests::keeping_by;
use super::*;
use met_config::Config;

const SCRIPT: &str = "card 0 uuid=GPU-a name=Fake power=70000 util=0 memory=0 total=8000 temperature=40\n\
    card 1 uuid=GPU-b name=Fake power=70000 util=0 memory=0 total=8000 temperature=40\n";
const CGROUP: &str = "sys/fs/cgroup/slurm/job_31";

/// A machine with a Slurm job that has no process yet.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap() };
        // Cargo puts a dependency's library beside the test program.
        let program = std::env::current_exe().unwrap();
        std::fs::copy(program.parent().unwrap().join("libnvml_fake.so"), machine.library()).unwrap();
        machine.put("script", SCRIPT);
        machine.put(&format!("{CGROUP}/cgroup.procs"), "");
        machine.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        machine
    }

    fn library(&self) -> PathBuf {
        self.root.path().join("libnvidia-ml.so.1")
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A process is in the job from now on.
    fn enter(&self, pid: u32, uid: u32, command: &str, step: &str) {
        let name = command.split(' ').next().unwrap();
        let zeros = "0 ".repeat(17);
        self.put(&format!("proc/{pid}/stat"), &format!("{pid} ({name}) S 1 {zeros}{pid} 0"));
        self.put(
            &format!("proc/{pid}/status"),
            &format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
        );
        self.put(&format!("proc/{pid}/cmdline"), &format!("{}\0", command.replace(' ', "\0")));
        self.put(&format!("proc/{pid}/cgroup"), &format!("5:devices:/job_31\n0::/slurm/job_31/{step}\n"));
        let path = format!("{CGROUP}/cgroup.procs");
        let before = std::fs::read_to_string(self.root.path().join(&path)).unwrap();
        self.put(&path, &format!("{before}{pid}\n"));
    }

    /// A daemon that has found the job.
    fn service(&self) -> Service {
        let yaml = format!("sampling: {{interval: 20ms}}\ngpu: {{nvml: {}}}\n", self.library().display());
        let mut service = keeping_by(self.root.path(), Config::parse(&yaml, Path::new("met.yaml")).unwrap());
        let unified = Some(PathBuf::from("/").join(CGROUP));
        service.found(Found {
            job: 1,
            manager: "slurm".to_owned(),
            id: "31".to_owned(),
            captures: Captures::default(),
            cgroup: CgroupPaths { unified, ..CgroupPaths::default() },
            start_ns: 1_700_000_000_000_000_000,
            pids: Vec::new(),
        });
        service
    }
}

fn record(service: &Service) -> Record {
    service.registry.jobs.values().next().unwrap().record.clone()
}

/// Does what a daemon does all the time until the job holds a GPU.
fn held(service: &mut Service) -> GpuUse {
    let key = record(service).key;
    let begin = Instant::now();
    loop {
        service.ask_who_is_due();
        let gpus = service.sampling.live().remove(&key).map(|live| live.gpus).unwrap_or_default();
        if let [gpu] = &gpus[..]
            && gpu.held_ns > 0
        {
            return gpu.clone();
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{gpus:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_found_job_holds_its_gpus_as_soon_as_its_first_process_is_there() {
    let machine = Machine::new();
    let mut service = machine.service();
    machine.enter(41, 0, "sleep 100000000", "step_extern/user/task_special");
    service.identify(1);
    assert_eq!(record(&service).local.unwrap().main, None);
    machine.put("proc/51/environ", "SLURM_JOB_ID=31\0SLURM_JOB_GPUS=1\0CUDA_VISIBLE_DEVICES=0\0");
    machine.enter(51, 1000, "bash slurm_script", "step_batch/user/task_0");
    let gpu = held(&mut service);
    assert_eq!((gpu.index.as_str(), gpu.held_by.text()), ("1", "SLURM_JOB_GPUS"));
    assert!(gpu.idle_since_ns.is_some(), "no process has it open");
    let record = record(&service);
    assert_eq!(
        (record.command, record.uid),
        (vec!["bash".to_owned(), "slurm_script".to_owned()], Some(1000))
    );
    assert_eq!(record.allocated.cpus, None, "though its CPUs are not known");
    assert_eq!(record.local.unwrap().main.map(|main| main.pid), Some(51));
    service.close();
}

#[test]
fn a_first_process_that_has_ended_leaves_the_gpus_that_it_named() {
    let machine = Machine::new();
    machine.put("proc/51/environ", "SLURM_JOB_ID=31\0SLURM_JOB_GPUS=0\0");
    machine.enter(51, 1000, "prolog", "step_batch/user/task_0");
    let mut service = machine.service();
    service.identify(1);
    std::fs::remove_dir_all(machine.root.path().join("proc/51")).unwrap();
    assert_eq!(held(&mut service).uuid, "GPU-a");
    service.close();
}

#[test]
fn a_replaced_sampling_thread_gets_the_gpus_of_running_jobs() {
    let machine = Machine::new();
    for pid in [51, 52] {
        machine.put(&format!("proc/{pid}/environ"), "SLURM_JOB_ID=31\0SLURM_JOB_GPUS=0\0");
        machine.enter(pid, 1000, "bash slurm_script", "step_batch/user/task_0");
    }
    let mut service = machine.service();
    service.identify(1);
    std::fs::remove_dir_all(machine.root.path().join("proc/51")).unwrap();
    assert!(service.replace_sampling());
    assert_eq!(held(&mut service).held_by.text(), "SLURM_JOB_GPUS");
    assert_eq!(record(&service).local.unwrap().main.map(|main| main.pid), Some(52));
    service.close();
}

#[test]
fn where_no_environment_can_be_read_the_devices_of_its_cgroup_say_which_gpus_it_has() {
    let machine = Machine::new();
    machine.put("sys/fs/cgroup/devices/job_31/devices.list", "c 1:3 rwm\nc 195:1 rw\nc 195:255 rw\n");
    machine.enter(51, 1000, "bash slurm_script", "step_batch/user/task_0");
    let mut service = machine.service();
    service.identify(1);
    let gpu = held(&mut service);
    assert_eq!((gpu.uuid.as_str(), gpu.held_by.text()), ("GPU-b", "devices cgroup"));
    service.close();
}

#[test]
fn a_job_in_which_only_its_manager_is_for_long_is_asked_again() {
    let machine = Machine::new();
    let mut service = machine.service();
    machine.enter(41, 0, "sleep 100000000", "step_extern/user/task_special");
    service.identify(1);
    let waited = Duration::from_secs(40);
    for _ in 0..20 {
        service.discovery.pretend_asked(waited);
        service.ask_who_is_due();
    }
    assert!(service.discovery.next_question().is_some());
    machine.put("proc/51/environ", "SLURM_JOB_ID=31\0SLURM_JOB_NAME=late\0");
    machine.enter(51, 1000, "bash slurm_script", "step_0/user/task_0");
    service.discovery.pretend_asked(2 * waited);
    service.ask_who_is_due();
    assert_eq!(record(&service).name, "late");
    assert_eq!(service.discovery.next_question(), None);
    service.close();
}
