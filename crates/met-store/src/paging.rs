//! Lists of jobs, page by page, and what jobs are together.

use std::collections::HashMap;

use met_core::conditions::Conditions;
use met_core::grouping::{self, Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record, State};
use met_core::listing::Cursor;

use crate::brief;
use crate::error::StoreError;
use crate::filter::{Filter, JobTimes, PageBounds};
use crate::listed;
use crate::query::{Queries, settle};
use crate::reading::{Parts, exact, rows, select};
use crate::sql::{Sql, Value, in_snapshot};

/// Some jobs of a list.
#[derive(Debug, Default)]
pub struct Page {
    pub jobs: Vec<Record>,
    /// Behind which the list goes on; `None` at its end.
    pub next: Option<Cursor>,
}

/// Rows that are asked for at once where the bytes of an answer are bounded.
pub(crate) const PAGE_ROWS: usize = 64;
/// Rows that are examined at once where all are.
const EXAMINED_ROWS: usize = 500;
/// Jobs that are examined for a page of those with a certain process; a multiple of the above.
pub const PROCESS_ROWS: usize = 512;

impl Queries {
    /// As [`Queries::jobs`], as many as `filter` allows, and where the list goes on.
    pub fn page(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.page_with(filter, |_| {})
    }

    /// The same, where figures decide which jobs fit and in which order: `refresh` brings the running jobs up to date
    /// before that.
    pub fn page_with(
        &self,
        filter: &Filter,
        refresh: impl FnOnce(&mut Vec<Record>),
    ) -> Result<Page, StoreError> {
        if !filter.changes() {
            return self.page_as_stored(filter);
        }
        let order = filter.order();
        let is_asked = |state: &State| filter.states.is_empty() || filter.states.contains(state);
        let (running, others): (Vec<State>, Vec<State>) =
            State::ALL.into_iter().filter(is_asked).partition(|&state| is_running(state));
        // Only behind the first page do jobs that have just ended have another order than those that are settled: before
        // that, both are found by reading the narrow rows once.
        let is_apart = order.is_continued();
        let has_unsettled = filter.page.after.as_ref().is_none_or(|after| order.has_unsettled(after));
        let mut jobs = match has_unsettled {
            true => self.unsettled(filter, running, if is_apart { &others } else { &[] })?,
            false => Vec::new(),
        };
        let ended = Filter {
            states: others,
            page: PageBounds {
                after: filter.page.after.as_ref().map(Cursor::settled),
                ..filter.page.clone()
            },
            times: JobTimes { settled_ns: is_apart.then(|| order.settled_ns()), ..filter.times },
            ..filter.clone()
        };
        let mut rest = match ended.states.is_empty() {
            true => Page::default(),
            false => self.page_as_stored(&ended)?,
        };
        if has_unsettled && filter.needs_figures() {
            jobs.extend(rest.jobs.extract_if(.., |record| order.is_unsettled(record)));
            refresh(&mut jobs);
        }
        jobs.retain(|record| filter.accepts(record));
        let is_here = |record: &Record| rest.next.as_ref().is_none_or(|next| !order.is_behind(record, next));
        jobs.retain(is_here);
        jobs.extend(rest.jobs);
        order.sort(&mut jobs);
        let page = cut(jobs, filter);
        let next = page.next.or_else(|| Some(order.begun(rest.next?, &page.jobs)));
        Ok(Page { next, ..page })
    }

    /// The jobs whose values may be others on the next page: those that run, and those that have just ended.
    pub(crate) fn unsettled(
        &self,
        filter: &Filter,
        running: Vec<State>,
        others: &[State],
    ) -> Result<Vec<Record>, StoreError> {
        let order = filter.order();
        let all = Filter {
            conditions: filter.conditions.without_figures(),
            page: PageBounds { now_ns: order.as_of_ns, ..PageBounds::default() },
            ..filter.clone()
        };
        let mut jobs = Vec::new();
        if !running.is_empty() {
            jobs = self.page_as_stored(&Filter { states: running, ..all.clone() })?.jobs;
        }
        if !others.is_empty() {
            let ended = Filter {
                states: others.to_vec(),
                times: JobTimes { ended_after_ns: Some(order.settled_ns()), ..all.times },
                ..all
            };
            jobs.extend(self.page_as_stored(&ended)?.jobs);
        }
        Ok(jobs)
    }

    pub(crate) fn page_as_stored(&self, filter: &Filter) -> Result<Page, StoreError> {
        // The inbox first: a job that is imported between the two is then in both and not in neither.
        let mut pending = self.inbox()?;
        let stored = match self.stored_page(filter, &mut pending) {
            Err(error @ StoreError::Damaged { .. }) => self.page_of_rest(filter, error)?,
            // A damaged index hides rows that are whole.
            Ok(_) if self.met_damage() => {
                let what = "row checksum mismatch".to_owned();
                self.page_of_rest(filter, StoreError::Damaged { path: self.catalogue_path(), what })?
            }
            stored => stored?,
        };
        let Page { mut jobs, mut next } = stored;
        // An index may be damaged: by the record it is decided who sees it.
        let count = jobs.len();
        jobs.retain(|record| filter.owner.may_see(record));
        if jobs.len() < count {
            self.noted.borrow_mut().note("an index that names another owner");
        }
        jobs.retain(|record| !pending.contains_key(&record.key));
        let order = filter.order();
        let is_here = |record: &Record| next.as_ref().is_none_or(|next| !order.is_behind(record, next));
        jobs.extend(pending.into_values().filter(|record| filter.accepts(record) && is_here(record)));
        order.sort(&mut jobs);
        let count = jobs.len();
        jobs.dedup_by(|later, earlier| later.key == earlier.key);
        if jobs.len() < count {
            self.noted.borrow_mut().note("an index that lists a job twice");
        }
        if let Some(limit) = filter.page.limit.filter(|&limit| limit < jobs.len()) {
            jobs.truncate(limit);
            next = order.next(filter.page.after.as_ref(), &jobs).or(next);
        }
        Ok(Page { jobs, next })
    }

    /// What the catalogue has of a page. What the inbox says of a job becomes what both say.
    fn stored_page(
        &self,
        filter: &Filter,
        pending: &mut HashMap<JobKey, Record>,
    ) -> Result<Page, StoreError> {
        let Some(catalogue) = self.trusted()? else { return Ok(Page::default()) };
        settle(catalogue, pending)?;
        if !filter.is_plain() {
            return match listed::is_complete(catalogue)? {
                true => in_snapshot(catalogue, || listed_page(catalogue, filter, pending.len())),
                false => self.examined_page(filter, pending.len()),
            };
        }
        let parts = parts_of(filter);
        let limit = filter.page.limit.map_or(usize::MAX, |limit| limit.saturating_add(pending.len()));
        match in_snapshot(catalogue, || brief::page(catalogue, filter, limit)) {
            Ok(Some(page)) => return Ok(page),
            // All that is packed is in the records, too.
            Ok(None) | Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut page = Page { jobs: Vec::new(), next: filter.page.after.clone() };
        let (mut bytes, mut examined) = (0, 0);
        loop {
            let rows = match (filter.pid, filter.page.max_bytes) {
                (None, None) => limit - page.jobs.len(),
                (None, Some(_)) => (limit - page.jobs.len()).min(PAGE_ROWS),
                (Some(_), _) => PAGE_ROWS,
            };
            let (condition, values) = filter.sql(catalogue.dialect(), page.next.as_ref());
            let at_once = (rows < usize::MAX).then_some(rows);
            let selected = select(catalogue, &condition, &values, at_once, parts)?;
            bytes += selected.bytes;
            examined += selected.rows;
            page.jobs.extend(selected.found.into_iter().map(|stored| stored.record));
            if selected.rows < rows {
                page.next = None;
                return Ok(page);
            }
            if rows > 0 {
                let unordered = || catalogue.damaged("row has unreadable sort keys");
                page.next = Some(selected.last.ok_or_else(unordered)?);
            }
            let is_enough = match filter.pid {
                Some(_) => examined >= PROCESS_ROWS,
                None => filter.page.max_bytes.is_none(),
            };
            if is_enough || page.jobs.len() >= limit || filter.page.max_bytes.is_some_and(|max| bytes >= max)
            {
                return Ok(page);
            }
        }
    }

    /// A page for which all jobs are examined, as many at a time as fit memory.
    fn examined_page(&self, filter: &Filter, pending: usize) -> Result<Page, StoreError> {
        let order = filter.order();
        let count = filter.page.limit.map_or(usize::MAX, |limit| limit.saturating_add(pending));
        let mut plain = Filter {
            conditions: Conditions::default(),
            on_nodes: None,
            page: PageBounds { sort: None, after: None, limit: Some(EXAMINED_ROWS), ..filter.page.clone() },
            times: JobTimes { ended_after_ns: None, ran_after_ns: None, settled_ns: None, ..filter.times },
            ..filter.clone()
        };
        let mut kept = Vec::new();
        loop {
            let Page { mut jobs, next } = self.stored_page(&plain, &mut HashMap::new())?;
            jobs.retain(|record| filter.accepts(record));
            kept.append(&mut jobs);
            // Not for every piece: most of what is kept is sorted already.
            if next.is_none() || kept.len() >= count.saturating_mul(2) {
                order.sort(&mut kept);
                // One more says that the list goes on.
                kept.truncate(count.saturating_add(1));
            }
            match next {
                Some(next) => plain.page.after = Some(next),
                None => return Ok(cut(kept, filter)),
            }
        }
    }

    /// A page of what can still be read of a damaged catalogue.
    fn page_of_rest(&self, filter: &Filter, error: StoreError) -> Result<Page, StoreError> {
        let mut jobs = self.rest(error)?;
        jobs.retain(|record| filter.accepts(record));
        filter.order().sort(&mut jobs);
        Ok(cut(jobs, filter))
    }

    /// Who had jobs in which account, of the jobs that fit.
    pub fn memberships(&self, filter: &Filter) -> Result<Vec<Membership>, StoreError> {
        let Some(catalogue) = self.listed()? else { return Ok(grouping::memberships(&self.jobs(filter)?)) };
        let mut unstored = self.inbox()?.into_values().collect::<Vec<_>>();
        let mut found = Vec::new();
        if filter.needs_figures() {
            // The narrow rows of running jobs do not have them.
            let is_asked = |state: &State| filter.states.is_empty() || filter.states.contains(state);
            let (running, others): (Vec<State>, Vec<State>) =
                State::ALL.into_iter().filter(is_asked).partition(|&state| is_running(state));
            if !running.is_empty() {
                let running = self.page(&Filter { states: running, ..filter.clone() })?;
                found.extend(grouping::memberships(&running.jobs));
            }
            if !others.is_empty() {
                let others = Filter { states: others, ..filter.clone() };
                found.extend(listed::memberships(catalogue, &others)?);
            }
            unstored.retain(|record| !is_running(record.state));
        } else {
            found = listed::memberships(catalogue, filter)?;
        }
        unstored.retain(|record| filter.accepts(record));
        for record in unstored {
            if exact(catalogue, &record.key, Parts::NONE)?.is_none() {
                found.extend(grouping::memberships([&record]));
            }
        }
        Ok(grouping::joined(found))
    }

    /// What the jobs that fit used that ended within a time.
    pub fn sums(&self, filter: &Filter, span: &SumSpan) -> Result<Vec<Sum>, StoreError> {
        let Some(catalogue) = self.listed()? else { return Ok(grouping::sums(&self.jobs(filter)?, span)) };
        let mut pending = self.inbox()?;
        settle(catalogue, &mut pending)?;
        let sums = listed::sums(catalogue, filter, span)?;
        let mut unstored = Vec::new();
        for record in pending.into_values().filter(|record| filter.accepts(record)) {
            let stored = exact(catalogue, &record.key, Parts::NONE)?;
            if stored.is_none_or(|stored| stored.record.state.is_live()) {
                unstored.push(record);
            }
        }
        Ok(listed::added(sums, grouping::sums(&unstored, span)))
    }

    /// The catalogue, if it can be trusted and has a narrow row for every job.
    pub(crate) fn listed(&self) -> Result<Option<&dyn Sql>, StoreError> {
        match self.trusted() {
            Ok(Some(catalogue)) => Ok(listed::is_complete(catalogue)?.then_some(catalogue)),
            Ok(None) | Err(StoreError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a list has of its jobs. Who looks for a process reads them all.
fn parts_of(filter: &Filter) -> Parts {
    Parts {
        totals: true,
        summaries: filter.with_summaries,
        of_process: filter.pid,
        is_brief: filter.is_brief && filter.pid.is_none(),
    }
}

/// A page by the narrow rows of jobs.
fn listed_page(sql: &dyn Sql, filter: &Filter, pending: usize) -> Result<Page, StoreError> {
    let more = Filter {
        page: PageBounds {
            limit: filter.page.limit.map(|limit| limit.saturating_add(pending)),
            ..filter.page.clone()
        },
        ..filter.clone()
    };
    let places = listed::places(sql, &more)?;
    let parts = Parts { of_process: None, ..parts_of(filter) };
    let count = more.page.limit.unwrap_or(usize::MAX).min(places.len());
    let (mut jobs, mut bytes, mut taken) = (Vec::new(), 0, 0);
    while taken < count && filter.page.max_bytes.is_none_or(|max_bytes| taken == 0 || bytes < max_bytes) {
        let piece = &places[taken..count.min(taken + PAGE_ROWS)];
        let keys = piece.iter().map(|place| place.job.to_string()).collect::<Vec<_>>().join(",");
        let behind = format!("WHERE key IN ({})", sql.dialect().numbers);
        let selected = rows(sql, &behind, &[Value::Text(&format!("[{keys}]"))], None, parts)?;
        bytes += selected.bytes;
        taken += piece.len();
        jobs.extend(selected.found.into_iter().map(|stored| stored.record));
    }
    filter.order().sort(&mut jobs);
    let next = places[..taken].last().filter(|_| taken < places.len()).map(|last| last.cursor.clone());
    Ok(Page { jobs, next })
}

pub(crate) fn is_running(state: State) -> bool {
    matches!(state, State::Running | State::Suspended)
}

/// The jobs at the front of a sorted list that fit a page.
fn cut(mut jobs: Vec<Record>, filter: &Filter) -> Page {
    let (order, mut bytes) = (filter.order(), 0);
    let fitting = jobs.iter().take_while(|record| {
        let fits = filter.page.max_bytes.is_none_or(|max_bytes| bytes < max_bytes);
        bytes += met_core::bounds::bytes(record);
        fits
    });
    let count = fitting.count().min(filter.page.limit.unwrap_or(usize::MAX));
    let goes_on = count < jobs.len();
    let next = order.next(filter.page.after.as_ref(), &jobs[..count]).filter(|_| goes_on);
    jobs.truncate(count);
    Page { jobs, next }
}

#[cfg(test)]
mod tests {
    use met_core::job::LOCAL;
    use met_core::listing::{Sort, SortColumn};

    use super::*;
    use crate::filter::JobOwner;
    use crate::query::CATALOGUE_FILE;
    use crate::reading;
    use crate::sql::Row;
    use crate::sqlite::Sqlite;

    /// Of 100,000 jobs, the newest 20 take a fraction of a millisecond by an index and 100 ms without one.
    #[test]
    fn every_list_is_read_by_an_index() {
        let state = tempfile::tempdir().unwrap();
        drop(crate::Writer::open(state.path()).unwrap());
        let path = state.path().join(CATALOGUE_FILE);
        let catalogue = Sqlite::new(rusqlite::Connection::open(&path).unwrap(), &path);
        let key = JobKey { cluster: None, manager: LOCAL.into(), id: "7".into(), incarnation: 1 };
        let filters = [
            Filter::default(),
            Filter { owner: JobOwner::of_uid(1000), ..Filter::default() },
            Filter {
                owner: JobOwner {
                    user: Some("alice".into()),
                    account: Some("a".into()),
                    ..JobOwner::default()
                },
                ..Filter::default()
            },
            Filter { name: Some("train".into()), ..Filter::default() },
            Filter { states: vec![State::Failed], ..Filter::default() },
            Filter { with_gpus: true, manager: Some("slurm".into()), ..Filter::default() },
            Filter {
                page: PageBounds { after: Some(Cursor::at(5, key)), ..PageBounds::default() },
                times: JobTimes { since_ns: Some(1), ..JobTimes::default() },
                ..Filter::default()
            },
        ];
        for filter in filters {
            let (condition, values) = filter.sql(catalogue.dialect(), filter.page.after.as_ref());
            let order = reading::order(catalogue.dialect());
            let columns = reading::columns(reading::SUM_VERSION);
            let plan = format!(
                "EXPLAIN QUERY PLAN SELECT {columns} FROM job WHERE {condition} ORDER BY {order} LIMIT 20"
            );
            let mut steps = Vec::new();
            catalogue
                .query(&plan, &values, &mut |row| {
                    steps.push(row.get(3).text()?.to_owned());
                    Ok(())
                })
                .unwrap();
            assert!(steps[0].starts_with("SEARCH job USING INDEX job_"), "{filter:?}: {steps:?}");
        }
    }

    /// A row of `job` holds the whole record; those of `listed` are all read for such a list.
    #[test]
    fn no_list_reads_the_records_of_jobs_that_are_not_in_it() {
        let state = tempfile::tempdir().unwrap();
        drop(crate::Writer::open(state.path()).unwrap());
        let path = state.path().join(CATALOGUE_FILE);
        let catalogue = Sqlite::new(rusqlite::Connection::open(&path).unwrap(), &path);
        let text = || Some("x".to_owned());
        let conditions = [
            Conditions::default(),
            Conditions { command: text(), node: text(), tag: text(), ..Conditions::default() },
            Conditions { partition: text(), min_duration_ns: Some(1), ..Conditions::default() },
            Conditions { min_energy_uj: Some(1), max_efficiency: Some(0.5), ..Conditions::default() },
        ];
        for column in SortColumn::ALL {
            for conditions in &conditions {
                let sort = Some(Sort { column, descending: true });
                let with_gpus = column == SortColumn::Gpus;
                let limit = Some(100);
                let filter = Filter {
                    with_gpus,
                    conditions: conditions.clone(),
                    page: PageBounds { sort, limit, ..PageBounds::default() },
                    ..Filter::default()
                };
                let (statement, values) = listed::statement(catalogue.dialect(), &filter);
                let mut steps = Vec::new();
                let plan = format!("EXPLAIN QUERY PLAN {statement}");
                let mut note = |row: &dyn Row| {
                    steps.push(row.get(3).text()?.to_owned());
                    Ok(())
                };
                catalogue.query(&plan, &values, &mut note).unwrap();
                assert!(steps.iter().all(|step| !step.contains(" job")), "{filter:?}: {steps:?}");
            }
        }
    }
}
