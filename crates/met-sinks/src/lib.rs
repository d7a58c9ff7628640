//! Writes measurements out. A sink does not know where a number came from.
//!
//! To add one: a file with its [`SinkSpec`] and its [`Sink`], and one word in [`SINKS`].

pub mod bus;
mod clock;
mod colmet;
pub mod colmet_records;
mod decimal;
pub mod elasticsearch;
pub mod event;
mod event_csv;
pub mod event_json;
pub mod forward;
pub mod hdf5;
pub mod link;
pub mod live;
mod otlp;
pub mod prometheus;
pub mod reopen;
pub mod service_discovery;
pub mod shown_jobs;
pub mod sink;
pub mod snapshot;
pub mod spool;
mod stdout;
pub mod zeromq;

pub use bus::Bus;
pub use event::Event;
pub use otlp::CONVENTIONS as OTLP_CONVENTIONS;
pub use sink::{Configured, Sink, SinkSpec};

/// All sinks, in the order of the documentation.
pub static SINKS: &[&SinkSpec] =
    &[&forward::SPEC, &stdout::SPEC, &otlp::SPEC, &colmet::SPEC, &hdf5::SPEC, &elasticsearch::SPEC];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_sink_is_listed() {
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            if text.contains("Sink for ") && !name.ends_with("_tests") && name != "lib" {
                found.push(name);
            }
        }
        found.sort_unstable();
        let mut listed: Vec<&str> = SINKS.iter().map(|spec| spec.name).collect();
        listed.sort_unstable();
        assert_eq!(found, listed, "a file is a sink and not in SINKS, or is named otherwise");
    }
}
