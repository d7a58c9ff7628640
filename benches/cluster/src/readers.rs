//! People who ask for lists of jobs while nodes send.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use met_sinks::link::{Address, Link};

use crate::at_once;

/// Connections that take turns, so that a slow answer delays few of the others.
const CONNECTIONS: u64 = 8;
const ANSWER_BYTES: u64 = 8 << 20;
/// What pages and dashboards ask for: the newest, one user's, the largest, the newest that failed.
const LISTS: [&str; 4] = [
    "/api/v1/jobs?limit=50",
    "/api/v1/jobs?limit=50&user=ada",
    "/api/v1/jobs?limit=50&sort=cpu:desc",
    "/api/v1/jobs?limit=50&state=failed",
];

/// Asks so often in a second, for so long; how long each answer took, from the moment at which it was due: a server that
/// falls behind does not hide it by being asked less.
pub fn ask(address: &str, token: &str, per_second: u64, seconds: u64) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    let took = at_once(CONNECTIONS, |connection| {
        let url = format!("http://{address}");
        let link = Link::open(&Address { url, token: Some(token.to_owned()), ..Address::default() })?;
        let mut took = Vec::new();
        for turn in (connection..per_second * seconds).step_by(CONNECTIONS as usize) {
            let due = begin + Duration::from_secs(1).mul_f64(turn as f64 / per_second as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let list = LISTS[(turn / CONNECTIONS) as usize % LISTS.len()];
            let answer = link.request("GET", list, &[], &[], ANSWER_BYTES)?;
            ensure!(answer.status == 200, "{list}: {} {}", answer.status, answer.reason());
            took.push(due.elapsed());
        }
        Ok(took)
    })?;
    let mut took: Vec<Duration> = took.into_iter().flatten().collect();
    took.sort_unstable();
    Ok(took)
}
