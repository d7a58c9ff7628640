use super::*;
use crate::fixture::{Machine, SLOW};
use expect_test::expect;

const AMD: &str = include_str!("../../../../fixtures/hosts/gpu-amd.txt");

fn machine(archive: &str) -> Machine {
    let mut machine = Machine::new(archive);
    let task = |pid| TaskTarget::new(pid, 7, TaskRole::Member, false);
    machine.targets.tasks.extend([task(100), task(101)]);
    // A descriptor is a GPU's if its file says so.
    for pid in [100, 101] {
        let Ok(files) = machine.host.open_dir(format!("/proc/{pid}/fdinfo")) else { continue };
        let links = machine.path(&format!("/proc/{pid}/fd"));
        std::fs::create_dir_all(&links).unwrap();
        let (mut numbers, mut text) = (Vec::new(), Vec::new());
        files.list(&mut Vec::new(), |name, _, _| numbers.extend(parse::u32(name))).unwrap();
        for number in numbers {
            files.read(number.to_string(), &mut text).unwrap();
            let target =
                if client_of(&text, &mut true).is_some() { "/dev/dri/renderD128" } else { "/dev/null" };
            std::os::unix::fs::symlink(target, links.join(number.to_string())).unwrap();
        }
    }
    machine
}

#[test]
fn an_amd_gpu_with_a_client_that_two_processes_share_and_one_of_kfd() {
    let machine = machine(AMD);
    expect![[r#"
        Node 0 GPU-b0f26b8a9aa3c5b1 AMD Instinct MI250X amd  226:0
          utilization 730
          utilization_memory 120
          memory_used 17179869184
          memory_total 68702699520
          power 412000
          power_limit 560000
          temperature 54000
          clock 1700
          clock_memory 1600
        100
          memory 2097152
          open 1
        101
          memory 8589934592
          open 1
    "#]]
    .assert_eq(&machine.read(&SPEC, SLOW));
}

#[test]
fn a_process_that_opens_a_gpu_later_is_found_and_one_without_is_read_less_often() {
    let machine = machine(include_str!("../../../../fixtures/hosts/gpu-intel.txt"));
    let mut source = Drm::new(&machine.host);
    let task = machine.targets.tasks[1];
    let known = |source: &Drm| source.known[&(task.pid, task.start_ticks)].clone();
    source.look_through(&task, 0);
    source.look_through(&task, 0);
    assert!(!known(&source).has_gpu() && known(&source).every_ns == 2 * SCAN_EVERY_MIN_NS);
    let link = machine.path("/proc/101/fd/77");
    std::os::unix::fs::symlink("/dev/dri/card0", link).unwrap();
    source.look_through(&task, 0);
    assert_eq!((known(&source).descriptors, known(&source).every_ns), (vec![77], SCAN_EVERY_MIN_NS));
}

/// What each reading shows of the GPUs, and of the use of each process, on a machine that changes in between.
fn read_often(machine: &Machine, changes: &[&dyn Fn()]) -> Vec<String> {
    let mut source = Drm::new(&machine.host);
    source.find_gpus();
    let mut shown = Vec::new();
    for change in changes {
        change();
        source.reopen_due_ns = 0;
        let mut batches: Vec<Batch> = SPEC.tables.iter().copied().map(Batch::new).collect();
        source.read(&machine.targets, &SLOW, &mut batches).unwrap();
        let mut text = String::new();
        for (row, cells) in batches[0].rows() {
            let labels = &source.labels[row.part as usize];
            let power = cells[device::POWER];
            text += &format!("{} {} {power};", labels[device::label::INDEX], labels[device::label::UUID]);
        }
        for (row, cells) in batches[1].rows() {
            if let Subject::Task { pid, .. } = row.owner {
                text += &format!("{pid} {};", cells[process::UTILIZATION]);
            }
        }
        shown.push(text.replace(&MISSING.to_string(), "-"));
    }
    shown
}

#[test]
fn a_reloaded_driver_is_found_and_a_sleeping_gpu_is_not_woken() {
    let mut machine = machine(AMD);
    machine.targets.tasks.clear();
    let gpu = machine.path("/sys/class/drm/card0");
    let aside = machine.path("/sys/class/drm/aside");
    let write = |name: &str, text: &str| {
        let path = gpu.join("device").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let shown = read_often(
        &machine,
        &[
            &|| {},
            &|| write("power/runtime_status", "suspended\n"),
            &|| write("power/runtime_status", "active\n"),
            // The driver goes, and its directories with it.
            &|| {
                std::fs::rename(&gpu, &aside).unwrap();
                std::fs::remove_dir_all(aside.join("device/hwmon/hwmon3")).unwrap();
            },
            &|| {},
            &|| {
                std::fs::rename(&aside, &gpu).unwrap();
                write("hwmon/hwmon7/power1_average", "77000000\n");
            },
            &|| {},
            // The second chip of a GPU in two.
            &|| write("hwmon/hwmon7/power1_average", "0\n"),
        ],
    );
    let powers: Vec<&str> =
        shown.iter().map(|text| text.trim_start_matches("0 GPU-b0f26b8a9aa3c5b1 ")).collect();
    // What is gone has no row, and is found at the reading after it came back.
    assert_eq!(powers, ["412000;", "-;", "412000;", "-;", "", "", "77000;", "-;"]);
}

#[test]
fn firmware_counts_energy_and_links_and_a_thread_reads_the_bus() {
    let machine = machine(AMD);
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(machine.path("/sys/class/drm/card0/device").join(name), bytes).unwrap();
    };
    let counted = |joules: u64, read_kib: u64, written_kib: u64| {
        let fields = [(24, joules << 16), (104, read_kib), (168, written_kib)];
        write("gpu_metrics", &gpu_metrics::tests::table(4, 288, &fields));
    };
    write("pcie_bw", b"2000 3000 256\n");
    counted(100, 1000, 0);
    let mut source = Drm::new(&machine.host);
    source.find_gpus();
    let mut cells_at = |now_ns: i64| {
        let mut cells = [MISSING; device::TABLE.columns.len()];
        source.gpus[0].fill(now_ns, &mut Vec::new(), &mut cells, &mut Unparsed::default());
        cells
    };
    let second = 1_000_000_000;
    let first = cells_at(second);
    assert_eq!((first[device::ENERGY], first[device::XGMI_RECEIVED]), (100_000_000, MISSING));
    counted(700, 5000, 2);
    let next = cells_at(3 * second);
    assert_eq!(
        [next[device::ENERGY], next[device::XGMI_RECEIVED], next[device::XGMI_SENT]],
        [700_000_000, 2000 * 1024, 1024]
    );
    // A driver that was loaded again counts from 0.
    counted(1, 0, 0);
    assert_eq!(cells_at(4 * second)[device::XGMI_RECEIVED], MISSING);
    let bus = std::iter::repeat_with(|| cells_at(clock::boottime_ns()))
        .find(|cells| cells[device::PCIE_SENT] != MISSING)
        .unwrap();
    assert_eq!((bus[device::PCIE_RECEIVED], bus[device::PCIE_SENT]), (512_000, 768_000));
}

#[test]
fn what_a_client_did_before_it_was_first_read_is_not_known() {
    let machine = machine(AMD);
    let shown = read_often(&machine, &[&|| {}, &|| {}]);
    assert!(shown[0].contains(";100 -;") && shown[1].contains(";100 0;"), "{shown:?}");
}

#[test]
fn an_intel_gpu_has_an_energy_counter() {
    let machine = machine(include_str!("../../../../fixtures/hosts/gpu-intel.txt"));
    expect![[r#"
        Node 0 PCI-0000:4d:00.0 Intel 0x56c0 intel  226:129
          power_limit 150000
          energy 987654321
          clock 1950
        100
          memory 3145728
          open 1
    "#]]
    .assert_eq(&machine.read(&SPEC, SLOW));
}

#[test]
fn gpus_are_named_by_bus_and_device_file() {
    let machine = machine(include_str!("../../../../fixtures/hosts/gpu-intel.txt"));
    let source = open(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(source.labels(), [["0", "PCI-0000:4d:00.0", "Intel 0x56c0", "intel", "", "226:129"]]);
}

#[test]
fn use_is_what_engines_did_in_between() {
    let client = |compute| Client {
        engines: Engines { compute: Work { busy: Some(compute), cycles: None }, ..Engines::default() },
        ..Client::default()
    };
    let mut cells = vec![MISSING; process::TABLE.columns.len()];
    add_client(&mut cells, &client(700_000_000), Some((0, client(200_000_000).engines)), 1_000_000_000);
    assert_eq!(cells[process::UTILIZATION], 500);
    add_client(&mut cells, &client(5), Some((0, client(200_000_000).engines)), 1_000_000_000);
    assert_eq!(cells[process::UTILIZATION], 500, "a counter that fell is not growth");
}

#[test]
fn intel_s_xe_driver_counts_cycles() {
    let fixture = include_str!("../../../../fixtures/hosts/gpu-intel-xe.txt");
    let machine = machine(fixture);
    expect![[r#"
        Node 0 PCI-0000:03:00.0 Intel 0xe20b intel  226:128
          power_limit 190000
          energy 1500000
          temperature 41000
        100
          memory 24567808
          open 1
    "#]]
    .assert_eq(&machine.read(&SPEC, SLOW));
    let text = fixture.split("-- proc/100/fdinfo/8 --\n").nth(1).unwrap().split("-- ").next().unwrap();
    let before = client_of(text.as_bytes(), &mut true).unwrap();
    // A quarter of the render engine, and all of one of four computing ones; nothing says how long that took.
    let now = text
        .replace("drm-cycles-rcs:\t28257900", "drm-cycles-rcs:\t28507900")
        .replace("drm-cycles-ccs:\t0", "drm-cycles-ccs:\t1000000")
        .replace("7655183225", "7656183225");
    let now = client_of(now.as_bytes(), &mut true).unwrap();
    let mut cells = vec![MISSING; process::TABLE.columns.len()];
    add_client(&mut cells, &now, Some((0, before.engines)), 77);
    assert_eq!((cells[process::UTILIZATION], cells[process::UTILIZATION_COPY]), (500, 0));
}

#[test]
fn engines_of_amd_by_what_they_do() {
    let text = b"drm-pdev: a\ndrm-client-id: 1\ndrm-engine-gfx: 1 ns\ndrm-engine-compute: 2 ns\n\
        drm-engine-dec: 3 ns\ndrm-engine-jpeg: 4 ns\ndrm-engine-enc: 5 ns\ndrm-engine-enc_1: 6 ns\n\
        drm-engine-vpe: 7 ns\ndrm-engine-dma: 8 ns\n";
    let Engines { compute, copy, encode, decode } = client_of(text, &mut true).unwrap().engines;
    assert_eq!([compute, copy, encode, decode].map(|work| work.busy), [Some(3), Some(8), Some(11), Some(7)]);
}

#[test]
fn a_machine_without_such_a_gpu_is_reported() {
    let machine = Machine::new("-- proc/stat --\n-- sys/class/drm/card0/device/vendor --\n0x10de\n");
    let opened = (SPEC.open)(&machine.host, &Options::default());
    assert_eq!(opened.err().unwrap(), Unavailable::Absent("no AMD or Intel GPU".to_owned()));
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_it(text: Vec<u8>, lines in "(drm-(pdev|client-id|engine-gfx|engine-capacity-gfx|cycles-rcs|total-cycles-rcs|memory-vram):[ 0-9a-zKiB]{0,12}\n){0,8}") {
        let _ = client_of(&text, &mut true);
        let _ = client_of(lines.as_bytes(), &mut true);
    }
}

#[test]
fn readings_of_a_gpu_that_are_no_numbers_are_counted() {
    let archive = AMD
        .replace("power1_average --\n412000000", "power1_average --\n41x")
        .replace("device/gpu_busy_percent --\n73", "device/gpu_busy_percent --\n7x");
    let text = Machine::new(&archive).read(&SPEC, SLOW);
    let counted = "2 readings could not be parsed (first: gpu_busy_percent of the GPU 0000:c1:00.0)";
    assert!(text.contains(counted), "{text}");
    assert!(!Machine::new(AMD).read(&SPEC, SLOW).contains("parsed"));
}

#[test]
fn a_table_of_metrics_that_is_cut_off_is_not_whole() {
    assert!(gpu_metrics::is_whole(&[4, 0, 1, 3]));
    assert!(!gpu_metrics::is_whole(&[5, 0, 1, 3]) && !gpu_metrics::is_whole(&[]));
}

#[test]
fn a_client_with_a_number_that_is_none_is_counted() {
    let parsed = |text: &str| {
        let mut is_parsed = true;
        let _ = client_of(text.as_bytes(), &mut is_parsed);
        is_parsed
    };
    let client = "drm-pdev:\t0000:c1:00.0\ndrm-client-id:\t7\ndrm-engine-gfx:\t12 ns\n";
    assert!(parsed(client) && parsed("pos:\t0\nflags:\tx\n"));
    assert!(!parsed(&client.replace("\t7", "\tx")));
    assert!(!parsed(&client.replace("12 ns", "x ns")));
}
