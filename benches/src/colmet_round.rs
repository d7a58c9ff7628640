//! Colmet's records of 1,000 hosts: taskstats and procstats.

use std::sync::Arc;

use met_sinks::Event;
use met_wire::colmet::{Backend, Record, Type, Value};
use rustix::time::{ClockId, clock_gettime};

pub const HOSTS: u64 = 1000;

/// The records of all hosts at one time; `job_of` says which job a host has.
pub fn round(number: u64, job_of: fn(u64) -> u64) -> Event {
    let record = |host: u64, backend: Backend| {
        let job_id = if backend == Backend::Taskstats { job_of(host) } else { 0 };
        let mut record =
            Record::new(backend, &format!("node-{host}.site.example"), job_id, 1_700_000_000 + 5 * number);
        record.set_all(|index, counter| {
            let grown = (number + 1) * (index as u64 + 1) * 1_000_003 + host;
            Some(match counter.kind {
                Type::F32 => Value::Float(grown as f32 / 1e9),
                _ => Value::Int(grown as i64),
            })
        });
        if backend == Backend::Procstats {
            record.involved_jobs = vec![job_of(host)];
        }
        record
    };
    let records =
        (0..HOSTS).flat_map(|host| [record(host, Backend::Taskstats), record(host, Backend::Procstats)]);
    Event::Colmet(Arc::new(records.collect()))
}

/// Of this process.
pub fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
