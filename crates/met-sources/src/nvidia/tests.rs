//! The source against a library that does what a script says, loaded as the real one is.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use met_core::Subject;
use met_host::{TaskRole, TaskTarget};

use super::*;
use crate::fixture::FAST;
use expect_test::{Expect, expect};

struct Machine {
    folder: tempfile::TempDir,
    source: Box<dyn Source>,
    targets: Targets,
    batches: Vec<Batch>,
}

/// Cargo puts a dependency's library beside the test program.
pub(crate) fn fake_library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libnvml_fake.so")
}

fn options(folder: &Path) -> Options {
    let library = folder.join("libnvidia-ml.so.1");
    Options { nvml_library: Some(library), timeout: Duration::from_secs(20), ..Options::default() }
}

fn prepare(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fake_library(), folder.path().join("libnvidia-ml.so.1")).unwrap();
    std::fs::write(folder.path().join("script"), script).unwrap();
    folder
}

impl Machine {
    fn new(script: &str) -> Machine {
        Machine::by(DriverCalls::Apart, script)
    }

    fn by(driver_calls: DriverCalls, script: &str) -> Machine {
        let folder = prepare(script);
        let options = Options { driver_calls, ..options(folder.path()) };
        let source = open(&Host::real().unwrap(), &options).unwrap_or_else(|why| panic!("{why}"));
        let task = |pid| TaskTarget::new(pid, 7, TaskRole::Member, false);
        let targets = Targets { cgroups: Vec::new(), tasks: vec![task(100), task(200)] };
        let batches = SPEC.tables.iter().copied().map(Batch::new).collect();
        Machine { folder, source, targets, batches }
    }

    fn script(&self, script: &str) {
        // Renamed: the library never reads half a script.
        let fresh = self.folder.path().join("script.new");
        std::fs::write(&fresh, script).unwrap();
        std::fs::rename(fresh, self.folder.path().join("script")).unwrap();
    }

    fn read(&mut self) -> Result<(), ReadError> {
        self.batches.iter_mut().for_each(Batch::clear);
        self.source.read(&self.targets, &FAST, &mut self.batches)
    }

    /// Reads until `enough`, as ticks would: the expensive readings come when they are ready.
    fn read_until(&mut self, enough: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let result = self.read();
            let mut text = self.print();
            if let Err(error) = result {
                writeln!(text, "error: {error}").unwrap();
            }
            if enough(&text) {
                return text;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn print(&self) -> String {
        let mut text = String::new();
        for batch in &self.batches {
            for (row, cells) in batch.rows() {
                let labels = &self.source.labels()[row.part as usize];
                match row.owner {
                    Subject::Task { pid, start_ticks } => {
                        write!(text, "{pid}/{start_ticks} on {}:", labels[1])
                    }
                    _ => write!(text, "{}:", labels.join(" ").trim_end()),
                }
                .unwrap();
                for (column, cell) in batch.table.columns.iter().zip(cells) {
                    // How old a figure is differs from run to run.
                    if *cell != MISSING && !column.name.ends_with("_age") {
                        write!(text, " {}={cell}", column.name).unwrap();
                    }
                }
                text.push('\n');
            }
        }
        text
    }
}

fn check(text: String, expected: Expect) {
    expected.assert_eq(&text);
}

const TWO_GPUS: &str = "driver 1\n\
    card 0 uuid=GPU-a name=Fake_H200 power=300000 energy=5000 util=90 memory=3000 total=8000 temperature=61 clock=1980 clock_memory=3201 throttle=4 ecc=2 ecc_bad=0\n\
    card 1 uuid=GPU-b name=Fake_T4 power=70000 util=0 memory=0 total=4000 temperature=30\n\
    process 0 pid=100 memory=1000 sm=60\n\
    process 0 pid=200 memory=2000 sm=30\n\
    process 0 pid=555 memory=10\n";

#[test]
fn two_jobs_and_an_unowned_process_on_one_gpu() {
    let mut machine = Machine::new(TWO_GPUS);
    let text = machine.read_until(|text| text.contains("energy="));
    let direct = Machine::by(DriverCalls::Direct, TWO_GPUS).read_until(|text| text.contains("energy="));
    assert_eq!(text, direct, "whichever thread calls the driver");
    check(
        text,
        expect![[r#"
            0 GPU-a Fake H200 nvidia  195:0: utilization=900 utilization_memory=450 memory_used=3000 memory_total=8000 power=300000 energy=5000000 temperature=61000 clock=1980 clock_memory=3201 throttle=4 ecc_corrected=2 ecc_uncorrected=0 faults=0 processes=3
            1 GPU-b Fake T4 nvidia  195:1: utilization=0 utilization_memory=0 memory_used=0 memory_total=4000 power=70000 temperature=30000 faults=0 processes=0
            100/7 on GPU-a: memory=1000 utilization=600 utilization_memory=0 utilization_encoder=0 utilization_decoder=0 open=1
            200/7 on GPU-a: memory=2000 utilization=300 utilization_memory=0 utilization_encoder=0 utilization_decoder=0 open=1
            555/0 on GPU-a: memory=10 utilization=0 utilization_memory=0 utilization_encoder=0 utilization_decoder=0 open=1
        "#]],
    );
}

#[test]
fn a_process_that_ended_is_still_named_by_what_it_did() {
    let mut machine = Machine::new(&TWO_GPUS.replace("pid=200 memory=2000", "pid=200 ended=1"));
    let text = machine.read_until(|text| text.contains("energy="));
    assert!(text.contains("200/7 on GPU-a: utilization=300") && text.contains("open=0"), "{text}");
}

#[test]
fn parts_of_a_gpu_are_gpus_with_a_parent() {
    let mut machine = Machine::new(
        "card 0 uuid=GPU-a name=Fake power=200000 energy=5 memory=30 total=70\n\
         part 0 uuid=MIG-1 slices=3 memory=40 used=5000 gi=1 ci=0\n\
         part 0 uuid=MIG-2 slices=4 memory=30 gi=2 ci=0\n\
         process 0 pid=100 memory=9 gi=2 ci=0\n\
         error nvmlDeviceGetProcessUtilization 0 3\n\
         error nvmlDeviceGetUtilizationRates 0 3\n",
    );
    check(
        machine.read_until(|text| text.contains("energy=")),
        expect![[r#"
            0 GPU-a Fake nvidia  195:0: memory_used=30 memory_total=70 power=200000 energy=5000 faults=0 processes=1 slices=7
            0.0 MIG-1 Fake MIG 3g nvidia GPU-a  1/0: memory_used=5000 memory_total=41943040 slices=3
            0.1 MIG-2 Fake MIG 4g nvidia GPU-a  2/0: memory_total=31457280 slices=4
            100/7 on MIG-2: memory=9 open=1
        "#]],
    );
}

#[test]
fn expensive_readings_and_processes() {
    let gpu = "card 0 uuid=GPU-a name=Fake power=200000 limit=350000 energy=5 encoder=7 decoder=3 received=5 sent=6\n\
        process 0 pid=100 memory=9\nprocess 0 pid=200 memory=4 draws=1\n";
    check(
        Machine::new(gpu).read_until(|text| text.contains("pcie_sent_rate=6000")),
        expect![[r#"
            0 GPU-a Fake nvidia  195:0: utilization_encoder=70 utilization_decoder=30 power=200000 power_limit=350000 energy=5000 faults=0 pcie_received_rate=5000 pcie_sent_rate=6000 processes=1
            100/7 on GPU-a: memory=9 utilization=0 utilization_memory=0 utilization_encoder=0 utilization_decoder=0 open=1
            200/7 on GPU-a: memory=4 utilization=0 utilization_memory=0 utilization_encoder=0 utilization_decoder=0 open=1
        "#]],
    );
    // The consumers are not known then, and neither is the number of processes on the GPU.
    let read = |code: u32| {
        let script = format!("{gpu}error nvmlDeviceGetGraphicsRunningProcesses 0 {code}\n");
        Machine::new(&script).read_until(|text| text.contains("energy="))
    };
    let failed = read(999);
    assert!(failed.contains("100/7 on GPU-a: memory=9") && !failed.contains("processes="), "{failed}");
    let unsupported = read(3);
    assert!(unsupported.contains("processes=1") && !unsupported.contains("200/7"), "{unsupported}");
}

#[test]
fn an_older_driver_reports_its_memory_by_its_own_call() {
    let mut machine = Machine::new(&format!("{TWO_GPUS}error nvmlDeviceGetMemoryInfo_v2 0 13\n"));
    machine.read_until(|text| text.contains("memory_used=3000 memory_total=8000"));
    machine.script(&format!("{TWO_GPUS}error nvmlDeviceGetMemoryInfo 0 999\n"));
    machine.read_until(|text| !text.contains("memory_total=8000") && text.contains("memory_total=4000"));
}

#[test]
fn a_lost_gpu_leaves_the_other_one_as_it_is() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("GPU-a"));
    machine.script(&format!("{TWO_GPUS}error * 0 15\n"));
    let text = machine.read_until(|text| text.contains("error"));
    assert!(!text.contains("GPU-a") && text.contains("1 GPU-b Fake T4"), "no zeros for the lost one: {text}");
    assert!(text.contains("error: NVML, GPU 0: "), "{text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| text.contains("GPU-a") && !text.contains("error"));
}

#[test]
fn a_direct_reader_reports_a_lost_gpu_another_driver_and_unknown_values() {
    let mut machine = Machine::by(DriverCalls::Direct, TWO_GPUS);
    machine.read_until(|text| text.contains("power=300000") && text.contains("energy="));
    assert!(!machine.source.begin() && machine.source.errand_cpu_ns() == 0, "there is no thread to be asked");
    machine.script(&format!("{TWO_GPUS}error * 0 15\n"));
    let text = machine.read_until(|text| text.contains("error: NVML, GPU 0: "));
    assert!(!text.contains("GPU-a") && text.contains("1 GPU-b Fake T4"), "{text}");
    machine.script(&TWO_GPUS.replace("driver 1", "driver 2").replace("energy=5000", "energy=7"));
    machine.read_until(|text| text.contains("energy=7000") && text.contains("power=300000"));
    let other = "driver 2\ncard 0 uuid=GPU-a name=Fake power=1\nerror nvmlDeviceGetUtilizationRates 0 3\n";
    machine.script(other);
    machine.read_until(|text| text.contains(" power=1\n") || text.contains(" power=1 "));
}

#[test]
fn a_direct_reader_skips_a_gpu_that_blocks_the_other_thread() {
    let mut machine = Machine::by(DriverCalls::Direct, TWO_GPUS);
    machine.read_until(|text| text.contains("energy=") && text.contains("power=300000"));
    machine.script(&format!("{TWO_GPUS}delay nvmlDeviceGetTemperature 0 3600000\n"));
    // Its power could be read, which is not known yet.
    let text =
        machine.read_until(|text| text.contains("error: NVML, GPU 0: the NVIDIA driver does not answer"));
    assert!(!text.contains("power=300000") && text.contains("power=70000"), "{text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| text.contains("power=300000") && !text.contains("error"));
}

#[test]
fn one_call_that_fails_leaves_the_others() {
    let mut machine = Machine::new(&format!("{TWO_GPUS}error nvmlDeviceGetPowerUsage 0 999\n"));
    let text = machine.read_until(|text| text.contains("energy=") && text.contains("GPU-b"));
    let first = text.lines().next().unwrap();
    assert!(!first.contains(" power=") && first.contains("temperature=61000"), "{text}");
    assert!(text.contains("error: NVML, GPU 0"), "{text}");
}

#[test]
fn a_reloaded_driver_is_found_again() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("energy=5000000"));
    machine.script(&TWO_GPUS.replace("driver 1", "driver 2").replace("energy=5000", "energy=7"));
    let lost = machine.read_until(|text| text.contains("error"));
    assert!(!lost.contains("power"), "{lost}");
    machine.read_until(|text| text.contains("energy=7000"));
    assert_eq!(machine.source.labels().len(), 2, "a card keeps its row");
}

#[test]
fn a_renumbered_gpu_has_its_new_number() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("1 GPU-b"));
    machine.script("driver 2\ncard 0 uuid=GPU-b name=Fake_T4 power=70000 temperature=30\n");
    let text = machine.read_until(|text| text.contains("GPU-b") && !text.contains("error"));
    assert!(text.starts_with("0 GPU-b"), "{text}");
    assert_eq!(machine.source.labels().len(), 2, "a card keeps its row");
}

#[test]
fn a_clock_that_is_set_back_makes_no_process_idle() {
    // Samples of a time to come: when the line goes, the clock is set back by an hour.
    let mut machine = Machine::new(&format!("{TWO_GPUS}clock 0 ahead_us=3600000000\n"));
    machine.read_until(|text| text.contains("100/7 on GPU-a: memory=1000 utilization=600"));
    machine.script(&TWO_GPUS.replace("sm=60", "sm=70"));
    machine.read_until(|text| {
        assert!(!text.contains("100/7 on GPU-a: memory=1000 utilization=0"), "{text}");
        text.contains("100/7 on GPU-a: memory=1000 utilization=700")
    });
}

#[test]
fn a_critical_error_is_counted_and_named() {
    let mut machine = Machine::new(&format!("{TWO_GPUS}xid 1 number=79\n"));
    machine.read_until(|text| text.contains("faults=1 fault_last=79"));
}

#[test]
fn a_gpu_that_refuses_error_events_affects_no_other_one() {
    let refused = format!("{TWO_GPUS}error nvmlDeviceRegisterEvents 1 3\nxid 0 number=48\n");
    let text = Machine::new(&refused).read_until(|text| text.contains("energy="));
    let second = text.lines().find(|line| line.starts_with("1 GPU-b")).unwrap();
    assert!(text.contains("faults=1 fault_last=48") && !second.contains("faults="), "{text}");
}

#[test]
fn why_a_gpu_was_lost_is_reported_though_it_answers_no_more() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("energy="));
    machine.script(&format!("{TWO_GPUS}error * 0 15\nxid 0 number=79\n"));
    let text = machine.read_until(|text| text.contains("fault_last=79"));
    assert!(text.contains("GPU-a Fake H200 nvidia  195:0: faults=1 fault_last=79\n"), "{text}");
}

#[test]
fn a_driver_that_hangs_on_error_events_blocks_no_other_gpu() {
    for call in ["nvmlEventSetWait", "nvmlDeviceRegisterEvents"] {
        let mut machine = Machine::new(&format!("{TWO_GPUS}delay {call} 0 3600000\n"));
        machine
            .read_until(|text| text.contains("error: NVML, GPU 0: ") && text.contains("temperature=30000"));
    }
    // The same when it is queried for other GPUs.
    let lost = format!("{TWO_GPUS}error nvmlDeviceGetUUID 0 15\n");
    let mut machine = Machine::new(&lost);
    machine.read_until(|text| text.contains("temperature=30000"));
    let hung = format!("{lost}delay nvmlDeviceGetHandleByIndex 0 3600000\n");
    machine.script(&hung.replace("temperature=30", "temperature=31"));
    machine.read_until(|text| text.contains("temperature=31000"));
    for celsius in 32..36 {
        machine.script(&hung.replace("temperature=30", &format!("temperature={celsius}")));
        machine.read_until(|text| text.contains(&format!("temperature={celsius}000")));
    }
}

#[test]
fn an_unusable_library_is_reported_with_the_reason() {
    let host = Host::real().unwrap();
    let folder = prepare("driver 1\n");
    let why = |folder: &Path| open(&host, &options(folder)).err().map(|why| why.to_string());
    assert_eq!(why(folder.path()).as_deref(), Some("the NVIDIA driver reports no GPU"));
    std::fs::write(folder.path().join("script"), "error nvmlInit 0 18\n").unwrap();
    assert!(why(folder.path()).unwrap().contains("different versions"));
    std::fs::remove_file(folder.path().join("libnvidia-ml.so.1")).unwrap();
    assert!(why(folder.path()).unwrap().contains("libnvidia-ml.so.1: "), "the file that was asked for");
}

#[test]
fn without_a_driver_nothing_is_started() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    let opened = open(&Host::at(root.path()).unwrap(), &Options::default());
    assert_eq!(opened.err().unwrap(), Unavailable::Absent("no NVIDIA driver is loaded".to_owned()));
}

#[test]
fn a_call_about_processes_that_fails_is_not_known_and_not_nothing() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("utilization=600"));
    machine.script(&format!("{TWO_GPUS}error nvmlDeviceGetProcessUtilization 0 999\n"));
    let text = machine.read_until(|text| text.contains("100/7 on GPU-a: memory=1000 open=1"));
    assert!(!text.contains("utilization=0 utilization_memory=0 utilization_encoder=0"), "{text}");
    machine.script(&format!("{TWO_GPUS}error nvmlDeviceGetComputeRunningProcesses 0 999\n"));
    let text = machine.read_until(|text| !text.contains("memory=1000 "));
    assert!(!text.lines().next().unwrap().contains("processes="), "{text}");
}

#[test]
fn a_process_that_is_no_target_any_more_has_no_beginning() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("100/7 on GPU-a"));
    machine.targets.tasks.retain(|task| task.pid != 100);
    machine.read_until(|text| text.contains("100/0 on GPU-a"));
}

#[test]
fn a_living_unowned_process_is_known_by_its_start() {
    let me = std::process::id();
    let began = Host::real().unwrap().process(me).unwrap().start_ticks;
    let mut machine = Machine::new(&TWO_GPUS.replace("pid=555", &format!("pid={me}")));
    machine.read_until(|text| text.contains(&format!("{me}/{began} on GPU-a")));
}

#[test]
fn parts_that_are_made_later_and_a_gpu_that_was_lost_at_the_beginning_are_found() {
    let whole = "card 0 uuid=GPU-a name=Fake power=200000 energy=5 memory=30 total=70\n";
    let mut machine = Machine::new(whole);
    machine.read_until(|text| text.contains("GPU-a"));
    machine.script(&format!("{whole}part 0 uuid=MIG-1 slices=3 memory=40 gi=1 ci=0\n"));
    machine.read_until(|text| text.contains("MIG-1"));
    machine.script(whole);
    machine.read_until(|text| text.contains("GPU-a") && !text.contains("MIG-1"));
    let mut machine = Machine::new(&format!("{TWO_GPUS}error * 0 15\n"));
    let lost = machine.read_until(|text| text.contains("GPU-b") && !text.contains("GPU-a"));
    assert!(lost.contains("error: NVML, GPU 0: "), "{lost}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| text.contains("GPU-a"));
}

#[test]
fn a_driver_that_does_not_answer_keeps_no_tick_and_nothing_old_is_shown_as_new() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("energy=") && text.contains("power=300000"));
    machine.script(&format!("{TWO_GPUS}delay * 0 3600000\n"));
    // Each of these reads returns, whatever the driver does.
    let text = machine.read_until(|text| {
        text.contains("does not answer") && !text.contains("power=300000") && text.contains("power=70000")
    });
    let first = text.lines().next().unwrap();
    assert!(!first.contains("power=") && !first.contains("utilization="), "{text}");
    let text = machine.read_until(|text| !text.contains("temperature=61000"));
    assert!(!text.contains("100/7"), "a list of processes is of its time, too: {text}");
    assert!(text.contains("0 GPU-a") && text.contains("1 GPU-b"), "the cards are still held: {text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| {
        text.contains("power=300000") && text.contains("temperature=61000") && !text.contains("error")
    });
}

#[test]
fn a_source_that_is_dropped_waits_for_no_driver() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("power=300000"));
    machine.script(&format!("{TWO_GPUS}delay * 0 3600000\ndelay nvmlShutdown 0 3600000\n"));
    machine.read_until(|text| text.contains("does not answer"));
    drop(machine);
}

#[test]
fn a_patient_caller_learns_that_the_driver_does_not_answer() {
    let host = Host::real().unwrap();
    let brief = |folder: &Path| Options { timeout: Duration::from_millis(300), ..options(folder) };
    let folder = prepare(&format!("{TWO_GPUS}delay nvmlInit 0 3600000\n"));
    let why = open(&host, &brief(folder.path())).err().map(|why| why.to_string());
    assert_eq!(why.as_deref(), Some(NO_ANSWER));
    let folder = prepare(&format!("{TWO_GPUS}delay nvmlDeviceGetPowerUsage 1 3600000\n"));
    let mut source = open(&host, &options(folder.path())).unwrap_or_else(|why| panic!("{why}"));
    source.wait(Duration::from_millis(300));
    let mut batches: Vec<Batch> = SPEC.tables.iter().copied().map(Batch::new).collect();
    let error = source.read(&Targets::default(), &FAST, &mut batches).unwrap_err();
    assert_eq!(error.to_string(), format!("NVML: {NO_ANSWER}"));
}

#[test]
fn a_figure_that_a_gpu_did_not_know_for_a_while_comes_back() {
    let mut machine = Machine::new(&format!("{TWO_GPUS}error nvmlDeviceGetPowerUsage 0 3\n"));
    let text = machine.read_until(|text| text.contains("energy="));
    assert!(!text.contains(" power=300000") && !text.contains("error"), "{text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| text.contains(" power=300000"));
}

#[test]
fn an_older_driver_lists_processes_by_its_own_calls() {
    let without = |calls: &str| {
        let lines: String = calls
            .split(' ')
            .map(|version| format!("error nvmlDeviceGetComputeRunningProcesses{version} 0 13\n"))
            .collect();
        format!("{TWO_GPUS}{lines}")
    };
    let mut machine = Machine::new(&without("_v3"));
    machine.read_until(|text| text.contains("100/7 on GPU-a: memory=1000") && text.contains("processes=3"));
    assert!(machine.source.shortfall().is_none());
    let one = "card 0 uuid=GPU-a name=Fake power=1 temperature=2\nprocess 0 pid=100 memory=5\n";
    let by_first = "error nvmlDeviceGetComputeRunningProcesses_v3 0 13\nerror nvmlDeviceGetComputeRunningProcesses_v2 0 13\n";
    let mut machine = Machine::new(&format!("{one}{by_first}"));
    machine.read_until(|text| text.contains("100/7 on GPU-a: memory=5"));
    machine.script(&format!("{one}error nvmlDeviceGetComputeRunningProcesses 0 13\n"));
    machine.read_until(|text| !text.contains("100/7"));
    assert!(machine.source.shortfall().unwrap().detail.contains("this driver does not report it"));
}

#[test]
fn the_library_is_unloaded_when_idle_and_loaded_on_request() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("energy="));
    let shut_down = machine.folder.path().join("shut_down");
    let begin = Instant::now();
    while !shut_down.exists() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it stays loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = machine.read_until(|text| text.contains("energy="));
    assert!(text.contains("power=300000") && !text.contains("error"), "{text}");
}

/// `cargo test -p met-sources what_a_tick_costs -- --ignored --nocapture`: ticks that ask a thread when they begin,
/// that ask it when they want to know, and that ask the driver.
#[test]
#[ignore = "it prints a measurement"]
#[allow(clippy::print_stderr, reason = "it prints a measurement")]
fn what_a_tick_costs() {
    const TICKS: i64 = 100;
    let ways =
        [("then", DriverCalls::Apart), ("before", DriverCalls::Apart), ("itself", DriverCalls::Direct)];
    for (when, driver_calls) in ways.into_iter().chain(ways) {
        let mut machine = Machine::by(driver_calls, TWO_GPUS);
        machine.read_until(|text| text.contains("energy="));
        let costs = |machine: &Machine| (clock::thread_cpu_ns(), machine.source.errand_cpu_ns());
        let (tick_ns, thread_ns) = costs(&machine);
        for _ in 0..TICKS {
            std::thread::sleep(Duration::from_millis(100));
            if when == "before" {
                machine.source.begin();
                std::thread::sleep(Duration::from_millis(2));
            }
            machine.read().unwrap();
        }
        let (tick_end_ns, thread_end_ns) = costs(&machine);
        let each = |spent_ns: i64| spent_ns / TICKS / 1000;
        let (tick_us, thread_us) = (each(tick_end_ns - tick_ns), each(thread_end_ns - thread_ns));
        eprintln!("a tick that asks {when}: {tick_us} µs of the tick, {thread_us} µs of the thread");
    }
}

#[test]
fn what_was_asked_for_when_a_tick_began_is_there_when_its_turn_comes() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("power=300000"));
    let begin = Instant::now();
    loop {
        machine.script(&TWO_GPUS.replace("power=300000", "power=400000"));
        machine.source.begin();
        std::thread::sleep(Duration::from_millis(20));
        // Whatever comes later is not of this tick.
        machine.script(TWO_GPUS);
        machine.read().unwrap();
        if machine.print().contains("power=400000") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "what was read is of another time");
    }
    machine.read_until(|text| text.contains("power=300000"));
}

#[test]
fn one_gpu_that_hangs_keeps_no_other_one() {
    let mut machine = Machine::new(TWO_GPUS);
    machine.read_until(|text| text.contains("energy=") && text.contains("power=300000"));
    let hung = format!("{TWO_GPUS}delay * 0 3600000\n");
    machine.script(&hung);
    machine.read_until(|text| text.contains("error: NVML, GPU 0: the NVIDIA driver does not answer"));
    // Both threads have gone on: what the other GPU shows from now on is new.
    machine.script(
        &hung
            .replace("power=70000 util=0", "power=80000 util=40")
            .replace("temperature=30", "temperature=44"),
    );
    let text = machine.read_until(|text| text.contains("power=80000") && text.contains("temperature=44000"));
    assert!(!text.contains("power=300000"), "{text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| {
        text.contains("power=300000") && text.contains("temperature=61000") && !text.contains("error")
    });
}

#[test]
fn all_samples_of_a_process_count() {
    let machine =
        |sm: &str| Machine::new(&TWO_GPUS.replace("memory=1000 sm=60", &format!("memory=1000 sm={sm}")));
    machine("20+40+90").read_until(|text| text.contains("100/7 on GPU-a: memory=1000 utilization=500"));
    machine("100").read_until(|text| text.contains("100/7 on GPU-a: memory=1000 utilization=1000"));
}

#[test]
fn a_process_without_a_pid_is_unowned_and_reported_by_doctor() {
    let mut machine = Machine::new(&TWO_GPUS.replace("pid=555", "pid=0"));
    machine.read_until(|text| text.contains("0/0 on GPU-a: memory=10"));
    assert!(machine.source.shortfall().unwrap().detail.contains("the driver reports host process ids"));
}

#[test]
fn rows_of_new_parts_are_not_remembered_for_ever() {
    let gpu = "card 0 uuid=GPU-a name=Fake power=200000 energy=5 memory=30 total=70\n";
    let layout = |round: u32| -> String {
        let part = |part: u32| format!("part 0 uuid=MIG-{round}-{part} slices=1 memory=10 gi={part} ci=0\n");
        gpu.to_owned() + &(0..7).map(part).collect::<String>()
    };
    let mut machine = Machine::new(&layout(0));
    for round in 1..4 {
        machine.script(&layout(round));
        machine.read_until(|text| text.contains(&format!("MIG-{round}-6")));
    }
    assert!(machine.source.labels().len() <= LABELS_MAX + 8, "{}", machine.source.labels().len());
    machine.read_until(|text| text.contains("GPU-a Fake nvidia") && text.contains("power=200000"));
}

#[test]
fn a_gpu_that_hangs_from_the_beginning_is_left_out_until_it_answers() {
    let mut machine = Machine::new(&format!("{TWO_GPUS}delay nvmlDeviceGetUUID 0 3600000\n"));
    let text = machine.read_until(|text| text.contains("GPU-b") && text.contains("power=70000"));
    assert!(!text.contains("GPU-a") && text.contains(&format!("error: NVML, GPU 0: {NO_ANSWER}")), "{text}");
    machine.script(TWO_GPUS);
    machine.read_until(|text| text.contains("GPU-a") && text.contains("power=300000"));
}

#[test]
fn a_new_process_is_listed_early_and_less_often_without_a_result() {
    let mut hurry = Hurry::default();
    let mut asked = |periods: std::ops::Range<i64>| {
        let due = |period: &i64| {
            let now_ns = (100 + period) * HURRY_EVERY_NS;
            let is_due = hurry.is_due(now_ns);
            if is_due {
                hurry.done(now_ns);
            }
            is_due
        };
        let times: Vec<i64> = periods.filter(due).collect();
        hurry.explained();
        times
    };
    assert_eq!(asked(0..200), [0, 2, 6, 14, 30, 62, 94, 126, 158, 190]);
    assert_eq!(asked(200..204), [200, 202], "one was found, and another has come");
}

#[test]
fn the_thread_reads_when_it_is_hurried_though_nothing_is_due() {
    let folder = prepare("card 0 uuid=GPU-a name=Card power=100 utilization=50\n");
    let library = folder.path().join("libnvidia-ml.so.1");
    let slow = Slow::start(Some(library), Lender::default(), Duration::from_secs(1)).unwrap();
    let timeout = Duration::from_secs(30);
    assert!(slow.wait_until(timeout, |state| state.shown.is_some()));
    for number in 1..4 {
        // Only this queries: a glance would, when it is time.
        assert!(slow.hurry(clock::boottime_ns()), "nothing else is under way");
        assert!(slow.wait_until(timeout, |state| state.number >= number));
    }
}

#[test]
fn a_gpu_with_gpm_reports_how_busy_its_units_are() {
    let script = "driver 1\n\
        card 0 uuid=GPU-a name=Fake_H200 power=300000 util=90 total=8000 sent=1 received=1 gpm=1 sm_activity=96 sm_occupancy=14 tensor=93 pcie_rx=14 pcie_tx=5 nvlink_rx=2 nvlink_tx=1\n\
        part 0 uuid=MIG-a slices=3 memory=20 used=9 gi=1 ci=0 sm_activity=40 bandwidth=17\n\
        card 1 uuid=GPU-b name=Fake_T4 power=70000 util=0 total=4000 sent=3 received=4\n";
    let mut machine = Machine::new(script);
    let text = machine
        .read_until(|text| text.matches("sm_activity").count() == 2 && text.contains("pcie_sent_rate=3"));
    check(
        text,
        expect![[r#"
            0 GPU-a Fake H200 nvidia  195:0: utilization=900 utilization_memory=450 power=300000 faults=0 pcie_received_rate=14680064 pcie_sent_rate=5242880 processes=0 slices=7 sm_activity=960 sm_occupancy=140 tensor_activity=930 nvlink_received_rate=2097152 nvlink_sent_rate=1048576
            0.0 MIG-a Fake H200 MIG 3g nvidia GPU-a  1/0: memory_used=9 memory_total=20971520 slices=3 sm_activity=400 memory_bandwidth=170
            1 GPU-b Fake T4 nvidia  195:1: utilization=0 utilization_memory=0 power=70000 faults=0 pcie_received_rate=4000 pcie_sent_rate=3000 processes=0
        "#]],
    );
    // The script gives it no bandwidth: it is not known to be 0.
    machine.script(&script.replace("gpm=1 ", ""));
    machine.script(&format!("{script}error nvmlGpmSampleGet 0 999\n"));
    let text = machine.read_until(|text| !text.lines().next().unwrap().contains("sm_activity"));
    assert!(text.contains("power=300000"), "the rest of the card is there: {text}");
}
