//! Queries of the catalogue: the SQL that SQLite and PostgreSQL have in common, so that the meaning of a job's
//! record is written once. Parameters are `?1`, `?2`, …; a name that one of the two reserves is quoted.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::error::StoreError;

/// A value of a statement, or of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// A value of another type than its column: only this program writes these tables.
#[derive(Debug)]
pub(crate) struct Mismatch;

impl<'a> Value<'a> {
    pub fn integer(self) -> Result<i64, Mismatch> {
        if let Value::Integer(value) = self { Ok(value) } else { Err(Mismatch) }
    }

    pub fn real(self) -> Result<f64, Mismatch> {
        if let Value::Real(value) = self { Ok(value) } else { Err(Mismatch) }
    }

    pub fn text(self) -> Result<&'a str, Mismatch> {
        if let Value::Text(value) = self { Ok(value) } else { Err(Mismatch) }
    }

    pub fn bytes(self) -> Result<&'a [u8], Mismatch> {
        if let Value::Bytes(value) = self { Ok(value) } else { Err(Mismatch) }
    }

    pub fn known(self) -> Option<Value<'a>> {
        (self != Value::Null).then_some(self)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}

impl From<u32> for Value<'_> {
    fn from(value: u32) -> Self {
        Value::Integer(value.into())
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Value::Text(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Value::Text(value)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// A row of an answer.
pub(crate) trait Row {
    fn get(&self, at: usize) -> Value<'_>;
}

/// What is done with each row of an answer.
pub(crate) type Each<'e> = &'e mut dyn FnMut(&dyn Row) -> Result<(), Mismatch>;

/// What the two say differently.
pub(crate) struct Dialect {
    /// Whether a job's record has GPUs.
    pub has_gpus: &'static str,
    /// The numbers in ?1, a JSON array, as rows.
    pub numbers: &'static str,
    /// The function that finds a text in another one.
    pub position: &'static str,
    /// Behind a text column: it is compared byte by byte, whatever language the database is in.
    pub bytewise: &'static str,
}

/// What was met that could not be read.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    names: BTreeSet<String>,
    more: u64,
}

/// More names than these help no reader.
const NAMES_MAX: usize = 50;

impl Noted {
    pub fn note(&mut self, what: &str) {
        if self.names.contains(what) {
        } else if self.names.len() < NAMES_MAX {
            self.names.insert(what.to_owned());
        } else {
            self.more += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn names(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("{} more", self.more));
        self.names.iter().cloned().chain(more).collect()
    }

    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(self).names()
    }
}

/// A connection to a database.
pub(crate) trait Sql: Send {
    fn dialect(&self) -> &'static Dialect;
    /// The version of its tables.
    fn version(&self) -> Result<i64, StoreError>;
    /// Runs a statement and says how many rows it touched.
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError>;
    fn query(&self, sql: &str, values: &[Value<'_>], each: Each<'_>) -> Result<(), StoreError>;
    /// Inserts rows of `width` values, one after the other, `into` a table and its columns.
    fn insert(&self, into: &str, width: usize, rows: &[Value<'_>]) -> Result<(), StoreError>;
    /// Begins a transaction; on disk when its commit returns if it is to be durable.
    fn begin(&self, durable: bool) -> Result<(), StoreError>;
    fn commit(&self) -> Result<(), StoreError>;
    fn rollback(&self);
    /// Makes the queries that follow see one state of the file, until `rollback`. False where that is so already, in a
    /// transaction, or cannot be had.
    fn begin_read(&self) -> bool {
        false
    }
    /// The bytes in use, where it is ours to keep them below a bound.
    fn bytes(&self) -> Result<Option<u64>, StoreError>;
    /// Gives the space of what was removed back.
    fn give_back(&self) -> Result<(), StoreError>;
    /// Called when damage was met: the next to open it should look through all of it.
    fn suspect(&self) {}
    /// What was met that could not be read.
    fn noted(&self) -> &RefCell<Noted>;
    /// Names something that could not be read and is passed over.
    fn note_damage(&self, what: &str) {
        let mut noted = self.noted().borrow_mut();
        if noted.is_empty() {
            self.suspect();
        }
        noted.note(what);
    }
    /// An error for what is there and cannot be.
    fn damaged(&self, what: &str) -> StoreError;
    /// What the database itself finds wrong with its file.
    fn integrity(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }
}

/// The first row of an answer.
pub(crate) fn first<T>(
    sql: &dyn Sql,
    statement: &str,
    values: &[Value<'_>],
    mut of: impl FnMut(&dyn Row) -> Result<T, Mismatch>,
) -> Result<Option<T>, StoreError> {
    let mut found = None;
    sql.query(statement, values, &mut |row| {
        if found.is_none() {
            found = Some(of(row)?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Every row of an answer.
pub(crate) fn all<T>(
    sql: &dyn Sql,
    statement: &str,
    values: &[Value<'_>],
    mut of: impl FnMut(&dyn Row) -> Result<T, Mismatch>,
) -> Result<Vec<T>, StoreError> {
    let mut found = Vec::new();
    sql.query(statement, values, &mut |row| {
        found.push(of(row)?);
        Ok(())
    })?;
    Ok(found)
}

/// Undoes a transaction that was not committed, also when its work panics.
struct Open<'s>(Option<&'s dyn Sql>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(sql) = self.0 {
            sql.rollback();
        }
    }
}

/// Runs queries that have to see the same state: rows and the figures that their checksums are of.
pub(crate) fn in_snapshot<T>(
    sql: &dyn Sql,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let _open = Open(sql.begin_read().then_some(sql));
    work()
}

/// Runs `work` in one transaction.
pub(crate) fn in_transaction<T>(
    sql: &dyn Sql,
    durable: bool,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    sql.begin(durable)?;
    let mut open = Open(Some(sql));
    let result = work().and_then(|done| sql.commit().map(|()| done));
    match &result {
        Ok(_) => open.0 = None,
        Err(StoreError::Damaged { .. }) => sql.suspect(),
        Err(_) => {}
    }
    result
}
