//! What a kilowatt hour emitted, and when: kept, so that figures can be computed anew.

use met_core::energy::emission::Factor;
use rusqlite::params;

use crate::error::StoreError;
use crate::query::Queries;
use crate::store::{Writer, in_transaction};

impl Queries {
    /// All that was told, in the order of time.
    pub fn factors(&self) -> Result<Vec<Factor>, StoreError> {
        let Some(connection) = self.catalogue()? else { return Ok(Vec::new()) };
        let read = || -> rusqlite::Result<Vec<Factor>> {
            // A store of an older version has no such table until somebody writes to it.
            if !connection.table_exists(None, "factor")? {
                return Ok(Vec::new());
            }
            let sql = "SELECT since_ns, mg_per_kwh, source FROM factor ORDER BY since_ns";
            let mut statement = connection.prepare_cached(sql)?;
            let factor = |row: &rusqlite::Row<'_>| {
                Ok(Factor { since_ns: row.get(0)?, mg_per_kwh: row.get(1)?, source: row.get(2)? })
            };
            statement.query_map([], factor)?.collect()
        };
        read().map_err(StoreError::database(&self.catalogue_path()))
    }
}

impl Writer {
    /// Puts factors in the place of those told between two times.
    pub fn put_factors(&mut self, from_ns: i64, to_ns: i64, factors: &[Factor]) -> Result<(), StoreError> {
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        in_transaction(connection, false, |connection| {
            let clear = "DELETE FROM factor WHERE since_ns >= ?1 AND since_ns < ?2";
            connection.execute(clear, [from_ns, to_ns])?;
            let put = "INSERT OR REPLACE INTO factor (since_ns, mg_per_kwh, source) VALUES (?1, ?2, ?3)";
            for factor in factors {
                connection.prepare_cached(put)?.execute(params![
                    factor.since_ns,
                    factor.mg_per_kwh,
                    factor.source
                ])?;
            }
            Ok(())
        })
        .map_err(StoreError::database(&path))
    }

    pub fn put_factor(&mut self, factor: &Factor) -> Result<(), StoreError> {
        self.put_factors(factor.since_ns, factor.since_ns, std::slice::from_ref(factor))
    }

    /// Factors of times of which no job is kept.
    pub(crate) fn forget_factors(&mut self, before_ns: i64) -> Result<(), StoreError> {
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        // The last one before still held then.
        let sql = "DELETE FROM factor
                   WHERE since_ns < (SELECT max(since_ns) FROM factor WHERE since_ns <= ?1)";
        in_transaction(connection, false, |connection| connection.execute(sql, [before_ns]))
            .map_err(StoreError::database(&path))
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reader, Retention};

    fn factor(since_ns: i64, mg_per_kwh: i64) -> Factor {
        Factor { since_ns, mg_per_kwh, source: "test".into() }
    }

    #[test]
    fn factors_are_kept_replaced_and_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        for since_ns in [10, 20, 30] {
            writer.put_factor(&factor(since_ns, since_ns)).unwrap();
        }
        writer.put_factor(&factor(20, 25)).unwrap();
        let told = |state: &std::path::Path| -> Vec<(i64, i64)> {
            let factors = Reader::open(state).unwrap().factors().unwrap();
            factors.into_iter().map(|factor| (factor.since_ns, factor.mg_per_kwh)).collect()
        };
        assert_eq!(told(state.path()), [(10, 10), (20, 25), (30, 30)]);
        writer.put_factors(15, 30, &[factor(15, 99)]).unwrap();
        assert_eq!(told(state.path()), [(10, 10), (15, 99), (30, 30)]);
        writer.retain(&Retention { max_age_ns: Some(10), max_bytes: None }, 35).unwrap();
        assert_eq!(told(state.path()), [(15, 99), (30, 30)], "what held 10 ns ago began before");
    }

    #[test]
    fn there_are_none_before_there_is_a_store() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Reader::open(state.path()).unwrap().factors().unwrap(), []);
    }
}
