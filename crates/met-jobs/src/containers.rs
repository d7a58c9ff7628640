//! Containers that a job starts: of an engine without a service they are the job's processes, of one with a
//! service they are not.

use met_core::job::Record;

/// Clients of services that run containers outside the client's process tree.
const CLIENTS: [&str; 4] = ["docker", "nerdctl", "ctr", "crictl"];

/// Whether the command of a job is such a client: what its containers do is in none of the job's figures.
pub fn is_client(record: &Record) -> bool {
    let program = record.command.first().map(String::as_str).unwrap_or_default();
    is_client_name(program.rsplit('/').next().unwrap_or_default().as_bytes())
}

pub fn is_client_name(name: &[u8]) -> bool {
    CLIENTS.iter().any(|client| client.as_bytes() == name)
}
