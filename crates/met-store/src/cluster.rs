//! What a server keeps beside the store: its nodes, its access tokens, and batches as they were received.
//!
//! A batch is durable here before it is acknowledged, and stays until its series are in the store. Records are
//! applied in the order of arrival. Records not marked as applied are applied again, which is idempotent.

use std::io;
use std::path::{Path, PathBuf};

use met_core::job::{JobKey, Record};
use met_wire::batch::Page;
use rusqlite::{Connection, OptionalExtension, Params, Result as Answer, Row, params};

use crate::days::in_transaction;
use crate::error::StoreError;
use crate::file_id::{FileId, file_at};
use crate::schema::{CLUSTER, open_for_reading, open_for_writing, open_frozen};

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

/// A node's record of a job, and which job it is a part of.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeJob {
    pub node: String,
    pub whole: i64,
    pub record: Record,
    /// Arrival time by the server's clock, where known.
    pub received_ns: Option<i64>,
    /// The last record says it runs, but its node fell silent, so the job is reported as lost.
    pub given_up: bool,
}

/// The key of a [`NodeJob`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeJobKey {
    pub manager: String,
    pub id: String,
    pub node: String,
    pub incarnation: i64,
    pub whole: i64,
}

/// Values of the column `standing`.
const ENDED: i64 = 0;
const LIVES: i64 = 1;
const GIVEN_UP: i64 = 2;

/// Writes a record of a node. `given_up` is reset once the job has been written.
const NOTE: &str = "
    INSERT INTO told (manager, id, node, incarnation, whole, record, standing, heard_ns)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT DO UPDATE SET whole = excluded.whole, record = excluded.record, heard_ns = excluded.heard_ns,
        standing = CASE
            WHEN excluded.standing = 0 THEN 0
            WHEN NOT ?9 AND iif(json_valid(told.record), json_extract(told.record, '$.unproven'), 0) THEN excluded.standing
            ELSE told.standing END
    WHERE CASE WHEN iif(json_valid(told.record), json_extract(told.record, '$.unproven'), 0)
        THEN NOT ?9 OR excluded.standing = 0 OR told.standing <> 0
        ELSE NOT ?9 AND (excluded.standing = 0 OR told.standing <> 0) END";

/// Spools of one node whose numbers are remembered, however young they are.
const SPOOLS_MAX: i64 = 1000;

/// The server's own file. Several processes may have it open: `met server enroll` writes beside a running server.
pub struct Log {
    path: PathBuf,
    connection: Connection,
    /// The file that is read; of one that is written nobody asks.
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
        bearer: &TokenOwner,
        hash: &[u8],
        now_ns: i64,
        replace: bool,
    ) -> Result<(), StoreError> {
        self.write(true, |connection| {
            if replace {
                let sql = "DELETE FROM access WHERE kind = ?1 AND name = ?2";
                connection.execute(sql, params![bearer.kind(), bearer.name()])?;
            }
            if let (TokenOwner::Node(name), true) = (bearer, replace) {
                connection
                    .execute("UPDATE node SET identity = NULL, boot_id = NULL WHERE name = ?1", [name])?;
            }
            connection.execute(
                "INSERT OR REPLACE INTO access (hash, kind, name, made_ns) VALUES (?1, ?2, ?3, ?4)",
                params![hash, bearer.kind(), bearer.name(), now_ns],
            )?;
            if let TokenOwner::Node(name) = bearer {
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
    pub fn expel(&mut self, bearer: &TokenOwner) -> Result<bool, StoreError> {
        self.write(true, |connection| {
            let sql = "DELETE FROM access WHERE kind = ?1 AND name = ?2";
            let mut removed = connection.execute(sql, params![bearer.kind(), bearer.name()])?;
            if let TokenOwner::Node(name) = bearer {
                removed += connection.execute("DELETE FROM node WHERE name = ?1", [name])?;
            }
            Ok(removed > 0)
        })
    }

    pub fn bearer(&self, hash: &[u8]) -> Result<Option<TokenOwner>, StoreError> {
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

    /// A server of an older version that ran on while the file was upgraded did not set `standing` in the rows it
    /// wrote. Once is enough: that version does not open the file again.
    pub fn settle_standings(&mut self) -> Result<(), StoreError> {
        self.write(false, |connection| {
            if connection.prepare("SELECT 1 FROM meta WHERE name = 'standings'")?.exists([])? {
                return Ok(());
            }
            let sql = "UPDATE told SET standing = ?1 WHERE standing = ?2 AND CASE WHEN json_valid(record)
                       THEN json_extract(record, '$.state') IN ('pending', 'running', 'suspended') ELSE 0 END";
            connection.execute(sql, [LIVES, ENDED])?;
            connection.execute("INSERT INTO meta (name, value) VALUES ('standings', 1)", []).map(drop)
        })
    }

    /// Jobs of which an earlier version kept records without a note of who sent them without a proof: manager and id. None
    /// after [`Log::end_marking`].
    pub fn unmarked(&self) -> Result<Vec<(String, String)>, StoreError> {
        let sql = "SELECT DISTINCT manager, id FROM told WHERE record LIKE '%\"colmet\"%'
                   AND NOT EXISTS (SELECT 1 FROM meta WHERE name = 'proofs')";
        self.rows(sql, [], |row| row.try_into())
    }

    /// Notes of records that their senders did not have to prove who they are.
    pub fn mark_unproven(&mut self, jobs: &[NodeJob]) -> Result<(), StoreError> {
        self.write(false, |connection| {
            for job in jobs {
                let JobKey { manager, id, incarnation, .. } = &job.record.key;
                let record = Record { unproven: true, ..job.record.clone() };
                let record = serde_json::to_string(&record).unwrap_or_default();
                let sql = "UPDATE told SET record = ?5
                           WHERE manager = ?1 AND id = ?2 AND node = ?3 AND incarnation = ?4";
                connection.execute(sql, params![manager, id, job.node, incarnation, record])?;
            }
            Ok(())
        })
    }

    pub fn end_marking(&mut self) -> Result<(), StoreError> {
        self.execute(false, "INSERT OR IGNORE INTO meta (name, value) VALUES ('proofs', 1)", []).map(drop)
    }

    /// Up to which batch records were applied.
    pub fn applied(&self) -> Result<i64, StoreError> {
        self.ask(|connection| {
            let sql = "SELECT value FROM meta WHERE name = 'applied'";
            Ok(connection.query_row(sql, [], |row| row.get(0)).optional()?.unwrap_or(0))
        })
    }

    /// Stores nodes' records of jobs, and the number of the last batch applied. A job that ended stays ended: a
    /// later record of it running arrived late. What a node said that proved who it is stays, and replaces all else.
    pub fn note(&mut self, jobs: &[NodeJob], applied: i64) -> Result<(), StoreError> {
        self.write(false, |connection| {
            for job in jobs {
                let JobKey { manager, id, incarnation, .. } = &job.record.key;
                let record = serde_json::to_string(&job.record).unwrap_or_default();
                let standing = if job.record.state.is_live() { LIVES } else { ENDED };
                let unproven = job.record.unproven;
                let values = params![
                    manager,
                    id,
                    job.node,
                    incarnation,
                    job.whole,
                    record,
                    standing,
                    job.received_ns,
                    unproven
                ];
                connection.prepare_cached(NOTE)?.execute(values)?;
            }
            let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('applied', ?1)";
            connection.prepare_cached(sql)?.execute([applied]).map(drop)
        })
    }

    /// Every node's records of the jobs with this id.
    pub fn node_jobs(&self, manager: &str, id: &str) -> Result<Vec<NodeJob>, StoreError> {
        self.jobs_with_id(manager, id, None)
    }

    /// Those of one node.
    pub fn jobs_on_node(&self, manager: &str, id: &str, node: &str) -> Result<Vec<NodeJob>, StoreError> {
        self.jobs_with_id(manager, id, Some(node))
    }

    /// The keys of every node's records of the jobs with this id, or of one node's. The records are not read.
    pub fn node_job_keys(
        &self,
        manager: &str,
        id: &str,
        node: Option<&str>,
    ) -> Result<Vec<NodeJobKey>, StoreError> {
        let sql = match node {
            Some(_) => {
                "SELECT manager, id, node, incarnation, whole FROM told
                 WHERE manager = ?1 AND id = ?2 AND node = ?3"
            }
            None => {
                "SELECT manager, id, node, incarnation, whole FROM told
                 WHERE manager = ?1 AND id = ?2 AND ?3 IS NULL ORDER BY node"
            }
        };
        self.rows(sql, params![manager, id, node], node_job_key)
    }

    fn jobs_with_id(&self, manager: &str, id: &str, node: Option<&str>) -> Result<Vec<NodeJob>, StoreError> {
        self.ask(|connection| {
            let of_node = if node.is_some() { "node = ?3" } else { "?3 IS NULL" };
            let sql = format!(
                "SELECT node, whole, record, heard_ns, standing FROM told
                 WHERE manager = ?1 AND id = ?2 AND {of_node} ORDER BY node"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![manager, id, node])?;
            let mut jobs = Vec::new();
            while let Some(row) = rows.next()? {
                // An unreadable record is sent again by its node, or never was one.
                if let Ok(record) = serde_json::from_str(row.get_ref(2)?.as_str()?) {
                    let given_up = row.get::<_, i64>(4)? == GIVEN_UP;
                    let (node, whole, received_ns) = (row.get(0)?, row.get(1)?, row.get(3)?);
                    jobs.push(NodeJob { node, whole, record, received_ns, given_up });
                }
            }
            Ok(jobs)
        })
    }

    /// The nodes that have jobs which are not over: those that are believed to live, or those that were given up.
    pub fn nodes_with_jobs(&self, given_up: bool) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT DISTINCT node FROM told WHERE standing > 0 AND standing = ?1";
        self.rows(sql, [standing(given_up)], |row| row.get(0))
    }

    /// The unfinished jobs of this node.
    pub fn unfinished(&self, node: &str, given_up: bool) -> Result<Vec<NodeJobKey>, StoreError> {
        let sql = "SELECT manager, id, node, incarnation, whole FROM told
                   WHERE node = ?1 AND standing > 0 AND standing = ?2";
        self.rows(sql, params![node, standing(given_up)], node_job_key)
    }

    /// Those of them that ran in another boot of their machine than this one, as far as their records say.
    pub fn unfinished_of_other_boots(
        &self,
        node: &str,
        boot_id: &str,
        given_up: bool,
    ) -> Result<Vec<NodeJobKey>, StoreError> {
        let sql = "SELECT manager, id, node, incarnation, whole FROM told
                   WHERE node = ?1 AND standing > 0 AND standing = ?2 AND CASE WHEN json_valid(record)
                   THEN json_extract(record, '$.local.boot_id') NOT IN (?3, '', 'unknown') ELSE 0 END";
        self.rows(sql, params![node, standing(given_up), boot_id], node_job_key)
    }

    /// The boot of each node that sends one, by its last batch.
    pub fn boots(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.rows("SELECT name, boot_id FROM node WHERE boot_id IS NOT NULL", [], |row| row.try_into())
    }

    /// Marks jobs as given up, or reverts that. Jobs that ended meanwhile are unchanged.
    pub fn give_up(&mut self, jobs: &[NodeJobKey], given_up: bool) -> Result<(), StoreError> {
        self.write(false, |connection| {
            for NodeJobKey { manager, id, node, incarnation, .. } in jobs {
                let sql = "UPDATE told SET standing = ?5
                           WHERE manager = ?1 AND id = ?2 AND node = ?3 AND incarnation = ?4 AND standing > 0";
                let values = params![manager, id, node, incarnation, standing(given_up)];
                connection.prepare_cached(sql)?.execute(values)?;
            }
            Ok(())
        })
    }

    /// Deletes the records of jobs that are no longer kept: durable when this returns.
    pub fn forget_node_jobs(&mut self, jobs: &[NodeJobKey]) -> Result<(), StoreError> {
        self.write(true, |connection| {
            for NodeJobKey { manager, id, node, incarnation, .. } in jobs {
                let sql =
                    "DELETE FROM told WHERE manager = ?1 AND id = ?2 AND node = ?3 AND incarnation = ?4";
                connection.prepare_cached(sql)?.execute(params![manager, id, node, incarnation])?;
            }
            Ok(())
        })
    }

    /// Of the next `rows` records after this one: those of jobs that had ended and were last reported before this
    /// time. Also returns the last key examined, if there may be more.
    pub fn old_node_jobs(
        &self,
        before_ns: i64,
        after: Option<&NodeJobKey>,
        rows: usize,
    ) -> Result<(Vec<NodeJobKey>, Option<NodeJobKey>), StoreError> {
        let first = NodeJobKey { incarnation: i64::MIN, ..NodeJobKey::default() };
        let NodeJobKey { manager, id, node, incarnation, .. } = after.unwrap_or(&first);
        // The first version did not store arrival times.
        let sql = "SELECT manager, id, node, incarnation, whole, standing <> ?6 AND coalesce(heard_ns,
                       CASE WHEN json_valid(record) THEN json_extract(record, '$.end_ns') END, 0) < ?5
                   FROM told WHERE (manager, id, node, incarnation) > (?1, ?2, ?3, ?4)
                   ORDER BY manager, id, node, incarnation LIMIT ?7";
        let values = params![manager, id, node, incarnation, before_ns, LIVES, rows as i64];
        let examined = self.rows(sql, values, |row| Ok((node_job_key(row)?, row.get::<_, bool>(5)?)))?;
        let last = examined.last().filter(|_| examined.len() == rows).map(|(key, _)| key.clone());
        Ok((examined.into_iter().filter_map(|(key, is_old)| is_old.then_some(key)).collect(), last))
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

    /// Whether the catalogue is being rebuilt from the records here.
    pub fn is_rebuilding(&self) -> Result<bool, StoreError> {
        self.exists("SELECT 1 FROM meta WHERE name = 'told_again'", [])
    }

    /// Marks the rebuild as begun or finished: an interrupted one continues at the next start.
    pub fn set_rebuilding(&mut self, is: bool) -> Result<(), StoreError> {
        let sql = match is {
            true => "INSERT OR REPLACE INTO meta (name, value) VALUES ('told_again', 1)",
            false => "DELETE FROM meta WHERE name = 'told_again'",
        };
        self.execute(true, sql, []).map(drop)
    }

    /// Manager and id of every job that a node reported.
    pub fn reported_jobs(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.rows("SELECT DISTINCT manager, id FROM told", [], |row| row.try_into())
    }
}

fn standing(given_up: bool) -> i64 {
    if given_up { GIVEN_UP } else { LIVES }
}

fn node_job_key(row: &Row<'_>) -> Answer<NodeJobKey> {
    let (manager, id, node) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(NodeJobKey { manager, id, node, incarnation: row.get(3)?, whole: row.get(4)? })
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
mod tests {
    use super::*;
    use crate::samples::{MIDNIGHT_S, finished, running};

    fn arrived<'a>(node: &'a str, spool: &'a str, sequence: u64) -> Arrived<'a> {
        let about = About { version: "1", clock_offset_ns: Some(5), ..About::default() };
        Arrived { node, spool, sequence, received_ns: 7, data: b"bytes", about }
    }

    fn all(_: usize, _: &Bound) -> bool {
        true
    }

    fn log(state: &Path) -> Log {
        let mut log = Log::open(state).unwrap();
        log.enroll(&TokenOwner::Node("n1".into()), b"hash-1", 1, false).unwrap();
        log.enroll(&TokenOwner::Node("n2".into()), b"hash-2", 1, false).unwrap();
        log
    }

    #[test]
    fn a_batch_is_new_once_and_a_new_spool_starts_over() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        let batches =
            [arrived("n1", "a", 1), arrived("n1", "a", 2), arrived("n1", "a", 1), arrived("n2", "a", 1)];
        let kinds = log.take(&batches, all).unwrap();
        assert_eq!(kinds, [Arrival::New(1), Arrival::New(2), Arrival::Known, Arrival::New(3)]);
        drop(log);
        let mut log = Log::open(state.path()).unwrap();
        let again = [arrived("n1", "a", 2), arrived("n1", "b", 1), arrived("n3", "a", 1)];
        assert_eq!(log.take(&again, all).unwrap(), [Arrival::Known, Arrival::New(4), Arrival::Stranger]);
        let numbers: Vec<i64> = log.after(1, 10).unwrap().iter().map(|kept| kept.number).collect();
        assert_eq!(numbers, [2, 3, 4]);
        log.forget("n1", 2).unwrap();
        assert_eq!(log.waiting("n1").unwrap(), [(4, b"bytes".to_vec())]);
        assert_eq!(log.backlog().unwrap(), [("n1".into(), 7, 5), ("n2".into(), 7, 5)]);
        assert_eq!(
            log.take(&[arrived("n1", "a", 2)], all).unwrap(),
            [Arrival::Known],
            "also after it was moved"
        );
        let nodes = log.nodes().unwrap();
        assert_eq!((nodes[0].seen_ns, nodes[0].clock_offset_ns), (Some(7), Some(5)));
        assert!(bytes_in(state.path()).is_some_and(|bytes| bytes >= 4096));
        assert_eq!(bytes_in(&state.path().join("none")), None);
    }

    #[test]
    fn a_granted_token_can_be_revoked() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        log.enroll(&TokenOwner::User("ada".into()), b"hash-3", 1, false).unwrap();
        assert_eq!(log.bearer(b"hash-1").unwrap(), Some(TokenOwner::Node("n1".into())));
        assert_eq!(log.bearer(b"hash-3").unwrap(), Some(TokenOwner::User("ada".into())));
        assert_eq!(log.bearer(b"other").unwrap(), None);
        assert!(log.expel(&TokenOwner::Node("n1".into())).unwrap());
        assert!(!log.expel(&TokenOwner::Node("n1".into())).unwrap());
        assert_eq!((log.bearer(b"hash-1").unwrap(), log.is_node("n1").unwrap()), (None, false));
    }

    #[test]
    fn the_sender_under_a_name_is_known_until_it_is_replaced() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        let from = |id: &'static str, sequence| {
            let batch = arrived("n1", "a", sequence);
            Arrived { about: About { id, boot_id: "b1", ..batch.about }, ..batch }
        };
        let mut seen = Vec::new();
        for batch in [from("", 1), from("one", 2), from("two", 3), from("one", 4)] {
            let taken = log.take(&[batch], |_, bound| {
                seen.push((bound.id.clone(), bound.boot_id.clone()));
                bound.seen_ns.is_none() || seen.len() < 3
            });
            taken.unwrap();
        }
        let one = (Some("one".to_owned()), Some("b1".to_owned()));
        assert_eq!(seen[1..], [(None, Some("b1".to_owned())), one.clone(), one], "who was refused is not");
        log.enroll(&TokenOwner::Node("n1".into()), b"hash-9", 2, true).unwrap();
        assert_eq!(log.bearer(b"hash-1").unwrap(), None, "earlier tokens are taken back");
        assert_eq!(log.bearer(b"hash-2").unwrap(), Some(TokenOwner::Node("n2".into())));
        log.take(&[from("two", 5)], |_, bound| {
            assert_eq!((bound.id.as_deref(), bound.boot_id.as_deref()), (None, None));
            true
        })
        .unwrap();
    }

    #[test]
    fn the_newest_record_of_a_node_wins() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        let on_node = |node: &str, name: &str| {
            let mut record = finished(1, MIDNIGHT_S);
            name.clone_into(&mut record.name);
            NodeJob { node: node.to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
        };
        log.note(&[on_node("n2", "old"), on_node("n1", "x"), on_node("n2", "new")], 3).unwrap();
        assert_eq!(log.applied().unwrap(), 3);
        assert_eq!(log.node_jobs("local", "1").unwrap(), [on_node("n1", "x"), on_node("n2", "new")]);
        // A batch that comes very late, and says that the job lives.
        let late = NodeJob { record: running(1, MIDNIGHT_S), ..on_node("n2", "new") };
        log.note(&[late], 3).unwrap();
        assert_eq!(log.node_jobs("local", "1").unwrap()[1], on_node("n2", "new"));
        assert_eq!(log.jobs_on_node("local", "1", "n2").unwrap(), [on_node("n2", "new")]);
        assert_eq!(log.jobs_on_node("local", "1", "n3").unwrap(), []);
        let JobKey { manager, id, incarnation, .. } = on_node("n1", "x").record.key;
        log.forget_node_jobs(&[NodeJobKey { manager, id, node: "n1".into(), incarnation, whole: 5 }])
            .unwrap();
        assert_eq!(log.node_jobs("local", "1").unwrap(), [on_node("n2", "new")]);
    }

    #[test]
    fn what_a_node_proved_is_never_replaced_by_what_was_said_without_a_proof() {
        let said = |state: fn(u64, i64) -> Record, unproven: bool| {
            let record = Record { unproven, ..state(1, MIDNIGHT_S) };
            NodeJob { node: "n1".to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
        };
        // An end without a proof gives way to a node that has the job.
        let all = [
            (running as fn(u64, i64) -> Record, true),
            (finished, true),
            (running, false),
            (finished, false),
        ];
        for first in all {
            for then in all {
                let state = tempfile::tempdir().unwrap();
                let mut log = log(state.path());
                log.note(&[said(first.0, first.1)], 1).unwrap();
                log.note(&[said(then.0, then.1)], 2).unwrap();
                let (one, other) = (said(first.0, first.1), said(then.0, then.1));
                let stays = match (first.1, then.1) {
                    (false, true) => true,
                    (true, false) => false,
                    _ => !one.record.state.is_live() && other.record.state.is_live(),
                };
                let kept = if stays { one } else { other };
                assert_eq!(log.node_jobs("local", "1").unwrap(), std::slice::from_ref(&kept));
                let lives = log.nodes_with_jobs(false).unwrap();
                assert_eq!(lives.is_empty(), !kept.record.state.is_live());
            }
        }
    }

    #[test]
    fn a_job_is_given_up_until_its_node_speaks_again() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        let job_with_id = |id: u64| {
            let record = running(id, MIDNIGHT_S);
            NodeJob { node: "n1".to_owned(), whole: 5, record, received_ns: Some(9), given_up: false }
        };
        log.note(&[job_with_id(1), job_with_id(2)], 1).unwrap();
        assert_eq!(log.nodes_with_jobs(false).unwrap(), ["n1"]);
        let unfinished = log.unfinished("n1", false).unwrap();
        assert_eq!(unfinished.len(), 2);
        log.give_up(&unfinished, true).unwrap();
        assert!(log.node_jobs("local", "1").unwrap()[0].given_up);
        // It ended after all; the other one is reported as running again.
        let ended = NodeJob { record: finished(1, MIDNIGHT_S), ..job_with_id(1) };
        log.note(&[ended.clone(), job_with_id(2)], 2).unwrap();
        assert_eq!(log.nodes_with_jobs(true).unwrap(), ["n1"]);
        log.give_up(&log.unfinished("n1", true).unwrap(), false).unwrap();
        assert_eq!(log.node_jobs("local", "1").unwrap(), [ended]);
        assert_eq!(log.node_jobs("local", "2").unwrap(), [job_with_id(2)]);
        assert!(log.nodes_with_jobs(true).unwrap().is_empty());
    }

    #[test]
    fn spools_of_the_past_are_forgotten_but_the_newest() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        for start in 1..=5 {
            let id = format!("spool-{start}");
            let batch = Arrived { received_ns: start, ..arrived("n1", &id, start as u64) };
            assert!(matches!(log.take(&[batch], all).unwrap()[0], Arrival::New(_)));
        }
        log.take(&[Arrived { received_ns: 1, ..arrived("n2", "a", 1) }], all).unwrap();
        assert_eq!(log.forget_spools(4).unwrap(), 3);
        for (id, sequence, kind) in [("spool-4", 4, Arrival::Known), ("spool-5", 5, Arrival::Known)] {
            assert_eq!(log.take(&[arrived("n1", id, sequence)], all).unwrap(), [kind]);
        }
        assert_eq!(log.forget_spools(i64::MAX).unwrap(), 1);
        assert_eq!(log.take(&[arrived("n2", "a", 1)], all).unwrap(), [Arrival::Known], "however old it is");
        // Started over and over again, all of them young.
        for start in 0..SPOOLS_MAX + 50 {
            log.take(&[Arrived { received_ns: 100 + start, ..arrived("n1", &start.to_string(), 9) }], all)
                .unwrap();
        }
        log.forget_spools(0).unwrap();
        assert_eq!(log.take(&[arrived("n1", "50", 9)], all).unwrap(), [Arrival::Known]);
        assert!(matches!(log.take(&[arrived("n1", "49", 9)], all).unwrap()[..], [Arrival::New(_)]));
    }

    #[test]
    fn a_file_of_the_first_version_knows_what_lives() {
        let state = tempfile::tempdir().unwrap();
        let connection = Connection::open(state.path().join(FILE)).unwrap();
        connection.execute_batch(include_str!("schema/cluster-1.sql")).unwrap();
        for record in [running(1, MIDNIGHT_S), finished(2, MIDNIGHT_S)] {
            let text = serde_json::to_string(&record).unwrap();
            let sql = "INSERT INTO told VALUES ('local', ?1, 'n1', 1, 1, ?2)";
            connection.execute(sql, params![record.key.id, text]).unwrap();
        }
        connection.execute("INSERT INTO told VALUES ('local', '3', 'n1', 1, 1, '{')", []).unwrap();
        connection.execute("INSERT INTO spool VALUES ('n1', 'a', 7), ('n1', 'b', 8)", []).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        connection.pragma_update(None, "application_id", i32::from_be_bytes(*b"metl")).unwrap();
        drop(connection);
        let mut log = Log::open(state.path()).unwrap();
        let lives = log.unfinished("n1", false).unwrap();
        assert_eq!(lives.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["1"]);
        assert_eq!(log.node_jobs("local", "1").unwrap()[0].received_ns, None);
        assert_eq!(log.forget_spools(1_000_000_000_000_000_000).unwrap(), 0, "as if they had sent just now");
    }

    #[test]
    fn rows_of_an_older_server_beside_an_upgrade_live_by_their_state() {
        let state = tempfile::tempdir().unwrap();
        let mut log = log(state.path());
        let sql = "INSERT INTO told (manager, id, node, incarnation, whole, record)
                   VALUES ('local', ?1, 'n1', 1, 1, ?2)";
        let texts = [running(1, MIDNIGHT_S), finished(2, MIDNIGHT_S)].map(|it| serde_json::to_string(&it));
        for (id, text) in texts.into_iter().map(Result::unwrap).chain(["{".to_owned()]).enumerate() {
            log.connection.execute(sql, params![(id + 1).to_string(), text]).unwrap();
        }
        assert_eq!(log.unfinished("n1", false).unwrap(), []);
        log.settle_standings().unwrap();
        log.settle_standings().unwrap();
        let lives = log.unfinished("n1", false).unwrap();
        assert_eq!(lives.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["1"]);
    }
}
