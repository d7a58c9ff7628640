//! The tables on disk, and how a file of any released version becomes one of this version.

use std::fs::{self, FileType, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;

/// How long a writer waits for others that use the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages that are given back in one transaction.
const GIVE_BACK_PAGES: usize = 256;

/// One kind of database file.
pub(crate) struct Schema {
    application_id: i32,
    /// Entry `n` turns version `n` into `n + 1`. Released entries are never changed.
    migrations: &'static [&'static str],
    cache_kib: i32,
    /// Whether `meta` has the version once more, from version 4 on.
    has_version_row: bool,
}

pub(crate) static CATALOGUE: Schema = Schema {
    application_id: i32::from_be_bytes(*b"metc"),
    migrations: &[
        include_str!("schema/catalogue-1.sql"),
        include_str!("schema/catalogue-2.sql"),
        include_str!("schema/catalogue-3.sql"),
        include_str!("schema/catalogue-4.sql"),
        include_str!("schema/catalogue-5.sql"),
        include_str!("schema/catalogue-6.sql"),
        include_str!("schema/catalogue-7.sql"),
        include_str!("schema/catalogue-8.sql"),
    ],
    cache_kib: 1000,
    has_version_row: true,
};

pub(crate) static SERIES: Schema = Schema {
    application_id: i32::from_be_bytes(*b"mets"),
    migrations: &[include_str!("schema/series-1.sql")],
    cache_kib: 256,
    has_version_row: false,
};

pub(crate) static CLUSTER: Schema = Schema {
    application_id: i32::from_be_bytes(*b"metl"),
    migrations: &[
        include_str!("schema/cluster-1.sql"),
        include_str!("schema/cluster-2.sql"),
        include_str!("schema/cluster-3.sql"),
        include_str!("schema/cluster-4.sql"),
    ],
    cache_kib: 4000,
    has_version_row: false,
};

impl Schema {
    fn version(&self) -> i64 {
        self.migrations.len() as i64
    }
}

/// Opens, creates or upgrades a file. `exclusive`: on a network file system shared memory cannot be relied on, and one
/// process has the file for itself.
pub(crate) fn open_for_writing(
    path: &Path,
    schema: &Schema,
    exclusive: bool,
) -> Result<Connection, StoreError> {
    if let Ok(found) = fs::metadata(path) {
        check_regular(path, found.file_type())?;
    }
    create_private(path).map_err(StoreError::io(path))?;
    // Looked at without the right to write: a newer program's file stays as it is, its log included.
    let found = open_for_reading(path, schema)?.map_or(Ok(0), |connection| version_of(&connection, path))?;
    let database = StoreError::database(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(database)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(database)?;
    // Undoes what an interrupted creation left half done.
    let found = if found == 0 { version_of(&connection, path)? } else { found };
    if found > schema.version() {
        return Err(StoreError::Newer { path: path.to_path_buf(), found, supported: schema.version() });
    }
    if exclusive {
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(database)?;
    }
    let settings = format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
         PRAGMA cache_size = -{}; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;
         PRAGMA wal_autocheckpoint = 256; PRAGMA journal_size_limit = 1048576;",
        schema.cache_kib
    );
    connection.execute_batch(&settings).map_err(|error| forbidden(path, error))?;
    // An upgrade writes: what is damaged stays as it is.
    if schema.has_version_row && found > 0 && found < schema.version() {
        let verdict: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(database)?;
        if verdict != "ok" {
            return Err(StoreError::Damaged { path: path.to_path_buf(), what: verdict });
        }
    }
    if found < schema.version() {
        migrate(&mut connection, schema, found).map_err(database)?;
    }
    Ok(connection)
}

/// Gives the space of what was removed back to the file system. With a deadline it waits for no reader, and returns
/// false when pages are left, with which the next call continues.
pub(crate) fn give_back(connection: &Connection, deadline: Option<Instant>) -> rusqlite::Result<bool> {
    let count_free = || connection.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0));
    let mut free = count_free()?;
    while free > 0 {
        let mut piece = connection.prepare(&format!("PRAGMA incremental_vacuum({GIVE_BACK_PAGES})"))?;
        let mut pages = piece.query([])?;
        // Every step gives back one page.
        while pages.next()?.is_some() {}
        let left = count_free()?;
        if left >= free {
            // The file was created without this.
            break;
        }
        free = left;
        if left > 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
    }
    let timeout = if deadline.is_some() { Duration::ZERO } else { BUSY_TIMEOUT };
    connection.busy_timeout(timeout)?;
    let truncated = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    connection.busy_timeout(BUSY_TIMEOUT)?;
    truncated.map(|()| true)
}

/// SQLite takes a file for one of a later format, and does not write it, because of one byte in its header.
fn forbidden(path: &Path, error: rusqlite::Error) -> StoreError {
    let refused =
        error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_READONLY);
    let is_writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    match refused && is_writable(path) && path.parent().is_some_and(is_writable) {
        true => StoreError::Damaged {
            path: path.to_path_buf(),
            what: "header marks the file read-only".to_owned(),
        },
        false => StoreError::database(path)(error),
    }
}

fn migrate(connection: &mut Connection, schema: &Schema, found: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for step in &schema.migrations[found as usize..] {
        transaction.execute_batch(step)?;
    }
    if schema.has_version_row {
        // For a file whose header is damaged. Every version writes its own, so that no earlier one takes it for that.
        let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('schema', ?1)";
        transaction.execute(sql, [schema.version().to_string()])?;
    }
    transaction.pragma_update(None, "application_id", schema.application_id)?;
    transaction.pragma_update(None, "user_version", schema.version())?;
    transaction.commit()
}

/// How a file is opened for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It may be being written.
    #[default]
    Shared,
    /// The caller keeps every writer away, and has no other connection to it.
    Alone,
}

/// Opens a file that may be being written. `None` where there is none yet, or nothing in it.
pub(crate) fn open_for_reading(path: &Path, schema: &Schema) -> Result<Option<Connection>, StoreError> {
    open_shared_or_alone(path, schema, Sharing::Shared)
}

pub(crate) fn open_shared_or_alone(
    path: &Path,
    schema: &Schema,
    sharing: Sharing,
) -> Result<Option<Connection>, StoreError> {
    match fs::metadata(path) {
        Ok(file) => check_regular(path, file.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(path)(error)),
    }
    let connection = match sharing {
        Sharing::Shared => open_shared(path)?,
        Sharing::Alone => open_alone(path)?,
    };
    checked(connection, path, schema)
}

/// SQLite opens whatever is there: on a FIFO it would wait for ever.
fn check_regular(path: &Path, found: FileType) -> Result<(), StoreError> {
    let kind = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => "directory",
        found if found.is_fifo() => "FIFO",
        found if found.is_socket() => "socket",
        _ => "device",
    };
    Err(StoreError::NotAFile { path: path.to_path_buf(), kind })
}

fn open_shared(path: &Path) -> Result<Connection, StoreError> {
    let database = StoreError::database(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(database)?;
    connection.busy_timeout(Duration::from_secs(1)).map_err(database)?;
    Ok(connection)
}

/// Opens a file without the shared memory by which processes share its log; the log's index is kept in private
/// memory. Nothing is written, not even beside the file.
fn open_alone(path: &Path) -> Result<Connection, StoreError> {
    let has_log = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    if !has_log && path.to_str().is_some() {
        return open_frozen(path);
    }
    let database = StoreError::database(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // This one takes no locks, which a file that cannot be written would refuse.
    let connection = Connection::open_with_flags_and_vfs(path, flags, "unix-none").map_err(database)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(database)?;
    // It would take itself for the last one that has the file open, and remove the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(database)?;
    Ok(connection)
}

/// The connection, if the file is one of ours; `None` if there is nothing in it.
fn checked(connection: Connection, path: &Path, schema: &Schema) -> Result<Option<Connection>, StoreError> {
    let database = StoreError::database(path);
    let is_ours = {
        // One state of the file: it may be being created or upgraded.
        let snapshot = connection.unchecked_transaction().map_err(database)?;
        is_ours(&snapshot, path, schema)?
    };
    if !is_ours {
        return Ok(None);
    }
    connection.pragma_update(None, "cache_size", -schema.cache_kib).map_err(database)?;
    Ok(Some(connection))
}

/// Whether the file is one of ours, or there is nothing in it.
fn is_ours(connection: &Connection, path: &Path, schema: &Schema) -> Result<bool, StoreError> {
    let database = StoreError::database(path);
    let found = match version_of(connection, path) {
        Ok(0) => {
            let tables: i64 = connection
                .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
                .map_err(database)?;
            let what = "header has lost the schema version".to_owned();
            return match tables {
                0 => Ok(false),
                _ => Err(StoreError::Damaged { path: path.to_path_buf(), what }),
            };
        }
        // Its creator was killed before there was a log; only a writer can undo that.
        Err(StoreError::Database { error, .. })
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly) =>
        {
            return Ok(false);
        }
        found => found?,
    };
    let application_id: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(database)?;
    if application_id != schema.application_id {
        let what = format!("a database of another program (application id {application_id:#x})");
        return Err(StoreError::Damaged { path: path.to_path_buf(), what });
    }
    if schema.has_version_row {
        let twin = connection.query_row("SELECT value FROM meta WHERE name = 'schema'", [], |row| row.get(0));
        let twin = twin.ok().and_then(|text: String| text.parse::<i64>().ok());
        if let Some(twin) = twin.filter(|&twin| twin != found) {
            let what = format!("header says schema {found}, content says {twin}");
            return Err(StoreError::Damaged { path: path.to_path_buf(), what });
        }
    }
    if found > schema.version() {
        return Err(StoreError::Newer { path: path.to_path_buf(), found, supported: schema.version() });
    }
    Ok(true)
}

/// Opens a file that has no writer and no log. Without space for shared memory there is no other way; concurrent
/// writes are not seen.
pub(crate) fn open_frozen(path: &Path) -> Result<Connection, StoreError> {
    let has_log = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    let text = path.to_str().filter(|_| !has_log);
    let text = text.ok_or_else(|| StoreError::Io {
        path: path.to_path_buf(),
        error: io::ErrorKind::StorageFull.into(),
    })?;
    let escaped = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags)
        .map_err(StoreError::database(path))
}

pub(crate) fn version_of(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(StoreError::database(path))
}

/// SQLite gives its log and shared memory the mode of the database. An existing file is not opened here:
/// closing it would drop the locks that a connection of this process holds on it.
pub(crate) fn create_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o600)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::metadata(path)?.permissions().mode() & 0o777 != 0o600 {
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A file of the same database: its log or its shared memory.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Renames a damaged database, with its log, so that a new one can begin. Nothing is deleted.
pub(crate) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = name_aside(path);
    move_to(path, &aside)?;
    Ok(aside)
}

/// A name for a damaged database that no other one has.
pub(crate) fn name_aside(path: &Path) -> PathBuf {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut aside = beside(path, &format!(".damaged-{now_s}"));
    let mut number = 1;
    while aside.exists() {
        aside = beside(path, &format!(".damaged-{now_s}.{number}"));
        number += 1;
    }
    aside
}

pub(crate) fn move_to(path: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(path, aside)?;
    for suffix in ["-wal", "-shm"] {
        match fs::rename(beside(path, suffix), beside(aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
