//! Many jobs at once, read from files by several threads.

use std::thread;

use anyhow::Result;
use met_core::by_threads::by_threads;
use met_core::job::Record;

use super::{AllJobs, JobTimes, JobsFilter, now_ns, pages};
use crate::setting::Setting;

/// Spans of time into which a list is divided: jobs are not spread evenly, and no thread is to wait for long.
const SPANS: i64 = 32;

/// More threads wait for each other rather than for jobs.
const READERS_MAX: usize = 8;

/// Those who read the same jobs, each in a thread of its own.
pub struct Together {
    readers: Vec<AllJobs>,
}

impl Together {
    pub fn open(setting: &Setting) -> Result<Together> {
        let first = AllJobs::open(setting)?;
        let count = thread::available_parallelism().map_or(1, |cpus| cpus.get().min(READERS_MAX));
        let others: Vec<AllJobs> = (1..count).map_while(|_| first.again()).collect();
        Ok(Together { readers: [first].into_iter().chain(others).collect() })
    }

    /// For everything else.
    pub fn first(&mut self) -> &mut AllJobs {
        &mut self.readers[0]
    }

    pub fn readers(&mut self) -> &mut [AllJobs] {
        &mut self.readers
    }

    /// As [`AllJobs::jobs`].
    pub fn jobs(&mut self, filter: &JobsFilter) -> Result<Vec<Record>> {
        let spans = spans(filter, now_ns());
        if self.readers.len() == 1 || spans.len() == 1 {
            return self.first().jobs(filter);
        }
        let pieces = by_threads(&mut self.readers, spans.len(), |reader, number| {
            let mut warnings = Vec::new();
            let found = reader.gather(|source| pages(source, &spans[number], &mut warnings));
            found.map(|found| (found, warnings))
        });
        let pieces = pieces.into_iter().collect::<Result<Vec<_>>>()?;
        let counts = pieces.iter().flat_map(|(pages, _)| pages).map(Vec::len);
        // Records are large: each is moved once.
        let mut jobs = Vec::with_capacity(counts.sum());
        let mut warnings = Vec::new();
        for (pages, said) in pieces {
            pages.into_iter().for_each(|page| jobs.extend(page));
            warnings.extend(said);
        }
        self.first().listed(filter, jobs, warnings)
    }
}

/// The same jobs in parts, the newest first; those that have not started are in the first one. One part where the order,
/// the number or the begin of the jobs does not let them be divided.
fn spans(filter: &JobsFilter, now_ns: i64) -> Vec<JobsFilter> {
    let is_whole =
        filter.page.limit.is_none() && filter.page.sort.is_none() && filter.times.until_ns.is_none();
    let Some(since_ns) = filter.times.since_ns.filter(|&since_ns| is_whole && since_ns < now_ns) else {
        return vec![filter.clone()];
    };
    let begin_ns = |number: i64| since_ns + (now_ns - since_ns) / SPANS * number;
    let span = |number: i64| JobsFilter {
        times: JobTimes {
            since_ns: Some(begin_ns(number)),
            until_ns: (number + 1 < SPANS).then(|| begin_ns(number + 1)),
            ..filter.times
        },
        ..filter.clone()
    };
    (0..SPANS).rev().map(span).collect()
}

#[cfg(test)]
mod tests {
    use met_config::Place;
    use met_core::job::State;
    use met_host::Host;
    use met_store::Writer;

    use super::*;
    use crate::jobs::files::FromFiles;

    #[test]
    fn several_read_the_same_as_one() {
        let root = tempfile::tempdir().unwrap();
        let (hour_ns, now_ns) = (3_600_000_000_000, now_ns());
        let job = |id: u32| {
            let start_ns = Some(now_ns - i64::from(id % 90) * hour_ns);
            Record { start_ns, end_ns: start_ns, ..met_core::sample::full(id, "train") }
        };
        let mut jobs: Vec<Record> = (1..=700).map(job).collect();
        (jobs[3].start_ns, jobs[3].end_ns, jobs[3].state) = (None, None, State::Pending);
        Writer::open(root.path()).unwrap().put_all(&jobs).unwrap();
        let place = Place { state: root.path().to_owned(), runtime: root.path().to_owned(), system: false };
        let files = FromFiles::of(Host::real().unwrap(), place).unwrap();
        let first = AllJobs::of(vec![Box::new(files)], Vec::new());
        let [second, third] = [first.again().unwrap(), first.again().unwrap()];
        let mut together = Together { readers: vec![first, second, third] };
        for since_ns in [None, Some(now_ns - 200 * hour_ns), Some(now_ns - 40 * hour_ns), Some(now_ns + 9)] {
            let filter =
                JobsFilter { times: JobTimes { since_ns, ..JobTimes::default() }, ..JobsFilter::default() };
            let alone = together.first().jobs(&filter).unwrap();
            assert!(!alone.is_empty());
            assert_eq!(together.jobs(&filter).unwrap(), alone, "{since_ns:?}");
        }
        let brief = JobsFilter { is_brief: true, ..JobsFilter::default() };
        let mut whole = together.first().jobs(&JobsFilter::default()).unwrap();
        whole.iter_mut().for_each(|job| (job.processes, job.work) = Default::default());
        assert_eq!(together.jobs(&brief).unwrap(), whole);
    }
}
