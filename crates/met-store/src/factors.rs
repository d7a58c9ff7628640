//! What a kilowatt hour emitted, and when: kept, so that figures can be computed again.

use met_core::energy::emission::Factor;

use crate::error::StoreError;
use crate::sql::{self, Sql};

/// All that is known, in the order of time.
pub(crate) fn all(sql: &dyn Sql) -> Result<Vec<Factor>, StoreError> {
    let statement = "SELECT since_ns, mg_per_kwh, source FROM factor ORDER BY since_ns";
    sql::all(sql, statement, &[], |row| {
        Ok(Factor {
            since_ns: row.get(0).integer()?,
            mg_per_kwh: row.get(1).integer()?,
            source: row.get(2).text()?.into(),
        })
    })
}

/// Puts factors in the place of those between two times.
pub(crate) fn put(sql: &dyn Sql, from_ns: i64, to_ns: i64, factors: &[Factor]) -> Result<(), StoreError> {
    let clear = "DELETE FROM factor WHERE since_ns >= ?1 AND since_ns < ?2";
    sql.execute(clear, &[from_ns.into(), to_ns.into()])?;
    let put = "INSERT INTO factor (since_ns, mg_per_kwh, source) VALUES (?1, ?2, ?3)
               ON CONFLICT (since_ns) DO UPDATE SET
                   mg_per_kwh = excluded.mg_per_kwh, source = excluded.source";
    for factor in factors {
        let source = factor.source.to_string();
        let values = [factor.since_ns.into(), factor.mg_per_kwh.into(), (&source).into()];
        sql.execute(put, &values)?;
    }
    Ok(())
}

/// Removes the factors of times without stored jobs.
pub(crate) fn forget(sql: &dyn Sql, before_ns: i64) -> Result<(), StoreError> {
    // The last one before was still valid then.
    let statement = "DELETE FROM factor
                     WHERE since_ns < (SELECT max(since_ns) FROM factor WHERE since_ns <= ?1)";
    sql.execute(statement, &[before_ns.into()]).map(drop)
}
