//! The file itself: making it, recognising it, and what its errors mean.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::store::StoreError;

/// How long one waits for other processes that write to the file.
pub(super) const BUSY: Duration = Duration::from_secs(4);
/// Marks the file as ours (`flcr`); `file` and other programs can see it.
const APPLICATION_ID: i32 = 0x666c_6372;
/// What the tables look like. A file with a higher number is from a later version of fleetcron.
const SCHEMA_VERSION: i32 = 1;

/// `log` holds what each change replaced, so that a reader can look at a revision of a moment ago and a watch
/// can be replayed; everything after `compacted` is in it. The view is for people with `sqlite3`.
const SCHEMA: &str = "
    CREATE TABLE kv (
        key TEXT PRIMARY KEY NOT NULL,
        value BLOB NOT NULL,
        create_revision INTEGER NOT NULL,
        mod_revision INTEGER NOT NULL,
        lease INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX kv_lease ON kv (lease) WHERE lease IS NOT NULL;
    CREATE TABLE log (
        revision INTEGER NOT NULL,
        step INTEGER NOT NULL,
        key TEXT NOT NULL,
        value BLOB,
        create_revision INTEGER,
        lease INTEGER,
        old_value BLOB,
        old_create_revision INTEGER,
        old_mod_revision INTEGER,
        old_lease INTEGER,
        PRIMARY KEY (revision, step)
    ) WITHOUT ROWID;
    CREATE TABLE lease (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        ttl_seconds INTEGER NOT NULL,
        deadline_ms INTEGER NOT NULL,
        boot TEXT NOT NULL
    );
    CREATE TABLE store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        revision INTEGER NOT NULL,
        compacted INTEGER NOT NULL
    );
    INSERT INTO store VALUES (1, 1, 0);
    CREATE VIEW entries AS
        SELECT key, CAST(value AS TEXT) AS value, create_revision, mod_revision, lease FROM kv;
";

/// Opens the file, and makes it first if there is none and `create` says so.
pub(super) fn open(path: &Path, create: bool) -> Result<Connection, StoreError> {
    if !has_content(path)? {
        if !create {
            return Err(StoreError::Missing(name(path)));
        }
        make_private(path).map_err(|error| denied(path, &error))?;
    }
    let mut connection = connect(path)?;
    let was_new = recognise(path, &connection)? == Kind::Empty;
    use_wal(path, &connection)?;
    if was_new {
        make_tables(path, &mut connection)?;
    }
    Ok(connection)
}

/// Another connection to a file that was opened before.
pub(super) fn open_again(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path)?;
    set(path, &connection, "query_only", "ON")?;
    Ok(connection)
}

/// Device and inode: tells a file from another one of the same name.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

pub(super) fn was_replaced(path: &Path) -> StoreError {
    unusable(
        path,
        "the file was removed or replaced while it was in use; put it back, or restart all that has it open",
    )
}

/// Whether there is a file with anything in it.
fn has_content(path: &Path) -> Result<bool, StoreError> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(found.len() > 0),
        Ok(_) => Err(unusable(path, "it is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(denied(path, &error)),
    }
}

/// Who can write to the file can run commands as the daemon's user, so nobody else may even read it.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // SQLite gives the files beside it the same mode.
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| trouble(path, e))?;
    connection.busy_timeout(BUSY).map_err(|e| trouble(path, e))?;
    // A reply means that the change survives the power going.
    set(path, &connection, "synchronous", "FULL")?;
    Ok(connection)
}

#[derive(PartialEq)]
enum Kind {
    Empty,
    Ours,
}

fn recognise(path: &Path, connection: &Connection) -> Result<Kind, StoreError> {
    let number = |sql: &str| -> Result<i32, StoreError> {
        connection.query_row(sql, [], |row| row.get(0)).map_err(|e| trouble(path, e))
    };
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if tables == 0 {
        return Ok(Kind::Empty);
    }
    if number("PRAGMA application_id")? != APPLICATION_ID {
        return Err(unusable(path, "it is an SQLite file of another program"));
    }
    let version = number("PRAGMA user_version")?;
    if version > SCHEMA_VERSION {
        let why = format!(
            "a later fleetcron wrote it (format {version}, and this one knows {SCHEMA_VERSION}); upgrade this one"
        );
        return Err(unusable(path, &why));
    }
    Ok(Kind::Ours)
}

/// With a write-ahead log readers and the writer do not wait for each other.
fn use_wal(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let until = Instant::now() + BUSY;
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let why = format!("its file system allows no write-ahead log (only '{mode}')");
                return Err(unusable(path, &why));
            }
            // SQLite does not wait by itself for this one, when two processes make the file at once.
            Err(error) if is_busy(&error) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(trouble(path, error)),
        }
    }
}

fn make_tables(path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    let make = |connection: &mut Connection| {
        let whole = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have been quicker.
        let tables: i32 = whole.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables == 0 {
            whole.execute_batch(SCHEMA)?;
            whole.pragma_update(None, "application_id", APPLICATION_ID)?;
            whole.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        whole.commit()
    };
    make(connection).map_err(|error| trouble(path, error))
}

fn set(path: &Path, connection: &Connection, pragma: &str, value: &str) -> Result<(), StoreError> {
    connection.pragma_update(None, pragma, value).map_err(|error| trouble(path, error))
}

pub(super) fn name(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn unusable(path: &Path, why: &str) -> StoreError {
    StoreError::Unusable { store: name(path), why: why.to_owned() }
}

fn denied(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Denied { store: name(path), why: error.to_string() }
}

/// What to make of an error of SQLite, where nothing was committed.
pub(super) fn trouble(path: &Path, error: rusqlite::Error) -> StoreError {
    let (store, why) = (name(path), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::NotReached { store, why: format!("another process has kept it locked for {BUSY:?}") }
        }
        Some(ErrorCode::DiskFull) => StoreError::Full { store, why },
        Some(ErrorCode::NotADatabase) => unusable(path, "it is not an SQLite file"),
        Some(ErrorCode::DatabaseCorrupt) => unusable(
            path,
            "it is damaged; stop fleetcron and try `sqlite3 FILE .recover`, or put a backup back",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::Denied { store, why }
        }
        Some(ErrorCode::SystemIoFailure) => StoreError::Unusable { store, why },
        Some(ErrorCode::TooBig) => StoreError::Rejected(why),
        _ => StoreError::Rejected(format!("{store}: {why}")),
    }
}
