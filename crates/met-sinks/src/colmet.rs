//! Records for a collector of Colmet: a PUSH socket of ZeroMQ that connects to it, one message per round.
//!
//! Only what a real collector survives is sent: whole records of kinds that it knows. Messages wait in a bounded queue while
//! none is reachable.

mod mapping_files;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use met_wire::colmet::{Backend, MESSAGE_BYTES_MAX, Record};

use crate::colmet_records::{self, Chosen, Gatherer};
use crate::event::Event;
use crate::sink::{Interest, Opened, Options, Report, Sink, SinkError, SinkOption, SinkSpec};
use crate::zeromq::Endpoint;
use crate::zeromq::push::Push;

const ENDPOINT: &str = "tcp://127.0.0.1:5556";
const BACKENDS: &str = "taskstats, procstats";
const QUEUE: &str = "1000";
/// All that waits, whatever the number of messages.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Events may change with every message to a daemon; older mapping files are removed.
const MAPPINGS_MAX: usize = 100;
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub static SPEC: SinkSpec = SinkSpec {
    name: "colmet",
    help: "records for a colmet-collector, or for a server with `colmet.listen`: ZeroMQ, as colmet-node sends them",
    options: &[
        SinkOption {
            name: "endpoint",
            values: "`tcp://HOST:PORT` or `ipc://PATH`",
            default: ENDPOINT,
            many: false,
            help: "where the collector listens; the protocol has neither encryption nor authentication",
            check: |value, _| Endpoint::parse(value).map(drop),
        },
        colmet_records::PERIOD,
        colmet_records::backends(BACKENDS),
        colmet_records::EVENTS,
        colmet_records::MANAGERS,
        SinkOption {
            name: "mapping",
            values: "a folder",
            default: "",
            many: false,
            help: "where Colmet's files `perfhw_mapping`, `RAPL_mapping` and `temperature_mapping` are written, at start and when the events change; without it: nowhere",
            check: |value, _| match value.starts_with('/') {
                true => Ok(()),
                false => Err(format!("{value:?} is not an absolute path")),
            },
        },
        SinkOption {
            name: "queue",
            values: "a number of messages",
            default: QUEUE,
            many: false,
            help: "how many messages wait while no collector is reachable, 64 MiB at most; the oldest are dropped",
            check: |value, _| match value.parse() {
                Ok(1..=1_000_000u32) => Ok(()),
                _ => Err(format!("{value:?} is not a number from 1 to 1000000")),
            },
        },
    ],
    has_section: false,
    interest,
    open,
};

fn interest(options: &Options) -> Interest {
    Chosen::of(options, BACKENDS).interest()
}

fn open(options: &Options) -> Opened {
    let endpoint = options.word("endpoint").unwrap_or(ENDPOINT);
    let endpoint = Endpoint::parse(endpoint).map_err(SinkError::Failed)?;
    let most = options.value("queue", QUEUE, |text| text.parse().ok());
    let chosen = Chosen::of(options, BACKENDS);
    let mapping = options.word("mapping").map(PathBuf::from);
    let mut sink = Colmet {
        gatherer: Gatherer::new(chosen.clone()),
        mapping,
        mapped: VecDeque::new(),
        queue: Queue::new(most),
        push: Push::new(endpoint),
        pause: PAUSE_MIN,
        retry_at: None,
        failure: None,
    };
    sink.write_mapping(&chosen.backends);
    Ok(Box::new(sink))
}

/// Messages that wait, each with the number of its records.
struct Queue {
    messages: VecDeque<(Vec<u8>, u64)>,
    bytes: usize,
    most: usize,
    dropped: u64,
}

impl Queue {
    fn new(most: usize) -> Queue {
        Queue { messages: VecDeque::new(), bytes: 0, most, dropped: 0 }
    }

    /// One message, or several if they would be longer than a peer reads.
    fn push(&mut self, records: &[Record]) {
        let (mut message, mut count) = (Vec::new(), 0);
        for record in records {
            if message.len() + record.backend.layout().bytes() > MESSAGE_BYTES_MAX {
                self.put(std::mem::take(&mut message), std::mem::take(&mut count));
            }
            record.encode(&mut message);
            count += 1;
        }
        if count > 0 {
            self.put(message, count);
        }
    }

    fn put(&mut self, message: Vec<u8>, count: u64) {
        self.bytes += message.len();
        self.messages.push_back((message, count));
        while self.messages.len() > self.most || self.bytes > QUEUE_BYTES_MAX {
            self.dropped += self.pop();
        }
    }

    /// The number of records of the message that is no longer there.
    fn pop(&mut self) -> u64 {
        let Some((message, count)) = self.messages.pop_front() else { return 0 };
        self.bytes -= message.len();
        count
    }
}

struct Colmet {
    gatherer: Gatherer,
    /// Where mapping files are written.
    mapping: Option<PathBuf>,
    /// Those written, the oldest first.
    mapped: VecDeque<PathBuf>,
    queue: Queue,
    push: Push,
    pause: Duration,
    /// No collector was reachable.
    retry_at: Option<Instant>,
    failure: Option<String>,
}

impl Colmet {
    fn write_mapping(&mut self, backends: &[Backend]) {
        let Some(folder) = &self.mapping else { return };
        match mapping_files::write(folder, backends, self.gatherer.events()) {
            Ok(written) => self.mapped.extend(written),
            Err(error) => {
                self.failure = Some(format!("cannot write mapping files to {}: {error}", folder.display()));
            }
        }
        while self.mapped.len() > MAPPINGS_MAX {
            let oldest = self.mapped.pop_front().unwrap_or_default();
            let _ = std::fs::remove_file(oldest);
        }
    }

    fn send(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        while let Some((message, _)) = self.queue.messages.front() {
            match self.push.send(message) {
                Ok(()) => {
                    self.queue.pop();
                    self.pause = PAUSE_MIN;
                }
                Err(why) => {
                    self.failure = Some(why);
                    self.retry_at = Some(Instant::now() + self.pause);
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                    return;
                }
            }
        }
    }
}

impl Sink for Colmet {
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        let mut records = Vec::new();
        let before = matches!(event, Event::Sampling(_)).then(|| self.gatherer.events().to_vec());
        self.gatherer.take(event, &mut records);
        let has_others = before.is_some_and(|before| self.gatherer.events() != before);
        if has_others && self.gatherer.has(Backend::Perfhw) {
            self.write_mapping(&[Backend::Perfhw]);
        }
        self.queue.push(&records);
        self.send();
        Ok(())
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        let mut records = Vec::new();
        self.gatherer.idle(Instant::now(), &mut records);
        self.queue.push(&records);
        self.send();
        Ok(())
    }

    fn report(&mut self) -> Option<Report> {
        let wake = self.gatherer.due().into_iter().chain(self.retry_at).min();
        Some(Report {
            dropped: std::mem::take(&mut self.queue.dropped),
            failure: self.failure.take(),
            is_retrying: self.retry_at.is_some(),
            is_logged: false,
            wake,
        })
    }

    /// What waits is tried once.
    fn close(mut self: Box<Self>) {
        let mut records = Vec::new();
        self.gatherer.idle(Instant::now() + Duration::from_secs(60), &mut records);
        self.queue.push(&records);
        self.retry_at = None;
        self.send();
        self.push.finish();
    }
}

#[cfg(test)]
#[path = "colmet/tests.rs"]
mod tests;
