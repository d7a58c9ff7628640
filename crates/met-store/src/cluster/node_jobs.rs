//! The nodes' records of jobs, from which the jobs of the cluster are computed.

use met_core::job::{JobKey, Record};
use rusqlite::{OptionalExtension, Result as Answer, Row, params};

use super::Log;
use crate::error::StoreError;

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

impl Log {
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
