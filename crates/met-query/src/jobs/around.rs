//! What answers about a job are made of: its samples, the runs of its lineage, and what other jobs on its node did.

use std::borrow::Borrow;

use anyhow::Result;
use met_core::conditions::Conditions;
use met_core::job::Record;
use met_core::series::{Columns, Series};
use met_core::{JOB, Table, gpu, job_table};
use met_insight::answers::{Beside, Job, Known};
use met_insight::lineage;
use met_insight::neighbours::{LOOKED_AT, Neighbours};
use met_insight::report::Machine;
use met_insight::rules::{self, Rules};

use super::{AllJobs, JobTimes, JobsFilter, PageAsk, every_page, merge, now_ns};
use crate::setting::Setting;
use crate::systems;

/// How far back jobs are looked at, as by `met check` without an option.
const WINDOW_NS: i64 = 30 * 86_400_000_000_000;
/// Jobs with a GPU that are looked at, the newest: together they had every GPU of a node.
const WITH_GPUS: usize = 200;
/// Jobs of which one says that CPU time is counted on a node.
const BEFORE: usize = 20;

/// What other jobs on its node say of a job; `find` gives the newest jobs that fit, of those that the viewer sees.
pub fn beside<E>(
    record: &Record,
    now_ns: i64,
    mut find: impl FnMut(&JobsFilter) -> Result<Vec<Record>, E>,
) -> Result<Beside, E> {
    let ([node], Some(start_ns)) = (record.nodes.as_slice(), record.start_ns) else {
        return Ok(Beside::default());
    };
    let since_ns = now_ns.saturating_sub(WINDOW_NS);
    let since_ns = if start_ns < since_ns { start_ns.saturating_sub(WINDOW_NS) } else { since_ns };
    let on_node = |limit: usize| JobsFilter {
        is_brief: true,
        conditions: Conditions { node: Some(node.clone()), ..Conditions::default() },
        times: JobTimes { since_ns: Some(since_ns), ..JobTimes::default() },
        page: PageAsk::first(limit),
        ..JobsFilter::default()
    };
    let before_end = |limit: usize, ran_after_ns: Option<i64>| {
        let filter = on_node(limit);
        JobsFilter { times: JobTimes { until_ns: record.end_ns, ran_after_ns, ..filter.times }, ..filter }
    };
    let mut jobs = find(&before_end(LOOKED_AT, record.start_ns))?;
    let is_counted = |other: &Record| {
        other.key != record.key && other.inside.is_none() && other.totals.get(job_table::CPU).is_some()
    };
    // Of a node on which CPU time of others is counted it is known that they used none meanwhile.
    if !jobs.iter().any(is_counted) {
        jobs.extend(find(&before_end(BEFORE, None))?);
    }
    jobs.extend(find(&JobsFilter { with_gpus: true, ..on_node(WITH_GPUS) })?);
    // As it is known here: a list has it as it was when it was written.
    jobs.retain(|other| other.key != record.key);
    jobs.push(record.clone());
    Ok(Neighbours::of(&merge(jobs), now_ns).beside(record))
}

/// The same, unless no rule asks for it: most jobs take nothing from others.
pub fn beside_if_asked<E>(
    rules: &Rules,
    record: &Record,
    machine: Machine,
    earlier: &[&Record],
    now_ns: i64,
    find: impl FnMut(&JobsFilter) -> Result<Vec<Record>, E>,
) -> Result<Option<Beside>, E> {
    let unread = Job::new(record, machine, now_ns).after(earlier);
    rules::ask_neighbours(rules, &unread).then(|| beside(record, now_ns, find)).transpose()
}

impl AllJobs {
    /// The runs of a job's lineage before it, newest first, as far as they are known here. Later jobs do not change
    /// them.
    pub fn earlier_runs(&mut self, record: &Record) -> Result<Vec<Record>> {
        let candidates = self.runs_of_lineage(record, record.start_ns)?;
        Ok(lineage::earlier(record, &candidates).into_iter().cloned().collect())
    }

    /// The runs of a job's lineage, those that began before a time.
    pub fn runs_of_lineage(&mut self, record: &Record, until_ns: Option<i64>) -> Result<Vec<Record>> {
        let Some(filter) = JobsFilter::perhaps_of_lineage(record, until_ns) else { return Ok(Vec::new()) };
        let mut jobs = self.jobs(&filter)?;
        let of = lineage::lineage(record);
        jobs.retain(|job| lineage::lineage(job) == of);
        Ok(jobs)
    }

    /// The samples of a part of a job.
    pub fn part_series(&mut self, record: &Record, table: &'static Table, part: &str) -> Result<Series> {
        if table.name == JOB.name {
            return self.series(record);
        }
        if table.name == gpu::device::TABLE.name {
            return self.gpu_series(&record.key, part);
        }
        self.job_series(&record.key, table, part)
    }

    /// The same, where columns that are not wanted may be empty.
    pub fn some_series(
        &mut self,
        record: &Record,
        table: &'static Table,
        part: &str,
        wanted: Columns,
    ) -> Result<Series> {
        match table.name == JOB.name {
            true => self.columns(record, wanted),
            false => self.part_series(record, table, part),
        }
    }

    /// The samples of a job and where it could move to.
    pub fn known(&mut self, setting: &Setting, record: &Record, machine: Machine) -> Result<Known> {
        let interval = setting.config.sampling.shortest();
        let known =
            Known::read(interval, record, machine, &mut |table, part| self.part_series(record, table, part))?;
        Ok(known.among(&systems::of(&setting.config).into()))
    }

    /// What other jobs on its node say of a job.
    pub fn beside(&mut self, record: &Record) -> Result<Beside> {
        beside(record, now_ns(), |filter| self.newest(filter))
    }

    /// The same, if one of the rules asks for it.
    pub fn beside_if_asked<R: Borrow<Record>>(
        &mut self,
        rules: &Rules,
        record: &Record,
        machine: Machine,
        earlier: &[R],
    ) -> Result<Option<Beside>> {
        let earlier: Vec<&Record> = earlier.iter().map(Borrow::borrow).collect();
        beside_if_asked(rules, record, machine, &earlier, now_ns(), |filter| self.newest(filter))
    }

    /// What cannot be read is left out: a job is shown without its neighbours.
    fn newest(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let mut warnings = Vec::new();
        let jobs = self.gather(|source| every_page(source, filter, &mut warnings))?;
        self.warn(warnings);
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use met_config::Place;
    use met_core::job::{GpuUse, QualityKind, State};
    use met_host::Host;
    use met_insight::check::{self, Look};
    use met_insight::finding::Finding;
    use met_store::Writer;

    use super::*;
    use crate::jobs::files::FromFiles;

    const HOUR_NS: i64 = 3_600_000_000_000;
    const MACHINE: Machine = Machine { cpus: Some(16) };

    /// A job of some hours that used so many cores and waited for a CPU for half of its time.
    fn job(id: u32, user: &str, (begin_h, end_h): (i64, i64), cores: i64) -> Record {
        let now_ns = now_ns();
        let (start_ns, end_ns) = (now_ns - begin_h * HOUR_NS, now_ns - end_h * HOUR_NS);
        let mut record = Record {
            state: State::Finished,
            user: Some(user.to_owned()),
            nodes: vec!["n1".to_owned()],
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            ..met_core::sample::bare(id, "job")
        };
        let mut set = |column, value| record.totals.set(column, value, QualityKind::Measured, "cgroup");
        set(job_table::CPU, cores * (end_ns - start_ns));
        set(job_table::PRESSURE_CPU, (end_ns - start_ns) / 2);
        record
    }

    /// What is reported of jobs together, and of each alone.
    fn both(jobs: &[Record]) -> (Vec<Finding>, Vec<Finding>) {
        let root = tempfile::tempdir().unwrap();
        Writer::open(root.path()).unwrap().put_all(jobs).unwrap();
        let place = Place { state: root.path().to_owned(), runtime: root.path().to_owned(), system: false };
        let files = FromFiles::of(Host::real().unwrap(), place).unwrap();
        let mut all = AllJobs::of(vec![Box::new(files)], Vec::new());
        let records = all.jobs(&JobsFilter { is_brief: true, ..JobsFilter::default() }).unwrap();
        let rules = Rules::built_in();
        let look = Look {
            rules,
            is_wanted: &|_| true,
            machine: &|_| MACHINE,
            shortest_ns: 0,
            interval: Duration::from_secs(1),
            now_ns: now_ns(),
        };
        let mut series =
            |_: &Record, table: &'static Table, _: &str, _: Columns| Ok::<_, Infallible>(Series::new(table));
        let Ok((mut together, _)) = check::of_jobs(&look, &records, &mut [&mut series]);
        let mut alone = Vec::new();
        for record in &records {
            let beside = all.beside_if_asked::<Record>(rules, record, MACHINE, &[]).unwrap();
            let known = Known::read(look.interval, record, MACHINE, &mut |table, part| {
                series(record, table, part, Columns::ALL)
            });
            let Ok(known) = known;
            alone.extend(known.beside(beside).answers(record, &[], look.now_ns).findings);
        }
        let order = |finding: &Finding| (finding.subject.clone(), finding.rule.clone());
        together.sort_by_key(order);
        alone.sort_by_key(order);
        (together, alone)
    }

    #[test]
    fn one_job_has_the_same_findings_as_among_all() {
        let mut with_gpu = job(1, "cyd", (90, 80), 1);
        with_gpu.gpus = vec![GpuUse { uuid: "GPU-1".to_owned(), ..GpuUse::default() }];
        let mut elsewhere = job(2, "cyd", (50, 2), 15);
        elsewhere.nodes = vec!["n2".to_owned()];
        // It began before many others that were over when the hog began.
        let long = job(3, "bob", (70, 4), 2);
        let tiny = (10..60).map(|id| job(id, "bob", (60, 59), 1));
        let hog = job(4, "ada", (20, 10), 13);
        let mut jobs: Vec<Record> = [with_gpu, elsewhere, long, hog].into_iter().chain(tiny).collect();
        let (together, alone) = both(&jobs);
        assert_eq!(together, alone);
        let rules: Vec<&str> = alone.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["cpu_hog_on_gpu_node"]);
        jobs.remove(0);
        let (together, alone) = both(&jobs);
        assert_eq!(together, alone);
        let rules: Vec<&str> = alone.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["crowds_others"], "its node has no GPU");
    }

    #[test]
    fn a_job_of_several_nodes_or_that_has_not_begun_has_no_neighbours() {
        let find = |_: &JobsFilter| -> Result<Vec<Record>, Infallible> { panic!("it was looked for") };
        let mut record = job(1, "ada", (2, 1), 1);
        record.nodes.push("n2".to_owned());
        assert_eq!(beside(&record, now_ns(), find), Ok(Beside::default()));
        let waiting = Record { start_ns: None, ..job(1, "ada", (2, 1), 1) };
        assert_eq!(beside(&waiting, now_ns(), find), Ok(Beside::default()));
        assert_eq!(beside_if_asked(Rules::built_in(), &record, MACHINE, &[], now_ns(), find), Ok(None));
    }
}
