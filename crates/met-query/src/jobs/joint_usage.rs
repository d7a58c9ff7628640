//! Use over time from several sources, each job counted once.

use std::collections::HashMap;

use anyhow::Result;
use met_core::job::{JobKey, Record};
use met_core::usage::{EXCEPT_MAX, Usage, UsageAsk};

use super::{JobRef, JobTimes, JobsFilter, Source, every_found};
use crate::client::Unreachable;
use crate::query::{every_job, first_jobs, running};
use crate::viewer::Viewer;

/// Ended jobs of one source that are looked up in the others, the newest. A user whose jobs a system daemon measures has
/// few of their own: those that ended while it was away.
const ENDED_MAX: usize = 1_000;

/// The sums of all sources together. One that does not answer is left out, as long as another one does. The system
/// daemon is the last source and is asked first; the jobs that it counts are left out of the others.
pub(super) fn of(sources: &[Box<dyn Source>], viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
    let (mut answers, mut answered, mut unreachable) = (Vec::new(), Vec::new(), None);
    for source in sources.iter().rev() {
        match usage_of(source.as_ref(), &answered, viewer, ask) {
            Err(error) if error.is::<Unreachable>() => {
                if sources.len() > 1 {
                    tracing::warn!("{error}; continuing without it");
                }
                unreachable = Some(error);
            }
            answer => {
                answers.push(answer?);
                answered.push(source.as_ref());
            }
        }
    }
    answers.reverse();
    match unreachable.filter(|_| answers.is_empty()) {
        Some(error) => Err(error),
        None => Ok(met_store::joined_usage(answers)),
    }
}

/// The sums of a source without the jobs that `others` count.
fn usage_of(source: &dyn Source, others: &[&dyn Source], viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
    let own = if others.is_empty() { Vec::new() } else { keys_in(source, viewer, ask)? };
    let mut ask = ask.clone();
    for other in others.iter().filter(|_| !own.is_empty()) {
        match counted_by(*other, &own, viewer) {
            // It has answered before, and is gone now.
            Err(error) if error.is::<Unreachable>() => {}
            counted => ask.except.extend(counted?),
        }
    }
    ask.except.truncate(EXCEPT_MAX);
    source.usage(viewer, &ask)
}

/// The jobs of a source that may be in the answer: those that run, and the newest that ended, also in the inbox.
fn keys_in(source: &dyn Source, viewer: &Viewer, ask: &UsageAsk) -> Result<Vec<JobKey>> {
    let running = JobsFilter { is_brief: true, ..running() };
    let newest = JobsFilter {
        is_brief: true,
        times: JobTimes { until_ns: Some(ask.to_ns), ..JobTimes::default() },
        ..JobsFilter::default()
    };
    let mut jobs = every_job(source, viewer, &running)?;
    let ended = first_jobs(source, viewer, &newest, ENDED_MAX)?.jobs;
    jobs.extend(ended.into_iter().filter(|job| job.end_ns.is_some_and(|end_ns| end_ns >= ask.from_ns)));
    jobs.retain(|job| job.start_ns.is_some_and(|start_ns| start_ns < ask.to_ns));
    let mut keys: Vec<JobKey> = jobs.into_iter().map(|job| job.key).collect();
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Which of these jobs are in the sums of a source.
fn counted_by(source: &dyn Source, keys: &[JobKey], viewer: &Viewer) -> Result<Vec<JobKey>> {
    let running = every_job(source, viewer, &JobsFilter { is_brief: true, ..running() })?;
    let running: HashMap<&JobKey, &Record> = running.iter().map(|job| (&job.key, job)).collect();
    let mut counted = Vec::new();
    for key in keys {
        let is_counted = match running.get(key) {
            Some(job) => is_counted(job),
            None => {
                let (manager, id) = (Some(key.manager.clone()), key.id.clone());
                let job = JobRef::Id { manager, id, node: None, user: None };
                every_found(source, viewer, &job)?.iter().any(|job| job.key == *key && is_counted(job))
            }
        };
        counted.extend(is_counted.then(|| key.clone()));
    }
    Ok(counted)
}

/// A job that ended at an unknown time is in no sum.
fn is_counted(job: &Record) -> bool {
    job.start_ns.is_some() && (job.state.is_live() || job.end_ns.is_some())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use met_core::JOB;
    use met_core::annotation::{Annotation, AnnotationChange};
    use met_core::job::{QualityKind, State};
    use met_core::job_table as column;
    use met_core::listing::Cursor;
    use met_core::reaction::ReactionChange;
    use met_core::series::Series;
    use met_core::usage::{By, Every, figure};
    use met_store::inbox::JobDir;
    use met_store::{Page, Reader, Writer};

    use super::*;
    use crate::jobs::now_ns;
    use crate::protocol::NodeStatus;
    use crate::query::{Query, find_in, usage_in};

    const HOUR_NS: i64 = 3_600_000_000_000;

    /// A store, or a daemon that does not answer. Jobs run as long as it says so.
    struct Kept(Option<Mutex<Reader>>);

    impl Kept {
        fn with(state: &Path, jobs: &[Record]) -> Box<dyn Source> {
            let mut writer = Writer::open(state).unwrap();
            writer.put_all(jobs).unwrap();
            while met_store::sum_usage(&mut writer, Instant::now() + Duration::from_secs(60)).unwrap() {}
            drop(writer);
            Box::new(Kept(Some(Mutex::new(Reader::open(state).unwrap()))))
        }

        fn ask<T>(&self, query: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
            let store = self.0.as_ref().ok_or(Unreachable::Silent { pid: Some(7) })?;
            query(&store.lock().unwrap())
        }
    }

    impl Query for Kept {
        fn jobs(&self, _: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
            Ok((self.ask(|store| Ok(store.page(&filter.to_store())?))?, Vec::new()))
        }

        fn find(&self, viewer: &Viewer, job: &JobRef, _: Option<&Cursor>) -> Result<Page> {
            Ok(Page { jobs: self.ask(|store| Ok(find_in(store, viewer, job)?))?, next: None })
        }

        fn series(&self, _: &Viewer, _: &JobKey, _: i64) -> Result<Series> {
            Ok(Series::new(&JOB))
        }

        fn gpu_series(&self, _: &Viewer, _: &JobKey, _: &str, _: i64) -> Result<Series> {
            Ok(Series::new(&JOB))
        }

        fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
            let live = every_job(self, viewer, &running())?;
            self.ask(|store| usage_in(store, viewer, ask, &live))
        }

        fn nodes(&self, _: &Viewer) -> Result<Vec<NodeStatus>> {
            Ok(Vec::new())
        }
    }

    impl Source for Kept {
        fn remove(&mut self, _: &JobKey) -> Result<()> {
            Ok(())
        }

        fn close(&mut self, _: &Record) -> Result<()> {
            Ok(())
        }

        fn annotate(&mut self, _: &JobKey, _: &AnnotationChange) -> Result<Annotation> {
            Ok(Annotation::default())
        }

        fn react(&mut self, _: &ReactionChange) -> Result<()> {
            Ok(())
        }
    }

    fn ended(id: u32) -> Record {
        let mut record = met_core::sample::full(id, "train");
        let end_ns = now_ns() - HOUR_NS;
        (record.start_ns, record.end_ns) = (Some(end_ns - HOUR_NS / 2), Some(end_ns));
        record.totals.set(column::CPU, 1_000_000_000, QualityKind::Measured, "rusage");
        record
    }

    fn live(id: u32) -> Record {
        Record { state: State::Running, end_ns: None, ..ended(id) }
    }

    fn ask(by: By) -> UsageAsk {
        UsageAsk::new(now_ns() - 24 * HOUR_NS, now_ns(), by, Every::All)
    }

    /// Jobs and seconds of CPU time by all ways to sum them.
    fn sums(sources: &[Box<dyn Source>]) -> Vec<(i128, i128)> {
        let sums = |by| {
            let lines = of(sources, &Viewer::Everything, &ask(by)).unwrap().lines;
            let sum = |figure: usize| lines.iter().map(|line| line.sums[figure]).sum::<i128>();
            (sum(figure::JOBS), sum(figure::CPU_NS) / 1_000_000_000)
        };
        [By::System, By::Node, By::Command].map(sums).into()
    }

    #[test]
    fn a_job_that_two_sources_know_is_counted_once() {
        let (user, system) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // The system daemon lost job 6: only the user knows its end.
        let lost = Record { state: State::Lost, end_ns: None, ..ended(6) };
        let of_system = Kept::with(system.path(), &[live(1), ended(2), live(3), ended(4), lost]);
        // Job 2 was handed over after its import; the ends of 3 and 4 are in the inbox.
        let of_user = Kept::with(user.path(), &[live(1), ended(2), ended(5), ended(6)]);
        for end in [ended(3), ended(4), ended(7)] {
            JobDir::claim(user.path(), end.key.id.parse().unwrap()).unwrap().write_end(&end).unwrap();
        }
        assert_eq!(sums(&[of_user, of_system]), [(7, 7); 3]);
    }

    #[test]
    fn a_source_that_does_not_answer_is_left_out_if_another_one_answers() {
        let root = tempfile::tempdir().unwrap();
        let known = || Kept::with(root.path(), &[live(1), ended(2)]);
        assert_eq!(sums(&[known(), Box::new(Kept(None))]), [(2, 2); 3]);
        assert_eq!(sums(&[Box::new(Kept(None)), known()]), [(2, 2); 3]);
        let silent: [Box<dyn Source>; 2] = [Box::new(Kept(None)), Box::new(Kept(None))];
        let error = of(&silent, &Viewer::Everything, &ask(By::User)).unwrap_err();
        assert_eq!(error.to_string(), "the daemon (pid 7) does not answer", "no sums are not 0");
    }
}
