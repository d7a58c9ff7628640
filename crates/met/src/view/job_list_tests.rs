use expect_test::{Expect, expect};

use super::columns::sorted_by;
use super::*;
use met_core::job_table as column;
use met_core::sample;

fn check(view: View, width: usize, expected: Expect) {
    let style = Style { width: Some(width), ..Style::plain() };
    let drawn = list(&sample::several(), view, None, sample::NOW_NS, &style);
    for line in drawn.lines() {
        assert!(text::width(line) <= width, "{line}");
    }
    expected.assert_eq(&drawn);
}

#[test]
fn energy_has_units_and_estimates_are_marked() {
    let records = [
        sample::charged(1, QualityKind::Attributed),
        sample::charged(2, QualityKind::Estimated),
        sample::bare(3, "x"),
    ];
    for (width, expected) in [
        (
            80,
            expect![[r#"
                JOB  NAME   STATE       ENERGY       IDLE      CO2E           COST  DURATION
                1    train  finished   2.50 Wh   0.500 Wh   85.0 mg   0.000525 EUR      1m8s
                2    train  finished  ~2.50 Wh  ~0.500 Wh  ~85.0 mg  ~0.000525 EUR      1m8s
                3    x      running          -          -         -              -      1m8s
                ~ estimated
            "#]],
        ),
        (
            140,
            expect![[r#"
                JOB  NAME   STATE       ENERGY       CPU     MEMORY       REST       IDLE      CO2E           COST  QUALITY     DURATION
                1    train  finished   2.50 Wh   2.00 Wh   0.300 Wh   0.200 Wh   0.500 Wh   85.0 mg   0.000525 EUR  attributed      1m8s
                2    train  finished  ~2.50 Wh  ~2.00 Wh  ~0.300 Wh  ~0.200 Wh  ~0.500 Wh  ~85.0 mg  ~0.000525 EUR  estimated       1m8s
                3    x      running          -         -          -          -          -         -              -  -               1m8s
                ~ estimated
            "#]],
        ),
    ] {
        let style = Style { width: Some(width), ..Style::plain() };
        expected.assert_eq(&list(&records, View::Energy, None, sample::NOW_NS, &style));
    }
    expect![[r#"
            job,manager,name,user,state,energy_joules,energy_cpu_joules,energy_memory_joules,gpu_energy_joules,energy_rest_joules,energy_idle_joules,emissions_grams,cost_money,energy_quality,wall_seconds
            1,local,train,alice,finished,9000,7200,1080,,720,1800,0.085,0.000525,attributed,68.25
        "#]].assert_eq(&csv(&records[..1], View::Energy, sample::NOW_NS).replace('\r', ""));
}

/// Two jobs that were not measured to their end, on a machine without cgroups.
fn doubtful() -> Vec<Record> {
    let mut records = vec![sample::full(1, "attached"), sample::full(2, "train")];
    let totals = &mut records[0].totals;
    let known: Vec<(usize, i64)> = totals.iter().map(|(column, figure)| (column, figure.value)).collect();
    for (index, value) in known {
        let kind = match index {
            column::MEMORY_NEEDED_PEAK => QualityKind::Estimated,
            _ => QualityKind::LowerBound,
        };
        totals.set(index, value, kind, "/proc");
    }
    records
}

#[test]
fn lower_bounds_and_estimates_are_marked_in_every_list() {
    let drawn = |view| {
        let style = Style { width: Some(120), ..Style::plain() };
        list(&doubtful(), view, None, sample::NOW_NS, &style)
    };
    expect![[r#"
        JOB  NAME      STATE     CORES     MEMORY       READ   WRITTEN  DURATION   STARTED
        1    attached  finished  ≥3.76  ~1.21 GiB  ≥3.22 GiB  ≥700 MiB      1m8s  16:40:44
        2    train     finished   3.76   1.21 GiB   3.22 GiB   700 MiB      1m8s  16:40:44
        ~ estimated   ≥ at least this much
    "#]]
    .assert_eq(&drawn(View::Jobs));
    expect![[r#"
        ┌─────┬──────┬──────────────┬─────────────┬─────────────┬──────────┬──────────┐
        │ JOB │ PPID │ PROCESS NAME │ CPU % (AVG) │ MEM % (AVG) │ STATUS   │ DURATION │
        ├─────┼──────┼──────────────┼─────────────┼─────────────┼──────────┼──────────┤
        │ 1   │ 3113 │ attached     │ ≥376.41%    │ ~5.88%      │ Finished │ 1m8s     │
        │ 2   │ 3113 │ train        │ 376.41%     │ 5.88%       │ Finished │ 1m8s     │
        └─────┴──────┴──────────────┴─────────────┴─────────────┴──────────┴──────────┘
        ~ estimated   ≥ at least this much
    "#]]
    .assert_eq(&drawn(View::Cpu));
    expect![[r#"
        JOB  NAME      STATE          READ   WRITTEN     READ/S  WRITTEN/S  READ CALLS  WRITE CALLS  DURATION
        1    attached  finished  ≥3.22 GiB  ≥700 MiB  ≥48.3 MiB  ≥10.3 MiB   ≥9.20 GiB     ≥775 MiB      1m8s
        2    train     finished   3.22 GiB   700 MiB   48.3 MiB   10.3 MiB    9.20 GiB      775 MiB      1m8s
        ≥ at least this much
    "#]]
    .assert_eq(&drawn(View::Io));
    expect![[r#"
        JOB  NAME      STATE      AVERAGE       PEAK  OF NODE     CACHE  WITH CACHE  MAJOR FAULTS  DURATION
        1    attached  finished  ~963 MiB  ~1.21 GiB    ~5.9%  2.70 GiB   ≥4.70 GiB          ≥312      1m8s
        2    train     finished   963 MiB   1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312      1m8s
        ~ estimated   ≥ at least this much
    "#]]
    .assert_eq(&drawn(View::Mem));
    expect![[r#"
        JOB  NAME      USER   STATE     EXIT  CORES  CPU TIME     MEMORY  OF NODE       READ   WRITTEN  DURATION   STARTED
        1    attached  alice  finished     0  ≥3.76    ≥4m17s  ~1.21 GiB    ~5.9%  ≥3.22 GiB  ≥700 MiB      1m8s  16:40:44
        2    train     alice  finished     0   3.76     4m17s   1.21 GiB     5.9%   3.22 GiB   700 MiB      1m8s  16:40:44
        ~ estimated   ≥ at least this much
    "#]].assert_eq(&drawn(View::All));
    // A program gets numbers, and a pipe lines of jobs alone.
    let csv = csv(&doubtful(), View::All, sample::NOW_NS);
    assert!(!csv.contains(['~', '≥']), "{csv}");
    assert_eq!(list(&doubtful(), View::Jobs, None, sample::NOW_NS, &Style::plain()).lines().count(), 3);
}

#[test]
fn energy_has_one_unit_in_a_column() {
    let scaled = |id, factor: f64| {
        let mut record = sample::charged(id, QualityKind::Attributed);
        let known: Vec<_> = record.totals.iter().map(|(column, figure)| (column, figure.clone())).collect();
        for (index, figure) in known.into_iter().filter(|&(index, _)| index != column::WALL) {
            record.totals.set(index, (figure.value as f64 * factor) as i64, figure.kind, figure.source);
        }
        record
    };
    let records = [scaled(1, 0.0001), scaled(2, 1.0), scaled(3, 3.0), scaled(4, 5000.0)];
    let style = Style { width: Some(100), ..Style::plain() };
    expect![[r#"
        JOB  NAME   STATE        ENERGY        CPU       IDLE      CO2E             COST  DURATION
        1    train  finished  <0.001 Wh  <0.001 Wh  <0.001 Wh  <0.001 g  0.000000052 EUR      1m8s
        2    train  finished    2.50 Wh    2.00 Wh   0.500 Wh   0.085 g     0.000525 EUR      1m8s
        3    train  finished    7.50 Wh    6.00 Wh    1.50 Wh   0.255 g      0.00158 EUR      1m8s
        4    train  finished  12,500 Wh  10,000 Wh   2,500 Wh     425 g         2.62 EUR      1m8s
    "#]]
    .assert_eq(&list(&records, View::Energy, None, sample::NOW_NS, &style));
}

#[test]
fn jobs_at_60() {
    check(
        View::Jobs,
        60,
        expect![[r#"
            JOB  NAME                     STATE          CORES  DURATION
            41   some_job                 running         3.76      1m8s
            42   train                    finished        3.76      1m8s
            43   convert-the-whole-arch…  failed (3)      3.76      1m8s
            44   evil\n\x1b[2J\u202ename  out of memory    734     350ms
            45   größe 大きい             lost               -         -
        "#]],
    );
}

#[test]
fn jobs_at_80() {
    check(
        View::Jobs,
        80,
        expect![[r#"
            JOB  NAME            STATE          CORES    MEMORY      READ  WRITTEN  DURATION
            41   some_job        running         3.76         -         -        -      1m8s
            42   train           finished        3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            43   convert-the-w…  failed (3)      3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            44   evil\n\x1b[2J…  out of memory    734  1.21 GiB  3.22 GiB  700 MiB     350ms
            45   größe 大きい    lost               -         -         -        -         -
        "#]],
    );
}

#[test]
fn jobs_at_120() {
    check(
        View::Jobs,
        120,
        expect![[r#"
            JOB  NAME                                       STATE          CORES    MEMORY      READ  WRITTEN  DURATION   STARTED
            41   some_job                                   running         3.76         -         -        -      1m8s  17:39:36
            42   train                                      finished        3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
            43   convert-the-whole-archive-to-parquet-2026  failed (3)      3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
            44   evil\n\x1b[2J\u202ename                    out of memory    734  1.21 GiB  3.22 GiB  700 MiB     350ms  16:40:44
            45   größe 大きい                               lost               -         -         -        -         -  17:39:36
        "#]],
    );
}

#[test]
fn cpu_at_60() {
    check(
        View::Cpu,
        60,
        expect![[r#"
            ┌─────┬────────────────────────┬───────────┬───────────────┐
            │ JOB │ PROCESS NAME           │ CPU %     │ STATUS        │
            ├─────┼────────────────────────┼───────────┼───────────────┤
            │ 41  │ some_job               │ 376.41%   │ Active        │
            │ 42  │ train                  │ 376.41%   │ Finished      │
            │ 43  │ convert-the-whole-arc… │ 376.41%   │ Failed (3)    │
            │ 44  │ evil\n\x1b[2J\u202ena… │ 73400.00% │ Out of memory │
            │ 45  │ größe 大きい           │ -         │ Lost          │
            └─────┴────────────────────────┴───────────┴───────────────┘
        "#]],
    );
}

#[test]
fn cpu_at_80() {
    check(
        View::Cpu,
        80,
        expect![[r#"
            ┌─────┬──────┬──────────────────┬───────────┬───────┬───────────────┬──────────┐
            │ JOB │ PPID │ PROCESS NAME     │ CPU %     │ MEM % │ STATUS        │ DURATION │
            ├─────┼──────┼──────────────────┼───────────┼───────┼───────────────┼──────────┤
            │ 41  │ 3113 │ some_job         │ 376.41%   │ 0.01% │ Active        │ 1m8s     │
            │ 42  │ 3113 │ train            │ 376.41%   │ 5.88% │ Finished      │ 1m8s     │
            │ 43  │ 3113 │ convert-the-who… │ 376.41%   │ 5.88% │ Failed (3)    │ 1m8s     │
            │ 44  │ 3113 │ evil\n\x1b[2J\u… │ 73400.00% │ 5.88% │ Out of memory │ 350ms    │
            │ 45  │ 3113 │ größe 大きい     │ -         │ -     │ Lost          │ -        │
            └─────┴──────┴──────────────────┴───────────┴───────┴───────────────┴──────────┘
        "#]],
    );
}

#[test]
fn cpu_at_120() {
    check(
        View::Cpu,
        120,
        expect![[r#"
            ┌─────┬──────┬───────────────────────────────────────────┬─────────────┬─────────────┬───────────────┬──────────┐
            │ JOB │ PPID │ PROCESS NAME                              │ CPU % (AVG) │ MEM % (AVG) │ STATUS        │ DURATION │
            ├─────┼──────┼───────────────────────────────────────────┼─────────────┼─────────────┼───────────────┼──────────┤
            │ 41  │ 3113 │ some_job                                  │ 376.41%     │ 0.01%       │ Active        │ 1m8s     │
            │ 42  │ 3113 │ train                                     │ 376.41%     │ 5.88%       │ Finished      │ 1m8s     │
            │ 43  │ 3113 │ convert-the-whole-archive-to-parquet-2026 │ 376.41%     │ 5.88%       │ Failed (3)    │ 1m8s     │
            │ 44  │ 3113 │ evil\n\x1b[2J\u202ename                   │ 73400.00%   │ 5.88%       │ Out of memory │ 350ms    │
            │ 45  │ 3113 │ größe 大きい                              │ -           │ -           │ Lost          │ -        │
            └─────┴──────┴───────────────────────────────────────────┴─────────────┴─────────────┴───────────────┴──────────┘
        "#]],
    );
}

#[test]
fn io_at_80_and_120() {
    check(
        View::Io,
        80,
        expect![[r#"
            JOB  NAME                   STATE              READ  WRITTEN    READ/S  DURATION
            41   some_job               running               -        -         -      1m8s
            42   train                  finished       3.22 GiB  700 MiB  48.3 MiB      1m8s
            43   convert-the-whole-ar…  failed (3)     3.22 GiB  700 MiB  48.3 MiB      1m8s
            44   evil\n\x1b[2J\u202en…  out of memory  3.22 GiB  700 MiB  9.20 GiB     350ms
            45   größe 大きい           lost                  -        -         -         -
        "#]],
    );
    check(
        View::Io,
        120,
        expect![[r#"
            JOB  NAME                       STATE              READ  WRITTEN    READ/S  WRITTEN/S  READ CALLS  WRITE CALLS  DURATION
            41   some_job                   running               -        -         -          -           -            -      1m8s
            42   train                      finished       3.22 GiB  700 MiB  48.3 MiB   10.3 MiB    9.20 GiB      775 MiB      1m8s
            43   convert-the-whole-archiv…  failed (3)     3.22 GiB  700 MiB  48.3 MiB   10.3 MiB    9.20 GiB      775 MiB      1m8s
            44   evil\n\x1b[2J\u202ename    out of memory  3.22 GiB  700 MiB  9.20 GiB   1.95 GiB    9.20 GiB      775 MiB     350ms
            45   größe 大きい               lost                  -        -         -          -           -            -         -
        "#]],
    );
}

#[test]
fn mem_at_80_and_120() {
    check(
        View::Mem,
        80,
        expect![[r#"
            JOB  NAME                   STATE           AVERAGE      PEAK  OF NODE  DURATION
            41   some_job               running        1.62 MiB         -    <0.1%      1m8s
            42   train                  finished        963 MiB  1.21 GiB     5.9%      1m8s
            43   convert-the-whole-ar…  failed (3)      963 MiB  1.21 GiB     5.9%      1m8s
            44   evil\n\x1b[2J\u202en…  out of memory   963 MiB  1.21 GiB     5.9%     350ms
            45   größe 大きい           lost                  -         -        -         -
        "#]],
    );
    check(
        View::Mem,
        120,
        expect![[r#"
            JOB  NAME                       STATE           AVERAGE      PEAK  OF NODE     CACHE  WITH CACHE  MAJOR FAULTS  DURATION
            41   some_job                   running        1.62 MiB         -    <0.1%         -           -             -      1m8s
            42   train                      finished        963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312      1m8s
            43   convert-the-whole-archiv…  failed (3)      963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312      1m8s
            44   evil\n\x1b[2J\u202ename    out of memory   963 MiB  1.21 GiB     5.9%  2.70 GiB    4.70 GiB           312     350ms
            45   größe 大きい               lost                  -         -        -         -           -             -         -
        "#]],
    );
}

#[test]
fn all_at_120() {
    check(
        View::All,
        120,
        expect![[r#"
            JOB  NAME                USER   STATE              EXIT  CORES  CPU TIME    MEMORY  OF NODE      READ  WRITTEN  DURATION
            41   some_job            alice  running               -   3.76     4m16s         -    <0.1%         -        -      1m8s
            42   train               alice  finished              0   3.76     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB      1m8s
            43   convert-the-whole…  alice  failed (3)            3   3.76     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB      1m8s
            44   evil\n\x1b[2J\u20…  alice  out of memory  signal 9    734     4m17s  1.21 GiB     5.9%  3.22 GiB  700 MiB     350ms
            45   größe 大きい        alice  lost                  -      -         -         -        -         -        -         -
        "#]],
    );
}

#[test]
fn no_line_is_wrapped_and_no_job_is_lost_at_any_width() {
    for width in 20..130 {
        let style = Style { width: Some(width), ..Style::plain() };
        for view in <View as clap::ValueEnum>::value_variants().iter().copied() {
            let drawn = list(&sample::several(), view, None, sample::NOW_NS, &style);
            assert_eq!(drawn.lines().filter(|line| line.contains("4")).count(), 5, "{drawn}");
            // Below that the job, its name and its state alone are wider.
            if width >= 50 {
                assert!(drawn.lines().all(|line| text::width(line) <= width), "{width}\n{drawn}");
            }
        }
    }
}

#[test]
fn the_columns_of_the_older_tool_are_all_there_in_a_pipe() {
    let drawn = list(&sample::several()[..1], View::Cpu, None, sample::NOW_NS, &Style::plain());
    expect![[r#"
            ┌─────┬──────┬──────────────┬─────────────┬─────────────┬────────┬──────────┐
            │ JOB │ PPID │ PROCESS NAME │ CPU % (AVG) │ MEM % (AVG) │ STATUS │ DURATION │
            ├─────┼──────┼──────────────┼─────────────┼─────────────┼────────┼──────────┤
            │ 41  │ 3113 │ some_job     │ 376.41%     │ 0.01%       │ Active │ 1m8s     │
            └─────┴──────┴──────────────┴─────────────┴─────────────┴────────┴──────────┘
        "#]]
    .assert_eq(&drawn);
}

#[test]
fn nothing_is_cut_in_a_pipe() {
    let mut record = sample::full(1, &"long".repeat(60));
    record.command = vec!["x".repeat(300)];
    let drawn = list(&[record], View::All, None, sample::NOW_NS, &Style::plain());
    assert!(drawn.contains(&"long".repeat(60)) && drawn.contains(&"x".repeat(300)), "{drawn}");
    assert!(!drawn.contains('…'));
}

#[test]
fn why_a_job_failed_is_said_in_a_pipe_too() {
    for view in [View::Jobs, View::Io, View::Mem, View::All] {
        let drawn = list(&sample::several(), view, None, sample::NOW_NS, &Style::plain());
        assert!(drawn.contains("failed (3)"), "{drawn}");
    }
}

#[test]
fn room_that_a_column_leaves_is_given_to_names() {
    let mut records = sample::several();
    (records[0].key.manager, records[0].key.id) = ("session".to_owned(), "rest-0".to_owned());
    records[0].name = "short processes".to_owned();
    for width in [60, 80] {
        let style = Style { width: Some(width), ..Style::plain() };
        let drawn = list(&records[..2], View::Jobs, None, sample::NOW_NS, &style);
        let used = drawn.lines().map(text::width).max().unwrap_or(0);
        assert!(!drawn.contains('…') || used + 1 >= width, "cut with room left: {used} of {width}\n{drawn}");
    }
}

#[test]
fn users_are_named_where_there_are_several() {
    let mut records = sample::several();
    records[1].user = Some("bob".to_owned());
    let style = Style { width: Some(120), ..Style::plain() };
    let drawn = list(&records[..2], View::Jobs, None, sample::NOW_NS, &style);
    expect![[r#"
            JOB  NAME      USER   STATE     CORES    MEMORY      READ  WRITTEN  DURATION   STARTED
            41   some_job  alice  running    3.76         -         -        -      1m8s  17:39:36
            42   train     bob    finished   3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s  16:40:44
        "#]]
    .assert_eq(&drawn);
}

#[test]
fn jobs_of_managers_are_named_with_their_manager() {
    let mut pending = sample::scheduled();
    pending.state = State::Pending;
    (pending.start_ns, pending.end_ns) = (None, None);
    (pending.totals, pending.summaries) = Default::default();
    pending.key.id = "1250".to_owned();
    pending.scheduling.alias = Some("1250+1".to_owned());
    let records = [pending, sample::scheduled(), sample::full(42, "train")];
    let draw = |view, width| list(&records, view, None, sample::NOW_NS, &Style { width, ..Style::plain() });
    expect![[r#"
            JOB           NAME   STATE     CORES    MEMORY      READ  WRITTEN  DURATION
            slurm:1250+1  train  pending       -         -         -        -         -
            slurm:1234_7  train  timeout    3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
            42            train  finished   3.76  1.21 GiB  3.22 GiB  700 MiB      1m8s
        "#]]
    .assert_eq(&draw(View::Jobs, Some(80)));
    expect![[r#"
            JOB           NAME   USER   ACCOUNT  PARTITION  STATE     EXIT  CORES  CPU TIME    MEMORY  REQUESTED  OF NODE  WITH CACHE      READ  WRITTEN  READ CALLS  WRITE CALLS  PROCESSES  THREADS  QUEUED  DURATION   STARTED  COMMAND
            slurm:1250+1  train  alice  physics  batch      pending      -      -         -         -   4.00 GiB        -           -         -        -           -            -          -        -   2h30m         -         -  python3 train.py --epochs 3 --label 'first try'
            slurm:1234_7  train  alice  physics  batch      timeout      -   3.76     4m17s  1.21 GiB   4.00 GiB     5.9%    4.70 GiB  3.22 GiB  700 MiB    9.20 GiB      775 MiB         23       41   1h30m      1m8s  16:40:44  python3 train.py --epochs 3 --label 'first try'
            42            train  alice  -        -          finished     0   3.76     4m17s  1.21 GiB          -     5.9%    4.70 GiB  3.22 GiB  700 MiB    9.20 GiB      775 MiB         23       41       -      1m8s  16:40:44  python3 train.py --epochs 3 --label 'first try'
        "#]].assert_eq(&draw(View::All, None));
    let csv = csv(&records, View::All, sample::NOW_NS);
    let columns: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').take(20).collect()).collect();
    expect![[r#"
            job,manager,name,user,account,partition,state,exit,cores,cpu_seconds,memory_needed_peak_bytes,requested_memory_bytes,memory_ratio,memory_peak_bytes,read_bytes,written_bytes,read_call_bytes,write_call_bytes,processes,threads_peak
            slurm:1250+1,slurm,train,alice,physics,batch,pending,,,,,4294967296,,,,,,,,
            slurm:1234_7,slurm,train,alice,physics,batch,timeout,,3.7641025641025636,256.9,1299227608,4294967296,0.05878973752260208,5046586572,3456789012,734003200,9876543210,812646400,23,41
            42,local,train,alice,,,finished,0,3.7641025641025636,256.9,1299227608,,0.05878973752260208,5046586572,3456789012,734003200,9876543210,812646400,23,41
        "#]].assert_eq(&columns.iter().map(|line| line.join(",") + "\n").collect::<String>());
}

#[test]
fn states_have_colours_where_colours_are_wanted() {
    let style = Style { width: Some(60), color: true, ..Style::plain() };
    let drawn = list(&sample::several(), View::Jobs, None, sample::NOW_NS, &style);
    expect![[r#"
        ESC[1mJOBESC[0mESC[1m  NAME                   ESC[0mESC[1m  STATE        ESC[0mESC[1m  CORESESC[0mESC[1m  DURATIONESC[0m
        41   some_job               ESC[38;5;10m  running      ESC[39m   3.76      1m8s
        42   train                    finished        3.76      1m8s
        43   convert-the-whole-arch…ESC[38;5;9m  failed (3)   ESC[39m   3.76      1m8s
        44   evil\n\x1b[2J\u202enameESC[38;5;9m  out of memoryESC[39m    734     350ms
        45   größe 大きい           ESC[38;5;9m  lost         ESC[39m      -         -
    "#]].assert_eq(&drawn.replace('\x1b', "ESC"));
}

#[test]
fn an_old_terminal_gets_plain_characters() {
    let style = Style { width: Some(80), ascii: true, ..Style::plain() };
    let drawn = list(&sample::several(), View::Cpu, None, sample::NOW_NS, &style);
    assert!(drawn.is_ascii(), "{drawn}");
    expect![[r#"
        +-----+------+------------------+-----------+-------+---------------+----------+
        | JOB | PPID | PROCESS NAME     | CPU %     | MEM % | STATUS        | DURATION |
        +==============================================================================+
        | 41  | 3113 | some_job         | 376.41%   | 0.01% | Active        | 1m8s     |
        | 42  | 3113 | train            | 376.41%   | 5.88% | Finished      | 1m8s     |
        | 43  | 3113 | convert-the-who~ | 376.41%   | 5.88% | Failed (3)    | 1m8s     |
        | 44  | 3113 | evil\n\x1b[2J\u~ | 73400.00% | 5.88% | Out of memory | 350ms    |
        | 45  | 3113 | gr??e ??????     | -         | -     | Lost          | -        |
        +-----+------+------------------+-----------+-------+---------------+----------+
    "#]]
    .assert_eq(&drawn);
}

#[test]
fn what_a_list_is_sorted_by_is_one_of_its_columns_at_any_width() {
    for sort in SortColumn::ALL {
        for width in [None, Some(100), Some(60)] {
            let style = Style { width, ..Style::plain() };
            let sorted = list(&sample::several(), View::Jobs, Some(sort), sample::NOW_NS, &style);
            let header =
                columns(View::Jobs, Some(sort)).into_iter().find(|column| column.csv == sorted_by(sort));
            let header = header.unwrap_or_else(|| panic!("no column shows {}", sort.name())).header;
            assert!(sorted.lines().next().unwrap().contains(header), "{}:\n{sorted}", sort.name());
        }
    }
    // Who chose the columns gets those.
    let plain = |sort| list(&sample::several(), View::Io, sort, sample::NOW_NS, &Style::plain());
    assert_eq!(plain(Some(SortColumn::Energy)), plain(None));
    let style = Style { width: Some(60), ..Style::plain() };
    expect![[r#"
        JOB  NAME                     STATE          CPU TIME  CORES
        41   some_job                 running           4m16s   3.76
        42   train                    finished          4m17s   3.76
        43   convert-the-whole-arch…  failed (3)        4m17s   3.76
        44   evil\n\x1b[2J\u202ename  out of memory     4m17s    734
        45   größe 大きい             lost                  -      -
    "#]]
    .assert_eq(&list(&sample::several(), View::Jobs, Some(SortColumn::Cpu), sample::NOW_NS, &style));
}

#[test]
fn an_empty_list_says_what_to_do() {
    assert_eq!(list(&[], View::Jobs, None, 0, &Style::plain()), "no jobs yet; try: met run -- CMD\n");
}

#[test]
fn csv_has_whole_numbers_of_base_units_and_one_line_per_job() {
    let mut records = sample::several();
    records[1].name = "say \"a,b\"".to_owned();
    let csv = csv(&records, View::Jobs, sample::NOW_NS);
    assert_eq!(csv.matches("\r\n").count(), records.len() + 1);
    assert!(!csv.contains('\x1b'));
    expect![[r#"
            job,manager,name,user,state,cores,memory_needed_peak_bytes,read_bytes,written_bytes,wall_seconds,start,inside
            41,local,some_job,alice,running,3.7641,,,,68,2026-01-14T17:39:36.000000Z,
            42,local,"say ""a,b""",alice,finished,3.7641025641025636,1299227608,3456789012,734003200,68.25,2026-01-14T16:40:44.000000Z,
            43,local,convert-the-whole-archive-to-parquet-2026,alice,failed,3.7641025641025636,1299227608,3456789012,734003200,68.25,2026-01-14T16:40:44.000000Z,
            44,local,evil\n\x1b[2J\u202ename,alice,out_of_memory,734,1299227608,3456789012,734003200,0.35,2026-01-14T16:40:44.000000Z,
            45,local,größe 大きい,alice,lost,,,,,,2026-01-14T17:39:36.000000Z,
        "#]].assert_eq(&csv.replace("\r\n", "\n"));
}

#[test]
fn csv_of_every_view_has_as_many_fields_as_its_header() {
    for view in <View as clap::ValueEnum>::value_variants().iter().copied() {
        let csv = csv(&sample::several(), view, sample::NOW_NS);
        let mut lines = csv.split("\r\n").filter(|line| !line.is_empty());
        let fields = lines.next().unwrap().matches(',').count();
        assert!(lines.all(|line| line.matches(',').count() == fields), "{csv}");
    }
    expect!["job,ppid,name,cores,memory_ratio,state,wall_seconds"]
        .assert_eq(csv(&[], View::Cpu, 0).trim_end());
    let header = csv(&[], View::All, 0);
    for column in JOB.columns {
        let name = column.json_name();
        assert_eq!(header.trim_end().split(',').filter(|field| **field == name).count(), 1, "{name}");
    }
}
