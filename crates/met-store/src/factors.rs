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
