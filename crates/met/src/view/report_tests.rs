use expect_test::{Expect, expect};
use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_insight::report::{Machine, report};

use super::tables::bar;
use super::*;
use met_core::sample;

fn draw(record: &Record, style: &Style) -> String {
    render(&report(record, Machine { cpus: Some(8) }, sample::NOW_NS), style)
}

fn check(record: &Record, width: usize, expected: Expect) {
    let drawn = draw(record, &Style { width: Some(width), ..Style::plain() });
    for line in drawn.lines() {
        assert!(text::width(line) <= width.min(80), "{line}");
    }
    expected.assert_eq(&drawn);
}

#[test]
fn everything_known_at_60() {
    check(
        &sample::full(42, "train"),
        60,
        expect![[r#"
            Job 42  train                          finished, exit code 0
            ────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first
                              try'
                        user  alice
                        node  n1
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                         CPU  ████░░░░   47%  3.76 of 8 cores, average
                      memory  █░░░░░░░  7.6%  1.21 GiB of 16.0 GiB, peak

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds
                                           runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary
                                           12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time
                                           all tasks 3.1%
        "#]],
    );
}

#[test]
fn everything_known_at_80() {
    check(
        &sample::full(42, "train"),
        80,
        expect![[r#"
            Job 42  train                                              finished, exit code 0
            ────────────────────────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first try'
                        user  alice
                        node  n1
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                         CPU  ████████████░░░░░░░░░░░░░   47%  3.76 of 8 cores, average
                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░  7.6%  1.21 GiB of 16.0 GiB, peak

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time · all tasks 3.1%
        "#]],
    );
}

#[test]
fn a_job_of_a_manager_at_80() {
    check(
        &sample::scheduled(),
        80,
        expect![[r#"
            Job slurm:1234_7  train                                                  timeout
            ────────────────────────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first try'
                     manager  slurm on tux
                        user  alice, account physics
                   partition  batch, QOS normal
                       array  element 7 of 1234, id 1240
                    restarts  1
                      reason  TimeLimit
                        node  n1
               manager state  TIMEOUT
                  queued for  1h30m30s
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                              requested   allocated   used        share
                        CPUs  4           6           3.76        63%
                      memory  4.00 GiB    4.00 GiB    1.21 GiB    30%
                        GPUs  1           1           -
                        time  1m0s        -           1m8.3s      114%

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time · all tasks 3.1%

                   step       CPU time    memory  duration  exit
                   batch          5.4s  25.7 MiB         -     -
                   0           4m11.5s  1.17 GiB      1m1s   143  solve\x1b[2J
                   0, task 0      2m0s   572 MiB      1m1s     0
                   0, task 1   2m11.5s   627 MiB      1m1s   143
        "#]],
    );
}

#[test]
fn a_job_of_a_manager_at_60() {
    check(
        &sample::scheduled(),
        60,
        expect![[r#"
            Job slurm:1234_7  train                              timeout
            ────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first
                              try'
                     manager  slurm on tux
                        user  alice, account physics
                   partition  batch, QOS normal
                       array  element 7 of 1234, id 1240
                    restarts  1
                      reason  TimeLimit
                        node  n1
               manager state  TIMEOUT
                  queued for  1h30m30s
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                              requested   allocated   used        share
                        CPUs  4           6           3.76        63%
                      memory  4.00 GiB    4.00 GiB    1.21 GiB    30%
                        GPUs  1           1           -
                        time  1m0s        -           1m8.3s      114%

                    CPU time  4m16.9s      user 4m3.8s · system 13.1s
                       cores  3.76         average · peak 7.91
                      waited  4.18s        thread-seconds
                                           runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary
                                           12,004 preempted

               memory needed  1.21 GiB     peak · average 963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time
                                           all tasks 3.1%

                   step       CPU time    memory  duration  exit
                   batch          5.4s  25.7 MiB         -     -
                   0           4m11.5s  1.17 GiB      1m1s   143  solve…
                   0, task 0      2m0s   572 MiB      1m1s     0
                   0, task 1   2m11.5s   627 MiB      1m1s   143
        "#]],
    );
}

#[test]
fn steps_beyond_a_screen_are_counted() {
    let mut record = sample::scheduled();
    let part = record.parts[3].clone();
    record.parts =
        (0..30).map(|step| met_core::job::Part { step: step.to_string(), ..part.clone() }).collect();
    let terminal = draw(&record, &Style { width: Some(80), ..Style::plain() });
    assert!(terminal.contains("10 more; --json has all"), "{terminal}");
    assert!(draw(&record, &Style::plain()).contains("\n            29  "));
}

#[test]
fn steps_without_a_line_of_their_own_are_counted() {
    let mut record = sample::scheduled();
    for of_tasks in [false, true] {
        let mut others = met_core::job::Part::others("n1".to_owned(), of_tasks);
        (0..3000).for_each(|_| others.take_in(&record.parts[3]));
        record.parts.push(others);
    }
    let shown = draw(&record, &Style::plain());
    for what in ["3000 other steps", "3000 other tasks"] {
        assert!(shown.contains(what), "{shown}");
    }
}

#[test]
fn a_wide_terminal_does_not_stretch_the_page() {
    let [at_80, at_120] = [80, 120]
        .map(|width| draw(&sample::full(42, "train"), &Style { width: Some(width), ..Style::plain() }));
    assert_eq!(at_80, at_120);
}

#[test]
fn what_is_not_certain_is_marked_and_explained() {
    check(
        &sample::uncertain(),
        80,
        expect![[r#"
            Job 7  server                              failed, killed by signal 11 (SIGSEGV)
            ────────────────────────────────────────────────────────────────────────────────
                     command  python3 train.py --epochs 3 --label 'first try'
                        user  alice
                        node  n1
                     started  2026-01-14 16:40:44 to 16:41:52
                    duration  1m8.3s

                         CPU  ████████████░░░░░░░░░░░░░   47%  ≥3.76 of 8 cores, average
                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░  7.6%  ~1.21 GiB of 16.0 GiB, peak

                    CPU time ≥4m16.9s      user ≥4m3.8s · system ≥13.1s
                       cores ≥3.76         average · peak 7.91
                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed ~1.21 GiB     peak · average ~963 MiB
                       cache  2.70 GiB     average · reclaimable
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.3 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     138 MiB/s
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

            - still running: redis-server (3120), tail\x1b[31m (3121)
            ~ estimated   ≥ at least this much
        "#]],
    );
}

#[test]
fn energy_is_reported_by_part_with_its_meter_its_factor_and_its_price() {
    let energy = |kind| {
        let drawn = draw(&sample::charged(1, kind), &Style::plain());
        drawn[drawn.find("          energy").unwrap()..].to_owned()
    };
    expect![[r#"
                  energy *2.50 Wh      *132 W average · RAPL, by CPU time
               idle part *500 mWh      for CPUs and GPUs that the job holds
              CPU energy *2.00 Wh
           memory energy *300 mWh
            other energy *200 mWh      board, fans, disks, power supply
               emissions *85.0 mg      CO2e at 34 g/kWh, rte eco2mix
                    cost *0.000525     EUR at 0.21 per kWh

        * share of an energy meter
    "#]]
    .assert_eq(&energy(QualityKind::Attributed));
    expect![[r#"
                  energy ~2.50 Wh      ~132 W average · RAPL, by CPU time
               idle part ~500 mWh      for CPUs and GPUs that the job holds
              CPU energy ~2.00 Wh
           memory energy ~300 mWh
            other energy ~200 mWh      board, fans, disks, power supply
               emissions ~85.0 mg      CO2e at 34 g/kWh, rte eco2mix
                    cost ~0.000525     EUR at 0.21 per kWh

        - no energy meter could be read; see `met doctor`
        ~ estimated
    "#]]
    .assert_eq(&energy(QualityKind::Estimated));
}

#[test]
fn what_is_not_known_is_left_out() {
    check(
        &sample::bare(1, "x"),
        80,
        expect![[r#"
        Job 1  x                                                                 running
        ────────────────────────────────────────────────────────────────────────────────
                 command  x
                    user  alice
                    node  n1
                 started  2026-01-14 17:39:36
             running for  1m8s
    "#]],
    );
}

#[test]
fn a_long_command_and_a_hostile_name_stay_in_their_place() {
    let mut record = sample::bare(1, "evil\n\x1b]0;title\x07name-that-goes-on-and-on-and-on-and-on-and-on");
    record.command = (0..60).map(|index| format!("argument-{index}")).collect();
    record.totals = sample::full(1, "x").totals;
    record.totals.remove(column::CPU);
    check(
        &record,
        80,
        expect![[r#"
            Job 1  evil\n\x1b]0;title\x07name-that-goes-on-and-on-and-on-and-on-an…  running
            ────────────────────────────────────────────────────────────────────────────────
                     command  argument-0 argument-1 argument-2 argument-3 argument-4
                              argument-5 argument-6 argument-7 argument-8 argument-9
                              argument-10 argument-11 argument-12 argument-13 argument-14  …
                        user  alice
                        node  n1
                     started  2026-01-14 17:39:36
                 running for  1m8s

                      memory  ██░░░░░░░░░░░░░░░░░░░░░░░  7.6%  1.21 GiB of 16.0 GiB, peak

                      waited  4.18s        thread-seconds · runnable, waiting for a CPU
                    switches  57,214       45,210 voluntary · 12,004 preempted

               memory needed  1.21 GiB     peak
             peak with cache  4.70 GiB
                 page faults  2,345,990    2,345,678 minor · 312 major

                        read  3.22 GiB     from storage · 48.5 MiB/s
                     written  700 MiB      to storage · 10.3 MiB/s
                  read calls  9.20 GiB     139 MiB/s · 1,204,117 calls
                 write calls  775 MiB      11.4 MiB/s · 98,123 calls

                   processes  23           total · 9 at once
                     threads  41           at once

                CPU pressure  6.9s         10% of the time
             memory pressure  0s           0% of the time
                I/O pressure  9.42s        14% of the time · all tasks 3.1%
        "#]],
    );
}

#[test]
fn colours_and_plain_characters() {
    let record = sample::uncertain();
    let colored = draw(&record, &Style { color: true, ..Style::plain() });
    let head: Vec<&str> = colored.lines().take(12).collect();
    expect![[r#"
        ESC[1mJob 7ESC[0m  ESC[1mserverESC[0m                              ESC[31mfailed, killed by signal 11 (SIGSEGV)ESC[0m
        ESC[2m────────────────────────────────────────────────────────────────────────────────ESC[0m
        ESC[2m         commandESC[0m  python3 train.py --epochs 3 --label 'first try'
        ESC[2m            userESC[0m  alice
        ESC[2m            nodeESC[0m  n1
        ESC[2m         startedESC[0m  2026-01-14 16:40:44 to 16:41:52
        ESC[2m        durationESC[0m  1m8.3s

        ESC[2m             CPUESC[0m  ESC[36m████████████ESC[0mESC[2m░░░░░░░░░░░░░ESC[0m   47%  ≥3.76 of 8 cores, average
        ESC[2m          memoryESC[0m  ESC[36m██ESC[0mESC[2m░░░░░░░░░░░░░░░░░░░░░░░ESC[0m  7.6%  ~1.21 GiB of 16.0 GiB, peak

        ESC[2m        CPU timeESC[0m ≥4m16.9s      ESC[2muser ≥4m3.8s · system ≥13.1sESC[0m"#]].assert_eq(&head.join("\n").replace('\x1b', "ESC"));
    let plain = draw(&record, &Style { ascii: true, ..Style::plain() });
    assert!(plain.is_ascii(), "{plain}");
}

#[test]
fn a_bar_is_empty_only_for_nothing_and_full_only_for_all() {
    let bars = [0.0, 0.001, 0.06, 0.5, 1.0, 7.0].map(|share| bar(share, 10));
    assert_eq!(bars, ["", "▏", "█", "█████", "██████████", "██████████"]);
}
