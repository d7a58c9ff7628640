//! Which of its nodes speaks for a job.

use std::cmp::Reverse;

use super::Speaker;
use crate::annotation::Annotation;
use crate::job::{JobKey, Record, State};

/// What the nodes of a job say together of its state, times and description, with the figures of the first one. Nodes
/// come in the order of their names.
pub fn of_nodes(key: JobKey, parts: &[&(String, Record)]) -> Option<Record> {
    let is_proven = parts.iter().any(|(_, record)| !record.unproven);
    let speaking = || parts.iter().map(|(_, record)| record).filter(|record| !is_proven || !record.unproven);
    let first = speaking().min_by_key(|record| record.start_ns.unwrap_or(i64::MAX))?;
    let deciding = deciding(parts)?;
    // A scheduler speaks for all nodes; of two answers the later one is believed.
    let mut words: Vec<&Record> = parts.iter().map(|(_, record)| record).collect();
    words.sort_by_key(|record| {
        (Reverse(record.scheduling.asked_ns), record.unproven, record.start_ns.unwrap_or(i64::MAX))
    });
    let word = *words.first()?;
    let is_recorded = Speaker::of(deciding) == Speaker::Accounting;
    let last_ns = speaking().filter_map(|record| record.end_ns).max();
    let end_ns = if is_recorded { deciding.end_ns } else { last_ns.filter(|_| !deciding.state.is_live()) };
    let mut whole = Record {
        key,
        name: word.name.clone(),
        account: word.account.clone(),
        state: deciding.state,
        manager_state: deciding.manager_state.clone(),
        exit_code: deciding.exit_code,
        signal: deciding.signal,
        end_ns,
        nodes: parts.iter().map(|(node, _)| node.clone()).collect(),
        requested: Default::default(),
        allocated: Default::default(),
        scheduling: Default::default(),
        // Pids and paths mean something on their node alone.
        local: None,
        ..first.clone()
    };
    whole.scheduling.waited = word.scheduling.waited;
    for record in words {
        whole.annotation = Annotation::later(&whole.annotation, &record.annotation).clone();
        whole.requested.fill_from(&record.requested);
        whole.allocated.fill_from(&record.allocated);
        whole.scheduling.fill_from(&record.scheduling);
        if whole.scheduling.earlier.is_empty() {
            whole.scheduling.earlier.clone_from(&record.scheduling.earlier);
        }
    }
    Some(whole)
}

/// The part whose state is that of the whole job. A scheduler speaks for all nodes; without its word the job lives
/// while a part does, and the worst end is its end. Parts of nodes that proved who they are come before others.
fn deciding<'a>(parts: &[&'a (String, Record)]) -> Option<&'a Record> {
    let rank = |(node, record): &&(String, Record)| {
        let ended_ns = record.scheduling.asked_ns.filter(|_| Speaker::of(record) == Speaker::Accounting);
        (!record.unproven, ended_ns, weight(record.state), record.scheduling.asked_ns, node.clone())
    };
    parts.iter().copied().max_by_key(rank).map(|(_, record)| record)
}

fn weight(state: State) -> u8 {
    match state {
        State::Running => 9,
        State::Suspended => 8,
        State::Pending => 7,
        State::OutOfMemory => 6,
        State::Timeout => 5,
        State::Failed => 4,
        State::Cancelled => 3,
        State::Lost => 2,
        State::Finished => 1,
    }
}
