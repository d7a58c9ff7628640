//! What a server keeps beside the store: its nodes, its access tokens, and batches as they were received.
//!
//! A batch is durable here before it is acknowledged, and stays until its series are in the store. Records are
//! applied in the order of arrival. Records not marked as applied are applied again, which is idempotent.

mod node_jobs;

use std::io;
use std::path::{Path, PathBuf};

use met_wire::batch::Page;
use rusqlite::{Connection, OptionalExtension, Params, Result as Answer, Row, params};

use crate::days::in_transaction;
use crate::error::StoreError;
use crate::file_id::{FileId, file_at};
use crate::schema::{CLUSTER, open_for_reading, open_for_writing, open_frozen};

pub use node_jobs::{NodeJob, NodeJobKey};

const FILE: &str = "cluster.db";

/// A batch that arrived.
pub struct Arrived<'a> {
    pub node: &'a str,
    pub spool: &'a str,
    pub sequence: u64,
    pub received_ns: i64,
    pub data: &'a [u8],
    pub about: About<'a>,
}

/// The node's description of itself, sent with every batch.
#[derive(Clone, Copy, Default)]
pub struct About<'a> {
    pub version: &'a str,
    /// Of its state folder; empty where it sends none.
    pub id: &'a str,
    pub boot_id: &'a str,
    pub cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub clock_offset_ns: Option<i64>,
    pub dropped_samples: u64,
    pub page: Option<Page>,
}

/// The sender under the name of a node, by its last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// `None` before the first batch, of a node that sends none, and after a replacement.
    pub id: Option<String>,
    pub boot_id: Option<String>,
    pub seen_ns: Option<i64>,
}

/// A batch as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub number: i64,
    pub node: String,
    pub received_ns: i64,
    pub data: Vec<u8>,
}

/// Whether a batch was news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its number here.
    New(i64),
    Known,
    /// This node is not enrolled.
    Stranger,
    /// Another sender uses this name.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub enrolled_ns: i64,
    pub seen_ns: Option<i64>,
    pub version: Option<String>,
    pub cpus: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub clock_offset_ns: Option<i64>,
    pub dropped_samples: i64,
    /// Its own page for Prometheus, if it has one that others can reach.
    pub page: Option<Page>,
}

/// The holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenOwner {
    /// May send batches, as this node.
    Node(String),
    /// May see the jobs of this user.
    User(String),
    /// May see everything.
    Operator(String),
}

impl TokenOwner {
    pub fn name(&self) -> &str {
        match self {
            TokenOwner::Node(name) | TokenOwner::User(name) | TokenOwner::Operator(name) => name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            TokenOwner::Node(_) => "node",
            TokenOwner::User(_) => "user",
            TokenOwner::Operator(_) => "operator",
        }
    }

    fn of(kind: &str, name: String) -> Option<TokenOwner> {
        match kind {
            "node" => Some(TokenOwner::Node(name)),
            "user" => Some(TokenOwner::User(name)),
            "operator" => Some(TokenOwner::Operator(name)),
            _ => None,
        }
    }
}

/// Spools of one node whose numbers are remembered, however young they are.
const SPOOLS_MAX: i64 = 1000;

/// The server's own file. Several processes may have it open: `met server enroll` writes beside a running server.
pub struct Log {
    path: PathBuf,
    connection: Connection,
    /// The file that is read; `None` where it is written.
    file: Option<FileId>,
    /// It shows the file as it was when this was opened.
    is_frozen: bool,
}

/// What the file of a server in this folder takes on disk; `None` where there is none. It is not opened.
pub fn bytes_in(state: &Path) -> Option<u64> {
    let path = state.join(FILE);
    path.exists().then(|| crate::series::bytes_of(&path))
}

impl Log {
    pub fn open(state: &Path) -> Result<Log, StoreError> {
        crate::inbox::private_dir(state).map_err(StoreError::io(state))?;
        let path = state.join(FILE);
        let connection = open_for_writing(&path, &CLUSTER, false)?;
        Ok(Log { path, connection, file: None, is_frozen: false })
    }

    /// To look things up in a file that is there. It needs no space on the disk, not even for the shared memory that
    /// SQLite makes for a file that was closed properly.
    pub fn open_for_reading(state: &Path) -> Result<Log, StoreError> {
        Log::open_at(state.join(FILE))
    }

    fn open_at(path: PathBuf) -> Result<Log, StoreError> {
        // Before it is opened: one that is replaced in between is then opened once too often.
        let file = file_at(&path)?;
        match open_for_reading(&path, &CLUSTER) {
            Ok(Some(connection)) => Ok(Log { path, connection, file, is_frozen: false }),
            Ok(None) => Err(StoreError::Io { path, error: io::ErrorKind::NotFound.into() }),
            Err(error) if error.is_no_space() => {
                let connection = open_frozen(&path)?;
                Ok(Log { path, connection, file, is_frozen: true })
            }
            Err(error) => Err(error),
        }
    }

    /// For one that stays open for reading: where it was opened without space, what was written since is seen after
    /// this, and where another file has taken the place of its own, that one.
    pub fn refresh(&mut self) -> Result<(), StoreError> {
        let is_replaced = self.file.is_some() && file_at(&self.path)? != self.file;
        if self.is_frozen || is_replaced {
            *self = Log::open_at(self.path.clone())?;
        }
        Ok(())
    }

    /// Answers several questions from one state of the file, which is faster than from one each.
    pub fn in_snapshot<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let _snapshot = self.connection.unchecked_transaction().map_err(StoreError::database(&self.path))?;
        work()
    }

    fn write<T>(
        &mut self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Answer<T>,
    ) -> Result<T, StoreError> {
        in_transaction(&mut self.connection, durable, work).map_err(StoreError::database(&self.path))
    }

    fn ask<T>(&self, work: impl FnOnce(&Connection) -> Answer<T>) -> Result<T, StoreError> {
        work(&self.connection).map_err(StoreError::database(&self.path))
    }

    fn rows<T>(
        &self,
        sql: &str,
        values: impl Params,
        row: impl FnMut(&Row<'_>) -> Answer<T>,
    ) -> Result<Vec<T>, StoreError> {
        self.ask(|connection| connection.prepare_cached(sql)?.query_map(values, row)?.collect())
    }

    fn exists(&self, sql: &str, values: impl Params) -> Result<bool, StoreError> {
        self.ask(|connection| connection.prepare_cached(sql)?.exists(values))
    }

    /// Returns how many rows changed.
    fn execute(&mut self, durable: bool, sql: &str, values: impl Params) -> Result<usize, StoreError> {
        self.write(durable, |connection| connection.prepare_cached(sql)?.execute(values))
    }

    /// Grants access to the token with this hash and registers a node. `replace` revokes all earlier tokens, and
    /// the next sender under this name becomes the node.
    pub fn enroll(
        &mut self,
        owner: &TokenOwner,
        hash: &[u8],
        now_ns: i64,
        replace: bool,
    ) -> Result<(), StoreError> {
        self.write(true, |connection| {
            if replace {
                let sql = "DELETE FROM access WHERE kind = ?1 AND name = ?2";
                connection.execute(sql, params![owner.kind(), owner.name()])?;
            }
            if let (TokenOwner::Node(name), true) = (owner, replace) {
                connection
                    .execute("UPDATE node SET identity = NULL, boot_id = NULL WHERE name = ?1", [name])?;
            }
            connection.execute(
                "INSERT OR REPLACE INTO access (hash, kind, name, made_ns) VALUES (?1, ?2, ?3, ?4)",
                params![hash, owner.kind(), owner.name(), now_ns],
            )?;
            if let TokenOwner::Node(name) = owner {
                let sql = "INSERT OR IGNORE INTO node (name, enrolled_ns) VALUES (?1, ?2)";
                connection.execute(sql, params![name, now_ns])?;
            }
            Ok(())
        })
    }

    /// Registers a node that sends without a token; `false` if there is a token of that name, which alone may speak for it.
    pub fn register_without_token(&mut self, node: &str, now_ns: i64) -> Result<bool, StoreError> {
        let kind = TokenOwner::Node(node.to_owned());
        if self.exists("SELECT 1 FROM access WHERE kind = ?1 AND name = ?2", params![kind.kind(), node])? {
            return Ok(false);
        }
        if !self.is_node(node)? {
            let sql = "INSERT OR IGNORE INTO node (name, enrolled_ns) VALUES (?1, ?2)";
            self.execute(true, sql, params![node, now_ns])?;
        }
        Ok(true)
    }

    /// Takes all tokens back; of a node also the right to come with a certificate. Says whether there was any.
    pub fn expel(&mut self, owner: &TokenOwner) -> Result<bool, StoreError> {
        self.write(true, |connection| {
            let sql = "DELETE FROM access WHERE kind = ?1 AND name = ?2";
            let mut removed = connection.execute(sql, params![owner.kind(), owner.name()])?;
            if let TokenOwner::Node(name) = owner {
                removed += connection.execute("DELETE FROM node WHERE name = ?1", [name])?;
            }
            Ok(removed > 0)
        })
    }

    pub fn owner(&self, hash: &[u8]) -> Result<Option<TokenOwner>, StoreError> {
        let sql = "SELECT kind, name FROM access WHERE hash = ?1";
        let found: Option<(String, String)> = self.rows(sql, [hash], |row| row.try_into())?.pop();
        Ok(found.and_then(|(kind, name)| TokenOwner::of(&kind, name)))
    }

    pub fn is_node(&self, name: &str) -> Result<bool, StoreError> {
        self.exists("SELECT 1 FROM node WHERE name = ?1", [name])
    }

    /// Whether this node ever sent anything, or may: what it sent stays when it may no more.
    pub fn knows_node(&self, node: &str) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM node WHERE name = ?1 UNION ALL SELECT 1 FROM spool WHERE node = ?1";
        self.exists(sql, [node])
    }

    pub fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let sql = "SELECT name, enrolled_ns, seen_ns, version, cpus, memory_bytes, clock_offset_ns,
                   dropped_samples, page_port, page_tls FROM node ORDER BY name";
        self.rows(sql, [], |row| {
            Ok(Node {
                name: row.get(0)?,
                enrolled_ns: row.get(1)?,
                seen_ns: row.get(2)?,
                version: row.get(3)?,
                cpus: row.get(4)?,
                memory_bytes: row.get(5)?,
                clock_offset_ns: row.get(6)?,
                dropped_samples: row.get(7)?,
                page: match row.get(8)? {
                    Some(port) => Some(Page { port, tls: row.get(9)? }),
                    None => None,
                },
            })
        })
    }

    /// Keeps batches, all or none of them but those that `admit` refuses: durable when this returns.
    pub fn take(
        &mut self,
        arrived: &[Arrived<'_>],
        mut admit: impl FnMut(usize, &Bound) -> bool,
    ) -> Result<Vec<Arrival>, StoreError> {
        self.write(true, |connection| {
            let mut arrivals = Vec::with_capacity(arrived.len());
            for (index, batch) in arrived.iter().enumerate() {
                arrivals.push(match bound(connection, batch.node)? {
                    None => Arrival::Stranger,
                    Some(bound) if !admit(index, &bound) => Arrival::Refused,
                    Some(_) => take(connection, batch)?,
                });
            }
            Ok(arrivals)
        })
    }

    /// A node spoke, and nothing of it was kept.
    pub fn saw(&mut self, node: &str, seen_ns: i64) -> Result<(), StoreError> {
        let sql = "UPDATE node SET seen_ns = max(coalesce(seen_ns, ?2), ?2) WHERE name = ?1";
        self.execute(false, sql, params![node, seen_ns]).map(drop)
    }

    /// Batches that came after this one, oldest first.
    pub fn after(&self, number: i64, limit: usize) -> Result<Vec<Kept>, StoreError> {
        let sql =
            "SELECT number, node, received_ns, data FROM batch WHERE number > ?1 ORDER BY number LIMIT ?2";
        self.rows(sql, params![number, limit as i64], |row| {
            let (number, node) = (row.get(0)?, row.get(1)?);
            Ok(Kept { number, node, received_ns: row.get(2)?, data: row.get(3)? })
        })
    }

    /// Some of the batches of a node whose series are not in the store, oldest first, with their numbers.
    pub fn oldest_waiting(
        &self,
        node: &str,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let sql = "SELECT number, data FROM batch WHERE node = ?1 AND number > ?2 AND number <= ?3
                   ORDER BY number LIMIT ?4";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.rows(sql, params![node, after, up_to, limit], |row| row.try_into())
    }

    /// All of them.
    pub fn waiting(&self, node: &str) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        self.oldest_waiting(node, i64::MIN, i64::MAX, usize::MAX)
    }

    /// For each node that has any: its name, since when the oldest batch waits, and how many bytes do.
    pub fn backlog(&self) -> Result<Vec<(String, i64, i64)>, StoreError> {
        let sql = "SELECT node, min(received_ns), sum(length(data)) FROM batch GROUP BY node";
        self.rows(sql, [], |row| row.try_into())
    }

    /// Their series are in the store.
    pub fn forget(&mut self, node: &str, up_to: i64) -> Result<(), StoreError> {
        let sql = "DELETE FROM batch WHERE node = ?1 AND number <= ?2";
        self.execute(false, sql, params![node, up_to]).map(drop)
    }

    /// Forgets the positions of spools that sent nothing since: each start of a daemon has its own spool. The
    /// newest of every node stays, and enough of the others to recognise a batch that is delivered twice. Later
    /// repetitions are recognised by their content.
    pub fn forget_spools(&mut self, before_ns: i64) -> Result<usize, StoreError> {
        let sql = "DELETE FROM spool WHERE (node, id) IN (
                       SELECT node, id FROM (
                           SELECT node, id, seen_ns, row_number() OVER (
                               PARTITION BY node ORDER BY seen_ns DESC, sequence DESC) AS place
                           FROM spool)
                       WHERE place > 1 AND seen_ns < ?1 OR place > ?2)";
        self.execute(false, sql, [before_ns, SPOOLS_MAX])
    }
}

fn bound(connection: &Connection, node: &str) -> Answer<Option<Bound>> {
    let sql = "SELECT identity, boot_id, seen_ns FROM node WHERE name = ?1";
    let row = |row: &Row<'_>| Ok(Bound { id: row.get(0)?, boot_id: row.get(1)?, seen_ns: row.get(2)? });
    connection.prepare_cached(sql)?.query_row([node], row).optional()
}

fn take(connection: &Connection, batch: &Arrived<'_>) -> Answer<Arrival> {
    let About { version, id, boot_id, cpus, memory_bytes, clock_offset_ns, dropped_samples, page } =
        batch.about;
    let sql = "UPDATE node SET seen_ns = ?2, version = ?3, boot_id = ?4, cpus = ?5, memory_bytes = ?6,
               clock_offset_ns = coalesce(?7, clock_offset_ns), dropped_samples = ?8, page_port = ?9,
               page_tls = ?10, identity = nullif(?11, '') WHERE name = ?1";
    let dropped = i64::try_from(dropped_samples).unwrap_or(i64::MAX);
    connection.prepare_cached(sql)?.execute(params![
        batch.node,
        batch.received_ns,
        version,
        boot_id,
        cpus,
        memory_bytes,
        clock_offset_ns,
        dropped,
        page.map(|page| page.port),
        page.is_some_and(|page| page.tls),
        id
    ])?;
    let sequence = i64::try_from(batch.sequence).unwrap_or(i64::MAX);
    let sql = "INSERT INTO spool (node, id, sequence, seen_ns) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT DO UPDATE SET sequence = excluded.sequence, seen_ns = excluded.seen_ns
               WHERE excluded.sequence > sequence";
    let values = params![batch.node, batch.spool, sequence, batch.received_ns];
    if connection.prepare_cached(sql)?.execute(values)? == 0 {
        return Ok(Arrival::Known);
    }
    let sql = "INSERT INTO batch (node, received_ns, data) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute(params![batch.node, batch.received_ns, batch.data])?;
    Ok(Arrival::New(connection.last_insert_rowid()))
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
