//! What can go wrong, one variant per reaction.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Leave it to the process that holds the lock.
    #[error("{}: another process writes this store at the moment; try again", path.display())]
    Locked { path: PathBuf },
    /// Nothing was touched; a newer program is needed.
    #[error(
        "{}: written by a newer version of met (schema {found}, this one knows up to {supported}); use that version or another state directory",
        path.display()
    )]
    Newer { path: PathBuf, found: i64, supported: i64 },
    /// The next [`crate::Writer::open`] checks the file and moves it aside if it has to.
    #[error("{}: damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Opening it could block or change a device.
    #[error(
        "{} is a {kind}, not a regular file: nothing in this store can be read; move it away or set XDG_STATE_HOME to another folder",
        path.display()
    )]
    NotAFile { path: PathBuf, kind: &'static str },
    /// Ask the process that holds it, or try again.
    #[error("{}: in use by another process; try again", path.display())]
    Busy { path: PathBuf },
    /// A server did not answer, or cannot now: the same again later.
    #[error("{at} is unavailable: {error}")]
    Unreachable { at: String, error: String },
    /// Understood and refused: the same again will not do.
    #[error("{at} rejects the request: {error}")]
    Refused { at: String, error: String },
    #[error("cannot use {}: {error}; see `met doctor`", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the database {} cannot be used: {error}; see `met doctor`", path.display())]
    Database { path: PathBuf, error: rusqlite::Error },
}

/// Less than this is left where a database cannot be opened for lack of space.
const SPACE_BYTES: u64 = 1 << 20;

impl StoreError {
    /// Whether it is for lack of space that something could not be written: there may be some later.
    pub fn is_no_space(&self) -> bool {
        match self {
            StoreError::Io { error, .. } => is_no_space(error),
            // Where it cannot make its log or shared memory SQLite does not say why.
            StoreError::Database { path, error } => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => true,
                Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => has_no_space(path),
                _ => false,
            },
            _ => false,
        }
    }

    /// Why one file cannot be used, without its name; `None` where it may be usable a moment later.
    pub(crate) fn unusable_file(&self) -> Option<String> {
        match self {
            StoreError::Damaged { what, .. } => Some(format!("damaged: {what}")),
            StoreError::NotAFile { kind, .. } => Some(format!("a {kind}, not a regular file")),
            StoreError::Newer { found, .. } => {
                Some(format!("written by a newer version of met (schema {found})"))
            }
            StoreError::Io { error, .. } => Some(error.to_string()),
            StoreError::Database { error, .. } => match error.sqlite_error_code() {
                Some(
                    ErrorCode::CannotOpen
                    | ErrorCode::PermissionDenied
                    | ErrorCode::ReadOnly
                    | ErrorCode::SystemIoFailure,
                ) => Some(error.to_string()),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
        move |error| StoreError::Io { path: path.to_path_buf(), error }
    }

    pub(crate) fn database(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError + Copy + '_ {
        move |error| {
            let path = path.to_path_buf();
            match error.sqlite_error_code() {
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                    StoreError::Damaged { path, what: error.to_string() }
                }
                // All statements are this program's own: a table that is not there was there.
                Some(ErrorCode::Unknown) if has_other_tables(&error) => {
                    StoreError::Damaged { path, what: error.to_string() }
                }
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { path },
                _ => StoreError::Database { path, error },
            }
        }
    }
}

fn has_other_tables(error: &rusqlite::Error) -> bool {
    let text = error.to_string();
    ["no such table", "no such column", "already exists", "duplicate column", "has no column"]
        .iter()
        .any(|what| text.contains(what))
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn has_no_space(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    rustix::fs::statvfs(folder).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < SPACE_BYTES)
}
