//! The catalogue in a file.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::error::StoreError;
use crate::inbox;
use crate::schema::{self, beside, version_of};
use crate::sql::{Dialect, Each, Mismatch, Noted, Row, Sql, Value};

/// Beside a database in which something was found damaged: the next open looks through all of it.
pub(crate) const SUSPECT: &str = ".suspect";

/// Faults reported per file.
const PROBLEMS_MAX: usize = 20;

static DIALECT: Dialect = Dialect {
    // The text decides before the JSON is read.
    has_gpus: "detail LIKE '%\"gpus\":[{%' AND json_array_length(detail, '$.gpus') > 0",
    numbers: "SELECT value FROM json_each(?1)",
    position: "instr",
    bytewise: "",
};

pub(crate) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    noted: RefCell<Noted>,
}

impl Sqlite {
    pub fn new(connection: Connection, path: &Path) -> Sqlite {
        Sqlite { connection, path: path.to_path_buf(), noted: RefCell::default() }
    }

    fn error(&self) -> impl Fn(rusqlite::Error) -> StoreError + Copy + '_ {
        StoreError::database(&self.path)
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Value::Null => ValueRef::Null,
            Value::Integer(value) => ValueRef::Integer(value),
            Value::Real(value) => ValueRef::Real(value),
            Value::Text(value) => ValueRef::Text(value.as_bytes()),
            Value::Bytes(value) => ValueRef::Blob(value),
        }))
    }
}

impl Row for rusqlite::Row<'_> {
    fn get(&self, at: usize) -> Value<'_> {
        match self.get_ref(at) {
            Ok(ValueRef::Integer(value)) => Value::Integer(value),
            Ok(ValueRef::Real(value)) => Value::Real(value),
            Ok(ValueRef::Text(value)) => std::str::from_utf8(value).map_or(Value::Null, Value::Text),
            Ok(ValueRef::Blob(value)) => Value::Bytes(value),
            Ok(ValueRef::Null) | Err(_) => Value::Null,
        }
    }
}

impl Sql for Sqlite {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn version(&self) -> Result<i64, StoreError> {
        version_of(&self.connection, &self.path)
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(self.error())?;
        let touched = statement.execute(params_from_iter(values)).map_err(self.error())?;
        Ok(touched as u64)
    }

    fn query(&self, sql: &str, values: &[Value<'_>], each: Each<'_>) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(self.error())?;
        let mut rows = statement.query(params_from_iter(values)).map_err(self.error())?;
        while let Some(row) = rows.next().map_err(self.error())? {
            each(row).map_err(|Mismatch| self.damaged("a value is not of the type of its column"))?;
        }
        Ok(())
    }

    fn insert(&self, into: &str, width: usize, rows: &[Value<'_>]) -> Result<(), StoreError> {
        let marks: Vec<String> = (1..=width).map(|number| format!("?{number}")).collect();
        let sql = format!("INSERT INTO {into} VALUES ({})", marks.join(", "));
        rows.chunks(width).try_for_each(|row| self.execute(&sql, row).map(drop))
    }

    fn begin(&self, durable: bool) -> Result<(), StoreError> {
        let level = if durable { "FULL" } else { "NORMAL" };
        let sql = format!("PRAGMA synchronous = {level}; BEGIN IMMEDIATE");
        self.connection.execute_batch(&sql).map_err(self.error())
    }

    fn commit(&self) -> Result<(), StoreError> {
        self.connection.execute_batch("COMMIT").map_err(self.error())
    }

    fn begin_read(&self) -> bool {
        self.connection.is_autocommit() && self.connection.execute_batch("BEGIN").is_ok()
    }

    fn rollback(&self) {
        // Some errors have undone it already.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    /// The pages in use: those given free are reused before the file grows.
    fn bytes(&self) -> Result<Option<u64>, StoreError> {
        let sql = "SELECT (page_count - freelist_count) * page_size
                   FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
        let bytes: i64 = self.connection.query_row(sql, [], |row| row.get(0)).map_err(self.error())?;
        Ok(Some(bytes.max(0) as u64))
    }

    fn give_back(&self) -> Result<(), StoreError> {
        schema::give_back(&self.connection, None).map(drop).map_err(self.error())
    }

    fn suspect(&self) {
        // Without the mark the damage is met again, so an error here costs nothing.
        let _ = inbox::create(&beside(&self.path, SUSPECT));
    }
    fn noted(&self) -> &RefCell<Noted> {
        &self.noted
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), what: what.to_owned() }
    }

    fn integrity(&self) -> Result<Vec<String>, StoreError> {
        let sql = format!("PRAGMA integrity_check({PROBLEMS_MAX})");
        let mut statement = self.connection.prepare(&sql).map_err(self.error())?;
        let faults = statement.query_map([], |row| row.get::<_, String>(0)).map_err(self.error())?;
        let mut problems = Vec::new();
        for line in faults {
            match line {
                Ok(line) if line == "ok" => {}
                // A heading and several findings come as one row.
                Ok(lines) => {
                    problems.extend(lines.lines().filter(|line| !line.starts_with("***")).map(str::to_owned))
                }
                // It stops where it cannot go on.
                Err(error) => {
                    problems.push(error.to_string());
                    break;
                }
            }
        }
        Ok(problems)
    }
}
