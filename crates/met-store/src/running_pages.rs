//! Pages of lists by values that change, from the rows of running jobs in memory and the narrow rows of all others.

use met_core::job::{JobKey, Record, State};
use met_core::listing::{Cursor, Listed, Order};
use met_core::{FastMap, bounds};

use crate::error::StoreError;
use crate::filter::{Filter, JobTimes, PageBounds};
use crate::paging::{PAGE_ROWS, Page, is_running};
use crate::query::Queries;
use crate::reading::{Parts, rows};
use crate::running::{LiveJobs, Row, RunningJobs};
use crate::sql::{Sql, Value, in_snapshot};

/// A job of a page: one that runs, of which only its row is known yet, or another one.
enum Entry {
    Runs(Box<Row>),
    Other(Box<Record>),
}

macro_rules! of_either {
    ($($name:ident: $kind:ty),+ $(,)?) => {
        $(fn $name(&self) -> $kind {
            match self {
                Entry::Runs(row) => row.$name(),
                Entry::Other(record) => Listed::$name(&**record),
            }
        })+
    };
}

impl Listed for Entry {
    of_either! {
        key: &JobKey,
        name: &str,
        user: Option<&str>,
        uid: Option<u32>,
        account: Option<&str>,
        partition: Option<&str>,
        state: State,
        start_ns: Option<i64>,
        end_ns: Option<i64>,
        as_of_ns: Option<i64>,
        gpu_utilization: Option<f64>,
        cpu_count: Option<i64>,
        node_count: Option<i64>,
        gpu_count: Option<i64>,
        covers_all_nodes: bool,
        scheduler_cpu_ns: Option<i64>,
        submit_ns: Option<i64>,
        exit_status: Option<i64>,
        tags: Option<String>,
        command: Option<String>,
    }

    fn total(&self, column: usize) -> Option<i64> {
        match self {
            Entry::Runs(row) => row.total(column),
            Entry::Other(record) => record.total(column),
        }
    }
}

impl RunningJobs {
    /// As [`Queries::page_with`] of the store, where many jobs run: only the records that the page shows are read, and
    /// `live` brings them up to date if the list depends on figures. `None` where the rows do not suffice: ask with that
    /// then.
    pub fn page(
        &self,
        store: &Queries,
        filter: &Filter,
        live: &dyn LiveJobs,
    ) -> Result<Option<Page>, StoreError> {
        if !filter.changes()
            || filter.page.limit.is_none()
            || filter.needs_records()
            || !store.inbox()?.is_empty()
        {
            return Ok(None);
        }
        let file = store.file();
        let Some(catalogue) = store.listed()? else { return Ok(None) };
        let page = in_snapshot(catalogue, || {
            let Some(entries) = self.entries(store, catalogue, file, filter, live)? else {
                return Ok(None);
            };
            let page = loaded(catalogue, filter, live, entries)?;
            if page.is_none() {
                self.forget();
            }
            Ok(page)
        });
        // It is noted when rows are read, and so they are read again for the next list, which is to name it, too.
        if !catalogue.noted().borrow().is_empty() {
            self.forget();
        }
        // What is damaged is read in another way.
        match page {
            Err(StoreError::Damaged { .. }) => Ok(None),
            page => Ok(page?.filter(|_| !store.met_damage())),
        }
    }

    /// The jobs of a page and perhaps more, in their order, and where those go on that are not in memory.
    fn entries(
        &self,
        store: &Queries,
        catalogue: &dyn Sql,
        file: Option<crate::file_id::FileId>,
        filter: &Filter,
        live: &dyn LiveJobs,
    ) -> Result<Option<Entries>, StoreError> {
        let order = filter.order();
        let is_asked = |state: &State| filter.states.is_empty() || filter.states.contains(state);
        let (run, others): (Vec<State>, Vec<State>) =
            State::ALL.into_iter().filter(is_asked).partition(|&state| is_running(state));
        let mut entries = Vec::new();
        let has_unsettled = filter.page.after.as_ref().is_none_or(|after| order.has_unsettled(after));
        if has_unsettled && !run.is_empty() {
            let Some(first) = self.first(catalogue, file, filter, live)? else { return Ok(None) };
            entries.extend(first.into_iter().map(|row| Entry::Runs(Box::new(row))));
        }
        // Only behind the first page of a list by such a value, jobs that have just ended have another order than those
        // that are settled, which come last.
        let is_continued = order.is_continued();
        if has_unsettled && is_continued && !others.is_empty() {
            let mut ended = store.unsettled(filter, Vec::new(), &others)?;
            ended.retain(|record| filter.accepts(record));
            entries.extend(ended.into_iter().map(|record| Entry::Other(Box::new(record))));
        }
        let is_full = is_continued && filter.page.limit.is_some_and(|limit| entries.len() > limit);
        let rest = match others.is_empty() || is_full {
            true => Page::default(),
            false => store.page_as_stored(&Filter {
                states: others,
                page: PageBounds {
                    after: filter.page.after.as_ref().map(Cursor::settled),
                    ..filter.page.clone()
                },
                times: JobTimes { settled_ns: is_continued.then(|| order.settled_ns()), ..filter.times },
                ..filter.clone()
            })?,
        };
        let Page { jobs, next } = rest;
        entries.retain(|entry| next.as_ref().is_none_or(|next| !order.is_behind(entry, next)));
        entries.extend(jobs.into_iter().map(|record| Entry::Other(Box::new(record))));
        order.sort(&mut entries);
        Ok(Some(Entries { entries, next }))
    }
}

struct Entries {
    entries: Vec<Entry>,
    next: Option<Cursor>,
}

/// The page with its records. `None` if a row is not of the job that the store has: it was removed.
fn loaded(
    sql: &dyn Sql,
    filter: &Filter,
    live: &dyn LiveJobs,
    Entries { mut entries, next: rest }: Entries,
) -> Result<Option<Page>, StoreError> {
    let order = filter.order();
    let limit = filter.page.limit.unwrap_or(usize::MAX);
    let mut goes_on = entries.len() > limit;
    entries.truncate(limit);
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    while jobs.len() < entries.len() {
        let piece = &entries[jobs.len()..entries.len().min(jobs.len() + PAGE_ROWS)];
        let Some(records) = records(sql, filter, live, piece)? else { return Ok(None) };
        let fitting = records.iter().take_while(|record| {
            let fits = filter.page.max_bytes.is_none_or(|max_bytes| bytes < max_bytes);
            bytes += bounds::bytes(record);
            fits
        });
        let (fitting, count) = (fitting.count(), records.len());
        jobs.extend(records.into_iter().take(fitting));
        if fitting < count {
            break;
        }
    }
    goes_on |= jobs.len() < entries.len();
    entries.truncate(jobs.len());
    Ok(Some(Page { next: next(&order, filter, &entries, goes_on, rest), jobs }))
}

/// By the values that decided the order: a figure that has grown since would leave out others.
fn next(
    order: &Order,
    filter: &Filter,
    page: &[Entry],
    goes_on: bool,
    rest: Option<Cursor>,
) -> Option<Cursor> {
    let next = order.next(filter.page.after.as_ref(), page).filter(|_| goes_on);
    next.or_else(|| Some(order.begun(rest?, page)))
}

/// The records of some jobs, in the same order.
fn records(
    sql: &dyn Sql,
    filter: &Filter,
    live: &dyn LiveJobs,
    entries: &[Entry],
) -> Result<Option<Vec<Record>>, StoreError> {
    let run = entries.iter().filter_map(|entry| match entry {
        Entry::Runs(row) => Some(row.job.to_string()),
        Entry::Other(_) => None,
    });
    let keys = run.collect::<Vec<_>>().join(",");
    let parts =
        Parts { totals: true, summaries: filter.with_summaries, of_process: None, is_brief: filter.is_brief };
    let mut found: FastMap<i64, Record> = FastMap::default();
    if !keys.is_empty() {
        let behind = format!("WHERE key IN ({})", sql.dialect().numbers);
        let selected = rows(sql, &behind, &[Value::Text(&format!("[{keys}]"))], None, parts)?;
        found.extend(selected.found.into_iter().map(|stored| (stored.key, stored.record)));
    }
    // Rights and all else are checked with the record that is shown; figures decided already.
    let plain = Filter {
        conditions: filter.conditions.without_figures(),
        page: PageBounds { after: None, ..filter.page.clone() },
        ..filter.clone()
    };
    let mut records = Vec::with_capacity(entries.len());
    for entry in entries {
        match entry {
            Entry::Other(record) => records.push((**record).clone()),
            Entry::Runs(row) => {
                let Some(mut record) = found.remove(&row.job) else { return Ok(None) };
                if record.key != *row.key() || !is_running(record.state) || !plain.accepts(&record) {
                    return Ok(None);
                }
                if filter.needs_figures() {
                    live.complete(row.parts(), &mut record);
                }
                records.push(record);
            }
        }
    }
    Ok(Some(records))
}
