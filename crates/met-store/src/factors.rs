//! What a kilowatt hour emitted, and when: kept, so that figures can be computed anew.

use met_core::energy::emission::Factor;

use crate::error::StoreError;
use crate::query::{DEVICE_VERSION, Queries};
use crate::sql;
use crate::store::Writer;

impl Queries {
    /// All that was told, in the order of time.
    pub fn factors(&self) -> Result<Vec<Factor>, StoreError> {
        self.ask(DEVICE_VERSION, |sql| {
            let statement = "SELECT since_ns, mg_per_kwh, source FROM factor ORDER BY since_ns";
            sql::all(sql, statement, &[], |row| {
                Ok(Factor {
                    since_ns: row.get(0).integer()?,
                    mg_per_kwh: row.get(1).integer()?,
                    source: row.get(2).text()?.to_owned(),
                })
            })
        })
    }
}

impl Writer {
    /// Puts factors in the place of those told between two times.
    pub fn put_factors(&mut self, from_ns: i64, to_ns: i64, factors: &[Factor]) -> Result<(), StoreError> {
        self.in_catalogue(|sql| {
            let clear = "DELETE FROM factor WHERE since_ns >= ?1 AND since_ns < ?2";
            sql.execute(clear, &[from_ns.into(), to_ns.into()])?;
            let put = "INSERT INTO factor (since_ns, mg_per_kwh, source) VALUES (?1, ?2, ?3)
                       ON CONFLICT (since_ns) DO UPDATE SET
                           mg_per_kwh = excluded.mg_per_kwh, source = excluded.source";
            for factor in factors {
                let values = [factor.since_ns.into(), factor.mg_per_kwh.into(), (&factor.source).into()];
                sql.execute(put, &values)?;
            }
            Ok(())
        })
    }

    pub fn put_factor(&mut self, factor: &Factor) -> Result<(), StoreError> {
        self.put_factors(factor.since_ns, factor.since_ns, std::slice::from_ref(factor))
    }

    /// Factors of times of which no job is kept.
    pub(crate) fn forget_factors(&mut self, before_ns: i64) -> Result<(), StoreError> {
        // The last one before still held then.
        let statement = "DELETE FROM factor
                         WHERE since_ns < (SELECT max(since_ns) FROM factor WHERE since_ns <= ?1)";
        self.in_catalogue(|sql| sql.execute(statement, &[before_ns.into()]).map(drop))
    }
}
