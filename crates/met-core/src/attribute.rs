//! From what machines, cgroups and processes show to what jobs did.

use crate::detail_table::DETAIL;
use crate::{Across, Batch, Column, FastMap, JOB, MISSING, Subject, Table};

/// Which job a cgroup or process belongs to: the most specific one. A nested job names the job around it.
#[derive(Debug, Default)]
pub struct JobMap {
    owners: FastMap<Subject, u32>,
    outer: FastMap<u32, u32>,
    slots: Vec<u32>,
}

impl JobMap {
    pub fn clear(&mut self) {
        self.owners.clear();
        self.outer.clear();
        self.slots.clear();
    }

    pub fn add_job(&mut self, slot: u32, outer: Option<u32>) {
        self.slots.push(slot);
        if let Some(outer) = outer {
            self.outer.insert(slot, outer);
        }
    }

    pub fn assign(&mut self, subject: Subject, slot: u32) {
        self.owners.insert(subject, slot);
    }

    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Whether some job is inside another.
    pub fn has_nested(&self) -> bool {
        !self.outer.is_empty()
    }

    /// The job around a job.
    pub fn outer(&self, slot: u32) -> Option<u32> {
        self.outer.get(&slot).copied()
    }

    pub fn owner(&self, subject: Subject) -> Option<u32> {
        self.owners.get(&subject).copied()
    }

    /// The job of a process, the job around it, and so on.
    pub fn owners(&self, subject: Subject) -> impl Iterator<Item = u32> {
        std::iter::successors(self.owner(subject), |slot| self.outer.get(slot).copied())
    }
}

/// Folds the rows of several tables into one row per job.
///
/// The batches are in order of precedence: a job's cell is taken from the first batch that has it, so a
/// job with a cgroup is accounted by its cgroup and one without by its processes. A process counts for
/// its job and for every job around it; a cgroup's counters hold those of the cgroups below it already.
#[derive(Debug)]
pub struct Fold {
    /// What the rows of jobs are of, and what a column of a source contributes to there.
    table: &'static Table,
    target: fn(&Column) -> Option<(usize, Across)>,
    feeds: Vec<(&'static Table, Vec<Feed>)>,
    scratch: Vec<i64>,
    slots: FastMap<u32, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Feed {
    from: usize,
    to: usize,
    across: Across,
}

impl Fold {
    pub fn new() -> Fold {
        Fold::into(&JOB, |column| Some((column.feeds?, column.across)))
    }

    /// Into rows of the table of details.
    pub fn of_details() -> Fold {
        Fold::into(&DETAIL, |column| column.details.map(|to| (to, DETAIL.columns[to].across)))
    }

    fn into(table: &'static Table, target: fn(&Column) -> Option<(usize, Across)>) -> Fold {
        Fold { table, target, feeds: Vec::new(), scratch: Vec::new(), slots: FastMap::default() }
    }

    /// Fills `out`, a batch of the fold's table, with a row for every job of `map`.
    pub fn jobs(&mut self, batches: &[Batch], map: &JobMap, out: &mut Batch) {
        self.some_jobs(batches, map, |_| true, out);
    }

    /// The same for those jobs that were read.
    pub fn some_jobs(
        &mut self,
        batches: &[Batch],
        map: &JobMap,
        is_read: impl Fn(u32) -> bool,
        out: &mut Batch,
    ) {
        debug_assert!(std::ptr::eq(out.table, self.table));
        let width = self.table.columns.len();
        out.clear();
        self.slots.clear();
        for (index, &slot) in map.slots.iter().filter(|&&slot| is_read(slot)).enumerate() {
            self.slots.insert(slot, index);
            out.push(Subject::Job(slot));
        }
        // Most ticks read few of the sources.
        for batch in batches.iter().filter(|batch| !batch.is_empty()) {
            let feeds = self.feeds_of(batch.table);
            // What is about the machine feeds no job.
            if self.feeds[feeds].1.is_empty() {
                continue;
            }
            self.sum_batch(feeds, batch, map);
            for (index, (_, cells)) in out.rows_mut().enumerate() {
                for feed in &self.feeds[feeds].1 {
                    let value = self.scratch[index * width + feed.to];
                    if cells[feed.to] == MISSING {
                        cells[feed.to] = value;
                    }
                }
            }
        }
    }

    fn feeds_of(&mut self, table: &'static Table) -> usize {
        if let Some(known) = self.feeds.iter().position(|(seen, _)| std::ptr::eq(*seen, table)) {
            return known;
        }
        let target = self.target;
        let feed = |(from, column): (usize, &Column)| {
            let (to, across) = target(column)?;
            Some(Feed { from, to, across })
        };
        self.feeds.push((table, table.columns.iter().enumerate().filter_map(feed).collect()));
        self.feeds.len() - 1
    }

    fn sum_batch(&mut self, feeds: usize, batch: &Batch, map: &JobMap) {
        let width = self.table.columns.len();
        self.scratch.clear();
        self.scratch.resize(self.slots.len() * width, MISSING);
        for (row, cells) in batch.rows() {
            let mut slot = map.owner(row.owner);
            while let Some(job) = slot {
                if let Some(&index) = self.slots.get(&job) {
                    for feed in &self.feeds[feeds].1 {
                        let sum = &mut self.scratch[index * width + feed.to];
                        *sum = combine(*sum, cells[feed.from], feed.across);
                    }
                }
                slot = match row.owner {
                    Subject::Task { .. } => map.outer.get(&job).copied(),
                    _ => None,
                };
            }
        }
    }
}

impl Default for Fold {
    fn default() -> Self {
        Fold::new()
    }
}

fn combine(sum: i64, cell: i64, across: Across) -> i64 {
    match (sum, cell) {
        (sum, MISSING) => sum,
        (MISSING, cell) => cell,
        (sum, cell) => match across {
            // Rows of a job are alike in kind; a mean over them would weigh a sleeping process like a busy one.
            Across::Sum | Across::Mean => sum.saturating_add(cell),
            Across::Max => sum.max(cell),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_table::{CPU, MEMORY_NEEDED, PROCESSES_RUNNING};
    use crate::table::{NANO, ONE};
    use crate::{Column, Unit};

    static CGROUP_COLUMNS: &[Column] = &[Column::counter("cpu", Unit::Seconds, NANO, "").feeds(CPU)];
    static CGROUP: Table = Table { name: "cgroup", subject: "", labels: &[], columns: CGROUP_COLUMNS };
    static TASK_COLUMNS: &[Column] = &[
        Column::counter("cpu", Unit::Seconds, NANO, "").feeds(CPU),
        Column::counter("cpu_reaped", Unit::Seconds, NANO, "").feeds(CPU),
        Column::gauge("alive", Unit::Count, ONE, "").feeds(PROCESSES_RUNNING),
    ];
    static TASK: Table = Table { name: "process", subject: "", labels: &[], columns: TASK_COLUMNS };

    fn task(pid: u32) -> Subject {
        Subject::Task { pid, start_ticks: 7 }
    }

    fn fold(cgroups: &[(u64, i64)], tasks: &[(u32, [i64; 3])], map: &JobMap) -> Vec<Vec<i64>> {
        let mut cgroup_batch = Batch::new(&CGROUP);
        for &(id, cpu) in cgroups {
            cgroup_batch.push(Subject::Cgroup(id))[0] = cpu;
        }
        let mut task_batch = Batch::new(&TASK);
        for &(pid, cells) in tasks {
            task_batch.push(task(pid)).copy_from_slice(&cells);
        }
        let mut out = Batch::new(&JOB);
        Fold::new().jobs(&[cgroup_batch, task_batch], map, &mut out);
        out.rows().map(|(_, cells)| cells.to_vec()).collect()
    }

    #[test]
    fn a_cgroup_is_believed_before_its_processes() {
        let mut map = JobMap::default();
        map.add_job(1, None);
        map.assign(Subject::Cgroup(10), 1);
        map.assign(task(100), 1);
        let jobs = fold(&[(10, 500)], &[(100, [300, 20, 1])], &map);
        assert_eq!(jobs[0][CPU], 500);
        assert_eq!(jobs[0][PROCESSES_RUNNING], 1, "what the cgroup does not say comes from the processes");
        assert_eq!(jobs[0][MEMORY_NEEDED], MISSING, "what nobody says is missing, not 0");
    }

    #[test]
    fn details_are_folded_into_a_row_of_their_own() {
        use crate::detail_table::{CPU_RUNS, DETAIL, MEMORY_SHMEM};
        static COLUMNS: &[Column] = &[
            Column::counter("runs", Unit::Count, ONE, "").details(CPU_RUNS),
            // The job table has the largest, and the details have the sum.
            Column::gauge("shmem", Unit::Bytes, ONE, "")
                .across(Across::Max)
                .feeds(crate::job_table::MEMORY_SHARED)
                .details(MEMORY_SHMEM),
        ];
        static SOURCE: Table = Table { name: "x", subject: "", labels: &[], columns: COLUMNS };
        let mut map = JobMap::default();
        map.add_job(1, None);
        map.assign(task(100), 1);
        map.assign(task(101), 1);
        let mut batch = Batch::new(&SOURCE);
        batch.push(task(100)).copy_from_slice(&[3, 10]);
        batch.push(task(101)).copy_from_slice(&[MISSING, 30]);
        let (mut details, mut jobs) = (Batch::new(&DETAIL), Batch::new(&JOB));
        Fold::of_details().jobs(std::slice::from_ref(&batch), &map, &mut details);
        Fold::new().jobs(std::slice::from_ref(&batch), &map, &mut jobs);
        let cells = details.rows().next().unwrap().1;
        assert_eq!((cells[CPU_RUNS], cells[MEMORY_SHMEM]), (3, 40));
        assert_eq!(jobs.rows().next().unwrap().1[crate::job_table::MEMORY_SHARED], 30);
    }

    #[test]
    fn processes_and_what_they_reaped_add_up() {
        let mut map = JobMap::default();
        map.add_job(1, None);
        map.assign(task(100), 1);
        map.assign(task(101), 1);
        let jobs = fold(&[], &[(100, [300, 20, 1]), (101, [5, MISSING, 1]), (200, [9, 9, 1])], &map);
        assert_eq!(jobs[0][CPU], 325, "pid 200 belongs to nobody");
        assert_eq!(jobs[0][PROCESSES_RUNNING], 2);
    }

    #[test]
    fn a_nested_job_is_part_of_the_outer_one() {
        let mut map = JobMap::default();
        map.add_job(1, None);
        map.add_job(2, Some(1));
        map.assign(task(100), 1);
        map.assign(task(101), 2);
        map.assign(Subject::Cgroup(20), 2);
        let jobs = fold(&[(20, 900)], &[(100, [300, 0, 1]), (101, [5, 0, 1])], &map);
        assert_eq!((jobs[0][CPU], jobs[0][PROCESSES_RUNNING]), (305, 2));
        assert_eq!((jobs[1][CPU], jobs[1][PROCESSES_RUNNING]), (900, 1));
    }
}
