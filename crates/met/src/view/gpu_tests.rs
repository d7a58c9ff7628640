//! What people see of GPUs, in every view.

use expect_test::{Expect, expect};
use met_core::gpu::device;
use met_core::job::{GpuUse, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::series::Series;
use met_core::{JOB, MISSING};
use met_insight::report::{Machine, report};

use super::job_list::{self, View};
use super::ps::ProcessLine;
use super::{Style, plot, ps, text};
use met_core::sample::{self, NOW_NS, SECOND_NS, START_NS};

fn used(index: &str, utilization: f64) -> GpuUse {
    GpuUse {
        uuid: format!("GPU-{index}"),
        index: index.to_owned(),
        name: "NVIDIA H200".to_owned(),
        vendor: "nvidia".to_owned(),
        held_by: "CUDA_VISIBLE_DEVICES".to_owned().into(),
        held_since_ns: Some(START_NS),
        held_ns: 68 * SECOND_NS,
        used_ns: 60 * SECOND_NS,
        utilization: Some(utilization),
        gpu_utilization: Some((utilization + 0.3).min(1.0)),
        copy: Some(0.04),
        memory_mean_bytes: Some(31.5 * (1u64 << 30) as f64),
        memory_peak_bytes: Some(42 << 30),
        memory_total_bytes: Some(150_754_820_096),
        energy_active_uj: 20_400_000_000,
        energy_idle_uj: 2_550_000_000,
        energy_kind: Some(QualityKind::Attributed),
        energy_source: Some(met_core::job::EnergySource::Counter),
        idle_power_mw: Some(75_000),
        idle_power_source: Some("learned".to_owned()),
        gpu_power_mw: Some(431_200.0),
        temperature_max_mc: Some(61_000),
        clock_mean_mhz: Some(1_912.0),
        clock_max_mhz: Some(1_980),
        throttled: vec!["power cap".to_owned()],
        throttled_ns: Some(4 * SECOND_NS),
        pcie_received_rate: Some(3.1e9),
        pcie_sent_rate: Some(2.2e8),
        processes: 1,
        ..GpuUse::default()
    }
}

fn held(index: &str) -> GpuUse {
    GpuUse {
        uuid: format!("GPU-{index}"),
        index: index.to_owned(),
        name: "NVIDIA H200".to_owned(),
        held_by: "SLURM_JOB_GPUS".to_owned().into(),
        held_since_ns: Some(START_NS),
        idle_since_ns: Some(START_NS),
        held_ns: 68 * SECOND_NS,
        utilization: Some(0.0),
        gpu_utilization: Some(0.0),
        memory_mean_bytes: Some(0.0),
        memory_peak_bytes: Some(0),
        memory_total_bytes: Some(150_754_820_096),
        energy_idle_uj: 110 * 68 * 1_000_000,
        energy_kind: Some(QualityKind::Measured),
        energy_source: Some(met_core::job::EnergySource::Counter),
        gpu_power_mw: Some(110_000.0),
        temperature_max_mc: Some(34_000),
        ..GpuUse::default()
    }
}

fn with(mut record: Record, gpus: Vec<GpuUse>) -> Record {
    let energy_uj = gpus.iter().map(GpuUse::energy_uj).sum();
    record.totals.set(column::GPU_ENERGY, energy_uj, QualityKind::Attributed, "energy counter");
    record.gpus = gpus;
    record
}

/// One on two GPUs, one that was given two and uses none, one of which little is known.
fn jobs() -> Vec<Record> {
    let faulty = GpuUse {
        faults: Some(2),
        fault_last: Some(79),
        ecc_uncorrected: Some(1),
        ecc_corrected: Some(12),
        ..used("3", 0.07)
    };
    let node =
        (0..8).map(|index| if index < 6 { used(&index.to_string(), 0.8) } else { held(&index.to_string()) });
    let unknown = GpuUse { index: "0".to_owned(), name: "Intel 0x56c0".to_owned(), ..GpuUse::default() };
    let mut failed = with(sample::full(53, "infer"), vec![faulty]);
    failed.state = State::Failed;
    vec![
        with(sample::bare(50, "notebook"), vec![held("0"), held("1")]),
        with(sample::full(51, "train-a-large-model"), vec![used("0", 0.62), used("1", 0.9)]),
        Record { gpus: vec![unknown], ..sample::bare(52, "stranger") },
        failed,
        with(sample::full(54, "whole-node"), node.collect()),
    ]
}

fn check_list(width: usize, expected: Expect) {
    let drawn =
        job_list::list(&jobs(), View::Gpu, None, NOW_NS, &Style { width: Some(width), ..Style::plain() });
    assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
    expected.assert_eq(&drawn);
}

#[test]
fn the_list_of_gpus_at_80() {
    check_list(
        80,
        expect![[r#"
            ┌─────┬───────────┬────────┬────────────┬──────────┬─────────┬──────────┬──────┐
            │ JOB │ NAME      │ UTIL   │ MEM        │ ENERGY   │ TEMP    │ STATUS   │ TIME │
            ├─────┼───────────┼────────┼────────────┼──────────┼─────────┼──────────┼──────┤
            │ 50  │ notebook  │ 0.00%  │ 0.00 GiB   │ 4.16 Wh  │ 34.00 C │ Active   │ 1m8s │
            │ 51  │ train-a-… │ 76.00% │ 63.00 GiB  │ 12.75 Wh │ 61.00 C │ Finished │ 1m8s │
            │ 52  │ stranger  │ -      │ -          │ -        │ -       │ Active   │ 1m8s │
            │ 53  │ infer     │ 7.00%  │ 31.50 GiB  │ 6.38 Wh  │ 61.00 C │ Failed   │ 1m8s │
            │ 54  │ whole-no… │ 60.00% │ 189.00 GiB │ 42.41 Wh │ 61.00 C │ Finished │ 1m8s │
            └─────┴───────────┴────────┴────────────┴──────────┴─────────┴──────────┴──────┘
        "#]],
    );
}

#[test]
fn the_header_of_names_is_whole_where_there_is_room() {
    let short = |mut record: Record| {
        record.name = "train".to_owned();
        record.gpus.iter_mut().for_each(|gpu| gpu.memory_mean_bytes = Some(4e9));
        record
    };
    let records = [short(jobs().remove(0))];
    let header = |width: usize| {
        let style = Style { width: Some(width), ..Style::plain() };
        let drawn = job_list::list(&records, View::Gpu, None, NOW_NS, &style);
        assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
        let header = drawn.lines().nth(1).unwrap().split('│').map(|cell| cell.trim().to_owned());
        header.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    let kept = ["JOB", "PROCESS NAME", "UTIL", "MEM", "ENERGY", "TEMP", "STATUS", "TIME"];
    assert_eq!(header(80), kept, "the cards leave first, then the process");
    assert_eq!(header(90)[..3], ["JOB", "PPID", "PROCESS NAME"], "the cards leave first");
}

#[test]
fn the_list_of_gpus_at_120() {
    check_list(
        120,
        expect![[r#"
            ┌─────┬──────┬─────────────────────┬────────┬────────────┬──────────┬─────────┬──────────┬──────┬───────────────────┐
            │ JOB │ PPID │ PROCESS NAME        │ UTIL   │ MEM        │ ENERGY   │ TEMP    │ STATUS   │ TIME │ CARDS             │
            ├─────┼──────┼─────────────────────┼────────┼────────────┼──────────┼─────────┼──────────┼──────┼───────────────────┤
            │ 50  │ 3113 │ notebook            │ 0.00%  │ 0.00 GiB   │ 4.16 Wh  │ 34.00 C │ Active   │ 1m8s │ 0: idle, 1: idle  │
            │ 51  │ 3113 │ train-a-large-model │ 76.00% │ 63.00 GiB  │ 12.75 Wh │ 61.00 C │ Finished │ 1m8s │ 0: 62%, 1: 90%    │
            │ 52  │ 3113 │ stranger            │ -      │ -          │ -        │ -       │ Active   │ 1m8s │ 0                 │
            │ 53  │ 3113 │ infer               │ 7.00%  │ 31.50 GiB  │ 6.38 Wh  │ 61.00 C │ Failed   │ 1m8s │ 3: 7.0%           │
            │ 54  │ 3113 │ whole-node          │ 60.00% │ 189.00 GiB │ 42.41 Wh │ 61.00 C │ Finished │ 1m8s │ 8 GPUs, idle: 6 7 │
            └─────┴──────┴─────────────────────┴────────┴────────────┴──────────┴─────────┴──────────┴──────┴───────────────────┘
        "#]],
    );
}

#[test]
fn the_list_of_gpus_at_160() {
    check_list(
        160,
        expect![[r#"
            ┌─────┬──────┬─────────────────────┬────────────────┬────────────┬──────────────┬──────────┬──────────┬──────────┬───────────────────┐
            │ JOB │ PPID │ PROCESS NAME        │ GPU UTIL (AVG) │ MEM (AVG)  │ TOTAL ENERGY │ MAX TEMP │ STATUS   │ DURATION │ CARDS             │
            ├─────┼──────┼─────────────────────┼────────────────┼────────────┼──────────────┼──────────┼──────────┼──────────┼───────────────────┤
            │ 50  │ 3113 │ notebook            │ 0.00%          │ 0.00 GiB   │ 4.16 Wh      │ 34.00 C  │ Active   │ 1m8s     │ 0: idle, 1: idle  │
            │ 51  │ 3113 │ train-a-large-model │ 76.00%         │ 63.00 GiB  │ 12.75 Wh     │ 61.00 C  │ Finished │ 1m8s     │ 0: 62%, 1: 90%    │
            │ 52  │ 3113 │ stranger            │ -              │ -          │ -            │ -        │ Active   │ 1m8s     │ 0                 │
            │ 53  │ 3113 │ infer               │ 7.00%          │ 31.50 GiB  │ 6.38 Wh      │ 61.00 C  │ Failed   │ 1m8s     │ 3: 7.0%           │
            │ 54  │ 3113 │ whole-node          │ 60.00%         │ 189.00 GiB │ 42.41 Wh     │ 61.00 C  │ Finished │ 1m8s     │ 8 GPUs, idle: 6 7 │
            └─────┴──────┴─────────────────────┴────────────────┴────────────┴──────────────┴──────────┴──────────┴──────────┴───────────────────┘
        "#]],
    );
}

#[test]
fn the_list_of_gpus_for_programs() {
    expect![[r#"
        job,ppid,name,gpu_ratio,gpu_memory_bytes,gpu_energy_joules,gpu_temperature_max_celsius,state,wall_seconds,cards
        50,3113,notebook,0,0,14960,34,running,68,"0: idle, 1: idle"
        51,3113,train-a-large-model,0.76,67645734912,45900,61,finished,68.25,"0: 62%, 1: 90%"
    "#]].assert_eq(&job_list::csv(&jobs()[..2], View::Gpu, NOW_NS).replace('\r', ""));
}

fn check_report(record: &Record, expected: Expect) {
    let style = Style { width: Some(80), ..Style::plain() };
    let drawn = super::report::render(&report(record, Machine { cpus: Some(8) }, NOW_NS), &style);
    assert!(drawn.lines().all(|line| text::width(line) <= 80), "{drawn}");
    // What the GPUs are about; the rest is tested where it belongs.
    let lines: Vec<&str> = drawn.lines().skip_while(|line| !line.trim_start().starts_with("GPU")).collect();
    let end = lines.iter().rposition(|line| line.contains("GPU") || line.contains("memory errors"));
    let end = end.map_or(0, |end| (end + 7).min(lines.len()));
    // The first line keeps the common indentation from being taken for the test's own.
    expected.assert_eq(&format!("80 columns\n{}\n", lines[..end].join("\n")));
}

#[test]
fn the_report_of_a_job_on_two_gpus() {
    check_report(
        &jobs()[1],
        expect![[r#"
            80 columns
                         GPU  ███████████████████░░░░░░   76%  1.52 of 2 GPUs, average

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                       GPU 0  NVIDIA H200, given by CUDA_VISIBLE_DEVICES
                     GPU use  62%          average · whole GPU 92% · copy engine 4.0%
                  GPU memory  42.0 GiB     peak · average 31.5 GiB · of 140 GiB
                  GPU energy *6.38 Wh      idle part *708 mWh · energy counter
                   GPU power *338 W        average · whole GPU 431 W
                 temperature  61 °C        highest · clock 1.91 GHz
                   throttled  4s           power cap
               PCIe received  2.89 GiB/s   sent 210 MiB/s

                       GPU 1  NVIDIA H200, given by CUDA_VISIBLE_DEVICES
                     GPU use  90%          average · whole GPU 100% · copy engine 4.0%
                  GPU memory  42.0 GiB     peak · average 31.5 GiB · of 140 GiB
                  GPU energy *6.38 Wh      idle part *708 mWh · energy counter
                   GPU power *338 W        average · whole GPU 431 W
                 temperature  61 °C        highest · clock 1.91 GHz
                   throttled  4s           power cap
               PCIe received  2.89 GiB/s   sent 210 MiB/s

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
        "#]],
    );
}

#[test]
fn the_report_of_a_job_that_holds_and_does_not_use() {
    check_report(
        &jobs()[0],
        expect![[r#"
            80 columns
                         GPU  ░░░░░░░░░░░░░░░░░░░░░░░░░    0%  0 of 2 GPUs, average

                       GPU 0  NVIDIA H200, given by SLURM_JOB_GPUS, never used
                     GPU use  0%           average · whole GPU 0%
                  GPU memory  0 B          peak · average 0 B · of 140 GiB
                  GPU energy  2.08 Wh      idle part 2.08 Wh · energy counter
                   GPU power  110 W        average · whole GPU 110 W
                 temperature  34 °C        highest

                       GPU 1  NVIDIA H200, given by SLURM_JOB_GPUS, never used
                     GPU use  0%           average · whole GPU 0%
                  GPU memory  0 B          peak · average 0 B · of 140 GiB
                  GPU energy  2.08 Wh      idle part 2.08 Wh · energy counter
                   GPU power  110 W        average · whole GPU 110 W
                 temperature  34 °C        highest
        "#]],
    );
}

#[test]
fn the_report_of_a_gpu_with_errors() {
    check_report(
        &jobs()[3],
        expect![[r#"
            80 columns
                         GPU  ██░░░░░░░░░░░░░░░░░░░░░░░  7.0%  0.07 of 1 GPU, average

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                       GPU 3  NVIDIA H200, given by CUDA_VISIBLE_DEVICES
                     GPU use  7.0%         average · whole GPU 37% · copy engine 4.0%
                  GPU memory  42.0 GiB     peak · average 31.5 GiB · of 140 GiB
                  GPU energy *6.38 Wh      idle part *708 mWh · energy counter
                   GPU power *338 W        average · whole GPU 431 W
                 temperature  61 °C        highest · clock 1.91 GHz
                   throttled  4s           power cap
               PCIe received  2.89 GiB/s   sent 210 MiB/s
                  GPU faults  2            the last was Xid 79
               memory errors  1            not corrected · 12 corrected

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

        "#]],
    );
}

#[test]
fn the_report_of_a_gpu_that_was_never_seen_idle() {
    let gpu = GpuUse { idle_power_source: Some("bound".to_owned()), ..used("0", 0.5) };
    check_report(
        &with(sample::full(54, "train"), vec![gpu]),
        expect![[r#"
            80 columns
                         GPU  █████████████░░░░░░░░░░░░   50%  0.50 of 1 GPU, average

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                       GPU 0  NVIDIA H200, given by CUDA_VISIBLE_DEVICES
                     GPU use  50%          average · whole GPU 80% · copy engine 4.0%
                  GPU memory  42.0 GiB     peak · average 31.5 GiB · of 140 GiB
                  GPU energy *6.38 Wh      idle part ~708 mWh · energy counter
                   GPU power *338 W        average · whole GPU 431 W
                 temperature  61 °C        highest · clock 1.91 GHz
                   throttled  4s           power cap
               PCIe received  2.89 GiB/s   sent 210 MiB/s

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
        "#]],
    );
}

#[test]
fn processes_show_their_gpus() {
    let mut lines: Vec<ProcessLine> = super::sample::processes();
    lines[3].gpus = vec!["0".to_owned(), "1".to_owned()];
    lines[3].gpu_utilization = Some(1.52);
    lines[3].gpu_memory_bytes = Some(64 << 30);
    lines[4].gpus = vec!["1".to_owned()];
    lines[4].gpu_memory_bytes = Some(512 << 20);
    expect![[r#"
         PID  S  CPU %  CPU TIME    MEMORY  GPU  GPU %   GPU MEM  THREADS  COMMAND
        3113  S    0.0      10ms  1.81 MiB    -      -         -        1  sh -c 'make all && ./report'
        3114  S    0.4      1.2s  11.7 MiB    -      -         -        1  ├─ make -j8 all
        3115  R  376.4      4m4s  1.13 GiB  0,1    152  64.0 GiB       41  │  ├─ python3 train.py --label '…
        3116  Z    0.0       12s       0 B    1      -   512 MiB        1  │  └─ cc1plus
        3120  S    0.1     200ms  2.96 MiB    -      -         -        1  └─ tee $'out\x1b[2J\nlog'
        4000  D   12.5     1h01m   858 MiB    -      -         -        1  orphan
    "#]]
    .assert_eq(&ps::tree(&lines, &Style { width: Some(100), ..Style::plain() }));
}

fn job_series() -> Series {
    let mut series = Series::new(&JOB);
    for second in 0..300i64 {
        let mut cells = vec![MISSING; JOB.columns.len()];
        let busy = second % 60 < 45;
        cells[column::GPU_UTILIZATION] = if busy { 1_700 } else { 0 };
        cells[column::GPU_MEMORY] = (second.min(60) << 30) / 2;
        cells[column::GPU_POWER] = if busy { 820_000 } else { 150_000 };
        series.push(START_NS / 1_000_000 + second * 1000, &cells);
    }
    series
}

#[test]
fn gpus_over_time() {
    let drawn = plot::series(
        &job_series(),
        10_000.into(),
        &plot::Known::default(),
        &Style { width: Some(60), ..Style::plain() },
    );
    expect![[r#"
        60 columns
                     GPU use, in GPUs, peak 1.70
                  2 ┤▃▃▃▃▃▃▂   ▃▃▃▃▃▃   ▃▃▃▃▃▃    ▃▃▃▃▃▃   ▃▃▃▃▃▃
                    │███████  ▁██████   ██████▇  ▅██████   ██████▃
                    │███████  ███████▃  ███████  ███████  ▁███████
                    │███████▁ ████████ ▅███████  ███████▇ ████████
                  0 ┼───────────────────────────────────────────────
                     GPU memory, peak 30.0 GiB
           30.0 GiB ┤       ▁▄▇█████████████████████████████████████
                    │     ▂▆████████████████████████████████████████
                    │   ▃▇██████████████████████████████████████████
                    │▁▅█████████████████████████████████████████████
                  0 ┼───────────────────────────────────────────────
                     GPU power, peak 820 W
             1000 W ┤▂▂▂▂▂▂▁   ▂▂▂▂▂▂   ▂▂▂▂▂▂    ▂▂▂▂▂▂   ▂▂▂▂▂▂
                    │███████  ▂██████   ██████▇  ▅██████   ██████▄
                    │███████  ███████▅ ▁███████  ███████▃ ▄███████
                    │███████▅▄████████▄████████▄▄████████▄████████▄▄
                  0 ┼───────────────────────────────────────────────
                     16:40:44           16:43:13            16:45:43
    "#]]
    .assert_eq(&format!("60 columns\n{drawn}"));
}

#[test]
fn a_whole_gpu_over_time_with_a_time_in_which_it_was_lost() {
    let mut series = Series::new(&device::TABLE);
    for second in (0..300i64).filter(|second| !(120..180).contains(second)) {
        let mut cells = vec![MISSING; device::TABLE.columns.len()];
        cells[device::UTILIZATION] = 500 + second;
        cells[device::POWER] = 300_000 + second * 1000;
        series.push(START_NS / 1_000_000 + second * 1000, &cells);
    }
    let drawn = plot::gpu(&series, "1", 10_000.into(), &Style { width: Some(60), ..Style::plain() });
    expect![[r#"
        60 columns
                     GPU 1, all jobs: use, peak 80%
                80% ┤                            ▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇
                    │▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇███         ███████████████████
                    │███████████████████         ███████████████████
                    │███████████████████         ███████████████████
                  0 ┼───────────────────         ───────────────────
                     GPU 1, all jobs: power, peak 599 W
              600 W ┤                            ▁▂▂▂▃▃▃▄▄▄▅▅▅▆▆▆▇▇▇
                    │   ▁▁▁▂▂▂▃▃▃▄▄▄▅▅▅▆         ███████████████████
                    │███████████████████         ███████████████████
                    │███████████████████         ███████████████████
                  0 ┼───────────────────         ───────────────────
                     16:40:44           16:43:13            16:45:43
                     gaps: no samples
    "#]]
    .assert_eq(&format!("60 columns\n{drawn}"));
}

#[test]
fn since_when_a_gpu_idles_is_reported_in_the_readers_zone_and_not_cut() {
    let mut gpu = used("0", 0.4);
    gpu.idle_since_ns = Some(START_NS + 30 * SECOND_NS);
    gpu.held_by = "CUDA_VISIBLE_DEVICES (as opened)".to_owned().into();
    let record = with(sample::full(12, "train"), vec![gpu]);
    let shown = report(&record, Machine::default(), NOW_NS);
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(9));
    let drawn = super::report::render(&shown, &Style { width: Some(80), zone, ..Style::plain() });
    let from = drawn.lines().position(|line| line.contains("GPU 0")).unwrap();
    let heading: Vec<&str> = drawn.lines().skip(from).take(2).map(str::trim_start).collect();
    let words = "GPU 0  NVIDIA H200, given by CUDA_VISIBLE_DEVICES (as opened)";
    assert_eq!(heading, [words, "idle since 2026-01-15 01:41:14"], "{drawn}");
}

#[test]
fn gpus_are_not_drawn_through_a_time_in_which_nobody_looked() {
    let mut series = Series::new(&JOB);
    let mut cells = vec![MISSING; JOB.columns.len()];
    for second in (0..20).chain(31..50) {
        (cells[column::GPU_POWER], cells[column::CPU]) = (400_000, second * SECOND_NS);
        series.push(second * 1000, &cells);
    }
    let drawn = plot::series(
        &series,
        25_000.into(),
        &plot::Known::default(),
        &Style { width: Some(60), ..Style::plain() },
    );
    let axis = |title: &str| {
        let below = drawn.lines().skip_while(|line| !line.contains(title));
        below.take(6).last().unwrap_or_default().trim_end().to_owned()
    };
    assert!(axis("GPU power").contains("─ "), "{drawn}");
    // What a counter has grown by meanwhile is known.
    assert!(!axis("CPU cores").contains("─ "), "{drawn}");
}
