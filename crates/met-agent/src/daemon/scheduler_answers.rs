//! Joins the schedulers' records of jobs with what was measured, and stores the result.

use anyhow::Result;
use met_core::bounds;
use met_core::job::{Record, State};
use met_jobs::scheduler::{Recorded, Update, join};
use met_store::{Filter, Queries, Writer};

use super::schedulers::Before;
use super::write_retries;
use met_query::{jobs, queues};

/// The same again will not do.
pub fn is_hopeless(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(write_retries::is_hopeless)
}

/// Joins a scheduler's update with what is known, stores it, and returns what was written.
pub fn keep(writer: &mut Writer, update: &Update) -> Result<Vec<Record>> {
    let asked_ns = jobs::now_ns();
    let (mut write, mut instead_of) = (Vec::new(), Vec::new());
    for runs in update.recorded.chunk_by(|one, next| one.id == next.id) {
        let known = known_as(writer, update.manager, &runs[0])?;
        let joined = join::join(&known, runs, asked_ns);
        write.extend(joined.write);
        instead_of.extend(joined.remove);
    }
    for id in &update.gone {
        let known = writer.find(Some(update.manager), id)?;
        write.extend(join::forgotten(&known).into_iter().filter(|record| record.key.id == *id));
    }
    write.iter_mut().for_each(bounds::bound);
    writer.put_instead(&write, &instead_of)?;
    if let Some(cursor) = update.cursor {
        writer.set_meta(&cursor_name(update.manager), &cursor.to_string())?;
    }
    if let Some(queue) = &update.queue {
        queues::put(writer, queue)?;
    }
    Ok(write)
}

/// What there is of a job, also under the id of the array that it is an element of.
fn known_as(writer: &Writer, manager: &str, recorded: &Recorded) -> Result<Vec<Record>> {
    let mut known = writer.find(Some(manager), &recorded.id)?;
    known.retain(|record| record.key.id == recorded.id);
    let scheduling = &recorded.scheduling;
    if let Some(array_id) = scheduling.array_id.as_ref().filter(|array_id| **array_id != recorded.id) {
        let mut of_array = writer.find(Some(manager), array_id)?;
        of_array.retain(|record| record.key.id == *array_id && record.scheduling.array_index.is_some());
        known.extend(of_array);
    }
    Ok(known)
}

/// Up to when a scheduler has reported everything.
fn cursor_name(manager: &str) -> String {
    format!("scheduler.{manager}.cursor")
}

/// What a scheduler had reported when the daemon last ran.
pub fn before(writer: &Queries, manager: &str) -> Before {
    let cursor = writer.meta(&cursor_name(manager)).ok().flatten().and_then(|cursor| cursor.parse().ok());
    let live = Filter {
        manager: Some(manager.to_owned()),
        states: State::ALL.into_iter().filter(|state| state.is_live()).collect(),
        ..Filter::default()
    };
    let is_reported = |record: &Record| record.scheduling.asked_ns.is_some();
    // Without them all is well, too: they are found again by the answer, or when they end.
    let live = writer.jobs(&live).unwrap_or_default().into_iter().filter(is_reported);
    Before { cursor, live: live.map(|record| record.key.id).collect() }
}
