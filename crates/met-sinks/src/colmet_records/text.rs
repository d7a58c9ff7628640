//! A record as colmet-collector prints it.

use met_wire::colmet::{Record, Value};

/// With exact numbers, which Colmet rounds. What is not known is -1, as in its tables.
pub fn write_text(record: &Record, lines: &mut Vec<u8>) {
    let Record { timestamp, job_id, hostname, .. } = record;
    let mut text =
        format!("{timestamp}  Job({job_id})/ {} -> Host({hostname}) -> {{\n", record.backend.name());
    let layout = record.backend.layout();
    let jobs = layout.has_involved_jobs.then_some("involved_jobs");
    let width = layout.counters.iter().map(|counter| counter.name.len()).chain(jobs.map(str::len)).max();
    let width = width.unwrap_or(0);
    for (counter, value) in record.values() {
        let name = counter.name;
        text.push_str(&match value {
            Some(Value::Int(value)) => format!("\t{name:>width$} : {value}\n"),
            Some(Value::Float(value)) => format!("\t{name:>width$} : {value}\n"),
            None => format!("\t{name:>width$} : -1\n"),
        });
    }
    if let Some(name) = jobs {
        text.push_str(&format!("\t{name:>width$} : {}\n", record.involved_jobs_json()));
    }
    text.push_str("}\n");
    lines.extend(text.into_bytes());
}
