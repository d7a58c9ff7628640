//! The largest processes of a job: by CPU time, memory and I/O, in bounded memory.

use std::mem::take;

use serde::{Deserialize, Serialize};

use crate::job::{ProcessId, Record};
use crate::process_exits::{Exit, INHERITED};
use crate::text::prefix;
use crate::{MISSING, job_table};

/// So many of each kind of largest stay.
pub const LARGEST: usize = 20;
/// All of them, where no process is among the largest of two kinds.
pub const LARGEST_MAX: usize = 3 * LARGEST;
/// Looked through again when there are so many.
const HELD_MAX: usize = 2 * LARGEST_MAX;
/// Enough to distinguish the processes of a job.
pub const COMMAND_LINE_BYTES: usize = 160;
/// The beginning of a process that ended is known to a second, and rounded.
const BEGIN_DOUBT_NS: i64 = 3_000_000_000;
/// By so much the beginning in the record of an end is rounded.
const BEGIN_ROUNDED_NS: i64 = 1_000_000_000;

/// One process of a job. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobProcess {
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The kernel's name for it, at most 15 bytes; no arguments.
    pub command: String,
    /// What it was started with, cut to [`COMMAND_LINE_BYTES`]; empty if it was never read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command_line: Vec<String>,
    /// Unix nanoseconds; of the end, where it was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<i64>,
    /// When its supervisor saw it end; of the main process, where no exit record reported that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_seen_ns: Option<i64>,
    /// Its own, without its children.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<i64>,
    /// From and to storage. Where the end was not reported, with the children it waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<i64>,
    /// In a record of several nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Whether its figures are those of its end. Those of a look are the least they can be.
pub fn is_complete(process: &JobProcess) -> bool {
    process.end_ns.is_some()
}

/// Takes the first words of its command line.
pub fn set_command_line(process: &mut JobProcess, mut words: Vec<String>) {
    let mut room = COMMAND_LINE_BYTES;
    words.retain_mut(|word| {
        let fits = room > 0;
        word.truncate(prefix(word, room).len());
        room = room.saturating_sub(word.len() + 1);
        fits
    });
    process.command_line = words;
}

/// What it is compared by.
fn sizes(process: &JobProcess) -> [i64; 3] {
    let io = process.read_bytes.unwrap_or(0).saturating_add(process.written_bytes.unwrap_or(0));
    [process.cpu_ns.unwrap_or(0), process.memory_peak_bytes.unwrap_or(0), io]
}

/// Figures of a living process, as cells.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub cpu_ns: i64,
    pub memory_bytes: i64,
    pub read_bytes: i64,
    pub written_bytes: i64,
}

#[derive(Debug)]
struct Held {
    process: JobProcess,
    /// Of one that was seen alive.
    start_ticks: Option<u64>,
    /// How often its name was read: one that was just forked may be about to become another program.
    named: u8,
    is_over: bool,
}

/// The largest processes of a job so far.
#[derive(Debug, Default)]
pub struct LargestProcesses {
    held: Vec<Held>,
    /// A process that is in nothing above these is not among the largest.
    floors: [i64; 3],
}

impl LargestProcesses {
    /// A living process, at a look.
    pub fn see(&mut self, id: ProcessId, start_ns: i64, seen: Seen) {
        let known = |cell: i64| Some(cell).filter(|&cell| cell != MISSING);
        let held = self.held.iter_mut().find(|held| {
            held.process.pid == id.pid && held.start_ticks == Some(id.start_ticks) && !held.is_over
        });
        let [cpu_ns, memory, read, written] =
            [seen.cpu_ns, seen.memory_bytes, seen.read_bytes, seen.written_bytes].map(known);
        // One that has ended and is not reaped yet holds none any more: what it held is unknown.
        let memory = memory.filter(|&bytes| bytes > 0);
        if let Some(Held { process, .. }) = held {
            process.cpu_ns = process.cpu_ns.max(cpu_ns);
            process.memory_peak_bytes = process.memory_peak_bytes.max(memory);
            (process.read_bytes, process.written_bytes) =
                (process.read_bytes.max(read), process.written_bytes.max(written));
            return;
        }
        let process = JobProcess {
            pid: id.pid,
            start_ns: Some(start_ns),
            cpu_ns,
            memory_peak_bytes: memory,
            read_bytes: read,
            written_bytes: written,
            ..JobProcess::default()
        };
        self.offer(Held { process, start_ticks: Some(id.start_ticks), named: 0, is_over: false });
    }

    /// A process that is over. Its record has its own figures, without its children's.
    pub fn end(&mut self, exit: &Exit) {
        let figure = |column: usize| {
            let at = INHERITED.iter().position(|&inherited| inherited == column);
            at.map(|at| exit.inherited[at])
        };
        let begin_ns = exit.begin_s.saturating_mul(1_000_000_000);
        let is_it = |held: &&mut Held| {
            let start_ns = held.process.start_ns.unwrap_or(begin_ns);
            held.process.pid == exit.pid
                && !held.is_over
                && start_ns.abs_diff(begin_ns) <= BEGIN_DOUBT_NS.unsigned_abs()
        };
        let mut held = self.held.iter_mut().find(is_it);
        let (start_ns, cpu_ns, memory) = held.as_ref().map_or((None, None, None), |held| {
            let JobProcess { start_ns, cpu_ns, memory_peak_bytes, .. } = held.process;
            (start_ns, cpu_ns, memory_peak_bytes)
        });
        let command = name_of(&exit.name);
        // A process may have become another program since the last look.
        let same = held.as_mut().filter(|held| held.process.command == command);
        let command_line = same.map(|held| take(&mut held.process.command_line));
        // The kernel rounds the beginning in a record to a second; how long the process lived is exact, and its end may
        // have waited to be received.
        let rounded_ns =
            begin_ns.saturating_sub(BEGIN_ROUNDED_NS)..=begin_ns.saturating_add(BEGIN_ROUNDED_NS);
        let by_end_ns = exit.received_ns.map(|received_ns| {
            received_ns.saturating_sub(exit.elapsed_ns).clamp(*rounded_ns.start(), *rounded_ns.end())
        });
        let start_ns = exit.begin_ns.or(start_ns).or(by_end_ns).unwrap_or(begin_ns);
        let process = JobProcess {
            pid: exit.pid,
            ppid: Some(exit.parent_pid),
            uid: Some(exit.uid),
            command,
            command_line: command_line.unwrap_or_default(),
            start_ns: Some(start_ns),
            end_ns: Some(start_ns.saturating_add(exit.elapsed_ns)),
            cpu_ns: figure(job_table::CPU).max(cpu_ns),
            memory_peak_bytes: Some(exit.resident_peak_bytes).filter(|&bytes| bytes > 0).max(memory),
            read_bytes: figure(job_table::READ),
            written_bytes: figure(job_table::WRITTEN),
            ..JobProcess::default()
        };
        match held {
            // Who was to wait for it at its end may be another one than its parent.
            Some(held) => {
                let ppid = held.process.ppid.or(process.ppid);
                (held.process, held.is_over) = (JobProcess { ppid, ..process }, true);
            }
            None => self.offer(Held { process, start_ticks: None, named: 0, is_over: true }),
        }
    }

    fn offer(&mut self, held: Held) {
        let is_large = |(size, floor): (i64, i64)| size > floor;
        if self.held.len() >= LARGEST_MAX && !sizes(&held.process).into_iter().zip(self.floors).any(is_large)
        {
            return;
        }
        self.held.push(held);
        if self.held.len() >= HELD_MAX {
            self.floors = keep_largest(&mut self.held, |held| sizes(&held.process));
        }
    }

    /// Those whose name is to be read, with the pid and start by which they are found. Call it after a look at all.
    pub fn unnamed(&mut self) -> impl Iterator<Item = (ProcessId, &mut JobProcess)> {
        const NAMED: u8 = 3;
        if self.held.len() > LARGEST_MAX {
            self.floors = keep_largest(&mut self.held, |held| sizes(&held.process));
        }
        let alive = self.held.iter_mut().filter(|held| !held.is_over && held.named < NAMED);
        alive.filter_map(|held| {
            held.named += 1;
            let id = ProcessId { pid: held.process.pid, start_ticks: held.start_ticks? };
            Some((id, &mut held.process))
        })
    }

    /// The largest, by CPU time.
    pub fn list(&self) -> Vec<JobProcess> {
        largest(self.held.iter().map(|held| held.process.clone()).collect())
    }
}

/// The largest of several lists, by CPU time: of one node or of many.
pub fn largest(mut processes: Vec<JobProcess>) -> Vec<JobProcess> {
    keep_largest(&mut processes, sizes);
    processes.sort_by_key(|process| (std::cmp::Reverse(sizes(process)), process.pid));
    processes
}

/// The processes of a job that ran on several nodes.
pub fn of_nodes<'r>(nodes: impl Iterator<Item = (&'r String, &'r Record)>) -> Vec<JobProcess> {
    let on = |(node, record): (&String, &'r Record)| {
        let node = node.clone();
        record.processes.iter().map(move |process| JobProcess { node: Some(node.clone()), ..process.clone() })
    };
    largest(nodes.flat_map(on).collect())
}

/// Keeps those that are among the largest of one kind at least; returns the smallest size of each kind that is.
fn keep_largest<T>(all: &mut Vec<T>, sizes_of: impl Fn(&T) -> [i64; 3]) -> [i64; 3] {
    let sizes: Vec<[i64; 3]> = all.iter().map(sizes_of).collect();
    let mut stays = vec![false; all.len()];
    let floors = std::array::from_fn(|kind| {
        // A process that used nothing of a kind is none of its largest; at least one is always left.
        let mut order: Vec<usize> = (0..all.len()).filter(|&at| kind == 0 || sizes[at][kind] > 0).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(sizes[at][kind]));
        order.truncate(LARGEST);
        order.iter().for_each(|&at| stays[at] = true);
        if order.len() < LARGEST { 0 } else { order.last().map_or(0, |&last| sizes[last][kind]) }
    });
    let mut stays = stays.into_iter();
    all.retain(|_| stays.next().unwrap_or(false));
    floors
}

fn name_of(name: &[u8; 16]) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_ticks: u64::from(pid) * 10 }
    }

    fn seen(cpu_ns: i64, memory_bytes: i64, written_bytes: i64) -> Seen {
        Seen { cpu_ns, memory_bytes, read_bytes: MISSING, written_bytes }
    }

    fn exit(pid: u32, begin_s: i64, cpu_ns: i64) -> Exit {
        let mut exit =
            Exit { pid, parent_pid: 1, uid: 7, begin_s, elapsed_ns: 5_000_000_000, ..Exit::default() };
        exit.name[..4].copy_from_slice(b"make");
        exit.inherited[0] = cpu_ns;
        exit.resident_peak_bytes = 4096;
        exit
    }

    #[test]
    fn the_largest_of_each_kind_stay_and_no_more() {
        let mut all = LargestProcesses::default();
        for pid in 1..=5000 {
            let number = i64::from(pid);
            all.see(id(pid), 0, seen(number, (number * 7919) % 5000, 5000 - number));
            assert!(all.held.len() < HELD_MAX);
        }
        let list = all.list();
        assert!(list.len() <= LARGEST_MAX, "{}", list.len());
        let top: Vec<u32> = list.iter().take(LARGEST).map(|process| process.pid).collect();
        assert_eq!(top, (4981..=5000).rev().collect::<Vec<u32>>(), "by CPU time");
        assert!((1..=20).all(|pid| list.iter().any(|process| process.pid == pid)), "by I/O");
        assert!(list.iter().any(|process| process.memory_peak_bytes == Some(4999)));
        assert_eq!(list[0].read_bytes, None, "missing is not zero");
    }

    #[test]
    fn a_process_is_one_alive_and_over() {
        let mut all = LargestProcesses::default();
        all.see(id(5), 100_000_000_000, seen(9, 9000, 70));
        all.see(id(5), 100_000_000_000, seen(20, 100, 80));
        for (_, process) in all.unnamed() {
            (process.command, process.ppid) = ("sh".to_owned(), Some(3));
        }
        all.end(&exit(5, 101, 50));
        // The number is given again.
        all.see(ProcessId { pid: 5, start_ticks: 99 }, 300_000_000_000, seen(1, 1, 1));
        let list = all.list();
        assert_eq!(list.len(), 2);
        let first = &list[0];
        assert_eq!((first.command.as_str(), first.ppid, first.uid), ("make", Some(3), Some(7)));
        assert_eq!((first.cpu_ns, first.memory_peak_bytes), (Some(50), Some(9000)));
        assert_eq!((first.start_ns, first.end_ns), (Some(100_000_000_000), Some(105_000_000_000)));
        assert_eq!((list[1].cpu_ns, list[1].end_ns), (Some(1), None));
    }

    #[test]
    fn memory_of_a_process_that_waits_to_be_reaped_is_unknown_and_its_figures_are_incomplete() {
        let mut all = LargestProcesses::default();
        all.see(id(5), 0, seen(9, 0, MISSING));
        let list = all.list();
        assert_eq!((list[0].memory_peak_bytes, is_complete(&list[0])), (None, false));
        all.see(id(5), 0, seen(9, 700, MISSING));
        all.see(id(5), 0, seen(9, 0, MISSING));
        assert_eq!(all.list()[0].memory_peak_bytes, Some(700));
        all.end(&exit(5, 0, 50));
        assert!(is_complete(&all.list()[0]));
    }

    #[test]
    fn a_command_line_is_short_and_of_the_program_that_ended() {
        let words = |process: &JobProcess| process.command_line.concat();
        let mut process = JobProcess::default();
        set_command_line(&mut process, vec!["x".repeat(100), "é".repeat(100), "z".to_owned()]);
        assert_eq!(words(&process), format!("{}{}", "x".repeat(100), "é".repeat(29)));
        let end_as = |name: &str| {
            let mut all = LargestProcesses::default();
            all.see(id(5), 100_000_000_000, seen(9, 9000, 70));
            for (_, process) in all.unnamed() {
                process.command = name.to_owned();
                set_command_line(process, vec!["make".to_owned(), "all".to_owned()]);
            }
            all.end(&exit(5, 101, 50));
            words(&all.list()[0])
        };
        assert_eq!((end_as("make").as_str(), end_as("sh").as_str()), ("makeall", ""));
    }

    #[test]
    fn the_end_of_a_process_is_when_it_ended_though_its_record_rounds_its_beginning() {
        const MS: i64 = 1_000_000;
        let mut all = LargestProcesses::default();
        let of = |pid: u32, begin_ns: Option<i64>, elapsed_ms: i64| Exit {
            begin_ns,
            received_ns: Some(22_400 * MS),
            elapsed_ns: elapsed_ms * MS,
            ..exit(pid, 22, 100 - i64::from(pid))
        };
        // A parent that was seen alive, a child whose birth was reported, and one of which only the end is known.
        all.see(id(5), 21_990 * MS, seen(1, 1, 1));
        all.end(&of(5, Some(21_993 * MS), 400));
        all.end(&of(6, Some(22_132 * MS), 37));
        all.end(&of(7, None, 50));
        all.see(id(8), 22_010 * MS, seen(1, 1, 1));
        all.end(&of(8, None, 60));
        // Received long after its end.
        all.end(&Exit { received_ns: Some(31_000 * MS), ..of(9, None, 80) });
        let times: Vec<_> =
            all.list().iter().map(|one| [one.start_ns, one.end_ns].map(|ns| ns.unwrap() / MS)).collect();
        assert_eq!(
            times,
            [[21_993, 22_393], [22_132, 22_169], [22_350, 22_400], [22_010, 22_070], [23_000, 23_080]]
        );
    }

    #[test]
    fn short_processes_are_known_by_their_ends_alone() {
        let mut all = LargestProcesses::default();
        (0..10_000).for_each(|number| all.end(&exit(number, 100, i64::from(number))));
        let list = all.list();
        assert_eq!((list[0].cpu_ns, list[0].command.as_str()), (Some(9999), "make"));
        assert!(list.len() <= LARGEST_MAX);
    }

    #[test]
    fn nodes_are_named_and_the_largest_of_all_stay() {
        let process = |cpu_ns| JobProcess { pid: 1, cpu_ns: Some(cpu_ns), ..JobProcess::default() };
        let mut records = [crate::sample::full(1, "x"), crate::sample::full(1, "x")];
        records[0].processes = (0..60).map(process).collect();
        records[1].processes = (100..160).map(process).collect();
        let names = ["n1".to_owned(), "n2".to_owned()];
        let all = of_nodes(names.iter().zip(&records));
        assert!(all.len() <= LARGEST_MAX);
        assert_eq!((all[0].cpu_ns, all[0].node.as_deref()), (Some(159), Some("n2")));
    }
}
