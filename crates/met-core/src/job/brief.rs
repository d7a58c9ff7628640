//! Records for queries of many jobs. They leave out processes and marked work, which take half of the time to read and
//! are shown of one job at a time.

use serde::{Deserialize, Deserializer};

use super::{
    Annotation, Emission, EventCount, GpuUse, JobKey, JobProcess, Local, Part, Record, Resources, Scheduling,
    State, Summaries, Totals, UncountedEvent, Work,
};

/// Reads a record without its processes and its marked work.
#[derive(Clone, Debug)]
pub struct BriefRecord(pub Record);

impl<'de> Deserialize<'de> for BriefRecord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BriefRecord, D::Error> {
        Brief::deserialize(from).map(BriefRecord)
    }
}

/// The fields of [`Record`], which the compiler compares.
#[derive(Deserialize)]
#[serde(remote = "Record")]
struct Brief {
    key: JobKey,
    name: String,
    user: Option<String>,
    uid: Option<u32>,
    account: Option<String>,
    command: Vec<String>,
    state: State,
    manager_state: Option<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    start_ns: Option<i64>,
    end_ns: Option<i64>,
    nodes: Vec<String>,
    node_memory_bytes: Option<i64>,
    #[serde(default)]
    totals: Totals,
    #[serde(default)]
    summaries: Summaries,
    #[serde(default)]
    gpus: Vec<GpuUse>,
    #[serde(default)]
    events: Vec<EventCount>,
    #[serde(default)]
    uncounted_events: Vec<UncountedEvent>,
    #[serde(skip)]
    work: Vec<Work>,
    #[serde(skip)]
    processes: Vec<JobProcess>,
    #[serde(default)]
    requested: Resources,
    #[serde(default)]
    allocated: Resources,
    #[serde(default)]
    scheduling: Scheduling,
    #[serde(default)]
    inside: Option<String>,
    #[serde(default)]
    parts: Vec<Part>,
    #[serde(default)]
    emission: Option<Emission>,
    #[serde(default)]
    as_of_ns: Option<i64>,
    #[serde(default)]
    annotation: Annotation,
    #[serde(default)]
    unproven: bool,
    local: Option<Local>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_processes_and_work_is_as_in_the_whole_record() {
        let mut full = crate::sample::full(7, "train");
        full.processes = vec![JobProcess { pid: 12, command: "python3".to_owned(), ..JobProcess::default() }];
        for mut record in [full, crate::sample::bare(8, "x")] {
            let text = serde_json::to_string(&record).unwrap();
            let BriefRecord(brief) = serde_json::from_str(&text).unwrap();
            (record.processes, record.work) = Default::default();
            assert_eq!(brief, record);
        }
    }
}
