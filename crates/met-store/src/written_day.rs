//! A day that the writer has open. Others may put another file in its place, such as a backup.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rusqlite::Connection;

use crate::error::StoreError;
use crate::file_id::{FileId, file_at};
use crate::schema::{beside, create_private};

/// How often a file is opened that is replaced meanwhile.
const OPENS_MAX: usize = 3;
/// The log and its shared memory.
const LOGS: [&str; 2] = ["-wal", "-shm"];

pub(crate) struct WrittenDay {
    pub day: i64,
    pub connection: Connection,
    path: PathBuf,
    file: FileId,
    logs: [Option<FileId>; LOGS.len()],
}

impl WrittenDay {
    /// Opens the file at a path with `open`, and creates it if there is none.
    pub fn open(
        day: i64,
        path: &Path,
        open: impl Fn(&Path) -> Result<Connection, StoreError>,
    ) -> Result<WrittenDay, StoreError> {
        for _ in 0..OPENS_MAX {
            let Some(file) = file_at(path)? else {
                create_private(path).map_err(StoreError::io(path))?;
                continue;
            };
            let connection = open(path)?;
            let logs = LOGS.map(|suffix| file_at(&beside(path, suffix)).ok().flatten());
            if file_at(path)? == Some(file) {
                return Ok(WrittenDay { day, connection, path: path.to_path_buf(), file, logs });
            }
            // Which of the two was opened is not known, and so not whose logs these are.
            finish_log(&connection);
        }
        Err(StoreError::io(path)(io::ErrorKind::ResourceBusy.into()))
    }

    /// Whether it is the file at its path.
    pub fn is_there(&self) -> Result<bool, StoreError> {
        Ok(file_at(&self.path)? == Some(self.file))
    }

    /// The log of a file that was moved stays, and would be replayed into the one that took its place.
    fn remove_logs(&self) -> Result<(), StoreError> {
        for (suffix, log) in LOGS.into_iter().zip(self.logs) {
            let path = beside(&self.path, suffix);
            if log.is_some() && file_at(&path)? == log {
                fs::remove_file(&path).map_err(StoreError::io(&path))?;
            }
        }
        Ok(())
    }
}

impl Drop for WrittenDay {
    fn drop(&mut self) {
        let left = self.is_there().and_then(|is_there| {
            if is_there {
                return Ok(());
            }
            // The process that moved the file has all of it then.
            finish_log(&self.connection);
            self.remove_logs()
        });
        if let Err(error) = left {
            tracing::warn!("the log of a file that was replaced is left: {error}");
        }
    }
}

/// Moves what is in the log into the file, as far as no reader needs it.
fn finish_log(connection: &Connection) {
    let _ = connection.busy_timeout(Duration::ZERO);
    let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{SERIES, open_for_writing};

    fn open(path: &Path) -> Result<Connection, StoreError> {
        open_for_writing(path, &SERIES, false)
    }

    #[test]
    fn a_log_that_came_with_a_backup_is_its_own() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("day.db");
        let opened = WrittenDay::open(1, &path, open).unwrap();
        assert!(opened.is_there().unwrap());
        for suffix in ["", "-wal", "-shm"] {
            fs::write(beside(&path, suffix).with_extension("new"), suffix).unwrap();
            fs::rename(beside(&path, suffix).with_extension("new"), beside(&path, suffix)).unwrap();
        }
        assert!(!opened.is_there().unwrap());
        drop(opened);
        for suffix in ["", "-wal", "-shm"] {
            assert_eq!(fs::read_to_string(beside(&path, suffix)).unwrap(), suffix);
        }
    }

    #[test]
    fn a_day_that_is_replaced_while_it_is_opened_is_opened_again() {
        let state = tempfile::tempdir().unwrap();
        let (path, backup) = (state.path().join("day.db"), state.path().join("backup.db"));
        let backed_up = open(&backup).unwrap();
        backed_up.execute_batch("CREATE TABLE restored (x)").unwrap();
        drop(backed_up);
        let opened = WrittenDay::open(1, &path, |path| {
            let connection = open(path)?;
            connection.execute_batch("CREATE TABLE lost (x)").unwrap();
            if backup.exists() {
                fs::rename(&backup, path).unwrap();
            }
            Ok(connection)
        });
        let opened = opened.unwrap();
        assert!(opened.is_there().unwrap());
        opened.connection.execute_batch("SELECT * FROM restored; SELECT * FROM lost").unwrap();
    }
}
