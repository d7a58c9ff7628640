//! Requests on their way to a collector: a bounded queue, and retries as the OTLP specification demands.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use met_core::backoff::jittered;
use met_wire::otlp::{self, CONTENT_TYPE, PATH};

use crate::link::{Answer, Link};
use crate::sink::Report;

/// Compressed; hours of a busy node.
const QUEUE_BYTES_MAX: usize = 8 << 20;
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A collector that asks for more waits in vain.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// A body, compressed, and how many points it has.
pub struct Body {
    pub bytes: Vec<u8>,
    pub points: u64,
}

enum Outcome {
    Taken,
    /// It will never be taken as it is.
    Refused(String),
    Later(String, Option<Duration>),
}

pub struct Outgoing {
    link: Link,
    headers: Vec<(String, String)>,
    queue: VecDeque<Body>,
    queue_bytes: usize,
    pause: Duration,
    retry_at: Option<Instant>,
    report: Report,
}

impl Outgoing {
    pub fn new(link: Link, headers: Vec<(String, String)>) -> Outgoing {
        Outgoing {
            link,
            headers,
            queue: VecDeque::new(),
            queue_bytes: 0,
            pause: PAUSE_MIN,
            retry_at: None,
            report: Report::default(),
        }
    }

    /// Queues a request. The oldest give way to the newest, which is what people look at.
    pub fn push(&mut self, body: Body) {
        self.queue_bytes += body.bytes.len();
        self.queue.push_back(body);
        while self.queue_bytes > QUEUE_BYTES_MAX
            && let Some(oldest) = self.pop()
        {
            self.give_up(oldest.points, format!("queue full: {} data points dropped", oldest.points));
        }
    }

    fn pop(&mut self) -> Option<Body> {
        let body = self.queue.pop_front()?;
        self.queue_bytes -= body.bytes.len();
        Some(body)
    }

    pub fn give_up(&mut self, points: u64, why: String) {
        self.report.dropped += points;
        self.report.failure = Some(why);
    }

    /// Sends what is due, oldest first, up to the first failure.
    pub fn send(&mut self, now: Instant) {
        while self.retry_at.is_none_or(|at| at <= now)
            && let Some(body) = self.queue.front()
        {
            let (points, answer) = (body.points, self.post(&body.bytes));
            let outcome = match answer {
                Ok(answer) => self.judge(&answer),
                Err(error) => Outcome::Later(error.to_string(), None),
            };
            match outcome {
                Outcome::Later(why, asked) => {
                    let pause = asked.unwrap_or_default().min(RETRY_AFTER_MAX).max(jittered(self.pause));
                    self.retry_at = Some(Instant::now() + pause);
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                    self.report.failure = Some(why);
                    return;
                }
                Outcome::Refused(why) => self.give_up(points, why),
                Outcome::Taken => {}
            }
            self.pop();
            (self.retry_at, self.pause) = (None, PAUSE_MIN);
        }
    }

    fn post(&self, bytes: &[u8]) -> std::io::Result<Answer> {
        let own = [("Content-Type", CONTENT_TYPE), ("Content-Encoding", "gzip")];
        let given = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers: Vec<_> = own.into_iter().chain(given).collect();
        self.link.post(PATH, &headers, bytes, ANSWER_BYTES_MAX)
    }

    fn judge(&mut self, answer: &Answer) -> Outcome {
        let said = || format!("{} {}", answer.status, otlp::error_message(&answer.body));
        match answer.status {
            200..=299 => {
                let rejected = otlp::rejected(&answer.body);
                if rejected.points > 0 {
                    let why = format!("{} data points rejected: {}", rejected.points, rejected.message);
                    self.give_up(rejected.points, why);
                }
                Outcome::Taken
            }
            429 | 502 | 503 | 504 => Outcome::Later(said(), answer.retry_after),
            _ => Outcome::Refused(said()),
        }
    }

    pub fn report(&mut self) -> Report {
        let is_retrying = self.retry_at.is_some();
        let report = std::mem::take(&mut self.report);
        Report { is_retrying, wake: self.retry_at.filter(|_| !self.queue.is_empty()), ..report }
    }
}
