//! How many jobs wait, as schedulers count them: kept in the store until the next reading.

use met_core::managers::Scheduler;
use met_core::queue::Queue;
use met_store::{Queries, StoreError, Writer};

use crate::viewer::Viewer;

fn meta_name(manager: &str) -> String {
    format!("scheduler.{manager}.queue")
}

/// Instead of what was counted before.
pub fn put(writer: &mut Writer, queue: &Queue) -> Result<(), StoreError> {
    let text = serde_json::to_string(queue).unwrap_or_default();
    writer.set_meta(&meta_name(&queue.manager), &text)
}

/// The last counts of all schedulers. How many jobs a user has in the queue is shown only to viewers who see all jobs.
pub fn seen(viewer: &Viewer, store: &Queries) -> Result<Vec<Queue>, StoreError> {
    let mut queues = Vec::new();
    if viewer.sees_all() {
        for scheduler in Scheduler::ALL {
            let text = store.meta(&meta_name(scheduler.name()))?;
            // Another version may have written another form.
            queues.extend(text.and_then(|text| serde_json::from_str::<Queue>(&text).ok()));
        }
    }
    Ok(queues)
}

/// The last of each manager.
pub fn newest(mut queues: Vec<Queue>) -> Vec<Queue> {
    queues.sort_by(|one, other| (&one.manager, other.read_ns).cmp(&(&other.manager, one.read_ns)));
    queues.dedup_by(|one, other| one.manager == other.manager);
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs;

    #[test]
    fn the_last_count_is_kept_and_shown_to_those_who_see_all() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = jobs::open_writer(root.path()).unwrap();
        assert_eq!(seen(&Viewer::Everything, &writer).unwrap(), []);
        let read_at = |read_ns| Queue { manager: "slurm".to_owned(), read_ns, ..Queue::default() };
        put(&mut writer, &read_at(1)).unwrap();
        let last = Queue { partitions: [("p".to_owned(), 3)].into(), ..read_at(2) };
        put(&mut writer, &last).unwrap();
        assert_eq!(seen(&Viewer::Everything, &writer).unwrap(), std::slice::from_ref(&last));
        assert_eq!(seen(&Viewer::Uid(0), &writer).unwrap(), []);
        assert_eq!(seen(&Viewer::user("ada"), &writer).unwrap(), []);
        writer.set_meta(&meta_name("slurm"), "no queue").unwrap();
        assert_eq!(seen(&Viewer::Everything, &writer).unwrap(), []);
        let other = Queue { manager: "oar".to_owned(), ..Queue::default() };
        assert_eq!(newest(vec![read_at(1), other.clone(), last.clone()]), [other, last]);
    }
}
