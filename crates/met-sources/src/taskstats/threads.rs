//! What the kernel says of threads and not of a process, summed over the living threads of each process.

use std::io;
use std::time::{Duration, Instant};

use met_core::{Batch, MISSING, Subject};
use met_host::parse;

use super::record::Record;
use super::{CPU_REAL, CPU_SYSTEM_SCALED, CPU_USER_SCALED, MEMORY_TIME, VIRTUAL_TIME};

const COLUMNS: [usize; 4] = [CPU_USER_SCALED, CPU_SYSTEM_SCALED, MEMORY_TIME, VIRTUAL_TIME];
/// Less CPU time of other threads than this is a tick or two that the first one had meanwhile.
const OTHERS_CPU_NS: i64 = 20_000_000;
/// Readings are at least so far apart, however often processes are read,
const APART: Duration = Duration::from_millis(9_500);
/// and ask for the first threads of so many processes, and for so many of all threads. Processes for which these do not
/// suffice come first at the next reading; one with more threads is not summed.
const REQUESTS_MAX: usize = 1024;

/// Where threads are read from.
pub(super) trait Kernel {
    /// `each` gets the place of a thread and its record, if it lives.
    fn ask(&mut self, threads: &[u32], each: &mut dyn FnMut(usize, &Record)) -> io::Result<()>;

    fn list(&mut self, pid: u32, threads: &mut Vec<u32>) -> io::Result<()>;
}

#[derive(Default)]
pub(super) struct Threads {
    next: Option<Instant>,
    /// The row with which the next reading begins.
    turn: usize,
    pids: Vec<u32>,
    sums: Vec<Sums>,
    listed: Vec<u32>,
}

/// CPU time by ticks of a process, of its threads that were asked for, and their columns.
#[derive(Clone, Copy)]
struct Sums {
    process_ns: i64,
    threads_ns: i64,
    cells: [i64; COLUMNS.len()],
}

impl Sums {
    fn of_process(process_ns: i64) -> Sums {
        Sums { process_ns, threads_ns: 0, cells: [MISSING; COLUMNS.len()] }
    }

    fn add(&mut self, record: &Record) {
        let more = [record.user_scaled_us, record.system_scaled_us, record.memory_time, record.virtual_time];
        for (sum, more) in self.cells.iter_mut().zip(more) {
            *sum = if *sum == MISSING { more } else { parse::sum(*sum, more) };
        }
        self.threads_ns = self.threads_ns.saturating_add(record.cpu_real_ns.max(0));
    }
}

impl Threads {
    /// Whether threads are to be read now; if so, not again for some time.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if is_due {
            self.next = Some(now + APART);
        }
        is_due
    }

    /// Fills the columns of as many processes as one reading may ask for; those of the others stay missing.
    pub(super) fn read(&mut self, kernel: &mut impl Kernel, batch: &mut Batch) -> io::Result<()> {
        let rows = batch.len();
        let begin = self.turn.checked_rem(rows).unwrap_or(0);
        self.ask_first(kernel, begin, batch)?;
        let postponed = self.ask_others(kernel)?;
        self.turn = begin + postponed.unwrap_or(self.pids.len());
        for (index, (_, cells)) in batch.rows_mut().enumerate() {
            if let Some(sums) = self.sums.get((index + rows - begin) % rows) {
                COLUMNS.iter().zip(sums.cells).for_each(|(&column, sum)| cells[column] = sum);
            }
        }
        Ok(())
    }

    /// The first thread of each process, with one request for each.
    fn ask_first(&mut self, kernel: &mut impl Kernel, begin: usize, batch: &Batch) -> io::Result<()> {
        let Threads { pids, sums, .. } = self;
        pids.clear();
        sums.clear();
        for (row, cells) in batch.rows().skip(begin).chain(batch.rows().take(begin)).take(REQUESTS_MAX) {
            // All rows are of processes.
            let Subject::Task { pid, .. } = row.owner else { continue };
            pids.push(pid);
            sums.push(Sums::of_process(cells[CPU_REAL]));
        }
        kernel.ask(pids, &mut |place, record| sums[place].add(record))
    }

    /// All threads where the first has not used all the CPU time: what is summed grows with CPU time only. Returns the
    /// place of the first process for which there were too few requests left.
    fn ask_others(&mut self, kernel: &mut impl Kernel) -> io::Result<Option<usize>> {
        let (mut left, mut postponed) = (REQUESTS_MAX, None);
        for (place, (sums, &pid)) in self.sums.iter_mut().zip(&self.pids).enumerate() {
            if sums.process_ns.saturating_sub(sums.threads_ns) <= OTHERS_CPU_NS {
                continue;
            }
            // A part of a sum is none.
            *sums = Sums::of_process(sums.process_ns);
            self.listed.clear();
            if postponed.is_some() || kernel.list(pid, &mut self.listed).is_err() {
                continue;
            }
            match self.listed.len() {
                count if count <= left => {
                    kernel.ask(&self.listed, &mut |_, record| sums.add(record))?;
                    left -= count;
                }
                count if count <= REQUESTS_MAX => postponed = Some(place),
                _ => {}
            }
        }
        Ok(postponed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskstats::TABLE;

    /// Processes by number with so many threads, each of which has used a second.
    struct Fake {
        threads: Vec<u32>,
        asked: usize,
    }

    impl Kernel for Fake {
        fn ask(&mut self, threads: &[u32], each: &mut dyn FnMut(usize, &Record)) -> io::Result<()> {
            self.asked += threads.len();
            let version_and_zeros = [&8_u16.to_ne_bytes()[..], &[0; 1000]].concat();
            let zeros = Record::parse(&version_and_zeros).unwrap();
            let record = Record { cpu_real_ns: 1_000_000_000, memory_time: 1, ..zeros };
            (0..threads.len()).for_each(|place| each(place, &record));
            Ok(())
        }

        fn list(&mut self, pid: u32, threads: &mut Vec<u32>) -> io::Result<()> {
            threads.extend(0..self.threads[pid as usize]);
            Ok(())
        }
    }

    /// What one reading says of the memory time of each process.
    fn read(threads: &mut Threads, kernel: &mut Fake) -> Vec<i64> {
        let mut batch = Batch::new(&TABLE);
        for (pid, &count) in (0..).zip(&kernel.threads) {
            batch.push(Subject::Task { pid, start_ticks: 1 })[CPU_REAL] = i64::from(count) * 1_000_000_000;
        }
        threads.read(kernel, &mut batch).unwrap();
        batch.rows().map(|(_, cells)| cells[MEMORY_TIME]).collect()
    }

    #[test]
    fn every_process_has_its_turn_and_no_sum_is_a_part_of_one() {
        let mut threads = Threads::default();
        let mut kernel = Fake { threads: vec![600, 1, 600, 1000, 5000, 2], asked: 0 };
        assert_eq!(read(&mut threads, &mut kernel), [600, 1, MISSING, MISSING, MISSING, MISSING]);
        assert_eq!(read(&mut threads, &mut kernel), [MISSING, 1, 600, MISSING, MISSING, MISSING]);
        assert_eq!(read(&mut threads, &mut kernel), [MISSING, 1, MISSING, 1000, MISSING, 2]);
        assert_eq!(read(&mut threads, &mut kernel), [600, 1, MISSING, MISSING, MISSING, MISSING]);
        assert!(kernel.asked <= 4 * (6 + REQUESTS_MAX), "{}", kernel.asked);
    }

    #[test]
    fn many_processes_are_asked_for_in_turns() {
        let mut threads = Threads::default();
        let count = REQUESTS_MAX * 5 / 2;
        let mut kernel = Fake { threads: vec![1; count], asked: 0 };
        let mut known = vec![false; count];
        for _ in 0..3 {
            kernel.asked = 0;
            let cells = read(&mut threads, &mut kernel);
            assert_eq!(kernel.asked, REQUESTS_MAX);
            known.iter_mut().zip(cells).for_each(|(known, cell)| *known |= cell == 1);
        }
        assert!(known.into_iter().all(|known| known));
        kernel.threads.clear();
        assert!(read(&mut threads, &mut kernel).is_empty());
    }

    #[test]
    fn readings_are_ten_seconds_apart_however_often_it_is_asked() {
        let (mut threads, begin) = (Threads::default(), Instant::now());
        let due = (0..31).filter(|&second| threads.is_due(begin + Duration::from_secs(second)));
        assert_eq!(due.collect::<Vec<_>>(), [0, 10, 20, 30]);
    }
}
