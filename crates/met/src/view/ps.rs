//! The processes of a job as a tree.

use std::collections::{BTreeMap, HashSet};

use met_core::job::Record;
use met_core::job_processes::{JobProcess, is_complete};

use super::{Paint, Style, text};
use met_core::units;

/// One process as it is now. What could not be read is `None`, not 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessLine {
    pub pid: u32,
    pub ppid: u32,
    pub user: Option<String>,
    /// The kernel's letter: R, S, D, T, Z.
    pub state: char,
    pub cpu_seconds: Option<f64>,
    /// Of one core: 150 is one and a half.
    pub cpu_percent: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub threads: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    /// Of GPUs, all together: 1 is one GPU fully used.
    pub gpu_utilization: Option<f64>,
    pub gpu_memory_bytes: Option<u64>,
    /// The GPUs it has open, by their numbers.
    pub gpus: Vec<String>,
    pub command: Vec<String>,
}

/// Deeper processes are drawn at this depth: a chain of forks does not push the commands off the screen.
const DEPTH_MAX: usize = 12;
const COMMAND_COLUMNS_MIN: usize = 24;

pub fn tree(processes: &[ProcessLine], style: &Style) -> String {
    if processes.is_empty() {
        return "no processes\n".to_owned();
    }
    let branches = branches(processes);
    let rows: Vec<&ProcessLine> = branches.iter().map(|branch| branch.process).collect();
    let columns = PsColumn::fitting(COLUMNS, &rows, COMMAND_COLUMNS_MIN, style);
    let room = style.width.map(|width| width.saturating_sub(PsColumn::used(&columns)));
    let mut drawn = PsColumn::head(&columns, style);
    for (index, branch) in branches.iter().enumerate() {
        let cells: String = columns.iter().map(|column| column.pad(&column.cells[index]) + "  ").collect();
        let command = text::command_line(&branch.process.command);
        let stem = if style.ascii { text::to_ascii(&branch.stem) } else { branch.stem.clone() };
        let command = match room {
            Some(room) => text::cut(&command, room.saturating_sub(text::width(&stem)), style.ascii),
            None => command,
        };
        let command = if style.ascii { text::to_ascii(&command) } else { command };
        drawn.push_str(&format!("{cells}{}{command}\n", style.paint(Paint::Dim, &stem)));
    }
    drawn
}

/// The processes that are stored of a job that is over.
pub fn largest(record: &Record, style: &Style) -> String {
    let ended = |process: &JobProcess| Ended {
        process: process.clone(),
        end_ns: process.end_ns.or(process.end_seen_ns),
    };
    let rows: Vec<Ended> = record.processes.iter().map(ended).collect();
    let columns = PsColumn::fitting(LARGEST_COLUMNS, &rows.iter().collect::<Vec<_>>(), NAME_COLUMNS, style);
    let room = style.width.map(|width| width.saturating_sub(PsColumn::used(&columns)));
    let mut drawn = PsColumn::head(&columns, style);
    for (index, Ended { process, .. }) in rows.iter().enumerate() {
        let cells: String = columns.iter().map(|column| column.pad(&column.cells[index]) + "  ").collect();
        let command = match process.command_line.is_empty() {
            true => text::escape(&process.command),
            false => text::command_line(&process.command_line),
        };
        let command = room.map_or_else(|| command.clone(), |room| text::cut(&command, room, style.ascii));
        drawn.push_str(&format!("{cells}{command}\n"));
    }
    if !record.processes.iter().all(is_complete) {
        let legend = "≥ lower bound: as of the last look before the process ended";
        drawn.push_str(&format!("\n{}\n", style.paint(Paint::Dim, legend)));
    }
    if style.ascii { text::to_ascii(&drawn) } else { drawn }
}

/// The kernel's name of a process.
const NAME_COLUMNS: usize = 15;

/// A process of a job that is over.
struct Ended {
    process: JobProcess,
    end_ns: Option<i64>,
}

impl Ended {
    /// A figure of its end, or at least as much as was seen.
    fn amount(&self, value: Option<i64>, shown: fn(f64) -> String) -> Option<String> {
        let mark = if is_complete(&self.process) { "" } else { "≥" };
        value.map(|value| format!("{mark}{}", shown(value as f64)))
    }
}

/// Header, rank (the highest leaves first on a narrow terminal, 0 stays) and cell.
type ColumnSpec<T> = (&'static str, u8, fn(&T, &Style) -> Option<String>);

fn clock(time_ns: Option<i64>, style: &Style) -> Option<String> {
    time_ns.map(|time_ns| units::time_short(time_ns, time_ns, &style.zone))
}

const LARGEST_COLUMNS: &[ColumnSpec<Ended>] = &[
    ("NODE", 3, |ended, _| ended.process.node.as_deref().map(text::escape)),
    ("PID", 0, |ended, _| Some(ended.process.pid.to_string())),
    ("PPID", 6, |ended, _| ended.process.ppid.map(|ppid| ppid.to_string())),
    ("USER", 4, |ended, _| {
        let uid = || ended.process.uid.map(|uid| uid.to_string());
        ended.process.user.as_deref().map(text::escape).or_else(uid)
    }),
    ("START", 7, |ended, style| clock(ended.process.start_ns, style)),
    ("END", 8, |ended, style| clock(ended.end_ns, style)),
    ("CPU TIME", 0, |ended, _| ended.amount(ended.process.cpu_ns, |ns| units::duration(ns / 1e9))),
    // Records of earlier versions have 0 where it is unknown.
    ("MEMORY", 1, |ended, _| {
        ended.amount(ended.process.memory_peak_bytes.filter(|&bytes| bytes > 0), units::bytes)
    }),
    ("READ", 2, |ended, _| ended.amount(ended.process.read_bytes, units::bytes)),
    ("WRITTEN", 2, |ended, _| ended.amount(ended.process.written_bytes, units::bytes)),
];

const COLUMNS: &[ColumnSpec<ProcessLine>] = &[
    ("PID", 0, |process, _| Some(process.pid.to_string())),
    ("USER", 4, |process, _| process.user.as_deref().map(text::escape)),
    ("S", 3, |process, _| Some(text::escape(&process.state.to_string()))),
    ("CPU %", 0, |process, _| process.cpu_percent.map(|percent| format!("{percent:.1}"))),
    ("CPU TIME", 2, |process, _| process.cpu_seconds.map(units::duration)),
    ("MEMORY", 1, |process, _| process.memory_bytes.map(|bytes| units::bytes(bytes as f64))),
    ("GPU", 2, |process, _| (!process.gpus.is_empty()).then(|| process.gpus.join(","))),
    ("GPU %", 1, |process, _| process.gpu_utilization.map(|share| format!("{:.0}", share * 100.0))),
    ("GPU MEM", 1, |process, _| process.gpu_memory_bytes.map(|bytes| units::bytes(bytes as f64))),
    ("THREADS", 5, |process, _| process.threads.map(|threads| threads.to_string())),
    ("READ", 7, |process, _| process.read_bytes.map(|bytes| units::bytes(bytes as f64))),
    ("WRITTEN", 6, |process, _| process.written_bytes.map(|bytes| units::bytes(bytes as f64))),
];

struct PsColumn {
    header: &'static str,
    rank: u8,
    cells: Vec<String>,
    width: usize,
}

impl PsColumn {
    fn new(header: &'static str, rank: u8, cells: Vec<String>) -> PsColumn {
        let width = cells.iter().map(|cell| text::width(cell)).max().unwrap_or(0).max(text::width(header));
        PsColumn { header, rank, cells, width }
    }

    /// The columns that say something and leave so much room for a command.
    fn fitting<T>(specs: &[ColumnSpec<T>], rows: &[&T], room: usize, style: &Style) -> Vec<PsColumn> {
        let column = |&(header, rank, cell): &ColumnSpec<T>| {
            let cells = rows.iter().map(|row| cell(row, style).unwrap_or("-".to_owned()));
            PsColumn::new(header, rank, cells.collect())
        };
        let mut columns: Vec<PsColumn> = specs.iter().map(column).filter(PsColumn::tells_something).collect();
        while let Some(width) = style.width
            && PsColumn::used(&columns) + room > width
        {
            let last = columns.iter().enumerate().filter(|(_, column)| column.rank > 0);
            let Some((index, _)) = last.max_by_key(|(_, column)| column.rank) else { break };
            columns.remove(index);
        }
        columns
    }

    fn used(columns: &[PsColumn]) -> usize {
        columns.iter().map(|column| column.width + 2).sum()
    }

    fn head(columns: &[PsColumn], style: &Style) -> String {
        let head: String = columns.iter().map(|column| column.pad(column.header) + "  ").collect();
        style.paint(Paint::Bold, &format!("{head}COMMAND")) + "\n"
    }

    /// One user's processes need no name, and processes without a GPU no columns of GPUs.
    fn tells_something(&self) -> bool {
        match self.header {
            "USER" | "NODE" => self.cells.iter().any(|cell| *cell != self.cells[0]),
            "GPU" | "GPU %" | "GPU MEM" => self.cells.iter().any(|cell| cell != "-"),
            _ => true,
        }
    }

    fn pad(&self, cell: &str) -> String {
        match self.header {
            "USER" | "NODE" | "S" => text::pad(cell, self.width),
            _ => text::pad_left(cell, self.width),
        }
    }
}

/// A process with the lines that lead to it.
struct Branch<'a> {
    process: &'a ProcessLine,
    stem: String,
}

/// Parents before children, siblings by pid. The list was read while processes came and went: a parent
/// may be missing, or a reused pid may make a circle; every process is shown once all the same.
fn branches(processes: &[ProcessLine]) -> Vec<Branch<'_>> {
    let pids: HashSet<u32> = processes.iter().map(|process| process.pid).collect();
    let mut children: BTreeMap<u32, Vec<&ProcessLine>> = BTreeMap::new();
    let mut roots: Vec<&ProcessLine> = Vec::new();
    for process in processes {
        match pids.contains(&process.ppid) && process.ppid != process.pid {
            true => children.entry(process.ppid).or_default().push(process),
            false => roots.push(process),
        }
    }
    let mut in_order: Vec<&ProcessLine> = processes.iter().collect();
    roots.sort_by_key(|process| process.pid);
    in_order.sort_by_key(|process| process.pid);
    children.values_mut().for_each(|siblings| siblings.sort_by_key(|process| process.pid));

    let mut drawn = HashSet::new();
    let mut branches = Vec::with_capacity(processes.len());
    // After the roots every process is offered again, which draws only those in a circle.
    for root in roots.into_iter().chain(in_order) {
        let mut waiting = vec![(root, String::new(), String::new())];
        while let Some((process, stem, indent)) = waiting.pop() {
            if !drawn.insert(std::ptr::from_ref(process)) {
                continue;
            }
            branches.push(Branch { process, stem });
            let below = children.get(&process.pid).map_or(&[][..], Vec::as_slice);
            for (index, child) in below.iter().enumerate().rev() {
                let last = index + 1 == below.len();
                let (turn, onward) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
                let deep = indent.chars().count() / 3 >= DEPTH_MAX;
                let onward = if deep { indent.clone() } else { format!("{indent}{onward}") };
                waiting.push((child, format!("{indent}{turn}"), onward));
            }
        }
    }
    branches
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::view::sample;

    fn check(width: Option<usize>, expected: Expect) {
        let drawn = tree(&sample::processes(), &Style { width, ..Style::plain() });
        let room = width.unwrap_or(usize::MAX);
        assert!(drawn.lines().all(|line| text::width(line) <= room), "{drawn}");
        expected.assert_eq(&drawn);
    }

    #[test]
    fn a_tree_at_60() {
        check(
            Some(60),
            expect![[r#"
             PID  S  CPU %  CPU TIME    MEMORY  COMMAND
            3113  S    0.0      10ms  1.81 MiB  sh -c 'make all && ./re…
            3114  S    0.4      1.2s  11.7 MiB  ├─ make -j8 all
            3115  R  376.4      4m4s  1.13 GiB  │  ├─ python3 train.py …
            3116  Z    0.0       12s       0 B  │  └─ cc1plus
            3120  S    0.1     200ms  2.96 MiB  └─ tee $'out\x1b[2J\nlo…
            4000  D   12.5     1h01m   858 MiB  orphan
        "#]],
        );
    }

    #[test]
    fn a_tree_at_80() {
        check(
            Some(80),
            expect![[r#"
             PID  S  CPU %  CPU TIME    MEMORY  THREADS   WRITTEN  COMMAND
            3113  S    0.0      10ms  1.81 MiB        1  4.00 KiB  sh -c 'make all && ./rep…
            3114  S    0.4      1.2s  11.7 MiB        1  4.00 KiB  ├─ make -j8 all
            3115  R  376.4      4m4s  1.13 GiB       41  4.00 KiB  │  ├─ python3 train.py -…
            3116  Z    0.0       12s       0 B        1  4.00 KiB  │  └─ cc1plus
            3120  S    0.1     200ms  2.96 MiB        1  4.00 KiB  └─ tee $'out\x1b[2J\nlog'
            4000  D   12.5     1h01m   858 MiB        1  4.00 KiB  orphan
        "#]],
        );
    }

    #[test]
    fn a_tree_at_120() {
        check(
            Some(120),
            expect![[r#"
             PID  S  CPU %  CPU TIME    MEMORY  THREADS      READ   WRITTEN  COMMAND
            3113  S    0.0      10ms  1.81 MiB        1         -  4.00 KiB  sh -c 'make all && ./report'
            3114  S    0.4      1.2s  11.7 MiB        1         -  4.00 KiB  ├─ make -j8 all
            3115  R  376.4      4m4s  1.13 GiB       41  3.22 GiB  4.00 KiB  │  ├─ python3 train.py --label 'first try'
            3116  Z    0.0       12s       0 B        1         -  4.00 KiB  │  └─ cc1plus
            3120  S    0.1     200ms  2.96 MiB        1         -  4.00 KiB  └─ tee $'out\x1b[2J\nlog'
            4000  D   12.5     1h01m   858 MiB        1         -  4.00 KiB  orphan
        "#]],
        );
    }

    #[test]
    fn colour_is_for_what_stands_around_the_figures() {
        let style = Style { color: true, width: Some(60), ..Style::plain() };
        expect![[r#"
            ESC[1m PID  S  CPU %  CPU TIME    MEMORY  COMMANDESC[0m
            3113  S    0.0      10ms  1.81 MiB  sh -c 'make all && ./re…
            3114  S    0.4      1.2s  11.7 MiB  ESC[2m├─ ESC[0mmake -j8 all
            3120  S    0.1     200ms  2.96 MiB  ESC[2m└─ ESC[0mtee $'out\x1b[2J\nlo…
        "#]]
        .assert_eq(&tree(&sample::processes()[..3], &style).replace('\x1b', "ESC"));
    }

    #[test]
    fn a_circle_of_parents_shows_everyone_once() {
        let process = |pid, ppid| ProcessLine { pid, ppid, state: 'S', ..ProcessLine::default() };
        let drawn = tree(&[process(1, 2), process(2, 1), process(3, 3), process(4, 99)], &Style::plain());
        assert_eq!(drawn.lines().count(), 5, "{drawn}");
    }

    #[test]
    fn a_long_chain_of_forks_stays_on_the_screen() {
        let process = |pid: u32| ProcessLine { pid, ppid: pid - 1, state: 'S', ..ProcessLine::default() };
        let chain: Vec<ProcessLine> = (1..5000).map(process).collect();
        let drawn = tree(&chain, &Style { width: Some(100), ..Style::plain() });
        assert_eq!(drawn.lines().count(), 5000);
        assert!(drawn.lines().all(|line| text::width(line) <= 100));
    }

    fn kept() -> Vec<JobProcess> {
        let process = |pid: u32, command: &str, cpu_ns: i64, end_ns: Option<i64>| JobProcess {
            pid,
            ppid: Some(3113),
            uid: Some(1000),
            user: Some("ada".to_owned()),
            command: command.to_owned(),
            start_ns: Some(1_700_000_000_000_000_000),
            end_ns,
            cpu_ns: Some(cpu_ns),
            memory_peak_bytes: Some(i64::from(pid) << 18),
            written_bytes: Some(4096),
            ..JobProcess::default()
        };
        vec![
            process(3115, "python3", 244_000_000_000, Some(1_700_000_300_000_000_000)),
            process(3116, "cc1\u{1b}[2Jplus", 12_000_000_000, None),
            JobProcess {
                memory_peak_bytes: Some(0),
                command_line: ["python3", "work.py", "--shard", "a b", &"long".repeat(20)]
                    .map(str::to_owned)
                    .into(),
                ..process(3117, "python3", 1_000_000_000, None)
            },
        ]
    }

    #[test]
    fn processes_of_a_job_that_is_over_at_three_widths() {
        let drawn = |width| {
            let mut record = met_core::sample::full(1, "train");
            record.processes = kept();
            let drawn = largest(&record, &Style { width: Some(width), ..Style::plain() });
            assert!(drawn.lines().all(|line| text::width(line) <= width), "{drawn}");
            drawn
        };
        expect![[r#"
             PID  CPU TIME    MEMORY  READ    WRITTEN  COMMAND
            3115      4m4s   779 MiB     -   4.00 KiB  python3
            3116      ≥12s  ≥779 MiB     -  ≥4.00 KiB  cc1\x1b[2Jplus
            3117       ≥1s         -     -  ≥4.00 KiB  python3 work.py …

            ≥ lower bound: as of the last look before the process ended
        "#]]
        .assert_eq(&drawn(60));
        expect![[r#"
             PID  PPID     START  CPU TIME    MEMORY  READ    WRITTEN  COMMAND
            3115  3113  22:13:20      4m4s   779 MiB     -   4.00 KiB  python3
            3116  3113  22:13:20      ≥12s  ≥779 MiB     -  ≥4.00 KiB  cc1\x1b[2Jplus
            3117  3113  22:13:20       ≥1s         -     -  ≥4.00 KiB  python3 work.py --sh…

            ≥ lower bound: as of the last look before the process ended
        "#]]
        .assert_eq(&drawn(80));
        expect![[r#"
             PID  PPID     START       END  CPU TIME    MEMORY  READ    WRITTEN  COMMAND
            3115  3113  22:13:20  22:18:20      4m4s   779 MiB     -   4.00 KiB  python3
            3116  3113  22:13:20         -      ≥12s  ≥779 MiB     -  ≥4.00 KiB  cc1\x1b[2Jplus
            3117  3113  22:13:20         -       ≥1s         -     -  ≥4.00 KiB  python3 work.py --shard 'a b' longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong

            ≥ lower bound: as of the last look before the process ended
        "#]]
        .assert_eq(&drawn(200));
    }

    #[test]
    fn no_process_is_said_in_words() {
        assert_eq!(tree(&[], &Style::plain()), "no processes\n");
    }
}
