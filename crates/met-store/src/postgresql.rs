//! The catalogue in PostgreSQL, for more jobs than one file should hold, or where a site keeps its data there.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postgres::config::{Host, SslMode};
use postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};
use postgres::{Client, Config, GenericClient, NoTls, Statement};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::backends::{PostgresServer, certificates, is_loopback};
use crate::error::StoreError;
use crate::sql::{Dialect, Each, Mismatch, Noted, Row, Sql, Value};

/// The first version that there was here, and what turns each into the next. Released ones are never changed.
const FIRST_VERSION: i64 = 3;
const MIGRATIONS: &[&str] = &[
    include_str!("schema/postgres-3.sql"),
    include_str!("schema/postgres-4.sql"),
    include_str!("schema/postgres-5.sql"),
    include_str!("schema/postgres-6.sql"),
    include_str!("schema/postgres-7.sql"),
    include_str!("schema/postgres-8.sql"),
];
const VERSION: i64 = FIRST_VERSION + MIGRATIONS.len() as i64 - 1;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that is gone without a word.
const SILENCE: Duration = Duration::from_secs(30);
const SETTINGS: &str = "-c statement_timeout=60000 -c lock_timeout=30000";
/// Statements that are prepared once; there are some dozens.
const STATEMENTS_MAX: usize = 300;
const ROWS_AT_ONCE: usize = 1_000;

static DIALECT: Dialect = Dialect {
    // As the record is written; these characters cannot occur elsewhere in it. JSON is not read here: a server
    // refuses to read one with a NUL in any of its texts.
    has_gpus: "detail LIKE '%\"gpus\":[{%'",
    numbers: "SELECT json_array_elements_text(?1::text::json)::bigint",
    position: "strpos",
    bytewise: " COLLATE \"C\"",
};

pub(crate) struct Postgres {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    at: String,
    /// Gone while the server is; the next statement tries again.
    session: RefCell<Option<Session>>,
    /// Statements of a transaction belong to the session it began in, and to no later one.
    in_transaction: Cell<bool>,
    noted: RefCell<Noted>,
}

struct Session {
    client: Client,
    statements: HashMap<String, Statement>,
    version: i64,
}

impl PostgresServer {
    /// Says what is wrong with an address.
    pub fn check(url: &str) -> Result<(), String> {
        parse(url).map(drop)
    }
}

/// The configuration in an address, and how it may be shown. What is sent beyond this machine is encrypted.
fn parse(url: &str) -> Result<(Config, String), String> {
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        return Err("this is not an address; write postgres://user@host/database".to_owned());
    }
    // What its reader complains of may hold the password.
    let unreadable =
        |_| "this is not an address of PostgreSQL; write postgres://user@host/database".to_owned();
    let mut config: Config = url.parse().map_err(unreadable)?;
    if config.get_hosts().is_empty() {
        return Err("the address names no host; write postgres://user@host/database".to_owned());
    }
    if config.get_dbname().is_none() || config.get_user().is_none() {
        return Err(
            "the address names no user or no database; write postgres://user@host/database".to_owned()
        );
    }
    let is_here = |host: &Host| match host {
        Host::Tcp(name) => is_loopback(name),
        Host::Unix(_) => true,
    };
    let is_far = !config.get_hosts().iter().all(is_here)
        || config.get_hostaddrs().iter().any(|address| !address.is_loopback());
    match (is_far, config.get_ssl_mode()) {
        (true, SslMode::Disable) => {
            return Err("sslmode=disable: what is sent to another machine must be encrypted".to_owned());
        }
        (true, _) => _ = config.ssl_mode(SslMode::Require),
        // Asked for by name only: a server on this machine need have no certificate.
        (false, SslMode::Prefer) => _ = config.ssl_mode(SslMode::Disable),
        (false, _) => {}
    }
    let host = match &config.get_hosts()[0] {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let at = format!("postgres://{host}/{}", config.get_dbname().unwrap_or_default());
    Ok((config, at))
}

impl Postgres {
    /// Connects, and makes or upgrades the tables.
    pub fn for_writing(server: &PostgresServer) -> Result<Postgres, StoreError> {
        let postgres = Postgres::new(server)?;
        let mut session = postgres.connect()?;
        postgres.migrate(&mut session)?;
        postgres.session.replace(Some(session));
        Ok(postgres)
    }

    /// Connects; `None` if the tables do not exist yet.
    pub fn for_reading(server: &PostgresServer) -> Result<Option<Postgres>, StoreError> {
        let postgres = Postgres::new(server)?;
        let session = postgres.connect()?;
        let there = session.version > 0;
        postgres.session.replace(Some(session));
        Ok(there.then_some(postgres))
    }

    /// Where it is, and what is there.
    pub fn probe(server: &PostgresServer) -> Result<String, StoreError> {
        let postgres = Postgres::new(server)?;
        Ok(match postgres.connect()?.version {
            0 => format!("{}, empty", postgres.at),
            version => format!("{}, schema {version}", postgres.at),
        })
    }

    fn new(server: &PostgresServer) -> Result<Postgres, StoreError> {
        let refuse = |error: String| StoreError::Refused { at: "store.catalogue".to_owned(), error };
        let (mut config, at) = parse(server.url.reveal()).map_err(refuse)?;
        if let Some(password) = &server.password {
            config.password(password.reveal());
        }
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(SILENCE).application_name("met");
        config.options(SETTINGS);
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(tls(server.ca_file.as_deref())?),
        };
        Ok(Postgres {
            config,
            tls,
            at,
            session: RefCell::default(),
            in_transaction: Cell::new(false),
            noted: RefCell::default(),
        })
    }

    fn connect(&self) -> Result<Session, StoreError> {
        let client = match &self.tls {
            Some(tls) => self.config.connect(tls.clone()),
            None => self.config.connect(NoTls),
        };
        let mut client = client.map_err(|error| self.error(&error))?;
        let version = self.version_in(&mut client)?;
        if version > VERSION {
            let path = PathBuf::from(&self.at);
            return Err(StoreError::Newer { path, found: version, supported: VERSION });
        }
        Ok(Session { client, statements: HashMap::new(), version })
    }

    /// 0 where there is nothing.
    fn version_in(&self, client: &mut impl GenericClient) -> Result<i64, StoreError> {
        let find = "SELECT count(*) FROM pg_class WHERE oid = to_regclass('store_version')";
        let known = client.query_one(find, &[]).map_err(|error| self.error(&error))?;
        if known.get::<_, i64>(0) == 0 {
            return Ok(0);
        }
        let version = client.query_one("SELECT version FROM store_version", &[]);
        Ok(version.map_err(|error| self.error(&error))?.get(0))
    }

    fn migrate(&self, session: &mut Session) -> Result<(), StoreError> {
        if session.version == VERSION {
            return Ok(());
        }
        let to_error = |error: postgres::Error| self.error(&error);
        // Undone where this returns early.
        let mut transaction = session.client.transaction().map_err(to_error)?;
        // One at a time: two servers may be started for one database.
        transaction.batch_execute("SELECT pg_advisory_xact_lock(7169396)").map_err(to_error)?;
        let found = self.version_in(&mut transaction)?;
        for sql in MIGRATIONS.iter().skip((found - FIRST_VERSION + 1).max(0) as usize) {
            transaction.batch_execute(sql).map_err(to_error)?;
        }
        let keep = format!("UPDATE store_version SET version = {VERSION}");
        transaction.batch_execute(&keep).map_err(to_error)?;
        transaction.commit().map_err(to_error)?;
        session.version = VERSION;
        Ok(())
    }

    /// Does something with the session, which is there or made.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut Session) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        let mut held = self.session.borrow_mut();
        let session = match &mut *held {
            Some(session) => session,
            None if self.in_transaction.get() => {
                let error = "the connection was lost in a transaction".to_owned();
                return Err(StoreError::Unreachable { at: self.at.clone(), error });
            }
            none => none.insert(self.connect()?),
        };
        let result = work(session);
        // It may say why it ends before it is seen to be closed.
        if session.client.is_closed() || result.as_ref().is_err_and(ends_connection) {
            *held = None;
        }
        result.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &postgres::Error) -> StoreError {
        let at = self.at.clone();
        match error.as_db_error() {
            Some(db) => {
                let error = format!("{} ({})", db.message(), db.code().code());
                // Connections, resources, an operator's hand, a lock or a conflict: it may do later.
                match ["08", "53", "57", "55", "40"].iter().any(|class| db.code().code().starts_with(class)) {
                    true => StoreError::Unreachable { at, error },
                    false => StoreError::Refused { at, error },
                }
            }
            None => {
                let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
                StoreError::Unreachable { at, error: format!("{error}{cause}") }
            }
        }
    }
}

/// Whether nothing comes after this: the server, or the way to it, went away.
fn ends_connection(error: &postgres::Error) -> bool {
    let ends = |code: &str| code.starts_with("08") || code.starts_with("57P");
    error.as_db_error().is_none_or(|reply| ends(reply.code().code()))
}

fn tls(ca_file: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(ca_file)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Refused { at: "TLS".to_owned(), error: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

impl Session {
    fn prepare(&mut self, sql: &str) -> Result<Statement, postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&sql.replace('?', "$"))?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn parameters<'v>(values: &'v [Value<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match *self {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(value) if *kind == Type::INT8 => value.to_sql(kind, out),
            Value::Real(value) if *kind == Type::FLOAT8 => value.to_sql(kind, out),
            // The one character that a text may not have here. The record itself says it in other words.
            Value::Text(text) if text.contains('\0') => text.replace('\0', "\u{fffd}").to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Bytes(bytes) if *kind == Type::BYTEA => bytes.to_sql(kind, out),
            _ => Err(format!("{self:?} is not a {kind}").into()),
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT8, Type::FLOAT8, Type::TEXT, Type::BYTEA].contains(kind)
    }

    to_sql_checked!();
}

impl Row for postgres::Row {
    fn get(&self, at: usize) -> Value<'_> {
        let value = match self.columns().get(at).map(|column| column.type_()) {
            Some(&Type::INT8) => self.try_get::<_, Option<i64>>(at).map(|value| value.map(Value::Integer)),
            Some(&Type::FLOAT8) => self.try_get::<_, Option<f64>>(at).map(|value| value.map(Value::Real)),
            Some(&Type::TEXT) => self.try_get::<_, Option<&str>>(at).map(|value| value.map(Value::Text)),
            Some(&Type::BYTEA) => self.try_get::<_, Option<&[u8]>>(at).map(|value| value.map(Value::Bytes)),
            _ => return Value::Null,
        };
        value.ok().flatten().unwrap_or(Value::Null)
    }
}

impl Sql for Postgres {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn version(&self) -> Result<i64, StoreError> {
        self.with(|session| Ok(session.version))
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        self.with(|session| {
            let statement = session.prepare(sql)?;
            session.client.execute(&statement, &parameters(values))
        })
    }

    fn query(&self, sql: &str, values: &[Value<'_>], each: Each<'_>) -> Result<(), StoreError> {
        let rows = self.with(|session| {
            let statement = session.prepare(sql)?;
            session.client.query(&statement, &parameters(values))
        })?;
        let mismatch = |Mismatch| self.damaged("a value is not of the type of its column");
        rows.iter().try_for_each(|row| each(row).map_err(mismatch))
    }

    /// One statement for many rows: each would be a way to the server and back.
    fn insert(&self, into: &str, width: usize, rows: &[Value<'_>]) -> Result<(), StoreError> {
        for rows in rows.chunks(width * ROWS_AT_ONCE) {
            let row = |first: usize| {
                let marks: Vec<String> = (first..first + width).map(|number| format!("?{number}")).collect();
                format!("({})", marks.join(", "))
            };
            let marks: Vec<String> = (0..rows.len() / width).map(|number| row(number * width + 1)).collect();
            self.execute(&format!("INSERT INTO {into} VALUES {}", marks.join(", ")), rows)?;
        }
        Ok(())
    }

    /// Holds the row of the changes from the first moment: writers are serialised, and each reads what the last
    /// one wrote.
    fn begin(&self, _durable: bool) -> Result<(), StoreError> {
        let begun =
            self.with(|session| session.client.batch_execute("BEGIN; SELECT last FROM change FOR UPDATE"));
        match begun.is_ok() {
            true => self.in_transaction.set(true),
            false => self.rollback(),
        }
        begun
    }

    fn commit(&self) -> Result<(), StoreError> {
        self.with(|session| session.client.batch_execute("COMMIT"))?;
        self.in_transaction.set(false);
        Ok(())
    }

    fn rollback(&self) {
        self.in_transaction.set(false);
        // A session that is gone has taken its transaction with it.
        if let Some(session) = &mut *self.session.borrow_mut() {
            let _ = session.client.batch_execute("ROLLBACK");
        }
    }

    /// Its size is the server administrator's business.
    fn bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    fn give_back(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn noted(&self) -> &RefCell<Noted> {
        &self.noted
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Refused { at: self.at.clone(), error: what.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password_and_needs_tls_beyond_this_machine() {
        let (config, at) = parse("postgres://met:hunter2@db.example:5433/jobs").unwrap();
        assert_eq!((at.as_str(), config.get_ssl_mode()), ("postgres://db.example/jobs", SslMode::Require));
        for url in ["postgres://met@localhost/jobs", "postgresql://met@%2Frun%2Fpostgresql/jobs"] {
            assert_eq!(parse(url).unwrap().0.get_ssl_mode(), SslMode::Disable, "{url}");
        }
        let (config, _) = parse("postgres://met@127.0.0.1/jobs?sslmode=require").unwrap();
        assert_eq!(config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn an_unusable_address_is_refused_with_the_reason() {
        let why = |url: &str| PostgresServer::check(url).unwrap_err();
        assert!(why("host=localhost user=met").contains("postgres://user@host/database"));
        assert!(why("postgres://met@localhost").contains("no database"));
        assert!(why("postgres://localhost/jobs").contains("no user"));
        assert!(why("postgres://met@db.example/jobs?sslmode=disable").contains("must be encrypted"));
        assert!(why("postgres://met@localhost:port/jobs").contains("not an address"));
        // A host beside an address of another machine is not this machine.
        assert!(why("postgres://met@localhost/jobs?hostaddr=10.0.0.1&sslmode=disable").contains("encrypted"));
    }
}
